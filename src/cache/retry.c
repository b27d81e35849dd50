/* SPDX-License-Identifier: Apache-2.0 */
/* An open that needs another node than the kernel asked for is answered with ESTALE: path_openat() in fs/namei.c then looks the
 * name up once more, from the same thread, and that lookup is answered with the right node. */
#include "base/clock.h"
#include "cache/node.h"

#include <stdlib.h>

enum { RETRY_MS = 1000 };

struct retry *retry_find(struct cache *c, pid_t tid)
{
	struct map_node *m = tid ? map_find(&c->retries, (uint64_t)tid) : NULL;

	return m ? map_entry(m, struct retry, by_tid) : NULL;
}

void retry_drop(struct cache *c, struct retry *r)
{
	struct node *v = r->answer ? node_find(c, r->answer) : NULL;

	map_del(&c->retries, &r->by_tid);
	list_del(&r->link);
	free(r);
	if (!v)
		return;
	/* The open that the version was made for never came. */
	if (v->state == NODE_PROCESSING && v->nr_write == 0 && v->pending)
		version_give_up(c, v);
	node_settle(c, v);
}

bool retry_note(struct cache *c, struct caller who, struct node *n, int flags, bool write)
{
	struct retry *r = retry_find(c, who.tid);

	if (who.tid == 0)
		return false;
	if (r && r->node == node_id(n) && r->write == write && !r->answer) {
		retry_drop(c, r);
		return false;
	}
	if (r)
		retry_drop(c, r);
	r = calloc(1, sizeof *r);
	if (!r)
		return false;
	r->object = n->row.id;
	r->node = node_id(n);
	r->flags = flags;
	r->write = write;
	r->deadline_ns = clock_mono_ns() + RETRY_MS * NS_PER_MS;
	map_add(&c->retries, &r->by_tid, (uint64_t)who.tid);
	list_add_tail(&c->retry_order, &r->link);
	return true;
}

void retry_expire(struct cache *c, uint64_t now_ns)
{
	while (!list_empty(&c->retry_order)) {
		struct retry *r = list_entry(c->retry_order.next, struct retry, link);

		if (r->deadline_ns > now_ns)
			return;
		retry_drop(c, r);
	}
}
