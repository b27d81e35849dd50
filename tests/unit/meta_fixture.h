/* SPDX-License-Identifier: Apache-2.0 */
/* meta_fixture.h - a database in a directory of its own, and operations from plain functions, for
 * the tests of meta/. */
#ifndef UNIT_META_FIXTURE_H
#define UNIT_META_FIXTURE_H

#include "check.h"
#include "meta/meta.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

struct fixture {
	char dir[64];
	char path[96];
	struct meta *m;
};

static inline void fixture_init(struct fixture *f)
{
	(void)snprintf(f->dir, sizeof f->dir, "/tmp/test-meta-XXXXXX");
	CHECK(mkdtemp(f->dir));
	(void)snprintf(f->path, sizeof f->path, "%s/meta.db", f->dir);
	f->m = NULL;
}

/* Opens and says whether the last end was clean. */
static inline bool fixture_open(struct fixture *f)
{
	bool clean;

	CHECK_EQ(meta_open(f->path, &clean, &f->m), 0);
	return clean;
}

static inline void fixture_close(struct fixture *f)
{
	meta_close(f->m);
	f->m = NULL;
}

static inline void fixture_fini(struct fixture *f)
{
	static const char *const suffixes[] = { "", "-wal", "-shm", "-journal", "-ballast" };
	char path[128];

	fixture_close(f);
	for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
		(void)snprintf(path, sizeof path, "%s%s", f->path, suffixes[i]);
		(void)unlink(path);
	}
	CHECK_EQ(rmdir(f->dir), 0);
}

/* An operation that calls @fn(db, arg). */
struct call_op {
	struct meta_op op; /* first */
	int (*fn)(struct meta_db *db, void *arg);
	void *arg;
};

static inline int call_run(struct meta_db *db, struct meta_op *op)
{
	struct call_op *c = (struct call_op *)op;

	return c->fn(db, c->arg);
}

static inline int write_with(struct meta *m, int (*fn)(struct meta_db *db, void *arg), void *arg)
{
	struct call_op c = { .op = { .run = call_run }, .fn = fn, .arg = arg };

	return meta_submit(m, &c.op);
}

static inline int read_with(struct meta *m, int (*fn)(struct meta_db *db, void *arg), void *arg)
{
	struct meta_db *db;
	int r = meta_read_begin(m, &db);

	if (r < 0)
		return r;
	r = fn(db, arg);
	meta_read_end(m, db);
	return r;
}

static inline struct name name_of(const char *s)
{
	return (struct name){ s, strlen(s) };
}

#endif
