// SPDX-License-Identifier: GPL-2.0-only
/*
 * The life of a branch: a worker connects it, another one ends it after it broke, and the end
 * of the first connection ends all branches. No failure of a branch breaks the first connection.
 *
 * The Calls that a branch has borrowed: how they return to their tasks, or to the first
 * connection. What the device may write to cannot be withdrawn: a branch whose Call is abandoned
 * or times out breaks, a worker ends its connection, and only then the Call's memory returns.
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client/branch.h"
#include "connection/cm.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "observe/trace.h"
#include "personality.h"
#include "work.h"

/* Upper limit for one step of connecting */
#define NFR_BRANCH_STEP_TIMEOUT	(5 * HZ)

/*
 * Delay after the end of a branch: the first is for a useful one, later ones grow to the last,
 * which follows a failed attempt, too
 */
#define NFR_BRANCH_AGAIN	(HZ / 100 ?: 1)
#define NFR_BRANCH_RETRY	(5 * HZ)

/* --- loans --- */

/**
 * nfr_client_loan_pin - pin the Call of a loan, to handle its Reply
 * @loan: loan
 *
 * Return: false if the task of the Call is ending.
 */
bool nfr_client_loan_pin(struct nfr_loan *loan)
{
	struct rpc_xprt *xprt = &loan->branch->of->nx->xprt;
	struct rpc_rqst *rqst = &loan->req->rqst;
	bool found;

	spin_lock(&xprt->queue_lock);
	found = xprt_lookup_rqst(xprt, rqst->rq_xid) == rqst;
	if (found)
		xprt_pin_rqst(rqst);
	spin_unlock(&xprt->queue_lock);
	return found;
}

/* End a loan. The owner of the Call may free it as soon as its state is not NFR_REQ_LENT. */
static void nfr_client_loan_end(struct nfr_loan *loan, enum nfr_req_state state)
{
	struct nfr_branches *of = loan->branch->of;
	struct nfr_req *req = loan->req;

	lockdep_assert_held(&of->lock);
	loan->req = NULL;
	req->loan = NULL;
	/* pairs with nfr_client_loan_abandon(), which takes the lock on NFR_REQ_LENT */
	smp_store_release(&req->state, state);
	of->kind->returned(loan, state);
}

/**
 * nfr_client_loan_return - return a Call that was answered, or not posted
 * @loan: loan, whose memory the device does not use any more
 * @state: new state of the Call; its owner may free it
 */
void nfr_client_loan_return(struct nfr_loan *loan, enum nfr_req_state state)
{
	struct nfr_branches *of = loan->branch->of;

	spin_lock(&of->lock);
	nfr_client_loan_end(loan, state);
	spin_unlock(&of->lock);
	if (wq_has_sleeper(&of->nx->detached))
		wake_up_all(&of->nx->detached);
}

/**
 * nfr_client_loan_lose - have sunrpc send a Call again, on the first connection
 * @loan: loan that failed, whose memory the device does not use any more
 */
void nfr_client_loan_lose(struct nfr_loan *loan)
{
	struct nfr_branches *of = loan->branch->of;
	struct rpc_rqst *rqst = &loan->req->rqst;
	struct rpc_xprt *xprt = &of->nx->xprt;

	spin_lock(&xprt->queue_lock);
	spin_lock(&of->lock);
	/* sunrpc encodes a Call anew if it was sent on an earlier connection */
	rqst->rq_connect_cookie = xprt->connect_cookie - 1;
	rpc_wake_up_queued_task(&xprt->pending, rqst->rq_task);
	nfr_client_loan_end(loan, NFR_REQ_LOST);
	spin_unlock(&of->lock);
	spin_unlock(&xprt->queue_lock);
	wake_up_all(&of->nx->detached);
}

static bool nfr_client_loan_is_over(const struct nfr_req *req)
{
	struct nfr_branches *of = req->nx->branches;
	bool over;

	spin_lock(&of->lock);
	over = !req->loan;
	spin_unlock(&of->lock);
	return over;
}

/* Break the branch that has borrowed a Call. Returns false if none has. Caller holds the lock. */
static bool nfr_client_loan_recall(struct nfr_req *req, const char *reason)
{
	lockdep_assert_held(&req->nx->branches->lock);
	if (req->loan)
		nfr_conn_break(&req->loan->branch->conn, reason);
	return req->loan;
}

