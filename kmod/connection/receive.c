// SPDX-License-Identifier: GPL-2.0-only
/*
 * Receives of a connection, and its credits.
 *
 * A Call takes a credit and its Reply returns it; the peer grants the number of
 * credits (RFC 8166, section 3.3.1). A receive is posted for every Call in
 * flight, and for NFR_CALLBACK_CREDITS Calls of the peer, before the Call is
 * sent. Therefore the peer never gets a receiver-not-ready NAK.
 */
#include <linux/slab.h>

#include "connection/connection.h"
#include "observe/trace_connection.h"

/* Receives to repost in one batch, with one doorbell */
#define NFR_REPOST	8

static void nfr_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_recv *recv = container_of(wc->wr_cqe, struct nfr_recv, cqe);
	struct nfr_conn *conn = recv->conn;

	if (wc->status != IB_WC_SUCCESS) {
		trace_nfsrdma_completion(conn, wc);
		nfr_queue_failed(conn, wc);
		return;
	}
	/*
	 * RDMA Write With Immediate completes a receive too; its byte_len is
	 * unrelated to the buffer
	 */
	if (wc->opcode != IB_WC_RECV || wc->byte_len > recv->sge.length) {
		nfr_conn_break(conn, "unexpected completion of a receive");
		return;
	}
	recv->length = wc->byte_len;
	recv->has_invalidated = wc->wc_flags & IB_WC_WITH_INVALIDATE;
	recv->invalidated = wc->ex.invalidate_rkey;
	ib_dma_sync_single_for_cpu(conn->device, recv->sge.addr, recv->length, DMA_FROM_DEVICE);
	conn->ops->receive(conn, recv);
}

static int nfr_recv_post(struct nfr_conn *conn, struct list_head *recvs)
{
	struct ib_recv_wr *first = NULL, **link = &first;
	const struct ib_recv_wr *bad;
	struct nfr_recv *recv;

	list_for_each_entry(recv, recvs, list) {
		*link = &recv->wr;
		link = &recv->wr.next;
	}
	*link = NULL;
	INIT_LIST_HEAD(recvs);
	return ib_post_recv(conn->id->qp, first, &bad);
}

/**
 * nfr_recv_return - return the buffer of a received message
 * @conn: connection
 * @recv: receive; reposted in a batch
 *
 * Context: Any thread.
 */
void nfr_recv_return(struct nfr_conn *conn, struct nfr_recv *recv)
{
	LIST_HEAD(recvs);

	spin_lock(&conn->lock);
	list_add_tail(&recv->list, &conn->recvs);
	if (++conn->recvs_back >= NFR_REPOST) {
		list_splice_init(&conn->recvs, &recvs);
		conn->recvs_back = 0;
	}
	spin_unlock(&conn->lock);
	if (list_empty(&recvs) || !nfr_conn_is_up(conn))
		return;
	if (nfr_recv_post(conn, &recvs))
		nfr_conn_break(conn, "posting a receive failed");
}

static void nfr_recv_free(struct nfr_conn *conn, struct nfr_recv *recv)
{
	if (recv->sge.length)
		ib_dma_unmap_single(conn->device, recv->sge.addr, recv->sge.length,
				    DMA_FROM_DEVICE);
	kfree(recv->data);
	kfree(recv);
}

static struct nfr_recv *nfr_recv_alloc(struct nfr_conn *conn, gfp_t gfp)
{
	u32 size = conn->wanted.inline_recv;
	struct nfr_recv *recv;
	u64 addr;

