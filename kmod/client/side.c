// SPDX-License-Identifier: GPL-2.0-only
/*
 * The second connection of a transport with the personality optimistic: it carries RDMA
 * Reads of the client and notices of the server, and ends when it breaks. A card may end it
 * for a refused Read; the first connection does not feel that, and READs go by RPC until
 * there is another one. If too many Reads are refused, Reads pause for a while.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "client/optimistic.h"
#include "observe/trace.h"

/* Upper limit for one step of connecting */
#define NFR_SIDE_STEP_TIMEOUT	(5 * HZ)

/*
 * Delay after the end of a connection: the first is for one that worked for NFR_SIDE_WORKED,
 * later ones grow to the last, which follows a failed attempt, too
 */
#define NFR_SIDE_AGAIN		(HZ / 100 ?: 1)
#define NFR_SIDE_RETRY		(5 * HZ)
#define NFR_SIDE_WORKED		(10 * HZ)

/* Largest message, in bytes */
#define NFR_SIDE_INLINE		1024

/* Size of the send queue: Reads, and credits */
#define NFR_SIDE_SENDS		(NFR_SIDE_READS + 64)

/* Notices to handle before their credits are returned, and the bytes of that message */
#define NFR_SIDE_CREDITS	16
#define NFR_SIDE_CREDIT_BYTES	128

/*
 * Reads pause if the server's device refused more than one of NFR_SIDE_REFUSALS in a window:
 * a refused Read costs less than another one saves
 */
#define NFR_SIDE_WINDOW		256
#define NFR_SIDE_REFUSALS	2
#define NFR_SIDE_PAUSE		(10 * HZ)

/*
 * What a refused Read counts in addition if it ended the connection: another connection, and
 * grants for all extents, cost what 200 Reads save
 */
#define NFR_SIDE_ENDED		100

/* --- completions --- */

/* Check whether the device has Reads to complete. */
static bool nfr_client_side_is_busy(struct nfr_side *side)
{
	struct nfr_optimist *optimist = side->nx->optimist;
	bool busy;

	spin_lock(&optimist->lock);
	busy = !list_empty(&side->busy);
	spin_unlock(&optimist->lock);
	return busy;
}

/**
 * nfr_client_side_poll - handle the completions of sends, and have the next one reported
 * @conn: second connection
 *
 * While no Read is in flight, nobody needs the next completion.
 *
 * Context: Worker, or a sender that stops polling.
 */
void nfr_client_side_poll(struct nfr_conn *conn)
{
	do {
		nfr_conn_sends_poll(conn);
	} while (nfr_client_side_is_busy(conn->owner) && nfr_conn_sends_arm(conn));
}

/* --- refused Reads --- */

/* Pause if too many of the last Reads were refused. Caller holds the lock. */
static void nfr_client_side_decide(struct nfr_xprt *nx)
{
	struct nfr_optimist *optimist = nx->optimist;

	if (optimist->refused * NFR_SIDE_REFUSALS > max_t(u32, optimist->tried, NFR_SIDE_WINDOW)) {
		optimist->paused_until = jiffies + NFR_SIDE_PAUSE;
		nx->counters.optimistic_pauses++;
		optimist->tried = 0;
		optimist->refused = 0;
	}
	/* older Reads count less */
	if (optimist->tried >= NFR_SIDE_WINDOW * NFR_SIDE_REFUSALS) {
		optimist->tried /= 2;
		optimist->refused /= 2;
	}
}

/**
 * nfr_client_side_refused - learn from a Read that the server's device refused
 * @read: Read
 */
void nfr_client_side_refused(struct nfr_side_read *read)
{
	struct nfr_xprt *nx = read->side->nx;

	spin_lock(&nx->optimist->lock);
	nfr_client_reference_drop(&nx->optimist->references, read->handle);
	nx->counters.optimistic_refused++;
	nx->optimist->refused++;
	nfr_client_side_decide(nx);
	spin_unlock(&nx->optimist->lock);
	queue_work(nfr_work_slow, &read->side->check_work);
}

/* A refused Read ends the queue pair on most devices. */
static void nfr_client_side_check_work(struct work_struct *work)
{
	struct nfr_side *side = container_of(work, struct nfr_side, check_work);
	struct nfr_optimist *optimist = side->nx->optimist;
	/* the end of the connection waits for this work, and writeback may wait for that */
	unsigned int noio = memalloc_noio_save();
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	bool works;

	works = !ib_query_qp(side->conn.id->qp, &attr, IB_QP_STATE, &init) &&
		attr.qp_state == IB_QPS_RTS;
	memalloc_noio_restore(noio);
	if (works)
		return;
	spin_lock(&optimist->lock);
	optimist->refused += NFR_SIDE_ENDED;
	nfr_client_side_decide(side->nx);
	spin_unlock(&optimist->lock);
	nfr_conn_break(&side->conn, "the server refused an optimistic read");
}

