/* SPDX-License-Identifier: Apache-2.0 */
/* From names to nodes: what is under construction first, then the metadata, checked against changes in between. */
#include "base/clock.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>

struct found {
	struct dentry_row dentry;
	struct object_row row;
	int r; /* 0 or -ENOENT */
};

static int read_rows(struct cache *c, uint64_t parent, uint64_t hash, struct name name,
		     struct found *ret)
{
	struct meta_db *db;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	r = meta_dentry_get(db, parent, hash, name, &ret->dentry);
	if (r == 0)
		r = meta_object_get(db, ret->dentry.object, &ret->row);
	meta_read_end(c->meta, db);
	ret->r = r;
	return r == -ENOENT ? 0 : r;
}

/* What is under construction under the name, as far as the caller may see it. Returns 1 when that answers the lookup. */
static int lookup_pending(struct cache *c, struct caller who, struct pending *p,
			  struct cache_entry *ret, uint64_t *ret_deadline_ns) REQUIRES(c->lock)
{
	struct node *own = pending_own(p, who.tid);
	uint64_t now = clock_mono_ns();

	if (own) {
		node_entry(c, own, 0, ret);
		return 1;
	}
	if (!ret_deadline_ns || pending_closing(p) <= now)
		return 0;
	*ret_deadline_ns = pending_closing(p);
	c->stats.lookup_waits++;
	return -EINPROGRESS;
}

struct node *node_of_row(struct cache *c, const struct object_row *row)
{
	struct node *n = node_of(c, row);

	if (!n) {
		n = node_new(c, S_ISREG(row->mode) ? row->gen : row->id, row);
		if (n)
			n->counted = true;
	}
	return n;
}

static int answer(struct cache *c, struct caller who, const struct found *f, bool pending,
		  struct cache_entry *ret) REQUIRES(c->lock)
{
	if (f->r == -ENOENT) {
		c->stats.lookup_misses++;
		retry_answered(c, who, NULL);
		bool again = note_access(c, who, RUN_LOOKUP, NULL,
					 name_key(f->dentry.parent, f->dentry.hash));

		*ret = (struct cache_entry){ .ttl_ns = pending || again
							       ? 0
							       : c->cfg.negative_timeout_ns };
		return 0;
	}
	struct node *n = node_of_row(c, &f->row);

	if (!n)
		return -ENOMEM;
	n->shown = true;
	retry_answered(c, who, n);
	bool again = note_access(c, who, RUN_LOOKUP, n, name_key(f->dentry.parent, f->dentry.hash));
	/* Another name of it may be written to without this one's dentry being known. */
	bool shared = S_ISREG(f->row.mode) && f->row.nlink > 1;

	node_entry(c, n, pending || shared || again ? 0 : c->cfg.entry_timeout_ns, ret);
	if (again)
		ret->attr.ttl_ns = 0;
	return 0;
}

/* @v is what the caller will open: it is not finished before. */
static void reserve(struct cache *c, struct caller who, struct node *v, struct cache_entry *ret)
	REQUIRES(c->lock)
{
	struct retry *again = retry_find(c, who.tid);

	writer_add(v, who.tid);
	if (again && !again->answer) {
		again->answer = node_id(v);
		v->nr_reserved++;
	}
	node_entry(c, v, 0, ret);
}

/* The caller opened an older node of this object for writing and was sent round: the version that it shall write. */
static int lookup_writer(struct cache *c, struct caller who, const struct version_of *what,
			 struct cache_entry *ret)
{
	struct version_of of = *what;
	struct node *v = NULL;

	mutex_lock(&c->lock);
	struct retry *again = retry_find(c, who.tid);
	struct pending *p = pending_find(c, of.parent, name_hash(c->seed, of.name), of.name);

