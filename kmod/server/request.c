// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests of a connection, and the send queue that holds them.
 *
 * Requests are allocated on demand, reused, and limited by the number of credits.
 * nfr_svc_post() does not wait: a chain that finds no room stays in @pending, in
 * FIFO order, until completions make room. A request whose chain ends with the
 * Reply stays in @sent until the send queue has retired it.
 */
#include <linux/slab.h>

#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "memory/exposure.h"
#include "memory/transfer.h"
#include "server/expose.h"
#include "server/memory.h"
#include "server/pages.h"
#include "server/request.h"
#include "server/server.h"

/* Allowance for requests whose Reply was sent, but is not retired yet */
#define NFR_SVC_UNRETIRED	64

static void nfr_svc_req_free(struct nfr_svc_req *req)
{
	struct nfr_conn *conn = req->svc->conn;

	if (req->buffer)
		ib_dma_unmap_single(conn->device, req->addr, conn->send_size, DMA_TO_DEVICE);
	kvfree(req->kept);
	kfree(req->buffer);
	kfree(req);
}

static int nfr_svc_req_buffer(struct nfr_svc_req *req, gfp_t gfp)
{
	struct nfr_conn *conn = req->svc->conn;
	void *buffer = kmalloc_node(conn->send_size, gfp, ibdev_to_node(conn->device));

	if (!buffer)
		return -ENOMEM;
	req->addr = ib_dma_map_single(conn->device, buffer, conn->send_size, DMA_TO_DEVICE);
	if (ib_dma_mapping_error(conn->device, req->addr)) {
		kfree(buffer);
		return -ENOMEM;
	}
	req->buffer = buffer;
	return 0;
}

static struct nfr_svc_req *nfr_svc_req_create(struct nfr_svc *svc, gfp_t gfp)
{
	struct nfr_svc_req *req = kzalloc(sizeof(*req), gfp);

	if (!req)
		return NULL;
	req->svc = svc;
	nfr_mem_transfer_init(&req->transfer, svc->conn->id);
	nfr_mem_exposure_init(&req->exposure);
	if (nfr_svc_req_buffer(req, gfp)) {
		kfree(req);
		return NULL;
	}
	spin_lock_bh(&svc->lock);
	list_add_tail(&req->all, &svc->all);
	svc->nreqs++;
	spin_unlock_bh(&svc->lock);
	return req;
}

/**
 * nfr_svc_req_get - get a request for a received message or a callback
 * @svc: connection
 * @gfp: allocation flags
 *
 * Return: request, ERR_PTR(-ENOMEM) if an allocation failed, or
 * ERR_PTR(-ENOBUFS) if the client exceeds its credits.
 */
struct nfr_svc_req *nfr_svc_req_get(struct nfr_svc *svc, gfp_t gfp)
{
	struct list_head *entry = nfr_svc_pop(svc, &svc->free);

	if (entry)
		return list_entry(entry, struct nfr_svc_req, list);
	if (READ_ONCE(svc->nreqs) >= 2 * svc->conn->wanted.credits + NFR_SVC_UNRETIRED)
		return ERR_PTR(-ENOBUFS);
	return nfr_svc_req_create(svc, gfp) ?: ERR_PTR(-ENOMEM);
}

/* Return the receive of a Call that is not used any more. */
static __always_inline void nfr_svc_req_answered(struct nfr_svc_req *req)
{
	struct nfr_recv *recv = req->recv;

	if (!recv)
		return;
	req->recv = NULL;
	atomic_dec(&req->svc->busy);
	nfr_conn_recv_return(req->svc->conn, recv);
}

/**
 * nfr_svc_req_received - return the receive of a Call whose Reply is prepared
 * @req: request that does not use its receive any more
 */
void nfr_svc_req_received(struct nfr_svc_req *req)
{
	nfr_svc_req_answered(req);
}

/**
 * nfr_svc_req_put - return a request to the free list
 * @req: request that no work request and no thread uses
 */
void nfr_svc_req_put(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	nfr_svc_req_answered(req);
	nfr_mem_transfer_destroy_all(&req->transfer);
	nfr_svc_pages_drop(req);
	nfr_svc_sink_put(req);
	nfr_svc_budget_keep(req, 0);
	req->nresults = 0;
	spin_lock_bh(&svc->lock);
	/* LIFO: the latest request is cache-hot */
	list_add(&req->list, &svc->free);
	spin_unlock_bh(&svc->lock);
}

/**
 * nfr_svc_req_destroy_all - free all requests in any state
 * @svc: drained connection without references, whose queue pair still exists
 */
void nfr_svc_req_destroy_all(struct nfr_svc *svc)
{
	struct nfr_svc_req *req, *next;

	list_for_each_entry_safe(req, next, &svc->all, all) {
		nfr_mem_transfer_destroy_all(&req->transfer);
		nfr_svc_pages_drop(req);
		nfr_svc_sink_put(req);
		nfr_svc_budget_keep(req, 0);
		nfr_svc_req_free(req);
	}
}

/* --- send queue --- */

/* Prepare the Send of a message of @length bytes in the buffer of the request. */
static __always_inline void nfr_svc_req_prepare_send(struct nfr_svc_req *req, u32 length)
{
	struct nfr_conn *conn = req->svc->conn;

	ib_dma_sync_single_for_device(conn->device, req->addr, length, DMA_TO_DEVICE);
	req->sge = (struct ib_sge) {
		.addr = req->addr, .length = length, .lkey = conn->pd->local_dma_lkey,
	};
	req->send.wr_cqe = &conn->signal_cqe;
	req->send.sg_list = &req->sge;
	req->send.num_sge = 1;
	req->send.send_flags = 0;
	req->send.next = NULL;
}

