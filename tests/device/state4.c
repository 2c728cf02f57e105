// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* NFSv4.1: opens and delegations, their stateids, and what is reclaimed (RFC 8881, sections 8, 9, 18.16, 18.18). */
#include <string.h>

#include "server4.h"

enum { SHARE_READ = 1, SHARE_WRITE = 2, SHARE_BOTH = 3, SHARE_WANT = 0xff00, SHARE_WHEN = 0x30000 };
enum { UNCHECKED = 0, GUARDED, EXCLUSIVE, EXCLUSIVE_1 };
enum { CLAIM_NULL = 0, CLAIM_PREVIOUS, CLAIM_DELEGATE_CUR, CLAIM_DELEGATE_PREV, CLAIM_FH, CLAIM_DELEG_CUR_FH,
       CLAIM_DELEG_PREV_FH };
enum { DELEGATE_NONE = 0, DELEGATE_READ, DELEGATE_WRITE, DELEGATE_NONE_EXT };
enum { WANT_NO_DELEGATION = 0x400, WANT_CANCEL = 0x500 };
enum { RESULT_LOCKTYPE_POSIX = 4, RESULT_PRESERVE_UNLINKED = 8 };

#define SEQ4_STATUS_EXPIRED_ALL		0x08
#define SEQ4_STATUS_EXPIRED_SOME	0x10
#define SEQ4_STATUS_ADMIN_REVOKED	0x20

static struct state *states;
/* The server has dropped state without a word to the client, which may reclaim it then (RFC 8881, section 8.4.3) */
static bool dropped;
static uint64_t next_state = 0x1000;

/* An open before the restart */
static struct reclaim {
	struct reclaim *next;
	struct opaque client, owner;
	struct node *node;	/* it outlives the last name of the file, too */
	uint32_t access, deny;
} *reclaims;

static void free_reclaim(struct reclaim *reclaim)
{
	reclaim->node->opens--;
	node_drop(reclaim->node);
	free(reclaim);
}

static struct state *new_state(struct client *client, struct node *node, bool delegation)
{
	struct state *state = must(calloc(1, sizeof(*state)));

	*state = (struct state){ .next = states, .client = client, .node = node, .delegation = delegation };
	memset(state->id.other, 0x33, sizeof(state->id.other));
	memcpy(state->id.other, &next_state, sizeof(next_state));
	next_state++;
	states = state;
	node->opens++;
	if (delegation)
		counters.delegations++;
	else
		counters.opens++;
	return state;
}

/* The file may be gone behind that */
static void leave_node(struct state *state)
{
	struct node *node = state->node;

	if (!node)
		return;
	state->node = NULL;
	node->opens--;
	node_drop(node);
	if (state->delegation)
		counters.delegations--;
	else
		counters.opens--;
}

static void free_state(struct state *state)
{
	struct state **at;

	for (at = &states; *at != state; at = &(*at)->next)
		;
	*at = state->next;
	leave_node(state);
	free(state);
}

bool state_any(const struct client *client)
{
	const struct state *each;

	for (each = states; each; each = each->next)
		if (each->client == client && !each->revoked)
			return true;
	return false;
}

void state_forget(const struct client *client)
{
	struct state *each, *next;

	for (each = states; each; each = next) {
		next = each->next;
		if (each->client == client)
			free_state(each);
	}
}

void state_unlinked(struct node *node)
{
	struct state *each, *next;

	for (each = states; each; each = next) {
		next = each->next;
		/* the name is still there, and the node with it */
		if (each->node == node)
			free_state(each);
	}
}

static void step_seqid(struct state *state)
{
	state->id.seqid = state->id.seqid == UINT32_MAX ? 1 : state->id.seqid + 1;
}

/* --- stateids --- */

static bool other_is(const struct stateid *id, uint8_t byte)
{
	size_t i;

	for (i = 0; i < sizeof(id->other); i++)
		if (id->other[i] != byte)
			return false;
	return true;
}

static struct state *state_of(const struct client *client, const struct stateid *id)
{
	struct state *each;

