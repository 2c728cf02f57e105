// SPDX-License-Identifier: GPL-2.0-only
/*
 * The lanes of a transport: when they connect, which Call gets one, and how they end.
 *
 * A lane connects when a READ finds none idle. A posted receive cannot be withdrawn:
 * therefore a lane whose Call is abandoned or times out breaks, a worker drains its queue
 * pair, and only then the Call's memory returns to its owner. The Call is sent again on
 * the transport's own connection. No failure of a lane breaks that connection, but its
 * end ends all lanes.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "client/lane.h"
#include "observe/trace.h"

/* Upper limit for one step of connecting */
#define NFR_LANE_STEP_TIMEOUT	(5 * HZ)

/* Delay after a failed attempt */
#define NFR_LANE_RETRY		(5 * HZ)

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
		nfr_mem_scatter_unmap(lane->conn.device, lane->sges + 1, lane->nsges - 1,
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
	struct nfr_lanes *lanes = lane->nx->lanes;

	spin_lock(&lanes->lock);
	lane->nx->counters.lane_bytes += bytes;
	lane->req = NULL;
	req->lane = NULL;
	/* pairs with nfr_client_lane_abandon(), which takes the lock if it finds NFR_REQ_SENT */
	smp_store_release(&req->state, state);
	lanes->busy--;
	/* nfr_client_lane_detach() removes a lane that breaks meanwhile */
	if (nfr_conn_is_up(&lane->conn))
		list_add(&lane->idle, &lanes->idle);
	spin_unlock(&lanes->lock);
}

/* Detach the Call of a drained lane, and have sunrpc send it again. */
static void nfr_client_lane_detach(struct nfr_lane *lane)
{
	struct nfr_lanes *lanes = lane->nx->lanes;
	struct rpc_xprt *xprt = &lane->nx->xprt;
	struct nfr_req *req;

	nfr_client_lane_unmap(lane);
	spin_lock(&xprt->queue_lock);
	spin_lock(&lanes->lock);
	list_del_init(&lane->idle);
	req = lane->req;
	if (req) {
		nfr_client_resend(req);
		lanes->busy--;
		lane->req = NULL;
		req->lane = NULL;
		/* pairs with nfr_client_lane_abandon(), as in nfr_client_lane_finish() */
		smp_store_release(&req->state, NFR_REQ_IDLE);
	}
	spin_unlock(&lanes->lock);
	spin_unlock(&xprt->queue_lock);
	/* a task whose lane has not ended tries again */
	rpc_wake_up(&lanes->waiting);
	wake_up_all(&lane->nx->detached);
}

/* --- connecting --- */

static void nfr_client_lane_schedule_end(struct nfr_lane *lane)
{
	if (!test_and_set_bit(NFR_LANE_ENDS, &lane->flags))
		queue_work(nfr_work_slow, &lane->end_work);
}

static void nfr_client_lane_broken(struct nfr_conn *conn)
{
	nfr_client_lane_schedule_end(conn->owner);
}

static void nfr_client_lane_writable(struct nfr_conn *conn)
{
}

static const struct nfr_conn_ops nfr_client_lane_conn_ops = {
	.writable	= nfr_client_lane_writable,
	.broken		= nfr_client_lane_broken,
};

/* Set the profile of the connection. Returns -EOPNOTSUPP if the device is unsuitable. */
static int nfr_client_lane_fit(struct nfr_lane *lane)
{
	struct nfr_conn *conn = &lane->conn;
	u32 sges = min_t(u32, conn->device->attrs.max_recv_sge, NFR_LANE_SGES);
	int rc;

	if (sges <= NFR_LANE_SPARE_SGES)
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	rc = nfr_conn_fit_queue(conn, 1);
	if (rc)
		return rc;
	lane->pages = sges - NFR_LANE_SPARE_SGES;
	conn->profile.sends = NFR_LANE_SENDS;
	conn->profile.send_sges = 1;
	conn->profile.recv_sges = sges;
	conn->profile.private = (struct nfr_private) {
		.extended = true, .token = lane->nx->token,
		.capabilities = nfr_variant_bit(NFR_PRE_POSTED) | NFR_LANE |
				FIELD_PREP(NFR_LANE_PAGES, lane->pages),
	};
	return 0;
}

