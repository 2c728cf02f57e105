// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues of a connection.
 *
 * The send queue takes ready chains of work requests, and does not know their
 * purpose. Few work requests are signaled; a completion retires all work requests
 * before it. A sender can reserve room for a chain that it will have to post later,
 * so that this chain never finds the queue full.
 *
 * A Call takes a credit and its Reply returns it; the peer grants the number of
 * credits (RFC 8166, section 3.3.1). A receive is posted for every Call in
 * flight, and for NFR_CALLBACK_CREDITS Calls of the peer, before the Call is
 * sent. Therefore the peer never gets a receiver-not-ready NAK.
 *
 * No task waits for the reply to an abandoned Call, but the Call keeps its
 * credit until the reply arrives. If the peer omits a reply for
 * NFR_ABANDONED_TIMEOUT, the connection breaks. A reply may arrive after sunrpc
 * dequeued its task and before nfr_conn_abandon(). It is kept in @early, so that
 * the Call is not recorded later. The owner may keep memory of an abandoned Call,
 * which the reply releases.
 *
 * A worker of this module polls for completions, because the worker of the RDMA
 * core cannot busy-poll before it sleeps. If the owner permits it, the worker
 * runs in softirq context, which saves two thread switches per interrupt.
 */
#include <linux/delay.h>
#include <linux/dim.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "connection/connection.h"
#include "connection/device.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "observe/trace.h"
#include "personality/padded.h"
#include "work.h"

/* --- the send queue --- */

/* Retire the oldest signaled work request, and all before it. */
static inline void nfr_conn_retire_oldest(struct nfr_conn *conn)
{
	struct nfr_send_queue *sq = &conn->sq;

	spin_lock_bh(&conn->lock);
	sq->retired = sq->marks[sq->marks_tail++ & (sq->ring - 1)];
	spin_unlock_bh(&conn->lock);
}

/**
 * nfr_conn_retire - account for a signaled work request that the queue pair survived
 * @conn: connection
 * @wc: its completion, a failed one or not
 *
 * All earlier work requests are complete, too.
 */
void nfr_conn_retire(struct nfr_conn *conn, const struct ib_wc *wc)
{
	trace_nfsrdma_completion(conn, wc);
	nfr_conn_retire_oldest(conn);
}

/**
 * nfr_conn_check - account for the completion of a send work request
 * @conn: connection
 * @wc: completion of a signaled work request, or of any that failed
 *
 * A success retires all earlier work requests. A failure breaks the connection.
 *
 * Return: true if the work request succeeded.
 */
bool nfr_conn_check(struct nfr_conn *conn, const struct ib_wc *wc)
{
	trace_nfsrdma_completion(conn, wc);
	if (wc->status != IB_WC_SUCCESS) {
		nfr_conn_failed(conn, wc);
		return false;
	}
	nfr_conn_retire_oldest(conn);
	return true;
}

static void nfr_conn_signal_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_conn *conn = cq->cq_context;

	if (nfr_conn_check(conn, wc))
		conn->ops->writable(conn);
}

/**
 * nfr_conn_has_room - check for send queue room
 * @conn: connection
 * @credit: whether a credit is needed, too
 *
 * Return: true if there is the room that the last rejected message needed, and
 * the credit.
 */
bool nfr_conn_has_room(struct nfr_conn *conn, bool credit)
{
	bool room;

	spin_lock_bh(&conn->lock);
	room = (!credit || conn->inflight < conn->granted) &&
	       nfr_conn_sq_free(&conn->sq) >= conn->sq.needed;
	spin_unlock_bh(&conn->lock);
	return room;
}

/**
 * nfr_conn_post - post a chain of work requests
 * @conn: connection; the caller holds its lock
 * @first: first work request of the chain
 * @last: last work request; signaled if @signal is set or a signal is due
 * @count: number of work requests
 * @signal: whether the caller needs the completion
 *
 * Return: 0, -EAGAIN if the queue is full, or -ENOTCONN if the queue is closed
 * or posting failed; then the caller has to break the connection.
 */
