/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of meta/, one by one: what is written is read back, by the writer and by a reader. */
#include "base/log.h"
#include "meta_fixture.h"

#include <errno.h>
#include <sys/stat.h>

static const struct object_row sample = {
	.id = 77,
	.gen = 78,
	.mode = S_IFREG | 0640,
	.uid = UINT32_MAX - 1,
	.gid = 12,
	.nlink = 2,
	.size_bytes = UINT64_MAX / 2 + 5,
	.atime_ns = -1,
	.mtime_ns = INT64_MIN,
	.ctime_ns = INT64_MAX,
	.btime_ns = 4,
	.parent = META_ROOT,
	.hash = INT64_MAX,
	.flags = 0x80000001U,
	.pin_until_ns = UINT64_MAX,
	.memory_bytes = 4096,
	.has_memory = true,
	.heat_list = 1,
	.heat_run = UINT64_MAX - 2,
	.heat_depth = UINT32_MAX,
};

static void check_same(const struct object_row *a, const struct object_row *b)
{
	CHECK_EQ(a->id, b->id);
	CHECK_EQ(a->gen, b->gen);
	CHECK_EQ(a->mode, b->mode);
	CHECK_EQ(a->uid, b->uid);
	CHECK_EQ(a->gid, b->gid);
	CHECK_EQ(a->nlink, b->nlink);
	CHECK_EQ(a->size_bytes, b->size_bytes);
	CHECK_EQ(a->atime_ns, b->atime_ns);
	CHECK_EQ(a->mtime_ns, b->mtime_ns);
	CHECK_EQ(a->ctime_ns, b->ctime_ns);
	CHECK_EQ(a->btime_ns, b->btime_ns);
	CHECK_EQ(a->parent, b->parent);
	CHECK_EQ(a->hash, b->hash);
	CHECK_EQ(a->flags, b->flags);
	CHECK_EQ(a->pin_until_ns, b->pin_until_ns);
	CHECK_EQ(a->memory_bytes, b->memory_bytes);
	CHECK_EQ(a->has_memory, b->has_memory);
	CHECK_EQ(a->heat_list, b->heat_list);
	CHECK_EQ(a->heat_run, b->heat_run);
	CHECK_EQ(a->heat_depth, b->heat_depth);
}

/* -- object ----------------------------------------------------------------------------------- */

struct id_list {
	uint64_t ids[8];
	unsigned nr;
	unsigned stop_at;
};

static bool collect_id(void *arg, const struct object_row *row)
{
	struct id_list *l = arg;

	CHECK(row->has_memory);
	l->ids[l->nr++] = row->id;
	return l->nr != l->stop_at;
}

static int object_write(struct meta_db *db, void *arg)
{
	struct object_row row = sample;
	struct object_row got;

	(void)arg;
	CHECK_EQ(meta_object_get(db, row.id, &got), -ENOENT);
	CHECK_EQ(meta_object_set(db, &row), -ENOENT);
	CHECK_EQ(meta_object_del(db, row.id), -ENOENT);
	CHECK_EQ(meta_object_touch_dir(db, row.id, 1, 1), -ENOENT);
	CHECK_EQ(meta_object_heat(db, row.id, 1, 1, 1), 0);
	CHECK_EQ(meta_object_put(db, &row), 0);
	CHECK_EQ(meta_object_put(db, &row), -EEXIST);
	CHECK_EQ(meta_object_get(db, row.id, &got), 0);
	check_same(&got, &row);

	row = (struct object_row){ .id = 77, .gen = 99, .mode = S_IFREG, .heat_list = 5 };
	CHECK_EQ(meta_object_set(db, &row), 0);
	CHECK_EQ(meta_object_get(db, row.id, &got), 0);
	row.heat_list = sample.heat_list; /* set leaves the heat alone */
	row.heat_run = sample.heat_run;
	row.heat_depth = sample.heat_depth;
	check_same(&got, &row);
	CHECK_EQ(meta_object_heat(db, row.id, 2, 3, 4), 0);
	CHECK_EQ(meta_object_touch_dir(db, row.id, 1234, 3), 0);
	CHECK_EQ(meta_object_touch_dir(db, row.id, 1235, -1), 0);
	CHECK_EQ(meta_object_get(db, row.id, &got), 0);
	row.heat_list = 2;
	row.heat_run = 3;
	row.heat_depth = 4;
	row.mtime_ns = 1235;
	row.ctime_ns = 1235;
	row.nlink = 2;
	check_same(&got, &row);
	for (uint64_t id = 100; id < 106; id++) {
		row.id = id;
		row.has_memory = id % 2 == 0;
		CHECK_EQ(meta_object_put(db, &row), 0);
	}
	return 0;
}

