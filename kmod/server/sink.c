// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sink pages: RDMA Reads place data in them until an nfsd thread takes it over.
 *
 * A client that announces much data and delivers it slowly must not use up the memory for the
 * other clients: the parameter server_memory limits the pages of all connections, and one
 * connection may use a quarter of it, or more if it is alone. Requests above the limits wait in
 * FIFO order, with a function that resumes them.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "gfp.h"
#include "params.h"
#include "server/pages.h"
#include "server/server.h"
#include "server/sink.h"
#include "work.h"

/* Delay after an allocation failure */
#define NFR_SINK_RETRY	(HZ / 10)

static DEFINE_SPINLOCK(nfr_svc_sink_lock);
static LIST_HEAD(nfr_svc_sink_waiters);
static u32 nfr_svc_sink_total;
static bool nfr_svc_sink_starved;
static atomic_t nfr_svc_sink_short;

static void nfr_svc_sink_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_svc_sink_later, nfr_svc_sink_work);

/* Count an allocation failure of a message or an RDMA Read. */
void nfr_svc_sink_count_shortage(void)
{
	atomic_inc(&nfr_svc_sink_short);
}

/* Get the number of allocation failures since the module was loaded. */
u32 nfr_svc_sink_shortages(void)
{
	return atomic_read(&nfr_svc_sink_short);
}

/* --- charging; caller holds the lock --- */

/*
 * Returns 0, -EDQUOT if the connection has to wait for its share, or -ENOMEM at
 * the global limit.
 */
static int nfr_svc_sink_charge(struct nfr_svc_req *req)
{
	u32 limit = nfr_params_server_pages(), own = atomic_read(&req->svc->sunk);

	/* do not overtake requests that wait for the global limit */
	if (nfr_svc_sink_starved)
		return -EDQUOT;
	if (own && own + req->npages > limit / NFR_SVC_SHARE)
		return -EDQUOT;
	if (nfr_svc_sink_total && nfr_svc_sink_total + req->npages > limit)
		return -ENOMEM;
	nfr_svc_sink_total += req->npages;
	atomic_add(req->npages, &req->svc->sunk);
	return 0;
}

static void nfr_svc_sink_uncharge(struct nfr_svc_req *req)
{
	nfr_svc_sink_total -= req->npages;
	atomic_sub(req->npages, &req->svc->sunk);
}

/* A waiting request holds a reference to its connection. Returns false if that is closing. */
static bool nfr_svc_sink_wait(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	if (!nfr_conn_is_up(req->svc->conn) || !nfr_svc_get(req->svc))
		return false;
	if (!req->waited)
		nfr_svc_count(req->svc, memory_waits, 1);
	req->resume = resume;
	list_add_tail(&req->list, &nfr_svc_sink_waiters);
	return true;
}

/* --- pages --- */

static void nfr_svc_sink_free(struct nfr_svc_req *req)
{
	u32 i;

	for (i = 0; req->pages && i < req->npages; i++)
		if (req->pages[i])
			put_page(req->pages[i]);
	kvfree(req->pages);
	req->pages = NULL;
}

/* On failure, the pages that were allocated stay with the request. */
static int nfr_svc_sink_alloc(struct nfr_svc_req *req)
{
	unsigned long filled = 0, before;

	req->pages = kvcalloc(req->npages, sizeof(*req->pages), req->transfer.gfp);
	if (!req->pages)
		return -ENOMEM;
	nfr_svc_pages_take(req->svc, req->pages, req->npages);
	/* the bulk allocator may stop early even if memory is available */
	do {
		before = filled;
		filled = nfr_compat_alloc_pages(req->transfer.gfp, req->npages, req->pages);
	} while (filled > before && filled < req->npages);
	return filled == req->npages ? 0 : -ENOMEM;
}

/**
 * nfr_svc_sink_again - release the pages of a request and queue it for another attempt
 * @req: charged request, for which pages or MRs of the device are short
 * @resume: function that a worker calls for the next attempt
 *
 * Return: -EINPROGRESS or -ENOTCONN, as for nfr_svc_sink_get().
 */
