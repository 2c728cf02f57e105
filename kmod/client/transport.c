// SPDX-License-Identifier: GPL-2.0-only
/*
 * Client transport class: the operations that sunrpc calls for a mount with
 * proto=rdma (include/linux/sunrpc/xprt.h, struct rpc_xprt_ops).
 */
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/path.h>
#include <linux/random.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>
#include <linux/sunrpc/clnt.h>

#include "client/call.h"
#include "client/client.h"
#include "client/slots.h"
#include "observe/observe.h"
#include "params.h"
#include "personality.h"

/* Timeouts as in rpcrdma: one minute for a reply, five minutes for an idle connection */
#define NFR_REPLY_TIMEOUT	(60 * HZ)
#define NFR_IDLE_TIMEOUT	(5 * 60 * HZ)
#define NFR_RECONNECT_MAX	(30 * HZ)

/* Maximum payload: the NFS client limits rsize and wsize to 1 MiB */
#define NFR_MAX_PAYLOAD		(1024 * 1024)

static const struct rpc_timeout nfr_client_timeout = {
	.to_initval = NFR_REPLY_TIMEOUT,
	.to_maxval = NFR_REPLY_TIMEOUT,
};

/* --- address strings --- */

static void nfr_client_hex_address(struct rpc_xprt *xprt, const struct sockaddr *sap)
{
	const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)sap;
	const struct sockaddr_in *sin = (const struct sockaddr_in *)sap;
	char *text;

	if (sap->sa_family == AF_INET6)
		text = kasprintf(GFP_KERNEL, "%pi6", &sin6->sin6_addr);
	else
		text = kasprintf(GFP_KERNEL, "%08x", ntohl(sin->sin_addr.s_addr));
	xprt->address_strings[RPC_DISPLAY_HEX_ADDR] = text;
}

static void nfr_client_ports(struct rpc_xprt *xprt, unsigned short port)
{
	const char *text = kasprintf(GFP_KERNEL, "%u", port);
	const char *hex = kasprintf(GFP_KERNEL, "%4hx", port);
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);

	mutex_lock(&nx->mutex);
	swap(xprt->address_strings[RPC_DISPLAY_PORT], text);
	swap(xprt->address_strings[RPC_DISPLAY_HEX_PORT], hex);
	mutex_unlock(&nx->mutex);
	kfree(text);
	kfree(hex);
}

static void nfr_client_addresses(struct rpc_xprt *xprt)
{
	struct sockaddr *sap = (struct sockaddr *)&xprt->addr;
	char buf[INET6_ADDRSTRLEN + IPV6_SCOPE_ID_LEN];

	rpc_ntop(sap, buf, sizeof(buf));
	xprt->address_strings[RPC_DISPLAY_ADDR] = kstrdup(buf, GFP_KERNEL);
	xprt->address_strings[RPC_DISPLAY_PROTO] = "rdma";
	xprt->address_strings[RPC_DISPLAY_NETID] =
		sap->sa_family == AF_INET6 ? RPCBIND_NETID_RDMA6 : RPCBIND_NETID_RDMA;
	nfr_client_hex_address(xprt, sap);
	nfr_client_ports(xprt, rpc_get_port(sap));
}

static void nfr_client_free_addresses(struct rpc_xprt *xprt)
{
	kfree(xprt->address_strings[RPC_DISPLAY_ADDR]);
	kfree(xprt->address_strings[RPC_DISPLAY_PORT]);
	kfree(xprt->address_strings[RPC_DISPLAY_HEX_ADDR]);
	kfree(xprt->address_strings[RPC_DISPLAY_HEX_PORT]);
}

static bool nfr_client_has_addresses(const struct rpc_xprt *xprt)
{
	return xprt->address_strings[RPC_DISPLAY_ADDR] &&
	       xprt->address_strings[RPC_DISPLAY_PORT] &&
	       xprt->address_strings[RPC_DISPLAY_HEX_ADDR] &&
	       xprt->address_strings[RPC_DISPLAY_HEX_PORT];
}

static void nfr_client_set_port(struct rpc_xprt *xprt, unsigned short port)
{
	rpc_set_port((struct sockaddr *)&xprt->addr, port);
	nfr_client_ports(xprt, port);
}

