/* SPDX-License-Identifier: Apache-2.0 */
/* Requests about names: decoded, given to cache/, answered. */
#include "base/clock.h"
#include "fuse/fs.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Directory offsets 1 and 2 are behind "." and ".."; those of entries are their cookies, which start above. */
enum { OFF_DOT = 1, OFF_DOTDOT = 2 };
_Static_assert(OFF_DOTDOT < (int)NAME_HASH_MIN, "cookies are not below the hashes they are of");

void lookup_again(struct fs_session *s, fuse_req_t req, uint64_t parent, struct name name,
		  bool wait)
{
	struct cache_entry e = { 0 };
	uint64_t deadline = 0;
	uint64_t seq = parking_seq(s);
	int r = cache_lookup(s->cache, caller_of(req), parent, name, &e, wait ? &deadline : NULL);

	if (r == -EINPROGRESS)
		park(s, req, parent, name, deadline, seq);
	else if (r < 0)
		reply_err(req, r);
	else if (e.node == 0 && e.ttl_ns == 0)
		reply_err(req, -ENOENT); /* not to be remembered */
	else
		reply_entry(s, req, &e);
}

static void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs_session *s = session_of(req);

	if (control_name(parent, name))
		control_lookup(s, req, parent, name);
	else
		lookup_again(s, req, parent, name_of(name), true);
}

static void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	if (!control_owns(ino))
		cache_forget(session_of(req)->cache, ino, nlookup);
	fuse_reply_none(req);
}

static void op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	for (size_t i = 0; i < count; i++) {
		if (!control_owns(forgets[i].ino))
			cache_forget(session_of(req)->cache, forgets[i].ino, forgets[i].nlookup);
	}
	fuse_reply_none(req);
}

static void make(fuse_req_t req, fuse_ino_t parent, const char *name, struct new_node what)
{
	struct fs_session *s = session_of(req);
	struct cache_entry e;
	int r = control_name(parent, name)
			? -EPERM
			: cache_make(s->cache, caller_of(req), parent, name_of(name), what, &e);

	if (r < 0)
		reply_err(req, r);
	else
		reply_entry(s, req, &e);
}

static void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		     dev_t rdev UNUSED)
{
	make(req, parent, name, (struct new_node){ .mode = mode });
}

static void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	make(req, parent, name, (struct new_node){ .mode = S_IFDIR | (mode & 07777) });
}

static void op_symlink(fuse_req_t req, const char *link, fuse_ino_t parent, const char *name)
{
	make(req, parent, name, (struct new_node){ .mode = S_IFLNK | 0777, .target = link });
}

static void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent, const char *newname)
{
	struct fs_session *s = session_of(req);
	struct cache_entry e;
	int r = control_name(newparent, newname) || control_owns(ino)
			? -EPERM
			: cache_link(s->cache, caller_of(req), ino, newparent, name_of(newname),
				     &e);

	if (r < 0)
		reply_err(req, r);
	else
		reply_entry(s, req, &e);
}

static void remove_name(fuse_req_t req, fuse_ino_t parent, const char *name, bool dir)
{
	struct fs_session *s = session_of(req);

	reply_err(req, control_name(parent, name) ? -EPERM
						  : cache_unlink(s->cache, caller_of(req), parent,
								 name_of(name), dir));
}

static void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, false);
}

static void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	remove_name(req, parent, name, true);
}

static void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t newparent,
		      const char *newname, unsigned int flags)
{
	struct fs_session *s = session_of(req);
	struct rename_at from = { parent, name_of(name) };
	struct rename_at to = { newparent, name_of(newname) };

	if (control_name(parent, name) || control_name(newparent, newname))
		reply_err(req, -EPERM);
	else
		reply_err(req, cache_rename(s->cache, caller_of(req), from, to, flags));
}

static void op_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char buf[PATH_MAX];
	int r = cache_readlink(session_of(req)->cache, ino, buf, sizeof buf);

	if (r < 0)
		reply_err(req, r);
	else
		(void)fuse_reply_readlink(req, buf);
}

static void op_opendir(fuse_req_t req, fuse_ino_t ino UNUSED, struct fuse_file_info *fi)
{
	(void)fuse_reply_open(req, fi);
}

struct dir_buf {
	fuse_req_t req;
	char *buf;
	size_t size;
	size_t len;
};

static bool add_entry(struct dir_buf *d, const char *name, uint64_t ino, mode_t type, uint64_t off)
{
	struct stat st = { .st_ino = ino, .st_mode = type };
	size_t n =
		fuse_add_direntry(d->req, d->buf + d->len, d->size - d->len, name, &st, (off_t)off);

	if (n > d->size - d->len)
		return false;
	d->len += n;
	return true;
}

static bool add_name(void *arg, struct name name, uint64_t ino, mode_t type, uint64_t cookie)
{
	char text[NAME_MAX_BYTES + 1];

	memcpy(text, name.s, name.len);
	text[name.len] = '\0';
	return add_entry(arg, text, ino, type, cookie);
}

static void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi UNUSED)
{
	struct fs_session *s = session_of(req);
	struct dir_buf d = { .req = req, .size = size };
	bool room = true;
	int r = 0;

	if (control_owns(ino)) {
		control_readdir(s, req, size, off);
		return;
	}
	d.buf = malloc(size);
	if (!d.buf) {
		reply_err(req, -ENOMEM);
		return;
	}
	if (off < OFF_DOT)
		cache_settle_dir(s->cache, ino);
	if (off < OFF_DOT)
		room = add_entry(&d, ".", ino, S_IFDIR, OFF_DOT);
	if (room && off < OFF_DOTDOT)
		room = add_entry(&d, "..", cache_parent(s->cache, ino), S_IFDIR, OFF_DOTDOT);
	if (room)
		r = cache_readdir(s->cache, ino, off > OFF_DOTDOT ? (uint64_t)off : 0, add_name,
				  &d);
	if (r < 0)
		reply_err(req, r);
	else
		(void)fuse_reply_buf(req, d.buf, d.len);
	free(d.buf);
}

static void op_releasedir(fuse_req_t req, fuse_ino_t ino UNUSED, struct fuse_file_info *fi UNUSED)
{
	reply_err(req, 0);
}

static void op_fsyncdir(fuse_req_t req, fuse_ino_t ino UNUSED, int datasync UNUSED,
			struct fuse_file_info *fi UNUSED)
{
	reply_err(req, cache_fsync(session_of(req)->cache, NULL));
}

void ops_name(struct fuse_lowlevel_ops *ops)
{
	ops->lookup = op_lookup;
	ops->forget = op_forget;
	ops->forget_multi = op_forget_multi;
	ops->mknod = op_mknod;
	ops->mkdir = op_mkdir;
	ops->symlink = op_symlink;
	ops->link = op_link;
	ops->unlink = op_unlink;
	ops->rmdir = op_rmdir;
	ops->rename = op_rename;
	ops->readlink = op_readlink;
	ops->opendir = op_opendir;
	ops->readdir = op_readdir;
	ops->releasedir = op_releasedir;
	ops->fsyncdir = op_fsyncdir;
}
