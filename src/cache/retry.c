/* SPDX-License-Identifier: Apache-2.0 */
/* An open that needs another node than the kernel asked for is answered with ESTALE: path_openat() in fs/namei.c then looks the
 * name up once more, from the same thread, and that lookup is answered with the right node.
 *
 * Requests from outside the daemon's pid namespace have no thread id. While a writer among them is on its way round, every such
 * lookup of the name gets a node of its own: a spare version, with the bytes of the one before. The open tells what it was
 * for: for writing, it makes the spare the version that is under construction; for reading, it reads the old bytes by it. */
#include "base/clock.h"
#include "cache/node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

enum { RETRY_MS = 1000 };

struct retry *retry_find(struct cache *c, pid_t tid)
{
	struct map_node *m = tid ? map_find(&c->retries, (uint64_t)tid) : NULL;

	return m ? map_entry(m, struct retry, by_tid) : NULL;
}

void version_unreserve(struct cache *c, struct node *v)
{
	v->nr_reserved--;
	if (v->state != NODE_PROCESSING || v->nr_write + v->nr_reserved > 0 || !v->pending)
		return;
	if (!v->opened || v->killed || (!v->new_object && !v->truncated && !v->written)) {
		version_give_up(c, v);
	} else if (!v->unpublished) { /* its last writer left while this open was on its way */
		v->unpublished = true;
		v->refs++;
		c->nr_unpublished++;
		cond_signal(&c->wake);
	}
}

void retry_drop(struct cache *c, struct retry *r)
{
	struct node *v = r->answer ? node_find(c, r->answer) : NULL;

	if (r->tid)
		map_del(&c->retries, &r->by_tid);
	list_del(&r->link);
	free(r);
	if (!v)
		return;
	version_unreserve(c, v);
	node_settle(c, v);
}

void retry_end(struct cache *c, struct caller who)
{
	struct retry *r = retry_find(c, who.tid);

	if (r)
		retry_drop(c, r);
}

void retry_answered(struct cache *c, struct caller who, const struct node *n)
{
	struct retry *r = retry_find(c, who.tid);

	if (!r)
		return;
	if (r->write && !n) { /* the way round ends here, or goes on with a create */
		retry_drop(c, r);
		return;
	}
	/* Of a reader it may not be the end: the kernel looks up what it knew, then, if that has gone, the name. */
	r->found = n ? node_id(n) : 0;
	r->missed = !n;
}

bool retry_note(struct cache *c, struct caller who, const struct node *n, int flags, bool write)
{
	struct retry *r = retry_find(c, who.tid);

	if (who.tid == 0 && !write)
		return false;
	/* A reader is sent round once: if the version that it then found is overwritten as well, its bytes are still there. A
	 * writer that comes back with the same node has not looked up a name: it opens a descriptor again (/proc/self/fd). */
	if (r && !write && !r->write && r->found == node_id(n)) {
		retry_drop(c, r);
		return false;
	}
	if (r && write && r->write && !r->answer && r->node == node_id(n)) {
		retry_drop(c, r);
		return false;
	}
	if (r)
		retry_drop(c, r);
	r = calloc(1, sizeof *r);
	if (!r)
		return false;
	r->node = node_id(n);
	r->object = n->row.id;
	r->parent = n->pending ? n->pending->parent : n->row.parent;
	r->hash = n->pending ? n->pending->hash : n->row.hash;
	r->flags = flags;
	r->write = write;
	r->deadline_ns = clock_mono_ns() + RETRY_MS * NS_PER_MS;
	r->tid = who.tid;
	if (r->tid)
		map_add(&c->retries, &r->by_tid, (uint64_t)r->tid);
	list_add_tail(&c->retry_order, &r->link);
	return true;
}

int send_round(struct cache *c, struct caller who, const struct node *n, int flags, bool write)
{
	int r = write ? meta_admits(c->meta) : 0;

	if (r < 0)
		return r;
	if (retry_note(c, who, n, flags, write))
		return -ESTALE;
	/* What others read must not change under them: a writer without a way round is refused. */
	return write ? -EBUSY : 0;
}

void retry_expire(struct cache *c, uint64_t now_ns)
{
	while (!list_empty(&c->retry_order)) {
		struct retry *r = list_entry(c->retry_order.next, struct retry, link);

		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not see that retry_drop() took freed ones out */
		if (r->deadline_ns > now_ns)
			return;
		retry_drop(c, r);
	}
}

struct retry *retry_unknown(struct cache *c, uint64_t parent, uint64_t hash, uint64_t object)
{
	for (struct list *at = c->retry_order.next; at != &c->retry_order; at = at->next) {
		struct retry *r = list_entry(at, struct retry, link);

		if (r->tid == 0 &&
		    (r->object == object || (r->parent == parent && r->hash == hash)))
			return r;
	}
	return NULL;
}

int spare_claim(struct cache *c, struct caller who, struct node *n, int flags)
{
	if (n->nr_open > 0 || !n->pending)
		return retry_note(c, who, n, flags, true) ? -ESTALE : -EBUSY;
	struct retry *r = retry_unknown(c, n->pending->parent, n->pending->hash, n->row.id);

	if (r)
		retry_drop(c, r);
	n->spare = false;
	list_del(&n->wait_link);
	if (flags & O_TRUNC) {
		node_part(c, n);
		n->truncated = true;
		n->row.size_bytes = 0;
		n->row.mtime_ns = clock_real_ns();
		n->row.ctime_ns = n->row.mtime_ns;
	}
	return 0;
}

void spares_forget(struct cache *c)
{
	mutex_lock(&c->lock);
	while (!list_empty(&c->spares)) {
		struct node *n = list_entry(c->spares.next, struct node, wait_link);

		list_del(&n->wait_link);
		if (n->pending && c->hooks.inval_entry)
			c->hooks.inval_entry(c->hooks.arg, n->pending->parent,
					     pending_name(n->pending));
	}
	mutex_unlock(&c->lock);
}
