/* SPDX-License-Identifier: Apache-2.0 */
#include "key/name.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

int name_check(struct name n)
{
	if (n.len > NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	if (n.len == 0 || memchr(n.s, '/', n.len) || memchr(n.s, '\0', n.len))
		return -EINVAL;
	if (n.s[0] == '.' && (n.len == 1 || (n.len == 2 && n.s[1] == '.')))
		return -EINVAL;
	return 0;
}

uint64_t name_hash(uint64_t seed, struct name n)
{
	/* A directory's offsets are made of these numbers, and off_t is signed. */
	uint64_t h = XXH3_64bits_withSeed(n.s, n.len, seed) & (uint64_t)INT64_MAX;

	return h < NAME_HASH_MIN ? h + NAME_HASH_MIN : h;
}
