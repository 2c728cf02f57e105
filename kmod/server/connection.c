// SPDX-License-Identifier: GPL-2.0-only
/*
 * Accepted connections: create one for a connection request, accept it for
 * nfsd, watch it, and free it after the last reference is dropped.
 *
 * A periodic check detects clients that are gone or that do not receive their
 * Replies, because RDMA has no timer for an idle connection. While others wait for memory, a
 * second check ends connections that hold it and acknowledge nothing for server_ack_timeout.
 */
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>
#include <net/sock.h>

#include "connection/cm.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "observe/observe.h"
#include "observe/trace_server.h"
#include "params.h"
#include "personality.h"
#include "server/branch.h"
#include "server/budget.h"
#include "server/call.h"
#include "server/pages.h"
#include "server/threadless/permit.h"
#include "server/server.h"
#include "server/share.h"
#include "server/short.h"
#include "server/sink.h"
#include "work.h"

/*
 * Work requests beyond one per credit: for the longest chains of one Call. With the default
 * credits, those of the RDMA core and that of a drain, a queue pair has 511: drivers round up to
 * a power of two, and some have one to spare (rdma_rxe).
 */
#define NFR_SVC_SENDS	254

/* Maximum number of scatter-gather elements per work request */
#define NFR_SVC_SGES	32u

/* Segments per Call that clients typically use; the client of this module uses at most 20 */
#define NFR_SVC_CLIENT_SEGS	32

/* Interval of the periodic check; it takes up to two intervals to detect a failure */
#define NFR_SVC_WATCH	(20 * HZ)

/* Elements of a long Send beside its pages: header, head within two pages, tail */
#define NFR_SVC_LONG_SGES	4u

/*
 * Size of inline messages, in bytes, to and from a client without private data. RFC 8797
 * lets a server assume 1024, but rpcrdma's server reads no size from private data and has
 * buffers of 4096 bytes, and clients that were written for it rely on that. They have receives for
 * Replies of any length, because rpcrdma sends them inline, see nfr_svc_reply_long().
 */
#define NFR_SVC_INLINE	4096u

static atomic_t nfr_svc_number;
static atomic_t nfr_svc_total;
/* Connections that ended because others waited for their memory */
static atomic_t nfr_svc_fenced;

/* Connections whose counters are shown, and the sums of those that have ended; under the mutex */
static DEFINE_MUTEX(nfr_svc_counted_lock);
static LIST_HEAD(nfr_svc_counted);
static struct nfr_svc_counters nfr_svc_ended;

/* --- debugfs --- */

