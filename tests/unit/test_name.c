/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "key/name.h"

#include <errno.h>
#include <string.h>

static void test_check(void)
{
	static const struct {
		const char *s;
		size_t len;
		int want;
	} table[] = {
		{ "a", 1, 0 },
		{ "", 0, -EINVAL },
		{ ".", 1, -EINVAL },
		{ "..", 2, -EINVAL },
		{ "...", 3, 0 },
		{ ".a", 2, 0 },
		{ "..a", 3, 0 },
		{ "a.", 2, 0 },
		{ "a/b", 3, -EINVAL },
		{ "/", 1, -EINVAL },
		{ "a\0b", 3, -EINVAL },
		{ "\0", 1, -EINVAL },
		{ "\n", 1, 0 },
		{ "\xff\xfe", 2, 0 },
		{ "Qwen3-8B@cfg:0f3a@tp_rank:0", 27, 0 },
		{ "a/", 1, 0 }, /* only the first len bytes count */
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		CHECK_EQ(name_check((struct name){ table[i].s, table[i].len }), table[i].want);
}

static void test_length(void)
{
	static char s[NAME_MAX_BYTES + 1];

	memset(s, 'x', sizeof s);
	CHECK_EQ(name_check((struct name){ s, NAME_MAX_BYTES }), 0);
	CHECK_EQ(name_check((struct name){ s, NAME_MAX_BYTES + 1 }), -ENAMETOOLONG);
	s[NAME_MAX_BYTES - 1] = '/';
	CHECK_EQ(name_check((struct name){ s, NAME_MAX_BYTES }), -EINVAL);
}

static void test_hash(void)
{
	char s[32] = "";
	uint64_t seen_or = 0;
	uint64_t seen_and = UINT64_MAX;

	for (int i = 0; i < 10000; i++) {
		struct name n = { s, (size_t)snprintf(s, sizeof s, "key-%d", i) };
		uint64_t h = name_hash(7, n);

		CHECK(h >= NAME_HASH_MIN && h <= (uint64_t)INT64_MAX);
		CHECK_EQ(h, name_hash(7, n));
		CHECK(h != name_hash(8, n));
		seen_or |= h;
		seen_and &= h;
	}
	CHECK_EQ(seen_or, (uint64_t)INT64_MAX);
	CHECK_EQ(seen_and, 0);
	/* The number is stored: it must never change. */
	CHECK_EQ(name_hash(0, (struct name){ "a", 1 }), UINT64_C(0x66c632b61e964e1f));
	CHECK(name_hash(1, (struct name){ "ab", 1 }) == name_hash(1, (struct name){ "a", 1 }));
}

int main(void)
{
	test_check();
	test_length();
	test_hash();
	return 0;
}