	for (each = states; each; each = each->next)
		if (each->client == client && !memcmp(each->id.other, id->other, sizeof(id->other)))
			return each;
	return NULL;
}

/* RFC 8881, section 8.2.4, without the checks of file and type */
static uint32_t check_id(const struct client *client, const struct stateid *id, struct state **found)
{
	struct state *state = state_of(client, id);

	*found = state;
	if (!state)
		return NFS4ERR_BAD_STATEID;
	if (state->revoked)
		return state->revoked;
	if (!id->seqid || id->seqid == state->id.seqid)
		return NFS4_OK;
	/* nobody steps that often: half of the numbers are before */
	return state->id.seqid - id->seqid < 0x80000000U ? NFS4ERR_OLD_STATEID : NFS4ERR_BAD_STATEID;
}

/* The state that an operation names, of the current file */
static uint32_t find_state(struct compound *c, struct stateid id, bool keep_seqid, struct state **found)
{
	uint32_t status;

	*found = NULL;
	if (other_is(&id, 0) && id.seqid == 1) {
		/* the current stateid */
		if (!c->has_id)
			return NFS4ERR_BAD_STATEID;
		id = c->current_id;
		if (!keep_seqid)
			id.seqid = 0;
	}
	if (other_is(&id, 0) || other_is(&id, 0xff))
		return NFS4ERR_BAD_STATEID;
	status = check_id(c->session->client, &id, found);
	if (!status && (*found)->node != c->current)
		status = NFS4ERR_BAD_STATEID;
	return status;
}

static bool is_special(const struct stateid *id)
{
	return (other_is(id, 0) && !id->seqid) || (other_is(id, 0xff) && id->seqid == UINT32_MAX);
}

/* Another open of the file denies the use */
static bool is_denied(const struct node *node, uint32_t access, uint32_t deny, const struct state *own)
{
	const struct state *each;

	for (each = states; each; each = each->next)
		if (each->node == node && each != own && !each->delegation && !each->revoked &&
		    ((each->deny & access) || (each->access & deny)))
			return true;
	return false;
}

uint32_t check_use(struct compound *c, struct stateid id, enum use use)
{
	struct state *state;
	uint32_t status;

	if (is_special(&id)) {
		bool bypass = use == USE_READ && other_is(&id, 0xff);

		return !bypass && is_denied(c->current, use, 0, NULL) ? NFS4ERR_LOCKED : NFS4_OK;
	}
	status = find_state(c, id, false, &state);
	if (status)
		return status;
	return state->access & use ? NFS4_OK : NFS4ERR_OPENMODE;
}

static void return_id(struct compound *c, const struct state *state)
{
	c->current_id = state->id;
	c->has_id = true;
	put_stateid(c->out, &state->id);
}

/* --- OPEN --- */

struct open {
	uint32_t access, wanted, deny, how, claim, previous;
	bool create;
	struct opaque owner;
	struct attributes attributes;
	const uint8_t *verifier;
	char name[NAME_ROOM];
	uint32_t name_status;
	uint64_t folder_change;
	struct node *folder, *node;
	uint64_t set;		/* attributes that were set */
};

static uint32_t get_how(struct compound *c, struct open *open)
{
	open->create = get(c->in);
	if (!open->create)
		return NFS4_OK;
	open->how = get(c->in);
	if (open->how > EXCLUSIVE_1)
		return NFS4ERR_BADXDR;
	if (open->how >= EXCLUSIVE)
		open->verifier = get_bytes(c->in, 8);
	return open->how == EXCLUSIVE ? NFS4_OK : get_settable(c, &open->attributes);
}

static uint32_t get_claim(struct compound *c, struct open *open)
{
	open->claim = get(c->in);
	switch (open->claim) {
	case CLAIM_NULL:
		open->name_status = get_component(c, open->name);
		return NFS4_OK;
	case CLAIM_PREVIOUS:
		open->previous = get(c->in);
		return NFS4_OK;
	case CLAIM_FH:
		return NFS4_OK;
	case CLAIM_DELEGATE_CUR:
	case CLAIM_DELEG_CUR_FH:
		get_stateid(c->in);
		if (open->claim == CLAIM_DELEGATE_CUR)
			get_component(c, open->name);
		return NFS4ERR_NOTSUPP;
	default:
		return NFS4ERR_NOTSUPP;
	}
}