/* --- statistics --- */

/* MR counts of closed connections and of the current one */
struct nfr_mr_counts {
	u64 made;
	u64 recycled;
	u64 orphaned;
};

static struct nfr_mr_counts nfr_client_stats_mrs(const struct nfr_xprt *nx)
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
		counts.made += READ_ONCE(nfr_client_link_of(conn)->pool.total);
		counts.recycled += READ_ONCE(nfr_client_link_of(conn)->pool.recycled);
		counts.orphaned += READ_ONCE(nfr_client_link_of(conn)->pool.orphaned);
	}
	rcu_read_unlock();
	return counts;
}

static void nfr_client_stats_generic(const struct rpc_xprt *xprt, struct seq_file *seq)
{
	/* sunrpc changes them meanwhile; each value is consistent */
	const typeof(xprt->stat) stat = data_race(xprt->stat);
	long idle = 0;

	if (xprt_connected((struct rpc_xprt *)xprt))
		idle = (long)(jiffies - READ_ONCE(xprt->last_used)) / HZ;
	/* the first 0 is the source port, which rpcrdma does not report */
	seq_printf(seq, "\txprt:\trdma 0 %lu %lu %lu %ld %lu %lu %lu %llu %llu ",
		   stat.bind_count, stat.connect_count, stat.connect_time / HZ, idle,
		   stat.sends, stat.recvs, stat.bad_xids, stat.req_u, stat.bklog_u);
}

/*
 * Print the statistics line of a transport in /proc/self/mountstats. Tools parse
 * it by position, so that its 27 columns are those of the in-kernel transport, in
 * the same order (net/sunrpc/xprtrdma/transport.c, xprt_rdma_print_stats()).
 */
static void nfr_client_print_stats(struct rpc_xprt *xprt, struct seq_file *seq)
{
	const struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	/* the counters change while they are read; each value is consistent */
	const struct nfr_client_counters now = data_race(nx->counters), *c = &now;
	struct nfr_mr_counts mrs = nfr_client_stats_mrs(nx);

	nfr_client_stats_generic(xprt, seq);
	seq_printf(seq, "%llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu ",
		   c->read_chunks, c->write_chunks, c->reply_chunks,
		   c->request_bytes, c->reply_bytes, c->pullup_bytes,
		   c->fixup_bytes, c->hardway_bytes, c->failed_marshals,
		   c->bad_replies, c->nomsg_calls);
	/* the last 0: Replies never wait for a Send, because the device does not send from pages */
	seq_printf(seq, "%llu %llu %llu %llu %llu 0\n",
		   mrs.recycled, mrs.orphaned, mrs.made, c->local_invs, c->starved);
}

static void nfr_client_show_wanted(struct seq_file *seq, const struct nfr_conn *conn)
{
	const struct nfr_params *wanted = &conn->wanted;

	seq_printf(seq, "min_chunk %u\n", wanted->min_chunk);
	seq_printf(seq, "busy_poll_us %u\n", wanted->busy_poll_us);
	seq_printf(seq, "registration %s\n",
		   wanted->remote_invalidation ? "frwr" : "frwr-local");
}

static void nfr_client_show_conn(struct seq_file *seq, const struct nfr_conn *conn)
{
	const struct nfr_link *link = nfr_client_link_of(conn);

	seq_printf(seq, "personality %s\n", nfr_personality_name(link->personality->number));
	seq_printf(seq, "device %s\n", conn->device->name);
	seq_printf(seq, "source_port %u\n",
		   rpc_get_port((struct sockaddr *)&conn->id->route.addr.src_addr));
	seq_printf(seq, "peer_extension %s\n", conn->peer.extended ? "yes" : "no");
	seq_printf(seq, "connect_timeout_ms %u\n", jiffies_to_msecs(conn->step_timeout));
	seq_printf(seq, "inline_send %u\n", conn->send_size);
	seq_printf(seq, "inline_recv %u\n", conn->recv_size);
	seq_printf(seq, "credits_asked %u\n", conn->wanted.credits);
	seq_printf(seq, "credits_granted %u\n", READ_ONCE(conn->granted));
	seq_printf(seq, "credits_used %u\n", READ_ONCE(conn->inflight));
	seq_printf(seq, "calls_abandoned %u\n", READ_ONCE(conn->abandoned.count));
	seq_printf(seq, "slots_kept %u\n",
		   READ_ONCE(((const struct nfr_xprt *)conn->owner)->slots_kept));
	seq_printf(seq, "receives %u\n", READ_ONCE(conn->recv_total));
	seq_printf(seq, "send_queue %u\n", conn->sq.size);
	seq_printf(seq, "mr_depth %u\n", link->pool.depth);
	seq_printf(seq, "mrs %u\n", READ_ONCE(link->pool.total));
	if (link->personality->show)
		link->personality->show(link, seq);
	nfr_client_show_wanted(seq, conn);
}

