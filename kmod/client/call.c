// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way of a Call: take a credit, choose how the Call and its Reply are conveyed, build the
 * header, place both in one contiguous buffer, post it, and have sunrpc wait for
 * room or for the Reply. Replies to callbacks take the same way.
 *
 * A Call is sent inline if it fits. Otherwise its data moves in a Read chunk,
 * if the upper layer marked DDP-eligible data (WRITE, SYMLINK). Otherwise a
 * position-zero Read chunk conveys all of it (RDMA_NOMSG).
 *
 * For the Reply, its maximum size decides. If that fits, the server replies
 * inline. Otherwise the Call offers a Write chunk for the data, if the upper
 * layer expects DDP-eligible data (READ, READLINK), or else a Reply chunk. With
 * integrity or privacy (krb5i, krb5p) no data is DDP-eligible: RFC 8166,
 * section 3.5.7.
 *
 * The device sends from buffers of the transport that stay mapped, never from
 * pages of the caller. Therefore no RPC has to wait for the completion of its
 * Send.
 */
#include <linux/highmem.h>
#include <linux/slab.h>
#include <linux/sunrpc/bc_xprt.h>
#include <linux/sunrpc/clnt.h>

#include "client/call.h"
#include "client/client.h"
#include "client/slots.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "memory/exposure.h"
#include "memory/region.h"
#include "observe/trace.h"
#include "work.h"

/*
 * Each version of the header has a marshaling function of its own. What they share is
 * inlined into both, so that a Call of one does not pay for the other.
 */

/* --- the way of each part --- */

static enum nfr_way nfr_client_reply_way(const struct nfr_conn *conn, const struct rpc_rqst *rqst)
{
	const struct xdr_buf *rcv = &rqst->rq_rcv_buf;
	bool data = (rcv->flags & XDRBUF_READ) && rcv->page_len && nfr_client_may_reduce(rqst);

	if (data && rcv->page_len >= conn->wanted.min_chunk)
		return NFR_REDUCED;
	if (rcv->buflen <= nfr_client_inline_reply_room(conn))
		return NFR_INLINE;
	return data ? NFR_REDUCED : NFR_LONG;
}

static struct nfr_span nfr_client_span_of_pages(const struct xdr_buf *buf)
{
	return (struct nfr_span) {
		.pages = buf->pages, .page_base = buf->page_base, .page_len = buf->page_len,
	};
}

static struct nfr_span nfr_client_span_of_all(const struct xdr_buf *buf)
{
	struct nfr_span span = nfr_client_span_of_pages(buf);

	span.head = buf->head[0];
	span.tail = buf->tail[0];
	return span;
}

/* Maximum size of a Write or Reply chunk in the header, in bytes */
static __always_inline u32 nfr_client_chunk_bytes(const struct nfr_conn *conn,
						  const struct xdr_buf *buf, enum nfr_way way)
{
	struct nfr_span span = way == NFR_LONG ? nfr_client_span_of_all(buf) :
						 nfr_client_span_of_pages(buf);
	const struct nfr_pool *pool = &nfr_client_link_of(conn)->pool;

	if (way == NFR_INLINE)
		return 0;
	return 8 + nfr_mem_pool_regions(pool, &span) * sizeof(struct nfr_segment);
}

/* Maximum size of a Read chunk in the header, in bytes */
static __always_inline u32 nfr_client_read_bytes(const struct nfr_conn *conn,
						 const struct xdr_buf *buf)
{
	struct nfr_span span = nfr_client_span_of_pages(buf);
	const struct nfr_pool *pool = &nfr_client_link_of(conn)->pool;

	return nfr_mem_pool_regions(pool, &span) * (8 + sizeof(struct nfr_segment));
}

/* @fixed is the size of the header without Read chunks */
static __always_inline enum nfr_way nfr_client_call_way(const struct nfr_conn *conn,
							const struct rpc_rqst *rqst,
							u32 fixed)
{
	const struct xdr_buf *snd = &rqst->rq_snd_buf;
	bool data = (snd->flags & XDRBUF_WRITE) && snd->page_len && nfr_client_may_reduce(rqst);
	u32 rest = snd->head[0].iov_len + snd->tail[0].iov_len;

	if (fixed + snd->len <= conn->send_size &&
	    !(data && snd->page_len >= conn->wanted.min_chunk))
		return NFR_INLINE;
	if (data && fixed + nfr_client_read_bytes(conn, snd) + rest <= conn->send_size)
		return NFR_REDUCED;
	return NFR_LONG;
}

