// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pages that replies hold until the client's device acknowledges them.
 *
 * A client that asks for much and acknowledges nothing must not pin the memory
 * of the host: replies of all connections together hold as many pages as the
 * parameter server_memory says, and those of one connection a quarter of that.
 * A Call is charged with the room that it offers for RDMA Writes before an
 * nfsd thread takes it, so that no thread has to wait. Calls without such room
 * are never charged.
 *
 * The account is not that of RDMA Reads (server_sink.c): a Call that holds
 * pages with its data may wait here, and would wait for itself.
 */
#include "server.h"

/* A connection's share of all pages; a reply that is alone is taken whatever its size */
#define NFR_BUDGET_SHARE	4

static DEFINE_SPINLOCK(nfr_budget_lock);
static LIST_HEAD(nfr_budget_waiters);
static u32 nfr_budget_total;

/**
 * nfr_budget_room - pages that a reply may hold
 * @req: a Call; the client's chunks bound its reply, and so does nfsd
 */
u32 nfr_budget_room(const struct nfr_svc_req *req)
{
	const struct nfr_header *head = &req->head;
	u64 bytes = head->reply ? nfr_wire_length(head->reply) : 0;
	u32 i;

	for (i = 0; i < head->nwrites; i++)
		bytes += nfr_wire_length(&head->writes[i]);
	return DIV_ROUND_UP(min_t(u64, bytes, req->svc->max_message), PAGE_SIZE);
}

/* --- waiting; the lock is held --- */

static void nfr_budget_wake(struct nfr_svc *svc)
{
	set_bit(XPT_DATA, &svc->xprt.xpt_flags);
	svc_xprt_enqueue(&svc->xprt);
}

static void nfr_budget_wake_first(void)
{
	struct nfr_svc *svc = list_first_entry_or_null(&nfr_budget_waiters, struct nfr_svc,
						       starved);

	if (svc)
		nfr_budget_wake(svc);
}

static void nfr_budget_unlist(struct nfr_svc *svc)
{
	if (list_empty(&svc->starved))
		return;
	list_del_init(&svc->starved);
	nfr_budget_wake_first();
}

/* Connections that find too little for all take turns, in the order in which they came. */
static bool nfr_budget_is_turn(const struct nfr_svc *svc)
{
	return list_empty(&nfr_budget_waiters) ||
	       list_first_entry(&nfr_budget_waiters, struct nfr_svc, starved) == svc;
}

static void nfr_budget_enlist(struct nfr_svc *svc)
{
	if (!list_empty(&svc->starved) || !nfr_conn_is_up(svc->conn))
		return;
	list_add_tail(&svc->starved, &nfr_budget_waiters);
	nfr_svc_count(svc, memory_waits, 1);
}

/* --- accounts --- */

/* Returns false when the request has to wait: some other reply will end that. The lock is held. */
static bool nfr_budget_fits(struct nfr_svc *svc, u32 pages)
{
	u32 limit = nfr_params_server_pages();

	if (svc->reply_pages && svc->reply_pages + pages > limit / NFR_BUDGET_SHARE) {
		nfr_budget_unlist(svc);
		svc->short_of_share = true;
		return false;
	}
	if (nfr_budget_is_turn(svc) && (!nfr_budget_total || nfr_budget_total + pages <= limit))
		return true;
	nfr_budget_enlist(svc);
	return false;
}

/**
 * nfr_budget_charge - charge a Call with the pages that its reply may hold
 * @req: waits in its connection; nfr_svc.lock is held
 * @pages: from nfr_budget_room(), not 0
 *
 * Returns false when there is too little: its connection is enqueued again
 * when that has changed.
 */
bool nfr_budget_charge(struct nfr_svc_req *req, u32 pages)
{
	struct nfr_svc *svc = req->svc;
	bool fits;

	spin_lock(&nfr_budget_lock);
	fits = nfr_budget_fits(svc, pages);
	if (fits) {
		nfr_budget_total += pages;
		svc->reply_pages += pages;
		req->reply_pages = pages;
		nfr_budget_unlist(svc);
	}
	spin_unlock(&nfr_budget_lock);
	return fits;
}

/**
 * nfr_budget_keep - lower a request's charge to what its reply really holds
 * @req: charged or not
 * @bytes: that RDMA Writes of the reply move, 0 when it is over
 */
void nfr_budget_keep(struct nfr_svc_req *req, u32 bytes)
{
	u32 back = req->reply_pages - min_t(u32, req->reply_pages, DIV_ROUND_UP(bytes, PAGE_SIZE));
	struct nfr_svc *svc = req->svc;

	if (!back)
		return;
	spin_lock(&nfr_budget_lock);
	req->reply_pages -= back;
	svc->reply_pages -= back;
	nfr_budget_total -= back;
	if (svc->short_of_share) {
		svc->short_of_share = false;
		nfr_budget_wake(svc);
	}
	nfr_budget_wake_first();
	spin_unlock(&nfr_budget_lock);
}

/**
 * nfr_budget_leave - a connection waits no more
 * @svc: broken, or about to be freed
 */
void nfr_budget_leave(struct nfr_svc *svc)
{
	spin_lock(&nfr_budget_lock);
	svc->short_of_share = false;
	nfr_budget_unlist(svc);
	spin_unlock(&nfr_budget_lock);
}

/**
 * nfr_budget_in_use - pages that replies of all connections hold
 */
u32 nfr_budget_in_use(void)
{
	return READ_ONCE(nfr_budget_total);
}
