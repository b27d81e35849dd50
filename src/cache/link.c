/* SPDX-License-Identifier: Apache-2.0 */
/* Hard links. A link to what is under construction publishes it. */
#include "base/clock.h"
#include "cache/node.h"

#include <errno.h>

struct link_op {
	struct meta_op op;
	struct cache *c;
	struct name name;
	uint64_t object;
	uint64_t parent;
	uint64_t hash;
	int64_t now_ns;
	struct object_row row;
};

static int link_run(struct meta_db *db, struct meta_op *op)
{
	struct link_op *l = (struct link_op *)op;
	int r = check_free(l->c, db, l->parent, l->hash, l->name);

	if (r == 0)
		r = meta_object_get(db, l->object, &l->row);
	if (r == 0 && l->row.nlink == UINT32_MAX)
		r = -EMLINK;
	if (r < 0)
		return r;
	l->row.nlink++;
	l->row.ctime_ns = l->now_ns;
	r = meta_object_set(db, &l->row);
	if (r == 0)
		r = meta_link_put(db, l->object, (struct link_row){ l->parent, l->hash });
	if (r == 0)
		r = meta_dentry_put(db,
				    &(struct dentry_row){ l->parent, l->hash, l->object,
							  l->row.mode & S_IFMT },
				    l->name);
	if (r == 0)
		r = meta_object_touch_dir(db, l->parent, l->now_ns, 0);
	return r;
}

static void link_done(struct meta_op *op, int r)
{
	struct link_op *l = (struct link_op *)op;
	struct cache *c = l->c;

	if (r < 0)
		return;
	mutex_lock(&c->lock);
	struct node *n = node_of(c, &l->row);

	if (n) {
		n->row.nlink = l->row.nlink;
		n->row.ctime_ns = l->now_ns;
	}
	seq_bump(c, l->parent, l->hash);
	dir_changed(c, l->parent, l->now_ns, 0);
	mutex_unlock(&c->lock);
}

int cache_link(struct cache *c, struct caller who UNUSED, uint64_t node, uint64_t parent,
	       struct name name, struct cache_entry *ret)
{
	struct link_op l = { .op = { .run = link_run, .done = link_done },
			     .c = c,
			     .name = name,
			     .parent = parent,
			     .hash = name_hash(c->seed, name),
			     .now_ns = clock_real_ns() };
	struct node *n = node_get(c, node);
	int r = n ? name_check(name) : -ESTALE;

	mutex_lock(&c->lock);
	bool building = n && n->state == NODE_PROCESSING;
	bool named = building && n->pending;

	mutex_unlock(&c->lock);
	if (r == 0 && !building)
		r = meta_admits(c->meta);
	/* A link is a publication: under the first name when it has one, else (O_TMPFILE) under this one. */
	if (r == 0 && named)
		r = publish(c, n, &(struct publish_at){ .noreplace = false });
	else if (r == 0 && building)
		r = publish(
			c, n,
			&(struct publish_at){ .parent = parent, .name = name, .noreplace = true });
	if (r == -EALREADY)
		building = false;
	if (r == -EALREADY || (r == 0 && (named || !building))) {
		mutex_lock(&c->lock);
		l.object = n->row.id;
		r = n->state == NODE_ORPHAN ? -ENOENT : 0;
		mutex_unlock(&c->lock);
		if (r == 0)
			r = meta_submit(c->meta, &l.op);
	}
	if (r == 0) {
		mutex_lock(&c->lock);
		node_entry(c, n, 0, ret); /* as in lookup.c: another name may be written to */
		mutex_unlock(&c->lock);
	}
	if (n)
		node_put(c, n);
	return r;
}
