/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "options.h"
#include "units.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct options_env env = { .memory_bytes = UINT64_C(16) << 30, .root = true };

static void has(const char *text, const char *part)
{
	if (strstr(text, part) == NULL) {
		(void)fprintf(stderr, "'%s' does not say '%s'\n", text, part);
		exit(1);
	}
}

static char *printed(const struct options *o)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	CHECK(out != NULL);
	options_print(o, out);
	CHECK(fclose(out) == 0);
	return text;
}

static void test_sizes(void)
{
	static const struct {
		const char *text;
		int want;
		uint64_t bytes;
	} table[] = {
		{ "0", 0, 0 },
		{ "1", 0, 1 },
		{ "100B", 0, 100 },
		{ "4k", 0, 4096 },
		{ "4K", 0, 4096 },
		{ "512M", 0, UINT64_C(512) << 20 },
		{ "64GiB", 0, UINT64_C(64) << 30 },
		{ "64gb", 0, UINT64_C(64) << 30 },
		{ "2T", 0, UINT64_C(2) << 40 },
		{ "50%", 0, 500 },
		{ "1%", 0, 10 },
		{ "100%", 0, 1001 },
		{ "18446744073709551615", 0, UINT64_MAX },
		{ "18446744073709551616", -ERANGE, 0 },
		{ "16777216T", -ERANGE, 0 },
		{ "0%", -ERANGE, 0 },
		{ "101%", -ERANGE, 0 },
		{ "", -EINVAL, 0 },
		{ "M", -EINVAL, 0 },
		{ "-1", -EINVAL, 0 },
		{ "+1", -EINVAL, 0 },
		{ " 1", -EINVAL, 0 },
		{ "1 ", -EINVAL, 0 },
		{ "1.5G", -EINVAL, 0 },
		{ "1X", -EINVAL, 0 },
		{ "1iB", -EINVAL, 0 },
		{ "1MM", -EINVAL, 0 },
		{ "5%%", -EINVAL, 0 },
		{ "0x10", -EINVAL, 0 },
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		uint64_t n = 7;

		CHECK_EQ(size_parse(table[i].text, 1001, &n), table[i].want);
		CHECK_EQ(n, table[i].want == 0 ? table[i].bytes : 7);
	}
}

static void test_durations(void)
{
	static const struct {
		const char *text;
		int want;
		uint64_t ns;
	} table[] = {
		{ "1", 0, 1000000 }, /* the unit of a bare number is given below */
		{ "0", 0, 0 },
		{ "1.5", 0, 1500000 },
		{ "50ms", 0, 50000000 },
		{ "1s", 0, 1000000000 },
		{ "0.25s", 0, 250000000 },
		{ "1.000000001s", 0, 1000000001 },
		{ "1.0000000019s", 0, 1000000001 },
		{ "3us", 0, 3000 },
		{ "3ns", 0, 3 },
		{ "2m", 0, UINT64_C(120000000000) },
		{ "1h", 0, UINT64_C(3600000000000) },
		{ "1d", 0, UINT64_C(86400000000000) },
		{ "300000d", -ERANGE, 0 },
		{ "18446744073709551616ns", -ERANGE, 0 },
		{ "18446744073.709551616s", -ERANGE, 0 },
		{ "", -EINVAL, 0 },
		{ "s", -EINVAL, 0 },
		{ ".5s", -EINVAL, 0 },
		{ "1.s", -EINVAL, 0 },
		{ "1.5.5s", -EINVAL, 0 },
		{ "-1s", -EINVAL, 0 },
		{ "1S", -EINVAL, 0 },
		{ "1 s", -EINVAL, 0 },
		{ "1min", -EINVAL, 0 },
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		uint64_t n = 7;

		CHECK_EQ(duration_parse(table[i].text, 1000000, &n), table[i].want);
		CHECK_EQ(n, table[i].want == 0 ? table[i].ns : 7);
	}
}

static void test_units_round_trip(void)
{
	static const uint64_t table[] = {
		0,	1,	  999,	      1000,	   1023,    1024,	1025,
		999999, 1000000,  1500000000, 60000000000, 1 << 30, UINT64_MAX, UINT64_MAX - 1,
		86400,	INT64_MAX
	};
	char text[UNITS_TEXT];
	uint64_t n;

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		size_format(table[i], text);
		CHECK_EQ(size_parse(text, 0, &n), 0);
		CHECK_EQ(n, table[i]);
		duration_format(table[i], text);
		CHECK_EQ(duration_parse(text, 5, &n), 0);
		CHECK_EQ(n, table[i]);
	}
}

