/* SPDX-License-Identifier: Apache-2.0 */
/* node.h - what the modules of cache/ share: nodes, names under construction, the cache's state. Not for front ends. */
#ifndef CACHE_NODE_H
#define CACHE_NODE_H

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/slab.h"
#include "base/thread.h"
#include "cache/cache.h"
#include "cache/flock.h"
#include "cache/placement.h"
#include "cache/policy.h"
#include "cache/run.h"
#include "cache/xattrs.h"
#include "meta/meta.h"
#include "tier/memory.h"

#include <stdatomic.h>

/* object_row.flags */
enum {
	OBJECT_IN_PLACE = 1, /* created in a publish=open directory: writes change it where it is */
	OBJECT_KEEP = 2,     /* evict=off */
};

/* A version's life. A node of any other kind (directory, link …) is COMPLETE or ORPHAN.
 *
 *   create, open for writing        last close, rename, link
 *   ───────────────────▶ PROCESSING ─────────────────────────▶ COMPLETE
 *                            │ killed, unlinked, gave up            │ overwritten, unlinked, evicted
 *                            └────────────▶ ORPHAN ◀────────────────┘
 */
enum node_state { NODE_PROCESSING, NODE_COMPLETE, NODE_ORPHAN };

enum { NR_WRITERS = 4 };

struct node {
	struct map_node
		by_id; /* key: the node id: the generation of a file's version, the object id of all else */
	mode_t type; /* S_IFMT of row.mode: never changes, so it may be read without the lock */
	struct object_row row;
	uint64_t nlookup; /* references of the kernel */
	uint32_t refs;	  /* handles and calls under way */
	uint32_t nr_open;
	uint32_t nr_write;
	uint32_t nr_reserved; /* opens for writing that are on their way, see retry.c */
	uint32_t nr_indirect; /* handles whose reads and writes come through the daemon */
	enum node_state state;
	struct placement
		placement; /* directories: in force for what is created in them, valid at placement_epoch */
	uint64_t placement_epoch;
	uint32_t nr_pending; /* directories: names under construction in it */

	/* Files. */
	int fd; /* backing file, while open (of base_gen until the version has bytes of its own); -1 */
	uint64_t base_gen;    /* version whose bytes this one still shares, 0 when it has its own */
	struct node *base;    /* that version's node, held: its file stays */
	uint64_t base_object; /* keeps base_gen busy in the policy */
	bool truncated;	      /* opened with O_TRUNC: without the bytes of the version before */
	bool new_object;      /* the name was free when the version began */
	bool by_user;	      /* not root wrote it: set-id bits go (write(2)) */
	bool written;	      /* a version that began as a copy was changed */
	bool opened;	      /* some writer has had it open */
	bool spare;	      /* made for a lookup of unknown purpose, see retry.c */
	bool shown;	      /* its commit has been seen, publish_done() is still to come */
	bool killed;	      /* a writer of it died by a signal */
	bool unpublished;     /* publishing failed for want of disk space; holds a reference */
	bool mappable; /* a descriptor that the kernel serves alone may have been mapped for writing */
	bool atime_dirty;
	bool linger; /* renamed over: its bytes stay while the kernel knows it, an open may be on its way */
	bool counted; /* its handles keep the object busy in the policy */
	uint64_t
		closing_until_ns; /* a writer has flushed: lookups wait for its release until then */
	struct place at;	  /* its place in a prompt */
	struct list wait_link;	  /* of cache.mapped (which holds a reference) or cache.spares */
	/* Attributes of a new object until its publication writes them; changed in runs of the metadata's writer alone. */
	struct list xattrs;
	/* As what the transaction under way publishes it, from its run to its done; else NULL. */
	const struct object_row *publishing;
	struct pending *pending; /* the name it will be published as */
	struct list pending_link;
	pid_t writers[NR_WRITERS]; /* threads that opened it for writing; 0: free */
	bool sum_known;
	uint64_t sum;
	int64_t sum_mtime_ns;
};

/* A name under construction: one or more versions that wait for their last close. */
struct pending {
	struct map_node by_name; /* key: name_key() */
	uint64_t parent;
	uint64_t hash;
	uint64_t object; /* the id of the object that all its versions are of */
	bool used;	 /* which is, or has been, in the metadata */
	struct list versions;
	size_t len;
	char name[];
};

