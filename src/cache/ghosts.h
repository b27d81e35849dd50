/* SPDX-License-Identifier: Apache-2.0 */
/* ghosts.h - the names of what was evicted last: as many as the evicted bytes fit the capacity, and at most GHOSTS_MAX.
 * A part of the policy. Pure. 24 bytes a name and its share of an index. Not locked. */
#ifndef CACHE_GHOSTS_H
#define CACHE_GHOSTS_H

#include "base/attr.h"
#include "cache/policy.h"

#include <stdbool.h>
#include <stdint.h>

enum { GHOSTS_MAX = 1 << 20 };

struct ghosts;

/** ghosts_new - NULL when memory is short. ghosts_free takes NULL. */
struct ghosts *ghosts_new(uint64_t capacity_bytes);
void ghosts_free(struct ghosts *g);

/** ghosts_add - @name, of @bytes, was evicted. When memory is short it is not remembered. */
void ghosts_add(struct ghosts *g, uint64_t name, uint64_t bytes);
/** ghosts_take - @name is back: whether it was in the list, which it then leaves. Fewer than the capacity's bytes
 * were evicted since. */
bool ghosts_take(struct ghosts *g, uint64_t name);
/** ghosts_restore - see policy_restore_ghost. */
int ghosts_restore(struct ghosts *g, uint64_t name, uint64_t bytes, uint64_t seq) MUST_CHECK;
/** ghosts_dirty - see policy_dirty_ghosts. A name that came and went between two calls is not mentioned. */
unsigned ghosts_dirty(struct ghosts *g, struct policy_ghost *ret, unsigned cap);
uint64_t ghosts_count(const struct ghosts *g);

#endif
