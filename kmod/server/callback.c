// SPDX-License-Identifier: GPL-2.0-only
/*
 * Callbacks (RFC 8167): the server sends Calls to a client on the connection
 * that the client established, inline only. They use an rpc_xprt of a separate
 * class, which nfsd's callback client selects by its ident.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>
#include <linux/sunrpc/svc_xprt.h>
#include <linux/sunrpc/xprt.h>

#include "connection/state.h"
#include "gfp.h"
#include "observe/trace_server.h"
#include "server/call.h"
#include "server/server.h"

#define NFR_SVC_CALLBACK_TIMEOUT	(60 * HZ)

static const struct rpc_timeout nfr_svc_callback_timeout = {
	.to_initval = NFR_SVC_CALLBACK_TIMEOUT,
	.to_maxval = NFR_SVC_CALLBACK_TIMEOUT,
};

static struct nfr_svc_first *nfr_svc_of_callback(struct rpc_xprt *xprt)
{
	return nfr_svc_of(xprt->bc_xprt)->first;
}

/* --- sending --- */

static bool nfr_svc_callback_has_credit(const struct nfr_svc_first *first)
{
	return (u32)atomic_read(&first->callbacks_inflight) < READ_ONCE(first->callbacks_granted);
}

static int nfr_svc_callback_wait(struct rpc_xprt *xprt, struct nfr_svc_first *first)
{
	xprt_wait_for_buffer_space(xprt);
	/* announce the wait, then check again: the order that sunrpc requires */
	smp_mb__after_atomic();
	if (nfr_svc_callback_has_credit(first) || !nfr_conn_is_up(first->svc.conn))
		xprt_write_space(xprt);
	return -EAGAIN;
}

static int nfr_svc_callback_send(struct nfr_svc_first *first, struct rpc_rqst *rqst)
{
	struct nfr_header head = {
		.xid = be32_to_cpu(rqst->rq_xid), .credits = NFR_SVC_CALLBACKS, .proc = NFR_MSG,
	};
	struct nfr_svc *svc = &first->svc;
	u32 size = svc->personality->size(&head), length = rqst->rq_snd_buf.len;
	struct nfr_svc_req *req;

	if (length > svc->conn->send_size - size)
		return -EMSGSIZE;
	req = nfr_svc_req_get(svc, NFR_GFP_RETRIED);
	if (IS_ERR(req))
		return -ENOBUFS;
	nfr_svc_advance(req, NFR_SVC_REPLYING);
	if (read_bytes_from_xdr_buf(&rqst->rq_snd_buf, 0, req->buffer + size, length)) {
		nfr_svc_advance(req, NFR_SVC_FREE);
		return -EIO;
	}
	atomic_inc(&first->callbacks_inflight);
	nfr_svc_count(svc, callbacks, 1);
	rqst->rq_xtime = ktime_get();
	rqst->rq_xmit_bytes_sent += length;
	trace_nfsrdma_svc_callback(svc, head.xid, length);
	req->send.opcode = IB_WR_SEND;
	nfr_svc_advance(req, svc->personality->finish(req, &head, size + length) ? NFR_SVC_FREE :
									  NFR_SVC_SENT);
	return 0;
}

static int nfr_svc_callback_send_request(struct rpc_rqst *rqst)
{
	struct rpc_xprt *xprt = rqst->rq_xprt;
	struct nfr_svc_first *first = nfr_svc_of_callback(xprt);

	if (!nfr_conn_is_up(first->svc.conn)) {
		/* without this, sunrpc would retry immediately */
		xprt_disconnect_done(xprt);
		return -ENOTCONN;
	}
	if (!nfr_svc_callback_has_credit(first))
		return nfr_svc_callback_wait(xprt, first);
	return nfr_svc_callback_send(first, rqst);
}

/* --- operations of the rpc_xprt --- */

static void nfr_svc_callback_connect(struct rpc_xprt *xprt, struct rpc_task *task)
{
}

/* Only the client can establish a connection. */
static void nfr_svc_callback_close(struct rpc_xprt *xprt)
{
	xprt_disconnect_done(xprt);
}

static void nfr_svc_callback_destroy(struct rpc_xprt *xprt)
{
	kfree(xprt->address_strings[RPC_DISPLAY_ADDR]);
	xprt_free(xprt);
	module_put(THIS_MODULE);
}

static int nfr_svc_callback_buf_alloc(struct rpc_task *task)
{
	struct rpc_rqst *rqst = task->tk_rqstp;
	void *buffer = kmalloc(rqst->rq_callsize + rqst->rq_rcvsize, rpc_task_gfp_mask());

	if (!buffer)
		return -ENOMEM;
	rqst->rq_rbuffer = buffer + rqst->rq_callsize;
	rqst->rq_buffer = buffer;
	return 0;
}

static void nfr_svc_callback_buf_free(struct rpc_task *task)
{
	kfree(task->tk_rqstp->rq_buffer);
}

