// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits for the memory that clients can make the server hold. The parameter
 * server_memory limits the pages of all connections, and one connection may use a
 * quarter of it, or more if it is alone; separately for RDMA Reads and for
 * Replies.
 *
 * Sink pages: RDMA Reads place data in them until an nfsd thread takes it over.
 * A client that announces much data and delivers it slowly must not use up the
 * memory for the other clients. Requests above the limits wait in FIFO order, with
 * a function that resumes them.
 *
 * Budget: the pages that Replies hold until the client's device acknowledges them.
 * A client that requests much data and acknowledges nothing must not pin all
 * memory of the host. A Call is charged for the RDMA Writes that it allows before
 * an nfsd thread takes it, so that no thread waits for memory. Calls without Write
 * or Reply chunks are not charged. A Reply that its client reads is charged until the
 * client says that it is done, or is too late.
 *
 * The two are separate: a Call that holds pages with its data may wait for its
 * Reply's, and in a common budget it would wait for itself.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "gfp.h"
#include "params.h"
#include "server/memory.h"
#include "server/pages.h"
#include "server/server.h"
#include "work.h"

/* Delay after an allocation failure */
#define NFR_SINK_RETRY	(HZ / 10)

/* --- sink pages --- */

static DEFINE_SPINLOCK(nfr_svc_sink_lock);
static LIST_HEAD(nfr_svc_sink_waiters);
static u32 nfr_svc_sink_total;
static bool nfr_svc_sink_starved;
static atomic_t nfr_svc_sink_short;

static void nfr_svc_sink_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_svc_sink_later, nfr_svc_sink_work);

/**
 * nfr_svc_sink_count_shortage - count an allocation failure of a message or an RDMA Read
 */
void nfr_svc_sink_count_shortage(void)
{
	atomic_inc(&nfr_svc_sink_short);
}

/**
 * nfr_svc_sink_shortages - get the number of allocation failures
 *
 * Return: number since the module was loaded.
 */
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
	if (!nfr_conn_is_up(req->svc->conn) || !kref_get_unless_zero(&req->svc->xprt.xpt_ref))
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
	struct svc_xprt *xprt;
	LIST_HEAD(waiters);

	spin_lock_bh(&nfr_svc_sink_lock);
	list_splice_init(&nfr_svc_sink_waiters, &waiters);
	nfr_svc_sink_starved = false;
	spin_unlock_bh(&nfr_svc_sink_lock);
	while ((req = nfr_svc_sink_next(&waiters))) {
		xprt = &req->svc->xprt;
		req->waited = true;
		req->transfer.gfp = NFR_GFP_RETRIED;
		req->resume(req);
		svc_xprt_put(xprt);
	}
}

/**
 * nfr_svc_sink_kick - retry waiting requests after pages were freed or a connection broke
 */
void nfr_svc_sink_kick(void)
{
	nfr_work_hurry(&nfr_svc_sink_later);
}

/**
 * nfr_svc_sink_in_use - get the number of sink pages
 *
 * Return: pages of all connections.
 */
u32 nfr_svc_sink_in_use(void)
{
	return READ_ONCE(nfr_svc_sink_total);
}

/**
 * nfr_svc_sink_stop - stop the worker when the module is unloaded
 *
 * No connection exists any more.
 */
void nfr_svc_sink_stop(void)
{
	cancel_delayed_work_sync(&nfr_svc_sink_later);
}

/* --- budget of Replies --- */

static DEFINE_SPINLOCK(nfr_svc_budget_lock);
static LIST_HEAD(nfr_svc_budget_waiters);
static u32 nfr_svc_budget_total;

/**
 * nfr_svc_budget_room - compute the maximum number of pages that a Reply may hold
 * @req: Call, whose chunks limit the Reply, as does the service
 *
 * Return: number of pages.
 */
u32 nfr_svc_budget_room(const struct nfr_svc_req *req)
{
	const struct nfr_header *head = &req->head;
	u64 bytes = head->reply ? nfr_wire_length(head->reply) : 0;
	u32 i;

	for (i = 0; i < head->nwrites; i++)
		bytes += nfr_wire_length(&head->writes[i]);
	return DIV_ROUND_UP(min_t(u64, bytes, req->svc->max_message), PAGE_SIZE);
}

/* --- waiting connections; caller holds the lock --- */

static void nfr_svc_budget_wake(struct nfr_svc *svc)
{
	/* the Calls of a lane wait in the list of its home */
	svc = svc->home ?: svc;
	set_bit(XPT_DATA, &svc->xprt.xpt_flags);
	svc_xprt_enqueue(&svc->xprt);
}

static void nfr_svc_budget_wake_first(void)
{
	struct nfr_svc *svc = list_first_entry_or_null(&nfr_svc_budget_waiters, struct nfr_svc,
						       starved);

	if (svc)
		nfr_svc_budget_wake(svc);
}

