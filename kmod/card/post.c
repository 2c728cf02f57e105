// SPDX-License-Identifier: GPL-2.0-only
/*
 * Posting: check work requests, copy them into rings, and start the engine.
 *
 * The context that posts also runs the engine, in place of the card's processor,
 * unless another context does so already. For posts in an interrupt, or with
 * interrupts disabled as in ib_mad, a tasklet runs the engine.
 */
#include "queues.h"

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
	if (wr->send_flags & IB_SEND_INLINE && qp->card->profile->drops_inline)
		send->flags &= ~IB_SEND_INLINE;
	else if (wr->send_flags & IB_SEND_INLINE)
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
		if (qp->card->profile->refuses_immediate)
			return -EINVAL;
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

	if (qp->sq.head - card_send_freed(qp) == qp->sq.limit)
		return -ENOMEM;
	send->wr_id = wr->wr_id;
	send->opcode = wr->opcode;
	send->flags = wr->send_flags | (qp->signal_all ? IB_SEND_SIGNALED : 0);
	send->status = IB_WC_SUCCESS;
	send->fatal = false;
	send->unanswered = false;
	send->paid = false;
	send->looked_up = false;
	send->num_sge = 0;
	send->length = 0;
	send->moved = 0;
	rc = card_is_gsi(qp) ? card_take_datagram(qp, send, wr) : card_take_request(qp, send, wr);
	if (rc)
		return rc;
	/* pairs with card_start(): the slot is complete */
	smp_store_release(&qp->sq.head, qp->sq.head + 1);
	return 0;
}

/* Whether the state of a queue pair accepts send requests; its lock is held */
static bool card_accepts(const struct card_qp *qp)
{
	return qp->state == IB_QPS_RTS || qp->state == IB_QPS_ERR;
}

/* The result of a post if the firmware does not work */
static int card_post_fails(const struct card *card)
{
	return card_result(card, 0, card->profile->failed_post);
}

/* Run the engine for requests that were posted, if the caller has claimed it */
static void card_post_run(struct card_qp *qp, bool claimed)
{
	if (!claimed)
		return;
	if (in_hardirq() || irqs_disabled())
		tasklet_schedule(&qp->tasklet);
	else
		card_engine_run(qp);
}

/* Whether cut_chains has the card refuse all but the first request of a chain */
static bool card_cuts(struct card_qp *qp, const struct ib_send_wr *wr)
{
	return wr->next && !card_is_gsi(qp) && atomic_read(&qp->card->cut_chains) &&
	       atomic_dec_if_positive(&qp->card->cut_chains) >= 0;
}

static int card_post(struct card_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	bool cut = card_cuts(qp, wr);
	unsigned long flags;
	int rc = card_post_fails(qp->card);
	bool claimed;

	spin_lock_irqsave(&qp->lock, flags);
	if (!card_accepts(qp))
		rc = -EINVAL;
	while (!rc && wr) {
		rc = card_take_send(qp, wr);
		if (!rc)
			wr = wr->next;
		if (unlikely(cut) && !rc)
			rc = -EIO;
	}
	claimed = card_engine_claim(qp);
	spin_unlock_irqrestore(&qp->lock, flags);
	if (rc)
		*bad = wr;
	card_post_run(qp, claimed);
	return rc;
}

/* --- send requests of processes --- */

