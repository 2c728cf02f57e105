// SPDX-License-Identifier: GPL-2.0-only
/* States and attributes of queue pairs. */
#include "queues.h"

/**
 * card_qp_break - break queue pairs of a card, as an internal error of a card does
 * @card: card
 * @qpn: number of the queue pair, 0 for all
 * @reports: report IB_EVENT_QP_FATAL
 */
void card_qp_break(struct card *card, u32 qpn, bool reports)
{
	struct card_qp *qp;
	unsigned long at;

	xa_lock_bh(&card_qps);
	xa_for_each(&card_qps, at, qp) {
		if (qp->card != card || (qpn && at != qpn))
			continue;
		card_qp_error(qp);
		if (reports)
			card_qp_event(qp, IB_EVENT_QP_FATAL);
		card_engine_later(qp);
	}
	xa_unlock_bh(&card_qps);
}

static void card_resume_gsi(struct card *card)
{
	spin_lock_bh(&cards_lock);
	if (card->gsi)
		card_engine_later(card->gsi);
	spin_unlock_bh(&cards_lock);
}

/* Execute the requests of a card whose firmware had stopped */
static void card_resume(struct card *card)
{
	struct card_qp *qp;
	unsigned long at;

	xa_lock_bh(&card_qps);
	xa_for_each(&card_qps, at, qp)
		if (qp->card == card)
			card_engine_later(qp);
	xa_unlock_bh(&card_qps);
	card_resume_gsi(card);
}

/**
 * card_set_firmware - stop the firmware of a card, have its driver notice that, or start it
 * @card: card
 * @firmware: new state
 */
void card_set_firmware(struct card *card, enum card_firmware firmware)
{
	const struct card_profile *profile = card->profile;

	WRITE_ONCE(card->firmware, firmware);
	if (firmware == CARD_RUNS)
		card_resume(card);
	if (firmware != CARD_FAILED)
		return;
	if (profile->failed_flushes)
		card_qp_break(card, 0, profile->failed_qps);
	card_resume_gsi(card);
	if (profile->failed_device)
		card_report_fatal(card);
}

/* --- states --- */

static void card_qp_reset(struct card_qp *qp)
{
	card_qp_stop(qp);
	spin_lock_irq(&qp->lock);
	qp->sq.head = 0;
	qp->sq.tail = 0;
	qp->sq.freed = 0;
	qp->flush_sends = false;
	qp->flush_recvs = false;
	qp->rq.head = 0;
	qp->rq.tail = 0;
	qp->peer_card = 0;
	qp->established = false;
	memset(&qp->attr, 0, sizeof(qp->attr));
	card_engine_reset(qp);
	WRITE_ONCE(qp->stopped, false);
	spin_unlock_irq(&qp->lock);
}

static int card_attr_check(const struct card *card, const struct ib_qp_attr *attr, int mask)
{
	const struct card_profile *profile = card->profile;

	if (mask & (IB_QP_ALT_PATH | IB_QP_CAP) || mask & ~IB_QP_ATTR_STANDARD_BITS)
		return -EOPNOTSUPP;
	if ((mask & IB_QP_PORT && attr->port_num != 1) ||
	    (mask & IB_QP_PKEY_INDEX && attr->pkey_index) ||
	    (mask & IB_QP_MAX_QP_RD_ATOMIC && attr->max_rd_atomic > profile->reads_out) ||
	    (mask & IB_QP_MAX_DEST_RD_ATOMIC &&
	     attr->max_dest_rd_atomic > profile->reads_in) ||
	    (mask & IB_QP_MIN_RNR_TIMER && attr->min_rnr_timer > 31) ||
	    (mask & IB_QP_TIMEOUT && attr->timeout > 31) ||
	    (mask & IB_QP_RETRY_CNT && attr->retry_cnt > 7) ||
	    (mask & IB_QP_RNR_RETRY && attr->rnr_retry > 7))
		return -EINVAL;
	return 0;
}

#define CARD_TAKE(_bit, _member)			\
	do {						\
		if (mask & (_bit))			\
			qp->attr._member = attr->_member; \
	} while (0)

