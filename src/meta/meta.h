/* SPDX-License-Identifier: Apache-2.0 */
/* meta.h - the metadata in SQLite: which names and objects exist, and what the policy must remember.
 *
 * The database is the index: nothing here keeps rows in memory beyond SQLite's bounded page caches.
 * One connection writes. meta_submit() queues an operation; whichever thread finds no leader becomes it, runs everything
 * queued inside one transaction, commits once (WAL, no fsync unless an operation asks for it) and wakes the others.
 * Readers have connections of their own, handed out by meta_read_begin(), and never wait for the writer.
 * A background thread checkpoints the WAL. SQLite's error codes end in this module: SQLITE_FULL is -ENOSPC,
 * SQLITE_CORRUPT and SQLITE_NOTADB are -EUCLEAN, I/O errors -EIO; each is logged once with the original text. */
#ifndef META_META_H
#define META_META_H

#include "base/attr.h"
#include "key/name.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct meta;
/* One connection, inside a transaction: the writer's or a reader's. */
struct meta_db;

enum { META_ROOT = 1 }; /* object id of the root directory */

/* One object: a file, directory, symbolic link, fifo or socket. */
struct object_row {
	uint64_t id;   /* st_ino; never used again */
	uint64_t gen;  /* generation of the current version; for what has no bytes, equal to id */
	uint32_t mode; /* type and permission bits, as st_mode */
	uint32_t uid;
	uint32_t gid;
	uint32_t nlink; /* for a directory 2 + its subdirectories */
	uint64_t size_bytes;
	int64_t atime_ns; /* CLOCK_REALTIME */
	int64_t mtime_ns;
	int64_t ctime_ns;
	int64_t btime_ns;
	uint64_t
		parent; /* directory and name hash of the first name; the others are in table link */
	uint64_t hash;
	uint32_t flags;	       /* OBJECT_* of cache/, stored as given */
	uint64_t pin_until_ns; /* CLOCK_REALTIME; 0: not pinned, UINT64_MAX: hard */
	uint64_t memory_bytes; /* bytes allocated in the memory tier; valid when has_memory */
	bool has_memory;       /* the memory tier holds a replica */
	uint32_t heat_list;    /* policy: which list, opaque */
	uint64_t heat_run;     /* policy: run */
	uint32_t heat_depth;   /* policy: depth in the run */
};

struct dentry_row {
	uint64_t parent;
	uint64_t hash;
	uint64_t object;
	uint32_t mode; /* type bits of the object (S_IFMT) */
};

/* An operation of the writer. @run reads and writes rows through @db and returns 0 or -errno; it must make all its
 * checks before its first write, because the operations of one transaction stand or fall together. @done (may be
 * NULL) is called after the commit or its failure with the operation's result, by the leader, in the order of the runs and
 * before any later run: the place to change what memory knows. Both run on any thread, with no lock of meta held that
 * a reader needs; neither may call meta_submit(), meta_probe() or meta_next_id(). When another operation of the transaction fails
 * inside SQLite, all is rolled back and each is run again by itself: @run may be called twice. The struct is the caller's, until meta_submit() returns. */
struct meta_op {
	int (*run)(struct meta_db *db, struct meta_op *op);
	void (*done)(struct meta_op *op, int r);
	bool durable; /* commit with fsync of the WAL */
	/* private: */
	struct meta_op *next;
	int result;
	bool finished;
};

/** meta_open - open or create the database at @path, migrate it, start its checkpoint thread.
 * @clean: whether the last meta_close() was reached (set when not NULL). Creates the root directory (mode 0755, owner = caller).
 * Returns 0, -EUCLEAN (damaged, or no database), -EPROTONOSUPPORT (schema newer than this program), or an errno of open. Logs why. */
int meta_open(const char *path, bool *clean, struct meta **ret) MUST_CHECK;
/** meta_close - checkpoint, note the clean end, free. NULL is allowed. No operation may be under way. */
void meta_close(struct meta *m);

/** meta_submit - run @op, wait for its commit, return its result. */
int meta_submit(struct meta *m, struct meta_op *op) MUST_CHECK;
/** meta_healthy - 0, or the error of the last commit when that failed (disk full, I/O). */
int meta_healthy(const struct meta *m);
/** meta_admits - whether what is new may begin: 0, the error of the last commit, or -ENOSPC when there is only room left for
 * what has begun and for removing. */
int meta_admits(const struct meta *m) MUST_CHECK;
/** meta_probe - commit a trivial change, to see whether the disk takes one again: 0 (and meta_healthy is 0), or why not. */
int meta_probe(struct meta *m) MUST_CHECK;

/** meta_read_begin - a reader with a stable snapshot. Never waits for the writer. Returns 0, -ENOMEM, -EIO, -EUCLEAN.
 * meta_read_end gives it back; hold it for one lookup or one batch of rows, not across a wait. */
int meta_read_begin(struct meta *m, struct meta_db **ret) MUST_CHECK;
void meta_read_end(struct meta *m, struct meta_db *db);

/** meta_seed - the seed of name_hash() of this database, made at random when it was created. */
uint64_t meta_seed(const struct meta *m);
/** meta_next_id - a number for an object or generation that was never handed out before, not even before a crash
 * (ranges are reserved in the database ahead of use). Any thread, but not from @run or @done of an operation,
 * nor under a lock that a @done takes: it may have to commit. Returns 0 on failure (disk full). Greater than META_ROOT. */
uint64_t meta_next_id(struct meta *m);

