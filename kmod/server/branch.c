// SPDX-License-Identifier: GPL-2.0-only
/*
 * Branches: connections of a client beside its first one. A lane (personality pre-posted)
 * carries one READ at a time. The branch of the personality optimistic carries no Calls. See
 * personality/preposted.c and optimistic/notice.c.
 *
 * A branch joins the first connection that has its token. nfsd does not know branches: their
 * Calls wait in the list of the first connection, so that sessions, callbacks and credentials
 * belong to one connection. Everything else is the branch's own: requests, send queue, budget,
 * the periodic check, references.
 *
 * A branch keeps its first connection allocated, and with it the module. A Call that nfsd has,
 * or that waits for it, keeps its branch allocated. The branch ends when it breaks: a worker
 * drains it, withdraws its Calls from the first connection, and drops the reference that
 * sunrpc holds for other connections. When a first connection breaks, so do its branches.
 *
 * A client has one branch of the personality optimistic: a new one ends the earlier one. Each
 * has a share of the grants, and a task that revokes waits for each.
 *
 * Locking: nfr_svc_branch_lock protects which connections may be joined, and which branches
 * joined. It does not nest inside other locks; nfr_conn_break() of branches runs under it. The
 * branches of one connection change with nfr_svc.lock as well, so that a READ finds one without the
 * lock of all.
 */
#include <linux/sunrpc/addr.h>

#include "connection/cm.h"
#include "connection/state.h"
#include "server/branch.h"
#include "server/budget.h"
#include "server/server.h"
#include "server/short.h"
#include "server/sink.h"
#include "work.h"

/* Bit of nfr_svc_branch.broken */
#define NFR_SVC_BRANCH_BROKEN	0

static DEFINE_SPINLOCK(nfr_svc_branch_lock);
static LIST_HEAD(nfr_svc_branch_firsts);
/* branches of all connections */
static u32 nfr_svc_branch_count;

/* --- the end of a branch --- */

/* Take the Calls back that wait for an nfsd thread. */
static void nfr_svc_branch_withdraw(struct nfr_svc *svc, struct list_head *calls)
{
	struct nfr_svc_first *first = svc->first;
	struct nfr_svc_req *req, *next;

	spin_lock_bh(&first->svc.lock);
	list_for_each_entry_safe(req, next, &first->ready, list)
		if (req->svc == svc)
			list_move_tail(&req->list, calls);
	spin_unlock_bh(&first->svc.lock);
	/* they may have kept other Calls from the budget */
	nfr_svc_wake(svc);
}

static void nfr_svc_branch_end_work(struct work_struct *work)
{
	struct nfr_svc_branch *branch = container_of(work, struct nfr_svc_branch, end_work);
	struct nfr_svc *svc = &branch->svc;
	struct nfr_svc_req *req, *next;
	LIST_HEAD(calls);

	/* no Calls arrive any more */
	nfr_conn_drain(svc->conn);
	cancel_delayed_work_sync(&svc->late_work);
	nfr_svc_branch_withdraw(svc, &calls);
	list_for_each_entry_safe(req, next, &calls, list) {
		/* freed with the branch */
		list_del_init(&req->list);
		nfr_svc_put(svc);
	}
	nfr_svc_put(svc);
}

/* Queue the end of a branch that was opened and is broken: draining must not meet rdma_accept(). */
static void nfr_svc_branch_unhold(struct nfr_svc_branch *branch)
{
	if (atomic_dec_and_test(&branch->holds))
		queue_work(nfr_work_slow, &branch->end_work);
}

static void nfr_svc_branch_end(struct nfr_svc *svc)
{
	struct nfr_svc_branch *branch = nfr_svc_branch_of(svc);

	if (!test_and_set_bit(NFR_SVC_BRANCH_BROKEN, &branch->broken))
		nfr_svc_branch_unhold(branch);
}

/**
 * nfr_svc_branch_broken - end a branch that broke (nfr_conn_ops.broken)
 * @conn: its connection
 */
void nfr_svc_branch_broken(struct nfr_conn *conn)
{
	nfr_svc_sink_leave(conn->owner);
	nfr_svc_budget_leave(conn->owner);
	nfr_svc_branch_end(conn->owner);
}

/**
 * nfr_svc_branch_opened - let a branch end from now on
 * @svc: branch; the caller must not use it any more
 * @rc: 0, or a negative errno if the connection request was not accepted
 */
void nfr_svc_branch_opened(struct nfr_svc *svc, int rc)
{
	if (rc)
		nfr_svc_branch_end(svc);
	nfr_svc_branch_unhold(nfr_svc_branch_of(svc));
}

/* Break all branches of a connection. Caller holds the lock. */
static void nfr_svc_branches_break(struct nfr_svc_first *first, const char *reason)
{
	struct nfr_svc_branch *branch;

	list_for_each_entry(branch, &first->branches, joined)
		nfr_conn_break(branch->svc.conn, reason);
}

