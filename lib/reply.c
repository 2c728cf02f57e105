// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * From a message of the server to the end of a request.
 *
 * A decoder checks the number of bytes left before each read, and a reply counts only for a request that was sent on
 * this connection.
 */
#include <string.h>

#include "library.h"

/* Milliseconds before a request is sent again to a busy server */
#define BUSY_MIN	100
#define BUSY_MAX	5000

/* enum msg_type, reply_stat (RFC 5531, section 9) */
enum { RPC_REPLY = 1 };
enum { RPC_ACCEPTED = 0, RPC_DENIED = 1 };

/* Post receives of these numbers */
static int reply_post(struct nfsrdma_session *session, const uint32_t *numbers, uint32_t n)
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
int reply_opened(struct nfsrdma_session *session)
{
	uint32_t numbers[1 << XID_SLOT_BITS], i;

	/* RFC 8166, section 3.3.3: one Call, until a reply grants more */
	session->credits = 1;
	for (i = 0; i < session->nreceives; i++)
		numbers[i] = i;
	return reply_post(session, numbers, session->nreceives);
}

/* RFC 5531, section 9: what stands in front of the results; 0, or a negative errno value */
static int decode_rpc(struct rpc_body *rpc, uint32_t xid)
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
static bool returned_chunk(const struct memory_span *span, const struct nfr_chunk *chunk, uint32_t *length)
{
	const struct nfr_segment *segment = chunk->segs;

	if (chunk->nsegs != 1 || segment->handle != (*span->mr)->rkey ||
	    segment->offset != (uintptr_t)span->addr || segment->length > span->length)
		return false;
	*length = segment->length;
	return true;
}

static int decode_chunks(struct request *req, const struct nfr_header *head, struct rpc_body *rpc)
{
	uint32_t length = 0;

	if (head->nreads || head->nwrites != !!req->write.addr)
		return -EBADMSG;
	if (head->nwrites && !returned_chunk(&req->write, &head->writes[0], &req->placed))
		return -EBADMSG;
	if (head->reply && (!req->reply.addr || !returned_chunk(&req->reply, head->reply, &length)))
		return -EBADMSG;
	if (head->proc == NFR_NOMSG) {
		if (!head->reply)
			return -EBADMSG;
		*rpc = (struct rpc_body){req->reply.addr, length};
	}
	return 0;
}

static int decode_reply(struct nfsrdma_session *session, struct request *req, const struct nfr_header *head,
		  struct rpc_body rpc)
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
static void delay_request(struct nfsrdma_session *session, struct request *req)
{
	req->delay = req->delay ? req->delay * 2 : BUSY_MIN;
	if (req->delay > BUSY_MAX)
		req->delay = BUSY_MAX;
	req->not_before = now_ms() + req->delay;
	request_renumber(session, req);
	req->state = REQUEST_DELAYED;
	request_list_add(&session->delayed, req);
	session->stats.resent++;
}

static void take_reply(struct nfsrdma_session *session, uint32_t number, uint32_t length)
{
	const uint8_t *message = memory_receive(session, number);
	struct nfr_segment segments[5];
	struct nfr_chunk chunks[5];
	struct nfr_space space = {chunks, 5, segments, 5};
	struct nfr_header head;
	struct request *req;
	struct rpc_body rpc;
	int size = nfr_wire_decode(&head, &space, message, length), rc;

	if (size < 0) {
		connection_lost(session, -EBADMSG, "the server sent a malformed transport header");
		return;
	}
	rpc = (struct rpc_body){message + size, length - size};
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
	rc = decode_reply(session, req, &head, rpc);
	if (rc == -EINPROGRESS)
		delay_request(session, req);
	else if (rc == -ERESTART)
		send_again(session, req);
	else
		request_finish(session, req, rc);
}

/* A completion of the first connection; returns whether it was that of a receive, which is to be posted again */
bool reply_complete(struct nfsrdma_session *session, const struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		connection_lost(session, -ECONNRESET, ibv_wc_status_str(wc->status));
	} else if (wc->wr_id & SEND_BIT) {
		session->sends_done = (uint32_t)wc->wr_id;
	} else {
		take_reply(session, wc->wr_id, wc->byte_len);
		return true;
	}
	return false;
}

/* All completions of a poll are handled: post @n receives again, and send what may leave now */
void reply_repost(struct nfsrdma_session *session, const uint32_t *numbers, uint32_t n)
{
	if (session->nfs4.starved)
		session->dialect->start(session);
	if (reply_post(session, numbers, n))
		connection_lost(session, -EIO, "the device takes no receive");
	else if (n || session->waiting.head)
		send_flush(session);
}
