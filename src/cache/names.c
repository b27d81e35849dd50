/* SPDX-License-Identifier: Apache-2.0 */
/* Making and removing names. Each operation decides and writes inside one run of the metadata's writer, and changes what
 * memory knows after the commit. */
#include "base/clock.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

void dir_changed(struct cache *c, uint64_t dir, int64_t now_ns, int nlink_delta)
{
	struct node *n = node_find(c, dir);

	if (!n)
		return;
	n->row.nlink += (uint32_t)nlink_delta;
	if (now_ns <
	    n->row.ctime_ns) /* somebody saw the entry and has changed the directory's times since */
		return;
	n->row.mtime_ns = now_ns;
	n->row.ctime_ns = now_ns;
}

struct node *node_of(struct cache *c, const struct object_row *row)
{
	return node_find(c, S_ISREG(row->mode) ? row->gen : row->id);
}

static bool being_made(struct cache *c, uint64_t parent, uint64_t hash, struct name name)
{
	mutex_lock(&c->lock);
	bool yes = pending_find(c, parent, hash, name) != NULL;

	mutex_unlock(&c->lock);
	return yes;
}

/* The parent must still be there: rmdir may have been faster. */
int check_free(struct cache *c, struct meta_db *db, uint64_t parent, uint64_t hash,
	       struct name name)
{
	struct object_row dir;
	struct dentry_row d;
	int r = meta_object_get(db, parent, &dir);

	if (r == 0)
		r = meta_dentry_get(db, parent, hash, name, &d);
	if (r == 0 || (r == -ENOENT && dir.id && being_made(c, parent, hash, name)))
		return -EEXIST;
	return r == -ENOENT && dir.id ? 0 : r;
}

struct make_op {
	struct meta_op op;
	struct cache *c;
	struct name name;
	const char *target;
	struct object_row row;
};

static int make_run(struct meta_db *db, struct meta_op *op)
{
	struct make_op *m = (struct make_op *)op;
	const struct object_row *row = &m->row;
	int r = check_free(m->c, db, row->parent, row->hash, m->name);

	if (r == 0)
		r = meta_object_put(db, row);
	if (r == 0)
		r = meta_dentry_put(db,
				    &(struct dentry_row){ row->parent, row->hash, row->id,
							  row->mode & S_IFMT },
				    m->name);
	if (r == 0 && m->target)
		r = meta_target_put(db, row->id, m->target, strlen(m->target));
	if (r == 0)
		r = meta_object_touch_dir(db, row->parent, row->ctime_ns,
					  S_ISDIR(row->mode) ? 1 : 0);
	return r;
}

static void make_done(struct meta_op *op, int r)
{
	struct make_op *m = (struct make_op *)op;
	struct cache *c = m->c;

	if (r < 0)
		return;
	mutex_lock(&c->lock);
	seq_bump(c, m->row.parent, m->row.hash);
	dir_changed(c, m->row.parent, m->row.ctime_ns, S_ISDIR(m->row.mode) ? 1 : 0);
	mutex_unlock(&c->lock);
}

static int entry_of_row(struct cache *c, const struct object_row *row, struct cache_entry *ret)
{
	mutex_lock(&c->lock);
	struct node *n = node_of_row(c, row);

	if (n)
		node_entry(c, n, c->cfg.entry_timeout_ns, ret);
	mutex_unlock(&c->lock);
	return n ? 0 : -ENOMEM;
}

/* mknod(2) of a regular file: an empty version, published at once. */
static int make_file(struct cache *c, struct caller who, uint64_t parent, struct name name,
		     mode_t mode, struct cache_entry *ret)
{
	struct handle *h;
	struct new_file what = { name, mode, O_CREAT | O_EXCL | O_WRONLY };
	int r = cache_create(c, who, parent, what, ret, &h);

	if (r == 0)
		cache_release(c, h);
	return r;
}

int cache_make(struct cache *c, struct caller who, uint64_t parent, struct name name,
	       struct new_node what, struct cache_entry *ret)
{
	struct make_op m = { .op = { .run = make_run, .done = make_done },
			     .c = c,
			     .name = name,
			     .target = what.target };
	int r = name_check(name);

