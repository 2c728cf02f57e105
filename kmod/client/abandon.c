// SPDX-License-Identifier: GPL-2.0-only
/*
 * Calls whose task ends without a Reply: a signal, or a soft timeout. The server knows nothing
 * of that. It still reads the memory that the Call offers, writes to it, and invalidates an MR
 * with its Reply. If the client invalidated the MRs first, these would fail, and the connection
 * of all tasks would break with them. A user who kills ls in a loop would do so without end.
 *
 * Therefore the memory changes its owner where it can. The slot of the Call, with send buffers,
 * reply buffer and MRs, belongs to the transport until the Reply comes, or until the connection
 * is closed: NFR_REQ_ABANDONED. The task goes on at once. A slot that the transport keeps is not
 * available to other tasks; neither is the credit of its Call. That bounds what is kept. If the
 * server omits the Reply, NFR_ABANDONED_TIMEOUT ends the connection.
 *
 * The pages of the Reply are the caller's. The transport takes references to them if the caller
 * gives them up with the Call, which the procedure tells: READDIR and GETACL allocate pages, decode
 * what arrives in them, and free them. Nobody sees what arrives later. Other pages stay with the
 * task, which waits for the Reply for a while, and then invalidates the MRs:
 *
 *  - Pages of the page cache (READ, READLINK) and of a process (O_DIRECT) have another use as soon
 *    as the task is gone. A late RDMA Write would overwrite newer data. A reference would not
 *    help, because it keeps the page and not its content.
 *  - Data of the Call (Read chunks: WRITE, SYMLINK, and long Calls, of which a WRITE is one with
 *    krb5p). The server reads the data late. From a page of the page cache it would read newer
 *    data of the file, in the order of another WRITE; from a page of a process, something that
 *    its owner meant for nobody.
 *  - Memory that the cache keeps registered (personality cached): that is memory of a process. A
 *    slot of the cache is the transport's own in any case, so it is kept.
 *
 * Calls of a branch (personalities pre-posted and optimistic) have other rules, see branch.c. A
 * Reply of 2003 that the client reads is pinned until the RDMA Reads are complete.
 *
 * A Reply may come after sunrpc has dequeued the task and before this file records the Call. Then
 * nfr_conn_abandon() returns it, with the key that the server has invalidated.
 */
#include <linux/mm.h>
#include <linux/nfs.h>
#include <linux/nfs3.h>
#include <linux/nfs4.h>
#include <linux/nfsacl.h>
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client/client.h"
#include "client/slots.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "memory/memory.h"

/* Time for the Reply to a Call whose memory cannot be kept */
#define NFR_ABANDON_PATIENCE	HZ

/* Maximum duration of an invalidation before the connection is broken */
#define NFR_RECALL_TIMEOUT	(10 * HZ)

/* --- pages that nobody else will see --- */

static bool nfr_client_abandon_is_private_v4(u32 procedure)
{
	switch (procedure) {
	case NFSPROC4_CLNT_READDIR:
	case NFSPROC4_CLNT_GETACL:
	case NFSPROC4_CLNT_GETXATTR:
	case NFSPROC4_CLNT_LISTXATTRS:
		return true;
	default:
		return false;
	}
}

/* Check whether the caller of a procedure allocates the pages of its Reply, and then frees them. */
static bool nfr_client_abandon_is_private(const struct rpc_task *task)
{
	const struct rpc_procinfo *proc = task->tk_msg.rpc_proc;
	const struct rpc_clnt *clnt = task->tk_client;

	if (!proc || !clnt)
		return false;
	if (clnt->cl_prog == NFS_ACL_PROGRAM)
		return clnt->cl_vers == 3 && proc->p_proc == ACLPROC3_GETACL;
	if (clnt->cl_prog != NFS_PROGRAM)
		return false;
	if (clnt->cl_vers == 3)
		return proc->p_proc == NFS3PROC_READDIR || proc->p_proc == NFS3PROC_READDIRPLUS;
	/* the client numbers its compounds */
	return clnt->cl_vers == 4 && proc->p_proc == NFSPROC4_COMPOUND &&
	       nfr_client_abandon_is_private_v4(proc->p_statidx);
}

