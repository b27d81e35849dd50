/* SPDX-License-Identifier: Apache-2.0 */
/* state.h - private to meta/: what meta.c, commit.c and checkpoint.c share.
 * Every lock here is a leaf, but id_lock, under which none is taken either. */
#ifndef META_STATE_H
#define META_STATE_H

#include "base/attr.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "meta/db.h"
#include "meta/meta.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum meta_ballast {
	BALLAST_NONE, /* the filesystem cannot */
	BALLAST_WHOLE,
	BALLAST_GONE, /* let go, or never got: there is little room */
};

struct meta {
	/* set once at open: */
	char *path; /* absolute: readers connect later, when the working directory may be another */
	uint64_t seed;
	bool opened;		/* meta_open came to its end: meta_close notes a clean one */
	struct meta_db *writer; /* used by the leader alone */
	struct meta_db *ckpt;	/* used by the checkpoint thread alone */
	struct log_limit limit;

	_Atomic int health;
	_Atomic int ballast;	     /* enum meta_ballast */
	_Atomic uint64_t commit_seq; /* commits that changed something */

	struct mutex lock;
	/* under lock: the queue of the group commit, see commit.c */
	struct meta_op *head;
	struct meta_op **tail;
	unsigned batch_no;   /* of the batch that is being collected */
	struct cond turn[2]; /* where the callers of even and odd batches wait */
	bool leading;	     /* somebody uses the writer */
	bool ckpt_wants;     /* the checkpoint thread waits to lead; goes before the queue */
	bool ckpt_granted;
	struct cond ckpt_turn;

	struct mutex pool_lock;
	/* under pool_lock: */
	struct meta_db *pool; /* idle readers, the last used first */
	unsigned epoch;	      /* of the readers that are handed out now */
	unsigned nr_out[2];   /* readers in use, of even and odd epochs */
	struct cond drained;

	struct mutex id_lock;
	/* under id_lock: */
	uint64_t id_next; /* ids in [id_next, id_limit) are reserved in the database and free */
	uint64_t id_limit;
	bool id_asked; /* the checkpoint thread was told to reserve more */

	struct thread thread;
	_Atomic unsigned
		kick_at; /* WAL pages at which the writer wakes the thread; UINT_MAX: it is awake */
	_Atomic unsigned wal_pages;
	struct mutex wake_lock;
	struct cond wake;
	/* under wake_lock: */
	bool stop;
	bool kicked;
	bool refill;
};

/* commit.c */
/** meta_lead_begin - wait until nobody uses the writer, and keep others from it. At most one thread
 * (checkpoint) calls this. */
void meta_lead_begin(struct meta *m) EXCLUDES(m->lock);
void meta_lead_end(struct meta *m) EXCLUDES(m->lock);
/** meta_commit_one - as leader: run @op in a transaction of its own. */
int meta_commit_one(struct meta *m, struct meta_op *op) MUST_CHECK;
/** meta_run_trivial - the run of an operation that changes one page and nothing that matters.
 * (Storing the value that a row has already would not do: SQLite then writes no page.) */
int meta_run_trivial(struct meta_db *db, struct meta_op *op) MUST_CHECK;

/* meta.c */
/** meta_pool_release - end the transactions that idle readers keep, so that a checkpoint can pass
 * them. */
void meta_pool_release(struct meta *m) EXCLUDES(m->pool_lock);
/** meta_drain_readers - wait until nobody reads by a snapshot from before the call, idle readers included: while one does,
 * SQLite does not start the WAL again. Readers that begin meanwhile do not wait. Returns false when it takes too long. */
bool meta_drain_readers(struct meta *m) EXCLUDES(m->pool_lock);
/** meta_reserve_ids - one more range, durably. */
int meta_reserve_ids(struct meta *m) MUST_CHECK;

/* ballast.c */
/** meta_ballast_take - see that it is whole; what became of that is in m->ballast. Not from two threads at once. */
void meta_ballast_take(struct meta *m);
/** meta_ballast_drop - the disk is full: let it go. True when that made room. */
bool meta_ballast_drop(struct meta *m);

/* checkpoint.c */
int meta_checkpoint_start(struct meta *m) MUST_CHECK;
void meta_checkpoint_stop(struct meta *m) EXCLUDES(m->wake_lock);
/** meta_wake - let the thread look at the WAL (@kick), or reserve ids (@refill). */
void meta_wake(struct meta *m, bool kick, bool refill) EXCLUDES(m->wake_lock);

#endif
