// SPDX-License-Identifier: GPL-2.0-only
/*
 * Posting: check work requests, copy them into rings, and start the engine.
 *
 * The context that posts also runs the engine, in place of the card's processor,
 * unless another context does so already. For posts in an interrupt, or with
 * interrupts disabled as in ib_mad, a tasklet runs the engine.
 */
#include "qp.h"

/* --- send requests --- */

static u64 card_sge_bytes(const struct ib_sge *sge, int num)
{
	u64 bytes = 0;

	while (num--)
		bytes += sge++->length;
	return bytes;
}

static int card_take_inline(const struct card_qp *qp, struct card_send *send,
			    const struct ib_send_wr *wr, u64 bytes)
{
	u8 *to = send->data;
	int i;

	if (bytes > qp->cap.max_inline_data)
		return -EINVAL;
	for (i = 0; i < wr->num_sge; i++) {
		memcpy(to, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		to += wr->sg_list[i].length;
	}
	return 0;
}

static int card_take_data(const struct card_qp *qp, struct card_send *send,
			  const struct ib_send_wr *wr)
{
	u64 bytes;

	if (wr->num_sge < 0 || wr->num_sge > qp->cap.max_send_sge)
		return -EINVAL;
	bytes = card_sge_bytes(wr->sg_list, wr->num_sge);
	/* execution checks the maximum length of a message */
	send->length = min_t(u64, bytes, U32_MAX);
	if (wr->send_flags & IB_SEND_INLINE)
		return card_take_inline(qp, send, wr, bytes);
	send->num_sge = wr->num_sge;
	memcpy(send->sge, wr->sg_list, wr->num_sge * sizeof(*send->sge));
	return 0;
}

static int card_take_datagram(const struct card_qp *qp, struct card_send *send,
			      const struct ib_send_wr *wr)
{
	const struct ib_ud_wr *ud = ud_wr(wr);

	if (wr->opcode != IB_WR_SEND)
		return -EINVAL;
	send->path = container_of(ud->ah, struct card_ah, ib)->path;
	send->qpn = ud->remote_qpn;
	/* the high bit selects the key of the queue pair */
	send->qkey = ud->remote_qkey >> 31 ? qp->attr.qkey : ud->remote_qkey;
	return card_take_data(qp, send, wr);
}

static int card_take_request(const struct card_qp *qp, struct card_send *send,
			     const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_SEND_WITH_INV:
		send->key = wr->ex.invalidate_rkey;
		break;
	case IB_WR_SEND_WITH_IMM:
		send->imm = wr->ex.imm_data;
		break;
	case IB_WR_SEND:
		break;
	case IB_WR_RDMA_READ:
		if (wr->send_flags & IB_SEND_INLINE)
			return -EINVAL;
		fallthrough;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		send->imm = wr->ex.imm_data;
		send->remote_addr = rdma_wr(wr)->remote_addr;
		send->rkey = rdma_wr(wr)->rkey;
		break;
	case IB_WR_LOCAL_INV:
		send->key = wr->ex.invalidate_rkey;
		return 0;
	case IB_WR_REG_MR:
		send->key = reg_wr(wr)->key;
		send->mr = to_card_mr(reg_wr(wr)->mr)->index;
		send->access = reg_wr(wr)->access;
		return 0;
	default:
		return -EOPNOTSUPP;
	}
	return card_take_data(qp, send, wr);
}

static int card_take_send(struct card_qp *qp, const struct ib_send_wr *wr)
{
	struct card_send *send = card_ring_slot(&qp->sq, qp->sq.head);
	int rc;

	if (qp->sq.head - smp_load_acquire(&qp->sq.tail) == qp->sq.size)
		return -ENOMEM;
	send->wr_id = wr->wr_id;
	send->opcode = wr->opcode;
	send->flags = wr->send_flags | (qp->signal_all ? IB_SEND_SIGNALED : 0);
	send->status = IB_WC_SUCCESS;
	send->fatal = false;
	send->unanswered = false;
	send->paid = false;
	send->num_sge = 0;
	send->length = 0;
	send->moved = 0;
	rc = card_is_gsi(qp) ? card_take_datagram(qp, send, wr) : card_take_request(qp, send, wr);
	if (!rc)
		smp_store_release(&qp->sq.head, qp->sq.head + 1);
	return rc;
}

