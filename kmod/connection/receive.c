// SPDX-License-Identifier: GPL-2.0-only
/*
 * Receives of a connection, its credits, and its abandoned Calls.
 *
 * A Call takes a credit and its Reply returns it; the peer grants the number of
 * credits (RFC 8166, section 3.3.1). A receive is posted for every Call in
 * flight, and for NFR_CALLBACK_CREDITS Calls of the peer, before the Call is
 * sent. Therefore the peer never gets a receiver-not-ready NAK.
 *
 * No task waits for the reply to an abandoned Call, but the Call keeps its
 * credit until the reply arrives. If the peer omits a reply for
 * NFR_ABANDONED_TIMEOUT, the connection breaks. A reply may arrive after sunrpc
 * dequeued its task and before nfr_conn_abandon(). Its XID is kept in @early, so
 * that the Call is not recorded later.
 */
#include <linux/slab.h>

#include "connection/connection.h"
#include "connection/receive.h"
#include "connection/state.h"
#include "gfp.h"
#include "observe/trace.h"
#include "variants.h"
#include "work.h"

/* Receives to repost in one batch, with one doorbell */
#define NFR_REPOST	8

/* Maximum wait for the reply to an abandoned Call */
#define NFR_ABANDONED_TIMEOUT	(60 * HZ)

static void nfr_conn_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_recv *recv = container_of(wc->wr_cqe, struct nfr_recv, cqe);
	struct nfr_conn *conn = recv->conn;

	if (wc->status != IB_WC_SUCCESS) {
		trace_nfsrdma_completion(conn, wc);
		nfr_conn_failed(conn, wc);
		return;
	}
	/*
	 * RDMA Write With Immediate completes a receive too; its byte_len is
	 * unrelated to the buffer
	 */
	if (wc->opcode != IB_WC_RECV || wc->byte_len > recv->sge.length) {
		nfr_conn_break(conn, "unexpected completion of a receive");
		return;
	}
	recv->length = wc->byte_len;
	recv->has_invalidated = wc->wc_flags & IB_WC_WITH_INVALIDATE;
	recv->invalidated = wc->ex.invalidate_rkey;
	ib_dma_sync_single_for_cpu(conn->device, recv->sge.addr, recv->length, DMA_FROM_DEVICE);
	conn->ops->receive(conn, recv);
}

static int nfr_conn_recv_post(struct nfr_conn *conn, struct list_head *recvs)
{
	struct ib_recv_wr *first = NULL, **link = &first;
	const struct ib_recv_wr *bad;
	struct nfr_recv *recv;

	list_for_each_entry(recv, recvs, list) {
		*link = &recv->wr;
		link = &recv->wr.next;
	}
	*link = NULL;
	INIT_LIST_HEAD(recvs);
	return ib_post_recv(conn->id->qp, first, &bad);
}

/* Move a full batch of receives to @batch. Caller holds the lock. */
static void nfr_conn_recv_collect(struct nfr_conn *conn, struct nfr_recv *recv,
				  struct list_head *batch)
{
	list_add_tail(&recv->list, &conn->recvs);
	if (++conn->recvs_back < NFR_REPOST)
		return;
	list_splice_init(&conn->recvs, batch);
	conn->recvs_back = 0;
}

static void nfr_conn_recv_repost(struct nfr_conn *conn, struct list_head *batch)
{
	if (list_empty(batch) || !nfr_conn_is_up(conn))
		return;
	if (nfr_conn_recv_post(conn, batch))
		nfr_conn_break(conn, "posting a receive failed");
}

/**
 * nfr_conn_recv_return - return the buffer of a received message
 * @conn: connection
 * @recv: receive; reposted in a batch
 *
 * Context: Any thread.
 */
void nfr_conn_recv_return(struct nfr_conn *conn, struct nfr_recv *recv)
{
	LIST_HEAD(batch);

	spin_lock_bh(&conn->lock);
	nfr_conn_recv_collect(conn, recv, &batch);
	spin_unlock_bh(&conn->lock);
	nfr_conn_recv_repost(conn, &batch);
}

/* A peer may answer Calls that were never sent. Caller holds the lock. */
static void nfr_conn_credit_drop(struct nfr_conn *conn)
{
	if (conn->inflight)
		conn->inflight--;
}

