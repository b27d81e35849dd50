/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/policy.h"

#include "cache/entries.h"
#include "cache/ghosts.h"
#include "cache/slots.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

enum {
	CAP_MIN = 64,
	CAP_MAX = INT32_MAX,
	GRACE_SHIFT = 26, /* a tick of grace is 2^26 ns */
};

/* Why a heap: every object is in exactly one.
 *   READY    what policy_victim looks at; may hold busy ones and ones in grace that it has not met yet
 *   ASIDE    pinned, or met while busy; back to READY when the object becomes neither
 *   GRACE    met while in grace; back to READY when that is over or is set anew, or to ASIDE */
enum state { READY, ASIDE, GRACE };
enum { NR_STATES = 3, NR_LISTS = 2, NR_HEAPS = NR_STATES * NR_LISTS };

static const uint32_t not_dirty = UINT32_MAX;
/* Masks of bit fields: macros, because gcc takes nothing else for a constant. */
#define BYTES_MAX ((UINT64_C(1) << 44) - 1)
#define USERS_MAX ((UINT64_C(1) << 20) - 1)
#define RUN_MAX ((UINT64_C(1) << 56) - 1)

struct policy {
	uint64_t protected_max_bytes;
	uint64_t used_bytes;
	uint64_t protected_bytes;
	uint64_t evictable_bytes;
	uint64_t last_run;
	uint64_t evicted_run;  /* the latest of which probation has lost an object */
	struct entry *entries; /* nr of them, without gaps */
	uint32_t nr;
	uint32_t cap; /* of entries, of each heap, and of dirty */
	struct slots by_id;
	struct entries_heap heaps[NR_HEAPS];
	uint32_t *dirty; /* slots of the entries that changed */
	uint32_t nr_dirty;
	uint32_t dirty_hand;	   /* goes round, so that none waits for ever */
	uint32_t first_grace_tick; /* no earlier one is in the GRACE heaps */
	struct ghosts *ghosts;
};

/* ---- heaps ---- */

static struct entries_heap *heap_of(struct policy *p, const struct entry *e)
{
	return &p->heaps[e->state * NR_LISTS + e->list];
}

static void heap_add(struct policy *p, uint32_t slot)
{
	entries_heap_add(heap_of(p, &p->entries[slot]), p->entries, slot);
}

static void heap_del(struct policy *p, uint32_t slot)
{
	entries_heap_del(heap_of(p, &p->entries[slot]), p->entries, slot);
}

static void set_state(struct policy *p, uint32_t slot, enum state state)
{
	heap_del(p, slot);
	p->entries[slot].state = state;
	heap_add(p, slot);
}

/* ---- memory ---- */

static int resize_array(uint32_t **a, size_t cap)
{
	uint32_t *new = realloc(*a, cap * sizeof *new);

	if (!new)
		return -ENOMEM;
	*a = new;
	return 0;
}

/* All arrays for @cap objects. On failure some may be larger than p->cap says, or still as large, which does no harm. */
static int set_cap(struct policy *p, uint32_t cap)
{
	struct entry *entries;
	int r = slots_reserve(&p->by_id, p->entries, cap);

	for (int i = 0; r == 0 && i < NR_HEAPS; i++)
		r = resize_array(&p->heaps[i].at, cap);
	if (r == 0)
		r = resize_array(&p->dirty, cap);
	if (cap < p->cap)
		p->cap = cap; /* some are smaller now */
	if (r < 0)
		return r;
	entries = realloc(p->entries, cap * sizeof *entries);
	if (!entries)
		return -ENOMEM;
	p->entries = entries;
	p->cap = cap;
	return 0;
}

static int reserve_one(struct policy *p)
{
	if (p->nr < p->cap)
		return 0;
	return p->cap > CAP_MAX / 2 ? -ENOMEM : set_cap(p, p->cap * 2);
}

struct policy *policy_new(uint64_t capacity_bytes)
{
	struct policy *p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	/* A tenth first: the product could overflow. */
	p->protected_max_bytes = capacity_bytes / 10 * 3 + capacity_bytes % 10 * 3 / 10;
	p->first_grace_tick = UINT32_MAX;
	p->ghosts = ghosts_new(capacity_bytes);
	if (!p->ghosts || slots_init(&p->by_id, sizeof *p->entries) < 0 ||
	    set_cap(p, CAP_MIN) < 0) {
		policy_free(p);
		return NULL;
	}
	return p;
}

void policy_free(struct policy *p)
{
	if (!p)
		return;
	for (int i = 0; i < NR_HEAPS; i++)
		free(p->heaps[i].at);
	free(p->dirty);
	free(p->entries);
	slots_fini(&p->by_id);
	ghosts_free(p->ghosts);
	free(p);
}

/* ---- objects ---- */