static int nfr_client_lane_map_buffer(struct nfr_lane *lane)
{
	struct nfr_conn *conn = &lane->conn;
	u64 addr;

	lane->head = kmalloc_node(NFR_LANE_BUFFER, NFR_GFP_RETRIED, ibdev_to_node(conn->device));
	if (!lane->head)
		return -ENOMEM;
	addr = ib_dma_map_single(conn->device, lane->head, NFR_LANE_BUFFER, DMA_BIDIRECTIONAL);
	if (!ib_dma_mapping_error(conn->device, addr)) {
		lane->head_addr = addr;
		return 0;
	}
	kfree(lane->head);
	lane->head = NULL;
	return -ENOBUFS;
}

/* Allow nfr_client_lanes_close() to interrupt the connection attempt. */
static int nfr_client_lane_resolved(struct nfr_lane *lane)
{
	struct nfr_lanes *lanes = lane->nx->lanes;
	int rc;

	spin_lock(&lanes->lock);
	lane->resolved = true;
	rc = lane->stopped ? -ENOTCONN : 0;
	spin_unlock(&lanes->lock);
	return rc;
}

/* The server returns what it accepts: a lane, and the number of pages per message. */
static int nfr_client_lane_agree(struct nfr_lane *lane)
{
	u32 capabilities = lane->conn.peer.capabilities;
	u32 pages = FIELD_GET(NFR_LANE_PAGES, capabilities);

	if (!(capabilities & NFR_LANE) || !(capabilities & nfr_variant_bit(NFR_PRE_POSTED)) ||
	    !pages || pages > lane->pages)
		return nfr_conn_unfit(&lane->conn, "the server accepts no lanes");
	lane->pages = pages;
	return 0;
}

static int nfr_client_lane_open(struct nfr_lane *lane)
{
	struct nfr_conn *conn = &lane->conn;
	struct rpc_xprt *xprt = &lane->nx->xprt;
	int rc;

	rc = nfr_conn_resolve(conn, xprt->xprt_net, (struct sockaddr *)&xprt->addr);
	rc = rc ?: nfr_client_lane_resolved(lane);
	rc = rc ?: nfr_client_lane_fit(lane);
	rc = rc ?: nfr_client_lane_map_buffer(lane);
	rc = rc ?: nfr_conn_queues_create(conn);
	rc = rc ?: nfr_conn_connect(conn);
	return rc ?: nfr_client_lane_agree(lane);
}

static void nfr_client_lane_open_work(struct work_struct *work)
{
	struct nfr_lane *lane = container_of(work, struct nfr_lane, open_work);
	struct nfr_lanes *lanes = lane->nx->lanes;
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();
	int rc;

	lane->begun = true;
	rc = nfr_client_lane_open(lane);
	trace_nfsrdma_lane(&lane->conn, lane->pages, rc);
	spin_lock(&lanes->lock);
	if (rc) {
		lanes->retry_at = jiffies + NFR_LANE_RETRY;
	} else {
		lane->nx->counters.lanes_connected++;
		if (nfr_conn_is_up(&lane->conn))
			list_add(&lane->idle, &lanes->idle);
	}
	spin_unlock(&lanes->lock);
	if (rc)
		nfr_client_lane_schedule_end(lane);
	memalloc_noio_restore(noio);
}

/* --- the end of a lane --- */

/* Drain a lane that is in no list, and return the memory of its Call. */
static void nfr_client_lane_stop(struct nfr_lane *lane)
{
	struct nfr_lanes *lanes = lane->nx->lanes;
	struct nfr_conn *conn = &lane->conn;

	/*
	 * A sender that took the lane before it broke still posts to it. Pairs with
	 * nfr_client_lane_sent().
	 */
	wait_event(lane->nx->detached, smp_load_acquire(&lanes->sending) != lane);
	if (!lane->begun)
		return;
	nfr_conn_drain(conn);
	trace_nfsrdma_lane_end(conn, lane->req ? lane->xid : 0);
	nfr_client_lane_detach(lane);
	if (lane->head)
		ib_dma_unmap_single(conn->device, lane->head_addr, NFR_LANE_BUFFER,
				    DMA_BIDIRECTIONAL);
	nfr_conn_free(conn);
}

/* Free a stopped lane. Nothing refers to the transport afterwards. */
static void nfr_client_lane_free(struct nfr_lane *lane)
{
	struct nfr_xprt *nx = lane->nx;
	struct nfr_lanes *lanes = nx->lanes;

	kfree(lane->head);
	kfree(lane);
	spin_lock(&lanes->lock);
	nx->counters.lanes_ended++;
	lanes->count--;
	wake_up_all(&nx->detached);
	spin_unlock(&lanes->lock);
}

