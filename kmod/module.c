// SPDX-License-Identifier: GPL-2.0-only
/*
 * nfsrdma: RPC-over-RDMA transport (RFC 8166) for the NFS client and server of
 * the kernel.
 *
 * The module replaces rpcrdma: both register a client transport class with the
 * ident XPRT_TRANSPORT_RDMA, and sunrpc accepts one. Both can serve at the same
 * time under different names.
 */
#include <linux/module.h>

#include "client/client.h"
#include "compat/compat.h"
#include "memory/memory.h"
#include "module.h"
#include "observe/observe.h"
#include "server/server.h"

#define CREATE_TRACE_POINTS
#include "observe/trace.h"
#include "observe/trace_server.h"

struct workqueue_struct *nfr_work_poll;
struct workqueue_struct *nfr_work_softirq;
struct workqueue_struct *nfr_work_slow;

static void nfr_module_destroy_work(void)
{
	/* draining a connection on the slow workqueue needs the others */
	if (nfr_work_slow)
		destroy_workqueue(nfr_work_slow);
	if (nfr_work_softirq)
		destroy_workqueue(nfr_work_softirq);
	if (nfr_work_poll)
		destroy_workqueue(nfr_work_poll);
}

static int nfr_module_create_work(void)
{
	nfr_work_slow = alloc_workqueue("nfsrdma_slow", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	nfr_work_poll = alloc_workqueue("nfsrdma_poll",
					WQ_MEM_RECLAIM | WQ_HIGHPRI | NFR_WQ_BOUND, 0);
#ifdef NFR_WQ_SOFTIRQ
	nfr_work_softirq = alloc_workqueue("nfsrdma_softirq", NFR_WQ_SOFTIRQ, 0);
	if (nfr_work_slow && nfr_work_poll && nfr_work_softirq)
		return 0;
#else
	if (nfr_work_slow && nfr_work_poll)
		return 0;
#endif
	nfr_module_destroy_work();
	return -ENOMEM;
}

static int __init nfr_module_init(void)
{
	int rc;

	rc = nfr_module_create_work();
	if (rc)
		return rc;
	rc = nfr_mem_cache_start();
	if (rc)
		goto out_destroy;
	rc = nfr_svc_grants_start();
	if (rc)
		goto out_cache;
	nfr_observe_start();
	nfr_svc_observe_totals();
	rc = nfr_svc_register();
	if (rc)
		goto out_stop;
	rc = nfr_params_client() ? nfr_client_register() : 0;
	if (rc)
		goto out_unregister;
	return 0;
out_unregister:
	nfr_svc_unregister();
out_stop:
	nfr_observe_stop();
	nfr_svc_grants_stop();
out_cache:
	nfr_mem_cache_stop();
out_destroy:
	nfr_module_destroy_work();
	return rc;
}

static void __exit nfr_module_exit(void)
{
	if (nfr_params_client())
		nfr_client_unregister();
	nfr_svc_unregister();
	nfr_observe_stop();
	nfr_svc_grants_stop();
	nfr_mem_cache_stop();
	nfr_module_destroy_work();
}

module_init(nfr_module_init);
module_exit(nfr_module_exit);

MODULE_DESCRIPTION("RPC-over-RDMA transport for NFS clients and servers");
MODULE_AUTHOR("The nfsrdma-tools developers");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