static int nfr_client_connection_show(struct seq_file *seq, void *unused)
{
	struct nfr_xprt *nx = seq->private;
	const struct nfr_conn *conn;

	mutex_lock(&nx->mutex);
	conn = nfr_client_xprt_conn(nx);
	/* sunrpc frees an address by RCU when sysfs changes it */
	rcu_read_lock();
	seq_printf(seq, "peer %s port %s\n",
		   rcu_dereference_raw(nx->xprt.address_strings[RPC_DISPLAY_ADDR]),
		   nx->xprt.address_strings[RPC_DISPLAY_PORT]);
	rcu_read_unlock();
	seq_printf(seq, "personality_wanted %s\n", nfr_personality_name(nx->personality->number));
	seq_printf(seq, "connected %s\n", conn ? "yes" : "no");
	seq_printf(seq, "connects %lu\n", nx->xprt.stat.connect_count);
	seq_printf(seq, "disconnects %llu\n", nx->counters.disconnects);
	seq_printf(seq, "last_disconnect %s\n", nx->last_disconnect);
	seq_printf(seq, "last_attempt %d\n", nx->last_status);
	seq_printf(seq, "last_failure %s\n", nx->last_failure);
	seq_printf(seq, "token %016llx\n", nx->token);
	if (conn)
		nfr_client_show_conn(seq, conn);
	if (nx->branches)
		nfr_client_branches_show(nx->branches, seq);
	mutex_unlock(&nx->mutex);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(nfr_client_connection);

/* --- other operations --- */

/*
 * No Reply in time, on a connection without a known failure: only a new
 * connection may carry the Call again. The task may encode the Call anew, so it
 * sleeps until the old connection cannot access its memory any more. It sleeps
 * on an rpc_wait_queue, because the rpciod workers also serve other mounts.
 */
static void nfr_client_timer(struct rpc_xprt *xprt, struct rpc_task *task)
{
	struct nfr_req *req = nfr_client_req_of(task->tk_rqstp);
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);

	/* a Reply may be in progress */
	if (READ_ONCE(req->state) <= NFR_REQ_LOST)
		return;
	if (nx->branches && nfr_client_loan_timeout(nx, task))
		return;
	nfr_client_disconnect(nx, req->generation, "a reply did not come in time");
	nfr_client_sleep_until_closed(nx, task, req->generation);
}

static void nfr_client_inject_disconnect(struct rpc_xprt *xprt)
{
	nfr_client_disconnect(nfr_client_xprt_of(xprt), 0, "fault injection");
}

static void nfr_client_set_connect_timeout(struct rpc_xprt *xprt, unsigned long connect_timeout,
					   unsigned long reconnect_timeout)
{
	spin_lock(&xprt->transport_lock);
	xprt->connect_timeout = min(xprt->connect_timeout, connect_timeout);
	xprt->max_reconnect_timeout = min(xprt->max_reconnect_timeout, reconnect_timeout);
	spin_unlock(&xprt->transport_lock);
}

/* Sending allocates memory. Swap-out must not depend on that. */
static int nfr_client_enable_swap(struct rpc_xprt *xprt)
{
	return -EINVAL;
}

static void nfr_client_disable_swap(struct rpc_xprt *xprt)
{
}

static void nfr_client_free(struct rpc_xprt *xprt)
{
	nfr_client_free_addresses(xprt);
	nfr_client_branches_destroy(nfr_client_xprt_of(xprt)->branches);
	rpc_destroy_wait_queue(&nfr_client_xprt_of(xprt)->closing);
	xprt_free(xprt);
}

