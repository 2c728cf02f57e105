// SPDX-License-Identifier: GPL-2.0-only
/* Pass complete Calls to nfsd threads. */
#include "compat/compat.h"
#include "server/server.h"

/* Exchange the sink pages with pages of the nfsd thread, and free the latter. */
static void nfr_svc_give_pages(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	u32 i;

	for (i = 0; i < req->npages; i++)
		swap(rqstp->rq_pages[i], req->pages[i]);
	nfr_sink_put(req);
}

static void nfr_svc_arg_inline(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	struct xdr_buf *arg = &rqstp->rq_arg;

	arg->head[0].iov_base = (void *)req->rpc;
	arg->head[0].iov_len = req->rpc_length;
	arg->page_len = 0;
	arg->tail[0].iov_len = 0;
}

/* Inline part before the data item, the item in pages, and the rest of the inline part */
static void nfr_svc_arg_item(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	u32 position = req->head.reads[0].position;
	struct xdr_buf *arg = &rqstp->rq_arg;

	arg->head[0].iov_base = (void *)req->rpc;
	arg->head[0].iov_len = position;
	arg->pages = rqstp->rq_pages;
	arg->page_len = req->length;
	arg->tail[0].iov_base = (void *)req->rpc + position;
	arg->tail[0].iov_len = req->rpc_length - position;
}

static void nfr_svc_arg_whole(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	struct xdr_buf *arg = &rqstp->rq_arg;

	arg->head[0].iov_base = page_address(rqstp->rq_pages[0]);
	arg->head[0].iov_len = min_t(u32, req->length, PAGE_SIZE);
	arg->pages = rqstp->rq_pages + 1;
	arg->page_len = req->length - arg->head[0].iov_len;
	arg->tail[0].iov_len = 0;
}

static int nfr_svc_build_arg(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	struct xdr_buf *arg = &rqstp->rq_arg;

	nfr_svc_give_pages(rqstp, req);
	if (!req->head.nreads)
		nfr_svc_arg_inline(rqstp, req);
	else if (req->whole)
		nfr_svc_arg_whole(rqstp, req);
	else
		nfr_svc_arg_item(rqstp, req);
	arg->page_base = 0;
	arg->len = arg->head[0].iov_len + arg->page_len + arg->tail[0].iov_len;
	arg->buflen = arg->len;
	nfr_set_respages(rqstp, req->npages);
	return arg->len;
}

/*
 * Get the first Call whose Reply fits into the budget. Calls that wait for it
 * keep their order; Calls that are not charged may overtake them.
 */
static struct nfr_svc_req *nfr_svc_next(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;
	bool waits = false;

	list_for_each_entry(req, &svc->ready, list) {
		u32 room = nfr_budget_room(req);

		if (!room || (!waits && nfr_budget_charge(req, room)))
			return req;
		waits = true;
	}
	return NULL;
}

static struct nfr_svc_req *nfr_svc_take(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;

	spin_lock(&svc->lock);
	/* clear it first: nfr_budget_wake() may set it again at any time */
	clear_bit(XPT_DATA, &svc->xprt.xpt_flags);
	req = nfr_svc_next(svc);
	if (req)
		list_del(&req->list);
	if (req && !list_empty(&svc->ready))
		set_bit(XPT_DATA, &svc->xprt.xpt_flags);
	spin_unlock(&svc->lock);
	return req;
}

/**
 * nfr_svc_recvfrom - pass a Call to an nfsd thread (svc_xprt_ops.xpo_recvfrom)
 * @rqstp: request of the thread; the function sets its rq_arg
 *
 * Return: length of the Call in bytes, or 0 if no Call is available.
 */
int nfr_svc_recvfrom(struct svc_rqst *rqstp)
{
	struct svc_xprt *xprt = rqstp->rq_xprt;
	struct nfr_svc_req *req = nfr_svc_take(nfr_svc_of(xprt));

	rqstp->rq_xprt_ctxt = req;
	/* allow another thread to take the next Call */
	svc_xprt_received(xprt);
	if (!req)
		return 0;
	req->gfp = NFR_GFP_ONCE;
	rqstp->rq_prot = IPPROTO_MAX;
	svc_xprt_copy_addrs(rqstp, xprt);
	set_bit(RQ_SECURE, &rqstp->rq_flags);
	return nfr_svc_build_arg(rqstp, req);
}
