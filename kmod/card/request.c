// SPDX-License-Identifier: GPL-2.0-only
/*
 * Execution of one send request: the checks of this card and of the peer, in the
 * order of the specification, and the status of each failure.
 *
 * A failure on this side (local memory, no answer) breaks this queue pair. A
 * failure that the peer detects breaks both, except refused Reads and Writes if
 * the peer's card is recoverable.
 */
#include "queues.h"

/* --- outcomes --- */

static enum card_step card_fail(struct card_send *send, enum ib_wc_status status)
{
	send->status = status;
	send->fatal = true;
	return CARD_DONE;
}

/* Break the peer's queue pair. card_peer_leave() flushes its receives. */
static void card_peer_fails(struct card_qp *peer)
{
	card_qp_error(peer);
	card_engine_later(peer);
}

/* The peer rejects the request: both queue pairs break */
static enum card_step card_reject(struct card_send *send, struct card_qp *peer,
				  enum ib_wc_status status, enum ib_event_type event)
{
	card_peer_fails(peer);
	card_qp_event(peer, event);
	return card_fail(send, status);
}

/* The peer refuses access to its memory */
static enum card_step card_refuse(struct card_send *send, struct card_qp *peer)
{
	card_count(peer->card, CARD_COUNT_REFUSED);
	if (!READ_ONCE(peer->card->recoverable))
		return card_reject(send, peer, IB_WC_REM_ACCESS_ERR, IB_EVENT_QP_ACCESS_ERR);
	send->status = IB_WC_REM_ACCESS_ERR;
	return CARD_DONE;
}

/* Delay of each value of the RNR NAK timer, in units of 10 us */
static const u32 card_rnr_delay[] = {
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288,
	16384, 24576, 32768, 49152,
};

/* The peer has no receive posted */
static enum card_step card_not_ready(struct card_qp *qp, struct card_send *send,
				     const struct card_qp *peer)
{
	card_count(peer->card, CARD_COUNT_RNR);
	/* 7: without limit */
	if (qp->attr.rnr_retry != 7) {
		if (!qp->rnr_retries)
			return card_fail(send, IB_WC_RNR_RETRY_EXC_ERR);
		qp->rnr_retries--;
	}
	return card_wait(send, card_rnr_delay[peer->attr.min_rnr_timer] * 10000ULL);
}

/* --- Send --- */

/* The peer's receive fails with status @peers: both queue pairs break */
static enum card_step card_recv_fails(struct card_qp *qp, struct card_send *send,
				      struct card_qp *peer, enum ib_wc_status peers,
				      enum ib_wc_status ours)
{
	struct ib_wc wc = { .status = peers, .opcode = IB_WC_RECV };

	card_qp_error(peer);
	card_recv_complete(peer, &wc, false, qp->in_timer);
	card_engine_later(peer);
	return card_fail(send, ours);
}

static void card_send_arrives(struct card_qp *qp, struct card_send *send, struct card_qp *peer)
{
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS, .opcode = IB_WC_RECV, .byte_len = send->length,
		.src_qp = qp->ib.qp_num,
	};

	if (send->opcode == IB_WR_SEND_WITH_IMM) {
		wc.wc_flags = IB_WC_WITH_IMM;
		wc.ex.imm_data = send->imm;
	} else if (send->opcode == IB_WR_SEND_WITH_INV) {
		wc.wc_flags = IB_WC_WITH_INVALIDATE;
		wc.ex.invalidate_rkey = send->key;
	}
	card_count(qp->card, CARD_COUNT_SENDS);
	card_recv_complete(peer, &wc, send->flags & IB_SEND_SOLICITED, qp->in_timer);
}

static enum card_step card_send(struct card_qp *qp, struct card_send *send, struct card_qp *peer)
{
	const struct card_recv *recv = card_recv_first(peer);
	struct card_remote remote = { .peer = peer, .access = IB_ACCESS_LOCAL_WRITE };

