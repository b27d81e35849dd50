/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/log.h"
#include "meta/db.h"
#include "meta/meta.h"

#include <errno.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* "kvcf", in PRAGMA application_id: other programs' databases have another. */
enum { SCHEMA_APPLICATION = 0x6b766366, SCHEMA_VERSION = 1 };

/* Unsigned 64-bit numbers are stored as the signed number of the same bits. dentry is clustered in
 * the order in which a directory is listed; hash is the cookie, so nothing needs a second index,
 * and one more key costs one leaf page. */
static const char schema_1[] =
	"CREATE TABLE object ("
	" id INTEGER PRIMARY KEY, gen INTEGER NOT NULL, mode INTEGER NOT NULL,"
	" uid INTEGER NOT NULL, gid INTEGER NOT NULL, nlink INTEGER NOT NULL,"
	" size INTEGER NOT NULL, atime INTEGER NOT NULL, mtime INTEGER NOT NULL,"
	" ctime INTEGER NOT NULL, btime INTEGER NOT NULL, parent INTEGER NOT NULL,"
	" hash INTEGER NOT NULL, flags INTEGER NOT NULL, pin_until INTEGER NOT NULL,"
	" memory_bytes INTEGER NOT NULL, has_memory INTEGER NOT NULL, heat_list INTEGER NOT NULL,"
	" heat_run INTEGER NOT NULL, heat_depth INTEGER NOT NULL);"
	"CREATE TABLE dentry ("
	" parent INTEGER NOT NULL, hash INTEGER NOT NULL, name BLOB NOT NULL,"
	" object INTEGER NOT NULL, mode INTEGER NOT NULL,"
	" PRIMARY KEY (parent, hash, name)) WITHOUT ROWID;"
	"CREATE TABLE link ("
	" object INTEGER NOT NULL, parent INTEGER NOT NULL, hash INTEGER NOT NULL,"
	" PRIMARY KEY (object, parent, hash)) WITHOUT ROWID;"
	"CREATE TABLE target (object INTEGER PRIMARY KEY, target BLOB NOT NULL);"
	"CREATE TABLE xattr ("
	" object INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,"
	" PRIMARY KEY (object, name)) WITHOUT ROWID;"
	"CREATE TABLE ghost ("
	" hash INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, seq INTEGER NOT NULL);"
	"CREATE INDEX ghost_seq ON ghost (seq);"
	"CREATE TABLE value (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;";

static int query_number(struct meta_db *db, const char *sql, int64_t *ret)
{
	sqlite3_stmt *st = NULL;
	int r = 0;

	if (sqlite3_prepare_v2(db->sql, sql, -1, &st, NULL) == SQLITE_OK &&
	    sqlite3_step(st) == SQLITE_ROW)
		*ret = sqlite3_column_int64(st, 0);
	else
		r = db_error(db, sql);
	(void)sqlite3_finalize(st);
	return r;
}

/* Version 0 to 1: the tables, the seed of the name hashes, the first free id, the root directory.
 */
static int create_1(struct meta_db *db)
{
	char rows[512];
	uint64_t seed;
	int64_t now_ns = clock_real_ns();

	if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
		return errno ? -errno : -EIO;
	int r = db_exec(db, schema_1);

	if (r < 0)
		return r;
	(void)snprintf(rows, sizeof rows,
		       "INSERT INTO value VALUES ('seed', %" PRId64 "), ('next_id', %d),"
		       " ('clean', 1);"
		       "INSERT INTO object VALUES (%d, %d, %u, %u, %u, 2, 0,"
		       " %" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 ","
		       " 0, 0, 0, 0, 0, 0, 0, 0, 0);",
		       (int64_t)seed, META_ROOT + 1, META_ROOT, META_ROOT, S_IFDIR | 0755U,
		       geteuid(), getegid(), now_ns, now_ns, now_ns, now_ns);
	return db_exec(db, rows);
}

/* The step that leads away from each version. A new schema adds a row here and raises
 * SCHEMA_VERSION. */
