// SPDX-License-Identifier: GPL-2.0-only
/*
 * Optimistic reads of a transport: which READ gets an RDMA Read, how a Call and its Read
 * part, and Calls that end early. side.c has the connection of the Reads.
 */
#include <linux/slab.h>

#include "client/optimistic.h"
#include "connection/state.h"

/* Time for a Read to complete after its task ended, before the connection breaks */
#define NFR_SIDE_ABANDON	HZ

/* --- Reads --- */

/* End the relation of a Read and its Call. Caller holds the lock. */
static void nfr_client_side_detach(struct nfr_side_read *read, enum nfr_req_state state)
{
	struct nfr_req *req = read->req;

	read->req = NULL;
	req->read = NULL;
	/* pairs with nfr_client_optimist_abandon(), which takes the lock on NFR_REQ_SENT */
	smp_store_release(&req->state, state);
	list_move(&read->list, &read->side->free);
}

/**
 * nfr_client_side_release - end the relation of a Read and its Call
 * @read: Read that the device has completed, or that was not posted
 * @state: new state of the Call; its owner may free it if that is not NFR_REQ_SENT
 */
void nfr_client_side_release(struct nfr_side_read *read, enum nfr_req_state state)
{
	struct nfr_xprt *nx = read->side->branch.of->nx;

	spin_lock(&nx->optimist->branches.lock);
	if (state == NFR_REQ_ANSWERED) {
		nx->counters.optimistic_reads++;
		nx->counters.optimistic_bytes += read->count;
		nx->counters.optimistic_polled += read->polled;
	}
	nfr_client_side_detach(read, state);
	spin_unlock(&nx->optimist->branches.lock);
	if (wq_has_sleeper(&nx->detached))
		wake_up_all(&nx->detached);
}

/**
 * nfr_client_side_resend - have sunrpc send a Call by RPC
 * @read: failed Read
 */
void nfr_client_side_resend(struct nfr_side_read *read)
{
	struct nfr_xprt *nx = read->side->branch.of->nx;

	spin_lock(&nx->xprt.queue_lock);
	spin_lock(&nx->optimist->branches.lock);
	nfr_client_resend(read->req);
	nfr_client_side_detach(read, NFR_REQ_IDLE);
	spin_unlock(&nx->optimist->branches.lock);
	spin_unlock(&nx->xprt.queue_lock);
	wake_up_all(&nx->detached);
}

/* --- Calls that end early --- */

static bool nfr_client_side_has_left(struct nfr_req *req)
{
	struct nfr_optimist *optimist = req->nx->optimist;
	bool left;

	spin_lock(&optimist->branches.lock);
	left = !req->read;
	spin_unlock(&optimist->branches.lock);
	return left;
}

/* Break the connection that reads for a Call. Returns false if none does. Caller holds the lock. */
static bool nfr_client_side_break(struct nfr_req *req, const char *why)
{
	if (!req->read)
		return false;
	nfr_conn_break(&req->read->side->branch.conn, why);
	return true;
}

/**
 * nfr_client_optimist_abandon - take back the memory of a Call whose task ends
 * @req: request without a Reply
 *
 * Context: Sleeps until the Read is complete.
 *
 * Return: false if no Read belongs to the Call.
 */
bool nfr_client_optimist_abandon(struct nfr_req *req)
{
	struct nfr_optimist *optimist = req->nx->optimist;

	if (nfr_client_side_has_left(req))
		return false;
	if (wait_event_timeout(req->nx->detached, nfr_client_side_has_left(req), NFR_SIDE_ABANDON))
		return true;
	spin_lock(&optimist->branches.lock);
	nfr_client_side_break(req, "an optimistic read was abandoned");
	spin_unlock(&optimist->branches.lock);
	wait_event(req->nx->detached, nfr_client_side_has_left(req));
	return true;
}

/**
 * nfr_client_optimist_timeout - handle the timeout of a Call
 * @nx: transport
 * @task: task of the Call, in a callback; sleeps until the connection is drained
 *
 * Context: Does not sleep.
 *
 * Return: false if no Read belongs to the Call.
 */
bool nfr_client_optimist_timeout(struct nfr_xprt *nx, struct rpc_task *task)
{
	struct nfr_req *req = nfr_client_req_of(task->tk_rqstp);
	bool broken;

	spin_lock(&nx->optimist->branches.lock);
	broken = nfr_client_side_break(req, "an optimistic read did not complete in time");
	/* nfr_client_branch_stop() wakes the task after the last Read has left its Call */
	if (broken)
		rpc_sleep_on(&nx->optimist->branches.waiting, task, NULL);
	spin_unlock(&nx->optimist->branches.lock);
	return broken;
}

