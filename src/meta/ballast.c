/* SPDX-License-Identifier: Apache-2.0 */
/* The ballast: a file of allocated blocks beside the database, let go when a commit finds the disk full. What was promised
 * is still written then (the publishing of files that are closed) and what makes room (removing); what is new is refused until the
 * ballast is whole again. It is as large as the WAL may get, so that all of that can be copied into a database that grows. */
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
	BALLAST_BYTES = 32 << 20,
	BALLAST_SHARE = 8, /* of a small filesystem it takes no more than this part */
};

static int open_ballast(const struct meta *m)
{
	char path[PATH_MAX];
	int len = snprintf(path, sizeof path, "%s-ballast", m->path);

	if (len < 0 || (size_t)len >= sizeof path)
		return -ENAMETOOLONG;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW, 0600);

	return fd < 0 ? -errno : fd;
}

/* How large the ballast of @m is to be on the filesystem of @fd goes to @ret; @again: it was let go before, and shall not be
 * taken from the last room there is only to be let go at the next commit. */
static int fill_ballast(int fd, bool again, off_t *ret)
{
	struct statvfs fs;

	*ret = BALLAST_BYTES;
	if (fstatvfs(fd, &fs) == 0) {
		uint64_t share = (uint64_t)fs.f_blocks * fs.f_frsize / BALLAST_SHARE;

		if (share < BALLAST_BYTES)
			*ret = (off_t)share;
		if (again && (uint64_t)fs.f_bavail * fs.f_frsize < 2 * (uint64_t)*ret)
			return -ENOSPC;
	}
	return fallocate(fd, 0, 0, *ret) < 0 ? -errno : 0;
}

void meta_ballast_take(struct meta *m)
{
	off_t bytes = 0;
	int was = atomic_load(&m->ballast);
	AUTO_CLOSE int fd = open_ballast(m);
	int r = fd < 0 ? fd : fill_ballast(fd, was == BALLAST_GONE, &bytes);

	if (r < 0 && r != -ENOSPC && r != -EDQUOT && was != BALLAST_GONE) {
		/* A filesystem without fallocate(2): it has to do without. */
		log_msg(LOG_INFO, "meta: no ballast for a full disk file=%s err=%d", m->path, -r);
		atomic_store(&m->ballast, BALLAST_NONE);
		return;
	}
	atomic_store(&m->ballast, r == 0 ? BALLAST_WHOLE : BALLAST_GONE);
	if (r == 0 && was == BALLAST_GONE)
		log_msg(LOG_NOTICE, "meta: there is room again, new files are let in file=%s",
			m->path);
	if (r < 0 && was != BALLAST_GONE)
		log_msg(LOG_WARNING,
			"meta: the disk has less than %jd KiB left, new files are refused; to do: "
			"make room file=%s",
			(intmax_t)bytes / 1024, m->path);
	if (r < 0 && ftruncate(fd, 0) < 0) /* a part of it helps nobody */
		log_msg(LOG_WARNING, "meta: ballast not let go file=%s err=%d", m->path, errno);
}

bool meta_ballast_drop(struct meta *m)
{
	int whole = BALLAST_WHOLE;

	if (!atomic_compare_exchange_strong(&m->ballast, &whole, BALLAST_GONE))
		return false;
	AUTO_CLOSE int fd = open_ballast(m);

	log_msg(LOG_WARNING,
		"meta: the disk is full, new files are refused; to do: make room file=%s", m->path);
	if (fd < 0 || ftruncate(fd, 0) < 0)
		return false;
	meta_wake(m, true, false); /* the WAL is better copied before that room is used up, too */
	return true;
}
