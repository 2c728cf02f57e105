// SPDX-License-Identifier: GPL-2.0-only
/*
 * RPC slots, and their buffers.
 *
 * A Call is encoded at offset NFR_HEAD_ROOM of its send buffer, so that the
 * header can be placed directly before it and one scatter-gather element covers
 * both. The buffer stays mapped for DMA for the lifetime of its connection.
 *
 * A task may abandon a Call (after a signal or a soft timeout) while the device
 * still sends it, or while the server still accesses its memory. abandon.c decides
 * whether the slot then belongs to the transport for a while.
 */
#include <linux/log2.h>
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"
#include "client/slots.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "memory/exposure.h"
#include "memory/region.h"

/* Flags of an allocation that a smaller one can replace */
#define NFR_GFP_OPTIONAL	(__GFP_NORETRY | __GFP_NOWARN)

/* --- buffers --- */

static struct nfr_buffer *nfr_client_buffer_alloc(u32 size, gfp_t gfp)
{
	struct nfr_buffer *buffer = kmalloc(sizeof(*buffer), gfp);

	if (!buffer)
		return NULL;
	buffer->data = kmalloc(size, gfp);
	if (!buffer->data) {
		kfree(buffer);
		return NULL;
	}
	INIT_LIST_HEAD(&buffer->list);
	buffer->size = size;
	buffer->mapped = false;
	return buffer;
}

static void nfr_client_buffer_free(struct nfr_buffer *buffer)
{
	if (buffer)
		kfree(buffer->data);
	kfree(buffer);
}

static void nfr_client_buffer_unmap(struct nfr_conn *conn, struct nfr_buffer *buffer)
{
	if (buffer->mapped)
		ib_dma_unmap_single(conn->device, buffer->addr, buffer->size, DMA_TO_DEVICE);
	buffer->mapped = false;
}

/**
 * nfr_client_buffer_map - map a send buffer for DMA
 * @conn: connection
 * @buffer: buffer of a request
 *
 * Return: 0 or -ENOBUFS.
 */
int nfr_client_buffer_map(struct nfr_conn *conn, struct nfr_buffer *buffer)
{
	if (buffer->mapped)
		return 0;
	buffer->addr = ib_dma_map_single(conn->device, buffer->data, buffer->size, DMA_TO_DEVICE);
	if (ib_dma_mapping_error(conn->device, buffer->addr))
		return -ENOBUFS;
	buffer->mapped = true;
	return 0;
}

/**
 * nfr_client_buffers_retire - free send buffers that were replaced
 * @nx: transport; the caller holds its mutex
 * @conn: connection
 * @all: whether to free all of them, because the connection is drained
 */
void nfr_client_buffers_retire(struct nfr_xprt *nx, struct nfr_conn *conn, bool all)
{
	struct nfr_buffer *buffer, *next;

	list_for_each_entry_safe(buffer, next, &nx->replaced, list) {
		if (!all && !nfr_conn_is_retired(conn, buffer->mark))
			continue;
		list_del(&buffer->list);
		nfr_client_buffer_unmap(conn, buffer);
		nfr_client_buffer_free(buffer);
	}
}

/*
 * Detach a buffer that the device may still send from. It is freed when the send queue has
 * retired its current position. The caller holds the mutex of the transport.
 */
static void nfr_client_buffer_replace(struct nfr_req *req, struct nfr_conn *conn, int which)
{
	struct nfr_buffer *buffer = req->buffers[which];

	if (!buffer)
		return;
	nfr_client_buffers_retire(req->nx, conn, false);
	buffer->mark = nfr_conn_mark(conn);
	list_add_tail(&buffer->list, &req->nx->replaced);
	req->buffers[which] = NULL;
}

/**
 * nfr_client_buffer_get - provide a send buffer
 * @req: idle request
 * @which: enum nfr_buffer_use
 * @least: required size in bytes
 * @size: size to allocate, which suits later messages, too; at least @least
 * @gfp: allocation flags
 *
 * inline_send may be so large that a host with fragmented memory has no room for it in one piece.
 * Then a message gets a buffer of its own size, so that small ones go on.
 *
 * Return: false if the allocation failed.
 */