	if (!recv)
		return card_not_ready(qp, send, peer);
	if (send->length > recv->length)
		return card_recv_fails(qp, send, peer, IB_WC_LOC_LEN_ERR, IB_WC_REM_INV_REQ_ERR);
	remote.sge = recv->sge;
	remote.num = recv->num_sge;
	switch (card_move(qp, send, &remote, false)) {
	case CARD_PART:
		return CARD_MORE;
	case CARD_LOCAL_REFUSED:
		return card_fail(send, IB_WC_LOC_PROT_ERR);
	case CARD_REMOTE_REFUSED:
	case CARD_REMOTE_FAULTED:
		return card_recv_fails(qp, send, peer, IB_WC_LOC_PROT_ERR, IB_WC_REM_OP_ERR);
	default:
		break;
	}
	if (send->opcode == IB_WR_SEND_WITH_INV && !card_key_invalidate(peer, send->key, true)) {
		card_count(peer->card, CARD_COUNT_REFUSED);
		card_qp_event(peer, IB_EVENT_QP_ACCESS_ERR);
		return card_recv_fails(qp, send, peer, IB_WC_LOC_ACCESS_ERR, IB_WC_REM_ACCESS_ERR);
	}
	card_send_arrives(qp, send, peer);
	return CARD_DONE;
}

/* --- Read and Write --- */

/*
 * Check the whole range before the first byte is copied, and set @ns to the time of
 * cache misses. The copy of a Read itself checks this range first.
 */
static bool card_is_granted(struct card_send *send, struct card_qp *peer, int access, u64 *ns)
{
	struct card_mr *mr;

	if (!send->length || send->moved)
		return true;
	if (access == IB_ACCESS_REMOTE_READ && !READ_ONCE(peer->card->wire.pages.entries))
		return true;
	mr = card_key_enter(peer->card, peer->ib.pd, send->rkey, access, send->remote_addr,
			    send->length);
	if (!mr)
		return false;
	if (!send->paid)
		*ns = card_wire_translate(peer->card, mr, send->remote_addr, send->length);
	card_key_leave(mr);
	return true;
}

/* Check access and copy the data of a Read or Write */
static enum card_step card_access(struct card_qp *qp, struct card_send *send, struct card_qp *peer,
				  int access)
{
	struct ib_sge sge = {
		.addr = send->remote_addr, .length = send->length, .lkey = send->rkey,
	};
	struct card_remote remote = { .peer = peer, .sge = &sge, .num = 1, .access = access };
	u64 ns = 0;

	if (!(peer->attr.qp_access_flags & access))
		return card_reject(send, peer, IB_WC_REM_INV_REQ_ERR, IB_EVENT_QP_REQ_ERR);
	if (!card_is_granted(send, peer, access, &ns))
		return card_refuse(send, peer);
	if (ns) {
		send->paid = true;
		return card_wait(send, ns);
	}
	switch (card_move(qp, send, &remote, access == IB_ACCESS_REMOTE_READ)) {
	case CARD_PART:
		return CARD_MORE;
	case CARD_LOCAL_REFUSED:
		return card_fail(send, IB_WC_LOC_PROT_ERR);
	case CARD_REMOTE_REFUSED:
		return card_refuse(send, peer);
	case CARD_REMOTE_FAULTED:
		return card_reject(send, peer, IB_WC_REM_OP_ERR, IB_EVENT_QP_FATAL);
	default:
		return CARD_DONE;
	}
}

/* Change the last byte that a Write of a page or more has brought, if a fault is injected */
static void card_corrupt(struct card_qp *qp, const struct card_send *send, struct card_qp *peer)
{
	struct ib_sge last = {
		.addr = send->remote_addr + send->length - 1, .length = 1, .lkey = send->rkey,
	};
	struct card_sg there, here;
	u8 byte;

	if (send->length < PAGE_SIZE || atomic_dec_if_positive(&qp->card->corrupt) < 0)
		return;
	card_sg_init(&there, peer, &last, 1, 0, 0);
	card_sg_flat(&here, &byte, 1);
	if (!card_copy(&here, &there, 1)) {
		card_sg_end(&there);
		byte ^= 1;
		card_sg_init(&there, peer, &last, 1, IB_ACCESS_REMOTE_WRITE, 0);
		card_sg_flat(&here, &byte, 1);
		card_copy(&there, &here, 1);
	}
	card_sg_end(&there);
}

static enum card_step card_write(struct card_qp *qp, struct card_send *send, struct card_qp *peer)
{
	bool immediate = send->opcode == IB_WR_RDMA_WRITE_WITH_IMM;
	struct ib_wc wc = {
		.status = IB_WC_SUCCESS, .opcode = IB_WC_RECV_RDMA_WITH_IMM,
		.byte_len = send->length, .src_qp = qp->ib.qp_num, .wc_flags = IB_WC_WITH_IMM,
		.ex.imm_data = send->imm,
	};
	enum card_step step;

