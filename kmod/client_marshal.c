// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls: how each part of one travels, and the header that says so.
 *
 * The Call goes inline when it fits; else its data goes as a Read chunk, if
 * the upper layer marked data that may be moved alone (WRITE, SYMLINK); else
 * all of it is a position-zero Read chunk, and no message follows the header.
 *
 * For the Reply, the largest that can come decides: it is left to come inline
 * when it fits; else its data gets a Write chunk, if the upper layer expects
 * data that may be moved alone (READ, READLINK); else all of it gets a Reply
 * chunk. With integrity or privacy (krb5i, krb5p) nothing may be moved alone:
 * RFC 8166, section 3.5.7.
 */
#include <linux/slab.h>
#include <linux/sunrpc/auth.h>
#include <linux/sunrpc/clnt.h>

#include "client.h"
#include "trace.h"

/* How the Call, or the Reply, travels */
enum nfr_way {
	NFR_INLINE,
	NFR_REDUCED,	/* its data in a chunk of its own */
	NFR_LONG,	/* all of it in a chunk */
};

/* Moving data alone is allowed */
static bool nfr_may_reduce(const struct rpc_rqst *rqst)
{
	return !test_bit(RPCAUTH_AUTH_DATATOUCH, &rqst->rq_cred->cr_auth->au_flags);
}

/* Room for a Reply that comes without chunks */
static u32 nfr_inline_reply_room(const struct nfr_conn *conn)
{
	return conn->recv_size - NFR_WIRE_MIN;
}

static enum nfr_way nfr_reply_way(const struct nfr_conn *conn, const struct rpc_rqst *rqst)
{
	const struct xdr_buf *rcv = &rqst->rq_rcv_buf;
	bool data = (rcv->flags & XDRBUF_READ) && rcv->page_len && nfr_may_reduce(rqst);

	if (data && rcv->page_len >= conn->wanted.min_chunk)
		return NFR_REDUCED;
	if (rcv->buflen <= nfr_inline_reply_room(conn))
		return NFR_INLINE;
	return data ? NFR_REDUCED : NFR_LONG;
}

static struct nfr_span nfr_span_of_pages(const struct xdr_buf *buf)
{
	return (struct nfr_span) {
		.pages = buf->pages, .page_base = buf->page_base, .page_len = buf->page_len,
	};
}

static struct nfr_span nfr_span_of_all(const struct xdr_buf *buf)
{
	struct nfr_span span = nfr_span_of_pages(buf);

	span.head = buf->head[0];
	span.tail = buf->tail[0];
	return span;
}

/* Bytes that a Write or Reply chunk takes in the header, at most */
static u32 nfr_chunk_bytes(const struct nfr_conn *conn, const struct xdr_buf *buf,
			   enum nfr_way way)
{
	struct nfr_span span = way == NFR_LONG ? nfr_span_of_all(buf) : nfr_span_of_pages(buf);

	if (way == NFR_INLINE)
		return 0;
	return 8 + nfr_span_segments(&span, conn->pool.depth) * sizeof(struct nfr_segment);
}

/* Bytes that a Read chunk takes in the header, at most */
static u32 nfr_read_bytes(const struct nfr_conn *conn, const struct xdr_buf *buf)
{
	struct nfr_span span = nfr_span_of_pages(buf);

	return nfr_span_segments(&span, conn->pool.depth) * (8 + sizeof(struct nfr_segment));
}

static enum nfr_way nfr_call_way(const struct nfr_conn *conn, const struct rpc_rqst *rqst,
				 enum nfr_way reply_way)
{
	const struct xdr_buf *snd = &rqst->rq_snd_buf;
	bool data = (snd->flags & XDRBUF_WRITE) && snd->page_len && nfr_may_reduce(rqst);
	u32 fixed = NFR_WIRE_MIN + nfr_chunk_bytes(conn, &rqst->rq_rcv_buf, reply_way);
	u32 rest = snd->head[0].iov_len + snd->tail[0].iov_len;

