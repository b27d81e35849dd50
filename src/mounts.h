/* SPDX-License-Identifier: Apache-2.0 */
/* mounts.h - what is mounted where, from /proc/self/mountinfo. */
#ifndef MOUNTS_H
#define MOUNTS_H

#include "base/attr.h"

#include <stddef.h>

/** mounts_type - the type of the topmost filesystem mounted at absolute path @path, such as "fuse.kvcachefs", into @buf;
 * "" when nothing is mounted there. Returns 0 or an errno of reading the table. Blocks on no filesystem but proc. */
int mounts_type(const char *path, char *buf, size_t cap) MUST_CHECK;

/** mounts_parse - @line of mountinfo: point at its mount point (decoded, NUL-terminated) and type, both inside @line.
 * -EBADMSG when it is none. */
int mounts_parse(char *line, const char **ret_path, const char **ret_type) MUST_CHECK;

#endif
