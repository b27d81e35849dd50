/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/cache.h"

#include "base/clock.h"
#include "base/log.h"
#include "cache/node.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NR_CALLERS = 1024, MMAP_THRESHOLD_BYTES = 256 << 10 };

static int init_state(struct cache *c)
{
	int r = map_init(&c->nodes);

	if (r == 0)
		r = map_init(&c->pendings);
	if (r == 0)
		r = map_init(&c->retries);
	c->policy = policy_new(c->cfg.ram_bytes);
	c->flocks = flocks_new();
	return r == 0 && (!c->policy || !c->flocks) ? -ENOMEM : r;
}

static int open_meta(struct cache *c)
{
	char path[4096];
	bool clean;
	int n = snprintf(path, sizeof path, "%s/kvcachefs.db", c->state_dir);

	if (n < 0 || (size_t)n >= sizeof path)
		return -ENAMETOOLONG;
	int r = meta_open(path, &clean, &c->meta);

	if (r == 0)
		c->seed = meta_seed(c->meta);
	if (r == 0 && !clean)
		log_msg(LOG_NOTICE, "cache: the last run did not end cleanly, recovering");
	return r;
}

static int open_memory(struct cache *c)
{
	char path[4096];
	int n = snprintf(path, sizeof path, "%s/memory", c->state_dir);
	struct memory_config cfg = {
		.dir = c->memory_dir ? c->memory_dir : path,
		.mount = c->memory_dir == NULL,
		.huge = c->huge,
		.limit_bytes = c->cfg.ram_bytes + memory_headroom(c->cfg.ram_bytes),
	};

	if (n < 0 || (size_t)n >= sizeof path)
		return -ENAMETOOLONG;
	return memory_open(&cfg, &c->memory);
}

static int load_root(struct cache *c)
{
	struct object_row row;
	struct meta_db *db;
	struct node *root = NULL;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	r = meta_object_get(db, META_ROOT, &row);
	meta_read_end(c->meta, db);
	mutex_lock(&c->lock);
	if (r == 0)
		root = node_new(c, CACHE_ROOT, &row);
	if (root)
		root->nlookup = 1; /* for ever */
	mutex_unlock(&c->lock);
	return r == 0 && !root ? -ENOMEM : r;
}

static int copy_config(struct cache *c, const struct cache_config *cfg)
{
	c->cfg = *cfg;
	c->state_dir = strdup(cfg->state_dir);
	c->huge = strdup(cfg->huge);
	c->memory_dir = cfg->memory_dir ? strdup(cfg->memory_dir) : NULL;
	return c->state_dir && c->huge && (c->memory_dir || !cfg->memory_dir) ? 0 : -ENOMEM;
}

static int start(struct cache *c, const struct cache_config *cfg)
{
	int r = copy_config(c, cfg);

	if (r == 0)
		r = init_state(c);
	if (r == 0)
		r = open_meta(c);
	if (r == 0)
		r = open_memory(c);
	if (r == 0)
		r = keeper_restore(c);
	if (r < 0)
		return r;
	c->runs = runs_new(policy_last_run(c->policy) + 1, NR_CALLERS);
	r = c->runs ? load_root(c) : -ENOMEM;
	if (r == 0)
		evict_over_budget(c, 0); /* it may be smaller than last time */
	if (r == 0)
		r = thread_start(&c->keeper, "keeper", keeper_run, c);
	return r;
}