/* Take a lane from its list, which entitles the caller to end it. */
static bool nfr_client_lane_claim(struct nfr_lane *lane)
{
	struct nfr_lanes *lanes = lane->nx->lanes;
	bool claimed;

	spin_lock(&lanes->lock);
	claimed = !list_empty(&lane->list);
	list_del_init(&lane->list);
	spin_unlock(&lanes->lock);
	return claimed;
}

static void nfr_client_lane_end_work(struct work_struct *work)
{
	struct nfr_lane *lane = container_of(work, struct nfr_lane, end_work);
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();

	cancel_work_sync(&lane->open_work);
	if (nfr_client_lane_claim(lane)) {
		nfr_client_lane_stop(lane);
		nfr_client_lane_free(lane);
	}
	memalloc_noio_restore(noio);
}

/* Break all lanes, also those that are connecting. */
static void nfr_client_lanes_break(struct nfr_lanes *lanes)
{
	struct nfr_lane *lane;

	spin_lock(&lanes->lock);
	list_for_each_entry(lane, &lanes->all, list) {
		lane->stopped = true;
		if (lane->resolved)
			nfr_conn_break(&lane->conn, "the transport closes");
	}
	spin_unlock(&lanes->lock);
}

static struct nfr_lane *nfr_client_lanes_claim_first(struct nfr_lanes *lanes)
{
	struct nfr_lane *lane;

	spin_lock(&lanes->lock);
	lane = list_first_entry_or_null(&lanes->all, struct nfr_lane, list);
	if (lane)
		list_del_init(&lane->list);
	spin_unlock(&lanes->lock);
	return lane;
}

static bool nfr_client_lanes_are_gone(struct nfr_lanes *lanes)
{
	bool gone;

	spin_lock(&lanes->lock);
	gone = !lanes->count;
	spin_unlock(&lanes->lock);
	return gone;
}

/**
 * nfr_client_lanes_close - end all lanes
 * @nx: transport, locked, so that no Call starts another lane
 *
 * When this function returns, no lane has a Call.
 *
 * Context: Sleeps.
 */
void nfr_client_lanes_close(struct nfr_xprt *nx)
{
	struct nfr_lanes *lanes = nx->lanes;
	struct nfr_lane *lane;

	nfr_client_lanes_break(lanes);
	while ((lane = nfr_client_lanes_claim_first(lanes))) {
		cancel_work_sync(&lane->open_work);
		nfr_client_lane_stop(lane);
		/* it finds that this context ends the lane; nothing queues it again */
		cancel_work_sync(&lane->end_work);
		nfr_client_lane_free(lane);
	}
	/* those that a worker ends */
	wait_event(nx->detached, nfr_client_lanes_are_gone(lanes));
	lanes->retry_at = jiffies;
}

/* --- Calls --- */

static struct nfr_lane *nfr_client_lane_alloc(struct nfr_conn *conn)
{
	struct nfr_xprt *nx = conn->owner;
	struct nfr_lane *lane = kzalloc(sizeof(*lane), NFR_GFP_RETRIED);
	struct nfr_params *wanted;

	if (!lane)
		return NULL;
	lane->nx = nx;
	INIT_LIST_HEAD(&lane->list);
	INIT_LIST_HEAD(&lane->idle);
	INIT_WORK(&lane->open_work, nfr_client_lane_open_work);
	INIT_WORK(&lane->end_work, nfr_client_lane_end_work);
	lane->conn.owner = lane;
	lane->conn.ops = &nfr_client_lane_conn_ops;
	lane->conn.id_number = conn->id_number;
	lane->conn.generation = ++nx->generation;
	lane->conn.step_timeout = min_t(unsigned long, conn->step_timeout, NFR_LANE_STEP_TIMEOUT);
	wanted = &lane->conn.wanted;
	*wanted = conn->wanted;
	wanted->inline_send = NFR_LANE_INLINE;
	wanted->inline_recv = NFR_LANE_INLINE;
	wanted->credits = 1;
	return lane;
}

