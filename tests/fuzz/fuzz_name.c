/* SPDX-License-Identifier: Apache-2.0 */
/* A component of a key: what is accepted holds no byte that would end it elsewhere, and its hash depends on its bytes alone
 * and stays in the range of directory cookies. */
#include "key/name.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct name n = { (const char *)data, len };
	uint64_t h;
	char *copy;

	if (name_check(n) < 0)
		return 0;
	if (len == 0 || len > NAME_MAX_BYTES || memchr(data, '/', len) != NULL ||
	    memchr(data, '\0', len) != NULL || (len == 1 && data[0] == '.') ||
	    (len == 2 && data[0] == '.' && data[1] == '.'))
		abort();
	/* Another place, another alignment: the same hash. */
	copy = malloc(len + 1);
	if (copy == NULL)
		return 0;
	memcpy(copy + 1, data, len);
	h = name_hash(len, n);
	if (h == 0 || h > INT64_MAX || h != name_hash(len, (struct name){ copy + 1, len }))
		abort();
	free(copy);
	return 0;
}