static struct entry *find(const struct policy *p, uint64_t id, uint32_t *ret_slot)
{
	int32_t slot = slots_find(&p->by_id, p->entries, id);

	*ret_slot = (uint32_t)slot;
	return slot == SLOT_NONE ? NULL : &p->entries[slot];
}

static bool is_blocked(const struct entry *e)
{
	return e->users > 0 || e->pinned || e->unsettled;
}

static void mark_dirty(struct policy *p, uint32_t slot)
{
	struct entry *e = &p->entries[slot];

	if (e->dirty_pos != not_dirty || e->unsettled)
		return;
	e->dirty_pos = p->nr_dirty;
	p->dirty[p->nr_dirty++] = slot;
}

static void unmark_dirty(struct policy *p, uint32_t slot)
{
	struct entry *e = &p->entries[slot];
	uint32_t last;

	if (e->dirty_pos == not_dirty)
		return;
	last = p->dirty[--p->nr_dirty];
	p->dirty[e->dirty_pos] = last;
	p->entries[last].dirty_pos = e->dirty_pos;
	e->dirty_pos = not_dirty;
}

static void saw_run(struct policy *p, uint64_t run)
{
	if (p->last_run < run)
		p->last_run = run;
}

/* What took so long that its run has gone meanwhile would be the next to go: it counts as of now. */
static struct place place_now(const struct policy *p, struct place at)
{
	return (struct place){ at.run < p->evicted_run ? p->last_run : at.run, at.depth };
}

static void set_place(struct policy *p, uint32_t slot, enum policy_list list, struct place at)
{
	struct entry *e = &p->entries[slot];

	if (e->list == list && e->run == at.run && e->depth == at.depth)
		return;
	heap_del(p, slot);
	if (e->list == POLICY_PROTECTED)
		p->protected_bytes -= e->bytes;
	if (list == POLICY_PROTECTED)
		p->protected_bytes += e->bytes;
	e->list = list & 1;
	e->run = at.run & RUN_MAX;
	e->depth = at.depth;
	heap_add(p, slot);
	mark_dirty(p, slot);
}

/* Protected's overflow goes to probation: as of @run, which is happening now, with the depth it had. */
static void trim(struct policy *p, uint64_t run)
{
	while (p->protected_bytes > p->protected_max_bytes) {
		uint32_t first = UINT32_MAX;
		const struct entry *e;

		for (int state = 0; state < NR_STATES; state++) {
			const struct entries_heap *h =
				&p->heaps[state * NR_LISTS + POLICY_PROTECTED];

			if (h->nr > 0 &&
			    (first == UINT32_MAX || entry_before(p->entries, h->at[0], first)))
				first = h->at[0];
		}
		assert(first != UINT32_MAX);
		e = &p->entries[first];
		set_place(p, first, POLICY_PROBATION,
			  (struct place){ e->run > run ? e->run : run, e->depth });
	}
}

static int add(struct policy *p, const struct entry *init)
{
	uint32_t slot = p->nr;
	int r;

	if (slots_find(&p->by_id, p->entries, init->id) != SLOT_NONE)
		return -EEXIST;
	r = reserve_one(p);
	if (r < 0)
		return r;
	p->entries[slot] = *init;
	p->entries[slot].dirty_pos = not_dirty;
	p->nr++;
	slots_put(&p->by_id, p->entries, (int32_t)slot);
	heap_add(p, slot);
	saw_run(p, init->run);
	return 0;
}

int policy_insert(struct policy *p, uint64_t id, uint64_t name, struct place at)
{
	at = place_now(p, at);
	struct entry init = { .id = id,
			      .run = at.run & RUN_MAX,
			      .depth = at.depth,
			      .list = POLICY_PROBATION,
			      .unsettled = 1 };
	int r = add(p, &init);

	if (r == 0 && ghosts_take(p->ghosts, name))
		set_place(p, p->nr - 1, POLICY_PROTECTED, at);
	return r;
}

int policy_restore(struct policy *p, uint64_t id, uint64_t bytes, enum policy_list list,
		   struct place at)
{
	struct entry init = { .id = id,
			      .run = at.run & RUN_MAX,
			      .depth = at.depth,
			      .list = list & 1,
			      .bytes = (bytes < BYTES_MAX ? bytes : BYTES_MAX) & BYTES_MAX };
	int r = add(p, &init);

	if (r < 0)
		return r;
	p->used_bytes += init.bytes;
	p->evictable_bytes += init.bytes;
	if (list == POLICY_PROTECTED)
		p->protected_bytes += init.bytes;
	return 0;
}

