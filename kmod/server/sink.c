// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sink pages: RDMA Reads place data in them until an nfsd thread takes it over.
 *
 * A client that announces much data and delivers it slowly must not use up the memory for the
 * other clients: its share limits the pages, see share.c. Requests that find no room wait in a list
 * of their client, in FIFO order, with a function that resumes them. Whatever returns pages wakes
 * those of one client, and the worker resumes as many as there is room for.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "gfp.h"
#include "server/pages.h"
#include "server/server.h"
#include "server/share.h"
#include "server/sink.h"
#include "work.h"

/* Delay after an allocation failure */
#define NFR_SINK_RETRY	(HZ / 10)

static atomic_t nfr_svc_sink_short;

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

static struct nfr_svc_share *nfr_svc_sink_share(const struct nfr_svc *svc)
{
	return &svc->host->shares[NFR_SVC_READS];
}

/* --- waiting requests; caller holds the lock of share.c --- */

/* Resume requests that wait, if there are any. */
static void nfr_svc_sink_wake(struct nfr_svc_host *host)
{
	if (!list_empty(&host->sinking))
		nfr_work_hurry(&host->sink_work);
}

/* A waiting request holds a reference to its connection. Returns false if that is closing. */
static bool nfr_svc_sink_wait(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	struct nfr_svc_host *host = req->svc->host;

	if (!nfr_conn_is_up(req->svc->conn) || !nfr_svc_get(req->svc))
		return false;
	if (!req->waited)
		nfr_svc_count(req->svc, memory_waits, 1);
	req->resume = resume;
	list_add_tail(&req->list, &host->sinking);
	host->nsinking++;
	nfr_svc_share_want(nfr_svc_sink_share(req->svc));
	return true;
}

static bool nfr_svc_sink_charge(struct nfr_svc_req *req)
{
	if (!nfr_svc_share_charge(nfr_svc_sink_share(req->svc), req->npages))
		return false;
	req->sunk = req->npages;
	return true;
}

static void nfr_svc_sink_rest(struct nfr_svc_host *host)
{
	if (list_empty(&host->sinking))
		nfr_svc_share_rest(&host->shares[NFR_SVC_READS]);
}

/* --- charging --- */

static void nfr_svc_sink_uncharge(struct nfr_svc_req *req)
{
	u32 pages = req->sunk;

	req->sunk = 0;
	nfr_svc_share_put(nfr_svc_sink_share(req->svc), pages);
}

/* Charge a request, or have it wait. Returns 0, -EINPROGRESS or -ENOTCONN. */
static int nfr_svc_sink_enter(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	struct nfr_svc_host *host = req->svc->host;
	int rc = 0;

	spin_lock_bh(&nfr_svc_shares_lock);
	if (!list_empty(&host->sinking) || !nfr_svc_sink_charge(req))
		rc = nfr_svc_sink_wait(req, resume) ? -EINPROGRESS : -ENOTCONN;
	nfr_svc_sink_rest(host);
	spin_unlock_bh(&nfr_svc_shares_lock);
	return rc;
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
	struct nfr_svc_host *host = req->svc->host;
	bool waits;

	nfr_svc_sink_free(req);
	nfr_svc_sink_uncharge(req);
	spin_lock_bh(&nfr_svc_shares_lock);
	waits = nfr_svc_sink_wait(req, resume);
	/* retry at once if only this context could not block, because the worker can */
	if (waits)
		nfr_work_queue(&host->sink_work, delay);
	spin_unlock_bh(&nfr_svc_shares_lock);
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
	int rc;

	/* a request that waited is charged already */
	if (!req->sunk && nfr_svc_share_try(nfr_svc_sink_share(req->svc), req->npages))
		req->sunk = req->npages;
	rc = req->sunk ? 0 : nfr_svc_sink_enter(req, resume);
	if (rc)
		return rc;
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
	if (!req->sunk)
		return;
	if (req->pages)
		nfr_svc_pages_give(req->svc, req->pages, req->npages);
	kvfree(req->pages);
	req->pages = NULL;
	nfr_svc_sink_uncharge(req);
}

