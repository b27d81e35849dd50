/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a version's construction: it becomes what its name means, or it goes. */
#include "base/clock.h"
#include "base/log.h"
#include "cache/node.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct publish_op {
	struct meta_op op;
	struct cache *c;
	struct node *v;
	uint64_t parent;
	uint64_t hash;
	struct name name;
	const struct rename_at *from;
	uint64_t from_hash;
	bool noreplace;
	int64_t now_ns;
	uint64_t
		other_id; /* for a new object when the version's own cannot be it; 0: none to be had */
	/* from run to done: */
	struct object_row row; /* as published */
	struct object_row old; /* what the name meant; id 0: nothing */
	struct drop renamed;   /* what the name renamed from meant before this version */
	bool moves;	       /* and that is the version's object, which goes along */
	bool fresh;	       /* the version's object has never been in the metadata */
	struct link_row
		old_links[8]; /* other names of the object, which the kernel must look up again */
	unsigned nr_links;
	struct object_row seen; /* the version's row when it was measured */
	bool late;		/* its attributes were changed between run and done */
	bool already;
	bool touch; /* the directory changed */
};

static bool collect_link(void *arg, struct link_row l)
{
	struct publish_op *p = arg;

	if (p->nr_links < sizeof p->old_links / sizeof *p->old_links)
		p->old_links[p->nr_links++] = l;
	return true;
}

/* The version's attributes as of now, its bytes measured. */
static void row_of_version(struct cache *c, struct node *v, struct object_row *row)
	REQUIRES(c->lock)
{
	struct cache_attr a;

	node_attr(c, v, &a);
	*row = v->row;
	row->gen = node_id(v);
	row->size_bytes = (uint64_t)a.st.st_size;
	row->memory_bytes = (uint64_t)a.st.st_blocks * 512;
	row->has_memory = true;
	row->mtime_ns = timespec_ns(a.st.st_mtim);
	row->atime_ns = timespec_ns(a.st.st_atim);
	row->ctime_ns = timespec_ns(a.st.st_ctim);
	/* Not written by root, so set-id bits do not outlive the write (write(2)). */
	if (!v->new_object && v->by_user)
		row->mode &= ~(uint32_t)(S_ISUID | ((row->mode & S_IXGRP) ? S_ISGID : 0));
}

static int check_old(struct meta_db *db, struct publish_op *p, bool *ret_exists)
{
	struct dentry_row d;
	int r = meta_dentry_get(db, p->parent, p->hash, p->name, &d);

	*ret_exists = false;
	p->old.id = 0;
	p->nr_links = 0;
	if (r == -ENOENT)
		return 0;
	if (r == 0 && p->noreplace)
		return -EEXIST;
	if (r == 0 && S_ISDIR(d.mode))
		return -EISDIR;
	if (r == 0)
		r = meta_object_get(db, d.object, &p->old);
	if (r == 0 && p->old.nlink > 1)
		r = meta_link_scan(db, p->old.id, collect_link, p);
	*ret_exists = r == 0;
	return r;
}

/* In a rename the whole object moves; what has other names stays under those as it was. */
static int leave_from(struct meta_db *db, struct publish_op *p)
{
	struct dentry_row d;
	uint64_t parent = p->from->parent;
	int r = meta_dentry_get(db, parent, p->from_hash, p->from->name, &d);

	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = meta_object_get(db, d.object, &p->renamed.row);
	if (r < 0)
		return r;
	p->moves = !p->old.id && p->renamed.row.id == p->seen.id && p->renamed.row.nlink <= 1;
	if (p->moves)
		r = meta_dentry_del(db, parent, p->from_hash, p->from->name);
	else
		r = drop_name(db, &p->renamed, parent, p->from_hash, p->from->name, p->now_ns);
	if (r == 0 && p->old.id == p->renamed.row.id) /* two names of one object, now one less */
		r = meta_object_get(db, p->old.id, &p->old);
	return r < 0 ? r : meta_object_touch_dir(db, parent, p->now_ns, 0);
}

/* Onto an existing file: the object stays the same, with its names, and gets a new version. */
static int put_over(struct meta_db *db, struct publish_op *p)
{
	p->row.id = p->old.id;
	p->row.nlink = p->old.nlink;
	p->row.parent = p->old.parent;
	p->row.hash = p->old.hash;
	if (!p->from)
		p->row.btime_ns = p->old.btime_ns;
	return meta_object_set(db, &p->row);
}

