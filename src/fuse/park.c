/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "fuse/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct parked {
	struct list link;
	fuse_req_t req;
	uint64_t parent;
	uint64_t deadline_ns;
	bool settled;
	size_t len;
	char name[];
};

struct fs_parking {
	struct mutex lock;
	struct cond wake;
	struct list waiting;
	uint64_t seq; /* how many names have settled */
	bool stop;
	struct thread thread;
};

/* The next one to ask again, or NULL; *@ret_wake_ns is when the next one's time is up. */
static struct parked *take_due(struct fs_parking *p, uint64_t *ret_wake_ns) REQUIRES(p->lock)
{
	uint64_t now = clock_mono_ns();
	struct list *at;
	struct list *tmp;

	*ret_wake_ns = UINT64_MAX;
	list_for_each_safe (at, tmp, &p->waiting) {
		struct parked *w = list_entry(at, struct parked, link);

		if (w->settled || w->deadline_ns <= now || p->stop) {
			list_del(&w->link);
			return w;
		}
		if (w->deadline_ns < *ret_wake_ns)
			*ret_wake_ns = w->deadline_ns;
	}
	return NULL;
}

static void parking_run(void *arg)
{
	struct fs_session *s = arg;
	struct fs_parking *p = s->parking;

	mutex_lock(&p->lock);
	for (;;) {
		uint64_t wake;
		struct parked *w = take_due(p, &wake);

		if (w) {
			mutex_unlock(&p->lock);
			lookup_again(s, w->req, w->parent, (struct name){ w->name, w->len },
				     w->settled);
			free(w);
			mutex_lock(&p->lock);
		} else if (p->stop) {
			break;
		} else if (wake == UINT64_MAX) {
			cond_wait(&p->wake, &p->lock);
		} else {
			(void)cond_wait_until(&p->wake, &p->lock, wake);
		}
	}
	mutex_unlock(&p->lock);
}

int parking_start(struct fs_session *s)
{
	struct fs_parking *p = calloc(1, sizeof *p);

	if (!p)
		return -ENOMEM;
	mutex_init(&p->lock);
	cond_init(&p->wake);
	list_init(&p->waiting);
	s->parking = p;
	return thread_start(&p->thread, "park", parking_run, s);
}

void parking_stop(struct fs_session *s)
{
	struct fs_parking *p = s->parking;

	if (!p)
		return;
	mutex_lock(&p->lock);
	p->stop = true;
	cond_signal(&p->wake);
	mutex_unlock(&p->lock);
	thread_join(&p->thread);
	cond_fini(&p->wake);
	mutex_fini(&p->lock);
	free(p);
	s->parking = NULL;
}

uint64_t parking_seq(struct fs_session *s)
{
	mutex_lock(&s->parking->lock);
	uint64_t seq = s->parking->seq;

	mutex_unlock(&s->parking->lock);
	return seq;
}

void park(struct fs_session *s, fuse_req_t req, uint64_t parent, struct name name,
	  uint64_t deadline_ns, uint64_t seq)
{
	struct fs_parking *p = s->parking;
	struct parked *w = malloc(sizeof *w + name.len + 1);

	if (!w) {
		lookup_again(s, req, parent, name, false);
		return;
	}
	w->req = req;
	w->parent = parent;
	w->deadline_ns = deadline_ns;
	w->len = name.len;
	memcpy(w->name, name.s, name.len);
	w->name[name.len] = '\0';
	mutex_lock(&p->lock);
	w->settled = p->seq != seq; /* perhaps this one, since it was asked for */
	list_add_tail(&p->waiting, &w->link);
	cond_signal(&p->wake);
	mutex_unlock(&p->lock);
}

void parking_settled(void *arg, uint64_t parent, struct name name)
{
	struct fs_session *s = arg;
	struct fs_parking *p = s->parking;
	bool some = false;

	mutex_lock(&p->lock);
	p->seq++;
	for (struct list *at = p->waiting.next; at != &p->waiting; at = at->next) {
		struct parked *w = list_entry(at, struct parked, link);

		if (w->parent == parent && w->len == name.len &&
		    memcmp(w->name, name.s, name.len) == 0) {
			w->settled = true;
			some = true;
		}
	}
	if (some)
		cond_signal(&p->wake);
	mutex_unlock(&p->lock);
}