/* Connect one lane more. Caller has locked the transport. */
static void nfr_client_lanes_add(struct nfr_conn *conn)
{
	struct nfr_xprt *nx = conn->owner;
	struct nfr_lane *lane = nfr_client_lane_alloc(conn);

	if (!lane)
		return;
	spin_lock(&nx->lanes->lock);
	list_add_tail(&lane->list, &nx->lanes->all);
	nx->lanes->count++;
	spin_unlock(&nx->lanes->lock);
	queue_work(nfr_work_slow, &lane->open_work);
}

/* Find an idle lane that has room for a Reply. Caller holds the lock. */
static struct nfr_lane *nfr_client_lanes_find(struct nfr_lanes *lanes, u32 length)
{
	struct nfr_lane *lane;

	list_for_each_entry(lane, &lanes->idle, idle)
		if (nfr_conn_is_up(&lane->conn) &&
		    length <= (lane->pages * NFR_LANE_MESSAGES) << PAGE_SHIFT)
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

	spin_lock(&lanes->lock);
	if (req->lane) {
		/* nfr_client_send_call() reset both */
		req->state = NFR_REQ_SENT;
		req->generation = req->lane->conn.generation;
		nfr_conn_break(&req->lane->conn, "a Call has to be retransmitted");
		lane = ERR_PTR(-ENOBUFS);
	} else if (!lost) {
		lane = nfr_client_lanes_find(lanes, req->rqst.rq_rcv_buf.page_len);
	}
	if (lane && !IS_ERR(lane)) {
		list_del_init(&lane->idle);
		lane->req = req;
		req->lane = lane;
		WRITE_ONCE(lanes->sending, lane);
		lanes->busy++;
		req->nx->counters.lane_calls++;
	} else if (!lane) {
		req->nx->counters.lane_fallbacks++;
		add = !lost && list_empty(&lanes->idle) && lanes->count < lanes->limit &&
		      time_after_eq(jiffies, lanes->retry_at);
	}
	spin_unlock(&lanes->lock);
	if (add)
		nfr_client_lanes_add(conn);
	return lane;
}

/**
 * nfr_client_lane_sent - allow the lane that the caller took to end
 * @nx: transport, which the caller has locked
 */
void nfr_client_lane_sent(struct nfr_xprt *nx)
{
	/* pairs with nfr_client_lane_stop(): the lane may end after the last access to it */
	smp_store_release(&nx->lanes->sending, NULL);
	/* includes the barrier between this store and the look for a waiter */
	if (wq_has_sleeper(&nx->detached))
		wake_up_all(&nx->detached);
}

static bool nfr_client_lane_has_left(struct nfr_req *req)
{
	struct nfr_lanes *lanes = req->nx->lanes;
	bool left;

	spin_lock(&lanes->lock);
	left = !req->lane;
	spin_unlock(&lanes->lock);
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

	spin_lock(&lanes->lock);
	lane = req->lane;
	if (lane)
		nfr_conn_break(&lane->conn, "a Call on a lane was abandoned");
	spin_unlock(&lanes->lock);
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

	spin_lock(&nx->lanes->lock);
	lane = nfr_client_req_of(task->tk_rqstp)->lane;
	if (lane) {
		/* nfr_client_lane_detach() wakes the task after it took the lock */
		rpc_sleep_on(&nx->lanes->waiting, task, NULL);
		nfr_conn_break(&lane->conn, "a reply did not come in time");
	}
	spin_unlock(&nx->lanes->lock);
	return lane;
}

/* --- the lanes of a transport --- */

/**
 * nfr_client_lanes_create - allocate the lanes of a transport, none of which connects yet
 *
 * Return: lanes, or NULL if the allocation failed.
 */
struct nfr_lanes *nfr_client_lanes_create(void)
{
	struct nfr_lanes *lanes = kzalloc(sizeof(*lanes), GFP_KERNEL);
	struct nfr_params params;

	if (!lanes)
		return NULL;
	nfr_params_read(&params);
	spin_lock_init(&lanes->lock);
	INIT_LIST_HEAD(&lanes->all);
	INIT_LIST_HEAD(&lanes->idle);
	rpc_init_wait_queue(&lanes->waiting, "nfsrdma lanes");
	lanes->limit = params.lanes;
	lanes->retry_at = jiffies;
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
	rpc_destroy_wait_queue(&lanes->waiting);
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

	seq_printf(seq, "lanes %u of %u\n", READ_ONCE(lanes->count), lanes->limit);
	seq_printf(seq, "lanes_busy %u\n", READ_ONCE(lanes->busy));
}