	of.truncated = again && (again->flags & O_TRUNC);
	if (again && again->answer)
		v = node_find(c, again->answer);
	if (!v && p && !of.truncated)
		v = pending_shared(p);
	if (v)
		reserve(c, who, v, ret);
	mutex_unlock(&c->lock);
	if (v)
		return 0;
	int r = version_new(c, who, &of, &v);

	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	reserve(c, who, v, ret);
	mutex_unlock(&c->lock);
	node_put(c, v);
	return 0;
}

/* Somebody, perhaps this caller, was sent round to write to the object. */
static int lookup_spare(struct cache *c, struct caller who, const struct version_of *of,
			struct cache_entry *ret)
{
	struct node *v = NULL;
	int r = version_new(c, who, of, &v);

	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	v->spare = true;
	list_add_tail(&c->spares, &v->wait_link);
	node_entry(c, v, 0, ret);
	mutex_unlock(&c->lock);
	node_put(c, v);
	return 0;
}

static bool wants_spare(struct cache *c, struct caller who, const struct found *f) REQUIRES(c->lock)
{
	return !who.tid && f->r == 0 && S_ISREG(f->row.mode) && !(f->row.flags & OBJECT_IN_PLACE) &&
	       retry_unknown(c, f->dentry.parent, f->dentry.hash, f->row.id);
}

/* The caller was sent round to write: by now the name may mean another object than the one that it opened. */
static bool wants_version(struct cache *c, struct caller who, const struct pending *p,
			  const struct found *f) REQUIRES(c->lock)
{
	struct retry *again = retry_find(c, who.tid);

	if (!again || !again->write)
		return false;
	if (again->answer) {
		struct node *v = node_find(c, again->answer);

		return v && v->pending && v->pending == p;
	}
	return p || (S_ISREG(f->row.mode) && !(f->row.flags & OBJECT_IN_PLACE));
}

uint64_t closing_until(struct cache *c, uint64_t object)
{
	for (size_t i = 0; i < c->pendings.nr_slots; i++) {
		for (struct map_node *m = c->pendings.slots[i]; m; m = m->next) {
			struct pending *p = map_entry(m, struct pending, by_name);

			if (p->object == object && pending_closing(p))
				return pending_closing(p);
		}
	}
	return 0;
}

static int lookup_version(struct cache *c, struct caller who, const struct version_of *of,
			  bool spare, struct cache_entry *ret)
{
	int r = spare ? lookup_spare(c, who, of, ret) : lookup_writer(c, who, of, ret);

	if (of->base)
		node_put(c, of->base);
	return r;
}

/* To change what is just being closed means to change what it will be. */
static bool waits_to_change(struct cache *c, struct caller who, struct pending *p,
			    uint64_t *ret_deadline_ns) REQUIRES(c->lock)
{
	const struct retry *again = retry_find(c, who.tid);

	*ret_deadline_ns = closing_until(c, p->object);
	return !(again->flags & O_TRUNC) && !again->answer && !pending_shared(p) &&
	       *ret_deadline_ns > clock_mono_ns();
}

/* What the caller itself has written and closed, and it was not published in the time that lookups wait: to change it means to
 * change that. */
static struct node *own_closed(struct cache *c, struct caller who, struct pending *p)
	REQUIRES(c->lock)
{
	const struct retry *again = retry_find(c, who.tid);
	struct node *v = pending_own(p, who.tid);

	if (!v || again->answer || (again->flags & O_TRUNC) || pending_shared(p))
		return NULL;
	return v->opened && !v->mappable ? v : NULL;
}

struct lookup {
	struct cache *c;
	struct caller who;
	uint64_t parent;
	uint64_t hash;
	struct name name;
	uint64_t seq; /* of the name, before its rows were read */
	bool begin;   /* the answer is a version for the caller to write */
};