/**
 * nfr_conn_answered - return what a Call took: receive, credit, reserved room
 * @conn: connection
 * @recv: receive of the Reply
 * @reserved: work requests that the Call reserved and did not need
 */
void nfr_conn_answered(struct nfr_conn *conn, struct nfr_recv *recv, u32 reserved)
{
	LIST_HEAD(batch);

	spin_lock_bh(&conn->lock);
	nfr_conn_recv_collect(conn, recv, &batch);
	nfr_conn_credit_drop(conn);
	conn->sq.reserved -= reserved;
	spin_unlock_bh(&conn->lock);
	nfr_conn_recv_repost(conn, &batch);
}

/* --- receives for messages with padding: their data begins with a page --- */

static size_t nfr_conn_recv_aligned_size(const struct nfr_conn *conn)
{
	return PAGE_SIZE + conn->profile.recv_data;
}

static void nfr_conn_recv_free_aligned(struct nfr_conn *conn, struct nfr_recv *recv)
{
	if (recv->data)
		free_pages_exact(recv->data + NFR_PADDED_ALIGN - PAGE_SIZE,
				 nfr_conn_recv_aligned_size(conn));
	kfree(recv->pages);
}

/* Returns the size of the buffer, or 0 if an allocation failed. */
static u32 nfr_conn_recv_alloc_aligned(struct nfr_conn *conn, struct nfr_recv *recv, gfp_t gfp)
{
	u32 i, count = conn->profile.recv_data >> PAGE_SHIFT;
	void *first;

	recv->pages = kmalloc_array(count, sizeof(*recv->pages), gfp);
	first = recv->pages ? alloc_pages_exact(nfr_conn_recv_aligned_size(conn), gfp) : NULL;
	if (!first)
		return 0;
	for (i = 0; i < count; i++)
		recv->pages[i] = virt_to_page(first + (i + 1) * PAGE_SIZE);
	recv->data = first + PAGE_SIZE - NFR_PADDED_ALIGN;
	return NFR_PADDED_ALIGN + conn->profile.recv_data;
}

static u32 nfr_conn_recv_alloc_data(struct nfr_conn *conn, struct nfr_recv *recv, gfp_t gfp)
{
	u32 size = conn->wanted.inline_recv;

	if (conn->profile.recv_data)
		return nfr_conn_recv_alloc_aligned(conn, recv, gfp);
	recv->data = kmalloc_node(size, gfp, ibdev_to_node(conn->device));
	return recv->data ? size : 0;
}

/**
 * nfr_conn_recv_align - have receives with room for padded data
 * @conn: connection with @wanted set and without queues
 *
 * Their room suffices for other messages as well.
 */
void nfr_conn_recv_align(struct nfr_conn *conn)
{
	u32 most = max(conn->wanted.padded_max, conn->wanted.inline_recv - NFR_PADDED_ALIGN);

	conn->profile.recv_data = PAGE_ALIGN(most);
}

static void nfr_conn_recv_free(struct nfr_conn *conn, struct nfr_recv *recv)
{
	if (recv->sge.length)
		ib_dma_unmap_single(conn->device, recv->sge.addr, recv->sge.length,
				    DMA_FROM_DEVICE);
	if (recv->pages)
		nfr_conn_recv_free_aligned(conn, recv);
	else
		kfree(recv->data);
	kfree(recv);
}

static struct nfr_recv *nfr_conn_recv_alloc(struct nfr_conn *conn, gfp_t gfp)
{
	struct nfr_recv *recv;
	u32 size;
	u64 addr;

	recv = kzalloc(sizeof(*recv), gfp);
	if (!recv)
		return NULL;
	size = nfr_conn_recv_alloc_data(conn, recv, gfp);
	if (!size)
		goto out_free;
	addr = ib_dma_map_single(conn->device, recv->data, size, DMA_FROM_DEVICE);
	if (ib_dma_mapping_error(conn->device, addr))
		goto out_free;
	recv->conn = conn;
	recv->cqe.done = nfr_conn_recv_done;
	recv->sge = (struct ib_sge) {
		.addr = addr, .length = size, .lkey = conn->pd->local_dma_lkey,
	};
	recv->wr.wr_cqe = &recv->cqe;
	recv->wr.sg_list = &recv->sge;
	recv->wr.num_sge = 1;
	return recv;
out_free:
	nfr_conn_recv_free(conn, recv);
	return NULL;
}

