/* SPDX-License-Identifier: Apache-2.0 */
/* policy.h - what to evict: probation and protected, tail of a prompt first, and a ghost list. Pure: no clock, no lock, no I/O.
 *
 * Every resident object is in one of two lists, ordered by (run, depth): older runs leave first, and inside a run the deepest
 * block leaves first. An insert enters probation, or protected when its name is in the ghost list; a touch moves an object
 * to protected. Protected holds at most 30 % of the capacity in bytes: what exceeds it goes back to probation as part of the
 * current run, keeping its depth. The victim is the first of probation, or of protected when probation has none that may go.
 * What comes so late that probation has lost younger runs already counts as part of the latest run, with its depth.
 * The ghost list remembers the names of as many evicted bytes as the capacity holds, at most 2^20 of them.
 * The order is kept in binary heaps: O(log n) for everything, and O(1) for what is new. About 55 bytes an object, index and
 * heap included; about 32 a ghost. Memory is given back when the content shrinks. Not locked. */
#ifndef CACHE_POLICY_H
#define CACHE_POLICY_H

#include "base/attr.h"

#include <stdbool.h>
#include <stdint.h>

struct policy;

enum policy_list { POLICY_PROBATION = 0, POLICY_PROTECTED = 1 };

/* A place in a prompt: the run (numbers grow with time) and the depth in it. */
struct place {
	uint64_t run;
	uint32_t depth;
};

/** policy_new - for @capacity_bytes of objects. NULL when memory is short. policy_free takes NULL. */
struct policy *policy_new(uint64_t capacity_bytes);
void policy_free(struct policy *p);

/** policy_insert - object @id, of no size yet, enters at @at; @name is the hash by which the ghost list knows it.
 * It is busy (see below) until policy_settle. Returns 0, -ENOMEM, -EEXIST. */
int policy_insert(struct policy *p, uint64_t id, uint64_t name, struct place at) MUST_CHECK;
/** policy_restore - an object read back from the metadata: not busy, exactly in @list at @at. 0, -ENOMEM, -EEXIST. */
int policy_restore(struct policy *p, uint64_t id, uint64_t bytes, enum policy_list list,
		   struct place at) MUST_CHECK;
/** policy_settle - the object's bytes are now @bytes; the first call ends the business of an insert. */
void policy_settle(struct policy *p, uint64_t id, uint64_t bytes);
/** policy_touch - it was read (or looked up) at @at. */
void policy_touch(struct policy *p, uint64_t id, struct place at);
/** policy_rename - the object's name is now @name. One in the ghost list moves the object to protected, as at an
 * insert: clients create under a temporary name. */
void policy_rename(struct policy *p, uint64_t id, uint64_t name);
/** policy_remove - it is gone for another reason than eviction: no ghost. */
void policy_remove(struct policy *p, uint64_t id);
/** policy_busy - @by more (fewer when negative) users keep the object from being a victim; those before policy_settle, which
 * policy_insert implies, are not among them. Returns whether the object is inside. */
bool policy_busy(struct policy *p, uint64_t id, int by);
/** policy_pin - never a victim while pinned. policy_grace - a victim until @until_ns only when nothing else can go; the
 * time is rounded up to the next multiple of 67 ms. 0 ends the grace. */
void policy_pin(struct policy *p, uint64_t id, bool pinned);
void policy_grace(struct policy *p, uint64_t id, uint64_t until_ns);

/** policy_victim - the object that should go next, other than @except (0: none), at monotonic time @now_ns; it stays in.
 * First those out of grace, then any. Returns false when everything is busy or pinned. Unlucky candidates are set aside at
 * most once per change of their state, so the cost does not grow with the number of busy objects. */
bool policy_victim(struct policy *p, uint64_t except, uint64_t now_ns, uint64_t *ret);
/** policy_evict - take @id out and remember its @name in the ghost list. */
void policy_evict(struct policy *p, uint64_t id, uint64_t name);

/** policy_used_bytes - the sum over all objects inside. policy_count - how many. policy_evictable_bytes - neither busy nor pinned. */
uint64_t policy_used_bytes(const struct policy *p);
uint64_t policy_evictable_bytes(const struct policy *p);
uint64_t policy_count(const struct policy *p);
uint64_t policy_ghosts(const struct policy *p);
/** policy_last_run - the largest run seen: a restarted daemon counts on from it. */
uint64_t policy_last_run(const struct policy *p);

/* What must be remembered over a restart. Objects whose list or place changed since the last call, each given once. */
struct policy_heat {
	uint64_t id;
	enum policy_list list;
	struct place at;
};
/** policy_dirty - an object counts from its first policy_settle on, one restored not at all. Take up to @cap changed objects
 * out of the change list into @ret; returns how many. */
unsigned policy_dirty(struct policy *p, struct policy_heat *ret, unsigned cap);

/** policy_place - where object @id is; false when it is not inside. For the row of a new object, and for runs_note. */
bool policy_place(const struct policy *p, uint64_t id, struct policy_heat *ret);

struct policy_ghost {
	uint64_t name;
	uint64_t bytes;
	uint64_t seq; /* ascending with time of eviction */
	bool gone;    /* left the list (came back, or too old) rather than entered it */
};
/** policy_dirty_ghosts - the same for the ghost list: first those gone, by name, then those that entered; apply them in this
 * order. To be called now and then, or the list of those gone grows to 2^20 and then loses some. policy_restore_ghost - in order of seq, before use. */
unsigned policy_dirty_ghosts(struct policy *p, struct policy_ghost *ret, unsigned cap);
int policy_restore_ghost(struct policy *p, uint64_t name, uint64_t bytes, uint64_t seq) MUST_CHECK;

#endif
