// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way of a Reply: choose how its parts are conveyed, and prepare the chain of
 * work requests (RFC 8166, sections 3.4.6, 3.5.3 and 4.5). Results move in Write
 * chunks, the rest is inline or in the Reply chunk.
 *
 * All checks precede the first RDMA Write to memory of the client. The RDMA
 * Writes and the Send, from a buffer of the request, are posted with one
 * doorbell.
 */
#include <linux/sunrpc/xdr.h>

#include "memory/region.h"
#include "observe/trace_server.h"
#include "server/call.h"
#include "server/pages.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/short.h"

/* --- results --- */

/**
 * nfr_svc_result_payload - record a DDP-eligible result (svc_xprt_ops.xpo_result_payload)
 * @rqstp: nfsd thread's request
 * @offset: offset of the result in the Reply, in bytes
 * @length: length of the result in bytes, without padding
 *
 * The n-th result belongs to the n-th Write chunk: RFC 8267, section 2.
 *
 * Return: 0.
 */
int nfr_svc_result_payload(struct svc_rqst *rqstp, unsigned int offset, unsigned int length)
{
	struct nfr_svc_req *req = rqstp->rq_xprt_ctxt;

	if (!req || req->nresults == min_t(u32, req->head.nwrites, NFR_SVC_RESULTS))
		return 0;
	req->results[req->nresults++] = (struct nfr_result) {
		.offset = offset, .length = length,
	};
	return 0;
}

/* krb5i and krb5p wrap the whole message, so that no part of it is DDP-eligible. */
static __always_inline bool nfr_svc_reply_is_wrapped(const struct svc_rqst *rqstp)
{
	u32 flavor = rqstp->rq_cred.cr_flavor;

	return flavor == RPC_AUTH_GSS_KRB5I || flavor == RPC_AUTH_GSS_KRB5P;
}

/*
 * Check that each result fits into its Write chunk, and into the unreduced Reply of
 * @length bytes.
 */
static __always_inline bool nfr_svc_reply_results_fit(const struct nfr_svc_req *req, u32 length)
{
	u32 i, at = 0;

	for (i = 0; i < req->nresults; i++) {
		const struct nfr_result *result = &req->results[i];

		if (result->length > nfr_wire_length(&req->head.writes[i]))
			return false;
		/* verify nfsd's offsets as well: they decide which memory the client receives */
		if (result->offset < at || result->offset > length ||
		    result->length > length - result->offset)
			return false;
		at = min(result->offset + xdr_align_size(result->length), length);
	}
	return true;
}

static bool nfr_svc_word_is(const struct xdr_buf *res, u32 offset, u32 value)
{
	u32 word;

	return !xdr_decode_word(res, offset, &word) && word == value;
}

/**
 * nfr_svc_reply_results - determine which results of a Reply may move in chunks
 * @req: request
 * @rqstp: nfsd thread's request with the Reply in rq_res
 *
 * The length word of an opaque directly precedes its data. For READLINK of NFSv4, nfsd passes
 * the offset of the length word; for all other results, the offset of the data. Results that
 * nfsd truncated, because the Reply became too long, are dropped.
 */
void nfr_svc_reply_results(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	const struct xdr_buf *res = &rqstp->rq_res;
	u32 i;

	if (nfr_svc_reply_is_wrapped(rqstp))
		req->nresults = 0;
	for (i = 0; i < req->nresults; i++) {
		struct nfr_result *result = &req->results[i];

		if (result->offset < 4 || result->offset > res->len)
			break;
		if (!nfr_svc_word_is(res, result->offset - 4, result->length)) {
			if (!nfr_svc_word_is(res, result->offset, result->length))
				break;
			result->offset += 4;
		}
		if (result->length > res->len - result->offset)
			break;
	}
	req->nresults = i;
}

/* --- the message without its results --- */

typedef int (*nfr_svc_part_fn)(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			       u32 length, void *arg);

/* Call @each for every part of the message outside the results and their XDR padding. */
static __always_inline int nfr_svc_reply_parts(struct nfr_svc_req *req, const struct xdr_buf *res,
					       nfr_svc_part_fn each, void *arg)
{
	u32 i, at = 0;
	int rc = 0;

	for (i = 0; i < req->nresults && !rc; i++) {
		rc = each(req, res, at, req->results[i].offset - at, arg);
		at = req->results[i].offset + xdr_align_size(req->results[i].length);
		at = min_t(u32, at, res->len);
	}
	return rc ?: each(req, res, at, res->len - at, arg);
}

