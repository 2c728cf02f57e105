// SPDX-License-Identifier: GPL-2.0-only
/*
 * The server's transport class: what sunrpc calls for connections that were
 * accepted (include/linux/sunrpc/svc_xprt.h, struct svc_xprt_ops).
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>

#include "compat.h"
#include "debugfs.h"
#include "server.h"
#include "trace_server.h"

/* Work requests beyond one per credit: for the longest chains of one Call */
#define NFR_SVC_SENDS	256

/* Pieces of memory in one work request */
#define NFR_SVC_SGES	32u

static atomic_t nfr_svc_number;
static atomic_t nfr_svc_total;

/* --- life --- */

static void nfr_svc_broken(struct nfr_conn *conn)
{
	struct nfr_svc *svc = conn->owner;

	svc_xprt_deferred_close(&svc->xprt);
	nfr_sink_kick();
}

const struct nfr_conn_ops nfr_svc_conn_ops = {
	.receive = nfr_svc_receive,
	.writable = nfr_svc_writable,
	.broken = nfr_svc_broken,
};

/**
 * nfr_svc_destroy - end a connection and release all it has; waits
 * @svc: used by nobody
 */
void nfr_svc_destroy(struct nfr_svc *svc)
{
	nfr_debugfs_svc_remove(svc);
	nfr_conn_drain(svc->conn);
	nfr_svc_req_destroy_all(svc);
	if (svc->backchannel)
		xprt_put(svc->backchannel);
	nfr_conn_free(svc->conn);
	atomic_dec(&nfr_svc_total);
	kfree(svc);
}

static void nfr_svc_free_work(struct work_struct *work)
{
	nfr_svc_destroy(container_of(work, struct nfr_svc, free_work.work));
}

static void nfr_svc_init(struct nfr_svc *svc)
{
	spin_lock_init(&svc->lock);
	INIT_LIST_HEAD(&svc->list);
	INIT_LIST_HEAD(&svc->ready);
	INIT_LIST_HEAD(&svc->free);
	INIT_LIST_HEAD(&svc->all);
	INIT_LIST_HEAD(&svc->pending);
	INIT_LIST_HEAD(&svc->sent);
	INIT_DELAYED_WORK(&svc->free_work, nfr_svc_free_work);
	svc->bc_granted = 1;
}

static struct nfr_svc *nfr_svc_alloc(void)
{
	struct nfr_svc *svc = kzalloc(sizeof(*svc), GFP_KERNEL);

	if (!svc)
		return NULL;
	svc->conn = kzalloc(sizeof(*svc->conn), GFP_KERNEL);
	if (!svc->conn) {
		kfree(svc);
		return NULL;
	}
	nfr_svc_init(svc);
	return svc;
}

/**
 * nfr_svc_create - a client wants to connect
 * @id: of the connection to be; the svc's when this succeeds
 * @param: what the client asks for
 *
 * Returns NULL when there are as many connections as allowed, or no memory:
 * then the client is to be rejected.
 */
struct nfr_svc *nfr_svc_create(struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	struct nfr_svc *svc;
	struct nfr_conn *conn;

	if (atomic_inc_return(&nfr_svc_total) > nfr_params_server_connections())
		goto out_full;
	svc = nfr_svc_alloc();
	if (!svc)
		goto out_full;
	conn = svc->conn;
	conn->owner = svc;
	conn->ops = &nfr_svc_conn_ops;
	conn->id_number = NFR_SVC_NUMBERS | (u32)atomic_inc_return(&nfr_svc_number);
	nfr_params_read(&conn->wanted);
	nfr_wire_decode_private(&svc->peer, param->private_data, param->private_data_len);
	svc->depth = param->initiator_depth;
	nfr_conn_adopt(conn, id);
	return svc;
out_full:
	atomic_dec(&nfr_svc_total);
	return NULL;
}

static void nfr_svc_addresses(struct nfr_svc *svc)
{
	struct rdma_addr *addr = &svc->conn->id->route.addr;
	struct sockaddr *local = (struct sockaddr *)&addr->src_addr;
	struct sockaddr *remote = (struct sockaddr *)&addr->dst_addr;

	svc_xprt_set_local(&svc->xprt, local, svc_addr_len(local));
	svc_xprt_set_remote(&svc->xprt, remote, svc_addr_len(remote));
	/* RDMA has no port of the client's; the duplicate request cache wants one that stays */
	rpc_set_port((struct sockaddr *)&svc->xprt.xpt_remote, 0);
}

/* What the connection is to have, within what the device can do */
static void nfr_svc_size(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;

	conn->wanted.credits = min_t(u32, conn->wanted.credits,
				     attrs->max_qp_wr - NFR_QUEUE_SPARE);
	svc->grant = min(conn->wanted.credits, NFR_SVC_FIRST_GRANT);
	conn->receives = nfr_svc_recvs_for(svc->grant);
	conn->sends = conn->wanted.credits + NFR_SVC_SENDS;
	conn->send_sges = min_t(u32, attrs->max_send_sge, NFR_SVC_SGES);
	conn->rw_contexts = conn->wanted.credits;
	conn->send_size = min(conn->wanted.inline_send, svc->peer.recv_size);
	conn->recv_size = min(conn->wanted.inline_recv, svc->peer.send_size);
}