/* --- notices --- */

/* Post the message that returns credits. Returns -EAGAIN if its buffer is in use. */
static int nfr_client_side_post_credits(struct nfr_side *side)
{
	struct nfr_notice notice = { .kind = NFR_NOTICE_CREDIT, .count = side->handled };
	u32 slot = side->ncredits % ARRAY_SIZE(side->marks);
	u64 addr = side->addr + slot * NFR_SIDE_CREDIT_BYTES;
	struct nfr_conn *conn = &side->conn;
	struct ib_sge sge = { .addr = addr, .lkey = conn->pd->local_dma_lkey };
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1,
	};
	int rc = -EAGAIN;

	spin_lock_bh(&conn->lock);
	if (side->ncredits < ARRAY_SIZE(side->marks) ||
	    nfr_conn_is_retired(conn, side->marks[slot])) {
		sge.length = nfr_wire_encode_notice(&notice, side->credits +
						    slot * NFR_SIDE_CREDIT_BYTES);
		ib_dma_sync_single_for_device(conn->device, addr, sge.length, DMA_TO_DEVICE);
		rc = nfr_conn_post(conn, &send, &send, 1, true);
	}
	if (!rc) {
		side->marks[slot] = nfr_conn_mark(conn);
		side->ncredits++;
	}
	spin_unlock_bh(&conn->lock);
	return rc;
}

/* Count a notice, and return credits for several. The receive of the notice is posted again. */
static void nfr_client_side_handled(struct nfr_side *side)
{
	int rc;

	if (++side->handled < NFR_SIDE_CREDITS)
		return;
	/* earlier messages may be complete */
	nfr_conn_sends_poll(&side->conn);
	rc = nfr_client_side_post_credits(side);
	if (!rc)
		side->handled = 0;
	else if (rc != -EAGAIN)
		nfr_conn_break(&side->conn, "returning credits failed");
}

static void nfr_client_side_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_side *side = conn->owner;
	struct nfr_optimist *optimist = side->nx->optimist;
	struct nfr_notice notice;
	u32 i;

	if (nfr_wire_decode_notice(&notice, recv->data, recv->length) ||
	    notice.kind == NFR_NOTICE_CREDIT) {
		nfr_conn_recv_return(conn, recv);
		nfr_conn_break(conn, "malformed notice");
		return;
	}
	spin_lock(&optimist->lock);
	if (notice.kind == NFR_NOTICE_GRANT)
		nfr_client_reference_grant(&optimist->references, &notice);
	for (i = 0; notice.kind == NFR_NOTICE_REVOKE && i < notice.count; i++)
		nfr_client_reference_drop(&optimist->references, notice.handles[i]);
	spin_unlock(&optimist->lock);
	nfr_conn_recv_return(conn, recv);
	nfr_client_side_handled(side);
}

/* --- connecting --- */

static void nfr_client_side_schedule_end(struct nfr_side *side)
{
	if (!test_and_set_bit(NFR_SIDE_ENDS, &side->flags))
		queue_work(nfr_work_slow, &side->end_work);
}

static void nfr_client_side_broken(struct nfr_conn *conn)
{
	nfr_client_side_schedule_end(conn->owner);
}

static void nfr_client_side_writable(struct nfr_conn *conn)
{
}

static const struct nfr_conn_ops nfr_client_side_conn_ops = {
	.receive	= nfr_client_side_receive,
	.writable	= nfr_client_side_writable,
	.broken		= nfr_client_side_broken,
	.sent		= nfr_client_side_poll,
};

/* Set the profile of the connection. Returns -EOPNOTSUPP if the device is unsuitable. */
static int nfr_client_side_fit(struct nfr_side *side)
{
	struct nfr_conn *conn = &side->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;
	int rc;

	/* an RDMA Read would need a registration of the memory that it writes to */
	if (rdma_protocol_iwarp(conn->device, conn->id->port_num))
		return nfr_conn_unfit(conn, "optimistic reads do not work on iWARP");
	rc = nfr_conn_fit_queue(conn, 1);
	if (rc)
		return rc;
	profile->receives = NFR_NOTICES + 2 * NFR_BATCH;
	profile->sends = NFR_SIDE_SENDS;
	profile->send_sges = min3((u32)attrs->max_send_sge, (u32)attrs->max_sge_rd ?: NFR_SIDE_SGES,
				  NFR_SIDE_SGES);
	profile->recv_sges = 1;
	profile->reads_issued = min_t(int, attrs->max_qp_init_rd_atom, U8_MAX);
	profile->polled_sends = true;
	profile->private = (struct nfr_private) {
		.extended = true, .token = side->nx->token,
		.capabilities = nfr_variant_bit(NFR_OPTIMISTIC) | NFR_LANE,
	};
	return 0;
}

