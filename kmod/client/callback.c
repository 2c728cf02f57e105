// SPDX-License-Identifier: GPL-2.0-only
/*
 * Callbacks (RFC 8167): the server sends Calls to an NFSv4.1 client on the
 * connection that the client established, inline only.
 *
 * A callback is copied from its receive buffer into a preallocated request, and
 * queued for the callback service. Its reply takes the same way as a Call, see
 * call.c. The requests stay with the transport until it is destroyed, because
 * they serve all its sessions.
 *
 * The callback service may end as soon as the last session has ended, and
 * rpc_xprt.bc_serv may point to it afterwards (Linux 6.12). Therefore no callback
 * is delivered without a session, and the end of the last one waits for those
 * that were delivered: the service would leave them in its list, where each pins
 * the transport.
 *
 * Locking: rpc_xprt.bc_pa_lock protects the number of sessions and that of
 * callbacks.
 */
#include <linux/sunrpc/bc_xprt.h>

#include "client/client.h"
#include "client/slots.h"
#include "compat/compat.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "observe/trace.h"
#include "params.h"

/* Maximum size of a callback and of its reply; announced when a session is created */
#define NFR_CALLBACK_SIZE	4096u

/* Time for the callback service to finish; it took the callbacks before */
#define NFR_CALLBACK_END	(10 * HZ)

static u32 nfr_client_callback_room(u32 send_size, u32 recv_size)
{
	return min3(send_size, recv_size, NFR_CALLBACK_SIZE) - NFR_WIRE_MIN;
}

/**
 * nfr_client_callback_maxpayload - get the maximum size of a callback and of its reply
 * @xprt: transport
 *
 * Return: size in bytes.
 */
size_t nfr_client_callback_maxpayload(struct rpc_xprt *xprt)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	const struct nfr_conn *conn;
	struct nfr_params params;
	size_t size;

	nfr_params_read(&params);
	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	size = conn ? nfr_client_callback_room(conn->send_size, conn->recv_size) :
		      nfr_client_callback_room(params.inline_send, params.inline_recv);
	rcu_read_unlock();
	return size;
}

/**
 * nfr_client_callback_slots - get the number of concurrent callbacks that sessions may allow
 * @xprt: transport
 *
 * Return: number of slots.
 */
unsigned int nfr_client_callback_slots(struct rpc_xprt *xprt)
{
	return NFR_CALLBACK_CREDITS / 2;
}

static void nfr_client_callback_put(struct rpc_rqst *rqst)
{
	struct rpc_xprt *xprt = rqst->rq_xprt;

	spin_lock(&xprt->bc_pa_lock);
	list_add_tail(&rqst->rq_bc_pa_list, &xprt->bc_pa_list);
	spin_unlock(&xprt->bc_pa_lock);
}

/* Return a request that nfr_client_callback_take() took. */
static void nfr_client_callback_back(struct rpc_rqst *rqst)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(rqst->rq_xprt);
	struct rpc_xprt *xprt = &nx->xprt;

	spin_lock(&xprt->bc_pa_lock);
	list_add_tail(&rqst->rq_bc_pa_list, &xprt->bc_pa_list);
	WRITE_ONCE(nx->delivered, nx->delivered - 1);
	if (!nx->delivered)
		wake_up_all(&nx->undelivered);
	spin_unlock(&xprt->bc_pa_lock);
}

static struct nfr_req *nfr_client_callback_create(struct nfr_xprt *nx)
{
	struct nfr_req *req = nfr_client_req_create(nx, GFP_KERNEL);

	if (!req)
		return NULL;
	req->reply = kmalloc(NFR_CALLBACK_SIZE, GFP_KERNEL);
	if (!req->reply ||
	    !nfr_client_buffer_get(req, NFR_BUFFER_CALL, NFR_HEAD_ROOM + NFR_CALLBACK_SIZE,
				   NFR_HEAD_ROOM + NFR_CALLBACK_SIZE, GFP_KERNEL)) {
		nfr_client_req_destroy(req);
		return NULL;
	}
	req->reply_size = NFR_CALLBACK_SIZE;
	req->rqst.rq_xprt = &nx->xprt;
	INIT_LIST_HEAD(&req->rqst.rq_list);
	__set_bit(RPC_BC_PA_IN_USE, &req->rqst.rq_bc_pa_state);
	return req;
}

