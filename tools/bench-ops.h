/* SPDX-License-Identifier: Apache-2.0 */
/* bench-ops.h - the file operations that kvcachefs-bench times, each as one row of a table. */
#ifndef TOOLS_BENCH_OPS_H
#define TOOLS_BENCH_OPS_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define BENCH_MAX_OBJECT_BYTES (UINT64_C(32) << 20)

/* A directory: its parent's descriptor and its name there, so that a path to a key has as many
 * components in every target. */
struct target {
	const char *label;
	int parent_fd; /* -1: memcpy */
	char base[NAME_MAX + 1];
	bool daemon;	  /* work goes on there after the call has returned */
	uint64_t nr_keys; /* keys 0 to nr_keys - 1 that `fill` made; 0: none */
};

/* One thread's part in one target. */
struct worker {
	const struct test *test;
	const struct target *target;
	char *buf;	/* warm, as large as the largest object; borrowed */
	char *arena;	/* of memcpy: an object for every operation */
	uint64_t first; /* number of the first of this batch's names */
	uint64_t round;
	unsigned nr_ops;
	int fd; /* pread's; -1: none */
	pthread_barrier_t *barrier;
	uint64_t begin_ns;
	uint64_t end_ns;
	int err; /* negative errno; with it: */
	const char *what;
	char name[NAME_MAX + 40];
};

/* Returns 0 or a negative errno, which is in the worker too, with the call and the name. */
typedef int (*step_fn)(struct worker *w);

/* One thing to measure. Only run is timed. setup and teardown frame all rounds, before and after
 * one round; all may be NULL. */
struct test {
	const char *name;
	uint64_t size_bytes;
	unsigned nr_ops;    /* of each thread; where shared, of all together */
	unsigned nr_copies; /* objects that copy goes over; 0: one for each operation */
	bool shared;
	step_fn setup;
	step_fn before;
	step_fn run;
	step_fn after;
	step_fn teardown;
	step_fn copy; /* what memcpy does in its place; NULL: it does not take part */
};

/** test_find - the row of that name, or NULL. */
const struct test *test_find(const char *name);

/** stamp - an object's number stands at both its ends, so that a get which brings another's bytes,
 * or too few, is seen. */
void stamp(char *buf, uint64_t size_bytes, uint64_t nr);

int worker_failed(struct worker *w, const char *what, int err);
void worker_close(struct worker *w);

#endif
