/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - times file operations in several directories in turn; tools/bench sets those up and
 * reads the result.
 *
 *   kvcachefs-bench [-n ROUNDS] [-j THREADS] [-p PID]... [-m]
 *                   {-t|-d} LABEL=DIR [-k KEYS] ... TEST...
 *
 * -t a directory, -d one served by the daemon whose processes are -p, -k its number of keys (of the
 * test `fill`, which makes them and times nothing), -m memcpy. A round runs every target once,
 * beginning with another one each time, so that drift hits all alike; round 0 warms up and is
 * forgotten. One line of JSON for each target and round: ns (wall time of the threads' work by the
 * operations of one thread), settled_ns (the same, with what the daemon still did after the last
 * close), cpu_ns (the daemon's processor time for one operation). */
/* IWYU pragma: no_include <bits/getopt_core.h> */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/attr.h"
#include "base/clock.h"
#include "bench-ops.h"

#define MAX_TARGETS 8
#define MAX_THREADS 32
#define MAX_PIDS 8
#define HUGE_BYTES (UINT64_C(2) << 20)
#define PREWARM_BYTES (UINT64_C(2) << 30)

struct bench {
	struct target targets[MAX_TARGETS];
	unsigned nr_targets;
	clockid_t clocks[MAX_PIDS]; /* the daemon's processor time */
	unsigned nr_clocks;
	unsigned nr_rounds;
	unsigned nr_threads;
	char *bufs[MAX_THREADS];
	uint64_t next_name;
	struct worker workers[MAX_TARGETS][MAX_THREADS]; /* of the test that runs */
};

/* No exit(): it is not safe beside threads, and there is nothing that it would have to flush. */
static NORETURN void die(int status)
{
	_exit(status);
}

static uint64_t daemon_cpu_ns(const struct bench *b)
{
	struct timespec ts;
	uint64_t sum_ns = 0;

	for (unsigned i = 0; i < b->nr_clocks; i++)
		if (clock_gettime(b->clocks[i], &ts) == 0)
			sum_ns += (uint64_t)timespec_ns(ts);
	return sum_ns;
}

/* Waits until the daemon has used under 1 % of a processor for 20 ms, 20 s at most. Returns when it
 * was last seen busy. */
static uint64_t settle(const struct bench *b)
{
	const uint64_t window_ns = 20 * NS_PER_MS;
	const struct timespec tick = ns_timespec(NS_PER_MS / 2);
	uint64_t start_ns = clock_mono_ns();
	uint64_t quiet_since_ns = start_ns;
	uint64_t now_ns = start_ns;
	uint64_t cpu_ns = daemon_cpu_ns(b);

	while (now_ns - quiet_since_ns < window_ns && now_ns - start_ns < 20 * NS_PER_S) {
		uint64_t used_ns;

		(void)nanosleep(&tick, NULL);
		now_ns = clock_mono_ns();
		used_ns = daemon_cpu_ns(b);
		if (used_ns - cpu_ns < window_ns / 100)
			continue;
		cpu_ns = used_ns;
		quiet_since_ns = now_ns;
	}
	return quiet_since_ns;
}

/* Whole huge pages, touched. NULL when memory is short; else free(). */
static char *alloc_warm(uint64_t len_bytes)
{
	uint64_t size_bytes = (len_bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
	char *p = aligned_alloc(HUGE_BYTES, size_bytes);

	if (p == NULL)
		return NULL;
	(void)madvise(p, size_bytes, MADV_HUGEPAGE);
	memset(p, 0x5a, size_bytes);
	return p;
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	step_fn run = w->arena != NULL ? w->test->copy : w->test->run;

	(void)pthread_barrier_wait(w->barrier);
	w->begin_ns = clock_mono_ns();
	(void)run(w);
	w->end_ns = clock_mono_ns();
	return NULL;
}

static int step_all(struct worker *ws, unsigned nr, step_fn step)
{
	for (unsigned i = 0; step != NULL && i < nr; i++)
		if (ws[i].target->parent_fd >= 0 && step(&ws[i]) < 0)
			return ws[i].err;
	return 0;
}

/* All threads work at once: the wall time runs from the first's beginning to the last's end. */
static int run_threads(struct worker *ws, unsigned nr, uint64_t *ret_begin_ns, uint64_t *ret_end_ns)
{
	pthread_t ids[MAX_THREADS];
	pthread_barrier_t barrier;
	int r = 0;

	(void)pthread_barrier_init(&barrier, NULL, nr);
	for (unsigned i = 0; i < nr; i++) {
		ws[i].barrier = &barrier;
		if (i > 0 && pthread_create(&ids[i], NULL, worker_main, &ws[i]) != 0) {
			(void)fprintf(stderr, "kvcachefs-bench: cannot start a thread\n");
			die(1);
		}
	}
	(void)worker_main(&ws[0]);
	*ret_begin_ns = ws[0].begin_ns;
	*ret_end_ns = ws[0].end_ns;
	for (unsigned i = 0; i < nr; i++) {
		if (i > 0)
			(void)pthread_join(ids[i], NULL);
		*ret_begin_ns = ws[i].begin_ns < *ret_begin_ns ? ws[i].begin_ns : *ret_begin_ns;
		*ret_end_ns = ws[i].end_ns > *ret_end_ns ? ws[i].end_ns : *ret_end_ns;
		r = r == 0 ? ws[i].err : r;
	}
	(void)pthread_barrier_destroy(&barrier);
	return r;
}

static int run_batch(struct bench *b, struct worker *ws, unsigned round)
{
	const struct test *test = ws[0].test;
	const struct target *t = ws[0].target;
	uint64_t begin_ns;
	uint64_t end_ns;
	uint64_t busy_ns;
	uint64_t cpu_ns;

	for (unsigned i = 0; i < b->nr_threads; i++) {
		ws[i].round = round;
		if (test->setup == NULL) {
			ws[i].first = b->next_name;
			b->next_name += ws[i].nr_ops;
		}
	}
	if (step_all(ws, b->nr_threads, test->before) < 0)
		return -1;
	if (t->daemon)
		(void)settle(b);
	cpu_ns = daemon_cpu_ns(b);
	if (run_threads(ws, b->nr_threads, &begin_ns, &end_ns) < 0)
		return -1;
	busy_ns = t->daemon ? settle(b) : end_ns;
	cpu_ns = t->daemon ? daemon_cpu_ns(b) - cpu_ns : 0;
	if (step_all(ws, b->nr_threads, test->after) < 0)
		return -1;
	if (t->daemon && test->after != NULL)
		(void)settle(b);
	if (round == 0)
		return 0;
	(void)printf("{\"test\": \"%s\", \"threads\": %u, \"target\": \"%s\", \"round\": %u, "
		     "\"bytes\": %" PRIu64
		     ", \"ns\": %.1f, \"settled_ns\": %.1f, \"cpu_ns\": %.1f}\n",
		     test->name, b->nr_threads, t->label, round, test->size_bytes,
		     (double)(end_ns - begin_ns) / ws[0].nr_ops,
		     (double)((busy_ns > end_ns ? busy_ns : end_ns) - begin_ns) / ws[0].nr_ops,
		     (double)cpu_ns / ws[0].nr_ops / b->nr_threads);
	(void)fflush(stdout);
	return 0;
}

static int workers_init(struct bench *b, const struct test *test, const struct target *t,
			struct worker *ws)
{
	unsigned nr_ops =
		test->shared ? (test->nr_ops + b->nr_threads - 1) / b->nr_threads : test->nr_ops;
	uint64_t nr_objects = test->nr_copies > 0 ? test->nr_copies : nr_ops;

	for (unsigned i = 0; i < b->nr_threads; i++) {
		ws[i] = (struct worker){
			.test = test, .target = t, .buf = b->bufs[i], .nr_ops = nr_ops, .fd = -1
		};
		ws[i].first = b->next_name;
		b->next_name += nr_ops;
		if (t->parent_fd >= 0)
			continue;
		ws[i].arena = alloc_warm(nr_objects * test->size_bytes);
		if (ws[i].arena == NULL)
			return worker_failed(&ws[i], "allocate", -ENOMEM);
		for (uint64_t j = 0; j < nr_objects; j++)
			stamp(ws[i].arena + j * test->size_bytes, test->size_bytes, j);
	}
	return step_all(ws, b->nr_threads, test->setup);
}

static void report(const struct bench *b, const struct worker *ws)
{
	for (unsigned i = 0; i < b->nr_threads; i++) {
		if (ws[i].err == 0)
			continue;
		errno = -ws[i].err;
		(void)fprintf(stderr, "kvcachefs-bench: %s in %s: %s %s: %m\n", ws[i].test->name,
			      ws[i].target->label, ws[i].what, ws[i].name);
	}
}

static int run_test(struct bench *b, const struct test *test)
{
	struct worker(*ws)[MAX_THREADS] = b->workers;
	const struct worker *at = ws[0];
	int r = 0;

	memset(b->workers, 0, sizeof b->workers);
	for (unsigned t = 0; t < b->nr_targets && r == 0; t++) {
		at = ws[t];
		if (b->targets[t].parent_fd >= 0 || test->copy != NULL)
			r = workers_init(b, test, &b->targets[t], ws[t]);
	}
	for (unsigned i = 0; i < (b->nr_rounds + 1) * b->nr_targets && r == 0; i++) {
		unsigned round = i / b->nr_targets;
		unsigned t = (i + round) % b->nr_targets;

		at = ws[t];
		if (ws[t][0].test != NULL)
			r = run_batch(b, ws[t], round);
	}
	for (unsigned t = 0; t < b->nr_targets && r == 0; t++) {
		at = ws[t];
		if (ws[t][0].test != NULL)
			r = step_all(ws[t], b->nr_threads, test->teardown);
	}
	if (r < 0)
		report(b, at);
	for (unsigned i = 0; i < b->nr_targets * b->nr_threads; i++) {
		worker_close(&ws[i / b->nr_threads][i % b->nr_threads]);
		free(ws[i / b->nr_threads][i % b->nr_threads].arena);
	}
	return r;
}

/* Each thread makes its part of the target's keys, numbered from 0. */
static int fill(struct bench *b, const struct test *test, const struct target *t)
{
	struct worker *ws = b->workers[0];
	uint64_t begin_ns;
	uint64_t end_ns;
	int r;

	for (unsigned i = 0; i < b->nr_threads; i++) {
		uint64_t first = t->nr_keys * i / b->nr_threads;

		ws[i] = (struct worker){
			.test = test, .target = t, .buf = b->bufs[i], .first = first, .fd = -1
		};
		ws[i].nr_ops = (unsigned)(t->nr_keys * (i + 1) / b->nr_threads - first);
	}
	r = run_threads(ws, b->nr_threads, &begin_ns, &end_ns);
	if (r < 0)
		report(b, ws);
	else if (t->daemon)
		(void)settle(b);
	return r;
}

static uint64_t number(const char *text, uint64_t max)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || n == 0 || n > max) {
		(void)fprintf(stderr, "kvcachefs-bench: not a number from 1 to %" PRIu64 ": %s\n",
			      max, text);
		die(2);
	}
	return n;
}

