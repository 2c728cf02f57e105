// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality padded: data of some pages moves in the message (wire/padded.c), behind
 * zeros up to NFR_PADDED_ALIGN, and needs neither a registration nor an RDMA Read or
 * Write.
 *
 * Call: the data begins with a page of its receive, and nfsd gets that page and those
 * behind it as it gets pages that RDMA Reads filled. The receive stays in use until
 * the Reply.
 *
 * Reply: a Write chunk with handle 0 says how much data the client has room for. The
 * device takes the data from the pages of the Reply.
 *
 * Everything else is version 1.
 */
#include <linux/sunrpc/xdr.h>

#include "connection/queues.h"
#include "memory/region.h"
#include "observe/trace_server.h"
#include "params.h"
#include "personality/padded.h"
#include "server/branch.h"
#include "server/call.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/threadless/threadless.h"

/* Longest header of a Reply: one Write chunk of one segment */
#define NFR_SVC_PADDED_HEADER	(NFR_WIRE_MIN + 8 + 8 + NFR_WIRE_SEGMENT)

/* Elements of a Reply beyond one per page of data: the head, and data that is not aligned */
#define NFR_SVC_PADDED_SPARE	2

/*
 * struct nfr_svc_padding - what a connection has for this personality: its nfr_svc.own
 * @most: largest data of a Reply with padding, in bytes
 * @pages: pages of receives, charged to the limit of all connections
 */
struct nfr_svc_padding {
	u32 most;
	u32 pages;
};

static struct nfr_svc_padding *nfr_svc_padding(const struct nfr_svc *svc)
{
	BUILD_BUG_ON(sizeof(struct nfr_svc_padding) > sizeof(svc->own));
	return nfr_svc_own(svc);
}

/* The data of a Call with padding; its length is 0 if there is none */
static struct nfr_padded *nfr_svc_padded_data(struct nfr_svc_req *req)
{
	return (struct nfr_padded *)req->own;
}

/* --- receives --- */

static atomic_t nfr_svc_padded_in_use;

/*
 * Charge the receives that a connection may have: all connections together may have receives of
 * as much memory as RDMA Reads.
 */
static int nfr_svc_padded_agree(struct nfr_svc *svc, const struct rdma_conn_param *param)
{
	struct nfr_conn *conn = svc->conn;
	u32 receives = conn->wanted.credits + NFR_QUEUE_SPARE;
	u32 pages;

	nfr_conn_recv_align(conn);
	pages = receives * (1 + (conn->profile.recv_data >> PAGE_SHIFT));
	if (atomic_add_return(pages, &nfr_svc_padded_in_use) > nfr_params_server_pages()) {
		atomic_sub(pages, &nfr_svc_padded_in_use);
		conn->profile.recv_data = 0;
		return -ENOMEM;
	}
	nfr_svc_padding(svc)->pages = pages;
	return 0;
}

static void nfr_svc_padded_destroy(struct nfr_svc *svc)
{
	atomic_sub(nfr_svc_padding(svc)->pages, &nfr_svc_padded_in_use);
}

static void nfr_svc_padded_show(const struct nfr_svc *svc, struct seq_file *seq)
{
	seq_printf(seq, "padded_send %u\npadded_recv %u\n", nfr_svc_padding(svc)->most,
		   svc->conn->profile.recv_data);
}

static void nfr_svc_padded_totals(struct seq_file *seq)
{
	seq_printf(seq, "padded_pages %u of %u\n", atomic_read(&nfr_svc_padded_in_use),
		   nfr_params_server_pages());
}

/*
 * Set how much data a Reply may have behind padding. The client learns this limit, because it
 * asks for no more: a longer Reply could not be sent.
 */
static int nfr_svc_padded_fit(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	u32 entries = conn->profile.send_sges;
	u32 most = min(conn->wanted.padded_max, nfr_padded_limit(conn->peer.capabilities));

	entries -= min_t(u32, entries, NFR_SVC_PADDED_SPARE);
	nfr_svc_padding(svc)->most = min_t(u32, most, entries << PAGE_SHIFT);
	conn->profile.offers = nfr_padded_capability(nfr_svc_padding(svc)->most);
	return 0;
}

/* --- Calls --- */

