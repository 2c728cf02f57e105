// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Optimistic reads: RDMA Reads of the server's page cache.
 *
 * A server of nfsrdma with the personality optimistic accepts a second connection, which joins the first one by a
 * token.  Over it, the server grants references and revokes them (kmod/wire/notice.c), and the session reads.  It
 * shares the completion queue of the first connection, so that one poll finds the completions of both.
 *
 * A Read that the server's device refuses becomes an RPC.  Most devices end the queue pair then: what was under way
 * becomes RPCs, too, and another connection is made after a pause.  If too many Reads are refused, they pause: the
 * figures are those of kmod/client/personality/optimistic.c.
 *
 * No Read uses a reference after its end: a connection that ends takes all references with it, a notice those that
 * it names, and a grant those with its key.  A Read that was posted before may still succeed: then the server had
 * not invalidated the memory when its device read it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "library.h"

/* Milliseconds */
#define RESOLVE_TIMEOUT	5000
#define CONNECT_TIMEOUT	10000
#define DELAY_MIN	100
#define DELAY_MAX	5000
#define WORKED		10000

/* Reads pause for a while if more than one of REFUSALS was refused in a window; what an end counts for */
#define WINDOW		256
#define REFUSALS	2
#define PAUSE		10000
#define ENDED		100

/* Notices to handle before their credits are returned */
#define CREDITS_TOGETHER	16

/* Most RDMA Reads that the device has under way */
#define READS_MOST	128

#define KIND_SHIFT	60
#define GENERATION_SHIFT	32
#define GENERATION_MASK	0xfffffffU

enum completion_kind { COMPLETION_READ, COMPLETION_NOTICE, COMPLETION_CREDIT };

static uint64_t id_of(const struct optimist *optimist, enum completion_kind kind, uint32_t number)
{
	return SECOND_BIT | (uint64_t)kind << KIND_SHIFT |
	       (uint64_t)(optimist->generation & GENERATION_MASK) << GENERATION_SHIFT | number;
}

/* --- the end --- */

/* The first part of an end: nothing of the server reaches this process by the connection when this returns */
static void destroy_second(struct optimist *optimist)
{
	if (optimist->id)
		rdma_disconnect(optimist->id);
	if (optimist->qp)
		ibv_destroy_qp(optimist->qp);
	if (optimist->id)
		rdma_destroy_id(optimist->id);
	optimist->id = NULL;
	optimist->qp = NULL;
	optimist->link = LINK_DOWN;
	/* the completion queue may have completions of it */
	optimist->generation++;
	optimist->nposting = 0;
	optimist->handled = 0;
	optimist->credits_busy = 0;
	references_end(&optimist->references);
}

/* End the second connection; what it was reading goes by RPC */
void optimist_close(struct nfsrdma_session *session)
{
	uint32_t i;

	if (!session->optimist)
		return;
	destroy_second(session->optimist);
	for (i = 0; session->slots && i < session->nslots; i++) {
		if (session->slots[i].state != REQUEST_READING)
			continue;
		session->stats.second_lost++;
		send_by_rpc(session, &session->slots[i]);
	}
}

/* The same, with a pause before the next connection: a long one if this was of little use */
void optimist_lost(struct nfsrdma_session *session)
{
	struct optimist *optimist = session->optimist;
	bool useful = optimist->link == LINK_UP && now_ms() >= optimist->since + WORKED;

	optimist_close(session);
	optimist->delay = useful || !optimist->delay ? DELAY_MIN : 2 * optimist->delay;
	if (optimist->delay > DELAY_MAX)
		optimist->delay = DELAY_MAX;
	optimist->link = LINK_PAUSE;
	optimist->retry = now_ms() + optimist->delay;
}

/* --- connecting --- */

