/* SPDX-License-Identifier: Apache-2.0 */
/* The control directory /.kvcache/: found by name, in no listing, nothing in it can be changed. */
#include "base/clock.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTROL_DIR CACHE_NODE_END
#define CONTROL_NAME ".kvcache"

/* An open control file: its text, as of the open. */
struct text {
	char *s;
	size_t len;
};

static void free_text(struct text *t)
{
	if (!t)
		return;
	free(t->s);
	free(t);
}

bool control_owns(uint64_t node)
{
	return node >= CONTROL_DIR;
}

bool control_name(uint64_t parent, const char *name)
{
	return control_owns(parent) || (parent == CACHE_ROOT && strcmp(name, CONTROL_NAME) == 0);
}

static const struct control_file *file_of(const struct fs_session *s, uint64_t node)
{
	for (uint64_t i = 0; s->files && s->files[i].name; i++) {
		if (node == CONTROL_DIR + 1 + i)
			return &s->files[i];
	}
	return NULL;
}

static void attr_of(uint64_t node, struct stat *st)
{
	bool dir = node == CONTROL_DIR;

	*st = (struct stat){
		.st_ino = node,
		.st_mode = dir ? S_IFDIR | 0555 : S_IFREG | 0444,
		.st_nlink = dir ? 2 : 1,
		.st_uid = geteuid(),
		.st_gid = getegid(),
		.st_blksize = 4096,
	};
}

void control_lookup(struct fs_session *s, fuse_req_t req, uint64_t parent, const char *name)
{
	struct fuse_entry_param e = { .ino = 0, .entry_timeout = 1, .attr_timeout = 1 };

	if (parent == CACHE_ROOT)
		e.ino = CONTROL_DIR;
	for (uint64_t i = 0; parent == CONTROL_DIR && s->files && s->files[i].name; i++) {
		if (strcmp(s->files[i].name, name) == 0)
			e.ino = CONTROL_DIR + 1 + i;
	}
	if (!e.ino) {
		reply_err(req, -ENOENT);
		return;
	}
	attr_of(e.ino, &e.attr);
	(void)fuse_reply_entry(req, &e);
}

void control_getattr(struct fs_session *s, fuse_req_t req, uint64_t node)
{
	struct stat st;

	if (node != CONTROL_DIR && !file_of(s, node)) {
		reply_err(req, -ESTALE);
		return;
	}
	attr_of(node, &st);
	(void)fuse_reply_attr(req, &st, 1);
}

void control_open(struct fs_session *s, fuse_req_t req, uint64_t node, struct fuse_file_info *fi)
{
	const struct control_file *f = file_of(s, node);
	struct text *t;

	if ((fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC)) {
		reply_err(req, -EPERM);
		return;
	}
	t = f ? calloc(1, sizeof *t) : NULL;
	FILE *out = t ? open_memstream(&t->s, &t->len) : NULL;

	if (!out) {
		free(t);
		reply_err(req, f ? -ENOMEM : -ESTALE);
		return;
	}
	f->print(f->arg, out);
	(void)fclose(out);
	fi->fh = handles_add(s->texts, t);
	fi->direct_io = 1; /* its size is not known before */
	if (!fi->fh || fuse_reply_open(req, fi) != 0) {
		(void)handles_del(s->texts, fi->fh);
		free_text(t);
	}
}

void control_read(struct fs_session *s, fuse_req_t req, uint64_t fh, size_t size, off_t off)
{
	const struct text *t = handles_get(s->texts, fh);

	if (!t) {
		reply_err(req, -EBADF);
		return;
	}
	size_t at = off < 0 || (size_t)off > t->len ? t->len : (size_t)off;
	size_t len = t->len - at < size ? t->len - at : size;

	(void)fuse_reply_buf(req, t->s + at, len);
	handles_put(s->texts, fh);
}

void control_release(struct fs_session *s, fuse_req_t req, uint64_t fh)
{
	free_text(handles_del(s->texts, fh));
	reply_err(req, 0);
}

void control_abandon(void *text)
{
	free_text(text);
}

void control_readdir(struct fs_session *s, fuse_req_t req, size_t size, off_t off)
{
	char *buf = malloc(size);
	size_t len = 0;
	struct stat st;

	if (!buf) {
		reply_err(req, -ENOMEM);
		return;
	}
	for (uint64_t i = (uint64_t)off; i < 2 || (s->files && s->files[i - 2].name); i++) {
		const char *name = i == 0 ? "." : i == 1 ? ".." : s->files[i - 2].name;

		attr_of(i < 2 ? CONTROL_DIR : CONTROL_DIR + i - 1, &st);
		size_t n = fuse_add_direntry(req, buf + len, size - len, name, &st, (off_t)i + 1);

		if (n > size - len)
			break;
		len += n;
	}
	(void)fuse_reply_buf(req, buf, len);
	free(buf);
}
