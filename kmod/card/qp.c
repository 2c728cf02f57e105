// SPDX-License-Identifier: GPL-2.0-only
/*
 * Queue pairs: creation, destruction, rings.
 *
 * A queue pair in the error state flushes all requests, also those posted later,
 * because consumers rely on that to drain it. Reset and destruction wait until
 * neither the engine of the queue pair nor that of a peer accesses it.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "queues.h"

static u32 card_next_qpn;

/* --- rings --- */

static int card_ring_create(struct card_ring *ring, u32 size, bool exact, size_t stride, gfp_t gfp)
{
	ring->size = roundup_pow_of_two(max(size, 1U));
	ring->limit = exact ? size : ring->size;
	ring->stride = ALIGN(stride, 8);
	ring->slots = kvcalloc(ring->size, ring->stride, gfp);
	return ring->slots ? 0 : -ENOMEM;
}

static int card_rings_create(struct card_qp *qp, gfp_t gfp)
{
	struct ib_qp_cap *cap = &qp->cap;
	size_t data = max_t(size_t, cap->max_send_sge * sizeof(struct ib_sge),
			    cap->max_inline_data);
	bool exact = qp->card->profile->exact;
	int rc;

	rc = card_ring_create(&qp->sq, cap->max_send_wr, exact, sizeof(struct card_send) + data,
			      gfp);
	if (rc)
		return rc;
	rc = card_ring_create(&qp->rq, cap->max_recv_wr, exact,
			      struct_size((struct card_recv *)NULL, sge, cap->max_recv_sge), gfp);
	if (rc)
		kvfree(qp->sq.slots);
	cap->max_send_wr = qp->sq.limit;
	cap->max_recv_wr = qp->rq.limit;
	return rc;
}

static void card_rings_destroy(struct card_qp *qp)
{
	if (qp->sends)
		card_sends_destroy(qp);
	card_rings_uncharge(qp);
	kvfree(qp->sq.slots);
	kvfree(qp->rq.slots);
}

/* --- creation and destruction --- */

static int card_qp_check(const struct card_profile *profile, const struct ib_qp_init_attr *init,
			 bool user)
{
	const struct ib_qp_cap *cap = &init->cap;

	if (init->qp_type != IB_QPT_RC && (init->qp_type != IB_QPT_GSI || user))
		return -EOPNOTSUPP;
	if (init->create_flags || init->srq || init->rwq_ind_tbl)
		return -EOPNOTSUPP;
	if (!init->send_cq || !init->recv_cq)
		return -EINVAL;
	if (cap->max_send_wr > profile->max_wr || cap->max_recv_wr > profile->max_wr ||
	    cap->max_send_sge > profile->send_sge || cap->max_recv_sge > profile->recv_sge ||
	    cap->max_inline_data > profile->inline_data)
		return -EINVAL;
	return 0;
}

static void card_qp_init(struct card_qp *qp, const struct ib_qp_init_attr *init, bool user)
{
	qp->card = to_card(qp->ib.device);
	mutex_init(&qp->modify);
	spin_lock_init(&qp->lock);
	init_waitqueue_head(&qp->idle);
	qp->state = IB_QPS_RESET;
	qp->cap = init->cap;
	if (qp->card->profile->drops_inline)
		qp->cap.max_inline_data = 0;
	qp->open = !user && !qp->card->profile->lkey;
	qp->signal_all = init->sq_sig_type == IB_SIGNAL_ALL_WR;
	/* a process polls its queue by itself */
	qp->frees_at_poll = qp->card->profile->frees_at_poll && !user;
	qp->fences = qp->card->profile->fences;
	card_timer_setup(&qp->timer, HRTIMER_MODE_ABS_SOFT, card_engine_timer);
	tasklet_setup(&qp->tasklet, card_engine_tasklet);
	INIT_WORK(&qp->event_work, card_qp_report);
	INIT_DELAYED_WORK(&qp->flush_work, card_flush_later);
}

static int card_qp_publish_gsi(struct card_qp *qp)
{
	int rc = 0;

	spin_lock_bh(&cards_lock);
	if (qp->card->gsi)
		rc = -EBUSY;
	else
		qp->card->gsi = qp;
	spin_unlock_bh(&cards_lock);
	qp->ib.qp_num = 1;
	return rc;
}

