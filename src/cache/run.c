/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/run.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/map.h"

#include <stddef.h>
#include <stdlib.h>

static const uint64_t pause_ns = 5 * NS_PER_S;
static const uint64_t age_max_ns = 60 * NS_PER_S;
static const uint64_t reopen_ns = NS_PER_S;
enum { SINGLES_OF_A_CHECKER = 2 };

/* What the run has seen so far; it only goes forward. */
enum phase { STATS, OPENS, CREATES };

struct caller {
	struct map_node node; /* by tid */
	struct list lru;
	uint64_t last_ns;

	/* The run. */
	uint64_t run;
	uint64_t start_ns;
	enum phase phase;
	uint32_t nr_stats; /* that hit: the depth of the next */
	uint32_t depth;	   /* of the next open or create */
	uint32_t nr_opens;
	uint32_t nr_creates;
	uint32_t nr_claims;  /* opens of what a stat of this run, or an open, had touched */
	uint64_t first_name; /* of the opens */

	/* The last open or create. */
	uint64_t data_name;
	uint64_t data_ns;
	struct place data_at;

	/* A lookup that may be a stat or the first half of an open or create. */
	bool pending;
	uint64_t pending_name;
	uint64_t pending_object;
	bool pending_stat; /* its attributes were asked for */
	struct place pending_last;

	/* Whether it looks before each put. */
	bool missed;	    /* a stat of this run missed, since its last create */
	bool began_missed;  /* so it was before its first create */
	unsigned nr_single; /* runs in succession that were one create behind its own stat */
};

struct runs {
	uint64_t next_run;
	struct map by_tid;
	struct list lru; /* the longest idle first */
	struct caller *callers;
	unsigned nr;
	unsigned nr_max;
};

struct runs *runs_new(uint64_t first, unsigned nr_callers)
{
	struct runs *r = calloc(1, sizeof *r);

	if (!r)
		return NULL;
	r->next_run = first;
	r->nr_max = nr_callers;
	list_init(&r->lru);
	r->callers = calloc(nr_callers, sizeof *r->callers);
	if (!r->callers || map_init(&r->by_tid) < 0) {
		runs_free(r);
		return NULL;
	}
	return r;
}

void runs_free(struct runs *r)
{
	if (!r)
		return;
	map_fini(&r->by_tid);
	free(r->callers);
	free(r);
}

static void begin_run(struct runs *r, struct caller *c, uint64_t now_ns)
{
	c->run = r->next_run++;
	c->start_ns = now_ns;
	c->phase = STATS;
	c->nr_stats = 0;
	c->depth = 0;
	c->nr_opens = 0;
	c->nr_creates = 0;
	c->nr_claims = 0;
	c->first_name = 0;
	c->data_name = 0;
	c->missed = false;
	c->began_missed = false;
}

static struct caller *caller_get(struct runs *r, int32_t tid, uint64_t now_ns)
{
	struct map_node *n = map_find(&r->by_tid, (uint32_t)tid);
	struct caller *c;

	if (n) {
		c = map_entry(n, struct caller, node);
		list_del(&c->lru);
	} else {
		if (r->nr < r->nr_max) {
			c = &r->callers[r->nr++];
		} else {
			c = list_entry(r->lru.next, struct caller, lru);
			list_del(&c->lru);
			map_del(&r->by_tid, &c->node);
		}
		*c = (struct caller){ .last_ns = now_ns };
		map_add(&r->by_tid, &c->node, (uint32_t)tid);
		begin_run(r, c, now_ns);
	}
	list_add_tail(&r->lru, &c->lru);
	return c;
}

/* A stat that missed has come while @c was creating: whether that ends the run. */
static bool miss_ends_creates(struct caller *c)
{
	if (c->nr_single >= SINGLES_OF_A_CHECKER)
		return false;
	if (c->nr_creates == 1 && c->nr_opens == 0 && c->nr_stats == 0 && c->began_missed)
		c->nr_single++;
	else
		c->nr_single = 0;
	return true;
}

/* Whether the pending lookup, a stat, begins a run. Among stats, one that hits does so after a miss, where a prompt ends,
 * and where it comes back to what the run has touched. */
static bool stat_begins(struct caller *c)
{
	bool hit = c->pending_object != 0;

	switch (c->phase) {
	case STATS:
		return hit && (c->missed || (c->pending_last.run == c->run &&
					     c->pending_last.depth < c->nr_stats));
	case OPENS:
		return true;
	case CREATES:
		return hit || miss_ends_creates(c);
	}
	return true;
}