static int post_notice(struct nfsrdma_session *session, uint32_t number)
{
	struct optimist *optimist = session->optimist;
	struct ibv_sge sge = {
		.addr = (uintptr_t)memory_notice(session, number), .length = NOTICE_ROOM,
		.lkey = session->messages_mr->lkey,
	};
	struct ibv_recv_wr wr = {
		.wr_id = id_of(optimist, COMPLETION_NOTICE, number), .sg_list = &sge, .num_sge = 1,
	}, *bad;

	return -ibv_post_recv(optimist->qp, &wr, &bad);
}

static int create_queue(struct nfsrdma_session *session)
{
	struct optimist *optimist = session->optimist;
	struct ibv_qp_init_attr attr = {
		.cap = {
			.max_send_wr = session->nslots + CREDIT_SLOTS, .max_recv_wr = NOTICE_RECEIVES,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
		.qp_type = IBV_QPT_RC, .send_cq = session->cq, .recv_cq = session->cq, .sq_sig_all = 1,
	};
	uint32_t i;
	int rc;

	optimist->qp = ibv_create_qp(session->pd, &attr);
	if (!optimist->qp)
		return -errno;
	rc = connection_set_state(optimist->id, optimist->qp, IBV_QPS_INIT);
	for (i = 0; !rc && i < NOTICE_RECEIVES; i++)
		rc = post_notice(session, i);
	return rc;
}

static int connect_second(struct nfsrdma_session *session)
{
	struct optimist *optimist = session->optimist;
	struct nfr_private wanted = {
		.send_size = 1024, .recv_size = 1024, .extended = true, .token = optimist->token,
		.capabilities = CAPABILITY_OPTIMISTIC | CAPABILITY_LANE,
	};
	struct ibv_device_attr device;
	int rc;

	/* queues and memory are those of the device of the first connection */
	if (optimist->id->verbs->device != session->context->device)
		return -ENODEV;
	rc = -ibv_query_device(session->context, &device);
	if (!rc)
		rc = create_queue(session);
	if (rc)
		return rc;
	optimist->link = LINK_CONNECTING;
	return connection_request(optimist->id, optimist->qp, &wanted, 0,
				  device.max_qp_init_rd_atom < READS_MOST ? device.max_qp_init_rd_atom :
									    READS_MOST);
}

static int second_established(struct nfsrdma_session *session)
{
	const uint32_t wanted = CAPABILITY_OPTIMISTIC | CAPABILITY_LANE;
	struct optimist *optimist = session->optimist;
	uint32_t order = optimist->peer.capabilities >> EXTENT_ORDER_SHIFT & EXTENT_ORDER_MASK;

	if (!optimist->peer.extended || (optimist->peer.capabilities & wanted) != wanted ||
	    order > EXTENT_ORDER_MAX)
		return -EPROTO;
	optimist->references.shift = UNIT_SHIFT + order;
	optimist->link = LINK_UP;
	optimist->since = now_ms();
	session->stats.second_connects++;
	return 0;
}

/* An event of the second connection, or of one that is gone; @peer: the private data of the server, or NULL */
void optimist_event(struct nfsrdma_session *session, const struct rdma_cm_id *id, enum rdma_cm_event_type type,
		    const struct nfr_private *peer)
{
	struct optimist *optimist = session->optimist;
	int rc = 0;

	if (!optimist || id != optimist->id)
		return;
	if (peer)
		optimist->peer = *peer;
	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		optimist->link = LINK_ROUTE;
		rc = rdma_resolve_route(optimist->id, RESOLVE_TIMEOUT);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		rc = session->link == LINK_UP ? connect_second(session) : -ENOTCONN;
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		rc = connection_complete(session, optimist->id, optimist->qp);
		if (!rc)
			rc = second_established(session);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (optimist->link == LINK_CONNECTING)
			rc = second_established(session);
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
	case RDMA_CM_EVENT_ADDR_CHANGE:
		break;
	default:
		rc = -ENOTCONN;
	}
	if (rc)
		optimist_lost(session);
}

