/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of operations of a caller, and prompts on a small model of the kernel's name cache, with the policy behind.
 * test_run TRACE BLOCKS: the prefix hit rates of a trace (tools/trace-gen --plain) under all ways of caching and grace. */
#include "base/clock.h"
#include "cache/policy.h"
#include "cache/run.h"
#include "check.h"

#include <string.h>

/* ---- tables ---- */

/* Names are letters; an operation is a letter before them: l a lookup that hits, m one that misses, o an open, c a create,
 * n a naming, a the question for attributes; w<digit> is a pause of so many seconds. What is expected is for each open and create "run.depth", and for
 * each stat that hit, when it is known, "name=run.depth". */
static const struct {
	const char *what;
	const char *ops;
	const char *want;
} cases[] = {
	{ "a prompt: stats, hits, creates", "la lb lc md oa ob oc cd me ce mf cf",
	  "a=1.0 b=1.1 c=1.2 1.0 1.1 1.2 1.3 1.4 1.5" },
	{ "nothing cached: every operation has its lookup", "la lb mc la oa lb ob mc cc md cd",
	  "a=1.0 b=1.1 1.0 1.1 1.2 1.3" },
	{ "stats from the kernel's cache: an open after a create", "oa ob mc cc oa ob cd",
	  "1.0 1.1 1.2 2.0 2.1 2.2" },
	{ "some stats seen: the open counts, its own stat holds it down", "lc md oa ob oc cd",
	  "c=1.0 1.0 1.1 1.2 1.3" },
	{ "an engine with a cache in front opens only the rest", "la lb lc ld me lc oc ld od ce",
	  "a=1.0 b=1.1 c=1.2 d=1.3 1.2 1.3 1.4" },
	{ "or nothing", "la lb lc md cd me ce", "a=1.0 b=1.1 c=1.2 1.3 1.4" },
	{ "a stat after a create begins a run", "ma ma ca mb cb mx mx cx my cy",
	  "1.0 1.1 2.0 2.1" },
	{ "a stat after an open begins a run", "oa ob lc ld oc od", "1.0 1.1 c=2.0 d=2.1 2.0 2.1" },
	{ "read again", "oa ob oa ob", "1.0 1.1 2.0 2.1" },
	{ "read again from the middle", "oa ob oc ob oc", "1.0 1.1 1.2 2.0 2.1" },
	{ "opened twice in a moment is one", "oa oa ob ob oc", "1.0 1.0 1.1 1.1 1.2" },
	{ "opened again later is not", "oa ob w2 ob", "1.0 1.1 2.0" },
	{ "written and read back", "ma ca oa mb cb ob lb ob mc cc", "1.0 1.0 1.1 1.1 1.1 1.2" },
	{ "a pause", "oa ob w6 oc", "1.0 1.1 2.0" },
	{ "a short one is none", "oa ob w4 oc", "1.0 1.1 1.2" },
	{ "a lookup before a pause was a stat", "la w6 oa", "a=1.0 2.0" },
	{ "no run is older than a minute",
	  "ca w4 cb w4 cc w4 cd w4 ce w4 cf w4 cg w4 ch w4 ci w4 cj w4 ck w4 cl w4 cm w4 cn w4 co "
	  "w4 cp",
	  "1.0 1.1 1.2 1.3 1.4 1.5 1.6 1.7 1.8 1.9 1.10 1.11 1.12 1.13 1.14 2.0" },
	{ "temporary names, renamed while open", "mA cA lA ma na mB cB lB mb nb mC cC",
	  "1.0 1.1 1.2" },
	{ "and looked at afterwards", "mA cA ma na la mB cB mb nb lb", "1.0 1.1" },
	{ "renames onto what is there", "mA cA la na mB cB lb nb mC cC", "1.0 1.1 1.2" },
	{ "a look before each put: learnt after two",
	  "ma ma ca mb mb cb mc mc cc md md cd me me ce", "1.0 2.0 3.0 3.1 3.2" },
	{ "with temporary names", "ma mA cA ma na mb mB cB mb nb mc mC cC mc nc md mD cD",
	  "1.0 2.0 3.0 3.1" },
	{ "and forgotten when one comes without",
	  "ma ma ca mb mb cb mc mc cc md md cd me ce mf mf cf", "1.0 2.0 3.0 3.1 3.2 4.0" },
	{ "only stats: a prompt ends at its miss", "la lb mc ld le mf la",
	  "a=1.0 b=1.1 d=2.0 e=2.1" },
	{ "or where one comes again", "la lb la lb lc", "a=1.0 b=1.1 a=2.0 b=2.1" },
	{ "creates that find their name taken go on with the run", "oa mb cb lc ld me ce lf mg",
	  "1.0 1.1 c=1.2 d=1.3 1.4 f=1.5" },
	{ "a stat that hits after a create begins one", "oa mb cb lc ac ld me oc ce",
	  "1.0 1.1 c=2.0 d=2.1 2.0 2.2" },
	{ "so does an open", "oa mb cb lc ac oc mb cb", "1.0 1.1 2.0 2.1" },
};

