/* SPDX-License-Identifier: Apache-2.0 */
#include "failure.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The length of the well-formed UTF-8 sequence at @s, 0 when there is none. */
static size_t utf8_len(const char *s)
{
	unsigned char c = (unsigned char)*s;
	size_t len = c < 0x80		     ? 1
		     : c >= 0xc2 && c < 0xe0 ? 2
		     : c >= 0xe0 && c < 0xf0 ? 3
		     : c >= 0xf0 && c < 0xf5 ? 4
					     : 0;

	for (size_t i = 1; i < len; i++) {
		if (((unsigned char)s[i] & 0xc0) != 0x80)
			return 0;
	}
	return len;
}

/* What a user gave is in the text: it may not steer a terminal, nor be cut inside a character. */
static void make_printable(char *s)
{
	while (*s != '\0') {
		size_t len = utf8_len(s);

		if (len == 0 || (unsigned char)*s < 0x20 || *s == 0x7f) {
			*s = '?';
			len = 1;
		}
		s += len;
	}
}

void failure_set(struct failure *f, enum exit_code code, const char *fmt, ...)
{
	int err = errno; /* callers go on to return it */
	va_list ap;

	f->code = code;
	va_start(ap, fmt);
	(void)vsnprintf(f->text, sizeof f->text, fmt, ap);
	va_end(ap);
	make_printable(f->text);
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
	make_printable(front);
	memmove(f->text + len, f->text, keep);
	memcpy(f->text, front, len);
	f->text[len + keep] = '\0';
}
