/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes: stat, chmod, chown, utimens, truncate, statfs. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

struct store_op {
	struct meta_op op;
	struct object_row row;
};

/* Columns that other operations own (names, current version) are taken from the database. */
static int store_run(struct meta_db *db, struct meta_op *op)
{
	struct store_op *s = (struct store_op *)op;
	struct object_row row;
	int r = meta_object_get(db, s->row.id, &row);

	if (r < 0 || row.gen != s->row.gen)
		return r < 0 && r != -ENOENT ? r : 0;
	row.mode = s->row.mode;
	row.uid = s->row.uid;
	row.gid = s->row.gid;
	row.size_bytes = s->row.size_bytes;
	row.atime_ns = s->row.atime_ns;
	row.mtime_ns = s->row.mtime_ns;
	row.ctime_ns = s->row.ctime_ns;
	row.flags = s->row.flags;
	row.pin_until_ns = s->row.pin_until_ns;
	row.memory_bytes = s->row.memory_bytes;
	return meta_object_set(db, &row);
}

int row_store(struct cache *c, struct node *n)
{
	struct store_op s = { .op = { .run = store_run } };
	struct cache_attr a;

	mutex_lock(&c->lock);
	bool published = n->state == NODE_COMPLETE;

	node_attr(c, n, &a);
	if (S_ISREG(n->type)) {
		n->row.size_bytes = (uint64_t)a.st.st_size;
		n->row.memory_bytes = (uint64_t)a.st.st_blocks * 512;
		n->row.mtime_ns = timespec_ns(a.st.st_mtim);
		n->row.ctime_ns = timespec_ns(a.st.st_ctim);
		if (published)
			policy_settle(c->policy, n->row.id, n->row.memory_bytes);
	}
	s.row = n->row;
	mutex_unlock(&c->lock);
	return published ? meta_submit(c->meta, &s.op) : 0;
}

int cache_getattr(struct cache *c, struct caller who, uint64_t node, struct cache_attr *ret)
{
	struct node *n = node_get(c, node);
	int r = !n || node_hidden(c, n, who) ? -ESTALE : 0;

	if (r == 0) {
		mutex_lock(&c->lock);
		node_attr(c, n, ret);
		note_stat(c, who, n);
		mutex_unlock(&c->lock);
	}
	if (n)
		node_put(c, n);
	return r;
}

static int set_size(struct cache *c, struct caller who, struct node *n, struct handle *h,
		    uint64_t size_bytes)
{
	AUTO_CLOSE int own = -1;
	struct cache_attr a;
	int fd = -1;
	int r = 0;

	mutex_lock(&c->lock);
	node_attr(c, n, &a);
	bool fixed =
		n->state == NODE_COMPLETE && !(n->row.flags & OBJECT_IN_PLACE) && n->nr_write == 0;

	/* By path, of a published version: the change belongs to a version of its own. */
	if (n->spare)
		r = spare_claim(c, who, n, O_RDWR);
	else if (fixed && (uint64_t)a.st.st_size != size_bytes)
		r = send_round(c, who, n, O_RDWR, true);
	mutex_unlock(&c->lock);
	if (r < 0 || (fixed && (uint64_t)a.st.st_size == size_bytes))
		return r;
	if (h) {
		r = handle_fd_write(c, h, &fd);
	} else {
		r = version_bytes(c, n);
		if (r == 0)
			r = memory_get(c->memory, node_id(n), O_RDWR, &own);
		fd = own;
	}
	if (r == 0 && ftruncate(fd, (off_t)size_bytes) < 0)
		r = -errno;
	return r;
}

/* truncate(2) by path ended a round: the version was made for it alone. */
static int end_truncate(struct cache *c, struct caller who, struct node *n)
{
	mutex_lock(&c->lock);
	bool mine =
		n->state == NODE_PROCESSING && n->pending && n->nr_open == 0 && n->nr_reserved <= 1;
	struct retry *again = retry_find(c, who.tid);

	n->written = true;
	n->opened = true;
	n->by_user |= who.uid != 0;
	n->refs++;
	mutex_unlock(&c->lock);
	int r = mine ? publish(c, n, &(struct publish_at){ 0 }) : 0;

	mutex_lock(&c->lock);
	if (again && again == retry_find(c, who.tid))
		retry_drop(c, again);
	n->refs--;
	mutex_unlock(&c->lock);
	return r == -EALREADY ? 0 : r;
}

static int set_file_times(struct cache *c, struct node *n, const struct cache_setattr *s)
{
	struct timespec ts[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_nsec = UTIME_OMIT } };
	int fd = -1;

	if (s->set & SET_ATIME)
		ts[0] = ns_timespec(s->atime_ns);
	if (s->set & SET_MTIME)
		ts[1] = ns_timespec(s->mtime_ns);
	mutex_lock(&c->lock);
	if (n->fd >= 0 && !n->base_gen)
		fd = fcntl(n->fd, F_DUPFD_CLOEXEC, 0);
	mutex_unlock(&c->lock);
	if (fd < 0 && memory_get(c->memory, node_id(n), O_RDONLY, &fd) < 0)
		return 0; /* no bytes of its own yet: the row has the times */
	int r = futimens(fd, ts) < 0 ? -errno : 0;

	(void)close(fd);
	return r;
}