static void test_defaults(void)
{
	struct options_env user = env;
	static struct options o;

	options_init(&o, &env);
	CHECK_EQ(o.ram_bytes, env.memory_bytes / 2);
	CHECK_EQ(o.entry_timeout_ns, UINT64_C(1000000000));
	CHECK_EQ(o.negative_timeout_ns, UINT64_C(3600000000000));
	CHECK_EQ(o.lookup_grace_ns, UINT64_C(1000000000));
	CHECK_EQ(o.publish_wait_ns, 50000000);
	CHECK(o.evict && o.passthrough && o.io_uring && o.allow_other && o.default_permissions);
	CHECK(!o.ro && !o.noexec && !o.noatime && !o.foreground);
	CHECK(strcmp(o.huge, "within_size") == 0 && strcmp(o.fsname, "kvcachefs") == 0);
	CHECK(o.state_dir[0] == '\0' && o.memory_dir[0] == '\0');
	CHECK_EQ(options_log_prio(&o), 6);

	user.root = false;
	options_init(&o, &user);
	CHECK(!o.allow_other);
}

/* Options as they come with -o; what is wrong must be named and must leave everything as it was. */
static const struct {
	const char *list;
	const char *say; /* NULL: accepted */
} lists[] = {
	{ "", NULL },
	{ ",,", NULL },
	{ "ram_size=64M,evict=off,threads=8", NULL },
	{ "rw,exec,atime,noatime,relatime,nodev,nosuid,dev,suid,user,noauto,nofail,_netdev", NULL },
	{ "x-systemd.automount,x-gvfs-show,comment=a b,subtype=kvcachefs,defaults", NULL },
	{ "state_dir=/a\\,b", NULL },
	{ "no_passthrough,no_allow_other,no_default_permissions,no_io_uring", NULL },
	{ "fsname=host:/x", NULL },
	{ "huge=always,log_level=debug", NULL },
	{ "ram_size", "option 'ram_size' needs a value" },
	{ "ram_size=", "option 'ram_size': bad value ''" },
	{ "ram_size=lots", "option 'ram_size': bad value 'lots'; expected a size such as" },
	{ "ram_size=1K", "at least 1M" },
	{ "ram_size=0", "at least 1M" },
	{ "ram_size=200%", "option 'ram_size': bad value '200%'" },
	{ "evict=maybe", "option 'evict': bad value 'maybe'; expected on or off" },
	{ "huge=yes", "expected one of within_size, always, advise, never" },
	{ "threads=1025", "expected a number from 0 to 1024" },
	{ "threads=-1", "option 'threads': bad value '-1'" },
	{ "publish_wait=61s", "at most 1m" },
	{ "entry_timeout=soon",
	  "option 'entry_timeout': bad value 'soon'; expected a time such as" },
	{ "state_dir=relative", "expected an absolute path" },
	{ "state_dir=/a ;b", "expected an absolute path" },
	{ "state_dir=/a\nb", "expected an absolute path" },
	{ "fsname=a b", "option 'fsname': bad value 'a b'" },
	{ "fsname=", "option 'fsname': bad value ''" },
	{ "ram_siez=1G", "unknown option 'ram_siez'; did you mean 'ram_size'?" },
	{ "Evict=on", "did you mean 'evict'?" },
	{ "completely_different", "unknown option 'completely_different'; see --help" },
	{ "no_ram_size", "unknown option 'no_ram_size'" },
	{ "no_evict=on", "unknown option 'no_evict'" },
	{ "=1", "unknown option ''" },
};

static void test_lists(void)
{
	for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
		struct failure f = { 0 };
		static struct options o;
		char *before;
		char *after;
		int r;

		options_init(&o, &env);
		before = printed(&o);
		r = options_parse_list(&o, lists[i].list, &f);
		after = printed(&o);
		if (lists[i].say != NULL) {
			CHECK_EQ(r, -EINVAL);
			CHECK_EQ(f.code, EXIT_USAGE);
			has(f.text, lists[i].say);
			CHECK(strcmp(before, after) == 0);
		} else if (r < 0) {
			(void)fprintf(stderr, "'%s': %s\n", lists[i].list, f.text);
			exit(1);
		}
		free(before);
		free(after);
	}
}

static void test_values_arrive(void)
{
	struct failure f;
	static struct options o;

	options_init(&o, &env);
	CHECK_EQ(options_parse_list(&o,
				    "ram_size=25%,memory_dir=/"
				    "m\\,n\\\\,lookup_grace=250ms,publish_wait=7,entry_timeout=0.5,"
				    "no_evict,ro,noexec,threads=3,huge=never,fsname=x",
				    &f),
		 0);
	CHECK_EQ(o.ram_bytes, env.memory_bytes / 4);
	CHECK(strcmp(o.memory_dir, "/m,n\\") == 0);
	CHECK_EQ(o.lookup_grace_ns, 250000000);
	CHECK_EQ(o.publish_wait_ns, 7000000);
	CHECK_EQ(o.entry_timeout_ns, 500000000);
	CHECK(!o.evict && o.ro && o.noexec);
	CHECK_EQ(o.threads, 3);
	CHECK(strcmp(o.huge, "never") == 0 && strcmp(o.fsname, "x") == 0);
	CHECK_EQ(options_parse_list(&o, "rw,exec", &f), 0);
	CHECK(!o.ro && !o.noexec);
}