int nfr_conn_post(struct nfr_conn *conn, struct ib_send_wr *first, struct ib_send_wr *last,
		  u32 count, bool signal)
{
	int rc = nfr_conn_sq_admit(&conn->sq, count);

	if (rc)
		return rc;
	nfr_conn_sq_take(&conn->sq, count, last, signal);
	return nfr_conn_submit(conn, first);
}

/* Allocate the accounting of a send queue for @size work requests. Returns 0 or -ENOMEM. */
static int nfr_conn_sq_create(struct nfr_conn *conn, u32 size)
{
	struct nfr_send_queue *sq = &conn->sq;

	sq->size = size;
	sq->ring = roundup_pow_of_two(size);
	sq->marks = kcalloc(sq->ring, sizeof(*sq->marks), NFR_GFP_RETRIED);
	conn->signal_cqe.done = nfr_conn_signal_done;
	return sq->marks ? 0 : -ENOMEM;
}

/* --- receives --- */

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
	trace_nfsrdma_message(conn, recv->data, recv->length, false);
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

/* Give the buffer of a message back to the device: a processor may have decrypted in it. */
static void nfr_conn_recv_sync(const struct nfr_conn *conn, const struct nfr_recv *recv)
{
	if (recv->length)
		ib_dma_sync_single_for_device(conn->device, recv->sge.addr, recv->length,
					      DMA_FROM_DEVICE);
}

/*
 * Collect a receive, and post a full batch. The caller holds the lock: what is not posted is less
 * than a batch then, also if this thread is interrupted. Returns 0 or an error of the device.
 */
static int nfr_conn_recv_collect(struct nfr_conn *conn, struct nfr_recv *recv)
{
	list_add_tail(&recv->list, &conn->recvs);
	if (++conn->recvs_back < NFR_REPOST)
		return 0;
	conn->recvs_back = 0;
	if (nfr_conn_is_up(conn))
		return nfr_conn_recv_post(conn, &conn->recvs);
	INIT_LIST_HEAD(&conn->recvs);
	return 0;
}

static void nfr_conn_recv_check(struct nfr_conn *conn, int rc)
{
	if (rc)
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
	int rc;

	nfr_conn_recv_sync(conn, recv);
	spin_lock_bh(&conn->lock);
	rc = nfr_conn_recv_collect(conn, recv);
	spin_unlock_bh(&conn->lock);
	nfr_conn_recv_check(conn, rc);
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
	int rc;

	nfr_conn_recv_sync(conn, recv);
	spin_lock_bh(&conn->lock);
	rc = nfr_conn_recv_collect(conn, recv);
	nfr_conn_credit_drop(conn);
	conn->sq.reserved -= reserved;
	spin_unlock_bh(&conn->lock);
	nfr_conn_recv_check(conn, rc);
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
	u32 size = conn->recv_room;

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

/*
 * Allocate and post up to @count receives. Callers serialize: first setup, then senders. Returns 0,
 * -ENOBUFS if none could be allocated, or -ENOTCONN.
 */
static int nfr_conn_recv_more(struct nfr_conn *conn, u32 count, gfp_t gfp)
{
	struct nfr_recv *recv;
	LIST_HEAD(fresh);
	u32 i;
	int rc;

	for (i = 0; i < count; i++) {
		recv = nfr_conn_recv_alloc(conn, gfp);
		if (!recv)
			break;
		list_add_tail(&recv->list, &fresh);
		list_add_tail(&recv->all, &conn->all_recvs);
		conn->recv_total++;
	}
	if (list_empty(&fresh))
		return -ENOBUFS;
	rc = nfr_conn_recv_post(conn, &fresh);
	nfr_conn_recv_check(conn, rc);
	return rc ? -ENOTCONN : 0;
}

/**
 * nfr_conn_recv_fill - have a number of receives
 * @conn: connection; callers serialize: first setup, then senders
 * @total: number of receives
 * @gfp: NFR_GFP_RETRIED or NFR_GFP_COMPLETION
 *
 * Return: 0, -ENOBUFS or -ENOTCONN.
 */
int nfr_conn_recv_fill(struct nfr_conn *conn, u32 total, gfp_t gfp)
{
	int rc = 0;

	while (conn->recv_total < total && !rc)
		rc = nfr_conn_recv_more(conn, total - conn->recv_total, gfp);
	return rc;
}

/* Free all receives of a connection without a queue pair. */
static void nfr_conn_recv_free_all(struct nfr_conn *conn)
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
	rc = nfr_conn_recv_more(conn, NFR_BATCH, NFR_GFP_RETRIED);
	if (rc)
		nfr_conn_credit_back(conn);
	return rc;
}

