/* SPDX-License-Identifier: Apache-2.0 */
/* The keeper thread: it writes down what may be late (access times, the policy's order), tries again what a full disk
 * refused, forgets opens that never came back, and evicts behind writers. And the restart: what memory still holds. */
#include "base/clock.h"
#include "base/log.h"
#include "cache/node.h"

#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

enum { FLUSH_MS = 1000, WATCH_MS = 5, HEAT_BATCH = 512, DROP_BATCH = 256 };

struct atime_note {
	struct list link;
	uint64_t object;
	uint64_t node;
	int64_t atime_ns;
};

void note_atime(struct cache *c, struct node *n)
{
	struct atime_note *a;

	n->row.atime_ns = clock_real_ns();
	if (n->atime_dirty || n->state != NODE_COMPLETE)
		return;
	a = malloc(sizeof *a);
	if (!a)
		return;
	*a = (struct atime_note){ .object = n->row.id,
				  .node = node_id(n),
				  .atime_ns = n->row.atime_ns };
	list_add_tail(&c->atimes, &a->link);
	n->atime_dirty = true;
}

/* The kernel answers for entry_timeout without asking again. */
static void give_grace(struct cache *c, uint64_t object) REQUIRES(c->lock)
{
	policy_grace(c->policy, object,
		     clock_mono_ns() + c->cfg.grace_ns + c->cfg.entry_timeout_ns);
}

void note_stat(struct cache *c, struct caller who, const struct node *n)
{
	if (S_ISREG(n->type) && runs_stat(c->runs, who.tid, n->row.id))
		give_grace(c, n->row.id);
}

bool note_access(struct cache *c, struct caller who, enum run_op op, struct node *n, uint64_t name)
{
	struct policy_heat heat = { 0 };
	struct run_access a = {
		.tid = who.tid,
		.op = op,
		.name = name,
		.object = n && op != RUN_CREATE ? n->row.id : 0,
		.now_ns = clock_mono_ns(),
	};

	if (n && !S_ISREG(n->type))
		return false;
	if (a.object && policy_place(c->policy, a.object, &heat))
		a.last = heat.at;
	struct run_event ev = runs_note(c->runs, &a);

	if (ev.stat)
		policy_touch(c->policy, ev.stat_object, ev.stat_at);
	if (op == RUN_LOOKUP && a.object && !ev.ambiguous)
		give_grace(c, a.object);
	if (op == RUN_OPEN) {
		policy_touch(c->policy, a.object, ev.at);
		policy_grace(c->policy, a.object, 0);
	}
	if (op == RUN_CREATE && n)
		n->at = ev.at;
	return ev.ambiguous;
}

struct flush_op {
	struct meta_op op;
	struct list atimes;
	struct policy_heat heat[HEAT_BATCH];
	struct policy_ghost ghosts[HEAT_BATCH];
	unsigned nr_heat;
	unsigned nr_ghosts;
};

static int flush_atime(struct meta_db *db, const struct atime_note *a)
{
	struct object_row row;
	int r = meta_object_get(db, a->object, &row);

	if (r == -ENOENT)
		return 0;
	if (r < 0 || row.atime_ns >= a->atime_ns)
		return r;
	row.atime_ns = a->atime_ns;
	return meta_object_set(db, &row);
}

static int flush_run(struct meta_db *db, struct meta_op *op)
{
	struct flush_op *f = (struct flush_op *)op;
	int r = 0;

	for (struct list *at = f->atimes.next; at != &f->atimes && r == 0; at = at->next)
		r = flush_atime(db, list_entry(at, struct atime_note, link));
	for (unsigned i = 0; i < f->nr_heat && r == 0; i++) {
		const struct policy_heat *h = &f->heat[i];

		r = meta_object_heat(db, h->id, (uint32_t)h->list, h->at.run, h->at.depth);
	}
	for (unsigned i = 0; i < f->nr_ghosts && r == 0; i++) {
		const struct policy_ghost *g = &f->ghosts[i];

		r = g->gone ? meta_ghost_del(db, g->name)
			    : meta_ghost_put(db, g->name, g->bytes, g->seq);
		if (r == -ENOENT)
			r = 0;
	}
	return r;
}

static void take_atimes(struct cache *c, struct flush_op *f) REQUIRES(c->lock)
{
	struct list *at;
	struct list *tmp;

	list_for_each_safe (at, tmp, &c->atimes) {
		struct atime_note *a = list_entry(at, struct atime_note, link);
		struct node *n = node_find(c, a->node);

		if (n && n->atime_dirty) {
			n->atime_dirty = false;
			a->atime_ns = n->row.atime_ns;
		}
		list_del(&a->link);
		list_add_tail(&f->atimes, &a->link);
	}
}

