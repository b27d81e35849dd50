/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - nanoseconds: CLOCK_MONOTONIC for deadlines, CLOCK_REALTIME for what users see. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

static inline uint64_t clock_ns_of(clockid_t id)
{
	struct timespec ts;

	(void)clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_mono_ns(void)
{
	return clock_ns_of(CLOCK_MONOTONIC);
}

/* Signed: file times may lie before 1970. */
static inline int64_t timespec_ns(struct timespec ts)
{
	return (int64_t)ts.tv_sec * (int64_t)NS_PER_S + (int64_t)ts.tv_nsec;
}

static inline int64_t clock_real_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_REALTIME, &ts);
	return timespec_ns(ts);
}

static inline struct timespec ns_timespec(int64_t ns)
{
	int64_t s = ns / (int64_t)NS_PER_S;
	int64_t rest = ns % (int64_t)NS_PER_S;

	if (rest < 0) {
		s -= 1;
		rest += (int64_t)NS_PER_S;
	}
	return (struct timespec){ .tv_sec = (time_t)s, .tv_nsec = (long)rest };
}

#endif
