// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* NFSv4.1: client IDs and sessions, with the reply cache (RFC 8881, sections 2.10, 18.34 to 18.37, 18.46, 18.51). */
#include <stdio.h>
#include <string.h>

#include "server4.h"

#define EXCHGID4_FLAGS			0x40070103
#define EXCHGID4_FLAG_USE_NON_PNFS	0x00010000
#define EXCHGID4_FLAG_UPDATE		0x40000000
#define EXCHGID4_FLAG_CONFIRMED		0x80000000
#define CREATE_SESSION4_FLAGS		7
#define SEQ4_STATUS_RESTART_RECLAIM	0x100

static struct client *clients;
static struct session *sessions;
static uint32_t boot = 0x51000001, next_client = 1, next_session = 1;

static struct client *client_of(uint64_t id)
{
	struct client *each;

	for (each = clients; each && each->id != id; each = each->next)
		;
	return each;
}

static struct client *owned_by(const struct opaque *owner, bool confirmed)
{
	struct client *each;

	for (each = clients; each; each = each->next)
		if (each->confirmed == confirmed && same_opaque(&each->owner, owner))
			return each;
	return NULL;
}

static struct session *session_of(const uint8_t *id)
{
	struct session *each;

	for (each = sessions; each && id && memcmp(each->id, id, SESSION_ID); each = each->next)
		;
	return id ? each : NULL;
}

static bool has_session(const struct client *client)
{
	struct session *each;

	for (each = sessions; each; each = each->next)
		if (each->client == client)
			return true;
	return false;
}

static void free_session(struct session *session)
{
	struct session **at;
	uint32_t i;

	for (at = &sessions; *at != session; at = &(*at)->next)
		;
	*at = session->next;
	for (i = 0; i < session->slots_max; i++)
		free(session->slots[i].results);
	free(session->slots);
	free(session);
	counters.sessions--;
}

/* With its sessions and all of its state */
static void free_client(struct client *client)
{
	struct session *each, *next;
	struct client **at;

	for (each = sessions; each; each = next) {
		next = each->next;
		if (each->client == client)
			free_session(each);
	}
	state_forget(client);
	for (at = &clients; *at != client; at = &(*at)->next)
		;
	*at = client->next;
	free(client);
	counters.clients--;
}

/* --- EXCHANGE_ID --- */

/* eia_client_impl_id<1> */
static void get_implementation(struct compound *c)
{
	uint32_t count = get(c->in), i;
	struct opaque text;

	if (count > 1)
		c->in->bad = true;
	for (i = 0; i < count && !c->in->bad; i++) {
		get_opaque(c->in, &text);
		get_opaque(c->in, &text);
		get64(c->in);
		get(c->in);
	}
}

static struct client *new_client(const struct opaque *owner, const uint8_t *verifier, uint32_t principal)
{
	struct client *client = must(calloc(1, sizeof(*client)));

	next_client++;
	*client = (struct client){
		.next = clients, .id = (uint64_t)boot << 32 | next_client, .owner = *owner, .principal = principal,
		.sequence = next_client * 7, .had_state = settings.grace && state_reclaimable(owner),
	};
	memcpy(client->verifier, verifier, 8);
	clients = client;
	counters.clients++;
	return client;
}

/* The cases of RFC 8881, section 18.35.4 */
static uint32_t exchange(struct compound *c, const struct opaque *owner, const uint8_t *verifier, bool update,
			 struct client **client)
{
	struct client *confirmed = owned_by(owner, true), *unconfirmed = owned_by(owner, false);
	bool same = confirmed && !memcmp(confirmed->verifier, verifier, 8);

	*client = confirmed;
	if (update) {
		if (!confirmed)
			return NFS4ERR_NOENT;
		if (!same)
			return NFS4ERR_NOT_SAME;
		return confirmed->principal == c->call->principal ? NFS4_OK : NFS4ERR_PERM;
	}
	if (unconfirmed)
		free_client(unconfirmed);
	if (confirmed && confirmed->principal != c->call->principal) {
		if (state_any(confirmed))
			return NFS4ERR_CLID_INUSE;
		free_client(confirmed);
		same = false;
	}
	if (!same)
		*client = new_client(owner, verifier, c->call->principal);
	return NFS4_OK;
}

