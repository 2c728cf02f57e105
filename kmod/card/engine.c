// SPDX-License-Identifier: GPL-2.0-only
/*
 * The engine: order and time of the requests in a send queue.
 *
 * The engine starts each request (it leaves the card), executes it (the peer acts
 * on it) and completes it (the answer arrives), each step in the order of
 * posting. A Read starts when the number of Reads in flight permits, a fenced
 * request when no Read is in flight, and with card_qp.fences, a registration
 * when all requests before it are complete.
 *
 * Without a wire, the three steps follow each other immediately. With a wire,
 * each step has a time. The timer waits for the first step with a visible
 * effect: a message arrives, or a completion is due. The engine then executes
 * all steps before it, too. The timer's interrupt takes the place of the card's,
 * and steps without a visible effect need no interrupt.
 *
 * One context at a time executes a queue: it has claimed the queue pair, see claim.c. The engine
 * disables softirqs while it works, and enables them after CARD_BUDGET bytes at the latest.
 */
#include "queues.h"

/* Number of turns after which a context leaves the rest to a tasklet */
#define CARD_TURNS	16

/* --- contexts that run the engine --- */

/**
 * card_engine_kick - run the engine, unless another context does
 * @qp: queue pair
 *
 * The caller holds no lock and has interrupts enabled.
 */
void card_engine_kick(struct card_qp *qp)
{
	if (card_engine_try(qp))
		card_engine_run(qp);
}

/**
 * card_engine_tasklet - run the engine for a context that could not
 * @tasklet: tasklet of a claimed queue pair
 */
void card_engine_tasklet(struct tasklet_struct *tasklet)
{
	card_engine_run(container_of(tasklet, struct card_qp, tasklet));
}

/**
 * card_engine_timer - run the engine at the time of a request
 * @timer: timer of a queue pair
 *
 * Return: HRTIMER_NORESTART.
 */
enum hrtimer_restart card_engine_timer(struct hrtimer *timer)
{
	struct card_qp *qp = container_of(timer, struct card_qp, timer);

	if (card_engine_try(qp)) {
		qp->in_timer = true;
		card_engine_run(qp);
	}
	return HRTIMER_NORESTART;
}

/**
 * card_flush_later - flush a broken queue pair after the delay of its card's profile
 * @work: flush_work of a queue pair
 */
void card_flush_later(struct work_struct *work)
{
	struct card_qp *qp = container_of(to_delayed_work(work), struct card_qp, flush_work);
	bool broken;

	spin_lock_irq(&qp->lock);
	broken = qp->state == IB_QPS_ERR;
	/* requests that are posted later have a delay of their own */
	if (broken) {
		WRITE_ONCE(qp->flush_sends, qp->sq.head != qp->sq.tail);
		WRITE_ONCE(qp->flush_recvs, qp->rq.head != qp->rq.tail);
	}
	spin_unlock_irq(&qp->lock);
	if (!broken)
		return;
	/* a peer inside the queue pair flushes the receives when it leaves */
	card_qp_error(qp);
	card_engine_kick(qp);
}

/* --- time --- */

static u64 card_now(const struct card_qp *qp)
{
	return qp->timed || card_wire_is_on(qp->card) ? ktime_get_ns() : 0;
}

static bool card_is_seen_at_arrival(const struct card_send *send)
{
	return send->opcode != IB_WR_RDMA_READ && send->opcode != IB_WR_RDMA_WRITE &&
	       !card_is_local(send);
}

/* Whether the consumer or a later request waits for the completion of this request */
static bool card_is_awaited(const struct card_qp *qp, const struct card_send *send)
{
	bool delays = send->opcode == IB_WR_RDMA_READ || qp->fences;

	return send->flags & IB_SEND_SIGNALED || send->status != IB_WC_SUCCESS ||
	       (delays && qp->started != READ_ONCE(qp->sq.head));
}

/* A request completes no earlier than those before it */
static u64 card_next_completion(const struct card_qp *qp)
{
	u64 reached = qp->last_done;
	u32 at;

	for (at = qp->sq.tail; at != qp->executed; at++) {
		const struct card_send *send = card_ring_slot(&qp->sq, at);

		reached = max(reached, send->done_at);
		if (card_is_awaited(qp, send))
			return reached;
	}
	return CARD_NEVER;
}

/*
 * Likewise for execution: a request has to wait while an earlier one is retried.
 * The last request always counts: no later step would report its failure.
 */
static u64 card_next_execution(const struct card_qp *qp)
{
	u64 time = CARD_NEVER, reached = 0;
	u32 at;

	for (at = qp->executed; at != qp->started && !qp->failed; at++) {
		const struct card_send *send = card_ring_slot(&qp->sq, at);

		reached = max(reached, send->exec_at);
		if (reached >= time)
			break;
		if (card_is_seen_at_arrival(send) || at + 1 == qp->started)
			return reached;
		if (card_is_awaited(qp, send))
			time = min(time, reached + send->reply);
	}
	return time;
}

static void card_arm(struct card_qp *qp)
{
	u64 next = min(card_next_completion(qp), card_next_execution(qp));

	if (next >= KTIME_MAX)
		return;
	/* usually the next step has not changed; a timer that fires early does no harm */
	if (hrtimer_is_queued(&qp->timer) && (u64)hrtimer_get_expires(&qp->timer) <= next)
		return;
	hrtimer_start(&qp->timer, ns_to_ktime(next), HRTIMER_MODE_ABS_SOFT);
}

/* --- turns --- */

static bool card_pass(struct card_qp *qp)
{
	u64 now = card_now(qp);
	bool moved;

	moved = card_start(qp, now);
	moved |= card_execute(qp, now);
	moved |= card_complete(qp, now);
	return moved;
}

/* Work until the budget is spent; returns true if more can be done immediately */
static bool card_turn(struct card_qp *qp)
{
	qp->budget = CARD_BUDGET;
	while (!READ_ONCE(qp->stopped)) {
		bool moved;

		if (card_is_flushed(qp)) {
			card_flush(qp);
			return false;
		}
		if (READ_ONCE(qp->state) != IB_QPS_RTS)
			return false;
		moved = card_pass(qp);
		if (qp->budget <= 0)
			return true;
		if (qp->sq.tail == READ_ONCE(qp->sq.head)) {
			card_engine_reset(qp);
			break;
		}
		if (!moved)
			break;
	}
	if (qp->timed)
		card_arm(qp);
	return false;
}

/**
 * card_engine_run - do all steps that are due, then end the claim
 * @qp: claimed queue pair
 *
 * The caller holds no lock and has interrupts enabled.
 */
void card_engine_run(struct card_qp *qp)
{
	int turns;

	/* other contexts may post as fast as this one works */
	for (turns = 0; turns < CARD_TURNS; turns++) {
		bool more;

		local_bh_disable();
		more = card_turn(qp);
		local_bh_enable();
		if (!more && card_engine_release(qp))
			return;
	}
	/* the tasklet takes over the claim, and runs when softirqs are enabled */
	local_bh_disable();
	tasklet_schedule(&qp->tasklet);
	local_bh_enable();
}