/* Some upper layers let the transport allocate receive pages, for example NFSv3 GETACL. */
static __always_inline int nfr_client_fill_sparse_pages(struct xdr_buf *buf)
{
	u32 i, count = PAGE_ALIGN(buf->page_base + buf->page_len) >> PAGE_SHIFT;

	if (!(buf->flags & XDRBUF_SPARSE_PAGES))
		return 0;
	for (i = 0; i < count; i++) {
		if (buf->pages[i])
			continue;
		buf->pages[i] = alloc_page(rpc_task_gfp_mask());
		if (!buf->pages[i])
			return -ENOBUFS;
	}
	return 0;
}

static void nfr_client_trace_chunk(const struct nfr_conn *conn, const struct rpc_rqst *rqst,
				   const char *kind, const struct nfr_chunk *chunk)
{
	u32 i;

	trace_nfsrdma_chunk(conn, rqst, kind, chunk);
	if (!trace_nfsrdma_segment_enabled())
		return;
	for (i = 0; i < chunk->nsegs; i++)
		trace_nfsrdma_segment(conn, be32_to_cpu(rqst->rq_xid), kind, &chunk->segs[i]);
}

static int nfr_client_marshal_read(struct nfr_conn *conn, struct nfr_req *req,
				   struct nfr_header *head, enum nfr_way way)
{
	const struct xdr_buf *snd = &req->rqst.rq_snd_buf;
	bool whole = way == NFR_LONG;
	struct nfr_span span = whole ? nfr_client_span_of_all(snd) : nfr_client_span_of_pages(snd);
	struct nfr_scratch *scratch = &req->nx->scratch;
	struct nfr_link *link = nfr_client_link_of(conn);
	struct nfr_chunk *chunk = &scratch->read;
	int rc;

	if (way == NFR_INLINE)
		return 0;
	rc = nfr_mem_prepare(&req->exposure, &link->pool, &span, DMA_TO_DEVICE,
			     scratch->read_segs, NFR_CHUNK_SEGS);
	if (rc < 0)
		return rc;
	*chunk = (struct nfr_chunk) {
		.position = whole ? 0 : snd->head[0].iov_len,
		.nsegs = rc, .segs = scratch->read_segs,
	};
	head->reads = chunk;
	head->nreads = 1;
	if (whole)
		req->nx->counters.nomsg_calls++;
	req->nx->counters.read_chunks++;
	nfr_client_trace_chunk(conn, &req->rqst, whole ? "position-zero" : "read", chunk);
	return 0;
}

static int nfr_client_marshal_write(struct nfr_conn *conn, struct nfr_req *req,
				    struct nfr_header *head, enum nfr_way way)
{
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	bool whole = way == NFR_LONG;
	struct nfr_span span = whole ? nfr_client_span_of_all(rcv) : nfr_client_span_of_pages(rcv);
	struct nfr_scratch *scratch = &req->nx->scratch;
	struct nfr_link *link = nfr_client_link_of(conn);
	struct nfr_chunk *chunk = &scratch->write;
	u32 length = nfr_mem_span_length(&span);
	int rc;

	req->write_length = 0;
	req->reply_length = 0;
	if (way == NFR_INLINE)
		return 0;
	rc = nfr_mem_prepare(&req->exposure, &link->pool, &span, DMA_FROM_DEVICE,
			     scratch->write_segs, NFR_CHUNK_SEGS);
	if (rc < 0)
		return rc;
	*chunk = (struct nfr_chunk) { .nsegs = rc, .segs = scratch->write_segs };
	req->nx->counters.request_bytes += length;
	if (whole) {
		head->reply = chunk;
		req->reply_length = length;
		req->nx->counters.reply_chunks++;
	} else {
		head->writes = chunk;
		head->nwrites = 1;
		req->write_length = length;
		req->nx->counters.write_chunks++;
	}
	nfr_client_trace_chunk(conn, &req->rqst, whole ? "reply" : "write", chunk);
	return 0;
}

/* --- the inline part --- */

static __always_inline u8 *nfr_client_copy_pages(u8 *to, const struct xdr_buf *buf)
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

static u32 nfr_client_inline_length(const struct nfr_inline *part)
{
	return part->head.iov_len + (part->pages ? part->pages->page_len : 0) +
	       part->tail.iov_len;
}