/* Check the message, and find its data. */
static bool nfr_svc_padded_check(struct nfr_svc_req *req)
{
	const struct nfr_recv *recv = req->recv;
	struct nfr_header *head = &req->head;
	struct nfr_padded *data = nfr_svc_padded_data(req);
	struct nfr_padding padding;
	struct nfr_space space = {
		.chunks = req->chunks, .nchunks = NFR_SVC_CHUNKS,
		.segs = req->segs, .nsegs = NFR_SVC_SEGS,
	};
	int size;

	size = nfr_wire_padded_decode(head, &padding, &space, recv->data, recv->length);
	if (size < 0 || nfr_wire_padded_find(data, head, &padding, size, recv->length))
		return false;
	/* at another offset, the data would not begin with a page */
	if (padding.align != NFR_PADDED_ALIGN || !head->nreads)
		return false;
	req->rpc = recv->data + size;
	req->rpc_length = data->rpc_length;
	return data->rpc_length >= 8 && get_unaligned_be32(req->rpc) == head->xid &&
	       nfr_wire_is_call(req->rpc, req->rpc_length) &&
	       nfr_svc_read_check(req, req->svc->max_message);
}

static void nfr_svc_padded_receive(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	if (!nfr_wire_is_padded(req->recv->data, req->recv->length)) {
		nfr_svc_padded_data(req)->length = 0;
		nfr_svc_version1_receive(req);
		return;
	}
	if (!nfr_svc_padded_check(req)) {
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
		return;
	}
	nfr_svc_count(svc, calls, 1);
	nfr_svc_count(svc, padded_calls, 1);
	nfr_svc_count(svc, padded_bytes, nfr_svc_padded_data(req)->length);
	trace_nfsrdma_svc_call(req);
	/* the chunk named the data, and nothing has to be read */
	req->head.nreads = 0;
	nfr_svc_advance(req, NFR_SVC_READY);
}

/*
 * Pass a Call to an nfsd thread, as nfr_svc_recvfrom() does, with data in the pages of
 * its receive. Up to Linux 6.14, nfsd takes data in pages from the start of the first.
 */
static int nfr_svc_padded_recvfrom(struct svc_rqst *rqstp)
{
	int length = nfr_svc_recvfrom(rqstp);
	struct nfr_svc_req *req = rqstp->rq_xprt_ctxt;
	struct xdr_buf *arg = &rqstp->rq_arg;
	const struct nfr_padded *data;

	if (length <= 0 || !nfr_svc_padded_data(req)->length)
		return length;
	data = nfr_svc_padded_data(req);
	arg->head[0].iov_len = data->position;
	arg->pages = req->recv->pages;
	arg->page_len = xdr_align_size(data->length);
	arg->tail[0].iov_base = (void *)req->rpc + data->position;
	arg->tail[0].iov_len = req->rpc_length - data->position;
	arg->len = req->rpc_length + arg->page_len;
	arg->buflen = arg->len;
	return arg->len;
}

static struct svc_xprt_ops nfr_svc_padded_ops __ro_after_init;

/* One operation differs from those of other connections. */
static int nfr_svc_padded_start(const struct svc_xprt_ops *ops)
{
	nfr_svc_padded_ops = *ops;
	nfr_svc_padded_ops.xpo_recvfrom = nfr_svc_padded_recvfrom;
	return 0;
}

static void nfr_svc_padded_establish(struct nfr_svc *svc)
{
	svc->first->xprt.xpt_ops = &nfr_svc_padded_ops;
}

/* --- Replies --- */

/* Check whether the client has room for data behind padding. */
static bool nfr_svc_padded_is_offered(const struct nfr_svc_req *req)
{
	const struct nfr_header *head = &req->head;

	return head->nwrites == 1 && head->writes->nsegs == 1 && !head->writes->segs[0].handle;
}

