/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/meta.h"

#include "base/attr.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "meta/db.h"
#include "meta/state.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>

enum {
	ID_RANGE = 1 << 16,
	DRAIN_MS = 50,
	CHECK_MAX_BYTES = 64 << 20, /* a larger file is not looked through after an unclean end */
};

/* -- numbers ---------------------------------------------------------------------------------- */

struct reserve_op {
	struct meta_op op;
	struct meta *m;
	uint64_t limit;
};

static int run_reserve(struct meta_db *db, struct meta_op *op)
{
	struct reserve_op *o = (struct reserve_op *)op;
	uint64_t next;
	int r = meta_value_get(db, "next_id", &next);

	if (r < 0)
		return r;
	if (next > (uint64_t)INT64_MAX - ID_RANGE)
		return -EOVERFLOW;
	o->limit = next + ID_RANGE;
	return meta_value_set(db, "next_id", o->limit);
}

/* Ranges follow each other without a gap, as nobody else reserves any: the limit moves. */
static void done_reserve(struct meta_op *op, int r)
{
	struct reserve_op *o = (struct reserve_op *)op;

	mutex_lock(&o->m->id_lock);
	if (r == 0)
		o->m->id_limit = o->limit;
	o->m->id_asked = false;
	mutex_unlock(&o->m->id_lock);
}

int meta_reserve_ids(struct meta *m)
{
	/* Durable: what carries such a number may outlive a power failure that the WAL's tail does
	 * not. */
	struct reserve_op o = {
		.op = { .run = run_reserve, .done = done_reserve, .durable = true },
		.m = m,
	};

	return meta_submit(m, &o.op);
}

static uint64_t take_id(struct meta *m, bool *ask) EXCLUDES(m->id_lock)
{
	uint64_t id = 0;

	*ask = false;
	mutex_lock(&m->id_lock);
	if (m->id_next < m->id_limit)
		id = m->id_next++;
	if (m->id_limit - m->id_next < ID_RANGE / 2 && !m->id_asked) {
		m->id_asked = true;
		*ask = true;
	}
	mutex_unlock(&m->id_lock);
	return id;
}

uint64_t meta_next_id(struct meta *m)
{
	bool ask;
	uint64_t id = take_id(m, &ask);

	if (id && ask)
		meta_wake(m, false, true);
	/* Others may use up a new range before this thread has one of it. */
	while (!id) {
		if (meta_reserve_ids(m) < 0)
			return 0;
		id = take_id(m, &ask);
	}
	return id;
}

uint64_t meta_seed(const struct meta *m)
{
	return m->seed;
}

/* -- readers ---------------------------------------------------------------------------------- */

static int end_read(struct meta_db *db)
{
	db->in_txn = false;
	return db_run(db, SQL_COMMIT);
}

void meta_pool_release(struct meta *m)
{
	mutex_lock(&m->pool_lock);
	for (struct meta_db *db = m->pool; db; db = db->next)
		if (db->in_txn && end_read(db) < 0)
			log_msg(LOG_WARNING, "meta: a reader keeps its snapshot file=%s", m->path);
	mutex_unlock(&m->pool_lock);
}

static bool wait_none_out(struct meta *m, unsigned epoch, uint64_t deadline_ns)
	REQUIRES(m->pool_lock)
{
	while (m->nr_out[epoch & 1] > 0)
		if (!cond_wait_until(&m->drained, &m->pool_lock, deadline_ns))
			return m->nr_out[epoch & 1] == 0;
	return true;
}

bool meta_drain_readers(struct meta *m)
{
	uint64_t deadline_ns = clock_mono_ns() + DRAIN_MS * NS_PER_MS;

	mutex_lock(&m->pool_lock);
	/* What is left from the last time, when it took too long, has the next epoch's counter. */
	bool done = wait_none_out(m, m->epoch + 1, deadline_ns);

	if (done) {
		m->epoch++;
		done = wait_none_out(m, m->epoch - 1, deadline_ns);
	}
	mutex_unlock(&m->pool_lock);
	meta_pool_release(m);
	return done;
}

static int reader_new(struct meta *m, struct meta_db **ret)
{
	struct meta_db *db = NULL;
	int r = db_open(m->path, DB_READER, &m->limit, &db);

	if (r == 0)
		r = db_prepare(db);
	if (r < 0) {
		db_close(db);
		return r;
	}
	*ret = db;
	return 0;
}

/* A reader that nothing was committed after keeps its snapshot: no lock, no system call, and its
 * page cache stays. */
static int begin_read(struct meta *m, struct meta_db *db, unsigned epoch)
{
	uint64_t seq = atomic_load(&m->commit_seq);
	bool keep = db->in_txn && db->seq == seq && db->epoch == epoch;
	int r = 0;

	db->epoch = epoch;
	if (keep)
		return 0;
	if (db->in_txn)
		r = end_read(db);
	if (r == 0)
		r = db_run(db, SQL_BEGIN);
	if (r == 0) {
		db->in_txn = true;
		db->seq = seq;
	}
	return r;
}

/* @db is idle again, or NULL. */
static void give_back(struct meta *m, struct meta_db *db, unsigned epoch)
{
	mutex_lock(&m->pool_lock);
	if (db) {
		db->next = m->pool;
		m->pool = db;
	}
	if (--m->nr_out[epoch & 1] == 0 && epoch != m->epoch)
		cond_signal(&m->drained);
	mutex_unlock(&m->pool_lock);
}

