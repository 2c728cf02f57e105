// SPDX-License-Identifier: GPL-2.0-only
/*
 * Server transport class: the operations that sunrpc calls for accepted
 * connections (include/linux/sunrpc/svc_xprt.h, struct svc_xprt_ops).
 */
#include <linux/module.h>

#include "compat/compat.h"
#include "server/server.h"

/* Limit of /proc/fs/nfsd/portlist */
#define NFR_SVC_NAME_MAX	15

static int nfr_svc_has_wspace(struct svc_xprt *xprt)
{
	return 1;
}

/* nfsd dropped a request: the client may retransmit it on another connection only. */
static void nfr_svc_release_ctxt(struct svc_xprt *xprt, void *ctxt)
{
	struct nfr_svc_req *req = ctxt;
	struct nfr_svc *svc = nfr_svc_of(xprt);
	u32 xid;

	if (!req)
		return;
	xid = req->head.xid;
	nfr_svc_count(svc, dropped, 1);
	nfr_svc_req_put(req);
	/* delayed, because nfsd also drops a retransmission while it still handles the original */
	nfr_conn_abandon(svc->conn, xid);
}

static void nfr_svc_detach(struct svc_xprt *xprt)
{
	struct nfr_conn *conn = nfr_svc_of(xprt)->conn;

	nfr_conn_break(conn, "closed by nfsd");
	rdma_disconnect(conn->id);
}

/* Any context may drop the last reference, but draining sleeps. */
static void nfr_svc_free(struct svc_xprt *xprt)
{
	nfr_work_queue(&nfr_svc_of(xprt)->free_work, 0);
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
 * nfr_svc_register - register the server transport class
 *
 * The parameter server_name is the name of the class; if it is empty, there is
 * no server.
 *
 * Return: 0, -EINVAL if the name is too long, or -EEXIST if another module
 * holds the name.
 */
int nfr_svc_register(void)
{
	int rc;

	nfr_svc_class.xcl_name = nfr_params_server_name();
	if (!*nfr_svc_class.xcl_name)
		return 0;
	if (strlen(nfr_svc_class.xcl_name) > NFR_SVC_NAME_MAX) {
		pr_err("nfsrdma: parameter server_name: got %s, expected at most %d characters\n",
		       nfr_svc_class.xcl_name, NFR_SVC_NAME_MAX);
		return -EINVAL;
	}
	rc = nfr_backchannel_register();
	if (rc)
		return rc;
	rc = svc_reg_xprt_class(&nfr_svc_class);
	if (!rc)
		return 0;
	pr_err("nfsrdma: another module provides server transport %s. Unload it or set server_name\n",
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
	/* sunrpc dropped its module references before the workers that free connections have run */
	flush_workqueue(nfr_work_slow);
	nfr_sink_stop();
}
