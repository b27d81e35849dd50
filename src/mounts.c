/* SPDX-License-Identifier: Apache-2.0 */
#include "mounts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int octal(const char *s)
{
	int n = 0;

	for (int i = 0; i < 3; i++) {
		if (s[i] < '0' || s[i] > '7')
			return -1;
		n = n * 8 + (s[i] - '0');
	}
	return n <= 0xff ? n : -1;
}

/* The kernel writes blanks, newlines and backslashes as \ooo. */
static void unescape(char *s)
{
	char *out = s;

	while (*s != '\0') {
		int c = *s == '\\' ? octal(s + 1) : -1;

		if (c > 0) {
			*out++ = (char)c;
			s += 4;
		} else {
			*out++ = *s++;
		}
	}
	*out = '\0';
}

/* id parent major:minor root MOUNTPOINT options [tag…] - TYPE source options */
int mounts_parse(char *line, const char **ret_path, const char **ret_type)
{
	char *field = line;
	char *path = NULL;
	char *rest;
	char *type;

	for (int i = 0; i < 4 && field != NULL; i++) {
		field = strchr(field, ' ');
		field = field == NULL ? NULL : field + 1;
	}
	path = field;
	rest = path == NULL ? NULL : strchr(path, ' ');
	type = rest == NULL ? NULL : strstr(rest, " - ");
	if (type == NULL)
		return -EBADMSG;
	*rest = '\0';
	type += 3;
	type[strcspn(type, " \n")] = '\0';
	unescape(path);
	*ret_path = path;
	*ret_type = type;
	return 0;
}

int mounts_type(const char *path, char *buf, size_t cap)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	const char *at;
	const char *type;
	char *line = NULL;
	size_t room = 0;
	int r;

	if (f == NULL)
		return -errno;
	buf[0] = '\0';
	/* Later lines lie over earlier ones. */
	while (getline(&line, &room, f) > 0) {
		if (mounts_parse(line, &at, &type) == 0 && strcmp(at, path) == 0)
			(void)snprintf(buf, cap, "%s", type);
	}
	r = ferror(f) ? -EIO : 0;
	free(line);
	(void)fclose(f);
	return r;
}
