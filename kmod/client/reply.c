// SPDX-License-Identifier: GPL-2.0-only
/*
 * Handle Replies: check the header against what the Call offered, copy inline
 * parts to the reply buffer, and complete the RPC when the peer cannot access
 * its memory any more.
 *
 * One worker handles all messages of a connection. Therefore the arrays of the
 * decoder are part of the connection.
 */
#include <linux/highmem.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"
#include "client/reply.h"
#include "client/slots.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "memory/exposure.h"
#include "observe/trace.h"
#include "work.h"

/* --- inline part --- */

static u32 nfr_client_copy_to_pages(struct xdr_buf *buf, const u8 *from, u32 length)
{
	u32 base = buf->page_base, left = min(length, buf->page_len), done = 0;

	while (done < left) {
		u32 n = min_t(u32, left - done, PAGE_SIZE - offset_in_page(base));

		memcpy_to_page(buf->pages[base >> PAGE_SHIFT], offset_in_page(base),
			       from + done, n);
		base += n;
		done += n;
	}
	return done;
}

/*
 * Copy @length inline bytes to the reply buffer: its head, its pages unless a
 * Write chunk filled them, and its tail. Returns the number of bytes that found
 * room.
 */
static u32 nfr_client_reply_spread(struct nfr_req *req, const u8 *from, u32 length, bool data_apart)
{
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 done, n;

	done = min_t(u32, length, rcv->head[0].iov_len);
	memcpy(rcv->head[0].iov_base, from, done);
	/* XDR decoding continues in the pages where the inline part ends: cut the head there */
	if (data_apart)
		rcv->head[0].iov_len = done;
	else
		done += nfr_client_copy_to_pages(rcv, from + done, length - done);
	n = min_t(u32, length - done, rcv->tail[0].iov_len);
	if (n)
		memcpy(rcv->tail[0].iov_base, from + done, n);
	req->rqst.rq_private_buf.head[0].iov_len = rcv->head[0].iov_len;
	req->nx->counters.fixup_bytes += done + n;
	return done + n;
}

/* --- completion --- */

/* Complete the RPC of a pinned request. */
static __always_inline void nfr_client_reply_complete(struct nfr_req *req, int result)
{
	struct rpc_xprt *xprt = &req->nx->xprt;
	struct rpc_rqst *rqst = &req->rqst;

	spin_lock(&xprt->queue_lock);
	if (result < 0)
		rqst->rq_task->tk_status = result;
	xprt_complete_rqst(rqst->rq_task, max(result, 0));
	xprt_unpin_rqst(rqst);
	spin_unlock(&xprt->queue_lock);
}

/* Copy the inline part and complete the RPC. The request must not have valid MRs. */
static void nfr_client_reply_deliver(struct nfr_conn *conn, struct nfr_req *req)
{
	int result = req->result;

	if (result >= 0 && req->rpc_length) {
		u32 placed = nfr_client_reply_spread(req, req->rpc, req->rpc_length, result > 0);

		result = placed < req->rpc_length ? -EIO : (int)placed + result;
	}
	if (result < 0)
		req->nx->counters.bad_replies++;
	else
		req->nx->counters.reply_bytes += req->result;
	trace_nfsrdma_reply(conn, req, result);
	nfr_conn_answered(conn, req->recv, req->reserved);
	req->recv = NULL;
	nfr_client_reply_complete(req, result);
}

/**
 * nfr_client_reply_apart - complete an RPC whose result came on another connection
 * @req: pinned request that its branch has returned
 */
void nfr_client_reply_apart(struct nfr_req *req)
{
	nfr_client_reply_complete(req, req->result);
}

/**
 * nfr_client_reply_hold - keep a Reply for nfr_client_close()
 * @req: request with valid MRs, whose connection broke
 */
void nfr_client_reply_hold(struct nfr_req *req)
{
	struct nfr_xprt *nx = req->nx;

	spin_lock(&nx->held_lock);
	nfr_client_req_held(req);
	spin_unlock(&nx->held_lock);
}

