// SPDX-License-Identifier: GPL-2.0-only
/*
 * Abandoned Calls. No task waits for their replies, but a Call keeps its credit
 * until its reply arrives. If the peer omits a reply for NFR_LOST_TIMEOUT, the
 * connection breaks.
 *
 * A reply may arrive after sunrpc dequeued its task and before nfr_conn_lost().
 * Its XID is kept in @early, so that the Call is not recorded later.
 */
#include <linux/slab.h>

#include "connection/connection.h"

/* Maximum wait for the reply to an abandoned Call */
#define NFR_LOST_TIMEOUT	(60 * HZ)

/* Returns the index of @xid, or the length of the list. Caller holds the lock. */
static u32 nfr_lost_find(const struct nfr_lost *lost, u32 xid)
{
	u32 i;

	for (i = 0; i < lost->count && lost->calls[i].xid != xid; i++)
		;
	return i;
}

static void nfr_lost_remove(struct nfr_lost *lost, u32 at)
{
	lost->count--;
	memmove(&lost->calls[at], &lost->calls[at + 1],
		(lost->count - at) * sizeof(*lost->calls));
}

/* Check whether the reply to @xid came first, and forget it. Caller holds the lock. */
static bool nfr_lost_was_early(struct nfr_lost *lost, u32 xid)
{
	u32 i;

	for (i = 0; i < lost->nearly; i++) {
		if (lost->early[i] != xid)
			continue;
		lost->early[i] = lost->early[--lost->nearly];
		return true;
	}
	return false;
}

/* Drop the oldest if the array is full: then it holds replies that match no Call. */
static void nfr_lost_keep_early(struct nfr_lost *lost, u32 xid)
{
	if (lost->nearly == lost->room)
		memmove(lost->early, lost->early + 1, --lost->nearly * sizeof(*lost->early));
	lost->early[lost->nearly++] = xid;
}

/**
 * nfr_conn_lost - record an abandoned Call
 * @conn: connection
 * @xid: XID of the Call
 *
 * At a client, the reply to an abandoned Call is still due. At a server, nfsd
 * dropped the Call, so that no reply will be sent.
 */
void nfr_conn_lost(struct nfr_conn *conn, u32 xid)
{
	struct nfr_lost *lost = &conn->lost;
	bool waits;

	spin_lock(&conn->lock);
	/* there are at most as many as credits; if a peer exceeds that, the oldest one suffices */
	waits = !nfr_lost_was_early(lost, xid) && lost->count < lost->room;
	if (waits)
		lost->calls[lost->count++] = (struct nfr_lost_call) {
			.xid = xid, .since = jiffies,
		};
	spin_unlock(&conn->lock);
	if (waits)
		nfr_conn_queue(&lost->work, NFR_LOST_TIMEOUT);
}

/**
 * nfr_conn_found - account for a reply that no task waits for
 * @conn: connection
 * @xid: XID of the reply
 *
 * Context: Completion handler.
 */
void nfr_conn_found(struct nfr_conn *conn, u32 xid)
{
	struct nfr_lost *lost = &conn->lost;
	u32 at;

	spin_lock(&conn->lock);
	at = nfr_lost_find(lost, xid);
	if (at < lost->count)
		nfr_lost_remove(lost, at);
	else
		nfr_lost_keep_early(lost, xid);
	spin_unlock(&conn->lock);
	nfr_queue_credit_back(conn);
}

static void nfr_lost_work(struct work_struct *work)
{
	struct nfr_conn *conn = container_of(work, struct nfr_conn, lost.work.work);
	struct nfr_lost *lost = &conn->lost;
	bool waits, late = false;
	unsigned long due = 0;

	spin_lock(&conn->lock);
	waits = lost->count;
	if (waits) {
		due = lost->calls[0].since + NFR_LOST_TIMEOUT;
		late = time_after_eq(jiffies, due);
	}
	spin_unlock(&conn->lock);
	if (late)
		nfr_conn_break(conn, conn->ops->unanswered);
	else if (waits && nfr_conn_is_up(conn))
		nfr_conn_queue(&lost->work, due - jiffies);
}

/**
 * nfr_lost_init - initialize the tracking of abandoned Calls
 * @conn: new connection
 */
void nfr_lost_init(struct nfr_conn *conn)
{
	INIT_DELAYED_WORK(&conn->lost.work, nfr_lost_work);
}

/**
 * nfr_lost_create - allocate room for one abandoned Call per credit
 * @conn: connection whose number of credits is known
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_lost_create(struct nfr_conn *conn)
{
	struct nfr_lost *lost = &conn->lost;

	lost->room = conn->wanted.credits;
	lost->calls = kcalloc(lost->room, sizeof(*lost->calls), NFR_GFP_RETRIED);
	lost->early = kcalloc(lost->room, sizeof(*lost->early), NFR_GFP_RETRIED);
	return lost->calls && lost->early ? 0 : -ENOMEM;
}

/**
 * nfr_lost_destroy - undo nfr_lost_init() and nfr_lost_create()
 * @conn: drained connection, for which no Call is abandoned any more
 */
void nfr_lost_destroy(struct nfr_conn *conn)
{
	cancel_delayed_work_sync(&conn->lost.work);
	kfree(conn->lost.calls);
	kfree(conn->lost.early);
}
