/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of small cases, the exact figures of three prompts, and a random walk beside a model that looks at everything.
 * test_policy TRACE BLOCKS: the prefix hit rate of a trace (one request a line, block numbers, as tools/trace-gen --plain
 * writes), where no lookup, cache or pause blurs what is a run; tools/trace-replay model must say the same. */
#include "cache/policy.h"
#include "check.h"

#include <errno.h>
#include <string.h>

static const uint64_t s_ns = 1000000000;

/* ---- tables ---- */

enum op {
	END,
	INS,
	SETTLE,
	TOUCH,
	BUSY,
	IDLE,
	PIN,
	UNPIN,
	GRACE,
	EVICT,
	DROP,
	NAME,
	VICTIM,
	NO_VICTIM
};

struct step {
	enum op op;
	uint64_t id;
	uint64_t a; /* INS, TOUCH: run; SETTLE: bytes; GRACE, VICTIM: seconds; NAME: the name */
	uint64_t b; /* INS, TOUCH: depth; VICTIM: the exception */
};

enum { STEPS_MAX = 24 };

/* Capacity 10, of which 3 for protected. INS and SETTLE come apart; the name is the id. */
static const struct {
	const char *what;
	struct step steps[STEPS_MAX];
} cases[] = {
	{ "nothing inside", { { NO_VICTIM, 0, 0, 0 } } },
	{ "an insert is busy until settled",
	  { { INS, 1, 1, 0 }, { NO_VICTIM, 0, 0, 0 }, { SETTLE, 1, 1, 0 }, { VICTIM, 1, 0, 0 } } },
	{ "the deepest of the oldest run first",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 1, 1 },
	    { SETTLE, 2, 1, 0 },
	    { INS, 3, 2, 0 },
	    { SETTLE, 3, 1, 0 },
	    { INS, 4, 2, 1 },
	    { SETTLE, 4, 1, 0 },
	    { VICTIM, 2, 0, 0 },
	    { EVICT, 2, 0, 0 },
	    { VICTIM, 1, 0, 0 },
	    { EVICT, 1, 0, 0 },
	    { VICTIM, 4, 0, 0 },
	    { EVICT, 4, 0, 0 },
	    { VICTIM, 3, 0, 0 },
	    { VICTIM, 3, 0, 4 },
	    { NO_VICTIM, 0, 0, 3 } } },
	{ "one place: the older object first",
	  { { INS, 5, 1, 0 },
	    { SETTLE, 5, 1, 0 },
	    { INS, 2, 1, 0 },
	    { SETTLE, 2, 1, 0 },
	    { VICTIM, 2, 0, 0 },
	    { VICTIM, 5, 0, 2 } } },
	{ "written for so long that its run has gone: of the latest run, with its depth",
	  { { INS, 1, 2, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 9, 1 },
	    { SETTLE, 2, 1, 0 },
	    { INS, 5, 9, 3 },
	    { SETTLE, 5, 1, 0 },
	    { EVICT, 1, 0, 0 },
	    { INS, 3, 1, 2 },
	    { SETTLE, 3, 1, 0 }, /* at 9.2 */
	    { INS, 4, 2, 0 },
	    { SETTLE, 4, 1, 0 }, /* of the run that was going */
	    { VICTIM, 4, 0, 0 },
	    { VICTIM, 5, 0, 4 },
	    { EVICT, 5, 0, 0 },
	    { INS, 6, 8, 9 }, /* its run as well has gone by now */
	    { SETTLE, 6, 1, 0 },
	    { EVICT, 4, 0, 0 },
	    { VICTIM, 6, 0, 0 },
	    { VICTIM, 3, 0, 6 } } },
	{ "touched once is protected",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 9, 0 },
	    { SETTLE, 2, 1, 0 },
	    { TOUCH, 1, 2, 0 },
	    { VICTIM, 2, 0, 0 },
	    { VICTIM, 1, 0, 2 } } },
	{ "protected overflows into probation as of now, with its depth",
	  { { INS, 1, 1, 7 },
	    { SETTLE, 1, 2, 0 },
	    { TOUCH, 1, 2, 7 },
	    { INS, 2, 3, 0 },
	    { SETTLE, 2, 2, 0 },
	    { INS, 3, 4, 3 },
	    { SETTLE, 3, 1, 0 },
	    { TOUCH, 2, 4, 0 }, /* 1 goes to probation at 4.7, before 3 at 4.3 */
	    { VICTIM, 1, 0, 0 },
	    { VICTIM, 3, 0, 1 } } },
	{ "growing in protected overflows too",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 3, 0 },
	    { TOUCH, 1, 2, 0 },
	    { INS, 2, 9, 0 },
	    { SETTLE, 2, 1, 0 },
	    { VICTIM, 2, 0, 0 },
	    { SETTLE, 1, 4, 0 },
	    { VICTIM, 1, 0, 0 } } },
	{ "a name in the ghost list comes back protected",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { EVICT, 1, 0, 0 },
	    { INS, 1, 2, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 9, 0 },
	    { SETTLE, 2, 1, 0 },
	    { VICTIM, 2, 0, 0 } } },
	{ "and also when it gets that name later",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { EVICT, 1, 0, 0 },
	    { INS, 3, 2, 0 },
	    { SETTLE, 3, 1, 0 },
	    { INS, 2, 9, 0 },
	    { SETTLE, 2, 1, 0 },
	    { VICTIM, 3, 0, 0 },
	    { NAME, 3, 1, 0 },
	    { VICTIM, 2, 0, 0 } } },
	{ "but not when it was removed",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { DROP, 1, 0, 0 },
	    { INS, 1, 2, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 9, 0 },
	    { SETTLE, 2, 1, 0 },
	    { VICTIM, 1, 0, 0 } } },
	{ "nor when the capacity was evicted since",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { EVICT, 1, 0, 0 },
	    { INS, 2, 1, 0 },
	    { SETTLE, 2, 10, 0 },
	    { EVICT, 2, 0, 0 },
	    { INS, 1, 2, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 3, 9, 0 },
	    { SETTLE, 3, 1, 0 },
	    { VICTIM, 1, 0, 0 } } },
	{ "one byte less and it is",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { EVICT, 1, 0, 0 },
	    { INS, 2, 1, 0 },
	    { SETTLE, 2, 9, 0 },
	    { EVICT, 2, 0, 0 },
	    { INS, 1, 2, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 3, 9, 0 },
	    { SETTLE, 3, 1, 0 },
	    { VICTIM, 3, 0, 0 } } },
	{ "busy, counted",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 2, 0 },
	    { SETTLE, 2, 1, 0 },
	    { BUSY, 1, 0, 0 },
	    { BUSY, 1, 0, 0 },
	    { VICTIM, 2, 0, 0 },
	    { IDLE, 1, 0, 0 },
	    { VICTIM, 2, 0, 0 },
	    { IDLE, 1, 0, 0 },
	    { VICTIM, 1, 0, 0 } } },
	{ "pinned, and busy beside it",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { PIN, 1, 0, 0 },
	    { NO_VICTIM, 0, 0, 0 },
	    { BUSY, 1, 0, 0 },
	    { UNPIN, 1, 0, 0 },
	    { NO_VICTIM, 0, 0, 0 },
	    { IDLE, 1, 0, 0 },
	    { VICTIM, 1, 0, 0 } } },
	{ "touched while aside",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { BUSY, 1, 0, 0 },
	    { NO_VICTIM, 0, 0, 0 },
	    { TOUCH, 1, 2, 0 },
	    { INS, 2, 9, 0 },
	    { SETTLE, 2, 1, 0 },
	    { IDLE, 1, 0, 0 },
	    { VICTIM, 2, 0, 0 } } },
	{ "grace: not before others, but before nothing",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 2, 0 },
	    { SETTLE, 2, 1, 0 },
	    { GRACE, 1, 10, 0 },
	    { VICTIM, 2, 5, 0 },
	    { VICTIM, 1, 5, 2 },
	    { VICTIM, 1, 11, 0 } } },
	{ "grace ends when told",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 2, 0 },
	    { SETTLE, 2, 1, 0 },
	    { GRACE, 1, 10, 0 },
	    { VICTIM, 2, 5, 0 },
	    { GRACE, 1, 0, 0 },
	    { VICTIM, 1, 5, 0 } } },
	{ "all in grace: by order; busy ones still not",
	  { { INS, 1, 1, 0 },
	    { SETTLE, 1, 1, 0 },
	    { INS, 2, 2, 0 },
	    { SETTLE, 2, 1, 0 },
	    { GRACE, 1, 20, 0 },
	    { GRACE, 2, 10, 0 },
	    { VICTIM, 1, 5, 0 },
	    { BUSY, 1, 0, 0 },
	    { VICTIM, 2, 5, 0 },
	    { IDLE, 1, 0, 0 },
	    { VICTIM, 2, 15, 0 },
	    { VICTIM, 1, 25, 0 } } },
};

