/* SPDX-License-Identifier: Apache-2.0 */
/* A random walk of the policy beside a model of it that has no heaps, no index and no memory of what it met: whatever it is
 * asked, it looks at everything. */
#include "cache/policy.h"
#include "check.h"

#include <string.h>

enum { OBJECTS = 300, NAMES = 200, CAPACITY = 400, EVICTED_MAX = 1 << 16 };
static const uint64_t tick_ns = UINT64_C(1) << 26;

struct object {
	bool in;
	bool unsettled;
	bool pinned;
	bool protected;
	unsigned users;
	uint64_t name;
	uint64_t bytes;
	uint64_t grace_ns;
	struct place at;
};

struct evicted {
	uint64_t name;
	uint64_t end_bytes;
	bool back;
};

/* What the database would hold, from the change lists alone. */
struct stored {
	bool in;
	enum policy_list list;
	struct place at;
};

struct model {
	struct object o[OBJECTS]; /* by id; 0 is none */
	struct evicted e[EVICTED_MAX];
	size_t nr_evicted;
	uint64_t evicted_bytes;
	uint64_t evicted_run;
	uint64_t last_run;
	struct stored stored[OBJECTS];
	uint64_t stored_ghost[NAMES + 1]; /* its seq, or 0 */
	uint64_t stored_ghost_bytes[NAMES + 1];
	uint64_t now_ns;
	uint64_t random;
};

static uint64_t below(struct model *m, uint64_t limit)
{
	m->random ^= m->random << 13;
	m->random ^= m->random >> 7;
	m->random ^= m->random << 17;
	return (m->random >> 16) % limit;
}

static bool may_go(const struct object *o)
{
	return o->in && !o->unsettled && !o->pinned && o->users == 0;
}

static bool goes_before(const struct object *a, const struct object *b)
{
	if (a->protected != b->protected)
		return b->protected;
	if (a->at.run != b->at.run)
		return a->at.run < b->at.run;
	return a->at.depth != b->at.depth ? a->at.depth > b->at.depth : a < b;
}

static uint64_t model_victim(const struct model *m, uint64_t except)
{
	for (int in_grace = 0; in_grace < 2; in_grace++) {
		uint64_t best = 0;

		for (uint64_t i = 1; i < OBJECTS; i++) {
			const struct object *o = &m->o[i];
			uint64_t until = (o->grace_ns + tick_ns - 1) / tick_ns;

			if (i != except && may_go(o) && (until > m->now_ns / tick_ns) == in_grace &&
			    (!best || goes_before(o, &m->o[best])))
				best = i;
		}
		if (best)
			return best;
	}
	return 0;
}

static bool model_take(struct model *m, uint64_t name)
{
	for (size_t i = m->nr_evicted; i > 0; i--) {
		struct evicted *e = &m->e[i - 1];

		if (m->evicted_bytes - e->end_bytes >= CAPACITY)
			return false;
		if (e->name == name && !e->back) {
			e->back = true;
			return true;
		}
	}
	return false;
}

static uint64_t model_ghosts(const struct model *m)
{
	uint64_t nr = 0;

	for (size_t i = m->nr_evicted; i > 0; i--) {
		if (m->evicted_bytes - m->e[i - 1].end_bytes >= CAPACITY)
			break;
		nr += !m->e[i - 1].back;
	}
	return nr;
}

static void model_trim(struct model *m, uint64_t run)
{
	for (;;) {
		uint64_t bytes = 0;
		struct object *first = NULL;

		for (uint64_t i = 1; i < OBJECTS; i++) {
			struct object *o = &m->o[i];

			if (!o->in || !o->protected)
				continue;
			bytes += o->bytes;
			if (!first || goes_before(o, first))
				first = o;
		}
		if (bytes <= CAPACITY * 3 / 10 || !first)
			return;
		first->protected = false;
		if (first->at.run < run)
			first->at.run = run;
	}
}

static void model_evict(struct model *m, uint64_t id)
{
	struct object *o = &m->o[id];

	if (!o->protected && m->evicted_run < o->at.run)
		m->evicted_run = o->at.run;
	(void)model_take(m, o->name); /* two objects may have had the name */
	m->evicted_bytes += o->bytes;
	CHECK(m->nr_evicted < EVICTED_MAX);
	m->e[m->nr_evicted++] = (struct evicted){ o->name, m->evicted_bytes, false };
	o->in = false;
}

