/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - parse, build the stack, run it, take it down. */
#include "base/log.h"
#include "cache/cache.h"
#include "config.h"
#include "ctl/stats.h"
#include "daemon.h"
#include "fuse/session.h"
#include "lock.h"
#include "options.h"
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Everything that lives as long as the daemon, in the order in which it is built. */
struct stack {
	struct options opts;
	struct daemon daemon;
	int lock_fd;
	struct cache *cache;
	struct fs_session *session;
	struct control_file files[4]; /* the last has no name */
	struct signals signals;
};

static void stack_free(struct stack *s)
{
	if (s == NULL)
		return;
	signals_stop(&s->signals);
	fs_session_free(s->session);
	cache_close(s->cache);
	/* Last: from here on another daemon may have the state directory. */
	if (s->lock_fd >= 0)
		(void)close(s->lock_fd);
	free(s);
}

static struct stack *stack_new(void)
{
	struct stack *s = calloc(1, sizeof *s);
	struct options_env env = {
		.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
		.root = geteuid() == 0,
	};

	if (s == NULL)
		return NULL;
	s->lock_fd = -1;
	s->signals.signal_fd = -1;
	s->signals.stop_fd = -1;
	daemon_init(&s->daemon);
	options_init(&s->opts, &env);
	return s;
}

static int open_cache(struct stack *s, struct failure *f)
{
	const struct options *o = &s->opts;
	struct cache_config cfg = {
		.state_dir = o->state_dir,
		.memory_dir = o->memory_dir[0] == '\0' ? NULL : o->memory_dir,
		.huge = o->huge,
		.ram_bytes = o->ram_bytes,
		.entry_timeout_ns = o->entry_timeout_ns,
		.negative_timeout_ns = o->negative_timeout_ns,
		.grace_ns = o->lookup_grace_ns,
		.publish_wait_ns = o->publish_wait_ns,
		.evict = o->evict,
		.noatime = o->noatime,
	};
	int r = cache_open(&cfg, &s->cache);

	if (r < 0) {
		errno = -r;
		failure_set(f, EXIT_SYSTEM, "cannot open the cache in %s: %m", o->state_dir);
	}
	return r;
}

static void print_config(void *arg, FILE *out)
{
	options_print(arg, out);
}

static void print_version(void *arg, FILE *out)
{
	(void)arg;
	(void)fprintf(out, "kvcachefs %s\nlibfuse %s\n", VERSION, fs_library());
}

static void print_stats(void *arg, FILE *out)
{
	stats_print(arg, out);
}

/* @buf has room for all of them. */
static void kernel_options(const struct options *o, char *buf, size_t cap)
{
	(void)snprintf(buf, cap, "nosuid,nodev%s%s%s%s%s", o->allow_other ? ",allow_other" : "",
		       o->default_permissions ? ",default_permissions" : "", o->ro ? ",ro" : "",
		       o->noexec ? ",noexec" : "", o->noatime ? ",noatime" : "");
}

static int open_session(struct stack *s, struct failure *f)
{
	const struct options *o = &s->opts;
	char mount_options[128];
	struct fs_config cfg = {
		.mountpoint = o->mountpoint,
		.fsname = o->fsname,
		.mount_options = mount_options,
		.passthrough = o->passthrough,
		.io_uring = o->io_uring,
		.debug = options_log_prio(o) == LOG_DEBUG,
		.threads = (unsigned)o->threads,
		.files = s->files,
	};
	int r;

	s->files[0] = (struct control_file){ "stats", print_stats, s->cache };
	s->files[1] = (struct control_file){ "config", print_config, &s->opts };
	s->files[2] = (struct control_file){ "version", print_version, NULL };
	kernel_options(o, mount_options, sizeof mount_options);
	r = fs_session_new(&cfg, s->cache, &s->session);
	if (r == 0)
		r = fs_session_mount(s->session);
	if (r < 0) {
		errno = -r;
		failure_set(f, EXIT_MOUNT, "cannot mount at %s: %m", o->mountpoint);
	}
	return r;
}