static void test_files(void)
{
	static const struct {
		const char *text;
		const char *say; /* NULL: accepted */
	} table[] = {
		{ "", NULL },
		{ "# comment\n; another\n\nram_size = 2G ; why\nevict: off\n  threads=4\n", NULL },
		{ "\xef\xbb\xbfram_size = 2G", NULL },
		{ "ram_size = 2G\nfoo = 1\n", "conf:2: unknown option 'foo'" },
		{ "ram_size = 2G\n\nevict = perhaps\n",
		  "conf:3: option 'evict': bad value 'perhaps'" },
		{ "ram_size = 2G\nram_size = 3G\n", "conf:2: option 'ram_size' is set twice" },
		{ "[mount]\nram_size = 2G\n", "conf:1: [mount]: this file has no sections" },
		{ "ram_size = 2G\n  [mount\n", "conf:2:   [mount: this file has no sections" },
		{ "ram_size = 2G\n[mount]", "conf:2: [mount]: this file has no sections" },
		{ "ram_size = 2G\nevict\n", "conf:2: not of the form NAME = VALUE" },
		{ "= 3\n", "conf:1: unknown option ''" },
		{ "evict = off\nno_evict = on\n", "conf:2: unknown option 'no_evict'" },
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct failure f = { 0 };
		static struct options o;
		char *before;
		char *after;
		int r;

		options_init(&o, &env);
		before = printed(&o);
		r = options_parse_text(&o, "conf", table[i].text, strlen(table[i].text), &f);
		after = printed(&o);
		CHECK_EQ(r, table[i].say == NULL ? 0 : -EINVAL);
		if (table[i].say != NULL) {
			has(f.text, table[i].say);
			CHECK(strcmp(before, after) == 0);
		}
		free(before);
		free(after);
	}
}

static void test_odd_files(void)
{
	static char line[4 * PATH_MAX];
	struct failure f;
	static struct options o;

	options_init(&o, &env);
	CHECK_EQ(options_parse_text(&o, "conf", "evict = off\nio\0_uring = off\n", 26, &f),
		 -EINVAL);
	has(f.text, "conf:2: not a text file");
	CHECK(o.evict);
	memset(line, 'x', sizeof line);
	line[0] = '\n';
	CHECK_EQ(options_parse_text(&o, "conf", line, sizeof line, &f), -EINVAL);
	has(f.text, "conf:2: line is too long");
}

static void test_print_parse(void)
{
	struct failure f;
	static struct options o;
	static struct options again;
	char *first;
	char *second;

	options_init(&o, &env);
	CHECK_EQ(options_parse_list(&o,
				    "ram_size=1234567,state_dir=/s "
				    "p/a#c;d,memory_dir=/[x],lookup_grace=1.5ms,entry_timeout=0,"
				    "no_evict,fsname=#a;b,huge=advise,threads=9,no_allow_other,log_"
				    "level=error,ro",
				    &f),
		 0);
	first = printed(&o);
	options_init(&again, &env);
	if (options_parse_text(&again, "print", first, strlen(first), &f) < 0) {
		(void)fprintf(stderr, "%s\n", f.text);
		exit(1);
	}
	second = printed(&again);
	CHECK(strcmp(first, second) == 0);
	free(first);
	free(second);
}

/* A configuration file with @text; its path is in static storage. */
static const char *config_file(const char *text)
{
	static char path[64];
	int fd;

	(void)snprintf(path, sizeof path, "/tmp/kvcachefs-options.XXXXXX");
	fd = mkstemp(path);
	CHECK(fd >= 0);
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	CHECK(close(fd) == 0);
	return path;
}

enum { ARGS_MAX = 12 };

static int parse(struct options *o, struct failure *f, const char *const *args)
{
	char *argv[ARGS_MAX + 1] = { NULL };
	int argc = 0;
	int r;

	for (; args[argc] != NULL; argc++) {
		argv[argc] = strdup(args[argc]);
		CHECK(argv[argc] != NULL);
	}
	f->text[0] = '\0';
	options_init(o, &env);
	r = options_parse_args(o, argc, argv, f);
	for (int i = 0; args[i] != NULL; i++) {
		/* getopt moves the positional ones about, but keeps all. */
		free(argv[i]);
	}
	return r;
}

