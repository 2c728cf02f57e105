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
 *
 * Pages of nfsd threads would be freed after a Call and allocated for the next one. Where the
 * kernel clears allocated pages (init_on_alloc), that costs more than the data's way over RDMA.
 * Reply: nfsd replaces pages of its thread with pages of the page cache (splice), and frees its
 * own. sunrpc frees the pages that a Reply used, and allocates others before the next Call. Here
 * a request keeps the thread's pages alive, and exchanges them for those of the Reply, which it
 * keeps until the RDMA Writes are complete. Call: an nfsd thread takes over the pages that RDMA
 * Reads filled, and leaves as many of its own. The connection keeps these for the next RDMA
 * Reads, within the limits.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "gfp.h"
#include "memory/region.h"
#include "params.h"
#include "server/memory.h"
#include "server/server.h"
#include "work.h"

/* Delay after an allocation failure */
#define NFR_SINK_RETRY	(HZ / 10)

/* --- pages of nfsd threads: Replies --- */

/**
 * nfr_svc_pages_room - make room for pages that a request keeps
 * @req: request that keeps none
 * @count: number of pages
 *
 * Return: false if an allocation failed.
 */
bool nfr_svc_pages_room(struct nfr_svc_req *req, u32 count)
{
	if (count <= req->kept_room)
		return true;
	kvfree(req->kept);
	req->kept = kvmalloc_array(count, sizeof(*req->kept), req->transfer.gfp);
	req->kept_room = req->kept ? count : 0;
	return req->kept;
}

/**
 * nfr_svc_pages_keep - keep the pages of a thread that nfsd may replace
 * @req: Call
 * @rqstp: thread's request; its rq_respages is set
 * @room: maximum length of the Reply in pages
 */
void nfr_svc_pages_keep(struct nfr_svc_req *req, const struct svc_rqst *rqstp, u32 room)
{
	struct page **pages = rqstp->rq_respages + 1;
	/* data that is not aligned occupies one page more */
	u32 i, count = min_t(u32, room + 1, rqstp->rq_page_end - pages);

	if (!nfr_svc_pages_room(req, count))
		return;
	for (i = 0; i < count && pages[i]; i++) {
		get_page(pages[i]);
		req->kept[i] = pages[i];
	}
	req->nkept = i;
}

static __always_inline void nfr_svc_pages_drop_from(struct nfr_svc_req *req, u32 first)
{
	while (req->nkept > first)
		put_page(req->kept[--req->nkept]);
}

/**
 * nfr_svc_pages_drop - release the pages that a request keeps
 * @req: request whose RDMA Writes are complete, or hold their pages
 */
void nfr_svc_pages_drop(struct nfr_svc_req *req)
{
	nfr_svc_pages_drop_from(req, 0);
}

/* Check that RDMA Writes take data from the @count pages after the first only, if at all. */
static __always_inline bool nfr_svc_pages_are_apart(const struct nfr_svc_req *req,
						    const struct svc_rqst *rqstp, u32 count)
{
	const struct xdr_buf *res = &rqstp->rq_res;
	const struct nfr_result *last;
	u32 end;

	if (req->by_chunk)
		return false;
	if (!req->nresults)
		return true;
	if (res->pages != rqstp->rq_respages + 1 || req->results[0].offset < res->head[0].iov_len)
		return false;
	last = &req->results[req->nresults - 1];
	end = last->offset + last->length - res->head[0].iov_len;
	return end <= res->page_len && PFN_UP(res->page_base + end) <= count;
}

/*
 * Check that each page of the Reply after the first was replaced, or that no RDMA
 * Write uses it.
 */
static __always_inline bool nfr_svc_pages_were_replaced(const struct nfr_svc_req *req,
							struct page **pages, u32 count)
{
	u32 i;

	if (count > req->nkept)
		return false;
	for (i = 0; i < count; i++)
		if (pages[i] == req->kept[i] && req->nresults)
			return false;
	return true;
}

/*
 * Give the thread its pages back, and take those of the Reply, so that sunrpc has no
 * page of the Reply to free. Returns false if an RDMA Write uses a page of the
 * thread, or one that is not known. If nfsd deferred the Call, the pages that the
 * request keeps are those of the thread that took it: they must not become pages of
 * this thread as well.
 */
static __always_inline bool nfr_svc_pages_exchange(struct nfr_svc_req *req,
						   struct svc_rqst *rqstp)
{
	struct page **pages = rqstp->rq_respages + 1;
	u32 i, count = rqstp->rq_next_page - pages;

	if (rqstp->rq_deferred || !nfr_svc_pages_are_apart(req, rqstp, count) ||
	    !nfr_svc_pages_were_replaced(req, pages, count))
		return false;
	for (i = 0; i < count; i++)
		swap(pages[i], req->kept[i]);
	rqstp->rq_next_page = rqstp->rq_respages;
	/* without results, the pages may be the thread's own */
	nfr_svc_pages_drop_from(req, req->nresults ? count : 0);
	return true;
}

/**
 * nfr_svc_pages_restore - keep the pages of a Reply until its RDMA Writes are complete
 * @req: request with its RDMA Writes prepared
 * @rqstp: thread's request with the Reply in rq_res, or NULL for a threadless read
 *
 * The thread gets its pages back, if possible. Otherwise sunrpc frees them and those
 * of the Reply, and the RDMA Writes hold references. A threadless read has taken its pages from
 * the file.
 */
