/* SPDX-License-Identifier: Apache-2.0 */
/* thread.h - a named thread with an owner and an end; signals are blocked in it, but those of a crash. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include "base/attr.h"

#include <pthread.h>
#include <stdbool.h>

struct thread {
	pthread_t id;
	bool running; /* started and not joined; a zeroed struct may be joined, to no effect */
	void (*fn)(void *arg);
	void *arg;
	char name[16];
};

/* Those that end the process with a core dump. */
enum { NR_CRASH_SIGNALS = 8 };
extern const int crash_signals[NR_CRASH_SIGNALS];

/** thread_start - run @fn(@arg) in a new thread called @name (at most 15 bytes are kept).
 * @t belongs to the caller and must stay until thread_join. Returns 0 or -errno of pthread_create. */
int thread_start(struct thread *t, const char *name, void (*fn)(void *arg), void *arg) MUST_CHECK;

/** thread_join - wait for the end of @fn; does nothing when @t never ran. */
void thread_join(struct thread *t);

#endif
