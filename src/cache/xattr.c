/* SPDX-License-Identifier: Apache-2.0 */
/* Extended attributes: user.kvcache.* tells of replicas and sets placement; other user.* are stored. */
#include "base/clock.h"
#include "cache/node.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define PREFIX "user.kvcache."

enum { XATTR_NAME_BYTES = 255, XATTR_VALUE_BYTES = 65536 };

void apply_pin(struct object_row *row, const struct placement *p)
{
	row->flags &= ~(uint32_t)(OBJECT_IN_PLACE | OBJECT_KEEP);
	if (p->value[PLACE_PUBLISH] == 1)
		row->flags |= OBJECT_IN_PLACE;
	if (p->value[PLACE_EVICT] == 0)
		row->flags |= OBJECT_KEEP;
	if (p->value[PLACE_PIN] == PIN_HARD)
		row->pin_until_ns = UINT64_MAX;
	else if (p->value[PLACE_PIN] == PIN_SOFT)
		row->pin_until_ns = (uint64_t)clock_real_ns() + p->pin_ttl_s * NS_PER_S;
	else
		row->pin_until_ns = 0;
}

bool row_pinned(const struct object_row *row, int64_t now_ns)
{
	return (row->flags & OBJECT_KEEP) || row->pin_until_ns > (uint64_t)now_ns;
}

/* What directory @dir itself says, and its parent. */
static int own_placement(struct meta_db *db, uint64_t dir, struct placement *ret,
			 uint64_t *ret_parent)
{
	struct object_row row;
	int r = meta_object_get(db, dir, &row);

	*ret = placement_none();
	for (int k = 0; k < NR_PLACE && r == 0; k++) {
		char name[64];
		char text[32];
		size_t len = 0;

		(void)snprintf(name, sizeof name, PREFIX "%s",
			       placement_name((enum placement_key)k));
		r = meta_xattr_get(db, dir, name, text, sizeof text, &len);
		if (r == 0)
			r = placement_parse(ret, (enum placement_key)k, text, len);
		if (r == -ENODATA)
			r = 0;
	}
	*ret_parent = dir == META_ROOT ? 0 : row.parent;
	return r;
}

/* From @dir up to the root; @first stands for what @dir itself says when it is not NULL. */
static int read_placement(struct cache *c, uint64_t dir, const struct placement *first,
			  struct placement *ret)
{
	struct placement defaults = placement_default(c->cfg.evict);
	struct meta_db *db;
	uint64_t at = dir;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	*ret = placement_none();
	while (at && r == 0) {
		struct placement own;

		r = own_placement(db, at, &own, &at);
		if (r == 0)
			placement_inherit(ret, first ? first : &own);
		first = NULL;
	}
	meta_read_end(c->meta, db);
	placement_complete(ret, &defaults);
	return r;
}

int placement_of(struct cache *c, uint64_t dir, struct placement *ret)
{
	mutex_lock(&c->lock);
	struct node *n = node_find(c, dir);
	uint64_t epoch = c->placement_epoch;
	bool known = n && n->placement_epoch == epoch;

	if (known)
		*ret = n->placement;
	mutex_unlock(&c->lock);
	if (known)
		return 0;
	int r = read_placement(c, dir, NULL, ret);

	mutex_lock(&c->lock);
	n = node_find(c, dir);
	if (r == 0 && n) {
		n->placement = *ret;
		n->placement_epoch = epoch;
	}
	mutex_unlock(&c->lock);
	return r;
}

/* A virtual attribute of a file. */
struct virtual
{
	const char *name;
	int (*get)(struct cache * c, struct node * n, char *buf, size_t cap);
};

static const char *status_of(enum node_state s)
{
	switch (s) {
	case NODE_PROCESSING:
		return "PROCESSING";
	case NODE_COMPLETE:
		return "COMPLETE";
	case NODE_ORPHAN:
		return "REMOVED";
	}
	return "FAILED";
}

static int get_tier(struct cache *c UNUSED, struct node *n UNUSED, char *buf, size_t cap)
{
	return snprintf(buf, cap, "memory");
}

static int get_replicas(struct cache *c, struct node *n, char *buf, size_t cap) REQUIRES(c->lock)
{
	struct cache_attr a;
	uint64_t gen = n->base_gen ? n->base_gen : node_id(n);

	node_attr(c, n, &a);
	return snprintf(buf, cap,
			"[{\"tier\":\"memory\",\"node\":\"local\",\"place\":\"%016" PRIx64
			"\",\"size\":%" PRIu64 ",\"status\":\"%s\"}]",
			gen, (uint64_t)a.st.st_size, status_of(n->state));
}