/**
 * nfr_client_optimist_again - break the connection that still reads for a Call
 * @req: READ that sunrpc sends again; the caller has locked the transport
 *
 * Return: true if there is such a connection: the device may write to the memory of the Call.
 */
bool nfr_client_optimist_again(struct nfr_req *req)
{
	struct nfr_optimist *optimist = req->nx->optimist;
	bool reads;

	spin_lock(&optimist->branches.lock);
	reads = nfr_client_side_break(req, "a Call has to be retransmitted");
	if (reads) {
		/* nfr_client_send_call() reset both */
		req->state = NFR_REQ_SENT;
		req->generation = req->read->side->branch.conn.generation;
	}
	spin_unlock(&optimist->branches.lock);
	return reads;
}

/* --- life --- */

/* Check for a connected one, and for an element for each page: a longer READ goes by RPC. */
static bool nfr_client_side_suits(const struct nfr_side *side, const struct nfr_wanted *wanted,
				  u32 length)
{
	return side && nfr_conn_is_up(&side->branch.conn) &&
	       PFN_UP(wanted->offset + length) <= side->branch.conn.profile.send_sges;
}

/**
 * nfr_client_side_take - find memory of the server for a READ, and an RDMA Read
 * @conn: connection of the transport, which the caller has locked
 * @req: READ; gets @read
 * @wanted: what it asks for
 * @target: output, memory of the server
 *
 * If the transport has no second connection, it connects, for READs to come.
 *
 * Return: false if the READ has to go by RPC.
 */
bool nfr_client_side_take(struct nfr_conn *conn, struct nfr_req *req,
			  const struct nfr_wanted *wanted, struct nfr_segment *target)
{
	struct nfr_optimist *optimist = req->nx->optimist;
	struct nfr_side_read *read = NULL;
	struct nfr_side *side;
	bool add, eof, paused, found;

	spin_lock(&optimist->branches.lock);
	side = optimist->side;
	paused = time_before(jiffies, optimist->paused_until);
	add = !paused && nfr_client_branches_may_add(&optimist->branches, 1);
	/* also without a connection: the grant for this READ may come on the next one */
	found = nfr_client_reference_find(&optimist->references, wanted, target, &eof);
	if (found && wanted->measured && !paused &&
	    nfr_client_side_suits(side, wanted, target->length))
		read = list_first_entry_or_null(&side->free, struct nfr_side_read, list);
	if (read) {
		list_move_tail(&read->list, &side->busy);
		read->req = req;
		read->status = NFR_SIDE_POSTED;
		read->polled = true;
		read->handle = target->handle;
		read->count = target->length;
		read->eof = eof;
		req->read = read;
		WRITE_ONCE(optimist->branches.sending, &side->branch);
		optimist->tried++;
	} else {
		req->nx->counters.optimistic_misses++;
	}
	spin_unlock(&optimist->branches.lock);
	if (add)
		nfr_client_branch_add(&optimist->branches, conn);
	return read;
}

/**
 * nfr_client_optimist_create - allocate what the optimistic reads of a transport need
 * @nx: transport
 *
 * Return: structure, or NULL if the allocation failed.
 */
struct nfr_optimist *nfr_client_optimist_create(struct nfr_xprt *nx)
{
	struct nfr_optimist *optimist = kvzalloc(sizeof(*optimist), GFP_KERNEL);

	if (!optimist)
		return NULL;
	nfr_client_branches_init(&optimist->branches, nx, &nfr_client_side_kind);
	optimist->paused_until = jiffies;
	nfr_client_references_init(&optimist->references, nx->token);
	return optimist;
}

/**
 * nfr_client_optimist_destroy - undo nfr_client_optimist_create()
 * @optimist: structure of a closed transport, or NULL
 */
void nfr_client_optimist_destroy(struct nfr_optimist *optimist)
{
	if (!optimist)
		return;
	nfr_client_branches_destroy(&optimist->branches);
	nfr_client_references_destroy(&optimist->references);
	kvfree(optimist);
}

/**
 * nfr_client_optimist_show - print the state of optimistic reads
 * @nx: transport
 * @seq: file connection in debugfs
 */
void nfr_client_optimist_show(struct nfr_xprt *nx, struct seq_file *seq)
{
	struct nfr_optimist *optimist = nx->optimist;
	bool up;

	spin_lock(&optimist->branches.lock);
	up = optimist->side;
	spin_unlock(&optimist->branches.lock);
	seq_printf(seq, "optimistic_connection %s\n", up ? "yes" : "no");
	seq_printf(seq, "optimistic_paused %s\n",
		   time_before(jiffies, READ_ONCE(optimist->paused_until)) ? "yes" : "no");
	seq_printf(seq, "references %u\n", READ_ONCE(optimist->references.count));
}
