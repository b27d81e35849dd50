/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/fs.h"

#include <errno.h>
#include <stdlib.h>

enum { FIRST_SLOTS = 256 };

struct slot {
	void *h;	    /* NULL: free */
	uint32_t users;	    /* requests under way with it */
	uint32_t used;	    /* how often the slot was given out */
	uint32_t next_free; /* index + 1 */
};

struct fs_handles {
	struct mutex lock;
	struct cond idle; /* a slot has no users any more */
	struct slot *slots;
	uint32_t nr;
	uint32_t free; /* index + 1; 0: none */
};

int handles_new(struct fs_handles **ret)
{
	struct fs_handles *t = calloc(1, sizeof *t);

	if (!t)
		return -ENOMEM;
	mutex_init(&t->lock);
	cond_init(&t->idle);
	*ret = t;
	return 0;
}

void handles_free(struct fs_handles *t, void (*fn)(void *h))
{
	if (!t)
		return;
	for (uint32_t i = 0; i < t->nr; i++) {
		if (t->slots[i].h)
			fn(t->slots[i].h);
	}
	cond_fini(&t->idle);
	mutex_fini(&t->lock);
	free(t->slots);
	free(t);
}

static bool grow(struct fs_handles *t) REQUIRES(t->lock)
{
	uint32_t nr = t->nr ? t->nr * 2 : FIRST_SLOTS;
	struct slot *slots = nr > t->nr ? reallocarray(t->slots, nr, sizeof *slots) : NULL;

	if (!slots)
		return false;
	t->slots = slots;
	for (uint32_t i = t->nr; i < nr; i++)
		t->slots[i] = (struct slot){ .next_free = i + 1 < nr ? i + 2 : 0 };
	t->free = t->nr + 1;
	t->nr = nr;
	return true;
}

uint64_t handles_add(struct fs_handles *t, void *h)
{
	uint64_t fh = 0;

	mutex_lock(&t->lock);
	if (t->free || grow(t)) {
		uint32_t i = t->free - 1;
		struct slot *s = &t->slots[i];

		t->free = s->next_free;
		s->h = h;
		s->used++;
		fh = ((uint64_t)s->used << 32) | (i + 1);
	}
	mutex_unlock(&t->lock);
	return fh;
}

static struct slot *find(struct fs_handles *t, uint64_t fh) REQUIRES(t->lock)
{
	uint32_t i = (uint32_t)fh - 1;

	if (i >= t->nr || !t->slots[i].h || t->slots[i].used != (uint32_t)(fh >> 32))
		return NULL;
	return &t->slots[i];
}

void *handles_get(struct fs_handles *t, uint64_t fh)
{
	mutex_lock(&t->lock);
	struct slot *s = find(t, fh);
	void *h = s ? s->h : NULL;

	if (s)
		s->users++;
	mutex_unlock(&t->lock);
	return h;
}

void handles_put(struct fs_handles *t, uint64_t fh)
{
	mutex_lock(&t->lock);
	struct slot *s = find(t, fh);

	if (s && --s->users == 0)
		cond_broadcast(&t->idle);
	mutex_unlock(&t->lock);
}

void *handles_del(struct fs_handles *t, uint64_t fh)
{
	mutex_lock(&t->lock);
	struct slot *s = find(t, fh);

	/* The kernel sends the release after the answers to all else, but whoever answered may not be through yet. */
	while (s && s->users > 0) {
		cond_wait(&t->idle, &t->lock);
		s = find(t, fh);
	}
	void *h = s ? s->h : NULL;

	if (s) {
		s->h = NULL;
		s->next_free = t->free;
		t->free = (uint32_t)(s - t->slots) + 1;
	}
	mutex_unlock(&t->lock);
	return h;
}
