// SPDX-License-Identifier: GPL-2.0-only
/*
 * A connection's queues: what is sent, what is received, and who may send.
 *
 * Credits. A Call takes a credit and its reply gives it back; the peer says
 * how many there are (RFC 8166, section 3.3.1). For every Call in flight, and
 * for NFR_CALLBACK_CREDITS calls of the peer, a receive is posted first, so
 * that the peer never meets receiver-not-ready.
 *
 * Send queue. Few requests are signaled; one completion retires all requests
 * posted before it. A Call also reserves the room that invalidating its
 * memory will take, so an invalidation never finds the queue full.
 *
 * Completions are polled from a worker of our own, which may go on polling
 * for a while before it sleeps.
 */
#include <linux/slab.h>

#include "compat.h"
#include "connection.h"
#include "trace.h"

/* Handle this many completions, then let others run */
#define NFR_POLL_LIMIT		256

/* One request in this many is signaled */
#define NFR_SIGNAL_EVERY	16

/* Send requests per credit: two registrations, the message, an invalidation */
#define NFR_SENDS_PER_CREDIT	4

static struct workqueue_struct *nfr_poll_wq;
static atomic_t nfr_next_vector;

/**
 * nfr_queue_start - prepare for queues, when the module is loaded
 *
 * Returns 0 or -ENOMEM.
 */
int nfr_queue_start(void)
{
	nfr_poll_wq = alloc_workqueue("nfsrdma_poll",
				      WQ_MEM_RECLAIM | WQ_HIGHPRI | NFR_WQ_BOUND, 0);
	return nfr_poll_wq ? 0 : -ENOMEM;
}

/**
 * nfr_queue_stop - undo nfr_queue_start()
 */
void nfr_queue_stop(void)
{
	destroy_workqueue(nfr_poll_wq);
}

/* --- completions --- */

static void nfr_queue_repost(struct nfr_conn *conn);

static int nfr_poll_batch(struct nfr_conn *conn)
{
	int i, n;

	n = ib_poll_cq(conn->cq, NFR_BATCH, conn->wcs);
	for (i = 0; i < n; i++)
		conn->wcs[i].wr_cqe->done(conn->cq, &conn->wcs[i]);
	nfr_queue_repost(conn);
	return n;
}

static bool nfr_poll_goes_on(const struct nfr_conn *conn, ktime_t idle_since)
{
	u32 us = conn->wanted.busy_poll_us;

	if (!us || need_resched() || !nfr_conn_is_up(conn))
		return false;
	return ktime_us_delta(ktime_get(), idle_since) < us;
}

static void nfr_poll(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, poll_work);
	ktime_t idle_since = ktime_get();
	int n, handled = 0;

	for (;;) {
		n = nfr_poll_batch(conn);
		if (n > 0) {
			handled += n;
			if (handled > NFR_POLL_LIMIT)
				break;
			idle_since = ktime_get();
			continue;
		}
		if (nfr_poll_goes_on(conn, idle_since)) {
			cpu_relax();
			continue;
		}
		if (ib_req_notify_cq(conn->cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) <= 0)
			return;
	}
	queue_work(nfr_poll_wq, &conn->poll_work);
}

static void nfr_cq_ready(struct ib_cq *cq, void *context)
{
	struct nfr_conn *conn = context;

	queue_work(nfr_poll_wq, &conn->poll_work);
}

static void nfr_cq_event(struct ib_event *event, void *context)
{
	nfr_conn_break(context, "completion queue error");
}

static void nfr_qp_event(struct ib_event *event, void *context)
{
	if (event->event != IB_EVENT_COMM_EST)
		nfr_conn_break(context, "queue pair error");
}

/**
 * nfr_queue_check - take note of a send request's completion
 * @conn: the connection
 * @wc: of a signaled request, or of any that failed
 *
 * Retires what was posted before it, or breaks the connection.
 * Returns true when the request did its work.
 */
bool nfr_queue_check(struct nfr_conn *conn, const struct ib_wc *wc)
{
	struct nfr_send_queue *sq = &conn->sq;

	trace_nfsrdma_completion(conn, wc);
	if (wc->status != IB_WC_SUCCESS) {
		nfr_conn_break(conn, ib_wc_status_msg(wc->status));
		return false;
	}
	spin_lock(&conn->lock);
	sq->retired = sq->marks[sq->marks_tail++ & (sq->ring - 1)];
	spin_unlock(&conn->lock);
	return true;
}

static void nfr_signal_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_conn *conn = cq->cq_context;

	if (nfr_queue_check(conn, wc))
		conn->ops->writable(conn);
}

/* --- receives --- */