	if (immediate && !card_recv_first(peer))
		return card_not_ready(qp, send, peer);
	step = card_access(qp, send, peer, IB_ACCESS_REMOTE_WRITE);
	if (step != CARD_DONE || send->status != IB_WC_SUCCESS)
		return step;
	card_corrupt(qp, send, peer);
	card_count(qp->card, CARD_COUNT_WRITES);
	if (immediate)
		card_recv_complete(peer, &wc, send->flags & IB_SEND_SOLICITED, qp->in_timer);
	return CARD_DONE;
}

/* Decide whether the fault injection refuses a Read of a peer */
static bool card_refuses(struct card *card, const struct card_send *send)
{
	int refuse = atomic_read(&card->refuse);

	if (!refuse || send->moved || send->paid || atomic_inc_return(&card->asked) < refuse)
		return false;
	atomic_set(&card->asked, 0);
	return true;
}

static enum card_step card_read(struct card_qp *qp, struct card_send *send, struct card_qp *peer)
{
	enum card_step step;

	if (qp->reads > peer->attr.max_dest_rd_atomic)
		return card_reject(send, peer, IB_WC_REM_INV_REQ_ERR, IB_EVENT_QP_REQ_ERR);
	if (card_refuses(peer->card, send))
		return card_refuse(send, peer);
	step = card_access(qp, send, peer, IB_ACCESS_REMOTE_READ);
	if (step != CARD_DONE || send->status != IB_WC_SUCCESS)
		return step;
	card_count(qp->card, CARD_COUNT_READS);
	if (qp->timed)
		send->reply = card_wire_answer(peer->card, qp, send);
	return CARD_DONE;
}

/* --- any request --- */

static enum card_step card_with_peer(struct card_qp *qp, struct card_send *send,
				     struct card_qp *peer)
{
	u64 ns = send->looked_up ? 0 : card_wire_look_up(peer);

	/* the peer's card needs the state of its queue pair first */
	send->looked_up = true;
	if (ns)
		return card_wait(send, ns);
	switch (send->opcode) {
	case IB_WR_RDMA_READ:
		return card_read(qp, send, peer);
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_WRITE_WITH_IMM:
		return card_write(qp, send, peer);
	default:
		return card_send(qp, send, peer);
	}
}

static bool card_is_lost(struct card_qp *qp, const struct card_send *send)
{
	if (send->moved || !atomic_read(&qp->card->lose) ||
	    atomic_dec_if_positive(&qp->card->lose) < 0)
		return false;
	card_count(qp->card, CARD_COUNT_LOST);
	return true;
}

static enum card_step card_remote(struct card_qp *qp, struct card_send *send)
{
	struct card_qp *peer;
	enum card_step step;

	if (send->length > CARD_MAX_MESSAGE)
		return card_fail(send, IB_WC_LOC_LEN_ERR);
	if (send->opcode == IB_WR_RDMA_READ && !qp->attr.max_rd_atomic)
		return card_fail(send, IB_WC_LOC_QP_OP_ERR);
	if (send->unanswered && !card_retry(qp))
		return card_fail(send, IB_WC_RETRY_EXC_ERR);
	if (card_is_lost(qp, send))
		return card_no_answer(qp, send);
	peer = card_peer_enter(qp);
	if (!peer)
		return card_no_answer(qp, send);
	/* any answer resets the count of retries */
	send->unanswered = false;
	step = card_with_peer(qp, send, peer);
	card_peer_leave(peer);
	if (step == CARD_DONE)
		qp->rnr_retries = qp->attr.rnr_retry;
	return step;
}

static enum card_step card_own(bool done, struct card_send *send)
{
	return done ? CARD_DONE : card_fail(send, IB_WC_MW_BIND_ERR);
}

/**
 * card_request - execute a request, or a part of it
 * @qp: queue pair
 * @send: request
 *
 * Softirqs are disabled.
 * Return: CARD_DONE with send->status set, CARD_LATER with send->exec_at set, or
 * CARD_MORE.
 */
enum card_step card_request(struct card_qp *qp, struct card_send *send)
{
	switch (send->opcode) {
	case IB_WR_REG_MR:
		return card_own(card_key_register(qp, send->mr, send->key, send->access), send);
	case IB_WR_LOCAL_INV:
		return card_own(card_key_invalidate(qp, send->key,
							  READ_ONCE(qp->card->strict_keys)), send);
	default:
		break;
	}
	if (!card_is_gsi(qp))
		return card_remote(qp, send);
	card_gsi_send(qp, send);
	return CARD_DONE;
}
