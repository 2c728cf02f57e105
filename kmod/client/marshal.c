// SPDX-License-Identifier: GPL-2.0-only
/*
 * Marshal Calls: choose how the Call and its Reply are conveyed, and build the
 * header.
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
 */
#include <linux/slab.h>
#include <linux/sunrpc/auth.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"
#include "observe/trace.h"

/* How a Call or a Reply is conveyed */
enum nfr_way {
	NFR_INLINE,
	NFR_REDUCED,	/* data in a Read or Write chunk */
	NFR_LONG,	/* whole message in a position-zero Read chunk or a Reply chunk */
};

/* Check that the security flavor permits moving data in a chunk */
static bool nfr_may_reduce(const struct rpc_rqst *rqst)
{
	return !test_bit(RPCAUTH_AUTH_DATATOUCH, &rqst->rq_cred->cr_auth->au_flags);
}

/* Maximum size of a Reply without chunks */
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

/* Maximum size of a Write or Reply chunk in the header, in bytes */
static u32 nfr_chunk_bytes(const struct nfr_conn *conn, const struct xdr_buf *buf,
			   enum nfr_way way)
{
	struct nfr_span span = way == NFR_LONG ? nfr_span_of_all(buf) : nfr_span_of_pages(buf);

	if (way == NFR_INLINE)
		return 0;
	return 8 + nfr_span_segments(&span, conn->pool.depth) * sizeof(struct nfr_segment);
}

/* Maximum size of a Read chunk in the header, in bytes */
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

/* Some upper layers let the transport allocate receive pages, for example NFSv3 GETACL. */
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
 * nfr_marshal_call - marshal a Call, map its memory and post it
 * @conn: connection
 * @req: request, which holds a credit
 *
 * After an error @req has no MRs, unless the connection is broken.
 *
 * Return: 0, -ENOMEM if the pool has too few MRs, -EAGAIN if the send queue is
 * full, -ENOBUFS, -EMSGSIZE or -ENOTCONN.
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