int meta_read_begin(struct meta *m, struct meta_db **ret)
{
	int r = 0;

	mutex_lock(&m->pool_lock);
	struct meta_db *db = m->pool;
	unsigned epoch = m->epoch;

	if (db)
		m->pool = db->next;
	m->nr_out[epoch & 1]++;
	mutex_unlock(&m->pool_lock);
	if (!db)
		r = reader_new(m, &db);
	if (r == 0) {
		db->failed = 0;
		r = begin_read(m, db, epoch);
	}
	if (r < 0) {
		db_close(db);
		give_back(m, NULL, epoch);
		return r;
	}
	*ret = db;
	return 0;
}

void meta_read_end(struct meta *m, struct meta_db *db)
{
	unsigned epoch = db->epoch;

	if (db->failed) { /* whatever state SQLite left it in */
		db_close(db);
		db = NULL;
	}
	give_back(m, db, epoch);
}

/* -- open and close --------------------------------------------------------------------------- */

/* The file is made here: with our mode, and so that its errno is that of open(2). */
static int make_file(const char *path, char **ret)
{
	AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);

	if (fd < 0) {
		int r = -errno;

		log_msg(LOG_ERR, "meta: open failed file=%s err=%d (%m)", path, -r);
		return r;
	}
	char *full = realpath(path, NULL);

	if (!full)
		return -errno;
	*ret = full;
	return 0;
}

static bool affordable(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && st.st_size <= CHECK_MAX_BYTES;
}

static int run_opened(struct meta_db *db, struct meta_op *op)
{
	(void)op;
	return meta_value_set(db, "clean", 0);
}

static int run_closed(struct meta_db *db, struct meta_op *op)
{
	(void)op;
	return meta_value_set(db, "clean", 1);
}

static int load_values(struct meta *m, bool *ret_clean)
{
	uint64_t clean = 0;
	int r = meta_value_get(m->writer, "seed", &m->seed);

	if (r == 0)
		r = meta_value_get(m->writer, "next_id", &m->id_next);
	if (r == 0)
		r = meta_value_get(m->writer, "clean", &clean);
	if (r == -ENOENT || (r == 0 && m->id_next <= META_ROOT)) {
		log_msg(LOG_ERR, "meta: values missing file=%s; to do: move it away, start anew",
			m->path);
		return -EUCLEAN;
	}
	m->id_limit = m->id_next;
	*ret_clean = clean == 1;
	return r;
}

static int open_database(struct meta *m, bool *ret_clean)
{
	struct meta_op opened = { .run = run_opened };
	int r = db_open(m->path, DB_WRITER, &m->limit, &m->writer);

	if (r == 0)
		r = schema_open(m->writer);
	if (r == 0)
		r = db_prepare(m->writer);
	if (r == 0)
		r = load_values(m, ret_clean);
	if (r == 0 && !*ret_clean && affordable(m->path))
		r = schema_check(m->writer);
	if (r == 0)
		r = db_open(m->path, DB_CHECKPOINT, &m->limit, &m->ckpt);
	if (r == 0)
		meta_ballast_take(m);
	if (r == 0)
		r = meta_submit(m, &opened);
	if (r == 0)
		r = meta_reserve_ids(m);
	return r;
}

static struct meta *new_meta(void)
{
	struct meta *m = calloc(1, sizeof *m);

	if (!m)
		return NULL;
	m->tail = &m->head;
	mutex_init(&m->lock);
	cond_init(&m->turn[0]);
	cond_init(&m->turn[1]);
	cond_init(&m->ckpt_turn);
	mutex_init(&m->pool_lock);
	cond_init(&m->drained);
	mutex_init(&m->id_lock);
	mutex_init(&m->wake_lock);
	cond_init(&m->wake);
	return m;
}

int meta_open(const char *path, bool *clean, struct meta **ret)
{
	bool was_clean = false;

	/* Before SQLite's first use in the process, else without effect: a count of all memory
	 * takes a lock in each malloc. */
	(void)sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
	struct meta *m = new_meta();

	if (!m)
		return -ENOMEM;
	int r = make_file(path, &m->path);

	if (r == 0)
		r = open_database(m, &was_clean);
	if (r == 0)
		r = meta_checkpoint_start(m);
	if (r < 0) {
		meta_close(m);
		return r;
	}
	m->opened = true;
	if (clean)
		*clean = was_clean;
	*ret = m;
	return 0;
}

void meta_close(struct meta *m)
{
	struct meta_op closed = { .run = run_closed, .durable = true };

	if (!m)
		return;
	meta_checkpoint_stop(m);
	while (m->pool) {
		struct meta_db *db = m->pool;

		m->pool = db->next;
		db_close(db);
	}
	db_close(m->ckpt);
	if (m->opened && meta_submit(m, &closed) < 0)
		log_msg(LOG_WARNING, "meta: clean end not noted file=%s", m->path);
	db_close(m->writer); /* the last one: SQLite copies the WAL and removes it */
	cond_fini(&m->wake);
	mutex_fini(&m->wake_lock);
	mutex_fini(&m->id_lock);
	cond_fini(&m->drained);
	mutex_fini(&m->pool_lock);
	cond_fini(&m->ckpt_turn);
	cond_fini(&m->turn[1]);
	cond_fini(&m->turn[0]);
	mutex_fini(&m->lock);
	free(m->path);
	free(m);
}
