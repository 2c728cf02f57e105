// SPDX-License-Identifier: GPL-2.0-only
/*
 * Completion queues and their interrupts.
 *
 * A completion in an armed queue raises one interrupt, on the CPU of the queue's
 * vector; the consumer's handler runs in it. If the engine runs in a timer, that
 * interrupt takes the place of the card's, and the handler runs in its softirq.
 */
#include <linux/slab.h>

#include "qp.h"

/* --- interrupts --- */

static void card_cq_notify(struct card_cq *cq)
{
	card_count(to_card(cq->ib.device), CARD_COUNT_INTERRUPTS);
	cq->ib.comp_handler(&cq->ib, cq->ib.cq_context);
}

static void card_cq_interrupt(struct irq_work *work)
{
	card_cq_notify(container_of(work, struct card_cq, interrupt));
}

static void card_cq_call(void *data)
{
	struct card_cq *cq = data;

	atomic_set(&cq->called, 0);
	card_cq_notify(cq);
	atomic_dec_return_release(&cq->calls);
}

/* Interrupt another CPU; returns false if it is offline */
static bool card_cq_call_other(struct card_cq *cq)
{
	/* a pending interrupt covers this completion, too */
	if (atomic_xchg(&cq->called, 1))
		return true;
	atomic_inc(&cq->calls);
	if (!smp_call_function_single_async(cq->cpu, &cq->call))
		return true;
	atomic_dec(&cq->calls);
	atomic_set(&cq->called, 0);
	return false;
}

static void card_cq_raise(struct card_cq *cq)
{
	if (get_cpu() == cq->cpu || !card_cq_call_other(cq))
		irq_work_queue(&cq->interrupt);
	put_cpu();
}

/* --- moderation --- */

/* Whether the completion that was just written raises an interrupt; the lock is held */
static bool card_cq_is_due(struct card_cq *cq)
{
	if (cq->period && ++cq->held < cq->count) {
		if (!hrtimer_is_queued(&cq->timer))
			hrtimer_start(&cq->timer, ns_to_ktime(cq->period * NSEC_PER_USEC),
				      HRTIMER_MODE_REL_SOFT);
		return false;
	}
	cq->held = 0;
	cq->armed = CARD_UNARMED;
	return true;
}

/* Raise the interrupt that moderation delayed */
static void card_cq_expire(struct card_cq *cq)
{
	bool due;

	spin_lock_irq(&cq->lock);
	due = cq->held && cq->armed != CARD_UNARMED;
	cq->held = 0;
	if (due)
		cq->armed = CARD_UNARMED;
	spin_unlock_irq(&cq->lock);
	if (due)
		card_cq_notify(cq);
}

static enum hrtimer_restart card_cq_timer(struct hrtimer *timer)
{
	card_cq_expire(container_of(timer, struct card_cq, timer));
	return HRTIMER_NORESTART;
}

/**
 * card_modify_cq - set interrupt moderation
 * @ib: queue
 * @count: completions per interrupt
 * @period: maximum delay of an interrupt, in microseconds
 *
 * Return: 0.
 */
int card_modify_cq(struct ib_cq *ib, u16 count, u16 period)
{
	struct card_cq *cq = to_card_cq(ib);

	spin_lock_irq(&cq->lock);
	cq->count = count;
	cq->period = count > 1 ? period : 0;
	spin_unlock_irq(&cq->lock);
	return 0;
}

/* --- completions --- */

static void card_cq_report(struct work_struct *work)
{
	struct card_cq *cq = container_of(work, struct card_cq, event);
	struct ib_event event = {
		.device = cq->ib.device, .event = IB_EVENT_CQ_ERR, .element.cq = &cq->ib,
	};

	if (cq->ib.event_handler)
		cq->ib.event_handler(&event, cq->ib.cq_context);
}

static bool card_cq_wants(const struct card_cq *cq, const struct ib_wc *wc, bool solicited)
{
	return cq->armed == CARD_ARMED || (cq->armed == CARD_ARMED_SOLICITED &&
					   (solicited || wc->status != IB_WC_SUCCESS));
}

/**
 * card_cq_push - write a completion
 * @cq: queue
 * @wc: completion
 * @solicited: the peer requested an event
 * @in_timer: the caller runs in a timer's softirq and holds no lock
 *
 * Return: false if the queue was full. The completion is then lost and the queue
 * broken; the caller has to break the queue pair.
 */