	if (fixed + snd->len <= conn->send_size &&
	    !(data && snd->page_len >= conn->wanted.min_chunk))
		return NFR_INLINE;
	if (data && fixed + nfr_read_bytes(conn, snd) + rest <= conn->send_size)
		return NFR_REDUCED;
	return NFR_LONG;
}

/* Some upper layers leave it to the transport to provide pages: NFSv3 ACLs do. */
static int nfr_fill_sparse_pages(struct xdr_buf *buf)
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

static void nfr_trace_chunk(const struct nfr_conn *conn, u32 xid, const char *kind,
			    const struct nfr_chunk *chunk)
{
	u32 i;

	trace_nfsrdma_chunk(conn, xid, kind, chunk);
	if (!trace_nfsrdma_segment_enabled())
		return;
	for (i = 0; i < chunk->nsegs; i++)
		trace_nfsrdma_segment(conn, xid, kind, &chunk->segs[i]);
}

static int nfr_marshal_read(struct nfr_conn *conn, struct nfr_req *req, struct nfr_header *head,
			    enum nfr_way way)
{
	const struct xdr_buf *snd = &req->rqst.rq_snd_buf;
	bool whole = way == NFR_LONG;
	struct nfr_span span = whole ? nfr_span_of_all(snd) : nfr_span_of_pages(snd);
	struct nfr_scratch *scratch = &req->nx->scratch;
	struct nfr_chunk *chunk = &scratch->read;
	int rc;

	if (way == NFR_INLINE)
		return 0;
	rc = nfr_reg_map(conn, &span, DMA_TO_DEVICE, &req->mrs, scratch->read_segs,
			 NFR_CHUNK_SEGS);
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
	nfr_trace_chunk(conn, head->xid, whole ? "position-zero" : "read", chunk);
	return 0;
}

static int nfr_marshal_write(struct nfr_conn *conn, struct nfr_req *req, struct nfr_header *head,
			     enum nfr_way way)
{
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	bool whole = way == NFR_LONG;
	struct nfr_span span = whole ? nfr_span_of_all(rcv) : nfr_span_of_pages(rcv);
	struct nfr_scratch *scratch = &req->nx->scratch;
	struct nfr_chunk *chunk = &scratch->write;
	u32 length = nfr_span_length(&span);
	int rc;

	req->write_length = 0;
	req->reply_length = 0;
	if (way == NFR_INLINE)
		return 0;
	rc = nfr_reg_map(conn, &span, DMA_FROM_DEVICE, &req->mrs, scratch->write_segs,
			 NFR_CHUNK_SEGS);
	if (rc < 0)
		return rc;
	*chunk = (struct nfr_chunk) { .nsegs = rc, .segs = scratch->write_segs };
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
	nfr_trace_chunk(conn, head->xid, whole ? "reply" : "write", chunk);
	return 0;
}

/* --- sending --- */

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

/* The part of a message that follows the header: @pages are left out when a chunk has them. */
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
	/* the server makes up the padding of data that moves alone */
	pad = min_t(u32, part.tail.iov_len, xdr_pad_size(message->page_len));
	part.tail.iov_base += pad;
	part.tail.iov_len -= pad;
	return part;
}

/* A message that lies in one piece where it was encoded is sent from there. */
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

/* Copied apart, so that the original can be sent again. */
static u8 *nfr_inline_copy(struct nfr_req *req, const struct nfr_inline *part, u8 *at)
{
	memcpy(at, part->head.iov_base, part->head.iov_len);
	at += part->head.iov_len;
	if (part->pages)
		at = nfr_copy_pages(at, part->pages);
	memcpy(at, part->tail.iov_base, part->tail.iov_len);
	req->nx->counters.pullup_bytes += nfr_inline_length(part);
	return at + part->tail.iov_len;
}

/**
 * nfr_send_buffer - send a header, and a message unless it is in a chunk
 * @conn: the connection
 * @req: whose buffers and memory regions are used
 * @head: describes the lot
 * @message: for NFR_MSG: its pages go too, unless the Read list has them
 *
 * Returns 0, -EAGAIN when the send queue is full, -EMSGSIZE when it is too
 * large to be sent, -ENOBUFS, -EIO or -ENOTCONN.
 */
