/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/xattrs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20 };

static struct xattr *find(const struct list *l, const char *name)
{
	for (struct list *at = l->next; at != l; at = at->next) {
		struct xattr *x = list_entry(at, struct xattr, link);

		if (strcmp(x->name, name) == 0)
			return x;
	}
	return NULL;
}

const struct xattr *xattrs_find(const struct list *l, const char *name)
{
	return find(l, name);
}

static size_t bytes_of(const struct list *l)
{
	size_t sum = 0;

	for (struct list *at = l->next; at != l; at = at->next) {
		const struct xattr *x = list_entry(at, struct xattr, link);

		sum += sizeof *x + strlen(x->name) + x->len;
	}
	return sum;
}

static void drop(struct xattr *x)
{
	list_del(&x->link);
	free(x);
}

int xattrs_set(struct list *l, const char *name, const void *value, size_t len)
{
	struct xattr *old = find(l, name);
	size_t name_len = strlen(name) + 1;

	if (len > MAX_BYTES || bytes_of(l) + len > MAX_BYTES)
		return -ENOSPC;
	struct xattr *x = malloc(sizeof *x + name_len + len);

	if (!x)
		return -ENOMEM;
	memcpy(x->name, name, name_len);
	if (len > 0)
		memcpy(x->name + name_len, value, len);
	x->value = x->name + name_len;
	x->len = len;
	list_add_tail(l, &x->link);
	if (old)
		drop(old);
	return 0;
}

int xattrs_del(struct list *l, const char *name)
{
	struct xattr *x = find(l, name);

	if (!x)
		return -ENODATA;
	drop(x);
	return 0;
}

void xattrs_clear(struct list *l)
{
	for (struct list *at = list_pop(l); at; at = list_pop(l))
		free(list_entry(at, struct xattr, link));
}
