// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lanes: branches of a transport with the personality pre-posted that carry one READ each. A lane
 * connects when a READ finds none idle.
 *
 * The client posts receives whose entries are the pages of the caller, and then sends the
 * Call. Its Write chunk has a segment without a key for each receive: the offset is the
 * length of the first entry, for the head of the Reply, and the length is the room for data.
 * The server answers with as many messages as there are segments. The first one begins with
 * the header and the inline part of the Reply, padded to the length of the first entry if
 * data follows. The segments of the Reply state how much data each message has, and
 * the offset of the first segment is the length of the inline part.
 *
 * The client uses the data if the lengths that the server states are those that the
 * device received. A contradiction breaks the lane, and the Call is sent again on the
 * first connection.
 */
#include <linux/slab.h>

#include "client/branch.h"
#include "client/call.h"
#include "client/reply.h"
#include "connection/cm.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "observe/trace.h"
#include "params.h"
#include "personality/preposted.h"

/* Elements of all receives of a Call: 1 MiB at any offset, a page more each, and the head */
#define NFR_LANE_ENTRIES	((1024 * 1024 >> PAGE_SHIFT) + 1 + NFR_LANE_MESSAGES + 1)

/* Offset of the Call in the buffer of a lane, behind the head of the Reply */
#define NFR_LANE_CALL		NFR_LANE_INLINE

/* Size of the send queue; one Call is in flight */
#define NFR_LANE_SENDS		32

struct nfr_lane;

/**
 * struct nfr_lane_recv - receive of a lane
 * @cqe: its completion
 * @wr: its work request
 * @lane: lane
 * @head: length of the first entry, the head of the Reply; 0 after the first receive
 * @data: room for data, in bytes
 * @length: length of the received message
 * @scatter: mapping of the data
 */
struct nfr_lane_recv {
	struct ib_cqe cqe;
	struct ib_recv_wr wr;
	struct nfr_lane *lane;
	u32 head;
	u32 data;
	u32 length;
	struct nfr_scatter scatter;
};

/**
 * struct nfr_lane - connection that carries one READ at a time
 * @branch: connection; its units are those of data per message
 * @idle: link in nfr_lanes.idle, while the lane has no Call
 * @loan: Call
 * @xid: its XID
 * @bytes: bytes of data that the lane carried for it
 * @nrecvs: number of receives of the Call
 * @done: number of them that are complete
 * @nsges: number of their entries
 * @recvs: receives of the Call
 * @sges: their entries
 * @chunks: chunk of the Reply being decoded
 * @segs: segments of that chunk, or of the Call being sent
 */
struct nfr_lane {
	struct nfr_branch branch;
	struct list_head idle;
	struct nfr_loan loan;
	u32 xid;
	u32 bytes;
	u32 nrecvs;
	u32 done;
	u32 nsges;
	struct nfr_lane_recv recvs[NFR_LANE_MESSAGES];
	struct ib_sge sges[NFR_LANE_ENTRIES];
	struct nfr_chunk chunks[2];
	struct nfr_segment segs[NFR_LANE_MESSAGES];
};

/**
 * struct nfr_lanes - lanes of a transport
 * @branches: their connections, and the lock of the members
 * @idle: lanes without a Call, the latest first
 * @busy: number of lanes with a Call
 * @limit: maximum number of lanes
 */
struct nfr_lanes {
	struct nfr_branches branches;
	struct list_head idle;
	u32 busy;
	u32 limit;
};

static struct nfr_lanes *nfr_client_lanes_of(struct nfr_branches *of)
{
	return container_of(of, struct nfr_lanes, branches);
}

/* Unmap the receives of a lane, which are complete, flushed or not posted. */
static void nfr_client_lane_unmap(struct nfr_lane *lane)
{
	u32 i;

	/* the head stays mapped */
	for (i = 0; i < lane->nrecvs; i++)
		nfr_mem_scatter_unmap(lane->branch.conn.device, &lane->recvs[i].scatter);
}

/* --- receiving --- */

static void nfr_client_lane_contradicts(struct nfr_lane *lane, const char *what)
{
	trace_nfsrdma_error(&lane->branch.conn, lane->xid, what, -EBADMSG);
	nfr_conn_break(&lane->branch.conn, what);
}