/*
 * Take references to the pages of the Reply, if nobody else will see them. After a signal, the
 * caller does not use them for another attempt.
 */
static void nfr_client_abandon_hold(struct nfr_req *req)
{
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	const struct rpc_task *task = req->rqst.rq_task;
	u32 i, count = DIV_ROUND_UP(offset_in_page(rcv->page_base) + rcv->page_len, PAGE_SIZE);
	struct page **pages;

	if (!rcv->page_len || !RPC_SIGNALLED(task) || !nfr_client_abandon_is_private(task))
		return;
	/* without memory for the array, the task waits */
	pages = kmalloc_array(count, sizeof(*pages), NFR_GFP_RETRIED);
	if (!pages)
		return;
	for (i = 0; i < count; i++) {
		pages[i] = rcv->pages[(rcv->page_base >> PAGE_SHIFT) + i];
		get_page(pages[i]);
	}
	req->pages = pages;
	req->npages = count;
}

static void nfr_client_abandon_put(struct nfr_req *req)
{
	u32 i;

	for (i = 0; i < req->npages; i++)
		put_page(req->pages[i]);
	kfree(req->pages);
	req->pages = NULL;
	req->npages = 0;
}

/* Check for memory that belongs to a reply buffer. An empty one does. */
static bool nfr_client_abandon_is_own(const struct nfr_req *req, const struct kvec *vec)
{
	return !vec->iov_len || (vec->iov_base >= req->reply &&
				 vec->iov_base + vec->iov_len <= req->reply + req->reply_size);
}

/* Check whether the transport can keep all memory that a Call offers. Caller holds the mutex. */
static bool nfr_client_abandon_is_kept(const struct nfr_req *req)
{
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	const struct nfr_mr *mr;

	list_for_each_entry(mr, &req->exposure.mrs, list)
		if (mr->direction != DMA_FROM_DEVICE)
			return false;
	if (!req->exposure.count || req->exposure.slot)
		return true;
	return nfr_client_abandon_is_own(req, &rcv->head[0]) &&
	       nfr_client_abandon_is_own(req, &rcv->tail[0]) && (!rcv->page_len || req->npages);
}

/* --- the Reply --- */

/* Give up what the transport kept for a Call. The peer cannot access it any more. */
static void nfr_client_abandon_release(struct nfr_req *req)
{
	nfr_client_abandon_put(req);
	nfr_client_large_free(req);
	nfr_client_slot_return(req);
}

/* The MRs of an abandoned Call are invalid; or, without @ok, the connection is broken. */
static void nfr_client_abandon_end(struct nfr_req *req, bool ok)
{
	/* a task waits: it keeps the state */
	if (READ_ONCE(req->state) == NFR_REQ_SENT) {
		req->inv_ok = ok;
		complete(&req->inv_done);
	} else if (ok) {
		nfr_client_abandon_release(req);
	}
	/* otherwise nfr_client_abandon_close() releases it */
}

static void nfr_client_abandon_inv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_req *req = container_of(wc->wr_cqe, struct nfr_req, inv_cqe);
	struct nfr_conn *conn = cq->cq_context;
	bool ok = nfr_conn_check(conn, wc);

	if (ok)
		nfr_mem_release(&req->exposure);
	nfr_client_abandon_end(req, ok);
	conn->ops->writable(conn);
}

/* Return the room that was reserved for invalidations and is not needed. */
static void nfr_client_abandon_unreserve(struct nfr_conn *conn, u32 count)
{
	spin_lock_bh(&conn->lock);
	conn->sq.reserved -= count;
	spin_unlock_bh(&conn->lock);
}

