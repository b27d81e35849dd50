/* SPDX-License-Identifier: Apache-2.0 */
#include "lock.h"

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LOCK_WAIT_MS = 10000, LOCK_STEP_MS = 20 };

/* Returns a descriptor or -errno. */
static int open_lock(const char *state_dir, int flags)
{
	char path[PATH_MAX + 8];
	int fd;

	(void)snprintf(path, sizeof path, "%s/lock", state_dir);
	fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? -errno : fd;
}

/* Who holds the lock, as it wrote into the file: its process and its mount point. */
struct holder {
	long pid; /* 0: unknown */
	char mountpoint[PATH_MAX];
};

static void read_holder(int fd, struct holder *ret)
{
	char text[PATH_MAX + 32];
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	char *end;

	ret->pid = 0;
	ret->mountpoint[0] = '\0';
	if (n <= 0)
		return;
	text[n] = '\0';
	ret->pid = strtol(text, &end, 10);
	if (*end == ' ') {
		end[strcspn(end, "\n")] = '\0';
		(void)snprintf(ret->mountpoint, sizeof ret->mountpoint, "%s", end + 1);
	}
}

static void write_holder(int fd, const struct options *o)
{
	char text[PATH_MAX + 32];
	int len = snprintf(text, sizeof text, "%ld %s\n", (long)getpid(), o->mountpoint);

	/* It only serves the message of another daemon: on a full disk the lock is as good without. Written before it is
	 * cut, so that it needs no new block where one was there. */
	if (pwrite(fd, text, (size_t)len, 0) == (ssize_t)len && ftruncate(fd, len) < 0)
		return;
}

/* Whether the holder still serves its mount, so that waiting for its end is no use. */
static bool is_serving(const struct holder *h)
{
	struct mount_at at;

	return h->mountpoint[0] != '\0' && mounts_find(h->mountpoint, &at) == 0 &&
	       strcmp(at.type, MOUNT_TYPE) == 0;
}

static int busy(const struct options *o, const struct holder *h, struct failure *f)
{
	if (h->pid > 0)
		failure_set(f, EXIT_MOUNT, "state_dir %s is in use by process %ld%s%s",
			    o->state_dir, h->pid, h->mountpoint[0] == '\0' ? "" : ", mounted at ",
			    h->mountpoint);
	else
		failure_set(f, EXIT_MOUNT, "state_dir %s is in use by another process",
			    o->state_dir);
	return -EBUSY;
}

static int wait_lock(int fd, const struct options *o, struct failure *f)
{
	uint64_t deadline = clock_mono_ns() + LOCK_WAIT_MS * NS_PER_MS;
	struct holder h;

	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR) {
			failure_set(f, EXIT_SYSTEM, "state_dir %s: cannot be locked: %m",
				    o->state_dir);
			return -errno;
		}
		read_holder(fd, &h);
		if (is_serving(&h) || clock_mono_ns() > deadline)
			return busy(o, &h, f);
		/* flock knows no deadline. */
		(void)poll(NULL, 0, LOCK_STEP_MS);
	}
	return 0;
}

int lock_take(const struct options *o, int *ret_fd, struct failure *f)
{
	int fd = open_lock(o->state_dir, O_RDWR | O_CREAT);
	int r;

	if (fd < 0) {
		errno = -fd;
		failure_set(f, EXIT_SYSTEM, "%s/lock: %m", o->state_dir);
		return fd;
	}
	r = wait_lock(fd, o, f);
	if (r < 0) {
		(void)close(fd);
		return r;
	}
	write_holder(fd, o);
	*ret_fd = fd;
	return 0;
}

/* Whether the main thread of a process is dead, and others are not: they wait in the kernel and cannot be killed. */
static bool is_killed(long pid)
{
	char path[64];
	char text[512];
	const char *state;
	AUTO_CLOSE int fd = -1;
	ssize_t n;

	(void)snprintf(path, sizeof path, "/proc/%ld/stat", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (n <= 0)
		return false;
	text[n] = '\0';
	state = strrchr(text, ')'); /* a name may have blanks and parentheses */
	return state != NULL && strncmp(state, ") Z", 3) == 0;
}

bool lock_of_killed(const char *state_dir, const char *mountpoint)
{
	AUTO_CLOSE int fd = open_lock(state_dir, O_RDONLY);
	struct holder h;

	if (fd < 0)
		return false;
	read_holder(fd, &h);
	return strcmp(h.mountpoint, mountpoint) == 0 && h.pid > 0 && is_killed(h.pid);
}