uint32_t op_exchange_id(struct compound *c)
{
	const uint8_t *verifier = get_bytes(c->in, 8);
	struct client *client;
	struct opaque owner;
	uint32_t flags, protection, status;
	char name[32];

	get_opaque(c->in, &owner);
	flags = get(c->in);
	protection = get(c->in);
	if (!protection)
		get_implementation(c);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (flags & ~EXCHGID4_FLAGS) {
		fault("EXCHANGE_ID with the flags %x", flags);
		return NFS4ERR_INVAL;
	}
	/* SP4_MACH_CRED and SP4_SSV need RPCSEC_GSS */
	if (protection) {
		fault("EXCHANGE_ID with the state protection %u without RPCSEC_GSS", protection);
		return NFS4ERR_INVAL;
	}
	status = exchange(c, &owner, verifier, flags & EXCHGID4_FLAG_UPDATE, &client);
	if (status)
		return status;
	snprintf(name, sizeof(name), "server %llu", (unsigned long long)settings.scope);
	put64(c->out, client->id);
	put(c->out, client->sequence + 1);
	put(c->out, EXCHGID4_FLAG_USE_NON_PNFS | (client->confirmed ? EXCHGID4_FLAG_CONFIRMED : 0));
	put(c->out, 0);
	/* eir_server_owner and eir_server_scope (RFC 8881, section 2.10.4), which a restart keeps */
	put64(c->out, 1);
	put_opaque(c->out, name, strlen(name));
	put_opaque(c->out, name, strlen(name));
	put(c->out, 0);
	return NFS4_OK;
}

/* --- CREATE_SESSION --- */

struct channel {
	uint32_t padding, request, response, cached, operations, requests, nird, ird;
};

static struct channel get_channel(struct in *in)
{
	struct channel channel = { .padding = get(in), .request = get(in) };

	channel.response = get(in);
	channel.cached = get(in);
	channel.operations = get(in);
	channel.requests = get(in);
	channel.nird = get(in);
	if (channel.nird > 1)
		in->bad = true;
	else if (channel.nird)
		channel.ird = get(in);
	return channel;
}

static void put_channel(struct out *out, const struct channel *channel)
{
	put(out, channel->padding);
	put(out, channel->request);
	put(out, channel->response);
	put(out, channel->cached);
	put(out, channel->operations);
	put(out, channel->requests);
	put(out, channel->nird);
	if (channel->nird)
		put(out, channel->ird);
}

/* csa_sec_parms<>: AUTH_NONE, and AUTH_SYS */
static void get_callback_security(struct in *in)
{
	uint32_t count = get(in), groups;
	struct opaque name;

	while (count-- && !in->bad) {
		uint32_t flavor = get(in);

		if (flavor > 1)
			in->bad = true;
		if (flavor != 1)
			continue;
		get(in);
		get_opaque(in, &name);
		get(in);
		get(in);
		for (groups = get(in); groups && !in->bad; groups--)
			get(in);
	}
}

static void lower(uint32_t *value, uint64_t most)
{
	if (*value > most)
		*value = most;
}

static void bind(struct session *session, struct connection *connection)
{
	uint32_t i;

	for (i = 0; i < session->nbound; i++)
		if (session->bound[i] == connection)
			return;
	if (i < sizeof(session->bound) / sizeof(*session->bound))
		session->bound[session->nbound++] = connection;
}

static bool is_bound(const struct session *session, const struct connection *connection)
{
	uint32_t i;

	for (i = 0; i < session->nbound; i++)
		if (session->bound[i] == connection)
			return true;
	return false;
}

static struct session *new_session(struct client *client, const struct channel *fore)
{
	struct session *session = must(calloc(1, sizeof(*session)));

	*session = (struct session){
		.next = sessions, .client = client, .request_max = fore->request, .response_max = fore->response,
		.cached_max = fore->cached, .operations_max = fore->operations, .slots_max = fore->requests,
		.enforced = fore->requests,
	};
	session->slots = must(calloc(fore->requests, sizeof(*session->slots)));
	memset(session->id, 0x77, SESSION_ID);
	memcpy(session->id, &boot, 4);
	memcpy(session->id + 4, &next_session, 4);
	next_session++;
	sessions = session;
	counters.sessions++;
	counters.created_sessions++;
	return session;
}

/* RFC 8881, section 18.36.4: the first session of a client ID confirms it, and ends what the client was before */
static void confirm(struct client *client)
{
	struct client *before = owned_by(&client->owner, true);

	if (client->confirmed)
		return;
	if (before)
		free_client(before);
	client->confirmed = true;
}

