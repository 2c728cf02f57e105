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
#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "observe/trace.h"
#include "variants.h"
#include "work.h"

/* A connection was useful if it lasted for so long */
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
	struct nfr_optimist *optimist = nfr_client_optimist_of(side);
	bool busy;

	spin_lock(&optimist->branches.lock);
	busy = !list_empty(&side->busy);
	spin_unlock(&optimist->branches.lock);
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
	struct nfr_side *side = container_of(conn, struct nfr_side, branch.conn);

	do {
		nfr_conn_sends_poll(conn);
	} while (nfr_client_side_is_busy(side) && nfr_conn_sends_arm(conn));
}

/* --- refused Reads --- */

/* Pause if too many of the last Reads were refused. Caller holds the lock. */
static void nfr_client_side_decide(struct nfr_optimist *optimist)
{
	if (optimist->refused * NFR_SIDE_REFUSALS > max_t(u32, optimist->tried, NFR_SIDE_WINDOW)) {
		optimist->paused_until = jiffies + NFR_SIDE_PAUSE;
		optimist->branches.nx->counters.optimistic_pauses++;
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
	struct nfr_optimist *optimist = nfr_client_optimist_of(read->side);

	spin_lock(&optimist->branches.lock);
	nfr_client_reference_drop(&optimist->references, read->handle);
	optimist->branches.nx->counters.optimistic_refused++;
	optimist->refused++;
	nfr_client_side_decide(optimist);
	spin_unlock(&optimist->branches.lock);
	queue_work(nfr_work_slow, &read->side->check_work);
}

/* A refused Read ends the queue pair on most devices. */
static void nfr_client_side_check_work(struct work_struct *work)
{
	struct nfr_side *side = container_of(work, struct nfr_side, check_work);
	struct nfr_optimist *optimist = nfr_client_optimist_of(side);
	/* the end of the connection waits for this work, and writeback may wait for that */
	unsigned int noio = memalloc_noio_save();
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	bool works;

	works = !ib_query_qp(side->branch.conn.id->qp, &attr, IB_QP_STATE, &init) &&
		attr.qp_state == IB_QPS_RTS;
	memalloc_noio_restore(noio);
	if (works)
		return;
	spin_lock(&optimist->branches.lock);
	optimist->refused += NFR_SIDE_ENDED;
	nfr_client_side_decide(optimist);
	spin_unlock(&optimist->branches.lock);
	nfr_conn_break(&side->branch.conn, "the server refused an optimistic read");
}

/* --- notices --- */

/* Post the message that returns credits. Returns -EAGAIN if its buffer is in use. */
static int nfr_client_side_post_credits(struct nfr_side *side)
{
	struct nfr_notice notice = { .kind = NFR_NOTICE_CREDIT, .count = side->handled };
	u32 slot = side->ncredits % NFR_SIDE_CREDIT_SLOTS;
	u64 addr = side->branch.addr + slot * NFR_SIDE_CREDIT_BYTES;
	struct nfr_conn *conn = &side->branch.conn;
	struct ib_sge sge = { .addr = addr, .lkey = conn->pd->local_dma_lkey };
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1,
	};
	int rc = -EAGAIN;

	spin_lock_bh(&conn->lock);
	if (side->ncredits < NFR_SIDE_CREDIT_SLOTS ||
	    nfr_conn_is_retired(conn, side->marks[slot])) {
		sge.length = nfr_wire_encode_notice(&notice, side->branch.buffer +
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
	nfr_conn_sends_poll(&side->branch.conn);
	rc = nfr_client_side_post_credits(side);
	if (!rc)
		side->handled = 0;
	else if (rc != -EAGAIN)
		nfr_conn_break(&side->branch.conn, "returning credits failed");
}

static void nfr_client_side_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_side *side = container_of(conn, struct nfr_side, branch.conn);
	struct nfr_optimist *optimist = nfr_client_optimist_of(side);
	struct nfr_notice notice;
	u32 i;

	if (nfr_wire_decode_notice(&notice, recv->data, recv->length) ||
	    notice.kind == NFR_NOTICE_CREDIT) {
		nfr_conn_recv_return(conn, recv);
		nfr_conn_break(conn, "malformed notice");
		return;
	}
	spin_lock(&optimist->branches.lock);
	if (notice.kind == NFR_NOTICE_GRANT)
		nfr_client_reference_grant(&optimist->references, &notice);
	for (i = 0; notice.kind == NFR_NOTICE_REVOKE && i < notice.count; i++)
		nfr_client_reference_drop(&optimist->references, notice.handles[i]);
	spin_unlock(&optimist->branches.lock);
	nfr_conn_recv_return(conn, recv);
	nfr_client_side_handled(side);
}

/* --- the connection --- */

static void nfr_client_side_init(struct nfr_branch *branch)
{
	struct nfr_side *side = container_of(branch, struct nfr_side, branch);
	u32 i;

	branch->conn.wanted.busy_poll_us = 0;
	INIT_LIST_HEAD(&side->free);
	INIT_LIST_HEAD(&side->busy);
	INIT_WORK(&side->check_work, nfr_client_side_check_work);
	for (i = 0; i < NFR_SIDE_READS; i++) {
		side->reads[i].side = side;
		list_add_tail(&side->reads[i].list, &side->free);
	}
}

static int nfr_client_side_fit(struct nfr_branch *branch)
{
	struct nfr_conn *conn = &branch->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;

	/* an RDMA Read would need a registration of the memory that it writes to */
	if (rdma_protocol_iwarp(conn->device, conn->id->port_num))
		return nfr_conn_unfit(conn, "optimistic reads do not work on iWARP");
	profile->receives = NFR_NOTICES + 2 * NFR_BATCH;
	profile->sends = NFR_SIDE_SENDS;
	profile->send_sges = min3((u32)attrs->max_send_sge, (u32)attrs->max_sge_rd ?: NFR_SIDE_SGES,
				  NFR_SIDE_SGES);
	profile->recv_sges = 1;
	profile->reads_issued = min_t(int, attrs->max_qp_init_rd_atom, U8_MAX);
	profile->polled_sends = true;
	return 0;
}

/* The server states the size of its extents. */
static int nfr_client_side_agree(struct nfr_branch *branch)
{
	u32 order = FIELD_GET(NFR_EXTENT_ORDER, branch->conn.peer.capabilities);

	if (order > NFR_EXTENT_ORDER_MAX)
		return nfr_conn_unfit(&branch->conn, "the server accepts no optimistic reads");
	branch->pages = 1 << order;
	return 0;
}

static void nfr_client_side_opened(struct nfr_branch *branch)
{
	struct nfr_side *side = container_of(branch, struct nfr_side, branch);
	struct nfr_optimist *optimist = nfr_client_optimist_of(side);

	branch->of->nx->counters.optimistic_connects++;
	optimist->references.order = ilog2(branch->pages);
	optimist->side = side;
	side->since = jiffies;
}

/* No Read is in flight any more: those that failed are sent again by RPC. */
static void nfr_client_side_ended(struct nfr_branch *branch)
{
	struct nfr_side *side = container_of(branch, struct nfr_side, branch);
	struct nfr_optimist *optimist = nfr_client_optimist_of(side);

	cancel_work_sync(&side->check_work);
	trace_nfsrdma_lane_end(&branch->conn, 0);
	nfr_client_references_end(optimist);
	branch->useful = side->since && time_after(jiffies, side->since + NFR_SIDE_WORKED);
	spin_lock(&branch->of->lock);
	optimist->side = NULL;
	spin_unlock(&branch->of->lock);
}

const struct nfr_branch_kind nfr_client_side_kind = {
	.ops = {
		.receive	= nfr_client_side_receive,
		.writable	= nfr_client_branch_writable,
		.broken		= nfr_client_branch_broken,
		.sent		= nfr_client_side_poll,
	},
	.size		= sizeof(struct nfr_side),
	.buffer		= NFR_SIDE_CREDIT_SLOTS * NFR_SIDE_CREDIT_BYTES,
	.inline_size	= NFR_SIDE_INLINE,
	.credits	= NFR_NOTICES,
	.init		= nfr_client_side_init,
	.fit		= nfr_client_side_fit,
	.agree		= nfr_client_side_agree,
	.opened		= nfr_client_side_opened,
	.ended		= nfr_client_side_ended,
};
