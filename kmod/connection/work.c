// SPDX-License-Identifier: GPL-2.0-only
/* Workqueue for connection work that sleeps, or that is deferred from interrupts. */
#include "connection/connection.h"

/* Sleeping work: connecting, allocating MRs, freeing */
static struct workqueue_struct *nfr_slow_wq;

/**
 * nfr_conn_start - create the workqueues when the module is loaded
 *
 * Return: 0 or -ENOMEM.
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
 * nfr_conn_stop - undo nfr_conn_start() after the last connection is freed
 */
void nfr_conn_stop(void)
{
	/* draining a connection on this workqueue needs the polling workqueue */
	destroy_workqueue(nfr_slow_wq);
	nfr_queue_stop();
}

/**
 * nfr_conn_flush - wait for all queued work to finish
 */
void nfr_conn_flush(void)
{
	flush_workqueue(nfr_slow_wq);
}

/**
 * nfr_conn_queue - queue work that may sleep
 * @work: work
 * @delay: delay in jiffies
 */
void nfr_conn_queue(struct delayed_work *work, unsigned long delay)
{
	queue_delayed_work(nfr_slow_wq, work, delay);
}

/**
 * nfr_conn_hurry - run delayed work immediately
 * @work: work, queued or not
 */
void nfr_conn_hurry(struct delayed_work *work)
{
	mod_delayed_work(nfr_slow_wq, work, 0);
}

/**
 * nfr_conn_refill - allocate MRs in the background
 * @conn: connection whose pool has too few
 * @delay: delay in jiffies
 *
 * The worker calls the owner's writable() operation.
 */
void nfr_conn_refill(struct nfr_conn *conn, unsigned long delay)
{
	queue_delayed_work(nfr_slow_wq, &conn->pool.refill, delay);
}

/**
 * nfr_conn_event_later - break a connection from interrupt context
 * @conn: connection
 * @reason: disconnect reason, a string constant
 */
void nfr_conn_event_later(struct nfr_conn *conn, const char *reason)
{
	WRITE_ONCE(conn->event, reason);
	queue_work(nfr_slow_wq, &conn->event_work);
}