int nfr_send_buffer(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		    const struct xdr_buf *message)
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
	return nfr_queue_send(conn, head->xid, &req->mrs, &sge);
}

/**
 * nfr_marshal_call - decide how a Call travels, map its memory, and send it
 * @conn: the connection
 * @req: the request, with a credit
 *
 * Returns 0; -EAGAIN when memory regions or send queue are used up;
 * -ENOBUFS, -EIO, -EMSGSIZE, -ENOTCONN. After an error @req has no memory
 * mapped, unless the connection is broken.
 */
int nfr_marshal_call(struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	enum nfr_way reply = nfr_reply_way(conn, rqst);
	enum nfr_way call = nfr_call_way(conn, rqst, reply);
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .version = NFR_WIRE_VERSION,
		.credits = conn->wanted.credits,
		.proc = call == NFR_LONG ? NFR_NOMSG : NFR_MSG,
	};
	int rc;

	rc = nfr_fill_sparse_pages(&rqst->rq_rcv_buf);
	if (rc)
		return rc;
	trace_nfsrdma_marshal(conn, rqst, call, reply);
	rc = nfr_marshal_read(conn, req, &head, call);
	if (!rc)
		rc = nfr_marshal_write(conn, req, &head, reply);
	if (!rc)
		rc = nfr_send_buffer(conn, req, &head, &rqst->rq_snd_buf);
	if (rc && rc != -ENOTCONN)
		nfr_reg_release(conn, &req->mrs);
	return rc;
}

/* Room will come: have sunrpc wait for it, unless it came just now. */
static int nfr_wait_for_room(struct nfr_xprt *nx, struct nfr_conn *conn)
{
	xprt_wait_for_buffer_space(&nx->xprt);
	if (nfr_queue_has_room(conn) || !nfr_conn_is_up(conn))
		xprt_write_space(&nx->xprt);
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
		nx->counters.request_bytes += rqst->rq_snd_buf.len;
		rqst->rq_xmit_bytes_sent += rqst->rq_snd_buf.len;
		return 0;
	}
	req->state = NFR_REQ_IDLE;
	nfr_queue_credit_back(conn);
	if (rc == -EAGAIN) {
		nx->counters.starved++;
		return nfr_wait_for_room(nx, conn);
	}
	nx->counters.failed_marshals++;
	trace_nfsrdma_error(conn, be32_to_cpu(rqst->rq_xid), "the call could not be sent", rc);
	return rc;
}

/**
 * nfr_client_send_request - send a Call, or a reply to the server's call
 * @rqst: encoded; the transport is locked by a sender
 *
 * Returns 0; -EAGAIN when sunrpc has to wait for room; -ENOTCONN when there is
 * no connection, or none that this Call may be sent on again; -ENOBUFS when it
 * is to try again soon; other errors end the RPC.
 */
int nfr_client_send_request(struct rpc_rqst *rqst)
{
	struct nfr_xprt *nx = nfr_xprt_of(rqst->rq_xprt);
	struct nfr_req *req = nfr_req_of(rqst);
	struct nfr_conn *conn = nx->conn;
	int rc;

	if (!conn || !nfr_conn_is_up(conn))
		return -ENOTCONN;
	if (bc_prealloc(rqst))
		return nfr_callback_reply(conn, rqst);
	/* RFC 8166, section 3.3.1: a Call is not sent twice on a connection */
	if (req->state == NFR_REQ_SENT && req->generation == conn->generation) {
		nfr_conn_break(conn, "a call had to be sent again");
		return -ENOTCONN;
	}
	rc = nfr_queue_credit(conn);
	if (rc == -EAGAIN)
		return nfr_wait_for_room(nx, conn);
	if (rc)
		return rc;
	rc = nfr_send_call(nx, conn, req);
	/* a Call without a reply would keep its credit for ever */
	if (!rc && !rpc_reply_expected(rqst->rq_task))
		nfr_conn_break(conn, "a call without a reply was sent");
	return rc;
}
