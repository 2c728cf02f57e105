// SPDX-License-Identifier: GPL-2.0-only
/*
 * Read the parts of a Call that the client conveys in Read chunks (RFC 8166,
 * sections 3.4.5 and 3.5.2).
 *
 * Clients usually send one data item in a Read chunk. It is read into separate
 * pages, where nfsd expects it. Any other Call is assembled in pages as if it
 * had arrived inline: the position-zero Read chunk or the inline part is the
 * frame, and the data items are inserted at their positions, each padded to a
 * multiple of four bytes.
 */
#include <linux/highmem.h>
#include <linux/sunrpc/xdr.h>

#include "memory/span.h"
#include "memory/transfer.h"
#include "server/memory.h"
#include "server/server.h"

/* Length of an RPC Call with empty credentials: RFC 5531, section 9 */
#define NFR_CALL_MIN	40u

static bool nfr_svc_read_is_nomsg(const struct nfr_svc_req *req)
{
	return req->head.proc == NFR_NOMSG;
}

/* Get the Read chunks of data items: all except the position-zero chunk. */
static u32 nfr_svc_read_items(const struct nfr_svc_req *req, const struct nfr_chunk **items)
{
	u32 skip = nfr_svc_read_is_nomsg(req);

	*items = req->head.reads + skip;
	return req->head.nreads - skip;
}

/* Get the length of the frame. */
static u32 nfr_svc_read_frame(const struct nfr_svc_req *req)
{
	return nfr_svc_read_is_nomsg(req) ? nfr_wire_length(req->head.reads) : req->rpc_length;
}

static bool nfr_svc_read_frame_is_sound(const struct nfr_svc_req *req)
{
	const struct nfr_header *head = &req->head;

	if (nfr_svc_read_is_nomsg(req))
		return head->nreads && !head->reads[0].position && !req->rpc_length;
	return !head->nreads || head->reads[0].position;
}

/**
 * nfr_svc_read_check - check that the Read list is consistent with the message
 * @req: decoded request; the function sets its length to that of the assembled
 *	message
 * @max: maximum message size in bytes
 *
 * Each item has to start within the frame and after the previous item. The RPC
 * header has to precede all of them.
 *
 * Return: true if the Read list is valid.
 */
bool nfr_svc_read_check(struct nfr_svc_req *req, u32 max)
{
	const struct nfr_chunk *items;
	u32 i, n, left, at = 0;
	u64 length;

	if (!nfr_svc_read_frame_is_sound(req))
		return false;
	n = nfr_svc_read_items(req, &items);
	left = nfr_svc_read_frame(req);
	if ((n ? min(items[0].position, left) : left) < NFR_CALL_MIN || left > max)
		return false;
	for (i = 0, length = left; i < n; i++) {
		if (items[i].position < at || items[i].position - at > left)
			return false;
		left -= items[i].position - at;
		at = items[i].position + xdr_align_size(nfr_wire_length(&items[i]));
		length += xdr_align_size((u64)nfr_wire_length(&items[i]));
		if (length > max)
			return false;
	}
	req->length = length;
	return true;
}

/* --- preparing RDMA Reads --- */

static int nfr_svc_read_remote(struct nfr_svc_req *req, struct nfr_cursor *from, u32 to, u32 length)
{
	struct nfr_span span = {
		.pages = req->pages, .page_base = to, .page_len = length,
	};

	return nfr_mem_transfer_add(&req->transfer, from, &span, length, DMA_FROM_DEVICE);
}

static void nfr_svc_read_copy(struct nfr_svc_req *req, const u8 *from, u32 to, u32 length)
{
	u32 n;

	for (; length; length -= n, from += n, to += n) {
		n = min_t(u32, length, PAGE_SIZE - offset_in_page(to));
		memcpy_to_page(req->pages[to >> PAGE_SHIFT], offset_in_page(to), from, n);
	}
}