/* A caller was told ESTALE and is looking the name up again for what it wanted. */
struct retry {
	struct map_node by_tid;
	struct list link; /* oldest first */
	uint64_t answer;  /* the node to answer with, once made; 0: not yet */
	uint64_t deadline_ns;
	uint64_t node;	 /* that was to be opened */
	uint64_t object; /* its object, and a name that it was found under */
	uint64_t parent;
	uint64_t hash;
	pid_t tid; /* 0: unknown */
	int flags; /* of the open */
	bool write;
	/* for a reader: */
	uint64_t found; /* the node that its lookup was answered with since */
	bool missed;	/* it was answered that there is none */
};

struct handle {
	struct node *node;
	int flags;
	bool write;
	bool killed;
	bool direct;	      /* see handle_direct() */
	uint64_t lock_object; /* that it took part in flock(2) on; 0: none */
	uint64_t lock_owner;
};

enum { NR_NAME_SEQ = 1024, NR_BYTES_LOCKS = 16 };

struct cache {
	struct cache_config cfg;
	char *state_dir;
	char *memory_dir;
	char *huge;
	struct cache_hooks hooks;
	struct meta *meta;
	struct memory_tier *memory;
	uint64_t seed;

	struct mutex lock;
	/* under lock: */
	struct map nodes;
	struct slab node_slab;
	struct map pendings;
	struct map retries;
	struct list retry_order;
	struct policy *policy;
	struct runs *runs;
	struct flocks *flocks;
	uint64_t name_seq
		[NR_NAME_SEQ]; /* bumped when a name, or an object found under it, changed */
	uint64_t placement_epoch;
	uint32_t nr_writers; /* handles open for writing */
	bool watching; /* the keeper looks often at what they take, since there was one lately */
	uint32_t nr_processing;
	uint64_t nr_handles;
	uint32_t nr_unpublished; /* versions whose publishing is to be tried again */
	struct list mapped;	 /* versions closed, but mapped: the keeper looks again */
	struct list spares;	 /* spare versions: the keeper makes the kernel forget them */
	struct list atimes;	 /* struct atime_note of keeper.c */
	struct cache_stats stats;
	bool told_no_pid;
	bool ending; /* a writer that flushes now may not get to its release */
	bool stop;
	struct cond wake;
	struct cond settled; /* a version has left its name */
	struct thread keeper;

	/* One of these is held while a version gets its file; taken with nothing else held. */
	struct mutex bytes_lock[NR_BYTES_LOCKS];
};

/* node.c */
uint64_t name_key(uint64_t parent, uint64_t hash);
struct name pending_name(const struct pending *p);
struct node *node_find(struct cache *c, uint64_t id) REQUIRES(c->lock);
/** node_new - a zeroed node in the table. NULL when memory is short. */
struct node *node_new(struct cache *c, uint64_t id, const struct object_row *row) REQUIRES(c->lock);
/** node_settle - free what nobody refers to: the bytes of an orphan, then the node. */
void node_settle(struct cache *c, struct node *n) REQUIRES(c->lock);
/** node_get - find and count a reference of the call; NULL: no such node. node_put gives it back. */
struct node *node_get(struct cache *c, uint64_t id) EXCLUDES(c->lock);
void node_put(struct cache *c, struct node *n) EXCLUDES(c->lock);
uint64_t node_id(const struct node *n);
/** node_orphan - the version has no name any more. node_settle() frees what that allows. */
void node_orphan(struct cache *c, struct node *n) REQUIRES(c->lock);
/** node_part - the version does not share the bytes of the one before any more. */
void node_part(struct cache *c, struct node *n) REQUIRES(c->lock);
void node_attr(struct cache *c, struct node *n, struct cache_attr *ret) REQUIRES(c->lock);
void node_entry(struct cache *c, struct node *n, uint64_t ttl_ns, struct cache_entry *ret)
	REQUIRES(c->lock);
void seq_bump(struct cache *c, uint64_t parent, uint64_t hash) REQUIRES(c->lock);
uint64_t seq_of(const struct cache *c, uint64_t parent, uint64_t hash);

struct pending *pending_find(struct cache *c, uint64_t parent, uint64_t hash, struct name name)
	REQUIRES(c->lock);
/** pending_join - make @v one of the versions of @name. Returns 0, -ENOMEM. */
int pending_join(struct cache *c, struct node *v, uint64_t parent, uint64_t hash, struct name name)
	REQUIRES(c->lock);
/** pending_leave - @v is no longer a version of its name; tells the hook. */
void pending_leave(struct cache *c, struct node *v) REQUIRES(c->lock);
/** pending_own - the newest version of @p that a thread of the caller's process writes, or NULL. */
struct node *pending_own(struct pending *p, pid_t tid);
/** pending_shared - a version that a writer without O_TRUNC may join, or NULL. */
struct node *pending_shared(struct pending *p);
struct node *pending_newest(struct pending *p);
/** pending_closing - until when lookups may wait for a writer of @p that has flushed; 0: none has. */
uint64_t pending_closing(const struct pending *p);
void writer_add(struct node *v, pid_t tid);
/** node_hidden - whether @n is an unfinished version that @who, who is not its writer, has come upon. */
bool node_hidden(struct cache *c, struct node *n, struct caller who) EXCLUDES(c->lock);