static uint32_t create_session(struct compound *c, struct client *client, struct out *out)
{
	uint32_t sequence = client->sequence, flags = get(c->in);
	struct channel fore = get_channel(c->in), back = get_channel(c->in);
	struct session *session;

	get(c->in);
	get_callback_security(c->in);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (flags & ~CREATE_SESSION4_FLAGS) {
		fault("CREATE_SESSION with the flags %x", flags);
		return NFS4ERR_INVAL;
	}
	if (client->principal != c->call->principal)
		return NFS4ERR_CLID_INUSE;
	if (!fore.requests || !fore.operations)
		return NFS4ERR_INVAL;
	/* of one SEQUENCE, with the headers of RPC */
	if (fore.request < 200 || fore.response < 100)
		return NFS4ERR_TOOSMALL;
	fore.padding = back.padding = 0;
	lower(&fore.request, settings.request_max);
	lower(&fore.response, settings.response_max);
	lower(&fore.cached, settings.cached_max);
	lower(&fore.operations, settings.operations_max);
	lower(&fore.requests, settings.slots);
	session = new_session(client, &fore);
	confirm(client);
	bind(session, c->call->connection);
	put(out, NFS4_OK);
	put_bytes(out, session->id, SESSION_ID);
	put(out, sequence);
	/* neither persistent, nor with a backchannel */
	put(out, 0);
	put_channel(out, &fore);
	put_channel(out, &back);
	return NFS4_OK;
}

uint32_t op_create_session(struct compound *c)
{
	struct client *client = client_of(get64(c->in));
	uint32_t sequence = get(c->in), status;
	static uint8_t results[1024];
	struct out out = { results, 0 };

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (!client)
		return NFS4ERR_STALE_CLIENTID;
	if (sequence == client->sequence && client->created_length) {
		struct in rest = { client->created, client->created_length, false };

		status = get(&rest);
		put_bytes(c->out, rest.at, rest.left);
		counters.replays++;
		/* what follows the sequence ID was checked before */
		c->in->left = 0;
		return status;
	}
	if (sequence != client->sequence + 1) {
		fault("CREATE_SESSION with the sequence ID %u behind %u", sequence, client->sequence);
		return NFS4ERR_SEQ_MISORDERED;
	}
	client->sequence = sequence;
	status = create_session(c, client, &out);
	if (status)
		put(&out, status);
	memcpy(client->created, results, out.used);
	client->created_length = out.used;
	put_bytes(c->out, results + 4, out.used - 4);
	return status;
}

/* --- the other operations on clients and sessions --- */

uint32_t op_destroy_session(struct compound *c)
{
	const uint8_t *id = get_bytes(c->in, SESSION_ID);
	struct session *session = session_of(id);

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (!session)
		return NFS4ERR_BADSESSION;
	if (session == c->session && c->index + 1 != c->count) {
		fault("DESTROY_SESSION of the own session that is not the last operation");
		return NFS4ERR_NOT_ONLY_OP;
	}
	if (!is_bound(session, c->call->connection)) {
		fault("DESTROY_SESSION on a connection that is not one of the session");
		return NFS4ERR_CONN_NOT_BOUND_TO_SESSION;
	}
	if (session == c->session) {
		c->session = NULL;
		c->slot = NULL;
	}
	free_session(session);
	return NFS4_OK;
}

uint32_t op_destroy_clientid(struct compound *c)
{
	struct client *client = client_of(get64(c->in));

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (!client)
		return NFS4ERR_STALE_CLIENTID;
	if (has_session(client) || state_any(client))
		return NFS4ERR_CLIENTID_BUSY;
	free_client(client);
	return NFS4_OK;
}

uint32_t op_bind_conn_to_session(struct compound *c)
{
	const uint8_t *id = get_bytes(c->in, SESSION_ID);
	uint32_t wanted = get(c->in);
	struct session *session = session_of(id);

	get(c->in);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (wanted != 1 && wanted != 2 && wanted != 3 && wanted != 7) {
		fault("BIND_CONN_TO_SESSION of the channels %u", wanted);
		return NFS4ERR_INVAL;
	}
	if (!session)
		return NFS4ERR_BADSESSION;
	bind(session, c->call->connection);
	put_bytes(c->out, session->id, SESSION_ID);
	/* the fore channel alone where that is enough */
	put(c->out, wanted == 7 ? 2 : wanted == 3 ? 1 : wanted);
	put(c->out, 0);
	return NFS4_OK;
}

