/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/placement.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const names[NR_PLACE] = {
	[PLACE_REPLICA_NUM] = "replica_num",
	[PLACE_NOF_REPLICA_NUM] = "nof_replica_num",
	[PLACE_DFS_REPLICA_NUM] = "dfs_replica_num",
	[PLACE_DISK_REPLICA_NUM] = "disk_replica_num",
	[PLACE_EVICT] = "evict",
	[PLACE_PIN] = "pin",
	[PLACE_PUBLISH] = "publish",
};

struct placement placement_none(void)
{
	struct placement p = { .pin_ttl_s = PIN_SOFT_DEFAULT_S };

	for (int k = 0; k < NR_PLACE; k++)
		p.value[k] = PLACE_UNSET;
	return p;
}

struct placement placement_default(bool evict)
{
	return (struct placement){
		.value = {
			[PLACE_REPLICA_NUM] = 1,
			[PLACE_DISK_REPLICA_NUM] = DISK_AUTO,
			[PLACE_EVICT] = evict,
		},
		.pin_ttl_s = PIN_SOFT_DEFAULT_S,
	};
}

int placement_key_of(const char *name)
{
	for (int k = 0; k < NR_PLACE; k++) {
		if (strcmp(name, names[k]) == 0)
			return k;
	}
	return -1;
}

const char *placement_name(enum placement_key k)
{
	return names[k];
}

static bool is_word(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && memcmp(text, word, len) == 0;
}

/* A decimal number of 1 to 9 digits without sign or leading zero. */
static int parse_number(const char *text, size_t len, int32_t max, int32_t *ret)
{
	int32_t v = 0;

	if (len == 0 || len > 9 || (len > 1 && text[0] == '0'))
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
		v = v * 10 + (text[i] - '0');
	}
	if (v > max)
		return -EINVAL;
	*ret = v;
	return 0;
}

static int parse_pin(struct placement *p, const char *text, size_t len)
{
	int32_t ttl = PIN_SOFT_DEFAULT_S;

	if (is_word(text, len, "none")) {
		p->value[PLACE_PIN] = PIN_NONE;
	} else if (is_word(text, len, "hard")) {
		p->value[PLACE_PIN] = PIN_HARD;
	} else if (len >= 4 && memcmp(text, "soft", 4) == 0) {
		if (len > 4 && (text[4] != ':' ||
				parse_number(text + 5, len - 5, 86400, &ttl) < 0 || ttl == 0))
			return -EINVAL;
		p->value[PLACE_PIN] = PIN_SOFT;
		p->pin_ttl_s = (uint32_t)ttl;
	} else {
		return -EINVAL;
	}
	return 0;
}

static int parse_either(int32_t *v, const char *text, size_t len, const char *zero, const char *one)
{
	if (!is_word(text, len, zero) && !is_word(text, len, one))
		return -EINVAL;
	*v = is_word(text, len, one);
	return 0;
}

int placement_parse(struct placement *p, enum placement_key k, const char *text, size_t len)
{
	switch (k) {
	case PLACE_DISK_REPLICA_NUM:
		if (is_word(text, len, "auto")) {
			p->value[k] = DISK_AUTO;
			return 0;
		}
		return parse_number(text, len, 1, &p->value[k]);
	case PLACE_DFS_REPLICA_NUM:
		return parse_number(text, len, 1, &p->value[k]);
	case PLACE_REPLICA_NUM:
	case PLACE_NOF_REPLICA_NUM:
		return parse_number(text, len, REPLICAS_MAX, &p->value[k]);
	case PLACE_EVICT:
		return parse_either(&p->value[k], text, len, "off", "on");
	case PLACE_PUBLISH:
		return parse_either(&p->value[k], text, len, "close", "open");
	case PLACE_PIN:
		return parse_pin(p, text, len);
	case NR_PLACE:
		break;
	}
	return -EINVAL;
}

size_t placement_format(const struct placement *p, enum placement_key k, char *buf, size_t cap)
{
	int32_t v = p->value[k];
	int n = 0;

	if (k == PLACE_EVICT)
		n = snprintf(buf, cap, "%s", v ? "on" : "off");
	else if (k == PLACE_PUBLISH)
		n = snprintf(buf, cap, "%s", v ? "open" : "close");
	else if (k == PLACE_PIN && v == PIN_SOFT)
		n = snprintf(buf, cap, "soft:%u", p->pin_ttl_s);
	else if (k == PLACE_PIN)
		n = snprintf(buf, cap, "%s", v == PIN_HARD ? "hard" : "none");
	else if (v == DISK_AUTO)
		n = snprintf(buf, cap, "auto");
	else
		n = snprintf(buf, cap, "%d", v);
	return n < 0 ? 0 : (size_t)n;
}

void placement_inherit(struct placement *p, const struct placement *parent)
{
	if (p->value[PLACE_PIN] == PLACE_UNSET)
		p->pin_ttl_s = parent->pin_ttl_s;
	for (int k = 0; k < NR_PLACE; k++) {
		if (p->value[k] == PLACE_UNSET)
			p->value[k] = parent->value[k];
	}
}

void placement_complete(struct placement *p, const struct placement *defaults)
{
	if (p->value[PLACE_EVICT] == PLACE_UNSET && p->value[PLACE_PUBLISH] == 1)
		p->value[PLACE_EVICT] = 0;
	placement_inherit(p, defaults);
}

int placement_check(const struct placement *p)
{
	bool some = p->value[PLACE_REPLICA_NUM] > 0 || p->value[PLACE_NOF_REPLICA_NUM] > 0 ||
		    p->value[PLACE_DFS_REPLICA_NUM] > 0 || p->value[PLACE_DISK_REPLICA_NUM] > 0;

	return some && p->value[PLACE_DFS_REPLICA_NUM] <= 1 ? 0 : -EINVAL;
}
