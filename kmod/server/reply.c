// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send Replies: choose how the parts of a Reply are conveyed, and answer Calls
 * that cannot be served (RFC 8166, sections 3.5.3 and 4.5).
 *
 * All checks precede the first RDMA Write to memory of the client. The RDMA
 * Writes and the Send, from a buffer of the request, are posted with one
 * doorbell.
 */
#include <linux/sunrpc/xdr.h>

#include "server/server.h"
#include "observe/trace_server.h"

/**
 * nfr_svc_result_payload - record a DDP-eligible result (svc_xprt_ops.xpo_result_payload)
 * @rqstp: nfsd thread's request
 * @offset: offset of the result in the Reply, in bytes
 * @length: length of the result in bytes, without padding
 *
 * The n-th result belongs to the n-th Write chunk: RFC 8267, section 2.
 *
 * Return: 0.
 */
int nfr_svc_result_payload(struct svc_rqst *rqstp, unsigned int offset, unsigned int length)
{
	struct nfr_svc_req *req = rqstp->rq_xprt_ctxt;

	if (!req || req->nresults == min_t(u32, req->head.nwrites, NFR_SVC_RESULTS))
		return 0;
	req->results[req->nresults++] = (struct nfr_result) {
		.offset = offset, .length = length,
	};
	return 0;
}

/* krb5i and krb5p wrap the whole message, so that no part of it is DDP-eligible. */
static bool nfr_reply_is_wrapped(const struct svc_rqst *rqstp)
{
	u32 flavor = rqstp->rq_cred.cr_flavor;

	return flavor == RPC_AUTH_GSS_KRB5I || flavor == RPC_AUTH_GSS_KRB5P;
}

/* --- sending --- */

/* Collect the key of a chunk. Returns false if the chunk has a key other than @found. */
static bool nfr_reply_one_key(const struct nfr_chunk *chunk, const struct nfr_segment **found)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		if (*found && (*found)->handle != chunk->segs[i].handle)
			return false;
		*found = &chunk->segs[i];
	}
	return true;
}

/*
 * Get the only key of a Call, or NULL. If there are several, the client has to
 * invalidate the others itself and can do so with one chain: do not invalidate
 * any (RFC 8797, section 4).
 */
static const struct nfr_segment *nfr_reply_only_key(const struct nfr_header *head)
{
	const struct nfr_segment *found = NULL;
	bool one = !head->reply || nfr_reply_one_key(head->reply, &found);
	u32 i;

	for (i = 0; one && i < head->nwrites; i++)
		one = nfr_reply_one_key(&head->writes[i], &found);
	for (i = 0; one && i < head->nreads; i++)
		one = nfr_reply_one_key(&head->reads[i], &found);
	return one ? found : NULL;
}

static void nfr_reply_invalidate(struct nfr_svc_req *req)
{
	const struct nfr_segment *key = nfr_reply_only_key(&req->head);

	if (!req->svc->peer.remote_invalidation || !key)
		return;
	req->send.opcode = IB_WR_SEND_WITH_INV;
	req->send.ex.invalidate_rkey = key->handle;
	nfr_svc_count(req->svc, remote_invs, 1);
}

/**
 * nfr_svc_send - post the RDMA Writes and the Send of a request
 * @req: request with the message in its buffer
 * @head: header; encoded in front of the message
 * @length: length of header and message in bytes
 */
void nfr_svc_send(struct nfr_svc_req *req, const struct nfr_header *head, u32 length)
{
	struct nfr_conn *conn = req->svc->conn;

	if (nfr_wire_encode(head, req->buffer, conn->send_size) < 0) {
		nfr_svc_req_put(req);
		nfr_conn_break(conn, "no room for the header of a Reply");
		return;
	}
	ib_dma_sync_single_for_device(conn->device, req->addr, length, DMA_TO_DEVICE);
	req->sge = (struct ib_sge) {
		.addr = req->addr, .length = length, .lkey = conn->pd->local_dma_lkey,
	};
	req->send.wr_cqe = &conn->signal_cqe;
	req->send.sg_list = &req->sge;
	req->send.num_sge = 1;
	req->send.send_flags = 0;
	req->send.next = NULL;
	/* release unused pages: other Calls may wait for them */
	nfr_budget_keep(req, nfr_rw_bytes(req));
	req->signal = req->reply_pages;
	req->first = nfr_rw_chain(req, NULL, &req->send);
	req->replies = true;
	nfr_svc_req_answered(req);
	nfr_svc_post(req);
}