static int nfr_svc_part_count(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			      u32 length, void *arg)
{
	*(u32 *)arg += length;
	return 0;
}

static int nfr_svc_part_copy(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			     u32 length, void *arg)
{
	u8 **at = arg;
	int rc = read_bytes_from_xdr_buf(res, offset, *at, length);

	*at += length;
	return rc;
}

/**
 * nfr_svc_reply_span - get the memory of a part of a Reply
 * @res: Reply
 * @offset: offset of the part in the Reply, in bytes
 * @length: its length in bytes
 * @span: output
 *
 * Return: 0, or -EIO if the Reply is shorter.
 */
int nfr_svc_reply_span(const struct xdr_buf *res, u32 offset, u32 length, struct nfr_span *span)
{
	struct xdr_buf part;

	if (xdr_buf_subsegment(res, &part, offset, length))
		return -EIO;
	*span = (struct nfr_span) {
		.head = part.head[0], .pages = part.pages, .page_base = part.page_base,
		.page_len = part.page_len, .tail = part.tail[0],
	};
	return 0;
}

static int nfr_svc_part_write(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			      u32 length, void *arg)
{
	struct nfr_span span;

	return nfr_svc_reply_span(res, offset, length, &span) ?:
	       nfr_mem_transfer_add(&req->transfer, arg, &span, length, DMA_TO_DEVICE);
}

/* --- chunks --- */

/**
 * nfr_svc_chunk_used - set the segment lengths of a returned chunk to what they convey
 * @chunk: chunk of the client
 * @length: length of its data in bytes
 */
void nfr_svc_chunk_used(struct nfr_chunk *chunk, u32 length)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		chunk->segs[i].length = min(chunk->segs[i].length, length);
		length -= chunk->segs[i].length;
	}
}

/* Prepare RDMA Writes for the results, and update the Write list for the Reply. */
static int nfr_svc_reply_write_list(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	u32 i, length;
	int rc = 0;

	for (i = 0; i < req->head.nwrites; i++) {
		struct nfr_cursor cursor = { .chunk = &req->head.writes[i] };

		length = i < req->nresults ? req->results[i].length : 0;
		if (length)
			rc = nfr_svc_part_write(req, res, req->results[i].offset, length, &cursor);
		if (rc)
			return rc;
		trace_nfsrdma_svc_chunk(req, "write", &req->head.writes[i], length);
		nfr_svc_chunk_used(&req->head.writes[i], length);
		nfr_svc_count(req->svc, write_chunks, length != 0);
		nfr_svc_count(req->svc, write_bytes, length);
	}
	return 0;
}

/* Prepare RDMA Writes of the rest, @length bytes, to the Reply chunk. */
static int nfr_svc_reply_by_chunk(struct nfr_svc_req *req, const struct xdr_buf *res, u32 length)
{
	struct nfr_cursor cursor = { .chunk = req->head.reply };
	int rc = nfr_svc_reply_parts(req, res, nfr_svc_part_write, &cursor);

	if (rc)
		return rc;
	trace_nfsrdma_svc_chunk(req, "reply", req->head.reply, length);
	nfr_svc_chunk_used(req->head.reply, length);
	nfr_svc_count(req->svc, reply_chunks, 1);
	nfr_svc_count(req->svc, reply_bytes, length);
	return 0;
}

/* Compute the length of the Reply without results and their padding. */
static __always_inline u32 nfr_svc_reply_rest(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	u32 length = 0;

	nfr_svc_reply_parts(req, res, nfr_svc_part_count, &length);
	return length;
}

/**
 * nfr_svc_reply_inline - copy a Reply without its results to the buffer of the request
 * @req: request, whose results are known
 * @res: Reply
 * @offset: length of the header in bytes
 *
 * Return: 0 or a negative errno.
 */
int nfr_svc_reply_inline(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset)
{
	u8 *at = req->buffer + offset;

	if (req->head.reply)
		nfr_svc_chunk_used(req->head.reply, 0);
	return nfr_svc_reply_parts(req, res, nfr_svc_part_copy, &at);
}

/* --- the chain --- */

/* Collect the key of a chunk. Returns false if the chunk has a key other than @found. */
static bool nfr_svc_reply_one_key(const struct nfr_chunk *chunk, const struct nfr_segment **found)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		if (*found && (*found)->handle != chunk->segs[i].handle)
			return false;
		*found = &chunk->segs[i];
	}
	return true;
}

