/* SPDX-License-Identifier: Apache-2.0 */
/* Handles: from open(2) to the last close(2), which ends the construction of a version. */
#include "base/clock.h"
#include "base/log.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static void count_open(struct cache *c, struct node *n, bool write) REQUIRES(c->lock)
{
	n->refs++;
	n->nr_open++;
	c->nr_handles++;
	if (n->counted)
		policy_busy(c->policy, n->row.id, 1);
	if (write) {
		n->nr_write++;
		c->nr_writers++;
		c->stats.opens_write++;
		if (!c->watching) { /* the memory that they take */
			c->watching = true;
			cond_signal(&c->wake);
		}
	} else {
		c->stats.opens_read++;
	}
}

static void count_close(struct cache *c, struct node *n, bool write) REQUIRES(c->lock)
{
	n->refs--;
	n->nr_open--;
	c->nr_handles--;
	if (n->counted)
		policy_busy(c->policy, n->row.id, -1);
	if (write) {
		n->nr_write--;
		c->nr_writers--;
	}
}

/* A version that began as a copy of another gets its bytes with the first write: until its last close the kernel must not
 * go to a file that can be exchanged. All handles that are open at a time are of one kind, as the kernel demands. */
static bool goes_direct(const struct node *n)
{
	return n->nr_indirect == 0 &&
	       (n->state != NODE_PROCESSING || n->new_object || n->truncated);
}

static bool unknown_reader(struct caller who, const struct node *n)
{
	return !who.tid && n->state == NODE_PROCESSING && n->pending && !n->shown;
}

static int check_open(struct cache *c, struct caller who, struct node *n, int flags)
	REQUIRES(c->lock)
{
	bool write = (flags & O_ACCMODE) != O_RDONLY;

	if (n->state == NODE_ORPHAN) {
		int r = send_round(c, who, n, flags, write);

		return r == 0 && !n->row.has_memory && n->nr_open == 0 ? -ENOENT : r;
	}
	/* Found under one name, while another name of the object is about to get new bytes. */
	if (!write && n->state == NODE_COMPLETE && n->row.nlink > 1 &&
	    closing_until(c, n->row.id) > clock_mono_ns())
		return send_round(c, who, n, flags, false);
	if (n->spare)
		return write ? spare_claim(c, who, n, flags) : 0;
	/* Who asks for an unfinished version without being known is not told apart from those who must not see it. */
	if (!write)
		return unknown_reader(who, n) ? -ESTALE : 0;
	if (n->state == NODE_COMPLETE && !(n->row.flags & OBJECT_IN_PLACE))
		return send_round(c, who, n, flags, write);
	/* What was begun under this name stays as it is: truncating it means to begin again, and so does writing when its last
	 * writer has just left. A version that was made for this open has not been opened before. */
	if (n->state == NODE_PROCESSING && n->pending && n->opened &&
	    ((flags & O_TRUNC) || n->nr_write + n->nr_reserved == 0)) {
		int r = send_round(c, who, n, flags, write);

		/* Another descriptor of it (> /dev/stdout): there is no other version to go to. */
		return r != -ESTALE && n->nr_write > 0 ? 0 : r;
	}
	return 0;
}

/* The caller was sent round to write and has not come back for that: @n was begun for it, and it only reads. */
static bool reserved_for(struct cache *c, struct caller who, const struct node *n) REQUIRES(c->lock)
{
	const struct retry *again = retry_find(c, who.tid);

	return again && again->write && again->answer == node_id(n);
}

/* Whether @n may be opened, now that @c->lock is held until the open is counted. @hidden: the caller must not see it yet. */
static int admit(struct cache *c, struct caller who, struct node *n, int flags, bool hidden)
	REQUIRES(c->lock)
{
	bool write = (flags & O_ACCMODE) != O_RDONLY;

	if (hidden) {
		const struct retry *again = retry_find(c, who.tid);

		/* It has come about just after the lookup had been told that there is none. */
		if (again && again->missed)
			return -ENOENT;
		(void)retry_note(c, who, n, flags, write);
		return -ESTALE;
	}
	if (!write && reserved_for(c, who, n)) {
		retry_end(c, who);
		return -ESTALE;
	}
	return S_ISREG(n->type) ? check_open(c, who, n, flags) : -EINVAL;
}

static int open_file(struct cache *c, struct handle *h, bool cut)
{
	struct node *n = h->node;
	int r = node_file(c, n);

	if (r == 0 && cut)
		r = version_bytes(c, n);
	if (r == 0 && cut && ftruncate(n->fd, 0) < 0)
		r = -errno;
	return r;
}

