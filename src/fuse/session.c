/* SPDX-License-Identifier: Apache-2.0 */
#include "fuse/session.h"

#include "base/log.h"
#include "fuse/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_WRITE_BYTES = 1 << 20, MAX_BACKGROUND = 512 };
enum { MIN_THREADS = 4, MAX_THREADS = 32 };

/* Until Linux 6.15, whose protocol is 7.43, fs/fuse passes no longer component than FUSE_NAME_LOW_MAX. */
enum { OLD_NAME_MAX_BYTES = 1024, LONG_NAMES_MINOR = 43 };

static bool may_administer(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };

	return syscall(SYS_capget, &head, data) == 0 && (data[0].effective & (1U << CAP_SYS_ADMIN));
}

/* fs/fuse/inode.c: the module's parameter, off by default. */
static bool uring_enabled(void)
{
	char on = 'N';
	int fd = open("/sys/module/fuse/parameters/enable_uring", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	if (read(fd, &on, 1) != 1)
		on = 'N';
	(void)close(fd);
	return on == 'Y';
}

#if FUSE_USE_VERSION >= 317
static void want(struct fuse_conn_info *conn, uint64_t flag)
{
	(void)fuse_set_feature_flag(conn, flag);
}

static void do_not_want(struct fuse_conn_info *conn, uint64_t flag)
{
	fuse_unset_feature_flag(conn, flag);
}

static bool has(const struct fuse_conn_info *conn, uint64_t flag)
{
	return conn->capable_ext & flag;
}
#else
static void want(struct fuse_conn_info *conn, unsigned flag)
{
	conn->want |= conn->capable & flag;
}

static void do_not_want(struct fuse_conn_info *conn, unsigned flag)
{
	conn->want &= ~flag;
}
#endif

static const char *ask_passthrough(struct fs_session *s, struct fuse_conn_info *conn)
{
	if (!s->want_passthrough)
		return "switched off";
#if HAVE_FUSE_PASSTHROUGH
	if (!has(conn, FUSE_CAP_PASSTHROUGH))
		return "the kernel has none (Linux 6.9 or later is needed)";
	if (!may_administer())
		return "it needs CAP_SYS_ADMIN";
	want(conn, FUSE_CAP_PASSTHROUGH);
	conn->max_backing_stack_depth = 1;
	return NULL;
#else
	(void)conn;
	(void)may_administer;
	return "built with a libfuse before 3.17";
#endif
}

static const char *ask_uring(struct fs_session *s, struct fuse_conn_info *conn)
{
	if (!s->want_io_uring)
		return "switched off";
#if HAVE_FUSE_URING
	if (!has(conn, FUSE_CAP_OVER_IO_URING))
		return uring_enabled()
			       ? "the kernel has none (Linux 6.14 or later is needed)"
			       : "the kernel has it off (echo 1 > "
				 "/sys/module/fuse/parameters/enable_uring before mounting)";
	return NULL;
#else
	(void)conn;
	(void)uring_enabled;
	return "built with a libfuse before 3.18";
#endif
}

static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs_session *s = userdata;

	want(conn, FUSE_CAP_ATOMIC_O_TRUNC);
	want(conn, FUSE_CAP_FLOCK_LOCKS);
#ifdef FUSE_CAP_HANDLE_KILLPRIV_V2 /* without, the kernel asks for security.capability at each write */
	want(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
#endif
	want(conn, FUSE_CAP_PARALLEL_DIROPS);
	want(conn, FUSE_CAP_CACHE_SYMLINKS);
	want(conn, FUSE_CAP_SPLICE_WRITE);
	/* Splicing a request in costs more system calls than copying it, also for a write: libfuse's pipe cannot hold 1 MiB
	 * and a header, so it is made and given up for each request. */
	do_not_want(conn, FUSE_CAP_SPLICE_READ);
	do_not_want(conn, FUSE_CAP_POSIX_LOCKS); /* the kernel's own do, see the manual */
	do_not_want(conn, FUSE_CAP_WRITEBACK_CACHE);
	do_not_want(conn, FUSE_CAP_READDIRPLUS);
	s->name_max_bytes =
		conn->proto_minor < LONG_NAMES_MINOR ? OLD_NAME_MAX_BYTES : NAME_MAX_BYTES;
	conn->max_write = MAX_WRITE_BYTES;
	conn->max_background = MAX_BACKGROUND;
	conn->congestion_threshold = MAX_BACKGROUND * 3 / 4;
	s->features.why_no_passthrough = ask_passthrough(s, conn);
	s->features.passthrough = !s->features.why_no_passthrough;
	s->features.why_no_io_uring = ask_uring(s, conn);
	s->features.io_uring = !s->features.why_no_io_uring;
	log_msg(LOG_INFO, "fuse: protocol=%u.%u passthrough=%s%s%s io_uring=%s%s%s",
		conn->proto_major, conn->proto_minor, s->features.passthrough ? "yes" : "no",
		s->features.passthrough ? "" : ": ",
		s->features.passthrough ? "" : s->features.why_no_passthrough,
		s->features.io_uring ? "yes" : "no", s->features.io_uring ? "" : ": ",
		s->features.io_uring ? "" : s->features.why_no_io_uring);
	if (s->ready)
		s->ready(s->ready_arg, &s->features);
}

/* What fuse_session_new() takes: its own options and the mount's. */
static int add_args(struct fuse_args *args, const struct fs_config *cfg, bool uring)
{
	char *opts = NULL;
	int n = asprintf(&opts, "-ofsname=%s,subtype=kvcachefs%s%s%s", cfg->fsname,
			 cfg->mount_options[0] ? "," : "", cfg->mount_options,
			 uring ? ",io_uring" : "");
	int r = n < 0 || fuse_opt_add_arg(args, "kvcachefs") < 0 || fuse_opt_add_arg(args, opts) < 0
			? -ENOMEM
			: 0;

	if (r == 0 && cfg->debug && fuse_opt_add_arg(args, "-d") < 0)
		r = -ENOMEM;
	free(opts);
	return r;
}

static int new_session(struct fs_session *s, const struct fs_config *cfg)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	bool uring = HAVE_FUSE_URING && cfg->io_uring && uring_enabled();
	int r = add_args(&args, cfg, uring);

	s->ops.init = op_init;
	ops_name(&s->ops);
	ops_data(&s->ops);
	ops_attr(&s->ops);
	if (r == 0) {
		s->se = fuse_session_new(&args, &s->ops, sizeof s->ops, s);
		r = s->se ? 0 : -EINVAL;
	}
	fuse_opt_free_args(&args);
	return r;
}