/*
 * Get the only key of a Call, or NULL. If there are several, the client has to
 * invalidate the others itself and can do so with one chain: do not invalidate
 * any (RFC 8797, section 4).
 */
static const struct nfr_segment *nfr_svc_reply_only_key(const struct nfr_header *head)
{
	const struct nfr_segment *found = NULL;
	bool one = !head->reply || nfr_svc_reply_one_key(head->reply, &found);
	u32 i;

	for (i = 0; one && i < head->nwrites; i++)
		one = nfr_svc_reply_one_key(&head->writes[i], &found);
	for (i = 0; one && i < head->nreads; i++)
		one = nfr_svc_reply_one_key(&head->reads[i], &found);
	return one ? found : NULL;
}

static void nfr_svc_reply_invalidate(struct nfr_svc_req *req)
{
	const struct nfr_segment *key = nfr_svc_reply_only_key(&req->head);

	if (!req->svc->conn->profile.private.remote_invalidation || !key)
		return;
	req->send.opcode = IB_WR_SEND_WITH_INV;
	req->send.ex.invalidate_rkey = key->handle;
	nfr_svc_count(req->svc, remote_invs, 1);
}

/**
 * nfr_svc_reply_error - prepare an RDMA_ERROR
 * @req: request, which no nfsd thread uses
 * @error: error code
 *
 * Return: 0, or a negative errno if the connection breaks instead.
 */
int nfr_svc_reply_error(struct nfr_svc_req *req, enum nfr_error error)
{
	struct nfr_header head = {
		.xid = req->head.xid, .credits = READ_ONCE(req->svc->grant), .proc = NFR_ERROR,
		.error = error, .vers_low = NFR_WIRE_VERSION, .vers_high = NFR_WIRE_VERSION,
	};

	nfr_mem_transfer_destroy_all(&req->transfer);
	nfr_svc_count(req->svc, errors, 1);
	trace_nfsrdma_svc_error(req->svc, req->head.xid,
				error == NFR_ERR_VERS ? "ERR_VERS" : "ERR_CHUNK", 0);
	req->send.opcode = IB_WR_SEND;
	return nfr_svc_req_finish(req, &head, nfr_wire_size(&head));
}

/*
 * How a Reply is conveyed: its header of @size bytes, and the rest of the message,
 * @length bytes, behind the header or in the Reply chunk
 */
struct nfr_svc_plan {
	struct nfr_header head;
	u32 size;
	u32 length;
};

/* Get the length of a message that the client receives inline, in bytes. */
static u32 nfr_svc_reply_inline_room(const struct nfr_svc *svc)
{
	if (likely(!svc->long_pages))
		return svc->conn->send_size;
	return min(svc->conn->send_size, nfr_svc_short_limit(svc));
}

/* Returns 0, or -EMSGSIZE if the client provided too little room. */
static int nfr_svc_reply_plan(struct nfr_svc_req *req, const struct xdr_buf *res,
			      struct nfr_svc_plan *plan)
{
	struct nfr_header *head = &plan->head;
	u32 room = nfr_svc_reply_inline_room(req->svc);

	*head = (struct nfr_header) {
		.xid = req->head.xid, .credits = READ_ONCE(req->svc->grant), .proc = NFR_MSG,
		.nwrites = req->head.nwrites, .writes = req->head.writes,
		.reply = req->head.reply,
	};
	plan->size = nfr_wire_size(head);
	req->unlimited = 0;
	if (!nfr_svc_reply_results_fit(req, res->len) || plan->size > room)
		return -EMSGSIZE;
	plan->length = nfr_svc_reply_rest(req, res);
	if (plan->length <= room - plan->size)
		return 0;
	head->proc = NFR_NOMSG;
	return head->reply && nfr_wire_length(head->reply) >= plan->length ? 0 : -EMSGSIZE;
}

/* Length of a message that each client receives, in bytes: RFC 8166, section 3.3.2 */
#define NFR_SVC_EVERYBODY	1024

/* Prepare the RDMA Writes and the message. Returns 0, -ENOMEM or -EIO. */
static int nfr_svc_reply_build(struct nfr_svc_req *req, const struct xdr_buf *res,
			       struct nfr_svc_plan *plan)
{
	bool by_chunk = plan->head.proc == NFR_NOMSG;
	u32 length;
	int rc;

