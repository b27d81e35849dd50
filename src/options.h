/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - what the user asked for: one table for the command line, mount options, the configuration file and --help.
 *
 * Values are checked where they are set; a value that is refused leaves everything as it was. Pure but for reading the
 * configuration file. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "base/attr.h"
#include "failure.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What the defaults depend on. */
struct options_env {
	uint64_t memory_bytes; /* of the machine; what "%" is of */
	bool root;
};

struct options {
	struct options_env env;
	char mountpoint[PATH_MAX]; /* as given */
	char config[PATH_MAX];	   /* "": none */
	bool foreground;
	bool help;
	bool version;

	/* The table's: */
	char state_dir[PATH_MAX];  /* "": the default of the mount point, see state.h */
	char memory_dir[PATH_MAX]; /* "": a private tmpfs below state_dir */
	char fsname[256];
	const char *huge;      /* static: within_size, always, advise, never */
	const char *log_level; /* static: error, warning, info, debug */
	uint64_t ram_bytes;
	uint64_t entry_timeout_ns;
	uint64_t negative_timeout_ns;
	uint64_t lookup_grace_ns;
	uint64_t publish_wait_ns;
	uint64_t threads; /* 0: as many as the machine asks for */
	bool evict;
	bool passthrough;
	bool io_uring;
	bool allow_other;
	bool default_permissions;
	bool ro;
	bool noexec;
	bool noatime;
};

/** options_init - everything at its default. */
void options_init(struct options *o, const struct options_env *env);

/** options_set - set one option by @name; @value is NULL for a bare name. A yes-or-no option may be written
 * "NAME", "no_NAME" or with a value. Returns 0, or -EINVAL with the reason in @f and nothing changed. */
int options_set(struct options *o, const char *name, const char *value, struct failure *f)
	MUST_CHECK;

/** options_parse_list - what follows -o: options separated by commas; "\," is a comma that belongs to a value.
 * Returns 0, -EINVAL, -ENOMEM. Options before the wrong one are set. */
int options_parse_list(struct options *o, const char *list, struct failure *f) MUST_CHECK;

/** options_parse_text - a configuration file of @len bytes at @text; @name stands in messages, with the line.
 * Returns 0, -EINVAL or -ENOMEM, then with nothing changed. */
int options_parse_text(struct options *o, const char *name, const char *text, size_t len,
		       struct failure *f) MUST_CHECK;

/** options_parse_args - the command line; reads the file named by --config before it applies -o, so that -o wins.
 * With o->help or o->version set nothing else is checked. Returns 0, -EINVAL, -ENOMEM or an errno of the file. */
int options_parse_args(struct options *o, int argc, char *const *argv, struct failure *f)
	MUST_CHECK;

/** options_print - every option of the table as a configuration file; reading it back gives the same values. */
void options_print(const struct options *o, FILE *out);

/** options_help - the text of --help. */
void options_help(FILE *out);

/** options_log_prio - log_level as a priority of <syslog.h>. */
int options_log_prio(const struct options *o);

#endif