static void start_second(struct nfsrdma_session *session)
{
	struct optimist *optimist = session->optimist;

	optimist->since = now_ms();
	if (rdma_create_id(session->events, &optimist->id, session, RDMA_PS_TCP)) {
		optimist->id = NULL;
		optimist_lost(session);
		return;
	}
	/* the server expects a privileged port if that of the first connection is one */
	connection_bind(session, optimist->id);
	optimist->link = LINK_ADDRESS;
	if (rdma_resolve_addr(optimist->id, NULL, (struct sockaddr *)&session->address, RESOLVE_TIMEOUT))
		optimist_lost(session);
}

/* End the connection if it does not complete a Read; returns milliseconds of the clock at which to look again */
static uint64_t look_at_reads(struct nfsrdma_session *session, uint64_t now)
{
	uint64_t next = NEVER, end;
	uint32_t i;

	for (i = 0; i < session->nslots; i++) {
		if (session->slots[i].state != REQUEST_READING)
			continue;
		/* the same by RPC, while there is time */
		end = session->slots[i].sent + session->options.timeout / 2;
		if (now >= end) {
			optimist_lost(session);
			return NEVER;
		}
		next = end < next ? end : next;
	}
	return next;
}

/* Connect when it is time; returns milliseconds of the clock at which to look again */
uint64_t optimist_look(struct nfsrdma_session *session, uint64_t now)
{
	struct optimist *optimist = session->optimist;
	uint64_t next;

	if (!optimist || session->link != LINK_UP || !session->peer.extended ||
	    !(session->peer.capabilities & CAPABILITY_OPTIMISTIC))
		return NEVER;
	next = look_at_reads(session, now);
	if (optimist->link == LINK_PAUSE && now >= optimist->retry)
		optimist->link = LINK_DOWN;
	if (optimist->link == LINK_DOWN)
		start_second(session);
	if (optimist->link == LINK_PAUSE)
		return optimist->retry;
	if (optimist->link == LINK_UP)
		return next;
	/* some step has no timeout of its own */
	if (now >= optimist->since + CONNECT_TIMEOUT) {
		optimist_lost(session);
		return optimist->retry;
	}
	return optimist->since + CONNECT_TIMEOUT;
}

/* --- Reads --- */

/* Pause if too many of the last Reads were refused */
static void decide_on_pause(struct optimist *optimist, uint64_t now)
{
	uint32_t most = optimist->tried > WINDOW ? optimist->tried : WINDOW;

	if (optimist->refused * REFUSALS > most) {
		optimist->paused_until = now + PAUSE;
		optimist->tried = 0;
		optimist->refused = 0;
	}
	/* older Reads count less */
	if (optimist->tried >= WINDOW * REFUSALS) {
		optimist->tried /= 2;
		optimist->refused /= 2;
	}
}

/**
 * optimist_add - make a READ an RDMA Read of the next doorbell, if that is possible
 * @session: session
 * @req: READ with memory; @req->began is now
 *
 * Return: false if it has to go by RPC.
 */
bool optimist_add(struct nfsrdma_session *session, struct request *req)
{
	struct optimist *optimist = session->optimist;
	enum reference_answer answer;
	struct ibv_send_wr *wr;
	struct ibv_sge *sge;

	/* also without a connection: the grant for this READ may come on the next one */
	answer = reference_find(&optimist->references, req->io.file, req->io.offset, req->io.count, req->began,
				&req->target, &req->target_ends);
	if (optimist->link != LINK_UP) {
		session->stats.no_second++;
		return false;
	}
	if (req->began < optimist->paused_until) {
		session->stats.paused++;
		return false;
	}
	switch (answer) {
	case REFERENCE_FOUND:
		break;
	case REFERENCE_OLD:
		session->stats.renewals++;
		return false;
	default:
		session->stats.no_reference++;
		return false;
	}
	sge = &optimist->sges[optimist->nposting];
	wr = &optimist->wrs[optimist->nposting];
	*sge = (struct ibv_sge){
		.addr = (uintptr_t)req->write.addr, .length = req->target.length,
		.lkey = (*req->write.mr)->lkey,
	};
	/* the rest has been there since optimist_allocate() */
	wr->next = NULL;
	wr->wr_id = id_of(optimist, COMPLETION_READ, req - session->slots);
	wr->wr.rdma.remote_addr = req->target.offset;
	wr->wr.rdma.rkey = req->target.handle;
	if (optimist->nposting++)
		wr[-1].next = wr;
	req->state = REQUEST_READING;
	req->sent = req->began;
	return true;
}