/* Rows. A scan's @fn may use other row functions of the same @db, but not the same scan. "get" fills *@ret and returns 0, -ENOENT, or a translated SQLite error; so do the others without a result.
 * Those that write need the writer's @db; those that change or delete give -ENOENT for what is not there. */
int meta_dentry_get(struct meta_db *db, uint64_t parent, uint64_t hash, struct name name,
		    struct dentry_row *ret) MUST_CHECK;
int meta_dentry_put(struct meta_db *db, const struct dentry_row *row, struct name name)
	MUST_CHECK; /* -EEXIST */
int meta_dentry_set(struct meta_db *db, const struct dentry_row *row, struct name name)
	MUST_CHECK; /* new object of an existing name */
int meta_dentry_del(struct meta_db *db, uint64_t parent, uint64_t hash, struct name name)
	MUST_CHECK;
/** meta_dentry_any - -ENOENT when the directory has no entry, else 0. */
int meta_dentry_any(struct meta_db *db, uint64_t parent) MUST_CHECK;
/** meta_dentry_name - the name of @object in @parent with @hash, into @buf of NAME_MAX_BYTES; its length in *@ret_len. */
int meta_dentry_name(struct meta_db *db, uint64_t parent, uint64_t hash, uint64_t object, char *buf,
		     size_t *ret_len) MUST_CHECK;
/** meta_dentry_scan - call @fn for the entries of @parent with hash > @after (cookie order) until it returns false. */
int meta_dentry_scan(struct meta_db *db, uint64_t parent, uint64_t after,
		     bool (*fn)(void *arg, const struct dentry_row *row, struct name name),
		     void *arg) MUST_CHECK;

int meta_object_get(struct meta_db *db, uint64_t id, struct object_row *ret) MUST_CHECK;
int meta_object_put(struct meta_db *db, const struct object_row *row) MUST_CHECK; /* insert */
int meta_object_set(struct meta_db *db, const struct object_row *row)
	MUST_CHECK;						 /* update all columns but heat_* */
int meta_object_del(struct meta_db *db, uint64_t id) MUST_CHECK; /* its xattrs, links, target too */
/** meta_object_touch_dir - set mtime and ctime of directory @id and add @nlink_delta to its link count. */
int meta_object_touch_dir(struct meta_db *db, uint64_t id, int64_t now_ns, int nlink_delta)
	MUST_CHECK;
/** meta_object_heat - store what the policy must remember of an object (no error when it is gone). */
int meta_object_heat(struct meta_db *db, uint64_t id, uint32_t list, uint64_t run, uint32_t depth)
	MUST_CHECK;
/** meta_object_scan - call @fn for every object with id > @after that has a memory replica, in order of id, until it returns false. */
int meta_object_scan(struct meta_db *db, uint64_t after,
		     bool (*fn)(void *arg, const struct object_row *row), void *arg) MUST_CHECK;
/** meta_object_count - the number of objects; an O(1) estimate is not enough, but it may be slow (start and tests only). */
int meta_object_count(struct meta_db *db, uint64_t *ret) MUST_CHECK;

/* Names of an object beyond its first one (object_row.parent, .hash). */
struct link_row {
	uint64_t parent;
	uint64_t hash;
};
int meta_link_put(struct meta_db *db, uint64_t object, struct link_row l) MUST_CHECK;
int meta_link_del(struct meta_db *db, uint64_t object, struct link_row l) MUST_CHECK; /* -ENOENT */
int meta_link_scan(struct meta_db *db, uint64_t object, bool (*fn)(void *arg, struct link_row l),
		   void *arg) MUST_CHECK;

/* Symbolic links' targets: up to PATH_MAX bytes. get writes at most @cap bytes and the length. */
int meta_target_put(struct meta_db *db, uint64_t object, const char *target, size_t len) MUST_CHECK;
int meta_target_get(struct meta_db *db, uint64_t object, char *buf, size_t cap, size_t *ret_len)
	MUST_CHECK;

/* Extended attributes. get: -ENODATA when absent; with @cap 0 only the length; -ERANGE when it does not fit. */
int meta_xattr_get(struct meta_db *db, uint64_t object, const char *name, void *buf, size_t cap,
		   size_t *ret_len) MUST_CHECK;
int meta_xattr_set(struct meta_db *db, uint64_t object, const char *name, const void *value,
		   size_t len) MUST_CHECK;
int meta_xattr_del(struct meta_db *db, uint64_t object, const char *name) MUST_CHECK; /* -ENODATA */
int meta_xattr_scan(struct meta_db *db, uint64_t object, bool (*fn)(void *arg, const char *name),
		    void *arg) MUST_CHECK;

/* The policy's ghost list: hashes of evicted names, oldest first by @seq. */
int meta_ghost_put(struct meta_db *db, uint64_t hash, uint64_t bytes, uint64_t seq) MUST_CHECK;
int meta_ghost_del(struct meta_db *db, uint64_t hash)
	MUST_CHECK; /* no error when it is not there */
int meta_ghost_trim(struct meta_db *db, uint64_t below_seq)
	MUST_CHECK; /* delete those with seq < below_seq */
int meta_ghost_scan(struct meta_db *db,
		    bool (*fn)(void *arg, uint64_t hash, uint64_t bytes, uint64_t seq), void *arg)
	MUST_CHECK;

/* Small named numbers (policy counters): get gives -ENOENT when never set. */
int meta_value_get(struct meta_db *db, const char *name, uint64_t *ret) MUST_CHECK;
int meta_value_set(struct meta_db *db, const char *name, uint64_t value) MUST_CHECK;

#endif
