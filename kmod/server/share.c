// SPDX-License-Identifier: GPL-2.0-only
/*
 * Client addresses, and the pages that each may make the server hold: for RDMA Reads, and
 * separately for Replies.
 *
 * The connections of a client address in a network namespace have a share of each. A share
 * consists of
 *  - its floor, enough for the largest message. No other client can take it, so that nobody waits
 *    for a stranger. The parameter server_floors limits the sum of the floors. Clients without a
 *    floor share one, in turn.
 *  - pages that it borrowed from the stock. The parameter server_memory limits the stock, and one
 *    client may borrow a quarter of it.
 *
 * Charging and returning pages takes no lock: both change an atomic counter of the share. A share
 * borrows in batches, and keeps what it borrowed until another one finds too little in the stock:
 * that one collects what the others do not use, and until it has got its pages, others return
 * theirs at once. Shares that wait for the stock take turns, in FIFO order. While somebody waits, a
 * worker ends the connections of others that hold memory and do not acknowledge, see connection.c.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "gfp.h"
#include "params.h"
#include "server/server.h"
#include "server/share.h"
#include "work.h"

/* Pages to borrow at once */
#define NFR_SVC_BORROW	max(1u, (u32)(SZ_1M >> PAGE_SHIFT))

/* Interval of the check for clients that hold memory while others wait */
#define NFR_SVC_CHECK	(HZ / 2)

/*
 * struct nfr_svc_stock - pages of one use that clients may borrow
 * @wake: lets a client try again; called with the lock held
 * @urgent: a share waits for the stock, so that the others return what they do not use
 * @lent: number of pages that all shares borrowed
 * @waiting: shares that wait for the stock
 * @floorless: shares that wait for the shared floor
 * @guest: share that has the shared floor, or NULL
 */
struct nfr_svc_stock {
	void (*wake)(struct nfr_svc_host *host);
	bool urgent;
	u32 lent;
	struct list_head waiting;
	struct list_head floorless;
	struct nfr_svc_share *guest;
};

#define NFR_SVC_STOCK(use)							\
	[use] = {								\
		.waiting = LIST_HEAD_INIT(nfr_svc_stocks[use].waiting),		\
		.floorless = LIST_HEAD_INIT(nfr_svc_stocks[use].floorless),	\
	}

static struct nfr_svc_stock nfr_svc_stocks[NFR_SVC_PURPOSES] = {
	NFR_SVC_STOCK(NFR_SVC_READS),
	NFR_SVC_STOCK(NFR_SVC_REPLIES),
};

DEFINE_SPINLOCK(nfr_svc_shares_lock);
static LIST_HEAD(nfr_svc_hosts);
static u32 nfr_svc_floors_total;

/* Ends connections that hold memory for too long, while others wait */
static void (*nfr_svc_shares_check)(void);

static void nfr_svc_shares_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_svc_shares_checking, nfr_svc_shares_work);

/* --- waiting for the stock; callers hold the lock --- */

static void nfr_svc_stock_wake(struct nfr_svc_stock *stock, struct nfr_svc_share *share)
{
	if (share)
		stock->wake(share->host);
}

static void nfr_svc_stock_wake_first(struct nfr_svc_stock *stock)
{
	nfr_svc_stock_wake(stock, list_first_entry_or_null(&stock->waiting, struct nfr_svc_share,
							   waiting));
}

static void nfr_svc_stock_wake_floorless(struct nfr_svc_stock *stock)
{
	nfr_svc_stock_wake(stock, list_first_entry_or_null(&stock->floorless, struct nfr_svc_share,
							   floorless));
}

static void nfr_svc_stock_enlist(struct list_head *list, struct list_head *link)
{
	if (list_empty(link))
		list_add_tail(link, list);
}

/* End the wait for the stock. */
static void nfr_svc_share_unlist(struct nfr_svc_share *share)
{
	struct nfr_svc_stock *stock = &nfr_svc_stocks[share->use];

	if (!list_empty(&share->waiting)) {
		list_del_init(&share->waiting);
		nfr_svc_stock_wake_first(stock);
	}
	WRITE_ONCE(stock->urgent, !list_empty(&stock->waiting));
}

/* End the wait for the shared floor. */
static void nfr_svc_share_unlist_floorless(struct nfr_svc_share *share)
{
	struct nfr_svc_stock *stock = &nfr_svc_stocks[share->use];

	if (list_empty(&share->floorless))
		return;
	list_del_init(&share->floorless);
	if (!stock->guest)
		nfr_svc_stock_wake_floorless(stock);
}

