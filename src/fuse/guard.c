/* SPDX-License-Identifier: Apache-2.0 */
/* fuse_reverse_inval_entry() in fs/fuse/dir.c waits for the lock of the directory, and no signal ends that. A client may hold
 * the lock and wait for us. If we are killed then, the waiting thread stays, with it /dev/fuse stays open, so the kernel goes on
 * waiting for an answer, and nobody ever gets any further. (A lock of a tmpfs file that a client writes to would do as well.)
 *
 * So somebody else ends the connection: a process that the kernel signals when our main thread dies, which it does whatever the
 * other threads wait for. A core dump begins by waiting for all threads, before any of them is dead: there a signal handler
 * does it. */
#include "base/mounts.h"
#include "fuse/fs.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUARD_NAME \
	"kvcache-guard" /* at most 15 bytes; and what kills by the daemon's name passes it by */

enum { GUARD_SIGNAL = SIGUSR1 };

struct fs_guard {
	int abort_fd;
	pid_t pid;
};

/* A signal handler is given nothing. -1: nothing is mounted. */
static atomic_int crash_abort_fd = -1;

static void on_crash(int sig)
{
	int fd = atomic_load(&crash_abort_fd);

	if (fd >= 0)
		mounts_abort(fd);
	(void)raise(sig); /* the handler is gone: SA_RESETHAND */
}

static void catch_crashes(int abort_fd)
{
	struct sigaction ours = { .sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND };
	struct sigaction now;

	atomic_store(&crash_abort_fd, abort_fd);
	for (size_t i = 0; i < NR_CRASH_SIGNALS; i++) {
		/* A sanitizer's own handler dumps no core. */
		if (sigaction(crash_signals[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
			(void)sigaction(crash_signals[i], &ours, NULL);
	}
}

/* Run this program once more, as the guard: as a fork it would keep a copy of all our memory. */
static int spawn_guard(const char *mountpoint, int abort_fd, pid_t *ret)
{
	char name[] = GUARD_NAME;
	char where[4096];
	char parent[16];
	char *argv[] = { name, where, parent, NULL };
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attr;
	int r;

	(void)snprintf(where, sizeof where, "%s", mountpoint);
	(void)snprintf(parent, sizeof parent, "%ld", (long)getpid());
	if (posix_spawn_file_actions_init(&files) != 0)
		return -ENOMEM;
	if (posix_spawnattr_init(&attr) != 0) {
		(void)posix_spawn_file_actions_destroy(&files);
		return -ENOMEM;
	}
	r = posix_spawn_file_actions_adddup2(&files, abort_fd, STDIN_FILENO);
	if (r == 0)
		r = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID);
	if (r == 0)
		r = posix_spawn(ret, "/proc/self/exe", &files, &attr, argv, environ);
	(void)posix_spawnattr_destroy(&attr);
	(void)posix_spawn_file_actions_destroy(&files);
	return -r;
}

int guard_start(const char *mountpoint, struct fs_guard **ret)
{
	struct fs_guard *g = calloc(1, sizeof *g);
	int r;

	if (!g)
		return -ENOMEM;
	r = mounts_open_abort(mountpoint, &g->abort_fd);
	if (r < 0) {
		free(g);
		return r;
	}
	catch_crashes(g->abort_fd);
	r = spawn_guard(mountpoint, g->abort_fd, &g->pid);
	if (r < 0)
		g->pid = -1;
	*ret = g;
	return r;
}

void guard_abort(struct fs_guard *g)
{
	if (g)
		mounts_abort(g->abort_fd);
}

void guard_stop(struct fs_guard *g)
{
	if (!g)
		return;
	atomic_store(&crash_abort_fd, -1);
	if (g->pid > 0) {
		(void)kill(g->pid, SIGKILL); /* it has nothing to put in order */
		while (waitpid(g->pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
	(void)close(g->abort_fd);
	free(g);
}

bool fs_is_guard(int argc, char *const *argv)
{
	return argc == 3 && strcmp(argv[0], GUARD_NAME) == 0;
}

int fs_guard(char *const *argv)
{
	sigset_t all;
	sigset_t death;
	int sig = 0;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all,
			      NULL); /* of a terminal, of those who stop a service */
	(void)prctl(PR_SET_NAME, GUARD_NAME);
	(void)close_range(STDOUT_FILENO, ~0U, 0);
	if (chdir("/") < 0 || prctl(PR_SET_PDEATHSIG, GUARD_SIGNAL) < 0)
		return EXIT_FAILURE;
	(void)sigemptyset(&death);
	(void)sigaddset(&death, GUARD_SIGNAL);
	/* Another parent: it died before it could be watched. */
	while (getppid() == (pid_t)strtol(argv[2], NULL, 10) && sigwait(&death, &sig) != 0)
		;
	mounts_abort(STDIN_FILENO);
	return EXIT_SUCCESS;
}
