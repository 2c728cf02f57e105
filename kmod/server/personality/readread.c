// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality read-read: the server of 2003 (wire/header2003.c). A Call provides no
 * memory for its Reply. What does not fit inline stays where it is, the Reply names
 * it, and the client reads it and sends a Done: the data of a READ or READLINK in a
 * chunk at its position, or the whole message in a chunk at position 0.
 *
 * There is no error message: the server ends the connection of a client that sends
 * what it cannot answer.
 */
#include <linux/sunrpc/xdr.h>

#include "connection/queues.h"
#include "connection/state.h"
#include "memory/region.h"
#include "observe/trace_server.h"
#include "server/branch.h"
#include "server/budget.h"
#include "server/call.h"
#include "server/expose.h"
#include "server/pages.h"
#include "server/reply.h"
#include "server/server.h"
#include "work.h"

/* Segments of a chunk; the client of this module accepts 64 */
#define NFR_SVC_EXPOSE_SEGS	32

/* Replies that determine how long the next ones will be */
#define NFR_SVC_LEARN		64

/* --- messages --- */

static void nfr_svc_readread_done(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	u32 xid = req->head.xid;
	struct nfr_svc_req *found = nfr_svc_expose_done(svc, xid);

	nfr_svc_advance(req, NFR_SVC_FREE);
	trace_nfsrdma_svc_done(svc, xid, nfr_svc_exposures(svc)->nexposed,
			       found ? "done" : "stray");
	nfr_svc_count(svc, dones, found ? 1 : 0);
	nfr_svc_count(svc, stray_dones, found ? 0 : 1);
	if (found)
		nfr_svc_advance(found, NFR_SVC_REVOKING);
}

/*
 * A Call of version 1 limits its Reply by Write chunks. This one gets a Write chunk
 * that no client sent, as long as recent Replies: the budget charges it, and nfsd's
 * first result belongs to it. A longer Reply raises the charge.
 */
static void nfr_svc_readread_room(struct nfr_svc_req *req)
{
	struct nfr_chunk *chunk = &req->chunks[NFR_SVC_CHUNKS - 1];

	*chunk = (struct nfr_chunk) { .nsegs = 1, .segs = &req->segs[NFR_SVC_SEGS - 1] };
	chunk->segs->length = max(READ_ONCE(nfr_svc_exposures(req->svc)->room), 1u) << PAGE_SHIFT;
	req->head.writes = chunk;
	req->head.nwrites = 1;
}

static void nfr_svc_readread_receive(struct nfr_svc_req *req)
{
	struct nfr_space space = {
		.chunks = req->chunks, .nchunks = NFR_SVC_CHUNKS - 1,
		.segs = req->segs, .nsegs = NFR_SVC_SEGS - 1,
	};
	int rc = nfr_wire_2003_decode(&req->head, &space, req->recv->data, req->recv->length);

	if (rc < 0) {
		nfr_svc_drop_and_break(req, "malformed transport header");
		return;
	}
	if (req->head.proc == NFR_DONE) {
		nfr_svc_readread_done(req);
		return;
	}
	req->rpc = req->recv->data + rc;
	req->rpc_length = req->recv->length - rc;
	nfr_svc_readread_room(req);
	nfr_svc_dispatch(req);
}

static int nfr_svc_readread_refuse(struct nfr_svc_req *req, enum nfr_error error)
{
	nfr_svc_count(req->svc, errors, 1);
	trace_nfsrdma_svc_error(req->svc, req->head.xid, "refused; no error message", 0);
	nfr_conn_break(req->svc->conn, "a Call has to be refused");
	return -EPROTO;
}

/* --- Replies --- */

/* How a Reply is conveyed: @span is the memory that the client reads, if any */
struct nfr_svc_readread_plan {
	struct nfr_header head;
	struct nfr_chunk chunk;
	struct nfr_span span;
	u32 length;		/* of the message without what the client reads */
};

/* Expect Replies as long as the longest of the last ones. nfsd threads may race; it is a guess. */
static void nfr_svc_readread_learn(struct nfr_svc_exposures *exposures, u32 pages)
{
	u32 longest = max(READ_ONCE(exposures->longest), pages);
	u32 count = READ_ONCE(exposures->nreplies) + 1;

	WRITE_ONCE(exposures->nreplies, count);
	if (pages > READ_ONCE(exposures->room) || count % NFR_SVC_LEARN == 0)
		WRITE_ONCE(exposures->room, longest);
	WRITE_ONCE(exposures->longest, count % NFR_SVC_LEARN ? longest : 0);
}

/* Check whether @length inline bytes fit, with a chunk of @span. */
static bool nfr_svc_readread_fits(const struct nfr_svc *svc, const struct nfr_span *span,
				  u32 length)
{
	u32 segs = nfr_mem_pool_regions(svc->pool, span);

	return (u64)NFR_WIRE_2003_MIN + segs * (8 + NFR_WIRE_SEGMENT) + length <=
	       svc->conn->send_size;
}