static struct nfr_inline nfr_client_inline_of(const struct nfr_header *head,
					      const struct xdr_buf *message)
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
static bool nfr_client_inline_in_place(const struct nfr_req *req, const struct nfr_inline *part,
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
static __always_inline u8 *nfr_client_inline_copy(struct nfr_req *req,
						  const struct nfr_inline *part, u8 *at)
{
	memcpy(at, part->head.iov_base, part->head.iov_len);
	at += part->head.iov_len;
	if (part->pages)
		at = nfr_client_copy_pages(at, part->pages);
	memcpy(at, part->tail.iov_base, part->tail.iov_len);
	req->nx->counters.pullup_bytes += nfr_client_inline_length(part);
	trace_nfsrdma_pullup(&req->rqst, nfr_client_inline_length(part));
	return at + part->tail.iov_len;
}

/* --- posting --- */

/*
 * Post the registrations of a request, and a Send of the message at @data. Returns 0,
 * -EAGAIN or -ENOTCONN.
 */
static int nfr_client_post(struct nfr_conn *conn, struct nfr_req *req, u32 xid,
			   const void *data, struct ib_sge *sge, bool signal)
{
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .sg_list = sge, .num_sge = 1,
		.opcode = IB_WR_SEND,
	};
	u32 count = req->exposure.count, fresh = count - req->exposure.found;
	struct ib_send_wr *first = &send;
	int rc;

	spin_lock_bh(&conn->lock);
	/* reserve room for the invalidations, which must not find the queue full */
	rc = nfr_conn_sq_admit(&conn->sq, fresh + count + 1);
	if (rc) {
		spin_unlock_bh(&conn->lock);
		return rc;
	}
	if (count)
		first = nfr_mem_post(&req->exposure, &send);
	/* the invalidation of the MRs waits for the lock */
	nfr_client_req_sent(req, conn);
	conn->sq.reserved += count;
	nfr_conn_sq_take(&conn->sq, fresh + 1, &send, signal);
	trace_nfsrdma_post(conn, xid, fresh, sge->length, send.send_flags & IB_SEND_SIGNALED);
	trace_nfsrdma_message(conn, data, sge->length, true);
	rc = nfr_conn_submit(conn, first);
	spin_unlock_bh(&conn->lock);
	if (rc)
		nfr_conn_break(conn, "posting a send failed");
	return rc;
}

static __always_inline int
nfr_client_send_as(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		   const struct xdr_buf *message, bool signal,
		   size_t (*size_of)(const struct nfr_header *head),
		   int (*encode)(const struct nfr_header *head, void *buf, size_t room))
{
	struct nfr_inline part = nfr_client_inline_of(head, message);
	u32 header = size_of(head), offset = 0;
	u32 length = header + nfr_client_inline_length(&part);
	int which = NFR_BUFFER_CALL;
	struct ib_sge sge;
	int rc;

	if (length > conn->send_size)
		return -EMSGSIZE;
	if (nfr_client_inline_in_place(req, &part, header)) {
		offset = NFR_HEAD_ROOM - header;
	} else {
		which = NFR_BUFFER_BOUNCE;
		if (!nfr_client_buffer_get(req, which, length, conn->send_size,
					   rpc_task_gfp_mask()))
			return -ENOBUFS;
		nfr_client_inline_copy(req, &part, req->buffers[which]->data + header);
	}
	encode(head, req->buffers[which]->data + offset, header);
	rc = nfr_client_buffer_map(conn, req->buffers[which]);
	if (rc)
		return rc;
	sge = (struct ib_sge) {
		.addr = req->buffers[which]->addr + offset, .length = length,
		.lkey = conn->pd->local_dma_lkey,
	};
	ib_dma_sync_single_for_device(conn->device, sge.addr, sge.length, DMA_TO_DEVICE);
	return nfr_client_post(conn, req, head->xid, req->buffers[which]->data + offset, &sge,
			       signal);
}

/**
 * nfr_client_send - send a header and the inline part of a message
 * @conn: connection
 * @req: request
 * @head: header
 * @message: message; for NFR_MSG its pages are inline, too, unless a Read chunk
 *	conveys them
 * @signal: whether the caller needs the completion
 *
 * Return: 0, -EAGAIN if the send queue is full, -EMSGSIZE if the message exceeds the
 * inline size, -ENOBUFS or -ENOTCONN.
 */
int nfr_client_send(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		    const struct xdr_buf *message, bool signal)
{
	return nfr_client_send_as(conn, req, head, message, signal, nfr_wire_size,
				  nfr_wire_encode);
}

/**
 * nfr_client_send_2003 - send a header of 2003 and the inline part of a message
 * @conn: connection
 * @req: request
 * @head: header
 * @message: message
 * @signal: whether the caller needs the completion
 *
 * Return: as for nfr_client_send().
 */
