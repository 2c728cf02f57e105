// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lanes of clients with the personality pre-posted: branches that carry one READ at a time,
 * without a key.
 *
 * A Reply takes as many messages as the client posted receives, the data directly from its
 * pages. The first message begins with the header and the Reply without its data, padded to
 * the length of the client's first entry if data follows. A message without data ends the
 * receive that has no use. A Reply that does not fit breaks the lane, and the client sends
 * the Call again on its first connection, where version 1 has an answer for it.
 *
 * The pages are mapped, referenced and charged until the client's device has acknowledged the
 * last message, see gather.c.
 */
#include <linux/mm.h>

#include "connection/cm.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "memory/region.h"
#include "observe/trace_server.h"
#include "personality/preposted.h"
#include "server/branch.h"
#include "server/call.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/threadless/threadless.h"
#include "server/version1.h"
#include "work.h"

/* Size of the send queue: messages of a Reply, and of earlier ones that did not complete */
#define NFR_SVC_LANE_SENDS	64

/* Data per message of a lane, in units of 4096 bytes: its nfr_svc.own */
static u32 *nfr_svc_lane_units(const struct nfr_svc *lane)
{
	return nfr_svc_own(lane);
}

/* --- Calls --- */

/* Check the segments of a Call: one for each receive of the client. */
static bool nfr_svc_lane_segments_are_sound(const struct nfr_svc_req *req)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];
	u32 i, header = NFR_WIRE_MIN + 8 + chunk->nsegs * NFR_WIRE_SEGMENT;

	if (!chunk->nsegs || chunk->nsegs > NFR_LANE_MESSAGES)
		return false;
	for (i = 0; i < chunk->nsegs; i++) {
		const struct nfr_segment *seg = &chunk->segs[i];

		if (seg->handle || seg->length > *nfr_svc_lane_units(req->svc) << NFR_UNIT_SHIFT ||
		    (i && seg->offset))
			return false;
	}
	return chunk->segs[0].offset >= header &&
	       chunk->segs[0].offset <= req->svc->conn->send_size &&
	       nfr_wire_length(chunk) <= req->svc->max_message;
}

static bool nfr_svc_lane_call_is_sound(struct nfr_svc_req *req)
{
	const struct nfr_header *head = &req->head;

	return head->proc == NFR_MSG && !head->nreads && head->nwrites == 1 && !head->reply &&
	       req->rpc_length >= 8 && get_unaligned_be32(req->rpc) == head->xid &&
	       nfr_wire_is_call(req->rpc, req->rpc_length) &&
	       nfr_svc_read_check(req, req->svc->max_message) &&
	       nfr_svc_lane_segments_are_sound(req);
}

/*
 * Decode a message, and pass it on. Otherwise the lane breaks: the client sends the Call again on
 * its first connection. Completion handler.
 */
static void nfr_svc_lane_receive(struct nfr_svc_req *req)
{
	struct nfr_space space = {
		.chunks = req->chunks, .nchunks = NFR_SVC_CHUNKS,
		.segs = req->segs, .nsegs = NFR_SVC_SEGS,
	};
	int rc = nfr_wire_decode(&req->head, &space, req->recv->data, req->recv->length);

	req->rpc = req->recv->data + max(rc, 0);
	req->rpc_length = req->recv->length - max(rc, 0);
	if (rc < 0 || !nfr_svc_lane_call_is_sound(req)) {
		nfr_svc_drop_and_break(req, "not a Call for a lane");
		return;
	}
	if (atomic_read(&req->svc->busy) > 1) {
		nfr_svc_drop_and_break(req, "a second Call on a lane");
		return;
	}
	nfr_svc_count(req->svc, calls, 1);
	trace_nfsrdma_svc_call(req);
	/* until the Reply is posted, or the Call is dropped; the lane has not ended yet */
	nfr_svc_get(req->svc);
	if (!nfr_svc_threadless(req))
		nfr_svc_advance(req, NFR_SVC_READY);
}

/* --- Replies --- */

