/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include "units.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <syslog.h>

enum opt_type {
	OPT_BOOL,
	OPT_SIZE,
	OPT_DURATION,
	OPT_NUMBER,
	OPT_PATH,   /* absolute, or "" */
	OPT_TEXT,   /* one word of printable characters */
	OPT_CHOICE, /* one of .choices */
};

struct opt_desc {
	const char *name;
	enum opt_type type;
	size_t off; /* of the field in struct options */
	const char *
		def; /* default, as it would be written; NULL: depends on the machine, see options_init */
	const char *def_say; /* how --help tells the default, when not as .def */
	const char *help;
	uint64_t min; /* OPT_SIZE, OPT_DURATION, OPT_NUMBER */
	uint64_t max;
	uint64_t unit_ns; /* OPT_DURATION: what a bare number counts in */
	const char *const *choices;
	size_t cap; /* OPT_PATH, OPT_TEXT: size of the field */
};

#define SECOND_NS UINT64_C(1000000000)
#define YEAR_NS (SECOND_NS * 86400 * 366)

static const char *const huge_choices[] = { "within_size", "always", "advise", "never", NULL };
static const char *const level_choices[] = { "error", "warning", "info", "debug", NULL };
static const int level_prios[] = { LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG };

#define FIELD(f) offsetof(struct options, f)
#define ROOM(f) sizeof(((struct options *)NULL)->f)

static const struct opt_desc opt_table[] = {
	{ .name = "state_dir",
	  .type = OPT_PATH,
	  .off = FIELD(state_dir),
	  .cap = ROOM(state_dir),
	  .def = "",
	  .def_say = "below /var/lib/kvcachefs, one for each mount point",
	  .help = "where metadata and the memory tier live" },
	{ .name = "ram_size",
	  .type = OPT_SIZE,
	  .off = FIELD(ram_bytes),
	  .def = "50%",
	  .def_say = "50% of the machine's memory",
	  .min = 1 << 20,
	  .max = INT64_MAX,
	  .help = "budget of the memory tier" },
	{ .name = "memory_dir",
	  .type = OPT_PATH,
	  .off = FIELD(memory_dir),
	  .cap = ROOM(memory_dir),
	  .def = "",
	  .def_say = "a private tmpfs below state_dir",
	  .help = "directory of the memory tier's files; best on a tmpfs" },
	{ .name = "huge",
	  .type = OPT_CHOICE,
	  .off = FIELD(huge),
	  .def = "within_size",
	  .choices = huge_choices,
	  .help = "huge pages of the private tmpfs" },
	{ .name = "evict",
	  .type = OPT_BOOL,
	  .off = FIELD(evict),
	  .def = "on",
	  .help = "when memory is full, drop what is used least; off: ENOSPC" },
	{ .name = "lookup_grace",
	  .type = OPT_DURATION,
	  .off = FIELD(lookup_grace_ns),
	  .def = "1s",
	  .max = YEAR_NS,
	  .unit_ns = SECOND_NS,
	  .help = "how long a key that was looked up is spared from eviction" },
	{ .name = "publish_wait",
	  .type = OPT_DURATION,
	  .off = FIELD(publish_wait_ns),
	  .def = "50ms",
	  .max = 60 * SECOND_NS,
	  .unit_ns = SECOND_NS / 1000,
	  .help = "how long a lookup waits for a writer that is closing; a bare number is in ms" },
	{ .name = "entry_timeout",
	  .type = OPT_DURATION,
	  .off = FIELD(entry_timeout_ns),
	  .def = "1s",
	  .max = YEAR_NS,
	  .unit_ns = SECOND_NS,
	  .help = "how long the kernel may remember names and attributes" },
	{ .name = "negative_timeout",
	  .type = OPT_DURATION,
	  .off = FIELD(negative_timeout_ns),
	  .def = "1h",
	  .max = YEAR_NS,
	  .unit_ns = SECOND_NS,
	  .help = "how long the kernel may remember that a name is missing" },
	{ .name = "passthrough",
	  .type = OPT_BOOL,
	  .off = FIELD(passthrough),
	  .def = "on",
	  .help = "let the kernel read and write the memory tier itself, where it can" },
	{ .name = "io_uring",
	  .type = OPT_BOOL,
	  .off = FIELD(io_uring),
	  .def = "on",
	  .help = "talk to the kernel over io_uring, where it can" },
	{ .name = "threads",
	  .type = OPT_NUMBER,
	  .off = FIELD(threads),
	  .def = "0",
	  .def_say = "0: by the load",
	  .max = 1024,
	  .help = "most threads that serve requests" },
	{ .name = "allow_other",
	  .type = OPT_BOOL,
	  .off = FIELD(allow_other),
	  .def_say = "on when root mounts",
	  .help = "let every user in, as permissions say" },
	{ .name = "default_permissions",
	  .type = OPT_BOOL,
	  .off = FIELD(default_permissions),
	  .def = "on",
	  .help = "let the kernel check permissions" },
	{ .name = "fsname",
	  .type = OPT_TEXT,
	  .off = FIELD(fsname),
	  .cap = ROOM(fsname),
	  .def = "kvcachefs",
	  .def_say = "SOURCE, else kvcachefs",
	  .help = "the name of the source in df and findmnt" },
	{ .name = "log_level",
	  .type = OPT_CHOICE,
	  .off = FIELD(log_level),
	  .def = "info",
	  .choices = level_choices,
	  .help = "least urgent lines that are logged" },
	{ .name = "ro",
	  .type = OPT_BOOL,
	  .off = FIELD(ro),
	  .def = "off",
	  .help = "mount read-only" },
	{ .name = "noexec",
	  .type = OPT_BOOL,
	  .off = FIELD(noexec),
	  .def = "off",
	  .help = "no execution of programs" },
	{ .name = "noatime",
	  .type = OPT_BOOL,
	  .off = FIELD(noatime),
	  .def = "off",
	  .help = "do not update access times" },
};

