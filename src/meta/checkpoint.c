/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint thread: copies the WAL into the database file, so that no request has to, and
 * reserves ids ahead.
 * A passive checkpoint blocks nobody, but the WAL starts again from its beginning only when a
 * commit finds all of it copied and nobody reading in it. Under a steady load that never happens
 * by itself. So past WAL_PAGES_FORCE the thread leads for a moment, copies the rest, waits for the
 * readers that are under way, and does that commit. It does so as well when everything is copied anyway, because the commit that starts the WAL again pays an
 * fsync of the new header, and this thread has the time for it. */
#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/thread.h"
#include "meta/db.h"
#include "meta/meta.h"
#include "meta/state.h"

#include <limits.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	WAL_PAGES_CHECKPOINT = 4000,
	WAL_PAGES_FORCE = 8000,
	WAL_PAGES_REST = 500,
	WAL_PAGES_FULL = 64,	    /* instead of WAL_PAGES_CHECKPOINT while the disk is full */
	CHECKPOINT_INTERVAL_S = 10, /* while there are commits, fewer than WAL_PAGES_CHECKPOINT */
	FULL_INTERVAL_S = 1,	    /* while the disk is full */
};

static int on_wal(void *arg, sqlite3 *sql, const char *name, int nr_pages)
{
	struct meta *m = arg;
	unsigned pages = (unsigned)nr_pages;

	(void)sql;
	(void)name;
	atomic_store_explicit(&m->wal_pages, pages, memory_order_relaxed);
	if (pages >= atomic_load_explicit(&m->kick_at, memory_order_relaxed)) {
		atomic_store_explicit(&m->kick_at, UINT_MAX, memory_order_relaxed);
		meta_wake(m, true, false);
	}
	return SQLITE_OK;
}

/* Returns how many pages of the WAL are not copied yet. *@ret_log: how many it has. */
static int copy_pages(struct meta *m, int *ret_log)
{
	int nr_log = 0;
	int nr_copied = 0;

	meta_pool_release(m);
	int code = sqlite3_wal_checkpoint_v2(m->ckpt->sql, NULL, SQLITE_CHECKPOINT_PASSIVE, &nr_log,
					     &nr_copied);

	if (code != SQLITE_OK && (code & 0xff) != SQLITE_BUSY)
		(void)db_error(m->ckpt, "checkpoint");
	if (code != SQLITE_OK || nr_log < 0) {
		*ret_log = 0;
		return -1;
	}
	/* SQLite counts what was there when it began; commits since then have told us of theirs. */
	int now = (int)atomic_load_explicit(&m->wal_pages, memory_order_relaxed);

	*ret_log = now > nr_log ? now : nr_log;
	return *ret_log - nr_copied;
}

static void restart_wal(struct meta *m)
{
	struct meta_op op = { .run = meta_run_trivial };
	int nr_log;

	meta_lead_begin(m);
	/* Snapshots from before the last commit keep its pages from being copied; those from before the copy keep the WAL. */
	if (meta_drain_readers(m) && copy_pages(m, &nr_log) == 0 && nr_log > 0 &&
	    meta_drain_readers(m) && meta_commit_one(m, &op) < 0)
		log_msg(LOG_WARNING, "meta: could not start the WAL again file=%s-wal", m->path);
	meta_lead_end(m);
}

static void checkpoint(struct meta *m)
{
	int nr_log;
	int left = copy_pages(m, &nr_log);
	bool full = meta_admits(m) < 0;

	/* What is left for the time of leading shall be little. */
	for (int i = 0; i < 4 && nr_log >= WAL_PAGES_FORCE && left > WAL_PAGES_REST; i++)
		left = copy_pages(m, &nr_log);
	if (left == 0 || full || nr_log >= WAL_PAGES_FORCE)
		restart_wal(m);
	/* The pages of the last commit: 1 when that started the WAL again. */
	unsigned pages = atomic_load_explicit(&m->wal_pages, memory_order_relaxed);

	atomic_store_explicit(&m->kick_at, pages + (full ? WAL_PAGES_FULL : WAL_PAGES_CHECKPOINT),
			      memory_order_relaxed);
}

/* Waits for something to do; returns false when the thread shall end. *@kick, *@refill: what was
 * asked for. */
static bool wait_work(struct meta *m, bool *kick, bool *refill)
{
	uint64_t s = meta_admits(m) < 0 ? FULL_INTERVAL_S : CHECKPOINT_INTERVAL_S;
	uint64_t deadline_ns = clock_mono_ns() + s * NS_PER_S;

	mutex_lock(&m->wake_lock);
	while (!m->stop && !m->kicked && !m->refill)
		if (!cond_wait_until(&m->wake, &m->wake_lock, deadline_ns))
			break;
	*kick = m->kicked;
	*refill = m->refill;
	m->kicked = false;
	m->refill = false;
	bool stop = m->stop;

	mutex_unlock(&m->wake_lock);
	return !stop;
}

static void look_for_room(struct meta *m)
{
	if (meta_admits(m) == 0)
		return;
	if (atomic_load(&m->ballast) == BALLAST_GONE)
		meta_ballast_take(m);
	if (meta_healthy(m) < 0 && meta_probe(m) == 0)
		log_msg(LOG_NOTICE, "meta: commits succeed again file=%s", m->path);
}

static void checkpoint_main(void *arg)
{
	struct meta *m = arg;
	uint64_t seen_seq = 0;
	bool kick;
	bool refill;

	while (wait_work(m, &kick, &refill)) {
		uint64_t seq = atomic_load(&m->commit_seq);

		look_for_room(m);
		if (refill && meta_reserve_ids(m) < 0)
			log_msg(LOG_WARNING, "meta: no ids reserved ahead file=%s", m->path);
		if (kick || (!refill && seq != seen_seq)) {
			checkpoint(m);
			seen_seq = atomic_load(&m->commit_seq);
		}
	}
}

void meta_wake(struct meta *m, bool kick, bool refill)
{
	mutex_lock(&m->wake_lock);
	m->kicked = m->kicked || kick;
	m->refill = m->refill || refill;
	cond_signal(&m->wake);
	mutex_unlock(&m->wake_lock);
}

int meta_checkpoint_start(struct meta *m)
{
	atomic_store(&m->kick_at, WAL_PAGES_CHECKPOINT);
	(void)sqlite3_wal_hook(m->writer->sql, on_wal, m);
	return thread_start(&m->thread, "meta-ckpt", checkpoint_main, m);
}

void meta_checkpoint_stop(struct meta *m)
{
	mutex_lock(&m->wake_lock);
	m->stop = true;
	cond_signal(&m->wake);
	mutex_unlock(&m->wake_lock);
	thread_join(&m->thread);
}