	if (r == 0 && (S_ISCHR(what.mode) || S_ISBLK(what.mode)))
		r = -EPERM;
	if (r < 0)
		return r;
	if (S_ISREG(what.mode))
		return make_file(c, who, parent, name, what.mode, ret);
	r = meta_admits(c->meta);
	if (r == 0)
		r = new_row(c, who, parent, what.mode, &m.row);
	if (r < 0)
		return r;
	m.row.hash = name_hash(c->seed, name);
	m.row.size_bytes = what.target ? strlen(what.target) : 0;
	r = meta_submit(c->meta, &m.op);
	return r < 0 ? r : entry_of_row(c, &m.row, ret);
}

static bool first_link(void *arg, struct link_row l)
{
	*(struct link_row *)arg = l;
	return false;
}

/* Of an object with several names: if the first goes, another takes its place. */
static int drop_link(struct meta_db *db, struct object_row *row, uint64_t parent, uint64_t hash)
{
	struct link_row other = { 0 };
	int r;

	row->nlink--;
	if (row->parent != parent || row->hash != hash)
		return meta_link_del(db, row->id, (struct link_row){ parent, hash });
	r = meta_link_scan(db, row->id, first_link, &other);
	if (r == 0)
		r = meta_link_del(db, row->id, other);
	row->parent = other.parent;
	row->hash = other.hash;
	return r;
}

int drop_name(struct meta_db *db, struct drop *d, uint64_t parent, uint64_t hash, struct name name,
	      int64_t now_ns)
{
	struct object_row row = d->row;
	int r = meta_dentry_del(db, parent, hash, name);

	d->last = S_ISDIR(row.mode) || row.nlink <= 1;
	if (r < 0)
		return r;
	if (d->last)
		return meta_object_del(db, row.id);
	r = drop_link(db, &row, parent, hash);
	row.ctime_ns = now_ns;
	return r < 0 ? r : meta_object_set(db, &row);
}

void dropped(struct cache *c, const struct drop *d, int64_t now_ns)
{
	struct node *n = node_of(c, &d->row);

	if (d->last) {
		policy_remove(c->policy, d->row.id);
		c->stats.removed++;
	}
	if (!n) {
		if (d->last && d->row.has_memory)
			memory_remove(c->memory, d->row.gen);
		return;
	}
	n->row.nlink = d->last ? 0 : n->row.nlink - 1;
	n->row.ctime_ns = now_ns;
	if (d->last) {
		node_orphan(c, n);
		node_settle(c, n);
	}
}

struct unlink_op {
	struct meta_op op;
	struct cache *c;
	uint64_t parent;
	uint64_t hash;
	struct name name;
	int64_t now_ns;
	bool dir;
	struct drop drop;
};

static int check_empty(struct cache *c, struct meta_db *db, uint64_t dir)
{
	mutex_lock(&c->lock);
	struct node *n = node_find(c, dir);
	bool building = n && n->nr_pending > 0;

	mutex_unlock(&c->lock);
	if (building)
		return -ENOTEMPTY;
	int r = meta_dentry_any(db, dir);

	return r == -ENOENT ? 0 : r == 0 ? -ENOTEMPTY : r;
}

static int unlink_run(struct meta_db *db, struct meta_op *op)
{
	struct unlink_op *u = (struct unlink_op *)op;
	struct dentry_row d;
	int r = meta_dentry_get(db, u->parent, u->hash, u->name, &d);

	if (r == 0)
		r = meta_object_get(db, d.object, &u->drop.row);
	if (r == 0 && u->dir && !S_ISDIR(d.mode))
		r = -ENOTDIR;
	if (r == 0 && !u->dir && S_ISDIR(d.mode))
		r = -EISDIR;
	if (r == 0 && u->dir)
		r = check_empty(u->c, db, d.object);
	if (r == 0)
		r = drop_name(db, &u->drop, u->parent, u->hash, u->name, u->now_ns);
	if (r == 0)
		r = meta_object_touch_dir(db, u->parent, u->now_ns, u->dir ? -1 : 0);
	return r;
}

/* What is being written under a removed name will not bring it back. */
static bool detach_writers(struct cache *c, uint64_t parent, uint64_t hash, struct name name)
	REQUIRES(c->lock)
{
	struct pending *p = pending_find(c, parent, hash, name);

	if (!p)
		return false;
	for (bool more = true; more;) {
		struct node *v = pending_newest(p);

		more = p->versions.next != p->versions.prev; /* p goes with its last version */
		v->refs++;
		version_give_up(c, v);
		v->refs--;
		node_settle(c, v);
	}
	return true;
}

