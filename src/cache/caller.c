/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc tells of whoever sent a request. */
#include "base/cleanup.h"
#include "cache/node.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The start of a small file, as a string. False when it cannot be read. */
static bool read_text(int dir, const char *path, char *ret, size_t cap)
{
	AUTO_CLOSE int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret, cap - 1);

	if (n <= 0)
		return false;
	ret[n] = '\0';
	return true;
}

static bool read_proc(pid_t tid, const char *what, char *ret, size_t cap)
{
	char path[40];

	(void)snprintf(path, sizeof path, "/proc/%d/%s", tid, what);
	return read_text(AT_FDCWD, path, ret, cap);
}

/* The thread group of @tid: "Tgid:" of /proc/<pid>/status (proc_pid_status(5)); -1 when it is gone. */
static pid_t tgid_of(pid_t tid)
{
	char buf[512];
	const char *at =
		read_proc(tid, "status", buf, sizeof buf) ? strstr(buf, "\nTgid:\t") : NULL;

	return at ? (pid_t)strtol(at + 7, NULL, 10) : -1;
}

bool caller_same(pid_t a, pid_t b)
{
	if (a == 0 || b == 0)
		return false;
	/* tgkill with signal 0 tells cheaply whether a thread is in the group that a main thread leads. */
	if (a == b || syscall(SYS_tgkill, a, b, 0) == 0 || syscall(SYS_tgkill, b, a, 0) == 0)
		return true;
	pid_t g = tgid_of(a);

	return g > 0 && g != a && syscall(SYS_tgkill, g, b, 0) == 0;
}

/* PF_SIGNALED (include/linux/sched.h) in field "flags" of /proc/<pid>/stat, the ninth: the seventh behind the name's ')'.
 * An exec that closes a file waits for us with the lock held that stat takes; it has its memory by then. A process that dies
 * has lost its memory before its files are closed, and statm, which takes no such lock, begins with 0 (proc_pid_statm(5)). */
bool caller_killed(pid_t tid)
{
	enum { PF_SIGNALED_BIT = 0x400 };
	char buf[512];

	if (tid == 0 || !read_proc(tid, "statm", buf, sizeof buf) || buf[0] != '0' ||
	    !read_proc(tid, "stat", buf, sizeof buf))
		return false;
	const char *at = strrchr(buf, ')');

	for (int field = 0; at && field < 7; field++)
		at = strchr(at + 1, ' ');
	return at && (strtoul(at + 1, NULL, 10) & PF_SIGNALED_BIT);
}

/* "/mount/directory/name", or "… (deleted)". */
static bool path_ends_with(const char *path, size_t len, struct name name)
{
	static const char deleted[] = " (deleted)";
	size_t tail = sizeof deleted - 1;

	if (len > tail && memcmp(path + len - tail, deleted, tail) == 0)
		len -= tail;
	return len > name.len && path[len - name.len - 1] == '/' &&
	       memcmp(path + len - name.len, name.s, name.len) == 0;
}

/* "ino:" of /proc/<pid>/fdinfo/<fd> (proc_pid_fdinfo(5), since Linux 5.14). */
static bool has_ino(int fdinfo, const char *fd, uint64_t ino)
{
	char buf[256];

	if (!read_text(fdinfo, fd, buf, sizeof buf))
		return false;
	const char *at = strstr(buf, "\nino:\t");

	return !at || strtoull(at + 6, NULL, 10) == ino;
}

static int open_proc(pid_t tid, const char *what)
{
	char path[32];

	(void)snprintf(path, sizeof path, "/proc/%d/%s", tid, what);
	return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool caller_holds(pid_t tid, struct name name, uint64_t ino)
{
	AUTO_CLOSE int fdinfo = open_proc(tid, "fdinfo");
	int fds = open_proc(tid, "fd");
	DIR *d = fds < 0 ? NULL : fdopendir(fds);
	char path[PATH_MAX];
	bool yes = false;

	if (!d && fds >= 0)
		(void)close(fds);
	if (!d)
		return true;
	struct dirent *e;

	while (!yes && (e = readdir(d))) { /* NOLINT(concurrency-mt-unsafe): own stream */
		ssize_t n = readlinkat(fds, e->d_name, path, sizeof path);

		/* A path that is too long to be told in full cannot be compared. */
		yes = n > 0 &&
		      ((size_t)n == sizeof path || path_ends_with(path, (size_t)n, name)) &&
		      has_ino(fdinfo, e->d_name, ino);
	}
	(void)closedir(d);
	return yes;
}
