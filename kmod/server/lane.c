// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lanes of clients with the personality pre-posted: connections that carry one READ at a
 * time, without a key. The second connection of the personality optimistic joins and ends
 * like a lane, and carries no Calls, see notice.c.
 *
 * A lane joins the connection that has its token, its home. nfsd does not know lanes: their
 * Calls wait in the list of their home, so that sessions, callbacks and credentials
 * belong to one connection. Everything else is the lane's own: requests, send queue, budget,
 * the periodic check.
 *
 * A lane keeps its home allocated. A Call that nfsd has, or that waits for it, keeps its lane
 * allocated. The lane ends when it breaks: it withdraws its Calls from its home, and drops the
 * reference that sunrpc holds for other connections. When a home breaks, so do its lanes.
 *
 * A client has one second connection of the personality optimistic: a new one ends the
 * earlier one. Each has a share of the grants, and a task that revokes waits for each.
 *
 * Locking: nfr_svc_lane_lock protects who may be joined, and which lanes joined. It does not
 * nest inside other locks; nfr_conn_break() of lanes runs under it.
 */
#include <linux/sunrpc/addr.h>

#include "connection/receive.h"
#include "connection/state.h"
#include "observe/trace_server.h"
#include "server/call.h"
#include "server/memory.h"
#include "server/request.h"
#include "server/server.h"
#include "variants.h"
#include "work.h"

/* Size of the send queue: messages of a Reply, and of earlier ones that did not complete */
#define NFR_SVC_LANE_SENDS	64

/* Bit of nfr_svc.lane_flags: @end_work was queued */
#define NFR_SVC_LANE_ENDS	0

static DEFINE_SPINLOCK(nfr_svc_lane_lock);
static LIST_HEAD(nfr_svc_lane_homes);
/* lanes of all connections */
static u32 nfr_svc_lane_count;

/* --- Calls --- */

/* Drop a message, and break the lane: the client sends the Call again on its home. */
static void nfr_svc_lane_reject(struct nfr_svc_req *req, const char *what)
{
	struct nfr_svc *lane = req->svc;

	trace_nfsrdma_svc_error(lane, req->head.xid, what, 0);
	nfr_svc_count(lane, dropped, 1);
	nfr_svc_req_put(req);
	nfr_conn_break(lane->conn, what);
}

/* Pass a Call on to an nfsd thread. Returns false if the lane has ended. */
static bool nfr_svc_lane_enqueue(struct nfr_svc_req *req)
{
	struct nfr_svc *lane = req->svc, *home = lane->home;
	bool ended;

	spin_lock_bh(&home->lock);
	ended = lane->ended;
	if (!ended) {
		/* until the Reply is posted, or the Call is dropped */
		svc_xprt_get(&lane->xprt);
		list_add_tail(&req->list, &home->ready);
		set_bit(XPT_DATA, &home->xprt.xpt_flags);
	}
	spin_unlock_bh(&home->lock);
	if (!ended)
		svc_xprt_enqueue(&home->xprt);
	return !ended;
}

/* Check the segments of a Call: one for each receive of the client. */
static bool nfr_svc_lane_segments_are_sound(const struct nfr_svc_req *req)
{
	const struct nfr_chunk *chunk = &req->head.writes[0];
	u32 i, header = NFR_WIRE_MIN + 8 + chunk->nsegs * NFR_WIRE_SEGMENT;

	if (!chunk->nsegs || chunk->nsegs > NFR_LANE_MESSAGES)
		return false;
	for (i = 0; i < chunk->nsegs; i++) {
		const struct nfr_segment *seg = &chunk->segs[i];

		if (seg->handle || seg->length > req->svc->lane_pages << PAGE_SHIFT ||
		    (i && seg->offset))
			return false;
	}
	return chunk->segs[0].offset >= header &&
	       chunk->segs[0].offset <= req->svc->conn->send_size &&
	       nfr_wire_length(chunk) <= req->svc->max_message;
}

