#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Writes the header $1: what the compiler, $2 and on, accepts with this kernel's headers.
set -eu
out=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# LINES INCLUDE STATEMENT COMPILER...: defines HAVE_NAME when the statement compiles
probe() {
	name=$1 include=$2 statement=$3
	shift 3
	printf '#include <%s>\nvoid nfr_probe(void);\nvoid nfr_probe(void)\n{\n\t%s;\n}\n' \
		"$include" "$statement" > "$dir/probe.c"
	if "$@" -fsyntax-only "$dir/probe.c" 2> /dev/null; then
		echo "#define HAVE_$name 1"
	else
		echo "/* no $name */"
	fi
}

{
	echo "/* SPDX-License-Identifier: GPL-2.0-only */"
	# callbacks wait on a lockless queue (6.12), on a list under a lock (6.1)
	probe SVC_CB_LWQ linux/sunrpc/svc.h \
		'lwq_init(&((struct svc_serv *)0)->sv_cb_list)' "$@"
	# one helper queues a callback and checks that it is still served (7.2)
	probe XPRT_ENQUEUE_BC_REQUEST linux/sunrpc/bc_xprt.h \
		'xprt_enqueue_bc_request((struct rpc_rqst *)0)' "$@"
	# a transport says itself whether a client's port is privileged (6.1)
	probe XPO_SECURE_PORT linux/sunrpc/svc_xprt.h \
		'((struct svc_xprt_ops *)0)->xpo_secure_port(0)' "$@"
	# a reply has pages of its own (7.2), or those behind the Call's
	probe RQ_PAGES_NFREE linux/sunrpc/svc.h \
		'((struct svc_rqst *)0)->rq_pages_nfree = 0' "$@"
	# pages are allocated in bulk under a shorter name (7.2)
	probe ALLOC_PAGES_BULK_ARRAY linux/gfp.h \
		'alloc_pages_bulk_array(GFP_KERNEL, 1, (struct page **)0)' "$@"
	# a workqueue that is bound to CPUs has to say so (7.2)
	probe WQ_PERCPU linux/workqueue.h 'int flag = WQ_PERCPU; (void)flag' "$@"
} > "$out"
