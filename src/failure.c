/* SPDX-License-Identifier: Apache-2.0 */
#include "failure.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void failure_set(struct failure *f, enum exit_code code, const char *fmt, ...)
{
	int err = errno; /* callers go on to return it */
	va_list ap;

	f->code = code;
	va_start(ap, fmt);
	(void)vsnprintf(f->text, sizeof f->text, fmt, ap);
	va_end(ap);
	errno = err;
}

void failure_prefix(struct failure *f, const char *fmt, ...)
{
	char front[sizeof f->text];
	size_t len;
	size_t keep;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(front, sizeof front, fmt, ap);
	va_end(ap);
	len = strlen(front);
	keep = strnlen(f->text, sizeof f->text - 1 - len);
	memmove(f->text + len, f->text, keep);
	memcpy(f->text, front, len);
	f->text[len + keep] = '\0';
}