	req->send.opcode = IB_WR_SEND;
	nfr_svc_reply_invalidate(req);
	rc = nfr_svc_reply_write_list(req, res);
	if (!rc)
		rc = by_chunk ? nfr_svc_reply_by_chunk(req, res, plan->length) :
				nfr_svc_reply_inline(req, res, plan->size);
	if (rc)
		return rc;
	req->by_chunk = by_chunk;
	trace_nfsrdma_svc_reply(req, &plan->head, plan->length);
	nfr_svc_count(req->svc, replies, 1);
	nfr_svc_count(req->svc, inline_bytes, by_chunk ? 0 : plan->length);
	length = plan->size + (by_chunk ? 0 : plan->length);
	rc = nfr_svc_req_finish(req, &plan->head, length);
	if (unlikely(req->svc->long_pages) && length > NFR_SVC_EVERYBODY) {
		req->unlimited = length;
		/* its completion tells it from a Send that the client did not receive */
		req->signal = true;
	}
	return rc;
}

/* --- a Reply that is longer than the inline size, to a client without private data --- */

/* Send the whole Reply from its pages, behind the header. */
static int nfr_svc_reply_long_gather(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	struct nfr_span span;
	int rc;

	rc = nfr_svc_reply_span(res, 0, res->len, &span);
	if (!rc)
		rc = nfr_svc_gather_get(req, 1, nfr_mem_span_regions(&span, 1));
	return rc ?: nfr_svc_gather_add(req, &span, true, res->len);
}

/*
 * Prepare a Reply that fits neither its buffer nor a chunk. RFC 8166, section 3.3.2, has a client
 * receive 1024 bytes unless it offers a Reply chunk, but rpcrdma's server sends any Reply inline,
 * and clients that were written for it posted their receives for that. The client did not say how
 * long these are: if one is too short, the connection ends, see short.c. Returns 0 or -EMSGSIZE.
 */
static int nfr_svc_reply_long(struct nfr_svc_req *req, const struct xdr_buf *res,
			      struct svc_rqst *rqstp, struct nfr_svc_plan *plan)
{
	u32 length = plan->size + res->len;
	int rc;

	/* an nfsd thread leaves its pages to the Reply; results would be in the client's chunks */
	if (!rqstp || req->nresults || req->head.reply || length > nfr_svc_short_limit(req->svc))
		return -EMSGSIZE;
	rc = nfr_svc_reply_long_gather(req, res);
	if (rc)
		return rc;
	plan->head.proc = NFR_MSG;
	/* no chunk of the Write list is used: return them empty */
	if (nfr_svc_reply_write_list(req, res) ||
	    nfr_wire_encode(&plan->head, req->buffer, req->svc->conn->send_size) < 0)
		return -EIO;
	trace_nfsrdma_svc_reply(req, &plan->head, res->len);
	nfr_svc_count(req->svc, inline_bytes, res->len);
	req->by_chunk = true;
	req->unlimited = length;
	nfr_svc_gather_finish(req, rqstp, plan->size, res->len);
	return 0;
}

/**
 * nfr_svc_reply - prepare a Reply
 * @req: request, whose results are known
 * @res: Reply
 * @rqstp: nfsd thread's request, or NULL for a threadless read
 *
 * The request keeps or holds the pages that its RDMA Writes use.
 *
 * Return: 0, -EMSGSIZE if the client provided too little room, -ENOMEM or -EIO.
 */
int nfr_svc_reply(struct nfr_svc_req *req, const struct xdr_buf *res, struct svc_rqst *rqstp)
{
	struct nfr_svc_plan plan;
	int rc;

	rc = nfr_svc_reply_plan(req, res, &plan);
	if (rc == -EMSGSIZE && req->svc->long_pages)
		return nfr_svc_reply_long(req, res, rqstp, &plan);
	if (!rc)
		rc = nfr_svc_reply_build(req, res, &plan);
	if (!rc)
		nfr_svc_pages_restore(req, rqstp);
	return rc;
}

/* --- a Reply that is conveyed in messages: by preposted.c and padded.c --- */

/**
 * nfr_svc_reply_split - find the data of a Reply, and the rest
 * @req: request, whose results are known
 * @res: Reply
 * @rest: output, length of the Reply without results and their padding
 *
 * Return: 0, or -EMSGSIZE if the client provided too little room.
 */
int nfr_svc_reply_split(struct nfr_svc_req *req, const struct xdr_buf *res, u32 *rest)
{
	if (!nfr_svc_reply_results_fit(req, res->len))
		return -EMSGSIZE;
	*rest = nfr_svc_reply_rest(req, res);
	return 0;
}
