// SPDX-License-Identifier: GPL-2.0-only
/*
 * RPC slots and abandoned Calls.
 *
 * A task may abandon a Call (after a signal or a soft timeout) while the device
 * still sends it. The transport invalidates the MRs first, and orphans the send
 * buffer until the send queue has retired it.
 */
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"
#include "observe/trace.h"

/* Maximum duration of an invalidation before the connection is broken */
#define NFR_RECALL_TIMEOUT	(10 * HZ)

/* --- abandoned Calls --- */

static void nfr_req_inv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_req *req = container_of(wc->wr_cqe, struct nfr_req, inv_cqe);
	struct nfr_conn *conn = cq->cq_context;

	req->inv_ok = nfr_queue_check(conn, wc);
	if (req->inv_ok)
		nfr_reg_release(conn, &req->mrs);
	complete(&req->inv_done);
}

/* Invalidate the MRs that the peer can access. Returns false if the connection is broken. */
static bool nfr_req_invalidate(struct nfr_req *req, struct nfr_conn *conn)
{
	init_completion(&req->inv_done);
	req->inv_cqe.done = nfr_req_inv_done;
	if (nfr_reg_any_valid(&req->mrs))
		return !nfr_queue_invalidate(conn, &req->mrs, &req->inv_cqe);
	nfr_reg_release(conn, &req->mrs);
	req->inv_ok = true;
	complete(&req->inv_done);
	return true;
}

/*
 * Revoke access to the memory of a request on a working connection. Returns
 * false if the caller has to call nfr_client_wait_closed() instead. Caller
 * holds the mutex.
 */
static bool nfr_req_recall(struct nfr_req *req, struct nfr_conn *conn)
{
	if (!nfr_conn_is_up(conn) || !nfr_req_invalidate(req, conn))
		return false;
	if (req->state == NFR_REQ_SENT) {
		nfr_req_orphan(req, conn, NFR_BUFFER_CALL);
		nfr_req_orphan(req, conn, NFR_BUFFER_BOUNCE);
		nfr_conn_lost(conn, be32_to_cpu(req->rqst.rq_xid));
	}
	return true;
}

/*
 * The task ends without a Reply: revoke access to the memory that its Call
 * offered.
 *
 * The function must not hold a lock while it waits for the device, because
 * closing the connection may be what ends the wait. If the peer does not
 * acknowledge, the invalidation stays in the send queue until the device gives
 * up; breaking the connection flushes it.
 */
static void nfr_req_abandon(struct nfr_req *req)
{
	struct nfr_xprt *nx = req->nx;
	u32 generation = req->generation;
	struct nfr_conn *conn;
	bool posted;

	mutex_lock(&nx->mutex);
	conn = nfr_xprt_conn(nx);
	if (!conn || generation != conn->generation) {
		mutex_unlock(&nx->mutex);
		return;
	}
	posted = nfr_req_recall(req, conn);
	mutex_unlock(&nx->mutex);
	if (posted && !wait_for_completion_timeout(&req->inv_done, NFR_RECALL_TIMEOUT)) {
		nfr_client_disconnect(nx, generation, "an invalidation timed out");
		wait_for_completion(&req->inv_done);
	}
	if (!posted || !req->inv_ok)
		nfr_client_wait_closed(nx, generation);
}

/**
 * nfr_client_buf_free - release the buffers of a Call and its Reply
 * @task: task, for which no Reply is being handled any more
 *
 * When this function returns, the peer cannot access the memory of the request.
 *
 * Context: May sleep.
 */
void nfr_client_buf_free(struct rpc_task *task)
{
	struct nfr_req *req = nfr_req_of(task->tk_rqstp);

	if (req->state == NFR_REQ_SENT || !list_empty_careful(&req->mrs))
		nfr_req_abandon(req);
	req->state = NFR_REQ_IDLE;
	kfree(req->large);
	req->large = NULL;
}

/**
 * nfr_req_detach_all - detach all requests from a connection
 * @nx: transport; the caller holds its mutex
 * @conn: drained connection
 * @mrs: list to move the MRs of all requests to
 */
void nfr_req_detach_all(struct nfr_xprt *nx, struct nfr_conn *conn, struct list_head *mrs)
{
	struct nfr_req *req;

	spin_lock(&nx->xprt.reserve_lock);
	list_for_each_entry(req, &nx->reqs, all) {
		spin_unlock(&nx->xprt.reserve_lock);
		list_splice_tail_init(&req->mrs, mrs);
		nfr_req_unmap(conn, req);
		spin_lock(&nx->xprt.reserve_lock);
	}
	spin_unlock(&nx->xprt.reserve_lock);
}

