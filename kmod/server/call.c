// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way of a Call, from its receipt until its Reply is sent: one request, and
 * one function that takes it from state to state.
 *
 * The completion handler of the receive decodes and checks the message, and a
 * worker starts RDMA Reads. A complete Call waits for an nfsd thread, which takes
 * it and leaves the Reply with the send queue. RFC 8166, section 4.5, defines how
 * to answer or drop malformed messages.
 */
#include "compat/compat.h"
#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/transfer.h"
#include "observe/trace_server.h"
#include "server/call.h"
#include "server/expose.h"
#include "server/memory.h"
#include "server/pages.h"
#include "server/reply.h"
#include "server/request.h"
#include "server/server.h"
#include "work.h"

/* --- states --- */

static void nfr_svc_read(struct nfr_svc_req *req);
static void nfr_svc_revoke(struct nfr_svc_req *req);

/* Continue a request where RDMA operations may be prepared, and locks of sunrpc taken. */
static void nfr_svc_defer(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	struct nfr_svc *svc = req->svc;

	if (!nfr_conn_polls_in_softirq(svc->conn)) {
		resume(req);
		return;
	}
	req->resume = resume;
	spin_lock_bh(&svc->lock);
	list_add_tail(&req->list, &svc->deferred);
	spin_unlock_bh(&svc->lock);
	queue_work(nfr_work_poll, &svc->deferred_work);
}

/* Queue a complete Call for an nfsd thread. */
static void nfr_svc_enqueue(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	spin_lock_bh(&svc->lock);
	list_add_tail(&req->list, &svc->ready);
	set_bit(XPT_DATA, &svc->xprt.xpt_flags);
	spin_unlock_bh(&svc->lock);
	svc_xprt_enqueue(&svc->xprt);
}

/**
 * nfr_svc_advance - take a request to the next state
 * @req: request for which the work of its state is done
 */
void nfr_svc_advance(struct nfr_svc_req *req)
{
	switch (req->state) {
	case NFR_SVC_RECEIVED:
		if (req->head.nreads) {
			req->state = NFR_SVC_READING;
			nfr_svc_defer(req, nfr_svc_read);
			return;
		}
		fallthrough;
	case NFR_SVC_READING:
		req->state = NFR_SVC_READY;
		nfr_svc_enqueue(req);
		return;
	case NFR_SVC_READY:
		req->state = NFR_SVC_REPLYING;
		return;
	case NFR_SVC_REPLYING:
		req->state = NFR_SVC_SENT;
		nfr_svc_post(req);
		return;
	case NFR_SVC_SENT:
	case NFR_SVC_REVOKING:
		nfr_svc_req_put(req);
		return;
	case NFR_SVC_EXPOSING:
		req->state = NFR_SVC_EXPOSED;
		nfr_svc_post(req);
		return;
	case NFR_SVC_EXPOSED:
		req->state = NFR_SVC_REVOKING;
		nfr_svc_revoke(req);
		return;
	}
}

/* Answer a request, which no nfsd thread uses, with RDMA_ERROR; or end the connection. */
static void nfr_svc_refuse(struct nfr_svc_req *req, enum nfr_error error)
{
	req->state = NFR_SVC_REPLYING;
	if (!req->svc->personality->refuse(req, error))
		nfr_svc_advance(req);
	else
		nfr_svc_req_put(req);
}

/**
 * nfr_svc_reject - refuse a message that contradicts itself
 * @req: request, which no nfsd thread uses
 */
void nfr_svc_reject(struct nfr_svc_req *req)
{
	nfr_svc_refuse(req, NFR_ERR_CHUNK);
}

/* --- reading --- */

static void nfr_svc_read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_svc_req *req = container_of(wc->wr_cqe, struct nfr_svc_req, read_cqe);
	struct nfr_conn *conn = req->svc->conn;

	/* on failure, the request is freed with the connection */
	if (!nfr_conn_check(conn, wc))
		return;
	nfr_mem_transfer_destroy_all(&req->transfer);
	nfr_svc_count(req->svc, read_bytes, req->length);
	trace_nfsrdma_svc_read(req);
	nfr_svc_advance(req);
	conn->ops->writable(conn);
}

