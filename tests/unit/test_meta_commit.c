/* SPDX-License-Identifier: Apache-2.0 */
/* meta/ as a whole: group commit, snapshots, numbers, crashes, damage, a full disk. */
#include "base/log.h"
#include "base/thread.h"
#include "meta_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static int get_value(struct meta_db *db, const char *name, uint64_t *ret)
{
	int r = meta_value_get(db, name, ret);

	if (r == -ENOENT) {
		*ret = 0;
		r = 0;
	}
	return r;
}

static int read_count(struct meta_db *db, void *arg)
{
	return get_value(db, "count", arg);
}

static uint64_t count_of(struct meta *m)
{
	uint64_t v;

	CHECK_EQ(read_with(m, read_count, &v), 0);
	return v;
}

static int add_one(struct meta_db *db, void *arg)
{
	uint64_t v;
	int r = get_value(db, "count", &v);

	(void)arg;
	return r < 0 ? r : meta_value_set(db, "count", v + 1);
}

/* -- group commit ----------------------------------------------------------------------------- */

enum { NR_THREADS = 8, NR_OPS = 400 };

enum kind { KIND_GOOD, KIND_REFUSED, KIND_DIRTY, KIND_SQLITE, NR_KINDS };

struct group {
	struct meta *m;
	_Atomic uint64_t nr_good;
	/* used by the leader alone, as the runs and the dones are: */
	uint64_t nr_runs;
	uint64_t last_done;
	bool done_since;
};

struct group_op {
	struct meta_op op; /* first */
	struct group *g;
	enum kind kind;
	uint64_t ran_as; /* the number of its last run */
	int done_with;
	unsigned nr_done;
};

static int group_run(struct meta_db *db, struct meta_op *op)
{
	struct group_op *o = (struct group_op *)op;
	uint64_t v;

	o->ran_as = ++o->g->nr_runs;
	switch (o->kind) {
	case KIND_GOOD:
		return add_one(db, NULL);
	case KIND_REFUSED:
		return -EEXIST;
	case KIND_DIRTY: /* wrote before it failed, which it should not */
		CHECK_EQ(get_value(db, "count", &v), 0);
		CHECK_EQ(meta_value_set(db, "count", v + 1000000), 0);
		return -ENOTEMPTY;
	case KIND_SQLITE: /* too big for SQLite, which sees only the length */
		CHECK_EQ(add_one(db, NULL), 0);
		return meta_xattr_set(db, 1, "user.x", "", (size_t)INT32_MAX);
	case NR_KINDS:
		break;
	}
	return -EINVAL;
}

static void group_done(struct meta_op *op, int r)
{
	struct group_op *o = (struct group_op *)op;

	CHECK(o->ran_as > o->g->last_done); /* in the order of the runs */
	o->g->last_done = o->ran_as;
	o->done_with = r;
	o->nr_done++;
}

static void group_thread(void *arg)
{
	static const int want[NR_KINDS] = { 0, -EEXIST, -ENOTEMPTY, -E2BIG };
	struct group *g = arg;

	for (unsigned i = 0; i < NR_OPS; i++) {
		struct group_op o = {
			.op = { .run = group_run, .done = group_done, .durable = i % 100 == 99 },
			.g = g,
			.kind = i % 16 == 3 ? (enum kind)(i / 16 % NR_KINDS) : KIND_GOOD,
		};
		uint64_t before = atomic_load(&g->nr_good);

		CHECK_EQ(meta_submit(g->m, &o.op), want[o.kind]);
		CHECK_EQ(o.done_with, want[o.kind]);
		CHECK_EQ(o.nr_done, 1);
		if (o.kind == KIND_GOOD)
			(void)atomic_fetch_add(&g->nr_good, 1);
		/* A reader that begins after an acknowledgement sees what was acknowledged. */
		CHECK(count_of(g->m) >= before);
	}
}

static void test_group_commit(void)
{
	struct thread threads[NR_THREADS] = { { .running = false } };
	struct group g = { .nr_runs = 0 };
	struct fixture f;

	fixture_init(&f);
	CHECK(fixture_open(&f));
	g.m = f.m;
	for (unsigned i = 0; i < NR_THREADS; i++)
		CHECK_EQ(thread_start(&threads[i], "group", group_thread, &g), 0);
	for (unsigned i = 0; i < NR_THREADS; i++)
		thread_join(&threads[i]);
	CHECK_EQ(count_of(f.m), atomic_load(&g.nr_good));
	CHECK_EQ(g.last_done, g.nr_runs);
	CHECK_EQ(meta_healthy(f.m), 0);
	fixture_fini(&f);
}