enum { NR_OPTS = sizeof opt_table / sizeof *opt_table };

/* The opposites of mount(8): not of the form no_NAME. */
static const struct {
	const char *name;
	const char *set;
	const char *value;
} opt_alias[] = {
	{ "rw", "ro", "off" },
	{ "exec", "noexec", "off" },
	{ "atime", "noatime", "off" },
};

/* For mount(8), fstab and systemd; the mount is nosuid and nodev whatever they say. */
static const char *const opt_ignored[] = {
	"_netdev",  "async",	   "auto",	    "comment", "defaults", "dev",
	"diratime", "group",	   "noauto",	    "nodev",   "nofail",   "nodiratime",
	"nonempty", "norelatime",  "nostrictatime", "nosuid",  "nouser",   "owner",
	"relatime", "strictatime", "subtype",	    "suid",    "user",	   "users",
};

enum { NR_IGNORED = sizeof opt_ignored / sizeof *opt_ignored };

static char *text_field(struct options *o, const struct opt_desc *d)
{
	return (char *)o + d->off;
}

static uint64_t *number_field(struct options *o, const struct opt_desc *d)
{
	return (uint64_t *)(void *)((char *)o + d->off);
}

static bool *bool_field(struct options *o, const struct opt_desc *d)
{
	return (bool *)(void *)((char *)o + d->off);
}

static const char **choice_field(struct options *o, const struct opt_desc *d)
{
	return (const char **)(void *)((char *)o + d->off);
}

static int set_bool(struct options *o, const struct opt_desc *d, const char *value)
{
	static const struct {
		const char *name;
		bool value;
	} words[] = { { "on", true },	{ "off", false },   { "yes", true }, { "no", false },
		      { "true", true }, { "false", false }, { "1", true },   { "0", false } };

	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		if (strcmp(value, words[i].name) == 0) {
			*bool_field(o, d) = words[i].value;
			return 0;
		}
	}
	return -EINVAL;
}