/*
 * Read the chunks of a Call. The request may wait for memory first, which calls
 * this function again. The connection breaks if the device cannot perform the
 * RDMA Reads.
 */
static void nfr_svc_read(struct nfr_svc_req *req)
{
	int rc = nfr_svc_read_prepare(req, nfr_svc_read);

	if (rc == -EINPROGRESS)
		return;
	if (rc) {
		struct nfr_conn *conn = req->svc->conn;

		nfr_svc_req_put(req);
		nfr_conn_break(conn, "preparing an RDMA Read failed");
		return;
	}
	req->read_cqe.done = nfr_svc_read_done;
	req->first = nfr_mem_transfer_chain(&req->transfer, &req->read_cqe, NULL);
	/* all chunks are empty */
	if (!req->first) {
		nfr_svc_advance(req);
		return;
	}
	req->signal = true;
	nfr_svc_post(req);
}

/* --- exposed Replies --- */

static void nfr_svc_revoke_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_svc_req *req = container_of(wc->wr_cqe, struct nfr_svc_req, revoke_cqe);
	struct nfr_conn *conn = req->svc->conn;

	/* on failure, the request is freed with the connection */
	if (!nfr_conn_check(conn, wc))
		return;
	nfr_svc_expose_end(req);
	nfr_svc_advance(req);
	conn->ops->writable(conn);
}

/* End the client's access to a Reply. The send queue has passed the Reply when that is done. */
static void nfr_svc_revoke(struct nfr_svc_req *req)
{
	req->revoke_cqe.done = nfr_svc_revoke_done;
	nfr_svc_expose_revoke(req);
	nfr_svc_post(req);
}

/* --- credits --- */

/*
 * Double the grant when half of it is in use, so that an idle client does not
 * occupy many buffers. Post the receives before granting the credits.
 * Completion handler only.
 */
static void nfr_svc_grow(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	u32 grant = min(2 * svc->grant, conn->wanted.credits);

	if (grant == svc->grant || atomic_read(&svc->busy) < svc->grant / 2)
		return;
	while (conn->recv_total < nfr_svc_recvs_for(svc, grant))
		if (nfr_conn_recv_more(conn, NFR_GFP_COMPLETION))
			return;
	WRITE_ONCE(svc->grant, grant);
}

/* --- Calls --- */

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
	if (req->head.nreads && !svc->conn->profile.reads_issued) {
		nfr_svc_drop(req, "Read chunk, but no RDMA Reads accepted");
		nfr_conn_break(svc->conn, "the client does not accept RDMA Reads");
	} else {
		nfr_svc_advance(req);
	}
}

static void nfr_svc_callback(struct nfr_svc_req *req)
{
	nfr_svc_callback_receive(req->svc, req->head.xid, req->head.credits, req->rpc,
				 req->rpc_length);
	nfr_svc_req_put(req);
}

/* An error of the client must concern a callback, which then gets no other reply. */
static void nfr_svc_callback_refused(struct nfr_svc_req *req)
{
	nfr_svc_callback_failed(req->svc);
	nfr_svc_drop(req, "RDMA_ERROR");
}

/* Tell a Call from the reply to a callback. Its XID has to match that of the header. */
static __always_inline void nfr_svc_inline(struct nfr_svc_req *req)
{
	if (req->rpc_length < 8 || get_unaligned_be32(req->rpc) != req->head.xid)
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
	else if (nfr_wire_is_call(req->rpc, req->rpc_length))
		nfr_svc_call(req);
	else
		nfr_svc_defer(req, nfr_svc_callback);
}

/* See nfr_svc_dispatch(); inlined into the way of each Call of version 1. */
static __always_inline void nfr_svc_sort(struct nfr_svc_req *req)
{
	switch (req->head.proc) {
	case NFR_MSG:
		nfr_svc_inline(req);
		return;
	case NFR_NOMSG:
		nfr_svc_call(req);
		return;
	}
	nfr_svc_defer(req, nfr_svc_callback_refused);
}

/**
 * nfr_svc_dispatch - handle a message with a sound header
 * @req: request with @head, @rpc and @rpc_length set; NFR_MSG, NFR_NOMSG or NFR_ERROR
 */
void nfr_svc_dispatch(struct nfr_svc_req *req)
{
	nfr_svc_sort(req);
}