/* --- borrowing; callers hold the lock --- */

/* Return borrowed pages that are not in use. Returns their number. */
static u32 nfr_svc_share_return(struct nfr_svc_share *share)
{
	u32 back;

	do {
		back = clamp_t(int, atomic_read(&share->room), 0, share->lent);
	} while (back && !nfr_svc_share_take(share, back));
	WRITE_ONCE(share->lent, share->lent - back);
	nfr_svc_stocks[share->use].lent -= back;
	return back;
}

/* Get the number of pages that one share may borrow. */
static u32 nfr_svc_share_limit(void)
{
	return nfr_params_server_pages() / NFR_SVC_SHARE;
}

static u32 nfr_svc_stock_free(const struct nfr_svc_stock *stock)
{
	u32 limit = nfr_params_server_pages();

	return limit - min(limit, stock->lent);
}

/* Have all clients return what they do not use, from now on. Returns false if they do already. */
static bool nfr_svc_stock_urge(enum nfr_svc_purpose use)
{
	struct nfr_svc_stock *stock = &nfr_svc_stocks[use];
	struct nfr_svc_host *host;

	if (stock->urgent)
		return false;
	WRITE_ONCE(stock->urgent, true);
	/* pairs with nfr_svc_share_put(): that sees @urgent, or its pages are collected here */
	smp_mb();
	list_for_each_entry(host, &nfr_svc_hosts, list)
		nfr_svc_share_return(&host->shares[use]);
	return true;
}

/* Lend @least pages, or a batch if no other share waits. Returns false if the stock has less. */
static bool nfr_svc_stock_lend(struct nfr_svc_share *share, u32 least)
{
	struct nfr_svc_stock *stock = &nfr_svc_stocks[share->use];
	u32 pages = least, most = nfr_svc_share_limit() - share->lent;

	if (nfr_svc_stock_free(stock) < least)
		return false;
	if (!stock->urgent)
		pages = min3(max(least, NFR_SVC_BORROW), nfr_svc_stock_free(stock), most);
	stock->lent += pages;
	WRITE_ONCE(share->lent, share->lent + pages);
	atomic_add(pages, &share->room);
	return true;
}

/* Lend the shared floor. Returns false if another share has it, or waits for it. */
static bool nfr_svc_stock_lend_floor(struct nfr_svc_share *share, u32 pages)
{
	struct nfr_svc_stock *stock = &nfr_svc_stocks[share->use];

	if (stock->guest || !nfr_svc_share_is_turn(&stock->floorless, &share->floorless))
		return false;
	stock->guest = share;
	WRITE_ONCE(share->guest, pages);
	atomic_add(pages, &share->room);
	return true;
}

/*
 * Borrow what a share lacks for @pages. Returns true if it may have them now, or false if it has to
 * wait: for its own pages, for the stock, or for the shared floor.
 */
static bool nfr_svc_share_borrow(struct nfr_svc_share *share, u32 pages)
{
	struct nfr_svc_stock *stock = &nfr_svc_stocks[share->use];
	int missing = (int)pages - atomic_read(&share->room);

	if (missing <= 0)
		return true;
	if (share->lent + missing <= nfr_svc_share_limit()) {
		if (nfr_svc_share_is_turn(&stock->waiting, &share->waiting) &&
		    (nfr_svc_stock_lend(share, missing) || nfr_svc_stock_urge(share->use)))
			return true;
		nfr_svc_stock_enlist(&stock->waiting, &share->waiting);
	} else {
		nfr_svc_share_unlist(share);
	}
	if (share->host->floor >= pages || share->guest)
		return false;
	if (nfr_svc_stock_lend_floor(share, missing))
		return true;
	nfr_svc_stock_enlist(&stock->floorless, &share->floorless);
	return false;
}

/**
 * nfr_svc_share_want - have nfr_svc_share_put() wake the client
 * @share: share; the caller holds the lock
 */
void nfr_svc_share_want(struct nfr_svc_share *share)
{
	WRITE_ONCE(share->urgent, true);
	/* pairs with nfr_svc_share_put(): that sees @urgent, or the caller sees its pages */
	smp_mb();
}

/**
 * nfr_svc_share_rest - undo nfr_svc_share_want()
 * @share: share for which nobody waits; the caller holds the lock
 */
void nfr_svc_share_rest(struct nfr_svc_share *share)
{
	nfr_svc_share_unlist(share);
	nfr_svc_share_unlist_floorless(share);
	WRITE_ONCE(share->urgent, share->guest);
}

