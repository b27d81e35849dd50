/* SPDX-License-Identifier: Apache-2.0 */
/* session.h - one mount: the kernel's requests are decoded, given to cache/, answered. */
#ifndef FUSE_SESSION_H
#define FUSE_SESSION_H

#include "base/attr.h"
#include "cache/cache.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct fs_session;

/* A file of the control directory /.kvcache/: read only, made anew for each open. */
struct control_file {
	const char *name;
	void (*print)(void *arg, FILE *out); /* any thread */
	void *arg;
};

struct fs_config {
	const char *mountpoint;
	const char *fsname;
	const char *
		mount_options; /* of the kernel, separated by commas, e.g. "nosuid,nodev,allow_other" */
	bool passthrough;      /* use it where it is to be had; likewise: */
	bool io_uring;
	bool debug;			  /* log every request */
	unsigned threads;		  /* 0: as many as the processors ask for */
	const struct control_file *files; /* borrowed; the last has no name */
};

/* What the kernel granted; known once the mount answers. */
struct fs_features {
	bool passthrough;
	bool io_uring;
	const char *why_no_passthrough; /* static text, NULL where it is there */
	const char *why_no_io_uring;
};

/** fs_session_new - @c is borrowed and must live longer. Returns 0, -ENOMEM, -EINVAL (libfuse refused an option, and said so). */
int fs_session_new(const struct fs_config *cfg, struct cache *c, struct fs_session **ret)
	MUST_CHECK;
/** fs_session_mount - attach to the mount point; from the main thread. Returns 0 or -errno; libfuse's reason is on standard error or in the log. */
int fs_session_mount(struct fs_session *s) MUST_CHECK;
/** fs_session_loop - serve until unmounted or stopped. @ready is called once, from a thread of the loop, when the mount answers. */
int fs_session_loop(struct fs_session *s, void (*ready)(void *arg, const struct fs_features *f),
		    void *arg) MUST_CHECK;
/** fs_session_stop - end the loop; any thread. */
void fs_session_stop(struct fs_session *s);
/** fs_session_free - unmount, free. NULL is allowed. */
void fs_session_free(struct fs_session *s);

/** fs_is_guard, fs_guard - whether this program was called to watch over a mounted one (fs_session_mount does), and that. Before
 * anything else in main(), which then returns what fs_guard returned. */
bool fs_is_guard(int argc, char *const *argv);
int fs_guard(char *const *argv) MUST_CHECK;

/** fs_library - the version of libfuse in use. */
const char *fs_library(void);

#endif