/* --- slots --- */

/**
 * nfr_req_create - allocate a request
 * @nx: transport; the caller adds the request to its list
 * @gfp: allocation flags
 *
 * Return: request, or NULL if the allocation failed.
 */
struct nfr_req *nfr_req_create(struct nfr_xprt *nx, gfp_t gfp)
{
	struct nfr_req *req = kzalloc(sizeof(*req), gfp);

	if (!req)
		return NULL;
	req->nx = nx;
	INIT_LIST_HEAD(&req->all);
	INIT_LIST_HEAD(&req->free);
	INIT_LIST_HEAD(&req->mrs);
	INIT_LIST_HEAD(&req->limbo);
	return req;
}

/**
 * nfr_req_destroy - free a request
 * @req: request in no list, with unmapped buffers
 */
void nfr_req_destroy(struct nfr_req *req)
{
	kfree(req->buffers[NFR_BUFFER_CALL]);
	kfree(req->buffers[NFR_BUFFER_BOUNCE]);
	kfree(req->large);
	kfree(req->reply);
	kfree(req);
}

/**
 * nfr_req_destroy_all - free all requests
 * @nx: closed transport without tasks
 */
void nfr_req_destroy_all(struct nfr_xprt *nx)
{
	struct nfr_req *req, *next;

	list_for_each_entry_safe(req, next, &nx->reqs, all)
		nfr_req_destroy(req);
	INIT_LIST_HEAD(&nx->reqs);
}

static struct nfr_req *nfr_slot_take(struct nfr_xprt *nx)
{
	struct nfr_req *req = list_first_entry_or_null(&nx->free_reqs, struct nfr_req, free);

	if (req)
		list_del_init(&req->free);
	return req;
}

/* Allocate a slot. Drops reserve_lock meanwhile. */
static struct nfr_req *nfr_slot_make(struct nfr_xprt *nx)
{
	struct rpc_xprt *xprt = &nx->xprt;
	struct nfr_req *req;

	xprt->num_reqs++;
	spin_unlock(&xprt->reserve_lock);
	req = nfr_req_create(nx, rpc_task_gfp_mask());
	spin_lock(&xprt->reserve_lock);
	if (req)
		list_add_tail(&req->all, &nx->reqs);
	else
		xprt->num_reqs--;
	return req;
}

/**
 * nfr_client_alloc_slot - assign a slot to a task
 * @xprt: transport
 * @task: task; receives tk_rqstp, or tk_status -EAGAIN (queued in the backlog)
 *	or -ENOMEM
 */
void nfr_client_alloc_slot(struct rpc_xprt *xprt, struct rpc_task *task)
{
	struct nfr_xprt *nx = nfr_xprt_of(xprt);
	struct nfr_req *req;

	task->tk_status = 0;
	spin_lock(&xprt->reserve_lock);
	req = nfr_slot_take(nx);
	if (!req && xprt->num_reqs < READ_ONCE(xprt->max_reqs)) {
		req = nfr_slot_make(nx);
		if (!req)
			task->tk_status = -ENOMEM;
	} else if (!req) {
		xprt_add_backlog(xprt, task);
		task->tk_status = -EAGAIN;
	}
	xprt->stat.max_slots = max(xprt->stat.max_slots, (unsigned long)xprt->num_reqs);
	spin_unlock(&xprt->reserve_lock);
	if (req)
		task->tk_rqstp = &req->rqst;
}

/**
 * nfr_client_free_slot - free a slot, or pass it to the first task in the backlog
 * @xprt: transport
 * @rqst: slot
 */
void nfr_client_free_slot(struct rpc_xprt *xprt, struct rpc_rqst *rqst)
{
	struct nfr_xprt *nx = nfr_xprt_of(xprt);
	struct nfr_req *req = nfr_req_of(rqst);

	spin_lock(&xprt->reserve_lock);
	if (!xprt_wake_up_backlog(xprt, rqst)) {
		memset(rqst, 0, sizeof(*rqst));
		list_add(&req->free, &nx->free_reqs);
	}
	spin_unlock(&xprt->reserve_lock);
}