static void nfr_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_recv *recv = container_of(wc->wr_cqe, struct nfr_recv, cqe);
	struct nfr_conn *conn = recv->conn;

	if (wc->status != IB_WC_SUCCESS) {
		trace_nfsrdma_completion(conn, wc);
		nfr_conn_break(conn, ib_wc_status_msg(wc->status));
		return;
	}
	recv->length = wc->byte_len;
	recv->has_invalidated = wc->wc_flags & IB_WC_WITH_INVALIDATE;
	recv->invalidated = wc->ex.invalidate_rkey;
	ib_dma_sync_single_for_cpu(conn->device, recv->sge.addr, recv->length, DMA_FROM_DEVICE);
	conn->ops->receive(conn, recv);
}

/**
 * nfr_queue_recv_back - a received message is done with
 * @conn: the connection
 * @recv: posted again after the present batch
 *
 * Called where completions are handled, or when the connection is drained.
 */
void nfr_queue_recv_back(struct nfr_conn *conn, struct nfr_recv *recv)
{
	list_add_tail(&recv->list, &conn->recvs);
}

static int nfr_recv_post(struct nfr_conn *conn, struct list_head *recvs)
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

static void nfr_queue_repost(struct nfr_conn *conn)
{
	if (list_empty(&conn->recvs) || !nfr_conn_is_up(conn))
		return;
	if (nfr_recv_post(conn, &conn->recvs))
		nfr_conn_break(conn, "posting a receive failed");
}

static void nfr_recv_free(struct nfr_conn *conn, struct nfr_recv *recv)
{
	if (recv->sge.length)
		ib_dma_unmap_single(conn->device, recv->sge.addr, recv->sge.length,
				    DMA_FROM_DEVICE);
	kfree(recv->data);
	kfree(recv);
}

static struct nfr_recv *nfr_recv_alloc(struct nfr_conn *conn, gfp_t gfp)
{
	u32 size = conn->wanted.inline_recv;
	struct nfr_recv *recv;
	u64 addr;

	recv = kzalloc(sizeof(*recv), gfp);
	if (!recv)
		return NULL;
	recv->data = kmalloc(size, gfp);
	if (!recv->data)
		goto out_free;
	addr = ib_dma_map_single(conn->device, recv->data, size, DMA_FROM_DEVICE);
	if (ib_dma_mapping_error(conn->device, addr))
		goto out_free;
	recv->conn = conn;
	recv->cqe.done = nfr_recv_done;
	recv->sge = (struct ib_sge) {
		.addr = addr, .length = size, .lkey = conn->pd->local_dma_lkey,
	};
	recv->wr.wr_cqe = &recv->cqe;
	recv->wr.sg_list = &recv->sge;
	recv->wr.num_sge = 1;
	return recv;
out_free:
	nfr_recv_free(conn, recv);
	return NULL;
}

/* Posts NFR_BATCH more receives. Callers take turns: open, then senders. */
static int nfr_queue_more_recvs(struct nfr_conn *conn)
{
	struct nfr_recv *recv;
	LIST_HEAD(fresh);
	int i;

	for (i = 0; i < NFR_BATCH; i++) {
		recv = nfr_recv_alloc(conn, GFP_NOIO | __GFP_NOWARN);
		if (!recv)
			break;
		list_add_tail(&recv->list, &fresh);
		list_add_tail(&recv->all, &conn->all_recvs);
		conn->recv_total++;
	}
	if (list_empty(&fresh))
		return -ENOBUFS;
	return nfr_recv_post(conn, &fresh) ? -ENOTCONN : 0;
}

/* --- credits --- */

/* A batch may have been taken from the queue and not be posted again yet */
static bool nfr_queue_has_recvs(const struct nfr_conn *conn)
{
	return conn->recv_total >= conn->inflight + NFR_CALLBACK_CREDITS + NFR_BATCH;
}

/**
 * nfr_queue_credit - take a credit for a Call
 * @conn: the connection; one caller at a time
 *
 * Returns 0; -EAGAIN when the peer allows no more; -ENOBUFS or -ENOTCONN when
 * no receive could be posted for the reply.
 */
int nfr_queue_credit(struct nfr_conn *conn)
{
	int rc = -EAGAIN;

	spin_lock(&conn->lock);
	if (conn->inflight < conn->granted) {
		conn->inflight++;
		rc = 0;
	}
	spin_unlock(&conn->lock);
	if (rc || nfr_queue_has_recvs(conn))
		return rc;
	rc = nfr_queue_more_recvs(conn);
	if (rc)
		nfr_queue_credit_back(conn);
	return rc;
}

/**
 * nfr_queue_credit_back - a Call was answered, or not sent after all
 * @conn: the connection
 */
void nfr_queue_credit_back(struct nfr_conn *conn)
{
	spin_lock(&conn->lock);
	if (conn->inflight)
		conn->inflight--;
	spin_unlock(&conn->lock);
}