/* Ring the doorbell for the Reads of optimist_add() */
void optimist_post(struct nfsrdma_session *session)
{
	struct optimist *optimist = session->optimist;
	struct ibv_send_wr *bad;

	if (!optimist || !optimist->nposting)
		return;
	optimist->tried += optimist->nposting;
	optimist->nposting = 0;
	session->stats.doorbells++;
	if (ibv_post_send(optimist->qp, optimist->wrs, &bad))
		optimist_lost(session);
}

/* A refused Read ends the queue pair on most devices */
static bool still_works(const struct optimist *optimist)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	return !ibv_query_qp(optimist->qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS;
}

static void read_refused(struct nfsrdma_session *session, struct request *req)
{
	struct optimist *optimist = session->optimist;
	bool works = still_works(optimist);

	reference_drop(&optimist->references, req->target.handle);
	session->stats.refused++;
	optimist->refused += works ? 1 : 1 + ENDED;
	decide_on_pause(optimist, now_ms());
	send_by_rpc(session, req);
	if (!works)
		optimist_lost(session);
}

static void read_complete(struct nfsrdma_session *session, uint32_t number, enum ibv_wc_status status)
{
	struct request *req;

	if (number >= session->nslots || session->slots[number].state != REQUEST_READING)
		return;
	req = &session->slots[number];
	switch (status) {
	case IBV_WC_SUCCESS:
		req->remote->arrived(session, req);
		request_finish(session, req, 0);
		break;
	case IBV_WC_REM_ACCESS_ERR:
		read_refused(session, req);
		break;
	default:
		optimist_lost(session);
	}
}

/* --- notices --- */

