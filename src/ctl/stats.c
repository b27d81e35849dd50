/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/stats.h"

#include <inttypes.h>
#include <stddef.h>

static const struct stat_desc {
	const char *name;
	const char *type;
	size_t offset;
	const char *help;
} stats[] = {
#define STAT(field, kind, text)                                         \
	{                                                               \
#field, kind, offsetof(struct cache_stats, field), text \
	}
	STAT(ram_bytes, "gauge", "Budget of the memory tier."),
	STAT(used_bytes, "gauge", "Bytes allocated in the memory tier."),
	STAT(objects_in_memory, "gauge", "Published objects with a memory replica."),
	STAT(ghosts, "gauge", "Evicted names that the policy remembers."),
	STAT(nodes, "gauge", "Nodes that the kernel or an open file refers to."),
	STAT(open_handles, "gauge", "Open files."),
	STAT(processing, "gauge", "Versions under construction."),
	STAT(lookups, "counter", "Lookups of a name that the kernel did not answer itself."),
	STAT(lookup_misses, "counter", "Lookups of a name that is not there."),
	STAT(lookup_waits, "counter", "Lookups that waited for a closing writer."),
	STAT(opens_read, "counter", "Files opened for reading."),
	STAT(opens_write, "counter", "Files opened for writing, created ones included."),
	STAT(creates, "counter", "Files created."),
	STAT(published, "counter", "Versions published."),
	STAT(published_bytes, "counter", "Bytes of the versions published."),
	STAT(aborted, "counter", "Versions given up before they were published."),
	STAT(killed, "counter", "Versions given up because their writer was killed by a signal."),
	STAT(evicted, "counter", "Objects evicted."),
	STAT(evicted_bytes, "counter", "Bytes of the objects evicted."),
	STAT(removed, "counter", "Objects removed by unlink or by a rename over them."),
	STAT(no_space, "counter",
	     "Requests refused because memory was full and nothing could be evicted."),
#undef STAT
};

void stats_print(struct cache *c, FILE *out)
{
	struct cache_stats s;

	cache_stats(c, &s);
	for (size_t i = 0; i < sizeof stats / sizeof *stats; i++) {
		const struct stat_desc *d = &stats[i];
		const uint64_t *v = (const uint64_t *)(const void *)((const char *)&s + d->offset);
		const char *total = d->type[0] == 'c' ? "_total" : "";

		(void)fprintf(out, "# HELP kvcachefs_%s%s %s\n", d->name, total, d->help);
		(void)fprintf(out, "# TYPE kvcachefs_%s%s %s\n", d->name, total, d->type);
		(void)fprintf(out, "kvcachefs_%s%s %" PRIu64 "\n", d->name, total, *v);
	}
}