static int object_read(struct meta_db *db, void *arg)
{
	struct id_list all = { .nr = 0 };
	struct id_list some = { .stop_at = 1 };
	struct object_row root;
	uint64_t nr;

	(void)arg;
	CHECK_EQ(meta_object_scan(db, 0, collect_id, &all), 0);
	CHECK_EQ(all.nr, 3);
	CHECK_EQ(all.ids[0], 100);
	CHECK_EQ(all.ids[1], 102);
	CHECK_EQ(all.ids[2], 104);
	CHECK_EQ(meta_object_scan(db, 100, collect_id, &some), 0);
	CHECK_EQ(some.nr, 1);
	CHECK_EQ(some.ids[0], 102);
	CHECK_EQ(meta_object_count(db, &nr), 0);
	CHECK_EQ(nr, 8);
	CHECK_EQ(meta_object_get(db, META_ROOT, &root), 0);
	CHECK_EQ(root.mode, S_IFDIR | 0755);
	CHECK_EQ(root.uid, geteuid());
	CHECK_EQ(root.gid, getegid());
	CHECK_EQ(root.nlink, 2);
	CHECK(root.btime_ns > 0 && root.mtime_ns == root.btime_ns);
	return 0;
}

/* -- dentry ----------------------------------------------------------------------------------- */

enum { NR_DENTRIES = 20 };

struct dentry_list {
	uint64_t last;
	unsigned nr;
	unsigned stop_at;
};

static bool collect_dentry(void *arg, const struct dentry_row *row, struct name name)
{
	struct dentry_list *l = arg;

	CHECK_EQ(row->parent, 5);
	CHECK_EQ(row->mode, S_IFREG);
	CHECK(row->hash > l->last);
	CHECK_EQ(row->object, row->hash + 1000);
	CHECK_EQ(name.len, row->hash);
	l->last = row->hash;
	l->nr++;
	return l->nr != l->stop_at;
}

static int dentry_fill(struct meta_db *db, void *arg)
{
	static char longest[NAME_MAX_BYTES];
	struct dentry_row row = { .parent = 6, .hash = 3, .object = 7, .mode = S_IFDIR };

	(void)arg;
	memset(longest, 'n', sizeof longest);
	CHECK_EQ(meta_dentry_any(db, 5), -ENOENT);
	for (unsigned i = 1; i <= NR_DENTRIES; i++) {
		/* written in another order than they are listed */
		uint64_t h = i * 8 % (NR_DENTRIES + 1);
		struct dentry_row d = { 5, h, h + 1000, S_IFREG };

		CHECK_EQ(meta_dentry_put(db, &d, (struct name){ longest, h }), 0);
	}
	CHECK_EQ(meta_dentry_any(db, 5), 0);
	CHECK_EQ(meta_dentry_any(db, 4), -ENOENT);
	CHECK_EQ(meta_dentry_any(db, 6), -ENOENT);
	/* same hash, other names: each its own entry */
	CHECK_EQ(meta_dentry_put(db, &row, name_of("one")), 0);
	CHECK_EQ(meta_dentry_put(db, &row, name_of("one")), -EEXIST);
	row.object = 8;
	CHECK_EQ(meta_dentry_put(db, &row, name_of("two")), 0);
	row.object = 9;
	row.hash = INT64_MAX;
	CHECK_EQ(meta_dentry_put(db, &row, (struct name){ longest, sizeof longest }), 0);
	return 0;
}