/* Check one message against what the Reply states. @full: the messages before it were full. */
static bool nfr_client_lane_message_is_sound(const struct nfr_lane_recv *recv, u32 data, u32 least,
					     bool full)
{
	if (data > recv->data || (data && !full))
		return false;
	if (data)
		return recv->length == recv->head + data;
	return recv->length >= least && recv->length <= recv->head;
}

/*
 * Compare the segments of the Reply with the messages. @least is the length of the header and
 * the inline part. Returns the number of bytes of data, or -EBADMSG.
 */
static int nfr_client_lane_measure(const struct nfr_lane *lane, const struct nfr_chunk *chunk,
				   u32 least)
{
	bool full = true;
	u32 i, total = 0;

	if (chunk->nsegs != lane->nrecvs)
		return -EBADMSG;
	for (i = 0; i < lane->nrecvs; i++) {
		const struct nfr_lane_recv *recv = &lane->recvs[i];
		u32 data = chunk->segs[i].length;

		if (!nfr_client_lane_message_is_sound(recv, data, i ? 0 : least, full))
			return -EBADMSG;
		full = data == recv->data;
		total += data;
	}
	return total;
}

/* Read the header of the Reply. Returns the number of bytes of data, or -EBADMSG. */
static int nfr_client_lane_read(struct nfr_lane *lane, struct nfr_req *req)
{
	u32 length = min(lane->recvs[0].length, lane->recvs[0].head);
	struct nfr_space space = {
		.chunks = lane->chunks, .nchunks = ARRAY_SIZE(lane->chunks),
		.segs = lane->segs, .nsegs = ARRAY_SIZE(lane->segs),
	};
	struct nfr_header head = { };
	int header;

	ib_dma_sync_single_for_cpu(lane->branch.conn.device, lane->branch.addr, length,
				   DMA_FROM_DEVICE);
	header = nfr_wire_decode(&head, &space, lane->branch.buffer, length);
	if (header < 0 || head.proc != NFR_MSG || head.xid != lane->xid ||
	    head.nreads || head.nwrites != 1 || head.reply)
		return -EBADMSG;
	if (!lane->segs[0].offset || lane->segs[0].offset > length - header)
		return -EBADMSG;
	req->rpc = lane->branch.buffer + header;
	req->rpc_length = lane->segs[0].offset;
	return nfr_client_lane_measure(lane, &head.writes[0], header + req->rpc_length);
}

/* Copy the inline part of a Reply, and set the result of the RPC. @data: bytes in the pages */
static void nfr_client_lane_place(struct nfr_lane *lane, struct nfr_req *req, u32 data)
{
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 head = min_t(u32, req->rpc_length, rcv->head[0].iov_len);
	u32 tail = req->rpc_length - head;

	req->result = -EIO;
	if (tail <= rcv->tail[0].iov_len) {
		memcpy(rcv->head[0].iov_base, req->rpc, head);
		memcpy(rcv->tail[0].iov_base, req->rpc + head, tail);
		/* XDR decoding continues in the pages where the inline part ends */
		if (data)
			rcv->head[0].iov_len = head;
		req->rqst.rq_private_buf.head[0].iov_len = rcv->head[0].iov_len;
		req->result = req->rpc_length + xdr_align_size(data);
	}
	trace_nfsrdma_reply(&lane->branch.conn, req, req->result);
}

/* All messages of a Reply have arrived. */
static void nfr_client_lane_answered(struct nfr_lane *lane)
{
	struct nfr_req *req = lane->loan.req;
	int data;

	/* pairs with nfr_client_loan_post(): a Reply counts only after its Call is posted */
	if (!req || smp_load_acquire(&req->state) != NFR_REQ_LENT) {
		nfr_client_lane_contradicts(lane, "a message on a lane without a Call");
		return;
	}
	data = nfr_client_lane_read(lane, req);
	if (data < 0) {
		nfr_client_lane_contradicts(lane, "lengths on a lane contradict each other");
		return;
	}
	lane->branch.useful = true;
	nfr_client_lane_unmap(lane);
	if (!nfr_client_loan_pin(&lane->loan)) {
		nfr_client_loan_return(&lane->loan, NFR_REQ_IDLE);
		return;
	}
	nfr_client_lane_place(lane, req, data);
	lane->bytes = data;
	nfr_client_loan_return(&lane->loan, NFR_REQ_ANSWERED);
	nfr_client_reply_apart(req);
}