/**
 * nfr_client_loan_abandon - take back the memory of a Call whose task ends
 * @req: request without a Reply, of a transport with branches
 *
 * Context: Sleeps until the branch has returned the Call.
 *
 * Return: false if no branch has borrowed the Call.
 */
bool nfr_client_loan_abandon(struct nfr_req *req)
{
	struct nfr_branches *of = req->nx->branches;

	if (nfr_client_loan_is_over(req))
		return false;
	if (wait_event_timeout(of->nx->detached, nfr_client_loan_is_over(req), of->kind->patience))
		return true;
	spin_lock(&of->lock);
	nfr_client_loan_recall(req, "a Call was abandoned");
	spin_unlock(&of->lock);
	wait_event(of->nx->detached, nfr_client_loan_is_over(req));
	return true;
}

/**
 * nfr_client_loan_timeout - handle the timeout of a Call
 * @nx: transport with branches
 * @task: task of the Call, in a callback; sleeps until the branch is drained
 *
 * Context: Does not sleep.
 *
 * Return: false if no branch has borrowed the Call.
 */
bool nfr_client_loan_timeout(struct nfr_xprt *nx, struct rpc_task *task)
{
	struct nfr_branches *of = nx->branches;
	bool lent;

	spin_lock(&of->lock);
	lent = nfr_client_loan_recall(nfr_client_req_of(task->tk_rqstp),
				      "a reply did not come in time");
	/* nfr_client_branch_stop() wakes it after the branch has returned the Call */
	if (lent)
		rpc_sleep_on(&of->waiting, task, NULL);
	spin_unlock(&of->lock);
	return lent;
}

/**
 * nfr_client_loan_retransmit - break the branch that has a Call which sunrpc sends again
 * @req: request; the caller has locked the transport, and tested nfr_req.loan
 *
 * Return: true if the Call counts as sent: its branch loses it. An error would make other Calls
 * wait.
 */
bool nfr_client_loan_retransmit(struct nfr_req *req)
{
	struct nfr_branches *of = req->nx->branches;
	bool lent;

	spin_lock(&of->lock);
	lent = nfr_client_loan_recall(req, "a Call has to be retransmitted");
	if (lent) {
		/* nfr_client_req_begin() changed both */
		req->generation = req->loan->branch->conn.generation;
		req->state = NFR_REQ_LENT;
	}
	spin_unlock(&of->lock);
	return lent;
}

/* --- connecting --- */

static void nfr_client_branch_schedule_end(struct nfr_branch *branch)
{
	if (!test_and_set_bit(NFR_BRANCH_ENDS, &branch->flags))
		queue_work(nfr_work_slow, &branch->end_work);
}

/**
 * nfr_client_branch_broken - see nfr_conn_ops.broken
 * @conn: connection of a branch
 */
void nfr_client_branch_broken(struct nfr_conn *conn)
{
	nfr_client_branch_schedule_end(conn->owner);
}

/**
 * nfr_client_branch_writable - see nfr_conn_ops.writable; no Call waits for room on a branch
 * @conn: connection of a branch
 */
void nfr_client_branch_writable(struct nfr_conn *conn)
{
}

static int nfr_client_branch_fit(struct nfr_branch *branch)
{
	const struct nfr_xprt *nx = branch->of->nx;
	struct nfr_conn *conn = &branch->conn;
	int rc = nfr_conn_fit_queue(conn, 1);

	conn->profile.private = (struct nfr_private) {
		.extended = true, .token = nx->token,
		.capabilities = nfr_personality_bit(nx->personality->number) | NFR_LANE,
	};
	return rc ?: branch->of->kind->fit(branch);
}

static int nfr_client_branch_map(struct nfr_branch *branch)
{
	struct ib_device *device = branch->conn.device;
	size_t size = branch->of->kind->buffer;
	void *buffer;

	buffer = kmalloc_node(size, NFR_GFP_RETRIED, ibdev_to_node(device));
	if (!buffer)
		return -ENOMEM;
	branch->addr = ib_dma_map_single(device, buffer, size, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(device, branch->addr)) {
		kfree(buffer);
		return -ENOBUFS;
	}
	branch->buffer = buffer;
	return 0;
}

/* The server returns the capabilities that it accepts. */
static int nfr_client_branch_agree(struct nfr_branch *branch)
{
	u32 asked = nfr_personality_bit(branch->of->nx->personality->number) | NFR_LANE;

	if ((branch->conn.peer.capabilities & asked) != asked)
		return nfr_conn_unfit(&branch->conn, "the server accepts no branch");
	return branch->of->kind->agree(branch);
}