static void stop(void *arg)
{
	fs_session_stop(arg);
}

static int start(struct stack *s, struct failure *f)
{
	int r = lock_take(&s->opts, &s->lock_fd, f);

	if (r == 0)
		r = open_cache(s, f);
	if (r == 0)
		r = open_session(s, f);
	if (r < 0)
		return r;
	r = signals_start(&s->signals, stop, s->session);
	if (r < 0)
		failure_set(f, EXIT_SYSTEM, "cannot start the thread for signals");
	return r;
}

static void log_features(const struct options *o, const struct fs_features *f)
{
	log_msg(LOG_INFO,
		"main: serving mountpoint=%s version=%s libfuse=%s passthrough=%s%s%s%s "
		"io_uring=%s%s%s%s",
		o->mountpoint, VERSION, fs_library(), f->passthrough ? "on" : "off",
		f->passthrough ? "" : " (", f->passthrough ? "" : f->why_no_passthrough,
		f->passthrough ? "" : ")", f->io_uring ? "on" : "off", f->io_uring ? "" : " (",
		f->io_uring ? "" : f->why_no_io_uring, f->io_uring ? "" : ")");
}

/* The mount answers. */
static void ready(void *arg, const struct fs_features *f)
{
	struct stack *s = arg;

	log_features(&s->opts, f);
	if (s->opts.foreground)
		return;
	daemon_ready(&s->daemon, options_log_prio(&s->opts));
	/* Once for the terminal, once for syslog. */
	log_features(&s->opts, f);
}

/* In the process that serves. */
static int run(struct stack *s)
{
	struct failure f = { 0 };
	int r = start(s, &f);

	if (r < 0)
		return daemon_failed(&s->daemon, &f);
	r = fs_session_loop(s->session, ready, s);
	if (r < 0) {
		errno = -r;
		failure_set(&f, EXIT_SYSTEM, "the session at %s ended: %m", s->opts.mountpoint);
		log_msg(LOG_ERR, "main: session failed err=%d", -r);
		return daemon_failed(&s->daemon, &f);
	}
	log_msg(LOG_INFO, "main: unmounted mountpoint=%s", s->opts.mountpoint);
	return EXIT_OK;
}

/* What needs the user's working directory and terminal. */
static int prepare(struct stack *s, int argc, char *const *argv, struct failure *f)
{
	struct options *o = &s->opts;
	int r = options_parse_args(o, argc, argv, f);

	if (r < 0 || o->help || o->version)
		return r;
	log_open(false, options_log_prio(o));
	(void)umask(0077);
	limits_raise();
	r = state_mountpoint(o, f);
	if (r == 0)
		r = state_dirs(o, f);
	if (r == 0 && !o->foreground)
		r = daemon_fork(&s->daemon, f);
	return r;
}

static int run_all(struct stack *s, int argc, char *const *argv)
{
	struct failure f = { 0 };
	int r = prepare(s, argc, argv, &f);

	if (r < 0)
		return daemon_failed(&s->daemon, &f);
	if (s->opts.help)
		options_help(stdout);
	else if (s->opts.version)
		print_version(NULL, stdout);
	else if (s->daemon.parent)
		return daemon_wait(&s->daemon, s->opts.mountpoint);
	else
		return run(s);
	return fflush(stdout) == 0 ? EXIT_OK : EXIT_SYSTEM;
}

int main(int argc, char **argv)
{
	struct stack *s;
	int code;

	if (fs_is_guard(argc, argv))
		return fs_guard(argv);
	s = stack_new();
	if (s == NULL) {
		(void)fputs("kvcachefs: out of memory\n", stderr);
		return EXIT_SYSTEM;
	}
	signals_block();
	code = run_all(s, argc, argv);
	stack_free(s);
	return code;
}