/* Return the credit of a Call that was answered or not sent. */
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
static bool nfr_conn_abandoned_was_early(struct nfr_abandoned *all, u32 xid,
					 struct nfr_late_reply *early)
{
	u32 i;

	for (i = 0; i < all->nearly; i++) {
		if (all->early[i].xid != xid)
			continue;
		if (early)
			*early = all->early[i];
		all->early[i] = all->early[--all->nearly];
		return true;
	}
	return false;
}

/* Drop the oldest if the array is full: then it holds replies that match no Call. */
static void nfr_conn_abandoned_keep_early(struct nfr_abandoned *all,
					  const struct nfr_late_reply *reply)
{
	if (all->nearly == all->room)
		memmove(all->early, all->early + 1, --all->nearly * sizeof(*all->early));
	all->early[all->nearly++] = *reply;
}

/**
 * nfr_conn_abandon - record an abandoned Call
 * @conn: connection
 * @xid: XID of the Call
 * @kept: what nfr_conn_abandoned_reply() returns when the reply comes, or NULL
 * @early: output, the reply if it has come already; may be NULL without @kept
 *
 * At a client, the reply to an abandoned Call is still due. At a server, nfsd
 * dropped the Call, so that no reply will be sent.
 *
 * There are at most as many abandoned Calls as credits. If a peer exceeds that, because it
 * answers Calls that were never sent, the oldest one suffices for the timeout. A Call with @kept
 * has to be recorded: then the connection breaks instead, and its end releases @kept.
 *
 * Return: false if the reply has come already.
 */
bool nfr_conn_abandon(struct nfr_conn *conn, u32 xid, void *kept, struct nfr_late_reply *early)
{
	struct nfr_abandoned *all = &conn->abandoned;
	bool due, full;

	spin_lock_bh(&conn->lock);
	due = !nfr_conn_abandoned_was_early(all, xid, early);
	full = all->count == all->room;
	if (due && !full)
		all->calls[all->count++] = (struct nfr_abandoned_call) {
			.xid = xid, .since = jiffies, .kept = kept,
		};
	spin_unlock_bh(&conn->lock);
	if (due && !full)
		nfr_work_queue(&all->work, NFR_ABANDONED_TIMEOUT);
	else if (due && kept)
		nfr_conn_break(conn, "more abandoned Calls than credits");
	return due;
}

/**
 * nfr_conn_abandoned_forget - take back what was kept for an abandoned Call
 * @conn: connection
 * @kept: see nfr_conn_abandon(). The reply remains due
 *
 * Return: false if nfr_conn_abandoned_reply() has returned it.
 */
bool nfr_conn_abandoned_forget(struct nfr_conn *conn, const void *kept)
{
	struct nfr_abandoned *all = &conn->abandoned;
	bool found;
	u32 i;

	spin_lock_bh(&conn->lock);
	for (i = 0; i < all->count && all->calls[i].kept != kept; i++)
		;
	found = i < all->count;
	if (found)
		all->calls[i].kept = NULL;
	spin_unlock_bh(&conn->lock);
	return found;
}

/**
 * nfr_conn_abandoned_reply - account for a reply that no task waits for
 * @conn: connection
 * @reply: reply
 *
 * Context: Completion handler.
 *
 * Return: what the owner keeps for the Call and has to release, or NULL.
 */