int fs_session_new(const struct fs_config *cfg, struct cache *c, struct fs_session **ret)
{
	struct fs_session *s = calloc(1, sizeof *s);
	int r;

	if (!s)
		return -ENOMEM;
	s->cache = c;
	s->files = cfg->files;
	s->want_passthrough = cfg->passthrough;
	s->want_io_uring = cfg->io_uring;
	s->threads = cfg->threads;
	s->mountpoint = strdup(cfg->mountpoint);
	r = s->mountpoint ? handles_new(&s->handles) : -ENOMEM;
	if (r == 0)
		r = handles_new(&s->texts);
	if (r == 0)
		r = backings_new(&s->backings);
	if (r == 0)
		r = locks_new(&s->locks);
	if (r == 0)
		r = new_session(s, cfg);
	if (r < 0) {
		fs_session_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

int fs_session_mount(struct fs_session *s)
{
	struct cache_hooks hooks = { .arg = s,
				     .inval_entry = notify_inval_entry,
				     .settled = parking_settled };

	errno = 0;
	if (fuse_session_mount(s->se, s->mountpoint) < 0)
		return errno ? -errno : -EIO;
	s->mounted = true;
	int r = guard_start(s->mountpoint, &s->guard);

	if (r < 0)
		log_msg(LOG_WARNING,
			"fuse: should the daemon be killed, users of the mount may hang until it "
			"is "
			"started again (is /sys/fs/fuse/connections mounted?) err=%d",
			-r);
	r = notifier_start(s);

	if (r == 0)
		r = parking_start(s);
	if (r == 0)
		cache_set_hooks(s->cache, &hooks);
	return r;
}

/* More than run at a time cost memory, and the kernel wakes the one that has slept longest, whose cache is cold. */
static unsigned default_threads(void)
{
	long nr = sysconf(_SC_NPROCESSORS_ONLN);

	return nr < MIN_THREADS ? MIN_THREADS : nr > MAX_THREADS ? MAX_THREADS : (unsigned)nr;
}

int fs_session_loop(struct fs_session *s, void (*ready)(void *arg, const struct fs_features *f),
		    void *arg)
{
	struct fuse_loop_config *cfg = fuse_loop_cfg_create();
	int r;

	if (!cfg)
		return -ENOMEM;
	s->ready = ready;
	s->ready_arg = arg;
	fuse_loop_cfg_set_clone_fd(cfg, 0);
	unsigned nr_threads = s->threads ? s->threads : default_threads();

	fuse_loop_cfg_set_max_threads(cfg, nr_threads);
	fuse_loop_cfg_set_idle_threads(cfg, nr_threads);
	r = fuse_session_loop_mt(s->se, cfg);
	fuse_loop_cfg_destroy(cfg);
	/* Positive: the signal that ended it. ENODEV: unmounted from outside. */
	return r < 0 && r != -ENODEV ? r : 0;
}

static bool is_connected(const struct fs_session *s)
{
	struct pollfd fd = { .fd = fuse_session_fd(s->se) };

	return s->mounted && fd.fd >= 0 && poll(&fd, 1, 0) >= 0 && (fd.revents & POLLERR) == 0;
}

/* Files may be open: ending the connection brings the loop's threads back from read(2), the notifier from the kernel, and users. */
static void end_connection(struct fs_session *s)
{
	/* If unmounted by others, something else may be there by now. */
	if (is_connected(s) && umount2(s->mountpoint, MNT_FORCE | MNT_DETACH) < 0)
		fuse_session_unmount(s->se); /* without privilege, by fusermount3 */
	guard_abort(s->guard);
}

void fs_session_stop(struct fs_session *s)
{
	cache_settle(s->cache);
	fuse_session_exit(s->se);
	end_connection(s);
}

static void abandon(void *h)
{
	cache_abandon(h);
}

void fs_session_free(struct fs_session *s)
{
	if (!s)
		return;
	end_connection(s);
	if (s->cache)
		cache_set_hooks(s->cache, &(struct cache_hooks){ 0 });
	parking_stop(s);
	notifier_stop(s);
	guard_stop(s->guard);
	if (s->mounted)
		fuse_session_unmount(s->se);
	if (s->se)
		fuse_session_destroy(s->se);
	backings_free(s->backings);
	handles_free(s->handles, abandon);
	handles_free(s->texts, control_abandon);
	locks_free(s->locks);
	free(s->mountpoint);
	free(s);
}

const char *fs_library(void)
{
	return fuse_pkgversion();
}
