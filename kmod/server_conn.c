// SPDX-License-Identifier: GPL-2.0-only
/*
 * The life of an accepted connection: made when a client asks for one, given
 * to nfsd when it is accepted, watched, and freed when nobody uses it.
 */
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>

#include "debugfs.h"
#include "server.h"
#include "trace_server.h"

/* Work requests beyond one per credit: for the longest chains of one Call */
#define NFR_SVC_SENDS	256

/* Pieces of memory in one work request */
#define NFR_SVC_SGES	32u

/* Segments of one Call that clients use; this module's client no more than 20 */
#define NFR_SVC_CLIENT_SEGS	32

static atomic_t nfr_svc_number;
static atomic_t nfr_svc_total;
static atomic_t nfr_svc_short;

static void nfr_svc_broken(struct nfr_conn *conn)
{
	struct nfr_svc *svc = conn->owner;

	svc_xprt_deferred_close(&svc->xprt);
	nfr_sink_kick();
	nfr_budget_leave(svc);
}

static const struct nfr_conn_ops nfr_svc_conn_ops = {
	.receive = nfr_svc_receive,
	.writable = nfr_svc_writable,
	.broken = nfr_svc_broken,
	.unanswered = "nfsd dropped a call",
};

/**
 * nfr_svc_destroy - end a connection and release all it has; waits
 * @svc: used by nobody
 */
void nfr_svc_destroy(struct nfr_svc *svc)
{
	nfr_debugfs_svc_remove(svc);
	cancel_delayed_work_sync(&svc->watch);
	nfr_conn_drain(svc->conn);
	cancel_delayed_work_sync(&svc->late_work);
	nfr_budget_leave(svc);
	nfr_svc_req_destroy_all(svc);
	if (svc->backchannel)
		xprt_put(svc->backchannel);
	nfr_conn_free(svc->conn);
	atomic_dec(&nfr_svc_total);
	kfree(svc);
}

static void nfr_svc_free_work(struct work_struct *work)
{
	nfr_svc_destroy(container_of(work, struct nfr_svc, free_work.work));
}

static void nfr_svc_init(struct nfr_svc *svc)
{
	spin_lock_init(&svc->lock);
	INIT_LIST_HEAD(&svc->list);
	INIT_LIST_HEAD(&svc->starved);
	INIT_LIST_HEAD(&svc->ready);
	INIT_LIST_HEAD(&svc->free);
	INIT_LIST_HEAD(&svc->all);
	INIT_LIST_HEAD(&svc->pending);
	INIT_LIST_HEAD(&svc->sent);
	INIT_DELAYED_WORK(&svc->free_work, nfr_svc_free_work);
	nfr_svc_late_init(svc);
	nfr_svc_watch_init(svc);
	svc->bc_granted = 1;
}

static struct nfr_svc *nfr_svc_alloc(void)
{
	struct nfr_svc *svc = kzalloc(sizeof(*svc), NFR_GFP_RETRIED);

	if (!svc)
		return NULL;
	svc->conn = kzalloc(sizeof(*svc->conn), NFR_GFP_RETRIED);
	if (!svc->conn) {
		kfree(svc);
		return NULL;
	}
	nfr_svc_init(svc);
	return svc;
}

/**
 * nfr_svc_create - a client wants to connect
 * @id: of the connection to be; the svc's when this succeeds
 * @param: what the client asks for
 *
 * Returns NULL when there are as many connections as allowed, or no memory:
 * then the client is to be rejected.
 */
struct nfr_svc *nfr_svc_create(struct rdma_cm_id *id, const struct rdma_conn_param *param)
{
	struct nfr_svc *svc;
	struct nfr_conn *conn;

	if (atomic_inc_return(&nfr_svc_total) > nfr_params_server_connections())
		goto out_full;
	svc = nfr_svc_alloc();
	if (!svc)
		goto out_full;
	conn = svc->conn;
	conn->owner = svc;
	conn->ops = &nfr_svc_conn_ops;
	conn->id_number = NFR_SVC_NUMBERS | (u32)atomic_inc_return(&nfr_svc_number);
	nfr_params_read(&conn->wanted);
	nfr_wire_decode_private(&svc->peer, param->private_data, param->private_data_len);
	svc->depth = param->initiator_depth;
	nfr_conn_adopt(conn, id);
	return svc;
out_full:
	atomic_dec(&nfr_svc_total);
	return NULL;
}