static void unlink_done(struct meta_op *op, int r)
{
	struct unlink_op *u = (struct unlink_op *)op;
	struct cache *c = u->c;

	if (r < 0)
		return;
	mutex_lock(&c->lock);
	dropped(c, &u->drop, u->now_ns);
	(void)detach_writers(c, u->parent, u->hash, u->name);
	seq_bump(c, u->parent, u->hash);
	dir_changed(c, u->parent, u->now_ns, u->dir ? -1 : 0);
	mutex_unlock(&c->lock);
}

int cache_unlink(struct cache *c, struct caller who, uint64_t parent, struct name name, bool dir)
{
	struct unlink_op u = { .op = { .run = unlink_run, .done = unlink_done },
			       .c = c,
			       .parent = parent,
			       .hash = name_hash(c->seed, name),
			       .name = name,
			       .now_ns = clock_real_ns(),
			       .dir = dir };
	int r = meta_submit(c->meta, &u.op);

	if (r != -ENOENT || dir)
		return r;
	/* Not there for others, but the caller's own process may be making it. */
	mutex_lock(&c->lock);
	struct pending *p = pending_find(c, parent, u.hash, name);

	if (p && pending_own(p, who.tid) && detach_writers(c, parent, u.hash, name))
		r = 0;
	mutex_unlock(&c->lock);
	return r;
}

struct rename_op {
	struct meta_op op;
	struct cache *c;
	const struct rename_at *from;
	const struct rename_at *to;
	uint64_t from_hash;
	uint64_t to_hash;
	unsigned flags;
	int64_t now_ns;
	struct object_row row;	/* what moves */
	struct object_row back; /* what moves the other way, with RENAME_EXCHANGE */
	struct drop over;	/* what was in the way */
	bool same;		/* two names of one object: nothing happens (rename(2)) */
};

static bool exchange(const struct rename_op *o)
{
	return o->flags & RENAME_EXCHANGE;
}

static int check_target(struct rename_op *o, struct meta_db *db)
{
	struct dentry_row d;
	struct object_row *there = exchange(o) ? &o->back : &o->over.row;
	int r = meta_dentry_get(db, o->to->parent, o->to_hash, o->to->name, &d);

	if (r == -ENOENT)
		return exchange(o) ? -ENOENT : 0;
	if (r == 0)
		r = meta_object_get(db, d.object, there);
	if (r < 0)
		return r;
	o->same = there->id == o->row.id;
	if (o->same || exchange(o))
		return 0;
	if (o->flags & RENAME_NOREPLACE)
		return -EEXIST;
	if (S_ISDIR(o->row.mode) && !S_ISDIR(there->mode))
		return -ENOTDIR;
	if (!S_ISDIR(o->row.mode) && S_ISDIR(there->mode))
		return -EISDIR;
	return S_ISDIR(there->mode) ? check_empty(o->c, db, there->id) : 0;
}

/* The object's own record of a name: its first one, or a row of link. */
static int move_name_of(struct meta_db *db, struct object_row *row, const struct link_row *from,
			const struct link_row *to)
{
	int r = 0;

	if (row->parent == from->parent && row->hash == from->hash) {
		row->parent = to->parent;
		row->hash = to->hash;
	} else {
		r = meta_link_del(db, row->id, *from);
		if (r == 0)
			r = meta_link_put(db, row->id, *to);
	}
	return r < 0 ? r : meta_object_set(db, row);
}

static int rename_write(struct meta_db *db, struct rename_op *o)
{
	struct link_row from = { o->from->parent, o->from_hash };
	struct link_row to = { o->to->parent, o->to_hash };
	struct dentry_row there = { to.parent, to.hash, o->row.id, o->row.mode & S_IFMT };
	int r = 0;

	o->row.ctime_ns = o->now_ns;
	if (exchange(o)) {
		struct dentry_row here = { from.parent, from.hash, o->back.id,
					   o->back.mode & S_IFMT };

		o->back.ctime_ns = o->now_ns;
		r = meta_dentry_set(db, &here, o->from->name);
		if (r == 0)
			r = meta_dentry_set(db, &there, o->to->name);
		if (r == 0)
			r = move_name_of(db, &o->back, &to, &from);
	} else {
		if (o->over.row.id)
			r = drop_name(db, &o->over, to.parent, to.hash, o->to->name, o->now_ns);
		if (r == 0)
			r = meta_dentry_del(db, from.parent, from.hash, o->from->name);
		if (r == 0)
			r = meta_dentry_put(db, &there, o->to->name);
	}
	return r < 0 ? r : move_name_of(db, &o->row, &from, &to);
}

