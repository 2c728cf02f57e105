// SPDX-License-Identifier: GPL-2.0-only
/*
 * Debugfs files of the server in /sys/kernel/debug/nfsrdma-server: one
 * directory per connection, and the sums of all connections in "totals".
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "observe/debugfs.h"
#include "server/server.h"

static struct dentry *nfr_debugfs_svc_root;

static int connection_show(struct seq_file *seq, void *unused)
{
	const struct nfr_svc *svc = seq->private;
	const struct nfr_conn *conn = svc->conn;

	seq_printf(seq, "peer %pISc\n", &svc->xprt.xpt_remote);
	seq_printf(seq, "local %pISpc\n", &svc->xprt.xpt_local);
	seq_printf(seq, "connected %s\n", nfr_conn_is_up(conn) ? "yes" : "no");
	seq_printf(seq, "disconnect %s\n", READ_ONCE(conn->reason));
	seq_printf(seq, "device %s\n", conn->device->name);
	seq_printf(seq, "inline_send %u\n", conn->send_size);
	seq_printf(seq, "inline_recv %u\n", conn->recv_size);
	seq_printf(seq, "remote_invalidation %s\n", svc->peer.remote_invalidation ? "yes" : "no");
	seq_printf(seq, "credits_granted %u\n", READ_ONCE(svc->grant));
	seq_printf(seq, "credits_used %d\n", atomic_read(&svc->busy));
	seq_printf(seq, "receives %u\n", READ_ONCE(conn->recv_total));
	seq_printf(seq, "requests %u\n", READ_ONCE(svc->nreqs));
	seq_printf(seq, "send_queue %u\n", conn->sq.size);
	seq_printf(seq, "read_pages %d\n", atomic_read(&svc->sunk));
	seq_printf(seq, "reply_pages %u\n", READ_ONCE(svc->reply_pages));
	seq_printf(seq, "reads_at_once %u\n", svc->depth);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(connection);

static void nfr_show(struct seq_file *seq, const char *name, const atomic64_t *counter)
{
	seq_printf(seq, "%s %llu\n", name, (u64)atomic64_read(counter));
}

static int counters_show(struct seq_file *seq, void *unused)
{
	const struct nfr_svc *svc = seq->private;
	const struct nfr_svc_counters *c = &svc->counters;

	nfr_show(seq, "calls", &c->calls);
	nfr_show(seq, "replies", &c->replies);
	nfr_show(seq, "errors", &c->errors);
	nfr_show(seq, "dropped", &c->dropped);
	nfr_show(seq, "callbacks", &c->callbacks);
	nfr_show(seq, "read_chunks", &c->read_chunks);
	nfr_show(seq, "read_bytes", &c->read_bytes);
	nfr_show(seq, "write_chunks", &c->write_chunks);
	nfr_show(seq, "write_bytes", &c->write_bytes);
	nfr_show(seq, "reply_chunks", &c->reply_chunks);
	nfr_show(seq, "reply_bytes", &c->reply_bytes);
	nfr_show(seq, "inline_bytes", &c->inline_bytes);
	nfr_show(seq, "remote_invalidations", &c->remote_invs);
	nfr_show(seq, "queue_waits", &c->queue_waits);
	nfr_show(seq, "memory_waits", &c->memory_waits);
	nfr_show(seq, "probes", &c->probes);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

static int totals_show(struct seq_file *seq, void *unused)
{
	seq_printf(seq, "connections %u of %u\n", nfr_svc_connections(),
		   nfr_params_server_connections());
	seq_printf(seq, "read_pages %u of %u\n", nfr_sink_in_use(), nfr_params_server_pages());
	seq_printf(seq, "reply_pages %u of %u\n", nfr_budget_in_use(), nfr_params_server_pages());
	seq_printf(seq, "memory_short %u\n", nfr_svc_shortages());
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(totals);

/**
 * nfr_debugfs_svc_add - create the directory of a connection
 * @svc: connection
 */
void nfr_debugfs_svc_add(struct nfr_svc *svc)
{
	char name[12];

	snprintf(name, sizeof(name), "%u", svc->conn->id_number & ~NFR_SVC_NUMBERS);
	svc->debugfs = debugfs_create_dir(name, nfr_debugfs_svc_root);
	debugfs_create_file("connection", 0400, svc->debugfs, svc, &connection_fops);
	debugfs_create_file("counters", 0400, svc->debugfs, svc, &counters_fops);
}

/**
 * nfr_debugfs_svc_remove - undo nfr_debugfs_svc_add()
 * @svc: connection
 *
 * Context: Waits for readers.
 */
void nfr_debugfs_svc_remove(struct nfr_svc *svc)
{
	debugfs_remove_recursive(svc->debugfs);
}

/**
 * nfr_debugfs_svc_start - create the directory of the server
 */
void nfr_debugfs_svc_start(void)
{
	nfr_debugfs_svc_root = debugfs_create_dir("nfsrdma-server", NULL);
	debugfs_create_file("totals", 0400, nfr_debugfs_svc_root, NULL, &totals_fops);
}

/**
 * nfr_debugfs_svc_stop - remove the directory of the server
 */
void nfr_debugfs_svc_stop(void)
{
	debugfs_remove_recursive(nfr_debugfs_svc_root);
}
