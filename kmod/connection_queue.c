// SPDX-License-Identifier: GPL-2.0-only
/*
 * A connection's queues: how they are made, how their completions are handled,
 * and how they end. connection_send.c and connection_recv.c are what goes on
 * in them.
 *
 * Completions are polled from a worker of our own, which may go on polling
 * for a while before it sleeps.
 */
#include <linux/dim.h>
#include <linux/slab.h>

#include "compat.h"
#include "connection.h"

/* Handle this many completions, then let others run */
#define NFR_POLL_LIMIT		256

static struct workqueue_struct *nfr_poll_wq;

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

/* Requests in the middle of a chain have nobody to tell; they complete only when they fail. */
static void nfr_poll_one(struct nfr_conn *conn, struct ib_wc *wc)
{
	if (wc->wr_cqe)
		wc->wr_cqe->done(conn->cq, wc);
	else
		nfr_queue_failed(conn, wc);
}

static int nfr_poll_batch(struct nfr_conn *conn)
{
	int i, n;

	n = ib_poll_cq(conn->cq, NFR_BATCH, conn->wcs);
	for (i = 0; i < n; i++)
		nfr_poll_one(conn, &conn->wcs[i]);
	return n;
}

/* Whether to look again before sleeping. @idle_since is 0 when there was something just now. */
static bool nfr_poll_goes_on(const struct nfr_conn *conn, ktime_t *idle_since)
{
	u32 us = conn->wanted.busy_poll_us;

	if (!us || need_resched() || !nfr_conn_is_up(conn))
		return false;
	if (!*idle_since)
		*idle_since = ktime_get();
	cpu_relax();
	return ktime_us_delta(ktime_get(), *idle_since) < us;
}

/* Drivers that adapt interrupts to the load have the core make a struct dim with the queue. */
static void nfr_poll_moderate(struct nfr_conn *conn, int handled)
{
	if (conn->cq->dim)
		rdma_dim(conn->cq->dim, handled);
}

static void nfr_poll(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, poll_work);
	ktime_t idle_since = 0;
	int n, handled = 0;

	if (READ_ONCE(conn->queues_end))
		return;
	while (handled < NFR_POLL_LIMIT) {
		n = nfr_poll_batch(conn);
		handled += max(n, 0);
		if (n > 0)
			idle_since = 0;
		/* less than a batch: asking to be told of more is cheaper than looking again */
		if (n == NFR_BATCH || nfr_poll_goes_on(conn, &idle_since))
			continue;
		if (ib_req_notify_cq(conn->cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) <= 0) {
			nfr_poll_moderate(conn, handled);
			return;
		}
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
	nfr_conn_event_later(context, ib_event_msg(event->event));
}

static void nfr_qp_event(struct ib_event *event, void *context)
{
	switch (event->event) {
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
	case IB_EVENT_PATH_MIG_ERR:
		nfr_conn_event_later(context, ib_event_msg(event->event));
		break;
	default:
		/* established, drained, migrated: the queue pair works on */
		break;
	}
}

/* --- life --- */

static void nfr_queue_fence_work(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, fence_work);
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	if (!READ_ONCE(conn->queues_end))
		ib_modify_qp(conn->id->qp, &attr, IB_QP_STATE);
}

/**
 * nfr_queue_fence - end the peer's access to memory, and flush all work requests
 * @conn: was up, so it has a queue pair; just broken
 *
 * Does not wait: a worker asks the device. Closing drains the queue pair later.
 */
void nfr_queue_fence(struct nfr_conn *conn)
{
	queue_work(nfr_poll_wq, &conn->fence_work);
}

/**
 * nfr_queue_init - prepare the workers of a connection's queues
 * @conn: new
 */
void nfr_queue_init(struct nfr_conn *conn)
{
	INIT_WORK(&conn->poll_work, nfr_poll);
	INIT_WORK(&conn->fence_work, nfr_queue_fence_work);
}