/* How the link counts of the two directories change: "..", and what was in the way. */
static void nlink_deltas(const struct rename_op *o, int *from, int *to)
{
	int moves = S_ISDIR(o->row.mode) ? 1 : 0;
	int back = exchange(o) && S_ISDIR(o->back.mode) ? 1 : 0;

	*from = back - moves;
	*to = moves - back - (o->over.row.id && S_ISDIR(o->over.row.mode) ? 1 : 0);
}

static int rename_run(struct meta_db *db, struct meta_op *op)
{
	struct rename_op *o = (struct rename_op *)op;
	struct object_row dir;
	struct dentry_row d;
	int delta_from;
	int delta_to;
	int r = meta_object_get(db, o->to->parent, &dir);

	if (r == 0)
		r = meta_dentry_get(db, o->from->parent, o->from_hash, o->from->name, &d);
	if (r == 0)
		r = meta_object_get(db, d.object, &o->row);
	if (r == 0)
		r = check_target(o, db);
	if (r < 0 || o->same)
		return r;
	nlink_deltas(o, &delta_from, &delta_to);
	r = rename_write(db, o);
	if (r == 0)
		r = meta_object_touch_dir(db, o->from->parent, o->now_ns, delta_from);
	if (r == 0)
		r = meta_object_touch_dir(db, o->to->parent, o->now_ns, delta_to);
	return r;
}

static void moved(struct cache *c, const struct object_row *row) REQUIRES(c->lock)
{
	struct node *n = node_of(c, row);

	if (n) {
		n->row.parent = row->parent;
		n->row.hash = row->hash;
		n->row.ctime_ns = row->ctime_ns;
	}
	policy_rename(c->policy, row->id, name_key(row->parent, row->hash));
	if (S_ISDIR(row->mode))
		c->placement_epoch++;
}

static void rename_done(struct meta_op *op, int r)
{
	struct rename_op *o = (struct rename_op *)op;
	struct cache *c = o->c;
	int delta_from;
	int delta_to;

	if (r < 0 || o->same)
		return;
	nlink_deltas(o, &delta_from, &delta_to);
	mutex_lock(&c->lock);
	struct node *over = o->over.row.id ? node_of(c, &o->over.row) : NULL;

	if (over)
		over->linger = true;
	if (o->over.row.id)
		dropped(c, &o->over, o->now_ns);
	moved(c, &o->row);
	if (exchange(o))
		moved(c, &o->back);
	seq_bump(c, o->from->parent, o->from_hash);
	seq_bump(c, o->to->parent, o->to_hash);
	dir_changed(c, o->from->parent, o->now_ns, delta_from);
	dir_changed(c, o->to->parent, o->now_ns, delta_to);
	mutex_unlock(&c->lock);
}

/* The version that the caller's process is writing under @at, with a reference, or NULL. */
static struct node *own_version(struct cache *c, struct caller who, const struct rename_at *at,
				uint64_t hash)
{
	mutex_lock(&c->lock);
	struct pending *p = pending_find(c, at->parent, hash, at->name);
	struct node *v = p ? pending_own(p, who.tid) : NULL;

	if (v)
		v->refs++;
	mutex_unlock(&c->lock);
	return v;
}

int cache_rename(struct cache *c, struct caller who, struct rename_at from, struct rename_at to,
		 unsigned flags)
{
	struct rename_op o = { .op = { .run = rename_run, .done = rename_done },
			       .c = c,
			       .from = &from,
			       .to = &to,
			       .from_hash = name_hash(c->seed, from.name),
			       .to_hash = name_hash(c->seed, to.name),
			       .flags = flags,
			       .now_ns = clock_real_ns() };
	int r = name_check(to.name);

	if (r == 0 && (flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE)))
		r = -EINVAL;
	if (r < 0)
		return r;
	struct node *v = own_version(c, who, &from, o.from_hash);

	if (!v)
		return meta_submit(c->meta, &o.op);
	if (exchange(&o)) {
		/* Both names have to be there first. */
		r = publish(c, v, &(struct publish_at){ 0 });
		node_put(c, v);
		return r < 0 && r != -EALREADY ? r : meta_submit(c->meta, &o.op);
	}
	struct publish_at at = { to.parent, to.name, &from, flags & RENAME_NOREPLACE };

	r = publish(c, v, &at);
	node_put(c, v);
	return r == -EALREADY ? meta_submit(c->meta, &o.op) : r; /* its last close was faster */
}