/**
 * nfr_client_callback_setup - allocate requests for callbacks
 * @xprt: transport that a new session uses
 * @requests: number of slots of the session; unused, because
 *	NFR_CALLBACK_CREDITS limits all sessions together
 *
 * The NFS client destroys a session whose setup failed, too.
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_client_callback_setup(struct rpc_xprt *xprt, unsigned int requests)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	struct nfr_req *req;

	spin_lock(&xprt->bc_pa_lock);
	nx->sessions++;
	spin_unlock(&xprt->bc_pa_lock);
	while (READ_ONCE(nx->num_callbacks) < NFR_CALLBACK_CREDITS) {
		req = nfr_client_callback_create(nx);
		if (!req)
			return -ENOMEM;
		spin_lock(&xprt->reserve_lock);
		list_add_tail(&req->all, &nx->reqs);
		nx->num_callbacks++;
		spin_unlock(&xprt->reserve_lock);
		nfr_client_callback_put(&req->rqst);
	}
	return 0;
}

/**
 * nfr_client_callback_destroy - handle the end of a session
 * @xprt: transport
 * @requests: number of slots of the session
 *
 * The requests stay with the transport for the next session. After the last one, no
 * callback is with the callback service when this function returns.
 *
 * Context: Sleeps. The service still runs.
 */
void nfr_client_callback_destroy(struct rpc_xprt *xprt, unsigned int requests)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	bool last;

	spin_lock(&xprt->bc_pa_lock);
	if (nx->sessions)
		nx->sessions--;
	last = !nx->sessions;
	spin_unlock(&xprt->bc_pa_lock);
	if (last && !wait_event_timeout(nx->undelivered, !READ_ONCE(nx->delivered),
					NFR_CALLBACK_END))
		pr_warn("nfsrdma: %u callbacks outlived their session\n",
			READ_ONCE(nx->delivered));
}

/**
 * nfr_client_callback_free_rqst - return a request after the callback service used it
 * @rqst: request; its reference to the transport is dropped
 */
void nfr_client_callback_free_rqst(struct rpc_rqst *rqst)
{
	struct rpc_xprt *xprt = rqst->rq_xprt;

	nfr_client_callback_back(rqst);
	xprt_put(xprt);
}

/*
 * Take a request whose last reply is sent: its buffer may be overwritten. Returns
 * ERR_PTR(-ENOENT) if there is no session, or ERR_PTR(-ENOBUFS).
 */
static struct nfr_req *nfr_client_callback_take(struct nfr_xprt *nx, struct nfr_conn *conn)
{
	struct rpc_xprt *xprt = &nx->xprt;
	struct rpc_rqst *rqst;
	struct nfr_req *req;

	spin_lock(&xprt->bc_pa_lock);
	if (!nx->sessions || !xprt->bc_serv) {
		spin_unlock(&xprt->bc_pa_lock);
		return ERR_PTR(-ENOENT);
	}
	list_for_each_entry(rqst, &xprt->bc_pa_list, rq_bc_pa_list) {
		req = nfr_client_req_of(rqst);
		if (req->generation == conn->generation &&
		    !nfr_conn_is_retired(conn, req->mark))
			continue;
		list_del(&rqst->rq_bc_pa_list);
		nx->delivered++;
		spin_unlock(&xprt->bc_pa_lock);
		return req;
	}
	spin_unlock(&xprt->bc_pa_lock);
	return ERR_PTR(-ENOBUFS);
}

static void nfr_client_callback_prepare(struct nfr_req *req, u32 xid, const void *rpc, u32 length)
{
	struct rpc_rqst *rqst = &req->rqst;

	memcpy(req->reply, rpc, length);
	rqst->rq_reply_bytes_recvd = 0;
	rqst->rq_xid = cpu_to_be32(xid);
	xdr_buf_init(&rqst->rq_rcv_buf, req->reply, length);
	rqst->rq_rcv_buf.len = length;
	memcpy(&rqst->rq_private_buf, &rqst->rq_rcv_buf, sizeof(rqst->rq_private_buf));
	xdr_buf_init(&rqst->rq_snd_buf, req->buffers[NFR_BUFFER_CALL]->data + NFR_HEAD_ROOM,
		     NFR_CALLBACK_SIZE);
}

/**
 * nfr_client_callback_receive - handle a Call of the server
 * @conn: connection
 * @xid: XID of the Call
 * @rpc: RPC message
 * @length: length of @rpc in bytes
 *
 * A server that exceeds the credits or the size that this side announced
 * violates the protocol. The connection breaks.
 */
void nfr_client_callback_receive(struct nfr_conn *conn, u32 xid, const void *rpc, u32 length)
{
	struct nfr_xprt *nx = conn->owner;
	struct nfr_req *req;

	if (length > NFR_CALLBACK_SIZE) {
		nfr_conn_break(conn, "a callback is too large");
		return;
	}
	req = nfr_client_callback_take(nx, conn);
	if (req == ERR_PTR(-ENOENT)) {
		trace_nfsrdma_error(conn, xid, "no session for a callback", -ENOENT);
		return;
	}
	if (IS_ERR(req)) {
		nfr_conn_break(conn, "more callbacks than credits");
		return;
	}
	nx->counters.callbacks++;
	trace_nfsrdma_callback(conn, xid, length);
	req->generation = conn->generation;
	req->mark = nfr_conn_mark(conn);
	nfr_client_callback_prepare(req, xid, rpc, length);
	if (!nfr_compat_enqueue_callback(&req->rqst))
		nfr_client_callback_back(&req->rqst);
}
