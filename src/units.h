/* SPDX-License-Identifier: Apache-2.0 */
/* units.h - sizes and durations as people write them. Pure. What format writes, parse reads back as the same number. */
#ifndef UNITS_H
#define UNITS_H

#include "base/attr.h"

#include <stddef.h>
#include <stdint.h>

/* Room for the longest text that the functions below write. */
enum { UNITS_TEXT = 32 };

/** uint_parse - decimal digits and nothing else. -EINVAL, -ERANGE. */
int uint_parse(const char *s, uint64_t *ret) MUST_CHECK;

/** size_parse - bytes: digits and one of K, M, G, T (powers of 1024; "iB" or "B" may follow), or N% (1 to 100) of
 * @whole_bytes. -EINVAL, -ERANGE. */
int size_parse(const char *s, uint64_t whole_bytes, uint64_t *ret) MUST_CHECK;
void size_format(uint64_t bytes, char buf[UNITS_TEXT]);

/** duration_parse - nanoseconds: digits, perhaps with a decimal fraction, and ns, us, ms, s, m, h or d; without a unit
 * it counts in @unit_ns. -EINVAL, -ERANGE. */
int duration_parse(const char *s, uint64_t unit_ns, uint64_t *ret) MUST_CHECK;
void duration_format(uint64_t ns, char buf[UNITS_TEXT]);

#endif
