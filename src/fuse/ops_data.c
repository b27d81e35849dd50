/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about bytes. With passthrough the kernel reads and writes the memory tier's file itself, and only opens,
 * closes, and what changes a file's size come here. */
#include "base/log.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int go_direct(struct fs_session *s, fuse_req_t req, struct handle *h,
		     struct fuse_file_info *fi)
{
#if HAVE_FUSE_PASSTHROUGH
	if (!s->features.passthrough || !handle_direct(h))
		return 0;
	int id = backing_get(s, req, h);

	if (id < 0)
		return id;
	fi->backing_id = id;
#else
	(void)s;
	(void)req;
	(void)h;
	(void)fi;
#endif
	return 0;
}

static bool went_direct(const struct fs_session *s, const struct handle *h)
{
	return s->features.passthrough && handle_direct(h);
}

static void close_handle(struct fs_session *s, fuse_req_t req, struct handle *h)
{
	if (went_direct(s, h))
		backing_put(s->backings, req, handle_node(h));
	cache_release(s->cache, h);
}

/* The handle gets its number, and the kernel what it needs to know. */
static int admit(struct fs_session *s, fuse_req_t req, struct handle *h, struct fuse_file_info *fi)
{
	int r = go_direct(s, req, h, fi);

	if (r < 0) {
		log_msg(LOG_WARNING, "fuse: passthrough refused for an open err=%d", -r);
		cache_release(s->cache, h);
		return r;
	}
	fi->fh = handles_add(s->handles, h);
	if (!fi->fh) {
		close_handle(s, req, h);
		return -ENOMEM;
	}
	/* Only writers have something to say at each close. */
	fi->noflush = !handle_writable(h);
	return 0;
}

static void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct handle *h = NULL;
	int r;

	if (control_owns(ino)) {
		control_open(s, req, ino, fi);
		return;
	}
	r = cache_open_file(s->cache, caller_of(req), ino, fi->flags, &h);
	if (r == 0)
		r = admit(s, req, h, fi);
	if (r < 0)
		reply_err(req, r);
	else if (fuse_reply_open(req, fi) ==
		 -ENOENT) /* the caller was interrupted: no release will come */
		close_handle(s, req, handles_del(s->handles, fi->fh));
}

static void reply_create(struct fs_session *s, fuse_req_t req, const struct cache_entry *e,
			 struct handle *h, struct fuse_file_info *fi)
{
	struct fuse_entry_param p;
	int r = admit(s, req, h, fi);

	if (r < 0) {
		cache_forget(s->cache, e->node, 1);
		reply_err(req, r);
		return;
	}
	entry_param(e, &p);
	if (fuse_reply_create(req, &p, fi) == -ENOENT) {
		close_handle(s, req, handles_del(s->handles, fi->fh));
		cache_forget(s->cache, e->node, 1);
	}
}

static void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct cache_entry e;
	struct handle *h = NULL;
	int r = control_name(parent, name)
			? -EPERM
			: cache_create(s->cache, caller_of(req), parent,
				       (struct new_file){ name_of(name), mode, fi->flags }, &e, &h);

	if (r < 0)
		reply_err(req, r);
	else
		reply_create(s, req, &e, h, fi);
}

#if FUSE_USE_VERSION >= 317
static void op_tmpfile(fuse_req_t req, fuse_ino_t parent, mode_t mode, struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct cache_entry e;
	struct handle *h = NULL;
	int r = control_owns(parent)
			? -EPERM
			: cache_tmpfile(s->cache, caller_of(req), parent,
					(struct new_file){ .mode = mode, .flags = fi->flags }, &e,
					&h);

	if (r < 0)
		reply_err(req, r);
	else
		reply_create(s, req, &e, h, fi);
}
#endif

static void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct fuse_bufvec buf = FUSE_BUFVEC_INIT(size);

	if (control_owns(ino)) {
		control_read(s, req, fi->fh, size, off);
		return;
	}
	struct handle *h = handles_get(s->handles, fi->fh);

	if (!h) {
		reply_err(req, -EBADF);
		return;
	}
	buf.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK;
	buf.buf[0].fd = handle_fd(h);
	buf.buf[0].pos = off;
	(void)fuse_reply_data(req, &buf, 0);
	handles_put(s->handles, fi->fh);
}

