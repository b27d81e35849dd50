/* SPDX-License-Identifier: Apache-2.0 */
#include "base/slab.h"
#include "check.h"

#include <stdint.h>
#include <string.h>

enum { NR = 5000, ROUNDS = 200000 };

static unsigned char *objects[NR];

static bool all_are(const unsigned char *p, unsigned char value, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (p[i] != value)
			return false;
	return true;
}

/* Zeroed, aligned, and nobody else's. */
static unsigned char *take(struct slab *s, size_t size, unsigned char mark)
{
	unsigned char *p = slab_alloc(s);

	CHECK(p);
	CHECK_EQ((uintptr_t)p % 16, 0);
	CHECK(all_are(p, 0, size));
	memset(p, mark, size);
	return p;
}

static void test_random(size_t size)
{
	uint64_t random = 88172645463325252U;
	struct slab s;

	slab_init(&s, size);
	for (int round = 0; round < ROUNDS; round++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		size_t i = random % NR;
		unsigned char mark = (unsigned char)(i | 1);

		if (!objects[i]) {
			objects[i] = take(&s, size, mark);
			continue;
		}
		CHECK(all_are(objects[i], mark, size));
		slab_free(&s, objects[i]);
		objects[i] = NULL;
	}
	for (size_t i = 0; i < NR; i++) {
		slab_free(&s, objects[i]);
		objects[i] = NULL;
	}
	CHECK(s.nr_chunks <= 1);
	slab_fini(&s);
}

static void test_memory_is_used_again_and_given_back(void)
{
	struct slab s;

	slab_init(&s, 350);
	for (size_t i = 0; i < NR; i++)
		objects[i] = take(&s, 350, 1);
	size_t nr_chunks = s.nr_chunks;

	CHECK(nr_chunks <= NR * 352 / (60 << 10) + 1);
	for (size_t i = 0; i < NR; i += 2)
		slab_free(&s, objects[i]);
	for (size_t i = 0; i < NR; i += 2)
		objects[i] = take(&s, 350, 1);
	CHECK_EQ(s.nr_chunks, nr_chunks);
	for (size_t i = 0; i < NR; i++) {
		slab_free(&s, objects[i]);
		objects[i] = NULL;
	}
	CHECK_EQ(s.nr_chunks, 1);
	slab_fini(&s);
}

int main(void)
{
	test_random(1);
	test_random(24);
	test_random(352);
	test_random(4096);
	test_memory_is_used_again_and_given_back();
	return 0;
}
