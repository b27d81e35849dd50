/* SPDX-License-Identifier: Apache-2.0 */
/* flock(2) requests: one that must wait is kept in a list, not in a thread. */
#include "fuse/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/file.h>

struct waiting {
	struct list link;
	struct fs_session *session;
	fuse_req_t req;
	uint64_t ticket;  /* 0: not known yet */
	bool interrupted; /* before the ticket was known */
};

struct fs_locks {
	struct mutex lock;
	struct list waiting;
};

int locks_new(struct fs_locks **ret)
{
	struct fs_locks *l = calloc(1, sizeof *l);

	if (!l)
		return -ENOMEM;
	mutex_init(&l->lock);
	list_init(&l->waiting);
	*ret = l;
	return 0;
}

void locks_free(struct fs_locks *l)
{
	struct list *at;
	struct list *tmp;

	if (!l)
		return;
	list_for_each_safe (at, tmp, &l->waiting)
		free(list_entry(at, struct waiting, link));
	mutex_fini(&l->lock);
	free(l);
}

static void granted(void *arg)
{
	struct waiting *w = arg;
	struct fs_locks *l = w->session->locks;

	mutex_lock(&l->lock);
	list_del(&w->link);
	mutex_unlock(&l->lock);
	reply_err(w->req, 0);
	free(w);
}

/* The ticket has come true or been taken back exactly once: whoever does it owns @w. */
static void give_up(struct fs_session *s, struct waiting *w, uint64_t ticket)
{
	if (!cache_flock_cancel(s->cache, ticket))
		return;
	mutex_lock(&s->locks->lock);
	list_del(&w->link);
	mutex_unlock(&s->locks->lock);
	reply_err(w->req, -EINTR);
	free(w);
}

static void interrupted(fuse_req_t req, void *arg)
{
	struct fs_session *s = arg;
	struct waiting *found = NULL;
	uint64_t ticket = 0;

	mutex_lock(&s->locks->lock);
	for (struct list *at = s->locks->waiting.next; at != &s->locks->waiting; at = at->next) {
		struct waiting *w = list_entry(at, struct waiting, link);

		if (w->req == req) {
			found = w;
			ticket = w->ticket;
			w->interrupted = true;
		}
	}
	mutex_unlock(&s->locks->lock);
	if (ticket)
		give_up(s, found, ticket);
}

/* Queued as @ticket; by now it may be over already, and @w gone. */
static void set_ticket(struct fs_session *s, struct waiting *w, uint64_t ticket)
{
	bool stop = false;

	mutex_lock(&s->locks->lock);
	for (struct list *at = s->locks->waiting.next; at != &s->locks->waiting; at = at->next) {
		if (at == &w->link) {
			w->ticket = ticket;
			stop = w->interrupted;
			break;
		}
	}
	mutex_unlock(&s->locks->lock);
	if (stop)
		give_up(s, w, ticket);
}

static void lock_or_wait(struct fs_session *s, fuse_req_t req, struct handle *h, uint64_t owner,
			 int op)
{
	struct waiting *w = calloc(1, sizeof *w);
	uint64_t ticket = 0;

	if (!w) {
		reply_err(req, -ENOMEM);
		return;
	}
	w->session = s;
	w->req = req;
	mutex_lock(&s->locks->lock);
	list_add_tail(&s->locks->waiting, &w->link);
	mutex_unlock(&s->locks->lock);
	fuse_req_interrupt_func(req, interrupted, s);
	int r = cache_flock(s->cache, h, owner, op, &(struct flock_wait){ granted, w }, &ticket);

	if (r == -EWOULDBLOCK) {
		set_ticket(s, w, ticket);
		return;
	}
	mutex_lock(&s->locks->lock);
	list_del(&w->link);
	mutex_unlock(&s->locks->lock);
	free(w);
	reply_err(req, r);
}

void op_flock(fuse_req_t req, fuse_ino_t ino UNUSED, struct fuse_file_info *fi, int op)
{
	struct fs_session *s = session_of(req);
	struct handle *h = handles_get(s->handles, fi->fh);
	int what = op & ~LOCK_NB;

	if (!h)
		reply_err(req, -EBADF);
	else if (what == LOCK_UN || (op & LOCK_NB))
		reply_err(req, cache_flock(s->cache, h, fi->lock_owner, what, NULL, NULL));
	else
		lock_or_wait(s, req, h, fi->lock_owner, what);
	if (h)
		handles_put(s->handles, fi->fh);
}
