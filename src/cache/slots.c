/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_MIN = 64 };

static uint64_t key_of(const struct slots *s, const void *base, int32_t slot)
{
	uint64_t key;

	memcpy(&key, (const char *)base + (size_t)slot * s->stride, sizeof key);
	return key;
}

static size_t home_of(const struct slots *s, uint64_t key)
{
	/* Fibonacci hashing: keys are often consecutive numbers. */
	return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 24) & s->mask;
}

/* The table is at most three quarters full. */
static size_t table_for(size_t nr)
{
	size_t n = SLOTS_MIN;

	while (n / 4 * 3 < nr)
		n *= 2;
	return n;
}

int slots_init(struct slots *s, size_t stride)
{
	*s = (struct slots){ .mask = SLOTS_MIN - 1, .stride = stride };
	s->tab = malloc(SLOTS_MIN * sizeof *s->tab);
	if (!s->tab)
		return -ENOMEM;
	slots_clear(s);
	return 0;
}

void slots_fini(struct slots *s)
{
	free(s->tab);
	*s = (struct slots){ 0 };
}

void slots_clear(struct slots *s)
{
	for (size_t i = 0; i <= s->mask; i++)
		s->tab[i] = SLOT_NONE;
	s->nr = 0;
}

int slots_reserve(struct slots *s, const void *base, size_t nr)
{
	struct slots old = *s;
	size_t want = table_for(nr);

	/* Shrinking waits until a quarter would do, so that a count going up and down costs nothing. */
	if (want == s->mask + 1 || (want < s->mask + 1 && want * 4 > s->mask + 1))
		return 0;
	s->tab = malloc(want * sizeof *s->tab);
	if (!s->tab) {
		s->tab = old.tab;
		return -ENOMEM;
	}
	s->mask = want - 1;
	slots_clear(s);
	for (size_t i = 0; i <= old.mask; i++)
		if (old.tab[i] != SLOT_NONE)
			slots_put(s, base, old.tab[i]);
	free(old.tab);
	return 0;
}

int32_t slots_find(const struct slots *s, const void *base, uint64_t key)
{
	size_t i = home_of(s, key);

	while (s->tab[i] != SLOT_NONE && key_of(s, base, s->tab[i]) != key)
		i = (i + 1) & s->mask;
	return s->tab[i];
}

void slots_put(struct slots *s, const void *base, int32_t slot)
{
	size_t i = home_of(s, key_of(s, base, slot));

	while (s->tab[i] != SLOT_NONE)
		i = (i + 1) & s->mask;
	s->tab[i] = slot;
	s->nr++;
}

/* Where the table says @slot, which must be in it. */
static size_t place_of(const struct slots *s, const void *base, int32_t slot)
{
	size_t i = home_of(s, key_of(s, base, slot));

	while (s->tab[i] != slot)
		i = (i + 1) & s->mask;
	return i;
}

void slots_del(struct slots *s, const void *base, int32_t slot)
{
	size_t hole = place_of(s, base, slot);

	/* Close the gap: an element behind it moves up unless its home lies between the gap and itself. */
	for (size_t i = (hole + 1) & s->mask; s->tab[i] != SLOT_NONE; i = (i + 1) & s->mask) {
		size_t home = home_of(s, key_of(s, base, s->tab[i]));

		if (((i - home) & s->mask) >= ((i - hole) & s->mask)) {
			s->tab[hole] = s->tab[i];
			hole = i;
		}
	}
	s->tab[hole] = SLOT_NONE;
	s->nr--;
}

void slots_move(struct slots *s, const void *base, int32_t from, int32_t to)
{
	s->tab[place_of(s, base, from)] = to;
}
