/* SPDX-License-Identifier: Apache-2.0 */
#include "base/map.h"
#include "check.h"

#include <stdbool.h>

struct item {
	uint64_t value; /* first, so that node is not at offset 0 */
	struct map_node node;
	bool in;
};

enum { NR = 20000, ROUNDS = 200000 };

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static struct item *find_item(struct map *m, uint64_t key)
{
	struct map_node *n = map_find(m, key);

	return n ? map_entry(n, struct item, node) : NULL;
}

static void test_empty(void)
{
	struct map m;

	CHECK_EQ(map_init(&m), 0);
	CHECK(!map_find(&m, 0));
	CHECK(!map_find(&m, UINT64_MAX));
	CHECK_EQ(m.nr, 0);
	map_fini(&m);
}

static void test_grow_and_shrink(void)
{
	struct item *items = calloc(NR, sizeof *items);
	struct map m;

	CHECK(items);
	CHECK_EQ(map_init(&m), 0);
	size_t nr_slots = m.nr_slots;

	for (uint64_t i = 0; i < NR; i++) {
		items[i].value = i;
		map_add(&m, &items[i].node, i << 40);
	}
	CHECK_EQ(m.nr, NR);
	CHECK(m.nr_slots >= NR / 2);
	for (uint64_t i = 0; i < NR; i++)
		CHECK(find_item(&m, i << 40) == &items[i]);
	for (uint64_t i = 0; i < NR; i++) {
		map_del(&m, &items[i].node);
		CHECK(!find_item(&m, i << 40));
	}
	CHECK_EQ(m.nr, 0);
	CHECK_EQ(m.nr_slots, nr_slots);
	map_fini(&m);
	free(items);
}

static void test_same_key(void)
{
	struct item items[5] = { { .value = 0 } };
	struct map m;
	unsigned nr = 0;

	CHECK_EQ(map_init(&m), 0);
	for (unsigned i = 0; i < 5; i++)
		map_add(&m, &items[i].node, i == 4 ? 8 : 7);
	for (struct map_node *n = map_find(&m, 7); n; n = map_next(n)) {
		CHECK_EQ(n->key, 7);
		nr++;
	}
	CHECK_EQ(nr, 4);
	map_del(&m, &items[2].node);
	nr = 0;
	for (struct map_node *n = map_find(&m, 7); n; n = map_next(n)) {
		CHECK(n != &items[2].node);
		nr++;
	}
	CHECK_EQ(nr, 3);
	CHECK(find_item(&m, 8) == &items[4]);
	map_fini(&m);
}

static void test_against_model(void)
{
	struct item *items = calloc(NR, sizeof *items);
	uint64_t state = 88172645463325252U;
	size_t nr = 0;
	struct map m;

	CHECK(items);
	CHECK_EQ(map_init(&m), 0);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t key = next_random(&state) % NR;
		struct item *it = &items[key];

		CHECK(find_item(&m, key) == (it->in ? it : NULL));
		if (it->in)
			map_del(&m, &it->node);
		else
			map_add(&m, &it->node, key);
		it->in = !it->in;
		nr += it->in ? 1U : (size_t)-1;
		CHECK_EQ(m.nr, nr);
	}
	map_fini(&m);
	free(items);
}

int main(void)
{
	test_empty();
	test_grow_and_shrink();
	test_same_key();
	test_against_model();
	return 0;
}
