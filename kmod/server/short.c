// SPDX-License-Identifier: GPL-2.0-only
/*
 * Clients whose receives are too short for a Reply.
 *
 * A client without private data does not say how long its receives are. A Send that is longer
 * than its receive ends the connection (InfiniBand specification, section 9.7.5.2.4), and the
 * client would send the same Call again without end. If its device refuses such a Send, its address
 * gets ERR_CHUNK for Replies of that length, for some time: a client may come back with longer
 * receives. Where devices do not say why a connection ended, the second one that ended under a Send
 * of a length counts: one may be that of a client that left with its Reply.
 */

#include "connection/queues.h"
#include "connection/state.h"
#include "server/short.h"

/* Addresses to remember; a new one replaces the one whose time is over first */
#define NFR_SVC_SHORT_ADDRESSES	64

/* Time for which an address gets ERR_CHUNK */
#define NFR_SVC_SHORT_TIME	(60 * HZ)

/*
 * struct nfr_svc_short - a client
 * @net: its network namespace
 * @address: its address
 * @limit: largest Send that is not too long for it, in bytes; U32_MAX if none is
 * @suspect: length of a Send under which it ended a connection
 * @until: end of the time for which that is remembered
 */
struct nfr_svc_short {
	const struct net *net;
	struct sockaddr_storage address;
	u32 limit;
	u32 suspect;
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
 * Return: length in bytes; U32_MAX if no Send is known to be too long for its address.
 */
u32 nfr_svc_short_limit(const struct nfr_svc *svc)
{
	struct nfr_svc_short *entry;
	u32 limit = U32_MAX;

	spin_lock_bh(&nfr_svc_short_lock);
	entry = nfr_svc_short_find(svc);
	if (entry && time_before(jiffies, entry->until))
		limit = entry->limit;
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

/* Get the entry of a client. Caller holds the lock. */
static struct nfr_svc_short *nfr_svc_short_get(const struct nfr_svc *svc)
{
	struct nfr_svc_short *entry = nfr_svc_short_find(svc);

	if (!entry || !time_before(jiffies, entry->until)) {
		entry = entry ?: nfr_svc_short_replace();
		entry->net = svc->first->xprt.xpt_net;
		entry->address = svc->remote;
		entry->limit = U32_MAX;
		entry->suspect = 0;
	}
	entry->until = jiffies + NFR_SVC_SHORT_TIME;
	return entry;
}

/* Remember the length of a Send. Returns true if shorter ones than before are too long now. */
static bool nfr_svc_short_add(const struct nfr_svc *svc, u32 length, bool refused)
{
	struct nfr_svc_short *entry;
	bool shorter;

	spin_lock_bh(&nfr_svc_short_lock);
	entry = nfr_svc_short_get(svc);
	shorter = length <= entry->limit && (refused || length == entry->suspect);
	if (shorter)
		entry->limit = length - 1;
	entry->suspect = length;
	spin_unlock_bh(&nfr_svc_short_lock);
	return shorter;
}

static void nfr_svc_short_remember(struct nfr_svc *svc, bool refused)
{
	u32 length = nfr_svc_short_unacknowledged(svc);

	if (length && nfr_svc_short_add(svc, length, refused))
		pr_info_ratelimited("nfsrdma: client %pISc: its connection ended under a Send of %u bytes; for a minute, Replies of that length get ERR_CHUNK\n",
				    &svc->remote, length);
}

/**
 * nfr_svc_short_refused - remember a client whose device refused a Send
 * @svc: first connection of a client without private data
 */
void nfr_svc_short_refused(struct nfr_svc *svc)
{
	nfr_svc_short_remember(svc, true);
}

/**
 * nfr_svc_short_drained - remember a client that ended its connection under a Send
 * @svc: first connection of a client without private data, drained: Sends that were acknowledged
 *	are known now, as far as the device says it
 */
void nfr_svc_short_drained(struct nfr_svc *svc)
{
	if (nfr_conn_is_left(svc->conn))
		nfr_svc_short_remember(svc, false);
}