static void nfr_svc_addresses(struct nfr_svc *svc)
{
	struct rdma_addr *addr = &svc->conn->id->route.addr;
	struct sockaddr *local = (struct sockaddr *)&addr->src_addr;
	struct sockaddr *remote = (struct sockaddr *)&addr->dst_addr;

	svc_xprt_set_local(&svc->xprt, local, svc_addr_len(local));
	svc_xprt_set_remote(&svc->xprt, remote, svc_addr_len(remote));
	/* RDMA has no port of the client's; the duplicate request cache wants one that stays */
	rpc_set_port((struct sockaddr *)&svc->xprt.xpt_remote, 0);
	snprintf(svc->xprt.xpt_remotebuf, sizeof(svc->xprt.xpt_remotebuf), "%pISc", remote);
}

/*
 * Work requests of the largest Call that clients send: its data in some
 * segments, page by page, and the reply. One that needs more ends its
 * connection, see nfr_svc_post().
 */
static u32 nfr_svc_chain(const struct nfr_svc *svc)
{
	return DIV_ROUND_UP(svc->max_message, PAGE_SIZE * svc->conn->send_sges) +
	       NFR_SVC_CLIENT_SEGS + 1;
}

/* What the connection is to have. -EOPNOTSUPP when the device cannot do that. */
static int nfr_svc_size(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	int rc;

	conn->send_sges = min_t(u32, attrs->max_send_sge, NFR_SVC_SGES);
	rc = nfr_conn_fit_queue(conn, nfr_svc_chain(svc));
	if (rc)
		return rc;
	svc->grant = min(conn->wanted.credits, NFR_SVC_FIRST_GRANT);
	conn->receives = nfr_svc_recvs_for(svc->grant);
	conn->sends = conn->wanted.credits + NFR_SVC_SENDS;
	conn->rw_contexts = conn->wanted.credits;
	nfr_cm_agree(conn, &svc->peer);
	if (!(attrs->device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS))
		svc->peer.remote_invalidation = false;
	return 0;
}

/**
 * nfr_svc_establish - accept a connection; waits, but not for the network
 * @svc: created
 * @listener: where it arrived
 *
 * Returns what nfsd is to serve, or NULL: @svc is gone then.
 */
struct svc_xprt *nfr_svc_establish(struct nfr_svc *svc, struct svc_xprt *listener)
{
	struct nfr_conn *conn = svc->conn;
	unsigned int noio;
	int rc;

	svc_xprt_init(listener->xpt_net, &nfr_svc_class, &svc->xprt, listener->xpt_server);
	/* messages may come when the service is gone */
	svc->max_message = listener->xpt_server->sv_max_mesg;
	/* NFSv4 is served over transports that control congestion only */
	set_bit(XPT_CONG_CTRL, &svc->xprt.xpt_flags);
	nfr_svc_addresses(svc);
	rc = nfr_svc_size(svc);
	nfr_debugfs_svc_add(svc);
	/* the client may be this host, and writing dirty pages out may wait for the connection */
	noio = memalloc_noio_save();
	if (!rc)
		rc = nfr_conn_accept(conn, svc->peer.remote_invalidation, svc->depth);
	memalloc_noio_restore(noio);
	trace_nfsrdma_svc_accept(svc, rc);
	if (!rc) {
		nfr_svc_watch_start(svc);
		return &svc->xprt;
	}
	/* sunrpc takes this reference when it takes the transport, and gives it back at its end */
	__module_get(THIS_MODULE);
	svc_xprt_put(&svc->xprt);
	return NULL;
}

/**
 * nfr_svc_connections - connections there are, those that end included
 */
u32 nfr_svc_connections(void)
{
	return atomic_read(&nfr_svc_total);
}

/**
 * nfr_svc_count_shortage - a message or a Read found no memory at once
 */
void nfr_svc_count_shortage(void)
{
	atomic_inc(&nfr_svc_short);
}

/**
 * nfr_svc_shortages - how often that was so since the module was loaded
 */
u32 nfr_svc_shortages(void)
{
	return atomic_read(&nfr_svc_short);
}