static int nfr_client_branch_open(struct nfr_branch *branch)
{
	struct rpc_xprt *xprt = &branch->of->nx->xprt;
	struct nfr_conn *conn = &branch->conn;
	int rc;

	rc = nfr_conn_resolve(conn, xprt->xprt_net, (struct sockaddr *)&xprt->addr,
			      xprt->resvport);
	rc = rc ?: nfr_client_branch_fit(branch);
	rc = rc ?: nfr_client_branch_map(branch);
	rc = rc ?: nfr_conn_queues_create(conn);
	rc = rc ?: nfr_conn_connect(conn);
	return rc ?: nfr_client_branch_agree(branch);
}

static void nfr_client_branch_open_work(struct work_struct *work)
{
	struct nfr_branch *branch = container_of(work, struct nfr_branch, open_work);
	struct nfr_branches *of = branch->of;
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();
	int rc;

	rc = nfr_client_branch_open(branch);
	trace_nfsrdma_lane(&branch->conn, branch->units, rc);
	spin_lock(&of->lock);
	if (rc)
		of->retry_at = jiffies + NFR_BRANCH_RETRY;
	else
		of->kind->opened(branch);
	spin_unlock(&of->lock);
	if (rc)
		nfr_client_branch_schedule_end(branch);
	memalloc_noio_restore(noio);
}

/* --- the end --- */

/* A server may end each branch at once: connect less often then. */
static void nfr_client_branch_delay_next(struct nfr_branch *branch)
{
	struct nfr_branches *of = branch->of;

	spin_lock(&of->lock);
	if (branch->useful || !of->delay)
		of->delay = NFR_BRANCH_AGAIN;
	if (time_before(of->retry_at, jiffies + of->delay))
		of->retry_at = jiffies + of->delay;
	of->delay = min_t(unsigned long, 2 * of->delay, NFR_BRANCH_RETRY);
	spin_unlock(&of->lock);
}

/* Drain a claimed branch, and return the memory of its Calls. */
static void nfr_client_branch_stop(struct nfr_branch *branch)
{
	struct nfr_branches *of = branch->of;
	struct nfr_conn *conn = &branch->conn;

	/*
	 * A sender that took the branch before it broke still posts to it. Pairs with
	 * nfr_client_loan_posted().
	 */
	wait_event(of->nx->detached, smp_load_acquire(&of->sending) != branch);
	nfr_conn_drain(conn);
	/* the device may write to the memory of Calls until then */
	nfr_conn_end(conn);
	of->kind->ended(branch);
	nfr_client_branch_delay_next(branch);
	/* a task whose branch has not ended tries again */
	rpc_wake_up(&of->waiting);
	wake_up_all(&of->nx->detached);
	if (branch->buffer)
		ib_dma_unmap_single(conn->device, branch->addr, of->kind->buffer,
				    DMA_BIDIRECTIONAL);
	nfr_conn_free(conn);
}

/* Free a stopped branch. Nothing refers to the transport afterwards. */
static void nfr_client_branch_free(struct nfr_branch *branch)
{
	struct nfr_branches *of = branch->of;

	kfree(branch->buffer);
	kvfree(branch);
	spin_lock(&of->lock);
	of->count--;
	wake_up_all(&of->nx->detached);
	spin_unlock(&of->lock);
}

/* Take a branch from the list, which entitles the caller to end it. */
static bool nfr_client_branch_claim(struct nfr_branch *branch)
{
	bool claimed;

	spin_lock(&branch->of->lock);
	claimed = !list_empty(&branch->list);
	list_del_init(&branch->list);
	spin_unlock(&branch->of->lock);
	return claimed;
}

static void nfr_client_branch_end_work(struct work_struct *work)
{
	struct nfr_branch *branch = container_of(work, struct nfr_branch, end_work);
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();

	cancel_work_sync(&branch->open_work);
	if (nfr_client_branch_claim(branch)) {
		nfr_client_branch_stop(branch);
		nfr_client_branch_free(branch);
	}
	memalloc_noio_restore(noio);
}

/* Break all branches, also those that are connecting. */
static void nfr_client_branches_break(struct nfr_branches *of)
{
	struct nfr_branch *branch;

	spin_lock(&of->lock);
	list_for_each_entry(branch, &of->list, list)
		nfr_conn_break(&branch->conn, "the transport closes");
	spin_unlock(&of->lock);
}

