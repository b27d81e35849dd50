/* SPDX-License-Identifier: Apache-2.0 */
/* entries.h - the objects of the policy, in an array, and heaps of them in the order in which they should go.
 * A part of the policy. The memory is the caller's. Not locked. */
#ifndef CACHE_ENTRIES_H
#define CACHE_ENTRIES_H

#include <stdbool.h>
#include <stdint.h>

struct entry {
	uint64_t id; /* first: the index reads it */
	uint64_t run : 56;
	uint64_t list : 1;
	uint64_t state : 2;
	uint64_t pinned : 1;
	uint64_t unsettled : 1;
	uint64_t bytes : 44;
	uint64_t users : 20;
	uint32_t depth;
	uint32_t grace_tick; /* in grace before this tick */
	uint32_t heap_pos;
	uint32_t dirty_pos;
};

_Static_assert(sizeof(struct entry) == 40, "there may be tens of millions of them");

struct entries_heap {
	uint32_t *at; /* slots of entries; the first leaves first; room for all */
	uint32_t nr;
};

/** entry_before - whether the entry of slot @a should go before that of slot @b: older runs first, then the deepest, then
 * the older object. */
bool entry_before(const struct entry *entries, uint32_t a, uint32_t b);
/** entries_heap_add - put the entry of @slot in. entries_heap_del - take it out, before what orders it changes. */
void entries_heap_add(struct entries_heap *h, struct entry *entries, uint32_t slot);
void entries_heap_del(struct entries_heap *h, struct entry *entries, uint32_t slot);

#endif
