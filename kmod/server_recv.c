// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls that come: looked at where their completion is handled, and handed to
 * nfsd when all of a Call is there.
 *
 * What is malformed is answered, or dropped, as RFC 8166, section 4.5, has it.
 */
#include "compat.h"
#include "server.h"
#include "trace_server.h"

/* --- credits --- */

/*
 * A client has few credits until it uses them, so that one that never does
 * costs few buffers. The receives come first, then the grant. Only where
 * completions are handled.
 */
static void nfr_svc_grow(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	u32 grant = min(2 * svc->grant, conn->wanted.credits);

	if (grant == svc->grant || atomic_read(&svc->busy) < svc->grant / 2)
		return;
	while (conn->recv_total < nfr_svc_recvs_for(grant))
		if (nfr_recv_more(conn, NFR_GFP_COMPLETION))
			return;
	WRITE_ONCE(svc->grant, grant);
}

/* --- Calls --- */

/**
 * nfr_svc_is_ready - a request is all there: some nfsd thread is to take it
 * @req: the request
 */
void nfr_svc_is_ready(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	spin_lock(&svc->lock);
	list_add_tail(&req->list, &svc->ready);
	set_bit(XPT_DATA, &svc->xprt.xpt_flags);
	spin_unlock(&svc->lock);
	svc_xprt_enqueue(&svc->xprt);
}

static void nfr_svc_drop(struct nfr_svc_req *req, const char *what)
{
	trace_nfsrdma_svc_error(req->svc, req->head.xid, what, 0);
	nfr_svc_count(req->svc, dropped, 1);
	nfr_svc_req_put(req);
}

static void nfr_svc_call(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	if (!nfr_svc_read_check(req, svc->max_message)) {
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
		return;
	}
	nfr_svc_count(svc, calls, 1);
	nfr_svc_count(svc, read_chunks, req->head.nreads);
	trace_nfsrdma_svc_call(req);
	if (req->head.nreads && !svc->depth) {
		nfr_svc_drop(req, "a Read chunk of a client that takes no Reads");
		nfr_conn_break(svc->conn, "the client takes no RDMA Reads");
	} else if (req->head.nreads) {
		nfr_svc_read_start(req);
	} else {
		nfr_svc_is_ready(req);
	}
}

/* An inline message: does it ask, or answer a callback? Its xid is the header's. */
static void nfr_svc_inline(struct nfr_svc_req *req)
{
	struct nfr_header *head = &req->head;
	struct nfr_svc *svc = req->svc;

	if (req->rpc_length < 8 || get_unaligned_be32(req->rpc) != head->xid) {
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
		return;
	}
	if (nfr_wire_is_call(req->rpc, req->rpc_length)) {
		nfr_svc_call(req);
		return;
	}
	nfr_backchannel_receive(svc, head->xid, head->credits, req->rpc, req->rpc_length);
	nfr_svc_req_put(req);
}

static void nfr_svc_malformed(struct nfr_svc_req *req, int error)
{
	/* RFC 8166, section 4.5: its xid cannot be trusted */
	if (req->recv->length < NFR_WIRE_MIN) {
		nfr_svc_drop(req, "shorter than any header");
		return;
	}
	/* nobody answers an error, whatever it says */
	if (req->head.proc == NFR_ERROR)
		nfr_svc_drop(req, "RDMA_ERROR");
	/* RFC 8166, section 4.2.4: nobody may send it, and there is no answer to it */
	else if (req->head.proc == NFR_DONE && error == -EPROTO)
		nfr_svc_drop(req, "RDMA_DONE");
	else
		nfr_svc_refuse(req, error == -EPROTONOSUPPORT ? NFR_ERR_VERS : NFR_ERR_CHUNK);
}

static void nfr_svc_message(struct nfr_svc_req *req)
{
	struct nfr_space space = {
		.chunks = req->chunks, .nchunks = NFR_SVC_CHUNKS,
		.segs = req->segs, .nsegs = NFR_SVC_SEGS,
	};
	int rc = nfr_wire_decode(&req->head, &space, req->recv->data, req->recv->length);

	if (rc < 0) {
		nfr_svc_malformed(req, rc);
		return;
	}
	req->rpc = req->recv->data + rc;
	req->rpc_length = req->recv->length - rc;
	switch (req->head.proc) {
	case NFR_MSG:
		nfr_svc_inline(req);
		return;
	case NFR_NOMSG:
		nfr_svc_call(req);
		return;
	}
	/* a client's error: it could only be about a callback, which ends without a reply */
	nfr_backchannel_failed(req->svc);
	nfr_svc_drop(req, "RDMA_ERROR");
}