bool in_grace(void)
{
	const struct client *each;

	if (settings.grace != GRACE_CLIENTS)
		return settings.grace;
	if (state_reclaimable(NULL))
		return true;
	for (each = clients; each; each = each->next)
		if (each->had_state && !each->complete)
			return true;
	settings.grace = 0;
	return false;
}

uint32_t op_reclaim_complete(struct compound *c)
{
	struct client *client = c->session->client;
	bool one = get(c->in);

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	/* the one file system has not moved */
	if (one)
		return c->current ? NFS4_OK : NFS4ERR_NOFILEHANDLE;
	if (client->complete)
		return NFS4ERR_COMPLETE_ALREADY;
	client->complete = true;
	state_reclaimed(&client->owner);
	return NFS4_OK;
}

/* --- SEQUENCE and the reply cache --- */

static uint32_t check_slot(const struct compound *c, const struct session *session, uint32_t number, uint32_t highest)
{
	if (number >= session->slots_max || (number >= session->enforced && !session->slots[number].used)) {
		fault("slot %u of %u", number, session->enforced);
		return NFS4ERR_BADSLOT;
	}
	if (highest >= session->slots_max || highest < number) {
		fault("the highest slot %u, of %u, in a request of slot %u", highest, session->slots_max, number);
		return NFS4ERR_BAD_HIGH_SLOT;
	}
	if (c->count > session->operations_max) {
		fault("a COMPOUND of %u operations: ca_maxoperations is %u", c->count, session->operations_max);
		return NFS4ERR_TOO_MANY_OPS;
	}
	if (c->call->size > session->request_max) {
		fault("a request of %zu bytes: ca_maxrequestsize is %u", c->call->size, session->request_max);
		return NFS4ERR_REQ_TOO_BIG;
	}
	return NFS4_OK;
}

/* A request that the slot has seen */
static uint32_t replay(struct compound *c, struct slot *slot)
{
	struct call *call = c->call;

	if (!slot->used)
		return NFS4ERR_SEQ_MISORDERED;
	if (slot->digest != c->digest || slot->principal != call->principal) {
		fault("another request with the sequence ID %u of a slot", slot->sequence);
		return NFS4ERR_SEQ_FALSE_RETRY;
	}
	/* RFC 8881, section 2.10.6.2 */
	if (slot->connection == call->connection)
		fault("a retry on the connection that has the request");
	slot->connection = call->connection;
	slot->xid = call->xid;
	slot->pending = true;
	call->operations = slot->operations;
	call->out->used = c->start;
	put_bytes(call->out, slot->results, slot->length);
	memcpy(call->ranges, slot->ranges, sizeof(slot->ranges));
	call->nranges = slot->nranges;
	counters.replays++;
	if (!slot->whole)
		counters.uncached++;
	return REPLAYED;
}

/* The test has the client use fewer slots, or more again: what the client uses beyond is refused once it knows */
static void set_slots(struct session *session, const struct slot *slot, uint32_t highest)
{
	uint32_t target = session->slots_max, i;

	if (settings.target_slots && settings.target_slots < target)
		target = settings.target_slots;
	/*
	 * Another request for the slot says that the client had the reply, and which slots it had in use then.  Requests
	 * for other slots may have been sent before.
	 */
	if (target > session->enforced || (slot->told == target && highest < target))
		session->enforced = target;
	/* RFC 8881, section 2.10.6.1: slots that come back begin again */
	for (i = session->enforced; i < session->slots_max; i++) {
		free(session->slots[i].results);
		session->slots[i] = (struct slot){};
	}
}

static void put_sequence(struct compound *c, struct session *session, uint32_t number)
{
	const struct client *client = session->client;
	uint32_t target = session->slots_max, flags = client->revoked | settings.sequence_flags;

	if (settings.target_slots && settings.target_slots < target)
		target = settings.target_slots;
	if (client->had_state && !client->complete)
		flags |= SEQ4_STATUS_RESTART_RECLAIM;
	put_bytes(c->out, session->id, SESSION_ID);
	put(c->out, session->slots[number].sequence);
	put(c->out, number);
	put(c->out, session->enforced - 1);
	put(c->out, target - 1);
	session->slots[number].told = target < session->slots_max ? target : 0;
	put(c->out, flags);
}

