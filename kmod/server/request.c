// SPDX-License-Identifier: GPL-2.0-only
/* Requests of a connection: allocated on demand, reused, and limited by the number of credits. */
#include <linux/slab.h>

#include "server/server.h"

/* Allowance for requests whose Reply was sent, but is not retired yet */
#define NFR_SVC_UNRETIRED	64

static void nfr_svc_req_free(struct nfr_svc_req *req)
{
	struct nfr_conn *conn = req->svc->conn;

	if (req->buffer)
		ib_dma_unmap_single(conn->device, req->addr, conn->send_size, DMA_TO_DEVICE);
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
	INIT_LIST_HEAD(&req->rws);
	if (nfr_svc_req_buffer(req, gfp)) {
		kfree(req);
		return NULL;
	}
	spin_lock(&svc->lock);
	list_add_tail(&req->all, &svc->all);
	svc->nreqs++;
	spin_unlock(&svc->lock);
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
	struct nfr_svc_req *req;
	bool full;

	spin_lock(&svc->lock);
	req = list_first_entry_or_null(&svc->free, struct nfr_svc_req, list);
	if (req)
		list_del(&req->list);
	full = svc->nreqs >= 2 * svc->conn->wanted.credits + NFR_SVC_UNRETIRED;
	spin_unlock(&svc->lock);
	if (!req)
		req = full ? ERR_PTR(-ENOBUFS) : nfr_svc_req_create(svc, gfp);
	return req ?: ERR_PTR(-ENOMEM);
}

/**
 * nfr_svc_req_answered - return the receive of a Call that is not used any more
 * @req: request
 */
void nfr_svc_req_answered(struct nfr_svc_req *req)
{
	struct nfr_recv *recv = req->recv;

	if (!recv)
		return;
	req->recv = NULL;
	atomic_dec(&req->svc->busy);
	nfr_conn_recv_return(req->svc->conn, recv);
}

/**
 * nfr_svc_req_put - return a request to the free list
 * @req: request that no work request and no thread uses
 */
void nfr_svc_req_put(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	nfr_svc_req_answered(req);
	nfr_rw_destroy_all(req);
	nfr_sink_put(req);
	nfr_budget_keep(req, 0);
	req->nresults = 0;
	spin_lock(&svc->lock);
	/* LIFO: the latest request is cache-hot */
	list_add(&req->list, &svc->free);
	spin_unlock(&svc->lock);
}

/**
 * nfr_svc_req_destroy_all - free all requests in any state
 * @svc: drained connection without references, whose queue pair still exists
 */
void nfr_svc_req_destroy_all(struct nfr_svc *svc)
{
	struct nfr_svc_req *req, *next;

	list_for_each_entry_safe(req, next, &svc->all, all) {
		nfr_rw_destroy_all(req);
		nfr_sink_put(req);
		nfr_budget_keep(req, 0);
		nfr_svc_req_free(req);
	}
}
