// SPDX-License-Identifier: GPL-2.0-only
/*
 * Split a Reply: results move in Write chunks, the rest is inline or in the
 * Reply chunk (RFC 8166, sections 3.4.6 and 3.5.3). This file prepares the RDMA
 * Writes, which are posted together with the Send.
 */
#include <linux/sunrpc/xdr.h>

#include "server/server.h"
#include "observe/trace_server.h"

/**
 * nfr_reply_results_fit - check that each result fits into its Write chunk and the Reply
 * @req: request with the results that nfsd encoded
 * @length: length of the unreduced Reply in bytes
 *
 * Return: true if all results fit.
 */
bool nfr_reply_results_fit(const struct nfr_svc_req *req, u32 length)
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

static bool nfr_word_is(const struct xdr_buf *res, u32 offset, u32 value)
{
	u32 word;

	return !xdr_decode_word(res, offset, &word) && word == value;
}

/**
 * nfr_reply_place_results - determine the offsets of the results
 * @req: request
 * @res: Reply
 *
 * The length word of an opaque directly precedes its data. For READLINK of
 * NFSv4, nfsd passes the offset of the length word; for all other results, the
 * offset of the data. Results that nfsd truncated, because the Reply became too
 * long, are dropped.
 */
void nfr_reply_place_results(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	u32 i;

	for (i = 0; i < req->nresults; i++) {
		struct nfr_result *result = &req->results[i];

		if (result->offset < 4 || result->offset > res->len)
			break;
		if (!nfr_word_is(res, result->offset - 4, result->length)) {
			if (!nfr_word_is(res, result->offset, result->length))
				break;
			result->offset += 4;
		}
		if (result->length > res->len - result->offset)
			break;
	}
	req->nresults = i;
}

/* --- the message without its results --- */

typedef int (*nfr_part_fn)(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			   u32 length, void *arg);

/* Call @each for every part of the message outside the results and their XDR padding. */
static int nfr_reply_parts(struct nfr_svc_req *req, const struct xdr_buf *res, nfr_part_fn each,
			   void *arg)
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

static int nfr_part_count(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			  u32 length, void *arg)
{
	*(u32 *)arg += length;
	return 0;
}

static int nfr_part_copy(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			 u32 length, void *arg)
{
	u8 **at = arg;
	int rc = read_bytes_from_xdr_buf(res, offset, *at, length);

	*at += length;
	return rc;
}

static int nfr_reply_span(const struct xdr_buf *res, u32 offset, u32 length, struct nfr_span *span)
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

static int nfr_part_write(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset,
			  u32 length, void *arg)
{
	struct nfr_span span;

	return nfr_reply_span(res, offset, length, &span) ?:
	       nfr_rw_add(req, arg, &span, length, DMA_TO_DEVICE);
}

/* --- chunks --- */

/* Set the segment lengths of a returned chunk to the bytes that the server wrote. */
static void nfr_chunk_used(struct nfr_chunk *chunk, u32 length)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		chunk->segs[i].length = min(chunk->segs[i].length, length);
		length -= chunk->segs[i].length;
	}
}

/**
 * nfr_reply_write_list - prepare RDMA Writes for the results
 * @req: request; its Write list is updated for the Reply
 * @res: Reply
 *
 * Return: 0 or a negative errno.
 */
int nfr_reply_write_list(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	u32 i, length;
	int rc;

	for (i = 0; i < req->head.nwrites; i++) {
		struct nfr_cursor cursor = { .chunk = &req->head.writes[i] };

		length = i < req->nresults ? req->results[i].length : 0;
		rc = length ? nfr_part_write(req, res, req->results[i].offset, length, &cursor) : 0;
		if (rc)
			return rc;
		trace_nfsrdma_svc_chunk(req, "write", &req->head.writes[i], length);
		nfr_chunk_used(&req->head.writes[i], length);
		nfr_svc_count(req->svc, write_chunks, length != 0);
		nfr_svc_count(req->svc, write_bytes, length);
	}
	return 0;
}

/**
 * nfr_reply_by_chunk - prepare RDMA Writes of the remaining message to the Reply chunk
 * @req: request with a sufficient Reply chunk
 * @res: Reply
 * @length: length of the Reply without its results, in bytes
 *
 * Return: 0 or a negative errno.
 */
int nfr_reply_by_chunk(struct nfr_svc_req *req, const struct xdr_buf *res, u32 length)
{
	struct nfr_cursor cursor = { .chunk = req->head.reply };
	int rc = nfr_reply_parts(req, res, nfr_part_write, &cursor);

	if (rc)
		return rc;
	trace_nfsrdma_svc_chunk(req, "reply", req->head.reply, length);
	nfr_chunk_used(req->head.reply, length);
	nfr_svc_count(req->svc, reply_chunks, 1);
	nfr_svc_count(req->svc, reply_bytes, length);
	return 0;
}

/**
 * nfr_reply_rest - compute the length of the Reply without results and their padding
 * @req: request
 * @res: Reply
 *
 * Return: length in bytes.
 */
u32 nfr_reply_rest(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	u32 length = 0;

	nfr_reply_parts(req, res, nfr_part_count, &length);
	return length;
}

/**
 * nfr_reply_inline - copy the remaining message behind the header
 * @req: request with a sufficient send buffer
 * @offset: length of the header in bytes
 * @res: Reply
 *
 * Return: 0 or a negative errno.
 */
int nfr_reply_inline(struct nfr_svc_req *req, u32 offset, const struct xdr_buf *res)
{
	u8 *at = req->buffer + offset;

	if (req->head.reply)
		nfr_chunk_used(req->head.reply, 0);
	return nfr_reply_parts(req, res, nfr_part_copy, &at);
}
