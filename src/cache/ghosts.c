/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/ghosts.h"

#include "cache/slots.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { RING_MIN = 64 };

struct ghost {
	uint64_t name;	    /* first: the index reads it */
	uint64_t end_bytes; /* all bytes evicted up to and with this one */
	uint64_t
		seq_dead; /* seq << 1 | dead: it left the list, and waits here until the tail passes */
};

struct gone {
	uint64_t name;
	uint64_t seq;
};

struct ghosts {
	uint64_t capacity_bytes;
	uint64_t total_bytes; /* evicted, ever */
	uint64_t base_bytes;  /* end_bytes of the last that the tail has passed */
	uint64_t next_seq;
	/* Positions count up for ever; position i lies in ring[i & mask]. */
	uint64_t tail;
	uint64_t reported; /* those before it have been told to the caller as entered */
	uint64_t head;
	struct ghost *ring;
	uint64_t mask;
	struct slots by_name; /* those alive */
	/* Told as entered, left since, and not told as gone yet. */
	struct gone *gone;
	size_t gone_first;
	size_t gone_end;
	size_t gone_cap;
};

struct ghosts *ghosts_new(uint64_t capacity_bytes)
{
	struct ghosts *g = calloc(1, sizeof *g);

	if (!g)
		return NULL;
	g->capacity_bytes = capacity_bytes;
	g->next_seq = 1;
	g->mask = RING_MIN - 1;
	g->ring = malloc(RING_MIN * sizeof *g->ring);
	if (!g->ring || slots_init(&g->by_name, sizeof *g->ring) < 0) {
		ghosts_free(g);
		return NULL;
	}
	return g;
}

void ghosts_free(struct ghosts *g)
{
	if (!g)
		return;
	slots_fini(&g->by_name);
	free(g->ring);
	free(g->gone);
	free(g);
}

uint64_t ghosts_count(const struct ghosts *g)
{
	return g->by_name.nr;
}

static struct ghost *at(const struct ghosts *g, uint64_t pos)
{
	return &g->ring[pos & g->mask];
}

static bool is_dead(const struct ghost *e)
{
	return e->seq_dead & 1;
}

/* Room for one more event. Without memory, or with a caller that never asks, the event is lost: the name is then a
 * ghost once more after a restart, until it ages. */
static bool gone_reserve(struct ghosts *g)
{
	size_t nr = g->gone_end - g->gone_first;

	if (g->gone_end < g->gone_cap)
		return true;
	if (nr >= GHOSTS_MAX)
		return false;
	if (nr > g->gone_cap / 2 || g->gone_cap == 0) {
		size_t cap = g->gone_cap ? g->gone_cap * 2 : RING_MIN;
		struct gone *gone = realloc(g->gone, cap * sizeof *gone);

		if (!gone)
			return false;
		g->gone = gone;
		g->gone_cap = cap;
	}
	memmove(g->gone, g->gone + g->gone_first, nr * sizeof *g->gone);
	g->gone_first = 0;
	g->gone_end = nr;
	return true;
}

static void kill_at(struct ghosts *g, uint64_t pos)
{
	struct ghost *e = at(g, pos);

	slots_del(&g->by_name, g->ring, (int32_t)(pos & g->mask));
	if (pos < g->reported && gone_reserve(g))
		g->gone[g->gone_end++] = (struct gone){ e->name, e->seq_dead >> 1 };
	e->seq_dead |= 1;
}

/* Copy the ring into one of @cap elements. */
static int resize(struct ghosts *g, uint64_t cap)
{
	struct ghost *old = g->ring;
	uint64_t old_mask = g->mask;
	struct ghost *ring = calloc(cap, sizeof *ring);

	if (!ring)
		return -ENOMEM;
	slots_clear(&g->by_name);
	g->ring = ring;
	g->mask = cap - 1;
	for (uint64_t pos = g->tail; pos < g->head; pos++) {
		*at(g, pos) = old[pos & old_mask];
		if (!is_dead(at(g, pos)))
			slots_put(&g->by_name, ring, (int32_t)(pos & g->mask));
	}
	free(old);
	return 0;
}

