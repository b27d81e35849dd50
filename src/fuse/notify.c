/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct note {
	struct list link;
	uint64_t parent;
	size_t len;
	char name[];
};

struct fs_notifier {
	struct mutex lock;
	struct cond wake;
	struct list queue;
	bool stop;
	struct thread thread;
};

static struct note *next_note(struct fs_notifier *n)
{
	struct note *first = NULL;

	mutex_lock(&n->lock);
	while (list_empty(&n->queue) && !n->stop)
		cond_wait(&n->wake, &n->lock);
	if (!n->stop) {
		first = list_entry(n->queue.next, struct note, link);
		list_del(&first->link);
	}
	mutex_unlock(&n->lock);
	return first;
}

static void notifier_run(void *arg)
{
	struct fs_session *s = arg;

	for (struct note *n = next_note(s->notifier); n; n = next_note(s->notifier)) {
		/* ENOENT: the kernel knew nothing of it. */
		(void)fuse_lowlevel_notify_inval_entry(s->se, n->parent, n->name, n->len);
		free(n);
	}
}

int notifier_start(struct fs_session *s)
{
	struct fs_notifier *n = calloc(1, sizeof *n);

	if (!n)
		return -ENOMEM;
	mutex_init(&n->lock);
	cond_init(&n->wake);
	list_init(&n->queue);
	s->notifier = n;
	return thread_start(&n->thread, "notify", notifier_run, s);
}

void notifier_stop(struct fs_session *s)
{
	struct fs_notifier *n = s->notifier;
	struct list *at;
	struct list *tmp;

	if (!n)
		return;
	mutex_lock(&n->lock);
	n->stop = true;
	cond_signal(&n->wake);
	mutex_unlock(&n->lock);
	thread_join(&n->thread);
	list_for_each_safe (at, tmp, &n->queue)
		free(list_entry(at, struct note, link));
	cond_fini(&n->wake);
	mutex_fini(&n->lock);
	free(n);
	s->notifier = NULL;
}

void notify_inval_entry(void *arg, uint64_t parent, struct name name)
{
	struct fs_session *s = arg;
	struct fs_notifier *n = s->notifier;
	struct note *note = malloc(sizeof *note + name.len + 1);

	if (!note)
		return; /* the kernel finds out when its entry expires */
	note->parent = parent;
	note->len = name.len;
	memcpy(note->name, name.s, name.len);
	note->name[name.len] = '\0';
	mutex_lock(&n->lock);
	list_add_tail(&n->queue, &note->link);
	cond_signal(&n->wake);
	mutex_unlock(&n->lock);
}
