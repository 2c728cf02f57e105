// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Requests: the slots of a session, each with room for one Call.
 *
 * The number of a slot is part of its XID, so that a reply finds its request without a search.  A slot whose Send has
 * not completed is not used again: that is why there are signal_every more slots than requests (send.c).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "library.h"

/* Receives for the server's own Calls, which it should not send */
#define RECEIVES_MORE	2

/* Transport header, and RPC reply header with the longest verifier */
#define REPLY_HEAD	(NFR_WIRE_MIN + 24 + RPC_AUTH_MAX)

static void encode_rpc_head(struct nfsrdma_session *session)
{
	AUTH *auth = authunix_create_default();
	uint32_t words[] = {0, RPC_CALL, RPC_MSG_VERSION, NFS_PROGRAM, NFS_VERSION, 0};
	XDR xdr;
	size_t i;

	session->rpc_head_length = 0;
	if (!auth)
		return;
	xdrmem_create(&xdr, (char *)session->rpc_head, sizeof(session->rpc_head), XDR_ENCODE);
	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		xdr_u_int(&xdr, &words[i]);
	/* the credential, and a verifier of AUTH_NONE */
	if (AUTH_MARSHALL(auth, &xdr))
		session->rpc_head_length = xdr_getpos(&xdr);
	AUTH_DESTROY(auth);
}

/* Make slots, and what one doorbell needs; requires session->options */
int requests_allocate(struct nfsrdma_session *session)
{
	uint32_t i;

	session->signal_every = session->options.depth / 4 ? session->options.depth / 4 : 1;
	/* one request more, for calls that wait while a batch is unfinished */
	session->nslots = session->options.depth + 1 + session->signal_every;
	/* and one for calls that make an NFSv4.1 session */
	session->nslots += session->options.version == 41;
	session->nreceives = session->options.depth + 2 + RECEIVES_MORE;
	session->slots = calloc(session->nslots, sizeof(*session->slots));
	session->send_wrs = calloc(session->nslots, sizeof(*session->send_wrs));
	session->send_sges = calloc(session->nslots, sizeof(*session->send_sges));
	session->receive_wrs = calloc(session->nreceives, sizeof(*session->receive_wrs));
	session->receive_sges = calloc(session->nreceives, sizeof(*session->receive_sges));
	session->done.size = session->options.depth;
	session->done.places = calloc(session->done.size, sizeof(*session->done.places));
	if (!session->slots || !session->send_wrs || !session->send_sges || !session->receive_wrs ||
	    !session->receive_sges || !session->done.places)
		return fail_no_memory();
	request_list_clear(&session->free);
	request_list_clear(&session->prepared);
	request_list_clear(&session->held);
	request_list_clear(&session->waiting);
	request_list_clear(&session->delayed);
	for (i = 0; i < session->nslots; i++)
		request_list_add(&session->free, &session->slots[i]);
	/* a later process of the same host must not repeat the XIDs of this one */
	if (getrandom(&session->counter, sizeof(session->counter), 0) != sizeof(session->counter))
		return fail(-errno, "getrandom: %s", strerror(errno));
	encode_rpc_head(session);
	return session->rpc_head_length ? 0 : fail_no_memory();
}

void requests_free(struct nfsrdma_session *session)
{
	free(session->slots);
	free(session->send_wrs);
	free(session->send_sges);
	free(session->receive_wrs);
	free(session->receive_sges);
	free(session->done.places);
}

/* Has the Send of this slot completed?  Numbers of Sends wrap around. */
static bool was_sent(const struct nfsrdma_session *session, const struct request *req)
{
	return (int32_t)(session->sends_done - req->send) >= 0;
}

static uint32_t new_xid(struct nfsrdma_session *session, const struct request *req)
{
	return session->counter++ << XID_SLOT_BITS | (uint32_t)(req - session->slots);
}

static void reset(struct nfsrdma_session *session, struct request *req)
{
	*req = (struct request){
		.message = req->message, .state = REQUEST_PREPARED, .send = req->send, .nfs4_slot = -1,
		.xid = new_xid(session, req),
	};
}

/* The first free slot whose Send has completed, or NULL */
static struct request *first_free(const struct nfsrdma_session *session)
{
	struct request *req = session->free.head;

	while (req && !was_sent(session, req))
		req = req->next;
	return req;
}

/* A free slot whose Send has completed, as a request without a message; or NULL */
struct request *request_take(struct nfsrdma_session *session)
{
	struct request *req = first_free(session);

	if (!req)
		return NULL;
	request_list_remove(&session->free, req);
	reset(session, req);
	return req;
}

/* A call that is made again, as another one, has another XID, which send_flush() writes */
void request_renumber(struct nfsrdma_session *session, struct request *req)
{
	req->xid = new_xid(session, req);
	req->renumbered = true;
}

/*
 * May a message change?  The device may still read that of a Send which has not completed: then the request takes the
 * memory of a free slot.
 */
bool request_may_change(struct nfsrdma_session *session, struct request *req)
{
	struct request *other, old = *req;

	if (was_sent(session, req))
		return true;
	other = request_take(session);
	if (!other)
		return false;
	req->message = other->message;
	req->send = other->send;
	other->message = old.message;
	other->send = old.send;
	memcpy(req->message + HEADER_ROOM, other->message + HEADER_ROOM, req->length);
	request_release(session, other);
	return true;
}

/* Is there a free slot whose Send has completed? */
bool request_is_free(const struct nfsrdma_session *session)
{
	return first_free(session);
}

/* The number of free slots, which include those whose Send has not completed */
uint32_t request_count_free(const struct nfsrdma_session *session)
{
	const struct request *req;
	uint32_t n = 0;

	for (req = session->free.head; req; req = req->next)
		n++;
	return n;
}

/**
 * request_begin - write the RPC header of a Call
 * @session: session
 * @req: request from wait_take()
 * @procedure: of NFSv3
 *
 * Return: where the arguments begin; there is room for CALL_MAX bytes after the start of the RPC message.
 */
uint8_t *request_begin(struct nfsrdma_session *session, struct request *req, uint32_t procedure)
{
	uint8_t *rpc = req->message + HEADER_ROOM;

	memcpy(rpc, session->rpc_head, session->rpc_head_length);
	store32(rpc, req->xid);
	store32(rpc + 20, procedure);
	return rpc + session->rpc_head_length;
}

void request_release(struct nfsrdma_session *session, struct request *req)
{
	if (req->call.addr)
		memory_give(session, req->call.addr, req->call.length);
	if (req->reply.addr)
		memory_give(session, req->reply.addr, req->reply.length);
	req->state = REQUEST_FREE;
	request_list_add(&session->free, req);
}

void request_finish(struct nfsrdma_session *session, struct request *req, int error)
{
	req->error = error;
	req->state = REQUEST_DONE;
	/* no result of SEQUENCE */
	if (req->nfs4_slot >= 0)
		session->dialect->abandon(session, req);
	if (req->done)
		req->done(session, req);
}

/* The longest results have this many bytes: send_flush() gives them room in the arena if they are too long for a message */
void request_expect(struct request *req, uint32_t bytes)
{
	req->reply_most = REPLY_HEAD + bytes;
}

/* Add a request to the next batch */
void request_prepare(struct nfsrdma_session *session, struct request *req)
{
	request_list_add(&session->prepared, req);
	session->nprepared++;
}

/* Add a request to the next batch that something else than a credit or a connection holds back */
void request_hold(struct nfsrdma_session *session, struct request *req)
{
	request_list_add(&session->held, req);
}

void request_unhold(struct nfsrdma_session *session, struct request *req)
{
	request_list_remove(&session->held, req);
}