bool nfr_client_buffer_get(struct nfr_req *req, int which, u32 least, u32 size, gfp_t gfp)
{
	struct nfr_xprt *nx = req->nx;
	struct nfr_buffer *buffer = req->buffers[which];

	if (buffer && buffer->size >= least)
		return true;
	least = roundup_pow_of_two(least);
	buffer = nfr_client_buffer_alloc(size, least < size ? gfp | NFR_GFP_OPTIONAL : gfp);
	if (!buffer && least < size)
		buffer = nfr_client_buffer_alloc(least, gfp);
	if (!buffer)
		return false;
	nx->counters.hardway_bytes += buffer->size;
	mutex_lock(&nx->mutex);
	if (nfr_client_xprt_conn(nx))
		nfr_client_buffer_replace(req, nfr_client_xprt_conn(nx), which);
	nfr_client_buffer_free(req->buffers[which]);
	req->buffers[which] = buffer;
	mutex_unlock(&nx->mutex);
	return true;
}

/* Unmap the send buffers of a request, whose connection is drained. */
static void nfr_client_buffers_unmap(struct nfr_conn *conn, struct nfr_req *req)
{
	int i;

	for (i = 0; i < NFR_BUFFERS; i++)
		if (req->buffers[i])
			nfr_client_buffer_unmap(conn, req->buffers[i]);
}

/**
 * nfr_client_large_free - free the buffer of a large Call
 * @req: request whose Call ends
 */
void nfr_client_large_free(struct nfr_req *req)
{
	if (!req->lost)
		kfree(req->large);
	req->large = NULL;
}

/**
 * nfr_client_buffers_lose - free no memory that a device may access for ever
 * @nx: transport whose connection has ended; the caller holds its mutex
 *
 * Requests keep what they use until their Calls end.
 */
void nfr_client_buffers_lose(struct nfr_xprt *nx)
{
	struct nfr_req *req;

	spin_lock(&nx->xprt.reserve_lock);
	list_for_each_entry(req, &nx->reqs, all)
		req->lost = true;
	spin_unlock(&nx->xprt.reserve_lock);
}

/* Leave the buffers of the last Call alone, if the device may access them. */
static void nfr_client_buffers_forget(struct nfr_req *req)
{
	if (!req->lost)
		return;
	req->lost = false;
	req->reply = NULL;
	req->reply_size = 0;
}

static bool nfr_client_reply_buffer(struct nfr_req *req, size_t size, gfp_t gfp)
{
	void *reply;

	if (req->reply_size >= size)
		return true;
	/* kmalloc rounds up anyway, and a larger buffer rarely has to grow again */
	size = roundup_pow_of_two(max_t(size_t, size, 512));
	reply = kmalloc(size, gfp);
	if (!reply)
		return false;
	kfree(req->reply);
	req->reply = reply;
	req->reply_size = size;
	return true;
}

/**
 * nfr_client_buf_alloc - provide buffers for a Call and its Reply
 * @task: task with rq_callsize and rq_rcvsize set, in bytes
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_client_buf_alloc(struct rpc_task *task)
{
	struct rpc_rqst *rqst = task->tk_rqstp;
	struct nfr_req *req = nfr_client_req_of(rqst);
	gfp_t gfp = rpc_task_gfp_mask();
	u32 inline_send = READ_ONCE(req->nx->inline_send);
	u32 least = min_t(size_t, NFR_HEAD_ROOM + rqst->rq_callsize, inline_send);
	void *buffer;

	nfr_client_buffers_forget(req);
	if (!nfr_client_buffer_get(req, NFR_BUFFER_CALL, least, inline_send, gfp) ||
	    !nfr_client_reply_buffer(req, rqst->rq_rcvsize, gfp))
		return -ENOMEM;
	buffer = req->buffers[NFR_BUFFER_CALL]->data + NFR_HEAD_ROOM;
	if (rqst->rq_callsize > req->buffers[NFR_BUFFER_CALL]->size - NFR_HEAD_ROOM) {
		req->large = kmalloc(rqst->rq_callsize, gfp);
		if (!req->large)
			return -ENOMEM;
		req->nx->counters.hardway_bytes += rqst->rq_callsize;
		buffer = req->large;
	}
	/* set rq_buffer last: sunrpc tests it to see whether both buffers exist */
	rqst->rq_rbuffer = req->reply;
	rqst->rq_buffer = buffer;
	return 0;
}

/* --- slots --- */

/**
 * nfr_client_req_create - allocate a request
 * @nx: transport; the caller adds the request to its list
 * @gfp: allocation flags
 *
 * Return: request, or NULL if the allocation failed.
 */