static int set_number(struct options *o, const struct opt_desc *d, const char *value)
{
	uint64_t n = 0;
	int r = -EINVAL;

	if (d->type == OPT_SIZE)
		r = size_parse(value, o->env.memory_bytes, &n);
	else if (d->type == OPT_DURATION)
		r = duration_parse(value, d->unit_ns, &n);
	else
		r = uint_parse(value, &n);
	if (r == 0 && (n < d->min || n > d->max))
		r = -ERANGE;
	if (r == 0)
		*number_field(o, d) = n;
	return r;
}

/* Whether @s survives a configuration file, whose comments begin with " ;" and whose blanks are trimmed, and a list
 * of mount options. */
static bool text_is_plain(const char *s, bool path)
{
	size_t len = strlen(s);

	for (const char *p = s; *p != '\0'; p++) {
		if ((unsigned char)*p < 0x20 || *p == 0x7f || (!path && strchr(", \\", *p) != NULL))
			return false;
	}
	return s[0] != ';' && s[0] != ' ' && (len == 0 || s[len - 1] != ' ') &&
	       strstr(s, " ;") == NULL;
}

static int set_text(struct options *o, const struct opt_desc *d, const char *value)
{
	size_t len = strlen(value);
	bool path = d->type == OPT_PATH;

	if (len >= d->cap)
		return -ENAMETOOLONG;
	if (!text_is_plain(value, path) || (path ? len > 0 && value[0] != '/' : len == 0))
		return -EINVAL;
	memcpy(text_field(o, d), value, len + 1);
	return 0;
}

static int set_choice(struct options *o, const struct opt_desc *d, const char *value)
{
	for (const char *const *c = d->choices; *c != NULL; c++) {
		if (strcmp(*c, value) == 0) {
			*choice_field(o, d) = *c;
			return 0;
		}
	}
	return -EINVAL;
}

static int set_value(struct options *o, const struct opt_desc *d, const char *value)
{
	switch (d->type) {
	case OPT_BOOL:
		return set_bool(o, d, value);
	case OPT_SIZE:
	case OPT_DURATION:
	case OPT_NUMBER:
		return set_number(o, d, value);
	case OPT_PATH:
	case OPT_TEXT:
		return set_text(o, d, value);
	case OPT_CHOICE:
		return set_choice(o, d, value);
	}
	return -EINVAL;
}

static void append(char *buf, size_t cap, const char *s)
{
	size_t len = strlen(buf);
	size_t more = strnlen(s, cap - 1 - len);

	memcpy(buf + len, s, more);
	buf[len + more] = '\0';
}

/* What a value of @d looks like. */
static void expected(const struct opt_desc *d, char *buf, size_t cap)
{
	char lo[UNITS_TEXT];
	char hi[UNITS_TEXT];

	switch (d->type) {
	case OPT_BOOL:
		(void)snprintf(buf, cap, "on or off");
		break;
	case OPT_SIZE:
		size_format(d->min, lo);
		(void)snprintf(buf, cap, "a size such as 512M, 64G or 50%%, at least %s", lo);
		break;
	case OPT_DURATION:
		duration_format(d->max, hi);
		(void)snprintf(buf, cap, "a time such as 50ms, 1.5s or 1h, at most %s", hi);
		break;
	case OPT_NUMBER:
		(void)snprintf(buf, cap, "a number from %" PRIu64 " to %" PRIu64, d->min, d->max);
		break;
	case OPT_PATH:
		(void)snprintf(buf, cap,
			       "an absolute path of at most %zu bytes without control characters "
			       "or \" ;\"",
			       d->cap - 1);
		break;
	case OPT_TEXT:
		(void)snprintf(buf, cap,
			       "1 to %zu printable characters, no blank, comma or backslash",
			       d->cap - 1);
		break;
	case OPT_CHOICE:
		buf[0] = '\0';
		for (const char *const *c = d->choices; *c != NULL; c++) {
			append(buf, cap, c == d->choices ? "one of " : ", ");
			append(buf, cap, *c);
		}
		break;
	}
}