	recv = kzalloc(sizeof(*recv), gfp);
	if (!recv)
		return NULL;
	recv->data = kmalloc_node(size, gfp, ibdev_to_node(conn->device));
	if (!recv->data)
		goto out_free;
	addr = ib_dma_map_single(conn->device, recv->data, size, DMA_FROM_DEVICE);
	if (ib_dma_mapping_error(conn->device, addr))
		goto out_free;
	recv->conn = conn;
	recv->cqe.done = nfr_recv_done;
	recv->sge = (struct ib_sge) {
		.addr = addr, .length = size, .lkey = conn->pd->local_dma_lkey,
	};
	recv->wr.wr_cqe = &recv->cqe;
	recv->wr.sg_list = &recv->sge;
	recv->wr.num_sge = 1;
	return recv;
out_free:
	nfr_recv_free(conn, recv);
	return NULL;
}

/**
 * nfr_recv_more - allocate and post NFR_BATCH more receives
 * @conn: connection; callers serialize: first setup, then senders
 * @gfp: NFR_GFP_RETRIED or NFR_GFP_COMPLETION
 *
 * Return: 0, -ENOBUFS or -ENOTCONN.
 */
int nfr_recv_more(struct nfr_conn *conn, gfp_t gfp)
{
	struct nfr_recv *recv;
	LIST_HEAD(fresh);
	int i;

	for (i = 0; i < NFR_BATCH; i++) {
		recv = nfr_recv_alloc(conn, gfp);
		if (!recv)
			break;
		list_add_tail(&recv->list, &fresh);
		list_add_tail(&recv->all, &conn->all_recvs);
		conn->recv_total++;
	}
	if (list_empty(&fresh))
		return -ENOBUFS;
	if (!nfr_recv_post(conn, &fresh))
		return 0;
	nfr_conn_break(conn, "posting a receive failed");
	return -ENOTCONN;
}

/* --- credits --- */

/*
 * One batch may be in handling while almost NFR_REPOST wait for reposting.
 * Caller holds the lock.
 */
static bool nfr_queue_has_recvs(const struct nfr_conn *conn)
{
	return conn->recv_total >= conn->inflight + NFR_CALLBACK_CREDITS + NFR_BATCH + NFR_REPOST;
}

/**
 * nfr_queue_credit - take a credit for a Call
 * @conn: connection; callers serialize
 *
 * Return: 0, -EAGAIN if all credits are in use, or -ENOBUFS or -ENOTCONN if no
 * receive could be posted for the reply.
 */
int nfr_queue_credit(struct nfr_conn *conn)
{
	bool enough = false;
	int rc = -EAGAIN;

	spin_lock(&conn->lock);
	if (conn->inflight < conn->granted) {
		conn->inflight++;
		enough = nfr_queue_has_recvs(conn);
		rc = 0;
	}
	spin_unlock(&conn->lock);
	if (rc || enough)
		return rc;
	rc = nfr_recv_more(conn, NFR_GFP_RETRIED);
	if (rc)
		nfr_queue_credit_back(conn);
	return rc;
}

/**
 * nfr_queue_credit_back - return the credit of a Call that was answered or not sent
 * @conn: connection
 */
void nfr_queue_credit_back(struct nfr_conn *conn)
{
	spin_lock(&conn->lock);
	if (conn->inflight)
		conn->inflight--;
	spin_unlock(&conn->lock);
}

/**
 * nfr_queue_grant - update the number of credits that the peer grants
 * @conn: connection
 * @credits: value from the wire; clamped to 1 and the number that this side
 *	requested
 *
 * Context: Completion handler.
 */
void nfr_queue_grant(struct nfr_conn *conn, u32 credits)
{
	u32 grant = clamp_t(u32, credits, 1, conn->wanted.credits);

	if (grant == conn->granted)
		return;
	trace_nfsrdma_credit(conn, grant);
	spin_lock(&conn->lock);
	conn->granted = grant;
	spin_unlock(&conn->lock);
}

/**
 * nfr_recv_free_all - free all receives
 * @conn: connection without a queue pair
 */
void nfr_recv_free_all(struct nfr_conn *conn)
{
	struct nfr_recv *recv, *next;

	list_for_each_entry_safe(recv, next, &conn->all_recvs, all)
		nfr_recv_free(conn, recv);
}
