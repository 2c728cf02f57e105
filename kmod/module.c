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
#include <linux/seq_file.h>

#include "client/client.h"
#include "connection/device.h"
#include "memory/memory.h"
#include "observe/observe.h"
#include "params.h"
#include "personality.h"
#include "server/server.h"
#include "work.h"

static void nfr_module_device_show(struct seq_file *seq, struct ib_device *device)
{
	nfr_client_device_show(seq, device);
	nfr_svc_device_show(seq, device);
}

static int nfr_module_devices_show(struct seq_file *seq, void *unused)
{
	nfr_conn_devices_show(seq, nfr_module_device_show);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(nfr_module_devices);

static int __init nfr_module_init(void)
{
	int rc;

	rc = nfr_work_create();
	if (rc)
		return rc;
	rc = nfr_personality_start();
	if (rc)
		goto out_destroy;
	rc = nfr_mem_cache_start();
	if (rc)
		goto out_personality;
	rc = nfr_conn_devices_start();
	if (rc)
		goto out_cache;
	nfr_observe_start();
	nfr_observe_devices(&nfr_module_devices_fops);
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
	nfr_conn_devices_stop();
out_cache:
	nfr_mem_cache_stop();
out_personality:
	nfr_personality_stop();
out_destroy:
	nfr_work_destroy();
	return rc;
}

static void __exit nfr_module_exit(void)
{
	if (nfr_params_client())
		nfr_client_unregister();
	nfr_svc_unregister();
	nfr_observe_stop();
	nfr_conn_devices_stop();
	nfr_mem_cache_stop();
	nfr_personality_stop();
	nfr_work_destroy();
}

module_init(nfr_module_init);
module_exit(nfr_module_exit);

MODULE_DESCRIPTION("RPC-over-RDMA transport for NFS clients and servers");
MODULE_AUTHOR("The nfsrdma-tools developers");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
