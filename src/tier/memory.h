/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - the memory tier: one file per version on a private tmpfs, named by its generation in hexadecimal.
 *
 * The tmpfs is mounted below the state directory and stays mounted when the daemon ends, so that contents survive a restart
 * and not a reboot. Without the privilege to mount, any directory (of a tmpfs, by good sense) serves. Any thread. */
#ifndef TIER_MEMORY_H
#define TIER_MEMORY_H

#include "base/attr.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct memory_tier;

struct memory_config {
	const char *dir;      /* where the files lie; created if missing */
	bool mount;	      /* mount a private tmpfs there unless one of ours is already */
	const char *huge;     /* tmpfs's huge= option: within_size, always, advise, never */
	uint64_t limit_bytes; /* its hard limit; above the budget */
};

/** memory_open - mount (when asked to) and open the tier.
 * Returns 0 or -errno of mount, mkdir, open; the reason is logged. */
int memory_open(const struct memory_config *cfg, struct memory_tier **ret) MUST_CHECK;
/** memory_close - the tmpfs stays. NULL is allowed. */
void memory_close(struct memory_tier *t);

/** memory_create - a new, empty file for @gen; the descriptor (O_RDWR) is the caller's. -EEXIST, -ENOSPC, -EMFILE. */
int memory_create(struct memory_tier *t, uint64_t gen, int *ret_fd) MUST_CHECK;
/** memory_get - open @gen's file, @access: O_RDONLY or O_RDWR. -ENOENT when there is none. */
int memory_get(struct memory_tier *t, uint64_t gen, int access, int *ret_fd) MUST_CHECK;
/** memory_has_writers - whether anybody has the file behind @fd (O_RDONLY) open for writing: a mapping of such a descriptor
 * counts as well, in whatever process, also when the descriptor is closed. False where that cannot be told. */
bool memory_has_writers(int fd);
/** memory_stat - size, allocated blocks and times of @gen's file. -ENOENT. */
int memory_stat(struct memory_tier *t, uint64_t gen, struct stat *ret) MUST_CHECK;
/** memory_remove - unlink it; open descriptors keep the bytes. A file that is not there is no error. */
void memory_remove(struct memory_tier *t, uint64_t gen);
/** memory_scan - call @fn for every file. */
int memory_scan(struct memory_tier *t, void (*fn)(void *arg, uint64_t gen), void *arg) MUST_CHECK;

/** memory_used - bytes allocated in the private tmpfs, exactly; false when the tier has none of its own. */
bool memory_used(const struct memory_tier *t, uint64_t *ret);
/** memory_inodes - total and free inodes of the filesystem below. */
void memory_inodes(const struct memory_tier *t, uint64_t *ret_total, uint64_t *ret_free);

#endif