/**
 * nfr_svc_refuse - answer a Call with RDMA_ERROR
 * @req: Call, which no nfsd thread uses
 * @error: error code
 */
void nfr_svc_refuse(struct nfr_svc_req *req, enum nfr_error error)
{
	struct nfr_header head = {
		.xid = req->head.xid, .credits = READ_ONCE(req->svc->grant), .proc = NFR_ERROR,
		.error = error, .vers_low = NFR_WIRE_VERSION, .vers_high = NFR_WIRE_VERSION,
	};

	nfr_rw_destroy_all(req);
	nfr_svc_count(req->svc, errors, 1);
	trace_nfsrdma_svc_error(req->svc, req->head.xid,
				error == NFR_ERR_VERS ? "ERR_VERS" : "ERR_CHUNK", 0);
	req->send.opcode = IB_WR_SEND;
	nfr_svc_send(req, &head, nfr_wire_size(&head));
}

/* Returns 0, -EMSGSIZE if the client provided too little room, -ENOMEM or -EIO. */
static int nfr_reply_send(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	struct nfr_header head = {
		.xid = req->head.xid, .credits = READ_ONCE(req->svc->grant), .proc = NFR_MSG,
		.nwrites = req->head.nwrites, .writes = req->head.writes,
		.reply = req->head.reply,
	};
	u32 room = req->svc->conn->send_size, size = nfr_wire_size(&head), length;
	int rc;

	if (!nfr_reply_results_fit(req, res->len) || size > room)
		return -EMSGSIZE;
	length = nfr_reply_rest(req, res);
	if (length > room - size) {
		if (!head.reply || nfr_wire_length(head.reply) < length)
			return -EMSGSIZE;
		head.proc = NFR_NOMSG;
	}
	req->send.opcode = IB_WR_SEND;
	nfr_reply_invalidate(req);
	rc = nfr_reply_write_list(req, res);
	if (!rc)
		rc = head.proc == NFR_MSG ? nfr_reply_inline(req, size, res) :
					    nfr_reply_by_chunk(req, res, length);
	if (rc)
		return rc;
	trace_nfsrdma_svc_reply(req, &head, length);
	nfr_svc_count(req->svc, replies, 1);
	nfr_svc_count(req->svc, inline_bytes, head.proc == NFR_MSG ? length : 0);
	nfr_svc_send(req, &head, head.proc == NFR_MSG ? size + length : size);
	return 0;
}

/**
 * nfr_svc_sendto - send the Reply of an nfsd thread (svc_xprt_ops.xpo_sendto)
 * @rqstp: nfsd thread's request with the Reply in rq_res
 *
 * Context: Does not sleep for the network.
 *
 * Return: 0, or a negative errno if the connection breaks instead; then the
 * client sends the Call again on its next connection.
 */
int nfr_svc_sendto(struct svc_rqst *rqstp)
{
	struct nfr_svc_req *req = rqstp->rq_xprt_ctxt;
	int rc;

	if (!req)
		return -ENOTCONN;
	rqstp->rq_xprt_ctxt = NULL;
	if (nfr_reply_is_wrapped(rqstp))
		req->nresults = 0;
	nfr_reply_place_results(req, &rqstp->rq_res);
	rc = nfr_reply_send(req, &rqstp->rq_res);
	if (rc == -EMSGSIZE) {
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
		return 0;
	}
	if (rc) {
		nfr_conn_break(req->svc->conn, "sending a Reply failed");
		nfr_svc_req_put(req);
	}
	return rc;
}