static void test_args_accepted(void)
{
	struct failure f;
	static struct options o;

	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "/mnt", NULL }), 0);
	CHECK(strcmp(o.mountpoint, "/mnt") == 0 && !o.foreground);
	CHECK_EQ(parse(&o, &f,
		       (const char *[]){ "kvcachefs", "-f", "mnt", "-o", "evict=off,threads=2",
					 "-othreads=3", NULL }),
		 0);
	CHECK(o.foreground && !o.evict && o.threads == 3 && strcmp(o.mountpoint, "mnt") == 0);
	CHECK_EQ(parse(&o, &f,
		       (const char *[]){ "kvcachefs", "none", "/mnt", "-o", "rw,noauto", "-n", "-s",
					 "-v", NULL }),
		 0);
	CHECK(strcmp(o.fsname, "none") == 0 && strcmp(o.mountpoint, "/mnt") == 0);
	CHECK_EQ(parse(&o, &f,
		       (const char *[]){ "kvcachefs", "none", "/mnt", "-o", "fsname=me", "-N", "ns",
					 NULL }),
		 0);
	CHECK(strcmp(o.fsname, "me") == 0);
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "-r", "/mnt", NULL }), 0);
	CHECK(o.ro);
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "-w", "/mnt", "-o", "ro", NULL }), 0);
	CHECK(!o.ro);
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "-d", "/mnt", NULL }), 0);
	CHECK(o.foreground && options_log_prio(&o) == 7);
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "--help", NULL }), 0);
	CHECK(o.help);
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "--version", NULL }), 0);
	CHECK(o.version);
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "--", "-mnt", NULL }), 0);
	CHECK(strcmp(o.mountpoint, "-mnt") == 0);
}

static void test_args_refused(void)
{
	static const struct {
		const char *argv[ARGS_MAX];
		const char *say;
	} table[] = {
		{ { "kvcachefs" }, "no mount point" },
		{ { "kvcachefs", "" }, "no mount point" },
		{ { "kvcachefs", "a", "b", "c" }, "unexpected argument 'c'" },
		{ { "kvcachefs", "/mnt", "-x" }, "unknown flag '-x'" },
		{ { "kvcachefs", "/mnt", "--frob" }, "unknown flag '--frob'" },
		{ { "kvcachefs", "/mnt", "-o" }, "-o needs an argument" },
		{ { "kvcachefs", "/mnt", "-o", "-f" }, "-o needs an argument" },
		{ { "kvcachefs", "/mnt", "--config", "-f" }, "--config needs an argument" },
		{ { "kvcachefs", "/mnt", "-o", "huge=\xff\xc3\xa4\x1b[m" },
		  "bad value '?\xc3\xa4?[m'" },
		{ { "kvcachefs", "/mnt", "--config" }, "--config needs an argument" },
		{ { "kvcachefs", "/mnt", "-o", "ram_size=x" }, "option 'ram_size': bad value 'x'" },
		{ { "kvcachefs", "/mnt", "-o", "config" }, "option 'config' needs the path" },
		{ { "kvcachefs", "/mnt", "--config", "/nonexistent/conf" },
		  "cannot read the configuration file /nonexistent/conf: No such file" },
		{ { "kvcachefs", "/mnt", "--config", "/" },
		  "cannot read the configuration file /: Is a directory" },
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct failure f;
		static struct options o;

		CHECK(parse(&o, &f, table[i].argv) < 0);
		CHECK_EQ(f.code, EXIT_USAGE);
		has(f.text, table[i].say);
	}
}

static void test_config_comes_before_lists(void)
{
	struct failure f;
	static struct options o;
	char list[128];
	const char *path = config_file("threads = 5\nevict = off\n");

	CHECK_EQ(parse(&o, &f,
		       (const char *[]){ "kvcachefs", "-o", "threads=6", "/mnt", "--config", path,
					 NULL }),
		 0);
	CHECK(o.threads == 6 && !o.evict);
	(void)snprintf(list, sizeof list, "threads=6,config=%s", path);
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "/mnt", "-o", list, NULL }), 0);
	CHECK(o.threads == 6 && !o.evict);
	CHECK(unlink(path) == 0);
	path = config_file("threads = 5\nevict = of\n");
	CHECK_EQ(parse(&o, &f, (const char *[]){ "kvcachefs", "/mnt", "--config", path, NULL }),
		 -EINVAL);
	has(f.text, path);
	has(f.text, ":2: option 'evict': bad value 'of'");
	CHECK(unlink(path) == 0);
}

int main(void)
{
	test_sizes();
	test_durations();
	test_units_round_trip();
	test_defaults();
	test_lists();
	test_values_arrive();
	test_files();
	test_odd_files();
	test_print_parse();
	test_args_accepted();
	test_args_refused();
	test_config_comes_before_lists();
	return 0;
}
