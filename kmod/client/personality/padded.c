// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality padded: data of some pages moves in the message (wire/padded.c), behind
 * zeros up to NFR_PADDED_ALIGN, and needs neither a registration nor an RDMA Read or
 * Write.
 *
 * The data of a WRITE is copied to the send buffer, and the server uses it where it
 * arrives. A READ offers a Write chunk with handle 0. Its data arrives at the start of
 * a page, and is copied from there: the pages of the caller exist before the Call.
 *
 * Everything else is version 1.
 */
#include <linux/highmem.h>
#include <linux/log2.h>

#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"
#include "client/slots.h"
#include "connection/queues.h"
#include "observe/trace.h"
#include "personality/padded.h"

/* Header of a message with padding: one chunk of one segment, in the Read or Write list */
#define NFR_PADDED_HEADER	(NFR_WIRE_MIN + 8 + 8 + NFR_WIRE_SEGMENT)

/* Largest data of a Call with padding, in bytes: the nfr_link.own of a connection */
static u32 *nfr_client_padded_most(const struct nfr_link *link)
{
	return (u32 *)&link->own;
}

/* Largest data that the Reply may have behind padding, in bytes: the nfr_req.own of a Call */
static u32 *nfr_client_padded_offered(const struct nfr_req *req)
{
	return (u32 *)req->own;
}

/* --- sending --- */

/*
 * Check that @length bytes of data suit a message with padding, as do @rest other bytes.
 * Messages without padding have @size bytes.
 */
static bool nfr_client_padded_suits(const struct nfr_conn *conn, const struct rpc_rqst *rqst,
				    u32 size, u32 length, u32 rest)
{
	u32 most = *nfr_client_padded_most(nfr_client_link_of(conn));

	return length >= nfr_padded_thresh(size) && length <= most &&
	       length < conn->wanted.min_chunk && nfr_client_may_reduce(rqst) &&
	       NFR_PADDED_HEADER + rest <= NFR_PADDED_ALIGN;
}

static bool nfr_client_padded_suits_call(const struct nfr_conn *conn, const struct rpc_rqst *rqst)
{
	const struct xdr_buf *snd = &rqst->rq_snd_buf, *rcv = &rqst->rq_rcv_buf;

	return (snd->flags & XDRBUF_WRITE) && !rcv->page_len &&
	       rcv->buflen <= nfr_client_inline_reply_room(conn) &&
	       nfr_client_padded_suits(conn, rqst, conn->send_size, snd->page_len,
				       snd->len - snd->page_len);
}

static bool nfr_client_padded_suits_reply(const struct nfr_conn *conn, const struct rpc_rqst *rqst)
{
	const struct xdr_buf *snd = &rqst->rq_snd_buf, *rcv = &rqst->rq_rcv_buf;
	u32 header = NFR_WIRE_MIN + 8 + NFR_WIRE_SEGMENT;

	return (rcv->flags & XDRBUF_READ) && !(rcv->flags & XDRBUF_SPARSE_PAGES) &&
	       !snd->page_len && header + snd->len <= conn->send_size &&
	       nfr_client_padded_suits(conn, rqst, conn->recv_size, rcv->page_len,
				       rcv->buflen - rcv->page_len);
}

/* Build the message in the bounce buffer, which is large enough. */
static void nfr_client_padded_build(const struct nfr_conn *conn, struct nfr_req *req,
				    const struct nfr_header *head, const struct kvec *tail)
{
	struct nfr_padding padding = {
		.align = NFR_PADDED_ALIGN, .thresh = nfr_padded_thresh(conn->send_size),
	};
	const struct xdr_buf *snd = &req->rqst.rq_snd_buf;
	u8 *start = req->buffers[NFR_BUFFER_BOUNCE]->data, *at = start;

	at += nfr_wire_padded_encode(head, &padding, at, NFR_PADDED_HEADER);
	memcpy(at, snd->head[0].iov_base, snd->head[0].iov_len);
	at += snd->head[0].iov_len;
	memcpy(at, tail->iov_base, tail->iov_len);
	at += tail->iov_len;
	/* earlier messages must not show through */
	memset(at, 0, start + NFR_PADDED_ALIGN - at);
	at = start + NFR_PADDED_ALIGN;
	_copy_from_pages(at, snd->pages, snd->page_base, snd->page_len);
	memset(at + snd->page_len, 0, xdr_pad_size(snd->page_len));
	req->nx->counters.pullup_bytes += snd->len;
	trace_nfsrdma_pullup(&req->rqst, snd->len);
}

static bool nfr_client_padded_buffer(struct nfr_conn *conn, struct nfr_req *req, u32 length)
{
	u32 size = max_t(u32, conn->send_size, roundup_pow_of_two(length));

	return nfr_client_buffer_get(req, NFR_BUFFER_BOUNCE, length, size, rpc_task_gfp_mask());
}

/* Send a Call with its data behind padding. */
static int nfr_client_padded_call(struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	const struct xdr_buf *snd = &rqst->rq_snd_buf;
	u32 pad = min_t(u32, snd->tail[0].iov_len, xdr_pad_size(snd->page_len));
	struct kvec tail = {
		.iov_base = snd->tail[0].iov_base + pad, .iov_len = snd->tail[0].iov_len - pad,
	};
	struct nfr_segment seg = {
		.length = snd->page_len, .offset = snd->head[0].iov_len + tail.iov_len,
	};
	struct nfr_chunk chunk = {
		.position = snd->head[0].iov_len, .nsegs = 1, .segs = &seg,
	};
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .credits = conn->wanted.credits,
		.proc = NFR_MSGP, .reads = &chunk, .nreads = 1,
	};
	u32 length = NFR_PADDED_ALIGN + xdr_align_size(snd->page_len);
	int rc;

	if (!nfr_client_padded_buffer(conn, req, length))
		return -ENOBUFS;
	*nfr_client_padded_offered(req) = 0;
	trace_nfsrdma_marshal(conn, rqst, NFR_BEHIND_PADDING, NFR_INLINE, 0);
	nfr_client_padded_build(conn, req, &head, &tail);
	rc = nfr_client_send_bounce(conn, req, head.xid, length);
	if (!rc) {
		req->nx->counters.padded_calls++;
		req->nx->counters.padded_bytes += snd->page_len;
	}
	return rc;
}