static void nfr_client_destroy(struct rpc_xprt *xprt)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);

	cancel_delayed_work_sync(&nx->connect_work);
	nfr_client_close(xprt);
	cancel_delayed_work_sync(&nx->unlock_work);
	nfr_observe_remove(nx->debugfs);
	nfr_client_req_destroy_all(nx);
	nfr_client_free(xprt);
	module_put(THIS_MODULE);
}

static const struct rpc_xprt_ops nfr_client_ops = {
	.reserve_xprt		= xprt_reserve_xprt,
	.release_xprt		= xprt_release_xprt,
	.alloc_slot		= nfr_client_alloc_slot,
	.free_slot		= nfr_client_free_slot,
	.rpcbind		= rpcb_getport_async,
	.set_port		= nfr_client_set_port,
	.connect		= nfr_client_connect,
	.buf_alloc		= nfr_client_buf_alloc,
	.buf_free		= nfr_client_buf_free,
	.send_request		= nfr_client_send_request,
	.wait_for_reply_request	= nfr_client_wait_for_reply,
	.timer			= nfr_client_timer,
	.close			= nfr_client_close,
	.destroy		= nfr_client_destroy,
	.set_connect_timeout	= nfr_client_set_connect_timeout,
	.print_stats		= nfr_client_print_stats,
	.enable_swap		= nfr_client_enable_swap,
	.disable_swap		= nfr_client_disable_swap,
	.inject_disconnect	= nfr_client_inject_disconnect,
	.bc_setup		= nfr_client_callback_setup,
	.bc_maxpayload		= nfr_client_callback_maxpayload,
	.bc_num_slots		= nfr_client_callback_slots,
	.bc_free_rqst		= nfr_client_callback_free_rqst,
	.bc_destroy		= nfr_client_callback_destroy,
};

/* Operations of transports with branches, whose Calls may have to be sent again */
static struct rpc_xprt_ops nfr_client_resend_ops __ro_after_init;

static void __init nfr_client_init_ops(void)
{
	nfr_client_resend_ops = nfr_client_ops;
	nfr_client_resend_ops.wait_for_reply_request = nfr_client_wait_or_resend;
}

/* --- transport class --- */

static struct xprt_class nfr_client_class;

static void nfr_client_init(struct nfr_xprt *nx)
{
	nx->token = get_random_u64();
	nx->last_disconnect = "none";
	nx->last_failure = "none";
	INIT_DELAYED_WORK(&nx->connect_work, nfr_client_connect_worker);
	INIT_DELAYED_WORK(&nx->unlock_work, nfr_client_unlock_worker);
	mutex_init(&nx->mutex);
	spin_lock_init(&nx->held_lock);
	INIT_LIST_HEAD(&nx->reqs);
	INIT_LIST_HEAD(&nx->free_reqs);
	INIT_LIST_HEAD(&nx->replaced);
	init_waitqueue_head(&nx->detached);
	init_waitqueue_head(&nx->undelivered);
	rpc_init_wait_queue(&nx->closing, "nfsrdma closing");
	INIT_LIST_HEAD(&nx->held);
}

static void nfr_client_init_xprt(struct rpc_xprt *xprt, const struct xprt_create *args)
{
	xprt->ops = &nfr_client_ops;
	xprt->xprt_class = &nfr_client_class;
	xprt->timeout = &nfr_client_timeout;
	xprt->connect_timeout = NFR_REPLY_TIMEOUT;
	xprt->bind_timeout = NFR_REPLY_TIMEOUT;
	xprt->idle_timeout = NFR_IDLE_TIMEOUT;
	xprt->max_reconnect_timeout = NFR_RECONNECT_MAX;
	xprt->max_payload = NFR_MAX_PAYLOAD;
	/* protocol for the side-band protocols (mountd, lockd) to the same host */
	xprt->prot = IPPROTO_TCP;
	xprt->addrlen = args->addrlen;
	memcpy(&xprt->addr, args->dstaddr, args->addrlen);
	if (rpc_get_port(args->dstaddr))
		xprt_set_bound(xprt);
}

/* --- personalities --- */