/**
 * nfr_svc_share_charge - charge a share for pages
 * @share: share; the caller holds the lock
 * @pages: number of pages
 *
 * Return: false if the share does not suffice; the client is woken when that may have changed,
 *	until the caller calls nfr_svc_share_rest().
 */
bool nfr_svc_share_charge(struct nfr_svc_share *share, u32 pages)
{
	nfr_svc_share_want(share);
	while (!nfr_svc_share_take(share, pages)) {
		if (nfr_svc_share_borrow(share, pages))
			continue;
		nfr_work_queue(&nfr_svc_shares_checking, NFR_SVC_CHECK);
		return false;
	}
	nfr_svc_share_unlist(share);
	nfr_svc_share_unlist_floorless(share);
	return true;
}

/* --- returning --- */

static noinline void nfr_svc_share_settle(struct nfr_svc_share *share)
{
	struct nfr_svc_stock *stock = &nfr_svc_stocks[share->use];

	spin_lock_bh(&nfr_svc_shares_lock);
	if (share->guest && nfr_svc_share_take(share, share->guest)) {
		WRITE_ONCE(share->guest, 0);
		stock->guest = NULL;
		nfr_svc_stock_wake_floorless(stock);
	}
	if (stock->urgent && nfr_svc_share_return(share))
		nfr_svc_stock_wake_first(stock);
	stock->wake(share->host);
	spin_unlock_bh(&nfr_svc_shares_lock);
}

/**
 * nfr_svc_share_put - return pages to a share
 * @share: share
 * @pages: number of pages
 *
 * Context: Any thread, or a completion handler.
 */
void nfr_svc_share_put(struct nfr_svc_share *share, u32 pages)
{
	/* a full barrier: pairs with nfr_svc_share_want() and nfr_svc_stock_urge() */
	atomic_add_return(pages, &share->room);
	if (READ_ONCE(share->urgent) ||
	    (READ_ONCE(nfr_svc_stocks[share->use].urgent) && READ_ONCE(share->lent)))
		nfr_svc_share_settle(share);
}

/* --- client addresses --- */

/* Give floors to clients, as far as server_floors allows. Caller holds the lock. */
static void nfr_svc_hosts_fit(void)
{
	u32 use, more, limit = nfr_params_server_floor_pages();
	struct nfr_svc_host *host;

	list_for_each_entry(host, &nfr_svc_hosts, list) {
		more = host->wanted - host->floor;
		if (!more || more > limit - min(limit, nfr_svc_floors_total))
			continue;
		nfr_svc_floors_total += more;
		host->floor += more;
		for (use = 0; use < NFR_SVC_PURPOSES; use++) {
			atomic_add(more, &host->shares[use].room);
			nfr_svc_stocks[use].wake(host);
		}
	}
}

static struct nfr_svc_host *nfr_svc_host_find(const struct nfr_svc *svc)
{
	struct nfr_svc_host *host;

	list_for_each_entry(host, &nfr_svc_hosts, list)
		if (nfr_svc_comes_from(svc, host->net, &host->address))
			return host;
	return NULL;
}

static struct nfr_svc_host *nfr_svc_host_create(const struct nfr_svc *svc)
{
	struct nfr_svc_host *host = kzalloc(sizeof(*host), NFR_GFP_RETRIED);
	u32 use;

	if (!host)
		return NULL;
	host->net = svc->first->xprt.xpt_net;
	host->address = svc->remote;
	for (use = 0; use < NFR_SVC_PURPOSES; use++) {
		host->shares[use].host = host;
		host->shares[use].use = use;
		INIT_LIST_HEAD(&host->shares[use].waiting);
		INIT_LIST_HEAD(&host->shares[use].floorless);
	}
	return host;
}

/**
 * nfr_svc_host_join - find what the connections of a client address share
 * @svc: connection that is about to be accepted
 * @init: initializes what the other files have in a new structure
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_svc_host_join(struct nfr_svc *svc, void (*init)(struct nfr_svc_host *host))
{
	struct nfr_svc_host *found, *host = nfr_svc_host_create(svc);

	if (!host)
		return -ENOMEM;
	init(host);
	spin_lock_bh(&nfr_svc_shares_lock);
	found = nfr_svc_host_find(svc);
	if (!found)
		list_add_tail(&host->list, &nfr_svc_hosts);
	svc->host = found ?: host;
	svc->host->connections++;
	svc->host->wanted = max_t(u32, svc->host->wanted, PFN_UP(svc->max_message));
	nfr_svc_hosts_fit();
	spin_unlock_bh(&nfr_svc_shares_lock);
	if (found)
		kfree(host);
	return 0;
}

/**
 * nfr_svc_host_leave - undo nfr_svc_host_join()
 * @svc: connection without requests
 *
 * Return: what the connections of the address shared, if this was the last one: nobody else uses
 *	it, and the caller has to free it.
 */