static void nfr_svc_malformed(struct nfr_svc_req *req, int error)
{
	/* RFC 8166, section 4.5: its XID cannot be trusted */
	if (req->recv->length < NFR_WIRE_MIN) {
		nfr_svc_drop(req, "message is shorter than a header");
		return;
	}
	/* never answer an error, even a malformed one */
	if (req->head.proc == NFR_ERROR)
		nfr_svc_drop(req, "RDMA_ERROR");
	/* RFC 8166, section 4.2.4: the sender violates the protocol; there is no reply to it */
	else if (req->head.proc == NFR_DONE && error == -EPROTO)
		nfr_svc_drop(req, "RDMA_DONE");
	else
		nfr_svc_refuse(req, error == -EPROTONOSUPPORT ? NFR_ERR_VERS : NFR_ERR_CHUNK);
}

/**
 * nfr_svc_version1_receive - decode and dispatch a message of version 1
 * @req: new request
 */
void nfr_svc_version1_receive(struct nfr_svc_req *req)
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
	nfr_svc_sort(req);
}

const struct nfr_svc_personality nfr_svc_version1 = {
	.receive	= nfr_svc_version1_receive,
	.reply		= nfr_svc_reply,
	.refuse		= nfr_svc_reply_error,
	.size		= nfr_wire_size,
	.finish		= nfr_svc_req_finish,
};

/* Returns -ENOMEM if no request could be allocated; then the caller keeps @recv. */
static int nfr_svc_handle(struct nfr_svc *svc, struct nfr_recv *recv, gfp_t gfp)
{
	struct nfr_svc_req *req = nfr_svc_req_get(svc, gfp);

	if (req == ERR_PTR(-ENOMEM))
		return -ENOMEM;
	if (IS_ERR(req)) {
		nfr_conn_recv_return(svc->conn, recv);
		nfr_conn_break(svc->conn, "more Calls than credits");
		return 0;
	}
	atomic_inc(&svc->busy);
	req->state = NFR_SVC_RECEIVED;
	req->recv = recv;
	req->transfer.gfp = gfp;
	req->npages = 0;
	req->waited = false;
	svc->personality->receive(req);
	return 0;
}

/**
 * nfr_svc_receive - handle a message from a client
 * @conn: connection
 * @recv: message
 *
 * Context: Completion handler.
 */
void nfr_svc_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_svc *svc = conn->owner;

	nfr_svc_grow(svc);
	if (!nfr_svc_handle(svc, recv, NFR_GFP_COMPLETION))
		return;
	spin_lock_bh(&svc->lock);
	list_add_tail(&recv->list, &svc->late);
	spin_unlock_bh(&svc->lock);
	nfr_svc_sink_count_shortage();
	nfr_work_queue(&svc->late_work, 0);
}

/* --- work that the completion handler leaves to workers --- */

static void nfr_svc_late_work(struct work_struct *work)
{
	struct nfr_svc *svc = container_of(work, struct nfr_svc, late_work.work);
	struct list_head *entry;
	struct nfr_recv *recv;

	while ((entry = nfr_svc_pop(svc, &svc->late))) {
		recv = list_entry(entry, struct nfr_recv, list);
		if (!nfr_svc_handle(svc, recv, NFR_GFP_ONCE))
			continue;
		nfr_conn_recv_return(svc->conn, recv);
		nfr_conn_break(svc->conn, "no memory for a Call");
	}
}

static void nfr_svc_deferred_work(struct work_struct *work)
{
	struct nfr_svc *svc = container_of(work, struct nfr_svc, deferred_work);
	struct nfr_svc_req *req;
	struct list_head *entry;

	while ((entry = nfr_svc_pop(svc, &svc->deferred))) {
		req = list_entry(entry, struct nfr_svc_req, list);
		req->resume(req);
	}
}

/**
 * nfr_svc_work_init - initialize the work of messages that wait for memory or for a worker
 * @svc: new connection
 */
void nfr_svc_work_init(struct nfr_svc *svc)
{
	INIT_LIST_HEAD(&svc->late);
	INIT_LIST_HEAD(&svc->deferred);
	INIT_WORK(&svc->deferred_work, nfr_svc_deferred_work);
	INIT_DELAYED_WORK(&svc->late_work, nfr_svc_late_work);
}