static int get_one(struct cache *c UNUSED, struct node *n, char *buf, size_t cap)
{
	return snprintf(buf, cap, "%d", n->state == NODE_COMPLETE || n->row.has_memory);
}

static int get_zero(struct cache *c UNUSED, struct node *n UNUSED, char *buf, size_t cap)
{
	return snprintf(buf, cap, "0");
}

static int get_generation(struct cache *c UNUSED, struct node *n, char *buf, size_t cap)
{
	return snprintf(buf, cap, "%" PRIu64, node_id(n));
}

static int get_status(struct cache *c UNUSED, struct node *n, char *buf, size_t cap)
{
	return snprintf(buf, cap, "%s", status_of(n->state));
}

static int get_pin(struct cache *c UNUSED, struct node *n, char *buf, size_t cap)
{
	uint64_t now = (uint64_t)clock_real_ns();

	if (n->row.pin_until_ns == UINT64_MAX)
		return snprintf(buf, cap, "hard");
	if (n->row.pin_until_ns > now)
		return snprintf(buf, cap, "soft:%" PRIu64,
				(n->row.pin_until_ns - now + NS_PER_S - 1) / NS_PER_S);
	return snprintf(buf, cap, "none");
}

static int get_sum(struct cache *c UNUSED, struct node *n, char *buf, size_t cap)
{
	return snprintf(buf, cap, "xxh3:%016" PRIx64, n->sum);
}

/* "checksum" is measured before, outside the lock; "pin" can be set too. */
static const struct virtual virtuals[] = {
	{ "tier", get_tier },
	{ "tier_served", get_tier },
	{ "replicas", get_replicas },
	{ "is_memory_replica", get_one },
	{ "is_local_disk_replica", get_zero },
	{ "is_dfs_replica", get_zero },
	{ "is_nof_replica", get_zero },
	{ "checksum", get_sum },
	{ "generation", get_generation },
	{ "status", get_status },
	{ "pin", get_pin },
};
enum { NR_VIRTUAL = sizeof virtuals / sizeof *virtuals };

static const struct virtual *virtual_find(const char *name)
{
	for (size_t i = 0; i < NR_VIRTUAL; i++) {
		if (strcmp(virtuals[i].name, name) == 0)
			return &virtuals[i];
	}
	return NULL;
}

static int give(const char *text, size_t len, char *buf, size_t cap, size_t *ret_len)
{
	*ret_len = len;
	if (cap == 0)
		return 0;
	if (len > cap)
		return -ERANGE;
	memcpy(buf, text, len);
	return 0;
}

static int get_own(struct cache *c, struct node *n, const char *name, char *buf, size_t cap,
		   size_t *ret_len)
{
	const struct virtual *v = virtual_find(name);
	int k = placement_key_of(name);
	struct placement pl;
	char text[256];
	int r = 0;

	if (S_ISDIR(n->type) && k >= 0) {
		r = placement_of(c, n->row.id, &pl);
		if (r < 0)
			return r;
		return give(text, placement_format(&pl, (enum placement_key)k, text, sizeof text),
			    buf, cap, ret_len);
	}
	if (!v || !S_ISREG(n->type))
		return -ENODATA;
	if (v->get == get_sum)
		r = node_sum(c, n);
	if (r < 0)
		return r;
	mutex_lock(&c->lock);
	int len = v->get(c, n, text, sizeof text);

	mutex_unlock(&c->lock);
	return give(text, (size_t)len, buf, cap, ret_len);
}

/* Only user.* is kept; the reason that other namespaces are refused is contract: their meaning is the kernel's. */
static int check_name(const char *name, const char **ret_own)
{
	if (strncmp(name, "user.", 5) != 0)
		return -EOPNOTSUPP;
	if (name[5] == '\0')
		return -EINVAL;
	if (strlen(name) > XATTR_NAME_BYTES)
		return -ERANGE;
	*ret_own = strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? name + strlen(PREFIX) : NULL;
	return 0;
}

