/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about attributes, and the answers that carry them. */
#include "base/clock.h"
#include "fuse/fs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct caller caller_of(fuse_req_t req)
{
	const struct fuse_ctx *ctx = fuse_req_ctx(req);

	return (struct caller){ .tid = ctx->pid, .uid = ctx->uid, .gid = ctx->gid };
}

struct name name_of(const char *s)
{
	return (struct name){ s, strlen(s) };
}

void reply_err(fuse_req_t req, int r)
{
	(void)fuse_reply_err(req, -r);
}

static double seconds(uint64_t ns)
{
	return (double)ns / (double)NS_PER_S;
}

void entry_param(const struct cache_entry *e, struct fuse_entry_param *ret)
{
	*ret = (struct fuse_entry_param){
		.ino = e->node,
		.entry_timeout = seconds(e->ttl_ns),
		.attr = e->attr.st,
		.attr_timeout = seconds(e->attr.ttl_ns),
	};
}

void reply_entry(struct fs_session *s, fuse_req_t req, const struct cache_entry *e)
{
	struct fuse_entry_param p;

	entry_param(e, &p);
	/* Not delivered: the caller was interrupted, and the kernel counts no lookup. */
	if (fuse_reply_entry(req, &p) == -ENOENT && e->node)
		cache_forget(s->cache, e->node, 1);
}

void reply_attr(fuse_req_t req, const struct cache_attr *a)
{
	(void)fuse_reply_attr(req, &a->st, seconds(a->ttl_ns));
}

static void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi UNUSED)
{
	struct fs_session *s = session_of(req);
	struct cache_attr a;

	if (control_owns(ino)) {
		control_getattr(s, req, ino);
		return;
	}
	int r = cache_getattr(s->cache, caller_of(req), ino, &a);

	if (r < 0)
		reply_err(req, r);
	else
		reply_attr(req, &a);
}

static void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
		       struct fuse_file_info *fi)
{
	static const struct {
		int fuse;
		unsigned cache;
	} bits[] = {
		{ FUSE_SET_ATTR_MODE, SET_MODE },   { FUSE_SET_ATTR_UID, SET_UID },
		{ FUSE_SET_ATTR_GID, SET_GID },	    { FUSE_SET_ATTR_SIZE, SET_SIZE },
		{ FUSE_SET_ATTR_ATIME, SET_ATIME }, { FUSE_SET_ATTR_MTIME, SET_MTIME },
		{ FUSE_SET_ATTR_CTIME, SET_CTIME },
	};
	struct fs_session *s = session_of(req);
	int64_t now = clock_real_ns();
	struct cache_attr a;
	struct cache_setattr set = {
		.mode = st->st_mode,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.size_bytes = (uint64_t)st->st_size,
		.atime_ns = to_set & FUSE_SET_ATTR_ATIME_NOW ? now : timespec_ns(st->st_atim),
		.mtime_ns = to_set & FUSE_SET_ATTR_MTIME_NOW ? now : timespec_ns(st->st_mtim),
		.ctime_ns = timespec_ns(st->st_ctim),
	};

	for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
		if (to_set & bits[i].fuse)
			set.set |= bits[i].cache;
	}
	if (to_set & FUSE_SET_ATTR_ATIME_NOW)
		set.set |= SET_ATIME;
	if (to_set & FUSE_SET_ATTR_MTIME_NOW)
		set.set |= SET_MTIME;
	struct handle *h = fi ? handles_get(s->handles, fi->fh) : NULL;
	int r = control_owns(ino) ? -EPERM
				  : cache_setattr(s->cache, caller_of(req), ino, h, &set, &a);

	if (h)
		handles_put(s->handles, fi->fh);
	if (r < 0)
		reply_err(req, r);
	else
		reply_attr(req, &a);
}

#if FUSE_USE_VERSION >= 318 && defined(STATX_BTIME)
static struct statx_timestamp statx_time(struct timespec ts)
{
	return (struct statx_timestamp){ .tv_sec = ts.tv_sec, .tv_nsec = (uint32_t)ts.tv_nsec };
}