/*
 * The core makes the queue and knows it as one that a workqueue polls, which is
 * what ib_drain_qp() and drivers that fail go by. Of its fields two are set
 * here, before any work request exists: the handlers, which drivers call by
 * the struct ib_cq at each event. So the worker is ours, and may busy-poll; it
 * reports to rdma_dim() what the core's worker would.
 */
static int nfr_queue_create_cq(struct nfr_conn *conn, u32 entries)
{
	int count = min_t(u32, entries, conn->device->attrs.max_cqe);

	conn->cq = ib_alloc_cq_any(conn->device, conn, count, IB_POLL_WORKQUEUE);
	if (IS_ERR(conn->cq)) {
		int rc = PTR_ERR(conn->cq);

		conn->cq = NULL;
		return rc;
	}
	conn->cq->comp_handler = nfr_cq_ready;
	conn->cq->event_handler = nfr_cq_event;
	return 0;
}

static int nfr_queue_try_qp(struct nfr_conn *conn, u32 recvs)
{
	struct ib_qp_init_attr attr = {
		.event_handler = nfr_qp_event, .qp_context = conn,
		.send_cq = conn->cq, .recv_cq = conn->cq,
		/* one more for each: ib_drain_qp() posts too */
		.cap = {
			.max_send_wr = conn->sq.size + 1, .max_recv_wr = recvs + 1,
			.max_send_sge = conn->send_sges, .max_recv_sge = 1,
			.max_rdma_ctxs = conn->rw_contexts,
		},
		.port_num = conn->id->port_num,
		.sq_sig_type = IB_SIGNAL_REQ_WR, .qp_type = IB_QPT_RC,
	};

	return rdma_create_qp(conn->id, conn->pd, &attr);
}

/*
 * max_qp_wr is a promise for the smallest work requests. A device that has
 * less room for these gets a smaller send queue, in which Calls may wait.
 */
static int nfr_queue_create_qp(struct nfr_conn *conn, u32 recvs)
{
	int rc = nfr_queue_try_qp(conn, recvs);

	while (rc && conn->sq.size > conn->least_sends) {
		conn->sq.size = max(conn->sq.size / 2, conn->least_sends);
		conn->rw_contexts = min(conn->rw_contexts, conn->sq.size);
		rc = nfr_queue_try_qp(conn, recvs);
	}
	return rc;
}

/**
 * nfr_queue_create - make a connection's queues, and post receives
 * @conn: resolved or adopted, not yet connected
 *
 * Returns 0 or a negative errno; nfr_queue_destroy() is due either way.
 */
int nfr_queue_create(struct nfr_conn *conn)
{
	u32 recvs = conn->wanted.credits + NFR_QUEUE_SPARE - 1;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	int rc;

	rc = nfr_sq_create(conn, min_t(u32, attrs->max_qp_wr - 1, conn->sends));
	if (!rc)
		rc = nfr_lost_create(conn);
	if (rc)
		return rc;
	conn->pd = ib_alloc_pd(conn->device, 0);
	if (IS_ERR(conn->pd)) {
		rc = PTR_ERR(conn->pd);
		conn->pd = NULL;
		return rc;
	}
	rc = nfr_queue_create_cq(conn, conn->sq.size + recvs + 2);
	if (rc)
		return rc;
	rc = nfr_queue_create_qp(conn, recvs);
	if (rc)
		return rc;
	while (conn->recv_total < conn->receives && !rc)
		rc = nfr_recv_more(conn, NFR_GFP_RETRIED);
	return rc;
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
	/* a late event may queue them again, until there is nothing that could have events */
	WRITE_ONCE(conn->queues_end, true);
	cancel_work_sync(&conn->fence_work);
	if (conn->id && conn->id->qp)
		rdma_destroy_qp(conn->id);
	nfr_queue_quiesce(conn);
	if (conn->cq) {
		ib_free_cq(conn->cq);
		cancel_work_sync(&conn->poll_work);
	}
	nfr_recv_free_all(conn);
	if (conn->pd)
		ib_dealloc_pd(conn->pd);
	nfr_sq_destroy(conn);
}
