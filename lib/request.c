// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * RPCs over RPC-over-RDMA version 1 (RFC 8166).
 *
 * A request takes one of the session's slots, whose number is part of its XID, so that a reply finds it without
 * a search.  It waits until the server's credits allow it; then its transport header is encoded in front of the
 * RPC message and the two leave by one Send.  All requests that may leave do so with one doorbell.
 *
 * Only each signal_every-th Send reports its completion.  A slot whose Send has not completed is not used again:
 * that is why there are signal_every more slots than requests.
 *
 * When a connection is lost, requests that were sent wait for the next one and are sent again with the same XID,
 * by which the server recognizes a repeated call (its reply cache).  A request without a reply for half of the
 * session's timeout ends the connection; after the timeout the request fails.  No request fails before the queue
 * pair is gone, because the server could still write to its memory.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <time.h>

#include "session.h"

/* Completions of one poll */
#define POLL_MOST	16

/* Empty polls, each followed by a yield, before the process sleeps */
#define YIELDS		20

/* Polls between two looks at the events of the connection, and at the clock */
#define LOOK_EVERY	256

/* Milliseconds before a request is sent again to a busy server */
#define BUSY_MIN	100
#define BUSY_MAX	5000

#define RECEIVES_MORE	2
#define SEND_BIT	(1ULL << 63)
#define NEVER		UINT64_MAX

/* enum msg_type, reply_stat, accept_stat (RFC 5531, section 9) */
enum { RPC_CALL = 0, RPC_REPLY = 1 };
enum { RPC_ACCEPTED = 0, RPC_DENIED = 1 };
#define RPC_AUTH_MAX	400

/* Transport header, and RPC reply header with the longest verifier */
#define REPLY_HEAD	(NFR_WIRE_MIN + 24 + RPC_AUTH_MAX)

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- lists of requests --- */

static void list_clear(struct list *list)
{
	list->head = NULL;
	list->tail = &list->head;
}

static void list_add(struct list *list, struct request *req)
{
	req->next = NULL;
	*list->tail = req;
	list->tail = &req->next;
}

static struct request *list_pop(struct list *list)
{
	struct request *req = list->head;

	list->head = req->next;
	if (!list->head)
		list->tail = &list->head;
	return req;
}

static void list_join(struct list *to, struct list *from)
{
	if (!from->head)
		return;
	*to->tail = from->head;
	to->tail = from->tail;
	list_clear(from);
}

static void list_remove(struct list *list, const struct request *req)
{
	struct request **at = &list->head;

	while (*at && *at != req)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = req->next;
	if (!*at)
		list->tail = at;
}

/* --- slots --- */

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
	/* the last one is for calls that make an NFSv4.1 session */
	session->nslots++;
	session->nreceives = session->options.depth + 2 + RECEIVES_MORE;
	session->slots = calloc(session->nslots, sizeof(*session->slots));
	session->send_wrs = calloc(session->nslots, sizeof(*session->send_wrs));
	session->send_sges = calloc(session->nslots, sizeof(*session->send_sges));
	session->receive_wrs = calloc(session->nreceives, sizeof(*session->receive_wrs));
	session->receive_sges = calloc(session->nreceives, sizeof(*session->receive_sges));
	session->done = calloc(session->options.depth, sizeof(*session->done));
	if (!session->slots || !session->send_wrs || !session->send_sges || !session->receive_wrs ||
	    !session->receive_sges || !session->done)
		return no_memory();
	list_clear(&session->free);
	list_clear(&session->prepared);
	list_clear(&session->held);
	list_clear(&session->waiting);
	list_clear(&session->delayed);
	for (i = 0; i < session->nslots - 1; i++)
		list_add(&session->free, &session->slots[i]);
	/* a later process of the same host must not repeat the XIDs of this one */
	if (getrandom(&session->counter, sizeof(session->counter), 0) != sizeof(session->counter))
		return fail(-errno, "getrandom: %s", strerror(errno));
	encode_rpc_head(session);
	return session->rpc_head_length ? 0 : no_memory();
}