struct table_run {
	struct runs *runs;
	struct place last[128];
	uint64_t now_ns;
	char got[512];
	size_t len;
};

static void put_place(struct table_run *t, const char *name, struct place at)
{
	int n = snprintf(t->got + t->len, sizeof t->got - t->len, "%s%.1s%s%llu.%u",
			 t->len ? " " : "", name, *name ? "=" : "", (unsigned long long)at.run,
			 at.depth);

	CHECK(n > 0 && (size_t)n < sizeof t->got - t->len);
	t->len += (size_t)n;
}

static void play_op(struct table_run *t, const char *s)
{
	static const char letters[] = { 'l', 'm', 'o', 'c', 'n' };
	static const enum run_op ops[] = { RUN_LOOKUP, RUN_LOOKUP, RUN_OPEN, RUN_CREATE, RUN_NAME };
	const char *at = memchr(letters, s[0], sizeof letters);
	unsigned name = (unsigned char)s[1];
	struct run_access a = { .tid = 7, .name = name, .object = name, .last = t->last[name] };
	struct run_event e;

	if (s[0] == 'a') {
		CHECK(runs_stat(t->runs, 7, name));
		return;
	}
	CHECK(at);
	t->now_ns += 100000;
	a.now_ns = t->now_ns;
	a.op = ops[at - letters];
	if (s[0] == 'm')
		a.object = 0;
	e = runs_note(t->runs, &a);
	if (e.stat) {
		t->last[e.stat_object] = e.stat_at;
		put_place(t, (char[]){ (char)e.stat_object, 0 }, e.stat_at);
	}
	if (a.op == RUN_OPEN || a.op == RUN_CREATE) {
		t->last[name] = e.at;
		put_place(t, "", e.at);
	}
}

static void test_cases(void)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct table_run t = { .runs = runs_new(1, 4), .now_ns = 1 };
		const char *s = cases[i].ops;

		CHECK(t.runs);
		for (; *s; s += strcspn(s, " "), s += strspn(s, " "))
			if (*s == 'w')
				t.now_ns += (uint64_t)(s[1] - '0') * NS_PER_S;
			else
				play_op(&t, s);
		if (strcmp(t.got, cases[i].want) != 0)
			(void)printf("%s\n%s\n want %s\n  got %s\n", cases[i].what, cases[i].ops,
				     cases[i].want, t.got);
		CHECK(strcmp(t.got, cases[i].want) == 0);
		runs_free(t.runs);
	}
	runs_free(NULL);
}

/* Callers are apart, and the longest idle one makes room. */
static void test_callers(void)
{
	struct runs *r = runs_new(5, 2);
	struct run_access a = { .op = RUN_CREATE, .now_ns = 1 };
	static const struct {
		uint64_t run;
		int32_t tid;
		uint32_t depth;
	} table[] = { { 5, 1, 0 }, { 6, 2, 0 }, { 5, 1, 1 }, { 6, 2, 1 },
		      { 7, 3, 0 }, { 6, 2, 2 }, { 8, 1, 0 }, { 9, -1, 0 } };

	CHECK(r);
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct run_event e;

		a.tid = table[i].tid;
		a.name = i + 1;
		a.object = i + 1;
		e = runs_note(r, &a);
		CHECK_EQ(e.at.run, table[i].run);
		CHECK_EQ(e.at.depth, table[i].depth);
	}
	runs_free(r);
}

/* ---- prompts on a mount ---- */

enum { BLOCK_BYTES = 16384, NAMES_MAX = 1 << 17, OP_NS = 50000, KNOWN_NS = 2000 };

