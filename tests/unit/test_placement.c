/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: a table of texts, what directories hand down, what is refused. */
#include "cache/placement.h"
#include "check.h"

#include <errno.h>
#include <string.h>

enum { BAD = INT32_MIN };

static const struct {
	enum placement_key key;
	const char *text;
	int32_t want;	     /* BAD: refused */
	const char *printed; /* NULL: as @text */
	uint32_t ttl_s;	     /* 0: the default */
} values[] = {
	{ PLACE_REPLICA_NUM, "0", 0, NULL, 0 },
	{ PLACE_REPLICA_NUM, "16", 16, NULL, 0 },
	{ PLACE_REPLICA_NUM, "17", BAD, NULL, 0 },
	{ PLACE_REPLICA_NUM, "", BAD, NULL, 0 },
	{ PLACE_REPLICA_NUM, "01", BAD, NULL, 0 },
	{ PLACE_REPLICA_NUM, "-1", BAD, NULL, 0 },
	{ PLACE_REPLICA_NUM, "1 ", BAD, NULL, 0 },
	{ PLACE_REPLICA_NUM, "9999999999", BAD, NULL, 0 },
	{ PLACE_REPLICA_NUM, "auto", BAD, NULL, 0 },
	{ PLACE_NOF_REPLICA_NUM, "2", 2, NULL, 0 },
	{ PLACE_DFS_REPLICA_NUM, "1", 1, NULL, 0 },
	{ PLACE_DFS_REPLICA_NUM, "2", BAD, NULL, 0 },
	{ PLACE_DISK_REPLICA_NUM, "auto", DISK_AUTO, NULL, 0 },
	{ PLACE_DISK_REPLICA_NUM, "1", 1, NULL, 0 },
	{ PLACE_DISK_REPLICA_NUM, "2", BAD, NULL, 0 },
	{ PLACE_DISK_REPLICA_NUM, "aut", BAD, NULL, 0 },
	{ PLACE_EVICT, "on", 1, NULL, 0 },
	{ PLACE_EVICT, "off", 0, NULL, 0 },
	{ PLACE_EVICT, "1", BAD, NULL, 0 },
	{ PLACE_EVICT, "On", BAD, NULL, 0 },
	{ PLACE_PUBLISH, "open", 1, NULL, 0 },
	{ PLACE_PUBLISH, "close", 0, NULL, 0 },
	{ PLACE_PUBLISH, "closed", BAD, NULL, 0 },
	{ PLACE_PIN, "none", PIN_NONE, NULL, 0 },
	{ PLACE_PIN, "hard", PIN_HARD, NULL, 0 },
	{ PLACE_PIN, "soft", PIN_SOFT, "soft:1800", PIN_SOFT_DEFAULT_S },
	{ PLACE_PIN, "soft:1", PIN_SOFT, NULL, 1 },
	{ PLACE_PIN, "soft:86400", PIN_SOFT, NULL, 86400 },
	{ PLACE_PIN, "soft:86401", BAD, NULL, 0 },
	{ PLACE_PIN, "soft:0", BAD, NULL, 0 },
	{ PLACE_PIN, "soft:", BAD, NULL, 0 },
	{ PLACE_PIN, "softly", BAD, NULL, 0 },
	{ PLACE_PIN, "sof", BAD, NULL, 0 },
	{ NR_PLACE, "1", BAD, NULL, 0 },
};

static void test_values(void)
{
	for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
		struct placement p = placement_none();
		const struct placement none = p;
		const char *printed = values[i].printed ? values[i].printed : values[i].text;
		char exact[16];
		char buf[32];
		size_t len = strlen(values[i].text);

		/* Without a NUL behind it, as an attribute comes. */
		memset(exact, '1', sizeof exact);
		memcpy(exact, values[i].text, len);
		int r = placement_parse(&p, values[i].key, exact, len);

		if (values[i].want == BAD) {
			CHECK_EQ(r, -EINVAL);
			CHECK(memcmp(&p, &none, sizeof p) == 0);
			continue;
		}
		CHECK_EQ(r, 0);
		CHECK_EQ(p.value[values[i].key], values[i].want);
		if (values[i].ttl_s)
			CHECK_EQ(p.pin_ttl_s, values[i].ttl_s);
		CHECK_EQ(placement_format(&p, values[i].key, buf, sizeof buf), strlen(printed));
		CHECK(strcmp(buf, printed) == 0);
	}
}

