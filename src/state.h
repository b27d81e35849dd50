/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - what comes before the first byte: the mount point, the state directory.
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
 * mounted. What a dead kvcachefs left there is unmounted; if it was killed and cannot end, its connection is ended first. An
 * empty o->state_dir becomes the one of this mount point. */
int state_mountpoint(struct options *o, struct failure *f) MUST_CHECK;

/** state_dirs - after state_mountpoint: make o->state_dir and check it and o->memory_dir: a directory,
 * writable, nobody else's, not below the mount point. Both are absolute afterwards. */
int state_dirs(struct options *o, struct failure *f) MUST_CHECK;

/** state_escape - @path as one file name, the way systemd-escape --path does it: @buf of @cap bytes. -ENAMETOOLONG. */
int state_escape(const char *path, char *buf, size_t cap) MUST_CHECK;

/** state_is_below - whether absolute path @path is @dir or inside it. */
bool state_is_below(const char *path, const char *dir);

#endif