/* RFC 8881, section 18.16.4 */
static uint32_t check_share(uint32_t access, uint32_t deny)
{
	uint32_t want = access & SHARE_WANT;

	if (want <= WANT_CANCEL && !(access & ~(SHARE_WANT | SHARE_WHEN | SHARE_BOTH)) && (access & SHARE_BOTH) &&
	    deny <= SHARE_BOTH)
		return NFS4_OK;
	fault("share_access %x and share_deny %x", access, deny);
	return NFS4ERR_INVAL;
}

static uint32_t get_open(struct compound *c, struct open *open)
{
	uint32_t access, status, claim_status;

	*open = (struct open){};
	get(c->in);
	access = get(c->in);
	open->deny = get(c->in);
	get64(c->in);
	get_opaque(c->in, &open->owner);
	status = get_how(c, open);
	if (status == NFS4ERR_BADXDR || c->in->bad)
		return NFS4ERR_BADXDR;
	claim_status = get_claim(c, open);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (!status)
		status = claim_status;
	if (!status)
		status = check_share(access, open->deny);
	if (!status && open->create && open->claim != CLAIM_NULL) {
		fault("OPEN creates a file by the claim %u, which has no name", open->claim);
		status = NFS4ERR_INVAL;
	}
	open->wanted = access & ~SHARE_BOTH;
	open->access = access & SHARE_BOTH;
	return status;
}

/* RFC 8881, sections 8.4.2.1 and 18.51 */
static uint32_t check_grace(const struct compound *c, const struct open *open)
{
	const struct client *client = c->session->client;

	if (open->claim == CLAIM_PREVIOUS) {
		if (client->complete)
			fault("OPEN reclaims behind RECLAIM_COMPLETE");
		return client->complete || !in_grace() ? NFS4ERR_NO_GRACE : NFS4_OK;
	}
	if (!client->complete) {
		fault("OPEN without a claim before RECLAIM_COMPLETE");
		return NFS4ERR_GRACE;
	}
	return in_grace() ? NFS4ERR_GRACE : NFS4_OK;
}

static uint32_t regular(const struct node *node)
{
	return node->type == FILE_TYPE ? NFS4_OK : node->type == LINK_TYPE ? NFS4ERR_SYMLINK : NFS4ERR_ISDIR;
}

static void make_file(struct compound *c, struct open *open)
{
	open->node = node_new(FILE_TYPE, 0644);
	node_add(open->folder, open->name, open->node);
	apply_attributes(open->node, &open->attributes);
	open->set = open->attributes.mask;
	if (open->verifier)
		memcpy(open->node->create_verifier, open->verifier, 8);
	if (open->verifier && settings.exclusive_times)
		open->set |= ATTR_ACCESS_SET | ATTR_MODIFY_SET;
	if (open->verifier) {
		/* those that the verifier is in; EXCLUSIVE4 sets none */
		open->node->unset = open->set & ~open->attributes.mask;
		if (open->how == EXCLUSIVE)
			open->node->unset |= ATTR_MODE;
		c->made = open->node;
	}
}

/* The file of CLAIM_NULL */
static uint32_t named_file(struct compound *c, struct open *open)
{
	uint32_t status = need_folder(c);
	struct entry *entry;

	if (status || open->name_status)
		return status ? status : open->name_status;
	open->folder = c->current;
	open->folder_change = c->current->change;
	entry = node_entry(c->current, open->name);
	if (!entry) {
		if (!open->create)
			return NFS4ERR_NOENT;
		c->changes = true;
		make_file(c, open);
		return NFS4_OK;
	}
	open->node = entry->node;
	if (open->create && open->how == GUARDED)
		return NFS4ERR_EXIST;
	status = regular(open->node);
	if (status)
		return status;
	if (open->verifier) {
		if (memcmp(open->node->create_verifier, open->verifier, 8))
			return NFS4ERR_EXIST;
		open->set = open->attributes.mask;
	}
	return NFS4_OK;
}