/**
 * nfr_client_deliver_held - deliver Replies that waited for the connection to close
 * @nx: transport whose requests have no MRs
 * @conn: drained connection
 */
void nfr_client_deliver_held(struct nfr_xprt *nx, struct nfr_conn *conn)
{
	struct nfr_req *req, *next;
	LIST_HEAD(ready);

	spin_lock(&nx->held_lock);
	list_splice_init(&nx->held, &ready);
	spin_unlock(&nx->held_lock);
	list_for_each_entry_safe(req, next, &ready, list) {
		list_del_init(&req->list);
		nfr_client_reply_deliver(conn, req);
	}
}

static void nfr_client_reply_inv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_req *req = container_of(wc->wr_cqe, struct nfr_req, inv_cqe);
	struct nfr_conn *conn = cq->cq_context;

	if (!nfr_conn_check(conn, wc)) {
		nfr_client_reply_hold(req);
		return;
	}
	nfr_mem_release(&req->exposure);
	nfr_client_reply_deliver(conn, req);
	conn->ops->writable(conn);
}

/* See nfr_client_reply_finish(); inlined into the way of each Reply of version 1. */
static __always_inline void nfr_client_reply_end(struct nfr_conn *conn, struct nfr_req *req)
{
	if (nfr_mem_settle(&req->exposure)) {
		nfr_client_reply_deliver(conn, req);
		return;
	}
	req->nx->counters.local_invs++;
	req->inv_cqe.done = nfr_client_reply_inv_done;
	if (nfr_client_revoke(conn, &req->exposure, &req->inv_cqe))
		nfr_client_reply_hold(req);
}

/**
 * nfr_client_reply_finish - invalidate the MRs that the peer did not, and complete the RPC
 * @conn: connection
 * @req: pinned request with @recv, @reserved and @result set
 */
void nfr_client_reply_finish(struct nfr_conn *conn, struct nfr_req *req)
{
	nfr_client_reply_end(conn, req);
}

/* --- header checks --- */

/* Returns the number of bytes in the Write chunk, or -EIO if the Call did not offer it. */
static int nfr_client_reply_written(const struct nfr_req *req, const struct nfr_header *head)
{
	if (head->nreads || head->nwrites > 1)
		return -EIO;
	if (!head->nwrites)
		return 0;
	if (!req->write_length || !nfr_mem_covers(&req->exposure, &head->writes[0]))
		return -EIO;
	return xdr_align_size(nfr_wire_length(&head->writes[0]));
}

static int nfr_client_reply_nomsg(const struct nfr_req *req, const struct nfr_header *head)
{
	if (nfr_client_reply_written(req, head) || !head->reply || !req->reply_length)
		return -EIO;
	if (!nfr_mem_covers(&req->exposure, head->reply))
		return -EIO;
	return nfr_wire_length(head->reply) ?: -EIO;
}

/* RFC 8166, section 4.5: the server rejected the header; a retransmission would not help. */
static int nfr_client_reply_refused(struct nfr_conn *conn, const struct nfr_header *head)
{
	trace_nfsrdma_error(conn, head->xid, head->error == NFR_ERR_VERS ?
			    "the server requires another version" :
			    "the server rejected the header", -EIO);
	return -EIO;
}

/* Set @result, and the inline part, from the header of the Reply. */
static void nfr_client_reply_check(struct nfr_conn *conn, struct nfr_req *req,
				   const struct nfr_header *head, const void *rpc, u32 length)
{
	req->rpc_length = 0;
	switch (head->proc) {
	case NFR_MSG:
		req->rpc = rpc;
		req->rpc_length = length;
		req->result = length ? nfr_client_reply_written(req, head) : -EIO;
		break;
	case NFR_NOMSG:
		req->result = nfr_client_reply_nomsg(req, head);
		break;
	default:
		req->result = nfr_client_reply_refused(conn, head);
		break;
	}
}

