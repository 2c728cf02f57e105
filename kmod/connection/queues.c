// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queues of a connection: creation, completion handling and destruction.
 * send.c and receive.c post to them.
 *
 * A worker of this module polls for completions, because the worker of the RDMA
 * core cannot busy-poll before it sleeps. If the owner permits it, the worker
 * runs in softirq context, which saves two thread switches per interrupt.
 */
#include <linux/dim.h>
#include <linux/slab.h>

#include "connection/connection.h"
#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "gfp.h"
#include "work.h"

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
 * nfr_conn_queues_init - initialize the worker of the queues
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
	INIT_WORK(&conn->sent_work, nfr_conn_sent_work);
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
	if (rc)
		return rc;
	while (conn->recv_total < conn->profile.receives && !rc)
		rc = nfr_conn_recv_more(conn, NFR_GFP_RETRIED);
	return rc;
}

/**
 * nfr_conn_queues_drain - wait until the device has flushed all work requests
 * @conn: connection with a queue pair, to which nothing else posts
 *
 * ib_drain_qp() polls a completion queue of nfr_conn_create_send_cq() only after 100 ms. The
 * worker handles its completion sooner.
 */
void nfr_conn_queues_drain(struct nfr_conn *conn)
{
	if (conn->send_cq != conn->cq)
		queue_work(nfr_work_poll, &conn->sent_work);
	ib_drain_qp(conn->id->qp);
}

/**
 * nfr_conn_queues_quiesce - wait until no completion handler runs
 * @conn: drained connection
 */
void nfr_conn_queues_quiesce(struct nfr_conn *conn)
{
	if (conn->cq)
		cancel_work_sync(&conn->poll_work);
	if (conn->send_cq != conn->cq)
		cancel_work_sync(&conn->sent_work);
}

/**
 * nfr_conn_queues_destroy - undo nfr_conn_queues_create()
 * @conn: drained connection without MRs
 */
void nfr_conn_queues_destroy(struct nfr_conn *conn)
{
	/* late events queue the workers until the queue pair and the CQ are destroyed */
	WRITE_ONCE(conn->queues_end, true);
	cancel_work_sync(&conn->fence_work);
	if (conn->id && conn->id->qp)
		rdma_destroy_qp(conn->id);
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
	nfr_conn_sq_destroy(conn);
}