/* After a change of users, pin or settledness: @was is what is_blocked said before. */
static void blocked_changed(struct policy *p, uint32_t slot, bool was)
{
	const struct entry *e = &p->entries[slot];
	bool is = is_blocked(e);

	if (is == was)
		return;
	if (is)
		p->evictable_bytes -= e->bytes;
	else
		p->evictable_bytes += e->bytes;
	if (!is && e->state == ASIDE)
		set_state(p, slot, READY);
}

void policy_settle(struct policy *p, uint64_t id, uint64_t bytes)
{
	uint32_t slot;
	struct entry *e = find(p, id, &slot);
	uint64_t old;

	if (!e)
		return;
	if (bytes > BYTES_MAX)
		bytes = BYTES_MAX;
	old = e->bytes;
	e->bytes = bytes & BYTES_MAX;
	p->used_bytes += bytes - old;
	if (e->list == POLICY_PROTECTED)
		p->protected_bytes += bytes - old;
	if (!is_blocked(e))
		p->evictable_bytes += bytes - old;
	if (e->unsettled) {
		e->unsettled = 0;
		blocked_changed(p, slot, true);
		mark_dirty(p, slot);
	}
	trim(p, e->run);
}

void policy_touch(struct policy *p, uint64_t id, struct place at)
{
	uint32_t slot;

	if (!find(p, id, &slot))
		return;
	at = place_now(p, at);
	saw_run(p, at.run);
	set_place(p, slot, POLICY_PROTECTED, at);
	trim(p, at.run);
}

void policy_rename(struct policy *p, uint64_t id, uint64_t name)
{
	uint32_t slot;
	struct entry *e = find(p, id, &slot);

	if (!e || !ghosts_take(p->ghosts, name))
		return;
	set_place(p, slot, POLICY_PROTECTED, (struct place){ e->run, e->depth });
	trim(p, e->run);
}

void policy_remove(struct policy *p, uint64_t id)
{
	uint32_t slot;
	const struct entry *e = find(p, id, &slot);
	uint32_t last = p->nr - 1;

	if (!e)
		return;
	p->used_bytes -= e->bytes;
	if (e->list == POLICY_PROTECTED)
		p->protected_bytes -= e->bytes;
	if (!is_blocked(e))
		p->evictable_bytes -= e->bytes;
	unmark_dirty(p, slot);
	heap_del(p, slot);
	slots_del(&p->by_id, p->entries, (int32_t)slot);
	if (slot != last) {
		struct entry *moved = &p->entries[slot];

		slots_move(&p->by_id, p->entries, (int32_t)last, (int32_t)slot);
		*moved = p->entries[last];
		heap_of(p, moved)->at[moved->heap_pos] = slot;
		if (moved->dirty_pos != not_dirty)
			p->dirty[moved->dirty_pos] = slot;
	}
	p->nr--;
	if (p->cap > CAP_MIN && p->nr < p->cap / 4)
		(void)set_cap(p, p->cap / 2);
}

bool policy_busy(struct policy *p, uint64_t id, int by)
{
	uint32_t slot;
	struct entry *e = find(p, id, &slot);
	int64_t users;
	bool was;

	if (!e)
		return false;
	was = is_blocked(e);
	users = (int64_t)e->users + by;
	assert(users >= 0 && users <= (int64_t)USERS_MAX);
	e->users = (uint64_t)users & USERS_MAX;
	blocked_changed(p, slot, was);
	return true;
}

void policy_pin(struct policy *p, uint64_t id, bool pinned)
{
	uint32_t slot;
	struct entry *e = find(p, id, &slot);
	bool was;

	if (!e)
		return;
	was = is_blocked(e);
	e->pinned = pinned;
	blocked_changed(p, slot, was);
	/* At once, not when met: there may be a million, and the first search for a victim would pay for all. */
	if (pinned && e->state != ASIDE)
		set_state(p, slot, ASIDE);
}

/* ---- the victim ---- */

static uint32_t tick_of(uint64_t ns)
{
	uint64_t tick = ns >> GRACE_SHIFT;

	return tick < UINT32_MAX - 1 ? (uint32_t)tick : UINT32_MAX - 1;
}

void policy_grace(struct policy *p, uint64_t id, uint64_t until_ns)
{
	uint32_t slot;
	struct entry *e = find(p, id, &slot);

	if (!e)
		return;
	e->grace_tick = until_ns > 0 ? tick_of(until_ns - 1) + 1 : 0;
	if (e->state == GRACE)
		set_state(p, slot, READY);
}

