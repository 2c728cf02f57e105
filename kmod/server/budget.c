// SPDX-License-Identifier: GPL-2.0-only
/*
 * Budget: the pages that Replies hold until the client's device acknowledges them.
 *
 * A client that requests much data and acknowledges nothing must not pin all memory of the host:
 * the parameter server_memory limits the pages of all connections, and one connection may use a
 * quarter of it, or more if it is alone. A Call is charged for the RDMA Writes that it allows
 * before an nfsd thread takes it, so that no thread waits for memory. Calls without Write or Reply
 * chunks are not charged. A Reply that its client reads is charged until the client says that it
 * is done, or is too late.
 *
 * The budget is separate from the pages of RDMA Reads: a Call that holds pages with its data may
 * wait for its Reply's, and in a common budget it would wait for itself.
 */
#include "params.h"
#include "server/budget.h"
#include "server/server.h"

static DEFINE_SPINLOCK(nfr_svc_budget_lock);
static LIST_HEAD(nfr_svc_budget_waiters);
static u32 nfr_svc_budget_total;

/**
 * nfr_svc_budget_room - compute the maximum number of pages that a Reply may hold
 * @req: Call, whose chunks limit the Reply, as does the service; for a client without private
 *	data, what a Send can carry
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
	return max_t(u32, DIV_ROUND_UP(min_t(u64, bytes, req->svc->max_message), PAGE_SIZE),
		     req->svc->long_pages);
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
