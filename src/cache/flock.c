/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/flock.h"

#include "base/list.h"
#include "base/map.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* One lock that is held or wished for. */
struct claim {
	struct list link; /* of lock.held, lock.queue or flocks.granted */
	uint64_t owner;
	uint64_t ticket;
	struct flock_wait wait;
	bool exclusive;
};

/* One object that somebody holds or waits for. */
struct lock {
	struct map_node by_object;
	struct list held;
	struct list
		queue; /* first come, first served: a waiting writer is not starved by readers */
};

struct flocks {
	struct map locks;
	struct list
		granted; /* claims whose wait is over and has not been told; the lock is in held as well */
	uint64_t next_ticket;
};

struct flocks *flocks_new(void)
{
	struct flocks *f = calloc(1, sizeof *f);

	if (f && map_init(&f->locks) < 0) {
		free(f);
		return NULL;
	}
	if (f)
		list_init(&f->granted);
	return f;
}

static void free_claims(struct list *l)
{
	for (struct list *at = list_pop(l); at; at = list_pop(l))
		free(list_entry(at, struct claim, link));
}

void flocks_free(struct flocks *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->locks.nr_slots; i++) {
		while (f->locks.slots[i]) {
			struct lock *l = map_entry(f->locks.slots[i], struct lock, by_object);

			map_del(&f->locks, &l->by_object);
			free_claims(&l->held);
			free_claims(&l->queue);
			free(l);
		}
	}
	free_claims(&f->granted);
	map_fini(&f->locks);
	free(f);
}

static struct lock *lock_of(struct flocks *f, uint64_t object)
{
	struct map_node *n = map_find(&f->locks, object);

	return n ? map_entry(n, struct lock, by_object) : NULL;
}

static bool compatible(const struct lock *l, bool exclusive)
{
	if (list_empty(&l->held))
		return true;
	return !exclusive && !list_entry(l->held.next, struct claim, link)->exclusive;
}

static void drop_if_idle(struct flocks *f, struct lock *l)
{
	if (!list_empty(&l->held) || !list_empty(&l->queue))
		return;
	map_del(&f->locks, &l->by_object);
	free(l);
}

/* Hand the lock to those at the head of the queue that may have it now. */
static void advance(struct flocks *f, struct lock *l)
{
	while (!list_empty(&l->queue)) {
		struct claim *c = list_entry(l->queue.next, struct claim, link);
		struct claim *told;

		/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not see that list_del() took freed ones out */
		if (!compatible(l, c->exclusive))
			return;
		told = malloc(sizeof *told);
		if (!told)
			return; /* tried again at the next unlock */
		*told = *c;
		list_add_tail(&f->granted, &told->link);
		list_del(&c->link);
		list_add_tail(&l->held, &c->link);
	}
}

static bool release_owner(struct lock *l, uint64_t owner)
{
	struct list *at;
	struct list *tmp;

	list_for_each_safe (at, tmp, &l->held) {
		struct claim *c = list_entry(at, struct claim, link);

		if (c->owner == owner) {
			list_del(&c->link);
			free(c);
			return true;
		}
	}
	return false;
}

int flock_lock(struct flocks *f, uint64_t object, uint64_t owner, bool exclusive,
	       const struct flock_wait *wait, uint64_t *ret_ticket)
{
	struct lock *l = lock_of(f, object);
	struct claim *c = calloc(1, sizeof *c);
	int r = 0;

	if (!c)
		return -ENOMEM;
	if (!l) {
		l = calloc(1, sizeof *l);
		if (!l) {
			free(c);
			return -ENOMEM;
		}
		list_init(&l->held);
		list_init(&l->queue);
		map_add(&f->locks, &l->by_object, object);
	}
	/* A conversion drops the old lock first and is not atomic, as flock(2) says. */
	if (release_owner(l, owner))
		advance(f, l);
	c->owner = owner;
	c->exclusive = exclusive;
	if (compatible(l, exclusive) && list_empty(&l->queue)) {
		list_add_tail(&l->held, &c->link);
	} else if (wait) {
		c->ticket = ++f->next_ticket;
		c->wait = *wait;
		*ret_ticket = c->ticket;
		list_add_tail(&l->queue, &c->link);
		r = -EWOULDBLOCK;
	} else {
		free(c);
		drop_if_idle(f, l);
		r = -EWOULDBLOCK;
	}
	return r;
}

void flock_unlock(struct flocks *f, uint64_t object, uint64_t owner)
{
	struct lock *l = lock_of(f, object);

	if (!l)
		return;
	(void)release_owner(l, owner);
	advance(f, l);
	drop_if_idle(f, l);
}

static struct claim *queued(const struct lock *l, uint64_t ticket)
{
	for (struct list *at = l->queue.next; at != &l->queue; at = at->next) {
		struct claim *c = list_entry(at, struct claim, link);

		if (c->ticket == ticket)
			return c;
	}
	return NULL;
}

/* The lock that @ticket waits for, with the claim, or NULL when it waits no more. */
static struct lock *waiting_for(const struct flocks *f, uint64_t ticket, struct claim **ret)
{
	for (size_t i = 0; i < f->locks.nr_slots; i++) {
		for (struct map_node *n = f->locks.slots[i]; n; n = n->next) {
			struct lock *l = map_entry(n, struct lock, by_object);

			*ret = queued(l, ticket);
			if (*ret)
				return l;
		}
	}
	return NULL;
}

bool flock_cancel(struct flocks *f, uint64_t ticket)
{
	struct claim *c = NULL;
	struct lock *l = waiting_for(f, ticket, &c);

	if (!l)
		return false;
	list_del(&c->link);
	free(c);
	advance(f, l);
	drop_if_idle(f, l);
	return true;
}

bool flock_granted(struct flocks *f, struct flock_wait *ret)
{
	struct list *first = list_pop(&f->granted);

	if (!first)
		return false;
	struct claim *c = list_entry(first, struct claim, link);

	*ret = c->wait;
	free(c);
	return true;
}
