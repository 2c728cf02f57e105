// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send queue of a connection.
 *
 * Few work requests are signaled; a completion retires all work requests before
 * it. A Call also reserves room for the invalidation of its MRs, so that an
 * invalidation never finds the queue full.
 */
#include <linux/slab.h>

#include "connection/connection.h"
#include "observe/trace.h"
#include "observe/trace_connection.h"

/**
 * nfr_queue_failed - break the connection after a work request failed
 * @conn: connection
 * @wc: failed work completion
 */
void nfr_queue_failed(struct nfr_conn *conn, const struct ib_wc *wc)
{
	bool flushed = wc->status == IB_WC_WR_FLUSH_ERR;

	nfr_conn_break(conn, flushed ? nfr_conn_flushed : ib_wc_status_msg(wc->status));
}

/**
 * nfr_queue_check - account for the completion of a send work request
 * @conn: connection
 * @wc: completion of a signaled work request, or of any that failed
 *
 * A success retires all earlier work requests. A failure breaks the connection.
 *
 * Return: true if the work request succeeded.
 */
bool nfr_queue_check(struct nfr_conn *conn, const struct ib_wc *wc)
{
	struct nfr_send_queue *sq = &conn->sq;

	trace_nfsrdma_completion(conn, wc);
	if (wc->status != IB_WC_SUCCESS) {
		nfr_queue_failed(conn, wc);
		return false;
	}
	spin_lock(&conn->lock);
	sq->retired = sq->marks[sq->marks_tail++ & (sq->ring - 1)];
	spin_unlock(&conn->lock);
	return true;
}

static void nfr_signal_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_conn *conn = cq->cq_context;

	if (nfr_queue_check(conn, wc))
		conn->ops->writable(conn);
}

static u32 nfr_sq_free(const struct nfr_send_queue *sq)
{
	return sq->size - (sq->posted - sq->retired) - sq->reserved;
}

/* Account for a chain of @count work requests that ends with @wr. Signal it if needed. */
static void nfr_sq_take(struct nfr_send_queue *sq, u32 count, struct ib_send_wr *wr, bool must)
{
	sq->posted += count;
	must |= sq->posted - sq->last_signaled >= NFR_SIGNAL_EVERY;
	/* a caller may have to wait for room: make sure that a completion ends the wait */
	must |= nfr_sq_free(sq) < sq->size / 2;
	if (!must)
		return;
	wr->send_flags |= IB_SEND_SIGNALED;
	sq->last_signaled = sq->posted;
	sq->marks[sq->marks_head++ & (sq->ring - 1)] = sq->posted;
}

/**
 * nfr_queue_has_room - check for a credit and for send queue room
 * @conn: connection
 *
 * Return: true if a Call has a credit, and the room that the last rejected Call
 * needed.
 */
bool nfr_queue_has_room(struct nfr_conn *conn)
{
	bool room;

	spin_lock(&conn->lock);
	room = conn->inflight < conn->granted && nfr_sq_free(&conn->sq) >= conn->sq.needed;
	spin_unlock(&conn->lock);
	return room;
}

/* Check for room for @need work requests. Returns 0, -EAGAIN or -ENOTCONN. */
static int nfr_sq_admit(struct nfr_send_queue *sq, u32 need)
{
	if (sq->closed)
		return -ENOTCONN;
	sq->needed = nfr_sq_free(sq) < need ? need : 0;
	return sq->needed ? -EAGAIN : 0;
}

/**
 * nfr_queue_send - post registrations and a Send
 * @conn: connection
 * @xid: XID of the message, for the trace event
 * @mrs: mapped MRs to register before the Send; may be empty
 * @sge: the message
 * @signal: whether the caller needs the completion, because no reply implies it
 *
 * Return: 0, -EAGAIN if the queue is full (@mrs are unchanged), or -ENOTCONN if
 * posting failed and the connection is broken.
 */
int nfr_queue_send(struct nfr_conn *conn, u32 xid, struct list_head *mrs, struct ib_sge *sge,
		   bool signal)
{
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .sg_list = sge, .num_sge = 1,
		.opcode = IB_WR_SEND,
	};
	struct ib_send_wr *first = &send, **link = &first;
	u32 count = nfr_reg_count(mrs);
	const struct ib_send_wr *bad;
	struct nfr_mr *mr;
	int rc;

	spin_lock(&conn->lock);
	rc = nfr_sq_admit(&conn->sq, 2 * count + 1);
	if (rc) {
		spin_unlock(&conn->lock);
		return rc;
	}
	list_for_each_entry(mr, mrs, list) {
		mr->valid = true;
		trace_nfsrdma_mr_fastreg(conn, mr);
		*link = &mr->reg.wr;
		link = &mr->reg.wr.next;
	}
	*link = &send;
	conn->sq.reserved += count;
	nfr_sq_take(&conn->sq, count + 1, &send, signal);
	trace_nfsrdma_post(conn, xid, count, sge->length, send.send_flags & IB_SEND_SIGNALED);
	rc = ib_post_send(conn->id->qp, first, &bad);
	spin_unlock(&conn->lock);
	if (!rc)
		return 0;
	nfr_conn_break(conn, "posting a send failed");
	return -ENOTCONN;
}

