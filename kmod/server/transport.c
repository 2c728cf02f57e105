// SPDX-License-Identifier: GPL-2.0-only
/*
 * Server transport class and its listeners: the operations that sunrpc calls
 * (include/linux/sunrpc/svc_xprt.h, struct svc_xprt_ops).
 *
 * A line with the name of this class in /proc/fs/nfsd/portlist creates a listener
 * for IPv4 and one for IPv6. A connection request waits in the queue of its
 * listener until an nfsd thread accepts it. If the address or the device of a
 * listener disappears, a worker retries until it can listen again.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>

#include "compat/compat.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "params.h"
#include "server/call.h"
#include "server/reply.h"
#include "server/server.h"
#include "server/budget.h"
#include "server/share.h"
#include "server/sink.h"
#include "work.h"

/* Limit of /proc/fs/nfsd/portlist */
#define NFR_SVC_NAME_MAX	15

/* Maximum number of waiting connection requests */
#define NFR_BACKLOG		64

/* Delay between attempts to listen again */
#define NFR_LISTEN_RETRY	(5 * HZ)

static struct svc_xprt_class nfr_svc_class;

struct nfr_listener {
	struct svc_xprt xprt;
	struct mutex mutex;	/* protects @id and @closed */
	struct rdma_cm_id *id;
	bool closed;
	spinlock_t lock;	/* protects @arrived and @narrived */
	struct list_head arrived;
	u32 narrived;
	struct delayed_work again;
	struct delayed_work free_work;
};

static struct nfr_listener *nfr_svc_listener_of(struct svc_xprt *xprt)
{
	return container_of(xprt, struct nfr_listener, xprt);
}

/* --- connection requests --- */

static void nfr_svc_listener_add(struct nfr_listener *listener, struct nfr_svc *svc)
{
	spin_lock(&listener->lock);
	list_add_tail(&svc->list, &listener->arrived);
	listener->narrived++;
	set_bit(XPT_CONN, &listener->xprt.xpt_flags);
	spin_unlock(&listener->lock);
	svc_xprt_enqueue(&listener->xprt);
}

/*
 * Returns nonzero to make rdma_cm destroy the id, and reject the request unless it is
 * -ENOMEM, for which InfiniBand's CM waits until the client repeats the request.
 */
static int nfr_svc_listener_request(struct nfr_listener *listener, struct rdma_cm_id *id,
				    const struct rdma_conn_param *param)
{
	sa_family_t family = id->route.addr.dst_addr.ss_family;
	struct nfr_svc *svc;

	if (family != AF_INET && family != AF_INET6)
		return -EAFNOSUPPORT;
	/* no lock: rdma_cm serializes the requests of a listener */
	if (READ_ONCE(listener->narrived) >= NFR_BACKLOG)
		return -EBUSY;
	svc = nfr_svc_create(id, param);
	if (IS_ERR(svc))
		return PTR_ERR(svc);
	nfr_svc_listener_add(listener, svc);
	return 0;
}

static int nfr_svc_listener_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct nfr_listener *listener = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return nfr_svc_listener_request(listener, id, &event->param.conn);
	case RDMA_CM_EVENT_ADDR_CHANGE:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		nfr_work_queue(&listener->again, 0);
		return 0;
	default:
		return 0;
	}
}

static struct nfr_svc *nfr_svc_listener_next(struct nfr_listener *listener)
{
	struct nfr_svc *svc;

	spin_lock(&listener->lock);
	svc = list_first_entry_or_null(&listener->arrived, struct nfr_svc, list);
	if (svc) {
		list_del_init(&svc->list);
		listener->narrived--;
	}
	if (list_empty(&listener->arrived))
		clear_bit(XPT_CONN, &listener->xprt.xpt_flags);
	spin_unlock(&listener->lock);
	return svc;
}

static struct svc_xprt *nfr_svc_listener_accept(struct svc_xprt *xprt)
{
	struct nfr_svc *svc = nfr_svc_listener_next(nfr_svc_listener_of(xprt));

	return svc ? nfr_svc_establish(svc, xprt) : NULL;
}

/* --- creation and destruction --- */

static struct rdma_cm_id *nfr_svc_listen(struct nfr_listener *listener, struct sockaddr *addr)
{
	struct rdma_cm_id *id;
	int rc;