#define NFR_CLIENT_ELEMENT(_number, _constant, _symbol, _name)	[_number] = &nfr_client_##_symbol,

static const struct nfr_client_personality *const nfr_client_personalities[NFR_PERSONALITIES] = {
	NFR_PERSONALITY_LIST(NFR_CLIENT_ELEMENT)
};

/**
 * nfr_client_device_show - print the limits of a device
 * @seq: file
 * @device: RDMA device
 */
void nfr_client_device_show(struct seq_file *seq, struct ib_device *device)
{
	struct nfr_params params;
	int i;

	nfr_params_read(&params);
	seq_printf(seq, "region_pages %u of %u\n", nfr_mem_device_depth(device, params.mr_depth),
		   NFR_USEFUL_DEPTH);
	seq_printf(seq, "region_pages_needed %u\n", nfr_mem_device_least(device));
	for (i = 0; i < NFR_PERSONALITIES; i++)
		if (nfr_client_personalities[i]->limits)
			nfr_client_personalities[i]->limits(seq, device);
}

/* Choose the personality. Returns false if an allocation failed. */
static bool nfr_client_init_personality(struct nfr_xprt *nx, const struct sockaddr *server)
{
	nx->personality = nfr_client_personalities[nfr_personality_for(nx->xprt.xprt_net, server)];
	if (!nx->personality->setup)
		return true;
	nx->xprt.ops = &nfr_client_resend_ops;
	return nx->personality->setup(nx);
}

static void nfr_client_observe(struct nfr_xprt *nx)
{
	nx->debugfs = nfr_observe_client(nx->xprt.id, nx, &nfr_client_connection_fops,
					 &nx->counters);
}

static struct rpc_xprt *nfr_client_setup(struct xprt_create *args)
{
	struct nfr_params params;
	struct rpc_xprt *xprt;

	if (args->addrlen > sizeof(xprt->addr))
		return ERR_PTR(-EBADF);
	nfr_params_read(&params);
	xprt = xprt_alloc(args->net, sizeof(struct nfr_xprt), 0, params.credits);
	if (!xprt)
		return ERR_PTR(-ENOMEM);
	nfr_client_init(nfr_client_xprt_of(xprt));
	nfr_client_xprt_of(xprt)->inline_send = params.inline_send;
	nfr_client_init_xprt(xprt, args);
	nfr_client_addresses(xprt);
	if (!nfr_client_has_addresses(xprt) ||
	    !nfr_client_init_personality(nfr_client_xprt_of(xprt), args->dstaddr)) {
		nfr_client_free(xprt);
		return ERR_PTR(-ENOMEM);
	}
	nfr_client_observe(nfr_client_xprt_of(xprt));
	__module_get(THIS_MODULE);
	return xprt;
}

static struct xprt_class nfr_client_class = {
	.list	= LIST_HEAD_INIT(nfr_client_class.list),
	.name	= "rdma",
	.owner	= THIS_MODULE,
	.ident	= XPRT_TRANSPORT_RDMA,
	.setup	= nfr_client_setup,
	.netid	= { RPCBIND_NETID_RDMA, RPCBIND_NETID_RDMA6, "" },
};

/* Log which module holds the class. sunrpc does not report it; only rpcrdma has the same ident. */
static void nfr_client_explain(void)
{
	struct path path;
	bool in_tree = kern_path("/sys/module/rpcrdma", 0, &path) == 0;

	if (in_tree)
		path_put(&path);
	pr_err("nfsrdma: %s provides client transport rdma. Unload it first\n",
	       in_tree ? "rpcrdma" : "a module other than rpcrdma");
}

/**
 * nfr_client_register - register the client transport class
 *
 * Return: 0, or -EEXIST if another module holds the ident; the kernel log names
 * it.
 */
int __init nfr_client_register(void)
{
	int rc;

	nfr_client_init_ops();
	rc = xprt_register_transport(&nfr_client_class);
	if (rc == -EEXIST)
		nfr_client_explain();
	return rc;
}

/**
 * nfr_client_unregister - undo nfr_client_register()
 *
 * No transport exists, because each holds a reference to the module.
 */
void nfr_client_unregister(void)
{
	xprt_unregister_transport(&nfr_client_class);
}
