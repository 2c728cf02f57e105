// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send a Call, or the reply to a callback, for sunrpc: the credit, the wait for room,
 * the wait for the Reply. call.c marshals the message.
 */
#include <linux/sunrpc/bc_xprt.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"
#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "observe/trace.h"
#include "work.h"

/* Make sunrpc wait for room in the send queue, and for a @credit. Returns -EAGAIN. */
static int nfr_client_wait_for_room(struct nfr_xprt *nx, struct nfr_conn *conn, bool credit)
{
	xprt_wait_for_buffer_space(&nx->xprt);
	/* pairs with nfr_client_writable(), which runs after room was made and looks for waiters */
	smp_mb__after_atomic();
	if (nfr_conn_has_room(conn, credit) || !nfr_conn_is_up(conn))
		xprt_write_space(&nx->xprt);
	return -EAGAIN;
}

/* Set the wait before queueing the work that ends it. */
static int nfr_client_wait_for_regions(struct nfr_xprt *nx, struct nfr_conn *conn)
{
	xprt_wait_for_buffer_space(&nx->xprt);
	nfr_work_queue(&nfr_client_link_of(conn)->refill, 0);
	return -EAGAIN;
}

static int nfr_client_send_call(struct nfr_xprt *nx, struct nfr_conn *conn, struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	int rc;

	req->generation = conn->generation;
	req->state = NFR_REQ_IDLE;
	rqst->rq_xtime = ktime_get();
	rc = nfr_client_link_of(conn)->personality->marshal(conn, req);
	if (!rc) {
		rqst->rq_xmit_bytes_sent += rqst->rq_snd_buf.len;
		return 0;
	}
	nfr_conn_credit_back(conn);
	/* the request keeps its MRs until the broken connection is closed */
	if (rc == -ENOTCONN)
		return rc;
	if (rc == -EAGAIN || rc == -ENOMEM)
		nx->counters.starved++;
	if (rc == -EAGAIN)
		return nfr_client_wait_for_room(nx, conn, true);
	if (rc == -ENOMEM)
		return nfr_client_wait_for_regions(nx, conn);
	nx->counters.failed_marshals++;
	trace_nfsrdma_error(conn, be32_to_cpu(rqst->rq_xid), "sending a Call failed", rc);
	return rc;
}

/* Send the reply to a callback. Returns 0, -EAGAIN if the send queue is full, or another errno. */
static int nfr_client_callback_reply(struct nfr_conn *conn, struct rpc_rqst *rqst)
{
	struct nfr_req *req = nfr_client_req_of(rqst);
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .credits = NFR_CALLBACK_CREDITS,
		.proc = NFR_MSG,
	};
	int rc;

	/* the callback came on an earlier connection: the server will retransmit it */
	if (req->generation != conn->generation)
		return 0;
	rc = nfr_client_link_of(conn)->personality->send(conn, req, &head, &rqst->rq_snd_buf, true);
	req->mark = nfr_conn_mark(conn);
	if (rc == -EAGAIN)
		return nfr_client_wait_for_room(req->nx, conn, false);
	return rc;
}

/**
 * nfr_client_send_request - send a Call, or the reply to a callback
 * @rqst: encoded request; the sender has locked the transport
 *
 * Return: 0, -EAGAIN if sunrpc has to wait for room, -ENOTCONN if the Call
 * needs a new connection, -ENOBUFS if sunrpc has to retry soon, or another
 * errno, which ends the RPC.
 */
int nfr_client_send_request(struct rpc_rqst *rqst)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(rqst->rq_xprt);
	struct nfr_req *req = nfr_client_req_of(rqst);
	struct nfr_conn *conn = nfr_client_xprt_conn(nx);
	int rc;

	if (!conn || !nfr_conn_is_up(conn))
		return -ENOTCONN;
	if (bc_prealloc(rqst))
		return nfr_client_callback_reply(conn, rqst);
	/* RFC 8166, section 3.3.1: do not send a Call twice on one connection */
	if (req->state == NFR_REQ_SENT && req->generation == conn->generation) {
		nfr_conn_break(conn, "a Call has to be retransmitted");
		return -ENOTCONN;
	}
	rc = nfr_conn_credit(conn);
	if (rc == -EAGAIN)
		return nfr_client_wait_for_room(nx, conn, true);
	if (rc)
		return rc;
	rc = nfr_client_send_call(nx, conn, req);
	/*
	 * a Call that expects no reply keeps its credit; NFR_ABANDONED_TIMEOUT
	 * replaces the connection
	 */
	if (!rc && !rpc_reply_expected(rqst->rq_task))
		nfr_conn_abandon(conn, be32_to_cpu(rqst->rq_xid));
	return rc;
}

/**
 * nfr_client_wait_for_reply - wait for the Reply to a Call, for one timeout at least
 * @task: task whose Call was sent
 *
 * sunrpc would wait only until the major timeout (net/sunrpc/xprt.c,
 * xprt_request_timeout()), which may have passed while the Call waited for a
 * connection. The Call would then break the connection that has just been made,
 * and many such Calls would do so one after the other. Soft mounts do not wait
 * longer than their major timeout.
 *
 * A task whose Call another task sent may get the transport lock afterwards. It
 * must not keep it: a timeout waits until the connection is closed, and closing
 * needs the lock.
 *
 * Context: Does not sleep. Caller holds the queue lock.
 */
void nfr_client_wait_for_reply(struct rpc_task *task)
{
	struct rpc_rqst *rqst = task->tk_rqstp;
	unsigned long end = jiffies + rqst->rq_timeout;
	struct rpc_xprt *xprt = rqst->rq_xprt;

	if (READ_ONCE(xprt->snd_task) == task) {
		spin_lock(&xprt->transport_lock);
		xprt_release_xprt(xprt, task);
		spin_unlock(&xprt->transport_lock);
	}
	if (!RPC_IS_SOFT(task) && time_before(rqst->rq_majortimeo, end))
		rqst->rq_majortimeo = end;
	xprt_wait_for_reply_request_def(task);
}

/**
 * nfr_client_wait_or_resend - wait for a Reply; the Call may have to be sent again already
 * @task: task whose Call was sent, on a lane for example
 *
 * Context: Does not sleep. Caller holds the queue lock.
 */
void nfr_client_wait_or_resend(struct rpc_task *task)
{
	struct rpc_rqst *rqst = task->tk_rqstp;

	/* sunrpc has set the cookie after nfr_client_resend(); with this one it sends again */
	if (READ_ONCE(nfr_client_req_of(rqst)->state) == NFR_REQ_IDLE)
		rqst->rq_connect_cookie = rqst->rq_xprt->connect_cookie - 1;
	nfr_client_wait_for_reply(task);
}

/**
 * nfr_client_resend - have sunrpc send a Call again, on the connection of the transport
 * @req: request whose lane, or whose RDMA Read, failed
 *
 * Context: Caller holds the queue lock, and the lock that protects the failed relation.
 */
void nfr_client_resend(struct nfr_req *req)
{
	struct rpc_xprt *xprt = &req->nx->xprt;

	req->lost = be32_to_cpu(req->rqst.rq_xid);
	/* sunrpc encodes a Call anew if it was sent on an earlier connection */
	req->rqst.rq_connect_cookie = xprt->connect_cookie - 1;
	rpc_wake_up_queued_task(&xprt->pending, req->rqst.rq_task);
}