void nfr_svc_pages_restore(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	if (!rqstp && nfr_mem_transfer_is_empty(&req->transfer))
		nfr_svc_pages_drop(req);
	if (!rqstp || nfr_svc_pages_exchange(req, rqstp))
		return;
	nfr_mem_transfer_hold(&req->transfer);
	nfr_svc_pages_drop(req);
}

/**
 * nfr_svc_pages_lend - keep the pages of a Reply until its client has read them
 * @req: request, @by_chunk if its client reads more than its result
 * @rqstp: thread's request with the Reply in rq_res
 * @span: memory that the client reads; consumed
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_svc_pages_lend(struct nfr_svc_req *req, struct svc_rqst *rqstp, struct nfr_span *span)
{
	struct nfr_piece piece;

	if (nfr_svc_pages_exchange(req, rqstp))
		return 0;
	nfr_svc_pages_drop(req);
	/* head, pages and tail, each of which may begin and end within a page */
	if (!nfr_svc_pages_room(req, PFN_UP(nfr_mem_span_length(span)) + 6))
		return -ENOMEM;
	while (nfr_mem_span_peek(span, &piece)) {
		get_page(piece.page);
		req->kept[req->nkept++] = piece.page;
		nfr_mem_span_skip(span, piece.length);
	}
	return 0;
}

/* --- pages of nfsd threads: Calls --- */

static atomic_t nfr_svc_pages_total;

/* Returns false if the page has another user, or if the limit is reached. */
static bool nfr_svc_pages_spare(struct nfr_svc *svc, struct page *page)
{
	if (page_count(page) != 1 || svc->nspares == NFR_SVC_SPARES)
		return false;
	svc->spares[svc->nspares++] = page;
	return true;
}

static u32 nfr_svc_pages_limit(u32 count)
{
	u32 limit = nfr_params_server_pages() / NFR_SVC_SHARE;
	u32 total = atomic_read(&nfr_svc_pages_total);

	return min(count, limit - min(limit, total));
}

/*
 * Keep pages of a thread for RDMA Reads to come. Their order changes, and those that the
 * connection does not keep are freed. All connections together keep a quarter of server_memory
 * at most.
 */
static void nfr_svc_pages_give(struct nfr_svc *svc, struct page **pages, u32 count)
{
	u32 i, left = 0, room = nfr_svc_pages_limit(count);

	spin_lock_bh(&svc->lock);
	for (i = 0; i < count; i++)
		if (i >= room || !nfr_svc_pages_spare(svc, pages[i]))
			pages[left++] = pages[i];
	spin_unlock_bh(&svc->lock);
	atomic_add(count - left, &nfr_svc_pages_total);
	for (i = 0; i < left; i++)
		put_page(pages[i]);
}

/* Take up to @count pages that were kept. Returns their number. */
static u32 nfr_svc_pages_take(struct nfr_svc *svc, struct page **pages, u32 count)
{
	spin_lock_bh(&svc->lock);
	count = min(count, svc->nspares);
	svc->nspares -= count;
	memcpy(pages, svc->spares + svc->nspares, count * sizeof(*pages));
	spin_unlock_bh(&svc->lock);
	atomic_sub(count, &nfr_svc_pages_total);
	return count;
}

/**
 * nfr_svc_pages_free - free the pages that a connection keeps
 * @svc: connection that is idle, or about to be freed
 */
void nfr_svc_pages_free(struct nfr_svc *svc)
{
	struct page *pages[NFR_BATCH];
	u32 n;

	while ((n = nfr_svc_pages_take(svc, pages, NFR_BATCH)))
		while (n)
			put_page(pages[--n]);
}

/* --- sink pages --- */

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

static void nfr_svc_budget_wake_first(void)
{
	struct nfr_svc *svc = list_first_entry_or_null(&nfr_svc_budget_waiters, struct nfr_svc,
						       starved);

	if (svc)
		nfr_svc_wake(svc);
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

/* Charge a request for more pages. Caller holds the lock. */
static void nfr_svc_budget_add(struct nfr_svc_req *req, u32 pages)
{
	nfr_svc_budget_total += pages;
	req->svc->reply_pages += pages;
	req->reply_pages += pages;
}

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
		nfr_svc_budget_add(req, pages);
		nfr_svc_budget_unlist(svc);
	}
	spin_unlock_bh(&nfr_svc_budget_lock);
	return fits;
}

/**
 * nfr_svc_budget_try - charge a Call for the pages of its Reply, or leave it uncharged
 * @req: request without a charge
 * @pages: number of pages
 *
 * Return: false if the budget does not suffice, or others wait for it.
 */
bool nfr_svc_budget_try(struct nfr_svc_req *req, u32 pages)
{
	u32 limit = nfr_params_server_pages();
	struct nfr_svc *svc = req->svc;
	bool fits;

	spin_lock_bh(&nfr_svc_budget_lock);
	fits = list_empty(&nfr_svc_budget_waiters) && nfr_svc_budget_total + pages <= limit &&
	       svc->reply_pages + pages <= limit / NFR_SVC_SHARE;
	if (fits)
		nfr_svc_budget_add(req, pages);
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
		nfr_svc_wake(svc);
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
	if (pages <= req->reply_pages)
		return;
	spin_lock_bh(&nfr_svc_budget_lock);
	nfr_svc_budget_add(req, pages - req->reply_pages);
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

/* Get the number of pages charged to Replies of all connections. */
u32 nfr_svc_budget_in_use(void)
{
	return READ_ONCE(nfr_svc_budget_total);
}