static int nfr_client_side_map_credits(struct nfr_side *side)
{
	size_t size = ARRAY_SIZE(side->marks) * NFR_SIDE_CREDIT_BYTES;
	struct ib_device *device = side->conn.device;
	u64 addr;

	side->credits = kmalloc(size, NFR_GFP_RETRIED);
	if (!side->credits)
		return -ENOMEM;
	addr = ib_dma_map_single(device, side->credits, size, DMA_TO_DEVICE);
	if (!ib_dma_mapping_error(device, addr)) {
		side->addr = addr;
		return 0;
	}
	kfree(side->credits);
	side->credits = NULL;
	return -ENOMEM;
}

/* Allow nfr_client_optimist_close() to interrupt the connection attempt. */
static int nfr_client_side_resolved(struct nfr_side *side)
{
	struct nfr_optimist *optimist = side->nx->optimist;
	int rc;

	spin_lock(&optimist->lock);
	side->resolved = true;
	rc = side->stopped ? -ENOTCONN : 0;
	spin_unlock(&optimist->lock);
	return rc;
}

/* The server returns what it accepts: the connection, and the size of its extents. */
static int nfr_client_side_agree(struct nfr_side *side)
{
	u32 capabilities = side->conn.peer.capabilities;
	u32 order = FIELD_GET(NFR_EXTENT_ORDER, capabilities);

	if (!(capabilities & NFR_LANE) || !(capabilities & nfr_variant_bit(NFR_OPTIMISTIC)) ||
	    order > NFR_EXTENT_ORDER_MAX)
		return nfr_conn_unfit(&side->conn, "the server accepts no optimistic reads");
	side->order = order;
	return 0;
}

static int nfr_client_side_open(struct nfr_side *side)
{
	struct nfr_conn *conn = &side->conn;
	struct rpc_xprt *xprt = &side->nx->xprt;
	int rc;

	rc = nfr_conn_resolve(conn, xprt->xprt_net, (struct sockaddr *)&xprt->addr);
	rc = rc ?: nfr_client_side_resolved(side);
	rc = rc ?: nfr_client_side_fit(side);
	rc = rc ?: nfr_client_side_map_credits(side);
	rc = rc ?: nfr_conn_queues_create(conn);
	rc = rc ?: nfr_conn_connect(conn);
	return rc ?: nfr_client_side_agree(side);
}

static void nfr_client_side_open_work(struct work_struct *work)
{
	struct nfr_side *side = container_of(work, struct nfr_side, open_work);
	struct nfr_optimist *optimist = side->nx->optimist;
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();
	int rc;

	side->begun = true;
	rc = nfr_client_side_open(side);
	trace_nfsrdma_lane(&side->conn, 1 << side->order, rc);
	spin_lock(&optimist->lock);
	if (rc) {
		optimist->retry_at = jiffies + NFR_SIDE_RETRY;
	} else {
		side->nx->counters.optimistic_connects++;
		side->since = jiffies;
		optimist->references.order = side->order;
		side->up = true;
	}
	spin_unlock(&optimist->lock);
	if (rc)
		nfr_client_side_schedule_end(side);
	memalloc_noio_restore(noio);
}

/* --- the end --- */

/* Drain a claimed connection. Reads in flight are sent again by RPC. */
static void nfr_client_side_stop(struct nfr_side *side)
{
	struct nfr_optimist *optimist = side->nx->optimist;
	struct nfr_conn *conn = &side->conn;

	/*
	 * A sender that took a Read before the connection broke still posts it. Pairs with
	 * nfr_client_side_sent().
	 */
	wait_event(side->nx->detached, smp_load_acquire(&optimist->sending) != side);
	if (!side->begun)
		return;
	nfr_conn_drain(conn);
	cancel_work_sync(&side->check_work);
	trace_nfsrdma_lane_end(conn, 0);
	if (side->credits)
		ib_dma_unmap_single(conn->device, side->addr,
				    ARRAY_SIZE(side->marks) * NFR_SIDE_CREDIT_BYTES,
				    DMA_TO_DEVICE);
	nfr_conn_free(conn);
}

