// SPDX-License-Identifier: GPL-2.0-only
/*
 * Listeners: a line with the name of this class in /proc/fs/nfsd/portlist
 * creates one for IPv4 and one for IPv6.
 *
 * A connection request waits in the queue of its listener until an nfsd thread
 * accepts it. If the address or the device of a listener disappears, a worker
 * retries until it can listen again.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>

#include "server/server.h"

/* Maximum number of waiting connection requests */
#define NFR_BACKLOG		64

/* Delay between attempts to listen again */
#define NFR_LISTEN_RETRY	(5 * HZ)

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

static struct nfr_listener *nfr_listener_of(struct svc_xprt *xprt)
{
	return container_of(xprt, struct nfr_listener, xprt);
}

/* --- connection requests --- */

static void nfr_listener_add(struct nfr_listener *listener, struct nfr_svc *svc)
{
	spin_lock(&listener->lock);
	list_add_tail(&svc->list, &listener->arrived);
	listener->narrived++;
	set_bit(XPT_CONN, &listener->xprt.xpt_flags);
	spin_unlock(&listener->lock);
	svc_xprt_enqueue(&listener->xprt);
}

/* Returns nonzero to make rdma_cm reject the request and destroy its id. */
static int nfr_listener_request(struct nfr_listener *listener, struct rdma_cm_id *id,
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
	if (!svc)
		return -ENOMEM;
	nfr_listener_add(listener, svc);
	return 0;
}

static int nfr_listener_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct nfr_listener *listener = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return nfr_listener_request(listener, id, &event->param.conn);
	case RDMA_CM_EVENT_ADDR_CHANGE:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		nfr_work_queue(&listener->again, 0);
		return 0;
	default:
		return 0;
	}
}

static struct nfr_svc *nfr_listener_next(struct nfr_listener *listener)
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

static struct svc_xprt *nfr_listener_accept(struct svc_xprt *xprt)
{
	struct nfr_svc *svc = nfr_listener_next(nfr_listener_of(xprt));

	return svc ? nfr_svc_establish(svc, xprt) : NULL;
}

/* --- creation and destruction --- */

static struct rdma_cm_id *nfr_listen(struct nfr_listener *listener, struct sockaddr *addr)
{
	struct rdma_cm_id *id;
	int rc;

	id = rdma_create_id(listener->xprt.xpt_net, nfr_listener_event, listener, RDMA_PS_TCP,
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
static void nfr_listener_stop(struct nfr_listener *listener)
{
	if (listener->id)
		rdma_destroy_id(listener->id);
	listener->id = NULL;
}

static void nfr_listener_restart(struct nfr_listener *listener)
{
	struct rdma_cm_id *id;

	nfr_listener_stop(listener);
	id = nfr_listen(listener, (struct sockaddr *)&listener->xprt.xpt_local);
	if (IS_ERR(id))
		nfr_work_queue(&listener->again, NFR_LISTEN_RETRY);
	else
		listener->id = id;
}

static void nfr_listener_again(struct work_struct *work)
{
	struct nfr_listener *listener = container_of(work, struct nfr_listener, again.work);

	mutex_lock(&listener->mutex);
	if (!listener->closed)
		nfr_listener_restart(listener);
	mutex_unlock(&listener->mutex);
}

static void nfr_listener_free_work(struct work_struct *work)
{
	struct nfr_listener *listener = container_of(work, struct nfr_listener, free_work.work);
	struct nfr_svc *svc;

	/* if listening failed, nfr_listener_detach() did not run */
	cancel_delayed_work_sync(&listener->again);
	while ((svc = nfr_listener_next(listener)))
		nfr_svc_destroy(svc);
	kfree(listener);
}

static void nfr_listener_free(struct svc_xprt *xprt)
{
	nfr_work_queue(&nfr_listener_of(xprt)->free_work, 0);
}

/* When this function returns, the port is free and no more requests arrive. */
static void nfr_listener_detach(struct svc_xprt *xprt)
{
	struct nfr_listener *listener = nfr_listener_of(xprt);

	mutex_lock(&listener->mutex);
	listener->closed = true;
	nfr_listener_stop(listener);
	mutex_unlock(&listener->mutex);
	/* the last event may have queued it; @closed makes it a no-op */
	cancel_delayed_work_sync(&listener->again);
}

static int nfr_listener_has_wspace(struct svc_xprt *xprt)
{
	return 1;
}

static int nfr_listener_recvfrom(struct svc_rqst *rqstp)
{
	svc_xprt_received(rqstp->rq_xprt);
	return 0;
}

static void nfr_listener_release_ctxt(struct svc_xprt *xprt, void *ctxt)
{
}

static const struct svc_xprt_ops nfr_listener_ops = {
	.xpo_accept		= nfr_listener_accept,
	.xpo_recvfrom		= nfr_listener_recvfrom,
	.xpo_has_wspace		= nfr_listener_has_wspace,
	.xpo_release_ctxt	= nfr_listener_release_ctxt,
	.xpo_detach		= nfr_listener_detach,
	.xpo_free		= nfr_listener_free,
};

static struct nfr_listener *nfr_listener_alloc(struct svc_serv *serv, struct net *net)
{
	struct nfr_listener *listener = kzalloc(sizeof(*listener), GFP_KERNEL);

	if (!listener)
		return NULL;
	svc_xprt_init(net, &nfr_svc_class, &listener->xprt, serv);
	listener->xprt.xpt_ops = &nfr_listener_ops;
	set_bit(XPT_LISTENER, &listener->xprt.xpt_flags);
	strscpy(listener->xprt.xpt_remotebuf, "listener", sizeof(listener->xprt.xpt_remotebuf));
	mutex_init(&listener->mutex);
	spin_lock_init(&listener->lock);
	INIT_LIST_HEAD(&listener->arrived);
	INIT_DELAYED_WORK(&listener->again, nfr_listener_again);
	INIT_DELAYED_WORK(&listener->free_work, nfr_listener_free_work);
	return listener;
}

/**
 * nfr_listener_create - create a listener (svc_xprt_ops.xpo_create)
 * @serv: RPC service
 * @net: network namespace
 * @addr: local address, which may be a wildcard, and port
 * @length: length of @addr in bytes
 * @flags: unused
 *
 * Return: listener, ERR_PTR(-EAFNOSUPPORT) if @addr is neither IPv4 nor IPv6,
 * or an ERR_PTR from rdma_cm.
 */
struct svc_xprt *nfr_listener_create(struct svc_serv *serv, struct net *net,
				     struct sockaddr *addr, int length, int flags)
{
	struct nfr_listener *listener;
	struct rdma_cm_id *id;

	if (addr->sa_family != AF_INET && addr->sa_family != AF_INET6)
		return ERR_PTR(-EAFNOSUPPORT);
	listener = nfr_listener_alloc(serv, net);
	if (!listener)
		return ERR_PTR(-ENOMEM);
	svc_xprt_set_local(&listener->xprt, addr, length);
	/* an event may queue nfr_listener_again() before @id is set */
	mutex_lock(&listener->mutex);
	id = nfr_listen(listener, addr);
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