/* --- receiving --- */

/* See nfr_client_reply_find(); inlined into the way of each Reply of version 1. */
static __always_inline struct nfr_req *nfr_client_reply_pin(struct nfr_conn *conn,
							    struct nfr_recv *recv,
							    const struct nfr_header *head)
{
	struct nfr_xprt *nx = conn->owner;
	struct nfr_req *req = NULL;
	struct rpc_rqst *rqst;

	spin_lock(&nx->xprt.queue_lock);
	rqst = xprt_lookup_rqst(&nx->xprt, cpu_to_be32(head->xid));
	if (rqst)
		req = nfr_client_req_of(rqst);
	if (req && nfr_client_req_answered(req, conn))
		xprt_pin_rqst(rqst);
	else
		req = NULL;
	spin_unlock(&nx->xprt.queue_lock);
	nfr_client_link_of(conn)->replies++;
	nfr_conn_grant(conn, head->credits);
	if (req) {
		req->recv = recv;
		req->reserved = 0;
	}
	return req;
}

/**
 * nfr_client_reply_find - take the credits of a Reply, find its request, and pin that
 * @conn: connection that received the Reply
 * @recv: receive of the Reply, which the request keeps
 * @head: header of the Reply
 *
 * Return: request that was sent on this connection and has no Reply yet, or NULL: then
 * nfr_client_reply_discard() is to follow.
 */
struct nfr_req *nfr_client_reply_find(struct nfr_conn *conn, struct nfr_recv *recv,
				      const struct nfr_header *head)
{
	return nfr_client_reply_pin(conn, recv, head);
}

/**
 * nfr_client_reply_is_call - handle a message that is a Call of the server
 * @conn: connection
 * @recv: receive of the message
 * @head: header of the message
 * @rpc: RPC message, @length bytes
 * @length: see @rpc
 *
 * Return: false if the message is a Reply.
 */
bool nfr_client_reply_is_call(struct nfr_conn *conn, struct nfr_recv *recv,
			      const struct nfr_header *head, const void *rpc, u32 length)
{
	if (head->proc != NFR_MSG || !nfr_wire_is_call(rpc, length))
		return false;
	nfr_client_callback_receive(conn, head->xid, rpc, length);
	nfr_conn_recv_return(conn, recv);
	return true;
}

/**
 * nfr_client_reply_discard - drop the Reply to a Call that its task abandoned
 * @conn: connection
 * @recv: receive of the Reply
 * @xid: its XID
 *
 * The function releases the memory that the transport kept for the Call.
 */
void nfr_client_reply_discard(struct nfr_conn *conn, struct nfr_recv *recv, u32 xid)
{
	struct nfr_late_reply reply = {
		.xid = xid, .has_invalidated = recv->has_invalidated,
		.invalidated = recv->invalidated,
	};
	struct nfr_req *req = nfr_conn_abandoned_reply(conn, &reply);

	nfr_conn_answered(conn, recv, 0);
	if (req)
		nfr_client_abandon_answered(conn, req, &reply);
}

static void nfr_client_reply_invalidated(struct nfr_conn *conn, struct nfr_req *req, u32 handle)
{
	if (nfr_mem_invalidated(&req->exposure, handle))
		req->reserved = 1;
	else
		nfr_conn_break(conn, "the peer invalidated an unrelated MR");
}

/*
 * MRs stay valid after their Call: return the room for their invalidations, and copy
 * the result out of a slot before another Call gets it.
 */
static void nfr_client_reply_kept(struct nfr_req *req, const struct nfr_header *head)
{
	struct nfr_exposure *exposure = &req->exposure;
	u32 length, done;

	req->reserved += exposure->kept;
	if (!exposure->slot || req->result <= 0)
		return;
	/* the only MR of the Call */
	nfr_mem_sync_for_cpu(list_first_entry(&exposure->mrs, struct nfr_mr, list));
	if (head->proc == NFR_NOMSG) {
		length = req->result;
		done = nfr_client_reply_spread(req, exposure->slot, length, false);
	} else {
		length = nfr_wire_length(&head->writes[0]);
		done = nfr_client_copy_to_pages(&req->rqst.rq_rcv_buf, exposure->slot, length);
		req->nx->counters.fixup_bytes += done;
	}
	if (done < length)
		req->result = -EIO;
}

