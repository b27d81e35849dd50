/* SPDX-License-Identifier: Apache-2.0 */
/* Group commit by combining. Callers put their operations in a queue; whoever finds no leader leads
 * exactly one batch: it takes the whole queue, in which its own operation is, runs it in one
 * transaction, and hands on to a caller of the next batch. So a lone caller never switches threads,
 * nobody leads for long, and nobody waits for more than two batches. */
#include "base/attr.h"
#include "base/log.h"
#include "base/mutex.h"
#include "meta/db.h"
#include "meta/meta.h"
#include "meta/state.h"

#include <errno.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static void rollback(struct meta_db *db)
{
	/* After some errors (disk full, I/O) SQLite has rolled back by itself. */
	if (!sqlite3_get_autocommit(db->sql) && db_run(db, SQL_ROLLBACK) < 0)
		log_msg(LOG_ERR, "meta: rollback failed file=%s", db->path);
}

/* PRAGMA synchronous takes effect only outside a transaction, and when compiled: no prepared
 * statement can do it. */
static int begin(struct meta_db *db, bool durable)
{
	int r = durable ? db_exec(db, "PRAGMA synchronous=FULL") : 0;

	return r < 0 ? r : db_run(db, SQL_BEGIN_WRITE);
}

/* Returns non-zero when the transaction must be undone: SQLite failed, or @op wrote before it
 * failed. */
static int run_op(struct meta_db *db, struct meta_op *op)
{
	int before = sqlite3_total_changes(db->sql);

	db->failed = 0;
	op->result = op->run(db, op);
	if (db->failed)
		return op->result < 0 ? op->result : db->failed;
	return op->result < 0 && sqlite3_total_changes(db->sql) != before ? op->result : 0;
}

struct attempt {
	bool by_run;  /* a run was the reason of the failure, not begin or commit */
	bool sick;    /* the database was */
	bool changed; /* a transaction without a change proves nothing about the disk */
};

static int attempt(struct meta *m, struct meta_op *batch, struct attempt *ret)
{
	struct meta_db *db = m->writer;
	int before = sqlite3_total_changes(db->sql);
	bool durable = false;

	for (const struct meta_op *op = batch; op; op = op->next)
		durable = durable || op->durable;
	int r = begin(db, durable);

	ret->by_run = r == 0;
	for (struct meta_op *op = batch; op && r == 0; op = op->next)
		r = run_op(db, op);
	ret->sick = r < 0 && (!ret->by_run || db->failed);
	if (r == 0) {
		ret->by_run = false;
		r = db_run(db, SQL_COMMIT);
		ret->sick = r < 0;
	}
	ret->changed = r == 0 && sqlite3_total_changes(db->sql) != before;
	if (r < 0)
		rollback(db);
	if (durable && db_exec(db, "PRAGMA synchronous=NORMAL") < 0)
		log_msg(LOG_WARNING, "meta: commits stay slow, each with fsync file=%s", m->path);
	return r;
}

/* One transaction over the list @batch. @ret_by_run: a run was the reason of the failure. */
static int transact(struct meta *m, struct meta_op *batch, bool *ret_by_run)
{
	struct attempt a;
	int r = attempt(m, batch, &a);

	if (a.sick && r == -ENOSPC && meta_ballast_drop(m))
		r = attempt(m, batch, &a);
	*ret_by_run = a.by_run;
	if (a.sick)
		atomic_store(&m->health, r);
	if (a.changed) {
		atomic_store(&m->health, 0);
		(void)atomic_fetch_add(&m->commit_seq, 1);
	}
	return r;
}

int meta_commit_one(struct meta *m, struct meta_op *op)
{
	bool by_run;

	op->next = NULL;
	int r = transact(m, op, &by_run);

	return r < 0 ? r : op->result;
}

static void finish(struct meta_op *op, int r)
{
	op->result = r;
	if (op->done)
		op->done(op, r);
}

static void run_batch(struct meta *m, struct meta_op *batch)
{
	bool by_run;
	int r = transact(m, batch, &by_run);

	if (r < 0 && by_run && batch->next) {
		/* One of them is guilty, and only that one shall fail. */
		for (struct meta_op *op = batch; op; op = op->next) {
			struct meta_op *next = op->next;
			int one = meta_commit_one(m, op);

			op->next = next;
			finish(op, one);
		}
		return;
	}
	for (struct meta_op *op = batch; op; op = op->next)
		finish(op, r < 0 ? r : op->result);
}

static void pass_lead_locked(struct meta *m) REQUIRES(m->lock)
{
	if (m->ckpt_wants) {
		m->ckpt_wants = false;
		m->ckpt_granted = true;
		cond_signal(&m->ckpt_turn);
		return;
	}
	m->leading = false;
	if (m->head)
		cond_signal(&m->turn[m->batch_no & 1]);
}

static void lead_locked(struct meta *m) REQUIRES(m->lock)
{
	struct meta_op *batch = m->head;
	unsigned turn = m->batch_no++ & 1;

	m->leading = true;
	m->head = NULL;
	m->tail = &m->head;
	mutex_unlock(&m->lock);
	run_batch(m, batch);
	mutex_lock(&m->lock);
	while (batch) {
		struct meta_op *op = batch;

		batch = op->next; /* once finished is seen, the struct may be gone */
		op->finished = true;
	}
	cond_broadcast(&m->turn[turn]);
	pass_lead_locked(m);
}

int meta_submit(struct meta *m, struct meta_op *op)
{
	op->next = NULL;
	op->result = 0;
	op->finished = false;
	mutex_lock(&m->lock);
	*m->tail = op;
	m->tail = &op->next;
	unsigned turn = m->batch_no & 1;

	while (!op->finished && m->leading)
		cond_wait(&m->turn[turn], &m->lock);
	if (!op->finished)
		lead_locked(m);
	mutex_unlock(&m->lock);
	return op->result;
}

int meta_healthy(const struct meta *m)
{
	return atomic_load(&m->health);
}

int meta_admits(const struct meta *m)
{
	int r = meta_healthy(m);

	return r == 0 && atomic_load(&m->ballast) == BALLAST_GONE ? -ENOSPC : r;
}

int meta_run_trivial(struct meta_db *db, struct meta_op *op)
{
	uint64_t nr = 0;

	(void)op;
	int r = meta_value_get(db, "trivial", &nr);

	return r < 0 && r != -ENOENT ? r : meta_value_set(db, "trivial", nr + 1);
}

int meta_probe(struct meta *m)
{
	struct meta_op op = { .run = meta_run_trivial };

	return meta_submit(m, &op);
}

void meta_lead_begin(struct meta *m)
{
	mutex_lock(&m->lock);
	if (m->leading) {
		m->ckpt_wants = true;
		while (!m->ckpt_granted)
			cond_wait(&m->ckpt_turn, &m->lock);
		m->ckpt_granted = false;
	}
	m->leading = true;
	mutex_unlock(&m->lock);
}

void meta_lead_end(struct meta *m)
{
	mutex_lock(&m->lock);
	pass_lead_locked(m);
	mutex_unlock(&m->lock);
}