/* Assign the number by which peers look up the queue pair */
static int card_qp_publish(struct card_qp *qp, enum ib_qp_type type)
{
	int rc;

	if (type == IB_QPT_GSI)
		return card_qp_publish_gsi(qp);
	rc = xa_alloc_cyclic_bh(&card_qps, &qp->ib.qp_num, qp, XA_LIMIT(2, 0xfffffe),
				&card_next_qpn, GFP_KERNEL);
	return min(rc, 0);
}

static void card_qp_hide(struct card_qp *qp)
{
	if (!card_is_gsi(qp)) {
		xa_lock_bh(&card_qps);
		__xa_erase(&card_qps, qp->ib.qp_num);
		card_qps_erased++;
		xa_unlock_bh(&card_qps);
		return;
	}
	spin_lock_bh(&cards_lock);
	qp->card->gsi = NULL;
	spin_unlock_bh(&cards_lock);
}

/**
 * card_create_qp - create a queue pair
 * @ib: queue pair
 * @init: type RC or, for the kernel, GSI (one per card); queues and capacities
 * @udata: NULL for a queue pair of the kernel, else struct card_abi_create_qp
 *
 * Return: 0 or a negative errno.
 */
int card_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata)
{
	struct card_qp *qp = to_card_qp(ib);
	struct card *card = to_card(ib->device);
	int rc = card_qp_check(card->profile, init, udata);

	if (rc)
		return rc;
	if (READ_ONCE(card->firmware) != CARD_RUNS)
		return -ETIMEDOUT;
	if (!atomic_add_unless(&card->qps, 1, CARD_MAX_QP))
		return -ENOMEM;
	card_qp_init(qp, init, udata);
	rc = card_rings_create(qp, udata ? GFP_KERNEL_ACCOUNT : GFP_KERNEL);
	if (rc)
		goto out_count;
	if (udata) {
		rc = card_rings_charge(qp);
		rc = rc ?: card_sends_create(qp, udata);
	}
	if (rc)
		goto out_rings;
	init->cap = qp->cap;
	rc = card_qp_publish(qp, init->qp_type);
	if (!rc)
		return 0;
out_rings:
	card_rings_destroy(qp);
out_count:
	atomic_dec(&card->qps);
	return rc;
}

/**
 * card_qp_stop - refuse claims of a queue pair, and wait for the end of accesses
 * @qp: queue pair
 */
void card_qp_stop(struct card_qp *qp)
{
	spin_lock_irq(&qp->lock);
	WRITE_ONCE(qp->stopped, true);
	WRITE_ONCE(qp->state, IB_QPS_RESET);
	wait_event_lock_irq(qp->idle, !qp->running && !qp->entered, qp->lock);
	spin_unlock_irq(&qp->lock);
	cancel_delayed_work_sync(&qp->flush_work);
	hrtimer_cancel(&qp->timer);
	tasklet_kill(&qp->tasklet);
	card_wire_cancel(qp);
	card_cq_sync(to_card_cq(qp->ib.send_cq));
	card_cq_sync(to_card_cq(qp->ib.recv_cq));
	card_cq_forget(to_card_cq(qp->ib.send_cq), qp);
	card_cq_forget(to_card_cq(qp->ib.recv_cq), qp);
}

/**
 * card_destroy_qp - destroy a queue pair; waits for the end of accesses
 * @ib: queue pair
 * @udata: no members
 *
 * Return: 0, or a negative errno if keep_qps or stopped firmware has it fail: then the queue
 * pair goes on.
 */
int card_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	struct card_qp *qp = to_card_qp(ib);
	int rc;

	if (!card_is_gsi(qp) && atomic_dec_if_positive(&qp->card->keep_qps) >= 0)
		return -EIO;
	rc = card_result(qp->card, qp->card->profile->stopped_destroy, 0);
	if (rc)
		return rc;
	card_qp_hide(qp);
	card_qp_stop(qp);
	cancel_work_sync(&qp->event_work);
	card_rings_destroy(qp);
	atomic_dec(&qp->card->qps);
	return 0;
}