static int get_stored(struct cache *c, struct node *n, const char *name, char *buf, size_t cap,
		      size_t *ret_len)
{
	struct meta_db *db;
	int r = -ENODATA;

	mutex_lock(&c->lock);
	bool pending = xattrs_pending(n);
	const struct xattr *x = pending ? xattrs_find(&n->xattrs, name) : NULL;
	uint64_t object = n->row.id;

	if (x)
		r = give(x->value, x->len, buf, cap, ret_len);
	mutex_unlock(&c->lock);
	if (pending)
		return r;
	r = meta_read_begin(c->meta, &db);
	if (r == 0) {
		r = meta_xattr_get(db, object, name, buf, cap, ret_len);
		meta_read_end(c->meta, db);
	}
	return r;
}

int cache_getxattr(struct cache *c, uint64_t node, const char *name, char *buf, size_t cap,
		   size_t *ret_len)
{
	const char *own = NULL;
	int r = check_name(name, &own);

	if (r < 0)
		return r;
	struct node *n = node_get(c, node);

	if (!n)
		return -ESTALE;
	if (own)
		r = get_own(c, n, own, buf, cap, ret_len);
	else
		r = get_stored(c, n, name, buf, cap, ret_len);
	node_put(c, n);
	return r;
}

struct xattr_op {
	struct meta_op op;
	struct cache *c;
	struct node *n;
	const char *name;
	const void *value; /* NULL: remove */
	size_t len;
	int flags;
	bool listed; /* done to the node's list; a run may be repeated */
};

static int check_flags(const struct xattr_op *x, bool exists)
{
	if (exists && (x->flags & XATTR_CREATE))
		return -EEXIST;
	if (!exists && (!x->value || (x->flags & XATTR_REPLACE)))
		return -ENODATA;
	return 0;
}

static int change_list(struct xattr_op *x) REQUIRES(x->c->lock)
{
	struct list *l = &x->n->xattrs;
	int r = x->listed ? 0 : check_flags(x, xattrs_find(l, x->name) != NULL);

	if (r == 0 && !x->listed)
		r = x->value ? xattrs_set(l, x->name, x->value, x->len) : xattrs_del(l, x->name);
	x->listed = r == 0;
	return r;
}

static int change_rows(struct meta_db *db, struct xattr_op *x, uint64_t object)
{
	struct object_row row;
	size_t len;
	int r = meta_object_get(db, object, &row);

	if (r < 0)
		return r;
	r = meta_xattr_get(db, object, x->name, NULL, 0, &len);
	if (r < 0 && r != -ENODATA)
		return r;
	r = x->listed ? 0 : check_flags(x, r == 0);
	if (r < 0)
		return r;
	if (x->value)
		return meta_xattr_set(db, object, x->name, x->value, x->len);
	r = meta_xattr_del(db, object, x->name);
	return r == -ENODATA && x->listed ? 0 : r;
}

/* Nothing of an unfinished object is in the metadata, unless this comes between its publication's run and done. */
static int xattr_run(struct meta_db *db, struct meta_op *op)
{
	struct xattr_op *x = (struct xattr_op *)op;
	int r = 0;

	mutex_lock(&x->c->lock);
	bool pending = xattrs_pending(x->n);
	const struct object_row *row = pending ? x->n->publishing : &x->n->row;
	uint64_t object = row ? row->id : 0;

	if (pending)
		r = change_list(x);
	mutex_unlock(&x->c->lock);
	return r == 0 && object ? change_rows(db, x, object) : r;
}

static int set_placement(struct cache *c, struct node *n, struct xattr_op *x, enum placement_key k)
{
	struct placement own;
	struct placement all;
	struct meta_db *db;
	uint64_t parent;

	if (!S_ISDIR(n->type))
		return -ENOTDIR;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	r = own_placement(db, n->row.id, &own, &parent);
	meta_read_end(c->meta, db);
	if (r == 0 && x->value)
		r = placement_parse(&own, k, x->value, x->len);
	else if (r == 0)
		own.value[k] = PLACE_UNSET;
	if (r == 0)
		r = read_placement(c, n->row.id, &own, &all);
	if (r == 0)
		r = placement_check(&all);
	if (r == 0)
		r = meta_submit(c->meta, &x->op);
	mutex_lock(&c->lock);
	c->placement_epoch++;
	mutex_unlock(&c->lock);
	return r;
}

