// SPDX-License-Identifier: GPL-2.0-only
/*
 * Budget: the pages that Replies hold until the client's device acknowledges them.
 *
 * A client that requests much data and acknowledges nothing must not pin all memory of the host:
 * its share limits the pages, see share.c. A Call is charged for the RDMA Writes that it allows
 * before an nfsd thread takes it, so that no thread waits for memory. Calls without Write or Reply
 * chunks are not charged. A Reply that its client reads is charged until the client says that it
 * is done, or is too late.
 *
 * The budget is separate from the pages of RDMA Reads: a Call that holds pages with its data may
 * wait for its Reply's, and in a common budget it would wait for itself.
 */
#include "server/budget.h"
#include "server/server.h"
#include "server/share.h"

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

/* --- waiting connections; caller holds the lock of share.c --- */

/* Let the connection that has waited longest try again. */
static void nfr_svc_budget_wake(struct nfr_svc_host *host)
{
	struct nfr_svc *svc = list_first_entry_or_null(&host->starved, struct nfr_svc, starved);

	if (svc)
		nfr_svc_wake(svc);
}

static void nfr_svc_budget_unlist(struct nfr_svc *svc)
{
	struct nfr_svc_host *host = svc->host;

	if (!list_empty(&svc->starved)) {
		list_del_init(&svc->starved);
		nfr_svc_budget_wake(host);
	}
	if (list_empty(&host->starved))
		nfr_svc_share_rest(nfr_svc_budget_share(svc));
}

static void nfr_svc_budget_enlist(struct nfr_svc *svc)
{
	if (!list_empty(&svc->starved) || !nfr_conn_is_up(svc->conn))
		return;
	list_add_tail(&svc->starved, &svc->host->starved);
	nfr_svc_count(svc, memory_waits, 1);
}

/* --- charging --- */

/**
 * nfr_svc_budget_wait - charge a Call for its Reply, or have its connection wait
 * @req: request in nfr_svc_first.ready; the caller holds its lock
 * @pages: result of nfr_svc_budget_room(), not 0
 *
 * Return: false if the share does not suffice; the connection is enqueued again when pages
 * become available.
 */
bool nfr_svc_budget_wait(struct nfr_svc_req *req, u32 pages)
{
	struct nfr_svc *svc = req->svc;
	bool fits;

	spin_lock_bh(&nfr_svc_shares_lock);
	/* connections of a client take turns, in FIFO order */
	fits = nfr_svc_share_is_turn(&svc->host->starved, &svc->starved) &&
	       nfr_svc_share_charge(nfr_svc_budget_share(svc), pages);
	if (fits)
		req->reply_pages += pages;
	else
		nfr_svc_budget_enlist(svc);
	if (fits || list_empty(&svc->starved))
		nfr_svc_budget_unlist(svc);
	spin_unlock_bh(&nfr_svc_shares_lock);
	return fits;
}

/**
 * nfr_svc_budget_try - charge a Call for the pages of its Reply, or leave it uncharged
 * @req: request without a charge
 * @pages: number of pages
 *
 * Return: false if the share does not suffice, or others wait for it.
 */
bool nfr_svc_budget_try(struct nfr_svc_req *req, u32 pages)
{
	struct nfr_svc_share *share = nfr_svc_budget_share(req->svc);
	bool fits = nfr_svc_share_try(share, pages);

	if (!fits) {
		spin_lock_bh(&nfr_svc_shares_lock);
		if (list_empty(&req->svc->host->starved)) {
			fits = nfr_svc_share_charge(share, pages);
			nfr_svc_share_rest(share);
		}
		spin_unlock_bh(&nfr_svc_shares_lock);
	}
	if (fits)
		req->reply_pages += pages;
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

	if (!back)
		return;
	req->reply_pages -= back;
	nfr_svc_share_put(nfr_svc_budget_share(req->svc), back);
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
	atomic_sub(pages - req->reply_pages, &nfr_svc_budget_share(req->svc)->room);
	req->reply_pages = pages;
}

/**
 * nfr_svc_budget_is_wanted - check whether others wait for memory that a connection may hold
 * @svc: connection
 *
 * Return: true if another client waits for it, or another connection of the same one.
 */
bool nfr_svc_budget_is_wanted(const struct nfr_svc *svc)
{
	bool wanted;

	spin_lock_bh(&nfr_svc_shares_lock);
	wanted = nfr_svc_share_is_wanted(nfr_svc_budget_share(svc)) ||
		 nfr_svc_share_others_wait(&svc->host->starved, &svc->starved);
	spin_unlock_bh(&nfr_svc_shares_lock);
	return wanted;
}

/**
 * nfr_svc_budget_is_waiting - check whether Calls of a connection wait for memory for their Replies
 * @svc: connection
 *
 * Return: true if they do.
 */
bool nfr_svc_budget_is_waiting(const struct nfr_svc *svc)
{
	bool waiting;

	spin_lock_bh(&nfr_svc_shares_lock);
	waiting = !list_empty(&svc->starved);
	spin_unlock_bh(&nfr_svc_shares_lock);
	return waiting;
}

/**
 * nfr_svc_budget_leave - cancel the wait of a connection
 * @svc: connection that is broken or about to be freed
 */
void nfr_svc_budget_leave(struct nfr_svc *svc)
{
	if (!svc->host)
		return;
	spin_lock_bh(&nfr_svc_shares_lock);
	nfr_svc_budget_unlist(svc);
	spin_unlock_bh(&nfr_svc_shares_lock);
}

/**
 * nfr_svc_budget_init - initialize what clients of an address have for Replies
 * @host: new structure
 */
void nfr_svc_budget_init(struct nfr_svc_host *host)
{
	INIT_LIST_HEAD(&host->starved);
}

/* Prepare for connections. */
void nfr_svc_budget_start(void)
{
	nfr_svc_shares_wake_by(NFR_SVC_REPLIES, nfr_svc_budget_wake);
}