static const struct opt_desc *find_opt(const char *name)
{
	for (int i = 0; i < NR_OPTS; i++) {
		if (strcmp(opt_table[i].name, name) == 0)
			return &opt_table[i];
	}
	return NULL;
}

static bool is_ignored(const char *name)
{
	if (strncmp(name, "x-", 2) == 0 || strncmp(name, "X-", 2) == 0)
		return true;
	for (int i = 0; i < NR_IGNORED; i++) {
		if (strcmp(opt_ignored[i], name) == 0)
			return true;
	}
	return false;
}

enum { NEAR_MAX = 24 };

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned m = a < b ? a : b;

	return m < c ? m : c;
}

/* Levenshtein's distance of two short names. */
static unsigned name_distance(const char *a, const char *b)
{
	unsigned row[NEAR_MAX + 1];
	size_t len = strlen(b);

	if (len > NEAR_MAX || strlen(a) > NEAR_MAX)
		return UINT_MAX;
	for (size_t j = 0; j <= len; j++)
		row[j] = (unsigned)j;
	for (unsigned i = 1; a[i - 1] != '\0'; i++) {
		unsigned corner = row[0];

		row[0] = i;
		for (size_t j = 1; j <= len; j++) {
			unsigned above = row[j];

			row[j] = min3(above + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1]));
			corner = above;
		}
	}
	return row[len];
}

static void unknown_option(const char *name, struct failure *f)
{
	const char *nearest = NULL;
	/* Farther away it is no slip of the fingers. */
	size_t best = 1 + (strlen(name) < 6 ? strlen(name) / 2 : 3);

	for (int i = 0; i < NR_OPTS; i++) {
		unsigned d = name_distance(name, opt_table[i].name);

		if (d < best) {
			best = d;
			nearest = opt_table[i].name;
		}
	}
	if (nearest != NULL)
		failure_set(f, EXIT_USAGE, "unknown option '%s'; did you mean '%s'?", name,
			    nearest);
	else
		failure_set(f, EXIT_USAGE, "unknown option '%s'; see --help", name);
}

/* Find the option and the value that "NAME", "no_NAME" and the opposites of mount(8) stand for. */
static const struct opt_desc *resolve(const char *name, const char **value)
{
	const struct opt_desc *d = find_opt(name);

	if (d != NULL) {
		if (*value == NULL && d->type == OPT_BOOL)
			*value = "on";
		return d;
	}
	if (*value != NULL)
		return NULL;
	for (size_t i = 0; i < sizeof opt_alias / sizeof *opt_alias; i++) {
		if (strcmp(opt_alias[i].name, name) == 0) {
			*value = opt_alias[i].value;
			return find_opt(opt_alias[i].set);
		}
	}
	d = strncmp(name, "no_", 3) == 0 ? find_opt(name + 3) : NULL;
	if (d == NULL || d->type != OPT_BOOL)
		return NULL;
	*value = "off";
	return d;
}

int options_set(struct options *o, const char *name, const char *value, struct failure *f)
{
	const struct opt_desc *d = resolve(name, &value);
	char want[256];

	if (d == NULL && is_ignored(name))
		return 0;
	if (d == NULL) {
		unknown_option(name, f);
		return -EINVAL;
	}
	expected(d, want, sizeof want);
	if (value == NULL) {
		failure_set(f, EXIT_USAGE, "option '%s' needs a value: %s", name, want);
		return -EINVAL;
	}
	if (set_value(o, d, value) < 0) {
		failure_set(f, EXIT_USAGE, "option '%s': bad value '%.200s'; expected %s", d->name,
			    value, want);
		return -EINVAL;
	}
	return 0;
}