/* The open is counted: @n does not end before its close. Returns whether the file is to be truncated. */
static bool handle_begin(struct cache *c, struct handle *h, struct node *n, int flags)
	REQUIRES(c->lock)
{
	h->node = n;
	h->flags = flags;
	/* Whoever opens a version first ends it with the last close, also with open(O_CREAT | O_RDONLY). */
	h->write = (flags & O_ACCMODE) != O_RDONLY ||
		   (n->state == NODE_PROCESSING && n->nr_write == 0 && !n->spare);
	h->direct = goes_direct(n);
	count_open(c, n, h->write);
	n->nr_indirect += !h->direct;
	/* A version that was begun for this open is empty as it is. */
	bool cut = (flags & O_TRUNC) && h->write &&
		   (n->state != NODE_PROCESSING || !n->pending || n->nr_open > 1);

	n->written |= cut;
	return cut;
}

/* @hidden: as in admit(); NULL: @n was made for this open, and is not refused. */
static int handle_new(struct cache *c, struct node *n, struct caller who, int flags,
		      const bool *hidden, struct handle **ret)
{
	struct handle *h = calloc(1, sizeof *h);
	bool cut = false;

	if (!h)
		return -ENOMEM;
	mutex_lock(&c->lock);
	int r = hidden ? admit(c, who, n, flags, *hidden) : 0;

	if (r == 0)
		cut = handle_begin(c, h, n, flags);
	mutex_unlock(&c->lock);
	if (r < 0) {
		free(h);
		return r;
	}
	r = open_file(c, h, cut);
	mutex_lock(&c->lock);
	if (r != 0) {
		n->nr_indirect -= !h->direct;
		count_close(c, n, h->write);
		free(h);
	} else if (h->write) {
		n->opened = true;
		n->by_user |= who.uid != 0;
		n->mappable |= h->direct && (flags & O_ACCMODE) == O_RDWR;
		if (n->state == NODE_PROCESSING)
			writer_add(n, who.tid);
		n->closing_until_ns = 0;
	}
	mutex_unlock(&c->lock);
	if (r == 0)
		*ret = h;
	return r;
}

int cache_open_file(struct cache *c, struct caller who, uint64_t node, int flags,
		    struct handle **ret)
{
	bool write = (flags & O_ACCMODE) != O_RDONLY;
	struct node *n = node_get(c, node);

	if (!n)
		return -ESTALE;
	bool hidden = !write && node_hidden(c, n, who);
	int r = write ? room_for(c, 0) : 0;

	if (r == 0)
		r = handle_new(c, n, who, flags, &hidden, ret);
	mutex_lock(&c->lock);
	/* Evicted since the lookup: by now the name is gone, which the kernel finds when it looks again. */
	if (r == -ENOENT && n->state != NODE_PROCESSING &&
	    (!who.tid || send_round(c, who, n, flags, write) < 0))
		r = -ESTALE;
	if (r != -ESTALE)
		retry_end(c, who);
	if (r == 0 && !write) {
		(void)note_access(c, who, RUN_OPEN, n, name_key(n->row.parent, n->row.hash));
		if (!(flags & O_NOATIME) && !c->cfg.noatime)
			note_atime(c, n);
	}
	mutex_unlock(&c->lock);
	node_put(c, n);
	return r;
}

static int created(struct cache *c, struct caller who, struct node *v, int flags,
		   struct cache_entry *ret, struct handle **ret_h)
{
	int r = handle_new(c, v, who, flags, NULL, ret_h);

	mutex_lock(&c->lock);
	if (r == 0) {
		c->stats.creates++;
		node_entry(c, v, 0, ret);
	} else if (v->nr_open + v->nr_reserved == 0) {
		version_give_up(c, v);
	}
	mutex_unlock(&c->lock);
	return r;
}

/* The name exists by now: an open like any other, but that the answer may name the node. -EAGAIN: no longer as it was at @seq. */
static int create_over(struct cache *c, struct caller who, struct version_of *of, int flags,
		       uint64_t seq, struct node **ret)
{
	bool write = (flags & O_ACCMODE) != O_RDONLY;

	if (!S_ISREG(of->old->mode))
		return -ESTALE;
	mutex_lock(&c->lock);
	bool same = seq == seq_of(c, of->parent, name_hash(c->seed, of->name));
	struct node *n = same ? node_of_row(c, of->old) : NULL;

	if (n)
		n->refs++;
	mutex_unlock(&c->lock);
	if (!n)
		return same ? -ENOMEM : -EAGAIN;
	if (!write || (of->old->flags & OBJECT_IN_PLACE)) {
		*ret = n;
		return 0;
	}
	of->base = n;
	int r = version_new(c, who, of, ret);

	of->base = NULL;
	node_put(c, n);
	return r;
}

