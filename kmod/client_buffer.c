// SPDX-License-Identifier: GPL-2.0-only
/*
 * The buffers of an RPC slot.
 *
 * A slot's send buffer has the Call at NFR_HEAD_ROOM, so that the header can
 * be put right before it and both leave in one piece. The buffer stays mapped
 * for DMA while its connection lasts.
 */
#include <linux/log2.h>
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client.h"

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
 * nfr_req_map - make a buffer ready to be sent from
 * @conn: the connection
 * @buffer: of a request
 *
 * Returns 0 or -ENOBUFS.
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
 * nfr_orphans_free - free buffers that were put aside
 * @nx: the transport, its mutex held
 * @conn: the connection
 * @all: it is drained: whether the queue has passed them or not
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
 * nfr_req_orphan - put a buffer aside that may still be sent from
 * @req: loses it
 * @conn: the connection; the transport's mutex is held
 * @which: enum nfr_buffer_use
 *
 * It is freed when the send queue has passed this point.
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
 * nfr_req_buffer - see to it that a request has a buffer
 * @req: idle
 * @which: enum nfr_buffer_use
 * @size: bytes it must have
 * @gfp: how to allocate
 *
 * Returns false when memory is short.
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
 * @conn: drained
 * @req: the request
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
	/* what the allocator takes anyway, so that a slot's buffer seldom grows */
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
 * nfr_client_buf_alloc - buffers to encode a Call in and decode its reply from
 * @task: with rq_callsize and rq_rcvsize set, in bytes
 *
 * Returns 0 or -ENOMEM.
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
	/* rq_buffer is set last: sunrpc takes it for a sign that all is there */
	rqst->rq_rbuffer = req->reply;
	rqst->rq_buffer = buffer;
	return 0;
}