/* Returns -ENOMEM when there is no memory for a request; @recv is as before then. */
static int nfr_svc_handle(struct nfr_svc *svc, struct nfr_recv *recv, gfp_t gfp)
{
	struct nfr_svc_req *req = nfr_svc_req_get(svc, gfp);

	if (req == ERR_PTR(-ENOMEM))
		return -ENOMEM;
	if (IS_ERR(req)) {
		nfr_recv_return(svc->conn, recv);
		nfr_conn_break(svc->conn, "more calls than credits");
		return 0;
	}
	atomic_inc(&svc->busy);
	req->recv = recv;
	req->gfp = gfp;
	req->npages = 0;
	req->waited = false;
	nfr_svc_message(req);
	return 0;
}

/**
 * nfr_svc_receive - a message came from the client
 * @conn: the connection; called where completions are handled
 * @recv: the message
 */
void nfr_svc_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_svc *svc = conn->owner;

	nfr_svc_grow(svc);
	if (!nfr_svc_handle(svc, recv, NFR_GFP_COMPLETION))
		return;
	spin_lock(&svc->lock);
	list_add_tail(&recv->list, &svc->late);
	spin_unlock(&svc->lock);
	nfr_svc_count_shortage();
	nfr_conn_queue(&svc->late_work, 0);
}

/* --- messages that found no memory where their completion was handled --- */

static struct nfr_recv *nfr_svc_next_late(struct nfr_svc *svc)
{
	struct nfr_recv *recv;

	spin_lock(&svc->lock);
	recv = list_first_entry_or_null(&svc->late, struct nfr_recv, list);
	if (recv)
		list_del(&recv->list);
	spin_unlock(&svc->lock);
	return recv;
}

static void nfr_svc_late_work(struct work_struct *work)
{
	struct nfr_svc *svc = container_of(work, struct nfr_svc, late_work.work);
	struct nfr_recv *recv;

	while ((recv = nfr_svc_next_late(svc))) {
		if (!nfr_svc_handle(svc, recv, NFR_GFP_ONCE))
			continue;
		nfr_recv_return(svc->conn, recv);
		nfr_conn_break(svc->conn, "no memory for a call");
	}
}

/**
 * nfr_svc_late_init - prepare for messages that find no memory
 * @svc: new
 */
void nfr_svc_late_init(struct nfr_svc *svc)
{
	INIT_LIST_HEAD(&svc->late);
	INIT_DELAYED_WORK(&svc->late_work, nfr_svc_late_work);
}

/* --- nfsd --- */

/*
 * What was read takes the place of as many pages of the thread's, which are
 * freed instead.
 */
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

/* The inline part before the data item, the item in pages, and the rest */
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
 * The first Call whose reply has room in memory. Those that wait for room keep
 * their order; Calls that need none overtake them.
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
	/* before looking: memory that comes back later sets it again */
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
 * nfr_svc_recvfrom - give a Call to an nfsd thread (svc_xprt_ops.xpo_recvfrom)
 * @rqstp: the thread's; its rq_arg is filled in
 *
 * Returns bytes of the Call, 0 when there is none.
 */
int nfr_svc_recvfrom(struct svc_rqst *rqstp)
{
	struct svc_xprt *xprt = rqstp->rq_xprt;
	struct nfr_svc_req *req = nfr_svc_take(nfr_svc_of(xprt));

	rqstp->rq_xprt_ctxt = req;
	/* the next thread may take the next Call */
	svc_xprt_received(xprt);
	if (!req)
		return 0;
	req->gfp = NFR_GFP_ONCE;
	rqstp->rq_prot = IPPROTO_MAX;
	svc_xprt_copy_addrs(rqstp, xprt);
	set_bit(RQ_SECURE, &rqstp->rq_flags);
	return nfr_svc_build_arg(rqstp, req);
}
