// SPDX-License-Identifier: GPL-2.0-only
/*
 * Statistics line of a transport in /proc/self/mountstats. Tools parse it by
 * position, so that its 27 columns are those of the in-kernel transport, in the
 * same order (net/sunrpc/xprtrdma/transport.c, xprt_rdma_print_stats()).
 */
#include <linux/seq_file.h>

#include "client/client.h"

/* MR counts of closed connections and of the current one */
struct nfr_mr_counts {
	u64 made;
	u64 recycled;
	u64 orphaned;
};

static struct nfr_mr_counts nfr_stats_mrs(const struct nfr_xprt *nx)
{
	struct nfr_mr_counts counts = {
		.made = READ_ONCE(nx->counters.mrs_made),
		.recycled = READ_ONCE(nx->counters.mrs_recycled),
		.orphaned = READ_ONCE(nx->counters.mrs_orphaned),
	};
	const struct nfr_conn *conn;

	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	if (conn) {
		counts.made += READ_ONCE(conn->pool.total);
		counts.recycled += READ_ONCE(conn->pool.recycled);
		counts.orphaned += READ_ONCE(conn->pool.orphaned);
	}
	rcu_read_unlock();
	return counts;
}

static void nfr_stats_generic(const struct rpc_xprt *xprt, struct seq_file *seq)
{
	const typeof(xprt->stat) stat = data_race(xprt->stat);
	long idle = 0;

	if (xprt_connected((struct rpc_xprt *)xprt))
		idle = (long)(jiffies - READ_ONCE(xprt->last_used)) / HZ;
	/* the first 0 is the source port, which RDMA does not have */
	seq_printf(seq, "\txprt:\trdma 0 %lu %lu %lu %ld %lu %lu %lu %llu %llu ",
		   stat.bind_count, stat.connect_count, stat.connect_time / HZ, idle,
		   stat.sends, stat.recvs, stat.bad_xids, stat.req_u, stat.bklog_u);
}

/**
 * nfr_client_print_stats - print the statistics line of a transport
 * @xprt: transport
 * @seq: output file
 */
void nfr_client_print_stats(struct rpc_xprt *xprt, struct seq_file *seq)
{
	const struct nfr_xprt *nx = nfr_xprt_of(xprt);
	/* the counters change while they are read; each value is consistent */
	const struct nfr_counters now = data_race(nx->counters), *c = &now;
	struct nfr_mr_counts mrs = nfr_stats_mrs(nx);

	nfr_stats_generic(xprt, seq);
	seq_printf(seq, "%llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu ",
		   c->read_chunks, c->write_chunks, c->reply_chunks,
		   c->request_bytes, c->reply_bytes, c->pullup_bytes,
		   c->fixup_bytes, c->hardway_bytes, c->failed_marshals,
		   c->bad_replies, c->nomsg_calls);
	/* the last 0: Replies never wait for a Send, because the device does not send from pages */
	seq_printf(seq, "%llu %llu %llu %llu %llu 0\n",
		   mrs.recycled, mrs.orphaned, mrs.made, c->local_invs, c->starved);
}
