/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - which run of operations an access belongs to, and how deep in it. Pure: the caller passes the time. Not locked.
 *
 * A serving engine asks for a prompt: it stats the blocks in order up to the first miss, opens and reads the hits, creates the
 * rest, all from one thread. The filesystem sees lookups (those that the kernel's caches do not answer), opens and creates of
 * a caller (thread id). A lookup directly followed by the open, create or naming of the same name is part of that, and so is one
 * of what the caller has just opened or created; any other lookup is a stat. A new run begins with
 *   - a stat after an open or create (but see below); among stats one that hits after one that missed, or hits again,
 *   - an open after a create, and an open of what the same run has opened already; but not an open, within a second, of
 *     what the caller opened or created last,
 *   - a pause of 5 s, or an age of 60 s: a thread that only writes would otherwise be one run for ever, and its own newest
 *     blocks the first to go.
 * A create that must not find its name (O_EXCL) and finds it is a lookup as well. It goes on with the run, as deep as a create;
 * what tells it from a stat is that no attributes are asked for, so behind creates the kernel must ask for them: see ambiguous.
 *
 * Stats that hit count their depth from 0. So do opens and creates, but an open is no less deep than its own stat, and a
 * create is behind all stats that hit: an engine with a cache of its own opens only what it lacks.
 *
 * Clients that check a name before each put look like prompts of one block. After two runs in succession that were one create
 * with its own stat before it, a stat that misses no longer ends a run of creates, until a create comes without.
 *
 * Only names of files matter here; a lookup that leads to a directory is not to be noted. */
#ifndef CACHE_RUN_H
#define CACHE_RUN_H

#include "cache/policy.h"

#include <stdbool.h>
#include <stdint.h>

struct runs;

/** runs_new - @first is the first run number to hand out. At most @nr_callers (at least 1) callers are remembered, the longest
 * idle ones are forgotten first. NULL when memory is short. runs_free takes NULL. */
struct runs *runs_new(uint64_t first, unsigned nr_callers);
void runs_free(struct runs *r);

enum run_op {
	RUN_LOOKUP,
	RUN_OPEN,
	RUN_CREATE,
	RUN_NAME, /* a rename or link to the name */
};

/* One operation of a caller. */
struct run_access {
	int32_t tid;
	enum run_op op;
	uint64_t name;	   /* the hash of the name */
	uint64_t object;   /* 0: a lookup that missed */
	struct place last; /* where the object is now (policy_place); run 0 when unknown */
	uint64_t now_ns;
};

/* What an operation was, when that is known; a lookup is known to be a stat only with the caller's next operation. */
struct run_event {
	bool stat; /* an earlier lookup turned out to be a stat that hit: touch @stat_object at @stat_at */
	uint64_t stat_object;
	struct place stat_at;
	struct place at; /* for RUN_OPEN and RUN_CREATE: where this one belongs */
	/* For RUN_LOOKUP: whether this begins a new run is seen only by what follows, and the kernel must cache nothing of it.
	 * When it missed: if it was a stat, the create that follows would come without a lookup and look like its other half.
	 * When it hit: see runs_stat. */
	bool ambiguous;
};

/** runs_note - what @a is. Never fails. */
struct run_event runs_note(struct runs *r, const struct run_access *a);
/** runs_stat - the caller @tid asks for the attributes of @object. Returns whether it has just looked it up, so that this was
 * a stat, or the first half of an open. */
bool runs_stat(struct runs *r, int32_t tid, uint64_t object);

#endif