/* Those whose grace is over go back. Looks at all of them, but only when one is known to be over: at most once a tick. */
static void end_grace(struct policy *p, uint32_t tick)
{
	if (tick < p->first_grace_tick)
		return;
	p->first_grace_tick = UINT32_MAX;
	for (int list = 0; list < NR_LISTS; list++) {
		struct entries_heap *h = &p->heaps[GRACE * NR_LISTS + list];
		uint32_t nr = h->nr;

		h->nr = 0;
		/* What stays is added again from the front; the heap never reaches what is not read yet. */
		for (uint32_t i = 0; i < nr; i++) {
			struct entry *e = &p->entries[h->at[i]];

			if (e->grace_tick <= tick)
				e->state = READY;
			else if (e->grace_tick < p->first_grace_tick)
				p->first_grace_tick = e->grace_tick;
			heap_add(p, h->at[i]);
		}
	}
}

/* The first of the heap of @state and @list that may go, or UINT32_MAX. Those that may not are set aside. */
static uint32_t first_free(struct policy *p, enum state state, int list, uint32_t tick)
{
	const struct entries_heap *h = &p->heaps[(int)state * NR_LISTS + list];

	while (h->nr > 0) {
		uint32_t slot = h->at[0];
		const struct entry *e = &p->entries[slot];

		if (is_blocked(e)) {
			set_state(p, slot, ASIDE);
		} else if (state == READY && e->grace_tick > tick) {
			if (e->grace_tick < p->first_grace_tick)
				p->first_grace_tick = e->grace_tick;
			set_state(p, slot, GRACE);
		} else {
			return slot;
		}
	}
	return UINT32_MAX;
}

bool policy_victim(struct policy *p, uint64_t except, uint64_t now_ns, uint64_t *ret)
{
	static const struct {
		enum state state;
		enum policy_list list;
	} order[] = { { READY, POLICY_PROBATION },
		      { READY, POLICY_PROTECTED },
		      { GRACE, POLICY_PROBATION },
		      { GRACE, POLICY_PROTECTED } };
	uint32_t tick = tick_of(now_ns);
	int32_t skip = except ? slots_find(&p->by_id, p->entries, except) : SLOT_NONE;
	bool skip_free = skip != SLOT_NONE && !is_blocked(&p->entries[skip]);
	uint32_t found = UINT32_MAX;

	end_grace(p, tick);
	/* The exception is pinned for a moment. */
	if (skip_free)
		p->entries[skip].pinned = 1;
	for (size_t i = 0; found == UINT32_MAX && i < sizeof order / sizeof *order; i++)
		found = first_free(p, order[i].state, (int)order[i].list, tick);
	if (skip_free) {
		p->entries[skip].pinned = 0;
		if (p->entries[skip].state == ASIDE)
			set_state(p, (uint32_t)skip, READY);
	}
	if (found == UINT32_MAX)
		return false;
	*ret = p->entries[found].id;
	return true;
}

void policy_evict(struct policy *p, uint64_t id, uint64_t name)
{
	uint32_t slot;
	const struct entry *e = find(p, id, &slot);

	if (!e)
		return;
	ghosts_add(p->ghosts, name, e->bytes);
	if (e->list == POLICY_PROBATION && p->evicted_run < e->run)
		p->evicted_run = e->run;
	policy_remove(p, id);
}

/* ---- what the outside asks ---- */

uint64_t policy_used_bytes(const struct policy *p)
{
	return p->used_bytes;
}

uint64_t policy_evictable_bytes(const struct policy *p)
{
	return p->evictable_bytes;
}

uint64_t policy_count(const struct policy *p)
{
	return p->nr;
}

uint64_t policy_ghosts(const struct policy *p)
{
	return ghosts_count(p->ghosts);
}

uint64_t policy_last_run(const struct policy *p)
{
	return p->last_run;
}

static struct policy_heat heat_of(const struct entry *e)
{
	return (struct policy_heat){ .id = e->id,
				     .list = e->list ? POLICY_PROTECTED : POLICY_PROBATION,
				     .at = { .run = e->run, .depth = e->depth } };
}

bool policy_place(const struct policy *p, uint64_t id, struct policy_heat *ret)
{
	uint32_t slot;
	const struct entry *e = find(p, id, &slot);

	if (e)
		*ret = heat_of(e);
	return e != NULL;
}

unsigned policy_dirty(struct policy *p, struct policy_heat *ret, unsigned cap)
{
	unsigned n = 0;

	while (n < cap && p->nr_dirty > 0) {
		uint32_t slot;

		if (p->dirty_hand >= p->nr_dirty)
			p->dirty_hand = 0;
		slot = p->dirty[p->dirty_hand++];
		ret[n++] = heat_of(&p->entries[slot]);
		unmark_dirty(p, slot);
	}
	return n;
}

unsigned policy_dirty_ghosts(struct policy *p, struct policy_ghost *ret, unsigned cap)
{
	return ghosts_dirty(p->ghosts, ret, cap);
}

int policy_restore_ghost(struct policy *p, uint64_t name, uint64_t bytes, uint64_t seq)
{
	return ghosts_restore(p->ghosts, name, bytes, seq);
}
