/* SPDX-License-Identifier: GPL-2.0-only */
/* Queues of a connection: the send queue, receives, credits, and abandoned Calls. */
#ifndef NFSRDMA_CONNECTION_QUEUES_H
#define NFSRDMA_CONNECTION_QUEUES_H

#include "connection/connection.h"

void nfr_conn_retire(struct nfr_conn *conn, const struct ib_wc *wc);
bool nfr_conn_check(struct nfr_conn *conn, const struct ib_wc *wc);
bool nfr_conn_has_room(struct nfr_conn *conn, bool credit);
int nfr_conn_post(struct nfr_conn *conn, struct ib_send_wr *first, struct ib_send_wr *last,
		  u32 count, bool signal);

void nfr_conn_recv_align(struct nfr_conn *conn);
int nfr_conn_recv_fill(struct nfr_conn *conn, u32 total, gfp_t gfp);
void nfr_conn_recv_return(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_conn_answered(struct nfr_conn *conn, struct nfr_recv *recv, u32 reserved);
int nfr_conn_credit(struct nfr_conn *conn);
void nfr_conn_credit_back(struct nfr_conn *conn);
void nfr_conn_grant(struct nfr_conn *conn, u32 credits);
bool nfr_conn_abandon(struct nfr_conn *conn, u32 xid, void *kept, struct nfr_late_reply *early);
bool nfr_conn_abandoned_forget(struct nfr_conn *conn, const void *kept);
void *nfr_conn_abandoned_reply(struct nfr_conn *conn, const struct nfr_late_reply *reply);

void nfr_conn_queues_init(struct nfr_conn *conn);
int nfr_conn_queues_create(struct nfr_conn *conn);
enum nfr_proof nfr_conn_queues_drain(struct nfr_conn *conn);
enum nfr_proof nfr_conn_queues_end(struct nfr_conn *conn);
void nfr_conn_sends_poll(struct nfr_conn *conn);
bool nfr_conn_sends_arm(struct nfr_conn *conn);
void nfr_conn_queues_destroy(struct nfr_conn *conn);

/* --- the send queue: each operation of an RPC takes these steps --- */

static inline u32 nfr_conn_sq_free(const struct nfr_send_queue *sq)
{
	return sq->size - (sq->posted - sq->retired) - sq->reserved;
}

/* Check for room for @need work requests. Returns 0, -EAGAIN or -ENOTCONN. */
static inline int nfr_conn_sq_admit(struct nfr_send_queue *sq, u32 need)
{
	if (sq->closed)
		return -ENOTCONN;
	sq->needed = nfr_conn_sq_free(sq) < need ? need : 0;
	return sq->needed ? -EAGAIN : 0;
}

/* Account for a chain of @count work requests that ends with @wr. Signal it if needed. */
static inline void nfr_conn_sq_take(struct nfr_send_queue *sq, u32 count, struct ib_send_wr *wr,
				    bool must)
{
	sq->posted += count;
	must |= sq->posted - sq->last_signaled >= NFR_SIGNAL_EVERY;
	/* a caller may have to wait for room: make sure that a completion ends the wait */
	must |= nfr_conn_sq_free(sq) < sq->size / 2;
	if (!must)
		return;
	wr->send_flags |= IB_SEND_SIGNALED;
	sq->last_signaled = sq->posted;
	sq->marks[sq->marks_head++ & (sq->ring - 1)] = sq->posted;
}

/* Post a chain that the accounting includes. Returns 0 or -ENOTCONN. Caller holds the lock. */
static inline int nfr_conn_submit(struct nfr_conn *conn, struct ib_send_wr *first)
{
	const struct ib_send_wr *bad;

	return ib_post_send(conn->id->qp, first, &bad) ? -ENOTCONN : 0;
}

/* Get the current position of the send queue, for nfr_conn_is_retired() */
static inline u32 nfr_conn_mark(const struct nfr_conn *conn)
{
	return READ_ONCE(conn->sq.posted);
}

/*
 * Check whether all work requests before the position @mark are known to be complete. Positions
 * wrap: a mark that is not between those retired and those posted is an old one.
 */
static inline bool nfr_conn_is_retired(const struct nfr_conn *conn, u32 mark)
{
	/* read before @posted, which must not be the older value of the two */
	u32 retired = smp_load_acquire(&conn->sq.retired);
	u32 posted = READ_ONCE(conn->sq.posted);

	return posted - mark >= posted - retired;
}

#endif
