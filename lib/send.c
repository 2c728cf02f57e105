// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * From a request to a message of RPC-over-RDMA version 1 (RFC 8166).
 *
 * A request waits until the server's credits allow it; then its transport header is encoded in front of the RPC
 * message and the two leave by one Send.  All requests that may leave do so with one doorbell.
 *
 * Only each signal_every-th Send reports its completion.
 *
 * When a connection is lost, requests that were sent wait for the next one and are sent again with the same XID,
 * by which the server recognizes a repeated call (its reply cache).
 */
#include <string.h>

#include "library.h"

static uint32_t chunk_of(const struct memory_span *span, uint32_t position, struct nfr_chunk *chunk,
			 struct nfr_segment *segment)
{
	if (!span->addr)
		return 0;
	*segment = (struct nfr_segment){
		.handle = (*span->mr)->rkey, .length = span->length, .offset = (uintptr_t)span->addr,
	};
	*chunk = (struct nfr_chunk){.position = position, .nsegs = 1, .segs = segment};
	return 1;
}

/* Chunks of a Call */
struct chunks {
	struct nfr_segment segments[4], *next;
	struct nfr_chunk reads[2], write, reply;
};

/* The transport header of a Call that is not too long */
static void describe_message(const struct nfsrdma_session *session, const struct request *req, struct nfr_header *head,
		     struct chunks *chunks)
{
	*head = (struct nfr_header){
		.xid = req->xid, .credits = session->options.depth + 1, .proc = NFR_MSG,
		.reads = chunks->reads, .writes = &chunks->write,
	};
	chunks->next = chunks->segments;
	head->nwrites = chunk_of(&req->write, 0, &chunks->write, chunks->next++);
	if (chunk_of(&req->reply, 0, &chunks->reply, chunks->next++))
		head->reply = &chunks->reply;
	head->nreads = chunk_of(&req->read, req->position, &chunks->reads[0], chunks->next++);
}

static bool is_long(const struct nfsrdma_session *session, const struct request *req)
{
	struct nfr_header head;
	struct chunks chunks;

	if (HEADER_ROOM + req->length <= session->send_size)
		return false;
	describe_message(session, req, &head, &chunks);
	return nfr_wire_size(&head) + req->length > session->send_size;
}

static bool take_span(struct nfsrdma_session *session, struct memory_span *span, uint32_t bytes)
{
	uint8_t *addr = span->addr ? span->addr : memory_take(session, bytes);

	if (!span->addr && addr)
		*span = (struct memory_span){&session->arena_mr, addr, bytes};
	return addr;
}

/*
 * Take from the arena what a Call needs that is too long for the connection, or whose reply may be: this one's
 * messages may be smaller than those of the connection for which the request was prepared.
 */
static bool provide_room(struct nfsrdma_session *session, struct request *req)
{
	if (req->remote)
		req->remote->by_rpc(session, req);
	if (req->reply_most > session->recv_size && !take_span(session, &req->reply, req->reply_most))
		return false;
	return !is_long(session, req) || take_span(session, &req->call, req->length);
}

/*
 * Encode the transport header in front of the RPC message.  The server reads a Call that is too long for the
 * connection from the arena.  Returns the bytes to send.
 */
static uint32_t encode_message(struct nfsrdma_session *session, struct request *req, uint8_t **start)
{
	uint8_t *rpc = req->message + HEADER_ROOM;
	struct nfr_header head;
	struct chunks chunks;
	uint32_t size;

	describe_message(session, req, &head, &chunks);
	size = nfr_wire_size(&head);
	if (size + req->length > session->send_size) {
		/* anew each time: XID, NFSv4.1 session and slot may have changed */
		memcpy(req->call.addr, rpc, req->length);
		head.proc = NFR_NOMSG;
		/* the Read list is in order of position, and this one is 0 */
		if (head.nreads)
			chunks.reads[1] = chunks.reads[0];
		head.nreads += chunk_of(&req->call, 0, &chunks.reads[0], chunks.next++);
		size = nfr_wire_size(&head);
	}
	*start = rpc - size;
	nfr_wire_encode(&head, *start, HEADER_ROOM);
	return head.proc == NFR_NOMSG ? size : size + req->length;
}

/* The first waiting request that the arena has room for, or NULL: those behind it may be the ones that fill it */
static struct request *first_with_room(struct nfsrdma_session *session)
{
	struct request *req = session->waiting.head;

	while (req && !provide_room(session, req))
		req = req->next;
	return req;
}

/* With NFSv4.1, requests wait for the session and a slot of it, see state.c */
static bool may_leave(struct nfsrdma_session *session, struct request *req)
{
	if (req->sequenced && !session->dialect->may_leave(session, req))
		return false;
	return !req->renumbered || request_may_change(session, req);
}

/* The same as first_with_room(), of those that may leave */
static struct request *first_to_leave(struct nfsrdma_session *session)
{
	struct request *req = session->waiting.head;