/* The pending lookup was a stat, or a create that found its name taken. */
static void resolve(struct runs *r, struct caller *c, uint64_t now_ns, struct run_event *ret)
{
	c->pending = false;
	if (c->phase == CREATES && c->pending_object && !c->pending_stat) {
		ret->stat = true;
		ret->stat_object = c->pending_object;
		ret->stat_at = (struct place){ c->run, c->depth++ };
		return;
	}
	if (stat_begins(c))
		begin_run(r, c, now_ns);
	if (!c->pending_object) {
		c->missed = true;
		return;
	}
	ret->stat = true;
	ret->stat_object = c->pending_object;
	ret->stat_at = (struct place){ c->run, c->nr_stats++ };
}

static void note_lookup(struct caller *c, const struct run_access *a, struct run_event *ret)
{
	/* Also the kernel's own second look at what is being written, before a rename of it. */
	if (a->object && a->name == c->data_name && c->phase != STATS)
		return;
	c->pending = true;
	c->pending_name = a->name;
	c->pending_object = a->object;
	c->pending_last = a->last;
	c->pending_stat = false;
	ret->ambiguous = a->object ? c->phase == CREATES : c->phase != STATS;
}

/* Whether the run has opened the object of @a before. Where it was touched by this run, that may have been a stat; but each
 * stat accounts for one open. */
static bool opened_before(struct caller *c, const struct run_access *a)
{
	if (c->nr_opens == 0 || a->last.run != c->run)
		return c->nr_opens > 0 && a->name == c->first_name;
	if (a->name == c->first_name || (a->last.depth >= c->nr_stats && a->last.depth < c->depth))
		return true;
	c->nr_claims++;
	return c->nr_claims > c->nr_stats;
}

static struct place note_open(struct runs *r, struct caller *c, const struct run_access *a)
{
	struct place at;

	if (a->name == c->data_name && c->phase != STATS && a->now_ns - c->data_ns < reopen_ns)
		return c->data_at;
	if (c->phase == CREATES || opened_before(c, a))
		begin_run(r, c, a->now_ns);
	if (c->nr_opens == 0)
		c->first_name = a->name;
	c->phase = OPENS;
	c->nr_opens++;
	at = (struct place){ c->run, c->depth };
	if (a->last.run == c->run && a->last.depth > at.depth)
		at.depth = a->last.depth;
	return at;
}

static struct place note_create(struct caller *c)
{
	if (c->nr_creates == 0)
		c->began_missed = c->missed;
	else if (!c->missed)
		c->nr_single = 0;
	c->missed = false;
	c->phase = CREATES;
	c->nr_creates++;
	return (struct place){ c->run, c->depth > c->nr_stats ? c->depth : c->nr_stats };
}

bool runs_stat(struct runs *r, int32_t tid, uint64_t object)
{
	struct map_node *n = map_find(&r->by_tid, (uint32_t)tid);
	struct caller *c = n ? map_entry(n, struct caller, node) : NULL;

	if (!c || !c->pending || c->pending_object != object)
		return false;
	c->pending_stat = true;
	return true;
}

struct run_event runs_note(struct runs *r, const struct run_access *a)
{
	struct run_event ret = { 0 };
	struct caller *c = caller_get(r, a->tid, a->now_ns);
	bool paused = a->now_ns - c->last_ns >= pause_ns;

	/* Both halves of one operation come without a pause. */
	if (c->pending && a->op != RUN_LOOKUP && a->name == c->pending_name && !paused)
		c->pending = false;
	if (c->pending)
		resolve(r, c, a->now_ns, &ret);
	if (paused || (a->op != RUN_NAME && a->now_ns - c->start_ns >= age_max_ns))
		begin_run(r, c, a->now_ns);
	c->last_ns = a->now_ns;
	switch (a->op) {
	case RUN_LOOKUP:
		note_lookup(c, a, &ret);
		break;
	case RUN_OPEN:
		ret.at = note_open(r, c, a);
		break;
	case RUN_CREATE:
		ret.at = note_create(c);
		break;
	case RUN_NAME:
		if (c->phase != STATS)
			c->data_name = a->name;
		break;
	}
	if (a->op == RUN_OPEN || a->op == RUN_CREATE) {
		c->depth = ret.at.depth + 1;
		if (a->name != c->data_name)
			c->data_ns = a->now_ns;
		c->data_name = a->name;
		c->data_at = ret.at;
	}
	return ret;
}