static void settle_new(struct policy *p, const struct step *s)
{
	CHECK_EQ(policy_insert(p, s->id, s->id, (struct place){ s->a, (uint32_t)s->b }), 0);
	CHECK_EQ(policy_insert(p, s->id, s->id, (struct place){ 0, 0 }), -EEXIST);
}

static void play(struct policy *p, const struct step *s)
{
	uint64_t id = 0;

	switch (s->op) {
	case END:
		break;
	case INS:
		settle_new(p, s);
		break;
	case SETTLE:
		policy_settle(p, s->id, s->a);
		break;
	case TOUCH:
		policy_touch(p, s->id, (struct place){ s->a, (uint32_t)s->b });
		break;
	case BUSY:
	case IDLE:
		policy_busy(p, s->id, s->op == BUSY ? 1 : -1);
		break;
	case PIN:
	case UNPIN:
		policy_pin(p, s->id, s->op == PIN);
		break;
	case GRACE:
		policy_grace(p, s->id, s->a * s_ns);
		break;
	case EVICT:
		policy_evict(p, s->id, s->id);
		break;
	case DROP:
		policy_remove(p, s->id);
		break;
	case NAME:
		policy_rename(p, s->id, s->a);
		break;
	case VICTIM:
		CHECK(policy_victim(p, s->b, s->a * s_ns, &id));
		CHECK_EQ(id, s->id);
		break;
	case NO_VICTIM:
		CHECK(!policy_victim(p, s->b, s->a * s_ns, &id));
		break;
	}
}