/* RFC 8166, section 3.3.1: a Call is not sent again on the same connection */
static void nfr_svc_callback_timer(struct rpc_xprt *xprt, struct rpc_task *task)
{
	nfr_conn_break(nfr_svc_of_callback(xprt)->svc.conn, "no reply to a callback");
}

static void nfr_svc_callback_inject_disconnect(struct rpc_xprt *xprt)
{
	nfr_conn_break(nfr_svc_of_callback(xprt)->svc.conn, "fault injection");
}

static void nfr_svc_callback_print_stats(struct rpc_xprt *xprt, struct seq_file *seq)
{
}

static const struct rpc_xprt_ops nfr_svc_callback_ops = {
	.reserve_xprt		= xprt_reserve_xprt,
	.release_xprt		= xprt_release_xprt,
	.alloc_slot		= xprt_alloc_slot,
	.free_slot		= xprt_free_slot,
	.connect		= nfr_svc_callback_connect,
	.buf_alloc		= nfr_svc_callback_buf_alloc,
	.buf_free		= nfr_svc_callback_buf_free,
	.send_request		= nfr_svc_callback_send_request,
	.wait_for_reply_request	= xprt_wait_for_reply_request_def,
	.timer			= nfr_svc_callback_timer,
	.close			= nfr_svc_callback_close,
	.destroy		= nfr_svc_callback_destroy,
	.print_stats		= nfr_svc_callback_print_stats,
	.inject_disconnect	= nfr_svc_callback_inject_disconnect,
};

static struct xprt_class nfr_svc_callback_class;

static void nfr_svc_callback_init(struct rpc_xprt *xprt, const struct xprt_create *args)
{
	xprt->ops = &nfr_svc_callback_ops;
	xprt->xprt_class = &nfr_svc_callback_class;
	xprt->timeout = &nfr_svc_callback_timeout;
	xprt->prot = NFR_SVC_CALLBACK_IDENT;
	xprt->addrlen = args->addrlen;
	memcpy(&xprt->addr, args->dstaddr, args->addrlen);
	xprt->address_strings[RPC_DISPLAY_ADDR] =
		kasprintf(GFP_KERNEL, "%pISc", args->dstaddr);
	xprt->address_strings[RPC_DISPLAY_PORT] = "0";
	xprt->address_strings[RPC_DISPLAY_PROTO] = "rdma";
	xprt->address_strings[RPC_DISPLAY_NETID] = "rdma-callback";
	xprt_set_bound(xprt);
	xprt_set_connected(xprt);
}

/*
 * Two references besides the caller's: one of @sxprt, which sunrpc drops, and
 * one that the replies to callbacks use. If two of nfsd's clients attach at
 * once, one succeeds.
 */
static bool nfr_svc_callback_attach(struct rpc_xprt *xprt, struct svc_xprt *sxprt)
{
	xprt->bc_xprt = sxprt;
	if (cmpxchg(&nfr_svc_of(sxprt)->first->callbacks, NULL, xprt))
		return false;
	xprt_get(xprt);
	sxprt->xpt_bc_xprt = xprt_get(xprt);
	return true;
}

static struct rpc_xprt *nfr_svc_callback_setup(struct xprt_create *args)
{
	struct rpc_xprt *xprt;

	if (args->addrlen > sizeof(xprt->addr) || !args->bc_xprt ||
	    args->bc_xprt->xpt_class->xcl_ident != NFR_SVC_IDENT)
		return ERR_PTR(-EBADF);
	xprt = xprt_alloc(args->net, sizeof(*xprt), NFR_SVC_CALLBACKS, NFR_SVC_CALLBACKS);
	if (!xprt)
		return ERR_PTR(-ENOMEM);
	nfr_svc_callback_init(xprt, args);
	if (!xprt->address_strings[RPC_DISPLAY_ADDR] ||
	    !nfr_svc_callback_attach(xprt, args->bc_xprt)) {
		kfree(xprt->address_strings[RPC_DISPLAY_ADDR]);
		xprt_free(xprt);
		return ERR_PTR(-ENOMEM);
	}
	__module_get(THIS_MODULE);
	return xprt;
}

static struct xprt_class nfr_svc_callback_class = {
	.list	= LIST_HEAD_INIT(nfr_svc_callback_class.list),
	.name	= "nfsrdma callback",
	.owner	= THIS_MODULE,
	.ident	= NFR_SVC_CALLBACK_IDENT,
	.setup	= nfr_svc_callback_setup,
	/* selected by ident only; an empty name ends the list */
	.netid	= { "" },
};

/* Register the transport class for callbacks. Returns 0 or -EEXIST. */
int nfr_svc_callback_register(void)
{
	return xprt_register_transport(&nfr_svc_callback_class);
}

/* Undo nfr_svc_callback_register(). */
void nfr_svc_callback_unregister(void)
{
	xprt_unregister_transport(&nfr_svc_callback_class);
}