static bool nfr_svc_lane_call_is_sound(struct nfr_svc_req *req)
{
	const struct nfr_header *head = &req->head;

	return head->proc == NFR_MSG && !head->nreads && head->nwrites == 1 && !head->reply &&
	       req->rpc_length >= 8 && get_unaligned_be32(req->rpc) == head->xid &&
	       nfr_wire_is_call(req->rpc, req->rpc_length) &&
	       nfr_svc_read_check(req, req->svc->max_message) &&
	       nfr_svc_lane_segments_are_sound(req);
}

/* Decode a message, and pass it on. Completion handler. */
static void nfr_svc_lane_receive(struct nfr_svc_req *req)
{
	struct nfr_space space = {
		.chunks = req->chunks, .nchunks = NFR_SVC_CHUNKS,
		.segs = req->segs, .nsegs = NFR_SVC_SEGS,
	};
	int rc = nfr_wire_decode(&req->head, &space, req->recv->data, req->recv->length);

	req->rpc = req->recv->data + max(rc, 0);
	req->rpc_length = req->recv->length - max(rc, 0);
	if (rc < 0 || !nfr_svc_lane_call_is_sound(req)) {
		nfr_svc_lane_reject(req, "not a Call for a lane");
		return;
	}
	if (atomic_read(&req->svc->busy) > 1) {
		nfr_svc_lane_reject(req, "a second Call on a lane");
		return;
	}
	nfr_svc_count(req->svc, calls, 1);
	trace_nfsrdma_svc_call(req);
	req->state = NFR_SVC_READY;
	if (!nfr_svc_lane_enqueue(req))
		nfr_svc_req_put(req);
}

static const struct nfr_svc_personality nfr_svc_lane_personality = {
	.receive	= nfr_svc_lane_receive,
	.reply		= nfr_svc_lane_reply,
};

/**
 * nfr_svc_lane_drop - handle a Call of a lane that nfsd dropped
 * @req: request, which no nfsd thread uses
 */
void nfr_svc_lane_drop(struct nfr_svc_req *req)
{
	struct nfr_svc *lane = req->svc;
	u32 xid = req->head.xid;

	nfr_svc_count(lane, dropped, 1);
	nfr_svc_req_put(req);
	nfr_conn_abandon(lane->conn, xid);
	svc_xprt_put(&lane->xprt);
}

/* --- the end of a lane --- */

/* Release sent requests and post queued ones. Completion handler. */
static void nfr_svc_lane_writable(struct nfr_conn *conn)
{
	struct nfr_svc_req *req, *next;
	LIST_HEAD(done);

	nfr_svc_retire(conn->owner, &done);
	list_for_each_entry_safe(req, next, &done, list) {
		nfr_svc_gather_release(req);
		nfr_svc_req_put(req);
	}
}

/* Take the Calls back that wait for an nfsd thread. */
static void nfr_svc_lane_withdraw(struct nfr_svc *lane, struct list_head *calls)
{
	struct nfr_svc *home = lane->home;
	struct nfr_svc_req *req, *next;

	spin_lock_bh(&home->lock);
	lane->ended = true;
	list_for_each_entry_safe(req, next, &home->ready, list)
		if (req->svc == lane)
			list_move_tail(&req->list, calls);
	/* they may have kept other Calls from the budget */
	set_bit(XPT_DATA, &home->xprt.xpt_flags);
	spin_unlock_bh(&home->lock);
	svc_xprt_enqueue(&home->xprt);
}

static void nfr_svc_lane_end_work(struct work_struct *work)
{
	struct nfr_svc *lane = container_of(work, struct nfr_svc, end_work);
	struct nfr_svc_req *req, *next;
	LIST_HEAD(calls);

	nfr_svc_lane_withdraw(lane, &calls);
	list_for_each_entry_safe(req, next, &calls, list) {
		/* freed with the lane */
		list_del_init(&req->list);
		svc_xprt_put(&lane->xprt);
	}
	svc_xprt_put(&lane->xprt);
}