void *nfr_conn_abandoned_reply(struct nfr_conn *conn, const struct nfr_late_reply *reply)
{
	struct nfr_abandoned *all = &conn->abandoned;
	void *kept = NULL;
	u32 at;

	spin_lock_bh(&conn->lock);
	at = nfr_conn_abandoned_find(all, reply->xid);
	if (at < all->count) {
		kept = all->calls[at].kept;
		nfr_conn_abandoned_remove(all, at);
	} else {
		nfr_conn_abandoned_keep_early(all, reply);
	}
	spin_unlock_bh(&conn->lock);
	return kept;
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

/* Allocate room for one abandoned Call per credit. Returns 0 or -ENOMEM. */
static int nfr_conn_abandoned_create(struct nfr_conn *conn)
{
	struct nfr_abandoned *all = &conn->abandoned;

	all->room = conn->wanted.credits;
	all->calls = kcalloc(all->room, sizeof(*all->calls), NFR_GFP_RETRIED);
	all->early = kcalloc(all->room, sizeof(*all->early), NFR_GFP_RETRIED);
	return all->calls && all->early ? 0 : -ENOMEM;
}

/* Completions to handle before the worker requeues itself */
#define NFR_POLL_LIMIT		256

/* --- completions --- */

/* Work requests inside a chain have no completion handler; they complete only when they fail. */
static void nfr_conn_poll_one(struct nfr_conn *conn, struct ib_wc *wc)
{
	if (wc->wr_cqe)
		wc->wr_cqe->done(conn->cq, wc);
	else
		nfr_conn_failed(conn, wc);
}

static int nfr_conn_poll_batch(struct nfr_conn *conn)
{
	int i, n;

	n = ib_poll_cq(conn->cq, NFR_BATCH, conn->wcs);
	for (i = 0; i < n; i++)
		nfr_conn_poll_one(conn, &conn->wcs[i]);
	return n;
}

/* Decide whether to poll again before sleeping. @idle_since is 0 after a completion. */
static bool nfr_conn_poll_goes_on(const struct nfr_conn *conn, ktime_t *idle_since)
{
	u32 us = conn->wanted.busy_poll_us;

	if (!us || need_resched() || !nfr_conn_is_up(conn))
		return false;
	if (!*idle_since)
		*idle_since = ktime_get();
	cpu_relax();
	return ktime_us_delta(ktime_get(), *idle_since) < us;
}

/* ib_alloc_cq() allocates dim for drivers that support interrupt moderation. */
static void nfr_conn_poll_moderate(struct nfr_conn *conn, int handled)
{
	if (conn->cq->dim)
		rdma_dim(conn->cq->dim, handled);
}

static void nfr_conn_poll(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, poll_work);
	ktime_t idle_since = 0;
	int n, handled = 0;

	if (READ_ONCE(conn->queues_end))
		return;
	while (handled < NFR_POLL_LIMIT) {
		n = nfr_conn_poll_batch(conn);
		handled += max(n, 0);
		if (n > 0)
			idle_since = 0;
		/* after an incomplete batch, rearming the CQ is cheaper than polling again */
		if (n == NFR_BATCH || nfr_conn_poll_goes_on(conn, &idle_since))
			continue;
		if (ib_req_notify_cq(conn->cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) <= 0) {
			nfr_conn_poll_moderate(conn, handled);
			return;
		}
	}
	queue_work(conn->poll_queue, &conn->poll_work);
}

static void nfr_conn_cq_ready(struct ib_cq *cq, void *context)
{
	struct nfr_conn *conn = context;

	queue_work(conn->poll_queue, &conn->poll_work);
}

static void nfr_conn_sends_ready(struct ib_cq *cq, void *context)
{
	struct nfr_conn *conn = context;

	queue_work(nfr_work_poll, &conn->sent_work);
}