static int set_pin(struct cache *c, struct node *n, const struct xattr_op *x)
{
	struct placement p = placement_none();
	int r = x->value ? placement_parse(&p, PLACE_PIN, x->value, x->len) : 0;

	if (r < 0)
		return r;
	if (!x->value)
		p.value[PLACE_PIN] = PIN_NONE;
	mutex_lock(&c->lock);
	p.value[PLACE_PUBLISH] = (n->row.flags & OBJECT_IN_PLACE) != 0;
	p.value[PLACE_EVICT] = (n->row.flags & OBJECT_KEEP) == 0;
	apply_pin(&n->row, &p);
	policy_pin(c->policy, n->row.id, row_pinned(&n->row, clock_real_ns()));
	mutex_unlock(&c->lock);
	return row_store(c, n);
}

static int change_own(struct cache *c, struct node *n, struct xattr_op *x, const char *own)
{
	int k = placement_key_of(own);

	if (k == PLACE_PIN && S_ISREG(n->type))
		return set_pin(c, n, x);
	if (k >= 0)
		return set_placement(c, n, x, (enum placement_key)k);
	return virtual_find(own) ? -EPERM : -EINVAL;
}

static int change(struct cache *c, uint64_t node, struct xattr_op *x)
{
	const char *own = NULL;
	int r = check_name(x->name, &own);

	if (r == 0 && x->len > XATTR_VALUE_BYTES)
		r = -E2BIG;
	if (r == 0 && x->value)
		r = meta_admits(c->meta);
	if (r < 0)
		return r;
	struct node *n = node_get(c, node);

	if (!n)
		return -ESTALE;
	x->c = c;
	x->n = n;
	if (own)
		r = change_own(c, n, x, own);
	else if (!S_ISREG(n->type) && !S_ISDIR(n->type))
		r = -EPERM; /* xattr(7): not on links and special files */
	else
		r = meta_submit(c->meta, &x->op);
	node_put(c, n);
	return r;
}

int cache_setxattr(struct cache *c, uint64_t node, const char *name, const char *value, size_t len,
		   int flags)
{
	struct xattr_op x = {
		.op = { .run = xattr_run }, .name = name, .value = value, .len = len, .flags = flags
	};

	return change(c, node, &x);
}

int cache_removexattr(struct cache *c, uint64_t node, const char *name)
{
	struct xattr_op x = { .op = { .run = xattr_run }, .name = name };

	return change(c, node, &x);
}

struct xattr_list {
	char *buf;
	size_t cap;
	size_t len;
};

static bool list_name(void *arg, const char *name)
{
	struct xattr_list *l = arg;
	size_t n = strlen(name) + 1;

	if (l->len + n <= l->cap)
		memcpy(l->buf + l->len, name, n);
	l->len += n;
	return true;
}

static bool list_stored(void *arg, const char *name)
{
	/* Placement is listed with what is in force. */
	return strncmp(name, PREFIX, strlen(PREFIX)) == 0 ? true : list_name(arg, name);
}

static int list_rows(struct cache *c, uint64_t object, struct xattr_list *l)
{
	struct meta_db *db;
	int r = meta_read_begin(c->meta, &db);

	if (r < 0)
		return r;
	r = meta_xattr_scan(db, object, list_stored, l);
	meta_read_end(c->meta, db);
	return r;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): list_name() writes to it */
int cache_listxattr(struct cache *c, uint64_t node, char *buf, size_t cap, size_t *ret_len)
{
	struct xattr_list l = { buf, cap, 0 };
	struct node *n = node_get(c, node);
	char name[64];
	int r = 0;

	if (!n)
		return -ESTALE;
	for (size_t i = 0; i < NR_VIRTUAL && S_ISREG(n->type); i++) {
		(void)snprintf(name, sizeof name, PREFIX "%s", virtuals[i].name);
		(void)list_name(&l, name);
	}
	for (int k = 0; k < NR_PLACE && S_ISDIR(n->type); k++) {
		(void)snprintf(name, sizeof name, PREFIX "%s",
			       placement_name((enum placement_key)k));
		(void)list_name(&l, name);
	}
	mutex_lock(&c->lock);
	bool pending = xattrs_pending(n);
	uint64_t object = n->row.id;

	for (struct list *at = n->xattrs.next; pending && at != &n->xattrs; at = at->next)
		(void)list_name(&l, list_entry(at, struct xattr, link)->name);
	mutex_unlock(&c->lock);
	if (!pending)
		r = list_rows(c, object, &l);
	node_put(c, n);
	*ret_len = l.len;
	return r == 0 && cap > 0 && l.len > cap ? -ERANGE : r;
}