	id = rdma_create_id(listener->xprt.xpt_net, nfr_svc_listener_event, listener, RDMA_PS_TCP,
			    IB_QPT_RC);
	if (IS_ERR(id))
		return id;
	/* a separate listener serves IPv4 */
	rc = addr->sa_family == AF_INET6 ? rdma_set_afonly(id, 1) : 0;
	if (!rc)
		rc = rdma_bind_addr(id, addr);
	if (!rc)
		rc = rdma_listen(id, NFR_BACKLOG);
	if (!rc)
		return id;
	rdma_destroy_id(id);
	return ERR_PTR(rc);
}

/*
 * rdma_destroy_id() waits for event handlers, which do not take the mutex.
 * Caller holds the mutex.
 */
static void nfr_svc_listener_stop(struct nfr_listener *listener)
{
	if (listener->id)
		rdma_destroy_id(listener->id);
	listener->id = NULL;
}

static void nfr_svc_listener_restart(struct nfr_listener *listener)
{
	struct rdma_cm_id *id;

	nfr_svc_listener_stop(listener);
	id = nfr_svc_listen(listener, (struct sockaddr *)&listener->xprt.xpt_local);
	if (IS_ERR(id))
		nfr_work_queue(&listener->again, NFR_LISTEN_RETRY);
	else
		listener->id = id;
}

static void nfr_svc_listener_again(struct work_struct *work)
{
	struct nfr_listener *listener = container_of(work, struct nfr_listener, again.work);

	mutex_lock(&listener->mutex);
	if (!listener->closed)
		nfr_svc_listener_restart(listener);
	mutex_unlock(&listener->mutex);
}

static void nfr_svc_listener_free_work(struct work_struct *work)
{
	struct nfr_listener *listener = container_of(work, struct nfr_listener, free_work.work);
	struct nfr_svc *svc;

	/* if listening failed, nfr_svc_listener_detach() did not run */
	cancel_delayed_work_sync(&listener->again);
	while ((svc = nfr_svc_listener_next(listener)))
		nfr_svc_destroy(svc);
	kfree(listener);
}

static void nfr_svc_listener_free(struct svc_xprt *xprt)
{
	nfr_work_queue(&nfr_svc_listener_of(xprt)->free_work, 0);
}

/* When this function returns, the port is free and no more requests arrive. */
static void nfr_svc_listener_detach(struct svc_xprt *xprt)
{
	struct nfr_listener *listener = nfr_svc_listener_of(xprt);

	mutex_lock(&listener->mutex);
	listener->closed = true;
	nfr_svc_listener_stop(listener);
	mutex_unlock(&listener->mutex);
	/* the last event may have queued it; @closed makes it a no-op */
	cancel_delayed_work_sync(&listener->again);
}

static int nfr_svc_listener_recvfrom(struct svc_rqst *rqstp)
{
	svc_xprt_received(rqstp->rq_xprt);
	return 0;
}

static void nfr_svc_listener_release_ctxt(struct svc_xprt *xprt, void *ctxt)
{
}

static const struct svc_xprt_ops nfr_svc_listener_ops = {
	.xpo_accept		= nfr_svc_listener_accept,
	.xpo_recvfrom		= nfr_svc_listener_recvfrom,
	.xpo_has_wspace		= nfr_svc_has_wspace,
	.xpo_release_ctxt	= nfr_svc_listener_release_ctxt,
	.xpo_detach		= nfr_svc_listener_detach,
	.xpo_free		= nfr_svc_listener_free,
};

static struct nfr_listener *nfr_svc_listener_alloc(struct svc_serv *serv, struct net *net)
{
	struct nfr_listener *listener = kzalloc(sizeof(*listener), GFP_KERNEL);

	if (!listener)
		return NULL;
	svc_xprt_init(net, &nfr_svc_class, &listener->xprt, serv);
	listener->xprt.xpt_ops = &nfr_svc_listener_ops;
	set_bit(XPT_LISTENER, &listener->xprt.xpt_flags);
	strscpy(listener->xprt.xpt_remotebuf, "listener", sizeof(listener->xprt.xpt_remotebuf));
	mutex_init(&listener->mutex);
	spin_lock_init(&listener->lock);
	INIT_LIST_HEAD(&listener->arrived);
	INIT_DELAYED_WORK(&listener->again, nfr_svc_listener_again);
	INIT_DELAYED_WORK(&listener->free_work, nfr_svc_listener_free_work);
	return listener;
}

/*
 * Create a listener on a local address, which may be a wildcard. Returns it,
 * ERR_PTR(-EAFNOSUPPORT) if @addr is neither IPv4 nor IPv6, or an ERR_PTR from
 * rdma_cm.
 */
static struct svc_xprt *nfr_svc_listener_create(struct svc_serv *serv, struct net *net,
						struct sockaddr *addr, int length, int flags)
{
	struct nfr_listener *listener;
	struct rdma_cm_id *id;