static void test_names(void)
{
	for (int k = 0; k < NR_PLACE; k++)
		CHECK_EQ(placement_key_of(placement_name((enum placement_key)k)), k);
	CHECK_EQ(placement_key_of("replica_nums"), -1);
	CHECK_EQ(placement_key_of(""), -1);
}

static void set(struct placement *p, enum placement_key k, const char *text)
{
	CHECK_EQ(placement_parse(p, k, text, strlen(text)), 0);
}

/* The nearest directory that says something about a key decides about it, and the time of a pin goes with the pin. */
static void test_inheritance(void)
{
	struct placement top = placement_none();
	struct placement p = placement_none();
	struct placement defaults = placement_default(true);

	set(&top, PLACE_REPLICA_NUM, "2");
	set(&top, PLACE_PIN, "soft:60");
	set(&top, PLACE_EVICT, "off");
	set(&p, PLACE_REPLICA_NUM, "3");
	placement_inherit(&p, &top);
	CHECK_EQ(p.value[PLACE_REPLICA_NUM], 3);
	CHECK_EQ(p.value[PLACE_PIN], PIN_SOFT);
	CHECK_EQ(p.pin_ttl_s, 60);
	CHECK_EQ(p.value[PLACE_DISK_REPLICA_NUM], PLACE_UNSET);
	placement_complete(&p, &defaults);
	CHECK_EQ(p.value[PLACE_DISK_REPLICA_NUM], DISK_AUTO);
	CHECK_EQ(p.value[PLACE_EVICT], 0);

	p = placement_none();
	set(&p, PLACE_PIN, "soft:5");
	placement_inherit(&p, &top);
	CHECK_EQ(p.pin_ttl_s, 5);
}

/* In a publish=open directory nothing is evicted, unless it says so. */
static void test_in_place_stays(void)
{
	struct placement defaults = placement_default(true);
	struct placement p = placement_none();

	placement_complete(&p, &defaults);
	CHECK_EQ(p.value[PLACE_EVICT], 1);
	p = placement_none();
	set(&p, PLACE_PUBLISH, "open");
	placement_complete(&p, &defaults);
	CHECK_EQ(p.value[PLACE_EVICT], 0);
	p = placement_none();
	set(&p, PLACE_PUBLISH, "open");
	set(&p, PLACE_EVICT, "on");
	placement_complete(&p, &defaults);
	CHECK_EQ(p.value[PLACE_EVICT], 1);
}

static void test_some_replica_is_needed(void)
{
	struct placement p = placement_default(false);

	CHECK_EQ(placement_check(&p), 0);
	set(&p, PLACE_REPLICA_NUM, "0");
	CHECK_EQ(placement_check(&p), -EINVAL); /* auto on disk is a copy, not the original */
	set(&p, PLACE_DFS_REPLICA_NUM, "1");
	CHECK_EQ(placement_check(&p), 0);
	set(&p, PLACE_DFS_REPLICA_NUM, "0");
	set(&p, PLACE_DISK_REPLICA_NUM, "1");
	CHECK_EQ(placement_check(&p), 0);
	set(&p, PLACE_DISK_REPLICA_NUM, "0");
	CHECK_EQ(placement_check(&p), -EINVAL);
}

int main(void)
{
	test_values();
	test_names();
	test_inheritance();
	test_in_place_stays();
	test_some_replica_is_needed();
	return 0;
}
