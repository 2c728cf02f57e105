// SPDX-License-Identifier: GPL-2.0-only
/*
 * Buffers of an RPC slot.
 *
 * A Call is encoded at offset NFR_HEAD_ROOM of its send buffer, so that the
 * header can be placed directly before it and one scatter-gather element covers
 * both. The buffer stays mapped for DMA for the lifetime of its connection.
 */
#include <linux/log2.h>
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"

static struct nfr_buffer *nfr_buffer_alloc(u32 size, gfp_t gfp)
{
	struct nfr_buffer *buffer = kmalloc(struct_size(buffer, data, size), gfp);

	if (!buffer)
		return NULL;
	INIT_LIST_HEAD(&buffer->list);
	buffer->size = size;
	buffer->mapped = false;
	return buffer;
}

static void nfr_buffer_unmap(struct nfr_conn *conn, struct nfr_buffer *buffer)
{
	if (buffer->mapped)
		ib_dma_unmap_single(conn->device, buffer->addr, buffer->size, DMA_TO_DEVICE);
	buffer->mapped = false;
}

/**
 * nfr_req_map - map a send buffer for DMA
 * @conn: connection
 * @buffer: buffer of a request
 *
 * Return: 0 or -ENOBUFS.
 */
int nfr_req_map(struct nfr_conn *conn, struct nfr_buffer *buffer)
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
 * nfr_orphans_free - free orphaned buffers
 * @nx: transport; the caller holds its mutex
 * @conn: connection
 * @all: whether to free all of them, because the connection is drained
 */
void nfr_orphans_free(struct nfr_xprt *nx, struct nfr_conn *conn, bool all)
{
	struct nfr_buffer *buffer, *next;

	list_for_each_entry_safe(buffer, next, &nx->orphans, list) {
		if (!all && !nfr_queue_is_retired(conn, buffer->mark))
			continue;
		list_del(&buffer->list);
		nfr_buffer_unmap(conn, buffer);
		kfree(buffer);
	}
}

/**
 * nfr_req_orphan - detach a buffer that the device may still send from
 * @req: request, which loses the buffer
 * @conn: connection; the caller holds the mutex of the transport
 * @which: enum nfr_buffer_use
 *
 * The buffer is freed when the send queue has retired its current position.
 */
void nfr_req_orphan(struct nfr_req *req, struct nfr_conn *conn, int which)
{
	struct nfr_buffer *buffer = req->buffers[which];

	if (!buffer)
		return;
	nfr_orphans_free(req->nx, conn, false);
	buffer->mark = nfr_queue_mark(conn);
	list_add_tail(&buffer->list, &req->nx->orphans);
	req->buffers[which] = NULL;
}

/**
 * nfr_req_buffer - provide a send buffer
 * @req: idle request
 * @which: enum nfr_buffer_use
 * @size: required size in bytes
 * @gfp: allocation flags
 *
 * Return: false if the allocation failed.
 */
bool nfr_req_buffer(struct nfr_req *req, int which, u32 size, gfp_t gfp)
{
	struct nfr_xprt *nx = req->nx;
	struct nfr_buffer *buffer = req->buffers[which];

	if (buffer && buffer->size >= size)
		return true;
	buffer = nfr_buffer_alloc(size, gfp);
	if (!buffer)
		return false;
	nx->counters.hardway_bytes += size;
	mutex_lock(&nx->mutex);
	if (nfr_xprt_conn(nx))
		nfr_req_orphan(req, nfr_xprt_conn(nx), which);
	kfree(req->buffers[which]);
	req->buffers[which] = buffer;
	mutex_unlock(&nx->mutex);
	return true;
}

/**
 * nfr_req_unmap - undo nfr_req_map() for all buffers of a request
 * @conn: drained connection
 * @req: request
 */
void nfr_req_unmap(struct nfr_conn *conn, struct nfr_req *req)
{
	int i;

	for (i = 0; i < NFR_BUFFERS; i++)
		if (req->buffers[i])
			nfr_buffer_unmap(conn, req->buffers[i]);
}

static bool nfr_req_reply(struct nfr_req *req, size_t size, gfp_t gfp)
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
	struct nfr_req *req = nfr_req_of(rqst);
	gfp_t gfp = rpc_task_gfp_mask();
	struct nfr_params params;
	void *buffer;

	nfr_params_read(&params);
	if (!nfr_req_buffer(req, NFR_BUFFER_CALL, params.inline_send, gfp) ||
	    !nfr_req_reply(req, rqst->rq_rcvsize, gfp))
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
