/* SPDX-License-Identifier: Apache-2.0 */
/* placement.h - what a directory says about the objects created in it: replica counts, eviction, pin, publish mode.
 * Pure: text to values and back, inheritance, validation. */
#ifndef CACHE_PLACEMENT_H
#define CACHE_PLACEMENT_H

#include "base/attr.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum placement_key {
	PLACE_REPLICA_NUM,
	PLACE_NOF_REPLICA_NUM,
	PLACE_DFS_REPLICA_NUM,
	PLACE_DISK_REPLICA_NUM,
	PLACE_EVICT,
	PLACE_PIN,
	PLACE_PUBLISH,
	NR_PLACE
};

enum { DISK_AUTO = -2, PIN_NONE = 0, PIN_SOFT = 1, PIN_HARD = 2, REPLICAS_MAX = 16 };
/* A soft pin without a time of its own, in seconds. */
enum { PIN_SOFT_DEFAULT_S = 1800 };

struct placement {
	int32_t value
		[NR_PLACE]; /* PLACE_UNSET, a count, 0/1 for evict (off/on) and publish (close/open), PIN_* */
	uint32_t pin_ttl_s; /* of a soft pin */
};
enum { PLACE_UNSET = -1 };

/** placement_none - everything unset. placement_default - what holds when no directory says anything. */
struct placement placement_none(void);
struct placement placement_default(bool evict);

/** placement_key_of - the key of xattr @name (without "user.kvcache."), or -1. placement_name - the reverse. */
int placement_key_of(const char *name);
const char *placement_name(enum placement_key k);

/** placement_parse - set @k of @p from @text of @len bytes (no NUL needed). -EINVAL, and @p unchanged, when it is no such value. */
int placement_parse(struct placement *p, enum placement_key k, const char *text, size_t len)
	MUST_CHECK;
/** placement_format - the text of @k, which must be set; returns its length (under @cap). */
size_t placement_format(const struct placement *p, enum placement_key k, char *buf, size_t cap);

/** placement_inherit - fill what @p leaves unset from @parent. */
void placement_inherit(struct placement *p, const struct placement *parent);
/** placement_complete - fill what is left from the defaults. In a publish=open directory nothing is evicted unless evict is set. */
void placement_complete(struct placement *p, const struct placement *defaults);
/** placement_check - a complete placement: at least one replica, at most one on the DFS. 0 or -EINVAL. */
int placement_check(const struct placement *p) MUST_CHECK;

#endif