static struct nfr_branch *nfr_client_branches_claim_first(struct nfr_branches *of)
{
	struct nfr_branch *branch;

	spin_lock(&of->lock);
	branch = list_first_entry_or_null(&of->list, struct nfr_branch, list);
	if (branch)
		list_del_init(&branch->list);
	spin_unlock(&of->lock);
	return branch;
}

static bool nfr_client_branches_are_gone(struct nfr_branches *of)
{
	bool gone;

	spin_lock(&of->lock);
	gone = !of->count;
	spin_unlock(&of->lock);
	return gone;
}

/**
 * nfr_client_branches_close - end all branches
 * @of: branches of a transport that is locked, so that no Call starts another one
 *
 * When this function returns, no branch works for a Call.
 *
 * Context: Sleeps.
 */
void nfr_client_branches_close(struct nfr_branches *of)
{
	struct nfr_branch *branch;

	nfr_client_branches_break(of);
	while ((branch = nfr_client_branches_claim_first(of))) {
		cancel_work_sync(&branch->open_work);
		nfr_client_branch_stop(branch);
		/* it finds that this context ends the branch; nothing queues it again */
		cancel_work_sync(&branch->end_work);
		nfr_client_branch_free(branch);
	}
	/* those that a worker ends */
	wait_event(of->nx->detached, nfr_client_branches_are_gone(of));
	of->retry_at = jiffies;
	of->delay = 0;
}

/* --- creation --- */

static struct nfr_branch *nfr_client_branch_alloc(struct nfr_branches *of,
						  const struct nfr_conn *first)
{
	const struct nfr_branch_kind *kind = of->kind;
	struct nfr_branch *branch = kvzalloc(kind->size, NFR_GFP_RETRIED);
	struct nfr_conn *conn;

	if (!branch)
		return NULL;
	branch->of = of;
	INIT_WORK(&branch->open_work, nfr_client_branch_open_work);
	INIT_WORK(&branch->end_work, nfr_client_branch_end_work);
	conn = &branch->conn;
	conn->owner = branch;
	conn->ops = &kind->ops;
	conn->id_number = first->id_number;
	conn->generation = ++of->nx->generation;
	conn->step_timeout = min_t(unsigned long, first->step_timeout, NFR_BRANCH_STEP_TIMEOUT);
	conn->wanted = first->wanted;
	conn->wanted.inline_send = kind->inline_size;
	conn->wanted.inline_recv = kind->inline_size;
	conn->wanted.credits = kind->credits;
	kind->init(branch);
	nfr_conn_init(conn);
	return branch;
}

/**
 * nfr_client_branch_add - connect one more branch
 * @of: branches of a transport
 * @first: connection of the transport, which the caller has locked
 */
void nfr_client_branch_add(struct nfr_branches *of, const struct nfr_conn *first)
{
	struct nfr_branch *branch = nfr_client_branch_alloc(of, first);

	if (!branch)
		return;
	spin_lock(&of->lock);
	list_add_tail(&branch->list, &of->list);
	of->count++;
	spin_unlock(&of->lock);
	queue_work(nfr_work_slow, &branch->open_work);
}

/**
 * nfr_client_branches_init - initialize the branches of a transport, none of which connects yet
 * @of: zeroed structure
 * @nx: transport, which gets them
 * @kind: kind of its branches
 */
void nfr_client_branches_init(struct nfr_branches *of, struct nfr_xprt *nx,
			      const struct nfr_branch_kind *kind)
{
	of->kind = kind;
	of->nx = nx;
	spin_lock_init(&of->lock);
	INIT_LIST_HEAD(&of->list);
	of->retry_at = jiffies;
	rpc_init_wait_queue(&of->waiting, "nfsrdma branches");
	nx->branches = of;
}

/**
 * nfr_client_branches_destroy - undo nfr_client_branches_init(), and free the branches
 * @of: branches of a closed transport, or NULL
 */
void nfr_client_branches_destroy(struct nfr_branches *of)
{
	if (!of)
		return;
	rpc_destroy_wait_queue(&of->waiting);
	of->kind->destroy(of);
}

/**
 * nfr_client_branches_show - print the state of the branches
 * @of: branches of a transport
 * @seq: file connection in debugfs
 */
void nfr_client_branches_show(struct nfr_branches *of, struct seq_file *seq)
{
	of->kind->show(of, seq);
}
