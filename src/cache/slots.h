/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - a compact index from 64-bit keys to the slots of an array of the owner's, whose elements begin with their key.
 * Open addressing, five to eleven bytes an element. A key is in it once. Not locked. */
#ifndef CACHE_SLOTS_H
#define CACHE_SLOTS_H

#include "base/attr.h"

#include <stddef.h>
#include <stdint.h>

enum { SLOT_NONE = -1 };

struct slots {
	int32_t *tab; /* slot, or SLOT_NONE */
	size_t mask;  /* a power of two, less one */
	size_t nr;
	size_t stride; /* bytes of an element of the owner's array */
};

/** slots_init - for an array whose elements are @stride bytes. Returns 0 or -ENOMEM. slots_fini takes a zeroed struct. */
int slots_init(struct slots *s, size_t stride) MUST_CHECK;
void slots_fini(struct slots *s);

/** slots_reserve - make room for @nr keys, or give memory back when far fewer are in. 0, or -ENOMEM: as before.
 * In this and all below, @base is the owner's array. */
int slots_reserve(struct slots *s, const void *base, size_t nr) MUST_CHECK;
/** slots_find - the slot whose element has @key, or SLOT_NONE. */
int32_t slots_find(const struct slots *s, const void *base, uint64_t key);
/** slots_put - enter element @slot; its key is in no other, and room was reserved. slots_del - take it out. */
void slots_put(struct slots *s, const void *base, int32_t slot);
void slots_del(struct slots *s, const void *base, int32_t slot);
/** slots_move - the element of slot @from is about to go to, or has just been copied to, slot @to. */
void slots_move(struct slots *s, const void *base, int32_t from, int32_t to);
/** slots_clear - take all out. */
void slots_clear(struct slots *s);

#endif