static int put_new(struct meta_db *db, struct publish_op *p)
{
	int r;

	p->row.nlink = 1;
	p->row.parent = p->parent;
	p->row.hash = p->hash;
	if (p->moves) {
		r = meta_object_set(db, &p->row);
	} else {
		if (!p->fresh)
			p->row.id = p->other_id;
		r = meta_object_put(db, &p->row);
	}
	if (r == 0)
		r = meta_dentry_put(db,
				    &(struct dentry_row){ p->parent, p->hash, p->row.id,
							  p->row.mode & S_IFMT },
				    p->name);
	return r;
}

static int put_xattrs(struct meta_db *db, const struct publish_op *p)
{
	const struct list *all = &p->v->xattrs;
	int r = 0;

	for (struct list *at = all->next; at != all && r == 0; at = at->next) {
		const struct xattr *x = list_entry(at, struct xattr, link);

		r = meta_xattr_set(db, p->row.id, x->name, x->value, x->len);
	}
	return r;
}

static int publish_run(struct meta_db *db, struct meta_op *op)
{
	struct publish_op *p = (struct publish_op *)op;
	struct cache *c = p->c;
	bool exists = false;

	mutex_lock(&c->lock);
	/* Its last close and a rename may be in one transaction, so that nothing is done yet: the first of them counts. */
	p->already =
		p->v->state != NODE_PROCESSING || (p->v->publishing && p->v->publishing != &p->row);
	p->seen = p->v->row;
	p->fresh = p->v->new_object && !(p->v->pending && p->v->pending->used);
	p->moves = false;
	p->renamed.row.id = 0;
	row_of_version(c, p->v, &p->row);
	mutex_unlock(&c->lock);
	if (p->already)
		return -EALREADY;
	if (p->row.memory_bytes > c->cfg.ram_bytes)
		return -EFBIG;
	if (!p->fresh && !p->other_id)
		return -ENOSPC;
	int r = check_old(db, p, &exists);

	if (r < 0)
		return r;
	if (exists &&
	    !S_ISREG(p->old.mode)) /* a link, fifo or socket came under the name meanwhile */
		return -EEXIST;
	/* The first to write, as it tells whether the directory is still there. New bytes for a name do not change it. */
	p->touch = !exists || p->from;
	if (p->touch)
		r = meta_object_touch_dir(db, p->parent, p->now_ns, 0);
	if (r == 0 && p->from)
		r = leave_from(db, p);
	if (r == 0)
		r = exists ? put_over(db, p) : put_new(db, p);
	if (r == 0)
		r = put_xattrs(db, p);
	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	p->v->publishing = &p->row;
	if (p->v->pending)
		p->v->pending->used = true;
	mutex_unlock(&c->lock);
	return 0;
}

/* The version before, @old, is no longer what any name means. */
static void supersede(struct cache *c, const struct object_row *old) REQUIRES(c->lock)
{
	struct node *n = node_find(c, old->gen);

	if (n) {
		node_orphan(c, n);
		node_settle(c, n);
	} else {
		memory_remove(c->memory, old->gen);
	}
}

static void policy_publish(struct cache *c, struct publish_op *p) REQUIRES(c->lock)
{
	uint64_t id = p->row.id;

	if (policy_insert(c->policy, id, name_key(p->row.parent, p->row.hash), p->v->at) == -EEXIST)
		policy_touch(c->policy, id, p->v->at);
	if (p->moves)
		policy_rename(c->policy, id, name_key(p->row.parent, p->row.hash));
	policy_settle(c->policy, id, p->row.memory_bytes);
	policy_pin(c->policy, id, row_pinned(&p->row, clock_real_ns()));
	policy_busy(c->policy, id, (int)p->v->nr_open); /* each handle that stays open counts */
}

/* A chmod, chown or utimens that came while the transaction ran is not lost. */
static void keep_late_changes(struct cache *c UNUSED, struct publish_op *p) REQUIRES(c->lock)
{
	struct object_row now = p->v->row;

	p->late = now.mode != p->seen.mode || now.uid != p->seen.uid || now.gid != p->seen.gid ||
		  now.ctime_ns != p->seen.ctime_ns || now.pin_until_ns != p->seen.pin_until_ns;
	p->v->row = p->row;
	if (!p->late)
		return;
	p->v->row.mode = now.mode;
	p->v->row.uid = now.uid;
	p->v->row.gid = now.gid;
	p->v->row.atime_ns = now.atime_ns;
	p->v->row.ctime_ns = now.ctime_ns;
	p->v->row.pin_until_ns = now.pin_until_ns;
}