static void nfr_client_lane_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_lane_recv *recv = container_of(wc->wr_cqe, struct nfr_lane_recv, cqe);
	struct nfr_lane *lane = recv->lane;

	if (wc->status != IB_WC_SUCCESS) {
		trace_nfsrdma_completion(&lane->branch.conn, wc);
		nfr_conn_failed(&lane->branch.conn, wc);
		return;
	}
	/* RDMA Write With Immediate completes a receive too */
	if (wc->opcode != IB_WC_RECV || wc->byte_len > recv->head + recv->data) {
		nfr_conn_break(&lane->branch.conn, "unexpected completion of a receive");
		return;
	}
	recv->length = wc->byte_len;
	if (++lane->done == lane->nrecvs)
		nfr_client_lane_answered(lane);
}

/* --- receives --- */

/* Length of the header of a Reply */
static u32 nfr_client_lane_header(u32 messages)
{
	return NFR_WIRE_MIN + 8 + messages * NFR_WIRE_SEGMENT;
}

/* Number of messages that convey @length bytes of data */
static u32 nfr_client_lane_messages(const struct nfr_lane *lane, u32 length)
{
	return DIV_ROUND_UP(length, lane->branch.units << NFR_UNIT_SHIFT);
}

static void nfr_client_lane_recv_init(struct nfr_lane *lane, struct nfr_lane_recv *recv)
{
	recv->lane = lane;
	recv->cqe.done = nfr_client_lane_recv_done;
	recv->wr.wr_cqe = &recv->cqe;
}

/* Add a receive for @head bytes, whose entry exists, and @data bytes of @span. */
static int nfr_client_lane_add(struct nfr_lane *lane, struct nfr_span *span, u32 head, u32 data)
{
	struct nfr_lane_recv *recv = &lane->recvs[lane->nrecvs];
	struct nfr_conn *conn = &lane->branch.conn;
	u32 first = head ? 0 : lane->nsges;
	int count;

	count = nfr_mem_scatter_map(&recv->scatter, conn->pd, span, data, DMA_FROM_DEVICE,
				    lane->sges + lane->nsges,
				    min(NFR_LANE_ENTRIES - lane->nsges,
					conn->profile.recv_sges - !!head), NFR_GFP_RETRIED);
	if (count < 0)
		return count;
	if (!recv->lane)
		nfr_client_lane_recv_init(lane, recv);
	lane->nsges += count;
	recv->head = head;
	recv->data = data;
	recv->wr.sg_list = lane->sges + first;
	recv->wr.num_sge = lane->nsges - first;
	recv->wr.next = NULL;
	if (lane->nrecvs)
		lane->recvs[lane->nrecvs - 1].wr.next = &recv->wr;
	lane->segs[lane->nrecvs++] = (struct nfr_segment) { .length = data, .offset = head };
	return 0;
}

/* Prepare the receives for the Reply. Returns a negative errno if it does not suit the lane. */
static int nfr_client_lane_prepare(struct nfr_lane *lane, const struct xdr_buf *rcv)
{
	struct nfr_span span = {
		.pages = rcv->pages, .page_base = rcv->page_base, .page_len = rcv->page_len,
	};
	u32 room = lane->branch.units << NFR_UNIT_SHIFT;
	u32 head, data;
	int rc = 0;

	head = nfr_client_lane_header(nfr_client_lane_messages(lane, rcv->page_len)) +
	       xdr_align_size(rcv->buflen - rcv->page_len);
	if (head > lane->branch.conn.recv_size)
		return -EMSGSIZE;
	lane->nrecvs = 0;
	lane->done = 0;
	lane->sges[0] = (struct ib_sge) {
		.addr = lane->branch.addr, .length = head,
		.lkey = lane->branch.conn.pd->local_dma_lkey,
	};
	lane->nsges = 1;
	ib_dma_sync_single_for_device(lane->branch.conn.device, lane->branch.addr, head,
				      DMA_FROM_DEVICE);
	while (span.page_len && !rc) {
		data = min(span.page_len, room);
		rc = nfr_client_lane_add(lane, &span, head, data);
		head = 0;
	}
	if (rc)
		nfr_client_lane_unmap(lane);
	return rc;
}