struct way {
	uint64_t positive_ns; /* how long the kernel keeps a name that it found */
	uint64_t negative_ns; /* and one that it did not */
	uint64_t grace_ns;
	bool late; /* the release of a block comes after the create that follows it at once */
};

struct name {
	uint64_t object;   /* 0: not there */
	uint64_t known_ns; /* the kernel knows, until then */
	bool known_there;
};

struct mount {
	struct way way;
	uint64_t capacity_bytes;
	struct policy *policy;
	struct runs *runs;
	uint64_t now_ns;
	uint64_t next_object;
	uint64_t unreleased; /* a block, or 0 */
	struct name names[NAMES_MAX];
	uint64_t block_of[NAMES_MAX]; /* by object */
};

static struct place last_of(const struct mount *m, uint64_t object)
{
	struct policy_heat heat;

	return policy_place(m->policy, object, &heat) ? heat.at : (struct place){ 0, 0 };
}

static struct run_event note(struct mount *m, enum run_op op, uint64_t block, uint64_t object)
{
	struct run_access a = { .tid = 1,
				.op = op,
				.name = block,
				.object = object,
				.last = last_of(m, object),
				.now_ns = m->now_ns };
	struct run_event e = runs_note(m->runs, &a);

	if (e.stat)
		policy_touch(m->policy, e.stat_object, e.stat_at);
	return e;
}

/* Returns whether the name is there; asks the daemon only when the kernel does not know. A stat or open needs the attributes,
 * an exclusive create does not. */
static bool look(struct mount *m, uint64_t block, bool attributes)
{
	struct name *n = &m->names[block];
	struct run_event e;

	m->now_ns += KNOWN_NS;
	if (n->known_ns > m->now_ns)
		return n->known_there;
	m->now_ns += OP_NS;
	e = note(m, RUN_LOOKUP, block, n->object);
	n->known_there = n->object != 0;
	n->known_ns = m->now_ns + (n->object ? m->way.positive_ns : m->way.negative_ns);
	if (e.ambiguous)
		n->known_ns = 0;
	if (n->object && m->way.grace_ns &&
	    (!e.ambiguous || (attributes && runs_stat(m->runs, 1, n->object))))
		policy_grace(m->policy, n->object, m->now_ns + m->way.grace_ns);
	return n->known_there;
}

static void release(struct mount *m)
{
	uint64_t object = m->names[m->unreleased].object;
	uint64_t victim;

	if (!m->unreleased)
		return;
	m->unreleased = 0;
	policy_settle(m->policy, object, BLOCK_BYTES);
	while (policy_used_bytes(m->policy) > m->capacity_bytes) {
		CHECK(policy_victim(m->policy, object, m->now_ns, &victim));
		policy_evict(m->policy, victim, m->block_of[victim]);
		m->names[m->block_of[victim]] = (struct name){ 0 };
	}
}

static bool open_and_read(struct mount *m, uint64_t block)
{
	uint64_t object;

	if (!look(m, block, true))
		return false;
	object = m->names[block].object;
	m->now_ns += OP_NS;
	policy_touch(m->policy, object, note(m, RUN_OPEN, block, object).at);
	policy_grace(m->policy, object, 0);
	policy_busy(m->policy, object, 1);
	policy_busy(m->policy, object, -1);
	return true;
}

static void create(struct mount *m, uint64_t block)
{
	uint64_t object;
	struct place at;

	if (look(m, block, false))
		return;
	object = m->next_object++;
	m->now_ns += OP_NS;
	at = note(m, RUN_CREATE, block, object).at;
	CHECK_EQ(policy_insert(m->policy, object, block, at), 0);
	m->names[block] = (struct name){ .object = object };
	m->block_of[object] = block;
	release(m);
	m->unreleased = block;
	if (!m->way.late)
		release(m);
}

static void mount_init(struct mount *m, struct way way, uint64_t blocks)
{
	memset(m, 0, sizeof *m);
	m->way = way;
	m->capacity_bytes = blocks * BLOCK_BYTES;
	m->next_object = 1;
	m->policy = policy_new(m->capacity_bytes);
	m->runs = runs_new(1, 16);
	CHECK(m->policy && m->runs);
}

