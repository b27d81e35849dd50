/* SPDX-License-Identifier: Apache-2.0 */
/* mounts.h - what is mounted where, from /proc/self/mountinfo. Blocks on no filesystem but proc and fusectl. */
#ifndef BASE_MOUNTS_H
#define BASE_MOUNTS_H

#include "base/attr.h"

#define MOUNT_TYPE "fuse.kvcachefs" /* of our own */

enum { MOUNT_TYPE_MAX = 64 };

struct mount_line {
	const char *path; /* decoded */
	const char *type; /* such as "fuse.kvcachefs" */
	unsigned minor;	  /* of its device; what /sys/fs/fuse/connections calls a connection */
};

/** mounts_parse - @line of mountinfo; the strings of @ret are inside @line. -EBADMSG when it is none. */
int mounts_parse(char *line, struct mount_line *ret) MUST_CHECK;

struct mount_at {
	char type[MOUNT_TYPE_MAX]; /* "": nothing is mounted there */
	unsigned minor;
};

/** mounts_find - the topmost filesystem mounted at absolute path @path. Returns 0 or an errno of reading the table. */
int mounts_find(const char *path, struct mount_at *ret) MUST_CHECK;

/** mounts_open_abort - open the switch of the fuse connection mounted at absolute path @path, the topmost one there:
 * mounts_abort() ends that connection and no later one. Returns 0, -ENOENT (no such mount), or why there is no such switch. */
int mounts_open_abort(const char *path, int *ret_fd) MUST_CHECK;
/** mounts_abort - whoever waits for the daemon gets an error. Safe in a signal handler; no effect the second time. */
void mounts_abort(int fd);

#endif
