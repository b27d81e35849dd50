/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/node.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WRITER_ATTR_NS = 20 * NS_PER_MS };

uint64_t name_key(uint64_t parent, uint64_t hash)
{
	return hash ^ (parent * UINT64_C(0x9E3779B97F4A7C15));
}

struct name pending_name(const struct pending *p)
{
	return (struct name){ p->name, p->len };
}

uint64_t node_id(const struct node *n)
{
	return n->by_id.key;
}

struct node *node_find(struct cache *c, uint64_t id)
{
	struct map_node *m = map_find(&c->nodes, id);

	return m ? map_entry(m, struct node, by_id) : NULL;
}

struct node *node_new(struct cache *c, uint64_t id, const struct object_row *row)
{
	struct node *n = slab_alloc(&c->node_slab);

	if (!n)
		return NULL;
	n->row = *row;
	n->type = row->mode & S_IFMT;
	n->fd = -1;
	n->state = NODE_COMPLETE;
	list_init(&n->pending_link);
	list_init(&n->wait_link);
	list_init(&n->xattrs);
	map_add(&c->nodes, &n->by_id, id);
	return n;
}

static void close_file(struct node *n)
{
	if (n->fd >= 0)
		(void)close(n->fd);
	n->fd = -1;
}

/* Returns the version whose bytes @n shared, to be settled, or NULL. */
static struct node *part(struct cache *c, struct node *n) REQUIRES(c->lock)
{
	struct node *base = n->base;

	if (n->base_object)
		policy_busy(c->policy, n->base_object, -1);
	n->base_object = 0;
	n->base_gen = 0;
	n->base = NULL;
	if (base)
		base->refs--;
	return base;
}

/* Returns what is to be settled then. */
static struct node *settle(struct cache *c, struct node *n) REQUIRES(c->lock)
{
	bool file = S_ISREG(n->type);
	bool idle = n->nr_open == 0 && n->refs == 0;

	if (idle)
		close_file(n);
	if (idle && n->spare && n->nlookup == 0)
		version_give_up(c, n);
	/* An unlinked file's bytes go with its last close; those of an overwritten version stay readable until the kernel
	 * forgets the node, because an open of it may be on its way. */
	if (file && idle && n->state == NODE_ORPHAN && n->row.has_memory &&
	    ((n->row.nlink == 0 && !n->linger) || n->nlookup == 0)) {
		memory_remove(c->memory, node_id(n));
		n->row.has_memory = false;
	}
	if (n->nlookup > 0 || n->refs > 0 || !list_empty(&n->pending_link))
		return NULL;
	struct node *base = part(c, n);

	map_del(&c->nodes, &n->by_id);
	list_del(&n->wait_link);
	xattrs_clear(&n->xattrs);
	slab_free(&c->node_slab, n);
	return base;
}

void node_settle(struct cache *c, struct node *n)
{
	for (struct node *next = n; next;)
		next = settle(c, next);
}

void node_part(struct cache *c, struct node *n)
{
	struct node *base = part(c, n);

	if (base)
		node_settle(c, base);
}

struct node *node_get(struct cache *c, uint64_t id)
{
	mutex_lock(&c->lock);
	struct node *n = node_find(c, id);

	if (n)
		n->refs++;
	mutex_unlock(&c->lock);
	return n;
}

void node_put(struct cache *c, struct node *n)
{
	mutex_lock(&c->lock);
	n->refs--;
	node_settle(c, n);
	mutex_unlock(&c->lock);
}

void node_orphan(struct cache *c, struct node *n)
{
	n->state = NODE_ORPHAN;
	node_part(c, n);
}

static void attr_of_file(struct cache *c, struct node *n, struct stat *st)
{
	struct stat file;
	uint64_t gen = n->base_gen ? n->base_gen : node_id(n);

	if (n->fd >= 0 ? fstat(n->fd, &file) < 0 : memory_stat(c->memory, gen, &file) < 0)
		return;
	st->st_size = file.st_size;
	st->st_blocks = file.st_blocks;
	if (n->base_gen) /* the bytes of the version before; its times are in the row */
		return;
	int64_t mtime = timespec_ns(file.st_mtim);

	/* Written since the row was: as on any filesystem, that changed ctime too. */
	if (mtime != n->row.mtime_ns && mtime > n->row.ctime_ns)
		st->st_ctim = file.st_mtim;
	st->st_mtim = file.st_mtim;
}

/* What becomes of a version that is being written, the kernel sees itself, but for a moment's uncertainty about its end: so
 * no more than the checks of the open that makes it need. A directory changes with each publication in it. */
static uint64_t attr_ttl_ns(const struct cache *c, const struct node *n)
{
	uint64_t ttl = c->cfg.entry_timeout_ns;

	if (n->state == NODE_PROCESSING)
		return ttl < WRITER_ATTR_NS ? ttl : WRITER_ATTR_NS;
	return n->state == NODE_COMPLETE && n->nr_pending == 0 ? ttl : 0;
}

void node_attr(struct cache *c, struct node *n, struct cache_attr *ret)
{
	const struct object_row *r = &n->row;

	*ret = (struct cache_attr){
		.st = {
			.st_ino = r->id,
			.st_mode = r->mode,
			.st_nlink = r->nlink,
			.st_uid = r->uid,
			.st_gid = r->gid,
			.st_size = (off_t)r->size_bytes,
			.st_blocks = (blkcnt_t)((r->memory_bytes + 511) / 512),
			.st_blksize = 4096,
			.st_atim = ns_timespec(r->atime_ns),
			.st_mtim = ns_timespec(r->mtime_ns),
			.st_ctim = ns_timespec(r->ctime_ns),
		},
		.btime = ns_timespec(r->btime_ns),
		.ttl_ns = attr_ttl_ns(c, n),
	};
	if (S_ISREG(r->mode))
		attr_of_file(c, n, &ret->st);
}

