/* SPDX-License-Identifier: Apache-2.0 */
/* name.h - one component of a key: what is allowed, and the hash that orders a directory. Pure. */
#ifndef KEY_NAME_H
#define KEY_NAME_H

#include "base/attr.h"

#include <stddef.h>
#include <stdint.h>

/* The longest component that any kernel passes (FUSE_NAME_MAX of fs/fuse/fuse_i.h: PATH_MAX - 1). */
enum { NAME_MAX_BYTES = 4095 };
/* Hashes below are no name's, so that a directory's first offsets are free for "." and "..". */
enum { NAME_HASH_MIN = 16 };

/* A component: @s is not terminated by NUL. */
struct name {
	const char *s;
	size_t len;
};

/** name_check - whether @n may name an entry: 0, -EINVAL (empty, ".", "..", holds '/' or NUL), or -ENAMETOOLONG. */
int name_check(struct name n) MUST_CHECK;

/** name_hash - the place of @n among its siblings, NAME_HASH_MIN … INT64_MAX; @seed is the filesystem's own (see FORMAT.md). */
uint64_t name_hash(uint64_t seed, struct name n);

#endif
