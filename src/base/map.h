/* SPDX-License-Identifier: Apache-2.0 */
/* map.h - intrusive hash map from a 64-bit key to nodes embedded in the caller's structs. Not locked.
 * Several nodes may share a key: walk them with map_next. Grows and shrinks with its content. */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include "base/attr.h"

#include <stddef.h>
#include <stdint.h>

struct map_node {
	struct map_node *next;
	uint64_t key;
};

struct map {
	struct map_node **slots;
	size_t nr_slots; /* a power of two */
	size_t nr;
};

#define map_entry(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/** map_init - an empty map. Returns 0 or -ENOMEM. */
int map_init(struct map *m) MUST_CHECK;
/** map_fini - free the table; the nodes are the caller's. */
void map_fini(struct map *m);
/** map_add - put @n, whose key is @key, into @m. Never fails: a map that cannot grow gets slower. */
void map_add(struct map *m, struct map_node *n, uint64_t key);
/** map_del - take @n, which must be in @m, out. */
void map_del(struct map *m, struct map_node *n);
/** map_find - the first node with @key, or NULL. map_next - the next with the same key as @n, or NULL. */
struct map_node *map_find(const struct map *m, uint64_t key);
struct map_node *map_next(const struct map_node *n);

#endif
