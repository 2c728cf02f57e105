/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The one place where kernels differ. What a kernel has is found by compiling
 * (features.sh), never from its version number.
 */
#ifndef NFSRDMA_COMPAT_H
#define NFSRDMA_COMPAT_H

#include <linux/sunrpc/bc_xprt.h>
#include <linux/sunrpc/svc.h>
#include <linux/workqueue.h>

#include "features.h"

#ifdef HAVE_WQ_PERCPU
#define NFR_WQ_BOUND WQ_PERCPU
#else
#define NFR_WQ_BOUND 0
#endif

/* Hands an incoming callback to the service that serves this transport, which takes a reference. */
static inline void nfr_enqueue_callback(struct rpc_rqst *rqst)
{
#if defined(HAVE_XPRT_ENQUEUE_BC_REQUEST)
	xprt_enqueue_bc_request(rqst);
#elif defined(HAVE_SVC_CB_LWQ)
	struct svc_serv *serv = rqst->rq_xprt->bc_serv;

	xprt_get(rqst->rq_xprt);
	lwq_enqueue(&rqst->rq_bc_list, &serv->sv_cb_list);
	svc_pool_wake_idle_thread(&serv->sv_pools[0]);
#else
	struct svc_serv *serv = rqst->rq_xprt->bc_serv;

	xprt_get(rqst->rq_xprt);
	spin_lock(&serv->sv_cb_lock);
	list_add(&rqst->rq_bc_list, &serv->sv_cb_list);
	wake_up(&serv->sv_cb_waitq);
	spin_unlock(&serv->sv_cb_lock);
#endif
}

#endif