/**
 * nfr_client_abandon_answered - end an abandoned Call, whose Reply came
 * @conn: connection
 * @req: request that nfr_conn_abandoned_reply() returned
 * @reply: Reply
 *
 * The server writes no more. What it did not invalidate, this side does.
 *
 * Context: Completion handler, or a task that holds the mutex of the transport.
 */
void nfr_client_abandon_answered(struct nfr_conn *conn, struct nfr_req *req,
				 const struct nfr_late_reply *reply)
{
	bool invalidated = reply->has_invalidated &&
			   nfr_mem_invalidated(&req->exposure, reply->invalidated);

	if (reply->has_invalidated && !invalidated)
		nfr_conn_break(conn, "the peer invalidated an unrelated MR");
	nfr_client_abandon_unreserve(conn, req->exposure.kept + invalidated);
	if (nfr_mem_settle(&req->exposure)) {
		nfr_client_abandon_end(req, true);
		return;
	}
	req->nx->counters.local_invs++;
	req->inv_cqe.done = nfr_client_abandon_inv_done;
	if (nfr_client_revoke(conn, &req->exposure, &req->inv_cqe))
		nfr_client_abandon_end(req, false);
}

/* --- a task ends --- */

/*
 * Record the Call, so that its Reply ends it. If the Reply came before, end the Call now. With the
 * state NFR_REQ_ABANDONED, the request belongs to the transport as soon as it is recorded. Caller
 * holds the mutex.
 */
static void nfr_client_abandon_record(struct nfr_req *req, struct nfr_conn *conn)
{
	struct nfr_late_reply early;

	if (!nfr_conn_abandon(conn, be32_to_cpu(req->rqst.rq_xid), req, &early))
		nfr_client_abandon_answered(conn, req, &early);
}

/* Invalidate the MRs that the peer can access. Returns false if the connection is broken. */
static bool nfr_client_abandon_recall(struct nfr_req *req, struct nfr_conn *conn)
{
	init_completion(&req->inv_done);
	nfr_mem_forget(&req->exposure);
	req->inv_ok = nfr_mem_settle(&req->exposure);
	if (req->inv_ok) {
		complete(&req->inv_done);
		return true;
	}
	req->inv_cqe.done = nfr_client_abandon_inv_done;
	return !nfr_client_revoke(conn, &req->exposure, &req->inv_cqe);
}

/* Returns the connection that has the Call and works, or NULL. Caller holds the mutex. */
static struct nfr_conn *nfr_client_abandon_conn(struct nfr_req *req)
{
	struct nfr_conn *conn = nfr_client_xprt_conn(req->nx);

	return conn && conn->generation == req->generation && nfr_conn_is_up(conn) ? conn : NULL;
}

/* Ways to treat the memory of a Call whose task ends */
enum nfr_client_abandon_way {
	NFR_ABANDON_KEPT,	/* the transport keeps it, and the request */
	NFR_ABANDON_DUE,	/* the task waits for the Reply */
	NFR_ABANDON_BROKEN,	/* the task waits until the connection is closed */
};

static enum nfr_client_abandon_way nfr_client_abandon_leave(struct nfr_req *req)
{
	enum nfr_client_abandon_way way = NFR_ABANDON_BROKEN;
	struct nfr_xprt *nx = req->nx;
	struct nfr_conn *conn;

	init_completion(&req->inv_done);
	nfr_client_abandon_hold(req);
	mutex_lock(&nx->mutex);
	conn = nfr_client_abandon_conn(req);
	if (conn && req->state == NFR_REQ_SENT)
		way = nfr_client_abandon_is_kept(req) ? NFR_ABANDON_KEPT : NFR_ABANDON_DUE;
	if (way == NFR_ABANDON_KEPT) {
		nfr_client_req_abandoned(req);
		nx->counters.calls_kept++;
	} else {
		nfr_client_abandon_put(req);
	}
	if (way != NFR_ABANDON_BROKEN)
		nfr_client_abandon_record(req, conn);
	mutex_unlock(&nx->mutex);
	return way;
}

