/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>
#include <stdio.h>

const int crash_signals[NR_CRASH_SIGNALS] = { SIGABRT, SIGBUS,	SIGFPE, SIGILL,
					      SIGQUIT, SIGSEGV, SIGSYS, SIGTRAP };

static void *thread_main(void *arg)
{
	struct thread *t = arg;

	(void)pthread_setname_np(pthread_self(), t->name);
	t->fn(t->arg);
	return NULL;
}

int thread_start(struct thread *t, const char *name, void (*fn)(void *arg), void *arg)
{
	sigset_t blocked;
	sigset_t old;

	t->fn = fn;
	t->arg = arg;
	(void)snprintf(t->name, sizeof t->name, "%s", name);
	(void)sigfillset(&blocked);
	for (size_t i = 0; i < NR_CRASH_SIGNALS; i++)
		(void)sigdelset(&blocked, crash_signals[i]);
	(void)pthread_sigmask(SIG_SETMASK, &blocked, &old);
	int r = pthread_create(&t->id, NULL, thread_main, t);

	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		t->running = true;
	return -r;
}

void thread_join(struct thread *t)
{
	if (!t->running)
		return;
	(void)pthread_join(t->id, NULL);
	t->running = false;
}