static int dentry_read(struct meta_db *db, void *arg)
{
	static char buf[NAME_MAX_BYTES];
	struct dentry_list all = { .last = 0 };
	struct dentry_list some = { .last = 10, .stop_at = 3 };
	struct dentry_row got;
	size_t len;

	(void)arg;
	CHECK_EQ(meta_dentry_scan(db, 5, 0, collect_dentry, &all), 0);
	CHECK_EQ(all.nr, NR_DENTRIES);
	CHECK_EQ(meta_dentry_scan(db, 5, 10, collect_dentry, &some), 0);
	CHECK_EQ(some.nr, 3);
	CHECK_EQ(some.last, 13);
	CHECK_EQ(meta_dentry_get(db, 6, 3, name_of("two"), &got), 0);
	CHECK_EQ(got.object, 8);
	CHECK_EQ(got.mode, S_IFDIR);
	CHECK_EQ(got.parent, 6);
	CHECK_EQ(got.hash, 3);
	CHECK_EQ(meta_dentry_get(db, 6, 3, name_of("three"), &got), -ENOENT);
	CHECK_EQ(meta_dentry_get(db, 6, 4, name_of("two"), &got), -ENOENT);
	CHECK_EQ(meta_dentry_get(db, 7, 3, name_of("two"), &got), -ENOENT);
	CHECK_EQ(meta_dentry_name(db, 6, 3, 7, buf, &len), 0);
	CHECK(len == 3 && memcmp(buf, "one", 3) == 0);
	CHECK_EQ(meta_dentry_name(db, 6, 3, 9, buf, &len), -ENOENT);
	CHECK_EQ(meta_dentry_name(db, 6, INT64_MAX, 9, buf, &len), 0);
	CHECK_EQ(len, NAME_MAX_BYTES);
	CHECK(buf[0] == 'n' && buf[NAME_MAX_BYTES - 1] == 'n');
	return 0;
}

static int dentry_change(struct meta_db *db, void *arg)
{
	struct dentry_row row = { .parent = 6, .hash = 3, .object = 70, .mode = S_IFLNK };
	struct dentry_row got;

	(void)arg;
	CHECK_EQ(meta_dentry_set(db, &row, name_of("none")), -ENOENT);
	CHECK_EQ(meta_dentry_set(db, &row, name_of("one")), 0);
	CHECK_EQ(meta_dentry_get(db, 6, 3, name_of("one"), &got), 0);
	CHECK(got.object == 70 && got.mode == S_IFLNK);
	CHECK_EQ(meta_dentry_get(db, 6, 3, name_of("two"), &got), 0);
	CHECK_EQ(got.object, 8);
	CHECK_EQ(meta_dentry_del(db, 6, 3, name_of("one")), 0);
	CHECK_EQ(meta_dentry_del(db, 6, 3, name_of("one")), -ENOENT);
	CHECK_EQ(meta_dentry_get(db, 6, 3, name_of("two"), &got), 0);
	return 0;
}

/* -- the other tables ------------------------------------------------------------------------- */

static bool collect_link(void *arg, struct link_row l)
{
	uint64_t *sum = arg;

	*sum = *sum * 100 + l.parent * 10 + l.hash;
	return true;
}

static int link_rows(struct meta_db *db, void *arg)
{
	uint64_t sum = 0;

	(void)arg;
	CHECK_EQ(meta_link_put(db, 50, (struct link_row){ 2, 1 }), 0);
	CHECK_EQ(meta_link_put(db, 50, (struct link_row){ 1, 9 }), 0);
	CHECK_EQ(meta_link_put(db, 50, (struct link_row){ 1, 9 }), -EEXIST);
	CHECK_EQ(meta_link_put(db, 51, (struct link_row){ 1, 9 }), 0);
	CHECK_EQ(meta_link_scan(db, 50, collect_link, &sum), 0);
	CHECK_EQ(sum, 1921);
	CHECK_EQ(meta_link_del(db, 50, (struct link_row){ 1, 8 }), -ENOENT);
	CHECK_EQ(meta_link_del(db, 50, (struct link_row){ 1, 9 }), 0);
	sum = 0;
	CHECK_EQ(meta_link_scan(db, 50, collect_link, &sum), 0);
	CHECK_EQ(sum, 21);
	return 0;
}