int nfr_svc_sink_again(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	unsigned long delay = gfpflags_allow_blocking(req->transfer.gfp) ? NFR_SINK_RETRY : 0;
	bool waits;

	nfr_svc_sink_free(req);
	spin_lock_bh(&nfr_svc_sink_lock);
	nfr_svc_sink_uncharge(req);
	waits = nfr_svc_sink_wait(req, resume);
	spin_unlock_bh(&nfr_svc_sink_lock);
	/* retry at once if only this context could not block, because the worker can */
	nfr_work_queue(&nfr_svc_sink_later, delay);
	return waits ? -EINPROGRESS : -ENOTCONN;
}

/**
 * nfr_svc_sink_get - allocate sink pages for a request
 * @req: request with @npages set
 * @resume: function that a worker calls if the request has to wait
 *
 * Return: 0, -EINPROGRESS if the request waits, or -ENOTCONN if the connection is
 * closing.
 */
int nfr_svc_sink_get(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	bool waits = false;
	int rc;

	spin_lock_bh(&nfr_svc_sink_lock);
	rc = nfr_svc_sink_charge(req);
	if (rc)
		waits = nfr_svc_sink_wait(req, resume);
	if (rc == -ENOMEM && waits)
		nfr_svc_sink_starved = true;
	spin_unlock_bh(&nfr_svc_sink_lock);
	if (rc)
		return waits ? -EINPROGRESS : -ENOTCONN;
	if (!nfr_svc_sink_alloc(req))
		return 0;
	nfr_svc_sink_count_shortage();
	return nfr_svc_sink_again(req, resume);
}

/**
 * nfr_svc_sink_put - undo nfr_svc_sink_get()
 * @req: request with or without pages
 */
void nfr_svc_sink_put(struct nfr_svc_req *req)
{
	bool waiters;

	if (!req->pages)
		return;
	nfr_svc_pages_give(req->svc, req->pages, req->npages);
	kvfree(req->pages);
	req->pages = NULL;
	spin_lock_bh(&nfr_svc_sink_lock);
	nfr_svc_sink_uncharge(req);
	waiters = !list_empty(&nfr_svc_sink_waiters);
	spin_unlock_bh(&nfr_svc_sink_lock);
	if (waiters)
		nfr_svc_sink_kick();
}

/* --- waiting requests --- */

static struct nfr_svc_req *nfr_svc_sink_next(struct list_head *waiters)
{
	struct nfr_svc_req *req = list_first_entry_or_null(waiters, struct nfr_svc_req, list);

	if (req)
		list_del(&req->list);
	return req;
}

/* Retry each waiting request once. Those that fail queue up again in the same order. */
static void nfr_svc_sink_work(struct work_struct *work)
{
	struct nfr_svc_req *req;
	struct nfr_svc *svc;
	LIST_HEAD(waiters);

	spin_lock_bh(&nfr_svc_sink_lock);
	list_splice_init(&nfr_svc_sink_waiters, &waiters);
	nfr_svc_sink_starved = false;
	spin_unlock_bh(&nfr_svc_sink_lock);
	while ((req = nfr_svc_sink_next(&waiters))) {
		svc = req->svc;
		req->waited = true;
		req->transfer.gfp = NFR_GFP_RETRIED;
		req->resume(req);
		nfr_svc_put(svc);
	}
}

/* Retry waiting requests after pages were freed or a connection broke. */
void nfr_svc_sink_kick(void)
{
	nfr_work_hurry(&nfr_svc_sink_later);
}

/* Get the number of sink pages of all connections. */
u32 nfr_svc_sink_in_use(void)
{
	return READ_ONCE(nfr_svc_sink_total);
}

/* Stop the worker when the module is unloaded. No connection exists any more. */
void nfr_svc_sink_stop(void)
{
	cancel_delayed_work_sync(&nfr_svc_sink_later);
}