static void card_attr_take(struct card_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	CARD_TAKE(IB_QP_ACCESS_FLAGS, qp_access_flags);
	CARD_TAKE(IB_QP_QKEY, qkey);
	CARD_TAKE(IB_QP_PATH_MTU, path_mtu);
	CARD_TAKE(IB_QP_RQ_PSN, rq_psn);
	CARD_TAKE(IB_QP_SQ_PSN, sq_psn);
	CARD_TAKE(IB_QP_DEST_QPN, dest_qp_num);
	CARD_TAKE(IB_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	CARD_TAKE(IB_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	CARD_TAKE(IB_QP_MIN_RNR_TIMER, min_rnr_timer);
	CARD_TAKE(IB_QP_TIMEOUT, timeout);
	CARD_TAKE(IB_QP_RETRY_CNT, retry_cnt);
	CARD_TAKE(IB_QP_RNR_RETRY, rnr_retry);
	CARD_TAKE(IB_QP_PORT, port_num);
	if (mask & IB_QP_RETRY_CNT)
		qp->retries = attr->retry_cnt;
	if (mask & IB_QP_RNR_RETRY)
		qp->rnr_retries = attr->rnr_retry;
}

/* Fails if a peer or the engine has set the queue pair to the error state since the check */
static int card_qp_commit(struct card_qp *qp, const struct ib_qp_attr *attr, int mask,
			  enum ib_qp_state from, enum ib_qp_state to, const struct card_path *path)
{
	u32 peer = mask & IB_QP_AV ? card_find(path) : 0;
	int rc = 0;

	spin_lock_irq(&qp->lock);
	if (qp->state == from) {
		card_attr_take(qp, attr, mask);
		if (mask & IB_QP_AV) {
			qp->attr.ah_attr = attr->ah_attr;
			/* the core holds this reference */
			qp->attr.ah_attr.grh.sgid_attr = NULL;
			qp->path = *path;
			qp->peer_card = peer;
		}
		WRITE_ONCE(qp->state, to);
		qp->attr.qp_state = to;
	} else {
		rc = -EINVAL;
	}
	spin_unlock_irq(&qp->lock);
	return rc;
}

static int card_modify(struct card_qp *qp, struct ib_qp_attr *attr, int mask)
{
	enum ib_qp_state from = READ_ONCE(qp->state);
	enum ib_qp_state to = mask & IB_QP_STATE ? attr->qp_state : from;
	struct card_path path = {};
	int rc = card_attr_check(qp->card, attr, mask);

	if (rc)
		return rc;
	if (to == IB_QPS_SQD || to == IB_QPS_SQE)
		return -EOPNOTSUPP;
	if (mask & IB_QP_CUR_STATE && attr->cur_qp_state != from)
		return -EINVAL;
	if (!ib_modify_qp_is_ok(from, to, qp->ib.qp_type, mask))
		return -EINVAL;
	if (to == IB_QPS_RESET) {
		card_qp_reset(qp);
		return 0;
	}
	if (to == IB_QPS_ERR) {
		if (atomic_dec_if_positive(&qp->card->stuck) >= 0)
			return -EIO;
		card_qp_error(qp);
		WRITE_ONCE(qp->attr.qp_state, IB_QPS_ERR);
		card_engine_kick(qp);
		return 0;
	}
	if (mask & IB_QP_AV)
		card_path_set(&path, &attr->ah_attr);
	return card_qp_commit(qp, attr, mask, from, to, &path);
}

/* Have the driver change its own state without the firmware. Returns 0 if the firmware works. */
static int card_modify_fails(struct card_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	const struct card_profile *profile = qp->card->profile;
	int rc = card_result(qp->card, profile->stopped_modify, profile->failed_modify);

	if (!rc || !(mask & IB_QP_STATE))
		return rc;
	/* such a driver sets its own state before it asks the firmware */
	if (profile->cached_state)
		WRITE_ONCE(qp->attr.qp_state, attr->qp_state);
	if (profile->stopped_flushes && attr->qp_state == IB_QPS_ERR) {
		card_qp_error(qp);
		card_engine_kick(qp);
	}
	return rc;
}

/**
 * card_modify_qp - change attributes and state of a queue pair
 * @ib: queue pair
 * @attr: new attributes
 * @mask: IB_QP_...: attributes to change
 * @udata: no members
 *
 * Return: 0 or a negative errno.
 */
int card_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct card_qp *qp = to_card_qp(ib);
	int rc;

	/* a second reset would empty rings that are in use again after the first one */
	mutex_lock(&qp->modify);
	rc = card_modify_fails(qp, attr, mask) ?: card_modify(qp, attr, mask);
	mutex_unlock(&qp->modify);
	return rc;
}

/**
 * card_query_qp - get the attributes of a queue pair
 * @ib: queue pair
 * @attr: output
 * @mask: ignored: all attributes are set
 * @init: output
 *
 * Return: 0, or -ETIMEDOUT if the driver asks firmware that has stopped.
 */
int card_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		  struct ib_qp_init_attr *init)
{
	struct card_qp *qp = to_card_qp(ib);

	if (READ_ONCE(qp->card->firmware) != CARD_RUNS && !READ_ONCE(qp->card->cached_state))
		return -ETIMEDOUT;
	spin_lock_irq(&qp->lock);
	*attr = qp->attr;
	if (!READ_ONCE(qp->card->cached_state) || qp->state == IB_QPS_RESET)
		attr->qp_state = qp->state;
	attr->cur_qp_state = attr->qp_state;
	attr->cap = qp->cap;
	spin_unlock_irq(&qp->lock);
	*init = (struct ib_qp_init_attr) {
		.event_handler = ib->event_handler, .qp_context = ib->qp_context,
		.send_cq = ib->send_cq, .recv_cq = ib->recv_cq, .cap = qp->cap,
		.sq_sig_type = qp->signal_all ? IB_SIGNAL_ALL_WR : IB_SIGNAL_REQ_WR,
		.qp_type = ib->qp_type, .port_num = 1,
	};
	return 0;
}