/**
 * nfr_svc_lane_schedule_end - end a broken lane
 * @lane: lane
 *
 * Context: Any; the first call counts.
 */
void nfr_svc_lane_schedule_end(struct nfr_svc *lane)
{
	if (!test_and_set_bit(NFR_SVC_LANE_ENDS, &lane->lane_flags))
		queue_work(nfr_work_slow, &lane->end_work);
}

static void nfr_svc_lane_broken(struct nfr_conn *conn)
{
	struct nfr_svc *lane = conn->owner;

	nfr_svc_budget_leave(lane);
	nfr_svc_lane_schedule_end(lane);
}

static const struct nfr_conn_ops nfr_svc_lane_conn_ops = {
	.receive = nfr_svc_receive,
	.writable = nfr_svc_lane_writable,
	.broken = nfr_svc_lane_broken,
	.unanswered = "nfsd dropped a Call",
	.softirq = true,
};

/* --- joining --- */

/* Break all lanes of a connection. Caller holds the lock. */
static void nfr_svc_lanes_break_locked(struct nfr_svc *home, const char *reason)
{
	struct nfr_svc *lane;

	list_for_each_entry(lane, &home->lanes, joined)
		nfr_conn_break(lane->conn, reason);
}

static struct nfr_svc *nfr_svc_lane_find_home(const struct nfr_svc *lane,
					      const struct sockaddr *peer)
{
	u64 token = lane->conn->peer.token;
	struct nfr_svc *svc;

	list_for_each_entry(svc, &nfr_svc_lane_homes, known)
		if (svc->conn->peer.token == token && svc->variant == lane->variant &&
		    nfr_conn_is_up(svc->conn) &&
		    rpc_cmp_addr((struct sockaddr *)&svc->xprt.xpt_remote, peer))
			return svc;
	return NULL;
}

/**
 * nfr_svc_lane_init - initialize a lane
 * @lane: new connection whose private data asks for a lane
 */
void nfr_svc_lane_init(struct nfr_svc *lane)
{
	struct nfr_conn *conn = lane->conn;

	lane->variant = NFR_PRE_POSTED;
	lane->personality = &nfr_svc_lane_personality;
	conn->ops = &nfr_svc_lane_conn_ops;
	conn->wanted.inline_send = NFR_LANE_INLINE;
	conn->wanted.inline_recv = NFR_LANE_INLINE;
	conn->wanted.credits = 1;
}

/**
 * nfr_svc_lane_join - find the connection that a lane belongs to
 * @lane: adopted lane, which may break as soon as it joined
 * @peer: address of the client
 *
 * Return: false if no connection from @peer with this token accepts another lane.
 */
bool nfr_svc_lane_join(struct nfr_svc *lane, const struct sockaddr *peer)
{
	struct nfr_svc *home;

	spin_lock_bh(&nfr_svc_lane_lock);
	home = nfr_svc_lane_find_home(lane, peer);
	if (home && (home->nlanes >= NFR_LANES_MAX ||
		     !kref_get_unless_zero(&home->xprt.xpt_ref)))
		home = NULL;
	if (home) {
		if (lane->notices)
			nfr_svc_lanes_break_locked(home, "replaced by a new second connection");
		home->nlanes++;
		nfr_svc_lane_count++;
		list_add_tail(&lane->joined, &home->lanes);
		lane->home = home;
	}
	spin_unlock_bh(&nfr_svc_lane_lock);
	return home;
}

/**
 * nfr_svc_lane_leave - undo nfr_svc_lane_join()
 * @lane: drained lane; the caller drops the reference to its home
 */
void nfr_svc_lane_leave(struct nfr_svc *lane)
{
	spin_lock_bh(&nfr_svc_lane_lock);
	list_del(&lane->joined);
	lane->home->nlanes--;
	nfr_svc_lane_count--;
	spin_unlock_bh(&nfr_svc_lane_lock);
}

/**
 * nfr_svc_lanes_total - get the number of lanes
 *
 * Return: lanes of all connections.
 */
