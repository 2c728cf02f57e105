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

#define CREATE_TRACE_POINTS
#include "observe/trace.h"
#include "observe/trace_connection.h"
#include "observe/trace_server.h"

#include "client/client.h"
#include "connection/connection.h"
#include "observe/debugfs.h"

static int __init nfr_module_init(void)
{
	int rc;

	rc = nfr_conn_start();
	if (rc)
		return rc;
	nfr_debugfs_start();
	nfr_debugfs_svc_start();
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
	nfr_debugfs_svc_stop();
	nfr_debugfs_stop();
	nfr_conn_stop();
	return rc;
}

static void __exit nfr_module_exit(void)
{
	if (nfr_params_client())
		nfr_client_unregister();
	nfr_svc_unregister();
	nfr_debugfs_svc_stop();
	nfr_debugfs_stop();
	nfr_conn_stop();
}

module_init(nfr_module_init);
module_exit(nfr_module_exit);

MODULE_DESCRIPTION("RPC-over-RDMA transport for NFS clients and servers");
MODULE_AUTHOR("The nfsrdma-tools developers");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
