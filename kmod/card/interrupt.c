// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupts of completion queues, and their moderation.
 *
 * A completion in an armed queue raises one interrupt, on the CPU of the queue's
 * vector; the consumer's handler runs in it. If the engine runs in a timer, that
 * interrupt takes the place of the card's, and the handler runs in its softirq.
 */
#include "queues.h"

/* --- interrupts --- */

/**
 * card_cq_notify - call the consumer's handler
 * @cq: queue
 */
void card_cq_notify(struct card_cq *cq)
{
	card_count(to_card(cq->ib.device), CARD_COUNT_INTERRUPTS);
	/* a queue of a process has none without a completion channel */
	if (cq->ib.comp_handler)
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

/**
 * card_cq_raise - raise an interrupt on the CPU of a queue's vector
 * @cq: queue
 */
void card_cq_raise(struct card_cq *cq)
{
	if (get_cpu() == cq->cpu || !card_cq_call_other(cq))
		irq_work_queue(&cq->interrupt);
	put_cpu();
}

/* --- moderation --- */

/**
 * card_cq_is_due - whether the completion that was just written raises an interrupt
 * @cq: armed queue; its lock is held
 *
 * Return: false if moderation delays the interrupt.
 */
bool card_cq_is_due(struct card_cq *cq)
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

/* --- lifetime --- */

/**
 * card_cq_init_interrupts - initialize the interrupts of a queue
 * @cq: zeroed queue
 * @vector: completion vector
 */
void card_cq_init_interrupts(struct card_cq *cq, int vector)
{
	card_timer_setup(&cq->timer, HRTIMER_MODE_REL_SOFT, card_cq_timer);
	cq->interrupt = IRQ_WORK_INIT_HARD(card_cq_interrupt);
	INIT_CSD(&cq->call, card_cq_call, cq);
	cq->cpu = vector % cq->ib.device->num_comp_vectors;
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
