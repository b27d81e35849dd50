/* SPDX-License-Identifier: Apache-2.0 */
/* cache.h - the filesystem itself, without its front end: names, versions, replicas, eviction.
 *
 * Objects have a stable id (st_ino); every version of a file has a generation, which is also the node id that the kernel
 * knows it by: an overwrite is a new node, so readers of the old version keep it. A node lives while the kernel has looked it
 * up (cache_forget) or somebody has it open. All functions may be called from any thread; they return 0 or -errno and may
 * block on the metadata's commit, never on the kernel: what the kernel must be told goes through the hooks. */
#ifndef CACHE_CACHE_H
#define CACHE_CACHE_H

#include "base/attr.h"
#include "cache/flock.h"
#include "key/name.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

struct cache;
struct handle;

enum { CACHE_ROOT = 1 }; /* node of the root directory */
/* Nodes from here on are never the cache's: a front end may use them for files of its own. */
#define CACHE_NODE_END (UINT64_C(1) << 62)

struct cache_hooks {
	void *arg;
	/* The kernel may know @name in @parent as something that it no longer is. Must not block; @name is copied. */
	void (*inval_entry)(void *arg, uint64_t parent, struct name name);
	/* A closing writer of @name has published or given up: lookups that got -EINPROGRESS may be asked again.
	 * Called with locks of the cache held: it must not call back. */
	void (*settled)(void *arg, uint64_t parent, struct name name);
};

struct cache_config {
	const char *state_dir;	/* kvcachefs.db and, unless @memory_dir is set, memory/ are in it */
	const char *memory_dir; /* NULL: mount a private tmpfs */
	const char *huge;
	uint64_t ram_bytes; /* the memory tier's budget */
	uint64_t entry_timeout_ns;
	uint64_t negative_timeout_ns;
	uint64_t grace_ns;	  /* no eviction so long after a stat, unless nothing else can go */
	uint64_t publish_wait_ns; /* the longest that a lookup waits for a closing writer */
	bool noatime;		  /* reading leaves access times alone */
	bool evict;		  /* default of directories that do not say */
};

/* Who asks. */
struct caller {
	pid_t tid; /* thread id; 0 when unknown (another pid namespace) */
	uid_t uid;
	gid_t gid;
};

struct cache_attr {
	struct stat st;
	struct timespec btime;
	uint64_t ttl_ns; /* how long the kernel may believe it */
};

struct cache_entry {
	uint64_t node; /* 0: there is no such name, and the kernel may remember that for ttl_ns */
	uint64_t ttl_ns;
	struct cache_attr attr;
};

/** cache_open - open the metadata and the memory tier below cfg->state_dir, drop what memory lost, restore the policy.
 * The strings of @cfg are copied. Returns 0, those of meta_open and memory_open, -ENOMEM; the reason is logged. */
int cache_open(const struct cache_config *cfg, struct cache **ret) MUST_CHECK;
/** cache_close - everything must be released; unfinished versions are dropped. NULL is allowed. */
void cache_close(struct cache *c);
/** cache_settle - before the mount goes: wait, no longer than publish_wait_ns, for the writers that are closing. What has not
 * ended by then will not be published. */
void cache_settle(struct cache *c);
/** cache_set_hooks - before the first request. */
void cache_set_hooks(struct cache *c, const struct cache_hooks *h);

/* Names. Every entry returned counts one lookup of its node, to be given back by cache_forget. */

/** cache_lookup - resolve one name. -EINPROGRESS: a writer is closing it: ask again when settled, or at *@ret_deadline_ns
 * (CLOCK_MONOTONIC) with NULL for it, which does not wait. A miss is success with node 0. */
int cache_lookup(struct cache *c, struct caller who, uint64_t parent, struct name name,
		 struct cache_entry *ret, uint64_t *ret_deadline_ns) MUST_CHECK;
void cache_forget(struct cache *c, uint64_t node, uint64_t nr);

struct new_node {
	mode_t mode;
	const char *target; /* of a symbolic link, else NULL */
};
/** cache_make - directory, symbolic link, fifo, socket or empty file. Device nodes: -EPERM. */
int cache_make(struct cache *c, struct caller who, uint64_t parent, struct name name,
	       struct new_node what, struct cache_entry *ret) MUST_CHECK;
int cache_link(struct cache *c, struct caller who, uint64_t node, uint64_t parent, struct name name,
	       struct cache_entry *ret) MUST_CHECK;
/** cache_unlink - @dir: rmdir. */
int cache_unlink(struct cache *c, struct caller who, uint64_t parent, struct name name, bool dir)
	MUST_CHECK;

struct rename_at {
	uint64_t parent;
	struct name name;
};
/** cache_rename - @flags of renameat2(2): RENAME_NOREPLACE, RENAME_EXCHANGE; others -EINVAL. */
int cache_rename(struct cache *c, struct caller who, struct rename_at from, struct rename_at to,
		 unsigned flags) MUST_CHECK;
/** cache_readlink - @buf of PATH_MAX bytes; terminated by NUL. */
int cache_readlink(struct cache *c, uint64_t node, char *buf, size_t cap) MUST_CHECK;

/** cache_settle_dir - before a listing: wait, no longer than publish_wait_ns, for the writers that are closing in @node. */
void cache_settle_dir(struct cache *c, uint64_t node);
/** cache_readdir - call @fn for the entries behind @cookie (0: all) until it returns false. Cookies are > 0, ascending,
 * and stay valid; a name that is there all the time is seen exactly once. */
int cache_readdir(struct cache *c, uint64_t node, uint64_t cookie,
		  bool (*fn)(void *arg, struct name name, uint64_t ino, mode_t type,
			     uint64_t cookie),
		  void *arg) MUST_CHECK;
