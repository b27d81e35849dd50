/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mutex.h"

#include <assert.h>
#include <errno.h>
#include <time.h>

void mutex_init(struct mutex *m)
{
	int r = pthread_mutex_init(&m->m, NULL);

	assert(r == 0);
	(void)r;
}

void mutex_fini(struct mutex *m)
{
	(void)pthread_mutex_destroy(&m->m);
}

void mutex_lock(struct mutex *m) NO_TSA
{
	int r = pthread_mutex_lock(&m->m);

	assert(r == 0);
	(void)r;
}

void mutex_unlock(struct mutex *m) NO_TSA
{
	int r = pthread_mutex_unlock(&m->m);

	assert(r == 0);
	(void)r;
}

void cond_init(struct cond *c)
{
	pthread_condattr_t a;
	int r = pthread_condattr_init(&a);

	if (r == 0)
		r = pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	if (r == 0)
		r = pthread_cond_init(&c->c, &a);
	assert(r == 0);
	(void)pthread_condattr_destroy(&a);
}

void cond_fini(struct cond *c)
{
	(void)pthread_cond_destroy(&c->c);
}

void cond_signal(struct cond *c)
{
	(void)pthread_cond_signal(&c->c);
}

void cond_broadcast(struct cond *c)
{
	(void)pthread_cond_broadcast(&c->c);
}

void cond_wait(struct cond *c, struct mutex *m)
{
	(void)pthread_cond_wait(&c->c, &m->m);
}

bool cond_wait_until(struct cond *c, struct mutex *m, uint64_t deadline_ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(deadline_ns / 1000000000U),
		.tv_nsec = (long)(deadline_ns % 1000000000U),
	};

	return pthread_cond_timedwait(&c->c, &m->m, &ts) != ETIMEDOUT;
}
