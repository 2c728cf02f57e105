/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Optimistic reads at the client (personality optimistic): the client reads the page cache of
 * the server by RDMA Read, with references that the server granted, and falls back to an RPC.
 *
 * side.c has the second connection of the transport, optimistic.c the relation of a Call and
 * its RDMA Read, reference.c the references, optimistic_read.c the way of a READ.
 *
 * A Call and its RDMA Read refer to each other until the Read is complete. As long as they
 * do, the device may write to the memory of the Call. The lock of struct nfr_optimist
 * protects both pointers, and the references.
 */
#ifndef NFSRDMA_CLIENT_OPTIMISTIC_H
#define NFSRDMA_CLIENT_OPTIMISTIC_H

#include "client/client.h"

/* RDMA Reads in flight, and scatter-gather elements of each */
#define NFR_SIDE_READS		64
#define NFR_SIDE_SGES		32u

/* Buckets of the tables of references, as a power of two */
#define NFR_REFERENCE_BITS	10

struct cred;
struct nfr_side;

/**
 * struct nfr_references - extents of files that the client may read, or has just read by RPC
 * @by_file: by file handle and extent
 * @by_handle: by handle of the memory, while there is one
 * @lru: last used first
 * @count: number of them
 * @order: pages of an extent, as a power of two
 */
struct nfr_references {
	struct hlist_head by_file[1 << NFR_REFERENCE_BITS];
	struct hlist_head by_handle[1 << NFR_REFERENCE_BITS];
	struct list_head lru;
	u32 count;
	u32 order;
};

/**
 * struct nfr_wanted - what a READ asks for
 * @fh: file handle
 * @fh_length: its length in bytes
 * @count: in bytes
 * @position: in bytes
 * @cred: credentials of the reader
 * @timeout: time in jiffies after which the connection breaks if a READ by RPC gets no Reply
 */
struct nfr_wanted {
	const u8 *fh;
	u32 fh_length;
	u32 count;
	u64 position;
	const struct cred *cred;
	unsigned long timeout;
};

/* State of an RDMA Read */
enum nfr_side_status {
	NFR_SIDE_POSTED,
	NFR_SIDE_READ,
	NFR_SIDE_REFUSED,
};

/**
 * struct nfr_side_read - RDMA Read of a Call
 * @list: link in nfr_side.free or nfr_side.busy
 * @side: connection
 * @req: Call, or NULL
 * @cqe: completion
 * @status: state; the lock protects it, and @polled
 * @polled: the sender waits for the completion, and finishes the Call
 * @handle: handle of the memory that it reads
 * @count: in bytes
 * @eof: whether the file ends with them
 * @nsges: number of elements in use
 * @sges: memory of the Call
 */
struct nfr_side_read {
	struct list_head list;
	struct nfr_side *side;
	struct nfr_req *req;
	struct ib_cqe cqe;
	enum nfr_side_status status;
	bool polled;
	u32 handle;
	u32 count;
	bool eof;
	u32 nsges;
	struct ib_sge sges[NFR_SIDE_SGES];
};

/**
 * struct nfr_side - second connection of a transport
 * @conn: connection; its owner is this
 * @nx: transport
 * @open_work: work that connects
 * @end_work: work that ends the connection after it broke
 * @check_work: work that checks whether a refused Read ended the queue pair
 * @begun: @open_work has run
 * @up: Reads may be posted; the lock protects it and the following members
 * @stopped: the connection must not be established any more
 * @resolved: nfr_conn_break() may be called
 * @claimed: somebody ends the connection
 * @since: time in jiffies at which the connection was established
 * @flags: NFR_SIDE_ENDS
 * @order: pages of an extent, as a power of two
 * @free: unused Reads
 * @busy: Reads that belong to a Call
 * @skip: number of Reads that the sender does not wait for, because the last one was slow
 * @handled: notices that were handled, and whose credits were not returned
 * @credits: buffers for returning credits, mapped at @addr; @ncredits were sent
 * @addr: see @credits
 * @ncredits: see @credits
 * @marks: position of the send queue after each of them
 * @reads: Reads
 */
struct nfr_side {
	struct nfr_conn conn;
	struct nfr_xprt *nx;
	struct work_struct open_work;
	struct work_struct end_work;
	struct work_struct check_work;
	bool begun;
	bool up;
	bool stopped;
	bool resolved;
	bool claimed;
	unsigned long since;
	unsigned long flags;
	u32 order;
	struct list_head free;
	struct list_head busy;
	u32 skip;
	u32 handled;
	u8 *credits;
	u64 addr;
	u32 ncredits;
	u32 marks[4];
	struct nfr_side_read reads[NFR_SIDE_READS];
};

/* Bit of nfr_side.flags: @end_work was queued */
#define NFR_SIDE_ENDS	0

/**
 * struct nfr_optimist - optimistic reads of a transport
 * @lock: see the comment above
 * @side: second connection, or NULL
 * @sending: connection to which a sender posts, or NULL; it must not end meanwhile
 * @retry_at: time in jiffies before which no connection is established
 * @delay: time between the end of a connection and the next one, in jiffies
 * @paused_until: time in jiffies before which Reads do not pay
 * @tried: number of Reads since the last decision
 * @refused: number of them that were refused
 * @waiting: tasks of Calls that timed out
 * @references: references
 */
struct nfr_optimist {
	spinlock_t lock;		/* see the comment above */
	struct nfr_side *side;
	struct nfr_side *sending;
	unsigned long retry_at;
	unsigned long delay;
	unsigned long paused_until;
	u32 tried;
	u32 refused;
	struct rpc_wait_queue waiting;
	struct nfr_references references;
};

/* reference.c; callers of the functions for one reference hold the lock */
void nfr_client_references_init(struct nfr_references *references);
void nfr_client_references_end(struct nfr_optimist *optimist);
void nfr_client_references_destroy(struct nfr_references *references);
bool nfr_client_reference_find(struct nfr_references *references, const struct nfr_wanted *wanted,
			       struct nfr_segment *found, bool *eof);
void nfr_client_reference_grant(struct nfr_references *references,
				const struct nfr_notice *notice);
void nfr_client_reference_drop(struct nfr_references *references, u32 handle);

/* side.c */
void nfr_client_side_add(struct nfr_conn *conn);
void nfr_client_side_poll(struct nfr_conn *conn);
void nfr_client_side_refused(struct nfr_side_read *read);

/* optimistic.c, and its functions in client.h */
bool nfr_client_side_take(struct nfr_conn *conn, struct nfr_req *req,
			  const struct nfr_wanted *wanted, struct nfr_segment *target);
void nfr_client_side_sent(struct nfr_xprt *nx);
void nfr_client_side_release(struct nfr_side_read *read, enum nfr_req_state state);
void nfr_client_side_resend(struct nfr_side_read *read);

#endif
