// SPDX-License-Identifier: GPL-2.0-only
/*
 * Debugfs: one directory per client transport, named as in /sys/kernel/sunrpc,
 * and one per connection of the server. Each line of a file is a name and a
 * value. The files are for people and for tests; tools have to use the trace
 * events, which are stable (trace.h). Errors are ignored, because transports
 * work without debugfs.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "observe/observe.h"

static struct dentry *nfr_observe_client_root;
static struct dentry *nfr_observe_svc_root;
static struct dentry *nfr_observe_device_file;

static int nfr_observe_client_counters_show(struct seq_file *seq, void *unused)
{
	const struct nfr_client_counters *counters = seq->private;
	/* the counters change while they are read; each value is consistent */
	const struct nfr_client_counters now = data_race(*counters), *c = &now;

	seq_printf(seq, "read_chunks %llu\nwrite_chunks %llu\nreply_chunks %llu\nnomsg_calls %llu\n",
		   c->read_chunks, c->write_chunks, c->reply_chunks, c->nomsg_calls);
	seq_printf(seq, "request_bytes %llu\nreply_bytes %llu\npullup_bytes %llu\nfixup_bytes %llu\n",
		   c->request_bytes, c->reply_bytes, c->pullup_bytes, c->fixup_bytes);
	seq_printf(seq, "failed_marshals %llu\nbad_replies %llu\nstarved %llu\n",
		   c->failed_marshals, c->bad_replies, c->starved);
	seq_printf(seq, "local_invalidations %llu\ncallbacks %llu\nhardway_bytes %llu\n",
		   c->local_invs, c->callbacks, c->hardway_bytes);
	seq_printf(seq, "calls_kept %llu\n", c->calls_kept);
	seq_printf(seq, "fetches %llu\nfetch_reads %llu\nfetch_bytes %llu\ndones %llu\n",
		   c->fetches, c->fetch_reads, c->fetch_bytes, c->dones);
	seq_printf(seq, "padded_calls %llu\npadded_replies %llu\npadded_bytes %llu\n",
		   c->padded_calls, c->padded_replies, c->padded_bytes);
	seq_printf(seq, "lane_calls %llu\nlane_bytes %llu\nlane_fallbacks %llu\n",
		   c->lane_calls, c->lane_bytes, c->lane_fallbacks);
	seq_printf(seq, "lanes_connected %llu\nlanes_ended %llu\n",
		   c->lanes_connected, c->lanes_ended);
	seq_printf(seq, "optimistic_reads %llu\noptimistic_bytes %llu\noptimistic_refused %llu\n",
		   c->optimistic_reads, c->optimistic_bytes, c->optimistic_refused);
	seq_printf(seq, "optimistic_misses %llu\noptimistic_polled %llu\noptimistic_pauses %llu\n",
		   c->optimistic_misses, c->optimistic_polled, c->optimistic_pauses);
	seq_printf(seq, "optimistic_connects %llu\n", c->optimistic_connects);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(nfr_observe_client_counters);

static void nfr_observe_show(struct seq_file *seq, const char *name, const atomic64_t *counter)
{
	seq_printf(seq, "%s %llu\n", name, (u64)atomic64_read(counter));
}

/* Print the counters of reasons; @first is the first one to print. */
static void nfr_observe_show_reasons(struct seq_file *seq, const char *what,
				     const char * const *reasons, const atomic64_t *counters,
				     int first, int end)
{
	int why;

	for (why = first; why < end; why++)
		seq_printf(seq, "%s_%s %llu\n", what, reasons[why],
			   (u64)atomic64_read(&counters[why]));
}

static const char * const nfr_observe_reasons_revoked[NFR_REVOKED_REASONS] = {
	[NFR_REVOKED_MODIFIED]		= "modified",
	[NFR_REVOKED_ATTRIBUTES]	= "attributes",
	[NFR_REVOKED_MOVED]		= "moved",
	[NFR_REVOKED_OPENED]		= "opened",
	[NFR_REVOKED_LISTENER]		= "listener",
	[NFR_REVOKED_UNMOUNTED]		= "unmounted",
	[NFR_REVOKED_EXPIRED]		= "expired",
	[NFR_REVOKED_LIMIT]		= "limit",
	[NFR_REVOKED_MEMORY]		= "memory",
	[NFR_REVOKED_REPLACED]		= "replaced",
};