/* The Reply did not come: invalidate the MRs. Returns false if the connection is broken. */
static bool nfr_client_abandon_withdraw(struct nfr_req *req)
{
	struct nfr_conn *conn;
	bool posted = false;

	mutex_lock(&req->nx->mutex);
	conn = nfr_client_abandon_conn(req);
	/* if a Reply comes right now, its handler invalidates them */
	if (conn)
		posted = !nfr_conn_abandoned_forget(conn, req) ||
			 nfr_client_abandon_recall(req, conn);
	/* the end of the connection ends the wait if the device does not */
	req->inv_waits = posted;
	mutex_unlock(&req->nx->mutex);
	return posted;
}

/*
 * Wait until the peer cannot access the memory of a Call that its task keeps. Returns false if only
 * the end of the connection shows that.
 *
 * The function must not hold a lock while it waits for the device, because
 * closing the connection may be what ends the wait. If the peer does not
 * acknowledge, the invalidation stays in the send queue until the device gives
 * up; breaking the connection flushes it.
 */
static bool nfr_client_abandon_wait(struct nfr_req *req)
{
	if (wait_for_completion_timeout(&req->inv_done, NFR_ABANDON_PATIENCE))
		return req->inv_ok;
	if (!nfr_client_abandon_withdraw(req))
		return false;
	if (!wait_for_completion_timeout(&req->inv_done, NFR_RECALL_TIMEOUT)) {
		nfr_client_disconnect(req->nx, req->generation, "an invalidation timed out");
		wait_for_completion(&req->inv_done);
	}
	mutex_lock(&req->nx->mutex);
	req->inv_waits = false;
	mutex_unlock(&req->nx->mutex);
	return req->inv_ok;
}

/* The task ends without a Reply. Returns true if the transport keeps the request. */
static bool nfr_client_abandon(struct nfr_req *req)
{
	struct nfr_xprt *nx = req->nx;
	u32 generation = req->generation;

	if (nx->branches && nfr_client_loan_abandon(req))
		return false;
	switch (nfr_client_abandon_leave(req)) {
	case NFR_ABANDON_KEPT:
		return true;
	case NFR_ABANDON_DUE:
		if (!nfr_client_abandon_wait(req))
			nfr_client_wait_closed(nx, generation);
		break;
	case NFR_ABANDON_BROKEN:
		/* a Call that was not sent has MRs only if its connection broke */
		nfr_client_disconnect(nx, generation, "a Call was not sent");
		nfr_client_wait_closed(nx, generation);
		break;
	}
	return false;
}

/**
 * nfr_client_buf_free - release the buffers of a Call and its Reply
 * @task: task, for which no Reply is being handled any more
 *
 * When this function returns, the peer cannot access memory of the caller. It may
 * still access what the transport keeps.
 *
 * Context: May sleep.
 */
void nfr_client_buf_free(struct rpc_task *task)
{
	struct nfr_req *req = nfr_client_req_of(task->tk_rqstp);

	if ((req->state >= NFR_REQ_SENT || nfr_mem_is_exposed(&req->exposure)) &&
	    nfr_client_abandon(req))
		return;
	nfr_client_req_end(req);
	nfr_client_large_free(req);
}

/**
 * nfr_client_abandon_close - release what the transport keeps, when a connection is closed
 * @nx: transport; the caller holds its mutex
 *
 * The connection has ended, and no request has MRs any more.
 */
void nfr_client_abandon_close(struct nfr_xprt *nx)
{
	struct nfr_req *req;
	bool kept;

	spin_lock(&nx->xprt.reserve_lock);
	list_for_each_entry(req, &nx->reqs, all) {
		kept = req->state == NFR_REQ_ABANDONED || req->state == NFR_REQ_LEFT;
		spin_unlock(&nx->xprt.reserve_lock);
		if (kept)
			nfr_client_abandon_release(req);
		spin_lock(&nx->xprt.reserve_lock);
	}
	spin_unlock(&nx->xprt.reserve_lock);
}
