/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - what comes before the first byte: the mount point, the state directory, the lock on it.
 *
 * All of these block on the filesystem, run in one thread, and say in @f what is wrong. They return 0 or -errno. */
#ifndef STATE_H
#define STATE_H

#include "base/attr.h"
#include "failure.h"
#include "options.h"

#include <stdbool.h>
#include <stddef.h>

/** state_mountpoint - check o->mountpoint and make it absolute: it must be a directory where no fuse filesystem is
 * mounted. What a dead kvcachefs left there is unmounted. */
int state_mountpoint(struct options *o, struct failure *f) MUST_CHECK;

/** state_dirs - make o->state_dir (by default one for each mount point) and check it and o->memory_dir: a directory,
 * writable, nobody else's, not below the mount point. Both are absolute afterwards. */
int state_dirs(struct options *o, struct failure *f) MUST_CHECK;

/** state_lock - lock the state directory for as long as *@ret_fd is open. A daemon that is about to end is waited for
 * (10 s); one that serves a mount is named in the message. -EBUSY. */
int state_lock(const struct options *o, int *ret_fd, struct failure *f) MUST_CHECK;

/** state_escape - @path as one file name, the way systemd-escape --path does it: @buf of @cap bytes. -ENAMETOOLONG. */
int state_escape(const char *path, char *buf, size_t cap) MUST_CHECK;

/** state_is_below - whether absolute path @path is @dir or inside it. */
bool state_is_below(const char *path, const char *dir);

#endif
