/* SPDX-License-Identifier: Apache-2.0 */
/* The value of a placement attribute, the first byte says which: what is refused changes nothing, what is accepted changes
 * that one value and prints as a text that means the same. */
#include "cache/placement.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static bool same(const struct placement *a, const struct placement *b)
{
	return a->pin_ttl_s == b->pin_ttl_s && memcmp(a->value, b->value, sizeof a->value) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct placement before = placement_none();
	struct placement p = before;
	struct placement again = before;
	char text[32];

	if (len == 0)
		return 0;
	enum placement_key k = data[0] % NR_PLACE;
	int r = placement_parse(&p, k, (const char *)data + 1, len - 1);

	if (r < 0) {
		if (!same(&p, &before))
			abort();
		return 0;
	}
	size_t n = placement_format(&p, k, text, sizeof text);

	if (p.value[k] == PLACE_UNSET || n == 0 || n >= sizeof text || n != strlen(text))
		abort();
	if (placement_parse(&again, k, text, n) < 0 || !same(&again, &p))
		abort();
	if (k == PLACE_PIN)
		before.pin_ttl_s = p.pin_ttl_s;
	before.value[k] = p.value[k];
	if (!same(&p, &before))
		abort();
	placement_complete(&p, &(struct placement){ 0 });
	for (int i = 0; i < NR_PLACE; i++) {
		if (p.value[i] == PLACE_UNSET)
			abort();
	}
	return 0;
}
