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
 * last message, see gather.c.
 */
#include <linux/mm.h>

#include "connection/state.h"
#include "memory/span.h"
#include "observe/trace_server.h"
#include "server/reply.h"
#include "server/request.h"
#include "server/server.h"
#include "variants.h"

/* Number of elements that a Reply may need: pages of its data, one more each, and the head */
static u32 nfr_svc_lane_entries(const struct nfr_svc_req *req)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];

	return (nfr_wire_length(chunk) >> PAGE_SHIFT) + 2 * chunk->nsegs + 1;
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

/* Build the messages behind the head. */
static int nfr_svc_lane_gather(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];
	struct nfr_span span = { };
	int rc = 0;
	u32 i;

	if (req->nresults)
		rc = nfr_svc_reply_data(req, res, &span);
	for (i = 0; i < chunk->nsegs && !rc; i++)
		rc = nfr_svc_gather_add(req, &span, !i, chunk->segs[i].length);
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
	u32 rest = 0, entries = nfr_svc_lane_entries(req);
	int head, rc;

	req->by_chunk = false;
	req->send.opcode = IB_WR_SEND;
	rc = nfr_svc_reply_split(req, rqstp, &rest);
	if (rc)
		return rc;
	head = nfr_svc_lane_head(req, &rqstp->rq_res, rest);
	if (head < 0)
		return head;
	rc = nfr_svc_gather_get(req, NFR_LANE_MESSAGES, entries, head);
	return rc ?: nfr_svc_lane_gather(req, &rqstp->rq_res);
}

static void nfr_svc_lane_post(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	u32 data = req->nresults ? req->results[0].length : 0;

	nfr_svc_count(req->svc, lane_bytes, data);
	req->state = NFR_SVC_SENT;
	nfr_svc_gather_post(req, rqstp, data);
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
		nfr_svc_gather_release(req);
		nfr_svc_req_put(req);
		nfr_conn_break(lane->conn, "sending a Reply on a lane failed");
	}
	/* nfr_svc_lane_enqueue() took it */
	svc_xprt_put(&lane->xprt);
	return -EINPROGRESS;
}
