// SPDX-License-Identifier: GPL-2.0-only
/* The three steps of a send request, and the flush of a broken queue pair. */
#include "queues.h"

/**
 * card_engine_reset - reset the engine of a queue pair without send requests
 * @qp: queue pair, claimed or stopped
 */
void card_engine_reset(struct card_qp *qp)
{
	qp->started = qp->sq.tail;
	qp->executed = qp->sq.tail;
	qp->reads = 0;
	qp->failed = false;
	qp->timed = false;
	qp->last_exec = 0;
	qp->last_done = 0;
}

/* --- start --- */

static bool card_must_wait(const struct card_qp *qp, const struct card_send *send)
{
	u32 limit = send->opcode == IB_WR_RDMA_READ ? qp->attr.max_rd_atomic : 0;

	if (send->flags & IB_SEND_FENCE && qp->reads)
		return true;
	if (qp->fences && card_is_local(send) && qp->started != qp->sq.tail)
		return true;
	return limit && qp->reads >= limit;
}

static void card_start_one(struct card_qp *qp, struct card_send *send, u64 now)
{
	send->exec_at = 0;
	send->reply = 0;
	if (!card_is_local(send) && card_wire_is_on(qp->card)) {
		card_wire_start(qp, send, now);
		qp->timed = true;
	}
	send->exec_at = max(send->exec_at, qp->last_exec);
	qp->last_exec = send->exec_at;
	qp->reads += send->opcode == IB_WR_RDMA_READ;
}

/**
 * card_start - start the requests that may leave the card
 * @qp: claimed queue pair
 * @now: time
 *
 * Return: whether a request was started.
 */
bool card_start(struct card_qp *qp, u64 now)
{
	/* pairs with card_take_send(), after which a slot is complete */
	u32 head = smp_load_acquire(&qp->sq.head), before = qp->started;

	while (qp->started != head) {
		struct card_send *send = card_ring_slot(&qp->sq, qp->started);

		if (card_must_wait(qp, send))
			break;
		card_start_one(qp, send, now);
		qp->started++;
	}
	return qp->started != before;
}

/* --- execute --- */

static void card_executed(struct card_qp *qp, struct card_send *send)
{
	send->done_at = 0;
	if (qp->timed)
		send->done_at = send->exec_at + send->reply +
				READ_ONCE(qp->card->wire.completion_delay);
	qp->failed = send->status != IB_WC_SUCCESS && send->fatal;
	qp->executed++;
}

/**
 * card_execute - execute the requests that have arrived
 * @qp: claimed queue pair
 * @now: time
 *
 * Softirqs are disabled.
 * Return: whether a request was executed completely.
 */
bool card_execute(struct card_qp *qp, u64 now)
{
	u32 before = qp->executed;

	while (qp->executed != qp->started && !qp->failed && qp->budget > 0) {
		struct card_send *send = card_ring_slot(&qp->sq, qp->executed);
		enum card_step step;

		if (send->exec_at > now)
			break;
		qp->budget -= CARD_REQUEST_COST;
		step = card_request(qp, send);
		if (step == CARD_DONE)
			card_executed(qp, send);
		if (step == CARD_LATER) {
			qp->timed = true;
			qp->last_exec = max(qp->last_exec, send->exec_at);
			break;
		}
	}
	return qp->executed != before;
}

/* --- complete --- */

static enum ib_wc_opcode card_wc_opcode(enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return IB_WC_RDMA_WRITE;
	case IB_WR_RDMA_READ:
		return IB_WC_RDMA_READ;
	case IB_WR_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case IB_WR_REG_MR:
		return IB_WC_REG_MR;
	default:
		return IB_WC_SEND;
	}
}

/* Free the slot of the oldest request before its completion: the consumer may post immediately */
static void card_complete_one(struct card_qp *qp, const struct card_send *send)
{
	bool signaled = card_is_signaled(send);
	struct ib_wc wc = {
		.wr_id = send->wr_id, .status = send->status,
		.opcode = card_wc_opcode(send->opcode), .qp = &qp->ib, .port_num = 1,
		.byte_len = send->opcode == IB_WR_RDMA_READ ? send->length : 0,
	};

	/* pairs with card_send_freed(), after the last access to the slot */
	smp_store_release(&qp->sq.tail, qp->sq.tail + 1);
	if (!signaled || card_cq_push(to_card_cq(qp->ib.send_cq), &wc, false, qp->in_timer))
		return;
	/* one event per failure: the process may read none */
	if (card_qp_error(qp))
		card_qp_event(qp, IB_EVENT_QP_FATAL);
}

/*
 * The consumer finds the queue pair in the error state when it polls the
 * completion, and the flushed receives after it.
 */
static void card_complete_failed(struct card_qp *qp, const struct card_send *send)
{
	unsigned long flags;

	spin_lock_irqsave(&qp->lock, flags);
	if (qp->state != IB_QPS_RESET)
		WRITE_ONCE(qp->state, IB_QPS_ERR);
	spin_unlock_irqrestore(&qp->lock, flags);
	card_complete_one(qp, send);
	card_qp_error(qp);
}

/**
 * card_complete - complete the requests whose answer has arrived
 * @qp: claimed queue pair
 * @now: time
 *
 * A failed request sets the queue pair to the error state.
 * Return: whether a request was completed.
 */
bool card_complete(struct card_qp *qp, u64 now)
{
	u32 before = qp->sq.tail;

	while (qp->sq.tail != qp->executed) {
		struct card_send *send = card_ring_slot(&qp->sq, qp->sq.tail);

		if (max(send->done_at, qp->last_done) > now)
			break;
		qp->last_done = max(send->done_at, qp->last_done);
		qp->reads -= send->opcode == IB_WR_RDMA_READ;
		if (qp->failed && qp->sq.tail + 1 == qp->executed)
			card_complete_failed(qp, send);
		else
			card_complete_one(qp, send);
	}
	return qp->sq.tail != before;
}

/**
 * card_flush - flush all send requests of a broken queue pair
 * @qp: claimed queue pair
 */
void card_flush(struct card_qp *qp)
{
	/* as in card_start() */
	u32 head = smp_load_acquire(&qp->sq.head);

	if (qp->sq.tail == head || !card_flush_is_due(qp, &qp->flush_sends))
		return;
	card_wire_cancel(qp);
	card_count_add(qp->card, CARD_COUNT_FLUSHED, head - qp->sq.tail);
	while (qp->sq.tail != head) {
		struct card_send *send = card_ring_slot(&qp->sq, qp->sq.tail);

		send->status = IB_WC_WR_FLUSH_ERR;
		card_complete_one(qp, send);
	}
	card_engine_reset(qp);
	qp->flush_sends = false;
}
