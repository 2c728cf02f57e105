// SPDX-License-Identifier: GPL-2.0-only
/*
 * The branch of a client with the personality optimistic. It joins the first
 * one by its token, as a lane does, and carries no RPC: the client reads the server's page
 * cache over it, and the server sends notices, which grant references and revoke them.
 *
 * The server registers memory on this connection, in a protection domain of its own. A
 * refused RDMA Read ends this connection at most, and no message of a client can delay an
 * invalidation: notices need credits, so that they find a receive, and an invalidation
 * waits for nothing else.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "connection/cm.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "observe/trace_server.h"
#include "server/expose.h"
#include "server/optimistic/optimistic.h"

/* Size of the send queue: registrations, notices, and a batch of invalidations */
#define NFR_SVC_NOTICE_SENDS	256

/* Bytes that a notice occupies in the ring: a cache line of the largest */
#define NFR_SVC_NOTICE_BYTES	128

/* Room in the send queue that a notice needs: it leaves that for a batch of invalidations */
#define NFR_SVC_NOTICE_ROOM	(1 + NFR_SVC_REVOKED_MAX + 1)

/* Receives for the credits that the client returns */
#define NFR_SVC_NOTICE_RECVS	(2 * NFR_BATCH)

/* --- sending --- */

/*
 * Encode @notice into the next buffer of the ring. Returns false if the client has no receive for
 * it (no credit), or the buffer is in use. Caller holds the lock.
 */
static bool nfr_svc_notice_encode(struct nfr_svc *branch, const struct nfr_notice *notice,
				  struct ib_sge *sge)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	u32 slot = notices->sent % NFR_NOTICES;
	u64 addr = notices->addr + slot * NFR_SVC_NOTICE_BYTES;
	struct nfr_conn *conn = branch->conn;

	if (!notices->credits ||
	    (notices->sent >= NFR_NOTICES && !nfr_conn_is_retired(conn, notices->marks[slot])))
		return false;
	*sge = (struct ib_sge) {
		.addr = addr, .lkey = conn->pd->local_dma_lkey,
		.length = nfr_wire_encode_notice(notice, notices->ring +
						 slot * NFR_SVC_NOTICE_BYTES),
	};
	ib_dma_sync_single_for_device(conn->device, addr, sge->length, DMA_TO_DEVICE);
	return true;
}

/* Account for the notice that was posted last. Caller holds the lock. */
static void nfr_svc_notice_posted(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);

	notices->marks[notices->sent % NFR_NOTICES] = nfr_conn_mark(branch->conn);
	notices->sent++;
	notices->credits--;
}

/*
 * Send the revocations that found no credit. Caller holds the lock. Returns 0 if none wait any
 * more, -EAGAIN, or -ENOTCONN; then the caller has to break the connection.
 */
static int nfr_svc_notice_send_late(struct nfr_svc *branch)
{
	struct nfr_notice notice = { .kind = NFR_NOTICE_REVOKE };
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	struct nfr_conn *conn = branch->conn;
	struct ib_sge sge;
	int rc;

	while (notices->nlate) {
		struct ib_send_wr send = {
			.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND, .sg_list = &sge,
			.num_sge = 1,
		};

		rc = nfr_conn_sq_admit(&conn->sq, NFR_SVC_NOTICE_ROOM);
		if (rc)
			return rc;
		notice.count = min_t(u32, notices->nlate, NFR_WIRE_REVOKED_MAX);
		memcpy(notice.handles, notices->late + notices->nlate - notice.count,
		       notice.count * sizeof(*notice.handles));
		if (!nfr_svc_notice_encode(branch, &notice, &sge))
			return -EAGAIN;
		nfr_conn_sq_take(&conn->sq, 1, &send, true);
		if (nfr_conn_submit(conn, &send))
			return -ENOTCONN;
		nfr_svc_notice_posted(branch);
		notices->nlate -= notice.count;
	}
	return 0;
}

/* Have revocations wait for a credit. Returns false if too many do. Caller holds the lock. */
static bool nfr_svc_notice_defer(struct nfr_svc_notices *notices, const struct nfr_notice *notice)
{
	if (notice->count > NFR_SVC_LATE_MAX - notices->nlate)
		return false;
	memcpy(notices->late + notices->nlate, notice->handles,
	       notice->count * sizeof(*notice->handles));
	notices->nlate += notice->count;
	return true;
}

