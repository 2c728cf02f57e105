// SPDX-License-Identifier: GPL-2.0-only
/* Receive requests: the peer's engine consumes them in order; errors flush them, see error.c. */
#include "queues.h"

/**
 * card_recv_first - get the oldest receive
 * @qp: queue pair from card_peer_enter(), so that no other context consumes it
 *
 * Return: receive, or NULL.
 */
struct card_recv *card_recv_first(struct card_qp *qp)
{
	struct card_recv *recv = NULL;
	unsigned long flags;

	spin_lock_irqsave(&qp->lock, flags);
	if (qp->rq.head != qp->rq.tail)
		recv = card_ring_slot(&qp->rq, qp->rq.tail);
	spin_unlock_irqrestore(&qp->lock, flags);
	return recv;
}

/**
 * card_recv_complete - complete the oldest receive
 * @qp: queue pair from card_peer_enter()
 * @wc: completion without the members that come from the receive request
 * @solicited: the peer requested an event
 * @in_timer: the caller runs in a timer's softirq
 */
void card_recv_complete(struct card_qp *qp, struct ib_wc *wc, bool solicited, bool in_timer)
{
	const struct card_recv *recv;
	unsigned long flags;

	spin_lock_irqsave(&qp->lock, flags);
	recv = card_ring_slot(&qp->rq, qp->rq.tail);
	wc->wr_id = recv->wr_id;
	wc->qp = &qp->ib;
	wc->port_num = 1;
	qp->rq.tail++;
	spin_unlock_irqrestore(&qp->lock, flags);
	if (card_cq_push(to_card_cq(qp->ib.recv_cq), wc, solicited, in_timer))
		return;
	if (card_qp_error(qp))
		card_qp_event(qp, IB_EVENT_QP_FATAL);
	card_engine_later(qp);
}