/**
 * nfr_conn_recv_more - allocate and post NFR_BATCH more receives
 * @conn: connection; callers serialize: first setup, then senders
 * @gfp: NFR_GFP_RETRIED or NFR_GFP_COMPLETION
 *
 * Return: 0, -ENOBUFS or -ENOTCONN.
 */
int nfr_conn_recv_more(struct nfr_conn *conn, gfp_t gfp)
{
	struct nfr_recv *recv;
	LIST_HEAD(fresh);
	int i;

	for (i = 0; i < NFR_BATCH; i++) {
		recv = nfr_conn_recv_alloc(conn, gfp);
		if (!recv)
			break;
		list_add_tail(&recv->list, &fresh);
		list_add_tail(&recv->all, &conn->all_recvs);
		conn->recv_total++;
	}
	if (list_empty(&fresh))
		return -ENOBUFS;
	if (!nfr_conn_recv_post(conn, &fresh))
		return 0;
	nfr_conn_break(conn, "posting a receive failed");
	return -ENOTCONN;
}

/**
 * nfr_conn_recv_free_all - free all receives
 * @conn: connection without a queue pair
 */
void nfr_conn_recv_free_all(struct nfr_conn *conn)
{
	struct nfr_recv *recv, *next;

	list_for_each_entry_safe(recv, next, &conn->all_recvs, all)
		nfr_conn_recv_free(conn, recv);
}

/* --- credits --- */

/*
 * One batch may be in handling while almost NFR_REPOST wait for reposting.
 * Caller holds the lock.
 */
static bool nfr_conn_has_recvs(const struct nfr_conn *conn)
{
	return conn->recv_total >= conn->inflight + NFR_CALLBACK_CREDITS + NFR_BATCH + NFR_REPOST;
}

/**
 * nfr_conn_credit - take a credit for a Call
 * @conn: connection; callers serialize
 *
 * Return: 0, -EAGAIN if all credits are in use, or -ENOBUFS or -ENOTCONN if no
 * receive could be posted for the reply.
 */
int nfr_conn_credit(struct nfr_conn *conn)
{
	bool enough = false;
	int rc = -EAGAIN;

	spin_lock_bh(&conn->lock);
	if (conn->inflight < conn->granted) {
		conn->inflight++;
		enough = nfr_conn_has_recvs(conn);
		rc = 0;
	}
	spin_unlock_bh(&conn->lock);
	if (rc || enough)
		return rc;
	rc = nfr_conn_recv_more(conn, NFR_GFP_RETRIED);
	if (rc)
		nfr_conn_credit_back(conn);
	return rc;
}

/**
 * nfr_conn_credit_back - return the credit of a Call that was answered or not sent
 * @conn: connection
 */
void nfr_conn_credit_back(struct nfr_conn *conn)
{
	spin_lock_bh(&conn->lock);
	nfr_conn_credit_drop(conn);
	spin_unlock_bh(&conn->lock);
}

/**
 * nfr_conn_grant - update the number of credits that the peer grants
 * @conn: connection
 * @credits: value from the wire; clamped to 1 and the number that this side
 *	requested
 *
 * Context: Completion handler.
 */
void nfr_conn_grant(struct nfr_conn *conn, u32 credits)
{
	u32 grant = clamp_t(u32, credits, 1, conn->wanted.credits);

	if (grant == conn->granted)
		return;
	trace_nfsrdma_credit(conn, grant);
	spin_lock_bh(&conn->lock);
	conn->granted = grant;
	spin_unlock_bh(&conn->lock);
}

/* --- abandoned Calls --- */

/* Returns the index of @xid, or the length of the list. Caller holds the lock. */
static u32 nfr_conn_abandoned_find(const struct nfr_abandoned *all, u32 xid)
{
	u32 i;

	for (i = 0; i < all->count && all->calls[i].xid != xid; i++)
		;
	return i;
}

static void nfr_conn_abandoned_remove(struct nfr_abandoned *all, u32 at)
{
	all->count--;
	memmove(&all->calls[at], &all->calls[at + 1],
		(all->count - at) * sizeof(*all->calls));
}