/**
 * nfr_queue_grant - the peer says how many Calls it allows
 * @conn: the connection
 * @credits: as on the wire; 0 counts as 1, more than was asked for as that
 */
void nfr_queue_grant(struct nfr_conn *conn, u32 credits)
{
	u32 grant = clamp_t(u32, credits, 1, conn->wanted.credits);

	if (grant == conn->granted)
		return;
	trace_nfsrdma_credit(conn, grant);
	WRITE_ONCE(conn->granted, grant);
}

/* --- sends --- */

static u32 nfr_sq_free(const struct nfr_send_queue *sq)
{
	return sq->size - (sq->posted - sq->retired) - sq->reserved;
}

/* Counts a chain of @count requests whose last is @wr, and signals it if @must or if due. */
static void nfr_sq_take(struct nfr_send_queue *sq, u32 count, struct ib_send_wr *wr, bool must)
{
	sq->posted += count;
	if (!must && sq->posted - sq->last_signaled < NFR_SIGNAL_EVERY)
		return;
	wr->send_flags |= IB_SEND_SIGNALED;
	sq->last_signaled = sq->posted;
	sq->marks[sq->marks_head++ & (sq->ring - 1)] = sq->posted;
}

/**
 * nfr_queue_has_room - whether a Call could probably be sent now
 * @conn: the connection
 */
bool nfr_queue_has_room(struct nfr_conn *conn)
{
	bool room;

	spin_lock(&conn->lock);
	room = conn->inflight < conn->granted && nfr_sq_free(&conn->sq) >= NFR_BATCH;
	spin_unlock(&conn->lock);
	return room && !list_empty_careful(&conn->pool.free);
}

/**
 * nfr_queue_send - register memory and send a message
 * @conn: the connection
 * @xid: of the message, for the trace
 * @mrs: mapped, to be registered before the message leaves; may be empty
 * @sge: the message
 *
 * Returns 0; -EAGAIN when the queue is full, and @mrs are as before; -ENOTCONN
 * when posting failed, and the connection is broken.
 */
int nfr_queue_send(struct nfr_conn *conn, u32 xid, struct list_head *mrs, struct ib_sge *sge)
{
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .sg_list = sge, .num_sge = 1,
		.opcode = IB_WR_SEND,
	};
	struct ib_send_wr *first = &send, **link = &first;
	u32 count = nfr_reg_count(mrs);
	const struct ib_send_wr *bad;
	struct nfr_mr *mr;
	int rc;

	spin_lock(&conn->lock);
	if (nfr_sq_free(&conn->sq) < 2 * count + 1) {
		spin_unlock(&conn->lock);
		return -EAGAIN;
	}
	list_for_each_entry(mr, mrs, list) {
		mr->valid = true;
		trace_nfsrdma_mr_fastreg(conn, mr);
		*link = &mr->reg.wr;
		link = &mr->reg.wr.next;
	}
	*link = &send;
	conn->sq.reserved += count;
	nfr_sq_take(&conn->sq, count + 1, &send, false);
	trace_nfsrdma_post(conn, xid, count, sge->length, send.send_flags & IB_SEND_SIGNALED);
	rc = ib_post_send(conn->id->qp, first, &bad);
	spin_unlock(&conn->lock);
	if (!rc)
		return 0;
	nfr_conn_break(conn, "posting a send failed");
	return -ENOTCONN;
}

/**
 * nfr_queue_invalidate - take memory back from the peer
 * @conn: the connection
 * @mrs: registered; those still valid are invalidated, one at least
 * @done: completes after the last of them
 *
 * Uses room that nfr_queue_send() reserved.
 * Returns 0, or -ENOTCONN when the connection is broken: then the memory is
 * reachable no longer once it is drained.
 */
int nfr_queue_invalidate(struct nfr_conn *conn, struct list_head *mrs, struct ib_cqe *done)
{
	struct ib_send_wr *first = NULL, *last = NULL, **link = &first;
	const struct ib_send_wr *bad;
	struct nfr_mr *mr;
	u32 count = 0;
	int rc;

	list_for_each_entry(mr, mrs, list) {
		if (!mr->valid)
			continue;
		trace_nfsrdma_mr_localinv(conn, mr);
		last = *link = nfr_reg_invalidation(mr);
		link = &last->next;
		count++;
	}
	*link = NULL;
	last->wr_cqe = done;
	spin_lock(&conn->lock);
	conn->sq.reserved -= count;
	nfr_sq_take(&conn->sq, count, last, true);
	rc = ib_post_send(conn->id->qp, first, &bad);
	spin_unlock(&conn->lock);
	if (!rc)
		return 0;
	nfr_conn_break(conn, "posting an invalidation failed");
	return -ENOTCONN;
}