/* -- snapshots -------------------------------------------------------------------------------- */

static void test_snapshot(void)
{
	struct meta_db *old;
	struct fixture f;
	uint64_t v;

	fixture_init(&f);
	(void)fixture_open(&f);
	CHECK_EQ(write_with(f.m, add_one, NULL), 0);
	CHECK_EQ(meta_read_begin(f.m, &old), 0);
	CHECK_EQ(get_value(old, "count", &v), 0);
	CHECK_EQ(v, 1);
	CHECK_EQ(write_with(f.m, add_one, NULL), 0);
	CHECK_EQ(count_of(f.m), 2);
	CHECK_EQ(get_value(old, "count", &v), 0);
	CHECK_EQ(v, 1);
	meta_read_end(f.m, old);
	CHECK_EQ(count_of(f.m), 2);
	fixture_fini(&f);
}

/* -- numbers ---------------------------------------------------------------------------------- */

enum { NR_IDS = 30000 };

struct id_thread {
	struct meta *m;
	uint64_t *ids;
};

static void take_ids(void *arg)
{
	struct id_thread *t = arg;

	for (unsigned i = 0; i < NR_IDS; i++)
		t->ids[i] = meta_next_id(t->m);
}

static int compare_ids(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a;
	uint64_t y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void test_ids(void)
{
	uint64_t *ids = calloc((size_t)NR_THREADS * NR_IDS, sizeof *ids);
	struct thread threads[NR_THREADS] = { { .running = false } };
	struct id_thread args[NR_THREADS];
	uint64_t last = META_ROOT;
	struct fixture f;
	uint64_t seed;

	CHECK(ids);
	fixture_init(&f);
	(void)fixture_open(&f);
	seed = meta_seed(f.m);
	for (unsigned i = 0; i < NR_THREADS; i++) {
		args[i] = (struct id_thread){ f.m, ids + (size_t)i * NR_IDS };
		CHECK_EQ(thread_start(&threads[i], "ids", take_ids, &args[i]), 0);
	}
	for (unsigned i = 0; i < NR_THREADS; i++)
		thread_join(&threads[i]);
	qsort(ids, (size_t)NR_THREADS * NR_IDS, sizeof *ids, compare_ids);
	for (size_t i = 0; i < (size_t)NR_THREADS * NR_IDS; i++) {
		CHECK(ids[i] > last);
		last = ids[i];
	}
	fixture_close(&f);
	CHECK(fixture_open(&f));
	CHECK(meta_next_id(f.m) > last);
	CHECK_EQ(meta_seed(f.m), seed);
	free(ids);
	fixture_fini(&f);
}

/* -- crash ------------------------------------------------------------------------------------ */

/* What the child has seen acknowledged, in memory shared with the parent. */
struct witness {
	_Atomic uint64_t count;
	_Atomic uint64_t last_id;
};

struct crash_thread {
	struct meta *m;
	struct witness *w;
};

static void crash_writer(void *arg)
{
	struct crash_thread *t = arg;

	for (;;) {
		uint64_t id = meta_next_id(t->m);
		uint64_t last = atomic_load(&t->w->last_id);

		while (id > last && !atomic_compare_exchange_weak(&t->w->last_id, &last, id))
			;
		CHECK_EQ(write_with(t->m, add_one, NULL), 0);
		(void)atomic_fetch_add(&t->w->count, 1);
	}
}

static void crash_child(const struct fixture *f, struct witness *w) NORETURN;
static void crash_child(const struct fixture *f, struct witness *w)
{
	struct thread threads[2] = { { .running = false } };
	struct crash_thread t = { .w = w };

	CHECK_EQ(meta_open(f->path, NULL, &t.m), 0);
	for (unsigned i = 0; i < 2; i++)
		CHECK_EQ(thread_start(&threads[i], "crash", crash_writer, &t), 0);
	for (;;)
		(void)pause();
}

static void test_crash(void)
{
	struct witness *w =
		mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct fixture f;
	uint64_t before = 0;

	CHECK(w != MAP_FAILED);
	fixture_init(&f);
	for (int round = 0; round < 8; round++) {
		uint64_t goal = atomic_load(&w->count) + 150 + (uint64_t)round * 37;
		pid_t pid = fork();
		int status;

		CHECK(pid >= 0);
		if (pid == 0)
			crash_child(&f, w);
		while (atomic_load(&w->count) < goal)
			CHECK_EQ(waitpid(pid, &status, WNOHANG), 0);
		CHECK_EQ(kill(pid, SIGKILL), 0);
		CHECK_EQ(waitpid(pid, &status, 0), pid);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		CHECK(!fixture_open(&f));
		/* Each thread may have one commit that it did not live to acknowledge. */
		uint64_t now = count_of(f.m);

		CHECK(now >= atomic_load(&w->count));
		CHECK(now - before <= atomic_load(&w->count) - before + 2);
		CHECK(meta_next_id(f.m) > atomic_load(&w->last_id));
		fixture_close(&f);
		CHECK(fixture_open(&f));
		fixture_close(&f);
		atomic_store(&w->count, now);
		before = now;
	}
	CHECK_EQ(munmap(w, sizeof *w), 0);
	fixture_fini(&f);
}

/* -- files that are none of ours -------------------------------------------------------------- */

static void patch(const char *path, off_t off, const void *bytes, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	CHECK(fd >= 0);
	CHECK_EQ(pwrite(fd, bytes, len, off), (ssize_t)len);
	CHECK_EQ(close(fd), 0);
}

static void test_bad_files(void)
{
	static const char text[] =
		"This is a shopping list, not a database, though it is long enough "
		"to hold the header of one: milk, eggs, flour, butter, salt, rice.";
	static const char version_2[4] = { 0, 0, 0, 2 };
	static const char application[4] = { 'n', 'o', 'n', 'e' };
	struct fixture f;

	fixture_init(&f);
	patch(f.path, 0, text, sizeof text);
	CHECK_EQ(meta_open(f.path, NULL, &f.m), -EUCLEAN);
	CHECK_EQ(unlink(f.path), 0);

	(void)fixture_open(&f);
	fixture_close(&f);
	patch(f.path, 60, version_2, 4); /* user_version in the header of the file */
	CHECK_EQ(meta_open(f.path, NULL, &f.m), -EPROTONOSUPPORT);
	patch(f.path, 60, (const char[4]){ 0, 0, 0, 1 }, 4);
	CHECK(fixture_open(&f)); /* unharmed, and still clean */
	fixture_close(&f);
	patch(f.path, 68, application, 4);
	CHECK_EQ(meta_open(f.path, NULL, &f.m), -EUCLEAN);
	CHECK_EQ(unlink(f.path), 0);

	CHECK_EQ(meta_open(f.dir, NULL, &f.m), -EISDIR);
	CHECK_EQ(meta_open("/nonexistent/meta.db", NULL, &f.m), -ENOENT);
	CHECK(!f.m);
	fixture_fini(&f);
}

static void unclean_child(const struct fixture *f) NORETURN;
static void unclean_child(const struct fixture *f)
{
	struct meta *m;

	_exit(meta_open(f->path, NULL, &m) == 0 ? 0 : 1);
}

static void test_damage(void)
{
	static char noise[16 * 4096];
	struct fixture f;
	int status;

	memset(noise, 0xa5, sizeof noise);
	fixture_init(&f);
	(void)fixture_open(&f);
	fixture_close(&f);
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		unclean_child(&f);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	/* The table of objects, which no opening reads; after an unclean end it is looked at. */
	patch(f.path, 4096, noise, 4096);
	CHECK_EQ(meta_open(f.path, NULL, &f.m), -EUCLEAN);
	CHECK_EQ(meta_open(f.path, NULL, &f.m), -EUCLEAN);
	fixture_fini(&f);

	fixture_init(&f);
	(void)fixture_open(&f);
	fixture_close(&f);
	patch(f.path, 4096, noise, sizeof noise);
	CHECK_EQ(meta_open(f.path, NULL, &f.m), -EUCLEAN);
	fixture_fini(&f);
}

/* -- full disk -------------------------------------------------------------------------------- */

static int add_big(struct meta_db *db, void *arg)
{
	static char big[60000];
	uint64_t *id = arg;

	for (size_t i = 0; i < sizeof big; i += 4096)
		big[i]++; /* SQLite does not write a page that stays the same */
	return meta_xattr_set(db, ++*id, "user.big", big, sizeof big);
}

static int count_xattr(struct meta_db *db, void *arg)
{
	uint64_t *id = arg;
	size_t len;

	return meta_xattr_get(db, *id, "user.big", NULL, 0, &len);
}

/* A limit of the file's size stands for the full disk: it needs no privilege and can be lifted
 * again. */
static void test_full_disk(void)
{
	struct rlimit old;
	struct fixture f;
	uint64_t id = 0;
	int r;

	CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
	CHECK_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
	fixture_init(&f);
	(void)fixture_open(&f);
	struct rlimit low = { 2 << 20, old.rlim_max };

	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
	do {
		r = write_with(f.m, add_big, &id);
		CHECK(id < 1000);
	} while (r == 0);
	CHECK_EQ(r, -ENOSPC);
	CHECK_EQ(meta_admits(f.m), -ENOSPC);
	CHECK_EQ(read_with(f.m, count_xattr, &id), -ENODATA);
	id -= 2; /* the last one was tried again with the ballast let go, which the limit does not care about */
	CHECK_EQ(read_with(f.m, count_xattr, &id), 0);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
	CHECK_EQ(meta_probe(f.m), 0);
	CHECK_EQ(meta_healthy(f.m), 0);
	for (int i = 0; i < 20; i++)
		CHECK_EQ(write_with(f.m, add_big, &id), 0);
	fixture_close(&f);
	CHECK(fixture_open(&f));
	for (uint64_t i = 1; i <= id; i++)
		CHECK_EQ(read_with(f.m, count_xattr, &i), 0);
	fixture_fini(&f);
}

/* -- the WAL stays bounded -------------------------------------------------------------------- */

/* More is written than the WAL may hold, without a pause: the thread must make room meanwhile. */
struct steady {
	struct meta *m;
	_Atomic bool stop;
};

static void steady_reader(void *arg)
{
	struct steady *s = arg;

	for (uint64_t id = 0; !atomic_load(&s->stop); id++) {
		uint64_t object = id % 50;

		int r = read_with(s->m, count_xattr, &object);

		CHECK(r == 0 || r == -ENODATA);
	}
}

static uint64_t size_of(const char *path, const char *suffix)
{
	char full[128];
	struct stat st;

	(void)snprintf(full, sizeof full, "%s%s", path, suffix);
	CHECK_EQ(stat(full, &st), 0);
	return (uint64_t)st.st_size;
}

/* The log starts again from its beginning, although somebody reads and somebody writes all the time. */
static void test_wal_bounded(void)
{
	struct thread readers[3] = { { .running = false } };
	struct steady s = { .stop = false };
	struct fixture f;

	fixture_init(&f);
	(void)fixture_open(&f);
	s.m = f.m;
	for (size_t i = 0; i < 3; i++)
		CHECK_EQ(thread_start(&readers[i], "reader", steady_reader, &s), 0);
	for (int i = 0; i < 6000; i++) { /* 16 pages each: 375 MiB */
		uint64_t id = (uint64_t)i % 50;

		CHECK_EQ(write_with(f.m, add_big, &id), 0);
	}
	atomic_store(&s.stop, true);
	for (size_t i = 0; i < 3; i++)
		thread_join(&readers[i]);
	CHECK(size_of(f.path, "-wal") < 180 << 20);
	CHECK(size_of(f.path, "") < 50 << 20);
	fixture_fini(&f);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*fn)(void);
	} tests[] = {
		{ "group", test_group_commit },
		{ "snapshot", test_snapshot },
		{ "ids", test_ids },
		{ "crash", test_crash },
		{ "files", test_bad_files },
		{ "damage", test_damage },
		{ "full", test_full_disk },
		{ "wal", test_wal_bounded },
	};

	/* What is provoked here is logged as errors; -v shows them. */
	log_open(false, argc > 1 ? LOG_DEBUG : LOG_EMERG);
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (argc < 3 || strcmp(argv[2], tests[i].name) == 0)
			tests[i].fn();
	return 0;
}