void options_init(struct options *o, const struct options_env *env)
{
	memset(o, 0, sizeof *o);
	o->env = *env;
	o->allow_other = env->root;
	for (int i = 0; i < NR_OPTS; i++) {
		if (opt_table[i].def != NULL)
			(void)set_value(o, &opt_table[i], opt_table[i].def);
	}
}

static void print_value(const struct options *o, const struct opt_desc *d, FILE *out)
{
	const void *field = (const char *)o + d->off;
	char text[UNITS_TEXT];

	switch (d->type) {
	case OPT_BOOL:
		(void)fputs(*(const bool *)field ? "on" : "off", out);
		break;
	case OPT_SIZE:
		size_format(*(const uint64_t *)field, text);
		(void)fputs(text, out);
		break;
	case OPT_DURATION:
		duration_format(*(const uint64_t *)field, text);
		(void)fputs(text, out);
		break;
	case OPT_NUMBER:
		(void)fprintf(out, "%" PRIu64, *(const uint64_t *)field);
		break;
	case OPT_PATH:
	case OPT_TEXT:
		(void)fputs(field, out);
		break;
	case OPT_CHOICE:
		(void)fputs(*(const char *const *)field, out);
		break;
	}
}

void options_print(const struct options *o, FILE *out)
{
	for (int i = 0; i < NR_OPTS; i++) {
		(void)fprintf(out, "%s = ", opt_table[i].name);
		print_value(o, &opt_table[i], out);
		(void)fputc('\n', out);
	}
}

static const char *value_name(const struct opt_desc *d)
{
	switch (d->type) {
	case OPT_BOOL:
		return "on|off";
	case OPT_SIZE:
		return "SIZE";
	case OPT_DURATION:
		return "TIME";
	case OPT_NUMBER:
		return "N";
	case OPT_PATH:
		return "DIR";
	case OPT_TEXT:
	case OPT_CHOICE:
		return "NAME";
	}
	return "";
}

void options_help(FILE *out)
{
	(void)fputs("usage: kvcachefs [SOURCE] MOUNTPOINT [-o OPTION[,OPTION...]] [-f] [-d] "
		    "[--config FILE]\n"
		    "       kvcachefs --help | --version\n\n"
		    "Mounts a filesystem that keeps the KV cache of LLM engines: each file is a "
		    "key, served from memory.\n\n"
		    "    -o OPTION,...     mount options, see below\n"
		    "    --config FILE     read options from FILE first, one NAME = VALUE a line\n"
		    "    -f, --foreground  stay in the foreground, log on standard error\n"
		    "    -d, --debug       -f and log_level=debug\n"
		    "    -r                -o ro\n"
		    "    -h, --help        print this and exit\n"
		    "    -V, --version     print the version and exit\n\n"
		    "Options for -o and the configuration file:\n\n",
		    out);
	for (int i = 0; i < NR_OPTS; i++) {
		const struct opt_desc *d = &opt_table[i];
		const char *def = d->def_say != NULL ? d->def_say : d->def;

		(void)fprintf(out, "    %s=%s\n        %s (default: %s)\n", d->name, value_name(d),
			      d->help, def);
	}
	(void)fputs("\nAn option that is on or off may be written NAME or no_NAME. Sizes take K, "
		    "M, G, T or %; times take\n"
		    "ns, us, ms, s, m, h, d. What fstab and mount(8) add is accepted: rw, exec, "
		    "nofail, _netdev, x-* and the like.\n",
		    out);
}

int options_log_prio(const struct options *o)
{
	for (size_t i = 0; i < sizeof level_prios / sizeof *level_prios; i++) {
		if (strcmp(o->log_level, level_choices[i]) == 0)
			return level_prios[i];
	}
	return LOG_INFO;
}