static int target_rows(struct meta_db *db, void *arg)
{
	static char target[PATH_MAX];
	static char buf[PATH_MAX];
	size_t len;

	(void)arg;
	memset(target, 't', sizeof target);
	CHECK_EQ(meta_target_get(db, 60, buf, sizeof buf, &len), -ENOENT);
	CHECK_EQ(meta_target_put(db, 60, target, sizeof target), 0);
	CHECK_EQ(meta_target_put(db, 60, "x", 1), -EEXIST);
	CHECK_EQ(meta_target_get(db, 60, buf, sizeof buf, &len), 0);
	CHECK(len == PATH_MAX && memcmp(buf, target, len) == 0);
	memset(buf, 0, sizeof buf);
	CHECK_EQ(meta_target_get(db, 60, buf, 3, &len), 0);
	CHECK(len == PATH_MAX && buf[2] == 't' && buf[3] == 0);
	return 0;
}

struct name_list {
	char s[64]; /* one after the other; zeroed */
	size_t len;
};

static bool collect_name(void *arg, const char *name)
{
	struct name_list *l = arg;
	size_t len = strlen(name);

	CHECK(l->len + len < sizeof l->s);
	memcpy(l->s + l->len, name, len);
	l->len += len;
	return true;
}

static int xattr_rows(struct meta_db *db, void *arg)
{
	static char big[65536];
	char buf[16];
	struct name_list names = { .len = 0 };
	size_t len = 1;

	(void)arg;
	CHECK_EQ(meta_xattr_get(db, 70, "user.a", buf, sizeof buf, &len), -ENODATA);
	CHECK_EQ(meta_xattr_set(db, 70, "user.b", "12345", 5), 0);
	CHECK_EQ(meta_xattr_set(db, 70, "user.a", "first", 5), 0);
	CHECK_EQ(meta_xattr_set(db, 70, "user.a", "no\0w", 4), 0);
	CHECK_EQ(meta_xattr_set(db, 70, "user.empty", NULL, 0), 0);
	CHECK_EQ(meta_xattr_set(db, 71, "user.big", big, sizeof big), 0);
	CHECK_EQ(meta_xattr_get(db, 70, "user.a", buf, sizeof buf, &len), 0);
	CHECK(len == 4 && memcmp(buf, "no\0w", 4) == 0);
	CHECK_EQ(meta_xattr_get(db, 70, "user.b", buf, 5, &len), 0);
	CHECK_EQ(meta_xattr_get(db, 70, "user.b", buf, 4, &len), -ERANGE);
	CHECK_EQ(meta_xattr_get(db, 70, "user.empty", buf, sizeof buf, &len), 0);
	CHECK_EQ(len, 0);
	CHECK_EQ(meta_xattr_get(db, 71, "user.big", NULL, 0, &len), 0);
	CHECK_EQ(len, sizeof big);
	CHECK_EQ(meta_xattr_scan(db, 70, collect_name, &names), 0);
	CHECK(strcmp(names.s, "user.auser.buser.empty") == 0);
	CHECK_EQ(meta_xattr_del(db, 70, "user.a"), 0);
	CHECK_EQ(meta_xattr_del(db, 70, "user.a"), -ENODATA);
	return 0;
}