/* --- the connection --- */

static void nfr_client_lane_init(struct nfr_branch *branch)
{
	struct nfr_lane *lane = container_of(branch, struct nfr_lane, branch);

	INIT_LIST_HEAD(&lane->idle);
	lane->loan.branch = branch;
}

static int nfr_client_lane_fit(struct nfr_branch *branch)
{
	struct nfr_conn *conn = &branch->conn;

	branch->units = nfr_lane_units(conn->device->attrs.max_recv_sge);
	if (!branch->units)
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	conn->profile.sends = NFR_LANE_SENDS;
	conn->profile.send_sges = 1;
	conn->profile.recv_sges = nfr_lane_sges(conn->device->attrs.max_recv_sge);
	conn->profile.private.capabilities |= FIELD_PREP(NFR_LANE_UNITS, branch->units);
	return 0;
}

/* See nfr_client_personality.limits. */
static void nfr_client_lanes_limits(struct seq_file *seq, const struct ib_device *device)
{
	seq_printf(seq, "lane_read %u of %u\n", nfr_lane_bytes(device->attrs.max_recv_sge),
		   NFR_LANE_BYTES);
}

/* The server states the amount of data per message. */
static int nfr_client_lane_agree(struct nfr_branch *branch)
{
	u32 units = FIELD_GET(NFR_LANE_UNITS, branch->conn.peer.capabilities);

	if (!units || units > branch->units)
		return nfr_conn_unfit(&branch->conn, "the server accepts no lanes");
	branch->units = units;
	return 0;
}

static void nfr_client_lane_opened(struct nfr_branch *branch)
{
	struct nfr_lane *lane = container_of(branch, struct nfr_lane, branch);

	branch->of->nx->counters.lanes_connected++;
	if (nfr_conn_is_up(&branch->conn))
		list_add(&lane->idle, &nfr_client_lanes_of(branch->of)->idle);
}

/* The lane is available for the next Call. */
static void nfr_client_lane_returned(struct nfr_loan *loan, enum nfr_req_state state)
{
	struct nfr_lane *lane = container_of(loan, struct nfr_lane, loan);
	struct nfr_lanes *lanes = nfr_client_lanes_of(loan->branch->of);

	if (state == NFR_REQ_ANSWERED)
		lanes->branches.nx->counters.lane_bytes += lane->bytes;
	lanes->busy--;
	/* nfr_client_lane_ended() removes a lane that breaks meanwhile */
	if (nfr_conn_is_up(&lane->branch.conn))
		list_add(&lane->idle, &lanes->idle);
}

static void nfr_client_lane_ended(struct nfr_branch *branch)
{
	struct nfr_lane *lane = container_of(branch, struct nfr_lane, branch);

	trace_nfsrdma_lane_end(&branch->conn, lane->loan.req ? lane->xid : 0);
	nfr_client_lane_unmap(lane);
	spin_lock(&branch->of->lock);
	branch->of->nx->counters.lanes_ended++;
	list_del_init(&lane->idle);
	spin_unlock(&branch->of->lock);
	if (lane->loan.req)
		nfr_client_loan_lose(&lane->loan);
}

static void nfr_client_lanes_destroy(struct nfr_branches *of)
{
	kfree(nfr_client_lanes_of(of));
}

static void nfr_client_lanes_show(struct nfr_branches *of, struct seq_file *seq)
{
	struct nfr_lanes *lanes = nfr_client_lanes_of(of);

	seq_printf(seq, "lanes %u of %u\n", READ_ONCE(of->count), lanes->limit);
	seq_printf(seq, "lanes_busy %u\n", READ_ONCE(lanes->busy));
}

