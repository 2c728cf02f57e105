// SPDX-License-Identifier: GPL-2.0-only
/*
 * The peer of a queue pair, by its number. The engine enters the peer for each request, so that
 * the peer can disappear between requests.
 */
#include "queues.h"

/* All queue pairs of all cards by number, except those of management datagrams */
DEFINE_XARRAY_FLAGS(card_qps, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_BH);
/* Number of those destroyed so far; the lock of card_qps protects it */
u64 card_qps_erased;

/* Whether @qp is connected to this queue pair, and its state lets it answer */
static bool card_peer_answers(const struct card_qp *peer, const struct card_qp *qp)
{
	return (peer->state == IB_QPS_RTR || peer->state == IB_QPS_RTS) && !peer->stopped &&
	       card_is_up(peer->card) && qp->peer_card == peer->card->id &&
	       peer->peer_card == qp->card->id && peer->attr.dest_qp_num == qp->ib.qp_num &&
	       peer->attr.rq_psn == qp->attr.sq_psn;
}

/* The first message may arrive before the peer's consumer gets to RTS */
static void card_peer_establish(struct card_qp *peer)
{
	if (peer->established || peer->state != IB_QPS_RTR)
		return;
	peer->established = true;
	card_qp_event(peer, IB_EVENT_COMM_EST);
}

/* Look up the peer, or take that of the last request; the lock of card_qps is held */
static struct card_qp *card_peer_find(struct card_qp *qp)
{
	u32 number = qp->attr.dest_qp_num;

	if (!qp->peer || qp->peer_since != card_qps_erased || qp->peer->ib.qp_num != number) {
		qp->peer = xa_load(&card_qps, number);
		qp->peer_since = card_qps_erased;
	}
	return qp->peer;
}

/**
 * card_peer_enter - begin an access to the peer of a queue pair
 * @qp: queue pair
 *
 * Softirqs are disabled. Until card_peer_leave(), the peer is not destroyed and
 * its receives are not flushed.
 * Return: peer, or NULL if no peer answers.
 */
struct card_qp *card_peer_enter(struct card_qp *qp)
{
	struct card_qp *peer;
	unsigned long flags;

	if (!card_is_up(qp->card))
		return NULL;
	xa_lock_bh(&card_qps);
	peer = card_peer_find(qp);
	if (peer) {
		spin_lock_irqsave(&peer->lock, flags);
		if (card_peer_answers(peer, qp)) {
			card_peer_establish(peer);
			peer->entered++;
			spin_unlock_irqrestore(&peer->lock, flags);
		} else {
			spin_unlock_irqrestore(&peer->lock, flags);
			peer = NULL;
		}
	}
	xa_unlock_bh(&card_qps);
	return peer;
}

/**
 * card_peer_leave - end an access to a peer
 * @peer: queue pair from card_peer_enter()
 */
void card_peer_leave(struct card_qp *peer)
{
	unsigned long flags;

	spin_lock_irqsave(&peer->lock, flags);
	/* the last one flushes, and leaves afterwards: then the queue pair may be destroyed */
	while (peer->entered == 1 && peer->state == IB_QPS_ERR && card_recv_flush(peer)) {
		spin_unlock_irqrestore(&peer->lock, flags);
		spin_lock_irqsave(&peer->lock, flags);
	}
	if (!--peer->entered && peer->stopped)
		wake_up(&peer->idle);
	spin_unlock_irqrestore(&peer->lock, flags);
}

/**
 * card_no_answer - schedule a retry of a request without an answer
 * @qp: queue pair
 * @send: request; sent again after the timeout, or never if that is 0
 *
 * Return: CARD_LATER.
 */
enum card_step card_no_answer(struct card_qp *qp, struct card_send *send)
{
	u8 timeout = qp->attr.timeout;

	if (!send->unanswered)
		qp->retries = qp->attr.retry_cnt;
	send->unanswered = true;
	return card_wait(send, timeout ? 4096ULL << timeout : CARD_NEVER);
}

/**
 * card_retry - consume a retry after a timeout
 * @qp: queue pair
 *
 * Return: false if no retry is left.
 */
bool card_retry(struct card_qp *qp)
{
	if (!qp->retries)
		return false;
	qp->retries--;
	card_count(qp->card, CARD_COUNT_RETRIES);
	return true;
}
