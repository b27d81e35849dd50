/* SPDX-License-Identifier: Apache-2.0 */
/* replay.c - give every file of the directories named to a fuzz target, as a plain test in every build. */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { INPUT_MAX = 1 << 20 };

static int replay_file(int dir_fd, const char *name, uint8_t *buf)
{
	int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
	uint8_t *input;
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read(fd, buf, INPUT_MAX);
	(void)close(fd);
	if (n < 0)
		return -1;
	/* Of its exact size, so that a sanitizer sees every byte too far. */
	input = malloc((size_t)n + (n == 0));
	if (input == NULL)
		return -1;
	for (ssize_t i = 0; i < n; i++)
		input[i] = buf[i];
	(void)LLVMFuzzerTestOneInput(input, (size_t)n);
	free(input);
	return 0;
}

static int replay_dir(const char *path, uint8_t *buf)
{
	DIR *dir = opendir(path);
	const struct dirent *e;
	int nr = 0;

	if (dir == NULL)
		return -1;
	/* NOLINTNEXTLINE(concurrency-mt-unsafe): this program has one thread */
	while ((e = readdir(dir)) != NULL) {
		if (e->d_name[0] == '.')
			continue;
		if (replay_file(dirfd(dir), e->d_name, buf) < 0) {
			(void)fprintf(stderr, "%s/%s: %m\n", path, e->d_name);
			nr = -1;
			break;
		}
		nr++;
	}
	(void)closedir(dir);
	return nr;
}

int main(int argc, char **argv)
{
	uint8_t *buf = malloc(INPUT_MAX);
	int bad = buf == NULL;

	for (int i = 1; i < argc && !bad; i++) {
		int nr = replay_dir(argv[i], buf);

		if (nr <= 0)
			(void)fprintf(stderr, "%s: nothing to replay\n", argv[i]);
		bad = nr <= 0;
	}
	free(buf);
	return bad;
}
