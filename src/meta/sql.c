/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/db.h"

#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <sqlite3.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define OBJECT_COLUMNS                                                                            \
	"id, gen, mode, uid, gid, nlink, size, atime, mtime, ctime, btime, parent, hash, flags, " \
	"pin_until, memory_bytes, has_memory, heat_list, heat_run, heat_depth"
#define DENTRY_KEY "parent = ?1 AND hash = ?2 AND name = ?3"

static const char *const sql_text[SQL_NR] = {
	[SQL_BEGIN] = "BEGIN",
	[SQL_COMMIT] = "COMMIT",
	[SQL_ROLLBACK] = "ROLLBACK",
	[SQL_DENTRY_GET] = "SELECT object, mode FROM dentry WHERE " DENTRY_KEY,
	[SQL_DENTRY_ANY] = "SELECT 1 FROM dentry WHERE parent = ?1 LIMIT 1",
	[SQL_DENTRY_NAME] =
		"SELECT name FROM dentry WHERE parent = ?1 AND hash = ?2 AND object = ?3",
	[SQL_DENTRY_SCAN] = "SELECT hash, object, mode, name FROM dentry "
			    "WHERE parent = ?1 AND hash > ?2 ORDER BY parent, hash, name",
	[SQL_OBJECT_GET] = "SELECT " OBJECT_COLUMNS " FROM object WHERE id = ?1",
	[SQL_OBJECT_SCAN] = "SELECT " OBJECT_COLUMNS " FROM object "
			    "WHERE id > ?1 AND has_memory ORDER BY id",
	[SQL_OBJECT_COUNT] = "SELECT count(*) FROM object",
	[SQL_LINK_SCAN] = "SELECT parent, hash FROM link WHERE object = ?1 ORDER BY parent, hash",
	[SQL_TARGET_GET] = "SELECT target FROM target WHERE object = ?1",
	[SQL_XATTR_GET] = "SELECT value FROM xattr WHERE object = ?1 AND name = ?2",
	[SQL_XATTR_SCAN] = "SELECT name FROM xattr WHERE object = ?1 ORDER BY name",
	[SQL_GHOST_SCAN] = "SELECT hash, bytes, seq FROM ghost ORDER BY seq",
	[SQL_VALUE_GET] = "SELECT value FROM value WHERE name = ?1",
	[SQL_BEGIN_WRITE] = "BEGIN IMMEDIATE",
	[SQL_DENTRY_PUT] = "INSERT INTO dentry (parent, hash, name, object, mode) "
			   "VALUES (?1, ?2, ?3, ?4, ?5)",
	[SQL_DENTRY_SET] = "UPDATE dentry SET object = ?4, mode = ?5 WHERE " DENTRY_KEY,
	[SQL_DENTRY_DEL] = "DELETE FROM dentry WHERE " DENTRY_KEY,
	[SQL_OBJECT_PUT] =
		"INSERT INTO object (" OBJECT_COLUMNS ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, "
		"?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)",
	[SQL_OBJECT_SET] = "UPDATE object SET gen = ?2, mode = ?3, uid = ?4, gid = ?5, nlink = ?6, "
			   "size = ?7, atime = ?8, mtime = ?9, ctime = ?10, btime = ?11, "
			   "parent = ?12, hash = ?13, flags = ?14, pin_until = ?15, "
			   "memory_bytes = ?16, has_memory = ?17 WHERE id = ?1",
	[SQL_OBJECT_DEL] = "DELETE FROM object WHERE id = ?1",
	[SQL_OBJECT_TOUCH_DIR] = "UPDATE object SET mtime = ?2, ctime = ?2, nlink = nlink + ?3 "
				 "WHERE id = ?1",
	[SQL_OBJECT_HEAT] = "UPDATE object SET heat_list = ?2, heat_run = ?3, heat_depth = ?4 "
			    "WHERE id = ?1",
	[SQL_LINK_PUT] = "INSERT INTO link (object, parent, hash) VALUES (?1, ?2, ?3)",
	[SQL_LINK_DEL] = "DELETE FROM link WHERE object = ?1 AND parent = ?2 AND hash = ?3",
	[SQL_LINK_CLEAR] = "DELETE FROM link WHERE object = ?1",
	[SQL_TARGET_PUT] = "INSERT INTO target (object, target) VALUES (?1, ?2)",
	[SQL_TARGET_CLEAR] = "DELETE FROM target WHERE object = ?1",
	[SQL_XATTR_SET] = "INSERT INTO xattr (object, name, value) VALUES (?1, ?2, ?3) "
			  "ON CONFLICT DO UPDATE SET value = ?3",
	[SQL_XATTR_DEL] = "DELETE FROM xattr WHERE object = ?1 AND name = ?2",
	[SQL_XATTR_CLEAR] = "DELETE FROM xattr WHERE object = ?1",
	[SQL_GHOST_PUT] = "INSERT INTO ghost (hash, bytes, seq) VALUES (?1, ?2, ?3) "
			  "ON CONFLICT DO UPDATE SET bytes = ?2, seq = ?3",
	[SQL_GHOST_DEL] = "DELETE FROM ghost WHERE hash = ?1",
	[SQL_GHOST_TRIM] = "DELETE FROM ghost WHERE seq < ?1",
	[SQL_VALUE_SET] = "INSERT INTO value (name, value) VALUES (?1, ?2) "
			  "ON CONFLICT DO UPDATE SET value = ?2",
};

