/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mounts.h"
#include "check.h"
#include "state.h"

#include <errno.h>
#include <string.h>

static void test_escape(void)
{
	static const struct {
		const char *path;
		const char *want; /* as systemd-escape --path prints it */
	} table[] = {
		{ "/", "-" },
		{ "/mnt/kvcache", "mnt-kvcache" },
		{ "/mnt//kvcache/", "mnt-kvcache" },
		{ "/mnt/kv-cache", "mnt-kv\\x2dcache" },
		{ "/.hidden/.b", "\\x2ehidden-.b" },
		{ "/a b", "a\\x20b" },
		{ "/a\\b", "a\\x5cb" },
		{ "/\xc3\xa4", "\\xc3\\xa4" },
	};
	char buf[64];

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		CHECK_EQ(state_escape(table[i].path, buf, sizeof buf), 0);
		CHECK(strcmp(buf, table[i].want) == 0);
	}
	CHECK_EQ(state_escape("/abcdefghij", buf, 10), -ENAMETOOLONG);
}

static void test_is_below(void)
{
	CHECK(state_is_below("/mnt", "/mnt"));
	CHECK(state_is_below("/mnt/a", "/mnt"));
	CHECK(state_is_below("/mnt/a/b", "/mnt"));
	CHECK(state_is_below("/a", "/"));
	CHECK(state_is_below("/", "/"));
	CHECK(!state_is_below("/mnta", "/mnt"));
	CHECK(!state_is_below("/mn", "/mnt"));
	CHECK(!state_is_below("/", "/mnt"));
}

static void test_mountinfo(void)
{
	static const struct {
		const char *line;
		int want;
		const char *path;
		const char *type;
		unsigned minor;
	} table[] = {
		{ "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root "
		  "rw,errors=continue\n",
		  0, "/mnt2", "ext3", 0 },
		{ "1 2 0:51 / /a\\040b\\134\\012 rw - fuse.kvcachefs none rw\n", 0, "/a b\\\n",
		  "fuse.kvcachefs", 51 },
		{ "1 2 0:3 / /a\\4 rw - tmpfs none rw\n", 0, "/a\\4", "tmpfs", 3 },
		{ "1 2 0:3 / /a rw shared:1 master:2 - tmpfs\n", 0, "/a", "tmpfs", 3 },
		{ "1 2 0:3 / /a rw tmpfs none rw\n", -EBADMSG, NULL, NULL, 0 },
		{ "1 2 0:3 /\n", -EBADMSG, NULL, NULL, 0 },
		{ "1 2 03 / /a rw - tmpfs none rw\n", -EBADMSG, NULL, NULL, 0 },
		{ "\n", -EBADMSG, NULL, NULL, 0 },
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		char line[128];
		struct mount_line got;

		(void)snprintf(line, sizeof line, "%s", table[i].line);
		CHECK_EQ(mounts_parse(line, &got), table[i].want);
		if (table[i].want < 0)
			continue;
		CHECK(strcmp(got.path, table[i].path) == 0);
		CHECK(strcmp(got.type, table[i].type) == 0);
		CHECK_EQ(got.minor, table[i].minor);
	}
}

int main(void)
{
	test_escape();
	test_is_below();
	test_mountinfo();
	return 0;
}