/**
 * nfr_queue_post - post a chain of work requests
 * @conn: connection; the caller holds its lock
 * @first: first work request of the chain
 * @last: last work request; signaled if @signal is set or a signal is due
 * @count: number of work requests
 * @signal: whether the caller needs the completion
 *
 * Return: 0, -EAGAIN if the queue is full, or -ENOTCONN if the queue is closed
 * or posting failed; then the caller has to break the connection.
 */
int nfr_queue_post(struct nfr_conn *conn, struct ib_send_wr *first, struct ib_send_wr *last,
		   u32 count, bool signal)
{
	const struct ib_send_wr *bad;
	int rc = nfr_sq_admit(&conn->sq, count);

	if (rc)
		return rc;
	nfr_sq_take(&conn->sq, count, last, signal);
	return ib_post_send(conn->id->qp, first, &bad) ? -ENOTCONN : 0;
}

/**
 * nfr_queue_invalidate - invalidate MRs locally
 * @conn: connection
 * @mrs: registered MRs, at least one of them valid; the function skips invalid
 *	ones
 * @done: completion of the last invalidation
 *
 * The invalidations use the room that nfr_queue_send() reserved.
 *
 * Return: 0, or -ENOTCONN if the connection is broken: then the peer loses
 * access when the connection is drained.
 */
int nfr_queue_invalidate(struct nfr_conn *conn, struct list_head *mrs, struct ib_cqe *done)
{
	struct ib_send_wr *first = NULL, *last = NULL, **link = &first;
	const struct ib_send_wr *bad;
	struct nfr_mr *mr;
	u32 count = 0;
	int rc;

	list_for_each_entry(mr, mrs, list) {
		if (!mr->valid)
			continue;
		trace_nfsrdma_mr_localinv(conn, mr);
		last = *link = nfr_reg_invalidation(mr);
		link = &last->next;
		count++;
	}
	*link = NULL;
	last->wr_cqe = done;
	spin_lock(&conn->lock);
	if (conn->sq.closed) {
		spin_unlock(&conn->lock);
		return -ENOTCONN;
	}
	conn->sq.reserved -= count;
	nfr_sq_take(&conn->sq, count, last, true);
	rc = ib_post_send(conn->id->qp, first, &bad);
	spin_unlock(&conn->lock);
	if (!rc)
		return 0;
	nfr_conn_break(conn, "posting an invalidation failed");
	return -ENOTCONN;
}

/**
 * nfr_queue_unreserve - release room for invalidations that the peer made unnecessary
 * @conn: connection
 * @count: number of MRs that the peer invalidated
 */
void nfr_queue_unreserve(struct nfr_conn *conn, u32 count)
{
	spin_lock(&conn->lock);
	conn->sq.reserved -= count;
	spin_unlock(&conn->lock);
}

/**
 * nfr_queue_mark - get the current position of the send queue
 * @conn: connection
 *
 * Return: position, for nfr_queue_is_retired().
 */
u32 nfr_queue_mark(struct nfr_conn *conn)
{
	return READ_ONCE(conn->sq.posted);
}

/**
 * nfr_queue_is_retired - check whether all work requests before a position are complete
 * @conn: connection
 * @mark: position from nfr_queue_mark()
 *
 * Return: true if they are known to be complete.
 */
bool nfr_queue_is_retired(struct nfr_conn *conn, u32 mark)
{
	return (s32)(READ_ONCE(conn->sq.retired) - mark) >= 0;
}

/**
 * nfr_sq_create - allocate the accounting of a send queue
 * @conn: connection
 * @size: capacity in work requests
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_sq_create(struct nfr_conn *conn, u32 size)
{
	struct nfr_send_queue *sq = &conn->sq;

	sq->size = size;
	sq->ring = roundup_pow_of_two(size);
	sq->marks = kcalloc(sq->ring, sizeof(*sq->marks), NFR_GFP_RETRIED);
	conn->signal_cqe.done = nfr_signal_done;
	return sq->marks ? 0 : -ENOMEM;
}

/**
 * nfr_sq_close - stop posting to the send queue
 * @conn: connection about to be drained, which requires that nothing else posts
 */
void nfr_sq_close(struct nfr_conn *conn)
{
	spin_lock(&conn->lock);
	conn->sq.closed = true;
	spin_unlock(&conn->lock);
}

/**
 * nfr_sq_destroy - undo nfr_sq_create()
 * @conn: connection without a queue pair
 */
void nfr_sq_destroy(struct nfr_conn *conn)
{
	kfree(conn->sq.marks);
}