/* What each connection is set to. The WAL is checkpointed by a thread of its own (checkpoint.c), so
 * no commit does it. Debian builds SQLite with secure_delete, which writes every freed page once
 * more. */
#define SETTINGS_ALL                                                                        \
	"PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0; PRAGMA temp_store=MEMORY;" \
	"PRAGMA mmap_size=0;"

static const char *const db_settings[] = {
	[DB_READER] = SETTINGS_ALL "PRAGMA cache_size=-1024; PRAGMA query_only=ON;",
	[DB_WRITER] = SETTINGS_ALL "PRAGMA cache_size=-2048; PRAGMA secure_delete=OFF;",
	[DB_CHECKPOINT] = SETTINGS_ALL "PRAGMA cache_size=-256;",
};

enum { BUSY_TIMEOUT_MS = 10000, ERRORS_A_SECOND = 10 };

static int translate(int code, int sys_errno)
{
	if (code == SQLITE_IOERR_SHMSIZE || code == SQLITE_IOERR_NOMEM)
		return code == SQLITE_IOERR_NOMEM ? -ENOMEM : -ENOSPC;
	switch (code & 0xff) {
	case SQLITE_FULL:
		return -ENOSPC;
	case SQLITE_CORRUPT:
	case SQLITE_NOTADB:
	case SQLITE_FORMAT:
		return -EUCLEAN;
	case SQLITE_NOMEM:
		return -ENOMEM;
	case SQLITE_READONLY:
		return -EROFS;
	case SQLITE_PERM:
	case SQLITE_AUTH:
		return -EACCES;
	case SQLITE_BUSY:
	case SQLITE_LOCKED:
		return -EBUSY;
	case SQLITE_TOOBIG:
		return -E2BIG;
	case SQLITE_CONSTRAINT:
		return -EEXIST;
	case SQLITE_CANTOPEN:
		return sys_errno > 0 ? -sys_errno : -EIO;
	case SQLITE_IOERR:
		/* A quota or a limit of the file's size is a full disk to whoever must act. */
		return sys_errno == ENOSPC || sys_errno == EDQUOT || sys_errno == EFBIG ? -ENOSPC
											: -EIO;
	default: /* the codes are SQLite's */
		return -EIO;
	}
}

/* The errno of a failed write: by now SQLite's own record of it is often gone, the one in its file
 * object is not. */
static int write_errno(sqlite3 *sql)
{
	int wal_errno = 0;
	sqlite3_file *wal = NULL;

	if (sqlite3_file_control(sql, "main", SQLITE_FCNTL_JOURNAL_POINTER, (void *)&wal) ==
		    SQLITE_OK &&
	    wal && wal->pMethods)
		(void)wal->pMethods->xFileControl(wal, SQLITE_FCNTL_LAST_ERRNO, &wal_errno);
	return wal_errno;
}

static const char *advice(int r)
{
	switch (-r) {
	case ENOSPC:
		return "make room on its filesystem";
	case EUCLEAN:
		return "the file is damaged or no database: stop, move it away, start anew";
	case EROFS:
	case EACCES:
		return "make it and its directory writable";
	case EBUSY:
		return "another program holds it locked: end that program";
	case EIO:
		return "look for disk errors in the kernel's log";
	default: /* any errno */
		return "nothing known";
	}
}

int db_error(struct meta_db *db, const char *what)
{
	int code = db->sql ? sqlite3_extended_errcode(db->sql) : SQLITE_NOMEM;
	int sys_errno = db->sql ? sqlite3_system_errno(db->sql) : 0;

	if (code == SQLITE_IOERR_WRITE && sys_errno == 0)
		sys_errno = write_errno(db->sql);
	int r = translate(code, sys_errno);

	db->failed = r;
	if (log_allow(db->limit, ERRORS_A_SECOND))
		log_msg(LOG_ERR,
			"meta: %s failed file=%s sqlite=%d (%s) errno=%d err=%d; to do: %s", what,
			db->path, code, db->sql ? sqlite3_errmsg(db->sql) : "no memory", sys_errno,
			-r, advice(r));
	return r;
}