int nfr_client_send_2003(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
			 const struct xdr_buf *message, bool signal)
{
	return nfr_client_send_as(conn, req, head, message, signal, nfr_wire_2003_size,
				  nfr_wire_2003_encode);
}

/**
 * nfr_client_send_bounce - send a message that lies in the bounce buffer
 * @conn: connection
 * @req: request without memory that the peer may access
 * @xid: its XID
 * @length: length of the message in bytes
 *
 * Return: 0, -EAGAIN if the send queue is full, -ENOBUFS or -ENOTCONN.
 */
int nfr_client_send_bounce(struct nfr_conn *conn, struct nfr_req *req, u32 xid, u32 length)
{
	struct nfr_buffer *buffer = req->buffers[NFR_BUFFER_BOUNCE];
	int rc = nfr_client_buffer_map(conn, buffer);
	struct ib_sge sge;

	if (rc)
		return rc;
	sge = (struct ib_sge) {
		.addr = buffer->addr, .length = length, .lkey = conn->pd->local_dma_lkey,
	};
	ib_dma_sync_single_for_device(conn->device, sge.addr, sge.length, DMA_TO_DEVICE);
	return nfr_client_post(conn, req, xid, buffer->data, &sge, false);
}

/**
 * nfr_client_marshal - marshal a Call, map its memory and post it
 * @conn: connection
 * @req: request, which holds a credit
 *
 * After an error @req has no MRs, unless the connection is broken.
 *
 * Return: 0, -ENOMEM if the pool has too few MRs, -EAGAIN if the send queue is
 * full, -ENOBUFS, -EMSGSIZE or -ENOTCONN.
 */
int nfr_client_marshal(struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	enum nfr_way reply = nfr_client_reply_way(conn, rqst);
	u32 fixed = NFR_WIRE_MIN + nfr_client_chunk_bytes(conn, &rqst->rq_rcv_buf, reply);
	enum nfr_way call = nfr_client_call_way(conn, rqst, fixed);
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .credits = conn->wanted.credits,
		.proc = call == NFR_LONG ? NFR_NOMSG : NFR_MSG,
	};
	int rc;

	rc = nfr_client_fill_sparse_pages(&rqst->rq_rcv_buf);
	if (rc)
		return rc;
	rc = nfr_client_marshal_read(conn, req, &head, call);
	if (!rc)
		rc = nfr_client_marshal_write(conn, req, &head, reply);
	trace_nfsrdma_marshal(conn, rqst, call, reply, rc);
	if (!rc)
		rc = nfr_client_send(conn, req, &head, &rqst->rq_snd_buf, false);
	if (rc && rc != -ENOTCONN)
		nfr_mem_release(&req->exposure);
	return rc;
}

/**
 * nfr_client_marshal_2003 - marshal a Call of 2003, map its memory and post it
 * @conn: connection
 * @req: request, which holds a credit
 *
 * A Call of 2003 offers memory for the server to read, and none to write.
 *
 * Return: as for nfr_client_marshal().
 */
int nfr_client_marshal_2003(struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	enum nfr_way call = nfr_client_call_way(conn, rqst, NFR_WIRE_2003_MIN);
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .credits = conn->wanted.credits,
		.proc = call == NFR_LONG ? NFR_NOMSG : NFR_MSG,
	};
	int rc;

	rc = nfr_client_fill_sparse_pages(&rqst->rq_rcv_buf);
	if (rc)
		return rc;
	rc = nfr_client_marshal_read(conn, req, &head, call);
	/* the server decides how its Reply is conveyed */
	trace_nfsrdma_marshal(conn, rqst, call, NFR_INLINE, rc);
	if (!rc)
		rc = nfr_client_send_2003(conn, req, &head, &rqst->rq_snd_buf, false);
	if (rc && rc != -ENOTCONN)
		nfr_mem_release(&req->exposure);
	return rc;
}

/* --- sending for sunrpc --- */

/* Make sunrpc wait for room in the send queue, and for a @credit. Returns -EAGAIN. */
static int nfr_client_wait_for_room(struct nfr_xprt *nx, struct nfr_conn *conn, bool credit)
{
	xprt_wait_for_buffer_space(&nx->xprt);
	/* pairs with nfr_client_writable(), which runs after room was made and looks for waiters */
	smp_mb__after_atomic();
	if (nfr_conn_has_room(conn, credit) || !nfr_conn_is_up(conn))
		xprt_write_space(&nx->xprt);
	return -EAGAIN;
}

/* Set the wait before queueing the work that ends it. */
static int nfr_client_wait_for_regions(struct nfr_xprt *nx, struct nfr_conn *conn)
{
	xprt_wait_for_buffer_space(&nx->xprt);
	nfr_work_queue(&nfr_client_link_of(conn)->refill, 0);
	return -EAGAIN;
}

