/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Optimistic reads at the client (personality optimistic): the client reads the page cache of
 * the server by RDMA Read, with references that the server granted, and falls back to an RPC.
 *
 * side.c has the second connection of the transport, optimistic.c the relation of a Call and
 * its RDMA Read, reference.c the references, optimistic_read.c the way of a READ.
 *
 * A Call and its RDMA Read refer to each other until the Read is complete. As long as they
 * do, the device may write to the memory of the Call. The lock of the branches
 * protects both pointers, and the references.
 */
#ifndef NFSRDMA_CLIENT_OPTIMISTIC_H
#define NFSRDMA_CLIENT_OPTIMISTIC_H

#include "client/branch.h"

/* RDMA Reads in flight, and scatter-gather elements of each */
#define NFR_SIDE_READS		64
#define NFR_SIDE_SGES		32u

/* Messages in flight that return credits */
#define NFR_SIDE_CREDIT_SLOTS	4

/* Buckets of the tables of references, as a power of two */
#define NFR_REFERENCE_BITS	10

/* Users that have a share of the references each, as a power of two: more users share shares */
#define NFR_REFERENCE_SHARE_BITS	6

struct cred;
struct nfr_side;

/**
 * struct nfr_reference_share - references of a user
 * @lru: last used first
 * @count: number of them
 */
struct nfr_reference_share {
	struct list_head lru;
	u32 count;
};

/**
 * struct nfr_references - extents of files that the client may read, or has just read by RPC
 * @by_file: by file handle and extent
 * @by_handle: by handle of the memory, while there is one
 * @shares: of each user
 * @count: number of references
 * @order: pages of an extent, as a power of two
 * @token: token of the transport
 */
struct nfr_references {
	struct hlist_head by_file[1 << NFR_REFERENCE_BITS];
	struct hlist_head by_handle[1 << NFR_REFERENCE_BITS];
	struct nfr_reference_share shares[1 << NFR_REFERENCE_SHARE_BITS];
	u32 count;
	u32 order;
	u64 token;
};

/**
 * struct nfr_wanted - what a READ asks for
 * @fh: file handle
 * @fh_length: its length in bytes
 * @count: in bytes
 * @position: in bytes
 * @offset: of the memory of the Call in its first page, in bytes
 * @cred: credentials of the reader
 * @call: encoded Call
 * @measured: the NFS client knows how long the header of a READ's reply is. It learns that from
 *	the first reply of a mount, and sizes buffers accordingly; the header of an optimistic read
 *	is shorter than that of a server's reply, which would not fit.
 */
struct nfr_wanted {
	const u8 *fh;
	u32 fh_length;
	u32 count;
	u64 position;
	u32 offset;
	const struct cred *cred;
	const struct kvec *call;
	bool measured;
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
 * @branch: connection; its pages are those of an extent, its buffer is for returning credits
 * @check_work: work that checks whether a refused Read ended the queue pair
 * @since: time in jiffies at which the connection was established
 * @free: unused Reads; the lock protects the lists
 * @busy: Reads that belong to a Call
 * @skip: number of Reads that the sender does not wait for, because the last one was slow
 * @handled: notices that were handled, and whose credits were not returned
 * @ncredits: number of messages that returned credits
 * @marks: position of the send queue after the last ones
 * @reads: Reads
 */
struct nfr_side {
	struct nfr_branch branch;
	struct work_struct check_work;
	unsigned long since;
	struct list_head free;
	struct list_head busy;
	u32 skip;
	u32 handled;
	u32 ncredits;
	u32 marks[NFR_SIDE_CREDIT_SLOTS];
	struct nfr_side_read reads[NFR_SIDE_READS];
};

/**
 * struct nfr_optimist - optimistic reads of a transport
 * @branches: second connection, and the lock of the members
 * @side: the same when it is connected, or NULL
 * @paused_until: time in jiffies before which Reads do not pay
 * @tried: number of Reads since the last decision
 * @refused: number of them that were refused
 * @references: references
 */
struct nfr_optimist {
	struct nfr_branches branches;
	struct nfr_side *side;
	unsigned long paused_until;
	u32 tried;
	u32 refused;
	struct nfr_references references;
};

static inline struct nfr_optimist *nfr_client_optimist_of(const struct nfr_side *side)
{
	return container_of(side->branch.of, struct nfr_optimist, branches);
}

/* reference.c; callers of the functions for one reference hold the lock */
void nfr_client_references_init(struct nfr_references *references, u64 token);
void nfr_client_references_end(struct nfr_optimist *optimist);
void nfr_client_references_destroy(struct nfr_references *references);
bool nfr_client_reference_find(struct nfr_references *references, const struct nfr_wanted *wanted,
			       struct nfr_segment *found, bool *eof);
void nfr_client_reference_grant(struct nfr_references *references,
				const struct nfr_notice *notice);
void nfr_client_reference_drop(struct nfr_references *references, u32 handle);

/* side.c */
extern const struct nfr_branch_kind nfr_client_side_kind;
void nfr_client_side_poll(struct nfr_conn *conn);
void nfr_client_side_refused(struct nfr_side_read *read);

/* optimistic.c, and its functions in client.h */
bool nfr_client_side_take(struct nfr_conn *conn, struct nfr_req *req,
			  const struct nfr_wanted *wanted, struct nfr_segment *target);
void nfr_client_side_release(struct nfr_side_read *read, enum nfr_req_state state);
void nfr_client_side_resend(struct nfr_side_read *read);

#endif