static void compare(struct model *m, struct policy *p)
{
	uint64_t used = 0;
	uint64_t evictable = 0;
	uint64_t nr = 0;
	uint64_t victim = 0;
	uint64_t except = below(m, 4) ? 0 : below(m, OBJECTS);
	uint64_t want = model_victim(m, except);

	for (uint64_t i = 1; i < OBJECTS; i++) {
		const struct object *o = &m->o[i];
		struct policy_heat heat;

		CHECK_EQ(policy_place(p, i, &heat), o->in);
		if (!o->in)
			continue;
		CHECK_EQ(heat.list == POLICY_PROTECTED, o->protected);
		CHECK_EQ(heat.at.run, o->at.run);
		CHECK_EQ(heat.at.depth, o->at.depth);
		nr++;
		used += o->bytes;
		evictable += may_go(o) ? o->bytes : 0;
	}
	CHECK_EQ(policy_count(p), nr);
	CHECK_EQ(policy_used_bytes(p), used);
	CHECK_EQ(policy_evictable_bytes(p), evictable);
	CHECK_EQ(policy_ghosts(p), model_ghosts(m));
	if (below(m, 2))
		return; /* so that not every change meets objects already set aside */
	CHECK_EQ(policy_victim(p, except, m->now_ns, &victim), want != 0);
	CHECK_EQ(victim, want);
}

/* ---- one random operation ---- */

static struct place model_place(struct model *m, struct place at)
{
	if (at.run < m->evicted_run)
		at.run = m->last_run;
	if (m->last_run < at.run)
		m->last_run = at.run;
	return at;
}

static void do_insert(struct model *m, struct policy *p, uint64_t id, struct place at)
{
	struct object *o = &m->o[id];
	uint64_t name = 1 + below(m, NAMES);

	if (o->in)
		return;
	CHECK_EQ(policy_insert(p, id, name, at), 0);
	at = model_place(m, at);
	*o = (struct object){ .in = true, .unsettled = true, .name = name, .at = at };
	o->protected = model_take(m, name);
	m->stored[id].in = false;
}

static void do_settle(struct model *m, struct policy *p, uint64_t id)
{
	struct object *o = &m->o[id];

	o->bytes = below(m, 8);
	policy_settle(p, id, o->bytes);
	o->unsettled = false;
	model_trim(m, o->at.run);
}

static void do_touch(struct model *m, struct policy *p, uint64_t id, struct place at)
{
	struct object *o = &m->o[id];

	policy_touch(p, id, at);
	at = model_place(m, at);
	o->protected = true;
	o->at = at;
	model_trim(m, at.run);
}

static void do_state(struct model *m, struct policy *p, uint64_t id)
{
	struct object *o = &m->o[id];

	switch (below(m, 4)) {
	case 0:
		o->users++;
		policy_busy(p, id, 1);
		break;
	case 1:
		policy_busy(p, id, -(int)o->users);
		o->users = 0;
		break;
	case 2:
		o->pinned = below(m, 4) == 0;
		policy_pin(p, id, o->pinned);
		break;
	default:
		o->grace_ns = below(m, 3) ? m->now_ns + below(m, 20 * tick_ns) : 0;
		policy_grace(p, id, o->grace_ns);
		break;
	}
}

static void do_rename(struct model *m, struct policy *p, uint64_t id)
{
	struct object *o = &m->o[id];

	o->name = 1 + below(m, NAMES);
	policy_rename(p, id, o->name);
	if (model_take(m, o->name)) {
		o->protected = true;
		model_trim(m, o->at.run);
	}
}

static void do_evict(struct model *m, struct policy *p)
{
	uint64_t id;

	if (!policy_victim(p, 0, m->now_ns, &id))
		return;
	CHECK_EQ(id, model_victim(m, 0));
	policy_evict(p, id, m->o[id].name);
	model_evict(m, id);
}

static void step(struct model *m, struct policy *p, uint64_t run)
{
	uint64_t id = 1 + below(m, OBJECTS - 1);
	struct place at = { run - below(m, 3), (uint32_t)below(m, 10) };
	uint64_t what = below(m, 100);

	m->now_ns += below(m, tick_ns);
	if (what < 30)
		do_insert(m, p, id, at);
	else if (what < 45)
		do_evict(m, p);
	else if (!m->o[id].in)
		policy_touch(p, id, at);
	else if (what < 60)
		do_settle(m, p, id);
	else if (what < 75)
		do_touch(m, p, id, at);
	else if (what < 92)
		do_state(m, p, id);
	else if (what < 97)
		do_rename(m, p, id);
	else {
		policy_remove(p, id);
		m->o[id].in = false;
	}
}

/* ---- what is remembered ---- */