static void op_write_buf(fuse_req_t req, fuse_ino_t ino UNUSED, struct fuse_bufvec *in, off_t off,
			 struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct handle *h = handles_get(s->handles, fi->fh);
	struct fuse_bufvec out = FUSE_BUFVEC_INIT(fuse_buf_size(in));
	int fd = -1;
	int r = h ? handle_fd_write(s->cache, h, &fd) : -EBADF;

	if (r < 0) {
		handles_put(s->handles, fi->fh);
		reply_err(req, r);
		return;
	}
	out.buf[0].flags = FUSE_BUF_IS_FD | FUSE_BUF_FD_SEEK | FUSE_BUF_FD_RETRY;
	out.buf[0].fd = fd;
	out.buf[0].pos = off;
	ssize_t n = fuse_buf_copy(&out, in, 0);

	handles_put(s->handles, fi->fh);
	if (n < 0)
		reply_err(req, (int)n);
	else
		(void)fuse_reply_write(req, (size_t)n);
}

static void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct handle *h = control_owns(ino) ? NULL : handles_get(s->handles, fi->fh);

	int r = h ? cache_flush(s->cache, caller_of(req), h) : 0;

	if (h)
		handles_put(s->handles, fi->fh);
	reply_err(req, r);
}

static void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);

	if (control_owns(ino)) {
		control_release(s, req, fi->fh);
		return;
	}
	struct handle *h = handles_del(s->handles, fi->fh);

	if (h)
		close_handle(s, req, h);
	reply_err(req, h ? 0 : -EBADF);
}

static void op_fsync(fuse_req_t req, fuse_ino_t ino UNUSED, int datasync UNUSED,
		     struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct handle *h = handles_get(s->handles, fi->fh);

	int r = h ? cache_fsync(s->cache, h) : -EBADF;

	handles_put(s->handles, fi->fh);
	reply_err(req, r);
}

static void op_fallocate(fuse_req_t req, fuse_ino_t ino UNUSED, int mode, off_t offset,
			 off_t length, struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct handle *h = handles_get(s->handles, fi->fh);

	int r = h ? cache_fallocate(s->cache, h, mode, (uint64_t)offset, (uint64_t)length) : -EBADF;

	handles_put(s->handles, fi->fh);
	reply_err(req, r);
}

static void op_lseek(fuse_req_t req, fuse_ino_t ino UNUSED, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	struct fs_session *s = session_of(req);
	struct handle *h = handles_get(s->handles, fi->fh);
	off_t at = h ? lseek(handle_fd(h), off, whence) : -1;
	int r = h ? -errno : -EBADF;

	handles_put(s->handles, fi->fh);
	if (at < 0)
		reply_err(req, r);
	else
		(void)fuse_reply_lseek(req, at);
}

/* NOLINTNEXTLINE(readability-function-size): the signature is libfuse's */
static void op_copy(fuse_req_t req, fuse_ino_t ino_in UNUSED, off_t off_in,
		    struct fuse_file_info *fi_in, fuse_ino_t ino_out UNUSED, off_t off_out,
		    struct fuse_file_info *fi_out, size_t len, int flags)
{
	struct fs_session *s = session_of(req);
	struct handle *in = handles_get(s->handles, fi_in->fh);
	struct handle *out = handles_get(s->handles, fi_out->fh);
	int fd = -1;
	ssize_t n = in && out ? handle_fd_write(s->cache, out, &fd) : -EBADF;

	if (n == 0) {
		n = copy_file_range(handle_fd(in), &off_in, fd, &off_out, len, (unsigned)flags);
		n = n < 0 ? -errno : n;
	}
	handles_put(s->handles, fi_in->fh);
	handles_put(s->handles, fi_out->fh);
	if (n < 0)
		reply_err(req, (int)n);
	else
		(void)fuse_reply_write(req, (size_t)n);
}

void ops_data(struct fuse_lowlevel_ops *ops)
{
	ops->open = op_open;
	ops->create = op_create;
#if FUSE_USE_VERSION >= 317
	ops->tmpfile = op_tmpfile;
#endif
	ops->read = op_read;
	ops->write_buf = op_write_buf;
	ops->flush = op_flush;
	ops->release = op_release;
	ops->fsync = op_fsync;
	ops->fallocate = op_fallocate;
	ops->lseek = op_lseek;
	ops->copy_file_range = op_copy;
	ops->flock = op_flock;
}