static void set_row(struct object_row *row, const struct cache_setattr *s)
{
	int64_t now = clock_real_ns();

	if (s->set & SET_MODE)
		row->mode = (row->mode & S_IFMT) | (s->mode & 07777);
	if (s->set & SET_UID)
		row->uid = s->uid;
	if (s->set & SET_GID)
		row->gid = s->gid;
	/* A change of owner ends set-id (chown(2)); with FUSE_HANDLE_KILLPRIV_V2 that is the filesystem's to do. */
	if ((s->set & (SET_UID | SET_GID)) && !(s->set & SET_MODE) && S_ISREG(row->mode))
		row->mode &= ~(uint32_t)(S_ISUID | ((row->mode & S_IXGRP) ? S_ISGID : 0));
	if (s->set & SET_ATIME)
		row->atime_ns = s->atime_ns;
	if (s->set & SET_MTIME)
		row->mtime_ns = s->mtime_ns;
	row->ctime_ns = s->set & SET_CTIME ? s->ctime_ns : now;
}

/* touch(1), chmod and chown through a descriptor open for writing do not write to the version, and if nothing ever does, the
 * attributes are those of the one before. That published version, with a reference; NULL when @n shares no bytes with it.
 */
static struct node *base_node(struct cache *c, struct node *n)
{
	struct object_row row = { 0 };
	struct meta_db *db;

	mutex_lock(&c->lock);
	bool shares = n->state == NODE_PROCESSING && n->base_gen;

	mutex_unlock(&c->lock);
	if (!shares || meta_read_begin(c->meta, &db) < 0)
		return NULL;
	int r = meta_object_get(db, n->row.id, &row);

	meta_read_end(c->meta, db);
	mutex_lock(&c->lock);
	struct node *base = r == 0 && row.gen == n->base_gen ? node_find(c, row.gen) : NULL;

	if (!base && r == 0 && row.gen == n->base_gen) {
		base = node_new(c, row.gen, &row);
		if (base)
			base->counted = true;
	}
	if (base)
		base->refs++;
	mutex_unlock(&c->lock);
	return base;
}

static int setattr_node(struct cache *c, struct caller who, struct node *n, struct handle *h,
			const struct cache_setattr *s)
{
	bool file = S_ISREG(n->type);
	int r = 0;

	if (s->set & SET_SIZE)
		r = file	       ? set_size(c, who, n, h, s->size_bytes)
		    : S_ISDIR(n->type) ? -EISDIR
				       : -EINVAL;
	if (r == 0 && file && (s->set & (SET_ATIME | SET_MTIME)))
		r = set_file_times(c, n, s);
	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	n->by_user |= (s->set & SET_SIZE) && who.uid != 0;
	set_row(&n->row, s);
	bool done = n->state != NODE_COMPLETE;

	mutex_unlock(&c->lock);
	if ((s->set & SET_SIZE) && done)
		return end_truncate(c, who, n);
	return row_store(c, n);
}

int cache_setattr(struct cache *c, struct caller who, uint64_t node, struct handle *h,
		  const struct cache_setattr *s, struct cache_attr *ret)
{
	struct node *n = node_get(c, node);
	struct node *base = n && !(s->set & SET_SIZE) ? base_node(c, n) : NULL;
	int r = n ? setattr_node(c, who, n, h, s) : -ESTALE;

	if (base) {
		r = r < 0 ? r : setattr_node(c, who, base, NULL, s);
		node_put(c, base);
	}

	if (r == 0) {
		mutex_lock(&c->lock);
		node_attr(c, n, ret);
		mutex_unlock(&c->lock);
	}
	if (n)
		node_put(c, n);
	return r;
}

int cache_statfs(struct cache *c, struct statvfs *ret)
{
	uint64_t inodes;
	uint64_t free_inodes;

	memory_inodes(c->memory, &inodes, &free_inodes);
	mutex_lock(&c->lock);
	uint64_t used = memory_usage(c);

	mutex_unlock(&c->lock);
	uint64_t all = c->cfg.ram_bytes / 4096;
	uint64_t left = used < c->cfg.ram_bytes ? (c->cfg.ram_bytes - used) / 4096 : 0;

	*ret = (struct statvfs){
		.f_bsize = 4096,
		.f_frsize = 4096,
		.f_blocks = all,
		.f_bfree = left,
		.f_bavail = left,
		.f_files = inodes,
		.f_ffree = free_inodes,
		.f_favail = free_inodes,
	};
	return 0;
}
