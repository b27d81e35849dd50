/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_inode_uncached_io_start() in fs/fuse/iomode.c: an open in passthrough of a node that has other passthrough opens must
 * name the same backing id, or fails with EBUSY. */
#include "fuse/fs.h"

#include "base/cleanup.h"

#include <errno.h>
#include <stdlib.h>

struct backing {
	struct map_node by_node;
	int id;
	unsigned refs;
};

struct fs_backings {
	struct mutex lock;
	struct map map;
};

int backings_new(struct fs_backings **ret)
{
	struct fs_backings *t = calloc(1, sizeof *t);

	if (!t || map_init(&t->map) < 0) {
		free(t);
		return -ENOMEM;
	}
	mutex_init(&t->lock);
	*ret = t;
	return 0;
}

void backings_free(struct fs_backings *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->map.nr_slots; i++) {
		while (t->map.slots[i]) {
			struct backing *b = map_entry(t->map.slots[i], struct backing, by_node);

			map_del(&t->map, &b->by_node);
			free(b);
		}
	}
	map_fini(&t->map);
	mutex_fini(&t->lock);
	free(t);
}

#if HAVE_FUSE_PASSTHROUGH
static int add(struct fs_backings *t, fuse_req_t req, uint64_t node, int fd) REQUIRES(t->lock)
{
	struct backing *b = calloc(1, sizeof *b);

	if (!b)
		return -ENOMEM;
	errno = EOPNOTSUPP;
	b->id = fuse_passthrough_open(req, fd);
	if (b->id <= 0) {
		int r = -errno;

		free(b);
		return r;
	}
	b->refs = 1;
	map_add(&t->map, &b->by_node, node);
	return b->id;
}

int backing_get(struct fs_session *s, fuse_req_t req, const struct handle *h)
{
	struct fs_backings *t = s->backings;
	uint64_t node = handle_node(h);
	AUTO_CLOSE int fd = -1;
	int id;

	mutex_lock(&t->lock);
	struct map_node *m = map_find(&t->map, node);

	if (m) {
		struct backing *b = map_entry(m, struct backing, by_node);

		b->refs++;
		id = b->id;
	} else {
		id = handle_share(s->cache, h, &fd);
		if (id == 0)
			id = add(t, req, node, fd);
	}
	mutex_unlock(&t->lock);
	return id;
}

void backing_put(struct fs_backings *t, fuse_req_t req, uint64_t node)
{
	mutex_lock(&t->lock);
	struct map_node *m = map_find(&t->map, node);
	struct backing *b = m ? map_entry(m, struct backing, by_node) : NULL;

	if (b && --b->refs == 0) {
		(void)fuse_passthrough_close(req, b->id);
		map_del(&t->map, &b->by_node);
		free(b);
	}
	mutex_unlock(&t->lock);
}
#else
int backing_get(struct fs_session *s UNUSED, fuse_req_t req UNUSED, const struct handle *h UNUSED)
{
	return -EOPNOTSUPP;
}

void backing_put(struct fs_backings *t UNUSED, fuse_req_t req UNUSED, uint64_t node UNUSED)
{
}
#endif