struct nfr_req *nfr_client_req_create(struct nfr_xprt *nx, gfp_t gfp)
{
	struct nfr_req *req = kzalloc(sizeof(*req) + nx->personality->request_size, gfp);

	if (!req)
		return NULL;
	req->nx = nx;
	INIT_LIST_HEAD(&req->all);
	INIT_LIST_HEAD(&req->list);
	nfr_mem_exposure_init(&req->exposure);
	if (nx->personality->init)
		nx->personality->init(req);
	return req;
}

/**
 * nfr_client_req_destroy - free a request
 * @req: request in no list, with unmapped buffers
 */
void nfr_client_req_destroy(struct nfr_req *req)
{
	nfr_client_buffer_free(req->buffers[NFR_BUFFER_CALL]);
	nfr_client_buffer_free(req->buffers[NFR_BUFFER_BOUNCE]);
	nfr_client_large_free(req);
	if (!req->lost)
		kfree(req->reply);
	kfree(req);
}

/**
 * nfr_client_req_destroy_all - free all requests
 * @nx: closed transport without tasks
 */
void nfr_client_req_destroy_all(struct nfr_xprt *nx)
{
	struct nfr_req *req, *next;

	list_for_each_entry_safe(req, next, &nx->reqs, all)
		nfr_client_req_destroy(req);
	INIT_LIST_HEAD(&nx->reqs);
}

static struct nfr_req *nfr_client_slot_take(struct nfr_xprt *nx)
{
	struct nfr_req *req = list_first_entry_or_null(&nx->free_reqs, struct nfr_req, list);

	if (req)
		list_del_init(&req->list);
	return req;
}

/* Allocate a slot. Drops reserve_lock meanwhile. */
static struct nfr_req *nfr_client_slot_make(struct nfr_xprt *nx)
{
	struct rpc_xprt *xprt = &nx->xprt;
	struct nfr_req *req;

	xprt->num_reqs++;
	spin_unlock(&xprt->reserve_lock);
	req = nfr_client_req_create(nx, rpc_task_gfp_mask());
	spin_lock(&xprt->reserve_lock);
	if (req)
		list_add_tail(&req->all, &nx->reqs);
	else
		xprt->num_reqs--;
	return req;
}

/**
 * nfr_client_alloc_slot - assign a slot to a task
 * @xprt: transport
 * @task: task; receives tk_rqstp, or tk_status -EAGAIN (queued in the backlog)
 *	or -ENOMEM
 */
void nfr_client_alloc_slot(struct rpc_xprt *xprt, struct rpc_task *task)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	struct nfr_req *req;

	task->tk_status = 0;
	spin_lock(&xprt->reserve_lock);
	req = nfr_client_slot_take(nx);
	if (!req && xprt->num_reqs < READ_ONCE(xprt->max_reqs)) {
		req = nfr_client_slot_make(nx);
		if (!req)
			task->tk_status = -ENOMEM;
	} else if (!req) {
		xprt_add_backlog(xprt, task);
		task->tk_status = -EAGAIN;
	}
	xprt->stat.max_slots = max(xprt->stat.max_slots, (unsigned long)xprt->num_reqs);
	spin_unlock(&xprt->reserve_lock);
	if (req)
		task->tk_rqstp = &req->rqst;
}

/* Free a slot, or pass it to the first task in the backlog. Caller holds reserve_lock. */
static void nfr_client_slot_give(struct nfr_req *req)
{
	struct rpc_rqst *rqst = &req->rqst;
	struct nfr_xprt *nx = req->nx;

	if (xprt_wake_up_backlog(&nx->xprt, rqst))
		return;
	memset(rqst, 0, sizeof(*rqst));
	list_add(&req->list, &nx->free_reqs);
}

/**
 * nfr_client_free_slot - free a slot of a task that ends
 * @xprt: transport
 * @rqst: slot; the transport may keep it
 */
void nfr_client_free_slot(struct rpc_xprt *xprt, struct rpc_rqst *rqst)
{
	struct nfr_xprt *nx = nfr_client_xprt_of(xprt);
	struct nfr_req *req = nfr_client_req_of(rqst);

	spin_lock(&xprt->reserve_lock);
	if (unlikely(req->state == NFR_REQ_ABANDONED)) {
		nfr_client_req_left(req);
		nx->slots_kept++;
	} else {
		nfr_client_slot_give(req);
	}
	spin_unlock(&xprt->reserve_lock);
}