/* Deleting an object takes along what belongs to it and nothing else. */
static int object_delete(struct meta_db *db, void *arg)
{
	struct object_row row = { .id = 80 };
	uint64_t sum = 0;
	char buf[8];
	size_t len;

	(void)arg;
	CHECK_EQ(meta_object_put(db, &row), 0);
	row.id = 81;
	CHECK_EQ(meta_object_put(db, &row), 0);
	for (uint64_t id = 80; id <= 81; id++) {
		CHECK_EQ(meta_xattr_set(db, id, "user.x", "1", 1), 0);
		CHECK_EQ(meta_target_put(db, id, "t", 1), 0);
		CHECK_EQ(meta_link_put(db, id, (struct link_row){ 1, 1 }), 0);
	}
	CHECK_EQ(meta_object_del(db, 80), 0);
	CHECK_EQ(meta_object_get(db, 80, &row), -ENOENT);
	CHECK_EQ(meta_xattr_get(db, 80, "user.x", buf, sizeof buf, &len), -ENODATA);
	CHECK_EQ(meta_target_get(db, 80, buf, sizeof buf, &len), -ENOENT);
	CHECK_EQ(meta_link_scan(db, 80, collect_link, &sum), 0);
	CHECK_EQ(sum, 0);
	CHECK_EQ(meta_object_get(db, 81, &row), 0);
	CHECK_EQ(meta_xattr_get(db, 81, "user.x", buf, sizeof buf, &len), 0);
	CHECK_EQ(meta_target_get(db, 81, buf, sizeof buf, &len), 0);
	CHECK_EQ(meta_link_scan(db, 81, collect_link, &sum), 0);
	CHECK_EQ(sum, 11);
	return 0;
}

static bool collect_ghost(void *arg, uint64_t hash, uint64_t bytes, uint64_t seq)
{
	uint64_t *sum = arg;

	CHECK_EQ(bytes, hash * 10);
	*sum = *sum * 100 + seq;
	return true;
}

static int ghost_rows(struct meta_db *db, void *arg)
{
	uint64_t sum = 0;

	(void)arg;
	CHECK_EQ(meta_ghost_put(db, 5, 50, 13), 0);
	CHECK_EQ(meta_ghost_put(db, 6, 0, 1), 0);
	CHECK_EQ(meta_ghost_put(db, 6, 60, 12), 0);
	CHECK_EQ(meta_ghost_put(db, 7, 70, 11), 0);
	CHECK_EQ(meta_ghost_put(db, 8, 80, 14), 0);
	CHECK_EQ(meta_ghost_scan(db, collect_ghost, &sum), 0);
	CHECK_EQ(sum, 11121314);
	CHECK_EQ(meta_ghost_del(db, 5), 0);
	CHECK_EQ(meta_ghost_del(db, 5), 0);
	CHECK_EQ(meta_ghost_trim(db, 12), 0);
	CHECK_EQ(meta_ghost_trim(db, 12), 0);
	sum = 0;
	CHECK_EQ(meta_ghost_scan(db, collect_ghost, &sum), 0);
	CHECK_EQ(sum, 1214);
	return 0;
}

static int value_rows(struct meta_db *db, void *arg)
{
	uint64_t v;

	(void)arg;
	CHECK_EQ(meta_value_get(db, "test", &v), -ENOENT);
	CHECK_EQ(meta_value_set(db, "test", 1), 0);
	CHECK_EQ(meta_value_set(db, "test", UINT64_MAX), 0);
	CHECK_EQ(meta_value_get(db, "test", &v), 0);
	CHECK_EQ(v, UINT64_MAX);
	return 0;
}

int main(void)
{
	static int (*const writes[])(struct meta_db * db, void *arg) = {
		dentry_change, link_rows,  target_rows, xattr_rows,
		object_delete, ghost_rows, value_rows,
	};
	struct fixture f;

	log_open(false, LOG_WARNING);
	fixture_init(&f);
	CHECK(fixture_open(&f));
	CHECK_EQ(write_with(f.m, object_write, NULL), 0);
	CHECK_EQ(read_with(f.m, object_read, NULL), 0);
	CHECK_EQ(write_with(f.m, dentry_fill, NULL), 0);
	CHECK_EQ(read_with(f.m, dentry_read, NULL), 0);
	for (size_t i = 0; i < sizeof writes / sizeof *writes; i++)
		CHECK_EQ(write_with(f.m, writes[i], NULL), 0);
	fixture_fini(&f);
	return 0;
}
