// SPDX-License-Identifier: GPL-2.0-only
/* Completion queues: creation, destruction, completions. */
#include <linux/slab.h>

#include "queues.h"

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

static bool card_cq_has_room(const struct card_cq *cq)
{
	u32 tail = cq->shared ? READ_ONCE(cq->shared->tail) : cq->tail;

	return cq->head - tail < cq->size && !cq->overrun;
}

static void card_cq_write(struct card_cq *cq, const struct ib_wc *wc)
{
	if (cq->shared)
		card_shared_write(cq, wc);
	else
		cq->ring[cq->head & (cq->size - 1)] = *wc;
	cq->head++;
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
	fits = card_cq_has_room(cq);
	if (fits) {
		card_cq_write(cq, wc);
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

/*
 * Free the slots up to that of a request whose completion is polled: it is the first one that has a
 * completion. The lock of the queue is held.
 */
static void card_cq_free(const struct ib_wc *wc)
{
	struct card_qp *qp = to_card_qp(wc->qp);
	u32 at = qp->sq.freed;

	if (wc->opcode & IB_WC_RECV || !qp->frees_at_poll)
		return;
	while (!card_is_signaled(card_ring_slot(&qp->sq, at)))
		at++;
	/* pairs with card_send_freed(), after the last access to the slots */
	smp_store_release(&qp->sq.freed, at + 1);
}

/**
 * card_poll_cq - poll completions
 * @ib: queue of the kernel
 * @room: maximum number
 * @wc: output
 *
 * Return: number of completions.
 */
int card_poll_cq(struct ib_cq *ib, int room, struct ib_wc *wc)
{
	struct card_cq *cq = to_card_cq(ib);
	unsigned long flags;
	int n = 0, i;

	if (cq->shared)
		return -EOPNOTSUPP;
	spin_lock_irqsave(&cq->lock, flags);
	while (n < room && cq->tail != cq->head)
		wc[n++] = cq->ring[cq->tail++ & (cq->size - 1)];
	if (to_card(ib->device)->profile->frees_at_poll)
		for (i = 0; i < n; i++)
			card_cq_free(&wc[i]);
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
 *
 * In the queue of a process, the provider drops them.
 */
void card_cq_forget(struct card_cq *cq, const struct card_qp *qp)
{
	u32 from, to;

	if (cq->shared)
		return;
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

/* --- creation and destruction --- */

static int card_cq_ring_create(struct card_cq *cq, struct ib_udata *udata)
{
	if (udata)
		return card_shared_create(cq, udata);
	cq->ring = kvcalloc(cq->size, sizeof(*cq->ring), GFP_KERNEL);
	return cq->ring ? 0 : -ENOMEM;
}

/**
 * card_create_cq - create a completion queue
 * @ib: queue
 * @attr: size and vector
 * @user: NULL for a queue of the kernel
 *
 * Return: 0 or a negative errno.
 */
int card_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		   struct card_create_cq_user *user)
{
	struct card *card = to_card(ib->device);
	struct card_cq *cq = to_card_cq(ib);
	int rc;

	if (attr->flags)
		return -EOPNOTSUPP;
	if (!attr->cqe || attr->cqe > CARD_MAX_CQE)
		return -EINVAL;
	if (!atomic_add_unless(&card->cqs, 1, CARD_MAX_CQ))
		return -ENOMEM;
	cq->size = roundup_pow_of_two(attr->cqe);
	rc = card_cq_ring_create(cq, card_cq_udata(user));
	if (rc) {
		atomic_dec(&card->cqs);
		return rc;
	}
	ib->cqe = cq->size;
	spin_lock_init(&cq->lock);
	card_cq_init_interrupts(cq, attr->comp_vector);
	INIT_WORK(&cq->event, card_cq_report);
	return 0;
}

/**
 * card_destroy_cq - destroy a completion queue
 * @ib: queue that no queue pair uses
 * @udata: no members
 *
 * Return: 0.
 */
int card_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct card_cq *cq = to_card_cq(ib);

	/* card_cq_sync() has ended timer and interrupts */
	cancel_work_sync(&cq->event);
	kvfree(cq->ring);
	if (cq->shared)
		card_shared_destroy(cq);
	atomic_dec(&to_card(ib->device)->cqs);
	return 0;
}