/**
 * nfr_svc_req_finish - chain the RDMA Writes and the Send of a request
 * @req: request with the message in its buffer
 * @head: header; encoded in front of the message
 * @length: length of header and message in bytes
 *
 * The caller has to post the chain.
 *
 * Return: 0, or -EIO if the header does not fit; then the connection breaks.
 */
int nfr_svc_req_finish(struct nfr_svc_req *req, const struct nfr_header *head, u32 length)
{
	struct nfr_conn *conn = req->svc->conn;

	if (nfr_wire_encode(head, req->buffer, conn->send_size) < 0) {
		nfr_conn_break(conn, "no room for the header of a Reply");
		return -EIO;
	}
	nfr_svc_req_prepare_send(req, length);
	/* release unused pages: other Calls may wait for them */
	nfr_svc_budget_keep(req, nfr_mem_transfer_bytes(&req->transfer));
	req->signal = req->reply_pages;
	req->first = nfr_mem_transfer_chain(&req->transfer, NULL, &req->send);
	nfr_svc_req_answered(req);
	return 0;
}

/**
 * nfr_svc_req_finish_2003 - chain the registrations and the Send of a request
 * @req: request with the message in its buffer, and with or without an exposure
 * @head: header of 2003; encoded in front of the message
 * @length: length of header and message in bytes
 *
 * The caller has to post the chain.
 *
 * Return: 0, or -EIO if the header does not fit; then the connection breaks.
 */
int nfr_svc_req_finish_2003(struct nfr_svc_req *req, const struct nfr_header *head, u32 length)
{
	struct nfr_conn *conn = req->svc->conn;

	if (nfr_wire_2003_encode(head, req->buffer, conn->send_size) < 0) {
		nfr_conn_break(conn, "no room for the header of a Reply");
		return -EIO;
	}
	nfr_svc_req_prepare_send(req, length);
	/* no client invalidates memory of the server, or the server that of a client */
	req->send.opcode = IB_WR_SEND;
	req->signal = false;
	req->first = nfr_mem_post(&req->exposure, &req->send);
	nfr_svc_req_answered(req);
	return 0;
}

/* Find the last work request of the chain at @req->first, and the length of the chain. */
static void nfr_svc_chain_ends(struct nfr_svc_req *req)
{
	struct ib_send_wr *wr;

	req->count = 0;
	for (wr = req->first; wr; wr = wr->next) {
		req->last = wr;
		req->count++;
	}
}

/**
 * nfr_svc_posted - break the connection if posting failed
 * @conn: connection; the caller must not hold its lock
 * @rc: result of nfr_conn_post(); -EAGAIN is no failure, because completions
 *	will make room
 */
void nfr_svc_posted(struct nfr_conn *conn, int rc)
{
	if (rc && rc != -EAGAIN)
		nfr_conn_break(conn, "posting a work request failed");
}

/* Returns 0, -EAGAIN if the queue is full, or -ENOTCONN. Caller holds the lock. */
static int nfr_svc_post_locked(struct nfr_svc_req *req)
{
	/* look first: RDMA Reads may complete at once, and the request go on */
	enum nfr_svc_state state = req->state;
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	rc = nfr_conn_post(conn, req->first, req->last, req->count, req->signal);
	if (rc)
		return rc;
	if (state != NFR_SVC_SENT) {
		if (state == NFR_SVC_EXPOSED)
			nfr_svc_expose_posted(req);
		return 0;
	}
	req->mark = nfr_conn_mark(conn);
	list_add_tail(&req->list, &svc->sent);
	return 0;
}

static int nfr_svc_post_pending(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;
	int rc = 0;

	while (!rc && (req = list_first_entry_or_null(&svc->pending, struct nfr_svc_req, list))) {
		list_del_init(&req->list);
		rc = nfr_svc_post_locked(req);
		if (rc == -EAGAIN)
			list_add(&req->list, &svc->pending);
	}
	return rc;
}

/**
 * nfr_svc_post - post the operations and the Reply of a request, or queue them
 * @req: request with @first set
 *
 * On an error the request stays allocated until the connection is freed.
 */
void nfr_svc_post(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	nfr_svc_chain_ends(req);
	/* the latest work requests in the queue may be unsignaled and not retire */
	if (req->count > conn->sq.size - NFR_SIGNAL_EVERY) {
		nfr_conn_break(conn, "a Call exceeds the send queue");
		return;
	}
	spin_lock_bh(&conn->lock);
	rc = list_empty(&svc->pending) ? nfr_svc_post_locked(req) : -EAGAIN;
	if (rc == -EAGAIN) {
		nfr_svc_count(svc, queue_waits, 1);
		list_add_tail(&req->list, &svc->pending);
	}
	spin_unlock_bh(&conn->lock);
	nfr_svc_posted(conn, rc);
}

/**
 * nfr_svc_retire - collect retired requests, and post queued ones
 * @svc: connection
 * @done: list to move requests to whose Replies the send queue has retired
 */
void nfr_svc_retire(struct nfr_svc *svc, struct list_head *done)
{
	struct nfr_conn *conn = svc->conn;
	struct nfr_svc_req *req, *next;
	int rc;

	spin_lock_bh(&conn->lock);
	list_for_each_entry_safe(req, next, &svc->sent, list) {
		if (!nfr_conn_is_retired(conn, req->mark))
			break;
		list_move_tail(&req->list, done);
	}
	rc = nfr_svc_post_pending(svc);
	spin_unlock_bh(&conn->lock);
	nfr_svc_posted(conn, rc);
}
