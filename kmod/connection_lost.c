// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls that were given up: nobody waits for their replies, but each reply has
 * to come, because until then the Call's credit is in use. A peer that leaves
 * one out for a minute costs the connection.
 *
 * A reply may come after its task was taken off sunrpc's queue and before the
 * Call is known as lost. Its xid is kept, and the Call is not counted then.
 */
#include <linux/slab.h>

#include "connection.h"

/* A reply that nobody waits for may take this long */
#define NFR_LOST_TIMEOUT	(60 * HZ)

/* Returns the place of @xid in the list, or the list's length. The lock is held. */
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

/* Whether the reply to @xid came first; forgets that it did. The lock is held. */
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

/* The oldest makes room: only replies to no Call are more than there are credits. */
static void nfr_lost_keep_early(struct nfr_lost *lost, u32 xid)
{
	if (lost->nearly == lost->room)
		memmove(lost->early, lost->early + 1, --lost->nearly * sizeof(*lost->early));
	lost->early[lost->nearly++] = xid;
}

/**
 * nfr_conn_lost - a Call was given up
 * @conn: the connection
 * @xid: of the Call
 *
 * At a client its reply has to come all the same; at a server nfsd has dropped
 * it and no reply will ever go out.
 */
void nfr_conn_lost(struct nfr_conn *conn, u32 xid)
{
	struct nfr_lost *lost = &conn->lost;
	bool waits;

	spin_lock(&conn->lock);
	/* there are no more than credits; beyond that the oldest decides anyway */
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
 * nfr_conn_found - a reply came that no task waits for: its credit is free
 * @conn: the connection; called where completions are handled
 * @xid: of the reply
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
 * nfr_lost_init - prepare for Calls that are given up
 * @conn: new
 */
void nfr_lost_init(struct nfr_conn *conn)
{
	INIT_DELAYED_WORK(&conn->lost.work, nfr_lost_work);
}

/**
 * nfr_lost_create - make room for as many as there are credits
 * @conn: its credits are known
 *
 * Returns 0 or -ENOMEM.
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
 * @conn: drained; no Call is given up any more
 */
void nfr_lost_destroy(struct nfr_conn *conn)
{
	cancel_delayed_work_sync(&conn->lost.work);
	kfree(conn->lost.calls);
	kfree(conn->lost.early);
}
