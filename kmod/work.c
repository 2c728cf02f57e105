// SPDX-License-Identifier: GPL-2.0-only
/* The workqueues of the module. All rooms queue work; this file calls none of them. */
#include "compat/compat.h"
#include "work.h"

struct workqueue_struct *nfr_work_poll;
struct workqueue_struct *nfr_work_softirq;
struct workqueue_struct *nfr_work_slow;

/**
 * nfr_work_destroy - destroy the workqueues, after their work
 */
void nfr_work_destroy(void)
{
	/* draining a connection on the slow workqueue needs the others */
	if (nfr_work_slow)
		destroy_workqueue(nfr_work_slow);
	if (nfr_work_softirq)
		destroy_workqueue(nfr_work_softirq);
	if (nfr_work_poll)
		destroy_workqueue(nfr_work_poll);
}

/**
 * nfr_work_create - create the workqueues
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_work_create(void)
{
	nfr_work_slow = alloc_workqueue("nfsrdma_slow", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	nfr_work_poll = alloc_workqueue("nfsrdma_poll",
					WQ_MEM_RECLAIM | WQ_HIGHPRI | NFR_WQ_BOUND, 0);
#ifdef NFR_WQ_SOFTIRQ
	nfr_work_softirq = alloc_workqueue("nfsrdma_softirq", NFR_WQ_SOFTIRQ, 0);
	if (nfr_work_slow && nfr_work_poll && nfr_work_softirq)
		return 0;
#else
	if (nfr_work_slow && nfr_work_poll)
		return 0;
#endif
	nfr_work_destroy();
	return -ENOMEM;
}