static void nfr_conn_sent_work(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, sent_work);

	if (READ_ONCE(conn->queues_end))
		return;
	do {
		conn->ops->sent(conn);
		/* the last completion of a drain is one that the owner does not wait for */
	} while (READ_ONCE(conn->sq.closed) && nfr_conn_sends_arm(conn));
}

/**
 * nfr_conn_sends_poll - handle completions of sends
 * @conn: connection whose profile has @polled_sends
 *
 * Context: Several contexts may poll at once; each handles the completions that it finds.
 */
void nfr_conn_sends_poll(struct nfr_conn *conn)
{
	ib_process_cq_direct(conn->send_cq, NFR_BATCH);
}

/**
 * nfr_conn_sends_arm - have nfr_conn_ops.sent called after the next completion of a send
 * @conn: connection whose profile has @polled_sends
 *
 * Return: true if there are completions already: the caller has to poll again.
 */
bool nfr_conn_sends_arm(struct nfr_conn *conn)
{
	return ib_req_notify_cq(conn->send_cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0;
}

static void nfr_conn_cq_event(struct ib_event *event, void *context)
{
	nfr_conn_break_later(context, ib_event_msg(event->event));
}

static void nfr_conn_qp_event(struct ib_event *event, void *context)
{
	switch (event->event) {
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
	case IB_EVENT_PATH_MIG_ERR:
		nfr_conn_break_later(context, ib_event_msg(event->event));
		break;
	default:
		/* established, drained, migrated: the queue pair still works */
		break;
	}
}

/* --- creation and destruction --- */

/* Busy polling would keep a CPU in softirq context. */
static bool nfr_conn_may_poll_in_softirq(const struct nfr_conn *conn)
{
	return conn->ops->softirq && nfr_work_softirq && !conn->wanted.busy_poll_us;
}

/**
 * nfr_conn_queues_init - initialize the workers of the queues
 * @conn: new connection
 */
void nfr_conn_queues_init(struct nfr_conn *conn)
{
	/* each INIT_WORK() is a class of lockdep: one in softirq context, one in process context */
	if (nfr_conn_may_poll_in_softirq(conn)) {
		conn->poll_queue = nfr_work_softirq;
		INIT_WORK(&conn->poll_work, nfr_conn_poll);
	} else {
		conn->poll_queue = nfr_work_poll;
		INIT_WORK(&conn->poll_work, nfr_conn_poll);
	}
	INIT_LIST_HEAD(&conn->of_device);
	INIT_WORK(&conn->sent_work, nfr_conn_sent_work);
	INIT_DELAYED_WORK(&conn->abandoned.work, nfr_conn_abandoned_work);
}

/*
 * The RDMA core allocates the CQ as one that a workqueue polls: ib_drain_qp()
 * and the error handling of drivers depend on that. The handlers are replaced
 * before any work request exists. Drivers call them through struct ib_cq on
 * each event, so that the worker of this module runs and may busy-poll. Like
 * the core's worker, it reports to rdma_dim().
 */
static int nfr_conn_create_cq(struct nfr_conn *conn, u32 entries)
{
	int count = min_t(u32, entries, conn->device->attrs.max_cqe);

	conn->cq = ib_alloc_cq_any(conn->device, conn, count, IB_POLL_WORKQUEUE);
	if (IS_ERR(conn->cq)) {
		int rc = PTR_ERR(conn->cq);

		conn->cq = NULL;
		return rc;
	}
	conn->cq->comp_handler = nfr_conn_cq_ready;
	conn->cq->event_handler = nfr_conn_cq_event;
	conn->send_cq = conn->cq;
	return 0;
}

/* The core does not arm a CQ that its owner polls. ib_drain_qp() polls it itself. */
static int nfr_conn_create_send_cq(struct nfr_conn *conn, u32 entries)
{
	int count = min_t(u32, entries, conn->device->attrs.max_cqe);
	struct ib_cq *cq = ib_alloc_cq_any(conn->device, conn, count, IB_POLL_DIRECT);

	if (IS_ERR(cq))
		return PTR_ERR(cq);
	cq->comp_handler = nfr_conn_sends_ready;
	cq->event_handler = nfr_conn_cq_event;
	conn->send_cq = cq;
	return 0;
}

static int nfr_conn_try_qp(struct nfr_conn *conn, u32 recvs)
{
	struct ib_qp_init_attr attr = {
		.event_handler = nfr_conn_qp_event, .qp_context = conn,
		.send_cq = conn->send_cq, .recv_cq = conn->cq,
		/* ib_drain_qp() posts one more to each */
		.cap = {
			.max_send_wr = conn->sq.size + 1, .max_recv_wr = recvs + 1,
			.max_send_sge = conn->profile.send_sges,
			.max_recv_sge = conn->profile.recv_sges,
			.max_rdma_ctxs = conn->profile.rw_contexts,
		},
		.port_num = conn->id->port_num,
		.sq_sig_type = IB_SIGNAL_REQ_WR, .qp_type = IB_QPT_RC,
	};

	return rdma_create_qp(conn->id, conn->pd, &attr);
}

/* Halve what makes the send queue long. Returns false at the minimum. */
static bool nfr_conn_shrink(struct nfr_conn *conn)
{
	struct nfr_profile *profile = &conn->profile;

	if (conn->sq.size <= profile->least_sends &&
	    profile->rw_contexts <= profile->least_contexts)
		return false;
	conn->sq.size = max(conn->sq.size / 2, profile->least_sends);
	profile->rw_contexts = max(profile->rw_contexts / 2, profile->least_contexts);
	return true;
}

/*
 * max_qp_wr is valid for the smallest work requests only, and the RDMA core adds
 * work requests for each context (iWARP: three). If the device rejects the size,
 * use a smaller send queue, in which Calls wait more often.
 */
static int nfr_conn_create_qp(struct nfr_conn *conn, u32 recvs)
{
	int rc;

	do {
		rc = nfr_conn_try_qp(conn, recvs);
	} while (rc && nfr_conn_shrink(conn));
	return rc;
}

/**
 * nfr_conn_queues_create - create the queues of a connection and post receives
 * @conn: resolved or adopted connection, not yet connected
 *
 * The caller has to call nfr_conn_queues_destroy() even after an error.
 *
 * Return: 0 or a negative errno.
 */
int nfr_conn_queues_create(struct nfr_conn *conn)
{
	u32 recvs = conn->wanted.credits + conn->profile.dones + NFR_QUEUE_SPARE - 1;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	int rc;

	nfr_conn_device_use(conn);
	/* an accepting side knows the size of the peer's messages already */
	conn->recv_room = conn->recv_size ?: conn->wanted.inline_recv;
	rc = nfr_conn_sq_create(conn, min_t(u32, attrs->max_qp_wr - 1, conn->profile.sends));
	if (!rc)
		rc = nfr_conn_abandoned_create(conn);
	if (rc)
		return rc;
	conn->pd = ib_alloc_pd(conn->device, 0);
	if (IS_ERR(conn->pd)) {
		rc = PTR_ERR(conn->pd);
		conn->pd = NULL;
		return rc;
	}
	rc = nfr_conn_create_cq(conn, conn->sq.size + recvs + 2);
	if (!rc && conn->profile.polled_sends)
		rc = nfr_conn_create_send_cq(conn, conn->sq.size + 1);
	if (rc)
		return rc;
	rc = nfr_conn_create_qp(conn, recvs);
	return rc ?: nfr_conn_recv_fill(conn, conn->profile.receives, NFR_GFP_RETRIED);
}

/* Wait until no completion handler runs. The connection is drained. */
static void nfr_conn_queues_quiesce(struct nfr_conn *conn)
{
	if (conn->cq)
		cancel_work_sync(&conn->poll_work);
	if (conn->send_cq != conn->cq)
		cancel_work_sync(&conn->sent_work);
}

/* --- the end of the queue pair --- */

/* Time for the device to flush a queue, before its queue pair is destroyed instead */
#define NFR_DRAIN_TIMEOUT	(20 * HZ)
/* The same for a device that has reported a fatal error */
#define NFR_DRAIN_FAILED	HZ

static void nfr_conn_last_done(struct ib_cq *cq, struct ib_wc *wc)
{
	complete(&container_of(wc->wr_cqe, struct nfr_conn_last, cqe)->done);
}

static struct ib_cqe *nfr_conn_last_begin(struct nfr_conn_last *last)
{
	init_completion(&last->done);
	last->cqe.done = nfr_conn_last_done;
	return &last->cqe;
}

/* Wait for the last work request of a queue, before which all others complete. @rc: of its post */
static int nfr_conn_last_wait(const struct nfr_conn *conn, struct nfr_conn_last *last, int rc)
{
	unsigned long until = jiffies + NFR_DRAIN_TIMEOUT;

	if (rc)
		return rc;
	do {
		if (wait_for_completion_timeout(&last->done, NFR_DRAIN_FAILED))
			return 0;
	} while (!READ_ONCE(conn->device_failed) && time_before(jiffies, until));
	return -ETIMEDOUT;
}

/*
 * Wait until the device has flushed all work requests of a fenced queue pair. Nothing else posts.
 * ib_drain_qp() does the same, but does not say whether it succeeded. Returns 0 or a negative errno.
 */
static int nfr_conn_flush(struct nfr_conn *conn)
{
	struct ib_qp *qp = conn->id->qp;
	struct ib_rdma_wr send = {
		.wr = { .wr_cqe = nfr_conn_last_begin(&conn->last[0]),
			.opcode = IB_WR_RDMA_WRITE },
	};
	struct ib_recv_wr recv = { .wr_cqe = nfr_conn_last_begin(&conn->last[1]) };
	int rc;

	/* nobody may have asked for the completions of a queue of nfr_conn_create_send_cq() */
	if (conn->send_cq != conn->cq)
		queue_work(nfr_work_poll, &conn->sent_work);
	rc = nfr_conn_last_wait(conn, &conn->last[0], ib_post_send(qp, &send.wr, NULL));
	return rc ?: nfr_conn_last_wait(conn, &conn->last[1], ib_post_recv(qp, &recv, NULL));
}

/* End the completion handlers of a queue pair that the device does not drain. */
static void nfr_conn_queues_silence(struct nfr_conn *conn)
{
	WRITE_ONCE(conn->queues_end, true);
	cancel_work_sync(&conn->fence_work);
	nfr_conn_queues_quiesce(conn);
}

static enum nfr_proof nfr_conn_proof_set(struct nfr_conn *conn, enum nfr_proof proof)
{
	mutex_lock(&conn->ending);
	conn->proof = proof;
	mutex_unlock(&conn->ending);
	return proof;
}

/**
 * nfr_conn_queues_drain - wait until the device has flushed all work requests, and no completion
 *	handler runs
 * @conn: broken connection
 *
 * Return: NFR_PROOF_DRAINED or more, or less if the device refused: then work requests may not be
 * complete, and their handlers will not run.
 */
enum nfr_proof nfr_conn_queues_drain(struct nfr_conn *conn)
{
	enum nfr_proof proof = READ_ONCE(conn->proof);
	int rc;

	if (proof >= NFR_PROOF_DRAINED || conn->queues_end)
		return proof;
	spin_lock_bh(&conn->lock);
	conn->sq.closed = true;
	spin_unlock_bh(&conn->lock);
	if (conn->id && conn->id->qp) {
		rdma_disconnect(conn->id);
		proof = nfr_conn_fence(conn);
		rc = proof < NFR_PROOF_FENCED ? -EIO : nfr_conn_flush(conn);
		if (rc) {
			pr_err_ratelimited("nfsrdma: device %s: a queue pair cannot be drained: %d\n",
					   conn->device->name, rc);
			nfr_conn_queues_silence(conn);
			return proof;
		}
	}
	nfr_conn_queues_quiesce(conn);
	return nfr_conn_proof_set(conn, NFR_PROOF_DRAINED);
}

/* Events of rdma_cm use the queue pair, too. */
static void nfr_conn_qp_set(struct nfr_conn *conn, struct ib_qp *qp)
{
	rdma_lock_handler(conn->id);
	conn->id->qp = qp;
	rdma_unlock_handler(conn->id);
}

/*
 * Destroy the queue pair. Returns a negative errno if the device refused: rdma_destroy_qp() would
 * forget it then. Caller holds the mutex.
 */
static int nfr_conn_qp_destroy(struct nfr_conn *conn)
{
	struct ib_qp *qp = conn->id->qp;
	int rc;

	/* nfr_mem_transfer_destroy_all() destroys the MRs of transfers that were not completed */
	if (conn->proof < NFR_PROOF_DRAINED)
		qp->mrs_used = 0;
	nfr_conn_qp_set(conn, NULL);
	rc = ib_destroy_qp(qp);
	if (rc)
		nfr_conn_qp_set(conn, qp);
	return rc;
}

/**
 * nfr_conn_qp_end - destroy the queue pair, however often the device refuses
 * @conn: connection whose handlers have ended
 *
 * Memory of which the device may still be writing, and the receives, depend on it: nothing else
 * proves that the device lets them go.
 *
 * Context: Sleeps until the device complies.
 */
static void nfr_conn_qp_end(struct nfr_conn *conn)
{
	unsigned int noio, pause = NFR_DESTROY_AGAIN;
	int rc = 0;

	while (conn->id && conn->id->qp) {
		/* a task with locks of a file system may wait to fence this connection */
		noio = memalloc_noio_save();
		mutex_lock(&conn->ending);
		rc = nfr_conn_qp_destroy(conn);
		if (!rc && conn->proof < NFR_PROOF_DRAINED)
			conn->proof = NFR_PROOF_DESTROYED;
		mutex_unlock(&conn->ending);
		memalloc_noio_restore(noio);
		if (!rc)
			return;
		pr_err_ratelimited("nfsrdma: device %s: a queue pair cannot be destroyed: %d; its memory stays in use\n",
				   conn->device->name, rc);
		msleep(pause);
		pause = min(2 * pause, NFR_DESTROY_MAX);
	}
}

/**
 * nfr_conn_queues_end - make sure that the peer cannot reach memory
 * @conn: connection after nfr_conn_queues_drain()
 *
 * Return: NFR_PROOF_DRAINED, or NFR_PROOF_DESTROYED.
 */
enum nfr_proof nfr_conn_queues_end(struct nfr_conn *conn)
{
	if (conn->proof < NFR_PROOF_DRAINED)
		nfr_conn_qp_end(conn);
	return conn->proof;
}

/**
 * nfr_conn_queues_destroy - undo nfr_conn_queues_create()
 * @conn: drained connection without MRs, for which no Call is abandoned any more
 */
void nfr_conn_queues_destroy(struct nfr_conn *conn)
{
	nfr_conn_device_unuse(conn);
	cancel_delayed_work_sync(&conn->abandoned.work);
	kfree(conn->abandoned.calls);
	kfree(conn->abandoned.early);
	/* late events queue the workers until the queue pair and the CQ are destroyed */
	WRITE_ONCE(conn->queues_end, true);
	cancel_work_sync(&conn->fence_work);
	nfr_conn_qp_end(conn);
	nfr_conn_queues_quiesce(conn);
	if (conn->send_cq != conn->cq) {
		ib_free_cq(conn->send_cq);
		cancel_work_sync(&conn->sent_work);
	}
	if (conn->cq) {
		ib_free_cq(conn->cq);
		cancel_work_sync(&conn->poll_work);
	}
	nfr_conn_recv_free_all(conn);
	if (conn->pd)
		ib_dealloc_pd(conn->pd);
	kfree(conn->sq.marks);
}
