/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { MAP_MIN_SLOTS = 64 };

static size_t slot_of(const struct map *m, uint64_t key)
{
	/* Fibonacci hashing: keys are often consecutive numbers. */
	return (size_t)((key * UINT64_C(0x9E3779B97F4A7C15)) >> 20) & (m->nr_slots - 1);
}

int map_init(struct map *m)
{
	*m = (struct map){ .nr_slots = MAP_MIN_SLOTS };
	m->slots = calloc(m->nr_slots, sizeof *m->slots);
	return m->slots ? 0 : -ENOMEM;
}

void map_fini(struct map *m)
{
	free(m->slots);
	*m = (struct map){ 0 };
}

static void resize(struct map *m, size_t nr_slots)
{
	struct map_node **slots = calloc(nr_slots, sizeof *slots);
	struct map old = *m;

	if (!slots)
		return;
	m->slots = slots;
	m->nr_slots = nr_slots;
	for (size_t i = 0; i < old.nr_slots; i++) {
		struct map_node *n = old.slots[i];

		while (n) {
			struct map_node *next = n->next;
			size_t s = slot_of(m, n->key);

			n->next = m->slots[s];
			m->slots[s] = n;
			n = next;
		}
	}
	free(old.slots);
}

void map_add(struct map *m, struct map_node *n, uint64_t key)
{
	if (m->nr >= m->nr_slots)
		resize(m, m->nr_slots * 2);
	size_t s = slot_of(m, key);

	n->key = key;
	n->next = m->slots[s];
	m->slots[s] = n;
	m->nr++;
}

void map_del(struct map *m, struct map_node *n)
{
	struct map_node **at = &m->slots[slot_of(m, n->key)];

	while (*at && *at != n)
		at = &(*at)->next;
	assert(*at == n);
	*at = n->next;
	n->next = NULL;
	m->nr--;
	if (m->nr_slots > MAP_MIN_SLOTS && m->nr < m->nr_slots / 8)
		resize(m, m->nr_slots / 2);
}

struct map_node *map_find(const struct map *m, uint64_t key)
{
	struct map_node *n = m->slots[slot_of(m, key)];

	while (n && n->key != key)
		n = n->next;
	return n;
}

struct map_node *map_next(const struct map_node *n)
{
	struct map_node *m = n->next;

	while (m && m->key != n->key)
		m = m->next;
	return m;
}
