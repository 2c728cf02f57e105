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

static void nfr_trace_chunk(const struct nfr_conn *conn, const struct rpc_rqst *rqst,
			    const char *kind, const struct nfr_chunk *chunk)
{
	u32 i;

	trace_nfsrdma_chunk(conn, rqst, kind, chunk);
	if (!trace_nfsrdma_segment_enabled())
		return;
	for (i = 0; i < chunk->nsegs; i++)
		trace_nfsrdma_segment(conn, be32_to_cpu(rqst->rq_xid), kind, &chunk->segs[i]);
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
	nfr_trace_chunk(conn, &req->rqst, whole ? "position-zero" : "read", chunk);
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
	nfr_trace_chunk(conn, &req->rqst, whole ? "reply" : "write", chunk);
	return 0;
}

/**
 * nfr_marshal_call - decide how a Call travels, map its memory, and send it
 * @conn: the connection
 * @req: the request, with a credit
 *
 * Returns 0; -ENOMEM when memory regions are short, -EAGAIN when the send queue
 * is full; -ENOBUFS, -EMSGSIZE, -ENOTCONN. After an error @req has no memory
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
	rc = nfr_marshal_read(conn, req, &head, call);
	if (!rc)
		rc = nfr_marshal_write(conn, req, &head, reply);
	trace_nfsrdma_marshal(conn, rqst, call, reply, rc);
	if (!rc)
		rc = nfr_send_buffer(conn, req, &head, &rqst->rq_snd_buf, false);
	if (rc && rc != -ENOTCONN)
		nfr_reg_release(conn, &req->mrs);
	return rc;
}
