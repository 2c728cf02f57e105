/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Branches: connections of a transport beside its first one, which they join by its token. The
 * lanes of the personality pre-posted are branches, and so is the second connection of the
 * personality optimistic.
 *
 * A branch belongs to its list from its creation until branch.c ends it. The context that takes
 * it from the list drains and frees it.
 */
#ifndef NFSRDMA_CLIENT_BRANCH_H
#define NFSRDMA_CLIENT_BRANCH_H

#include "client/client.h"

struct nfr_branch;

/**
 * struct nfr_branch_kind - what distinguishes the branches of a personality
 * @ops: operations for the connection; @broken and @writable are those of branch.c
 * @size: size of the structure that begins with the branch
 * @buffer: size of nfr_branch.buffer
 * @inline_size: largest message of both sides, in bytes
 * @credits: number of credits
 * @init: initialize the rest of the structure
 * @fit: set the profile of the connection; -EOPNOTSUPP if the device is unsuitable
 * @agree: check what the server accepts; -EOPNOTSUPP if that is too little
 * @opened: use a connected branch; called with the lock
 * @ended: take back what the device may have used; the branch is drained, and @useful is final
 *	afterwards
 */
struct nfr_branch_kind {
	struct nfr_conn_ops ops;
	size_t size;
	size_t buffer;
	u32 inline_size;
	u32 credits;
	void (*init)(struct nfr_branch *branch);
	int (*fit)(struct nfr_branch *branch);
	int (*agree)(struct nfr_branch *branch);
	void (*opened)(struct nfr_branch *branch);
	void (*ended)(struct nfr_branch *branch);
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
 * @begun: @open_work has run
 * @stopped: the branch must not connect any more; the lock protects it
 * @resolved: nfr_conn_break() may be called; the lock protects it
 * @useful: the branch was worth connecting
 * @flags: NFR_BRANCH_ENDS
 * @pages: pages of a message or of an extent, as the server accepted
 * @buffer: memory for messages, mapped at @addr; or NULL
 * @addr: see @buffer
 */
struct nfr_branch {
	struct nfr_conn conn;
	struct nfr_branches *of;
	struct list_head list;
	struct work_struct open_work;
	struct work_struct end_work;
	bool begun;
	bool stopped;
	bool resolved;
	bool useful;
	unsigned long flags;
	u32 pages;
	void *buffer;
	u64 addr;
};

/* Bit of nfr_branch.flags: @end_work was queued */
#define NFR_BRANCH_ENDS		0

void nfr_client_branches_init(struct nfr_branches *of, struct nfr_xprt *nx,
			      const struct nfr_branch_kind *kind);
void nfr_client_branches_destroy(struct nfr_branches *of);
void nfr_client_branch_add(struct nfr_branches *of, const struct nfr_conn *first);
void nfr_client_branch_broken(struct nfr_conn *conn);
void nfr_client_branch_writable(struct nfr_conn *conn);

/* Whether one more branch may connect. The caller holds the lock. */
static inline bool nfr_client_branches_may_add(const struct nfr_branches *of, u32 limit)
{
	return of->count < limit && time_after_eq(jiffies, of->retry_at);
}

/* Clear @sending, so that the branch may end. The caller has locked the transport. */
static inline void nfr_client_branch_sent(struct nfr_branches *of)
{
	/* pairs with nfr_client_branch_stop(): the branch may end after the last access to it */
	smp_store_release(&of->sending, NULL);
	/* includes the barrier between this store and the look for a waiter */
	if (wq_has_sleeper(&of->nx->detached))
		wake_up_all(&of->nx->detached);
}

#endif
