/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "key/name.h"
#include "meta/db.h"
#include "meta/meta.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static int bind_key(struct meta_db *db, sqlite3_stmt *st, uint64_t parent, uint64_t hash,
		    struct name name)
{
	db_u64(st, 1, parent);
	db_u64(st, 2, hash);
	return db_blob(db, st, 3, name.s, name.len);
}

int meta_dentry_get(struct meta_db *db, uint64_t parent, uint64_t hash, struct name name,
		    struct dentry_row *ret)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_DENTRY_GET);
	int r = bind_key(db, st, parent, hash, name);

	if (r == 0)
		r = db_step(db, st);
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	*ret = (struct dentry_row){
		.parent = parent,
		.hash = hash,
		.object = db_col_u64(st, 0),
		.mode = db_col_u32(st, 1),
	};
	return 0;
}

int meta_dentry_put(struct meta_db *db, const struct dentry_row *row, struct name name)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_DENTRY_PUT);
	int r = bind_key(db, st, row->parent, row->hash, name);

	if (r < 0)
		return r;
	db_u64(st, 4, row->object);
	db_u64(st, 5, row->mode);
	return db_step(db, st);
}

int meta_dentry_set(struct meta_db *db, const struct dentry_row *row, struct name name)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_DENTRY_SET);
	int r = bind_key(db, st, row->parent, row->hash, name);

	if (r < 0)
		return r;
	db_u64(st, 4, row->object);
	db_u64(st, 5, row->mode);
	return db_change(db, st, -ENOENT);
}

int meta_dentry_del(struct meta_db *db, uint64_t parent, uint64_t hash, struct name name)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_DENTRY_DEL);
	int r = bind_key(db, st, parent, hash, name);

	return r < 0 ? r : db_change(db, st, -ENOENT);
}

int meta_dentry_any(struct meta_db *db, uint64_t parent)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_DENTRY_ANY);

	db_u64(st, 1, parent);
	int r = db_step(db, st);

	if (r < 0)
		return r;
	return r > 0 ? 0 : -ENOENT;
}

/* Reads column @i as a name. What is in the file may be anything; a name that is none is damage. */
static int column_name(struct meta_db *db, sqlite3_stmt *st, int i, struct name *ret)
{
	struct name n = {
		.s = sqlite3_column_blob(st, i),
		.len = (size_t)sqlite3_column_bytes(st, i),
	};

	if (n.s && name_check(n) == 0) {
		*ret = n;
		return 0;
	}
	log_msg(LOG_ERR, "meta: bad name in a row file=%s len=%zu; to do: move it away, start anew",
		db->path, n.len);
	return -EUCLEAN;
}

int meta_dentry_name(struct meta_db *db, uint64_t parent, uint64_t hash, uint64_t object, char *buf,
		     size_t *ret_len)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_DENTRY_NAME);
	struct name n;

	db_u64(st, 1, parent);
	db_u64(st, 2, hash);
	db_u64(st, 3, object);
	int r = db_step(db, st);

	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	r = column_name(db, st, 0, &n);
	if (r < 0)
		return r;
	memcpy(buf, n.s, n.len);
	*ret_len = n.len;
	return 0;
}

int meta_dentry_scan(struct meta_db *db, uint64_t parent, uint64_t after,
		     bool (*fn)(void *arg, const struct dentry_row *row, struct name name),
		     void *arg)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_DENTRY_SCAN);
	int r;

	db_u64(st, 1, parent);
	db_u64(st, 2, after);
	while ((r = db_step(db, st)) > 0) {
		struct name n;
		struct dentry_row row = {
			.parent = parent,
			.hash = db_col_u64(st, 0),
			.object = db_col_u64(st, 1),
			.mode = db_col_u32(st, 2),
		};

		r = column_name(db, st, 3, &n);
		if (r < 0 || !fn(arg, &row, n))
			return r;
	}
	return r;
}