static int nfr_client_send_call(struct nfr_xprt *nx, struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	int rc;

	nfr_client_req_begin(req, conn);
	rqst->rq_xtime = ktime_get();
	rc = nfr_client_link_of(conn)->personality->marshal(conn, req);
	if (!rc) {
		rqst->rq_xmit_bytes_sent += rqst->rq_snd_buf.len;
		return 0;
	}
	nfr_conn_credit_back(conn);
	/* the request keeps its MRs until the broken connection is closed */
	if (rc == -ENOTCONN)
		return rc;
	if (rc == -EAGAIN || rc == -ENOMEM)
		nx->counters.starved++;
	if (rc == -EAGAIN)
		return nfr_client_wait_for_room(nx, conn, true);
	if (rc == -ENOMEM)
		return nfr_client_wait_for_regions(nx, conn);
	nx->counters.failed_marshals++;
	trace_nfsrdma_error(conn, be32_to_cpu(rqst->rq_xid), "sending a Call failed", rc);
	return rc;
}

/* Send the reply to a callback. Returns 0, -EAGAIN if the send queue is full, or another errno. */
static int nfr_client_callback_reply(struct nfr_conn *conn, struct rpc_rqst *rqst)
{
	struct nfr_req *req = nfr_client_req_of(rqst);
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .credits = NFR_CALLBACK_CREDITS,
		.proc = NFR_MSG,
	};
	int rc;

	/* the callback came on an earlier connection: the server will retransmit it */
	if (req->generation != conn->generation)
		return 0;
	rc = nfr_client_link_of(conn)->personality->send(conn, req, &head, &rqst->rq_snd_buf, true);
	req->mark = nfr_conn_mark(conn);
	if (rc == -EAGAIN)
		return nfr_client_wait_for_room(req->nx, conn, false);
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
	struct nfr_xprt *nx = nfr_client_xprt_of(rqst->rq_xprt);
	struct nfr_req *req = nfr_client_req_of(rqst);
	struct nfr_conn *conn = nfr_client_xprt_conn(nx);
	int rc;

	if (!conn || !nfr_conn_is_up(conn))
		return -ENOTCONN;
	if (bc_prealloc(rqst))
		return nfr_client_callback_reply(conn, rqst);
	/* RFC 8166, section 3.3.1: do not send a Call twice on one connection */
	if (req->state == NFR_REQ_SENT && req->generation == conn->generation) {
		nfr_conn_break(conn, "a Call has to be retransmitted");
		return -ENOTCONN;
	}
	rc = nfr_conn_credit(conn);
	if (rc == -EAGAIN)
		return nfr_client_wait_for_room(nx, conn, true);
	if (rc)
		return rc;
	/* a Call that expects no Reply is abandoned when its task ends, see abandon.c */
	return nfr_client_send_call(nx, conn, req);
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
 * A task whose Call another task sent may get the transport lock afterwards. It
 * must not keep it: a timeout waits until the connection is closed, and closing
 * needs the lock.
 *
 * Context: Does not sleep. Caller holds the queue lock.
 */
void nfr_client_wait_for_reply(struct rpc_task *task)
{
	struct rpc_rqst *rqst = task->tk_rqstp;
	unsigned long end = jiffies + rqst->rq_timeout;
	struct rpc_xprt *xprt = rqst->rq_xprt;

	if (READ_ONCE(xprt->snd_task) == task) {
		spin_lock(&xprt->transport_lock);
		xprt_release_xprt(xprt, task);
		spin_unlock(&xprt->transport_lock);
	}
	if (!RPC_IS_SOFT(task) && time_before(rqst->rq_majortimeo, end))
		rqst->rq_majortimeo = end;
	xprt_wait_for_reply_request_def(task);
}

/**
 * nfr_client_wait_or_resend - wait for a Reply; the Call may have to be sent again already
 * @task: task whose Call was sent, on a branch perhaps
 *
 * Context: Does not sleep. Caller holds the queue lock.
 */
void nfr_client_wait_or_resend(struct rpc_task *task)
{
	struct rpc_rqst *rqst = task->tk_rqstp;

	/* sunrpc has set the cookie after nfr_client_loan_lose(); with this one it sends again */
	if (READ_ONCE(nfr_client_req_of(rqst)->state) == NFR_REQ_LOST)
		rqst->rq_connect_cookie = rqst->rq_xprt->connect_cookie - 1;
	nfr_client_wait_for_reply(task);
}
