/* SPDX-License-Identifier: GPL-2.0-only */
/* Workqueues of the module, and how to queue work that sleeps. */
#ifndef NFSRDMA_WORK_H
#define NFSRDMA_WORK_H

#include <linux/workqueue.h>

int nfr_work_create(void);
void nfr_work_destroy(void);

/* Completions and fences: work that does not sleep */
extern struct workqueue_struct *nfr_work_poll;
/* Completions that can be handled in softirq context; NULL where the kernel cannot do that */
extern struct workqueue_struct *nfr_work_softirq;
/* Work that sleeps (connecting, allocating, freeing), or that is deferred from interrupts */
extern struct workqueue_struct *nfr_work_slow;

/* Queue sleeping work; @delay is in jiffies */
static inline void nfr_work_queue(struct delayed_work *work, unsigned long delay)
{
	queue_delayed_work(nfr_work_slow, work, delay);
}

/* Run sleeping work immediately, queued or not */
static inline void nfr_work_hurry(struct delayed_work *work)
{
	mod_delayed_work(nfr_work_slow, work, 0);
}

#endif