/* --- nfsd threads --- */

/* Exchange the sink pages with pages of the nfsd thread. */
static void nfr_svc_give_pages(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	u32 i;

	for (i = 0; i < req->npages; i++)
		swap(rqstp->rq_pages[i], req->pages[i]);
	nfr_svc_sink_put(req);
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

/* Maximum length of a Reply in pages; its chunks, or the inline size, limit it. */
static u32 nfr_svc_reply_room(const struct nfr_svc_req *req)
{
	return nfr_svc_budget_room(req) ?: PFN_UP(req->svc->conn->send_size);
}

static int nfr_svc_build_arg(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	struct xdr_buf *arg = &rqstp->rq_arg;

	nfr_svc_give_pages(rqstp, req);
	/* without Read chunks, or with empty ones */
	if (!req->npages)
		nfr_svc_arg_inline(rqstp, req);
	else if (req->whole)
		nfr_svc_arg_whole(rqstp, req);
	else
		nfr_svc_arg_item(rqstp, req);
	arg->page_base = 0;
	arg->len = arg->head[0].iov_len + arg->page_len + arg->tail[0].iov_len;
	arg->buflen = arg->len;
	nfr_compat_set_respages(rqstp, req->npages);
	nfr_svc_pages_keep(req, rqstp, nfr_svc_reply_room(req));
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
		u32 room = nfr_svc_budget_room(req);

		if (!room || (!waits && nfr_svc_budget_charge(req, room)))
			return req;
		waits = true;
	}
	return NULL;
}

static struct nfr_svc_req *nfr_svc_take(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;

	spin_lock_bh(&svc->lock);
	/* clear it first: nfr_svc_budget_wake() may set it again at any time */
	clear_bit(XPT_DATA, &svc->xprt.xpt_flags);
	req = nfr_svc_next(svc);
	if (req)
		list_del(&req->list);
	if (req && !list_empty(&svc->ready))
		set_bit(XPT_DATA, &svc->xprt.xpt_flags);
	spin_unlock_bh(&svc->lock);
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
	if (!req) {
		nfr_compat_no_respages(rqstp);
		return 0;
	}
	nfr_svc_advance(req);
	req->transfer.gfp = NFR_GFP_ONCE;
	rqstp->rq_prot = IPPROTO_MAX;
	svc_xprt_copy_addrs(rqstp, xprt);
	set_bit(RQ_SECURE, &rqstp->rq_flags);
	return nfr_svc_build_arg(rqstp, req);
}

/* Handle a Reply that was not prepared. Returns the result of nfr_svc_sendto(). */
static noinline int nfr_svc_unsent(struct nfr_svc_req *req, int rc)
{
	/* a lane sent it, or broke */
	if (rc == -EINPROGRESS)
		return 0;
	if (rc == -EMSGSIZE) {
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
		return 0;
	}
	nfr_conn_break(req->svc->conn, "sending a Reply failed");
	nfr_svc_req_put(req);
	return rc;
}

/**
 * nfr_svc_sendto - send the Reply of an nfsd thread (svc_xprt_ops.xpo_sendto)
 * @rqstp: nfsd thread's request with the Reply in rq_res
 *
 * Context: Does not sleep for the network.
 *
 * Return: 0, or a negative errno if the connection breaks instead; then the
 * client sends the Call again on its next connection.
 */
int nfr_svc_sendto(struct svc_rqst *rqstp)
{
	struct nfr_svc_req *req = rqstp->rq_xprt_ctxt;
	int rc;

	if (!req)
		return -ENOTCONN;
	rqstp->rq_xprt_ctxt = NULL;
	rc = req->svc->personality->reply(req, rqstp);
	if (!rc) {
		nfr_svc_advance(req);
		return 0;
	}
	return nfr_svc_unsent(req, rc);
}

/* --- send queue --- */

/**
 * nfr_svc_writable - release sent requests and post queued ones
 * @conn: connection
 *
 * Context: Completion handler.
 */
void nfr_svc_writable(struct nfr_conn *conn)
{
	struct nfr_svc_req *req, *next;
	LIST_HEAD(done);

	nfr_svc_retire(conn->owner, &done);
	list_for_each_entry_safe(req, next, &done, list)
		nfr_svc_advance(req);
}
