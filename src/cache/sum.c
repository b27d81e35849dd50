/* SPDX-License-Identifier: Apache-2.0 */
/* A version's checksum: computed when somebody first asks, again only when the file changed since. */
#include "base/cleanup.h"
#include "base/clock.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

enum { SUM_CHUNK = 1 << 20 };

static int sum_file(int fd, uint64_t *ret)
{
	XXH3_state_t *st = XXH3_createState();
	char *buf = malloc(SUM_CHUNK);
	ssize_t got = st && buf ? 1 : -1;
	off_t off = 0;

	if (got > 0)
		(void)XXH3_64bits_reset(st);
	while (got > 0) {
		got = pread(fd, buf, SUM_CHUNK, off);
		if (got > 0) {
			(void)XXH3_64bits_update(st, buf, (size_t)got);
			off += got;
		}
	}
	if (got == 0)
		*ret = XXH3_64bits_digest(st);
	(void)XXH3_freeState(st);
	free(buf);
	return got < 0 ? -EIO : 0;
}

int node_sum(struct cache *c, struct node *n)
{
	AUTO_CLOSE int fd = -1;
	struct stat st;
	uint64_t sum;
	int r = memory_get(c->memory, node_id(n), O_RDONLY, &fd);

	mutex_lock(&c->lock);
	bool complete = n->state == NODE_COMPLETE;

	mutex_unlock(&c->lock);
	if (!complete || r == -ENOENT)
		return -ENODATA;
	if (r == 0 && fstat(fd, &st) < 0)
		r = -errno;
	if (r != 0)
		return r;
	mutex_lock(&c->lock);
	bool known = n->sum_known && n->sum_mtime_ns == timespec_ns(st.st_mtim);

	mutex_unlock(&c->lock);
	if (known)
		return 0;
	r = sum_file(fd, &sum);
	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	n->sum = sum;
	n->sum_known = true;
	n->sum_mtime_ns = timespec_ns(st.st_mtim);
	mutex_unlock(&c->lock);
	return 0;
}