/* Number of pages that a Reply may need: those of its data, and two more for each message */
static u32 nfr_svc_lane_reply_pages(const struct nfr_svc_req *req)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];

	return (nfr_wire_length(chunk) >> PAGE_SHIFT) + 2 * chunk->nsegs;
}

/* The segments of a Reply. The Call keeps what it offered: without a thread, it may go on to nfsd. */
struct nfr_svc_lane_answer {
	struct nfr_segment segs[NFR_LANE_MESSAGES];
	struct nfr_chunk chunk;
};

/* Set the segment lengths to what the Reply conveys, @data bytes. */
static void nfr_svc_lane_answer(const struct nfr_svc_req *req, u32 data,
				struct nfr_svc_lane_answer *answer)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];

	memcpy(answer->segs, chunk->segs, chunk->nsegs * sizeof(*chunk->segs));
	answer->chunk = (struct nfr_chunk) { .nsegs = chunk->nsegs, .segs = answer->segs };
	nfr_svc_chunk_used(&answer->chunk, data);
}

/* Build the messages behind the head. */
static int nfr_svc_lane_gather(struct nfr_svc_req *req, const struct xdr_buf *res,
			       const struct nfr_chunk *chunk)
{
	struct nfr_span span = { };
	int rc = 0;
	u32 i;

	if (req->nresults)
		rc = nfr_svc_reply_span(res, req->results->offset, req->results->length, &span);
	for (i = 0; i < chunk->nsegs && !rc; i++)
		rc = nfr_svc_gather_add(req, &span, !i, chunk->segs[i].length);
	return rc;
}

/*
 * Prepare the head of the Reply in the buffer, with @data bytes of data behind it. Returns its
 * length, or a negative errno.
 */
static int nfr_svc_lane_head(struct nfr_svc_req *req, const struct xdr_buf *res,
			     struct nfr_chunk *chunk, u32 rest, u32 data)
{
	struct nfr_header head = {
		.xid = req->head.xid, .credits = 1, .proc = NFR_MSG,
		.nwrites = 1, .writes = chunk,
	};
	u32 size = nfr_wire_size(&head), room = chunk->segs[0].offset;
	int rc;

	if (rest > room - size)
		return -EMSGSIZE;
	trace_nfsrdma_svc_chunk(req, "lane", chunk, data);
	chunk->segs[0].offset = rest;
	if (nfr_wire_encode(&head, req->buffer, size) < 0)
		return -EIO;
	rc = nfr_svc_reply_inline(req, res, size);
	if (rc)
		return rc;
	trace_nfsrdma_svc_reply(req, &head, rest);
	if (!data)
		return size + rest;
	/* earlier Replies must not show through */
	memset(req->buffer + size + rest, 0, room - size - rest);
	return room;
}

/* Prepare the messages of a Reply. Returns the length of the head, or a negative errno. */
static int nfr_svc_lane_prepare(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	struct nfr_svc_lane_answer answer;
	u32 rest = 0, data;
	int rc;

	req->by_chunk = false;
	req->send.opcode = IB_WR_SEND;
	rc = nfr_svc_reply_split(req, res, &rest);
	if (rc)
		return rc;
	data = req->nresults ? req->results[0].length : 0;
	nfr_svc_lane_answer(req, data, &answer);
	rc = nfr_svc_gather_get(req, NFR_LANE_MESSAGES, nfr_svc_lane_reply_pages(req));
	if (!rc)
		rc = nfr_svc_lane_gather(req, res, &answer.chunk);
	return rc ?: nfr_svc_lane_head(req, res, &answer.chunk, rest, data);
}

/* A Reply of nfsd cannot be sent: the client sends the Call again on its first connection. */
static void nfr_svc_lane_unsent(struct nfr_svc_req *req, int rc)
{
	struct nfr_svc *lane = req->svc;

	trace_nfsrdma_svc_error(lane, req->head.xid, "no Reply on a lane", rc);
	nfr_svc_advance(req, NFR_SVC_FREE);
	nfr_conn_break(lane->conn, "sending a Reply on a lane failed");
}