u32 nfr_svc_lanes_total(void)
{
	return READ_ONCE(nfr_svc_lane_count);
}

/**
 * nfr_svc_lanes_init - initialize the lanes of a connection
 * @svc: new connection, or a lane
 */
void nfr_svc_lanes_init(struct nfr_svc *svc)
{
	INIT_LIST_HEAD(&svc->known);
	INIT_LIST_HEAD(&svc->lanes);
	INIT_LIST_HEAD(&svc->joined);
	INIT_WORK(&svc->end_work, nfr_svc_lane_end_work);
}

/**
 * nfr_svc_lanes_admit - let lanes join a connection
 * @svc: connection with a personality that has lanes, about to be accepted
 */
void nfr_svc_lanes_admit(struct nfr_svc *svc)
{
	if (svc->home)
		return;
	spin_lock_bh(&nfr_svc_lane_lock);
	list_add(&svc->known, &nfr_svc_lane_homes);
	spin_unlock_bh(&nfr_svc_lane_lock);
}

/**
 * nfr_svc_lanes_refuse - undo nfr_svc_lanes_admit()
 * @svc: connection without references, and therefore without lanes
 */
void nfr_svc_lanes_refuse(struct nfr_svc *svc)
{
	spin_lock_bh(&nfr_svc_lane_lock);
	list_del_init(&svc->known);
	spin_unlock_bh(&nfr_svc_lane_lock);
}

/**
 * nfr_svc_lanes_break - break all lanes of a connection
 * @svc: broken connection
 */
void nfr_svc_lanes_break(struct nfr_svc *svc)
{
	spin_lock_bh(&nfr_svc_lane_lock);
	nfr_svc_lanes_break_locked(svc, "the connection of this lane broke");
	spin_unlock_bh(&nfr_svc_lane_lock);
}

/**
 * nfr_svc_lane_latest - find the lane that joined a connection last
 * @svc: connection
 *
 * Return: lane with a reference for the caller, or NULL if there is none that works.
 */
struct nfr_svc *nfr_svc_lane_latest(struct nfr_svc *svc)
{
	struct nfr_svc *lane = NULL;

	spin_lock_bh(&nfr_svc_lane_lock);
	if (!list_empty(&svc->lanes))
		lane = list_last_entry(&svc->lanes, struct nfr_svc, joined);
	if (lane && (!nfr_conn_is_up(lane->conn) || !kref_get_unless_zero(&lane->xprt.xpt_ref)))
		lane = NULL;
	spin_unlock_bh(&nfr_svc_lane_lock);
	return lane;
}

/**
 * nfr_svc_lane_fit - set the profile of a lane
 * @lane: adopted lane
 *
 * Return: 0, or -EOPNOTSUPP if the device or the client is unsuitable.
 */
int nfr_svc_lane_fit(struct nfr_svc *lane)
{
	struct nfr_conn *conn = lane->conn;
	u32 sges = min_t(u32, conn->device->attrs.max_send_sge, NFR_LANE_SGES);
	u32 pages = FIELD_GET(NFR_LANE_PAGES, conn->peer.capabilities);
	int rc;

	if (sges <= NFR_LANE_SPARE_SGES || !pages)
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	rc = nfr_conn_fit_queue(conn, NFR_LANE_MESSAGES);
	if (rc)
		return rc;
	lane->lane_pages = min(pages, sges - NFR_LANE_SPARE_SGES);
	lane->grant = 1;
	conn->profile.receives = NFR_BATCH;
	conn->profile.sends = NFR_SVC_LANE_SENDS;
	conn->profile.send_sges = sges;
	conn->profile.recv_sges = 1;
	conn->profile.private = (struct nfr_private) {
		.extended = true, .token = conn->peer.token,
		.capabilities = nfr_variant_bit(NFR_PRE_POSTED) | NFR_LANE |
				FIELD_PREP(NFR_LANE_PAGES, lane->lane_pages),
	};
	return 0;
}
