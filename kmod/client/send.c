// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send Calls, and replies to callbacks, that sunrpc has encoded: place the
 * header and the message in one contiguous buffer and post it.
 *
 * The device sends from buffers of the transport that stay mapped, never from
 * pages of the caller. Therefore no RPC has to wait for the completion of its
 * Send.
 */
#include <linux/highmem.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"
#include "observe/trace.h"

static u8 *nfr_copy_pages(u8 *to, const struct xdr_buf *buf)
{
	u32 base = buf->page_base, left = buf->page_len;

	while (left) {
		u32 n = min_t(u32, left, PAGE_SIZE - offset_in_page(base));

		memcpy_from_page(to, buf->pages[base >> PAGE_SHIFT], offset_in_page(base), n);
		to += n;
		base += n;
		left -= n;
	}
	return to;
}

/* Inline part of a message: @pages is NULL if a chunk conveys the data. */
struct nfr_inline {
	struct kvec head;
	const struct xdr_buf *pages;
	struct kvec tail;
};

static u32 nfr_inline_length(const struct nfr_inline *part)
{
	return part->head.iov_len + (part->pages ? part->pages->page_len : 0) +
	       part->tail.iov_len;
}

static struct nfr_inline nfr_inline_of(const struct nfr_header *head, const struct xdr_buf *message)
{
	struct nfr_inline part = { .head = message->head[0], .tail = message->tail[0] };
	u32 pad;

	if (head->proc == NFR_NOMSG)
		return (struct nfr_inline) { };
	if (!head->nreads) {
		part.pages = message->page_len ? message : NULL;
		return part;
	}
	/* a Read chunk omits the XDR padding; the server inserts it */
	pad = min_t(u32, part.tail.iov_len, xdr_pad_size(message->page_len));
	part.tail.iov_base += pad;
	part.tail.iov_len -= pad;
	return part;
}

/* Check whether the message is contiguous in its encoding buffer, so that no copy is needed. */
static bool nfr_inline_in_place(const struct nfr_req *req, const struct nfr_inline *part,
				u32 header)
{
	const u8 *encoded = req->buffers[NFR_BUFFER_CALL]->data + NFR_HEAD_ROOM;

	if (header > NFR_HEAD_ROOM || part->pages)
		return false;
	if (part->head.iov_len && part->head.iov_base != encoded)
		return false;
	return !part->tail.iov_len ||
	       part->tail.iov_base == part->head.iov_base + part->head.iov_len;
}

/* Copy the message. The original stays intact for a retransmission. */
static u8 *nfr_inline_copy(struct nfr_req *req, const struct nfr_inline *part, u8 *at)
{
	memcpy(at, part->head.iov_base, part->head.iov_len);
	at += part->head.iov_len;
	if (part->pages)
		at = nfr_copy_pages(at, part->pages);
	memcpy(at, part->tail.iov_base, part->tail.iov_len);
	req->nx->counters.pullup_bytes += nfr_inline_length(part);
	trace_nfsrdma_pullup(&req->rqst, nfr_inline_length(part));
	return at + part->tail.iov_len;
}

/**
 * nfr_send_buffer - send a header and the inline part of a message
 * @conn: connection
 * @req: request that owns the buffers and MRs
 * @head: transport header
 * @message: message; for NFR_MSG its pages are inline too, unless a Read chunk
 *	conveys them
 * @signal: see nfr_queue_send()
 *
 * Return: 0, -EAGAIN if the send queue is full, -EMSGSIZE if the message
 * exceeds the inline size, -ENOBUFS or -ENOTCONN.
 */
int nfr_send_buffer(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		    const struct xdr_buf *message, bool signal)
{
	struct nfr_inline part = nfr_inline_of(head, message);
	u32 header = nfr_wire_size(head), offset = 0;
	u32 length = header + nfr_inline_length(&part);
	int which = NFR_BUFFER_CALL;
	struct ib_sge sge;
	int rc;

	if (length > conn->send_size)
		return -EMSGSIZE;
	if (nfr_inline_in_place(req, &part, header)) {
		offset = NFR_HEAD_ROOM - header;
	} else {
		which = NFR_BUFFER_BOUNCE;
		if (!nfr_req_buffer(req, which, conn->send_size, rpc_task_gfp_mask()))
			return -ENOBUFS;
		nfr_inline_copy(req, &part, req->buffers[which]->data + header);
	}
	nfr_wire_encode(head, req->buffers[which]->data + offset, header);
	rc = nfr_req_map(conn, req->buffers[which]);
	if (rc)
		return rc;
	sge = (struct ib_sge) {
		.addr = req->buffers[which]->addr + offset, .length = length,
		.lkey = conn->pd->local_dma_lkey,
	};
	ib_dma_sync_single_for_device(conn->device, sge.addr, sge.length, DMA_TO_DEVICE);
	return nfr_queue_send(conn, head->xid, &req->mrs, &sge, signal);
}

