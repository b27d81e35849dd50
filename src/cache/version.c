/* SPDX-License-Identifier: Apache-2.0 */
/* Versions under construction: their attributes, and how they come by a file of their own. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <unistd.h>

int new_row(struct cache *c, struct caller who, uint64_t parent, mode_t mode,
	    struct object_row *ret)
{
	int64_t now = clock_real_ns();
	struct placement pl;
	int r = placement_of(c, parent, &pl);

	if (r < 0)
		return r;
	*ret = (struct object_row){
		.id = meta_next_id(c->meta),
		.mode = mode,
		.uid = who.uid,
		.gid = who.gid,
		.nlink = S_ISDIR(mode) ? 2 : 1,
		.atime_ns = now,
		.mtime_ns = now,
		.ctime_ns = now,
		.btime_ns = now,
		.parent = parent,
	};
	if (ret->id == 0)
		return -ENOSPC;
	ret->gen = ret->id;
	apply_pin(ret, &pl);
	if (!S_ISREG(mode))
		ret->flags = 0;
	mutex_lock(&c->lock);
	struct node *dir = node_find(c, parent);

	if (dir && (dir->row.mode & S_ISGID)) {
		ret->gid = dir->row.gid;
		if (S_ISDIR(mode))
			ret->mode |= S_ISGID;
	}
	mutex_unlock(&c->lock);
	return 0;
}

static int row_of_new_version(struct cache *c, struct caller who, const struct version_of *of,
			      struct object_row *row)
{
	if (!of->old)
		return new_row(c, who, of->parent, S_IFREG | (of->mode & 07777), row);
	int64_t now = clock_real_ns();

	*row = *of->old;
	row->gen = meta_next_id(c->meta);
	if (row->gen == 0)
		return -ENOSPC;
	row->has_memory = false;
	row->memory_bytes = 0;
	if (of->truncated) {
		row->size_bytes = 0;
		row->mtime_ns = now;
		row->ctime_ns = now;
	}
	return 0;
}

/* @v, new in the table, is being written. */
static void begin(struct cache *c, struct node *v, const struct version_of *of) REQUIRES(c->lock)
{
	v->state = NODE_PROCESSING;
	v->refs = 1;
	v->new_object = !of->old;
	v->truncated = of->truncated;
	c->nr_processing++;
	if (!of->old || of->truncated)
		return;
	v->base_gen = of->old->gen;
	if (policy_busy(c->policy, v->row.id, 1))
		v->base_object = v->row.id;
	v->base = of->base;
	if (v->base)
		v->base->refs++;
}

int version_new(struct cache *c, struct caller who, const struct version_of *of, struct node **ret)
{
	struct object_row row;
	int r = meta_admits(c->meta);

	if (r == 0)
		r = row_of_new_version(c, who, of, &row);
	if (r != 0)
		return r;
	uint64_t hash = of->name.s ? name_hash(c->seed, of->name) : 0;

	mutex_lock(&c->lock);
	struct pending *p = of->name.s ? pending_find(c, of->parent, hash, of->name) : NULL;
	struct node *v;

	if (p && !of->old)
		row.id = p->object; /* several writers of a new name write the same object */
	v = node_new(c, row.gen, &row);
	r = v ? 0 : -ENOMEM;
	if (v) {
		begin(c, v, of);
		writer_add(v, who.tid);
		(void)note_access(c, who, RUN_CREATE, v, name_key(of->parent, hash));
		r = of->name.s ? pending_join(c, v, of->parent, hash, of->name) : 0;
	}
	if (v && r < 0) {
		v->refs = 0;
		version_give_up(c, v);
		node_settle(c, v);
	}
	mutex_unlock(&c->lock);
	if (r == 0)
		*ret = v;
	return r;
}

static int copy_bytes(int from, int to)
{
	off_t off = 0;
	struct stat st;

	if (fstat(from, &st) < 0)
		return -errno;
	while (off < st.st_size) {
		ssize_t n = sendfile(to, from, &off, (size_t)(st.st_size - off));

		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO;
	}
	return lseek(to, 0, SEEK_SET) < 0 ? -errno : 0;
}

/* A handle may have the version before open; its file may have no name any more. */
static int open_base(struct cache *c, struct node *v, uint64_t base, int *ret)
{
	int fd = -1;

	mutex_lock(&c->lock);
	if (v->fd >= 0)
		fd = fcntl(v->fd, F_DUPFD_CLOEXEC, 0);
	mutex_unlock(&c->lock);
	if (fd < 0)
		return memory_get(c->memory, base, O_RDONLY, ret);
	*ret = fd;
	return 0;
}

static int make_bytes(struct cache *c, struct node *v, uint64_t base, int *ret)
{
	AUTO_CLOSE int from = -1;
	int fd = -1;
	int r = base ? room_for(c, 0) : 0;

	if (r == 0 && base)
		r = open_base(c, v, base, &from);
	if (r == 0)
		r = memory_create(c->memory, node_id(v), &fd);
	if (r == 0 && base)
		r = copy_bytes(from, fd);
	if (r < 0 && fd >= 0) {
		(void)close(fd);
		memory_remove(c->memory, node_id(v));
	}
	if (r == 0)
		*ret = fd;
	return r;
}

static void own_bytes(struct cache *c, struct node *v, int fd) REQUIRES(c->lock)
{
	/* Handles that were reading the base go on with the copy, under the same descriptor. */
	if (v->fd >= 0) {
		(void)dup3(fd, v->fd, O_CLOEXEC);
		(void)close(fd);
	} else {
		v->fd = fd;
	}
	v->row.has_memory = true;
	node_part(c, v);
}

int version_bytes(struct cache *c, struct node *v)
{
	struct mutex *busy = &c->bytes_lock[node_id(v) % NR_BYTES_LOCKS];
	int fd = -1;
	int r = 0;

	mutex_lock(busy);
	mutex_lock(&c->lock);
	bool have = v->row.has_memory;
	uint64_t base = v->base_gen;

	mutex_unlock(&c->lock);
	if (!have)
		r = make_bytes(c, v, base, &fd);
	if (!have && r == 0) {
		mutex_lock(&c->lock);
		own_bytes(c, v, fd);
		mutex_unlock(&c->lock);
	}
	mutex_unlock(busy);
	return r;
}

int node_file(struct cache *c, struct node *n)
{
	int fd = -1;

	mutex_lock(&c->lock);
	bool have = n->fd >= 0;
	bool fresh = n->state == NODE_PROCESSING && n->base_gen == 0 && !n->row.has_memory;
	uint64_t gen = n->base_gen ? n->base_gen : node_id(n);

	mutex_unlock(&c->lock);
	if (have)
		return 0;
	if (fresh)
		return version_bytes(c, n);
	int r = memory_get(c->memory, gen, O_RDWR, &fd);

	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	if (n->fd < 0)
		n->fd = fd;
	else
		(void)close(fd);
	mutex_unlock(&c->lock);
	return 0;
}
