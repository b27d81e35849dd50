/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration file: what is refused changes nothing and names a line; what is accepted prints as a file that reads
 * back as the same. */
#include "options.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static char *printed(const struct options *o, size_t *ret_len)
{
	char *text = NULL;
	FILE *out = open_memstream(&text, ret_len);

	if (out == NULL)
		abort();
	options_print(o, out);
	if (fclose(out) != 0)
		abort();
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const struct options_env env = { .memory_bytes = UINT64_C(1) << 34, .root = true };
	struct failure f = { 0 };
	static struct options o; /* too large for the stack */
	static struct options again;
	size_t len_first;
	size_t len_second;
	char *first;
	char *second;
	int r;

	options_init(&o, &env);
	r = options_parse_text(&o, "conf", (const char *)data, len, &f);
	first = printed(&o, &len_first);
	options_init(&again, &env);
	if (r < 0 && (f.code == EXIT_OK || strncmp(f.text, "conf:", 5) != 0))
		abort();
	if (r == 0 && options_parse_text(&again, "again", first, len_first, &f) < 0)
		abort();
	second = printed(&again, &len_second);
	if (len_first != len_second || memcmp(first, second, len_first) != 0)
		abort();
	free(first);
	free(second);
	return 0;
}
