/* SPDX-License-Identifier: Apache-2.0 */
/* cleanup.h - AUTO_CLOSE: a local file descriptor that closes itself. */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <unistd.h>

static inline void close_fdp(const int *fd)
{
	if (*fd >= 0)
		(void)close(*fd);
}

#define AUTO_CLOSE __attribute__((cleanup(close_fdp)))

#endif
