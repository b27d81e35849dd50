/* SPDX-License-Identifier: Apache-2.0 */
/* slab.h - very many objects of one size, whose memory goes back to the system as soon as they are freed: malloc would keep
 * what lies between things that stay. Not locked. */
#ifndef BASE_SLAB_H
#define BASE_SLAB_H

#include "base/attr.h"
#include "base/list.h"

#include <stddef.h>

struct slab {
	size_t size_bytes;
	struct list partial; /* chunks with a free slot and one in use */
	void *spare;	     /* an empty chunk, or NULL */
	size_t nr_chunks;
};

/** slab_init - for objects of @size_bytes, at most 4096. */
void slab_init(struct slab *s, size_t size_bytes);
/** slab_fini - everything must be freed. */
void slab_fini(struct slab *s);
/** slab_alloc - a zeroed object, aligned as by malloc. NULL when memory is short. */
void *slab_alloc(struct slab *s) MUST_CHECK;
/** slab_free - NULL is allowed. */
void slab_free(struct slab *s, void *p);

#endif
