// SPDX-License-Identifier: GPL-2.0-only
/*
 * Debugfs: one directory per client transport, named as in /sys/kernel/sunrpc.
 * Each line of a file is a name and a value. The files are for people and for
 * tests; tools have to use the trace events, which are stable (observe/trace.h).
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "client/client.h"
#include "observe/debugfs.h"

static struct dentry *nfr_debugfs_root;

static void nfr_show_wanted(struct seq_file *seq, const struct nfr_conn *conn)
{
	const struct nfr_params *wanted = &conn->wanted;

	seq_printf(seq, "min_chunk %u\n", wanted->min_chunk);
	seq_printf(seq, "busy_poll_us %u\n", wanted->busy_poll_us);
	seq_printf(seq, "registration %s\n",
		   wanted->remote_invalidation ? "frwr" : "frwr-local");
}

static void nfr_show_conn(struct seq_file *seq, const struct nfr_conn *conn)
{
	seq_printf(seq, "device %s\n", conn->device->name);
	seq_printf(seq, "connect_timeout_ms %u\n", jiffies_to_msecs(conn->step_timeout));
	seq_printf(seq, "inline_send %u\n", conn->send_size);
	seq_printf(seq, "inline_recv %u\n", conn->recv_size);
	seq_printf(seq, "credits_asked %u\n", conn->wanted.credits);
	seq_printf(seq, "credits_granted %u\n", READ_ONCE(conn->granted));
	seq_printf(seq, "credits_used %u\n", READ_ONCE(conn->inflight));
	seq_printf(seq, "calls_lost %u\n", READ_ONCE(conn->lost.count));
	seq_printf(seq, "receives %u\n", READ_ONCE(conn->recv_total));
	seq_printf(seq, "send_queue %u\n", conn->sq.size);
	seq_printf(seq, "mr_depth %u\n", conn->pool.depth);
	seq_printf(seq, "mrs %u\n", READ_ONCE(conn->pool.total));
	nfr_show_wanted(seq, conn);
}

static int connection_show(struct seq_file *seq, void *unused)
{
	struct nfr_xprt *nx = seq->private;
	const struct nfr_conn *conn;

	mutex_lock(&nx->mutex);
	conn = nfr_xprt_conn(nx);
	seq_printf(seq, "peer %s port %s\n", nx->xprt.address_strings[RPC_DISPLAY_ADDR],
		   nx->xprt.address_strings[RPC_DISPLAY_PORT]);
	seq_printf(seq, "personality %s\n", nx->personality->name);
	seq_printf(seq, "connected %s\n", conn ? "yes" : "no");
	seq_printf(seq, "connects %lu\n", nx->xprt.stat.connect_count);
	seq_printf(seq, "disconnects %llu\n", nx->counters.disconnects);
	seq_printf(seq, "last_disconnect %s\n", nx->last_disconnect);
	seq_printf(seq, "last_attempt %d\n", nx->last_status);
	seq_printf(seq, "last_failure %s\n", nx->last_failure);
	if (conn)
		nfr_show_conn(seq, conn);
	mutex_unlock(&nx->mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(connection);

static int counters_show(struct seq_file *seq, void *unused)
{
	const struct nfr_xprt *nx = seq->private;
	/* the counters change while they are read; each value is consistent */
	const struct nfr_counters now = data_race(nx->counters), *c = &now;

	seq_printf(seq, "read_chunks %llu\nwrite_chunks %llu\nreply_chunks %llu\nnomsg_calls %llu\n",
		   c->read_chunks, c->write_chunks, c->reply_chunks, c->nomsg_calls);
	seq_printf(seq, "request_bytes %llu\nreply_bytes %llu\npullup_bytes %llu\nfixup_bytes %llu\n",
		   c->request_bytes, c->reply_bytes, c->pullup_bytes, c->fixup_bytes);
	seq_printf(seq, "failed_marshals %llu\nbad_replies %llu\nstarved %llu\n",
		   c->failed_marshals, c->bad_replies, c->starved);
	seq_printf(seq, "local_invalidations %llu\ncallbacks %llu\nhardway_bytes %llu\n",
		   c->local_invs, c->callbacks, c->hardway_bytes);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

/**
 * nfr_debugfs_add - create the directory of a transport
 * @nx: transport
 *
 * Errors are ignored, because the transport works without debugfs.
 */
void nfr_debugfs_add(struct nfr_xprt *nx)
{
	char name[12];

	snprintf(name, sizeof(name), "%u", nx->xprt.id);
	nx->debugfs = debugfs_create_dir(name, nfr_debugfs_root);
	debugfs_create_file("connection", 0400, nx->debugfs, nx, &connection_fops);
	debugfs_create_file("counters", 0400, nx->debugfs, nx, &counters_fops);
}

/**
 * nfr_debugfs_remove - undo nfr_debugfs_add()
 * @nx: transport
 *
 * Context: Waits for readers.
 */
void nfr_debugfs_remove(struct nfr_xprt *nx)
{
	debugfs_remove_recursive(nx->debugfs);
}

/**
 * nfr_debugfs_start - create the directory of the module
 */
void nfr_debugfs_start(void)
{
	nfr_debugfs_root = debugfs_create_dir("nfsrdma", NULL);
}

/**
 * nfr_debugfs_stop - remove the directory of the module
 */
void nfr_debugfs_stop(void)
{
	debugfs_remove_recursive(nfr_debugfs_root);
}
