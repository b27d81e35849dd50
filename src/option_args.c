/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: flags, -o lists, and the configuration file that --config names. */
#include "options.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_MAX_BYTES = 1 << 20 };

/* What the command line holds, before anything of it is applied. */
struct args {
	const char **lists; /* of -o, borrowed from argv */
	int nr_lists;
	const char *config;
	const char *where[3]; /* positional */
	int nr_where;
	bool debug;
	bool ro;
	bool rw;
};

/* Call @fn for each NAME[=VALUE] of @list. @text is a copy of it to be cut up. */
static int each_option(char *text, int (*fn)(void *arg, const char *name, const char *value),
		       void *arg)
{
	int r = 0;

	while (text != NULL && r == 0) {
		char *out = text;
		char *in = text;
		char *next = NULL;
		char *value;

		for (; *in != '\0' && *in != ','; in++) {
			if (*in == '\\' && (in[1] == ',' || in[1] == '\\'))
				in++;
			*out++ = *in;
		}
		if (*in == ',')
			next = in + 1;
		*out = '\0';
		value = strchr(text, '=');
		if (value != NULL)
			*value++ = '\0';
		if (*text != '\0' || value != NULL)
			r = fn(arg, text, value);
		text = next;
	}
	return r;
}

static int each_of_list(const char *list, int (*fn)(void *arg, const char *name, const char *value),
			void *arg, struct failure *f)
{
	char *text = strdup(list);
	int r;

	if (text == NULL) {
		failure_set(f, EXIT_SYSTEM, "out of memory");
		return -ENOMEM;
	}
	r = each_option(text, fn, arg);
	free(text);
	return r;
}

struct apply {
	struct options *o;
	struct failure *f;
};

static int apply_option(void *arg, const char *name, const char *value)
{
	const struct apply *a = arg;

	/* In a list "config" has been seen to before. */
	return strcmp(name, "config") == 0 ? 0 : options_set(a->o, name, value, a->f);
}

int options_parse_list(struct options *o, const char *list, struct failure *f)
{
	struct apply a = { o, f };

	return each_of_list(list, apply_option, &a, f);
}

static int set_config(struct options *o, const char *path, struct failure *f)
{
	if (path == NULL || path[0] == '\0' || strlen(path) >= sizeof o->config) {
		failure_set(f, EXIT_USAGE, "option 'config' needs the path of a file");
		return -EINVAL;
	}
	memcpy(o->config, path, strlen(path) + 1);
	return 0;
}

static int find_config(void *arg, const char *name, const char *value)
{
	const struct apply *a = arg;

	return strcmp(name, "config") == 0 ? set_config(a->o, value, a->f) : 0;
}

static int read_file(int fd, char *buf, size_t cap, size_t *ret_len)
{
	size_t len = 0;
	ssize_t n;

	do {
		n = read(fd, buf + len, cap - len);
		if (n > 0)
			len += (size_t)n;
	} while ((n > 0 && len < cap) || (n < 0 && errno == EINTR));
	if (n < 0)
		return -errno;
	if (len == cap)
		return -EFBIG;
	*ret_len = len;
	return 0;
}

