/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

void daemon_init(struct daemon *d)
{
	d->parent = false;
	d->pipe_fd = -1;
	d->child = -1;
}

int daemon_fork(struct daemon *d, struct failure *f)
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0) {
		failure_set(f, EXIT_SYSTEM, "cannot make a pipe: %m");
		return -errno;
	}
	d->child = fork();
	if (d->child < 0) {
		failure_set(f, EXIT_SYSTEM, "cannot fork: %m");
		(void)close(fds[0]);
		(void)close(fds[1]);
		return -errno;
	}
	d->parent = d->child > 0;
	d->pipe_fd = d->parent ? fds[0] : fds[1];
	(void)close(d->parent ? fds[1] : fds[0]);
	if (!d->parent) {
		(void)setsid();
		if (chdir("/") < 0)
			log_msg(LOG_WARNING, "daemon: chdir failed err=%d", errno);
	}
	return 0;
}

/* The report is one byte, the exit code, and behind it the text. */
static size_t read_report(int fd, char *buf, size_t cap)
{
	size_t len = 0;
	ssize_t n;

	do {
		n = read(fd, buf + len, cap - len);
		if (n > 0)
			len += (size_t)n;
	} while ((n > 0 && len < cap) || (n < 0 && errno == EINTR));
	return len;
}

static void print_failure(const char *text)
{
	(void)fprintf(stderr, "kvcachefs: %s\n", text);
}

/* The child ended without a word. */
static int explain_death(pid_t child)
{
	int status = 0;

	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		(void)fprintf(stderr,
			      "kvcachefs: the daemon was killed at its start by signal %d\n",
			      WTERMSIG(status));
	else
		(void)fprintf(stderr, "kvcachefs: the daemon ended at its start with status %d\n",
			      WEXITSTATUS(status));
	return EXIT_INTERNAL;
}

int daemon_wait(struct daemon *d, const char *mountpoint)
{
	char report[1 + sizeof((struct failure *)NULL)->text];
	struct statvfs st;
	size_t len = read_report(d->pipe_fd, report, sizeof report - 1);

	(void)close(d->pipe_fd);
	d->pipe_fd = -1;
	if (len == 0)
		return explain_death(d->child);
	report[len] = '\0';
	if (report[0] != EXIT_OK) {
		print_failure(report + 1);
		return report[0];
	}
	if (statvfs(mountpoint, &st) < 0) {
		(void)fprintf(stderr, "kvcachefs: mount point %s does not answer: %m\n",
			      mountpoint);
		return EXIT_MOUNT;
	}
	return EXIT_OK;
}

static void write_report(int fd, enum exit_code code, const char *text)
{
	char report[1 + sizeof((struct failure *)NULL)->text];
	size_t len = strnlen(text, sizeof report - 1);

	report[0] = (char)code;
	memcpy(report + 1, text, len);
	/* Below PIPE_BUF: whole or not at all. Without a reader there is nobody to tell. */
	if (write(fd, report, len + 1) < 0)
		log_msg(LOG_WARNING, "daemon: nobody waits for the start report err=%d", errno);
}

void daemon_ready(struct daemon *d, int log_prio)
{
	int null;

	if (d->pipe_fd < 0)
		return;
	log_open(true, log_prio);
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int fd = 0; fd <= 2 && null >= 0; fd++)
		(void)dup2(null, fd);
	if (null > 2)
		(void)close(null);
	write_report(d->pipe_fd, EXIT_OK, "");
	(void)close(d->pipe_fd);
	d->pipe_fd = -1;
}

int daemon_failed(struct daemon *d, const struct failure *f)
{
	if (d->pipe_fd < 0) {
		print_failure(f->text);
		return (int)f->code;
	}
	write_report(d->pipe_fd, f->code, f->text);
	(void)close(d->pipe_fd);
	d->pipe_fd = -1;
	return (int)f->code;
}

static void ending_signals(sigset_t *set)
{
	(void)sigemptyset(set);
	(void)sigaddset(set, SIGTERM);
	(void)sigaddset(set, SIGINT);
	(void)sigaddset(set, SIGHUP);
}

void signals_block(void)
{
	sigset_t set;

	ending_signals(&set);
	(void)sigaddset(&set, SIGPIPE);
	(void)sigaddset(&set, SIGIO); /* of the leases that memory_has_writers() takes */
	(void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void signals_main(void *arg)
{
	struct signals *s = arg;
	struct pollfd fds[2] = { { .fd = s->stop_fd, .events = POLLIN },
				 { .fd = s->signal_fd, .events = POLLIN } };
	bool told = false;

	for (;;) {
		struct signalfd_siginfo info;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return;
		if ((fds[0].revents & POLLIN) != 0)
			return;
		if (read(s->signal_fd, &info, sizeof info) != (ssize_t)sizeof info || told)
			continue;
		told = true;
		log_msg(LOG_INFO, "daemon: stopping signal=%u pid=%u", info.ssi_signo,
			info.ssi_pid);
		s->fn(s->arg);
	}
}

int signals_start(struct signals *s, void (*fn)(void *arg), void *arg)
{
	sigset_t set;

	memset(s, 0, sizeof *s);
	ending_signals(&set);
	s->fn = fn;
	s->arg = arg;
	s->stop_fd = eventfd(0, EFD_CLOEXEC);
	s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (s->stop_fd < 0 || s->signal_fd < 0)
		return -errno;
	return thread_start(&s->thread, "signals", signals_main, s);
}

void signals_stop(struct signals *s)
{
	uint64_t one = 1;

	if (s->thread.running && write(s->stop_fd, &one, sizeof one) < 0)
		log_msg(LOG_ERR, "daemon: cannot stop the signal thread err=%d", errno);
	thread_join(&s->thread);
	if (s->signal_fd >= 0)
		(void)close(s->signal_fd);
	if (s->stop_fd >= 0)
		(void)close(s->stop_fd);
	s->signal_fd = -1;
	s->stop_fd = -1;
}

void limits_raise(void)
{
	struct rlimit lim;

	/* Without it the kernel might, to get memory for the daemon, write back pages that wait for the daemon. Threads
	 * and children started later inherit it. */
	if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) < 0 && errno != EPERM && errno != EINVAL)
		log_msg(LOG_WARNING, "daemon: prctl(PR_SET_IO_FLUSHER) failed err=%d", errno);
	if (getrlimit(RLIMIT_NOFILE, &lim) < 0 || lim.rlim_cur == lim.rlim_max)
		return;
	lim.rlim_cur = lim.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &lim) < 0)
		log_msg(LOG_WARNING, "daemon: open files stay limited err=%d", errno);
}
