/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Branches: connections of a transport beside its first one, which they join by its token. The
 * lanes of the personality pre-posted are branches; the personality optimistic has one branch.
 *
 * A branch belongs to its list from its creation until branch.c ends it. The context that takes
 * it from the list drains and frees it.
 *
 * A branch borrows a Call, with the memory for its Reply: a loan. The Call and the loan refer to
 * each other until the Reply is complete, or until the device has flushed what was posted. As
 * long as they do, the device may write to that memory.
 */
#ifndef NFSRDMA_CLIENT_BRANCH_H
#define NFSRDMA_CLIENT_BRANCH_H

#include "client/client.h"

struct nfr_branch;

/**
 * struct nfr_loan - Call that a branch has borrowed
 * @branch: branch
 * @req: Call, or NULL; the lock of the branches protects it
 */
struct nfr_loan {
	struct nfr_branch *branch;
	struct nfr_req *req;
};

/**
 * struct nfr_branch_kind - what distinguishes the branches of a personality
 * @ops: operations for the connection; @broken and @writable are those of branch.c
 * @size: size of the structure that begins with the branch
 * @buffer: size of nfr_branch.buffer
 * @inline_size: largest message of both sides, in bytes
 * @credits: number of credits
 * @patience: time for a branch to return the Call of a task that ends, before it breaks, in jiffies
 * @init: initialize the rest of the structure
 * @fit: set the profile of the connection; -EOPNOTSUPP if the device is unsuitable
 * @agree: check what the server accepts; -EOPNOTSUPP if that is too little
 * @opened: use a connected branch; called with the lock
 * @returned: reuse a loan whose Call got a new state; called with the lock
 * @ended: return all Calls, also those whose work requests were not completed; the connection has
 *	ended, and @useful is final afterwards
 * @destroy: free the branches of a closed transport
 * @show: print the state of the branches to a file in debugfs
 */
struct nfr_branch_kind {
	struct nfr_conn_ops ops;
	size_t size;
	size_t buffer;
	u32 inline_size;
	u32 credits;
	unsigned long patience;
	void (*init)(struct nfr_branch *branch);
	int (*fit)(struct nfr_branch *branch);
	int (*agree)(struct nfr_branch *branch);
	void (*opened)(struct nfr_branch *branch);
	void (*returned)(struct nfr_loan *loan, enum nfr_req_state state);
	void (*ended)(struct nfr_branch *branch);
	void (*destroy)(struct nfr_branches *of);
	void (*show)(struct nfr_branches *of, struct seq_file *seq);
};

/**
 * struct nfr_branches - branches of a transport
 * @kind: their kind
 * @nx: transport
 * @lock: protects the members, and which branch works for which Call
 * @list: branches whose end no context has claimed
 * @count: number of branches, including those that are ending
 * @sending: branch to which a sender posts, or NULL; it must not end meanwhile
 * @retry_at: time in jiffies before which no branch connects
 * @delay: time between the end of a branch and the next one, in jiffies
 * @waiting: tasks of Calls that timed out
 */
struct nfr_branches {
	const struct nfr_branch_kind *kind;
	struct nfr_xprt *nx;
	spinlock_t lock;		/* see the comment above */
	struct list_head list;
	u32 count;
	struct nfr_branch *sending;
	unsigned long retry_at;
	unsigned long delay;
	struct rpc_wait_queue waiting;
};

/**
 * struct nfr_branch - connection of a transport beside its first one
 * @conn: connection; its owner is the branch
 * @of: branches of the transport
 * @list: link in nfr_branches.list, until a context claims the end
 * @open_work: work that connects
 * @end_work: work that ends the branch after it broke
 * @useful: the branch was worth connecting
 * @flags: NFR_BRANCH_ENDS
 * @units: size of a message or of an extent as the server accepted, in units of 4096 bytes
 * @buffer: memory for messages, mapped at @addr; or NULL
 * @addr: see @buffer
 */
struct nfr_branch {
	struct nfr_conn conn;
	struct nfr_branches *of;
	struct list_head list;
	struct work_struct open_work;
	struct work_struct end_work;
	bool useful;
	unsigned long flags;
	u32 units;
	void *buffer;
	u64 addr;
};

/* Bit of nfr_branch.flags: @end_work was queued */
#define NFR_BRANCH_ENDS		0

void nfr_client_branches_init(struct nfr_branches *of, struct nfr_xprt *nx,
			      const struct nfr_branch_kind *kind);
void nfr_client_branch_add(struct nfr_branches *of, const struct nfr_conn *first);
void nfr_client_branch_broken(struct nfr_conn *conn);
void nfr_client_branch_writable(struct nfr_conn *conn);
bool nfr_client_loan_pin(struct nfr_loan *loan);
void nfr_client_loan_return(struct nfr_loan *loan, enum nfr_req_state state);
void nfr_client_loan_lose(struct nfr_loan *loan);
bool nfr_client_loan_retransmit(struct nfr_req *req);

/* Whether one more branch may connect. The caller holds the lock. */
static inline bool nfr_client_branches_may_add(const struct nfr_branches *of, u32 limit)
{
	return of->count < limit && time_after_eq(jiffies, of->retry_at);
}

/* Borrow a Call. The branch does not end before nfr_client_loan_posted(). */
static inline void nfr_client_loan_take(struct nfr_loan *loan, struct nfr_req *req)
{
	struct nfr_branches *of = loan->branch->of;

	lockdep_assert_held(&of->lock);
	loan->req = req;
	req->loan = loan;
	WRITE_ONCE(of->sending, loan->branch);
}

/* The Call is being posted, and a Reply counts: its memory belongs to the device. */
static inline void nfr_client_loan_post(struct nfr_loan *loan)
{
	struct nfr_req *req = loan->req;

	lockdep_assert(READ_ONCE(loan->branch->of->sending) == loan->branch);
	req->generation = loan->branch->conn.generation;
	/* pairs with the check of the state where a Reply is handled */
	smp_store_release(&req->state, NFR_REQ_LENT);
}

/* The sender is done with the branch, which may end. The caller has locked the transport. */
static inline void nfr_client_loan_posted(struct nfr_branches *of)
{
	/* pairs with nfr_client_branch_stop(): the branch may end after the last access to it */
	smp_store_release(&of->sending, NULL);
	/* includes the barrier between this store and the look for a waiter */
	if (wq_has_sleeper(&of->nx->detached))
		wake_up_all(&of->nx->detached);
}

#endif
