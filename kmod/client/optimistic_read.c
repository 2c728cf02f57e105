// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way of a READ that needs no server: an RDMA Read of the server's page cache into the
 * pages of the caller, and a Reply that the client makes itself.
 *
 * The sender polls for the completion: a card answers sooner than a sleeping thread wakes.
 * If it does not answer soon, or if others wait to send, the completion is left to a worker.
 * A refused Read becomes an ordinary Call, at once if the sender polls, else as a Call that
 * sunrpc sends again.
 */
#include <linux/nfs_fs.h>
#include <linux/nfs_xdr.h>
#include <linux/sunrpc/clnt.h>

#include "client/call.h"
#include "client/optimistic.h"
#include "client/reply.h"
#include "connection/receive.h"
#include "connection/send.h"
#include "connection/state.h"
#include "memory/span.h"
#include "observe/trace.h"

/* Reads that the sender does not wait for after one that was slow */
#define NFR_OPTIMISTIC_SKIP	32

/* --- recognizing a READ --- */

/* Describe what a READ of NFSv3 asks for. Returns false for other Calls. */
static bool nfr_client_optimistic_wants(const struct rpc_rqst *rqst, struct nfr_wanted *wanted)
{
	const struct rpc_task *task = rqst->rq_task;
	const struct xdr_buf *rcv = &rqst->rq_rcv_buf;
	const struct nfs_pgio_args *args;

	if (!(rcv->flags & XDRBUF_READ) || !task->tk_client ||
	    task->tk_client->cl_prog != NFS_PROGRAM || task->tk_client->cl_vers != NFS3_VERSION ||
	    task->tk_msg.rpc_proc->p_proc != NFS3PROC_READ ||
	    rqst->rq_cred->cr_auth->au_flavor != RPC_AUTH_UNIX)
		return false;
	args = task->tk_msg.rpc_argp;
	*wanted = (struct nfr_wanted) {
		.fh = args->fh->data, .fh_length = args->fh->size, .count = args->count,
		.position = args->offset, .offset = offset_in_page(rcv->page_base),
		.cred = rqst->rq_cred->cr_cred, .call = &rqst->rq_snd_buf.head[0],
		.measured = args->replen,
	};
	return args->count && args->count <= rcv->page_len && wanted->cred &&
	       args->fh->size <= NFR_WIRE_FH_MAX &&
	       rcv->head[0].iov_len >= NFR_WIRE_READ_REPLY;
}

/* --- completing --- */

/* Make the Reply of a pinned request whose data has arrived. */
static void nfr_client_optimistic_place(struct nfr_req *req, u32 count, bool eof)
{
	struct rpc_rqst *rqst = &req->rqst;
	struct kvec *head = &rqst->rq_rcv_buf.head[0];

	nfr_wire_encode_read_reply(head->iov_base, be32_to_cpu(rqst->rq_xid), count, eof);
	/* XDR decoding continues in the pages where the header ends */
	head->iov_len = NFR_WIRE_READ_REPLY;
	rqst->rq_private_buf.head[0].iov_len = NFR_WIRE_READ_REPLY;
	req->result = NFR_WIRE_READ_REPLY + xdr_align_size(count);
}

/* Pin the Call of a Read. Returns false if its task is ending. */
static bool nfr_client_optimistic_pin(struct nfr_req *req)
{
	struct rpc_xprt *xprt = &req->nx->xprt;
	bool found;

	spin_lock(&xprt->queue_lock);
	found = xprt_lookup_rqst(xprt, req->rqst.rq_xid) == &req->rqst;
	if (found)
		xprt_pin_rqst(&req->rqst);
	spin_unlock(&xprt->queue_lock);
	return found;
}

/* Complete the RPC of a Read that has arrived. */
static void nfr_client_optimistic_finish(struct nfr_side_read *read)
{
	struct nfr_req *req = read->req;

	if (!nfr_client_optimistic_pin(req)) {
		nfr_client_side_release(read, NFR_REQ_IDLE);
		return;
	}
	nfr_client_optimistic_place(req, read->count, read->eof);
	nfr_client_side_release(read, NFR_REQ_ANSWERED);
	nfr_client_reply_apart(req);
}

/* Handle the completion of a Read, in the sender or in a worker. */
static void nfr_client_optimistic_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_side_read *read = container_of(wc->wr_cqe, struct nfr_side_read, cqe);
	struct nfr_optimist *optimist = nfr_client_optimist_of(read->side);
	struct nfr_conn *conn = &read->side->branch.conn;
	bool refused = wc->status == IB_WC_REM_ACCESS_ERR, polled;

	nfr_mem_scatter_unmap(conn->device, read->sges, read->nsges, DMA_FROM_DEVICE);
	trace_nfsrdma_optimistic(conn, &read->req->rqst, read->handle, read->count, wc->status);
	if (refused) {
		nfr_conn_retire(conn, wc);
		nfr_client_side_refused(read);
	} else {
		nfr_conn_check(conn, wc);
	}
	spin_lock(&optimist->branches.lock);
	read->status = wc->status == IB_WC_SUCCESS ? NFR_SIDE_READ : NFR_SIDE_REFUSED;
	polled = read->polled;
	spin_unlock(&optimist->branches.lock);
	if (polled)
		return;
	if (wc->status == IB_WC_SUCCESS)
		nfr_client_optimistic_finish(read);
	else
		nfr_client_side_resend(read);
}

/* --- sending --- */