/**
 * nfr_client_slot_return - end the Call of a slot that the transport kept
 * @req: abandoned request without memory that the peer may access
 *
 * If sunrpc has not freed the slot yet, it does so afterwards.
 */
void nfr_client_slot_return(struct nfr_req *req)
{
	struct nfr_xprt *nx = req->nx;
	bool left;

	spin_lock(&nx->xprt.reserve_lock);
	left = req->state == NFR_REQ_LEFT;
	nfr_client_req_end(req);
	if (left) {
		nx->slots_kept--;
		nfr_client_slot_give(req);
	}
	spin_unlock(&nx->xprt.reserve_lock);
}

/**
 * nfr_client_req_detach_all - detach all requests from a connection
 * @nx: transport; the caller holds its mutex
 * @conn: connection that has ended
 * @mrs: list to move the MRs of all requests to
 */
void nfr_client_req_detach_all(struct nfr_xprt *nx, struct nfr_conn *conn, struct list_head *mrs)
{
	struct nfr_req *req;

	spin_lock(&nx->xprt.reserve_lock);
	list_for_each_entry(req, &nx->reqs, all) {
		spin_unlock(&nx->xprt.reserve_lock);
		nfr_mem_detach(&req->exposure, mrs);
		nfr_client_buffers_unmap(conn, req);
		spin_lock(&nx->xprt.reserve_lock);
	}
	spin_unlock(&nx->xprt.reserve_lock);
}

/* --- breaking and closing --- */

/**
 * nfr_client_disconnect - break the connection of a transport
 * @nx: transport
 * @generation: generation of the connection; 0 for the current one
 * @reason: disconnect reason, a string constant
 *
 * The function does nothing if the transport has no connection of that
 * generation.
 */
void nfr_client_disconnect(struct nfr_xprt *nx, u32 generation, const char *reason)
{
	struct nfr_conn *conn;

	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	if (conn && (!generation || conn->generation == generation))
		nfr_conn_break(conn, reason);
	rcu_read_unlock();
}

static bool nfr_client_is_closed(struct nfr_xprt *nx, u32 generation)
{
	const struct nfr_conn *conn;
	bool closed;

	rcu_read_lock();
	conn = rcu_dereference(nx->conn);
	closed = !conn || conn->generation != generation;
	rcu_read_unlock();
	return closed;
}

/**
 * nfr_client_wait_closed - wait until a broken connection is closed
 * @nx: transport, which the caller must not have locked
 * @generation: generation of the connection
 */
void nfr_client_wait_closed(struct nfr_xprt *nx, u32 generation)
{
	wait_event(nx->detached, nfr_client_is_closed(nx, generation));
}

/**
 * nfr_client_sleep_until_closed - put a task to sleep until a connection is closed
 * @nx: transport
 * @task: the calling task, in a callback; keeps its status
 * @generation: generation of the broken connection
 *
 * Context: Does not sleep.
 */
void nfr_client_sleep_until_closed(struct nfr_xprt *nx, struct rpc_task *task, u32 generation)
{
	rpc_sleep_on(&nx->closing, task, NULL);
	/* the connection may have been closed before the task was queued */
	if (nfr_client_is_closed(nx, generation))
		rpc_wake_up_queued_task(&nx->closing, task);
}

/* --- invalidating --- */

/**
 * nfr_client_revoke - invalidate MRs locally
 * @conn: connection
 * @exposure: exposure that nfr_mem_settle() did not settle
 * @done: completion of the last invalidation
 *
 * The invalidations use the room that nfr_client_post() reserved.
 *
 * Return: 0, or -ENOTCONN if the connection is broken: then the peer loses
 * access when the connection is drained.
 */
int nfr_client_revoke(struct nfr_conn *conn, struct nfr_exposure *exposure, struct ib_cqe *done)
{
	struct ib_send_wr *first = NULL, *last = NULL;
	u32 count = nfr_mem_revoke(exposure, &first, &last);
	int rc;

	last->wr_cqe = done;
	spin_lock_bh(&conn->lock);
	if (conn->sq.closed) {
		spin_unlock_bh(&conn->lock);
		return -ENOTCONN;
	}
	conn->sq.reserved -= count;
	nfr_conn_sq_take(&conn->sq, count, last, true);
	rc = nfr_conn_submit(conn, first);
	spin_unlock_bh(&conn->lock);
	if (rc)
		nfr_conn_break(conn, "posting an invalidation failed");
	return rc;
}