/* Check whether the reply to @xid came first, and forget it. Caller holds the lock. */
static bool nfr_conn_abandoned_was_early(struct nfr_abandoned *all, u32 xid)
{
	u32 i;

	for (i = 0; i < all->nearly; i++) {
		if (all->early[i] != xid)
			continue;
		all->early[i] = all->early[--all->nearly];
		return true;
	}
	return false;
}

/* Drop the oldest if the array is full: then it holds replies that match no Call. */
static void nfr_conn_abandoned_keep_early(struct nfr_abandoned *all, u32 xid)
{
	if (all->nearly == all->room)
		memmove(all->early, all->early + 1, --all->nearly * sizeof(*all->early));
	all->early[all->nearly++] = xid;
}

/**
 * nfr_conn_abandon - record an abandoned Call
 * @conn: connection
 * @xid: XID of the Call
 *
 * At a client, the reply to an abandoned Call is still due. At a server, nfsd
 * dropped the Call, so that no reply will be sent.
 */
void nfr_conn_abandon(struct nfr_conn *conn, u32 xid)
{
	struct nfr_abandoned *all = &conn->abandoned;
	bool waits;

	spin_lock_bh(&conn->lock);
	/* there are at most as many as credits; if a peer exceeds that, the oldest one suffices */
	waits = !nfr_conn_abandoned_was_early(all, xid) && all->count < all->room;
	if (waits)
		all->calls[all->count++] = (struct nfr_abandoned_call) {
			.xid = xid, .since = jiffies,
		};
	spin_unlock_bh(&conn->lock);
	if (waits)
		nfr_work_queue(&all->work, NFR_ABANDONED_TIMEOUT);
}

/**
 * nfr_conn_abandoned_reply - account for a reply that no task waits for
 * @conn: connection
 * @xid: XID of the reply
 *
 * Context: Completion handler.
 */
void nfr_conn_abandoned_reply(struct nfr_conn *conn, u32 xid)
{
	struct nfr_abandoned *all = &conn->abandoned;
	u32 at;

	spin_lock_bh(&conn->lock);
	at = nfr_conn_abandoned_find(all, xid);
	if (at < all->count)
		nfr_conn_abandoned_remove(all, at);
	else
		nfr_conn_abandoned_keep_early(all, xid);
	spin_unlock_bh(&conn->lock);
	nfr_conn_credit_back(conn);
}

static void nfr_conn_abandoned_work(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, abandoned.work.work);
	struct nfr_abandoned *all = &conn->abandoned;
	bool waits, late = false;
	unsigned long due = 0;

	spin_lock_bh(&conn->lock);
	waits = all->count;
	if (waits) {
		due = all->calls[0].since + NFR_ABANDONED_TIMEOUT;
		late = time_after_eq(jiffies, due);
	}
	spin_unlock_bh(&conn->lock);
	if (late)
		nfr_conn_break(conn, conn->ops->unanswered);
	else if (waits && nfr_conn_is_up(conn))
		nfr_work_queue(&all->work, due - jiffies);
}

/**
 * nfr_conn_abandoned_init - initialize the tracking of abandoned Calls
 * @conn: new connection
 */
void nfr_conn_abandoned_init(struct nfr_conn *conn)
{
	INIT_DELAYED_WORK(&conn->abandoned.work, nfr_conn_abandoned_work);
}

/**
 * nfr_conn_abandoned_create - allocate room for one abandoned Call per credit
 * @conn: connection whose number of credits is known
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_conn_abandoned_create(struct nfr_conn *conn)
{
	struct nfr_abandoned *all = &conn->abandoned;

	all->room = conn->wanted.credits;
	all->calls = kcalloc(all->room, sizeof(*all->calls), NFR_GFP_RETRIED);
	all->early = kcalloc(all->room, sizeof(*all->early), NFR_GFP_RETRIED);
	return all->calls && all->early ? 0 : -ENOMEM;
}

/**
 * nfr_conn_abandoned_destroy - undo nfr_conn_abandoned_init() and nfr_conn_abandoned_create()
 * @conn: drained connection, for which no Call is abandoned any more
 */
void nfr_conn_abandoned_destroy(struct nfr_conn *conn)
{
	cancel_delayed_work_sync(&conn->abandoned.work);
	kfree(conn->abandoned.calls);
	kfree(conn->abandoned.early);
}
