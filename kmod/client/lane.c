// SPDX-License-Identifier: GPL-2.0-only
/*
 * The lanes of a transport: which Call gets one, and how it gets its memory back.
 *
 * A lane connects when a READ finds none idle. A posted receive cannot be withdrawn:
 * therefore a lane whose Call is abandoned or times out breaks, a worker drains its queue
 * pair, and only then the Call's memory returns to its owner. The Call is sent again on
 * the transport's own connection.
 */
#include <linux/slab.h>

#include "client/lane.h"
#include "connection/state.h"
#include "observe/trace.h"
#include "params.h"
#include "variants.h"

/* Size of the send queue; one Call is in flight */
#define NFR_LANE_SENDS		32

/* --- the relation of a lane and its Call --- */

/**
 * nfr_client_lane_unmap - unmap the receives of a lane
 * @lane: lane whose receives are complete, flushed or not posted
 */
void nfr_client_lane_unmap(struct nfr_lane *lane)
{
	/* the first entry is the head, which stays mapped */
	if (lane->nsges > 1)
		nfr_mem_scatter_unmap(lane->branch.conn.device, lane->sges + 1, lane->nsges - 1,
				      DMA_FROM_DEVICE);
	lane->nsges = 0;
}

/**
 * nfr_client_lane_finish - end the relation of a lane and its Call
 * @lane: lane with unmapped receives, available for the next Call afterwards
 * @req: its Call; the owner may free it as soon as its state is not NFR_REQ_SENT
 * @state: new state of the Call
 * @bytes: bytes of data that the lane carried
 */
void nfr_client_lane_finish(struct nfr_lane *lane, struct nfr_req *req, enum nfr_req_state state,
			    u32 bytes)
{
	struct nfr_lanes *lanes = nfr_client_lanes_of(lane);

	spin_lock(&lanes->branches.lock);
	lanes->branches.nx->counters.lane_bytes += bytes;
	lane->req = NULL;
	req->lane = NULL;
	/* pairs with nfr_client_lane_abandon(), which takes the lock if it finds NFR_REQ_SENT */
	smp_store_release(&req->state, state);
	lanes->busy--;
	/* nfr_client_lane_ended() removes a lane that breaks meanwhile */
	if (nfr_conn_is_up(&lane->branch.conn))
		list_add(&lane->idle, &lanes->idle);
	spin_unlock(&lanes->branches.lock);
}

/* --- the connection --- */

static void nfr_client_lane_init(struct nfr_branch *branch)
{
	INIT_LIST_HEAD(&container_of(branch, struct nfr_lane, branch)->idle);
}

static int nfr_client_lane_fit(struct nfr_branch *branch)
{
	struct nfr_conn *conn = &branch->conn;
	u32 sges = min_t(u32, conn->device->attrs.max_recv_sge, NFR_LANE_SGES);

	if (sges <= NFR_LANE_SPARE_SGES)
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	branch->pages = sges - NFR_LANE_SPARE_SGES;
	conn->profile.sends = NFR_LANE_SENDS;
	conn->profile.send_sges = 1;
	conn->profile.recv_sges = sges;
	conn->profile.private.capabilities |= FIELD_PREP(NFR_LANE_PAGES, branch->pages);
	return 0;
}

/* The server states the number of pages per message. */
static int nfr_client_lane_agree(struct nfr_branch *branch)
{
	u32 pages = FIELD_GET(NFR_LANE_PAGES, branch->conn.peer.capabilities);

	if (!pages || pages > branch->pages)
		return nfr_conn_unfit(&branch->conn, "the server accepts no lanes");
	branch->pages = pages;
	return 0;
}

static void nfr_client_lane_opened(struct nfr_branch *branch)
{
	struct nfr_lane *lane = container_of(branch, struct nfr_lane, branch);

	branch->of->nx->counters.lanes_connected++;
	if (nfr_conn_is_up(&branch->conn))
		list_add(&lane->idle, &nfr_client_lanes_of(lane)->idle);
}

/* Detach the Call of a drained lane, and have sunrpc send it again. */
static void nfr_client_lane_ended(struct nfr_branch *branch)
{
	struct nfr_lane *lane = container_of(branch, struct nfr_lane, branch);
	struct nfr_lanes *lanes = nfr_client_lanes_of(lane);
	struct nfr_xprt *nx = branch->of->nx;
	struct nfr_req *req = lane->req;

	trace_nfsrdma_lane_end(&branch->conn, req ? lane->xid : 0);
	nfr_client_lane_unmap(lane);
	spin_lock(&nx->xprt.queue_lock);
	spin_lock(&branch->of->lock);
	nx->counters.lanes_ended++;
	list_del_init(&lane->idle);
	if (req) {
		nfr_client_resend(req);
		lanes->busy--;
		lane->req = NULL;
		req->lane = NULL;
		/* pairs with nfr_client_lane_abandon(), as in nfr_client_lane_finish() */
		smp_store_release(&req->state, NFR_REQ_IDLE);
	}
	spin_unlock(&branch->of->lock);
	spin_unlock(&nx->xprt.queue_lock);
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
	.ended		= nfr_client_lane_ended,
};

/* --- Calls --- */

/* Find an idle lane that has room for a Reply. Caller holds the lock. */
static struct nfr_lane *nfr_client_lanes_find(struct nfr_lanes *lanes, u32 length)
{
	struct nfr_lane *lane;