static void mount_fini(struct mount *m)
{
	policy_free(m->policy);
	runs_free(m->runs);
}

/* One request, as a client makes it. Returns the hits. */
static uint64_t ask(struct mount *m, const uint64_t *blocks, size_t nr)
{
	size_t present = 0;
	size_t hits = 0;

	release(m);
	while (present < nr && look(m, blocks[present], true))
		present++;
	while (hits < present && open_and_read(m, blocks[hits]))
		hits++;
	for (size_t i = hits; i < nr; i++)
		create(m, blocks[i]);
	return hits;
}

static uint64_t ask_range(struct mount *m, uint64_t first, size_t nr)
{
	uint64_t blocks[150];

	for (size_t i = 0; i < nr; i++)
		blocks[i] = first + i;
	return ask(m, blocks, nr);
}

static const struct way ways[] = {
	{ 0, 0, 0, false },
	{ NS_PER_S, 0, 0, false },
	{ 0, NS_PER_S, 0, false },
	{ NS_PER_S, NS_PER_S, 0, false },
	{ NS_PER_S, 3600 * NS_PER_S, 0, false },
	{ NS_PER_S, 3600 * NS_PER_S, 0, true },
	{ NS_PER_S, 3600 * NS_PER_S, NS_PER_S / 5, false },
	{ NS_PER_S, 3600 * NS_PER_S, NS_PER_S, false },
	{ NS_PER_S, 3600 * NS_PER_S, 5 * NS_PER_S, false },
	{ 0, 0, 5 * NS_PER_S, false },
	{ NS_PER_S, 3600 * NS_PER_S, 60 * NS_PER_S, true },
};
enum { NR_WAYS = sizeof ways / sizeof *ways };

static void test_prompts(const struct way *way)
{
	static struct mount m;
	uint64_t hits;

	mount_init(&m, *way, 100);
	CHECK_EQ(ask_range(&m, 1000, 60) + ask_range(&m, 2000, 60), 0);
	CHECK_EQ(ask_range(&m, 1000, 60), 40);
	mount_fini(&m);

	mount_init(&m, *way, 100);
	hits = ask_range(&m, 1000, 20);
	hits += ask_range(&m, 1000, 20);
	hits += ask_range(&m, 1000, 20);
	CHECK_EQ(hits, 40);
	for (uint64_t i = 2; i < 12; i++)
		CHECK_EQ(ask_range(&m, i * 1000, 30), 0);
	CHECK_EQ(ask_range(&m, 1000, 20), 20);
	mount_fini(&m);

	mount_init(&m, *way, 100);
	hits = ask_range(&m, 1000, 150);
	hits += ask_range(&m, 1000, 150);
	hits += ask_range(&m, 1000, 150);
	CHECK_EQ(hits, 198);
	mount_fini(&m);
}

static void play_trace(const char *path, uint64_t capacity, const struct way *way)
{
	static char line[1 << 20];
	static uint64_t blocks[1 << 16];
	static struct mount m;
	FILE *f = fopen(path, "re");
	uint64_t hits = 0;
	uint64_t asked = 0;

	CHECK(f);
	mount_init(&m, *way, capacity);
	while (fgets(line, sizeof line, f)) {
		size_t nr = 0;
		char *save = NULL;

		for (char *t = strtok_r(line, " \n", &save); t; t = strtok_r(NULL, " \n", &save))
			blocks[nr++] = strtoull(t, NULL, 10) + 1;
		hits += ask(&m, blocks, nr);
		asked += nr;
	}
	(void)printf("found %4llu s, missing %4llu s, grace %4.1f s, %s: %.4f\n",
		     (unsigned long long)(way->positive_ns / NS_PER_S),
		     (unsigned long long)(way->negative_ns / NS_PER_S),
		     (double)way->grace_ns / (double)NS_PER_S, way->late ? "late " : "prompt",
		     (double)hits / (double)asked);
	(void)fclose(f);
	mount_fini(&m);
}

int main(int argc, char **argv)
{
	if (argc == 3) {
		for (size_t i = 0; i < NR_WAYS; i++)
			play_trace(argv[1], strtoull(argv[2], NULL, 10), &ways[i]);
		return 0;
	}
	test_cases();
	test_callers();
	for (size_t i = 0; i < NR_WAYS; i++)
		test_prompts(&ways[i]);
	return 0;
}