/* Return credits if they are for enough notices, unless all messages for that are under way */
static int return_credits(struct nfsrdma_session *session)
{
	struct optimist *optimist = session->optimist;
	struct nfr_notice notice = {.kind = NFR_NOTICE_CREDIT, .count = optimist->handled};
	uint32_t slot = __builtin_ctz(~optimist->credits_busy);
	struct ibv_sge sge = {.lkey = session->messages_mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = id_of(optimist, COMPLETION_CREDIT, slot), .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	uint8_t *message;

	if (optimist->handled < CREDITS_TOGETHER || slot >= CREDIT_SLOTS)
		return 0;
	message = memory_notice(session, NOTICE_RECEIVES + slot);
	sge.addr = (uintptr_t)message;
	sge.length = nfr_wire_encode_notice(&notice, message);
	optimist->credits_busy |= 1U << slot;
	optimist->handled = 0;
	session->stats.doorbells++;
	return -ibv_post_send(optimist->qp, &wr, &bad);
}

static int heed_notice(struct nfsrdma_session *session, const uint8_t *message, uint32_t length)
{
	struct optimist *optimist = session->optimist;
	struct nfr_notice notice;
	uint32_t i;

	if (length > NOTICE_ROOM || nfr_wire_decode_notice(&notice, message, length) ||
	    notice.kind == NFR_NOTICE_CREDIT)
		return -EBADMSG;
	if (notice.kind == NFR_NOTICE_GRANT) {
		reference_grant(&optimist->references, &notice, now_ms());
		session->stats.grants++;
		return 0;
	}
	for (i = 0; i < notice.count; i++)
		reference_drop(&optimist->references, notice.handles[i]);
	session->stats.revocations += notice.count;
	return 0;
}

static void notice_complete(struct nfsrdma_session *session, uint32_t number, const struct ibv_wc *wc)
{
	struct optimist *optimist = session->optimist;
	int rc = wc->status == IBV_WC_SUCCESS && number < NOTICE_RECEIVES ? 0 : -ENOTCONN;

	if (!rc)
		rc = heed_notice(session, memory_notice(session, number), wc->byte_len);
	/* the server sends the next notice by a credit that is returned, and finds this receive then */
	if (!rc)
		rc = post_notice(session, number);
	optimist->handled++;
	if (!rc)
		rc = return_credits(session);
	if (rc)
		optimist_lost(session);
}

/* A completion with SECOND_BIT */
void optimist_complete(struct nfsrdma_session *session, const struct ibv_wc *wc)
{
	struct optimist *optimist = session->optimist;
	uint32_t generation = wc->wr_id >> GENERATION_SHIFT & GENERATION_MASK, number = (uint32_t)wc->wr_id;

	/* of a queue pair that is gone */
	if (!optimist || generation != (optimist->generation & GENERATION_MASK) || !optimist->qp)
		return;
	switch ((enum completion_kind)(wc->wr_id >> KIND_SHIFT & 3)) {
	case COMPLETION_READ:
		read_complete(session, number, wc->status);
		break;
	case COMPLETION_NOTICE:
		notice_complete(session, number, wc);
		break;
	case COMPLETION_CREDIT:
		optimist->credits_busy &= ~(1U << number % CREDIT_SLOTS);
		/* no other notice may come without the credits that waited for this message */
		if (wc->status != IBV_WC_SUCCESS || return_credits(session))
			optimist_lost(session);
		break;
	}
}

/* Heed all notices that have arrived: a reference whose end has been announced would only be refused */
void optimist_heed(struct nfsrdma_session *session)
{
	uint32_t polls = NOTICE_RECEIVES / CONNECTION_POLL_MOST + 1;

	while (polls-- && wait_poll(session) == CONNECTION_POLL_MOST)
		;
}

/* --- life --- */

/* Requires the slots and the RPC header of the session */
int optimist_allocate(struct nfsrdma_session *session)
{
	struct optimist *optimist = calloc(1, sizeof(*optimist));
	uint32_t i;

	if (!optimist)
		return fail_no_memory();
	session->optimist = optimist;
	/* twice: those of a queue pair that is gone may be left */
	session->more_completions = 2 * (session->nslots + CREDIT_SLOTS + NOTICE_RECEIVES);
	optimist->wrs = calloc(session->nslots, sizeof(*optimist->wrs));
	optimist->sges = calloc(session->nslots, sizeof(*optimist->sges));
	if (!optimist->wrs || !optimist->sges || !references_allocate(&optimist->references))
		return fail_no_memory();
	for (i = 0; i < session->nslots; i++)
		optimist->wrs[i] = (struct ibv_send_wr){
			.sg_list = &optimist->sges[i], .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
			.send_flags = IBV_SEND_SIGNALED,
		};
	if (getrandom(&optimist->token, sizeof(optimist->token), 0) != sizeof(optimist->token))
		return fail(-errno, "getrandom: %s", strerror(errno));
	session->offer.capabilities |= CAPABILITY_OPTIMISTIC;
	session->offer.token = optimist->token;
	optimist->references.shift = UNIT_SHIFT + EXTENT_ORDER_MAX;
	/* eight words, the last one the length of the body of the credential */
	optimist->references.credential =
		reference_digest(session->rpc_head + 32, load32(session->rpc_head + 28),
				  optimist->token);
	return 0;
}

void optimist_free(struct nfsrdma_session *session)
{
	struct optimist *optimist = session->optimist;

	if (!optimist)
		return;
	references_free(&optimist->references);
	free(optimist->wrs);
	free(optimist->sges);
	free(optimist);
	session->optimist = NULL;
}
