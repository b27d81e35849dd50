/* SPDX-License-Identifier: Apache-2.0 */
/* flock: tables of steps by a few owners on two objects, and what is granted after each. */
#include "cache/flock.h"
#include "check.h"

#include <errno.h>
#include <string.h>

/* A step is three letters: what (s shared, x exclusive, S X the same but willing to wait, u unlock, c cancel the wait), the owner
 * (a to z) and the object (1 or 2; a cancel has none: its wish is the owner's last). The answer is '+' had, '-' refused,
 * '?' waits, '.' for an unlock, '+' or '-' for a cancel, then the owners to whom waiting has given it, in order. */
static const struct {
	const char *what;
	const char *steps;
	const char *want;
} cases[] = {
	{ "readers share", "sa1 sb1 xc1 ua1 ub1 xc1", "+ + - . . +" },
	{ "a writer is alone", "xa1 sb1 xb1 xb2", "+ - - +" },
	{ "twice is once", "xa1 xa1 ua1 xb1", "+ + . +" },
	{ "down and up", "xa1 sa1 sb1 xa1 sb1", "+ + + - +" },
	{ "unlock without a lock", "ua1 xb1 ua1 xc1", ". + . -" },
	{ "waiters in their order", "xa1 Xb1 Xc1 ua1 ub1 uc1", "+ ? ? .b .c ." },
	{ "readers behind a writer get it together", "xa1 Sb1 Sc1 Xd1 ua1 ub1 uc1",
	  "+ ? ? ? .bc . .d" },
	{ "a reader does not pass a waiting writer", "sa1 Xb1 Sc1 sd1 ua1 ub1", "+ ? ? - .b .c" },
	{ "going down lets a waiting reader in", "xa1 Sb1 sa1", "+ ? +b" },
	{ "giving up for more lets others in first", "sa1 sb1 Xc1 ub1 Xa1 uc1", "+ + ? . ?c .a" },
	{ "cancelled, it is not granted", "xa1 Xb1 cb ua1 xc1", "+ ? + . +" },
	{ "cancelled, it lets those behind it in", "sa1 Xb1 Sc1 cb", "+ ? ? +c" },
	{ "cancelled too late", "xa1 Xb1 ua1 cb xc1", "+ ? .b - -" },
	{ "objects are apart", "xa1 xa2 Xb2 ua1 ua2", "+ + ? . .b" },
};

struct play {
	struct flocks *f;
	uint64_t tickets[26];
	char owners[26]; /* what the granted callback is given */
	char granted[32];
	size_t nr_granted;
};

static struct play *playing; /* the callback has only the owner */

static void granted(void *arg)
{
	CHECK(playing->nr_granted + 1 < sizeof playing->granted);
	playing->granted[playing->nr_granted++] = *(char *)arg;
}

static char step(struct play *p, const char *s)
{
	int owner = s[1] - 'a';
	uint64_t object = (uint64_t)(s[2] - '0');
	bool wait = s[0] == 'S' || s[0] == 'X';
	struct flock_wait w = { granted, &p->owners[owner] };

	p->owners[owner] = s[1];
	if (s[0] == 'u') {
		flock_unlock(p->f, object, (uint64_t)owner);
		return '.';
	}
	if (s[0] == 'c')
		return flock_cancel(p->f, p->tickets[owner]) ? '+' : '-';
	int r = flock_lock(p->f, object, (uint64_t)owner, s[0] == 'x' || s[0] == 'X',
			   wait ? &w : NULL, &p->tickets[owner]);

	CHECK(r == 0 || r == -EWOULDBLOCK);
	if (r == 0)
		return '+';
	CHECK(!wait || p->tickets[owner] != 0);
	return wait ? '?' : '-';
}

static void play(const char *steps, char *got, size_t cap)
{
	struct play p = { .f = flocks_new() };
	size_t len = 0;

	CHECK(p.f);
	playing = &p;
	for (const char *s = steps; *s; s += strcspn(s, " "), s += strspn(s, " ")) {
		struct flock_wait next;

		CHECK(len + 16 < cap);
		if (len > 0)
			got[len++] = ' ';
		got[len++] = step(&p, s);
		p.nr_granted = 0;
		while (flock_granted(p.f, &next))
			next.granted(next.arg);
		memcpy(got + len, p.granted, p.nr_granted);
		len += p.nr_granted;
	}
	got[len] = '\0';
	flocks_free(p.f); /* with what is still held and waited for */
}

int main(void)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char got[256];

		play(cases[i].steps, got, sizeof got);
		if (strcmp(got, cases[i].want) != 0)
			(void)printf("%s\n%s\n want %s\n  got %s\n", cases[i].what, cases[i].steps,
				     cases[i].want, got);
		CHECK(strcmp(got, cases[i].want) == 0);
	}
	flocks_free(NULL);
	return 0;
}
