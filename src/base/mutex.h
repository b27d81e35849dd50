/* SPDX-License-Identifier: Apache-2.0 */
/* mutex.h - a mutex that clang's analysis understands, and a condition with a monotonic deadline. */
#ifndef BASE_MUTEX_H
#define BASE_MUTEX_H

#include "base/attr.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct CAPABILITY("mutex") mutex {
	pthread_mutex_t m;
};

struct cond {
	pthread_cond_t c;
};

void mutex_init(struct mutex *m);
void mutex_fini(struct mutex *m);
void mutex_lock(struct mutex *m) ACQUIRE(m);
void mutex_unlock(struct mutex *m) RELEASE(m);

void cond_init(struct cond *c);
void cond_fini(struct cond *c);
void cond_signal(struct cond *c);
void cond_broadcast(struct cond *c);

/** cond_wait - wait for a signal; may wake without one, so test the predicate in a loop. */
void cond_wait(struct cond *c, struct mutex *m) REQUIRES(m);

/** cond_wait_until - the same, but no longer than @deadline_ns (CLOCK_MONOTONIC, see clock.h).
 * Returns false when the deadline has passed. */
bool cond_wait_until(struct cond *c, struct mutex *m, uint64_t deadline_ns) REQUIRES(m);

#endif
