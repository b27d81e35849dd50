/* SPDX-License-Identifier: Apache-2.0 */
/* db.h - private to meta/: one SQLite connection, its prepared statements, and the one place where
 * SQLite's error codes become errnos. A connection is used by one thread at a time; whose turn it
 * is, the owner knows. */
#ifndef META_DB_H
#define META_DB_H

#include "base/attr.h"
#include "base/log.h"

#include <sqlite3.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every statement; their texts are in sql.c, in this order. Those before SQL_NR_READ every
 * connection has, the others only the writer. */
enum sql_id {
	SQL_BEGIN,
	SQL_COMMIT,
	SQL_ROLLBACK,
	SQL_DENTRY_GET,
	SQL_DENTRY_ANY,
	SQL_DENTRY_NAME,
	SQL_DENTRY_SCAN,
	SQL_OBJECT_GET,
	SQL_OBJECT_SCAN,
	SQL_OBJECT_COUNT,
	SQL_LINK_SCAN,
	SQL_TARGET_GET,
	SQL_XATTR_GET,
	SQL_XATTR_SCAN,
	SQL_GHOST_SCAN,
	SQL_VALUE_GET,
	SQL_NR_READ,
	SQL_BEGIN_WRITE = SQL_NR_READ,
	SQL_DENTRY_PUT,
	SQL_DENTRY_SET,
	SQL_DENTRY_DEL,
	SQL_OBJECT_PUT,
	SQL_OBJECT_SET,
	SQL_OBJECT_DEL,
	SQL_OBJECT_TOUCH_DIR,
	SQL_OBJECT_HEAT,
	SQL_LINK_PUT,
	SQL_LINK_DEL,
	SQL_LINK_CLEAR,
	SQL_TARGET_PUT,
	SQL_TARGET_CLEAR,
	SQL_XATTR_SET,
	SQL_XATTR_DEL,
	SQL_XATTR_CLEAR,
	SQL_GHOST_PUT,
	SQL_GHOST_DEL,
	SQL_GHOST_TRIM,
	SQL_VALUE_SET,
	SQL_NR,
};

enum db_role { DB_READER, DB_WRITER, DB_CHECKPOINT };

struct meta_db {
	sqlite3 *sql;
	sqlite3_stmt *stmt[SQL_NR]; /* NULL where the role has none */
	const char *path;	    /* the owner's */
	struct log_limit *limit; /* the owner's: errors logged a second, all connections together */
	enum db_role role;
	int failed;	/* the last SQLite error, translated; set to 0 before what is watched */
	bool in_txn;	/* a reader: its transaction is open, perhaps kept from an earlier use */
	uint64_t seq;	/* a reader: the number of the last commit it is certain to see */
	unsigned epoch; /* a reader: that it was handed out in, see meta_drain_readers() */
	struct meta_db *next; /* a reader: in the list of idle ones */
};

/** db_open - connect to the existing file @path (absolute, the caller's until db_close) and set the
 * connection up. Statements are prepared by db_prepare, since a new file has no tables yet. Returns
 * 0 or a translated error. */
int db_open(const char *path, enum db_role role, struct log_limit *limit, struct meta_db **ret)
	MUST_CHECK;
int db_prepare(struct meta_db *db) MUST_CHECK;
/** db_close - finalize and disconnect. NULL and half-open are allowed. */
void db_close(struct meta_db *db);

/** db_error - translate the connection's last error, log it as met while doing @what, note it in
 * @db->failed. Never 0. */
int db_error(struct meta_db *db, const char *what);
/** db_exec - run literal SQL without result. */
int db_exec(struct meta_db *db, const char *sql) MUST_CHECK;

/** db_stmt - the prepared statement; it must be one of the role's. Give it back by AUTO_RESET. */
sqlite3_stmt *db_stmt(struct meta_db *db, enum sql_id id);
/** db_step - 1: a row; 0: done; else a translated error. Constraint violations are -EEXIST, no
 * failure of @db. */
int db_step(struct meta_db *db, sqlite3_stmt *st) MUST_CHECK;
/** db_change - step an INSERT, UPDATE or DELETE to its end: 0, @none when it changed no row, or an
 * error. */
int db_change(struct meta_db *db, sqlite3_stmt *st, int none) MUST_CHECK;
/** db_run - a statement without parameters and result, reset afterwards. */
int db_run(struct meta_db *db, enum sql_id id) MUST_CHECK;

/** db_u64, db_i64 - bind parameter @i. db_blob, db_text - the same; the bytes must stay until the
 * reset. */
void db_u64(sqlite3_stmt *st, int i, uint64_t v);
void db_i64(sqlite3_stmt *st, int i, int64_t v);
int db_blob(struct meta_db *db, sqlite3_stmt *st, int i, const void *p, size_t len) MUST_CHECK;
int db_text(struct meta_db *db, sqlite3_stmt *st, int i, const char *s) MUST_CHECK;
/** db_col_u64 - result column @i. */
uint64_t db_col_u64(sqlite3_stmt *st, int i);
uint32_t db_col_u32(sqlite3_stmt *st, int i);

static inline void stmt_resetp(sqlite3_stmt *const *st)
{
	(void)sqlite3_reset(*st);
}
#define AUTO_RESET __attribute__((cleanup(stmt_resetp)))

/* schema.c */
/** schema_open - @db is the writer's, without statements: create the tables or migrate them.
 * -EUCLEAN when the file is no database of this program, -EPROTONOSUPPORT when newer. Logs why. */
int schema_open(struct meta_db *db) MUST_CHECK;
/** schema_check - look through the whole file: -EUCLEAN when damaged. */
int schema_check(struct meta_db *db) MUST_CHECK;

#endif
