/* SPDX-License-Identifier: Apache-2.0 */
/* failure.h - why the daemon cannot start: a text for the person who started it, and the exit code of mount(8). */
#ifndef FAILURE_H
#define FAILURE_H

#include "base/attr.h"

enum exit_code {
	EXIT_OK = 0,
	EXIT_USAGE = 1,	   /* wrong invocation or permissions */
	EXIT_SYSTEM = 2,   /* out of memory, cannot fork, … */
	EXIT_INTERNAL = 4, /* our own bug */
	EXIT_MOUNT = 32,   /* mount failure */
};

struct failure {
	enum exit_code code;
	char text[1024];
};

/** failure_set - say what failed; a longer text is cut, and what cannot be printed becomes '?'. %m is the errno of the
 * caller, which stays as it is. */
void failure_set(struct failure *f, enum exit_code code, const char *fmt, ...) PRINTF(3, 4);

/** failure_prefix - put more in front of the text: where it happened. */
void failure_prefix(struct failure *f, const char *fmt, ...) PRINTF(2, 3);

#endif