static NORETURN void usage(const char *why, const char *arg)
{
	(void)fprintf(stderr, "kvcachefs-bench: %s: %s (see tools/bench --help)\n", why, arg);
	die(2);
}

/* The text stays in argv; its '=' and last '/' are cut out. */
static void target_add(struct bench *b, char *text, bool daemon)
{
	struct target *t = &b->targets[b->nr_targets];
	char *dir = strchr(text, '=');
	char *base = dir == NULL ? NULL : strrchr(dir, '/');

	if (b->nr_targets == MAX_TARGETS || base == NULL || base[1] == '\0' ||
	    strlen(base + 1) >= sizeof t->base)
		usage("too many directories, or not LABEL=/PARENT/NAME", text);
	*dir = '\0';
	*base = '\0';
	(void)snprintf(t->base, sizeof t->base, "%s", base + 1);
	t->label = text;
	t->daemon = daemon;
	t->parent_fd = open(dir + 1 == base ? "/" : dir + 1, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (t->parent_fd < 0) {
		(void)fprintf(stderr, "kvcachefs-bench: open %s: %m\n", dir + 1);
		die(1);
	}
	b->nr_targets++;
}

static void pid_add(struct bench *b, const char *text)
{
	pid_t pid = (pid_t)number(text, INT_MAX);

	if (b->nr_clocks == MAX_PIDS || clock_getcpuclockid(pid, &b->clocks[b->nr_clocks]) != 0)
		usage("too many processes, or no such process", text);
	b->nr_clocks++;
}

static void memcpy_add(struct bench *b)
{
	if (b->nr_targets == MAX_TARGETS)
		usage("too many directories", "-m");
	b->targets[b->nr_targets++] = (struct target){ .label = "memcpy", .parent_fd = -1 };
}

static void options_parse(struct bench *b, int argc, char **argv)
{
	int opt;

	opterr = 0;
	/* NOLINTNEXTLINE(concurrency-mt-unsafe): no thread runs yet */
	while ((opt = getopt(argc, argv, "n:j:p:t:d:k:m")) != -1) {
		if (opt == 'n')
			b->nr_rounds = (unsigned)number(optarg, 100000);
		else if (opt == 'j')
			b->nr_threads = (unsigned)number(optarg, MAX_THREADS);
		else if (opt == 'p')
			pid_add(b, optarg);
		else if (opt == 't' || opt == 'd')
			target_add(b, optarg, opt == 'd');
		else if (opt == 'k' && b->nr_targets > 0)
			b->targets[b->nr_targets - 1].nr_keys = number(optarg, UINT64_C(1) << 30);
		else if (opt == 'm')
			memcpy_add(b);
		else
			usage("wrong option", argv[optind - 1]);
	}
	for (int i = optind; i < argc; i++)
		if (test_find(argv[i]) == NULL)
			usage("no such test", argv[i]);
	if (optind == argc || b->nr_targets == 0)
		usage("no directory, or no test", argv[argc - 1]);
}

static void buffers_init(struct bench *b)
{
	char *p;

	/* The first touch of a guest's memory is many times slower than any later one: have it over
	 * with before the clock runs. */
	p = alloc_warm(PREWARM_BYTES);
	free(p);
	for (unsigned i = 0; i < b->nr_threads; i++) {
		b->bufs[i] = alloc_warm(BENCH_MAX_OBJECT_BYTES);
		if (b->bufs[i] == NULL) {
			(void)fprintf(stderr, "kvcachefs-bench: memory is short\n");
			die(1);
		}
	}
}

int main(int argc, char **argv)
{
	struct bench *b = calloc(1, sizeof *b);
	int r = 0;

	(void)prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (b == NULL)
		return 1;
	b->nr_rounds = 21;
	b->nr_threads = 1;
	/* New names in each run, above all those of `fill`. */
	b->next_name = (uint64_t)clock_real_ns();
	options_parse(b, argc, argv);
	buffers_init(b);
	for (int i = optind; i < argc && r == 0; i++) {
		const struct test *test = test_find(argv[i]);

		if (test->nr_ops > 0) {
			r = run_test(b, test);
			continue;
		}
		for (unsigned t = 0; t < b->nr_targets && r == 0; t++)
			r = fill(b, test, &b->targets[t]);
	}
	for (unsigned i = 0; i < b->nr_threads; i++)
		free(b->bufs[i]);
	free(b);
	return r == 0 ? 0 : 1;
}