static void drop_tail(struct ghosts *g)
{
	if (!is_dead(at(g, g->tail)))
		kill_at(g, g->tail);
	g->base_bytes = at(g, g->tail)->end_bytes;
	g->tail++;
	if (g->reported < g->tail)
		g->reported = g->tail;
}

/* Let those go that are too old, and then memory that is no longer needed. */
static void expire(struct ghosts *g)
{
	while (g->tail < g->head &&
	       (is_dead(at(g, g->tail)) || g->head - g->tail >= GHOSTS_MAX ||
		g->total_bytes - at(g, g->tail)->end_bytes >= g->capacity_bytes))
		drop_tail(g);
	if (g->mask >= RING_MIN && g->head - g->tail < (g->mask + 1) / 4) {
		int r = resize(g, (g->mask + 1) / 2);

		if (r == 0)
			r = slots_reserve(&g->by_name, g->ring, g->by_name.nr);
		(void)r; /* without memory to move to, it stays larger than it need be */
	}
}

bool ghosts_take(struct ghosts *g, uint64_t name)
{
	int32_t slot = slots_find(&g->by_name, g->ring, name);

	if (slot == SLOT_NONE)
		return false;
	kill_at(g, g->tail + (((uint64_t)slot - g->tail) & g->mask));
	return true;
}

static int append(struct ghosts *g, uint64_t name, uint64_t bytes, uint64_t seq)
{
	int r;

	(void)ghosts_take(g, name); /* two objects may have had the name, one after the other */
	r = slots_reserve(&g->by_name, g->ring, g->by_name.nr + 1);
	if (r == 0 && g->head - g->tail > g->mask)
		r = resize(g, (g->mask + 1) * 2);
	if (r < 0)
		return r;
	*at(g, g->head) = (struct ghost){ name, g->total_bytes + bytes, seq << 1 };
	slots_put(&g->by_name, g->ring, (int32_t)(g->head & g->mask));
	g->head++;
	return 0;
}

void ghosts_add(struct ghosts *g, uint64_t name, uint64_t bytes)
{
	(void)append(g, name, bytes, g->next_seq);
	g->next_seq++;
	g->total_bytes += bytes;
	expire(g);
}

int ghosts_restore(struct ghosts *g, uint64_t name, uint64_t bytes, uint64_t seq)
{
	int r = append(g, name, bytes, seq);

	if (r < 0)
		return r;
	g->reported = g->head;
	if (g->next_seq <= seq)
		g->next_seq = seq + 1;
	g->total_bytes += bytes;
	expire(g);
	return 0;
}

unsigned ghosts_dirty(struct ghosts *g, struct policy_ghost *ret, unsigned cap)
{
	unsigned n = 0;

	/* Those gone first: one of the same name that is reported below entered later. */
	for (; n < cap && g->gone_first < g->gone_end; n++) {
		const struct gone *e = &g->gone[g->gone_first++];

		ret[n] = (struct policy_ghost){ .name = e->name, .seq = e->seq, .gone = true };
	}
	if (g->gone_first == g->gone_end && g->gone_cap > RING_MIN) {
		free(g->gone);
		g->gone = NULL;
		g->gone_first = g->gone_end = g->gone_cap = 0;
	}
	for (; n < cap && g->reported < g->head; g->reported++) {
		const struct ghost *e = at(g, g->reported);
		uint64_t before =
			g->reported == g->tail ? g->base_bytes : at(g, g->reported - 1)->end_bytes;

		if (!is_dead(e))
			ret[n++] = (struct policy_ghost){ .name = e->name,
							  .bytes = e->end_bytes - before,
							  .seq = e->seq_dead >> 1 };
	}
	return n;
}