/* Post the requests from @wr to the one before @end */
static int card_post(struct card_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr *end,
		     const struct ib_send_wr **bad)
{
	unsigned long flags;
	bool claimed;
	int rc = 0;

	spin_lock_irqsave(&qp->lock, flags);
	if (qp->state != IB_QPS_RTS && qp->state != IB_QPS_ERR)
		rc = -EINVAL;
	while (!rc && wr != end) {
		rc = card_take_send(qp, wr);
		if (!rc)
			wr = wr->next;
	}
	claimed = card_engine_claim(qp);
	spin_unlock_irqrestore(&qp->lock, flags);
	if (rc)
		*bad = wr;
	if (!claimed)
		return rc;
	if (in_hardirq() || irqs_disabled())
		tasklet_schedule(&qp->tasklet);
	else
		card_engine_run(qp);
	return rc;
}

/* --- send requests of processes --- */

/* Copy inline data from the current process; returns its length or a negative errno */
static int card_copy_inline(u8 *data, const struct ib_send_wr *wr)
{
	u32 length = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		const struct ib_sge *sge = &wr->sg_list[i];

		if (sge->length > CARD_MAX_INLINE - length)
			return -EINVAL;
		if (copy_from_user(data + length, u64_to_user_ptr(sge->addr), sge->length))
			return -EFAULT;
		length += sge->length;
	}
	return length;
}

/* Post a request with inline data, which is copied before a lock is held */
static int card_post_inline(struct card_qp *qp, const struct ib_send_wr *wr)
{
	struct ib_rdma_wr copy = {};
	u8 data[CARD_MAX_INLINE];
	struct ib_sge sge = { .addr = (uintptr_t)data };
	const struct ib_send_wr *bad;
	int length;

	if (wr->num_sge < 0 || wr->num_sge > qp->cap.max_send_sge)
		return -EINVAL;
	length = card_copy_inline(data, wr);
	if (length < 0)
		return length;
	if (wr->opcode == IB_WR_RDMA_WRITE || wr->opcode == IB_WR_RDMA_WRITE_WITH_IMM)
		copy = *rdma_wr(wr);
	copy.wr = *wr;
	sge.length = length;
	copy.wr.next = NULL;
	copy.wr.sg_list = &sge;
	copy.wr.num_sge = length ? 1 : 0;
	return card_post(qp, &copy.wr, NULL, &bad);
}

static int card_post_user(struct card_qp *qp, const struct ib_send_wr *wr,
			  const struct ib_send_wr **bad)
{
	int rc = 0;

	while (!rc && wr) {
		const struct ib_send_wr *end = wr;

		while (end && !(end->send_flags & IB_SEND_INLINE))
			end = end->next;
		if (end != wr) {
			rc = card_post(qp, wr, end, bad);
			wr = end;
			continue;
		}
		*bad = wr;
		rc = card_post_inline(qp, wr);
		wr = wr->next;
	}
	return rc;
}

/**
 * card_post_send - post send requests
 * @ib: queue pair
 * @wr: first request
 * @bad: output on error: first request that was not posted
 *
 * Return: 0; -EINVAL in a state that accepts none, or for an invalid request;
 * -ENOMEM if the ring is full; -EFAULT; -EOPNOTSUPP.
 */
int card_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct card_qp *qp = to_card_qp(ib);

	return ib->uobject ? card_post_user(qp, wr, bad) : card_post(qp, wr, NULL, bad);
}

/* --- receive requests --- */

static int card_take_recv(struct card_qp *qp, const struct ib_recv_wr *wr)
{
	struct card_recv *recv = card_ring_slot(&qp->rq, qp->rq.head);

	if (wr->num_sge < 0 || wr->num_sge > qp->cap.max_recv_sge)
		return -EINVAL;
	if (qp->rq.head - qp->rq.tail == qp->rq.size)
		return -ENOMEM;
	recv->wr_id = wr->wr_id;
	recv->num_sge = wr->num_sge;
	recv->length = card_sge_bytes(wr->sg_list, wr->num_sge);
	memcpy(recv->sge, wr->sg_list, wr->num_sge * sizeof(*recv->sge));
	qp->rq.head++;
	return 0;
}

/**
 * card_post_recv - post receive requests
 * @ib: queue pair
 * @wr: first request
 * @bad: output on error: first request that was not posted
 *
 * Return: 0; -EINVAL in a state that accepts none, or for an invalid request;
 * -ENOMEM if the ring is full.
 */
int card_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct card_qp *qp = to_card_qp(ib);
	unsigned long flags;
	int rc = 0;

	spin_lock_irqsave(&qp->lock, flags);
	if (qp->state == IB_QPS_RESET)
		rc = -EINVAL;
	while (!rc && wr) {
		rc = card_take_recv(qp, wr);
		if (!rc)
			wr = wr->next;
	}
	if (qp->state == IB_QPS_ERR && !qp->entered)
		card_recv_flush(qp);
	spin_unlock_irqrestore(&qp->lock, flags);
	if (rc)
		*bad = wr;
	return rc;
}