void requests_free(struct nfsrdma_session *session)
{
	uint32_t i;

	/* of unfinished reads and writes */
	for (i = 0; session->slots && i < session->nslots; i++)
		if (session->slots[i].io.file)
			file_put(session->slots[i].io.file);
	free(session->slots);
	free(session->send_wrs);
	free(session->send_sges);
	free(session->receive_wrs);
	free(session->receive_sges);
	free(session->done);
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

/* A call that is made again, as another one, has another XID */
static void renumber(struct nfsrdma_session *session, struct request *req)
{
	req->xid = new_xid(session, req);
	nfr_wire_store32(req->message + HEADER_ROOM, req->xid);
}

/* A free slot whose Send has completed; @nfree gets the number of those that are free */
static struct request *find_free(const struct nfsrdma_session *session, uint32_t *nfree)
{
	struct request *req;

	*nfree = 0;
	for (req = session->free.head; req; req = req->next, ++*nfree)
		if (was_sent(session, req))
			return req;
	return NULL;
}

/**
 * request_take - take a free slot
 * @session: session
 *
 * A reply may arrive before the completion of the Send: then this waits for the completion.
 *
 * Return: a request without a message, or NULL if all are in use.
 */
struct request *request_take(struct nfsrdma_session *session)
{
	struct request *req;
	uint32_t nfree;

	while (!(req = find_free(session, &nfree))) {
		/* as many as this may wait for a completion that no Send reports */
		if (nfree < session->signal_every)
			return NULL;
		if (!session_poll(session))
			session_sleep(session, NEVER);
	}
	list_remove(&session->free, req);
	reset(session, req);
	return req;
}

/**
 * request_begin - write the RPC header of a Call
 * @session: session
 * @req: request from request_take()
 * @procedure: of NFSv3
 *
 * Return: where the arguments begin; there is room for CALL_MAX bytes after the start of the RPC message.
 */
uint8_t *request_begin(struct nfsrdma_session *session, struct request *req, uint32_t procedure)
{
	uint8_t *rpc = req->message + HEADER_ROOM;

	memcpy(rpc, session->rpc_head, session->rpc_head_length);
	nfr_wire_store32(rpc, req->xid);
	nfr_wire_store32(rpc + 20, procedure);
	return rpc + session->rpc_head_length;
}

void request_release(struct nfsrdma_session *session, struct request *req)
{
	if (req->call.addr)
		memory_give(session, req->call.addr, req->call.length);
	if (req->reply.addr)
		memory_give(session, req->reply.addr, req->reply.length);
	req->state = REQUEST_FREE;
	list_add(&session->free, req);
}

void request_finish(struct nfsrdma_session *session, struct request *req, int error)
{
	req->error = error;
	req->state = REQUEST_DONE;
	/* no result of SEQUENCE: whether the server used the slot's sequence is unknown */
	if (req->nfs4_slot >= 0)
		nfs4_lost(session);
	if (req->done)
		req->done(session, req);
}

static bool take_span(struct nfsrdma_session *session, struct span *span, uint32_t bytes)
{
	uint8_t *addr = span->addr ? span->addr : memory_take(session, bytes);

	if (!span->addr && addr)
		*span = (struct span){&session->arena_mr, addr, bytes};
	return addr;
}

/* The longest results have this many bytes: flush() gives them room in the arena if they are too long for a message */
void request_expect(struct request *req, uint32_t bytes)
{
	req->reply_most = REPLY_HEAD + bytes;
}

/* --- sending --- */

static uint32_t chunk_of(const struct span *span, uint32_t position, struct nfr_chunk *chunk,
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
static void describe(const struct nfsrdma_session *session, const struct request *req, struct nfr_header *head,
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
	describe(session, req, &head, &chunks);
	return nfr_wire_size(&head) + req->length > session->send_size;
}

/*
 * Take from the arena what a Call needs that is too long for the connection, or whose reply may be: this one's
 * messages may be smaller than those of the connection for which the request was prepared.
 */
static bool provide(struct nfsrdma_session *session, struct request *req)
{
	if (req->remote)
		io_by_rpc(session, req);
	if (req->reply_most > session->recv_size && !take_span(session, &req->reply, req->reply_most))
		return false;
	return !is_long(session, req) || take_span(session, &req->call, req->length);
}

/*
 * Encode the transport header in front of the RPC message.  The server reads a Call that is too long for the
 * connection from the arena.  Returns the bytes to send.
 */
static uint32_t encode(struct nfsrdma_session *session, struct request *req, uint8_t **start)
{
	uint8_t *rpc = req->message + HEADER_ROOM;
	struct nfr_header head;
	struct chunks chunks;
	uint32_t size;

	describe(session, req, &head, &chunks);
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

/* With NFSv4.1, requests wait for the session, and for a slot of it */
static bool may_leave(struct nfsrdma_session *session, struct request *req)
{
	if (!req->sequenced)
		return true;
	if (req != session->nfs4.setup && session->nfs4.state != NFS4_READY)
		return false;
	return nfs4_stamp(session, req);
}

/* The first waiting request that the arena has room for, or NULL: those behind it may be the ones that fill it */
static struct request *first_with_room(struct nfsrdma_session *session)
{
	struct request *req = session->waiting.head;

	while (req && !provide(session, req))
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
	list_pop(&session->waiting);
	request_finish(session, req, fail(-ENOBUFS, "%s: the arena has no room for a call beside the batch",
					  session->host));
}

/* Send the waiting requests that the credits allow, with one doorbell */
static void flush(struct nfsrdma_session *session)
{
	struct ibv_send_wr *bad;
	uint64_t now = 0;
	uint32_t n = 0;

	/* the last attempt to make an NFSv4.1 session failed: make another one */
	if (session->waiting.head && session->waiting.head->sequenced)
		nfs4_start(session);
	while (session->waiting.head && session->in_flight < session->credits) {
		struct ibv_send_wr *wr = &session->send_wrs[n];
		struct ibv_sge *sge = &session->send_sges[n];
		struct request *req = first_with_room(session);
		uint32_t length;
		uint8_t *start;

		if (!req || !may_leave(session, req))
			break;
		length = encode(session, req, &start);
		if (!now)
			now = now_ms();
		list_remove(&session->waiting, req);
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

static void ready(struct nfsrdma_session *session, struct request *req)
{
	req->state = REQUEST_WAITING;
	if (req != session->nfs4.setup) {
		list_add(&session->waiting, req);
		return;
	}
	/* the others wait for it */
	req->next = session->waiting.head;
	session->waiting.head = req;
	if (!req->next)
		session->waiting.tail = &req->next;
}

/* Make a call again, as another one */
void request_again(struct nfsrdma_session *session, struct request *req)
{
	renumber(session, req);
	ready(session, req);
	session->stats.resent++;
}

/* A READ that is no RDMA Read after all; flush() encodes it */
void request_by_rpc(struct nfsrdma_session *session, struct request *req)
{
	ready(session, req);
	session->stats.calls++;
}

/* The slot of calls that make an NFSv4.1 session: there is one at a time */
struct request *request_take_setup(struct nfsrdma_session *session)
{
	struct request *req = &session->slots[session->nslots - 1];

	reset(session, req);
	return req;
}

void request_send_setup(struct nfsrdma_session *session, struct request *req)
{
	req->began = began_at(session);
	ready(session, req);
}

void request_end_setup(struct nfsrdma_session *session, struct request *req)
{
	(void)session;
	req->state = REQUEST_FREE;
}

/* No session can be made for the requests that wait for one */
void requests_fail_waiting(struct nfsrdma_session *session, int error)
{
	while (session->waiting.head)
		request_finish(session, list_pop(&session->waiting), error);
}

/* Add a request to the next batch */
void request_prepare(struct nfsrdma_session *session, struct request *req)
{
	list_add(&session->prepared, req);
	session->nprepared++;
}

/* Heed all notices that have arrived: a reference whose end has been announced would only be refused */
static void heed_notices(struct nfsrdma_session *session)
{
	uint32_t polls = NOTICE_RECEIVES / POLL_MOST + 1;

	while (polls-- && session_poll(session) == POLL_MOST)
		;
}

static void submit_held(struct nfsrdma_session *session);

/* Send the batch; returns its number of requests */
int request_submit(struct nfsrdma_session *session)
{
	struct request *req;
	int n = session->nprepared + session->nhits;
	uint64_t now;

	if (session->optimist)
		heed_notices(session);
	now = now_ms();
	while (session->prepared.head) {
		req = list_pop(&session->prepared);
		req->began = now;
		if (req->remote && optimist_add(session, req))
			continue;
		request_by_rpc(session, req);
	}
	session->nprepared = 0;
	session->nhits = 0;
	if (session->held.head)
		submit_held(session);
	optimist_post(session);
	if (session->link == LINK_UP)
		flush(session);
	return n;
}

/* Send a request and wait for its end; returns its error */
int request_call(struct nfsrdma_session *session, struct request *req)
{
	if (req->remote)
		heed_notices(session);
	req->began = began_at(session);
	if (req->remote && optimist_add(session, req))
		optimist_post(session);
	else
		request_by_rpc(session, req);
	if (session->link == LINK_UP)
		flush(session);
	while (req->state != REQUEST_DONE)
		request_wait(session);
	return req->error;
}

/* Handle what has arrived, or wait for it */
void request_wait(struct nfsrdma_session *session)
{
	if (!session_poll(session))
		session_sleep(session, NEVER);
}

/* Add a request to the next batch that something else than a credit or a connection holds back */
void request_hold(struct nfsrdma_session *session, struct request *req)
{
	list_add(&session->held, req);
}

void request_unhold(struct nfsrdma_session *session, struct request *req)
{
	list_remove(&session->held, req);
}

/* Send a request that was held back; its time begins now */
void request_start(struct nfsrdma_session *session, struct request *req)
{
	req->began = now_ms();
	request_by_rpc(session, req);
}

/* The held requests of the batch may start from now on */
static void submit_held(struct nfsrdma_session *session)
{
	struct request *req;

	for (req = session->held.head; req; req = req->next)
		req->state = REQUEST_HELD;
	commit_held(session);
}

/* --- receiving --- */

/* Post receives of these numbers */
static int receive(struct nfsrdma_session *session, const uint32_t *numbers, uint32_t n)
{
	struct ibv_recv_wr *bad;
	uint32_t i;

	for (i = 0; i < n; i++) {
		session->receive_sges[i] = (struct ibv_sge){
			.addr = (uintptr_t)memory_receive(session, numbers[i]),
			.length = session->options.inline_size, .lkey = session->messages_mr->lkey,
		};
		session->receive_wrs[i] = (struct ibv_recv_wr){
			.wr_id = numbers[i], .sg_list = &session->receive_sges[i], .num_sge = 1,
			.next = i + 1 < n ? &session->receive_wrs[i + 1] : NULL,
		};
	}
	return n ? -ibv_post_recv(session->qp, session->receive_wrs, &bad) : 0;
}

/* Prepare for a new connection, whose queue pair exists */
int requests_connected(struct nfsrdma_session *session)
{
	uint32_t numbers[1 << XID_SLOT_BITS], i;

	/* RFC 8166, section 3.3.3: one Call, until a reply grants more */
	session->credits = 1;
	for (i = 0; i < session->nreceives; i++)
		numbers[i] = i;
	return receive(session, numbers, session->nreceives);
}

/* The queue pair is gone: what was sent waits for the next one */
void requests_disconnected(struct nfsrdma_session *session)
{
	struct list again;
	uint32_t i;

	list_clear(&again);
	for (i = 0; session->slots && i < session->nslots; i++) {
		struct request *req = &session->slots[i];

		if (req->state != REQUEST_SENT)
			continue;
		req->state = REQUEST_WAITING;
		list_add(&again, req);
		session->stats.resent++;
	}
	if (again.head) {
		list_join(&again, &session->waiting);
		list_join(&session->waiting, &again);
	}
	/* the others wait for it: it leaves first again */
	if (session->nfs4.setup && session->nfs4.setup->state == REQUEST_WAITING) {
		list_remove(&session->waiting, session->nfs4.setup);
		ready(session, session->nfs4.setup);
	}
	session->in_flight = 0;
	session->sends_done = session->sends;
}

/* RFC 5531, section 9: what stands in front of the results; 0, or a negative errno value */
static int decode_rpc(struct body *rpc, uint32_t xid)
{
	uint32_t found, type, status, flavor, length, accept;

	if (!take32(rpc, &found) || !take32(rpc, &type) || !take32(rpc, &status) || found != xid ||
	    type != RPC_REPLY)
		return -EBADMSG;
	if (status == RPC_DENIED)
		return -EACCES;
	if (status != RPC_ACCEPTED || !take32(rpc, &flavor) || !take32(rpc, &length) ||
	    length > RPC_AUTH_MAX || !skip(rpc, padded(length)) || !take32(rpc, &accept))
		return -EBADMSG;
	switch (accept) {
	case SUCCESS:
		return 0;
	case PROG_UNAVAIL:
	case PROG_MISMATCH:
	case PROC_UNAVAIL:
		return -EPROTONOSUPPORT;
	case GARBAGE_ARGS:
	case SYSTEM_ERR:
		return -EREMOTEIO;
	}
	return -EBADMSG;
}

/* The server returns a chunk with the bytes that it wrote; false if it is another one */
static bool returned(const struct span *span, const struct nfr_chunk *chunk, uint32_t *length)
{
	const struct nfr_segment *segment = chunk->segs;

	if (chunk->nsegs != 1 || segment->handle != (*span->mr)->rkey ||
	    segment->offset != (uintptr_t)span->addr || segment->length > span->length)
		return false;
	*length = segment->length;
	return true;
}

static int decode_chunks(struct request *req, const struct nfr_header *head, struct body *rpc)
{
	uint32_t length = 0;

	if (head->nreads || head->nwrites != !!req->write.addr)
		return -EBADMSG;
	if (head->nwrites && !returned(&req->write, &head->writes[0], &req->placed))
		return -EBADMSG;
	if (head->reply && (!req->reply.addr || !returned(&req->reply, head->reply, &length)))
		return -EBADMSG;
	if (head->proc == NFR_NOMSG) {
		if (!head->reply)
			return -EBADMSG;
		*rpc = (struct body){req->reply.addr, length};
	}
	return 0;
}

static int decode(struct nfsrdma_session *session, struct request *req, const struct nfr_header *head,
		  struct body rpc)
{
	int rc;

	if (head->proc == NFR_ERROR)
		return fail(head->error == NFR_ERR_VERS ? -EPROTONOSUPPORT : -EREMOTEIO,
			    "%s: the server refuses the transport header (RFC 8166, error %u)",
			    session->host, head->error);
	rc = decode_chunks(req, head, &rpc);
	if (!rc)
		rc = decode_rpc(&rpc, req->xid);
	if (!rc)
		rc = req->finish(session, req, &rpc);
	if (rc == -EBADMSG)
		fail(rc, "%s: the server sent a malformed reply", session->host);
	else if (rc == -EPROTONOSUPPORT)
		fail(rc, "%s: the server does not support this version of NFS", session->host);
	return rc;
}

/* NFS3ERR_JUKEBOX: the server wants the call again, as another one */
static void delay(struct nfsrdma_session *session, struct request *req)
{
	req->delay = req->delay ? req->delay * 2 : BUSY_MIN;
	if (req->delay > BUSY_MAX)
		req->delay = BUSY_MAX;
	req->not_before = now_ms() + req->delay;
	renumber(session, req);
	req->state = REQUEST_DELAYED;
	list_add(&session->delayed, req);
	session->stats.resent++;
}

static void reply(struct nfsrdma_session *session, uint32_t number, uint32_t length)
{
	const uint8_t *message = memory_receive(session, number);
	struct nfr_segment segments[5];
	struct nfr_chunk chunks[5];
	struct nfr_space space = {chunks, 5, segments, 5};
	struct nfr_header head;
	struct request *req;
	struct body rpc;
	int size = nfr_wire_decode(&head, &space, message, length), rc;

	if (size < 0) {
		connection_lost(session, -EBADMSG, "the server sent a malformed transport header");
		return;
	}
	rpc = (struct body){message + size, length - size};
	if (head.proc != NFR_ERROR && rpc.left && nfr_wire_is_call(rpc.at, rpc.left))
		return;		/* the server's own calls need a backchannel, which no one offered */
	session->arriving = true;
	session->credits = head.credits ? head.credits : 1;
	if (session->credits > session->options.depth + 1)
		session->credits = session->options.depth + 1;
	req = &session->slots[(head.xid & ((1 << XID_SLOT_BITS) - 1)) % session->nslots];
	if (req->xid != head.xid || req->state != REQUEST_SENT)
		return;
	session->in_flight--;
	rc = decode(session, req, &head, rpc);
	if (rc == -EINPROGRESS)
		delay(session, req);
	else if (rc == -ERESTART)
		request_again(session, req);
	else
		request_finish(session, req, rc);
}

/**
 * session_poll - handle what has arrived; does not wait
 * @session: session
 *
 * Return: number of completions of the device.
 */
int session_poll(struct nfsrdma_session *session)
{
	uint32_t numbers[POLL_MOST], nreceived = 0;
	struct ibv_wc wcs[POLL_MOST];
	int n, i;

	if (!(++session->polls % LOOK_EVERY))
		session_look(session);
	if (session->link != LINK_UP)
		return 0;
	n = ibv_poll_cq(session->cq, POLL_MOST, wcs);
	if (n < 0) {
		connection_lost(session, -EIO, "the completion queue is broken");
		return 0;
	}
	for (i = 0; i < n && session->link == LINK_UP; i++) {
		const struct ibv_wc *wc = &wcs[i];

		if (wc->wr_id & SECOND_BIT && !(wc->wr_id & SEND_BIT)) {
			optimist_complete(session, wc);
		} else if (wc->status != IBV_WC_SUCCESS) {
			connection_lost(session, -ECONNRESET, ibv_wc_status_str(wc->status));
		} else if (wc->wr_id & SEND_BIT) {
			session->sends_done = (uint32_t)wc->wr_id;
		} else {
			reply(session, wc->wr_id, wc->byte_len);
			numbers[nreceived++] = wc->wr_id;
		}
	}
	if (session->link != LINK_UP)
		return n;
	if (receive(session, numbers, nreceived))
		connection_lost(session, -EIO, "the device takes no receive");
	else if (nreceived || (session->optimist && session->waiting.head))
		flush(session);
	if (n)
		session->idle = 0;
	return n;
}

/* --- waiting --- */

static void expire(struct nfsrdma_session *session, struct request *req)
{
	if (req->state == REQUEST_SENT)
		connection_lost(session, -ETIMEDOUT, "no reply");
	else if (req->state == REQUEST_READING)
		optimist_lost(session);
	list_remove(req->state == REQUEST_DELAYED ? &session->delayed : &session->waiting, req);
	request_finish(session, req, fail(-ETIMEDOUT, "%s: no reply for %u ms", session->host,
				  session->options.timeout));
}

/* End what has waited too long; returns when the next request may end so */
static uint64_t expire_requests(struct nfsrdma_session *session, uint64_t now)
{
	uint64_t next = NEVER;
	uint32_t i;

	for (i = 0; i < session->nslots; i++) {
		struct request *req = &session->slots[i];
		uint64_t end = req->began + session->options.timeout;

		if (!request_is_pending(req))
			continue;
		if (now >= end) {
			expire(session, req);
			continue;
		}
		if (req->state == REQUEST_SENT && now >= req->sent + session->options.timeout / 2)
			connection_lost(session, -ETIMEDOUT, "no reply");
		/* the same by RPC, while there is time */
		if (req->state == REQUEST_READING && now >= req->sent + session->options.timeout / 2)
			optimist_lost(session);
		if ((req->state == REQUEST_SENT || req->state == REQUEST_READING) &&
		    req->sent + session->options.timeout / 2 < end)
			end = req->sent + session->options.timeout / 2;
		next = end < next ? end : next;
	}
	return next;
}

/* Send delayed requests whose time has come; returns when that of the next one comes */
static uint64_t send_delayed(struct nfsrdma_session *session, uint64_t now)
{
	uint64_t next = NEVER;
	struct list all = session->delayed;

	if (!all.head)
		return NEVER;
	list_clear(&session->delayed);
	while (all.head) {
		struct request *req = list_pop(&all);

		if (now >= req->not_before) {
			ready(session, req);
			continue;
		}
		list_add(&session->delayed, req);
		next = req->not_before < next ? req->not_before : next;
	}
	if (session->link == LINK_UP)
		flush(session);
	return next;
}

/**
 * session_look - handle the events of the connection, and what time brings
 * @session: session
 *
 * Return: milliseconds of the clock at which to look again.
 */
uint64_t session_look(struct nfsrdma_session *session)
{
	uint64_t now = now_ms(), next, later;

	connection_event(session);
	next = expire_requests(session, now);
	later = send_delayed(session, now);
	next = later < next ? later : next;
	if (session->link == LINK_PAUSE && now >= session->link_retry)
		session->link = LINK_DOWN;
	if (session->link == LINK_DOWN)
		connection_start(session);
	if (session->link == LINK_PAUSE && session->link_retry < next)
		next = session->link_retry;
	later = optimist_look(session, now);
	next = later < next ? later : next;
	if (session->link == LINK_UP && session->waiting.head)
		flush(session);
	return next;
}

/* Have the device report the next completion; returns whether that is so already */
bool session_arm(struct nfsrdma_session *session)
{
	struct ibv_cq *cq;
	void *context;

	if (session->link != LINK_UP)
		return true;
	while (session->armed && !ibv_get_cq_event(session->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		session->armed = false;
	}
	if (session->armed)
		return true;
	if (ibv_req_notify_cq(session->cq, 0))
		connection_lost(session, -EIO, "the completion queue is broken");
	else
		session->armed = true;
	return false;
}

/**
 * session_sleep - wait for a message or an event, after a poll that found nothing
 * @session: session
 * @until: milliseconds of the clock
 *
 * Yields the processor first; a process that runs alone soon sleeps.  Returns after each event, or earlier.
 */
void session_sleep(struct nfsrdma_session *session, uint64_t until)
{
	struct epoll_event event;
	uint64_t now, next;

	if (session->link == LINK_UP && session->idle++ < YIELDS) {
		sched_yield();
		return;
	}
	/* a message that arrived before the request to report it: poll once more */
	if (!session_arm(session))
		return;
	next = session_look(session);
	now = now_ms();
	if (until < next)
		next = until;
	if (next <= now)
		return;
	next = next == NEVER ? NEVER : next - now;
	epoll_wait(session->epoll, &event, 1, next > 1000 ? 1000 : (int)next);
	session_look(session);
}
