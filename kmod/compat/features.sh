#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Usage: features.sh HEADER COMPILER...: write HEADER, which defines HAVE_NAME for each feature of
# the kernel headers that COMPILER finds.
set -eu
out=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# probe NAME INCLUDE STATEMENT COMPILER...: define HAVE_NAME if STATEMENT compiles
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
	# callbacks are queued on an lwq (6.12), not on a list with a lock (6.1)
	probe SVC_CB_LWQ linux/sunrpc/svc.h \
		'lwq_init(&((struct svc_serv *)0)->sv_cb_list)' "$@"
	# sunrpc has a helper that queues a callback if its service still exists (7.2)
	probe XPRT_ENQUEUE_BC_REQUEST linux/sunrpc/bc_xprt.h \
		'xprt_enqueue_bc_request((struct rpc_rqst *)0)' "$@"
	# the transport reports whether the client's port is privileged (6.1)
	probe XPO_SECURE_PORT linux/sunrpc/svc_xprt.h \
		'((struct svc_xprt_ops *)0)->xpo_secure_port(0)' "$@"
	# the reply has separate pages (7.2), instead of those after the Call's
	probe RQ_PAGES_NFREE linux/sunrpc/svc.h \
		'((struct svc_rqst *)0)->rq_pages_nfree = 0' "$@"
	# the bulk allocator has its old name (6.12)
	probe ALLOC_PAGES_BULK_ARRAY linux/gfp.h \
		'alloc_pages_bulk_array(GFP_KERNEL, 1, (struct page **)0)' "$@"
	# a shrinker is allocated (6.7), and not part of a static structure (6.1)
	probe SHRINKER_ALLOC linux/shrinker.h 'shrinker_alloc(0, "%s", "")' "$@"
	# the ctime of an inode is read by a function (6.12)
	probe INODE_GET_CTIME linux/fs.h 'inode_get_ctime((struct inode *)0)' "$@"
	# a mark is found by its inode (6.12), not by the list of the inode (6.1)
	probe FSNOTIFY_FIND_INODE_MARK linux/fsnotify_backend.h \
		'fsnotify_find_inode_mark((struct inode *)0, (struct fsnotify_group *)0)' "$@"
	# marks of listeners that may refuse an access are counted by file system (6.12)
	probe FSNOTIFY_PRIORITY_WATCHERS linux/fsnotify.h \
		'fsnotify_sb_has_priority_watchers((struct super_block *)0, FSNOTIFY_PRIO_CONTENT)' "$@"
	# a snapshot of the clocks has that of one chosen (7.2), instead of CLOCK_REALTIME
	probe KTIME_GET_SNAPSHOT_ID linux/timekeeping.h \
		'ktime_get_snapshot_id(CLOCK_REALTIME, (struct system_time_snapshot *)0)' "$@"
	# leases have a header of their own (6.12), and were declared in linux/fs.h (6.1)
	probe FILELOCK_H linux/filelock.h '(void)0' "$@"
	# workqueues run work in softirq context (6.12)
	probe WQ_BH linux/workqueue.h 'int flag = WQ_BH; (void)flag' "$@"
	# these are bound to CPUs, and may say so (7.2)
	probe WQ_BH_PERCPU linux/workqueue.h \
		'_Static_assert(__WQ_BH_ALLOWS & WQ_PERCPU, "refused")' "$@"
	# a workqueue bound to CPUs requires a flag (7.2)
	probe WQ_PERCPU linux/workqueue.h 'int flag = WQ_PERCPU; (void)flag' "$@"
} > "$out"