static void nfr_client_reply_receive(struct nfr_conn *conn, struct nfr_recv *recv,
				     const struct nfr_header *head, const void *rpc, u32 length)
{
	struct nfr_req *req = nfr_client_reply_pin(conn, recv, head);

	if (req) {
		if (recv->has_invalidated)
			nfr_client_reply_invalidated(conn, req, recv->invalidated);
		nfr_client_reply_check(conn, req, head, rpc, length);
		if (req->exposure.kept || req->exposure.slot)
			nfr_client_reply_kept(req, head);
		nfr_client_reply_end(conn, req);
	} else {
		nfr_client_reply_discard(conn, recv, head->xid);
	}
	conn->ops->writable(conn);
}

/**
 * nfr_client_reply_malformed - end the connection because of a malformed header
 * @conn: connection
 * @recv: receive of the message
 * @xid: its XID
 * @rc: error of the decoder
 *
 * None of the fields can be trusted, least of all the credits. sunrpc sends the
 * Calls again on the next connection.
 */
void nfr_client_reply_malformed(struct nfr_conn *conn, struct nfr_recv *recv, u32 xid, int rc)
{
	struct nfr_xprt *nx = conn->owner;

	nx->counters.bad_replies++;
	trace_nfsrdma_error(conn, xid, "malformed transport header", rc);
	nfr_conn_recv_return(conn, recv);
	nfr_conn_break(conn, "malformed transport header");
}

/**
 * nfr_client_receive - handle a message: a Reply, or a Call of the server
 * @conn: connection
 * @recv: message; nfr_conn_recv_return() follows now or later
 */
void nfr_client_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_link *link = nfr_client_link_of(conn);
	struct nfr_space space = {
		.chunks = link->chunks, .nchunks = NFR_DECODE_CHUNKS,
		.segs = link->segs, .nsegs = NFR_DECODE_SEGS,
	};
	struct nfr_header head = { };
	const void *rpc;
	u32 length;
	int header;

	header = nfr_wire_decode(&head, &space, recv->data, recv->length);
	if (header < 0) {
		nfr_client_reply_malformed(conn, recv, head.xid, header);
		return;
	}
	rpc = recv->data + header;
	length = recv->length - header;
	if (!nfr_client_reply_is_call(conn, recv, &head, rpc, length))
		nfr_client_reply_receive(conn, recv, &head, rpc, length);
}

/* --- operations of the connection --- */

/**
 * nfr_client_received - see nfr_conn_ops.receive
 * @conn: connection
 * @recv: message
 */
void nfr_client_received(struct nfr_conn *conn, struct nfr_recv *recv)
{
	nfr_client_link_of(conn)->personality->receive(conn, recv);
}

/**
 * nfr_client_writable - see nfr_conn_ops.writable
 * @conn: connection
 */
void nfr_client_writable(struct nfr_conn *conn)
{
	struct nfr_xprt *nx = conn->owner;

	xprt_write_space(&nx->xprt);
}

/**
 * nfr_client_broken - see nfr_conn_ops.broken
 * @conn: connection
 */
void nfr_client_broken(struct nfr_conn *conn)
{
	struct nfr_xprt *nx = conn->owner;

	xprt_force_disconnect(&nx->xprt);
	nfr_work_queue(&nx->unlock_work, NFR_UNLOCK_AGAIN);
}

const struct nfr_conn_ops nfr_client_conn_ops = {
	.receive	= nfr_client_received,
	.writable	= nfr_client_writable,
	.broken		= nfr_client_broken,
	.unanswered	= NFR_CLIENT_UNANSWERED,
};