/*
 * Check whether a grant can be announced, before work for it. Returns false if the client has
 * returned too few credits, also for revocations, or if the device has refused to end an exposure.
 */
bool nfr_svc_notice_may_grant(struct nfr_svc *branch)
{
	struct nfr_conn *conn = branch->conn;
	int rc;

	/* it might not end the grant */
	if (nfr_mem_device_refuses(conn->device))
		return false;
	spin_lock_bh(&conn->lock);
	rc = nfr_svc_notice_send_late(branch);
	if (!rc && !nfr_svc_notices(branch)->credits)
		rc = -EAGAIN;
	spin_unlock_bh(&conn->lock);
	if (rc == -ENOTCONN)
		nfr_conn_break(conn, "posting a notice failed");
	return !rc;
}

/**
 * nfr_svc_notice_grant - register memory, and send the notice that names it
 * @branch: branch of a client
 * @notice: grant
 * @exposure: mapped memory to register first; empty if it is registered already
 *
 * All earlier revocations precede the notice: a client never holds a handle that the server has
 * revoked when it gets a grant with the same one.
 *
 * Return: 0, -EAGAIN if the client has returned too few credits or the send queue is full, or
 * -ENOTCONN; then the memory is not registered, or the connection broken.
 */
int nfr_svc_notice_grant(struct nfr_svc *branch, const struct nfr_notice *notice,
			 struct nfr_exposure *exposure)
{
	struct nfr_conn *conn = branch->conn;
	struct ib_sge sge;
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1,
	};
	u32 count = 1 + exposure->count - exposure->valid;
	int rc;

	spin_lock_bh(&conn->lock);
	rc = nfr_svc_notice_send_late(branch);
	if (!rc)
		rc = nfr_conn_sq_admit(&conn->sq, count - 1 + NFR_SVC_NOTICE_ROOM);
	if (!rc && !nfr_svc_notice_encode(branch, notice, &sge))
		rc = -EAGAIN;
	if (!rc) {
		nfr_conn_sq_take(&conn->sq, count, &send, true);
		rc = nfr_conn_submit(conn, nfr_mem_post(exposure, &send));
		nfr_svc_notice_posted(branch);
	}
	spin_unlock_bh(&conn->lock);
	if (rc == -ENOTCONN)
		nfr_conn_break(conn, "posting a notice failed");
	return rc;
}

/**
 * nfr_svc_notice_revoke - announce invalidations, and post them
 * @branch: branch of a client
 * @notice: handles to invalidate; without a credit, sent when the client returns one
 * @first: first invalidation
 * @last: last invalidation, with its completion
 *
 * Return: 0 or -ENOTCONN; then the caller has to fence the connection.
 */
int nfr_svc_notice_revoke(struct nfr_svc *branch, const struct nfr_notice *notice,
			  struct ib_send_wr *first, struct ib_send_wr *last)
{
	struct nfr_conn *conn = branch->conn;
	struct ib_sge sge;
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1,
		.next = first,
	};
	bool told, kept = true;
	int rc;

	spin_lock_bh(&conn->lock);
	told = nfr_svc_notice_encode(branch, notice, &sge);
	rc = nfr_conn_post(conn, told ? &send : first, last, notice->count + told, true);
	if (!rc && told)
		nfr_svc_notice_posted(branch);
	else if (!rc)
		kept = nfr_svc_notice_defer(nfr_svc_notices(branch), notice);
	spin_unlock_bh(&conn->lock);
	if (!kept)
		nfr_conn_break(conn, "the client returned no credits for revocations");
	return rc ? -ENOTCONN : 0;
}

/* --- receiving --- */

/**
 * nfr_svc_notice_receive - accept the credits that a client returns
 * @conn: branch
 * @recv: message
 *
 * Context: Completion handler.
 */
