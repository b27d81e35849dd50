/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/db.h"
#include "meta/meta.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

/* The order of columns and parameters is that of OBJECT_COLUMNS in sql.c. */
static void bind_row(sqlite3_stmt *st, const struct object_row *row)
{
	db_u64(st, 1, row->id);
	db_u64(st, 2, row->gen);
	db_u64(st, 3, row->mode);
	db_u64(st, 4, row->uid);
	db_u64(st, 5, row->gid);
	db_u64(st, 6, row->nlink);
	db_u64(st, 7, row->size_bytes);
	db_i64(st, 8, row->atime_ns);
	db_i64(st, 9, row->mtime_ns);
	db_i64(st, 10, row->ctime_ns);
	db_i64(st, 11, row->btime_ns);
	db_u64(st, 12, row->parent);
	db_u64(st, 13, row->hash);
	db_u64(st, 14, row->flags);
	db_u64(st, 15, row->pin_until_ns);
	db_u64(st, 16, row->memory_bytes);
	db_u64(st, 17, row->has_memory);
}

static struct object_row column_row(sqlite3_stmt *st)
{
	return (struct object_row){
		.id = db_col_u64(st, 0),
		.gen = db_col_u64(st, 1),
		.mode = db_col_u32(st, 2),
		.uid = db_col_u32(st, 3),
		.gid = db_col_u32(st, 4),
		.nlink = db_col_u32(st, 5),
		.size_bytes = db_col_u64(st, 6),
		.atime_ns = sqlite3_column_int64(st, 7),
		.mtime_ns = sqlite3_column_int64(st, 8),
		.ctime_ns = sqlite3_column_int64(st, 9),
		.btime_ns = sqlite3_column_int64(st, 10),
		.parent = db_col_u64(st, 11),
		.hash = db_col_u64(st, 12),
		.flags = db_col_u32(st, 13),
		.pin_until_ns = db_col_u64(st, 14),
		.memory_bytes = db_col_u64(st, 15),
		.has_memory = db_col_u32(st, 16) != 0,
		.heat_list = db_col_u32(st, 17),
		.heat_run = db_col_u64(st, 18),
		.heat_depth = db_col_u32(st, 19),
	};
}

int meta_object_get(struct meta_db *db, uint64_t id, struct object_row *ret)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_OBJECT_GET);

	db_u64(st, 1, id);
	int r = db_step(db, st);

	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	*ret = column_row(st);
	return 0;
}

int meta_object_put(struct meta_db *db, const struct object_row *row)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_OBJECT_PUT);

	bind_row(st, row);
	db_u64(st, 18, row->heat_list);
	db_u64(st, 19, row->heat_run);
	db_u64(st, 20, row->heat_depth);
	return db_step(db, st);
}

int meta_object_set(struct meta_db *db, const struct object_row *row)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_OBJECT_SET);

	bind_row(st, row);
	return db_change(db, st, -ENOENT);
}

static int change_by_id(struct meta_db *db, enum sql_id sql, uint64_t id, int none)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, sql);

	db_u64(st, 1, id);
	return db_change(db, st, none);
}

int meta_object_del(struct meta_db *db, uint64_t id)
{
	int r = change_by_id(db, SQL_OBJECT_DEL, id, -ENOENT);

	if (r == 0)
		r = change_by_id(db, SQL_XATTR_CLEAR, id, 0);
	if (r == 0)
		r = change_by_id(db, SQL_LINK_CLEAR, id, 0);
	if (r == 0)
		r = change_by_id(db, SQL_TARGET_CLEAR, id, 0);
	return r;
}

int meta_object_touch_dir(struct meta_db *db, uint64_t id, int64_t now_ns, int nlink_delta)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_OBJECT_TOUCH_DIR);

	db_u64(st, 1, id);
	db_i64(st, 2, now_ns);
	db_i64(st, 3, nlink_delta);
	return db_change(db, st, -ENOENT);
}

int meta_object_heat(struct meta_db *db, uint64_t id, uint32_t list, uint64_t run, uint32_t depth)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_OBJECT_HEAT);

	db_u64(st, 1, id);
	db_u64(st, 2, list);
	db_u64(st, 3, run);
	db_u64(st, 4, depth);
	return db_change(db, st, 0);
}

int meta_object_scan(struct meta_db *db, uint64_t after,
		     bool (*fn)(void *arg, const struct object_row *row), void *arg)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_OBJECT_SCAN);
	int r;

	db_u64(st, 1, after);
	while ((r = db_step(db, st)) > 0) {
		struct object_row row = column_row(st);

		if (!fn(arg, &row))
			return 0;
	}
	return r;
}

int meta_object_count(struct meta_db *db, uint64_t *ret)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, SQL_OBJECT_COUNT);
	int r = db_step(db, st);

	if (r < 0)
		return r;
	*ret = db_col_u64(st, 0);
	return 0;
}
