// SPDX-License-Identifier: GPL-2.0-only
/* Errors of a queue pair: the error state, the flush of its receives, and events. */
#include "queues.h"

/**
 * card_qp_report - report the events of a queue pair to its consumer
 * @work: event_work of a queue pair
 */
void card_qp_report(struct work_struct *work)
{
	struct card_qp *qp = container_of(work, struct card_qp, event_work);
	struct ib_event event = { .device = qp->ib.device, .element.qp = &qp->ib };
	unsigned int bit;

	for (bit = 0; bit < BITS_PER_LONG; bit++) {
		if (!test_and_clear_bit(bit, &qp->events))
			continue;
		event.event = bit;
		if (qp->ib.event_handler)
			qp->ib.event_handler(&event, qp->ib.qp_context);
	}
}

/**
 * card_qp_event - schedule the report of an event of a queue pair
 * @qp: queue pair
 * @event: event
 */
void card_qp_event(struct card_qp *qp, enum ib_event_type event)
{
	set_bit(event, &qp->events);
	queue_work(card_wq, &qp->event_work);
}

/**
 * card_flush_is_due - whether a broken queue pair may flush requests now
 * @qp: queue pair, claimed or with its lock held, and with requests to flush
 * @due: its member flush_sends or flush_recvs
 *
 * Return: false if the profile delays the flush: card_flush_later() comes back.
 */
bool card_flush_is_due(struct card_qp *qp, const bool *due)
{
	u32 delay = qp->card->profile->flush_delay;

	if (!delay || READ_ONCE(*due) || card_is_gsi(qp))
		return true;
	queue_delayed_work(card_wq, &qp->flush_work, msecs_to_jiffies(delay));
	return false;
}

/**
 * card_recv_flush - flush up to CARD_BATCH receives of a broken queue pair
 * @qp: queue pair that no peer has entered, or only the caller; its lock is held
 *
 * Between batches, the caller drops the lock. Another context may flush the rest meanwhile.
 *
 * Return: true if there are more.
 */
bool card_recv_flush(struct card_qp *qp)
{
	struct ib_wc wc = {
		.status = IB_WC_WR_FLUSH_ERR, .opcode = IB_WC_RECV, .qp = &qp->ib, .port_num = 1,
	};
	u32 end = qp->rq.tail + min_t(u32, qp->rq.head - qp->rq.tail, CARD_BATCH);

	if (qp->rq.tail == end || !card_flush_is_due(qp, &qp->flush_recvs))
		return false;
	card_count_add(qp->card, CARD_COUNT_FLUSHED, end - qp->rq.tail);
	while (qp->rq.tail != end) {
		const struct card_recv *recv = card_ring_slot(&qp->rq, qp->rq.tail++);

		wc.wr_id = recv->wr_id;
		/* a full queue is broken: its consumer expects no completions */
		card_cq_push(to_card_cq(qp->ib.recv_cq), &wc, false, false);
	}
	qp->flush_recvs = qp->flush_recvs && qp->rq.tail != qp->rq.head;
	return qp->rq.tail != qp->rq.head;
}

/**
 * card_qp_error - set a queue pair to the error state
 * @qp: queue pair
 *
 * Flushes the receives, unless a peer has entered the queue pair and will do so.
 * The caller has to start the engine, which flushes the send requests.
 * Return: whether the state changed.
 */
bool card_qp_error(struct card_qp *qp)
{
	unsigned long flags;
	bool changed;

	spin_lock_irqsave(&qp->lock, flags);
	changed = qp->state != IB_QPS_RESET && qp->state != IB_QPS_ERR;
	if (qp->state != IB_QPS_RESET)
		WRITE_ONCE(qp->state, IB_QPS_ERR);
	/* a reset may come between */
	while (qp->state == IB_QPS_ERR && !qp->entered && card_recv_flush(qp)) {
		spin_unlock_irqrestore(&qp->lock, flags);
		spin_lock_irqsave(&qp->lock, flags);
	}
	spin_unlock_irqrestore(&qp->lock, flags);
	return changed;
}