/* What needs no rows. Returns 1 when answered, 0 when not, -EINPROGRESS. */
static int lookup_begin(struct lookup *l, struct cache_entry *ret, uint64_t *ret_deadline_ns)
{
	struct cache *c = l->c;
	struct node *closed = NULL;
	int r = 0;

	mutex_lock(&c->lock);
	struct pending *p = pending_find(c, l->parent, l->hash, l->name);

	c->stats.lookups++;
	l->seq = seq_of(c, l->parent, l->hash);
	l->begin = p && wants_version(c, l->who, p, NULL);
	if (p && !l->begin)
		r = lookup_pending(c, l->who, p, ret, ret_deadline_ns);
	else if (l->begin && ret_deadline_ns && waits_to_change(c, l->who, p, ret_deadline_ns))
		r = -EINPROGRESS;
	else if (l->begin)
		closed = own_closed(c, l->who, p);
	if (closed)
		closed->refs++;
	mutex_unlock(&c->lock);
	if (!closed)
		return r;
	r = publish(c, closed, &(struct publish_at){ 0 });
	node_put(c, closed);
	return r == -EALREADY ? 0 : r;
}

/* Another name of the object is about to get new bytes. */
static bool waits_for_link(struct cache *c, const struct found *f, uint64_t *ret_deadline_ns)
	REQUIRES(c->lock)
{
	if (!ret_deadline_ns || f->r != 0 || f->row.nlink < 2 || !S_ISREG(f->row.mode))
		return false;
	*ret_deadline_ns = closing_until(c, f->row.id);
	return *ret_deadline_ns > clock_mono_ns();
}

/* A name that others are making is not there yet for who wants to write to it without creating it, and one that the caller has
 * made itself and closed has bytes, which are not published yet: nothing new is begun in their place. */
static bool may_begin_new(struct cache *c, struct caller who, struct pending *p) REQUIRES(c->lock)
{
	const struct retry *again = retry_find(c, who.tid);

	if (!p || !again)
		return false;
	return again->answer ||
	       (pending_own(p, who.tid) && ((again->flags & O_TRUNC) || pending_shared(p)));
}

/* What the rows mean, unless the name changed since. Returns as lookup_begin() does. */
static int lookup_rows(struct lookup *l, const struct found *f, struct cache_entry *ret,
		       uint64_t *ret_deadline_ns)
{
	struct cache *c = l->c;
	struct version_of of = { .parent = l->parent, .name = l->name };

	mutex_lock(&c->lock);
	if (l->seq != seq_of(c, l->parent, l->hash)) {
		mutex_unlock(&c->lock);
		return 0;
	}
	struct pending *p = pending_find(c, l->parent, l->hash, l->name);
	bool begin = f->r == 0 ? l->begin || wants_version(c, l->who, p, f)
			       : l->begin && may_begin_new(c, l->who, p);
	bool spare = wants_spare(c, l->who, f);
	int r = 0;

	if (!begin && waits_for_link(c, f, ret_deadline_ns))
		r = -EINPROGRESS;
	else if (!begin && l->begin && p)
		r = lookup_pending(c, l->who, p, ret, ret_deadline_ns);
	bool wait = r < 0;

	if (!wait && !begin && !spare)
		r = answer(c, l->who, f, p != NULL, ret);
	if (f->r == 0) {
		of.old = &f->row;
		of.base = begin || spare ? node_of_row(c, &f->row) : NULL;
	}
	if (of.base)
		of.base->refs++;
	mutex_unlock(&c->lock);
	if (!wait && (begin || spare))
		r = lookup_version(c, l->who, &of, spare, ret);
	else if (of.base)
		node_put(c, of.base);
	return r < 0 ? r : 1;
}

int cache_lookup(struct cache *c, struct caller who, uint64_t parent, struct name name,
		 struct cache_entry *ret, uint64_t *ret_deadline_ns)
{
	struct lookup l = {
		.c = c, .who = who, .parent = parent, .hash = name_hash(c->seed, name), .name = name
	};
	int r = name_check(name);

