/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include "base/cleanup.h"
#include "base/mounts.h"
#include "lock.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

bool state_is_below(const char *path, const char *dir)
{
	size_t len = strlen(dir);

	if (len > 0 && dir[len - 1] == '/')
		len--;
	return strncmp(path, dir, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

static bool is_plain(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c == ':' || c == '_' || c == '.';
}

int state_escape(const char *path, char *buf, size_t cap)
{
	static const char hex[] = "0123456789abcdef";
	size_t len = 0;

	path += strspn(path, "/");
	if (*path == '\0') {
		if (cap < 2)
			return -ENAMETOOLONG;
		memcpy(buf, "-", 2);
		return 0;
	}
	for (const char *p = path; *p != '\0'; p++) {
		unsigned char c = (unsigned char)*p;

		if (*p == '/' && strspn(p, "/") == strlen(p))
			break;
		if (*p == '/' && p[1] == '/')
			continue;
		if (len + 5 > cap)
			return -ENAMETOOLONG;
		if (*p == '/') {
			buf[len++] = '-';
		} else if (is_plain(*p) && !(len == 0 && *p == '.')) {
			buf[len++] = *p;
		} else {
			buf[len++] = '\\';
			buf[len++] = 'x';
			buf[len++] = hex[c >> 4];
			buf[len++] = hex[c & 15];
		}
	}
	buf[len] = '\0';
	return 0;
}

/* @up/@name into @buf of PATH_MAX bytes. */
static int join(char *buf, const char *up, const char *name)
{
	size_t up_len = strcmp(up, "/") == 0 ? 0 : strlen(up);
	size_t name_len = strlen(name);

	if (up_len + 1 + name_len >= PATH_MAX)
		return -ENAMETOOLONG;
	/* NOLINTNEXTLINE(bugprone-not-null-terminated-result): the rest follows */
	memcpy(buf, up, up_len);
	buf[up_len] = '/';
	memcpy(buf + up_len + 1, name, name_len + 1);
	return 0;
}

/* @given, relative to the working directory, as an absolute one without slashes at its end; both of PATH_MAX bytes. */
static int make_absolute(const char *given, char *buf)
{
	char cwd[PATH_MAX];
	size_t len;
	int r;

	if (given[0] == '/') {
		(void)snprintf(buf, PATH_MAX, "%s", given);
	} else {
		if (getcwd(cwd, sizeof cwd) == NULL)
			return -errno;
		r = join(buf, cwd, given);
		if (r < 0)
			return r;
	}
	for (len = strlen(buf); len > 1 && buf[len - 1] == '/'; len--)
		buf[len - 1] = '\0';
	return 0;
}

/* Resolve the symbolic links of absolute path @path as far as it exists; what is missing, or a dead mount, stays as it is
 * written. @buf of PATH_MAX bytes. */
static int resolve(const char *path, char *buf)
{
	char head[PATH_MAX];
	char real[PATH_MAX];
	size_t cut = strlen(path);

	memcpy(head, path, cut + 1);
	while (realpath(head, real) == NULL) {
		if (errno != ENOENT && errno != ENOTCONN && errno != ECONNABORTED)
			return -errno;
		while (cut > 0 && head[cut - 1] != '/')
			cut--;
		while (cut > 1 && head[cut - 1] == '/')
			cut--;
		if (cut == 0)
			return -ENOENT;
		head[cut] = '\0';
	}
	path += cut;
	path += strspn(path, "/");
	if (*path != '\0')
		return join(buf, real, path);
	memcpy(buf, real, sizeof real);
	return 0;
}

/* A user without privilege may unmount by the helper of libfuse alone. */
static int unmount_helper(const char *path)
{
	char prog[] = "fusermount3";
	char flags[] = "-uzq";
	char end[] = "--";
	char where[PATH_MAX];
	char *argv[] = { prog, flags, end, where, NULL };
	int status = 0;
	pid_t pid;
	int r;

	(void)snprintf(where, sizeof where, "%s", path);
	r = posix_spawnp(&pid, prog, NULL, NULL, argv, environ);
	if (r != 0)
		return -r;
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return -errno;
	}
	return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EPERM;
}

static int unmount_dead(const char *path)
{
	if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
		return 0;
	return errno == EPERM ? unmount_helper(path) : -errno;
}

/* Look at @path: 0 when it is a directory that answers; *@ret_dead when a dead filesystem is mounted there. */
static int probe(const char *path, bool *ret_dead, struct failure *f)
{
	struct stat st;
	struct statvfs vfs;
	int r = stat(path, &st) == 0 ? 0 : -errno;

	/* The kernel may still know the attributes of a dead filesystem, but not how full it is. */
	if (r == 0 && statvfs(path, &vfs) < 0)
		r = -errno;
	*ret_dead = r == -ENOTCONN || r == -ECONNABORTED;
	if (*ret_dead)
		return 0;
	if (r < 0) {
		errno = -r;
		failure_set(f, EXIT_MOUNT, "mount point %s: %m", path);
		return r;
	}
	if (!S_ISDIR(st.st_mode)) {
		failure_set(f, EXIT_MOUNT, "mount point %s: not a directory", path);
		return -ENOTDIR;
	}
	return 0;
}

/* The directory that holds the state directories of all mount points, into @buf of PATH_MAX bytes. */
static int state_home(const struct options *o, char *buf)
{
	const char *home = secure_getenv("XDG_STATE_HOME");

	if (o->env.root)
		return join(buf, "/var/lib", "kvcachefs");
	if (home != NULL && home[0] == '/')
		return join(buf, home, "kvcachefs");
	home = secure_getenv("HOME");
	if (home == NULL || home[0] != '/')
		return -ENOENT;
	return join(buf, home, ".local/state/kvcachefs");
}

static int default_state_dir(struct options *o, struct failure *f)
{
	char home[PATH_MAX];
	char name[NAME_MAX + 1];
	int r = state_home(o, home);

	if (r == 0)
		r = state_escape(o->mountpoint, name, sizeof name);
	if (r == 0)
		r = join(o->state_dir, home, name);
	if (r < 0)
		failure_set(f, EXIT_USAGE,
			    "no default state directory for %s; give state_dir=", o->mountpoint);
	return r;
}

/* The daemon of the mount may have been killed and not be able to end, since it waits in the kernel for a user of the mount,
 * who waits for it. (With a guard that did not outlive it: fuse/guard.c.) Whoever looks at the mount then waits as well. */
static int end_killed(const struct options *o, struct failure *f)
{
	AUTO_CLOSE int fd = -1;
	int r;

	if (!lock_of_killed(o->state_dir, o->mountpoint))
		return 0;
	r = mounts_open_abort(o->mountpoint, &fd);
	if (r < 0) {
		errno = -r;
		failure_set(
			f, EXIT_MOUNT,
			"mount point %s: its daemon was killed and does not end, umount -f it: %m",
			o->mountpoint);
		return r;
	}
	mounts_abort(fd);
	return 0;
}

/* What lies on the mount point: 0 when it is free, 1 when a dead mount of ours was taken away and it should be looked at again. */
static int clear_mountpoint(const struct options *o, struct failure *f)
{
	const char *path = o->mountpoint;
	struct mount_at at;
	bool dead = false;
	int r = mounts_find(path, &at);

	if (r < 0) {
		failure_set(f, EXIT_SYSTEM, "/proc/self/mountinfo: cannot be read");
		return r;
	}
	if (strcmp(at.type, MOUNT_TYPE) == 0)
		r = end_killed(o, f);
	if (r == 0)
		r = probe(path, &dead, f);
	if (r < 0)
		return r;
	if (!dead && strncmp(at.type, "fuse", 4) == 0) {
		failure_set(f, EXIT_MOUNT, "mount point %s: already mounted (%s)", path, at.type);
		return -EBUSY;
	}
	if (!dead)
		return 0;
	if (strcmp(at.type, MOUNT_TYPE) != 0) {
		failure_set(f, EXIT_MOUNT,
			    "mount point %s: a dead mount (%s) is in the way; unmount it first",
			    path, at.type[0] == '\0' ? "above it" : at.type);
		return -ENOTCONN;
	}
	r = unmount_dead(path);
	if (r < 0) {
		errno = -r;
		failure_set(f, EXIT_MOUNT,
			    "mount point %s: cannot unmount the dead kvcachefs there: %m", path);
		return r;
	}
	return 1;
}

int state_mountpoint(struct options *o, struct failure *f)
{
	char path[PATH_MAX];
	int r = make_absolute(o->mountpoint, path);

	if (r == 0)
		r = resolve(path, o->mountpoint);
	if (r < 0) {
		errno = -r;
		failure_set(f, EXIT_MOUNT, "mount point %s: %m", o->mountpoint);
		return r;
	}
	if (o->state_dir[0] == '\0')
		r = default_state_dir(o, f);
	if (r < 0)
		return r;
	do {
		r = clear_mountpoint(o, f);
	} while (r > 0);
	return r;
}

/* Make @path and what is missing above it. */
static int make_dirs(const char *path)
{
	char head[PATH_MAX];

	(void)snprintf(head, sizeof head, "%s", path);
	for (char *p = head + 1;; p++) {
		char c = *p;

		if (c != '/' && c != '\0')
			continue;
		*p = '\0';
		if (mkdir(head, c == '\0' ? 0700 : 0755) < 0 && errno != EEXIST)
			return -errno;
		if (c == '\0')
			return 0;
		*p = c;
	}
}

/* Whether @dir is ours alone to write to. */
static int check_dir(const char *what, const char *dir, struct failure *f)
{
	struct stat st;
	const char *bad = NULL;

	if (stat(dir, &st) < 0) {
		failure_set(f, EXIT_USAGE, "%s %s: %m", what, dir);
		return -errno;
	}
	if (!S_ISDIR(st.st_mode))
		bad = "not a directory";
	else if (st.st_uid != geteuid())
		bad = "belongs to another user";
	else if ((st.st_mode & 0022) != 0)
		bad = "others may write to it; chmod 0700 it";
	if (bad != NULL) {
		failure_set(f, EXIT_USAGE, "%s %s: %s", what, dir, bad);
		return -EPERM;
	}
	if (faccessat(AT_FDCWD, dir, R_OK | W_OK | X_OK, AT_EACCESS) < 0) {
		failure_set(f, EXIT_USAGE, "%s %s: not writable: %m", what, dir);
		return -errno;
	}
	return 0;
}

/* Resolve @dir in place and refuse it below the mount point: the daemon would wait for itself. */
static int resolve_dir(const struct options *o, const char *what, char *dir, struct failure *f)
{
	char path[PATH_MAX];
	char real[PATH_MAX] = "";
	int r = make_absolute(dir, path);

	if (r == 0)
		r = resolve(path, real);
	if (r != 0) {
		errno = -r;
		failure_set(f, EXIT_USAGE, "%s %s: %m", what, dir);
		return r;
	}
	if (state_is_below(real, o->mountpoint)) {
		failure_set(f, EXIT_USAGE, "%s %s lies below the mount point %s", what, real,
			    o->mountpoint);
		return -EINVAL;
	}
	memcpy(dir, real, sizeof real);
	return 0;
}

static int check_memory_dir(struct options *o, struct failure *f)
{
	int r = resolve_dir(o, "memory_dir", o->memory_dir, f);

	if (r == 0)
		r = check_dir("memory_dir", o->memory_dir, f);
	/* The memory tier removes what it does not know from its directory. */
	if (r == 0 && (state_is_below(o->mountpoint, o->memory_dir) ||
		       state_is_below(o->state_dir, o->memory_dir))) {
		failure_set(
			f, EXIT_USAGE,
			"memory_dir %s holds the mount point or state_dir; give it one of its own",
			o->memory_dir);
		r = -EINVAL;
	}
	return r;
}

int state_dirs(struct options *o, struct failure *f)
{
	int r = resolve_dir(o, "state_dir", o->state_dir, f);

	if (r < 0)
		return r;
	r = make_dirs(o->state_dir);
	if (r < 0) {
		errno = -r;
		failure_set(f, EXIT_USAGE, "state_dir %s: cannot be made: %m", o->state_dir);
		return r;
	}
	/* Once more, now that every part of the path exists. */
	r = resolve_dir(o, "state_dir", o->state_dir, f);
	if (r == 0)
		r = check_dir("state_dir", o->state_dir, f);
	if (r == 0 && o->memory_dir[0] != '\0')
		r = check_memory_dir(o, f);
	return r;
}