static void nfr_svc_budget_unlist(struct nfr_svc *svc)
{
	if (list_empty(&svc->starved))
		return;
	list_del_init(&svc->starved);
	nfr_svc_budget_wake_first();
}

/* Connections that wait for the global budget take turns, in FIFO order. */
static bool nfr_svc_budget_is_turn(const struct nfr_svc *svc)
{
	return list_empty(&nfr_svc_budget_waiters) ||
	       list_first_entry(&nfr_svc_budget_waiters, struct nfr_svc, starved) == svc;
}

static void nfr_svc_budget_enlist(struct nfr_svc *svc)
{
	if (!list_empty(&svc->starved) || !nfr_conn_is_up(svc->conn))
		return;
	list_add_tail(&svc->starved, &nfr_svc_budget_waiters);
	nfr_svc_count(svc, memory_waits, 1);
}

/* --- charging --- */

/* Returns false if the request has to wait for the end of another Reply. Caller holds the lock. */
static bool nfr_svc_budget_fits(struct nfr_svc *svc, u32 pages)
{
	u32 limit = nfr_params_server_pages();

	if (svc->reply_pages && svc->reply_pages + pages > limit / NFR_SVC_SHARE) {
		nfr_svc_budget_unlist(svc);
		svc->short_of_share = true;
		return false;
	}
	if (nfr_svc_budget_is_turn(svc) &&
	    (!nfr_svc_budget_total || nfr_svc_budget_total + pages <= limit))
		return true;
	nfr_svc_budget_enlist(svc);
	return false;
}

/**
 * nfr_svc_budget_charge - charge a Call for the pages that its Reply may hold
 * @req: request in nfr_svc.ready; the caller holds nfr_svc.lock
 * @pages: result of nfr_svc_budget_room(), not 0
 *
 * Return: false if the budget does not suffice; the connection is enqueued
 * again when pages become available.
 */
bool nfr_svc_budget_charge(struct nfr_svc_req *req, u32 pages)
{
	struct nfr_svc *svc = req->svc;
	bool fits;

	spin_lock_bh(&nfr_svc_budget_lock);
	fits = nfr_svc_budget_fits(svc, pages);
	if (fits) {
		nfr_svc_budget_total += pages;
		svc->reply_pages += pages;
		req->reply_pages = pages;
		nfr_svc_budget_unlist(svc);
	}
	spin_unlock_bh(&nfr_svc_budget_lock);
	return fits;
}

/**
 * nfr_svc_budget_keep - lower the charge to what the Reply holds
 * @req: request, charged or not
 * @bytes: bytes of the RDMA Writes of the Reply; 0 when they are complete
 */
void nfr_svc_budget_keep(struct nfr_svc_req *req, u32 bytes)
{
	u32 back = req->reply_pages - min_t(u32, req->reply_pages, DIV_ROUND_UP(bytes, PAGE_SIZE));
	struct nfr_svc *svc = req->svc;

	if (!back)
		return;
	spin_lock_bh(&nfr_svc_budget_lock);
	req->reply_pages -= back;
	svc->reply_pages -= back;
	nfr_svc_budget_total -= back;
	if (svc->short_of_share) {
		svc->short_of_share = false;
		nfr_svc_budget_wake(svc);
	}
	nfr_svc_budget_wake_first();
	spin_unlock_bh(&nfr_svc_budget_lock);
}

/**
 * nfr_svc_budget_raise - raise the charge to what the Reply holds
 * @req: request, charged or not
 * @pages: number of pages
 *
 * A Call of 2003 does not limit its Reply, so that the limits are checked before an
 * nfsd thread takes the next Call: a Reply for each thread may exceed them.
 */
void nfr_svc_budget_raise(struct nfr_svc_req *req, u32 pages)
{
	struct nfr_svc *svc = req->svc;
	u32 more;

	if (pages <= req->reply_pages)
		return;
	more = pages - req->reply_pages;
	spin_lock_bh(&nfr_svc_budget_lock);
	req->reply_pages += more;
	svc->reply_pages += more;
	nfr_svc_budget_total += more;
	spin_unlock_bh(&nfr_svc_budget_lock);
}

/**
 * nfr_svc_budget_leave - cancel the wait of a connection
 * @svc: connection that is broken or about to be freed
 */
void nfr_svc_budget_leave(struct nfr_svc *svc)
{
	spin_lock_bh(&nfr_svc_budget_lock);
	svc->short_of_share = false;
	nfr_svc_budget_unlist(svc);
	spin_unlock_bh(&nfr_svc_budget_lock);
}

/**
 * nfr_svc_budget_in_use - get the number of pages charged to Replies
 *
 * Return: pages of all connections.
 */
u32 nfr_svc_budget_in_use(void)
{
	return READ_ONCE(nfr_svc_budget_total);
}
