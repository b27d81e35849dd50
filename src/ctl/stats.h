/* SPDX-License-Identifier: Apache-2.0 */
/* stats.h - the cache's counters as text, in Prometheus's exposition format 0.0.4. */
#ifndef CTL_STATS_H
#define CTL_STATS_H

#include "cache/cache.h"

#include <stdio.h>

/** stats_print - write all of them; @c is asked once. */
void stats_print(struct cache *c, FILE *out);

#endif
