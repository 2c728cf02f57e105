// SPDX-License-Identifier: GPL-2.0-only
/*
 * RPC slots, and Calls that are given up.
 *
 * A Call that is given up (a signal, a soft timeout) may still be on its way:
 * its memory is taken back first, and its buffer is put aside until the send
 * queue has passed it.
 */
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client.h"
#include "trace.h"

/* What an invalidation may take before the connection is given up */
#define NFR_RECALL_TIMEOUT	(10 * HZ)

/* --- giving a Call up --- */

static void nfr_req_inv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_req *req = container_of(wc->wr_cqe, struct nfr_req, inv_cqe);
	struct nfr_conn *conn = cq->cq_context;

	req->inv_ok = nfr_queue_check(conn, wc);
	if (req->inv_ok)
		nfr_reg_release(conn, &req->mrs);
	complete(&req->inv_done);
}

/* Posts the invalidation of what the peer can reach. Returns false when the connection is broken. */
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
 * Takes memory back while the connection is well. Returns false when only
 * closing can: nfr_client_wait_closed() is due. The mutex is held.
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
 * A request was sent and ends without a reply: what it told the peer of is
 * taken back. The wait for the device holds no lock, because closing may be
 * what ends it. A peer that acknowledges nothing would have the invalidation
 * wait in the send queue until the device gives up: breaking flushes it.
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
		nfr_client_disconnect(nx, generation, "the peer acknowledges nothing");
		wait_for_completion(&req->inv_done);
	}
	if (!posted || !req->inv_ok)
		nfr_client_wait_closed(nx, generation);
}

/**
 * nfr_client_buf_free - a task is done with its Call and reply; may wait
 * @task: no reply to it can be under way in this client any more
 *
 * When this returns, the peer can reach none of the memory of the request.
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
 * nfr_req_detach_all - requests forget a connection
 * @nx: the transport, its mutex held
 * @conn: drained
 * @mrs: gets the memory regions of all requests, to be destroyed
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
 * nfr_req_create - a new request
 * @nx: the transport; the request is not in its list yet
 * @gfp: how to allocate
 *
 * Returns NULL when memory is short.
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
 * @req: in no list, its buffer not mapped
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
 * @nx: closed, without tasks
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

/* Makes a slot, with reserve_lock dropped meanwhile. */
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
 * nfr_client_alloc_slot - a slot for a task, or a place in the queue for one
 * @xprt: the transport
 * @task: gets tk_rqstp, or tk_status -EAGAIN (it sleeps) or -ENOMEM
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
 * nfr_client_free_slot - a slot is free: the longest waiting task gets it
 * @xprt: the transport
 * @rqst: the slot
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