static void test_cases(void)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct policy *p = policy_new(10);

		(void)printf("%s\n", cases[i].what);
		(void)fflush(stdout);
		CHECK(p);
		for (size_t k = 0; k < STEPS_MAX && cases[i].steps[k].op != END; k++)
			play(p, &cases[i].steps[k]);
		policy_free(p);
	}
	policy_free(NULL);
}

/* An unknown object is no one's mistake: it was evicted a moment ago. */
static void test_unknown(void)
{
	struct policy *p = policy_new(10);
	struct policy_heat heat;

	CHECK(p);
	policy_settle(p, 7, 1);
	policy_touch(p, 7, (struct place){ 1, 1 });
	policy_rename(p, 7, 1);
	policy_remove(p, 7);
	policy_busy(p, 7, 1);
	policy_pin(p, 7, true);
	policy_grace(p, 7, 1);
	policy_evict(p, 7, 1);
	CHECK(!policy_place(p, 7, &heat));
	CHECK_EQ(policy_count(p), 0);
	CHECK_EQ(policy_ghosts(p), 0);
	CHECK_EQ(policy_dirty(p, &heat, 1), 0);
	policy_free(p);
}

/* ---- prompts, one request after the other ---- */

enum { BLOCK_BYTES = 16384 };

/* One request: what hits is touched, what is missing makes room and enters. Returns the hits before the first miss. */
static uint64_t ask(struct policy *p, uint64_t capacity, uint64_t run, const uint64_t *blocks,
		    uint32_t nr)
{
	struct policy_heat heat;
	uint64_t victim;
	uint32_t hits = 0;

	while (hits < nr && policy_place(p, blocks[hits], &heat))
		hits++;
	for (uint32_t i = 0; i < nr; i++) {
		struct place at = { run, i };

		if (policy_place(p, blocks[i], &heat)) {
			policy_touch(p, blocks[i], at);
			continue;
		}
		while (policy_used_bytes(p) + BLOCK_BYTES > capacity) {
			CHECK(policy_victim(p, 0, 0, &victim));
			policy_evict(p, victim, victim);
		}
		CHECK_EQ(policy_insert(p, blocks[i], blocks[i], at), 0);
		policy_settle(p, blocks[i], BLOCK_BYTES);
	}
	return hits;
}