static int find_old(struct cache *c, uint64_t parent, struct name name, struct object_row *ret)
{
	struct meta_db *db;
	struct dentry_row d;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	r = meta_dentry_get(db, parent, name_hash(c->seed, name), name, &d);
	if (r == 0)
		r = meta_object_get(db, d.object, ret);
	meta_read_end(c->meta, db);
	return r;
}

/* What a create of @name opens: a version that is being written (@ret_joined, and it is reserved), one over what exists, or a
 * new one. */
static int create_node(struct cache *c, struct caller who, struct version_of *of, int flags,
		       struct node **ret, bool *ret_joined)
{
	uint64_t hash = name_hash(c->seed, of->name);
	struct object_row old;
	int r;

	do {
		struct node *v = NULL;

		mutex_lock(&c->lock);
		uint64_t seq = seq_of(c, of->parent, hash);
		struct pending *p = pending_find(c, of->parent, hash, of->name);

		if (p && !(flags & (O_TRUNC | O_EXCL)))
			v = pending_shared(p);
		if (v) {
			v->refs++;
			v->nr_reserved++;
		}
		mutex_unlock(&c->lock);
		*ret = v;
		*ret_joined = v != NULL;
		if (v)
			return 0;
		if (p && (flags & O_EXCL))
			return -EEXIST;
		r = find_old(c, of->parent, of->name, &old);
		if (r == 0 && (flags & O_EXCL))
			return -EEXIST;
		if (r == -ENOENT)
			return version_new(c, who, of, ret);
		if (r == 0) {
			of->old = &old;
			r = create_over(c, who, of, flags, seq, ret);
			of->old = NULL;
		}
	} while (r == -EAGAIN);
	return r;
}

int cache_create(struct cache *c, struct caller who, uint64_t parent, struct new_file what,
		 struct cache_entry *ret, struct handle **ret_h)
{
	struct version_of of = { .parent = parent,
				 .name = what.name,
				 .mode = what.mode,
				 .truncated = what.flags & O_TRUNC };
	struct node *v = NULL;
	bool joined = false;
	int r = name_check(what.name);

	mutex_lock(&c->lock);
	retry_end(c, who);
	mutex_unlock(&c->lock);
	if (r == 0)
		r = room_for(c, 0);
	if (r == 0)
		r = create_node(c, who, &of, what.flags, &v, &joined);
	if (r != 0)
		return r;
	r = created(c, who, v, what.flags, ret, ret_h);
	mutex_lock(&c->lock);
	if (joined)
		version_unreserve(c, v);
	mutex_unlock(&c->lock);
	if (r == 0 && (v->row.flags & OBJECT_IN_PLACE)) {
		r = publish(c, v, &(struct publish_at){ 0 });
		if (r < 0) {
			cache_release(c, *ret_h);
			cache_forget(c, node_id(v), 1);
		}
	}
	node_put(c, v);
	return r;
}

int cache_tmpfile(struct cache *c, struct caller who, uint64_t parent, struct new_file what,
		  struct cache_entry *ret, struct handle **ret_h)
{
	struct version_of of = { .parent = parent, .mode = what.mode };
	struct node *v = NULL;
	int r = room_for(c, 0);

	if (r == 0)
		r = version_new(c, who, &of, &v);
	if (r != 0)
		return r;
	r = created(c, who, v, what.flags, ret, ret_h);
	mutex_lock(&c->lock);
	v->row.nlink = 0;
	if (r == 0)
		ret->attr.st.st_nlink = 0;
	mutex_unlock(&c->lock);
	node_put(c, v);
	return r;
}

bool handle_direct(const struct handle *h)
{
	return h->direct;
}

uint64_t handle_node(const struct handle *h)
{
	return node_id(h->node);
}

bool handle_writable(const struct handle *h)
{
	return h->write;
}

int handle_fd(struct handle *h)
{
	return h->node->fd;
}

int handle_share(struct cache *c, const struct handle *h, int *ret)
{
	return memory_get(c->memory, node_id(h->node), O_RDONLY, ret);
}

int handle_fd_write(struct cache *c, struct handle *h, int *ret)
{
	int r = version_bytes(c, h->node);

	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	h->node->written = true;
	h->node->closing_until_ns = 0;
	mutex_unlock(&c->lock);
	*ret = h->node->fd;
	return 0;
}

