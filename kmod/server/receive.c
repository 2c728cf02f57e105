// SPDX-License-Identifier: GPL-2.0-only
/*
 * Handle received messages: decode them in the completion handler, and pass
 * complete Calls to nfsd.
 *
 * RFC 8166, section 4.5, defines how to answer or drop malformed messages.
 */
#include "server/server.h"
#include "observe/trace_server.h"

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
	while (conn->recv_total < nfr_svc_recvs_for(grant))
		if (nfr_conn_recv_more(conn, NFR_GFP_COMPLETION))
			return;
	WRITE_ONCE(svc->grant, grant);
}

/* --- Calls --- */

/**
 * nfr_svc_is_ready - queue a complete Call for an nfsd thread
 * @req: request
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
		nfr_svc_drop(req, "Read chunk, but no RDMA Reads accepted");
		nfr_conn_break(svc->conn, "the client does not accept RDMA Reads");
	} else if (req->head.nreads) {
		nfr_svc_read_start(req);
	} else {
		nfr_svc_is_ready(req);
	}
}

/* Tell a Call from the reply to a callback. Its XID has to match that of the header. */
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
	/* an error of the client must concern a callback, which then gets no other reply */
	nfr_backchannel_failed(req->svc);
	nfr_svc_drop(req, "RDMA_ERROR");
}

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
	req->recv = recv;
	req->gfp = gfp;
	req->npages = 0;
	req->waited = false;
	nfr_svc_message(req);
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
	spin_lock(&svc->lock);
	list_add_tail(&recv->list, &svc->late);
	spin_unlock(&svc->lock);
	nfr_svc_count_shortage();
	nfr_work_queue(&svc->late_work, 0);
}

/* --- messages for which the completion handler could not allocate a request --- */

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
		nfr_conn_recv_return(svc->conn, recv);
		nfr_conn_break(svc->conn, "no memory for a Call");
	}
}

/**
 * nfr_svc_late_init - initialize the queue of messages that wait for memory
 * @svc: new connection
 */
void nfr_svc_late_init(struct nfr_svc *svc)
{
	INIT_LIST_HEAD(&svc->late);
	INIT_DELAYED_WORK(&svc->late_work, nfr_svc_late_work);
}