static int load_config(struct options *o, struct failure *f)
{
	AUTO_CLOSE int fd = open(o->config, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	size_t len = 0;
	char *text;
	int r;

	text = malloc(CONFIG_MAX_BYTES);
	if (text == NULL) {
		failure_set(f, EXIT_SYSTEM, "out of memory");
		return -ENOMEM;
	}
	r = fd < 0 ? -errno : read_file(fd, text, CONFIG_MAX_BYTES, &len);
	if (r < 0) {
		errno = -r;
		failure_set(f, EXIT_USAGE, "cannot read the configuration file %s: %m", o->config);
	} else {
		char path[PATH_MAX];

		/* The text may not change its own name in messages. */
		memcpy(path, o->config, sizeof path);
		r = options_parse_text(o, path, text, len, f);
	}
	free(text);
	return r;
}

static const struct option long_options[] = {
	{ "config", required_argument, NULL, 'c' }, { "foreground", no_argument, NULL, 'f' },
	{ "debug", no_argument, NULL, 'd' },	    { "help", no_argument, NULL, 'h' },
	{ "version", no_argument, NULL, 'V' },	    { NULL, 0, NULL, 0 },
};

static int bad_flag(int c, char *const *argv, struct failure *f)
{
	const char *flag = argv[optind - 1];

	if (c == ':')
		failure_set(f, EXIT_USAGE, "%s needs an argument; see --help", flag);
	else if (optopt > 0 && optopt < 0x7f && strncmp(flag, "--", 2) != 0)
		failure_set(f, EXIT_USAGE, "unknown flag '-%c'; see --help", optopt);
	else
		failure_set(f, EXIT_USAGE, "unknown flag '%s'; see --help", flag);
	return -EINVAL;
}

static int take_flag(struct options *o, struct args *a, int c)
{
	switch (c) {
	case 'o':
		a->lists[a->nr_lists++] = optarg;
		return 0;
	case 'c':
		a->config = optarg;
		return 0;
	case 'd':
		a->debug = true;
		o->foreground = true;
		return 0;
	case 'f':
		o->foreground = true;
		return 0;
	case 'h':
		o->help = true;
		return 0;
	case 'V':
		o->version = true;
		return 0;
	case 'r':
		a->ro = true;
		return 0;
	case 'w':
		a->rw = true;
		return 0;
	case 's': /* -s -n -v of mount(8) */
	case 'n':
	case 'v':
		return 0;
	default:
		return -EINVAL;
	}
}

static int scan_args(struct options *o, struct args *a, int argc, char *const *argv,
		     struct failure *f)
{
	int c;

	optind = 0; /* GNU: begin anew */
	opterr = 0;
	/* One thread yet, so getopt's globals are ours. -N has a network namespace for its argument. */
	/* NOLINTNEXTLINE(concurrency-mt-unsafe) */
	while ((c = getopt_long(argc, argv, ":o:fdhVrwsnvN:", long_options, NULL)) != -1) {
		/* "-o -f": no list begins like this, it was forgotten. */
		if ((c == 'o' || c == 'c') && optarg[0] == '-') {
			failure_set(f, EXIT_USAGE, "%s needs an argument; see --help",
				    c == 'o' ? "-o" : "--config");
			return -EINVAL;
		}
		if (c != 'N' && take_flag(o, a, c) < 0)
			return bad_flag(c, argv, f);
	}
	for (int i = optind; i < argc; i++) {
		if (a->nr_where == 2) {
			failure_set(f, EXIT_USAGE, "unexpected argument '%s'; see --help", argv[i]);
			return -EINVAL;
		}
		a->where[a->nr_where++] = argv[i];
	}
	return 0;
}

static int set_where(struct options *o, const struct args *a, struct failure *f)
{
	const char *mountpoint = a->nr_where == 0 ? "" : a->where[a->nr_where - 1];

	if (mountpoint[0] == '\0') {
		failure_set(f, EXIT_USAGE, "no mount point given; see --help");
		return -EINVAL;
	}
	if (strlen(mountpoint) >= sizeof o->mountpoint) {
		failure_set(f, EXIT_USAGE, "the mount point's path is too long");
		return -EINVAL;
	}
	memcpy(o->mountpoint, mountpoint, strlen(mountpoint) + 1);
	return a->nr_where == 2 ? options_set(o, "fsname", a->where[0], f) : 0;
}

static int apply_args(struct options *o, const struct args *a, struct failure *f)
{
	struct apply apply = { o, f };
	int r = set_where(o, a, f);

	for (int i = 0; i < a->nr_lists && r == 0; i++)
		r = each_of_list(a->lists[i], find_config, &apply, f);
	if (r == 0 && a->config != NULL)
		r = set_config(o, a->config, f);
	if (r == 0 && o->config[0] != '\0')
		r = load_config(o, f);
	for (int i = 0; i < a->nr_lists && r == 0; i++)
		r = options_parse_list(o, a->lists[i], f);
	if (r == 0 && (a->ro || a->rw))
		r = options_set(o, "ro", a->ro ? "on" : "off", f);
	if (r == 0 && a->debug)
		r = options_set(o, "log_level", "debug", f);
	return r;
}

int options_parse_args(struct options *o, int argc, char *const *argv, struct failure *f)
{
	struct args a = { 0 };
	int r;

	a.lists = calloc((size_t)argc + 1, sizeof *a.lists);
	if (a.lists == NULL) {
		failure_set(f, EXIT_SYSTEM, "out of memory");
		return -ENOMEM;
	}
	r = scan_args(o, &a, argc, argv, f);
	if (r == 0 && !o->help && !o->version)
		r = apply_args(o, &a, f);
	free(a.lists);
	return r;
}
