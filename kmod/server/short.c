// SPDX-License-Identifier: GPL-2.0-only
/*
 * Clients whose receives are too short for a Reply.
 *
 * A client without private data does not say how long its receives are. A Send that is longer
 * than its receive ends the connection (InfiniBand specification, section 9.7.5.2.4), and the
 * client would send the same Call again without end. If a connection ends under such a Send, its
 * address gets ERR_CHUNK for Replies of that length, for some time: the cause may have been
 * another one, and a client may come back with longer receives.
 */

#include "connection/queues.h"
#include "connection/state.h"
#include "server/short.h"

/* Addresses to remember; a new one replaces the one whose time is over first */
#define NFR_SVC_SHORT_ADDRESSES	64

/* Time for which an address gets ERR_CHUNK */
#define NFR_SVC_SHORT_TIME	(60 * HZ)

/* A client: Sends of @length bytes or more are too long for it until @until */
struct nfr_svc_short {
	const struct net *net;
	struct sockaddr_storage address;
	u32 length;
	unsigned long until;
};

static DEFINE_SPINLOCK(nfr_svc_short_lock);
static struct nfr_svc_short nfr_svc_shorts[NFR_SVC_SHORT_ADDRESSES];
static u32 nfr_svc_short_count;

/* Find the entry of an address. Caller holds the lock. */
static struct nfr_svc_short *nfr_svc_short_find(const struct nfr_svc *svc)
{
	struct nfr_svc_short *entry;

	for (entry = nfr_svc_shorts; entry < nfr_svc_shorts + nfr_svc_short_count; entry++)
		if (nfr_svc_comes_from(svc, entry->net, &entry->address))
			return entry;
	return NULL;
}

/* Get an entry for another address. Caller holds the lock. */
static struct nfr_svc_short *nfr_svc_short_replace(void)
{
	struct nfr_svc_short *entry = nfr_svc_shorts, *oldest = entry;

	if (nfr_svc_short_count < NFR_SVC_SHORT_ADDRESSES)
		return &nfr_svc_shorts[nfr_svc_short_count++];
	for (; entry < nfr_svc_shorts + nfr_svc_short_count; entry++)
		if (time_before(entry->until, oldest->until))
			oldest = entry;
	return oldest;
}

/**
 * nfr_svc_short_limit - get the largest Send that a client may get
 * @svc: first connection of a client without private data
 *
 * Return: length in bytes; U32_MAX if no connection of its address ended under a Send.
 */
u32 nfr_svc_short_limit(const struct nfr_svc *svc)
{
	struct nfr_svc_short *entry;
	u32 limit = U32_MAX;

	spin_lock_bh(&nfr_svc_short_lock);
	entry = nfr_svc_short_find(svc);
	if (entry && time_before(jiffies, entry->until))
		limit = entry->length - 1;
	spin_unlock_bh(&nfr_svc_short_lock);
	return limit;
}

/* Find the shortest Send that may be too long and was not acknowledged. Returns 0 if none. */
static u32 nfr_svc_short_unacknowledged(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;
	u32 length = 0;

	spin_lock_bh(&svc->lock);
	list_for_each_entry(req, &svc->all, all)
		if (READ_ONCE(req->state) == NFR_SVC_SENT && req->unlimited &&
		    !nfr_conn_is_retired(svc->conn, req->mark))
			length = min(length ?: req->unlimited, req->unlimited);
	spin_unlock_bh(&svc->lock);
	return length;
}

/**
 * nfr_svc_short_broken - remember a client whose connection ended under a Send
 * @svc: first connection of a client without private data, broken
 */
void nfr_svc_short_broken(struct nfr_svc *svc)
{
	u32 length = nfr_svc_short_unacknowledged(svc);
	struct nfr_svc_short *entry;

	/* a client that does not answer is no client with short receives */
	if (!length || READ_ONCE(svc->conn->reason) == ib_wc_status_msg(IB_WC_RETRY_EXC_ERR))
		return;
	spin_lock_bh(&nfr_svc_short_lock);
	entry = nfr_svc_short_find(svc);
	if (entry && time_before(jiffies, entry->until))
		length = min(length, entry->length);
	entry = entry ?: nfr_svc_short_replace();
	entry->net = svc->first->xprt.xpt_net;
	entry->address = svc->remote;
	entry->length = length;
	entry->until = jiffies + NFR_SVC_SHORT_TIME;
	spin_unlock_bh(&nfr_svc_short_lock);
	pr_info_ratelimited("nfsrdma: client %pISc: its connection ended under a Send of %u bytes; for a minute, Replies of that length get ERR_CHUNK\n",
			    &svc->remote, length);
}
