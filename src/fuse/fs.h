/* SPDX-License-Identifier: Apache-2.0 */
/* fs.h - what the files of src/fuse share. */
#ifndef FUSE_FS_H
#define FUSE_FS_H

#include "base/list.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "cache/cache.h"
#include "config.h"
#include "fuse/session.h"

#include <fuse_lowlevel.h>

struct fs_handles;
struct fs_backings;
struct fs_guard;
struct fs_notifier;
struct fs_parking;
struct fs_locks;

struct fs_session {
	struct cache *cache;
	struct fuse_session *se;
	struct fuse_lowlevel_ops ops;
	const struct control_file *files;
	char *mountpoint;
	bool want_passthrough;
	bool want_io_uring;
	bool mounted;
	unsigned threads;
	struct fs_features features;
	unsigned name_max_bytes; /* of a component, as far as the kernel passes it */
	void (*ready)(void *arg, const struct fs_features *f);
	void *ready_arg;
	struct fs_handles *handles; /* struct handle */
	struct fs_handles *texts;   /* open control files */
	struct fs_backings *backings;
	struct fs_guard *guard; /* NULL: there is none */
	struct fs_notifier *notifier;
	struct fs_parking *parking;
	struct fs_locks *locks;
};

static inline struct fs_session *session_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

struct caller caller_of(fuse_req_t req);
struct name name_of(const char *s);
/** reply_err - @r: 0 or -errno. */
void reply_err(fuse_req_t req, int r);
void entry_param(const struct cache_entry *e, struct fuse_entry_param *ret);
void reply_entry(struct fs_session *s, fuse_req_t req, const struct cache_entry *e);
void reply_attr(fuse_req_t req, const struct cache_attr *a);

/* handle.c: what fuse_file_info.fh stands for: a slot and how often it was used, so that a number that is not ours any
 * more finds nothing. */
int handles_new(struct fs_handles **ret) MUST_CHECK;
/** handles_free - @fn frees those that the end of the mount left. */
void handles_free(struct fs_handles *t, void (*fn)(void *h));
/** handles_add - the number for @h; 0 when memory is short. handles_get - NULL: no such handle; else it is in use
 * until handles_put. handles_del - take it out, once nobody uses it. */
uint64_t handles_add(struct fs_handles *t, void *h);
void *handles_get(struct fs_handles *t, uint64_t fh);
void handles_put(struct fs_handles *t, uint64_t fh);
void *handles_del(struct fs_handles *t, uint64_t fh);

/* backing.c: one backing id for all passthrough opens of a node at a time, as the kernel demands. */
int backings_new(struct fs_backings **ret) MUST_CHECK;
void backings_free(struct fs_backings *t);
/** backing_get - the backing id of the handle's node, registered when it has none. Returns it (> 0), or -errno. */
int backing_get(struct fs_session *s, fuse_req_t req, const struct handle *h);
void backing_put(struct fs_backings *t, fuse_req_t req, uint64_t node);

/* guard.c: that the end of this process is the end of the connection, whatever its threads wait for. */

/** guard_start - watch over what was just mounted at @mountpoint. From the main thread: its end is what counts. One at a time.
 * Returns 0, or why there is no guard; *@ret may be set nonetheless and belongs to guard_stop. */
int guard_start(const char *mountpoint, struct fs_guard **ret) MUST_CHECK;
/** guard_abort - end the connection, and all waiting for it, now. guard_abort, guard_stop: NULL is allowed. */
void guard_abort(struct fs_guard *g);
void guard_stop(struct fs_guard *g);

/* notify.c: telling the kernel, from a thread of its own: the kernel may wait for a request that is under way. */
int notifier_start(struct fs_session *s) MUST_CHECK;
void notifier_stop(struct fs_session *s);
void notify_inval_entry(void *arg, uint64_t parent, struct name name);

/* park.c: lookups that wait for a closing writer, without a thread each. */
int parking_start(struct fs_session *s) MUST_CHECK;
void parking_stop(struct fs_session *s);
uint64_t parking_seq(struct fs_session *s);
void park(struct fs_session *s, fuse_req_t req, uint64_t parent, struct name name,
	  uint64_t deadline_ns, uint64_t seq);
void parking_settled(void *arg, uint64_t parent, struct name name);

/* lock.c */
int locks_new(struct fs_locks **ret) MUST_CHECK;
void locks_free(struct fs_locks *l);
void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);

/* control.c: /.kvcache/. control_owns - whether a node is of the control directory; the others answer for those. */
bool control_owns(uint64_t node);
bool control_name(uint64_t parent, const char *name);
void control_lookup(struct fs_session *s, fuse_req_t req, uint64_t parent, const char *name);
void control_getattr(struct fs_session *s, fuse_req_t req, uint64_t node);
void control_open(struct fs_session *s, fuse_req_t req, uint64_t node, struct fuse_file_info *fi);
void control_read(struct fs_session *s, fuse_req_t req, uint64_t fh, size_t size, off_t off);
void control_release(struct fs_session *s, fuse_req_t req, uint64_t fh);
/** control_abandon - an open control file that was never released. */
void control_abandon(void *text);
void control_readdir(struct fs_session *s, fuse_req_t req, size_t size, off_t off);

/* ops_name.c, ops_data.c, ops_attr.c */
void lookup_again(struct fs_session *s, fuse_req_t req, uint64_t parent, struct name name,
		  bool wait);
void ops_name(struct fuse_lowlevel_ops *ops);
void ops_data(struct fuse_lowlevel_ops *ops);
void ops_attr(struct fuse_lowlevel_ops *ops);

#endif