/* The record of an open before the restart that has these bits */
static struct reclaim **find_reclaim(const struct client *client, const struct open *open, const struct node *node)
{
	struct reclaim **at;

	for (at = &reclaims; *at; at = &(*at)->next)
		if ((*at)->node == node && same_opaque(&(*at)->client, &client->owner) &&
		    same_opaque(&(*at)->owner, &open->owner) && !(open->access & ~(*at)->access) &&
		    !(open->deny & ~(*at)->deny))
			return at;
	return NULL;
}

static struct state *own_open(const struct client *client, const struct open *open)
{
	struct state *each;

	for (each = states; each; each = each->next)
		if (each->client == client && each->node == open->node && !each->delegation && !each->revoked &&
		    same_opaque(&each->owner, &open->owner))
			return each;
	return NULL;
}

static uint32_t open_target(struct compound *c, struct open *open)
{
	uint32_t status;

	if (open->claim == CLAIM_NULL)
		return named_file(c, open);
	open->node = c->current;
	status = regular(c->current);
	/* one that the client repeats because it had no reply is no fault */
	if (!status && open->claim == CLAIM_PREVIOUS && !find_reclaim(c->session->client, open, c->current) &&
	    !own_open(c->session->client, open)) {
		if (!dropped)
			fault("OPEN reclaims what the client did not have before the restart");
		status = NFS4ERR_RECLAIM_BAD;
	}
	return status;
}

/* A delegation that nobody asked for */
static struct state *delegate(const struct compound *c, const struct open *open)
{
	struct state *state;

	if (!settings.delegate)
		return NULL;
	for (state = states; state; state = state->next)
		if (state->node == open->node && state->delegation)
			return NULL;
	state = new_state(c->session->client, open->node, true);
	state->access = settings.delegate == 2 ? SHARE_BOTH : SHARE_READ;
	step_seqid(state);
	return state;
}

static void put_delegation(struct compound *c, const struct open *open, const struct state *state)
{
	uint32_t want = open->wanted & SHARE_WANT;

	if (!state) {
		put(c->out, want ? DELEGATE_NONE_EXT : DELEGATE_NONE);
		if (!want)
			return;
		/* WND4_NOT_WANTED, WND4_CANCELLED, WND4_RESOURCE */
		put(c->out, want == WANT_NO_DELEGATION ? 0 : want == WANT_CANCEL ? 7 : 2);
		if (want != WANT_NO_DELEGATION && want != WANT_CANCEL)
			put(c->out, 0);
		return;
	}
	put(c->out, state->access == SHARE_BOTH ? DELEGATE_WRITE : DELEGATE_READ);
	put_stateid(c->out, &state->id);
	put(c->out, 0);
	if (state->access == SHARE_BOTH) {
		/* NFS_LIMIT_SIZE */
		put(c->out, 1);
		put64(c->out, 1 << 20);
	}
	/* an entry of an ACL that allows nothing */
	put(c->out, 0);
	put(c->out, 0);
	put(c->out, 0);
	put_opaque(c->out, "EVERYONE@", 9);
}

static void put_opened(struct compound *c, const struct open *open, const struct state *state)
{
	return_id(c, state);
	put_change_info(c->out, open->folder ? open->folder_change : open->node->change,
			open->folder ? open->folder : open->node);
	put(c->out, RESULT_LOCKTYPE_POSIX | (settings.preserve ? RESULT_PRESERVE_UNLINKED : 0));
	put_bitmap(c->out, open->set);
	put_delegation(c, open, delegate(c, open));
}