/* Map the memory of a Call, and post the Read. Returns 0, or a negative errno for an RPC. */
static int nfr_client_optimistic_post(struct nfr_side_read *read, const struct nfr_segment *target)
{
	const struct xdr_buf *rcv = &read->req->rqst.rq_rcv_buf;
	struct nfr_conn *conn = &read->side->branch.conn;
	struct nfr_span span = {
		.pages = rcv->pages, .page_base = rcv->page_base, .page_len = target->length,
	};
	struct ib_rdma_wr wr = {
		.wr = { .wr_cqe = &read->cqe, .opcode = IB_WR_RDMA_READ, .sg_list = read->sges },
		.remote_addr = target->offset, .rkey = target->handle,
	};
	int rc;

	rc = nfr_mem_scatter_map(conn->device, conn->pd->local_dma_lkey, &span, target->length,
				 DMA_FROM_DEVICE, read->sges, conn->profile.send_sges);
	if (rc < 0)
		return rc;
	read->nsges = rc;
	wr.wr.num_sge = rc;
	read->req->generation = conn->generation;
	read->cqe.done = nfr_client_optimistic_done;
	/* from now on the Call's memory belongs to the device */
	smp_store_release(&read->req->state, NFR_REQ_SENT);
	spin_lock_bh(&conn->lock);
	rc = nfr_conn_post(conn, &wr.wr, &wr.wr, 1, true);
	spin_unlock_bh(&conn->lock);
	if (!rc)
		return 0;
	nfr_mem_scatter_unmap(conn->device, read->sges, read->nsges, DMA_FROM_DEVICE);
	if (rc != -EAGAIN)
		nfr_conn_break(conn, "posting an optimistic read failed");
	return rc;
}

/* Decide whether the sender may wait: nobody else does, and the last Reads were fast. */
static bool nfr_client_optimistic_may_spin(struct nfr_side *side)
{
	if (side->skip) {
		side->skip--;
		return false;
	}
	return !READ_ONCE(side->branch.of->nx->xprt.sending.qlen);
}

/* Poll until a Read is complete, for a short time. */
static void nfr_client_optimistic_spin(struct nfr_side_read *read)
{
	struct nfr_side *side = read->side;
	ktime_t end;

	nfr_conn_sends_poll(&side->branch.conn);
	if (READ_ONCE(read->status) != NFR_SIDE_POSTED || !nfr_client_optimistic_may_spin(side))
		return;
	end = ktime_add_us(ktime_get(), side->branch.conn.wanted.optimistic_spin_us);
	do {
		if (need_resched() || ktime_after(ktime_get(), end)) {
			side->skip = NFR_OPTIMISTIC_SKIP;
			return;
		}
		cpu_relax();
		nfr_conn_sends_poll(&side->branch.conn);
	} while (READ_ONCE(read->status) == NFR_SIDE_POSTED);
}

/* Wait for a Read, or leave it to a worker. Returns its status. */
static enum nfr_side_status nfr_client_optimistic_wait(struct nfr_side_read *read)
{
	struct nfr_side *side = read->side;
	struct nfr_optimist *optimist = nfr_client_optimist_of(side);
	enum nfr_side_status status;

	nfr_client_optimistic_spin(read);
	spin_lock(&optimist->branches.lock);
	status = read->status;
	if (status == NFR_SIDE_POSTED)
		read->polled = false;
	spin_unlock(&optimist->branches.lock);
	if (status != NFR_SIDE_POSTED)
		return status;
	if (nfr_conn_sends_arm(&side->branch.conn))
		nfr_client_side_poll(&side->branch.conn);
	return NFR_SIDE_POSTED;
}

/* Read from memory of the server. Returns -EMSGSIZE if the READ has to go by RPC. */
static int nfr_client_optimistic_send(struct nfr_req *req, const struct nfr_segment *target)
{
	struct nfr_side_read *read = req->read;

	if (nfr_client_optimistic_post(read, target)) {
		nfr_client_side_release(read, NFR_REQ_IDLE);
		return -EMSGSIZE;
	}
	switch (nfr_client_optimistic_wait(read)) {
	case NFR_SIDE_READ:
		nfr_client_optimistic_finish(read);
		return 0;
	case NFR_SIDE_REFUSED:
		nfr_client_side_release(read, NFR_REQ_IDLE);
		return -EMSGSIZE;
	default:
		return 0;
	}
}

/* See nfr_personality.marshal. @req holds a credit of @conn, which an RDMA Read does not need. */
static int nfr_client_optimistic_marshal(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_segment target;
	struct nfr_wanted wanted;
	int rc = -EMSGSIZE;

	if (!nfr_client_optimistic_wants(&req->rqst, &wanted))
		return nfr_client_marshal(conn, req);
	if (nfr_client_optimist_again(req))
		return -ENOBUFS;
	if (req->lost != be32_to_cpu(req->rqst.rq_xid) &&
	    nfr_client_side_take(conn, req, &wanted, &target)) {
		rc = nfr_client_optimistic_send(req, &target);
		nfr_client_branch_sent(&req->nx->optimist->branches);
	}
	if (rc == -EMSGSIZE) {
		/* the request belongs to no RDMA Read */
		req->generation = conn->generation;
		return nfr_client_marshal(conn, req);
	}
	nfr_conn_credit_back(conn);
	return 0;
}

const struct nfr_personality nfr_client_optimistic = {
	.marshal	= nfr_client_optimistic_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};
