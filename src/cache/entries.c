/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/entries.h"

/* Comparing costs a cache miss each; those of siblings overlap, those of levels do not. */
enum { ARITY = 4 };

bool entry_before(const struct entry *entries, uint32_t a, uint32_t b)
{
	const struct entry *x = &entries[a];
	const struct entry *y = &entries[b];

	if (x->run != y->run)
		return x->run < y->run;
	if (x->depth != y->depth)
		return x->depth > y->depth;
	return x->id < y->id;
}

static void set_at(struct entries_heap *h, struct entry *entries, uint32_t pos, uint32_t slot)
{
	h->at[pos] = slot;
	entries[slot].heap_pos = pos;
}

/* @slot goes to @pos, or as far up from there as it must. */
static void sift_up(struct entries_heap *h, struct entry *entries, uint32_t pos, uint32_t slot)
{
	while (pos > 0 && entry_before(entries, slot, h->at[(pos - 1) / ARITY])) {
		set_at(h, entries, pos, h->at[(pos - 1) / ARITY]);
		pos = (pos - 1) / ARITY;
	}
	set_at(h, entries, pos, slot);
}

/* The first of the children of @pos, or their number when there are none. */
static uint32_t first_child(const struct entries_heap *h, const struct entry *entries, uint32_t pos)
{
	uint64_t child = (uint64_t)pos * ARITY + 1;
	uint64_t end = child + ARITY < h->nr ? child + ARITY : h->nr;
	uint64_t best = child;

	if (child >= h->nr)
		return h->nr;
	while (++child < end)
		if (entry_before(entries, h->at[child], h->at[best]))
			best = child;
	return (uint32_t)best;
}

static void sift_down(struct entries_heap *h, struct entry *entries, uint32_t pos, uint32_t slot)
{
	for (;;) {
		uint32_t child = first_child(h, entries, pos);

		if (child == h->nr || !entry_before(entries, h->at[child], slot))
			break;
		set_at(h, entries, pos, h->at[child]);
		pos = child;
	}
	set_at(h, entries, pos, slot);
}

void entries_heap_add(struct entries_heap *h, struct entry *entries, uint32_t slot)
{
	sift_up(h, entries, h->nr++, slot);
}

void entries_heap_del(struct entries_heap *h, struct entry *entries, uint32_t slot)
{
	uint32_t pos = entries[slot].heap_pos;
	uint32_t last = h->at[--h->nr];

	if (last == slot)
		return;
	if (pos > 0 && entry_before(entries, last, h->at[(pos - 1) / ARITY]))
		sift_up(h, entries, pos, last);
	else
		sift_down(h, entries, pos, last);
}