void node_entry(struct cache *c, struct node *n, uint64_t ttl_ns, struct cache_entry *ret)
{
	n->nlookup++;
	ret->node = node_id(n);
	ret->ttl_ns = ttl_ns;
	node_attr(c, n, &ret->attr);
}

static size_t seq_slot(uint64_t parent, uint64_t hash)
{
	return (size_t)(name_key(parent, hash) >> 7) % NR_NAME_SEQ;
}

void seq_bump(struct cache *c, uint64_t parent, uint64_t hash)
{
	c->name_seq[seq_slot(parent, hash)]++;
}

uint64_t seq_of(const struct cache *c, uint64_t parent, uint64_t hash)
{
	return c->name_seq[seq_slot(parent, hash)];
}

struct pending *pending_find(struct cache *c, uint64_t parent, uint64_t hash, struct name name)
{
	for (struct map_node *m = map_find(&c->pendings, name_key(parent, hash)); m;
	     m = map_next(m)) {
		struct pending *p = map_entry(m, struct pending, by_name);

		if (p->parent == parent && p->len == name.len &&
		    memcmp(p->name, name.s, name.len) == 0)
			return p;
	}
	return NULL;
}

int pending_join(struct cache *c, struct node *v, uint64_t parent, uint64_t hash, struct name name)
{
	struct pending *p = pending_find(c, parent, hash, name);
	struct node *dir = node_find(c, parent);

	if (!p) {
		p = calloc(1, sizeof *p + name.len + 1);
		if (!p)
			return -ENOMEM;
		p->parent = parent;
		p->hash = hash;
		p->object = v->row.id;
		p->used = !v->new_object;
		p->len = name.len;
		memcpy(p->name, name.s, name.len);
		list_init(&p->versions);
		map_add(&c->pendings, &p->by_name, name_key(parent, hash));
		if (dir)
			dir->nr_pending++;
	}
	v->pending = p;
	list_add_tail(&p->versions, &v->pending_link);
	return 0;
}

void pending_leave(struct cache *c, struct node *v)
{
	struct pending *p = v->pending;

	if (!p)
		return;
	v->pending = NULL;
	list_del(&v->pending_link);
	seq_bump(c, p->parent, p->hash);
	cond_broadcast(&c->settled);
	if (c->hooks.settled)
		c->hooks.settled(c->hooks.arg, p->parent, pending_name(p));
	if (!list_empty(&p->versions))
		return;
	struct node *dir = node_find(c, p->parent);

	if (dir)
		dir->nr_pending--;
	map_del(&c->pendings, &p->by_name);
	free(p);
}

static bool writes(const struct node *v, pid_t tid)
{
	for (int i = 0; i < NR_WRITERS; i++) {
		if (v->writers[i] && caller_same(v->writers[i], tid))
			return true;
	}
	return false;
}

void writer_add(struct node *v, pid_t tid)
{
	for (int i = 0; i < NR_WRITERS; i++) {
		if (v->writers[i] == tid)
			return;
		if (v->writers[i] == 0) {
			v->writers[i] = tid;
			return;
		}
	}
	v->writers[NR_WRITERS - 1] = tid;
}

static bool knows(struct cache *c, const struct node *n, pid_t tid) REQUIRES(c->lock)
{
	const struct retry *again = retry_find(c, tid);

	return !tid || writes(n, tid) || (again && again->answer == node_id(n));
}

/* fuse_create_open() in fs/fuse/dir.c makes a negative dentry that it has cached positive first, and gives it the reply's
 * time-out of 0 then: in between, others get to the node without a lookup. ESTALE makes the kernel look the name up. What
 * inherited the descriptor or was sent it asks by node as well. */
bool node_hidden(struct cache *c, struct node *n, struct caller who)
{
	char name[NAME_MAX_BYTES];
	size_t len = 0;

	mutex_lock(&c->lock);
	if (n->state == NODE_PROCESSING && n->pending && !n->shown && !knows(c, n, who.tid)) {
		len = n->pending->len;
		memcpy(name, n->pending->name, len);
	}
	uint64_t ino = n->row.id;

	mutex_unlock(&c->lock);
	if (len == 0)
		return false;
	bool holds = caller_holds(who.tid, (struct name){ name, len }, ino);

	mutex_lock(&c->lock);
	if (holds)
		writer_add(n, who.tid);
	mutex_unlock(&c->lock);
	return !holds;
}

struct node *pending_own(struct pending *p, pid_t tid)
{
	for (struct list *at = p->versions.prev; at != &p->versions; at = at->prev) {
		struct node *v = list_entry(at, struct node, pending_link);

		if (writes(v, tid))
			return v;
	}
	return NULL;
}

struct node *pending_shared(struct pending *p)
{
	for (struct list *at = p->versions.prev; at != &p->versions; at = at->prev) {
		struct node *v = list_entry(at, struct node, pending_link);

		/* What is reserved for an open that will truncate it is not to be published without that. */
		if (v->nr_write > 0 || (v->nr_reserved > 0 && !v->truncated))
			return v;
	}
	return NULL;
}

uint64_t pending_closing(const struct pending *p)
{
	uint64_t until = 0;

	for (struct list *at = p->versions.next; at != &p->versions; at = at->next) {
		struct node *v = list_entry(at, struct node, pending_link);

		if (v->closing_until_ns > until)
			until = v->closing_until_ns;
	}
	return until;
}

struct node *pending_newest(struct pending *p)
{
	return list_entry(p->versions.prev, struct node, pending_link);
}