	if (addr->sa_family != AF_INET && addr->sa_family != AF_INET6)
		return ERR_PTR(-EAFNOSUPPORT);
	listener = nfr_svc_listener_alloc(serv, net);
	if (!listener)
		return ERR_PTR(-ENOMEM);
	svc_xprt_set_local(&listener->xprt, addr, length);
	/* an event may queue nfr_svc_listener_again() before @id is set */
	mutex_lock(&listener->mutex);
	id = nfr_svc_listen(listener, addr);
	listener->closed = IS_ERR(id);
	listener->id = IS_ERR(id) ? NULL : id;
	mutex_unlock(&listener->mutex);
	if (IS_ERR(id)) {
		/* svc_xprt_free() drops a module reference, and sunrpc drops its own on an error */
		__module_get(THIS_MODULE);
		svc_xprt_put(&listener->xprt);
		return ERR_CAST(id);
	}
	return &listener->xprt;
}

/* --- operations of accepted connections --- */

static void nfr_svc_detach(struct svc_xprt *xprt)
{
	struct nfr_conn *conn = nfr_svc_of(xprt)->conn;

	nfr_conn_break(conn, "closed by nfsd");
	rdma_disconnect(conn->id);
}

/* Any context may drop the last reference, but draining sleeps. */
static void nfr_svc_xprt_free(struct svc_xprt *xprt)
{
	nfr_work_queue(&nfr_svc_of(xprt)->free_work, 0);
}

static void nfr_svc_kill_temp_xprt(struct svc_xprt *xprt)
{
}

static const struct svc_xprt_ops nfr_svc_ops = {
	.xpo_create		= nfr_svc_listener_create,
	.xpo_recvfrom		= nfr_svc_recvfrom,
	.xpo_sendto		= nfr_svc_sendto,
	.xpo_result_payload	= nfr_svc_result_payload,
	.xpo_release_ctxt	= nfr_svc_release_ctxt,
	.xpo_detach		= nfr_svc_detach,
	.xpo_free		= nfr_svc_xprt_free,
	.xpo_has_wspace		= nfr_svc_has_wspace,
	.xpo_kill_temp_xprt	= nfr_svc_kill_temp_xprt,
#ifdef HAVE_XPO_SECURE_PORT
	.xpo_secure_port	= nfr_svc_set_secure,
#endif
};

static struct svc_xprt_class nfr_svc_class = {
	.xcl_owner		= THIS_MODULE,
	.xcl_ops		= &nfr_svc_ops,
	.xcl_max_payload	= RPCSVC_MAXPAYLOAD,
	.xcl_ident		= NFR_SVC_IDENT,
};

/*
 * Register the server transport class. The parameter server_name is the name of the class; if
 * it is empty, there is no server. Returns 0, -EINVAL if the name is too long, -EEXIST if
 * another module holds the name, or -ENOMEM.
 */
int nfr_svc_register(void)
{
	int rc;

	nfr_svc_class.xcl_name = nfr_params_server_name();
	if (!*nfr_svc_class.xcl_name)
		return 0;
	if (strlen(nfr_svc_class.xcl_name) > NFR_SVC_NAME_MAX) {
		pr_err("nfsrdma: parameter server_name: got %s, expected at most %d characters\n",
		       nfr_svc_class.xcl_name, NFR_SVC_NAME_MAX);
		return -EINVAL;
	}
	rc = nfr_svc_callback_register();
	if (rc)
		return rc;
	rc = nfr_svc_personalities_start(&nfr_svc_ops);
	if (rc)
		goto out_callback;
	nfr_svc_fence_start();
	nfr_svc_sink_start();
	nfr_svc_budget_start();
	rc = svc_reg_xprt_class(&nfr_svc_class);
	if (!rc)
		return 0;
	pr_err("nfsrdma: another module provides server transport %s. Unload it or set server_name\n",
	       nfr_svc_class.xcl_name);
	nfr_svc_personalities_stop();
out_callback:
	nfr_svc_callback_unregister();
	return rc;
}

/* Undo nfr_svc_register(). */
void nfr_svc_unregister(void)
{
	if (!*nfr_svc_class.xcl_name)
		return;
	svc_unreg_xprt_class(&nfr_svc_class);
	nfr_svc_callback_unregister();
	/* sunrpc dropped its module references before the workers that free connections have run */
	flush_workqueue(nfr_work_slow);
	nfr_svc_shares_stop();
	nfr_svc_personalities_stop();
}
