// SPDX-License-Identifier: GPL-2.0-only
/*
 * A connection's send queue.
 *
 * Few requests are signaled; one completion retires all requests posted
 * before it. A Call also reserves the room that invalidating its memory will
 * take, so an invalidation never finds the queue full.
 */
#include <linux/slab.h>

#include "connection.h"
#include "trace.h"
#include "trace_connection.h"

/**
 * nfr_queue_failed - a work request did not complete well: the connection breaks
 * @conn: the connection
 * @wc: with its status
 */
void nfr_queue_failed(struct nfr_conn *conn, const struct ib_wc *wc)
{
	bool flushed = wc->status == IB_WC_WR_FLUSH_ERR;

	nfr_conn_break(conn, flushed ? nfr_conn_flushed : ib_wc_status_msg(wc->status));
}

/**
 * nfr_queue_check - take note of a send request's completion
 * @conn: the connection
 * @wc: of a signaled request, or of any that failed
 *
 * Retires what was posted before it, or breaks the connection.
 * Returns true when the request did its work.
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

/* Counts a chain of @count requests whose last is @wr, and signals it if @must or if due. */
static void nfr_sq_take(struct nfr_send_queue *sq, u32 count, struct ib_send_wr *wr, bool must)
{
	sq->posted += count;
	must |= sq->posted - sq->last_signaled >= NFR_SIGNAL_EVERY;
	/* somebody may be about to wait for room: then a completion has to come */
	must |= nfr_sq_free(sq) < sq->size / 2;
	if (!must)
		return;
	wr->send_flags |= IB_SEND_SIGNALED;
	sq->last_signaled = sq->posted;
	sq->marks[sq->marks_head++ & (sq->ring - 1)] = sq->posted;
}

/**
 * nfr_queue_has_room - whether a credit and the room that was missed last are there
 * @conn: the connection
 */
bool nfr_queue_has_room(struct nfr_conn *conn)
{
	bool room;

	spin_lock(&conn->lock);
	room = conn->inflight < conn->granted && nfr_sq_free(&conn->sq) >= conn->sq.needed;
	spin_unlock(&conn->lock);
	return room;
}

/* Whether @need requests may be posted: 0, -EAGAIN or -ENOTCONN */
static int nfr_sq_admit(struct nfr_send_queue *sq, u32 need)
{
	if (sq->closed)
		return -ENOTCONN;
	sq->needed = nfr_sq_free(sq) < need ? need : 0;
	return sq->needed ? -EAGAIN : 0;
}

/**
 * nfr_queue_send - register memory and send a message
 * @conn: the connection
 * @xid: of the message, for the trace
 * @mrs: mapped, to be registered before the message leaves; may be empty
 * @sge: the message
 * @signal: whether its buffer is waited for: no reply will tell that it has left
 *
 * Returns 0; -EAGAIN when the queue is full, and @mrs are as before; -ENOTCONN
 * when posting failed, and the connection is broken.
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
 * nfr_queue_post - post work requests as they are
 * @conn: the connection, its lock held
 * @first: the first of a chain
 * @last: its last, which is signaled if @signal or if that is due
 * @count: of the chain
 * @signal: whether its completion is waited for
 *
 * Returns 0; -EAGAIN when the queue is full; -ENOTCONN when nothing more may be
 * posted, or some of the chain could not be: the connection is to be broken.
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
 * nfr_queue_invalidate - take memory back from the peer
 * @conn: the connection
 * @mrs: registered; those still valid are invalidated, one at least
 * @done: completes after the last of them
 *
 * Uses room that nfr_queue_send() reserved.
 * Returns 0, or -ENOTCONN when the connection is broken: then the memory is
 * reachable no longer once it is drained.
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
 * nfr_queue_unreserve - memory needs no invalidation of ours
 * @conn: the connection
 * @count: how many regions the peer invalidated
 */
void nfr_queue_unreserve(struct nfr_conn *conn, u32 count)
{
	spin_lock(&conn->lock);
	conn->sq.reserved -= count;
	spin_unlock(&conn->lock);
}

/**
 * nfr_queue_mark - where the send queue is now
 * @conn: the connection
 *
 * Returns what nfr_queue_is_retired() takes.
 */
u32 nfr_queue_mark(struct nfr_conn *conn)
{
	return READ_ONCE(conn->sq.posted);
}

/**
 * nfr_queue_is_retired - whether all requests before a mark are known to be done
 * @conn: the connection
 * @mark: from nfr_queue_mark()
 */
bool nfr_queue_is_retired(struct nfr_conn *conn, u32 mark)
{
	return (s32)(READ_ONCE(conn->sq.retired) - mark) >= 0;
}

/**
 * nfr_sq_create - prepare the accounts of a send queue
 * @conn: the connection
 * @size: work requests it may hold
 *
 * Returns 0 or -ENOMEM.
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
 * nfr_sq_close - post nothing from now on
 * @conn: about to be drained: its queue pair must see no other posters
 */
void nfr_sq_close(struct nfr_conn *conn)
{
	spin_lock(&conn->lock);
	conn->sq.closed = true;
	spin_unlock(&conn->lock);
}

/**
 * nfr_sq_destroy - undo nfr_sq_create()
 * @conn: without a queue pair
 */
void nfr_sq_destroy(struct nfr_conn *conn)
{
	kfree(conn->sq.marks);
}
