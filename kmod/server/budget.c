// SPDX-License-Identifier: GPL-2.0-only
/*
 * Budget for the pages that Replies hold until the client's device acknowledges
 * them.
 *
 * A client that requests much data and acknowledges nothing must not pin all
 * memory of the host. The parameter server_memory limits the pages of all
 * Replies, and one connection may use a quarter of it. A Call is charged for
 * the RDMA Writes that it allows before an nfsd thread takes it, so that no
 * thread waits for memory. Calls without Write or Reply chunks are not charged.
 *
 * This budget is separate from that of RDMA Reads (server/sink.c): a Call that
 * holds pages with its data may wait here, and in a common budget it would wait
 * for itself.
 */
#include "server/server.h"

/* Divisor for the share of one connection. A Reply that is alone may exceed share and limit. */
#define NFR_BUDGET_SHARE	4

static DEFINE_SPINLOCK(nfr_budget_lock);
static LIST_HEAD(nfr_budget_waiters);
static u32 nfr_budget_total;

/**
 * nfr_budget_room - compute the maximum number of pages that a Reply may hold
 * @req: Call, whose chunks limit the Reply, as does the service
 *
 * Return: number of pages.
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

/* --- waiting connections; caller holds the lock --- */

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

/* Connections that wait for the global budget take turns, in FIFO order. */
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

/* --- charging --- */

/* Returns false if the request has to wait for the end of another Reply. Caller holds the lock. */
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
 * nfr_budget_charge - charge a Call for the pages that its Reply may hold
 * @req: request in nfr_svc.ready; the caller holds nfr_svc.lock
 * @pages: result of nfr_budget_room(), not 0
 *
 * Return: false if the budget does not suffice; the connection is enqueued
 * again when pages become available.
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
 * nfr_budget_keep - lower the charge to what the Reply holds
 * @req: request, charged or not
 * @bytes: bytes of the RDMA Writes of the Reply; 0 when they are complete
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
 * nfr_budget_leave - cancel the wait of a connection
 * @svc: connection that is broken or about to be freed
 */
void nfr_budget_leave(struct nfr_svc *svc)
{
	spin_lock(&nfr_budget_lock);
	svc->short_of_share = false;
	nfr_budget_unlist(svc);
	spin_unlock(&nfr_budget_lock);
}

/**
 * nfr_budget_in_use - get the number of pages charged to Replies
 *
 * Return: pages of all connections.
 */
u32 nfr_budget_in_use(void)
{
	return READ_ONCE(nfr_budget_total);
}