static bool nfr_svc_readread_is_inline(const struct nfr_svc_req *req, const struct xdr_buf *res)
{
	const struct nfr_conn *conn = req->svc->conn;

	return NFR_WIRE_2003_MIN + res->len <= conn->send_size &&
	       !(req->nresults && req->results[0].length >= conn->wanted.min_chunk);
}

/* Determine what the client reads: nothing, the result, or the whole message. */
static int nfr_svc_readread_choose(struct nfr_svc_req *req, const struct xdr_buf *res,
				   struct nfr_svc_readread_plan *plan)
{
	const struct nfr_result *result = req->results;
	int rc;

	req->by_chunk = false;
	plan->length = res->len;
	if (nfr_svc_readread_is_inline(req, res)) {
		req->nresults = 0;
		return 0;
	}
	plan->head.reads = &plan->chunk;
	plan->head.nreads = 1;
	plan->chunk.segs = req->segs;
	if (req->nresults && result->length && result->offset % 4 == 0) {
		plan->length -= min_t(u32, xdr_align_size(result->length),
				      res->len - result->offset);
		plan->chunk.position = result->offset;
		rc = nfr_svc_reply_span(res, result->offset, result->length, &plan->span);
		if (rc || nfr_svc_readread_fits(req->svc, &plan->span, plan->length))
			return rc;
	}
	req->nresults = 0;
	req->by_chunk = true;
	plan->head.proc = NFR_NOMSG;
	plan->chunk.position = 0;
	plan->length = 0;
	return nfr_svc_reply_span(res, 0, res->len, &plan->span);
}

/* Copy the inline part behind the header of @size bytes. */
static int nfr_svc_readread_copy(struct nfr_svc_req *req, const struct xdr_buf *res,
				 const struct nfr_svc_readread_plan *plan, u32 size)
{
	u32 before = req->nresults ? req->results[0].offset : plan->length;
	u32 after = plan->length - before;
	u8 *to = req->buffer + size;

	if (size + plan->length > req->svc->conn->send_size)
		return -EIO;
	return read_bytes_from_xdr_buf(res, 0, to, before) ?:
	       read_bytes_from_xdr_buf(res, res->len - after, to + before, after);
}

/*
 * Chain the registrations and the Send of a request, with or without an exposure
 * (nfr_svc_personality.finish).
 */
static int nfr_svc_readread_finish(struct nfr_svc_req *req, const struct nfr_header *head,
				   u32 length)
{
	int encoded = nfr_wire_2003_encode(head, req->buffer, req->svc->conn->send_size);

	if (!nfr_svc_req_prepare(req, encoded, length))
		return -EIO;
	/* no client invalidates memory of the server, or the server that of a client */
	req->send.opcode = IB_WR_SEND;
	req->signal = false;
	req->first = nfr_mem_post(&nfr_svc_exposed(req)->exposure, &req->send);
	nfr_svc_req_answered(req);
	return 0;
}

/* Prepare the message, and keep the pages that the client reads. */
static int nfr_svc_readread_build(struct nfr_svc_req *req, struct svc_rqst *rqstp,
				  struct nfr_svc_readread_plan *plan)
{
	u32 size = nfr_wire_2003_size(&plan->head);
	int rc;

	rc = nfr_svc_readread_copy(req, &rqstp->rq_res, plan, size);
	if (!rc && plan->head.nreads)
		rc = nfr_svc_pages_lend(req, rqstp, &plan->span);
	if (rc)
		return rc;
	trace_nfsrdma_svc_reply(req, &plan->head, plan->length);
	nfr_svc_count(req->svc, replies, 1);
	nfr_svc_count(req->svc, inline_bytes, plan->length);
	return nfr_svc_readread_finish(req, &plan->head, size + plan->length);
}

/* Returns -EINPROGRESS: the Reply is posted. */
static int nfr_svc_readread_expose(struct nfr_svc_req *req, struct svc_rqst *rqstp,
				   struct nfr_svc_readread_plan *plan)
{
	u32 length = nfr_mem_span_length(&plan->span);
	int rc;

	rc = nfr_svc_expose(req, &plan->span, &plan->chunk, NFR_SVC_EXPOSE_SEGS);
	if (rc)
		return rc;
	rc = nfr_svc_readread_build(req, rqstp, plan);
	if (rc) {
		nfr_svc_expose_undo(req);
		return rc;
	}
	nfr_svc_count(req->svc, exposures, 1);
	nfr_svc_count(req->svc, exposed_bytes, length);
	nfr_svc_advance(req, NFR_SVC_EXPOSED);
	return -EINPROGRESS;
}

static int nfr_svc_readread_reply(struct nfr_svc_req *req, const struct xdr_buf *res,
				  struct svc_rqst *rqstp)
{
	struct nfr_svc_readread_plan plan = {
		.head = {
			.xid = req->head.xid, .credits = READ_ONCE(req->svc->grant),
			.proc = NFR_MSG,
		},
	};
	int rc;