static const struct nfr_branch_kind nfr_client_lane_kind = {
	.ops = {
		.writable	= nfr_client_branch_writable,
		.broken		= nfr_client_branch_broken,
	},
	.size		= sizeof(struct nfr_lane),
	.buffer		= NFR_LANE_CALL + NFR_LANE_INLINE,
	.inline_size	= NFR_LANE_INLINE,
	.credits	= 1,
	.init		= nfr_client_lane_init,
	.fit		= nfr_client_lane_fit,
	.agree		= nfr_client_lane_agree,
	.opened		= nfr_client_lane_opened,
	.returned	= nfr_client_lane_returned,
	.ended		= nfr_client_lane_ended,
	.destroy	= nfr_client_lanes_destroy,
	.show		= nfr_client_lanes_show,
};

/* --- sending --- */

/* Find an idle lane that has room for a Reply. Caller holds the lock. */
static struct nfr_lane *nfr_client_lanes_find(struct nfr_lanes *lanes, u32 length)
{
	struct nfr_lane *lane;

	list_for_each_entry(lane, &lanes->idle, idle)
		if (nfr_conn_is_up(&lane->branch.conn) &&
		    length <= (lane->branch.units * NFR_LANE_MESSAGES) << NFR_UNIT_SHIFT)
			return lane;
	return NULL;
}

/* Borrow a READ. Returns its lane, or NULL; if no lane is idle, one more connects for others. */
static struct nfr_lane *nfr_client_lane_take(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_lanes *lanes = nfr_client_lanes_of(req->nx->branches);
	bool lost = req->state == NFR_REQ_LOST, add = false;
	struct nfr_lane *lane = NULL;

	spin_lock(&lanes->branches.lock);
	if (!lost)
		lane = nfr_client_lanes_find(lanes, req->rqst.rq_rcv_buf.page_len);
	if (lane) {
		list_del_init(&lane->idle);
		nfr_client_loan_take(&lane->loan, req);
		lane->bytes = 0;
		lanes->busy++;
		req->nx->counters.lane_calls++;
	} else {
		req->nx->counters.lane_fallbacks++;
		add = !lost && list_empty(&lanes->idle) &&
		      nfr_client_branches_may_add(&lanes->branches, lanes->limit);
	}
	spin_unlock(&lanes->branches.lock);
	if (add)
		nfr_client_branch_add(&lanes->branches, conn);
	return lane;
}

/* Check that the Reply to a Call consists of data, apart from its head. */
static bool nfr_client_lane_suits(const struct nfr_conn *conn, const struct rpc_rqst *rqst)
{
	const struct xdr_buf *rcv = &rqst->rq_rcv_buf, *snd = &rqst->rq_snd_buf;

	if (!(rcv->flags & XDRBUF_READ) || !rcv->page_len || snd->page_len)
		return false;
	if (rcv->page_len < conn->wanted.min_chunk &&
	    rcv->buflen <= nfr_client_inline_reply_room(conn))
		return false;
	return !(rcv->flags & XDRBUF_SPARSE_PAGES) && nfr_client_may_reduce(rqst);
}

/*
 * Copy a Call behind its header to the buffer of the lane. The buffers of the request belong to
 * the transport's own connection: they may be freed while the lane still sends. Returns the
 * length of the message.
 */
static u32 nfr_client_lane_encode(struct nfr_lane *lane, const struct xdr_buf *snd)
{
	struct nfr_chunk chunk = { .nsegs = lane->nrecvs, .segs = lane->segs };
	struct nfr_header head = {
		.xid = lane->xid, .credits = 1, .proc = NFR_MSG, .nwrites = 1, .writes = &chunk,
	};
	u8 *call = lane->branch.buffer + NFR_LANE_CALL, *at = call;

	at += nfr_wire_encode(&head, at, NFR_LANE_INLINE);
	memcpy(at, snd->head[0].iov_base, snd->head[0].iov_len);
	at += snd->head[0].iov_len;
	memcpy(at, snd->tail[0].iov_base, snd->tail[0].iov_len);
	return at + snd->tail[0].iov_len - call;
}