/* caller.c */
/** caller_same - whether two threads are of one process. */
bool caller_same(pid_t a, pid_t b);
/** caller_killed - whether the process is dying by a signal. */
bool caller_killed(pid_t tid);
/** caller_holds - whether the process has file @ino of this name open; true when it cannot be told. */
bool caller_holds(pid_t tid, struct name name, uint64_t ino);

/* publish.c */
/** publish - make @v, unless that has happened, the current version of @name in @parent (or, with @name.s NULL, of the name that
 * it was begun under) and, with @from, remove the name @from that it was renamed from. */
struct publish_at {
	uint64_t parent;
	struct name name;
	const struct rename_at *from;
	bool noreplace;
};
/* Returns 0, -EALREADY when it was published or given up before, -EEXIST, -EISDIR, -ENOENT (directory gone),
 * -EFBIG (larger than the budget), -ENOSPC, -EIO. */
int publish(struct cache *c, struct node *v, const struct publish_at *at)
	MUST_CHECK EXCLUDES(c->lock);
/** version_give_up - the bytes of @v are dropped, its name stays as it was. */
void version_give_up(struct cache *c, struct node *v) REQUIRES(c->lock);

/* version.c */
struct version_of {
	uint64_t parent;
	struct name name;	      /* .s NULL: none yet (O_TMPFILE) */
	const struct object_row *old; /* the object that is overwritten, NULL: a new one */
	struct node *base;	      /* the node of @old's version, NULL: not known */
	mode_t mode;
	bool truncated;
};
/** version_new - a PROCESSING version of a name; not yet with bytes, nor opened. Its reference (node_put) is the caller's. */
int version_new(struct cache *c, struct caller who, const struct version_of *of, struct node **ret)
	MUST_CHECK EXCLUDES(c->lock);
/** new_row - attributes of an object made now in directory @parent: owner, set-gid inheritance, times. */
int new_row(struct cache *c, struct caller who, uint64_t parent, mode_t mode,
	    struct object_row *ret) MUST_CHECK EXCLUDES(c->lock);
/** version_bytes - the version gets a file of its own (a copy of its base, when it has one). */
int version_bytes(struct cache *c, struct node *v) MUST_CHECK EXCLUDES(c->lock);
/** node_file - open the node's file, unless it is: one descriptor (node.fd) for all its handles. */
int node_file(struct cache *c, struct node *n) MUST_CHECK EXCLUDES(c->lock);

/* finish.c */
/** finish_version - the last writer of @n is gone: publish it, drop it, or wait for the end of its mappings. */
void finish_version(struct cache *c, struct node *n) EXCLUDES(c->lock);
/** finish_mapped - look again after the versions that were mapped. */
void finish_mapped(struct cache *c) EXCLUDES(c->lock);

/** xattrs_pending - whether the node's attributes are in its list and not in the metadata. */
static inline bool xattrs_pending(const struct node *n)
{
	return n->state == NODE_PROCESSING && n->new_object;
}

/* lookup.c */
/** node_of_row - the node that the row is shown as, made when there is none yet; NULL: no memory. */
struct node *node_of_row(struct cache *c, const struct object_row *row) REQUIRES(c->lock);
/** closing_until - until when a lookup may wait for a writer that is closing a new version of @object; 0: none. */
uint64_t closing_until(struct cache *c, uint64_t object) REQUIRES(c->lock);

/* names.c */
/** dir_changed - an entry of @dir came or went at @now_ns. */
void dir_changed(struct cache *c, uint64_t dir, int64_t now_ns, int nlink_delta) REQUIRES(c->lock);
/** node_of - the node of the object's current version, if it is known. */
struct node *node_of(struct cache *c, const struct object_row *row) REQUIRES(c->lock);
/** drop_name - inside a run: one name of @d->row, which is filled in, goes; with its last name, the object. dropped - the same
 * in memory, after the commit. */
struct drop {
	struct object_row row; /* as it was; id 0: there was nothing */
	bool last;
};
int drop_name(struct meta_db *db, struct drop *d, uint64_t parent, uint64_t hash, struct name name,
	      int64_t now_ns) MUST_CHECK;
