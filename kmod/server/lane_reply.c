// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way of a Reply on a lane: as many messages as the client posted receives, the data
 * directly from the pages of the Reply.
 *
 * The first message begins with the header and the Reply without its data, padded to the
 * length of the client's first entry if data follows. A message without data ends the
 * receive that has no use. A Reply that does not fit breaks the lane, and the client sends
 * the Call again on its home, where version 1 has an answer for it.
 *
 * The pages are mapped, referenced and charged until the client's device has acknowledged the
 * last message.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "observe/trace_server.h"
#include "server/server.h"

/*
 * struct nfr_svc_gather - messages of a Reply
 * @count: number of messages
 * @entries: number of elements of @sges in use; the first is the head, without a page
 * @room: number of elements of @sges
 * @sends: messages
 * @pages: page of each element, referenced; behind @sges
 * @sges: elements of all messages
 */
struct nfr_svc_gather {
	u32 count;
	u32 entries;
	u32 room;
	struct ib_send_wr sends[NFR_LANE_MESSAGES];
	struct page **pages;
	struct ib_sge sges[];
};

/* Number of elements that a Reply may need: pages of its data, one more each, and the head */
static u32 nfr_svc_gather_entries(const struct nfr_svc_req *req)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];

	return (nfr_wire_length(chunk) >> PAGE_SHIFT) + 2 * chunk->nsegs + 1;
}

static struct nfr_svc_gather *nfr_svc_gather_get(struct nfr_svc_req *req)
{
	u32 room = nfr_svc_gather_entries(req);
	struct nfr_svc_gather *gather = req->gather;

	if (!gather || gather->room < room) {
		kvfree(gather);
		gather = kvmalloc(struct_size(gather, sges, room) + room * sizeof(*gather->pages),
				  NFR_GFP_ONCE);
		req->gather = gather;
		if (!gather)
			return NULL;
		gather->room = room;
		gather->pages = (struct page **)&gather->sges[room];
	}
	gather->count = 0;
	gather->entries = 1;
	return gather;
}

/**
 * nfr_svc_lane_release - release the pages of a Reply
 * @req: request whose messages are complete, flushed or not posted
 */
void nfr_svc_lane_release(struct nfr_svc_req *req)
{
	struct nfr_svc_gather *gather = req->gather;

	if (!gather || gather->entries < 2)
		return;
	nfr_mem_scatter_unmap(req->svc->conn->device, gather->sges + 1, gather->entries - 1,
			      DMA_TO_DEVICE);
	while (gather->entries > 1)
		put_page(gather->pages[--gather->entries]);
}

/* Reference the pages of the next @count elements. @span is the memory that they map. */
static void nfr_svc_gather_hold(struct nfr_svc_gather *gather, struct nfr_span span, u32 count)
{
	struct nfr_piece piece;

	while (count-- && nfr_mem_span_peek(&span, &piece)) {
		get_page(piece.page);
		gather->pages[gather->entries++] = piece.page;
		nfr_mem_span_skip(&span, piece.length);
	}
}

/* Add a message of @head bytes, whose element exists, and @data bytes of @span. */
static int nfr_svc_gather_add(struct nfr_svc_req *req, struct nfr_span *span, u32 head, u32 data)
{
	struct nfr_svc_gather *gather = req->gather;
	u32 first = head ? 0 : gather->entries;
	struct nfr_conn *conn = req->svc->conn;
	struct nfr_span from = *span;
	struct ib_send_wr *send;
	int count;

	count = nfr_mem_scatter_map(conn->device, conn->pd->local_dma_lkey, span, data,
				    DMA_TO_DEVICE, gather->sges + gather->entries,
				    min(gather->room - gather->entries,
					conn->profile.send_sges - !!head));
	if (count < 0)
		return count;
	nfr_svc_gather_hold(gather, from, count);
	send = &gather->sends[gather->count++];
	*send = (struct ib_send_wr) {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND,
		.sg_list = gather->sges + first, .num_sge = gather->entries - first,
	};
	if (gather->count > 1)
		send[-1].next = send;
	return 0;
}

/* Set the segments of the Reply: the data of each message, and @inline_length. */
static void nfr_svc_lane_state(struct nfr_chunk *chunk, u32 data, u32 inline_length)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		chunk->segs[i].length = min(chunk->segs[i].length, data);
		data -= chunk->segs[i].length;
	}
	chunk->segs[0].offset = inline_length;
}

