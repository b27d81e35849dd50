/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a version's construction, once nobody has it open for writing any more. */
#include "base/cleanup.h"
#include "base/log.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <unistd.h>

/* In passthrough a mapping pins the memory tier's file and not the kernel's open file, so the release comes although stores go
 * on. Our own descriptors must not count as writers: what the kernel has registered was opened read-only (handle_share), and
 * the node's, which other handles of the process may still read, is exchanged for such a one. */
static bool still_mapped(struct cache *c, struct node *n)
{
	AUTO_CLOSE int fd = -1;

	mutex_lock(&c->lock);
	bool may_be = n->mappable && n->state == NODE_PROCESSING;

	mutex_unlock(&c->lock);
	if (!may_be || memory_get(c->memory, node_id(n), O_RDONLY, &fd) < 0)
		return false;
	mutex_lock(&c->lock);
	if (n->fd >= 0)
		(void)dup3(fd, n->fd, O_CLOEXEC);
	mutex_unlock(&c->lock);
	bool yes = memory_has_writers(fd);

	/* The kernel drops its own file of a closed descriptor just after it has sent the release. */
	for (unsigned tries = 0; yes && tries < 64; tries++) {
		(void)sched_yield();
		yes = memory_has_writers(fd);
	}
	return yes;
}

/* Nothing tells when the last mapping goes: the keeper looks again. */
static void wait_for_mapping(struct cache *c, struct node *n) REQUIRES(c->lock)
{
	n->refs++;
	list_add_tail(&c->mapped, &n->wait_link);
	cond_signal(&c->wake);
}

static void not_published(struct cache *c, struct node *n, int r) REQUIRES(c->lock)
{
	if (r == -ENOSPC || r == -EIO) { /* nothing is lost: the keeper tries again */
		log_msg(LOG_ERR, "cache: cannot publish, will try again gen=%" PRIu64 " err=%d",
			node_id(n), -r);
		n->closing_until_ns = 0;
		if (!n->unpublished) {
			n->unpublished = true;
			n->refs++;
			c->nr_unpublished++;
		}
		cond_signal(&c->wake);
	} else {
		log_msg(LOG_INFO,
			"cache: not published: too large, or its name taken or gone gen=%" PRIu64
			" err=%d",
			node_id(n), -r);
		version_give_up(c, n);
	}
}

void finish_version(struct cache *c, struct node *n)
{
	mutex_lock(&c->lock);
	bool drop = n->killed || (!n->new_object && !n->truncated && !n->written);

	if (n->killed)
		c->stats.killed++;
	if (drop)
		version_give_up(c, n);
	mutex_unlock(&c->lock);
	if (drop)
		return;
	bool mapped = still_mapped(c, n);
	int r = mapped ? 0 : publish(c, n, &(struct publish_at){ 0 });

	mutex_lock(&c->lock);
	if (mapped)
		wait_for_mapping(c, n);
	else if (r < 0 && r != -EALREADY)
		not_published(c, n, r);
	mutex_unlock(&c->lock);
}

void finish_mapped(struct cache *c)
{
	unsigned nr = 0;

	mutex_lock(&c->lock);
	for (struct list *at = c->mapped.next; at != &c->mapped; at = at->next)
		nr++;
	for (; nr > 0; nr--) { /* those that still are go to the end */
		struct node *n = list_entry(c->mapped.next, struct node, wait_link);

		list_del(&n->wait_link);
		mutex_unlock(&c->lock);
		finish_version(c, n);
		node_put(c, n);
		mutex_lock(&c->lock);
	}
	mutex_unlock(&c->lock);
}
