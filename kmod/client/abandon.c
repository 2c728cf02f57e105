// SPDX-License-Identifier: GPL-2.0-only
/*
 * Abandoned Calls, and the wait until a connection is closed.
 *
 * A task may abandon a Call (after a signal or a soft timeout) while the device
 * still sends it. The transport invalidates the MRs first, and abandons the send
 * buffer until the send queue has retired it.
 */
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client/call.h"
#include "client/client.h"
#include "client/slots.h"
#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "memory/exposure.h"

/* Maximum duration of an invalidation before the connection is broken */
#define NFR_RECALL_TIMEOUT	(10 * HZ)

/* --- breaking and closing --- */

/**
 * nfr_client_disconnect - break the connection of a transport
 * @nx: transport
 * @generation: generation of the connection; 0 for the current one
 * @reason: disconnect reason, a string constant
 *
 * The function does nothing if the transport has no connection of that
 * generation.
 */
void nfr_client_disconnect(struct nfr_xprt *nx, u32 generation, const char *reason)
{
	struct nfr_conn *conn;

	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	if (conn && (!generation || conn->generation == generation))
		nfr_conn_break(conn, reason);
	rcu_read_unlock();
}

static bool nfr_client_is_closed(struct nfr_xprt *nx, u32 generation)
{
	const struct nfr_conn *conn;
	bool closed;

	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	closed = !conn || conn->generation != generation;
	rcu_read_unlock();
	return closed;
}

/* Wait until a broken connection is closed. The caller must not have locked the transport. */
static noinline void nfr_client_wait_closed(struct nfr_xprt *nx, u32 generation)
{
	wait_event(nx->detached, nfr_client_is_closed(nx, generation));
}

/**
 * nfr_client_sleep_until_closed - put a task to sleep until a connection is closed
 * @nx: transport
 * @task: the calling task, in a callback; keeps its status
 * @generation: generation of the broken connection
 *
 * Context: Does not sleep.
 */
void nfr_client_sleep_until_closed(struct nfr_xprt *nx, struct rpc_task *task, u32 generation)
{
	rpc_sleep_on(&nx->closing, task, NULL);
	/* the connection may have been closed before the task was queued */
	if (nfr_client_is_closed(nx, generation))
		rpc_wake_up_queued_task(&nx->closing, task);
}

/* --- abandoned Calls --- */

static void nfr_client_req_inv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_req *req = container_of(wc->wr_cqe, struct nfr_req, inv_cqe);
	struct nfr_conn *conn = cq->cq_context;

	req->inv_ok = nfr_conn_check(conn, wc);
	if (req->inv_ok)
		nfr_mem_release(&req->exposure);
	complete(&req->inv_done);
	conn->ops->writable(conn);
}

/* Invalidate the MRs that the peer can access. Returns false if the connection is broken. */
static bool nfr_client_req_invalidate(struct nfr_req *req, struct nfr_conn *conn)
{
	init_completion(&req->inv_done);
	req->inv_cqe.done = nfr_client_req_inv_done;
	nfr_mem_forget(&req->exposure);
	if (!nfr_mem_settle(&req->exposure))
		return !nfr_client_revoke(conn, &req->exposure, &req->inv_cqe);
	req->inv_ok = true;
	complete(&req->inv_done);
	return true;
}

/*
 * Revoke access to the memory of a request on a working connection. Returns
 * false if the caller has to call nfr_client_wait_closed() instead. Caller
 * holds the mutex.
 */
static bool nfr_client_req_recall(struct nfr_req *req, struct nfr_conn *conn)
{
	if (!nfr_conn_is_up(conn) || !nfr_client_req_invalidate(req, conn))
		return false;
	if (req->state == NFR_REQ_SENT) {
		nfr_client_buffer_abandon(req, conn, NFR_BUFFER_CALL);
		nfr_client_buffer_abandon(req, conn, NFR_BUFFER_BOUNCE);
		nfr_conn_abandon(conn, be32_to_cpu(req->rqst.rq_xid));
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
static void nfr_client_abandon(struct nfr_req *req)
{
	struct nfr_xprt *nx = req->nx;
	u32 generation = req->generation;
	struct nfr_conn *conn;
	bool posted;

	if (nx->lanes && nfr_client_lane_abandon(req))
		return;
	if (nx->optimist && nfr_client_optimist_abandon(req))
		return;
	mutex_lock(&nx->mutex);
	conn = nfr_client_xprt_conn(nx);
	if (!conn || generation != conn->generation) {
		mutex_unlock(&nx->mutex);
		return;
	}
	posted = nfr_client_req_recall(req, conn);
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
	struct nfr_req *req = nfr_client_req_of(task->tk_rqstp);

	if (req->state == NFR_REQ_SENT || nfr_mem_is_exposed(&req->exposure))
		nfr_client_abandon(req);
	req->state = NFR_REQ_IDLE;
	kfree(req->large);
	req->large = NULL;
}