static const char * const nfr_observe_reasons_refused[NFR_REFUSED_REASONS] = {
	[NFR_REFUSED_FILE]	= "file",
	[NFR_REFUSED_OPEN]	= "open",
	[NFR_REFUSED_LEASE]	= "lease",
	[NFR_REFUSED_LISTENER]	= "listener",
	[NFR_REFUSED_CHANGED]	= "changed",
	[NFR_REFUSED_BUSY]	= "busy",
	[NFR_REFUSED_PAGES]	= "pages",
	[NFR_REFUSED_LIMIT]	= "limit",
	[NFR_REFUSED_MEMORY]	= "memory",
	[NFR_REFUSED_CREDITS]	= "credits",
	[NFR_REFUSED_DEVICE]	= "device",
};

/**
 * nfr_observe_revoked - get the name of a reason
 * @why: why a client may not read an extent any more
 *
 * Return: one word.
 */
const char *nfr_observe_revoked(enum nfr_revoked why)
{
	return nfr_observe_reasons_revoked[why];
}

static const char * const nfr_observe_threadless_results[NFR_THREADLESS_RESULTS] = {
	[NFR_THREADLESS_HIT]		= "hit",
	[NFR_THREADLESS_ABSENT]		= "absent",
	[NFR_THREADLESS_EXPIRED]	= "expired",
	[NFR_THREADLESS_CHANGED]	= "changed",
	[NFR_THREADLESS_OPEN]		= "open",
	[NFR_THREADLESS_LEASE]		= "lease",
	[NFR_THREADLESS_LISTENER]	= "listener",
	[NFR_THREADLESS_PAGES]		= "pages",
	[NFR_THREADLESS_SIZE]		= "size",
	[NFR_THREADLESS_MEMORY]		= "memory",
	[NFR_THREADLESS_QUEUE]		= "queue",
	[NFR_THREADLESS_SHARE]		= "share",
};

/**
 * nfr_observe_threadless - get the name of a result
 * @result: what became of a READ
 *
 * Return: one word.
 */
const char *nfr_observe_threadless(enum nfr_threadless result)
{
	return nfr_observe_threadless_results[result];
}

/**
 * nfr_observe_threadless_add - add the counters of threadless reads to others
 * @sum: counters that grow
 * @c: counters of a connection
 */
void nfr_observe_threadless_add(struct nfr_svc_counters *sum, const struct nfr_svc_counters *c)
{
	u32 result;

	for (result = 0; result < NFR_THREADLESS_RESULTS; result++)
		atomic64_add(atomic64_read(&c->threadless[result]), &sum->threadless[result]);
	atomic64_add(atomic64_read(&c->threadless_bytes), &sum->threadless_bytes);
}

/**
 * nfr_observe_threadless_show - print the counters of threadless reads
 * @seq: file
 * @c: counters
 */
void nfr_observe_threadless_show(struct seq_file *seq, const struct nfr_svc_counters *c)
{
	nfr_observe_show(seq, "threadless_hits", &c->threadless[NFR_THREADLESS_HIT]);
	nfr_observe_show(seq, "threadless_bytes", &c->threadless_bytes);
	nfr_observe_show_reasons(seq, "threadless_missed", nfr_observe_threadless_results,
				 c->threadless, NFR_THREADLESS_HIT + 1, NFR_THREADLESS_RESULTS);
}

static void nfr_observe_grants_show(struct seq_file *seq, const struct nfr_svc_counters *c)
{
	nfr_observe_show(seq, "grants", &c->grants);
	nfr_observe_show(seq, "grants_renewed", &c->grants_renewed);
	nfr_observe_show(seq, "grants_revoked", &c->grants_revoked);
	nfr_observe_show_reasons(seq, "revoked", nfr_observe_reasons_revoked, c->revoked, 0,
				 NFR_REVOKED_REASONS);
	nfr_observe_show_reasons(seq, "refused", nfr_observe_reasons_refused, c->refused, 0,
				 NFR_REFUSED_REASONS);
}