	list_for_each_entry(lane, &lanes->idle, idle)
		if (nfr_conn_is_up(&lane->branch.conn) &&
		    length <= (lane->branch.pages * NFR_LANE_MESSAGES) << PAGE_SHIFT)
			return lane;
	return NULL;
}

/**
 * nfr_client_lane_take - get a lane for a READ
 * @conn: connection of the transport, which the caller has locked
 * @req: request that suits a lane
 *
 * If no lane is idle, one more connects, for Calls to come.
 *
 * Return: lane that now belongs to @req, NULL if there is none, or ERR_PTR(-ENOBUFS) while an
 * earlier lane may still write to the memory of @req.
 */
struct nfr_lane *nfr_client_lane_take(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_lanes *lanes = req->nx->lanes;
	bool lost = req->lost == be32_to_cpu(req->rqst.rq_xid);
	struct nfr_lane *lane = NULL;
	bool add = false;

	spin_lock(&lanes->branches.lock);
	if (req->lane) {
		/* nfr_client_send_call() reset both */
		req->state = NFR_REQ_SENT;
		req->generation = req->lane->branch.conn.generation;
		nfr_conn_break(&req->lane->branch.conn, "a Call has to be retransmitted");
		lane = ERR_PTR(-ENOBUFS);
	} else if (!lost) {
		lane = nfr_client_lanes_find(lanes, req->rqst.rq_rcv_buf.page_len);
	}
	if (lane && !IS_ERR(lane)) {
		list_del_init(&lane->idle);
		lane->req = req;
		req->lane = lane;
		WRITE_ONCE(lanes->branches.sending, &lane->branch);
		lanes->busy++;
		req->nx->counters.lane_calls++;
	} else if (!lane) {
		req->nx->counters.lane_fallbacks++;
		add = !lost && list_empty(&lanes->idle) &&
		      nfr_client_branches_may_add(&lanes->branches, lanes->limit);
	}
	spin_unlock(&lanes->branches.lock);
	if (add)
		nfr_client_branch_add(&lanes->branches, conn);
	return lane;
}

static bool nfr_client_lane_has_left(struct nfr_req *req)
{
	struct nfr_lanes *lanes = req->nx->lanes;
	bool left;

	spin_lock(&lanes->branches.lock);
	left = !req->lane;
	spin_unlock(&lanes->branches.lock);
	return left;
}

/**
 * nfr_client_lane_abandon - take back the memory of a Call whose task ends
 * @req: request without a Reply
 *
 * Context: Sleeps until the lane is drained.
 *
 * Return: false if no lane carries the Call.
 */
bool nfr_client_lane_abandon(struct nfr_req *req)
{
	struct nfr_lanes *lanes = req->nx->lanes;
	struct nfr_lane *lane;

	spin_lock(&lanes->branches.lock);
	lane = req->lane;
	if (lane)
		nfr_conn_break(&lane->branch.conn, "a Call on a lane was abandoned");
	spin_unlock(&lanes->branches.lock);
	if (lane)
		wait_event(req->nx->detached, nfr_client_lane_has_left(req));
	return lane;
}

/**
 * nfr_client_lane_timeout - handle the timeout of a Call
 * @nx: transport with lanes
 * @task: task of the Call, in a callback; sleeps until the lane is drained
 *
 * Context: Does not sleep.
 *
 * Return: false if no lane carries the Call.
 */
bool nfr_client_lane_timeout(struct nfr_xprt *nx, struct rpc_task *task)
{
	struct nfr_lane *lane;

	spin_lock(&nx->lanes->branches.lock);
	lane = nfr_client_req_of(task->tk_rqstp)->lane;
	if (lane) {
		/* nfr_client_branch_stop() wakes it after nfr_client_lane_ended() took the lock */
		rpc_sleep_on(&nx->lanes->branches.waiting, task, NULL);
		nfr_conn_break(&lane->branch.conn, "a reply did not come in time");
	}
	spin_unlock(&nx->lanes->branches.lock);
	return lane;
}

/* --- the lanes of a transport --- */

/**
 * nfr_client_lanes_create - allocate the lanes of a transport, none of which connects yet
 * @nx: transport
 *
 * Return: lanes, or NULL if the allocation failed.
 */
struct nfr_lanes *nfr_client_lanes_create(struct nfr_xprt *nx)
{
	struct nfr_lanes *lanes = kzalloc(sizeof(*lanes), GFP_KERNEL);
	struct nfr_params params;

	if (!lanes)
		return NULL;
	nfr_params_read(&params);
	nfr_client_branches_init(&lanes->branches, nx, &nfr_client_lane_kind);
	INIT_LIST_HEAD(&lanes->idle);
	lanes->limit = params.lanes;
	return lanes;
}

/**
 * nfr_client_lanes_destroy - undo nfr_client_lanes_create()
 * @lanes: lanes of a closed transport, or NULL
 */
void nfr_client_lanes_destroy(struct nfr_lanes *lanes)
{
	if (!lanes)
		return;
	nfr_client_branches_destroy(&lanes->branches);
	kfree(lanes);
}

/**
 * nfr_client_lanes_show - print the state of the lanes
 * @nx: transport with lanes
 * @seq: file connection in debugfs
 */
void nfr_client_lanes_show(struct nfr_xprt *nx, struct seq_file *seq)
{
	struct nfr_lanes *lanes = nx->lanes;

	seq_printf(seq, "lanes %u of %u\n", READ_ONCE(lanes->branches.count), lanes->limit);
	seq_printf(seq, "lanes_busy %u\n", READ_ONCE(lanes->busy));
}