int db_exec(struct meta_db *db, const char *sql)
{
	return sqlite3_exec(db->sql, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : db_error(db, sql);
}

static int connect_file(struct meta_db *db)
{
	int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;

	if (sqlite3_open_v2(db->path, &db->sql, flags, NULL) != SQLITE_OK)
		return db_error(db, "open");
	(void)sqlite3_extended_result_codes(db->sql, 1);
	(void)sqlite3_busy_timeout(db->sql, BUSY_TIMEOUT_MS);
	if (sqlite3_exec(db->sql, db_settings[db->role], NULL, NULL, NULL) != SQLITE_OK)
		return db_error(db, "set up");
	return 0;
}

int db_open(const char *path, enum db_role role, struct log_limit *limit, struct meta_db **ret)
{
	struct meta_db *db = calloc(1, sizeof *db);

	if (!db)
		return -ENOMEM;
	db->path = path;
	db->role = role;
	db->limit = limit;
	int r = connect_file(db);

	if (r < 0) {
		db_close(db);
		return r;
	}
	*ret = db;
	return 0;
}

int db_prepare(struct meta_db *db)
{
	static const int nr_of_role[] = {
		[DB_READER] = SQL_NR_READ,
		[DB_WRITER] = SQL_NR,
		[DB_CHECKPOINT] = 0,
	};

	for (int i = 0; i < nr_of_role[db->role]; i++)
		if (sqlite3_prepare_v3(db->sql, sql_text[i], -1, SQLITE_PREPARE_PERSISTENT,
				       &db->stmt[i], NULL) != SQLITE_OK)
			return db_error(db, sql_text[i]);
	return 0;
}

void db_close(struct meta_db *db)
{
	if (!db)
		return;
	for (int i = 0; i < SQL_NR; i++)
		(void)sqlite3_finalize(db->stmt[i]);
	if (sqlite3_close(db->sql) != SQLITE_OK)
		(void)db_error(db, "close");
	free(db);
}

sqlite3_stmt *db_stmt(struct meta_db *db, enum sql_id id)
{
	assert(db->stmt[id]);
	return db->stmt[id];
}

int db_step(struct meta_db *db, sqlite3_stmt *st)
{
	int code = sqlite3_step(st);

	if (code == SQLITE_ROW)
		return 1;
	if (code == SQLITE_DONE)
		return 0;
	if ((code & 0xff) == SQLITE_CONSTRAINT)
		return -EEXIST;
	return db_error(db, sqlite3_sql(st));
}

int db_change(struct meta_db *db, sqlite3_stmt *st, int none)
{
	int r = db_step(db, st);

	if (r < 0)
		return r;
	return sqlite3_changes(db->sql) > 0 ? 0 : none;
}

int db_run(struct meta_db *db, enum sql_id id)
{
	AUTO_RESET sqlite3_stmt *st = db_stmt(db, id);

	return db_step(db, st);
}

void db_i64(sqlite3_stmt *st, int i, int64_t v)
{
	int code = sqlite3_bind_int64(st, i, v);

	assert(code == SQLITE_OK); /* anything else is a wrong index or a statement in use */
	(void)code;
}

void db_u64(sqlite3_stmt *st, int i, uint64_t v)
{
	db_i64(st, i, (int64_t)v);
}

int db_blob(struct meta_db *db, sqlite3_stmt *st, int i, const void *p, size_t len)
{
	/* A NULL pointer would store NULL, and an empty value is not that. */
	if (sqlite3_bind_blob64(st, i, p ? p : "", len, SQLITE_STATIC) != SQLITE_OK)
		return db_error(db, sqlite3_sql(st));
	return 0;
}

int db_text(struct meta_db *db, sqlite3_stmt *st, int i, const char *s)
{
	if (sqlite3_bind_text(st, i, s, -1, SQLITE_STATIC) != SQLITE_OK)
		return db_error(db, sqlite3_sql(st));
	return 0;
}

uint64_t db_col_u64(sqlite3_stmt *st, int i)
{
	return (uint64_t)sqlite3_column_int64(st, i);
}

uint32_t db_col_u32(sqlite3_stmt *st, int i)
{
	return (uint32_t)sqlite3_column_int64(st, i);
}