/* Place the next part of the frame. @from is its offset in the inline message or in the chunk. */
static int nfr_svc_read_frame_part(struct nfr_svc_req *req, struct nfr_cursor *cursor, u32 from,
				   u32 to, u32 length)
{
	if (nfr_svc_read_is_nomsg(req))
		return nfr_svc_read_remote(req, cursor, to, length);
	nfr_svc_read_copy(req, req->rpc + from, to, length);
	return 0;
}

/* Place a data item and its padding, which does not cross a page because @to is a multiple of 4. */
static int nfr_svc_read_item(struct nfr_svc_req *req, const struct nfr_chunk *item, u32 to)
{
	u32 length = nfr_wire_length(item), end = to + length;
	struct nfr_cursor cursor = { .chunk = item };

	if (xdr_pad_size(length))
		memzero_page(req->pages[end >> PAGE_SHIFT], offset_in_page(end),
			     xdr_pad_size(length));
	return nfr_svc_read_remote(req, &cursor, to, length);
}

static int nfr_svc_read_whole(struct nfr_svc_req *req)
{
	struct nfr_cursor frame = { .chunk = req->head.reads };
	const struct nfr_chunk *items;
	u32 i, n, used = 0, at = 0;
	int rc = 0;

	n = nfr_svc_read_items(req, &items);
	for (i = 0; i < n && !rc; i++) {
		u32 gap = items[i].position - at;

		rc = nfr_svc_read_frame_part(req, &frame, used, at, gap);
		used += gap;
		at += gap;
		if (!rc)
			rc = nfr_svc_read_item(req, &items[i], at);
		at += xdr_align_size(nfr_wire_length(&items[i]));
	}
	if (rc)
		return rc;
	return nfr_svc_read_frame_part(req, &frame, used, at, nfr_svc_read_frame(req) - used);
}

static int nfr_svc_read_plan(struct nfr_svc_req *req)
{
	return req->whole ? nfr_svc_read_whole(req) : nfr_svc_read_item(req, req->head.reads, 0);
}

/* Choose the layout of the pages: a single data item, or the whole message. */
static void nfr_svc_read_layout(struct nfr_svc_req *req)
{
	req->whole = nfr_svc_read_is_nomsg(req) || req->head.nreads > 1;
	if (!req->whole)
		req->length = xdr_align_size(nfr_wire_length(req->head.reads));
	req->npages = DIV_ROUND_UP(req->length, PAGE_SIZE);
}

/* --- preparing --- */

/* Maximum number of MRs that a device may need: one per operation */
static u32 nfr_svc_read_operations(const struct nfr_svc_req *req)
{
	u32 i, count = 0;

	for (i = 0; i < req->head.nreads; i++)
		count += req->head.reads[i].nsegs;
	return count +
	       req->length / nfr_mem_transfer_read_max(req->svc->conn->device, PAGE_SIZE - 1);
}

/* Check whether the failure is temporary: memory is short, or other Calls use all MRs. */
static bool nfr_svc_read_may_work_later(const struct nfr_svc_req *req, int rc)
{
	u32 contexts = req->svc->conn->profile.rw_contexts;

	return rc == -ENOMEM || (rc == -EAGAIN && nfr_svc_read_operations(req) <= contexts);
}

/**
 * nfr_svc_read_prepare - prepare the RDMA Reads of a Call
 * @req: request that nfr_svc_read_check() accepted
 * @resume: function to call when a request that waits for memory can try again
 *
 * Return: 0, -EINPROGRESS if the request waits for memory, or another negative
 * errno if it cannot be served.
 */
int nfr_svc_read_prepare(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	int rc;

	nfr_svc_read_layout(req);
	rc = req->npages ? nfr_svc_sink_get(req, resume) : 0;
	if (!rc)
		rc = nfr_svc_read_plan(req);
	if (nfr_svc_read_may_work_later(req, rc)) {
		nfr_mem_transfer_destroy_all(&req->transfer);
		rc = nfr_svc_sink_again(req, resume);
	}
	return rc;
}