struct nfr_svc_host *nfr_svc_host_leave(struct nfr_svc *svc)
{
	struct nfr_svc_host *host = svc->host;
	u32 use;

	spin_lock_bh(&nfr_svc_shares_lock);
	if (--host->connections) {
		host = NULL;
		goto out;
	}
	list_del(&host->list);
	for (use = 0; use < NFR_SVC_PURPOSES; use++) {
		nfr_svc_share_rest(&host->shares[use]);
		if (nfr_svc_share_return(&host->shares[use]))
			nfr_svc_stock_wake_first(&nfr_svc_stocks[use]);
	}
	nfr_svc_floors_total -= host->floor;
	nfr_svc_hosts_fit();
out:
	spin_unlock_bh(&nfr_svc_shares_lock);
	return host;
}

/**
 * nfr_svc_hosts_floors - count the floors
 * @floors: output
 */
void nfr_svc_hosts_floors(struct nfr_svc_floors *floors)
{
	struct nfr_svc_host *host;

	*floors = (struct nfr_svc_floors) {};
	spin_lock_bh(&nfr_svc_shares_lock);
	list_for_each_entry(host, &nfr_svc_hosts, list) {
		floors->clients++;
		floors->sharing += host->floor < host->wanted;
	}
	floors->pages = nfr_svc_floors_total;
	spin_unlock_bh(&nfr_svc_shares_lock);
}

/* --- those that hold memory while others wait --- */

/**
 * nfr_svc_share_is_wanted - check whether another client waits for pages that a share borrowed
 * @share: share; the caller holds the lock
 *
 * Return: true if another client waits.
 */
bool nfr_svc_share_is_wanted(const struct nfr_svc_share *share)
{
	const struct nfr_svc_stock *stock = &nfr_svc_stocks[share->use];

	return (share->lent && nfr_svc_share_others_wait(&stock->waiting, &share->waiting)) ||
	       (share->guest && nfr_svc_share_others_wait(&stock->floorless, &share->floorless));
}

/* Check whether a client waits, for its own pages or for others. */
static bool nfr_svc_shares_are_urgent(void)
{
	struct nfr_svc_host *host;
	bool urgent = false;
	u32 use;

	spin_lock_bh(&nfr_svc_shares_lock);
	list_for_each_entry(host, &nfr_svc_hosts, list)
		for (use = 0; use < NFR_SVC_PURPOSES; use++)
			urgent |= host->shares[use].urgent;
	spin_unlock_bh(&nfr_svc_shares_lock);
	return urgent;
}

static void nfr_svc_shares_work(struct work_struct *work)
{
	if (!nfr_svc_shares_are_urgent())
		return;
	nfr_svc_shares_check();
	nfr_work_queue(&nfr_svc_shares_checking, NFR_SVC_CHECK);
}

/**
 * nfr_svc_shares_start - prepare for connections
 * @check: ends connections that hold memory for too long; called by a worker while a client waits
 */
void nfr_svc_shares_start(void (*check)(void))
{
	nfr_svc_shares_check = check;
}

/* Stop the worker when the module is unloaded. No connection exists any more. */
void nfr_svc_shares_stop(void)
{
	cancel_delayed_work_sync(&nfr_svc_shares_checking);
}

/**
 * nfr_svc_shares_in_use - get the number of pages that are charged to all clients
 * @use: what the pages are for
 *
 * Return: number of pages.
 */
u32 nfr_svc_shares_in_use(enum nfr_svc_purpose use)
{
	struct nfr_svc_host *host;
	u32 pages = 0;

	spin_lock_bh(&nfr_svc_shares_lock);
	list_for_each_entry(host, &nfr_svc_hosts, list) {
		const struct nfr_svc_share *share = &host->shares[use];

		pages += host->floor + share->lent + share->guest - atomic_read(&share->room);
	}
	spin_unlock_bh(&nfr_svc_shares_lock);
	return pages;
}

/**
 * nfr_svc_shares_wake_by - set how clients that wait for pages are woken
 * @use: what the pages are for
 * @wake: lets a client try again, if it waits; called with the lock held
 */
void nfr_svc_shares_wake_by(enum nfr_svc_purpose use, void (*wake)(struct nfr_svc_host *host))
{
	nfr_svc_stocks[use].wake = wake;
}