/* One batch; returns whether there may be more. */
static bool flush_batch(struct cache *c, struct flush_op *f)
{
	struct list *at;
	struct list *tmp;

	memset(f, 0, sizeof *f);
	f->op.run = flush_run;
	list_init(&f->atimes);
	mutex_lock(&c->lock);
	take_atimes(c, f);
	f->nr_heat = policy_dirty(c->policy, f->heat, HEAT_BATCH);
	f->nr_ghosts = policy_dirty_ghosts(c->policy, f->ghosts, HEAT_BATCH);
	mutex_unlock(&c->lock);
	if (list_empty(&f->atimes) && f->nr_heat == 0 && f->nr_ghosts == 0)
		return false;
	/* What is lost here is a little knowledge of what is hot, or a second of access times. */
	int r = meta_submit(c->meta, &f->op);

	if (r < 0)
		log_msg(LOG_WARNING, "cache: access times and eviction order not recorded err=%d",
			-r);
	list_for_each_safe (at, tmp, &f->atimes)
		free(list_entry(at, struct atime_note, link));
	return r == 0 && (f->nr_heat == HEAT_BATCH || f->nr_ghosts == HEAT_BATCH);
}

void keeper_flush(struct cache *c)
{
	struct flush_op *f = malloc(sizeof *f);

	while (f && flush_batch(c, f))
		;
	free(f);
}

static struct node *find_unpublished(struct cache *c) REQUIRES(c->lock)
{
	for (size_t i = 0; i < c->nodes.nr_slots; i++) {
		for (struct map_node *m = c->nodes.slots[i]; m; m = m->next) {
			struct node *n = map_entry(m, struct node, by_id);

			if (n->unpublished)
				return n;
		}
	}
	return NULL;
}

static void publish_again(struct cache *c)
{
	for (;;) {
		mutex_lock(&c->lock);
		struct node *n = c->nr_unpublished ? find_unpublished(c) : NULL;

		mutex_unlock(&c->lock);
		if (!n)
			return;
		int r = publish(c, n, &(struct publish_at){ 0 });

		if (r == -ENOSPC || r == -EIO)
			return;
		log_msg(LOG_NOTICE, "cache: publishing was tried again gen=%" PRIu64 " err=%d",
			node_id(n), -r);
		mutex_lock(&c->lock);
		if (r < 0 && r != -EALREADY)
			version_give_up(c, n);
		n->unpublished = false;
		n->refs--;
		c->nr_unpublished--;
		node_settle(c, n);
		mutex_unlock(&c->lock);
	}
}

void keeper_run(void *arg)
{
	struct cache *c = arg;
	uint64_t next_flush = clock_mono_ns() + FLUSH_MS * NS_PER_MS;

	mutex_lock(&c->lock);
	while (!c->stop) {
		uint64_t now = clock_mono_ns();
		bool busy = c->watching || !list_empty(&c->mapped);
		uint64_t wake = busy ? now + WATCH_MS * NS_PER_MS : next_flush;

		(void)cond_wait_until(&c->wake, &c->lock, wake < next_flush ? wake : next_flush);
		if (c->stop)
			break;
		now = clock_mono_ns();
		retry_expire(c, now);
		bool flush = now >= next_flush;

		busy = c->nr_writers > 0 || !list_empty(&c->mapped);
		if (flush)
			c->watching = c->nr_writers > 0;
		mutex_unlock(&c->lock);
		finish_mapped(c);
		if (busy)
			evict_overflow(c);
		if (flush) {
			next_flush = now + FLUSH_MS * NS_PER_MS;
			keeper_flush(c);
			publish_again(c);
			spares_forget(c);
		}
		mutex_lock(&c->lock);
	}
	mutex_unlock(&c->lock);
}

/* The restart. */

struct restore {
	struct cache *c;
	uint64_t last; /* id of the last object seen */
	uint64_t nr;
	uint64_t lost[DROP_BATCH]; /* objects whose bytes are gone */
	unsigned nr_lost;
	uint64_t nr_strays; /* files that no object has */
	bool more;
	int r;
	struct map known; /* generations that the metadata knows */
};

struct known {
	struct map_node by_gen;
};