/** cache_parent - the directory's parent (its own for the root): "..". */
uint64_t cache_parent(struct cache *c, uint64_t node);

/* Attributes. @h may be NULL. */
/** cache_getattr - -ESTALE: @who came upon a version that it is not to see yet. */
int cache_getattr(struct cache *c, struct caller who, uint64_t node, struct cache_attr *ret)
	MUST_CHECK;
enum {
	SET_MODE = 1,
	SET_UID = 2,
	SET_GID = 4,
	SET_SIZE = 8,
	SET_ATIME = 16,
	SET_MTIME = 32,
	SET_CTIME = 64,
};
struct cache_setattr {
	unsigned set; /* SET_* */
	mode_t mode;
	uid_t uid;
	gid_t gid;
	uint64_t size_bytes;
	int64_t atime_ns;
	int64_t mtime_ns;
	int64_t ctime_ns;
};
/** cache_setattr - -ESTALE when a truncation by path must go to a new version: the kernel looks the name up again. */
int cache_setattr(struct cache *c, struct caller who, uint64_t node, struct handle *h,
		  const struct cache_setattr *s, struct cache_attr *ret) MUST_CHECK;
/** cache_statfs - f_namemax is the front end's to tell. */
int cache_statfs(struct cache *c, struct statvfs *ret) MUST_CHECK;

/* Extended attributes: user.* alone, others -EOPNOTSUPP. get and list: with @cap 0 the length needed, else -ERANGE. */
int cache_getxattr(struct cache *c, uint64_t node, const char *name, char *buf, size_t cap,
		   size_t *ret_len) MUST_CHECK;
int cache_setxattr(struct cache *c, uint64_t node, const char *name, const char *value, size_t len,
		   int flags) MUST_CHECK;
int cache_removexattr(struct cache *c, uint64_t node, const char *name) MUST_CHECK;
int cache_listxattr(struct cache *c, uint64_t node, char *buf, size_t cap, size_t *ret_len)
	MUST_CHECK;

/* Data. A handle is one open(2). */

struct new_file {
	struct name name; /* .s NULL: none, for cache_tmpfile */
	mode_t mode;
	int flags; /* of open(2) */
};
/** cache_create - create and open, or open what appeared meanwhile. The entry counts a lookup. */
int cache_create(struct cache *c, struct caller who, uint64_t parent, struct new_file what,
		 struct cache_entry *ret, struct handle **ret_h) MUST_CHECK;
/** cache_tmpfile - a file without a name, in the placement of @parent; cache_link publishes it. */
int cache_tmpfile(struct cache *c, struct caller who, uint64_t parent, struct new_file what,
		  struct cache_entry *ret, struct handle **ret_h) MUST_CHECK;
/** cache_open_file - -ESTALE: the kernel must look the name up again, and gets another node. -ENOSPC: memory is full. */
int cache_open_file(struct cache *c, struct caller who, uint64_t node, int flags,
		    struct handle **ret) MUST_CHECK;
/** handle_direct - whether the bytes are in one file for the life of the handle, so that the kernel may go there itself;
 * its descriptor is handle_fd's. A handle that is not direct reads by handle_fd() and writes by handle_fd_write(). */
bool handle_direct(const struct handle *h);
uint64_t handle_node(const struct handle *h);
bool handle_writable(const struct handle *h);
/** handle_fd - the descriptor of the bytes as they are now, for reading; borrowed until the next call with @h. */
int handle_fd(struct handle *h);
/** handle_share - another descriptor of a direct handle's file, read-only, for the kernel to keep: the caller closes it. */
int handle_share(struct cache *c, const struct handle *h, int *ret) MUST_CHECK;
/** handle_fd_write - the same for writing: a version that still shares the bytes of the one before gets its own first. */
int handle_fd_write(struct cache *c, struct handle *h, int *ret) MUST_CHECK;
/** cache_flush - one close(2) of a descriptor. Returns the error that close should report. */
int cache_flush(struct cache *c, struct caller who, struct handle *h) MUST_CHECK;
/** cache_release - the last close: publishes, or gives up. @h is gone. */
void cache_release(struct cache *c, struct handle *h);
/** cache_abandon - the mount has gone while the file was open: @h is gone, cache_close() sees to the rest. */
void cache_abandon(struct handle *h);
int cache_fsync(struct cache *c, struct handle *h) MUST_CHECK;
int cache_fallocate(struct cache *c, struct handle *h, int mode, uint64_t off_bytes,
		    uint64_t len_bytes) MUST_CHECK;

/** cache_flock - flock(2), on the object, whichever version of it @h has open. @owner names the open file. @op: LOCK_SH,
 * LOCK_EX, LOCK_UN. -EWOULDBLOCK when it must wait: then, with @wait not NULL, it is queued and *@ret_ticket names the wait:
 * its granted is called once, unless cache_flock_cancel returned true before. */
int cache_flock(struct cache *c, struct handle *h, uint64_t owner, int op,
		const struct flock_wait *wait, uint64_t *ret_ticket) MUST_CHECK;
bool cache_flock_cancel(struct cache *c, uint64_t ticket);

/* What /.kvcache/stats tells. Counters since the start, gauges now. */
struct cache_stats {
	uint64_t ram_bytes, used_bytes, objects_in_memory, ghosts;
	uint64_t nodes, open_handles, processing;
	uint64_t lookups, lookup_misses, lookup_waits;
	uint64_t opens_read, opens_write, creates;
	uint64_t published, published_bytes, aborted, killed;
	uint64_t evicted, evicted_bytes, removed, no_space;
};
void cache_stats(struct cache *c, struct cache_stats *ret);

#endif
