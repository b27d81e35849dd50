/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: NAME = VALUE lines, read by inih line by line so that messages can name the line. */
#include "base/attr.h"
#include "options.h"

#include <errno.h>
#include <ini.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 64 };

struct file_parse {
	struct options *o; /* a copy: the caller's is replaced when all went well */
	const char *name;
	const char *text; /* what is left */
	size_t left;
	unsigned line;
	struct failure *f;
	bool failed;
	unsigned nr_seen;
	char *seen[NAMES_MAX]; /* options set so far */
};

static void fail_line(struct file_parse *p)
{
	failure_prefix(p->f, "%s:%u: ", p->name, p->line);
	p->failed = true;
}

/* inih's reader, as fgets: at most @cap - 1 bytes. A line that would be cut is an error instead. */
static char *next_line(char *buf, int cap, void *arg)
{
	struct file_parse *p = arg;
	const char *end;
	size_t len;

	if (p->failed || p->left == 0)
		return NULL;
	p->line++;
	end = memchr(p->text, '\n', p->left);
	len = end == NULL ? p->left : (size_t)(end - p->text) + 1;
	if (len > (size_t)cap - 1) {
		failure_set(p->f, EXIT_USAGE, "line is too long, at most %d bytes", cap - 2);
		fail_line(p);
		return NULL;
	}
	if (memchr(p->text, '\0', len) != NULL) {
		failure_set(p->f, EXIT_USAGE, "not a text file: a byte is 0");
		fail_line(p);
		return NULL;
	}
	memcpy(buf, p->text, len);
	buf[len] = '\0';
	if (buf[strspn(buf, " \t")] == '[') {
		buf[strcspn(buf, "\r\n")] = '\0';
		failure_set(p->f, EXIT_USAGE, "%.64s: this file has no sections", buf);
		fail_line(p);
		return NULL;
	}
	p->text += len;
	p->left -= len;
	return buf;
}

/* A name that comes again is most likely a slip, and to inih a continued line looks the same. */
static int note_name(struct file_parse *p, const char *name)
{
	for (unsigned i = 0; i < p->nr_seen; i++) {
		if (strcmp(p->seen[i], name) == 0) {
			failure_set(p->f, EXIT_USAGE, "option '%s' is set twice", name);
			return -EINVAL;
		}
	}
	if (p->nr_seen == NAMES_MAX) {
		failure_set(p->f, EXIT_USAGE, "too many options");
		return -EINVAL;
	}
	p->seen[p->nr_seen] = strdup(name);
	if (p->seen[p->nr_seen] == NULL) {
		failure_set(p->f, EXIT_SYSTEM, "out of memory");
		return -ENOMEM;
	}
	p->nr_seen++;
	return 0;
}

/* inih's handler: 1 to go on. */
static int take_pair(void *arg, const char *section UNUSED, const char *name, const char *value)
{
	struct file_parse *p = arg;

	if (p->failed)
		return 0;
	int r = note_name(p, name);

	if (r == 0)
		r = options_set(p->o, name, value, p->f);
	if (r < 0)
		fail_line(p);
	return r == 0;
}

/* Let inih take lines as long as a path needs, and no "line continued by indentation". */
static void set_up_inih(void)
{
	ini_use_stack = false;
	ini_allow_realloc = false;
	ini_initial_alloc = 2 * PATH_MAX;
	ini_max_line = 2 * PATH_MAX;
	ini_allow_multiline = false;
}

int options_parse_text(struct options *o, const char *name, const char *text, size_t len,
		       struct failure *f)
{
	struct file_parse p = { .name = name, .text = text, .left = len, .f = f };
	int bad_line;

	p.o = malloc(sizeof *p.o);
	if (p.o == NULL) {
		failure_set(f, EXIT_SYSTEM, "out of memory");
		return -ENOMEM;
	}
	*p.o = *o;
	set_up_inih();
	bad_line = ini_parse_stream(next_line, &p, take_pair, &p);
	if (!p.failed && bad_line != 0) {
		failure_set(f, bad_line < 0 ? EXIT_SYSTEM : EXIT_USAGE, "%s",
			    bad_line < 0 ? "out of memory" : "not of the form NAME = VALUE");
		if (bad_line > 0)
			p.line = (unsigned)bad_line;
		fail_line(&p);
	}
	if (!p.failed)
		*o = *p.o;
	for (unsigned i = 0; i < p.nr_seen; i++)
		free(p.seen[i]);
	free(p.o);
	if (!p.failed)
		return 0;
	return f->code == EXIT_SYSTEM ? -ENOMEM : -EINVAL;
}