/**
 * nfr_svc_establish - accept a connection; waits, but not for the network
 * @svc: created
 * @listener: where it arrived
 *
 * Returns what nfsd is to serve, or NULL: @svc is gone then.
 */
struct svc_xprt *nfr_svc_establish(struct nfr_svc *svc, struct svc_xprt *listener)
{
	struct nfr_conn *conn = svc->conn;
	int rc;

	svc_xprt_init(listener->xpt_net, &nfr_svc_class, &svc->xprt, listener->xpt_server);
	/* NFSv4 is served over transports that control congestion only */
	set_bit(XPT_CONG_CTRL, &svc->xprt.xpt_flags);
	nfr_svc_addresses(svc);
	nfr_svc_size(svc);
	nfr_debugfs_svc_add(svc);
	rc = nfr_conn_accept(conn, svc->peer.remote_invalidation, svc->depth);
	trace_nfsrdma_svc_accept(svc, rc);
	if (!rc)
		return &svc->xprt;
	/* sunrpc takes this reference when it takes the transport, and gives it back at its end */
	__module_get(THIS_MODULE);
	svc_xprt_put(&svc->xprt);
	return NULL;
}

/**
 * nfr_svc_connections - connections there are, those that end included
 */
u32 nfr_svc_connections(void)
{
	return atomic_read(&nfr_svc_total);
}

/* --- small operations --- */

static int nfr_svc_has_wspace(struct svc_xprt *xprt)
{
	return 1;
}

/* A request that nfsd dropped: its client may send it again on another connection only. */
static void nfr_svc_release_ctxt(struct svc_xprt *xprt, void *ctxt)
{
	struct nfr_svc_req *req = ctxt;
	struct nfr_svc *svc = nfr_svc_of(xprt);

	if (!req)
		return;
	svc->counters.dropped++;
	nfr_svc_req_put(req);
	nfr_conn_break(svc->conn, "a call was not answered");
}

static void nfr_svc_detach(struct svc_xprt *xprt)
{
	rdma_disconnect(nfr_svc_of(xprt)->conn->id);
}

/* The last reference may go anywhere, and draining waits. */
static void nfr_svc_free(struct svc_xprt *xprt)
{
	nfr_conn_queue(&nfr_svc_of(xprt)->free_work, 0);
}

static void nfr_svc_kill_temp_xprt(struct svc_xprt *xprt)
{
}

#ifdef HAVE_XPO_SECURE_PORT
static void nfr_svc_secure_port(struct svc_rqst *rqstp)
{
	set_bit(RQ_SECURE, &rqstp->rq_flags);
}
#endif

static const struct svc_xprt_ops nfr_svc_ops = {
	.xpo_create		= nfr_listener_create,
	.xpo_recvfrom		= nfr_svc_recvfrom,
	.xpo_sendto		= nfr_svc_sendto,
	.xpo_result_payload	= nfr_svc_result_payload,
	.xpo_release_ctxt	= nfr_svc_release_ctxt,
	.xpo_detach		= nfr_svc_detach,
	.xpo_free		= nfr_svc_free,
	.xpo_has_wspace		= nfr_svc_has_wspace,
	.xpo_kill_temp_xprt	= nfr_svc_kill_temp_xprt,
#ifdef HAVE_XPO_SECURE_PORT
	.xpo_secure_port	= nfr_svc_secure_port,
#endif
};

struct svc_xprt_class nfr_svc_class = {
	.xcl_owner		= THIS_MODULE,
	.xcl_ops		= &nfr_svc_ops,
	.xcl_max_payload	= RPCSVC_MAXPAYLOAD,
	.xcl_ident		= NFR_SVC_IDENT,
};

/**
 * nfr_svc_register - offer the class to sunrpc, under the name of the parameter server_name
 *
 * Returns 0, also when the name is empty: then there is no server. -EEXIST
 * when another module has the name.
 */
int nfr_svc_register(void)
{
	int rc;

	nfr_svc_class.xcl_name = nfr_params_server_name();
	if (!*nfr_svc_class.xcl_name)
		return 0;
	rc = nfr_backchannel_register();
	if (rc)
		return rc;
	rc = svc_reg_xprt_class(&nfr_svc_class);
	if (!rc)
		return 0;
	pr_err("nfsrdma: the server transport %s is held by another module: unload that, or set server_name\n",
	       nfr_svc_class.xcl_name);
	nfr_backchannel_unregister();
	return rc;
}

/**
 * nfr_svc_unregister - undo nfr_svc_register()
 */
void nfr_svc_unregister(void)
{
	if (!*nfr_svc_class.xcl_name)
		return;
	svc_unreg_xprt_class(&nfr_svc_class);
	nfr_backchannel_unregister();
	nfr_sink_stop();
}