/* Close a first connection that broke, and its branches. @conn: its connection. */
void nfr_svc_first_broken(struct nfr_conn *conn)
{
	struct nfr_svc *svc = conn->owner;

	spin_lock_bh(&nfr_svc_branch_lock);
	nfr_svc_branches_break(svc->first, "the first connection of this branch broke");
	spin_unlock_bh(&nfr_svc_branch_lock);
	svc_xprt_deferred_close(&svc->first->xprt);
	nfr_svc_sink_leave(svc);
	nfr_svc_budget_leave(svc);
}

/* The client's device refused a message (nfr_conn_ops.refused). @conn: its connection. */
void nfr_svc_first_refused(struct nfr_conn *conn)
{
	struct nfr_svc *svc = conn->owner;

	if (svc->long_pages)
		nfr_svc_short_refused(svc);
}

/* --- joining --- */

static struct nfr_svc_first *nfr_svc_branch_find_first(const struct nfr_svc *branch)
{
	const struct sockaddr *peer = (const struct sockaddr *)&branch->remote;
	struct nfr_svc_first *first;

	list_for_each_entry(first, &nfr_svc_branch_firsts, known) {
		struct nfr_svc *svc = &first->svc;

		if (svc->conn->peer.token == branch->conn->peer.token &&
		    svc->personality->branch == branch->personality &&
		    nfr_conn_is_up(svc->conn) &&
		    /* a privileged client does not become one by its first port alone */
		    (branch->privileged || !svc->privileged) &&
		    rpc_cmp_addr((struct sockaddr *)&svc->remote, peer))
			return first;
	}
	return NULL;
}

/**
 * nfr_svc_branch_join - find the first connection of a branch
 * @svc: adopted branch, which may break as soon as it joined
 *
 * Return: false if no connection of this client with this token accepts another branch.
 */
bool nfr_svc_branch_join(struct nfr_svc *svc)
{
	struct nfr_svc_first *first;

	spin_lock_bh(&nfr_svc_branch_lock);
	first = nfr_svc_branch_find_first(svc);
	if (first && (first->nbranches >= NFR_LANES_MAX || !nfr_svc_get(&first->svc)))
		first = NULL;
	if (first) {
		if (svc->personality->single)
			nfr_svc_branches_break(first, "replaced by a new branch");
		first->nbranches++;
		nfr_svc_branch_count++;
		spin_lock(&first->svc.lock);
		list_add_tail(&nfr_svc_branch_of(svc)->joined, &first->branches);
		spin_unlock(&first->svc.lock);
		svc->first = first;
	}
	spin_unlock_bh(&nfr_svc_branch_lock);
	return first;
}

/**
 * nfr_svc_branch_leave - undo nfr_svc_branch_join()
 * @svc: drained branch; the caller drops the reference to its first connection
 */
void nfr_svc_branch_leave(struct nfr_svc *svc)
{
	spin_lock_bh(&nfr_svc_branch_lock);
	spin_lock(&svc->first->svc.lock);
	list_del(&nfr_svc_branch_of(svc)->joined);
	spin_unlock(&svc->first->svc.lock);
	svc->first->nbranches--;
	nfr_svc_branch_count--;
	spin_unlock_bh(&nfr_svc_branch_lock);
}

/**
 * nfr_svc_branch_init - initialize a branch
 * @branch: zeroed structure
 */
void nfr_svc_branch_init(struct nfr_svc_branch *branch)
{
	kref_init(&branch->ref);
	atomic_set(&branch->holds, 2);
	INIT_LIST_HEAD(&branch->joined);
	INIT_WORK(&branch->end_work, nfr_svc_branch_end_work);
}

/* Get the number of branches of all connections. */
u32 nfr_svc_branches_total(void)
{
	return READ_ONCE(nfr_svc_branch_count);
}

/**
 * nfr_svc_branches_admit - let branches join a connection
 * @svc: first connection, about to be accepted
 */
void nfr_svc_branches_admit(struct nfr_svc *svc)
{
	if (!svc->personality->branch)
		return;
	spin_lock_bh(&nfr_svc_branch_lock);
	list_add(&svc->first->known, &nfr_svc_branch_firsts);
	spin_unlock_bh(&nfr_svc_branch_lock);
}

/**
 * nfr_svc_branches_refuse - undo nfr_svc_branches_admit()
 * @svc: first connection without references, and therefore without branches
 */
void nfr_svc_branches_refuse(struct nfr_svc *svc)
{
	spin_lock_bh(&nfr_svc_branch_lock);
	list_del_init(&svc->first->known);
	spin_unlock_bh(&nfr_svc_branch_lock);
}

/**
 * nfr_svc_branches_latest - find the branch that joined a connection last
 * @svc: first connection
 *
 * Return: branch with a reference for the caller, or NULL if there is none that works.
 */
struct nfr_svc *nfr_svc_branches_latest(struct nfr_svc *svc)
{
	struct nfr_svc_branch *branch;
	struct nfr_svc *latest = NULL;

	spin_lock_bh(&svc->lock);
	if (!list_empty(&svc->first->branches)) {
		branch = list_last_entry(&svc->first->branches, struct nfr_svc_branch, joined);
		if (nfr_conn_is_up(branch->svc.conn) && nfr_svc_get(&branch->svc))
			latest = &branch->svc;
	}
	spin_unlock_bh(&svc->lock);
	return latest;
}
