/* SPDX-License-Identifier: Apache-2.0 */
/* lock.h - one daemon a state directory. */
#ifndef LOCK_H
#define LOCK_H

#include "base/attr.h"
#include "failure.h"
#include "options.h"

#include <stdbool.h>

/** lock_take - lock the state directory for as long as *@ret_fd is open. A daemon that is about to end is waited for
 * (10 s); one that serves a mount is named in the message. Says in @f what is wrong. Returns 0, -EBUSY or another -errno. */
int lock_take(const struct options *o, int *ret_fd, struct failure *f) MUST_CHECK;

/** lock_of_killed - whether the daemon that had @state_dir for @mountpoint was killed and has not ended yet. */
bool lock_of_killed(const char *state_dir, const char *mountpoint);

#endif