/* Send a Call whose Reply may have its data behind padding. */
static int nfr_client_padded_offer(struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	struct nfr_segment seg = { .length = rqst->rq_rcv_buf.page_len };
	struct nfr_chunk chunk = { .nsegs = 1, .segs = &seg };
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .credits = conn->wanted.credits,
		.proc = NFR_MSG, .writes = &chunk, .nwrites = 1,
	};

	*nfr_client_padded_offered(req) = seg.length;
	trace_nfsrdma_marshal(conn, rqst, NFR_INLINE, NFR_BEHIND_PADDING, 0);
	return nfr_client_send(conn, req, &head, &rqst->rq_snd_buf, false);
}

static int nfr_client_padded_marshal(struct nfr_conn *conn, struct nfr_req *req)
{
	req->write_length = 0;
	req->reply_length = 0;
	if (nfr_client_padded_suits_call(conn, &req->rqst))
		return nfr_client_padded_call(conn, req);
	if (nfr_client_padded_suits_reply(conn, &req->rqst))
		return nfr_client_padded_offer(conn, req);
	*nfr_client_padded_offered(req) = 0;
	return nfr_client_marshal(conn, req);
}

/* --- receiving --- */

/* Copy the data to the pages of the caller. Returns its length with padding, or -EIO. */
static int nfr_client_padded_place(struct nfr_req *req, const struct nfr_padded *data,
				   const u8 *from)
{
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 base = rcv->page_base, left = data->length;

	/* the Call made no such offer; or the RPC message has no header */
	if (left > *nfr_client_padded_offered(req) || left > rcv->page_len || !data->rpc_length)
		return -EIO;
	while (left) {
		u32 n = min_t(u32, left, PAGE_SIZE - offset_in_page(base));

		memcpy_to_page(rcv->pages[base >> PAGE_SHIFT], offset_in_page(base), from, n);
		from += n;
		base += n;
		left -= n;
	}
	req->nx->counters.fixup_bytes += data->length;
	req->nx->counters.padded_replies++;
	req->nx->counters.padded_bytes += data->length;
	return xdr_align_size(data->length);
}

static void nfr_client_padded_reply(struct nfr_conn *conn, struct nfr_recv *recv,
				    const struct nfr_header *head, u32 size,
				    const struct nfr_padded *data)
{
	struct nfr_req *req = nfr_client_reply_find(conn, recv, head);

	if (req) {
		req->rpc = recv->data + size;
		req->rpc_length = data->rpc_length;
		req->result = nfr_client_padded_place(req, data, recv->data + data->offset);
		nfr_client_reply_finish(conn, req);
	} else {
		nfr_client_reply_discard(conn, recv, head->xid);
	}
	conn->ops->writable(conn);
}

static void nfr_client_padded_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_link *link = nfr_client_link_of(conn);
	struct nfr_space space = {
		.chunks = link->chunks, .nchunks = NFR_DECODE_CHUNKS,
		.segs = link->segs, .nsegs = NFR_DECODE_SEGS,
	};
	struct nfr_header head = { };
	struct nfr_padding padding;
	struct nfr_padded data;
	int size, rc;

	if (!nfr_wire_is_padded(recv->data, recv->length)) {
		nfr_client_receive(conn, recv);
		return;
	}
	size = nfr_wire_padded_decode(&head, &padding, &space, recv->data, recv->length);
	rc = size;
	if (rc >= 0)
		rc = nfr_wire_padded_find(&data, &head, &padding, size, recv->length);
	/* a Read list is that of a Call, and no callback has data */
	if (!rc && (head.nreads || padding.align != NFR_PADDED_ALIGN))
		rc = -EBADMSG;
	if (rc)
		nfr_client_reply_malformed(conn, recv, head.xid, rc);
	else
		nfr_client_padded_reply(conn, recv, &head, size, &data);
}

static int nfr_client_padded_agree(struct nfr_link *link)
{
	*nfr_client_padded_most(link) = min(link->conn.wanted.padded_max,
			   nfr_padded_limit(link->conn.peer.capabilities));
	return 0;
}

static void nfr_client_padded_fit(struct nfr_conn *conn)
{
	nfr_conn_recv_align(conn);
	conn->profile.offers = nfr_padded_capability(conn->profile.recv_data);
}

static void nfr_client_padded_show(const struct nfr_link *link, struct seq_file *seq)
{
	seq_printf(seq, "padded_send %u\npadded_recv %u\n", *nfr_client_padded_most(link),
		   link->conn.profile.recv_data);
}

const struct nfr_client_personality nfr_client_padded = {
	.number		= NFR_PADDED,
	.request_size	= sizeof(u32),
	.ops		= &nfr_client_conn_ops,
	.fit		= nfr_client_padded_fit,
	.agree		= nfr_client_padded_agree,
	.show		= nfr_client_padded_show,
	.marshal	= nfr_client_padded_marshal,
	.receive	= nfr_client_padded_receive,
	.send		= nfr_client_send,
};