void dropped(struct cache *c, const struct drop *d, int64_t now_ns) REQUIRES(c->lock);
/** check_free - inside a run: -EEXIST when @name is there or being made, -ENOENT when @parent is gone. */
int check_free(struct cache *c, struct meta_db *db, uint64_t parent, uint64_t hash,
	       struct name name) MUST_CHECK;

/* retry.c */
/** version_unreserve - who was about to open @v for writing has done so, or does not come: when nobody else writes to it either, it
 * is published, or dropped if there is nothing in it. */
void version_unreserve(struct cache *c, struct node *v) REQUIRES(c->lock);
struct retry *retry_find(struct cache *c, pid_t tid) REQUIRES(c->lock);
/** retry_note - remember that @who wanted to open @n; false when it was sent round already: another time is no use. */
bool retry_note(struct cache *c, struct caller who, const struct node *n, int flags, bool write)
	REQUIRES(c->lock);
/** send_round - @who needs a version of its own, or another node than @n: -ESTALE, and the kernel comes back under the name. A
 * writer without a way round: -EBUSY; one when nothing new is let in: the error of meta_admits(). A reader without one: 0. */
int send_round(struct cache *c, struct caller who, const struct node *n, int flags, bool write)
	REQUIRES(c->lock);
/** retry_answered - the lookup of @who, perhaps on its way round, was answered with @n, or NULL: the name is not there. */
void retry_answered(struct cache *c, struct caller who, const struct node *n) REQUIRES(c->lock);
void retry_drop(struct cache *c, struct retry *r) REQUIRES(c->lock);
/** retry_unknown - the note of a writer without a thread id that may be coming back for this name or object, or NULL. */
struct retry *retry_unknown(struct cache *c, uint64_t parent, uint64_t hash, uint64_t object)
	REQUIRES(c->lock);
/** spares_forget - tell the kernel that it should look up the names under which it may still know spare versions. */
void spares_forget(struct cache *c) EXCLUDES(c->lock);
/** spare_claim - a writer opens spare version @n: from now on it is under construction. -ESTALE: a reader was first. */
int spare_claim(struct cache *c, struct caller who, struct node *n, int flags)
	MUST_CHECK REQUIRES(c->lock);
/** retry_end - whatever @who was sent round for, it does something else by now. */
void retry_end(struct cache *c, struct caller who) REQUIRES(c->lock);
void retry_expire(struct cache *c, uint64_t now_ns) REQUIRES(c->lock);

/* evict.c */
/** memory_headroom - how far the memory tier's hard limit lies above a budget of @ram_bytes: writers are let in below the
 * budget and not stopped in the middle of an object. */
static inline uint64_t memory_headroom(uint64_t ram_bytes)
{
	return ram_bytes / 8 + (UINT64_C(128) << 20);
}
/** room_for - evict until @bytes more fit into the budget. -ENOSPC. */
int room_for(struct cache *c, uint64_t bytes) MUST_CHECK EXCLUDES(c->lock);
/** evict_over_budget - evict what exceeds the budget, but not @except (object id). */
void evict_over_budget(struct cache *c, uint64_t except) EXCLUDES(c->lock);
uint64_t memory_usage(struct cache *c) REQUIRES(c->lock);
void evict_overflow(struct cache *c) EXCLUDES(c->lock);

/* policy bookkeeping, keeper.c */
int keeper_restore(struct cache *c) MUST_CHECK;
void keeper_run(void *arg);
void keeper_flush(struct cache *c) EXCLUDES(c->lock);
void note_atime(struct cache *c, struct node *n) REQUIRES(c->lock);
/** note_access - tell the policy what @who does. Returns whether the kernel must not remember a lookup (see run.h). */
bool note_access(struct cache *c, struct caller who, enum run_op op, struct node *n, uint64_t name)
	REQUIRES(c->lock);
/** note_stat - and that it asks for the attributes of @n. */
void note_stat(struct cache *c, struct caller who, const struct node *n) REQUIRES(c->lock);

/* xattr.c */
int placement_of(struct cache *c, uint64_t dir, struct placement *ret) MUST_CHECK EXCLUDES(c->lock);
void apply_pin(struct object_row *row, const struct placement *p);
bool row_pinned(const struct object_row *row, int64_t now_ns);

/* sum.c */
/** node_sum - see that node.sum is that of the file as it is. -ENODATA: not published, or no bytes. Reads the whole file. */
int node_sum(struct cache *c, struct node *n) MUST_CHECK EXCLUDES(c->lock);

/* attr.c */
/** row_store - measure the node's file and write its attributes to the metadata. A version that is not published, or an
 * object that is gone, is no error. */
int row_store(struct cache *c, struct node *n) MUST_CHECK EXCLUDES(c->lock);

#endif