/* Post the Call. Returns 0, -EAGAIN or -ENOTCONN. */
static int nfr_client_lane_post_call(struct nfr_lane *lane, struct nfr_req *req)
{
	struct nfr_conn *conn = &lane->branch.conn;
	struct ib_sge sge = {
		.addr = lane->branch.addr + NFR_LANE_CALL,
		.length = nfr_client_lane_encode(lane, &req->rqst.rq_snd_buf),
		.lkey = conn->pd->local_dma_lkey,
	};
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1,
	};
	int rc;

	ib_dma_sync_single_for_device(conn->device, sge.addr, sge.length, DMA_TO_DEVICE);
	spin_lock_bh(&conn->lock);
	nfr_client_loan_post(&lane->loan);
	rc = nfr_conn_sq_admit(&conn->sq, 1);
	if (!rc) {
		nfr_conn_sq_take(&conn->sq, 1, &send, false);
		trace_nfsrdma_post(conn, lane->xid, 0, sge.length,
				   send.send_flags & IB_SEND_SIGNALED);
		rc = nfr_conn_submit(conn, &send);
	}
	spin_unlock_bh(&conn->lock);
	return rc;
}

/*
 * Post the receives, then the Call. After an error, the device may write to the Call's memory until
 * the lane is drained. The Call counts as sent: the lane loses it, and no other Call has to wait.
 */
static void nfr_client_lane_post(struct nfr_lane *lane, struct nfr_req *req)
{
	struct nfr_conn *conn = &lane->branch.conn;
	const struct ib_recv_wr *bad;
	int rc;

	rc = ib_post_recv(conn->id->qp, &lane->recvs[0].wr, &bad);
	if (rc)
		nfr_client_loan_post(&lane->loan);
	else
		rc = nfr_client_lane_post_call(lane, req);
	if (rc)
		nfr_conn_break(conn, "posting to a lane failed");
}

/* Send a Call on its lane. Returns false if it does not suit the lane, which returns it then. */
static bool nfr_client_lane_send(struct nfr_lane *lane, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	const struct xdr_buf *snd = &rqst->rq_snd_buf;
	u32 messages = nfr_client_lane_messages(lane, rqst->rq_rcv_buf.page_len);
	u32 length = nfr_client_lane_header(messages) + snd->head[0].iov_len +
		     snd->tail[0].iov_len;

	if (length > lane->branch.conn.send_size ||
	    nfr_client_lane_prepare(lane, &rqst->rq_rcv_buf)) {
		nfr_client_loan_return(&lane->loan, NFR_REQ_IDLE);
		return false;
	}
	lane->xid = be32_to_cpu(rqst->rq_xid);
	trace_nfsrdma_marshal(&lane->branch.conn, rqst, NFR_INLINE, NFR_BY_LANE, 0);
	nfr_client_lane_post(lane, req);
	return true;
}

/* See nfr_client_personality.marshal. @req holds a credit of @conn, which a lane does not need. */
static int nfr_client_lane_marshal(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_lane *lane;
	bool sent;

	if (!nfr_client_lane_suits(conn, &req->rqst))
		return nfr_client_marshal(conn, req);
	sent = req->loan && nfr_client_loan_retransmit(req);
	lane = sent ? NULL : nfr_client_lane_take(conn, req);
	if (lane) {
		sent = nfr_client_lane_send(lane, req);
		nfr_client_loan_posted(req->nx->branches);
	}
	if (!sent)
		return nfr_client_marshal(conn, req);
	nfr_conn_credit_back(conn);
	return 0;
}

/* Allocate the lanes of a transport, none of which connects yet. */
static bool nfr_client_lanes_setup(struct nfr_xprt *nx)
{
	struct nfr_lanes *lanes = kzalloc(sizeof(*lanes), GFP_KERNEL);
	struct nfr_params params;

	if (!lanes)
		return false;
	nfr_params_read(&params);
	nfr_client_branches_init(&lanes->branches, nx, &nfr_client_lane_kind);
	INIT_LIST_HEAD(&lanes->idle);
	lanes->limit = params.lanes;
	return true;
}

const struct nfr_client_personality nfr_client_preposted = {
	.number		= NFR_PRE_POSTED,
	.ops		= &nfr_client_conn_ops,
	.setup		= nfr_client_lanes_setup,
	.limits		= nfr_client_lanes_limits,
	.marshal	= nfr_client_lane_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};
