/* SPDX-License-Identifier: Apache-2.0 */
/* list.h - intrusive doubly linked list; the head is a node of its own. Not locked. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
	struct list *next;
	struct list *prev;
};

#define list_entry(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void list_init(struct list *l)
{
	l->next = l;
	l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

/* Insert @n before @at: with a head, at the end of its list. */
static inline void list_add_tail(struct list *at, struct list *n)
{
	n->next = at;
	n->prev = at->prev;
	at->prev->next = n;
	at->prev = n;
}

/* Take @n out; afterwards it is an empty list of its own, so taking it out again does nothing. */
static inline void list_del(struct list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}

/* Take the first one out; NULL when @head is empty. */
static inline struct list *list_pop(struct list *head)
{
	struct list *n = head->next;

	if (n == head)
		return NULL;
	head->next = n->next;
	n->next->prev = head;
	list_init(n);
	return n;
}

#define list_for_each_safe(pos, tmp, head)                               \
	for ((pos) = (head)->next, (tmp) = (pos)->next; (pos) != (head); \
	     (pos) = (tmp), (tmp) = (pos)->next)

#endif