uint32_t op_sequence(struct compound *c)
{
	const uint8_t *id = get_bytes(c->in, SESSION_ID);
	uint32_t sequence = get(c->in), number = get(c->in), highest = get(c->in), status;
	struct session *session = session_of(id);
	struct slot *slot;

	c->cached = get(c->in);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (!session)
		return NFS4ERR_BADSESSION;
	if (settings.bind && !is_bound(session, c->call->connection))
		return NFS4ERR_CONN_NOT_BOUND_TO_SESSION;
	status = check_slot(c, session, number, highest);
	if (status)
		return status;
	bind(session, c->call->connection);
	slot = &session->slots[number];
	if (sequence == slot->sequence)
		return replay(c, slot);
	if (sequence != slot->sequence + 1) {
		fault("the sequence ID %u of slot %u behind %u", sequence, number, slot->sequence);
		return NFS4ERR_SEQ_MISORDERED;
	}
	if (slot->pending)
		fault("slot %u is used again before the reply has reached the client", number);
	/* RFC 8881, section 2.10.6.1 */
	if (slot->told && number >= slot->told)
		fault("slot %u is used again: the client knows that the server wants %u", number, slot->told);
	c->session = session;
	c->slot = slot;
	slot->sequence = sequence;
	slot->second = 0;
	if (number > counters.highest_slot)
		counters.highest_slot = number;
	set_slots(session, slot, highest);
	put_sequence(c, session, number);
	return NFS4_OK;
}

/* Keep the results for a retry of the request: status, tag and count of the COMPOUND, and those of operations */
void keep_reply(struct compound *c)
{
	struct slot *slot = c->slot;
	struct call *call = c->call;
	size_t length = call->out->used - c->start, tag;
	struct in in;

	if (!slot)
		return;
	if (settings.grace && settings.grace < GRACE_CLIENTS)
		settings.grace--;
	free(slot->results);
	slot->used = slot->pending = true;
	slot->whole = c->cached || settings.keep_all || !slot->second;
	slot->connection = call->connection;
	slot->xid = call->xid;
	slot->principal = call->principal;
	slot->digest = c->digest;
	slot->operations = call->operations;
	slot->results = must(malloc(length + 8));
	memcpy(slot->results, call->out->at + c->start, length);
	slot->length = length;
	memcpy(slot->ranges, call->ranges, sizeof(slot->ranges));
	slot->nranges = call->nranges;
	if (!slot->whole) {
		/* RFC 8881, section 2.10.6.1.3: SEQUENCE, and an error of the second operation */
		struct out out = { slot->results, 0 };

		in = (struct in){ slot->results, length, false };
		get(&in);
		tag = get(&in);
		tag = 8 + ((tag + 3) & ~3UL);
		put_at(&out, 0, NFS4ERR_RETRY_UNCACHED_REP);
		put_at(&out, tag, 2);
		/* op, status and results of SEQUENCE */
		out.used = tag + 4 + 8 + SESSION_ID + 20;
		put(&out, slot->second);
		put(&out, NFS4ERR_RETRY_UNCACHED_REP);
		slot->length = out.used;
		slot->nranges = 0;
	}
}

void server_delivered(const struct connection *connection, uint32_t xid)
{
	struct session *session;
	uint32_t i;

	for (session = sessions; session; session = session->next)
		for (i = 0; i < session->slots_max; i++)
			if (session->slots[i].connection == connection && session->slots[i].xid == xid)
				session->slots[i].pending = false;
}

/* A connection ends, and with it its bindings */
void sessions_forget(const struct connection *connection)
{
	struct session *session;
	uint32_t i;

	for (session = sessions; session; session = session->next) {
		for (i = 0; i < session->nbound; i++)
			if (session->bound[i] == connection)
				session->bound[i--] = session->bound[--session->nbound];
		for (i = 0; i < session->slots_max; i++)
			if (session->slots[i].connection == connection)
				session->slots[i].connection = NULL;
	}
}

void sessions_restart(void)
{
	state_restart();
	while (clients)
		free_client(clients);
	boot++;
	settings.grace = settings.restart_grace;
}

void sessions_reset(void)
{
	while (clients)
		free_client(clients);
	state_reset();
}

/* The server has discarded all clients, as it may when their leases are over */
EXPORTED void device_discard_clients(void)
{
	device_lock();
	state_drop();
	while (clients)
		free_client(clients);
	device_unlock();
}
