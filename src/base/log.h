/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - leveled lines: "<N>module: what happened key=value", on stderr (with -f or under systemd, which reads the
 * <N> prefix) or in syslog. Priorities are those of <syslog.h>. Any thread. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include "base/attr.h"

#include <stdbool.h>
#include <stdint.h>
#include <syslog.h>

/** log_open - set the target and the least urgent priority that is written (LOG_INFO, or LOG_DEBUG with -d). */
void log_open(bool use_syslog, int max_prio);

/** log_enabled - whether a line of @prio would be written. */
bool log_enabled(int prio);

void log_msg(int prio, const char *fmt, ...) PRINTF(2, 3);

/* A place that a user or peer can make log at will: at most @burst lines in each second of it get out. */
struct log_limit {
	uint64_t second;
	unsigned nr;
};
/** log_allow - whether the next line of this place may be written. Any thread; counts are approximate. */
bool log_allow(struct log_limit *l, unsigned burst);

#endif
