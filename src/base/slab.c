/* SPDX-License-Identifier: Apache-2.0 */
#include "base/slab.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The address sanitizer shall find uses after slab_free() as it does after free(). gcc says by a macro that it is there. */
#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#define HIDE(p, len) ASAN_POISON_MEMORY_REGION(p, len)
#define SHOW(p, len) ASAN_UNPOISON_MEMORY_REGION(p, len)
#else
#define HIDE(p, len) ((void)(p), (void)(len))
#define SHOW(p, len) ((void)(p), (void)(len))
#endif

/* Aligned to their size, so that an object's address tells its chunk. */
enum { CHUNK_BYTES = 64 << 10, ALIGN_BYTES = 16 };

struct free_slot {
	struct free_slot *next;
};

struct chunk {
	struct list link;
	struct free_slot *free;
	size_t nr_fresh; /* slots at the end that were never in use */
	size_t nr_used;
	size_t unused; /* keeps what follows aligned */
};

_Static_assert(sizeof(struct chunk) % ALIGN_BYTES == 0, "slots are aligned");

static size_t slots_of(const struct slab *s)
{
	return (CHUNK_BYTES - sizeof(struct chunk)) / s->size_bytes;
}

void slab_init(struct slab *s, size_t size_bytes)
{
	assert(size_bytes > 0 && size_bytes <= 4096);
	*s = (struct slab){ .size_bytes =
				    (size_bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES };
	list_init(&s->partial);
}

void slab_fini(struct slab *s)
{
	if (s->spare)
		(void)munmap(s->spare, CHUNK_BYTES);
	s->spare = NULL;
}

/* Twice as much holds an aligned chunk somewhere; what is around it goes back. */
static struct chunk *map_chunk(void)
{
	char *p = mmap(NULL, (size_t)2 * CHUNK_BYTES, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	size_t before = (CHUNK_BYTES - (uintptr_t)p % CHUNK_BYTES) % CHUNK_BYTES;

	if (before)
		(void)munmap(p, before);
	(void)munmap(p + before + CHUNK_BYTES, CHUNK_BYTES - before);
	return (struct chunk *)(void *)(p + before);
}

static struct chunk *new_chunk(struct slab *s)
{
	struct chunk *c = s->spare;

	s->spare = NULL;
	if (!c) {
		c = map_chunk();
		if (!c)
			return NULL;
		s->nr_chunks++;
	}
	*c = (struct chunk){ .nr_fresh = slots_of(s) };
	list_add_tail(&s->partial, &c->link);
	return c;
}

void *slab_alloc(struct slab *s)
{
	struct chunk *c = list_empty(&s->partial) ? new_chunk(s)
						  : list_entry(s->partial.next, struct chunk, link);

	if (!c)
		return NULL;
	void *p = c->free;

	if (p) {
		c->free = c->free->next;
	} else {
		p = (char *)(c + 1) + (slots_of(s) - c->nr_fresh) * s->size_bytes;
		c->nr_fresh--;
	}
	c->nr_used++;
	if (!c->free && c->nr_fresh == 0)
		list_del(&c->link);
	SHOW(p, s->size_bytes);
	return memset(p, 0, s->size_bytes);
}

void slab_free(struct slab *s, void *p)
{
	struct free_slot *f = p;

	if (!p)
		return;
	struct chunk *c = (struct chunk *)(void *)((char *)p - (uintptr_t)p % CHUNK_BYTES);

	if (!c->free && c->nr_fresh == 0)
		list_add_tail(&s->partial, &c->link);
	f->next = c->free;
	c->free = f;
	HIDE(f + 1, s->size_bytes - sizeof *f);
	if (--c->nr_used > 0)
		return;
	SHOW(c, CHUNK_BYTES);
	list_del(&c->link);
	/* One stays, for a count that goes up and down. */
	if (!s->spare) {
		s->spare = c;
		return;
	}
	s->nr_chunks--;
	(void)munmap(c, CHUNK_BYTES);
}
