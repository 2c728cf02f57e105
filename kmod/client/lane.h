/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lanes: the connections of a transport with the personality pre-posted that carry one
 * READ each. lane.c manages them, lane_call.c sends Calls on them.
 *
 * A lane belongs to its list from its creation until lane.c ends it. A Call and its lane
 * refer to each other until the Reply is complete, or until the device has flushed the
 * receives. As long as they do, the device may write to the memory of the Call. The lock of
 * struct nfr_lanes protects both pointers.
 */
#ifndef NFSRDMA_CLIENT_LANE_H
#define NFSRDMA_CLIENT_LANE_H

#include "client/client.h"

/* Elements of all receives of a Call: 1 MiB at any offset, a page more each, and the head */
#define NFR_LANE_ENTRIES	((1024 * 1024 >> PAGE_SHIFT) + 1 + NFR_LANE_MESSAGES + 1)

/* Buffer of a lane: the head of the Reply, then the Call */
#define NFR_LANE_CALL		NFR_LANE_INLINE
#define NFR_LANE_BUFFER		(NFR_LANE_CALL + NFR_LANE_INLINE)

struct nfr_lane;

/**
 * struct nfr_lane_recv - receive of a lane
 * @cqe: its completion
 * @wr: its work request
 * @lane: lane
 * @head: length of the first entry, the head of the Reply; 0 after the first receive
 * @data: room for data, in bytes
 * @length: length of the received message
 */
struct nfr_lane_recv {
	struct ib_cqe cqe;
	struct ib_recv_wr wr;
	struct nfr_lane *lane;
	u32 head;
	u32 data;
	u32 length;
};

/**
 * struct nfr_lane - connection that carries one READ at a time
 * @conn: connection; its owner is the lane
 * @nx: transport
 * @list: link in nfr_lanes.all, until the lane ends
 * @idle: link in nfr_lanes.idle, while the lane has no Call
 * @open_work: work that connects
 * @end_work: work that ends the lane after it broke
 * @begun: @open_work has run
 * @stopped: the lane must not connect any more; the lock of nfr_lanes protects it
 * @resolved: nfr_conn_break() may be called; same lock
 * @flags: NFR_LANE_ENDS
 * @pages: pages of data per message
 * @req: Call, or NULL; same lock
 * @xid: XID of @req
 * @head: buffer for the head of the Reply, and for the Call; mapped at @head_addr
 * @head_addr: see @head
 * @recvs: receives of @req; @nrecvs elements, @done of them complete
 * @sges: their entries; @nsges elements
 * @chunks: chunk of the Reply being decoded
 * @segs: segments of that chunk, or of the Call being sent
 */
struct nfr_lane {
	struct nfr_conn conn;
	struct nfr_xprt *nx;
	struct list_head list;
	struct list_head idle;
	struct work_struct open_work;
	struct work_struct end_work;
	bool begun;
	bool stopped;
	bool resolved;
	unsigned long flags;
	u32 pages;
	struct nfr_req *req;
	u32 xid;
	void *head;
	u64 head_addr;
	u32 nrecvs;
	u32 done;
	u32 nsges;
	struct nfr_lane_recv recvs[NFR_LANE_MESSAGES];
	struct ib_sge sges[NFR_LANE_ENTRIES];
	struct nfr_chunk chunks[2];
	struct nfr_segment segs[NFR_LANE_MESSAGES];
};

/* Bit of nfr_lane.flags: @end_work was queued */
#define NFR_LANE_ENDS	0

/**
 * struct nfr_lanes - lanes of a transport
 * @lock: protects the members, and which lane carries which Call
 * @all: lanes that have not ended
 * @idle: lanes without a Call, the latest first
 * @sending: lane to which a sender posts, or NULL; it must not end meanwhile
 * @count: number of lanes, including those that are ending
 * @busy: number of lanes with a Call
 * @limit: maximum of @count
 * @retry_at: time in jiffies before which no lane connects, after a failure
 * @waiting: tasks of Calls that timed out
 */
struct nfr_lanes {
	spinlock_t lock;		/* see the comment above */
	struct list_head all;
	struct list_head idle;
	struct nfr_lane *sending;
	u32 count;
	u32 busy;
	u32 limit;
	unsigned long retry_at;
	struct rpc_wait_queue waiting;
};

/* lane.c */
struct nfr_lane *nfr_client_lane_take(struct nfr_conn *conn, struct nfr_req *req);
void nfr_client_lane_unmap(struct nfr_lane *lane);
void nfr_client_lane_sent(struct nfr_xprt *nx);
void nfr_client_lane_finish(struct nfr_lane *lane, struct nfr_req *req, enum nfr_req_state state,
			    u32 bytes);

#endif
