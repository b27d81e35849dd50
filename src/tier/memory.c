/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/memory.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <unistd.h>

struct memory_tier {
	int dir_fd;
	bool private; /* the tmpfs is ours alone: its usage is the tier's */
};

struct file_name {
	char s[17];
};

static struct file_name file_name(uint64_t gen)
{
	struct file_name n;

	(void)snprintf(n.s, sizeof n.s, "%016" PRIx64, gen);
	return n;
}

static bool is_mount_point(const char *dir)
{
	struct stat here;
	struct stat up;
	char parent[4096];
	int n = snprintf(parent, sizeof parent, "%s/..", dir);

	return n > 0 && (size_t)n < sizeof parent && stat(dir, &here) == 0 &&
	       stat(parent, &up) == 0 && here.st_dev != up.st_dev;
}

/* noswap is known since Linux 6.4, huge= only where the kernel has transparent huge pages: from the best to what any has. */
static int mount_tmpfs(const struct memory_config *cfg)
{
	static const char *const forms[] = {
		"mode=0700,size=%" PRIu64 ",huge=%s,noswap",
		"mode=0700,size=%" PRIu64 ",huge=%s",
		"mode=0700,size=%" PRIu64,
	};
	bool remount = is_mount_point(cfg->dir);
	unsigned long flags =
		MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_NOATIME | (remount ? MS_REMOUNT : 0);
	int err = EINVAL;

	for (size_t i = 0; i < sizeof forms / sizeof *forms && err == EINVAL; i++) {
		char data[128];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		(void)snprintf(data, sizeof data, forms[i], cfg->limit_bytes, cfg->huge);
#pragma GCC diagnostic pop
		err = mount("kvcachefs-memory", cfg->dir, "tmpfs", flags, data) == 0 ? 0 : errno;
		if (err == 0 && i == 2)
			log_msg(LOG_WARNING, "memory: the kernel has no huge pages for tmpfs, "
					     "copies are slower");
	}
	/* A remount may not make it smaller than its content, nor change noswap: the old limits go on. */
	if (err != 0 && remount) {
		log_msg(LOG_WARNING,
			"memory: limits of %s could not be changed, keeping the old ones err=%d",
			cfg->dir, err);
		err = 0;
	}
	return -err;
}

int memory_open(const struct memory_config *cfg, struct memory_tier **ret)
{
	struct memory_tier *t = calloc(1, sizeof *t);
	struct statfs fs;
	int r = 0;

	if (!t)
		return -ENOMEM;
	t->dir_fd = -1;
	t->private = cfg->mount;
	if (mkdir(cfg->dir, 0700) < 0 && errno != EEXIST)
		r = -errno;
	if (r == 0 && cfg->mount)
		r = mount_tmpfs(cfg);
	if (r == 0) {
		t->dir_fd = open(cfg->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		r = t->dir_fd < 0 ? -errno : 0;
	}
	if (r < 0) {
		log_msg(LOG_ERR, "memory: cannot set up %s: %s err=%d", cfg->dir,
			cfg->mount
				? "mounting a tmpfs there needs CAP_SYS_ADMIN (or give memory_dir=)"
				: "it must be a directory that can be written",
			-r);
		memory_close(t);
		return r;
	}
	if (fstatfs(t->dir_fd, &fs) == 0 && fs.f_type != TMPFS_MAGIC)
		log_msg(LOG_WARNING, "memory: %s is on a disk, not on a tmpfs", cfg->dir);
	*ret = t;
	return 0;
}

void memory_close(struct memory_tier *t)
{
	if (!t)
		return;
	if (t->dir_fd >= 0)
		(void)close(t->dir_fd);
	free(t);
}

int memory_create(struct memory_tier *t, uint64_t gen, int *ret_fd)
{
	int fd = openat(t->dir_fd, file_name(gen).s,
			O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOATIME, 0600);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int memory_get(struct memory_tier *t, uint64_t gen, int access, int *ret_fd)
{
	int fd = openat(t->dir_fd, file_name(gen).s, access | O_CLOEXEC | O_NOFOLLOW | O_NOATIME);

	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

/* check_conflicting_open() in fs/locks.c: no read lease while the inode has writers. Whoever opens the file for writing in the
 * moment that the lease is held waits for its end; SIGIO, which tells the holder, is blocked (daemon.c). */
bool memory_has_writers(int fd)
{
	if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0)
		return errno == EAGAIN;
	(void)fcntl(fd, F_SETLEASE, F_UNLCK);
	return false;
}

int memory_stat(struct memory_tier *t, uint64_t gen, struct stat *ret)
{
	return fstatat(t->dir_fd, file_name(gen).s, ret, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

void memory_remove(struct memory_tier *t, uint64_t gen)
{
	if (unlinkat(t->dir_fd, file_name(gen).s, 0) < 0 && errno != ENOENT)
		log_msg(LOG_ERR, "memory: cannot remove gen=%" PRIu64 " err=%d", gen, errno);
}

int memory_scan(struct memory_tier *t, void (*fn)(void *arg, uint64_t gen), void *arg)
{
	int fd = openat(t->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		int r = -errno;

		if (fd >= 0)
			(void)close(fd);
		return r;
	}
	struct dirent *e;

	while ((e = readdir(d))) { /* NOLINT(concurrency-mt-unsafe): own stream */
		char *end = NULL;
		uint64_t gen = strtoull(e->d_name, &end, 16);

		/* A name that is not one of ours belongs to somebody else and is left alone. */
		if (strlen(e->d_name) == 16 && *end == '\0')
			fn(arg, gen);
	}
	(void)closedir(d);
	return 0;
}

bool memory_used(const struct memory_tier *t, uint64_t *ret)
{
	struct statfs fs;

	if (!t->private || fstatfs(t->dir_fd, &fs) < 0)
		return false;
	*ret = (fs.f_blocks - fs.f_bfree) * (uint64_t)fs.f_bsize;
	return true;
}

void memory_inodes(const struct memory_tier *t, uint64_t *ret_total, uint64_t *ret_free)
{
	struct statfs fs;

	*ret_total = 0;
	*ret_free = 0;
	if (fstatfs(t->dir_fd, &fs) == 0) {
		*ret_total = fs.f_files;
		*ret_free = fs.f_ffree;
	}
}
