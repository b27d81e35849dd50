/* SPDX-License-Identifier: Apache-2.0 */
/* check.h - what unit tests assert with: the first failure prints its place and ends the program
 * with 1. */
#ifndef UNIT_CHECK_H
#define UNIT_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* Functions, so that the macros below add no branches to the tests' own. */
static inline void check_true(bool ok, const char *file, int line, const char *text)
{
	if (ok)
		return;
	(void)fprintf(stderr, "%s:%d: not true: %s\n", file, line, text);
	exit(1);
}

static inline void check_equal(long long a, long long b, const char *file, int line,
			       const char *text)
{
	if (a == b)
		return;
	(void)fprintf(stderr, "%s:%d: not equal: %s: %lld and %lld\n", file, line, text, a, b);
	exit(1);
}

#define CHECK(cond) check_true(!!(cond), __FILE__, __LINE__, #cond)
/* For integers; unsigned 64-bit ones are compared by their bits. */
#define CHECK_EQ(a, b) check_equal((long long)(a), (long long)(b), __FILE__, __LINE__, #a ", " #b)

#endif
