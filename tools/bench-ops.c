/* SPDX-License-Identifier: Apache-2.0 */
#include "bench-ops.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define PAGE_BYTES (4 * KIB)

static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* Names look like the block hashes of an engine, so they come in no order. */
static const char *name_set(struct worker *w, uint64_t nr)
{
	(void)snprintf(w->name, sizeof w->name, "%s/%016" PRIx64 "%016" PRIx64, w->target->base,
		       mix(nr), mix(~nr));
	return w->name;
}

int worker_failed(struct worker *w, const char *what, int err)
{
	w->what = what;
	w->err = err;
	return err;
}

void worker_close(struct worker *w)
{
	if (w->fd >= 0)
		(void)close(w->fd);
	w->fd = -1;
}

/* ---- the operations ---- */

static int write_all(int fd, const char *buf, uint64_t len_bytes)
{
	while (len_bytes > 0) {
		ssize_t n = write(fd, buf, len_bytes);

		if (n < 0)
			return -errno;
		buf += n;
		len_bytes -= (uint64_t)n;
	}
	return 0;
}

void stamp(char *buf, uint64_t size_bytes, uint64_t nr)
{
	memcpy(buf, &nr, sizeof nr);
	memcpy(buf + size_bytes - sizeof nr, &nr, sizeof nr);
}

static bool stamp_is(const char *buf, uint64_t size_bytes, uint64_t nr)
{
	return memcmp(buf, &nr, sizeof nr) == 0 &&
	       memcmp(buf + size_bytes - sizeof nr, &nr, sizeof nr) == 0;
}

static int put(struct worker *w, uint64_t nr, uint64_t size_bytes)
{
	int fd = openat(w->target->parent_fd, name_set(w, nr),
			O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	int r;

	if (fd < 0)
		return worker_failed(w, "create", -errno);
	if (size_bytes > 0)
		stamp(w->buf, size_bytes, nr);
	r = write_all(fd, w->buf, size_bytes);
	if (close(fd) < 0 && r == 0)
		r = -errno;
	return r < 0 ? worker_failed(w, "write", r) : 0;
}

static int get(struct worker *w, uint64_t nr, uint64_t size_bytes)
{
	uint64_t off = 0;
	ssize_t n = 1;
	int fd = openat(w->target->parent_fd, name_set(w, nr), O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return worker_failed(w, "open", -errno);
	while (off < size_bytes && n > 0) {
		n = read(fd, w->buf + off, size_bytes - off);
		off += n > 0 ? (uint64_t)n : 0;
	}
	if (n < 0) {
		int r = -errno;

		(void)close(fd);
		return worker_failed(w, "read", r);
	}
	(void)close(fd);
	if (off < size_bytes || !stamp_is(w->buf, size_bytes, nr))
		return worker_failed(w, "read (short, or not the bytes written)", -EIO);
	return 0;
}

static int stat_name(struct worker *w, int want)
{
	struct stat st;
	int r = fstatat(w->target->parent_fd, w->name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;

	return r == want ? 0
			 : worker_failed(w, want == 0 ? "stat" : "stat (is there, must not be)", r);
}

static int put_all(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++)
		if (put(w, w->first + i, w->test->size_bytes) < 0)
			return w->err;
	return 0;
}

static int get_all(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++)
		if (get(w, w->first + i, w->test->size_bytes) < 0)
			return w->err;
	return 0;
}

static int unlink_all(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++)
		if (unlinkat(w->target->parent_fd, name_set(w, w->first + i), 0) < 0)
			return worker_failed(w, "unlink", -errno);
	return 0;
}

static int unlink_one(struct worker *w)
{
	worker_close(w);
	if (unlinkat(w->target->parent_fd, name_set(w, w->first), 0) < 0)
		return worker_failed(w, "unlink", -errno);
	return 0;
}

static int put_one(struct worker *w)
{
	return put(w, w->first, w->test->size_bytes);
}

static int open_one(struct worker *w)
{
	if (put_one(w) < 0)
		return w->err;
	w->fd = openat(w->target->parent_fd, w->name, O_RDONLY | O_CLOEXEC);
	return w->fd < 0 ? worker_failed(w, "open", -errno) : 0;
}

static uint64_t random_page(const struct worker *w, unsigned i)
{
	return mix(w->round + i) % (w->test->size_bytes / PAGE_BYTES) * PAGE_BYTES;
}

static int pread_all(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++) {
		ssize_t n = pread(w->fd, w->buf, PAGE_BYTES, (off_t)random_page(w, i));

		if (n != (ssize_t)PAGE_BYTES)
			return worker_failed(w, "pread", n < 0 ? -errno : -EIO);
	}
	return 0;
}