/* Prepare the head of the Reply in the buffer, up to the data. */
static int nfr_svc_padded_head(struct nfr_svc_req *req, const struct xdr_buf *res, u32 rest)
{
	const struct nfr_result *result = req->results;
	struct nfr_padding padding = {
		.align = NFR_PADDED_ALIGN,
		.thresh = min(nfr_padded_thresh(req->svc->conn->send_size), result->length),
	};
	/* a copy: if the Reply cannot be prepared, the Call goes on to nfsd with what it offered */
	struct nfr_segment segment = { .length = result->length, .offset = rest };
	struct nfr_chunk chunk = { .nsegs = 1, .segs = &segment };
	struct nfr_header head = {
		.xid = req->head.xid, .credits = READ_ONCE(req->svc->grant), .proc = NFR_MSGP,
		.nwrites = 1, .writes = &chunk,
	};
	u8 *buffer = req->buffer;
	int size, rc;

	size = nfr_wire_padded_encode(&head, &padding, buffer, NFR_PADDED_ALIGN - rest);
	if (size < 0)
		return size;
	rc = nfr_svc_reply_inline(req, res, size);
	if (rc)
		return rc;
	trace_nfsrdma_svc_reply(req, &head, rest);
	/* earlier Replies must not show through */
	memset(buffer + size + rest, 0, NFR_PADDED_ALIGN - size - rest);
	return 0;
}

static int nfr_svc_padded_gather(struct nfr_svc_req *req, const struct xdr_buf *res, u32 rest)
{
	u32 length = req->results[0].length;
	struct nfr_span span;
	int rc;

	rc = nfr_svc_reply_span(res, req->results->offset, req->results->length, &span);
	if (!rc)
		rc = nfr_svc_gather_get(req, 1, nfr_mem_span_regions(&span, 1));
	if (!rc)
		rc = nfr_svc_gather_add(req, &span, true, length);
	return rc ?: nfr_svc_padded_head(req, res, rest);
}

/* Send a Reply without data, or with little, in a message of version 1. */
static int nfr_svc_padded_reply_plain(struct nfr_svc_req *req, const struct xdr_buf *res,
				      struct svc_rqst *rqstp)
{
	req->nresults = 0;
	req->head.nwrites = 0;
	return nfr_svc_reply(req, res, rqstp);
}

static int nfr_svc_padded_reply(struct nfr_svc_req *req, const struct xdr_buf *res,
				struct svc_rqst *rqstp)
{
	struct nfr_svc *svc = req->svc;
	u32 rest = 0, length;
	int rc;

	if (!nfr_svc_padded_is_offered(req))
		return nfr_svc_reply(req, res, rqstp);
	rc = nfr_svc_reply_split(req, res, &rest);
	if (rc)
		return rc;
	length = req->nresults ? req->results[0].length : 0;
	if (!length || (length < nfr_padded_thresh(svc->conn->send_size) &&
			NFR_WIRE_MIN + res->len <= svc->conn->send_size))
		return nfr_svc_padded_reply_plain(req, res, rqstp);
	if (length > nfr_svc_padding(svc)->most || req->head.reply || NFR_SVC_PADDED_HEADER + rest >
	    NFR_PADDED_ALIGN)
		return -EMSGSIZE;
	rc = nfr_svc_padded_gather(req, res, rest);
	if (rc) {
		nfr_svc_gather_release(req);
		return rc;
	}
	req->by_chunk = false;
	nfr_svc_count(svc, padded_replies, 1);
	nfr_svc_count(svc, padded_bytes, length);
	nfr_svc_gather_finish(req, rqstp, NFR_PADDED_ALIGN, length);
	return 0;
}

const struct nfr_svc_personality nfr_svc_padded = {
	.number		= NFR_PADDED,
	.request_size	= sizeof(struct nfr_padded),
	.invalidates	= true,
	.conn		= NFR_SVC_FIRST_OPS(nfr_svc_writable),
	.start		= nfr_svc_padded_start,
	.totals		= nfr_svc_padded_totals,
	.agree		= nfr_svc_padded_agree,
	.fit		= nfr_svc_padded_fit,
	.establish	= nfr_svc_padded_establish,
	.destroy	= nfr_svc_padded_destroy,
	.show		= nfr_svc_padded_show,
	.receive	= nfr_svc_padded_receive,
	.threadless	= nfr_svc_threadless_read,
	.inspect	= nfr_svc_threadless_inspect,
	.reply		= nfr_svc_padded_reply,
	.refuse		= nfr_svc_reply_error,
	.size		= nfr_wire_size,
	.finish		= nfr_svc_req_finish,
};