	nfr_svc_readread_learn(nfr_svc_exposures(req->svc), PFN_UP(res->len));
	rc = nfr_svc_readread_choose(req, res, &plan);
	if (rc)
		return rc;
	if (plan.head.nreads)
		return nfr_svc_readread_expose(req, rqstp, &plan);
	nfr_svc_budget_keep(req, 0);
	rc = nfr_svc_readread_build(req, rqstp, &plan);
	if (!rc)
		nfr_svc_pages_restore(req, rqstp);
	return rc;
}

/* --- the end of the client's access --- */

static void nfr_svc_readread_revoke_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_svc_exposed *exposed = container_of(wc->wr_cqe, struct nfr_svc_exposed,
						       revoke_cqe);
	struct nfr_svc_req *req = nfr_svc_exposed_req(exposed);
	struct nfr_conn *conn = req->svc->conn;

	/* on failure, the request is freed with the connection */
	if (!nfr_conn_check(conn, wc))
		return;
	nfr_svc_expose_end(req);
	nfr_svc_advance(req, NFR_SVC_FREE);
	conn->ops->writable(conn);
}

/* End the client's access to a Reply. The send queue has passed the Reply when that is done. */
static void nfr_svc_readread_revoke(struct nfr_svc_req *req)
{
	nfr_svc_exposed(req)->revoke_cqe.done = nfr_svc_readread_revoke_done;
	nfr_svc_expose_revoke(req);
}

/* End the exposure of Replies without a Done, or the connection. */
static void nfr_svc_readread_expire(struct work_struct *work)
{
	struct nfr_svc_exposures *exposures = container_of(work, struct nfr_svc_exposures,
							   expire.work);
	struct nfr_svc *svc = exposures->svc;
	struct nfr_svc_req *req, *next;
	LIST_HEAD(late);

	if (nfr_svc_expose_late(svc, &late))
		nfr_work_queue(&exposures->expire, NFR_SVC_EXPOSE_CHECK);
	list_for_each_entry_safe(req, next, &late, list) {
		trace_nfsrdma_svc_done(svc, req->head.xid, nfr_svc_exposures(svc)->nexposed,
				       "timeout");
		nfr_svc_count(svc, done_timeouts, 1);
		nfr_svc_advance(req, NFR_SVC_REVOKING);
	}
	if (nfr_svc_expose_is_stuck(svc))
		nfr_conn_break(svc->conn, "an invalidation takes too long");
}

/* --- life --- */

static int nfr_svc_readread_agree(struct nfr_svc *svc, const struct rdma_conn_param *param)
{
	int rc = param->responder_resources ? nfr_svc_expose_init(svc) : -EOPNOTSUPP;

	if (rc)
		return rc;
	INIT_DELAYED_WORK(&nfr_svc_exposures(svc)->expire, nfr_svc_readread_expire);
	svc->conn->profile.reads_served = param->responder_resources;
	return 0;
}

/* Each Call may have a Done; its Reply may need a registration and an invalidation. */
static int nfr_svc_readread_fit(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;
	u32 both = conn->wanted.credits + min_t(u32, conn->wanted.credits,
						attrs->max_qp_wr - NFR_QUEUE_SPARE -
						conn->wanted.credits);

	conn->wanted.credits = max(both / 2, 1u);
	profile->dones = conn->wanted.credits;
	profile->sends += 2 * conn->wanted.credits;
	profile->reads_served = min_t(int, profile->reads_served, attrs->max_qp_rd_atom);
	return 0;
}

static void nfr_svc_readread_destroy(struct nfr_svc *svc)
{
	cancel_delayed_work_sync(&nfr_svc_exposures(svc)->expire);
	nfr_svc_expose_destroy(svc);
}

static void nfr_svc_readread_show(const struct nfr_svc *svc, struct seq_file *seq)
{
	seq_printf(seq, "exposed_pages %d\n", atomic_read(&nfr_svc_exposures(svc)->pages));
	seq_printf(seq, "dones_outstanding %u\n", READ_ONCE(nfr_svc_exposures(svc)->nexposed));
}

const struct nfr_svc_personality nfr_svc_readread = {
	.number		= NFR_READ_READ,
	.request_size	= sizeof(struct nfr_svc_exposed),
	.conn		= NFR_SVC_FIRST_OPS(nfr_svc_writable),
	.totals		= nfr_svc_expose_totals,
	.agree		= nfr_svc_readread_agree,
	.fit		= nfr_svc_readread_fit,
	.destroy	= nfr_svc_readread_destroy,
	.show		= nfr_svc_readread_show,
	.init		= nfr_svc_expose_init_request,
	.receive	= nfr_svc_readread_receive,
	.inspect	= nfr_svc_reply_results,
	.reply		= nfr_svc_readread_reply,
	.refuse		= nfr_svc_readread_refuse,
	.exposed	= nfr_svc_expose_posted,
	.revoke		= nfr_svc_readread_revoke,
	.size		= nfr_wire_2003_size,
	.finish		= nfr_svc_readread_finish,
};