static void drain(struct model *m, struct policy *p, unsigned cap)
{
	struct policy_heat heat[64];
	struct policy_ghost ghost[64];
	unsigned nr = policy_dirty(p, heat, cap);

	for (unsigned i = 0; i < nr; i++)
		m->stored[heat[i].id] = (struct stored){ true, heat[i].list, heat[i].at };
	nr = policy_dirty_ghosts(p, ghost, cap);
	for (unsigned i = 0; i < nr; i++) {
		CHECK(ghost[i].seq > 0);
		m->stored_ghost[ghost[i].name] = ghost[i].gone ? 0 : ghost[i].seq;
		m->stored_ghost_bytes[ghost[i].name] = ghost[i].bytes;
	}
}

static struct policy *restore(const struct model *m)
{
	struct policy *p = policy_new(CAPACITY);

	CHECK(p);
	for (uint64_t i = 1; i < OBJECTS; i++) {
		const struct object *o = &m->o[i];
		const struct stored *s = &m->stored[i];

		if (o->in && !o->unsettled)
			CHECK_EQ(policy_restore(p, i, o->bytes, s->list, s->at), 0);
	}
	for (uint64_t last = 0;;) {
		uint64_t next = 0;

		for (uint64_t name = 1; name <= NAMES; name++)
			if (m->stored_ghost[name] > last &&
			    (!next || m->stored_ghost[name] < m->stored_ghost[next]))
				next = name;
		if (!next)
			return p;
		last = m->stored_ghost[next];
		CHECK_EQ(policy_restore_ghost(p, next, m->stored_ghost_bytes[next], last), 0);
	}
}

/* A policy made anew from what was drained is in the state of the old one, but for who was busy or in grace. */
static void test_restored(struct model *m, struct policy *old)
{
	struct policy *p;

	for (int i = 0; i < 2 * (OBJECTS + NAMES) / 64 + 2; i++)
		drain(m, old, 64);
	p = restore(m);
	CHECK_EQ(policy_ghosts(p), policy_ghosts(old));
	for (uint64_t i = 1; i < OBJECTS; i++) {
		struct object *o = &m->o[i];

		if (o->in && o->unsettled) {
			policy_remove(old, i);
			o->in = false;
		}
		o->users = 0;
		o->pinned = false;
		o->grace_ns = 0;
	}
	compare(m, p);
	CHECK_EQ(policy_dirty(p, (struct policy_heat[1]){ { .id = 0 } }, 1), 0);
	CHECK_EQ(policy_dirty_ghosts(p, (struct policy_ghost[1]){ { .name = 0 } }, 1), 0);
	for (uint64_t name = 1; name <= NAMES; name++) {
		struct policy_heat heat;

		CHECK_EQ(policy_insert(p, 1000 + name, name, (struct place){ 1, 0 }), 0);
		CHECK(policy_place(p, 1000 + name, &heat));
		CHECK_EQ(heat.list == POLICY_PROTECTED, m->stored_ghost[name] != 0);
		CHECK_EQ(heat.list == POLICY_PROTECTED, model_take(m, name));
	}
	policy_free(p);
}

static void walk(uint64_t seed, int steps)
{
	struct model *m = calloc(1, sizeof *m);
	struct policy *p = policy_new(CAPACITY);

	CHECK(m && p);
	m->random = seed;
	m->now_ns = 1;
	for (int i = 0; i < steps; i++) {
		step(m, p, (uint64_t)i / 20 + 3);
		compare(m, p);
		if (below(m, 10) == 0)
			drain(m, p, 1 + (unsigned)below(m, 20));
	}
	test_restored(m, p);
	policy_free(p);
	free(m);
}

/* Many come and go: the arrays grow and shrink under the index. */
static void test_many(void)
{
	enum { MANY = 300000 };
	struct policy *p = policy_new(MANY / 2);
	uint64_t id;

	CHECK(p);
	for (uint64_t i = 1; i <= MANY; i++) {
		CHECK_EQ(policy_insert(p, i, i, (struct place){ i / 100, (uint32_t)(i % 100) }), 0);
		policy_settle(p, i, 1);
	}
	for (uint64_t i = 1; i <= MANY; i++) {
		/* the deepest of each hundred first */
		uint64_t want = i < 100 ? 100 - i : i / 100 * 100 + (99 - i % 100);

		if (want > MANY)
			want = MANY;
		CHECK(policy_victim(p, 0, 0, &id));
		CHECK_EQ(id, want);
		policy_evict(p, id, id);
		CHECK(!policy_place(p, id, &(struct policy_heat){ .id = 0 }));
	}
	CHECK_EQ(policy_count(p), 0);
	CHECK_EQ(policy_used_bytes(p), 0);
	CHECK_EQ(policy_ghosts(p), MANY / 2);
	policy_free(p);
}

int main(void)
{
	for (uint64_t seed = 1; seed <= 8; seed++)
		walk(seed * UINT64_C(0x9E3779B97F4A7C15), 6000);
	test_many();
	return 0;
}