static uint64_t ask_range(struct policy *p, uint64_t run, uint64_t first, uint32_t nr)
{
	uint64_t blocks[150];

	for (uint32_t i = 0; i < nr; i++)
		blocks[i] = first + i;
	return ask(p, UINT64_C(100) * BLOCK_BYTES, run, blocks, nr);
}

static void test_prompts(void)
{
	struct policy *p = policy_new(UINT64_C(100) * BLOCK_BYTES);
	uint64_t hits;

	CHECK(p);
	CHECK_EQ(ask_range(p, 1, 1000, 60) + ask_range(p, 2, 2000, 60), 0);
	CHECK_EQ(ask_range(p, 3, 1000, 60), 40);
	policy_free(p);

	p = policy_new(UINT64_C(100) * BLOCK_BYTES);
	CHECK(p);
	for (uint64_t run = 1; run <= 3; run++)
		CHECK_EQ(ask_range(p, run, 1000, 20), run == 1 ? 0 : 20);
	for (uint64_t run = 4; run <= 13; run++)
		CHECK_EQ(ask_range(p, run, run * 1000, 30), 0);
	CHECK_EQ(ask_range(p, 14, 1000, 20), 20);
	policy_free(p);

	p = policy_new(UINT64_C(100) * BLOCK_BYTES);
	CHECK(p);
	hits = ask_range(p, 1, 1000, 150);
	hits += ask_range(p, 2, 1000, 150);
	hits += ask_range(p, 3, 1000, 150);
	CHECK_EQ(hits, 198);
	policy_free(p);
}

static int play_trace(const char *path, uint64_t blocks)
{
	static char line[1 << 20];
	static uint64_t ids[1 << 16];
	struct policy *p = policy_new(blocks * BLOCK_BYTES);
	FILE *f = fopen(path, "re");
	uint64_t hits = 0;
	uint64_t asked = 0;

	CHECK(p && f);
	for (uint64_t run = 1; fgets(line, sizeof line, f); run++) {
		uint32_t nr = 0;
		char *save = NULL;

		for (char *t = strtok_r(line, " \n", &save); t; t = strtok_r(NULL, " \n", &save))
			ids[nr++] = strtoull(t, NULL, 10) + 1;
		hits += ask(p, blocks * BLOCK_BYTES, run, ids, nr);
		asked += nr;
	}
	(void)printf("hits %llu of %llu %.4f\n", (unsigned long long)hits,
		     (unsigned long long)asked, (double)hits / (double)asked);
	(void)fclose(f);
	policy_free(p);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return play_trace(argv[1], strtoull(argv[2], NULL, 10));
	test_cases();
	test_unknown();
	test_prompts();
	return 0;
}