/**
 * nfr_queue_unreserve - memory needs no invalidation of ours
 * @conn: the connection
 * @count: how many regions the peer invalidated
 */
void nfr_queue_unreserve(struct nfr_conn *conn, u32 count)
{
	spin_lock(&conn->lock);
	conn->sq.reserved -= count;
	spin_unlock(&conn->lock);
}

/**
 * nfr_queue_mark - where the send queue is now
 * @conn: the connection
 *
 * Returns what nfr_queue_is_retired() takes.
 */
u32 nfr_queue_mark(struct nfr_conn *conn)
{
	return READ_ONCE(conn->sq.posted);
}

/**
 * nfr_queue_is_retired - whether all requests before a mark are known to be done
 * @conn: the connection
 * @mark: from nfr_queue_mark()
 */
bool nfr_queue_is_retired(struct nfr_conn *conn, u32 mark)
{
	return (s32)(READ_ONCE(conn->sq.retired) - mark) >= 0;
}

/* --- life --- */

static int nfr_queue_create_cq(struct nfr_conn *conn, u32 entries)
{
	struct ib_cq_init_attr attr = {
		.cqe = min_t(u32, entries, conn->device->attrs.max_cqe),
		.comp_vector = atomic_inc_return(&nfr_next_vector) %
			       conn->device->num_comp_vectors,
	};

	INIT_WORK(&conn->poll_work, nfr_poll);
	conn->cq = ib_create_cq(conn->device, nfr_cq_ready, nfr_cq_event, conn, &attr);
	if (IS_ERR(conn->cq)) {
		int rc = PTR_ERR(conn->cq);

		conn->cq = NULL;
		return rc;
	}
	/* ib_drain_qp() would poll a queue of the "direct" kind itself */
	conn->cq->poll_ctx = IB_POLL_WORKQUEUE;
	return ib_req_notify_cq(conn->cq, IB_CQ_NEXT_COMP);
}

static int nfr_queue_create_qp(struct nfr_conn *conn, u32 recvs)
{
	struct ib_qp_init_attr attr = {
		.event_handler = nfr_qp_event, .qp_context = conn,
		.send_cq = conn->cq, .recv_cq = conn->cq,
		/* one more for each: ib_drain_qp() posts too */
		.cap = {
			.max_send_wr = conn->sq.size + 1, .max_recv_wr = recvs + 1,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR, .qp_type = IB_QPT_RC,
	};

	return rdma_create_qp(conn->id, conn->pd, &attr);
}

/**
 * nfr_queue_create - make a connection's queues, and post receives
 * @conn: resolved, not yet connected
 *
 * Returns 0 or a negative errno; nfr_queue_destroy() is due either way.
 */
int nfr_queue_create(struct nfr_conn *conn)
{
	u32 recvs = conn->wanted.credits + NFR_CALLBACK_CREDITS + 2 * NFR_BATCH;
	struct nfr_send_queue *sq = &conn->sq;
	int rc;

	sq->size = min_t(u32, conn->wanted.credits * NFR_SENDS_PER_CREDIT + 2 * NFR_BATCH,
			 conn->device->attrs.max_qp_wr - 1);
	sq->ring = roundup_pow_of_two(sq->size);
	sq->marks = kcalloc(sq->ring, sizeof(*sq->marks), GFP_KERNEL);
	if (!sq->marks)
		return -ENOMEM;
	conn->signal_cqe.done = nfr_signal_done;
	conn->pd = ib_alloc_pd(conn->device, 0);
	if (IS_ERR(conn->pd)) {
		rc = PTR_ERR(conn->pd);
		conn->pd = NULL;
		return rc;
	}
	rc = nfr_queue_create_cq(conn, sq->size + recvs + 2);
	if (rc)
		return rc;
	rc = nfr_queue_create_qp(conn, recvs);
	if (rc)
		return rc;
	return nfr_queue_more_recvs(conn) ?: nfr_queue_more_recvs(conn);
}

/**
 * nfr_queue_quiesce - after a drain: wait until no completion handler runs
 * @conn: drained
 */
void nfr_queue_quiesce(struct nfr_conn *conn)
{
	if (conn->cq)
		cancel_work_sync(&conn->poll_work);
}

/**
 * nfr_queue_destroy - undo nfr_queue_create()
 * @conn: drained, without memory regions
 */
void nfr_queue_destroy(struct nfr_conn *conn)
{
	struct nfr_recv *recv, *next;

	if (conn->id && conn->id->qp)
		rdma_destroy_qp(conn->id);
	list_for_each_entry_safe(recv, next, &conn->all_recvs, all)
		nfr_recv_free(conn, recv);
	if (conn->cq)
		ib_destroy_cq(conn->cq);
	if (conn->pd)
		ib_dealloc_pd(conn->pd);
	kfree(conn->sq.marks);
}