/*
 * Send the Reply to a Call that came on a lane. If it does not fit, or memory is short, the
 * lane breaks. Returns -EINPROGRESS: the caller must not use the request any more. Without a
 * thread, the function returns the error: nfsd answers the Call.
 */
static int nfr_svc_lane_reply(struct nfr_svc_req *req, const struct xdr_buf *res,
			      struct svc_rqst *rqstp)
{
	struct nfr_svc *lane = req->svc;
	int head = nfr_svc_lane_prepare(req, res);
	u32 data = req->nresults ? req->results[0].length : 0;

	if (head < 0 && !rqstp)
		return head;
	if (head < 0) {
		nfr_svc_lane_unsent(req, head);
	} else {
		nfr_svc_count(lane, lane_bytes, data);
		nfr_svc_gather_finish(req, rqstp, head, data);
		nfr_svc_advance(req, NFR_SVC_SENT);
	}
	/* nfr_svc_lane_receive() took it */
	nfr_svc_put(lane);
	return -EINPROGRESS;
}

/* --- life --- */

static int nfr_svc_lane_agree(struct nfr_svc *lane, const struct rdma_conn_param *param)
{
	struct nfr_conn *conn = lane->conn;

	conn->wanted.inline_send = NFR_LANE_INLINE;
	conn->wanted.inline_recv = NFR_LANE_INLINE;
	conn->wanted.credits = 1;
	return 0;
}

static int nfr_svc_lane_fit(struct nfr_svc *lane)
{
	struct nfr_conn *conn = lane->conn;
	u32 units = min_t(u32, nfr_lane_units(conn->device->attrs.max_send_sge),
			  FIELD_GET(NFR_LANE_UNITS, conn->peer.capabilities));
	int rc;

	if (!units)
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	rc = nfr_conn_fit_queue(conn, NFR_LANE_MESSAGES);
	if (rc)
		return rc;
	*nfr_svc_lane_units(lane) = units;
	lane->grant = 1;
	conn->profile.receives = NFR_BATCH;
	conn->profile.sends = NFR_SVC_LANE_SENDS;
	conn->profile.send_sges = nfr_lane_sges(conn->device->attrs.max_send_sge);
	conn->profile.recv_sges = 1;
	conn->profile.private = (struct nfr_private) {
		.extended = true, .token = conn->peer.token,
		.capabilities = nfr_personality_bit(lane->personality->number) | NFR_LANE |
				FIELD_PREP(NFR_LANE_UNITS, *nfr_svc_lane_units(lane)),
	};
	return 0;
}

/* See nfr_svc_personality.limits. */
static void nfr_svc_lane_limits(struct seq_file *seq, struct ib_device *device)
{
	seq_printf(seq, "lane_reply %u of %u\n", nfr_lane_bytes(device->attrs.max_send_sge),
		   NFR_LANE_BYTES);
}

static const struct nfr_svc_personality nfr_svc_lane = {
	.number		= NFR_PRE_POSTED,
	.conn		= {
		.receive	= nfr_svc_receive,
		.writable	= nfr_svc_writable,
		.broken		= nfr_svc_branch_broken,
		.unanswered	= NFR_SVC_UNANSWERED,
		.softirq	= true,
	},
	.agree		= nfr_svc_lane_agree,
	.fit		= nfr_svc_lane_fit,
	.receive	= nfr_svc_lane_receive,
	.threadless	= nfr_svc_threadless_read,
	.inspect	= nfr_svc_threadless_inspect,
	.reply		= nfr_svc_lane_reply,
};

/* READs travel on lanes, all else as in version 1 */
const struct nfr_svc_personality nfr_svc_preposted = {
	.number		= NFR_PRE_POSTED,
	.invalidates	= true,
	.branch		= &nfr_svc_lane,
	.limits		= nfr_svc_lane_limits,
	NFR_SVC_VERSION1,
};