	while (req && !(may_leave(session, req) && provide_room(session, req)))
		req = req->next;
	return req;
}

/* RDMA Reads may have memory of the arena, too */
static bool reads_under_way(const struct nfsrdma_session *session)
{
	uint32_t i;

	for (i = 0; session->optimist && i < session->nslots; i++)
		if (session->slots[i].state == REQUEST_READING)
			return true;
	return false;
}

/*
 * No waiting request has room, and no other one will end: the caller prepared reads and writes that fill the arena,
 * and waits for a call.
 */
static void fail_without_room(struct nfsrdma_session *session)
{
	struct request *req = session->waiting.head;

	if (!req || session->in_flight || session->delayed.head || reads_under_way(session) ||
	    first_with_room(session))
		return;
	request_list_pop(&session->waiting);
	request_finish(session, req, fail(-ENOBUFS, "%s: the arena has no room for a call beside the batch",
					  session->host));
}

/* Send the waiting requests that the credits allow, with one doorbell */
void send_flush(struct nfsrdma_session *session)
{
	struct ibv_send_wr *bad;
	uint64_t now = 0;
	uint32_t n = 0;

	/* the last attempt to make an NFSv4.1 session failed: make another one */
	if (session->waiting.head && session->waiting.head->sequenced)
		session->dialect->start(session);
	while (session->waiting.head && session->in_flight < session->credits) {
		struct ibv_send_wr *wr = &session->send_wrs[n];
		struct ibv_sge *sge = &session->send_sges[n];
		struct request *req = first_to_leave(session);
		uint32_t length;
		uint8_t *start;

		if (!req)
			break;
		if (req->renumbered)
			store32(req->message + HEADER_ROOM, req->xid);
		req->renumbered = false;
		if (req->sequenced)
			session->dialect->stamp(session, req);
		length = encode_message(session, req, &start);
		if (!now)
			now = now_ms();
		request_list_remove(&session->waiting, req);
		req->state = REQUEST_SENT;
		req->sent = now;
		req->send = ++session->sends;
		*sge = (struct ibv_sge){
			.addr = (uintptr_t)start, .length = length, .lkey = session->messages_mr->lkey,
		};
		*wr = (struct ibv_send_wr){
			.wr_id = SEND_BIT | req->send, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = req->send % session->signal_every ? 0 : IBV_SEND_SIGNALED,
		};
		if (n)
			session->send_wrs[n - 1].next = wr;
		session->in_flight++;
		n++;
	}
	if (!n) {
		fail_without_room(session);
		return;
	}
	session->stats.doorbells++;
	if (ibv_post_send(session->qp, session->send_wrs, &bad))
		connection_lost(session, -EIO, "the device takes no message");
}

void send_ready(struct nfsrdma_session *session, struct request *req)
{
	req->state = REQUEST_WAITING;
	if (req != session->nfs4.setup || session->nfs4.call >= CALL_RETURN) {
		request_list_add(&session->waiting, req);
		return;
	}
	/* the others wait for it */
	req->next = session->waiting.head;
	session->waiting.head = req;
	if (!req->next)
		session->waiting.tail = &req->next;
}

/* Make a call again, as another one */
void send_again(struct nfsrdma_session *session, struct request *req)
{
	request_renumber(session, req);
	send_ready(session, req);
	session->stats.resent++;
}

/* A READ that is no RDMA Read after all; send_flush() encodes it */
void send_by_rpc(struct nfsrdma_session *session, struct request *req)
{
	send_ready(session, req);
	session->stats.calls++;
}

/* Send a request that was held back; its time begins now */
void send_start(struct nfsrdma_session *session, struct request *req)
{
	req->began = now_ms();
	send_by_rpc(session, req);
}

void send_setup(struct nfsrdma_session *session, struct request *req)
{
	req->began = began_at(session);
	send_ready(session, req);
}

/* No session can be made for the requests that wait for one */
void send_fail_waiting(struct nfsrdma_session *session, int error)
{
	while (session->waiting.head)
		request_finish(session, request_list_pop(&session->waiting), error);
}

/* The queue pair is gone: what was sent waits for the next one */
void send_disconnected(struct nfsrdma_session *session)
{
	struct request_list again;
	uint32_t i;

	request_list_clear(&again);
	for (i = 0; session->slots && i < session->nslots; i++) {
		struct request *req = &session->slots[i];

		if (req->state != REQUEST_SENT)
			continue;
		req->state = REQUEST_WAITING;
		request_list_add(&again, req);
		session->stats.resent++;
	}
	if (again.head) {
		request_list_join(&again, &session->waiting);
		request_list_join(&session->waiting, &again);
	}
	/* it leaves first again, if the others wait for it, or else last: a new connection has one credit */
	if (session->nfs4.setup && session->nfs4.setup->state == REQUEST_WAITING) {
		request_list_remove(&session->waiting, session->nfs4.setup);
		send_ready(session, session->nfs4.setup);
	}
	session->in_flight = 0;
	session->sends_done = session->sends;
}