void nfr_svc_notice_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_svc *branch = conn->owner;
	struct nfr_notice notice;
	bool sound, late = false;
	int rc = 0;

	sound = !nfr_wire_decode_notice(&notice, recv->data, recv->length) &&
		notice.kind == NFR_NOTICE_CREDIT;
	if (sound) {
		spin_lock_bh(&conn->lock);
		sound = notice.count <= NFR_NOTICES - nfr_svc_notices(branch)->credits;
		if (sound) {
			nfr_svc_notices(branch)->credits += notice.count;
			late = nfr_svc_notices(branch)->nlate;
			rc = nfr_svc_notice_send_late(branch);
		}
		spin_unlock_bh(&conn->lock);
	}
	nfr_conn_recv_return(conn, recv);
	if (!sound)
		nfr_conn_break(conn, "malformed notice");
	else if (rc == -ENOTCONN)
		nfr_conn_break(conn, "posting a notice failed");
	else if (late && !rc)
		nfr_svc_notices(branch)->credited(branch);
}

/* --- life --- */

/**
 * nfr_svc_notice_agree - prepare a branch
 * @branch: new connection
 * @param: parameters of the connection request
 *
 * Return: 0, -EOPNOTSUPP if the device is unsuitable, or -ENOMEM.
 */
int nfr_svc_notice_agree(struct nfr_svc *branch, const struct rdma_conn_param *param)
{
	struct nfr_svc_notices *notices = kzalloc(sizeof(*notices), NFR_GFP_RETRIED);
	struct nfr_conn *conn = branch->conn;

	if (!notices)
		return -ENOMEM;
	if (nfr_svc_pool_init(branch, &notices->pool)) {
		kfree(notices);
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	}
	notices->branch = branch;
	notices->credits = NFR_NOTICES;
	*(struct nfr_svc_notices **)nfr_svc_own(branch) = notices;
	conn->wanted.inline_send = NFR_SVC_NOTICE_INLINE;
	conn->wanted.inline_recv = NFR_SVC_NOTICE_INLINE;
	conn->wanted.credits = NFR_SVC_NOTICE_RECVS;
	conn->profile.reads_served = param->responder_resources;
	return 0;
}

static int nfr_svc_notice_map(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	struct ib_device *device = branch->conn->device;
	u64 addr;

	notices->ring = kmalloc(NFR_NOTICES * NFR_SVC_NOTICE_BYTES, NFR_GFP_RETRIED);
	if (!notices->ring)
		return -ENOMEM;
	addr = ib_dma_map_single(device, notices->ring, NFR_NOTICES * NFR_SVC_NOTICE_BYTES,
				 DMA_TO_DEVICE);
	if (ib_dma_mapping_error(device, addr)) {
		kfree(notices->ring);
		notices->ring = NULL;
		return -ENOMEM;
	}
	notices->addr = addr;
	return 0;
}

/**
 * nfr_svc_notice_fit - set the profile of a branch
 * @branch: adopted connection
 *
 * Return: 0, -EOPNOTSUPP if the device or the client is unsuitable, or -ENOMEM.
 */
int nfr_svc_notice_fit(struct nfr_svc *branch)
{
	struct nfr_conn *conn = branch->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;
	int rc = nfr_conn_fit_queue(conn, NFR_SVC_REVOKED_MAX + 2);

	if (rc)
		return rc;
	nfr_svc_notices(branch)->order = ilog2(min_t(u32, branch->pool->depth,
					     (1 << NFR_EXTENT_ORDER_MAX) / NFR_UNITS_PER_PAGE));
	profile->receives = NFR_SVC_NOTICE_RECVS;
	profile->sends = NFR_SVC_NOTICE_SENDS;
	profile->send_sges = 1;
	profile->recv_sges = 1;
	profile->reads_served = min_t(int, profile->reads_served, attrs->max_qp_rd_atom);
	profile->reads_issued = 0;
	profile->private = (struct nfr_private) {
		.extended = true, .token = conn->peer.token,
		.capabilities = nfr_personality_bit(branch->personality->number) | NFR_LANE |
				FIELD_PREP(NFR_EXTENT_ORDER, nfr_svc_notices(branch)->order +
					   PAGE_SHIFT - NFR_UNIT_SHIFT),
	};
	return nfr_svc_notice_map(branch);
}

/**
 * nfr_svc_notice_destroy - free what a branch has beside its queues
 * @branch: drained connection without grants
 */
void nfr_svc_notice_destroy(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);

	if (notices->ring)
		ib_dma_unmap_single(branch->conn->device, notices->addr,
				    NFR_NOTICES * NFR_SVC_NOTICE_BYTES, DMA_TO_DEVICE);
	nfr_mem_pool_destroy(&notices->pool);
	kfree(notices->ring);
	kfree(notices);
}