/* Build the messages. @head is the length of the first element. */
static int nfr_svc_lane_gather(struct nfr_svc_req *req, const struct xdr_buf *res, u32 head)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];
	struct nfr_span span = { };
	int rc = 0;
	u32 i;

	if (req->nresults)
		rc = nfr_svc_reply_data(req, res, &span);
	for (i = 0; i < chunk->nsegs && !rc; i++)
		rc = nfr_svc_gather_add(req, &span, i ? 0 : head, chunk->segs[i].length);
	return rc;
}

/* Prepare the head of the Reply in the buffer. Returns its length, or a negative errno. */
static int nfr_svc_lane_head(struct nfr_svc_req *req, const struct xdr_buf *res, u32 rest)
{
	struct nfr_chunk *chunk = &req->head.writes[0];
	u32 data = req->nresults ? req->results[0].length : 0;
	struct nfr_header head = {
		.xid = req->head.xid, .credits = 1, .proc = NFR_MSG,
		.nwrites = 1, .writes = chunk,
	};
	u32 size = nfr_wire_size(&head), room = chunk->segs[0].offset;
	int rc;

	if (rest > room - size)
		return -EMSGSIZE;
	trace_nfsrdma_svc_chunk(req, "lane", chunk, data);
	nfr_svc_lane_state(chunk, data, rest);
	if (nfr_wire_encode(&head, req->buffer, size) < 0)
		return -EIO;
	rc = nfr_svc_reply_copy_rest(req, res, size);
	if (rc)
		return rc;
	trace_nfsrdma_svc_reply(req, &head, rest);
	if (!data)
		return size + rest;
	/* earlier Replies must not show through */
	memset(req->buffer + size + rest, 0, room - size - rest);
	return room;
}

static int nfr_svc_lane_prepare(struct nfr_svc_req *req, const struct svc_rqst *rqstp)
{
	struct nfr_conn *conn = req->svc->conn;
	struct nfr_svc_gather *gather = nfr_svc_gather_get(req);
	u32 rest = 0;
	int head, rc;

	if (!gather)
		return -ENOMEM;
	req->by_chunk = false;
	req->send.opcode = IB_WR_SEND;
	rc = nfr_svc_reply_split(req, rqstp, &rest);
	if (rc)
		return rc;
	head = nfr_svc_lane_head(req, &rqstp->rq_res, rest);
	if (head < 0)
		return head;
	gather->sges[0] = (struct ib_sge) {
		.addr = req->addr, .length = head, .lkey = conn->pd->local_dma_lkey,
	};
	ib_dma_sync_single_for_device(conn->device, req->addr, head, DMA_TO_DEVICE);
	rc = nfr_svc_lane_gather(req, &rqstp->rq_res, head);
	if (rc)
		return rc;
	req->first = &gather->sends[0];
	req->signal = true;
	return 0;
}

static void nfr_svc_lane_post(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	u32 data = req->nresults ? req->results[0].length : 0;

	nfr_svc_count(req->svc, replies, 1);
	nfr_svc_count(req->svc, lane_bytes, data);
	/* release unused pages: other Calls may wait for them */
	nfr_svc_budget_keep(req, data);
	nfr_svc_req_received(req);
	nfr_svc_pages_restore(req, rqstp);
	req->state = NFR_SVC_SENT;
	nfr_svc_post(req);
}

/**
 * nfr_svc_lane_reply - send the Reply to a Call that came on a lane
 * @req: request
 * @rqstp: nfsd thread's request with the Reply in rq_res
 *
 * If the Reply does not fit, or memory is short, the lane breaks.
 *
 * Return: -EINPROGRESS; the caller must not use @req any more.
 */
int nfr_svc_lane_reply(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	struct nfr_svc *lane = req->svc;
	int rc = nfr_svc_lane_prepare(req, rqstp);

	if (!rc) {
		nfr_svc_lane_post(req, rqstp);
	} else {
		trace_nfsrdma_svc_error(lane, req->head.xid, "no Reply on a lane", rc);
		nfr_svc_lane_release(req);
		nfr_svc_req_put(req);
		nfr_conn_break(lane->conn, "sending a Reply on a lane failed");
	}
	/* nfr_svc_lane_enqueue() took it */
	svc_xprt_put(&lane->xprt);
	return -EINPROGRESS;
}
