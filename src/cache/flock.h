/* SPDX-License-Identifier: Apache-2.0 */
/* flock.h - flock(2) locks on objects. Kept here and not in the kernel, because two writers of one name have different
 * versions (nodes) open, and their locks must meet all the same. Pure; not locked: the caller serialises. */
#ifndef CACHE_FLOCK_H
#define CACHE_FLOCK_H

#include "base/attr.h"

#include <stdbool.h>
#include <stdint.h>

struct flocks;

struct flock_wait {
	void (*granted)(void *arg);
	void *arg;
};

struct flocks *flocks_new(void);
void flocks_free(struct flocks *f);

/** flock_lock - @owner takes @object shared or exclusive, giving up what it holds there. Returns 0, -ENOMEM, or -EWOULDBLOCK;
 * then with @wait not NULL the wish is queued and *@ret_ticket names it (never 0). */
int flock_lock(struct flocks *f, uint64_t object, uint64_t owner, bool exclusive,
	       const struct flock_wait *wait, uint64_t *ret_ticket) MUST_CHECK;
/** flock_unlock - give up what @owner holds on @object and hand it on. */
void flock_unlock(struct flocks *f, uint64_t object, uint64_t owner);
/** flock_cancel - take a queued wish back; false when it was granted already (or never was). */
bool flock_cancel(struct flocks *f, uint64_t ticket);
/** flock_granted - the next wish that has been granted since, to be told by the caller outside its lock; false when none. */
bool flock_granted(struct flocks *f, struct flock_wait *ret);

#endif