int cache_flush(struct cache *c, struct caller who, struct handle *h)
{
	struct node *n = h->node;

	if (!h->write)
		return 0;
	bool killed = caller_killed(who.tid);

	mutex_lock(&c->lock);
	if (!who.tid && !c->told_no_pid) {
		c->told_no_pid = true;
		log_msg(LOG_WARNING,
			"cache: writers outside the daemon's pid namespace: one that is "
			"killed is taken for one that closes");
	}
	bool building = n->state == NODE_PROCESSING;
	struct cache_attr a;

	h->killed = killed;
	node_attr(c, n, &a);
	bool too_large =
		building && n->pending && (uint64_t)a.st.st_blocks * 512 > c->cfg.ram_bytes;

	if (killed || too_large)
		n->closing_until_ns = 0;
	else if (building && n->pending && !c->ending)
		n->closing_until_ns = clock_mono_ns() + c->cfg.publish_wait_ns;
	mutex_unlock(&c->lock);
	if (too_large)
		return -EFBIG;
	/* Who only read has nothing to lose, also when that was the first open of the version. */
	return building && (h->flags & O_ACCMODE) != O_RDONLY ? meta_healthy(c->meta) : 0;
}

/* A file that was changed where it is: what memory and metadata know of its size follows. */
static void settle_in_place(struct cache *c, struct node *n)
{
	if (row_store(c, n) < 0)
		log_msg(LOG_WARNING, "cache: size not recorded gen=%" PRIu64, node_id(n));
	evict_over_budget(c, n->row.id);
}

static void tell_granted(struct cache *c) REQUIRES(c->lock)
{
	struct flock_wait next;

	while (flock_granted(c->flocks, &next)) {
		mutex_unlock(&c->lock);
		next.granted(next.arg);
		mutex_lock(&c->lock);
	}
}

static void unlock(struct cache *c, struct handle *h, uint64_t owner)
{
	mutex_lock(&c->lock);
	if (h->lock_object)
		flock_unlock(c->flocks, h->lock_object, owner);
	tell_granted(c);
	mutex_unlock(&c->lock);
}

void cache_release(struct cache *c, struct handle *h)
{
	struct node *n = h->node;

	unlock(c, h, h->lock_owner);
	mutex_lock(&c->lock);
	n->refs++; /* of this call */
	n->killed |= h->killed;
	n->nr_indirect -= !h->direct;
	count_close(c, n, h->write);
	bool last = h->write && n->nr_write + n->nr_reserved == 0;
	bool finish = last && n->state == NODE_PROCESSING && n->pending;
	bool settle = last && n->state == NODE_COMPLETE;

	mutex_unlock(&c->lock);
	if (finish)
		finish_version(c, n);
	else if (settle)
		settle_in_place(c, n);
	free(h);
	mutex_lock(&c->lock);
	if (n->state == NODE_PROCESSING && !n->pending &&
	    n->nr_open == 0) /* O_TMPFILE that was never linked */
		version_give_up(c, n);
	mutex_unlock(&c->lock);
	node_put(c, n);
}

void cache_abandon(struct handle *h)
{
	free(h);
}

static int nothing(struct meta_db *db UNUSED, struct meta_op *op UNUSED)
{
	return 0;
}

int cache_fsync(struct cache *c, struct handle *h)
{
	(void)h;
	/* The memory tier alone has nothing more durable than memory; the metadata is made durable. */
	struct meta_op sync = { .run = nothing, .durable = true };

	return meta_submit(c->meta, &sync);
}

int cache_fallocate(struct cache *c, struct handle *h, int mode, uint64_t off_bytes,
		    uint64_t len_bytes)
{
	int fd = -1;
	int r = h->write ? 0 : -EBADF;

	if (r == 0 && (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE)))
		r = -EOPNOTSUPP;
	if (r == 0 && !(mode & FALLOC_FL_PUNCH_HOLE))
		r = room_for(c, len_bytes);
	if (r == 0)
		r = handle_fd_write(c, h, &fd);
	if (r == 0 && fallocate(fd, mode, (off_t)off_bytes, (off_t)len_bytes) < 0)
		r = -errno;
	return r;
}

int cache_flock(struct cache *c, struct handle *h, uint64_t owner, int op,
		const struct flock_wait *wait, uint64_t *ret_ticket)
{
	int r;

	if (op == LOCK_UN) {
		unlock(c, h, owner);
		return 0;
	}
	mutex_lock(&c->lock);
	if (!h->lock_object)
		h->lock_object = h->node->row.id;
	h->lock_owner = owner;
	r = flock_lock(c->flocks, h->lock_object, owner, op == LOCK_EX, wait, ret_ticket);
	tell_granted(c);
	mutex_unlock(&c->lock);
	return r;
}

bool cache_flock_cancel(struct cache *c, uint64_t ticket)
{
	mutex_lock(&c->lock);
	bool was = flock_cancel(c->flocks, ticket);

	tell_granted(c);
	mutex_unlock(&c->lock);
	return was;
}