static int nfr_observe_svc_counters_show(struct seq_file *seq, void *unused)
{
	const struct nfr_svc_counters *c = seq->private;

	nfr_observe_show(seq, "calls", &c->calls);
	nfr_observe_show(seq, "replies", &c->replies);
	nfr_observe_show(seq, "errors", &c->errors);
	nfr_observe_show(seq, "dropped", &c->dropped);
	nfr_observe_show(seq, "callbacks", &c->callbacks);
	nfr_observe_show(seq, "read_chunks", &c->read_chunks);
	nfr_observe_show(seq, "read_bytes", &c->read_bytes);
	nfr_observe_show(seq, "write_chunks", &c->write_chunks);
	nfr_observe_show(seq, "write_bytes", &c->write_bytes);
	nfr_observe_show(seq, "reply_chunks", &c->reply_chunks);
	nfr_observe_show(seq, "reply_bytes", &c->reply_bytes);
	nfr_observe_show(seq, "inline_bytes", &c->inline_bytes);
	nfr_observe_show(seq, "lane_bytes", &c->lane_bytes);
	nfr_observe_show(seq, "padded_calls", &c->padded_calls);
	nfr_observe_show(seq, "padded_replies", &c->padded_replies);
	nfr_observe_show(seq, "padded_bytes", &c->padded_bytes);
	nfr_observe_show(seq, "remote_invalidations", &c->remote_invs);
	nfr_observe_show(seq, "queue_waits", &c->queue_waits);
	nfr_observe_show(seq, "memory_waits", &c->memory_waits);
	nfr_observe_show(seq, "probes", &c->probes);
	nfr_observe_show(seq, "exposures", &c->exposures);
	nfr_observe_show(seq, "exposed_bytes", &c->exposed_bytes);
	nfr_observe_show(seq, "dones", &c->dones);
	nfr_observe_show(seq, "stray_dones", &c->stray_dones);
	nfr_observe_show(seq, "done_timeouts", &c->done_timeouts);
	nfr_observe_grants_show(seq, c);
	nfr_observe_threadless_show(seq, c);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(nfr_observe_svc_counters);

static struct dentry *nfr_observe_add(struct dentry *root, u32 number, void *data,
				      const struct file_operations *connection)
{
	struct dentry *dir;
	char name[12];

	snprintf(name, sizeof(name), "%u", number);
	dir = debugfs_create_dir(name, root);
	debugfs_create_file("connection", 0400, dir, data, connection);
	return dir;
}

/**
 * nfr_observe_client - create the directory of a client transport
 * @number: number of the transport, as in /sys/kernel/sunrpc
 * @data: private data of @connection
 * @connection: operations of the file connection
 * @counters: counters of the transport
 *
 * Return: directory, for nfr_observe_remove().
 */
struct dentry *nfr_observe_client(u32 number, void *data, const struct file_operations *connection,
				  struct nfr_client_counters *counters)
{
	struct dentry *dir = nfr_observe_add(nfr_observe_client_root, number, data, connection);

	debugfs_create_file("counters", 0400, dir, counters, &nfr_observe_client_counters_fops);
	return dir;
}

/**
 * nfr_observe_svc - create the directory of a connection of the server
 * @number: number of the connection
 * @data: private data of @connection
 * @connection: operations of the file connection
 * @counters: counters of the connection
 *
 * Return: directory, for nfr_observe_remove().
 */
struct dentry *nfr_observe_svc(u32 number, void *data, const struct file_operations *connection,
			       struct nfr_svc_counters *counters)
{
	struct dentry *dir = nfr_observe_add(nfr_observe_svc_root, number, data, connection);

	debugfs_create_file("counters", 0400, dir, counters, &nfr_observe_svc_counters_fops);
	return dir;
}

/**
 * nfr_observe_totals - create the file totals of the server
 * @totals: its operations
 */
void nfr_observe_totals(const struct file_operations *totals)
{
	debugfs_create_file("totals", 0400, nfr_observe_svc_root, NULL, totals);
}

/**
 * nfr_observe_devices - create the file nfsrdma-devices
 * @devices: its operations
 */
void nfr_observe_devices(const struct file_operations *devices)
{
	nfr_observe_device_file = debugfs_create_file("nfsrdma-devices", 0400, NULL, NULL, devices);
}

/**
 * nfr_observe_remove - remove the directory of a transport or a connection
 * @dir: directory
 *
 * Context: Waits for readers.
 */
void nfr_observe_remove(struct dentry *dir)
{
	debugfs_remove_recursive(dir);
}

/**
 * nfr_observe_start - create the directories of the module
 */
void nfr_observe_start(void)
{
	nfr_observe_client_root = debugfs_create_dir("nfsrdma", NULL);
	nfr_observe_svc_root = debugfs_create_dir("nfsrdma-server", NULL);
}

/**
 * nfr_observe_stop - remove the directories and files of the module
 */
void nfr_observe_stop(void)
{
	debugfs_remove(nfr_observe_device_file);
	debugfs_remove_recursive(nfr_observe_svc_root);
	debugfs_remove_recursive(nfr_observe_client_root);
}
