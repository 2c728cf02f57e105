/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lanes: the connections of a transport with the personality pre-posted that carry one
 * READ each. branch.c connects and ends them, lane.c knows which Call has one, lane_call.c
 * sends Calls on them.
 *
 * A Call and its lane refer to each other until the Reply is complete, or until the device has
 * flushed the receives. As long as they do, the device may write to the memory of the Call.
 * The lock of the branches protects both pointers.
 */
#ifndef NFSRDMA_CLIENT_LANE_H
#define NFSRDMA_CLIENT_LANE_H

#include "client/branch.h"
#include "variants.h"

/* Elements of all receives of a Call: 1 MiB at any offset, a page more each, and the head */
#define NFR_LANE_ENTRIES	((1024 * 1024 >> PAGE_SHIFT) + 1 + NFR_LANE_MESSAGES + 1)

/* Offset of the Call in the buffer of a lane, behind the head of the Reply */
#define NFR_LANE_CALL		NFR_LANE_INLINE

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
 * @branch: connection; its pages are those of data per message
 * @idle: link in nfr_lanes.idle, while the lane has no Call
 * @req: Call, or NULL; the lock protects it
 * @xid: XID of @req
 * @recvs: receives of @req; @nrecvs elements, @done of them complete
 * @sges: their entries; @nsges elements
 * @chunks: chunk of the Reply being decoded
 * @segs: segments of that chunk, or of the Call being sent
 */
struct nfr_lane {
	struct nfr_branch branch;
	struct list_head idle;
	struct nfr_req *req;
	u32 xid;
	u32 nrecvs;
	u32 done;
	u32 nsges;
	struct nfr_lane_recv recvs[NFR_LANE_MESSAGES];
	struct ib_sge sges[NFR_LANE_ENTRIES];
	struct nfr_chunk chunks[2];
	struct nfr_segment segs[NFR_LANE_MESSAGES];
};

/**
 * struct nfr_lanes - lanes of a transport
 * @branches: their connections, and the lock of the members
 * @idle: lanes without a Call, the latest first
 * @busy: number of lanes with a Call
 * @limit: maximum number of lanes
 */
struct nfr_lanes {
	struct nfr_branches branches;
	struct list_head idle;
	u32 busy;
	u32 limit;
};

static inline struct nfr_lanes *nfr_client_lanes_of(struct nfr_lane *lane)
{
	return container_of(lane->branch.of, struct nfr_lanes, branches);
}

/* lane.c */
struct nfr_lane *nfr_client_lane_take(struct nfr_conn *conn, struct nfr_req *req);
void nfr_client_lane_unmap(struct nfr_lane *lane);
void nfr_client_lane_finish(struct nfr_lane *lane, struct nfr_req *req, enum nfr_req_state state,
			    u32 bytes);

#endif