/* --- resuming --- */

/* Take the request that has waited longest, and charge it. Returns NULL if there is no room. */
static struct nfr_svc_req *nfr_svc_sink_next(struct nfr_svc_host *host)
{
	struct nfr_svc_req *req;

	spin_lock_bh(&nfr_svc_shares_lock);
	req = list_first_entry_or_null(&host->sinking, struct nfr_svc_req, list);
	/* one whose connection is closing ends without a charge */
	if (req && nfr_conn_is_up(req->svc->conn) && !nfr_svc_sink_charge(req))
		req = NULL;
	if (req) {
		list_del(&req->list);
		host->nsinking--;
	}
	nfr_svc_sink_rest(host);
	spin_unlock_bh(&nfr_svc_shares_lock);
	return req;
}

/* Resume requests of a client as far as there is room. Those that fail again queue up again. */
static void nfr_svc_sink_work(struct work_struct *work)
{
	struct nfr_svc_host *host = container_of(work, struct nfr_svc_host, sink_work.work);
	u32 count = READ_ONCE(host->nsinking);
	struct nfr_svc_req *req;
	struct nfr_svc *svc;

	while (count-- && (req = nfr_svc_sink_next(host))) {
		svc = req->svc;
		req->waited = true;
		req->transfer.gfp = NFR_GFP_RETRIED;
		req->resume(req);
		nfr_svc_put(svc);
	}
	/* requests that arrived meanwhile, or found no memory again */
	if (READ_ONCE(host->nsinking))
		nfr_work_queue(&host->sink_work, NFR_SINK_RETRY);
}

/**
 * nfr_svc_sink_is_wanted - check whether others wait for memory that a connection may hold
 * @svc: connection
 *
 * Return: true if another client waits for it, or another connection of the same one.
 */
bool nfr_svc_sink_is_wanted(const struct nfr_svc *svc)
{
	struct nfr_svc_req *req;
	bool wanted;

	spin_lock_bh(&nfr_svc_shares_lock);
	wanted = nfr_svc_share_is_wanted(nfr_svc_sink_share(svc));
	list_for_each_entry(req, &svc->host->sinking, list)
		wanted |= req->svc != svc;
	spin_unlock_bh(&nfr_svc_shares_lock);
	return wanted;
}

/**
 * nfr_svc_sink_leave - end the wait of the requests of a connection
 * @svc: connection that broke
 */
void nfr_svc_sink_leave(struct nfr_svc *svc)
{
	struct nfr_svc_host *host = svc->host;
	struct nfr_svc_req *req, *next;
	LIST_HEAD(leaving);

	spin_lock_bh(&nfr_svc_shares_lock);
	list_for_each_entry_safe(req, next, &host->sinking, list)
		if (req->svc == svc)
			list_move_tail(&req->list, &leaving);
	list_splice(&leaving, &host->sinking);
	nfr_svc_sink_wake(host);
	spin_unlock_bh(&nfr_svc_shares_lock);
}

/**
 * nfr_svc_sink_init - initialize what clients of an address have for RDMA Reads
 * @host: new structure
 */
void nfr_svc_sink_init(struct nfr_svc_host *host)
{
	INIT_LIST_HEAD(&host->sinking);
	INIT_DELAYED_WORK(&host->sink_work, nfr_svc_sink_work);
}

/**
 * nfr_svc_sink_destroy - undo nfr_svc_sink_init()
 * @host: structure that no connection uses
 *
 * Context: Sleeps.
 */
void nfr_svc_sink_destroy(struct nfr_svc_host *host)
{
	cancel_delayed_work_sync(&host->sink_work);
}

/* Prepare for connections. */
void nfr_svc_sink_start(void)
{
	nfr_svc_shares_wake_by(NFR_SVC_READS, nfr_svc_sink_wake);
}
