/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_int log_max_prio = LOG_INFO;
static atomic_bool log_to_syslog;

void log_open(bool use_syslog, int max_prio)
{
	atomic_store(&log_max_prio, max_prio);
	atomic_store(&log_to_syslog, use_syslog);
	if (use_syslog)
		openlog("kvcachefs", LOG_PID, LOG_DAEMON);
}

bool log_enabled(int prio)
{
	return prio <= atomic_load_explicit(&log_max_prio, memory_order_relaxed);
}

void log_msg(int prio, const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	if (!log_enabled(prio))
		return;
	va_start(ap, fmt);
	(void)vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	if (atomic_load_explicit(&log_to_syslog, memory_order_relaxed))
		syslog(prio, "%s", line);
	else
		(void)fprintf(stderr, "<%d>%s\n", prio, line);
}

bool log_allow(struct log_limit *l, unsigned burst)
{
	uint64_t now = clock_mono_ns() / NS_PER_S;

	if (__atomic_exchange_n(&l->second, now, __ATOMIC_RELAXED) != now)
		__atomic_store_n(&l->nr, 0, __ATOMIC_RELAXED);
	return __atomic_fetch_add(&l->nr, 1, __ATOMIC_RELAXED) < burst;
}