bool card_cq_push(struct card_cq *cq, const struct ib_wc *wc, bool solicited, bool in_timer)
{
	bool due = false, fits;
	unsigned long flags;

	card_count(to_card(cq->ib.device), CARD_COUNT_COMPLETIONS);
	spin_lock_irqsave(&cq->lock, flags);
	fits = cq->head - cq->tail < cq->size && !cq->overrun;
	if (fits) {
		cq->ring[cq->head++ & (cq->size - 1)] = *wc;
		due = card_cq_wants(cq, wc, solicited) && card_cq_is_due(cq);
	} else if (!cq->overrun) {
		cq->overrun = true;
		queue_work(card_wq, &cq->event);
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	if (due && in_timer)
		card_cq_notify(cq);
	else if (due)
		card_cq_raise(cq);
	return fits;
}

/**
 * card_poll_cq - poll completions
 * @ib: queue
 * @room: maximum number
 * @wc: output
 *
 * Return: number of completions.
 */
int card_poll_cq(struct ib_cq *ib, int room, struct ib_wc *wc)
{
	struct card_cq *cq = to_card_cq(ib);
	unsigned long flags;
	int n = 0;

	spin_lock_irqsave(&cq->lock, flags);
	while (n < room && cq->tail != cq->head)
		wc[n++] = cq->ring[cq->tail++ & (cq->size - 1)];
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

/**
 * card_req_notify_cq - arm a queue
 * @ib: queue
 * @flags: IB_CQ_...: kind of completion that raises an interrupt
 *
 * Return: 1 if the queue has completions and @flags has
 * IB_CQ_REPORT_MISSED_EVENTS, else 0.
 */
int card_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	enum card_armed armed = CARD_ARMED;
	struct card_cq *cq = to_card_cq(ib);
	unsigned long irq;
	int missed;

	if ((flags & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED)
		armed = CARD_ARMED_SOLICITED;
	spin_lock_irqsave(&cq->lock, irq);
	cq->armed = max(cq->armed, armed);
	missed = (flags & IB_CQ_REPORT_MISSED_EVENTS) && cq->head != cq->tail;
	spin_unlock_irqrestore(&cq->lock, irq);
	return missed;
}

/**
 * card_cq_forget - drop the completions of a queue pair
 * @cq: queue
 * @qp: queue pair, which writes no further completions
 */
void card_cq_forget(struct card_cq *cq, const struct card_qp *qp)
{
	u32 from, to;

	spin_lock_irq(&cq->lock);
	to = cq->tail;
	for (from = cq->tail; from != cq->head; from++) {
		struct ib_wc *wc = &cq->ring[from & (cq->size - 1)];

		if (wc->qp != &qp->ib)
			cq->ring[to++ & (cq->size - 1)] = *wc;
	}
	cq->head = to;
	spin_unlock_irq(&cq->lock);
}

/**
 * card_cq_sync - end the interrupts of completions that were written
 * @cq: queue
 *
 * The RDMA core stops a queue's work before it destroys the queue, so no
 * interrupt may queue that work after the last queue pair was destroyed.
 */
void card_cq_sync(struct card_cq *cq)
{
	if (hrtimer_cancel(&cq->timer))
		card_cq_expire(cq);
	while (atomic_read_acquire(&cq->calls))
		cond_resched();
	irq_work_sync(&cq->interrupt);
}

/* --- creation and destruction --- */

/**
 * card_create_cq - create a completion queue
 * @ib: queue
 * @attr: size and vector
 * @user: NULL: queues of user space are not supported
 *
 * Return: 0 or a negative errno.
 */
int card_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		   struct card_create_cq_user *user)
{
	struct card *card = to_card(ib->device);
	struct card_cq *cq = to_card_cq(ib);

	if (attr->flags || user)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > CARD_MAX_CQE)
		return -EINVAL;
	if (!atomic_add_unless(&card->cqs, 1, CARD_MAX_CQ))
		return -ENOMEM;
	cq->size = roundup_pow_of_two(attr->cqe);
	cq->ring = kvcalloc(cq->size, sizeof(*cq->ring), GFP_KERNEL);
	if (!cq->ring) {
		atomic_dec(&card->cqs);
		return -ENOMEM;
	}
	ib->cqe = cq->size;
	spin_lock_init(&cq->lock);
	card_timer_setup(&cq->timer, HRTIMER_MODE_REL_SOFT, card_cq_timer);
	cq->interrupt = IRQ_WORK_INIT_HARD(card_cq_interrupt);
	INIT_CSD(&cq->call, card_cq_call, cq);
	INIT_WORK(&cq->event, card_cq_report);
	cq->cpu = attr->comp_vector % ib->device->num_comp_vectors;
	return 0;
}

/**
 * card_destroy_cq - destroy a completion queue
 * @ib: queue that no queue pair uses
 * @udata: NULL
 *
 * Return: 0.
 */
int card_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct card_cq *cq = to_card_cq(ib);

	/* card_cq_sync() has ended timer and interrupts */
	cancel_work_sync(&cq->event);
	kvfree(cq->ring);
	atomic_dec(&to_card(ib->device)->cqs);
	return 0;
}
