/* SPDX-License-Identifier: Apache-2.0 */
/* Making room: the victims are the policy's, whole objects go with their names. */
#include "base/clock.h"
#include "base/log.h"
#include "cache/node.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 16 };

struct evict_op {
	struct meta_op op;
	struct cache *c;
	uint64_t object;
	struct object_row row; /* id 0: it stays, or is gone */
	struct link_row names[MAX_NAMES];
	char *texts[MAX_NAMES]; /* the names, for the kernel; owned */
	size_t lens[MAX_NAMES];
	unsigned nr_names;
	int64_t now_ns;
};

static bool collect_name(void *arg, struct link_row l)
{
	struct evict_op *e = arg;

	if (e->nr_names == MAX_NAMES)
		return false;
	e->names[e->nr_names++] = l;
	return true;
}

static bool in_use(struct cache *c, const struct object_row *row)
{
	mutex_lock(&c->lock);
	struct node *n = node_find(c, row->gen);
	bool busy = n && (n->nr_open > 0 || n->state != NODE_COMPLETE);

	mutex_unlock(&c->lock);
	return busy;
}

static int drop_names(struct meta_db *db, struct evict_op *e)
{
	char name[NAME_MAX_BYTES];
	int r = 0;

	for (unsigned i = 0; i < e->nr_names && r == 0; i++) {
		const struct link_row *l = &e->names[i];
		size_t len;

		r = meta_dentry_name(db, l->parent, l->hash, e->object, name, &len);
		if (r == 0)
			r = meta_dentry_del(db, l->parent, l->hash, (struct name){ name, len });
		if (r == 0)
			r = meta_object_touch_dir(db, l->parent, e->now_ns, 0);
		if (r == 0) {
			e->texts[i] = malloc(len);
			e->lens[i] = len;
			if (e->texts[i])
				memcpy(e->texts[i], name, len);
		}
	}
	return r;
}

static int evict_run(struct meta_db *db, struct meta_op *op)
{
	struct evict_op *e = (struct evict_op *)op;
	struct object_row row;
	int r = meta_object_get(db, e->object, &row);

	if (r < 0)
		return r;
	if (in_use(e->c, &row))
		return -EBUSY;
	e->names[e->nr_names++] = (struct link_row){ row.parent, row.hash };
	if (row.nlink > 1)
		r = meta_link_scan(db, e->object, collect_name, e);
	if (r == 0 && row.nlink > MAX_NAMES)
		r = -EBUSY; /* so many names mean that somebody cares */
	if (r == 0)
		r = drop_names(db, e);
	if (r == 0)
		r = meta_object_del(db, e->object);
	if (r == 0)
		e->row = row;
	return r;
}

static void evict_done(struct meta_op *op, int r)
{
	struct evict_op *e = (struct evict_op *)op;
	struct cache *c = e->c;

	if (r < 0)
		return;
	mutex_lock(&c->lock);
	struct node *n = node_find(c, e->row.gen);

	policy_evict(c->policy, e->object, name_key(e->row.parent, e->row.hash));
	c->stats.evicted++;
	c->stats.evicted_bytes += e->row.memory_bytes;
	if (n) {
		n->row.nlink = 0;
		node_orphan(c, n);
		node_settle(c, n);
	} else {
		memory_remove(c->memory, e->row.gen);
	}
	for (unsigned i = 0; i < e->nr_names; i++) {
		seq_bump(c, e->names[i].parent, e->names[i].hash);
		dir_changed(c, e->names[i].parent, e->now_ns, 0);
	}
	mutex_unlock(&c->lock);
}

/* Evict one object. Returns false when nothing can go. */
static bool evict_one(struct cache *c, uint64_t except)
{
	struct evict_op e = { .op = { .run = evict_run, .done = evict_done },
			      .c = c,
			      .now_ns = clock_real_ns() };

	mutex_lock(&c->lock);
	bool some = policy_victim(c->policy, except, clock_mono_ns(), &e.object);

	mutex_unlock(&c->lock);
	if (!some)
		return false;
	int r = meta_submit(c->meta, &e.op);

	for (unsigned i = 0; i < e.nr_names; i++) {
		if (r == 0 && e.texts[i] && c->hooks.inval_entry)
			c->hooks.inval_entry(c->hooks.arg, e.names[i].parent,
					     (struct name){ e.texts[i], e.lens[i] });
		free(e.texts[i]);
	}
	if (r == -ENOENT) { /* removed in the meantime: that made room as well */
		mutex_lock(&c->lock);
		policy_remove(c->policy, e.object);
		mutex_unlock(&c->lock);
	}
	return r == 0 || r == -ENOENT || r == -EBUSY;
}

/* A tmpfs of our own knows exactly. In somebody else's directory the sum of what is published stands in, and of what is
 * being written. */
uint64_t memory_usage(struct cache *c)
{
	uint64_t used;

	if (memory_used(c->memory, &used))
		return used;
	used = policy_used_bytes(c->policy);
	for (size_t i = 0; i < c->nodes.nr_slots && c->nr_processing > 0; i++) {
		for (struct map_node *m = c->nodes.slots[i]; m; m = m->next) {
			struct node *n = map_entry(m, struct node, by_id);
			struct cache_attr a;

			if (n->state != NODE_PROCESSING || n->base_gen)
				continue;
			node_attr(c, n, &a);
			used += (uint64_t)a.st.st_blocks * 512;
		}
	}
	return used;
}

/* What is being written may exceed the budget until it is published, and then pushes others out: evicting here already would
 * choose among fewer. That needs something that can go, and the file system's own limit must stay far. */
static bool admit(struct cache *c, uint64_t used, uint64_t bytes) REQUIRES(c->lock)
{
	uint64_t budget = c->cfg.ram_bytes;

	if (bytes)
		return bytes <= budget && used <= budget - bytes;
	return used < budget || (policy_evictable_bytes(c->policy) > 0 &&
				 used < budget + memory_headroom(budget) / 2);
}

int room_for(struct cache *c, uint64_t bytes)
{
	/* A bound on the attempts: others may fill what this caller frees. */
	for (unsigned tries = 0; tries < 100000; tries++) {
		mutex_lock(&c->lock);
		bool fits = admit(c, memory_usage(c), bytes);

		mutex_unlock(&c->lock);
		if (fits)
			return 0;
		if (bytes > c->cfg.ram_bytes || !evict_one(c, 0))
			break;
	}
	mutex_lock(&c->lock);
	c->stats.no_space++;
	mutex_unlock(&c->lock);
	return -ENOSPC;
}

void evict_over_budget(struct cache *c, uint64_t except)
{
	for (;;) {
		mutex_lock(&c->lock);
		bool over = policy_used_bytes(c->policy) > c->cfg.ram_bytes;

		mutex_unlock(&c->lock);
		if (!over || !evict_one(c, except))
			return;
	}
}

/* Writers take memory without asking: while some are at work, what they use far above the budget is evicted behind them. */
void evict_overflow(struct cache *c)
{
	for (;;) {
		mutex_lock(&c->lock);
		bool over =
			memory_usage(c) > c->cfg.ram_bytes + memory_headroom(c->cfg.ram_bytes) / 4;

		mutex_unlock(&c->lock);
		if (!over || !evict_one(c, 0))
			return;
	}
}