static bool restore_row(void *arg, const struct object_row *row)
{
	struct restore *s = arg;
	struct cache *c = s->c;
	struct stat st;
	struct known *k;
	struct place at = { row->heat_run, row->heat_depth };
	enum policy_list list =
		row->heat_list == POLICY_PROTECTED ? POLICY_PROTECTED : POLICY_PROBATION;

	s->last = row->id;
	/* Shorter than what was published: not the bytes that the key had. */
	if (memory_stat(c->memory, row->gen, &st) < 0 ||
	    (!(row->flags & OBJECT_IN_PLACE) && (uint64_t)st.st_size < row->size_bytes)) {
		s->lost[s->nr_lost++] = row->id;
		s->more = s->nr_lost == DROP_BATCH;
		return !s->more;
	}
	k = malloc(sizeof *k);
	s->r = k ? policy_restore(c->policy, row->id, (uint64_t)st.st_blocks * 512, list, at)
		 : -ENOMEM;
	if (s->r < 0) {
		free(k);
		return false;
	}
	map_add(&s->known, &k->by_gen, row->gen);
	policy_pin(c->policy, row->id, row_pinned(row, clock_real_ns()));
	s->nr++;
	return true;
}

struct lost_op {
	struct meta_op op;
	const uint64_t *ids;
	unsigned nr;
};

static bool take_link(void *arg, struct link_row l)
{
	*(struct link_row *)arg = l;
	return false;
}

static int drop_lost(struct meta_db *db, uint64_t id)
{
	struct object_row row;
	char name[NAME_MAX_BYTES];
	size_t len;
	int r = meta_object_get(db, id, &row);

	while (r == 0) {
		struct link_row l = { row.parent, row.hash };
		struct link_row other = { 0 };

		r = meta_dentry_name(db, l.parent, l.hash, id, name, &len);
		if (r == 0)
			r = meta_dentry_del(db, l.parent, l.hash, (struct name){ name, len });
		if (r == 0)
			r = meta_link_scan(db, id, take_link, &other);
		if (r < 0 || other.parent == 0)
			break;
		r = meta_link_del(db, id, other);
		row.parent = other.parent;
		row.hash = other.hash;
	}
	if (r == 0 || r == -ENOENT)
		r = meta_object_del(db, id);
	return r == -ENOENT ? 0 : r;
}

static int lost_run(struct meta_db *db, struct meta_op *op)
{
	struct lost_op *l = (struct lost_op *)op;
	int r = 0;

	for (unsigned i = 0; i < l->nr && r == 0; i++)
		r = drop_lost(db, l->ids[i]);
	return r;
}

static int restore_objects(struct cache *c, struct restore *s, uint64_t *ret_lost)
{
	int r;

	do {
		struct meta_db *db;
		struct lost_op l = { .op = { .run = lost_run }, .ids = s->lost };

		s->more = false;
		s->nr_lost = 0;
		r = meta_read_begin(c->meta, &db);
		if (r < 0)
			return r;
		r = meta_object_scan(db, s->last, restore_row, s);
		meta_read_end(c->meta, db);
		l.nr = s->nr_lost;
		*ret_lost += l.nr;
		if (r == 0)
			r = s->r;
		if (r == 0 && l.nr)
			r = meta_submit(c->meta, &l.op);
	} while (r == 0 && s->more);
	return r;
}

static bool restore_ghost(void *arg, uint64_t hash, uint64_t bytes, uint64_t seq)
{
	struct restore *s = arg;

	s->r = policy_restore_ghost(s->c->policy, hash, bytes, seq);
	return s->r == 0;
}

static void drop_stray(void *arg, uint64_t gen)
{
	struct restore *s = arg;

	if (map_find(&s->known, gen))
		return;
	memory_remove(s->c->memory, gen);
	s->nr_strays++;
}

static void forget_known(struct map *m)
{
	for (size_t i = 0; i < m->nr_slots; i++) {
		while (m->slots[i]) {
			struct known *k = map_entry(m->slots[i], struct known, by_gen);

			m->slots[i] = k->by_gen.next;
			free(k);
		}
	}
	map_fini(m);
	(void)malloc_trim(0);
}

int keeper_restore(struct cache *c)
{
	struct restore s = { .c = c };
	struct meta_db *db = NULL;
	uint64_t lost = 0;
	int r = map_init(&s.known);

	if (r < 0)
		return r;
	r = restore_objects(c, &s, &lost);
	if (r == 0)
		r = meta_read_begin(c->meta, &db);
	if (r == 0) {
		r = meta_ghost_scan(db, restore_ghost, &s);
		meta_read_end(c->meta, db);
		if (r == 0)
			r = s.r;
	}
	/* Files that no object has: versions that were never published, or already replaced. */
	if (r == 0)
		r = memory_scan(c->memory, drop_stray, &s);
	forget_known(&s.known);
	if (r == 0 && (s.nr || lost || s.nr_strays))
		log_msg(LOG_INFO,
			"cache: restored objects=%" PRIu64 " lost=%" PRIu64
			" removed_files=%" PRIu64,
			s.nr, lost, s.nr_strays);
	return r;
}