uint32_t op_open(struct compound *c)
{
	static struct open open;
	uint32_t status = get_open(c, &open);
	struct reclaim **reclaim, *done = NULL;
	struct state *state;

	if (status == NFS4ERR_BADXDR)
		return status;
	c->changes = true;
	if (!status)
		status = check_grace(c, &open);
	if (!status)
		status = open_target(c, &open);
	if (status)
		return status;
	state = own_open(c->session->client, &open);
	if (is_denied(open.node, open.access, open.deny, state))
		return NFS4ERR_SHARE_DENIED;
	/* UNCHECKED4: an existing file keeps all but its bytes */
	if (open.create && open.how == UNCHECKED && !open.set && (open.attributes.mask & ATTR_SIZE) &&
	    !open.attributes.size) {
		open.attributes.mask = open.set = ATTR_SIZE;
		apply_attributes(open.node, &open.attributes);
	}
	if (!state) {
		state = new_state(c->session->client, open.node, false);
		state->owner = open.owner;
	}
	step_seqid(state);
	state->access |= open.access;
	state->deny |= open.deny;
	state->opened |= 1 << open.access;
	state->denied |= 1 << open.deny;
	counters.opened++;
	if (open.claim == CLAIM_PREVIOUS) {
		counters.reclaimed++;
		reclaim = find_reclaim(c->session->client, &open, open.node);
		done = reclaim ? *reclaim : NULL;
	}
	if (open.claim == CLAIM_PREVIOUS && done) {
		*reclaim = done->next;
		/* what is left of it is reclaimed by another OPEN */
		if (open.access != done->access || open.deny != done->deny) {
			done->next = reclaims;
			reclaims = done;
		} else {
			free_reclaim(done);
		}
	}
	set_current(c, open.node);
	put_opened(c, &open, state);
	if (open.claim == CLAIM_NULL)
		c->wants_fh = OP_OPEN;
	return NFS4_OK;
}

/* Some of the values that OPENs had give @value together */
static bool is_union(uint32_t values, uint32_t value)
{
	uint32_t each, sum = 0;

	for (each = 0; each <= SHARE_BOTH; each++)
		if ((values >> each & 1) && !(each & ~value))
			sum |= each;
	return sum == value;
}

static uint32_t within(uint32_t values, uint32_t value)
{
	uint32_t each;

	for (each = 0; each <= SHARE_BOTH; each++)
		if (each & ~value)
			values &= ~(1U << each);
	return values;
}

uint32_t op_open_downgrade(struct compound *c)
{
	struct stateid id = get_stateid(c->in);
	uint32_t access, deny, status;
	struct state *state;

	get(c->in);
	access = get(c->in);
	deny = get(c->in);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	c->changes = true;
	status = check_share(access, deny);
	if (status)
		return status;
	status = find_state(c, id, true, &state);
	if (status)
		return status;
	if (state->delegation)
		return NFS4ERR_BAD_STATEID;
	access &= SHARE_BOTH;
	/* no bits of share_deny are the union of no OPENs */
	if (!is_union(state->opened, access) || !is_union(state->denied | 1, deny)) {
		fault("OPEN_DOWNGRADE to access %u and deny %u: no OPENs had them", access, deny);
		return NFS4ERR_INVAL;
	}
	state->access = access;
	state->deny = deny;
	state->opened = within(state->opened, access);
	state->denied = within(state->denied, deny);
	step_seqid(state);
	return_id(c, state);
	return NFS4_OK;
}

uint32_t op_close(struct compound *c)
{
	static const struct stateid invalid = { .seqid = UINT32_MAX };
	struct stateid id;
	struct state *state;
	uint32_t status;

	get(c->in);
	id = get_stateid(c->in);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	c->changes = true;
	status = find_state(c, id, true, &state);
	if (!status && state->delegation)
		status = NFS4ERR_BAD_STATEID;
	if (status)
		return status;
	check_set(c->current);
	free_state(state);
	counters.closed++;
	c->current_id = invalid;
	c->has_id = false;
	put_stateid(c->out, &invalid);
	return NFS4_OK;
}

