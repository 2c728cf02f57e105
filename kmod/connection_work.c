// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where connections have work done that has to wait: for the network, for
 * memory, or until an interrupt is over.
 */
#include "connection.h"

/* Work that waits: connecting, making memory regions */
static struct workqueue_struct *nfr_slow_wq;

/**
 * nfr_conn_start - prepare for connections, when the module is loaded
 *
 * Returns 0 or -ENOMEM.
 */
int nfr_conn_start(void)
{
	int rc;

	nfr_slow_wq = alloc_workqueue("nfsrdma_slow", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (!nfr_slow_wq)
		return -ENOMEM;
	rc = nfr_queue_start();
	if (rc)
		destroy_workqueue(nfr_slow_wq);
	return rc;
}

/**
 * nfr_conn_stop - undo nfr_conn_start(); no connection exists any more
 */
void nfr_conn_stop(void)
{
	/* what drains a connection needs the other queue until it is done */
	destroy_workqueue(nfr_slow_wq);
	nfr_queue_stop();
}

/**
 * nfr_conn_flush - wait until all work that was queued is done
 */
void nfr_conn_flush(void)
{
	flush_workqueue(nfr_slow_wq);
}

/**
 * nfr_conn_queue - run work that may wait for the network or for memory
 * @work: the work
 * @delay: jiffies from now
 */
void nfr_conn_queue(struct delayed_work *work, unsigned long delay)
{
	queue_delayed_work(nfr_slow_wq, work, delay);
}

/**
 * nfr_conn_hurry - run such work now, even if it was to wait
 * @work: the work
 */
void nfr_conn_hurry(struct delayed_work *work)
{
	mod_delayed_work(nfr_slow_wq, work, 0);
}

/**
 * nfr_conn_refill - have memory regions made, in the background
 * @conn: whose pool has too few; the owner's writable() follows
 * @delay: jiffies from now
 */
void nfr_conn_refill(struct nfr_conn *conn, unsigned long delay)
{
	queue_delayed_work(nfr_slow_wq, &conn->pool.refill, delay);
}

/**
 * nfr_conn_event_later - break a connection from an interrupt
 * @conn: the connection
 * @reason: a string constant
 */
void nfr_conn_event_later(struct nfr_conn *conn, const char *reason)
{
	WRITE_ONCE(conn->event, reason);
	queue_work(nfr_slow_wq, &conn->event_work);
}