/* Copy a request that the process may change at any time, and take the copy */
static int card_take_entry(struct card_qp *qp, const struct card_abi_send *entry)
{
	struct card_abi_send copy = *entry;
	struct ib_sge sge[CARD_MAX_SGE];
	struct ib_rdma_wr wr = { };

	/* the compiler does not read the entry again */
	barrier();
	wr.wr.wr_id = copy.wr_id;
	wr.wr.opcode = copy.opcode;
	wr.wr.send_flags = copy.flags;
	wr.wr.sg_list = sge;
	wr.wr.num_sge = copy.num_sge;
	wr.wr.ex.imm_data = (__force __be32)copy.imm;
	wr.remote_addr = copy.remote_addr;
	wr.rkey = copy.rkey;
	switch (copy.opcode) {
	case IB_WR_SEND:
	case IB_WR_SEND_WITH_IMM:
	case IB_WR_SEND_WITH_INV:
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
	case IB_WR_RDMA_READ:
		break;
	default:
		return -EINVAL;
	}
	if (copy.flags & IB_SEND_INLINE) {
		/* the length is checked before the data is copied */
		sge[0] = (struct ib_sge) {
			.addr = (uintptr_t)entry->data, .length = copy.length,
		};
		wr.wr.num_sge = copy.length ? 1 : 0;
	} else if (copy.num_sge <= qp->cap.max_send_sge) {
		static_assert(sizeof(struct ib_uverbs_sge) == sizeof(struct ib_sge));
		memcpy(sge, entry->data, copy.num_sge * sizeof(*sge));
		barrier();
	} else {
		return -EINVAL;
	}
	return card_take_send(qp, &wr.wr);
}

/* Post up to CARD_BATCH of @count requests, from @at on. Returns 0 or a negative errno. */
static int card_post_batch(struct card_qp *qp, u32 count, u32 *at)
{
	u32 end = min(count, *at + CARD_BATCH);
	unsigned long flags;
	bool claimed;
	int rc = 0;

	spin_lock_irqsave(&qp->lock, flags);
	if (!card_accepts(qp) || count > qp->sq.limit)
		rc = -EINVAL;
	while (!rc && *at < end) {
		rc = card_take_entry(qp, (void *)qp->sends->slots + (size_t)*at * qp->slot_bytes);
		*at += !rc;
	}
	claimed = card_engine_claim(qp);
	spin_unlock_irqrestore(&qp->lock, flags);
	card_post_run(qp, claimed);
	return rc;
}

/* A doorbell: post what the process has written since the last one */
static int card_post_sends(struct card_qp *qp)
{
	u32 count = READ_ONCE(qp->sends->count), n = 0;
	int rc;

	do {
		rc = card_post_batch(qp, count, &n);
	} while (!rc && n < count);
	WRITE_ONCE(qp->sends->taken, n);
	return rc;
}

/**
 * card_post_send - post send requests
 * @ib: queue pair
 * @wr: first request; NULL: the doorbell of a process
 * @bad: output on error: first request that was not posted
 *
 * Return: 0; -EINVAL in a state that accepts none, or for an invalid request;
 * -ENOMEM if the ring is full; -EOPNOTSUPP; -EIO for a chain that cut_chains cuts.
 */
int card_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct card_qp *qp = to_card_qp(ib);

	if (!qp->sends)
		return card_post(qp, wr, bad);
	if (!wr)
		return card_post_sends(qp);
	/* pointers of a process, which this card expects in its memory */
	*bad = wr;
	return -EOPNOTSUPP;
}

/* --- receive requests --- */

static int card_take_recv(struct card_qp *qp, const struct ib_recv_wr *wr)
{
	struct card_recv *recv = card_ring_slot(&qp->rq, qp->rq.head);

	if (wr->num_sge < 0 || wr->num_sge > qp->cap.max_recv_sge)
		return -EINVAL;
	if (qp->rq.head - qp->rq.tail == qp->rq.limit)
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
	int n, rc = card_post_fails(qp->card);
	bool flushes;

	do {
		spin_lock_irqsave(&qp->lock, flags);
		if (qp->state == IB_QPS_RESET)
			rc = -EINVAL;
		for (n = 0; !rc && wr && n < CARD_BATCH; n++) {
			rc = card_take_recv(qp, wr);
			if (!rc)
				wr = wr->next;
		}
		flushes = qp->state == IB_QPS_ERR && !qp->entered && card_recv_flush(qp);
		spin_unlock_irqrestore(&qp->lock, flags);
	} while ((!rc && wr) || flushes);
	if (rc)
		*bad = wr;
	return rc;
}
