/* SPDX-License-Identifier: Apache-2.0 */
/* xattrs.h - the extended attributes of a file that the metadata does not know yet, by name. Not locked. */
#ifndef CACHE_XATTRS_H
#define CACHE_XATTRS_H

#include "base/attr.h"
#include "base/list.h"

#include <stddef.h>

struct xattr {
	struct list link;
	size_t len;
	const char *value; /* behind the name */
	char name[];
};

const struct xattr *xattrs_find(const struct list *l, const char *name);
/** xattrs_set - add or replace; both are copied. -ENOMEM, -ENOSPC: too much for one file. */
int xattrs_set(struct list *l, const char *name, const void *value, size_t len) MUST_CHECK;
/** xattrs_del - -ENODATA. */
int xattrs_del(struct list *l, const char *name) MUST_CHECK;
void xattrs_clear(struct list *l);

#endif