/* --- requests --- */

/**
 * nfr_wait_for_room - make sunrpc wait for room in the send queue, or for a credit
 * @nx: transport
 * @conn: connection
 *
 * Return: -EAGAIN.
 */
int nfr_wait_for_room(struct nfr_xprt *nx, struct nfr_conn *conn)
{
	xprt_wait_for_buffer_space(&nx->xprt);
	/* pairs with nfr_client_writable(), which runs after room was made and looks for waiters */
	smp_mb__after_atomic();
	if (nfr_queue_has_room(conn) || !nfr_conn_is_up(conn))
		xprt_write_space(&nx->xprt);
	return -EAGAIN;
}

/* Set the wait before queueing the work that ends it. */
static int nfr_wait_for_regions(struct nfr_xprt *nx, struct nfr_conn *conn)
{
	xprt_wait_for_buffer_space(&nx->xprt);
	nfr_conn_refill(conn, 0);
	return -EAGAIN;
}

static int nfr_send_call(struct nfr_xprt *nx, struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	int rc;

	req->generation = conn->generation;
	req->state = NFR_REQ_SENT;
	rqst->rq_xtime = ktime_get();
	rc = nx->personality->marshal(conn, req);
	if (!rc) {
		rqst->rq_xmit_bytes_sent += rqst->rq_snd_buf.len;
		return 0;
	}
	nfr_queue_credit_back(conn);
	/* MRs stay valid on a broken connection: the request is not idle until that is closed */
	if (rc == -ENOTCONN)
		return rc;
	req->state = NFR_REQ_IDLE;
	if (rc == -EAGAIN || rc == -ENOMEM)
		nx->counters.starved++;
	if (rc == -EAGAIN)
		return nfr_wait_for_room(nx, conn);
	if (rc == -ENOMEM)
		return nfr_wait_for_regions(nx, conn);
	nx->counters.failed_marshals++;
	trace_nfsrdma_error(conn, be32_to_cpu(rqst->rq_xid), "sending a Call failed", rc);
	return rc;
}

/**
 * nfr_client_send_request - send a Call, or the reply to a callback
 * @rqst: encoded request; the sender has locked the transport
 *
 * Return: 0, -EAGAIN if sunrpc has to wait for room, -ENOTCONN if the Call
 * needs a new connection, -ENOBUFS if sunrpc has to retry soon, or another
 * errno, which ends the RPC.
 */
int nfr_client_send_request(struct rpc_rqst *rqst)
{
	struct nfr_xprt *nx = nfr_xprt_of(rqst->rq_xprt);
	struct nfr_req *req = nfr_req_of(rqst);
	struct nfr_conn *conn = nfr_xprt_conn(nx);
	int rc;

	if (!conn || !nfr_conn_is_up(conn))
		return -ENOTCONN;
	if (bc_prealloc(rqst))
		return nfr_callback_reply(conn, rqst);
	/* RFC 8166, section 3.3.1: do not send a Call twice on one connection */
	if (req->state == NFR_REQ_SENT && req->generation == conn->generation) {
		nfr_conn_break(conn, "a Call has to be retransmitted");
		return -ENOTCONN;
	}
	rc = nfr_queue_credit(conn);
	if (rc == -EAGAIN)
		return nfr_wait_for_room(nx, conn);
	if (rc)
		return rc;
	rc = nfr_send_call(nx, conn, req);
	/*
	 * a Call that expects no reply keeps its credit; NFR_LOST_TIMEOUT
	 * replaces the connection
	 */
	if (!rc && !rpc_reply_expected(rqst->rq_task))
		nfr_conn_lost(conn, be32_to_cpu(rqst->rq_xid));
	return rc;
}

/**
 * nfr_client_wait_for_reply - wait for the Reply to a Call, for one timeout at least
 * @task: task whose Call was sent
 *
 * sunrpc would wait only until the major timeout (net/sunrpc/xprt.c,
 * xprt_request_timeout()), which may have passed while the Call waited for a
 * connection. The Call would then break the connection that has just been made,
 * and many such Calls would do so one after the other. Soft mounts do not wait
 * longer than their major timeout.
 *
 * Context: Does not sleep. Caller holds the queue lock.
 */
void nfr_client_wait_for_reply(struct rpc_task *task)
{
	struct rpc_rqst *rqst = task->tk_rqstp;
	unsigned long end = jiffies + rqst->rq_timeout;

	if (!RPC_IS_SOFT(task) && time_before(rqst->rq_majortimeo, end))
		rqst->rq_majortimeo = end;
	xprt_wait_for_reply_request_def(task);
}
