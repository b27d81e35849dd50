/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h - a process of its own: background, start report, signals, limits. */
#ifndef DAEMON_H
#define DAEMON_H

#include "base/attr.h"
#include "base/thread.h"
#include "failure.h"

#include <stdbool.h>
#include <sys/types.h>

/* The start of a background process. The process that the user called waits until the other one has reported. */
struct daemon {
	bool parent; /* this is the process that the user called: it should call daemon_wait() and end */
	int pipe_fd; /* -1: in the foreground */
	pid_t child;
};

/** daemon_init - stay in the foreground: reports go to standard error. */
void daemon_init(struct daemon *d);
/** daemon_fork - go on in a new process, in a session of its own, and in the old one. Call it before the first thread.
 * Returns 0 in both, or -errno. */
int daemon_fork(struct daemon *d, struct failure *f) MUST_CHECK;
/** daemon_wait - in the parent: wait for the report, then until @mountpoint answers. Returns the exit code;
 * what went wrong has been printed. */
int daemon_wait(struct daemon *d, const char *mountpoint);
/** daemon_ready - in the child: report success, leave the terminal and let the log go to syslog from @log_prio on.
 * Does nothing in the foreground. */
void daemon_ready(struct daemon *d, int log_prio);
/** daemon_failed - report @f. Returns the exit code. */
int daemon_failed(struct daemon *d, const struct failure *f);

/* SIGTERM, SIGINT and SIGHUP, taken by a thread. */
struct signals {
	struct thread thread;
	int signal_fd;
	int stop_fd;
	void (*fn)(void *arg);
	void *arg;
};

/** signals_block - keep them, and SIGPIPE, from this thread and those it starts. Before the first thread. */
void signals_block(void);
/** signals_start - call @fn(@arg) in a thread of its own at the first of them. @s is the caller's until signals_stop(),
 * which may follow a failed signals_start, or a struct whose members are signal_fd = stop_fd = -1, too. */
int signals_start(struct signals *s, void (*fn)(void *arg), void *arg) MUST_CHECK;
void signals_stop(struct signals *s);

/** limits_raise - allow as many open files as the system does, and no I/O by the kernel to get memory for the daemon. Before
 * threads are started. */
void limits_raise(void);

#endif