	while (r == 0) {
		struct found f = { 0 };

		r = lookup_begin(&l, ret, ret_deadline_ns);
		if (r == 0)
			r = read_rows(c, parent, l.hash, name, &f);
		f.dentry.parent = parent;
		f.dentry.hash = l.hash;
		if (r == 0)
			r = lookup_rows(&l, &f, ret, ret_deadline_ns);
	}
	if (r < 0 && r != -EINPROGRESS) { /* the kernel does not come back for this */
		mutex_lock(&c->lock);
		retry_end(c, who);
		mutex_unlock(&c->lock);
	}
	return r > 0 ? 0 : r;
}

void cache_forget(struct cache *c, uint64_t node, uint64_t nr)
{
	if (node == CACHE_ROOT)
		return;
	mutex_lock(&c->lock);
	struct node *n = node_find(c, node);

	if (n) {
		n->nlookup = n->nlookup > nr ? n->nlookup - nr : 0;
		node_settle(c, n);
	}
	mutex_unlock(&c->lock);
}

/* A cookie is the hash of the name without its last bits, and there the number of the name among those that have the same:
 * a reader may stop between any two. Two names of a directory with 59 equal bits are rare, more than 15 there are not. */
enum { COOKIE_NR = 15 };

struct readdir_of {
	bool (*fn)(void *arg, struct name name, uint64_t ino, mode_t type, uint64_t cookie);
	void *arg;
	uint64_t after;
	uint64_t last; /* cookie of the row before */
};

static bool readdir_row(void *arg, const struct dentry_row *row, struct name name)
{
	struct readdir_of *o = arg;
	uint64_t group = row->hash & ~(uint64_t)COOKIE_NR;
	bool same = (o->last & ~(uint64_t)COOKIE_NR) == group;

	if (!same)
		o->last = group + 1;
	else if ((o->last & COOKIE_NR) < COOKIE_NR)
		o->last++;
	if (o->last <= o->after)
		return true;
	return o->fn(o->arg, name, row->object, row->mode & S_IFMT, o->last);
}

static bool dir_closing(struct cache *c, uint64_t node) REQUIRES(c->lock)
{
	const struct node *dir = node_find(c, node);
	uint64_t now = clock_mono_ns();

	for (size_t i = 0; dir && dir->nr_pending && i < c->pendings.nr_slots; i++) {
		for (struct map_node *m = c->pendings.slots[i]; m; m = m->next) {
			struct pending *p = map_entry(m, struct pending, by_name);

			if (p->parent == node && pending_closing(p) > now)
				return true;
		}
	}
	return false;
}

/* What was closed before is to be seen: wait for the last closes that are under way, bounded as a lookup's wait is. */
void cache_settle_dir(struct cache *c, uint64_t node)
{
	uint64_t until = clock_mono_ns() + c->cfg.publish_wait_ns;

	mutex_lock(&c->lock);
	while (clock_mono_ns() < until && dir_closing(c, node))
		(void)cond_wait_until(&c->settled, &c->lock, until);
	mutex_unlock(&c->lock);
}

int cache_readdir(struct cache *c, uint64_t node, uint64_t cookie,
		  bool (*fn)(void *arg, struct name name, uint64_t ino, mode_t type,
			     uint64_t cookie),
		  void *arg)
{
	struct readdir_of o = { .fn = fn, .arg = arg, .after = cookie };
	uint64_t group = cookie & ~(uint64_t)COOKIE_NR;
	struct meta_db *db;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	r = meta_dentry_scan(db, node, group ? group - 1 : 0, readdir_row, &o);
	meta_read_end(c->meta, db);
	return r;
}

uint64_t cache_parent(struct cache *c, uint64_t node)
{
	mutex_lock(&c->lock);
	struct node *n = node_find(c, node);
	uint64_t parent = n && n->row.parent ? n->row.parent : CACHE_ROOT;

	mutex_unlock(&c->lock);
	return parent;
}

int cache_readlink(struct cache *c, uint64_t node, char *buf, size_t cap)
{
	struct meta_db *db;
	size_t len = 0;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	r = meta_target_get(db, node, buf, cap - 1, &len);
	meta_read_end(c->meta, db);
	if (r == 0)
		buf[len] = '\0';
	return r;
}