/* Free a stopped connection. Nothing refers to the transport afterwards. */
static void nfr_client_side_free(struct nfr_side *side)
{
	bool worked = side->since && time_after(jiffies, side->since + NFR_SIDE_WORKED);
	struct nfr_xprt *nx = side->nx;
	struct nfr_optimist *optimist = nx->optimist;

	rpc_wake_up(&optimist->waiting);
	nfr_client_references_end(optimist);
	spin_lock(&optimist->lock);
	optimist->side = NULL;
	if (worked || !optimist->delay)
		optimist->delay = NFR_SIDE_AGAIN;
	if (time_before(optimist->retry_at, jiffies + optimist->delay))
		optimist->retry_at = jiffies + optimist->delay;
	optimist->delay = min_t(unsigned long, 2 * optimist->delay, NFR_SIDE_RETRY);
	wake_up_all(&nx->detached);
	spin_unlock(&optimist->lock);
	/* tasks that take the lock from now on find no connection */
	kfree(side->credits);
	kvfree(side);
}

/* Become the one who ends a connection. */
static bool nfr_client_side_claim(struct nfr_side *side)
{
	struct nfr_optimist *optimist = side->nx->optimist;
	bool claimed;

	spin_lock(&optimist->lock);
	claimed = !side->claimed;
	side->claimed = true;
	side->up = false;
	spin_unlock(&optimist->lock);
	return claimed;
}

static void nfr_client_side_end_work(struct work_struct *work)
{
	struct nfr_side *side = container_of(work, struct nfr_side, end_work);
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();

	cancel_work_sync(&side->open_work);
	if (nfr_client_side_claim(side)) {
		nfr_client_side_stop(side);
		nfr_client_side_free(side);
	}
	memalloc_noio_restore(noio);
}

static bool nfr_client_side_is_gone(struct nfr_optimist *optimist)
{
	return !READ_ONCE(optimist->side);
}

/**
 * nfr_client_optimist_close - end the second connection
 * @nx: transport, locked, so that no READ starts another one
 *
 * When this function returns, no Call has a Read.
 *
 * Context: Sleeps.
 */
void nfr_client_optimist_close(struct nfr_xprt *nx)
{
	struct nfr_optimist *optimist = nx->optimist;
	struct nfr_side *side;

	spin_lock(&optimist->lock);
	side = optimist->side;
	if (side) {
		side->stopped = true;
		if (side->resolved)
			nfr_conn_break(&side->conn, "the transport closes");
		if (side->claimed)
			side = NULL;
		else
			side->claimed = true;
	}
	spin_unlock(&optimist->lock);
	if (side) {
		cancel_work_sync(&side->open_work);
		nfr_client_side_stop(side);
		/* it finds that this context ends the connection; nothing queues it again */
		cancel_work_sync(&side->end_work);
		nfr_client_side_free(side);
	}
	/* a worker may be ending it */
	wait_event(nx->detached, nfr_client_side_is_gone(optimist));
	/* the worker holds the lock when it wakes this context */
	spin_lock(&optimist->lock);
	optimist->retry_at = jiffies;
	spin_unlock(&optimist->lock);
}

/* --- creation --- */

static void nfr_client_side_init_conn(struct nfr_side *side, const struct nfr_conn *conn)
{
	struct nfr_params *wanted = &side->conn.wanted;

	side->conn.owner = side;
	side->conn.ops = &nfr_client_side_conn_ops;
	side->conn.id_number = conn->id_number;
	side->conn.generation = ++side->nx->generation;
	side->conn.step_timeout = min_t(unsigned long, conn->step_timeout, NFR_SIDE_STEP_TIMEOUT);
	*wanted = conn->wanted;
	wanted->inline_send = NFR_SIDE_INLINE;
	wanted->inline_recv = NFR_SIDE_INLINE;
	wanted->credits = NFR_NOTICES;
	wanted->busy_poll_us = 0;
}

/**
 * nfr_client_side_add - connect once more
 * @conn: connection of the transport, which the caller has locked
 */
void nfr_client_side_add(struct nfr_conn *conn)
{
	struct nfr_xprt *nx = conn->owner;
	struct nfr_side *side = kvzalloc(sizeof(*side), NFR_GFP_RETRIED);
	u32 i;

	if (!side)
		return;
	side->nx = nx;
	INIT_LIST_HEAD(&side->free);
	INIT_LIST_HEAD(&side->busy);
	INIT_WORK(&side->open_work, nfr_client_side_open_work);
	INIT_WORK(&side->end_work, nfr_client_side_end_work);
	INIT_WORK(&side->check_work, nfr_client_side_check_work);
	for (i = 0; i < NFR_SIDE_READS; i++) {
		side->reads[i].side = side;
		list_add_tail(&side->reads[i].list, &side->free);
	}
	nfr_client_side_init_conn(side, conn);
	spin_lock(&nx->optimist->lock);
	nx->optimist->side = side;
	spin_unlock(&nx->optimist->lock);
	queue_work(nfr_work_slow, &side->open_work);
}