static int nfr_svc_connection_show(struct seq_file *seq, void *unused)
{
	struct nfr_svc *svc = seq->private;
	const struct nfr_conn *conn = svc->conn;
	u32 pages[NFR_SVC_PURPOSES];

	seq_printf(seq, "peer %pISc\n", &svc->remote);
	seq_printf(seq, "local %pISpc\n", &conn->id->route.addr.src_addr);
	seq_printf(seq, "client_port %u\n", svc->port);
	seq_printf(seq, "privileged %s\n", svc->privileged ? "yes" : "no");
	seq_printf(seq, "personality %s\n", nfr_personality_name(svc->personality->number));
	seq_printf(seq, "connected %s\n", nfr_conn_is_up(conn) ? "yes" : "no");
	seq_printf(seq, "disconnect %s\n", READ_ONCE(conn->reason));
	seq_printf(seq, "device %s\n", conn->device->name);
	seq_printf(seq, "inline_send %u\n", conn->send_size);
	seq_printf(seq, "inline_recv %u\n", conn->recv_size);
	seq_printf(seq, "remote_invalidation %s\n",
		   conn->profile.private.remote_invalidation ? "yes" : "no");
	seq_printf(seq, "credits_granted %u\n", READ_ONCE(svc->grant));
	seq_printf(seq, "credits_used %d\n", atomic_read(&svc->busy));
	seq_printf(seq, "receives %u\n", READ_ONCE(conn->recv_total));
	seq_printf(seq, "requests %u\n", READ_ONCE(svc->nreqs));
	seq_printf(seq, "send_queue %u\n", conn->sq.size);
	nfr_svc_req_pages(svc, pages);
	seq_printf(seq, "read_pages %u\n", pages[NFR_SVC_READS]);
	seq_printf(seq, "reply_pages %u\n", pages[NFR_SVC_REPLIES]);
	seq_printf(seq, "floor_pages %u\n", svc->host ? READ_ONCE(svc->host->floor) : 0);
	seq_printf(seq, "reads_at_once %u\n", conn->profile.reads_issued);
	seq_printf(seq, "peer_extension %s\n", conn->peer.extended ? "yes" : "no");
	seq_printf(seq, "token %016llx\n", conn->peer.token);
	if (nfr_svc_is_branch(svc))
		seq_printf(seq, "lanes 0\nlane_of %u\n",
			   svc->first->svc.conn->id_number & ~NFR_SVC_NUMBERS);
	else
		seq_printf(seq, "lanes %u\n", READ_ONCE(svc->first->nbranches));
	if (svc->personality->show)
		svc->personality->show(svc, seq);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(nfr_svc_connection);

/* Sum up the threadless reads of all connections since the module was loaded. */
static void nfr_svc_totals_threadless(struct seq_file *seq)
{
	struct nfr_svc_counters sum = {};
	struct nfr_svc *svc;

	mutex_lock(&nfr_svc_counted_lock);
	nfr_observe_threadless_add(&sum, &nfr_svc_ended);
	list_for_each_entry(svc, &nfr_svc_counted, counted)
		nfr_observe_threadless_add(&sum, &svc->counters);
	mutex_unlock(&nfr_svc_counted_lock);
	nfr_observe_threadless_show(seq, &sum);
}

/* Print the pages of clients, and their limit: what they may borrow, and their floors. */
static void nfr_svc_totals_memory(struct seq_file *seq)
{
	struct nfr_svc_floors floors;
	u32 limit;

	nfr_svc_hosts_floors(&floors);
	limit = nfr_params_server_pages() + floors.pages;
	seq_printf(seq, "read_pages %u of %u\n", nfr_svc_shares_in_use(NFR_SVC_READS), limit);
	seq_printf(seq, "reply_pages %u of %u\n", nfr_svc_shares_in_use(NFR_SVC_REPLIES), limit);
	seq_printf(seq, "floor_pages %u of %u\n", floors.pages, nfr_params_server_floor_pages());
	seq_printf(seq, "clients %u\nclients_sharing %u\n", floors.clients, floors.sharing);
	seq_printf(seq, "fenced %u\n", atomic_read(&nfr_svc_fenced));
}

static int nfr_svc_totals_show(struct seq_file *seq, void *unused)
{
	seq_printf(seq, "connections %u of %u\n", atomic_read(&nfr_svc_total),
		   nfr_params_server_connections());
	nfr_svc_totals_memory(seq);
	seq_printf(seq, "lanes %u\n", nfr_svc_branches_total());
	nfr_svc_personalities_totals(seq);
	seq_printf(seq, "threadless_entries %u of %u\n", nfr_svc_permits_total(),
		   NFR_SVC_PERMITS_MAX);
	nfr_svc_totals_threadless(seq);
	seq_printf(seq, "memory_short %u\n", nfr_svc_sink_shortages());
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(nfr_svc_totals);

/*
 * End a connection that holds memory for which others wait, and does not acknowledge what uses it.
 * Whatever else it acknowledges does not count.
 */
static void nfr_svc_fence(struct nfr_svc *svc)
{
	bool reads, replies;

	if (!svc->host || !nfr_conn_is_up(svc->conn))
		return;
	reads = nfr_svc_sink_is_wanted(svc);
	/* Calls that wait for memory for their Replies hold the data that was read for them */
	replies = nfr_svc_budget_is_wanted(svc) || (reads && nfr_svc_budget_is_waiting(svc));
	if ((replies && nfr_svc_req_is_late(svc, NFR_SVC_REPLIES)) ||
	    (reads && nfr_svc_req_is_late(svc, NFR_SVC_READS))) {
		atomic_inc(&nfr_svc_fenced);
		nfr_conn_break(svc->conn, "others wait for memory that it does not acknowledge");
	}
}

static void nfr_svc_fence_all(void)
{
	struct nfr_svc *svc;

	mutex_lock(&nfr_svc_counted_lock);
	list_for_each_entry(svc, &nfr_svc_counted, counted)
		nfr_svc_fence(svc);
	mutex_unlock(&nfr_svc_counted_lock);
}

/* Prepare for connections. */
void nfr_svc_fence_start(void)
{
	nfr_svc_shares_start(nfr_svc_fence_all);
}

/* Create the debugfs file of all connections. */
void nfr_svc_observe_totals(void)
{
	nfr_observe_totals(&nfr_svc_totals_fops);
}

/* Create the debugfs directory of a connection, and count it in the totals. */
static void nfr_svc_observe(struct nfr_svc *svc)
{
	svc->debugfs = nfr_observe_svc(svc->conn->id_number & ~NFR_SVC_NUMBERS, svc,
				       &nfr_svc_connection_fops, &svc->counters);
	mutex_lock(&nfr_svc_counted_lock);
	list_add(&svc->counted, &nfr_svc_counted);
	mutex_unlock(&nfr_svc_counted_lock);
}

/* Keep the counters of a connection that counts no more; it may never have been observed. */
static void nfr_svc_observe_end(struct nfr_svc *svc)
{
	mutex_lock(&nfr_svc_counted_lock);
	list_del(&svc->counted);
	nfr_observe_threadless_add(&nfr_svc_ended, &svc->counters);
	mutex_unlock(&nfr_svc_counted_lock);
}

/* --- periodic check --- */

/*
 * Probe an idle client with an empty RDMA Write: it does not access memory or
 * complete a receive, but needs an acknowledgment. If the client is gone, the
 * queue pair fails.
 */
static int nfr_svc_probe(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	struct ib_rdma_wr probe = {
		.wr = { .wr_cqe = &conn->signal_cqe, .opcode = IB_WR_RDMA_WRITE },
	};

	nfr_svc_count(svc, probes, 1);
	return nfr_conn_post(conn, &probe.wr, &probe.wr, 1, true);
}

/*
 * If a client posts no receives or does not serve RDMA Reads, the device may
 * retry forever, and everything behind in the send queue waits. Break the
 * connection if no completion occurred between two checks.
 */
static void nfr_svc_look(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	u64 calls = atomic64_read(&svc->counters.calls);
	bool waits, stuck, idle;
	int rc = 0;

	spin_lock_bh(&conn->lock);
	waits = conn->sq.marks_head != conn->sq.marks_tail;
	stuck = waits && svc->waited && conn->sq.marks_tail == svc->watched;
	idle = !waits && calls == svc->heard;
	if (idle)
		rc = nfr_svc_probe(svc);
	svc->waited = waits;
	svc->watched = conn->sq.marks_tail;
	svc->heard = calls;
	spin_unlock_bh(&conn->lock);
	if (idle)
		nfr_svc_pages_free(svc);
	if (stuck)
		nfr_conn_break(conn, "the send queue is stalled");
	nfr_svc_posted(conn, rc);
}

static void nfr_svc_watch_peer(struct work_struct *work)
{
	struct nfr_svc *svc = container_of(work, struct nfr_svc, watch.work);

	if (!nfr_conn_is_up(svc->conn))
		return;
	nfr_svc_look(svc);
	nfr_work_queue(&svc->watch, NFR_SVC_WATCH);
}

/* --- life of a connection --- */

static void nfr_svc_host_init(struct nfr_svc_host *host)
{
	nfr_svc_sink_init(host);
	nfr_svc_budget_init(host);
}

/* Leave what the connections of the client's address share, if the connection was opened. */
static void nfr_svc_host_end(struct nfr_svc *svc)
{
	struct nfr_svc_host *host = svc->host ? nfr_svc_host_leave(svc) : NULL;

	if (!host)
		return;
	nfr_svc_sink_destroy(host);
	kfree(host);
}

/* Undo nfr_svc_alloc(). */
static void nfr_svc_free(struct nfr_svc *svc)
{
	kfree(svc->conn);
	if (nfr_svc_is_branch(svc))
		kfree(nfr_svc_branch_of(svc));
	else
		kfree(svc->first);
	atomic_dec(&nfr_svc_total);
}

/**
 * nfr_svc_destroy - close a connection and free it
 * @svc: connection without references
 *
 * Context: Sleeps.
 */
void nfr_svc_destroy(struct nfr_svc *svc)
{
	struct nfr_svc_first *first = svc->first;
	bool branch = nfr_svc_is_branch(svc);

	nfr_observe_remove(svc->debugfs);
	cancel_delayed_work_sync(&svc->watch);
	nfr_conn_drain(svc->conn);
	if (!branch && svc->long_pages)
		nfr_svc_short_drained(svc);
	/* tasks wait for that, but need not wait until the device destroys the queue pair */
	if (svc->personality->fence)
		svc->personality->fence(svc);
	cancel_delayed_work_sync(&svc->late_work);
	cancel_work_sync(&svc->deferred_work);
	/* clients and the device may use the memory of requests and of grants until then */
	nfr_conn_end(svc->conn);
	nfr_svc_observe_end(svc);
	nfr_svc_budget_leave(svc);
	if (svc->personality->destroy)
		svc->personality->destroy(svc);
	if (branch)
		nfr_svc_branch_leave(svc);
	else
		nfr_svc_branches_refuse(svc);
	if (!branch)
		nfr_svc_permits_put(first);
	nfr_svc_req_destroy_all(svc);
	nfr_svc_pages_free(svc);
	if (!branch && first->callbacks)
		xprt_put(first->callbacks);
	nfr_conn_free(svc->conn);
	/* the handler of an event that broke the connection may have used it until here */
	nfr_svc_host_end(svc);
	nfr_svc_free(svc);
	if (branch)
		nfr_svc_put(&first->svc);
}

static void nfr_svc_free_work(struct work_struct *work)
{
	nfr_svc_destroy(container_of(work, struct nfr_svc, free_work.work));
}

static void nfr_svc_init(struct nfr_svc *svc)
{
	spin_lock_init(&svc->lock);
	INIT_LIST_HEAD(&svc->list);
	INIT_LIST_HEAD(&svc->counted);
	INIT_LIST_HEAD(&svc->starved);
	INIT_LIST_HEAD(&svc->free);
	INIT_LIST_HEAD(&svc->all);
	INIT_LIST_HEAD(&svc->pending);
	INIT_LIST_HEAD(&svc->sent);
	INIT_DELAYED_WORK(&svc->free_work, nfr_svc_free_work);
	nfr_svc_work_init(svc);
	INIT_DELAYED_WORK(&svc->watch, nfr_svc_watch_peer);
}

static struct nfr_svc *nfr_svc_alloc_first(void)
{
	struct nfr_svc_first *first = kzalloc(sizeof(*first), NFR_GFP_RETRIED);

	if (!first)
		return NULL;
	INIT_LIST_HEAD(&first->ready);
	INIT_LIST_HEAD(&first->known);
	INIT_LIST_HEAD(&first->branches);
	first->callbacks_granted = 1;
	first->svc.first = first;
	return &first->svc;
}

static struct nfr_svc *nfr_svc_alloc_branch(void)
{
	struct nfr_svc_branch *branch = kzalloc(sizeof(*branch), NFR_GFP_RETRIED);

	if (!branch)
		return NULL;
	nfr_svc_branch_init(branch);
	return &branch->svc;
}

/* Allocate a connection, unless there are too many. */
static struct nfr_svc *nfr_svc_alloc(bool branch)
{
	struct nfr_svc *svc = NULL;

	if (atomic_inc_return(&nfr_svc_total) <= nfr_params_server_connections())
		svc = branch ? nfr_svc_alloc_branch() : nfr_svc_alloc_first();
	if (!svc) {
		atomic_dec(&nfr_svc_total);
		return NULL;
	}
	nfr_svc_init(svc);
	svc->conn = kzalloc(sizeof(*svc->conn), NFR_GFP_RETRIED);
	if (svc->conn)
		return svc;
	nfr_svc_free(svc);
	return NULL;
}

/* --- creation --- */

static void nfr_svc_meet(struct nfr_svc *svc, struct rdma_cm_id *id,
			 const struct rdma_conn_param *param)
{
	struct nfr_conn *conn = svc->conn;

	memcpy(&svc->remote, &id->route.addr.dst_addr, sizeof(svc->remote));
	svc->port = rpc_get_port((struct sockaddr *)&svc->remote);
	svc->privileged = svc->port < PROT_SOCK || !nfr_params_server_reserved_port();
	/* the client has no stable port, but the duplicate reply cache compares ports */
	rpc_set_port((struct sockaddr *)&svc->remote, 0);
	conn->owner = svc;
	conn->device = id->device;
	conn->id_number = NFR_SVC_NUMBERS | (u32)atomic_inc_return(&nfr_svc_number);
	nfr_params_read(&conn->wanted);
	conn->profile.reads_issued = param->initiator_depth;
}

/* Learn the inline sizes: after the personality has set its own. */
static void nfr_svc_size(struct nfr_svc *svc, const struct rdma_conn_param *param)
{
	struct nfr_conn *conn = svc->conn;

	nfr_conn_meet(conn, param);
	if (conn->peer.given)
		return;
	conn->send_size = min(conn->wanted.inline_send, NFR_SVC_INLINE);
	conn->recv_size = min(conn->wanted.inline_recv, NFR_SVC_INLINE);
}

/**
 * nfr_svc_create - create a connection for a connection request
 * @id: id of the new connection; the nfr_svc owns it on success
 * @param: parameters of the request
 *
 * Return: connection, ERR_PTR(-ENOMEM) if the limit of connections is reached or an
 * allocation failed, or ERR_PTR(-ECONNREFUSED) for a branch that belongs to no
 * connection; then the caller has to reject the request.
 */
struct nfr_svc *nfr_svc_create(struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	struct nfr_private peer;
	struct nfr_svc *svc;
	int rc;

	nfr_wire_decode_private(&peer, param->private_data, param->private_data_len);
	svc = nfr_svc_alloc(peer.capabilities & NFR_LANE);
	if (!svc)
		return ERR_PTR(-ENOMEM);
	nfr_svc_meet(svc, id, param);
	if (!nfr_svc_is_branch(svc)) {
		nfr_svc_agree(svc, peer.capabilities, param);
		nfr_svc_size(svc, param);
		nfr_conn_adopt(svc->conn, id);
		return svc;
	}
	rc = nfr_svc_agree_branch(svc, peer.capabilities, param);
	nfr_svc_size(svc, param);
	nfr_conn_adopt(svc->conn, id);
	if (!rc && nfr_svc_branch_join(svc))
		return svc;
	/* rdma_cm destroys the id */
	if (!rc && svc->personality->destroy)
		svc->personality->destroy(svc);
	nfr_svc_free(svc);
	return ERR_PTR(-ECONNREFUSED);
}

/* --- accepting --- */

static void nfr_svc_addresses(struct nfr_svc *svc)
{
	struct sockaddr *local = (struct sockaddr *)&svc->conn->id->route.addr.src_addr;
	struct sockaddr *remote = (struct sockaddr *)&svc->remote;
	struct svc_xprt *xprt = &svc->first->xprt;

	svc_xprt_set_local(xprt, local, svc_addr_len(local));
	svc_xprt_set_remote(xprt, remote, svc_addr_len(remote));
	snprintf(xprt->xpt_remotebuf, sizeof(xprt->xpt_remotebuf), "%pISc", remote);
}

/*
 * Number of work requests of the largest Call that clients send: RDMA
 * operations for its data, and the Send. A Call that needs more breaks its
 * connection, see nfr_svc_post().
 */
static u32 nfr_svc_chain(const struct nfr_svc *svc)
{
	const struct nfr_conn *conn = svc->conn;
	u32 sges = nfr_mem_device_read_sges(conn->device, conn->profile.send_sges);

	return DIV_ROUND_UP(svc->max_message, PAGE_SIZE * sges) + NFR_SVC_CLIENT_SEGS + 1;
}

/* RFC 8797, section 4: a server answers that it will use Send With Invalidate. */
static struct nfr_private nfr_svc_private(const struct nfr_svc *svc)
{
	const struct nfr_conn *conn = svc->conn;
	bool capable = conn->device->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS;

	return (struct nfr_private) {
		.remote_invalidation = conn->peer.remote_invalidation && capable &&
				       svc->personality->invalidates,
		.extended = conn->peer.extended, .token = conn->peer.token,
		.capabilities = nfr_personality_bit(svc->personality->number) |
				conn->profile.offers,
	};
}

/* Set the profile of a first connection. Returns 0 or a negative errno. */
static int nfr_svc_fit(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;
	int rc;

	profile->send_sges = min_t(u32, attrs->max_send_sge, NFR_SVC_SGES);
	profile->recv_sges = 1;
	/* the first element has the header; head and tail of a Reply may take three more */
	if (!conn->peer.given && profile->send_sges > NFR_SVC_LONG_SGES)
		svc->long_pages = profile->send_sges - NFR_SVC_LONG_SGES;
	rc = nfr_conn_fit_queue(conn, nfr_svc_chain(svc));
	if (rc)
		return rc;
	profile->sends = conn->wanted.credits + NFR_SVC_SENDS;
	if (svc->personality->fit)
		rc = svc->personality->fit(svc);
	svc->grant = min(conn->wanted.credits, NFR_SVC_FIRST_GRANT);
	profile->receives = nfr_svc_recvs_for(svc, svc->grant);
	profile->rw_contexts = conn->wanted.credits;
	profile->least_contexts = min_t(u32, conn->wanted.credits, NFR_SVC_CLIENT_SEGS);
	profile->reads_issued = min_t(int, profile->reads_issued, attrs->max_qp_init_rd_atom);
	profile->private = nfr_svc_private(svc);
	return rc;
}

/* Accept a connection request. Returns 0 or a negative errno. */
static int nfr_svc_open(struct nfr_svc *svc)
{
	bool branch = nfr_svc_is_branch(svc);
	struct nfr_conn *conn = svc->conn;
	unsigned int noio;
	int rc;

	rc = branch ? svc->personality->fit(svc) : nfr_svc_fit(svc);
	if (!rc)
		rc = nfr_svc_host_join(svc, nfr_svc_host_init);
	nfr_svc_observe(svc);
	if (!branch)
		nfr_svc_branches_admit(svc);
	/* the client may be this host, whose writeback of dirty pages depends on this connection */
	noio = memalloc_noio_save();
	if (!rc)
		rc = nfr_conn_accept(conn);
	memalloc_noio_restore(noio);
	trace_nfsrdma_svc_accept(svc, rc);
	/* the check queues itself again until the connection breaks */
	if (!rc)
		nfr_work_queue(&svc->watch, NFR_SVC_WATCH);
	return rc;
}

/**
 * nfr_svc_establish - accept a connection request
 * @svc: new connection; freed on failure
 * @listener: listener that received the request
 *
 * Context: Sleeps, but does not wait for the network.
 *
 * Return: transport for nfsd, or NULL for a branch or on failure.
 */
struct svc_xprt *nfr_svc_establish(struct nfr_svc *svc, struct svc_xprt *listener)
{
	struct svc_xprt *xprt = &svc->first->xprt;

	/* copy it: messages may arrive after the service is destroyed */
	svc->max_message = listener->xpt_server->sv_max_mesg;
	if (nfr_svc_is_branch(svc)) {
		nfr_svc_branch_opened(svc, nfr_svc_open(svc));
		return NULL;
	}
	svc_xprt_init(listener->xpt_net, listener->xpt_class, xprt, listener->xpt_server);
	/* nfsd requires a transport with congestion control for NFSv4 */
	set_bit(XPT_CONG_CTRL, &xprt->xpt_flags);
	nfr_svc_addresses(svc);
	if (svc->personality->establish)
		svc->personality->establish(svc);
	if (!nfr_svc_open(svc))
		return xprt;
	/* svc_xprt_free() drops a reference that sunrpc takes only after a successful accept */
	__module_get(THIS_MODULE);
	svc_xprt_put(xprt);
	return NULL;
}
