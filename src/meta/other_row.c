/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/db.h"
#include "meta/meta.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* -- link ------------------------------------------------------------------------------------- */

static void bind_link(sqlite3_stmt *st, uint64_t object, struct link_row l)
{
	db_u64(st, 1, object);
	db_u64(st, 2, l.parent);
	db_u64(st, 3, l.hash);
}

int meta_link_put(struct meta_db *db, uint64_t object, struct link_row l)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_LINK_PUT);

	bind_link(st, object, l);
	return db_step(db, st);
}

int meta_link_del(struct meta_db *db, uint64_t object, struct link_row l)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_LINK_DEL);

	bind_link(st, object, l);
	return db_change(db, st, -ENOENT);
}

int meta_link_scan(struct meta_db *db, uint64_t object, bool (*fn)(void *arg, struct link_row l),
		   void *arg)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_LINK_SCAN);
	int r;

	db_u64(st, 1, object);
	while ((r = db_step(db, st)) > 0) {
		struct link_row l = { db_col_u64(st, 0), db_col_u64(st, 1) };

		if (!fn(arg, l))
			return 0;
	}
	return r;
}

/* -- target ----------------------------------------------------------------------------------- */

int meta_target_put(struct meta_db *db, uint64_t object, const char *target, size_t len)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_TARGET_PUT);
	int r = db_blob(db, st, 2, target, len);

	if (r < 0)
		return r;
	db_u64(st, 1, object);
	return db_step(db, st);
}

int meta_target_get(struct meta_db *db, uint64_t object, char *buf, size_t cap, size_t *ret_len)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_TARGET_GET);

	db_u64(st, 1, object);
	int r = db_step(db, st);

	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	const void *target = sqlite3_column_blob(st, 0);
	size_t len = (size_t)sqlite3_column_bytes(st, 0);
	size_t nr = len < cap ? len : cap;

	if (nr > 0)
		memcpy(buf, target, nr);
	*ret_len = len;
	return 0;
}

/* -- xattr ------------------------------------------------------------------------------------ */

int meta_xattr_get(struct meta_db *db, uint64_t object, const char *name, void *buf, size_t cap,
		   size_t *ret_len)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_XATTR_GET);
	int r = db_text(db, st, 2, name);

	if (r < 0)
		return r;
	db_u64(st, 1, object);
	r = db_step(db, st);
	if (r <= 0)
		return r < 0 ? r : -ENODATA;
	const void *value = sqlite3_column_blob(st, 0);
	size_t len = (size_t)sqlite3_column_bytes(st, 0);

	if (cap > 0 && len > cap)
		return -ERANGE;
	if (cap > 0 && len > 0)
		memcpy(buf, value, len);
	*ret_len = len;
	return 0;
}

int meta_xattr_set(struct meta_db *db, uint64_t object, const char *name, const void *value,
		   size_t len)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_XATTR_SET);
	int r = db_text(db, st, 2, name);

	if (r == 0)
		r = db_blob(db, st, 3, value, len);
	if (r < 0)
		return r;
	db_u64(st, 1, object);
	return db_step(db, st);
}

int meta_xattr_del(struct meta_db *db, uint64_t object, const char *name)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_XATTR_DEL);
	int r = db_text(db, st, 2, name);

	if (r < 0)
		return r;
	db_u64(st, 1, object);
	return db_change(db, st, -ENODATA);
}

int meta_xattr_scan(struct meta_db *db, uint64_t object, bool (*fn)(void *arg, const char *name),
		    void *arg)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_XATTR_SCAN);
	int r;

	db_u64(st, 1, object);
	while ((r = db_step(db, st)) > 0) {
		const char *name = (const char *)sqlite3_column_text(st, 0);

		if (!name)
			return -ENOMEM;
		if (!fn(arg, name))
			return 0;
	}
	return r;
}

/* -- ghost ------------------------------------------------------------------------------------ */

int meta_ghost_put(struct meta_db *db, uint64_t hash, uint64_t bytes, uint64_t seq)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_GHOST_PUT);

	db_u64(st, 1, hash);
	db_u64(st, 2, bytes);
	db_u64(st, 3, seq);
	return db_step(db, st);
}

int meta_ghost_del(struct meta_db *db, uint64_t hash)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_GHOST_DEL);

	db_u64(st, 1, hash);
	return db_change(db, st, 0);
}

int meta_ghost_trim(struct meta_db *db, uint64_t below_seq)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_GHOST_TRIM);

	db_u64(st, 1, below_seq);
	return db_change(db, st, 0);
}

int meta_ghost_scan(struct meta_db *db,
		    bool (*fn)(void *arg, uint64_t hash, uint64_t bytes, uint64_t seq), void *arg)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_GHOST_SCAN);
	int r;

	while ((r = db_step(db, st)) > 0)
		if (!fn(arg, db_col_u64(st, 0), db_col_u64(st, 1), db_col_u64(st, 2)))
			return 0;
	return r;
}

/* -- value ------------------------------------------------------------------------------------ */

int meta_value_get(struct meta_db *db, const char *name, uint64_t *ret)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_VALUE_GET);
	int r = db_text(db, st, 1, name);

	if (r == 0)
		r = db_step(db, st);
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	*ret = db_col_u64(st, 0);
	return 0;
}

int meta_value_set(struct meta_db *db, const char *name, uint64_t value)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_VALUE_SET);
	int r = db_text(db, st, 1, name);

	if (r < 0)
		return r;
	db_u64(st, 2, value);
	return db_step(db, st);
}
