/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static int octal(const char *s)
{
	int n = 0;

	for (int i = 0; i < 3; i++) {
		if (s[i] < '0' || s[i] > '7')
			return -1;
		n = n * 8 + (s[i] - '0');
	}
	return n <= 0xff ? n : -1;
}

/* The kernel writes blanks, newlines and backslashes as \ooo. */
static void unescape(char *s)
{
	char *out = s;

	while (*s != '\0') {
		int c = *s == '\\' ? octal(s + 1) : -1;

		if (c > 0) {
			*out++ = (char)c;
			s += 4;
		} else {
			*out++ = *s++;
		}
	}
	*out = '\0';
}

/* id parent major:minor root MOUNTPOINT options [tag…] - TYPE source options */
int mounts_parse(char *line, struct mount_line *ret)
{
	char *fields[5]; /* up to the mount point */
	char *end;
	char *rest = line;
	char *type;

	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		fields[i] = rest;
		rest = strchr(rest, ' ');
		if (rest == NULL)
			return -EBADMSG;
		rest++;
	}
	type = strstr(rest - 1, " - ");
	end = strchr(fields[2], ':');
	if (type == NULL || end == NULL)
		return -EBADMSG;
	rest[-1] = '\0';
	type += 3;
	type[strcspn(type, " \n")] = '\0';
	unescape(fields[4]);
	ret->path = fields[4];
	ret->type = type;
	ret->minor = (unsigned)strtoul(end + 1, NULL, 10);
	return 0;
}

int mounts_find(const char *path, struct mount_at *ret)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	struct mount_line at;
	char *line = NULL;
	size_t room = 0;
	int r;

	if (f == NULL)
		return -errno;
	ret->type[0] = '\0';
	ret->minor = 0;
	/* Later lines lie over earlier ones. */
	while (getline(&line, &room, f) > 0) {
		if (mounts_parse(line, &at) == 0 && strcmp(at.path, path) == 0) {
			(void)snprintf(ret->type, sizeof ret->type, "%s", at.type);
			ret->minor = at.minor;
		}
	}
	r = ferror(f) ? -EIO : 0;
	free(line);
	(void)fclose(f);
	return r;
}

/* A mount of fusectl of our own, at no place, since often nobody has mounted it. Returns its root, or -1. */
static int mount_fusectl(void)
{
	int fs = fsopen("fusectl", FSOPEN_CLOEXEC);
	int root = -1;

	if (fs >= 0 && fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		root = fsmount(fs, FSMOUNT_CLOEXEC, 0);
	if (fs >= 0)
		(void)close(fs);
	return root;
}

int mounts_open_abort(const char *path, int *ret_fd)
{
	static const char usual[] = "/sys/fs/fuse/connections";
	struct mount_at at = { 0 };
	char name[32];
	int fd = -1;
	int dir;
	int r = mounts_find(path, &at);

	if (r != 0)
		return r;
	if (strncmp(at.type, "fuse", 4) != 0)
		return -ENOENT;
	(void)snprintf(name, sizeof name, "%u/abort", at.minor);
	dir = open(usual, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir >= 0) {
		fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
		(void)close(dir);
	}
	dir = fd < 0 ? mount_fusectl() : -1;
	if (dir >= 0) {
		fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
		r = -errno;
		(void)close(dir);
	}
	if (fd < 0)
		return dir < 0 ? -EPERM : r;
	*ret_fd = fd;
	return 0;
}

void mounts_abort(int fd)
{
	ssize_t n = write(fd, "1", 1); /* ends it, or it has ended */

	(void)n;
}