uint32_t op_delegreturn(struct compound *c)
{
	struct stateid id = get_stateid(c->in);
	struct state *state;
	uint32_t status;

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	c->changes = true;
	status = find_state(c, id, false, &state);
	if (!status && !state->delegation)
		status = NFS4ERR_BAD_STATEID;
	if (status)
		return status;
	free_state(state);
	counters.delegreturns++;
	return NFS4_OK;
}

/* --- lost state --- */

uint32_t op_test_stateid(struct compound *c)
{
	uint32_t count = get(c->in), i;
	struct state *state;

	if (count > 1024)
		c->in->bad = true;
	put(c->out, count);
	for (i = 0; i < count && !c->in->bad; i++) {
		struct stateid id = get_stateid(c->in);

		put(c->out, check_id(c->session->client, &id, &state));
	}
	return c->in->bad ? NFS4ERR_BADXDR : NFS4_OK;
}

/* The flags of SEQUENCE go when the client has acknowledged all that it lost */
static void acknowledge(struct client *client)
{
	const struct state *each;

	for (each = states; each; each = each->next)
		if (each->client == client && each->revoked)
			return;
	client->revoked = 0;
}

uint32_t op_free_stateid(struct compound *c)
{
	struct stateid id = get_stateid(c->in);
	struct state *state;
	uint32_t status;

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	status = check_id(c->session->client, &id, &state);
	if (!state)
		return status;
	if (!state->revoked)
		return NFS4ERR_LOCKS_HELD;
	free_state(state);
	acknowledge(c->session->client);
	return NFS4_OK;
}

/*
 * End leases: of all files (@path is NULL), or revoke the opens of one.  The client has NFS4ERR_EXPIRED, or, with
 * @admin, NFS4ERR_ADMIN_REVOKED.  With @forgotten the server has no trace of the stateids: NFS4ERR_BAD_STATEID, and
 * no flags of SEQUENCE.
 */
EXPORTED void device_expire(const char *path, bool admin, bool forgotten)
{
	struct state *each, *next;
	struct node *node;
	uint32_t flag = admin ? SEQ4_STATUS_ADMIN_REVOKED : path ? SEQ4_STATUS_EXPIRED_SOME : SEQ4_STATUS_EXPIRED_ALL;

	device_lock();
	node = path ? node_walk(path, 0, 0) : NULL;
	dropped = true;
	for (each = states; each; each = next) {
		next = each->next;
		if (each->revoked || (path && each->node != node))
			continue;
		if (forgotten) {
			free_state(each);
			continue;
		}
		each->revoked = admin ? NFS4ERR_ADMIN_REVOKED : NFS4ERR_EXPIRED;
		each->client->revoked |= flag;
		leave_node(each);
	}
	device_unlock();
}

/* --- restart --- */

static void forget_reclaims(const struct opaque *client)
{
	struct reclaim **at = &reclaims, *each;

	while ((each = *at)) {
		if (client && !same_opaque(&each->client, client)) {
			at = &each->next;
			continue;
		}
		*at = each->next;
		free_reclaim(each);
	}
}

void state_restart(void)
{
	const struct state *each;

	/* a restart in the grace period: what was not reclaimed yet still may be */
	if (!in_grace())
		forget_reclaims(NULL);
	for (each = states; each; each = each->next) {
		struct reclaim *reclaim;

		if (each->delegation || each->revoked)
			continue;
		reclaim = must(calloc(1, sizeof(*reclaim)));
		*reclaim = (struct reclaim){
			.next = reclaims, .client = each->client->owner, .owner = each->owner,
			.node = each->node, .access = each->access, .deny = each->deny,
		};
		reclaims = reclaim;
		each->node->opens++;
	}
}

/* The client, or any (NULL), had something */
bool state_reclaimable(const struct opaque *client)
{
	const struct reclaim *each;

	for (each = reclaims; each; each = each->next)
		if (!client || same_opaque(&each->client, client))
			return true;
	return false;
}

void state_reclaimed(const struct opaque *client)
{
	forget_reclaims(client);
}

void state_drop(void)
{
	dropped = true;
}

void state_reset(void)
{
	dropped = false;
	forget_reclaims(NULL);
}
