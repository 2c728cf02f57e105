// SPDX-License-Identifier: GPL-2.0-only
/*
 * Claims: one context at a time executes the requests of a queue pair. Other contexts set @again
 * and leave them to it.
 */
#include "queues.h"

/**
 * card_engine_claim - claim the execution of a queue pair's requests
 * @qp: queue pair; its lock is held
 *
 * Return: true if the caller claimed it and has to run card_engine_run().
 */
bool card_engine_claim(struct card_qp *qp)
{
	if (qp->stopped)
		return false;
	/* without firmware, only the driver's flush goes on */
	if (READ_ONCE(qp->card->firmware) != CARD_RUNS && !card_is_flushed(qp))
		return false;
	if (qp->running) {
		qp->again = true;
		return false;
	}
	qp->running = true;
	return true;
}

/**
 * card_engine_try - claim a queue pair; see card_engine_claim()
 * @qp: queue pair; its lock is not held
 *
 * Return: true if the caller claimed it and has to run card_engine_run().
 */
bool card_engine_try(struct card_qp *qp)
{
	unsigned long flags;
	bool claimed;

	spin_lock_irqsave(&qp->lock, flags);
	claimed = card_engine_claim(qp);
	spin_unlock_irqrestore(&qp->lock, flags);
	return claimed;
}

/**
 * card_engine_release - end a claim
 * @qp: claimed queue pair
 *
 * Return: false if requests were posted since: the claim goes on.
 */
bool card_engine_release(struct card_qp *qp)
{
	bool ends;

	spin_lock_irq(&qp->lock);
	ends = !qp->again || qp->stopped;
	qp->again = false;
	if (ends) {
		qp->running = false;
		qp->in_timer = false;
	}
	if (ends && qp->stopped)
		wake_up(&qp->idle);
	spin_unlock_irq(&qp->lock);
	return ends;
}

/**
 * card_engine_later - run the engine in a tasklet, unless another context runs it
 * @qp: queue pair
 */
void card_engine_later(struct card_qp *qp)
{
	if (card_engine_try(qp))
		tasklet_schedule(&qp->tasklet);
}