static void op_statx(fuse_req_t req, fuse_ino_t ino, int flags UNUSED, int mask UNUSED,
		     struct fuse_file_info *fi UNUSED)
{
	struct fs_session *s = session_of(req);
	struct cache_attr a;
	int r = control_owns(ino) ? -ENOSYS : cache_getattr(s->cache, caller_of(req), ino, &a);

	if (r < 0) {
		reply_err(req, r);
		return;
	}
	struct statx x = {
		.stx_mask = STATX_BASIC_STATS | STATX_BTIME,
		.stx_blksize = (uint32_t)a.st.st_blksize,
		.stx_nlink = (uint32_t)a.st.st_nlink,
		.stx_uid = a.st.st_uid,
		.stx_gid = a.st.st_gid,
		.stx_mode = (uint16_t)a.st.st_mode,
		.stx_ino = a.st.st_ino,
		.stx_size = (uint64_t)a.st.st_size,
		.stx_blocks = (uint64_t)a.st.st_blocks,
		.stx_atime = statx_time(a.st.st_atim),
		.stx_btime = statx_time(a.btime),
		.stx_ctime = statx_time(a.st.st_ctim),
		.stx_mtime = statx_time(a.st.st_mtim),
	};

	(void)fuse_reply_statx(req, 0, &x, seconds(a.ttl_ns));
}
#endif

static void op_statfs(fuse_req_t req, fuse_ino_t ino UNUSED)
{
	struct fs_session *s = session_of(req);
	struct statvfs st;
	int r = cache_statfs(s->cache, &st);

	if (r < 0) {
		reply_err(req, r);
		return;
	}
	st.f_namemax = s->name_max_bytes;
	(void)fuse_reply_statfs(req, &st);
}

/* getxattr(2) and listxattr(2) answer alike: the length when asked with size 0, else the bytes. */
static void reply_xattr(fuse_req_t req, int r, const char *buf, size_t len, size_t size)
{
	if (r < 0)
		reply_err(req, r);
	else if (size == 0)
		(void)fuse_reply_xattr(req, len);
	else
		(void)fuse_reply_buf(req, buf, len);
}

static void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	char *buf = size ? malloc(size) : NULL;
	size_t len = 0;
	int r = size && !buf ? -ENOMEM
		: control_owns(ino)
			? -EOPNOTSUPP
			: cache_getxattr(session_of(req)->cache, ino, name, buf, size, &len);

	reply_xattr(req, r, buf, len, size);
	free(buf);
}

static void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	char *buf = size ? malloc(size) : NULL;
	size_t len = 0;
	int r = size && !buf	    ? -ENOMEM
		: control_owns(ino) ? 0
				    : cache_listxattr(session_of(req)->cache, ino, buf, size, &len);

	reply_xattr(req, r, buf, len, size);
	free(buf);
}

static void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
			size_t size, int flags)
{
	reply_err(req, control_owns(ino) ? -EPERM
					 : cache_setxattr(session_of(req)->cache, ino, name, value,
							  size, flags));
}

static void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	reply_err(req, control_owns(ino) ? -EPERM
					 : cache_removexattr(session_of(req)->cache, ino, name));
}

/* FUSE passes only commands whose size is in the number, and no pointers: there is none that a plain file knows. */
/* NOLINTNEXTLINE(readability-function-size): the signature is libfuse's */
static void op_ioctl(fuse_req_t req, fuse_ino_t ino UNUSED, unsigned int cmd UNUSED,
		     void *arg UNUSED, struct fuse_file_info *fi UNUSED, unsigned flags UNUSED,
		     const void *in UNUSED, size_t in_size UNUSED, size_t out_size UNUSED)
{
	reply_err(req, -ENOTTY);
}

void ops_attr(struct fuse_lowlevel_ops *ops)
{
	ops->getattr = op_getattr;
	ops->setattr = op_setattr;
#if FUSE_USE_VERSION >= 318 && defined(STATX_BTIME)
	ops->statx = op_statx;
#endif
	ops->statfs = op_statfs;
	ops->getxattr = op_getxattr;
	ops->listxattr = op_listxattr;
	ops->setxattr = op_setxattr;
	ops->removexattr = op_removexattr;
	ops->ioctl = op_ioctl;
}