/* The transaction is in the metadata: memory follows. */
static void published(struct cache *c, struct publish_op *p) REQUIRES(c->lock)
{
	struct node *v = p->v;

	xattrs_clear(&v->xattrs);
	pending_leave(c, v);
	keep_late_changes(c, p);
	v->state = NODE_COMPLETE;
	v->counted = true;
	v->closing_until_ns = 0;
	c->nr_processing--;
	c->stats.published++;
	c->stats.published_bytes += p->row.memory_bytes;
	if (p->old.id)
		supersede(c, &p->old);
	if (p->moves)
		supersede(c, &p->renamed.row);
	else if (p->renamed.row.id)
		dropped(c, &p->renamed, p->now_ns);
	policy_publish(c, p);
	seq_bump(c, p->parent, p->hash);
	if (p->touch)
		dir_changed(c, p->parent, p->now_ns, 0);
	for (unsigned i = 0; i < p->nr_links; i++)
		seq_bump(c, p->old_links[i].parent, p->old_links[i].hash);
	seq_bump(c, p->row.parent, p->row.hash);
	if (p->from) {
		seq_bump(c, p->from->parent, p->from_hash);
		dir_changed(c, p->from->parent, p->now_ns, 0);
	}
}

static void publish_done(struct meta_op *op, int r)
{
	struct publish_op *p = (struct publish_op *)op;
	struct cache *c = p->c;

	mutex_lock(&c->lock);
	if (p->v->publishing == &p->row)
		p->v->publishing = NULL;
	if (r == 0)
		published(c, p);
	mutex_unlock(&c->lock);
}

/* The kernel may still have the overwritten version under a name of the object. */
static void tell_kernel(struct publish_op *p)
{
	struct cache *c = p->c;
	struct meta_db *db;
	char name[NAME_MAX_BYTES];
	size_t len;

	if (!p->old.id || !c->hooks.inval_entry)
		return;
	c->hooks.inval_entry(c->hooks.arg, p->parent, p->name);
	if (p->old.nlink < 2 || meta_read_begin(c->meta, &db) < 0)
		return;
	p->old_links[p->nr_links < 8 ? p->nr_links++ : 7] =
		(struct link_row){ p->old.parent, p->old.hash };
	for (unsigned i = 0; i < p->nr_links; i++) {
		const struct link_row *l = &p->old_links[i];

		if (meta_dentry_name(db, l->parent, l->hash, p->old.id, name, &len) == 0)
			c->hooks.inval_entry(c->hooks.arg, l->parent, (struct name){ name, len });
	}
	meta_read_end(c->meta, db);
}

int publish(struct cache *c, struct node *v, const struct publish_at *at)
{
	struct publish_op p = {
		.op = { .run = publish_run, .done = publish_done },
		.c = c,
		.v = v,
		.parent = at->parent,
		.name = at->name,
		.from = at->from,
		.noreplace = at->noreplace,
		.now_ns = clock_real_ns(),
		.other_id = meta_next_id(c->meta),
	};
	char *own_name = NULL;

	mutex_lock(&c->lock);
	bool shares = v->state == NODE_PROCESSING && v->base_gen; /* nobody has written to it */

	mutex_unlock(&c->lock);
	int r = shares ? version_bytes(c, v) : 0;

	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	if (!at->name.s && v->pending) {
		p.parent = v->pending->parent;
		own_name = strndup(v->pending->name, v->pending->len);
		p.name = (struct name){ own_name, v->pending->len };
	}
	mutex_unlock(&c->lock);
	if (!p.name.s) {
		free(own_name);
		return -EALREADY;
	}
	p.hash = name_hash(c->seed, p.name);
	if (p.from)
		p.from_hash = name_hash(c->seed, p.from->name);
	r = meta_submit(c->meta, &p.op);
	if (r == 0 && p.late && row_store(c, v) < 0)
		log_msg(LOG_WARNING, "cache: attributes not recorded gen=%" PRIu64, node_id(v));
	if (r == 0) {
		tell_kernel(&p);
		evict_over_budget(c, p.row.id);
	}
	free(own_name);
	return r;
}

void version_give_up(struct cache *c, struct node *v)
{
	if (v->state != NODE_PROCESSING)
		return;
	v->row.nlink = 0;
	c->nr_processing--;
	c->stats.aborted += !v->spare;
	node_orphan(c, v);
	pending_leave(c, v);
}
