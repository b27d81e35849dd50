/* SPDX-License-Identifier: Apache-2.0 */
#include "units.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct unit {
	const char *name;
	uint64_t factor;
};

/* Largest first: the first that divides a number without rest is the one to write it in. */
static const struct unit size_units[] = {
	{ "T", UINT64_C(1) << 40 },
	{ "G", UINT64_C(1) << 30 },
	{ "M", UINT64_C(1) << 20 },
	{ "K", UINT64_C(1) << 10 },
	{ "", 1 },
};

static const struct unit time_units[] = {
	{ "d", UINT64_C(86400000000000) },
	{ "h", UINT64_C(3600000000000) },
	{ "m", UINT64_C(60000000000) },
	{ "s", UINT64_C(1000000000) },
	{ "ms", UINT64_C(1000000) },
	{ "us", UINT64_C(1000) },
	{ "ns", 1 },
};

enum { NR_SIZE_UNITS = sizeof size_units / sizeof *size_units };
enum { NR_TIME_UNITS = sizeof time_units / sizeof *time_units };

/* Read digits at *@s and go past them. */
static int take_digits(const char **s, uint64_t *ret)
{
	uint64_t n = 0;
	const char *p = *s;

	if (*p < '0' || *p > '9')
		return -EINVAL;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(n, 10, &n) ||
		    __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
			return -ERANGE;
	}
	*s = p;
	*ret = n;
	return 0;
}

int uint_parse(const char *s, uint64_t *ret)
{
	uint64_t n;
	int r = take_digits(&s, &n);

	if (r == 0 && *s != '\0')
		r = -EINVAL;
	if (r == 0)
		*ret = n;
	return r;
}

static int size_factor(const char *s, uint64_t *ret)
{
	for (int i = 0; i < NR_SIZE_UNITS; i++) {
		size_t len = strlen(size_units[i].name);

		if (strncasecmp(s, size_units[i].name, len) != 0)
			continue;
		s += len;
		if (*s == '\0' || strcasecmp(s, "B") == 0 ||
		    (len > 0 && strcasecmp(s, "iB") == 0)) {
			*ret = size_units[i].factor;
			return 0;
		}
		break;
	}
	return -EINVAL;
}

int size_parse(const char *s, uint64_t whole_bytes, uint64_t *ret)
{
	uint64_t factor;
	uint64_t n;
	int r = take_digits(&s, &n);

	if (r < 0)
		return r;
	if (strcmp(s, "%") == 0) {
		if (n < 1 || n > 100)
			return -ERANGE;
		*ret = whole_bytes / 100 * n + whole_bytes % 100 * n / 100;
		return 0;
	}
	r = size_factor(s, &factor);
	if (r == 0 && __builtin_mul_overflow(n, factor, &n))
		r = -ERANGE;
	if (r == 0)
		*ret = n;
	return r;
}

static void unit_format(const struct unit *units, uint64_t n, char buf[UNITS_TEXT])
{
	while (units->factor > 1 && (n == 0 || n % units->factor != 0))
		units++;
	(void)snprintf(buf, UNITS_TEXT, "%" PRIu64 "%s", n / units->factor, units->name);
}

void size_format(uint64_t bytes, char buf[UNITS_TEXT])
{
	unit_format(size_units, bytes, buf);
}

/* The fraction at *@s, which stands behind a point, of @factor; what is below a nanosecond is cut off. */
static int take_fraction(const char **s, uint64_t factor, uint64_t *ret)
{
	const char *p = *s;
	uint64_t sum = 0;

	if (*p < '0' || *p > '9')
		return -EINVAL;
	for (; *p >= '0' && *p <= '9'; p++) {
		factor /= 10;
		sum += factor * (uint64_t)(*p - '0');
	}
	*s = p;
	*ret = sum;
	return 0;
}

static int time_factor(const char *s, uint64_t unit_ns, uint64_t *ret)
{
	if (*s == '\0') {
		*ret = unit_ns;
		return 0;
	}
	for (int i = 0; i < NR_TIME_UNITS; i++) {
		if (strcmp(s, time_units[i].name) == 0) {
			*ret = time_units[i].factor;
			return 0;
		}
	}
	return -EINVAL;
}

int duration_parse(const char *s, uint64_t unit_ns, uint64_t *ret)
{
	const char *fraction = NULL;
	uint64_t factor;
	uint64_t part = 0;
	uint64_t n;
	int r = take_digits(&s, &n);

	if (r < 0)
		return r;
	if (*s == '.') {
		fraction = s + 1;
		s += 1 + strspn(s + 1, "0123456789");
	}
	r = time_factor(s, unit_ns, &factor);
	if (r == 0 && fraction != NULL)
		r = take_fraction(&fraction, factor, &part);
	if (r < 0)
		return r;
	if (__builtin_mul_overflow(n, factor, &n) || __builtin_add_overflow(n, part, &n))
		return -ERANGE;
	*ret = n;
	return 0;
}

void duration_format(uint64_t ns, char buf[UNITS_TEXT])
{
	/* "0ns" reads oddly. */
	if (ns == 0)
		(void)snprintf(buf, UNITS_TEXT, "0s");
	else
		unit_format(time_units, ns, buf);
}
