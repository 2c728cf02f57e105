// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pages that RDMA Reads put data into, until an nfsd thread takes it over.
 *
 * A client that announces much and delivers slowly must not have the memory of
 * the others: all connections together have as many pages as the parameter
 * server_memory says, and one of them a quarter of that. What does not fit
 * waits here, in the order it came.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "compat.h"
#include "server.h"

/* A connection's share of all pages; one request is taken whatever it is */
#define NFR_SINK_SHARE	4

/* After an allocation failed */
#define NFR_SINK_RETRY	(HZ / 10)

static DEFINE_SPINLOCK(nfr_sink_lock);
static LIST_HEAD(nfr_sink_waiters);
static u32 nfr_sink_total;
static bool nfr_sink_starved;

static void nfr_sink_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_sink_later, nfr_sink_work);

/* --- accounts; the lock is held --- */

/* Returns 0; -EDQUOT when others are not to suffer; -ENOMEM when there is too little for all. */
static int nfr_sink_charge(struct nfr_svc_req *req)
{
	u32 limit = nfr_params_server_pages(), own = atomic_read(&req->svc->sunk);

	/* who came later does not overtake those that all of the memory is too little for */
	if (nfr_sink_starved && !req->waited)
		return -EDQUOT;
	if (own && own + req->npages > limit / NFR_SINK_SHARE)
		return -EDQUOT;
	if (nfr_sink_total && nfr_sink_total + req->npages > limit)
		return -ENOMEM;
	nfr_sink_total += req->npages;
	atomic_add(req->npages, &req->svc->sunk);
	return 0;
}

static void nfr_sink_uncharge(struct nfr_svc_req *req)
{
	nfr_sink_total -= req->npages;
	atomic_sub(req->npages, &req->svc->sunk);
}

/* A request that waits keeps its connection. Returns false when that is ending. */
static bool nfr_sink_wait(struct nfr_svc_req *req)
{
	if (!nfr_conn_is_up(req->svc->conn) || !kref_get_unless_zero(&req->svc->xprt.xpt_ref))
		return false;
	if (!req->waited)
		nfr_svc_count(req->svc, memory_waits, 1);
	list_add_tail(&req->list, &nfr_sink_waiters);
	return true;
}

/* --- pages --- */

static void nfr_sink_free(struct nfr_svc_req *req)
{
	u32 i;

	for (i = 0; req->pages && i < req->npages; i++)
		if (req->pages[i])
			put_page(req->pages[i]);
	kvfree(req->pages);
	req->pages = NULL;
}

/* What it got stays with the request, also when it is too little. */
static int nfr_sink_alloc(struct nfr_svc_req *req)
{
	unsigned long filled = 0, before;

	req->pages = kvcalloc(req->npages, sizeof(*req->pages), req->gfp);
	if (!req->pages)
		return -ENOMEM;
	/* it may stop early without being short of memory */
	do {
		before = filled;
		filled = nfr_alloc_pages(req->gfp, req->npages, req->pages);
	} while (filled > before && filled < req->npages);
	return filled == req->npages ? 0 : -ENOMEM;
}

/**
 * nfr_sink_again - have a request that was charged try again later
 * @req: loses what memory it has
 *
 * For want of pages, or of the device's regions. Returns -EINPROGRESS or
 * -ENOTCONN, as nfr_sink_get().
 */
int nfr_sink_again(struct nfr_svc_req *req)
{
	unsigned long delay = gfpflags_allow_blocking(req->gfp) ? NFR_SINK_RETRY : 0;
	bool waits;

	nfr_sink_free(req);
	spin_lock(&nfr_sink_lock);
	nfr_sink_uncharge(req);
	waits = nfr_sink_wait(req);
	spin_unlock(&nfr_sink_lock);
	/* where the worker may wait for memory it may find some at once */
	nfr_conn_queue(&nfr_sink_later, delay);
	return waits ? -EINPROGRESS : -ENOTCONN;
}

/**
 * nfr_sink_get - have pages for a request's RDMA Reads
 * @req: with @npages set
 *
 * Returns 0; -EINPROGRESS when it has to wait: nfr_svc_read_start() is called
 * again; -ENOTCONN when the connection is ending.
 */
int nfr_sink_get(struct nfr_svc_req *req)
{
	bool waits = false;
	int rc;

	spin_lock(&nfr_sink_lock);
	rc = nfr_sink_charge(req);
	if (rc)
		waits = nfr_sink_wait(req);
	if (rc == -ENOMEM && waits)
		nfr_sink_starved = true;
	spin_unlock(&nfr_sink_lock);
	if (rc)
		return waits ? -EINPROGRESS : -ENOTCONN;
	if (!nfr_sink_alloc(req))
		return 0;
	nfr_svc_count_shortage();
	return nfr_sink_again(req);
}

/**
 * nfr_sink_put - undo nfr_sink_get()
 * @req: whether it has pages or not
 */
void nfr_sink_put(struct nfr_svc_req *req)
{
	bool waiters;

	if (!req->pages)
		return;
	nfr_sink_free(req);
	spin_lock(&nfr_sink_lock);
	nfr_sink_uncharge(req);
	waiters = !list_empty(&nfr_sink_waiters);
	spin_unlock(&nfr_sink_lock);
	if (waiters)
		nfr_sink_kick();
}

/* --- waiters --- */

static struct nfr_svc_req *nfr_sink_next(struct list_head *waiters)
{
	struct nfr_svc_req *req = list_first_entry_or_null(waiters, struct nfr_svc_req, list);

	if (req)
		list_del(&req->list);
	return req;
}

/* Each waiter tries once; those that find no memory wait again, in the same order. */
static void nfr_sink_work(struct work_struct *work)
{
	struct nfr_svc_req *req;
	struct svc_xprt *xprt;
	LIST_HEAD(waiters);

	spin_lock(&nfr_sink_lock);
	list_splice_init(&nfr_sink_waiters, &waiters);
	nfr_sink_starved = false;
	spin_unlock(&nfr_sink_lock);
	while ((req = nfr_sink_next(&waiters))) {
		xprt = &req->svc->xprt;
		req->waited = true;
		req->gfp = NFR_GFP_RETRIED;
		nfr_svc_read_start(req);
		svc_xprt_put(xprt);
	}
}

/**
 * nfr_sink_kick - memory came back, or a connection with waiters broke
 */
void nfr_sink_kick(void)
{
	nfr_conn_hurry(&nfr_sink_later);
}

/**
 * nfr_sink_in_use - pages in use by all connections
 */
u32 nfr_sink_in_use(void)
{
	return READ_ONCE(nfr_sink_total);
}

/**
 * nfr_sink_stop - when the module is unloaded: no connection exists
 */
void nfr_sink_stop(void)
{
	cancel_delayed_work_sync(&nfr_sink_later);
}