static int (*const steps[SCHEMA_VERSION])(struct meta_db *db) = {
	[0] = create_1,
};

static int migrate_from(struct meta_db *db, int64_t version)
{
	char stamp[96];
	int r = db_exec(db, "BEGIN IMMEDIATE");

	for (int64_t v = version; v < SCHEMA_VERSION && r == 0; v++)
		r = steps[v](db);
	(void)snprintf(stamp, sizeof stamp, "PRAGMA application_id=%d; PRAGMA user_version=%d;",
		       SCHEMA_APPLICATION, SCHEMA_VERSION);
	if (r == 0)
		r = db_exec(db, stamp);
	if (r == 0)
		r = db_exec(db, "COMMIT");
	if (r < 0 && !sqlite3_get_autocommit(db->sql))
		(void)sqlite3_exec(db->sql, "ROLLBACK", NULL, NULL, NULL);
	return r;
}

/* Not among the settings of the connection: it writes to the file, which must be known for ours by
 * then. The limit is above what checkpoint.c lets the WAL become, so that its blocks are used again
 * and again, and only what an unusual load has added is given back. */
static int set_wal(struct meta_db *db)
{
	sqlite3_stmt *st = NULL;
	int r = db_exec(db, "PRAGMA auto_vacuum=NONE; PRAGMA journal_size_limit=100663296;");

	if (r < 0)
		return r;
	if (sqlite3_prepare_v2(db->sql, "PRAGMA journal_mode=WAL", -1, &st, NULL) != SQLITE_OK ||
	    sqlite3_step(st) != SQLITE_ROW) {
		r = db_error(db, "journal_mode=WAL");
	} else {
		const char *mode = (const char *)sqlite3_column_text(st, 0);

		if (!mode || strcmp(mode, "wal") != 0) {
			log_msg(LOG_ERR,
				"meta: no WAL possible file=%s mode=%s; to do: put the state "
				"directory on a local filesystem",
				db->path, mode ? mode : "?");
			r = -EOPNOTSUPP;
		}
	}
	(void)sqlite3_finalize(st);
	return r;
}

int schema_open(struct meta_db *db)
{
	int64_t version = 0;
	int64_t application = 0;
	int64_t nr_tables = 0;
	int r = query_number(db, "PRAGMA user_version", &version);

	if (r == 0)
		r = query_number(db, "PRAGMA application_id", &application);
	if (r == 0)
		r = query_number(db, "SELECT count(*) FROM sqlite_schema", &nr_tables);
	if (r < 0)
		return r;
	if (nr_tables > 0 ? application != SCHEMA_APPLICATION || version < 1 : version != 0) {
		log_msg(LOG_ERR,
			"meta: not a database of this program file=%s application=%" PRId64
			" version=%" PRId64
			"; to do: move it away, or name another state directory",
			db->path, application, version);
		return -EUCLEAN;
	}
	if (version > SCHEMA_VERSION) {
		log_msg(LOG_ERR,
			"meta: schema is newer than this program file=%s version=%" PRId64
			" known=%d; to do: run the program that wrote it, or name another state "
			"directory",
			db->path, version, SCHEMA_VERSION);
		return -EPROTONOSUPPORT;
	}
	r = set_wal(db);
	return r == 0 && version < SCHEMA_VERSION ? migrate_from(db, version) : r;
}

int schema_check(struct meta_db *db)
{
	sqlite3_stmt *st = NULL;
	int r = 0;

	if (sqlite3_prepare_v2(db->sql, "PRAGMA quick_check(1)", -1, &st, NULL) != SQLITE_OK ||
	    sqlite3_step(st) != SQLITE_ROW) {
		r = db_error(db, "quick_check");
	} else {
		const char *text = (const char *)sqlite3_column_text(st, 0);

		if (!text || strcmp(text, "ok") != 0) {
			log_msg(LOG_ERR,
				"meta: damaged file=%s (%s); to do: move it away, start anew",
				db->path, text ? text : "no memory");
			r = -EUCLEAN;
		}
	}
	(void)sqlite3_finalize(st);
	return r;
}