int cache_open(const struct cache_config *cfg, struct cache **ret)
{
	/* What grows with the keys gets pages of its own, which are moved without being touched and are given back. */
	/* NOLINTNEXTLINE(concurrency-mt-unsafe): before the threads */
	(void)mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
	struct cache *c = calloc(1, sizeof *c);

	if (!c)
		return -ENOMEM;
	mutex_init(&c->lock);
	for (int i = 0; i < NR_BYTES_LOCKS; i++)
		mutex_init(&c->bytes_lock[i]);
	slab_init(&c->node_slab, sizeof(struct node));
	cond_init(&c->wake);
	cond_init(&c->settled);
	list_init(&c->retry_order);
	list_init(&c->atimes);
	list_init(&c->mapped);
	list_init(&c->spares);
	c->placement_epoch = 1;
	int r = start(c, cfg);

	if (r < 0) {
		cache_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

/* What nobody will finish any more: the kernel's references ended with the mount. */
static void drop_nodes(struct cache *c)
{
	mutex_lock(&c->lock);
	retry_expire(c, UINT64_MAX);
	for (size_t i = 0; i < c->nodes.nr_slots; i++) {
		struct map_node *m = c->nodes.slots[i];

		while (m) {
			struct node *n = map_entry(m, struct node, by_id);

			m = m->next;
			n->refs = 1;
			n->nlookup = 0;
			n->nr_open = 0;
			n->base = NULL; /* goes as well */
			version_give_up(c, n);
			n->refs = 0;
			if (S_ISREG(n->type) && n->state == NODE_ORPHAN && n->row.has_memory)
				memory_remove(c->memory, node_id(n));
			if (n->fd >= 0)
				(void)close(n->fd);
		}
	}
	for (size_t i = 0; i < c->nodes.nr_slots; i++) {
		while (c->nodes.slots[i]) {
			struct node *n = map_entry(c->nodes.slots[i], struct node, by_id);

			c->nodes.slots[i] = n->by_id.next;
			xattrs_clear(&n->xattrs);
			slab_free(&c->node_slab, n);
		}
	}
	mutex_unlock(&c->lock);
}

static struct node *find_closing(struct cache *c) REQUIRES(c->lock)
{
	for (size_t i = 0; c->nr_processing && i < c->nodes.nr_slots; i++) {
		for (struct map_node *m = c->nodes.slots[i]; m; m = m->next) {
			struct node *n = map_entry(m, struct node, by_id);

			if (n->state == NODE_PROCESSING && n->pending && n->closing_until_ns)
				return n;
		}
	}
	return NULL;
}

void cache_settle(struct cache *c)
{
	uint64_t until = clock_mono_ns() + c->cfg.publish_wait_ns;

	mutex_lock(&c->lock);
	while (find_closing(c) && clock_mono_ns() < until)
		(void)cond_wait_until(&c->settled, &c->lock, until);
	for (struct node *n = find_closing(c); n; n = find_closing(c))
		n->closing_until_ns = 0; /* flushed, but still open */
	c->ending = true;
	mutex_unlock(&c->lock);
}

/* fuse_conn_destroy() in fs/fuse/inode.c drops the releases that are still queued when the last close is directly followed by
 * umount(8). With the mount gone no file can be open: what has been flushed is whole. */
static void publish_closed(struct cache *c)
{
	for (;;) {
		mutex_lock(&c->lock);
		struct node *n = find_closing(c);

		if (n) {
			n->closing_until_ns = 0;
			n->refs++;
		}
		bool keep = n && (n->new_object || n->truncated || n->written) &&
			    list_empty(&n->wait_link);

		mutex_unlock(&c->lock);
		if (!n)
			return;
		int r = keep ? publish(c, n, &(struct publish_at){ 0 }) : 0;

		if (r < 0 && r != -EALREADY)
			log_msg(LOG_ERR, "cache: a closed file could not be published err=%d", -r);
		node_put(c, n);
	}
}

void cache_close(struct cache *c)
{
	if (!c)
		return;
	mutex_lock(&c->lock);
	c->stop = true;
	cond_signal(&c->wake);
	mutex_unlock(&c->lock);
	thread_join(&c->keeper);
	c->hooks = (struct cache_hooks){ 0 };
	if (c->runs) {
		finish_mapped(c);
		publish_closed(c);
		keeper_flush(c);
	}
	if (c->nodes.slots && c->memory)
		drop_nodes(c);
	meta_close(c->meta);
	memory_close(c->memory);
	policy_free(c->policy);
	runs_free(c->runs);
	flocks_free(c->flocks);
	map_fini(&c->nodes);
	slab_fini(&c->node_slab);
	map_fini(&c->pendings);
	map_fini(&c->retries);
	cond_fini(&c->wake);
	cond_fini(&c->settled);
	for (int i = 0; i < NR_BYTES_LOCKS; i++)
		mutex_fini(&c->bytes_lock[i]);
	mutex_fini(&c->lock);
	free(c->state_dir);
	free(c->memory_dir);
	free(c->huge);
	free(c);
}

void cache_set_hooks(struct cache *c, const struct cache_hooks *h)
{
	c->hooks = *h;
}

void cache_stats(struct cache *c, struct cache_stats *ret)
{
	mutex_lock(&c->lock);
	*ret = c->stats;
	ret->ram_bytes = c->cfg.ram_bytes;
	ret->used_bytes = memory_usage(c);
	ret->objects_in_memory = policy_count(c->policy);
	ret->ghosts = policy_ghosts(c->policy);
	ret->nodes = c->nodes.nr;
	ret->open_handles = c->nr_handles;
	ret->processing = c->nr_processing;
	mutex_unlock(&c->lock);
}