static int stat_again(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++)
		if (stat_name(w, 0) < 0)
			return w->err;
	return 0;
}

static int miss_once(struct worker *w)
{
	(void)name_set(w, w->first);
	return stat_name(w, -ENOENT);
}

static int miss_again(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++)
		if (stat_name(w, -ENOENT) < 0)
			return w->err;
	return 0;
}

/* A miss answered from a cache must end the moment that the name appears. */
static int miss_ends(struct worker *w)
{
	if (put(w, w->first, 0) < 0 || stat_name(w, 0) < 0)
		return w->err;
	return unlink_one(w);
}

/* As many different keys in every directory, spread over all of it, others in each round. */
static int stat_keys(struct worker *w)
{
	uint64_t nr_keys = w->target->nr_keys;

	for (unsigned i = 0; i < w->nr_ops; i++) {
		(void)name_set(w, (i * nr_keys / w->nr_ops + w->round * 7919) % nr_keys);
		if (stat_name(w, 0) < 0)
			return w->err;
	}
	return 0;
}

static int drop_caches(struct worker *w)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
	int r = fd < 0 ? -errno : write_all(fd, "2\n", 2);

	if (fd >= 0)
		(void)close(fd);
	return r < 0 ? worker_failed(w, "write 2 to /proc/sys/vm/drop_caches", r) : 0;
}

/* ---- memcpy in their place, over as many bytes ---- */

static int copy_put(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++) {
		stamp(w->buf, w->test->size_bytes, i);
		memcpy(w->arena + i * w->test->size_bytes, w->buf, w->test->size_bytes);
	}
	return 0;
}

static int copy_get(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++) {
		memcpy(w->buf, w->arena + i * w->test->size_bytes, w->test->size_bytes);
		if (!stamp_is(w->buf, w->test->size_bytes, i))
			return worker_failed(w, "memcpy", -EIO);
	}
	return 0;
}

static int copy_pread(struct worker *w)
{
	for (unsigned i = 0; i < w->nr_ops; i++) {
		memcpy(w->buf, w->arena + random_page(w, i), PAGE_BYTES);
		__asm__ volatile("" ::"r"(w->buf) : "memory");
	}
	return 0;
}

#define SIZE_S (64 * KIB)
#define SIZE_M (9 * MIB / 4)
#define SIZE_L (32 * MIB)
#define PUT(n, size, ops, all)                                                        \
	{                                                                             \
		n, size, ops, 0, all, NULL, NULL, put_all, unlink_all, NULL, copy_put \
	}
#define GET(n, size, ops)                                                                  \
	{                                                                                  \
		n, size, ops, 0, false, put_all, NULL, get_all, NULL, unlink_all, copy_get \
	}

static const struct test tests[] = {
	PUT("put-64k", SIZE_S, 64, false),
	PUT("put-2.25m", SIZE_M, 12, false),
	PUT("put-32m", SIZE_L, 3, false),
	PUT("put-64k-steady", SIZE_S, 512, true),
	PUT("put-2.25m-steady", SIZE_M, 128, true),
	PUT("put-32m-steady", SIZE_L, 12, true),
	GET("get-64k", SIZE_S, 64),
	GET("get-2.25m", SIZE_M, 12),
	GET("get-32m", SIZE_L, 3),
	{ "pread-4k", SIZE_M, 1500, 1, false, open_one, NULL, pread_all, NULL, unlink_one,
	  copy_pread },
	{ "stat-hit", SIZE_S, 1500, 0, false, put_one, stat_again, stat_again, NULL, unlink_one,
	  NULL },
	{ "stat-miss", 0, 1500, 0, false, NULL, miss_once, miss_again, NULL, miss_ends, NULL },
	{ "create", 0, 250, 0, false, NULL, NULL, put_all, unlink_all, NULL, NULL },
	{ "unlink", 0, 250, 0, false, NULL, put_all, unlink_all, NULL, NULL, NULL },
	{ "fill", 0, 0, 0, false, NULL, NULL, put_all, NULL, NULL, NULL },
	{ "keys-stat-cached", 0, 1000, 0, false, NULL, stat_keys, stat_keys, NULL, NULL, NULL },
	{ "keys-stat-uncached", 0, 1000, 0, false, NULL, drop_caches, stat_keys, NULL, NULL, NULL },
	{ "keys-create", 0, 250, 0, false, NULL, NULL, put_all, unlink_all, NULL, NULL },
	{ "keys-unlink", 0, 250, 0, false, NULL, put_all, unlink_all, NULL, NULL, NULL },
};

const struct test *test_find(const char *name)
{
	for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
		if (strcmp(tests[i].name, name) == 0)
			return &tests[i];
	return NULL;
}
