// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality read-read: the client of 2003 (wire/header2003.c). A Call offers no
 * memory for its Reply. A Reply that does not fit inline stays with the server and
 * names its data, or all of it, in a chunk. The client reads it and sends a Done.
 */
#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"
#include "connection/receive.h"

/* --- checks --- */

/* The inline part ends where the data begins, or goes on behind it. */
static int nfr_client_readread_check_data(struct nfr_req *req, const struct nfr_chunk *chunk)
{
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 length = nfr_wire_length(chunk);

	if (!chunk->position || chunk->position > req->rpc_length ||
	    chunk->position > rcv->head[0].iov_len || !length || length > rcv->page_len)
		return -EIO;
	req->read_at = chunk->position;
	req->read_length = length;
	return 0;
}

static int nfr_client_readread_check_whole(struct nfr_req *req, const struct nfr_chunk *chunk)
{
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u64 room = rcv->head[0].iov_len + rcv->page_len + rcv->tail[0].iov_len;
	u32 length = nfr_wire_length(chunk);

	if (chunk->position || req->rpc_length || !length || length > room)
		return -EIO;
	req->read_at = 0;
	req->read_length = length;
	return 0;
}

/*
 * Check that the reply buffer has room for what the Reply names. Returns 0, or -EIO,
 * which ends the RPC: another attempt would get the same Reply.
 */
static int nfr_client_readread_check(struct nfr_req *req, const struct nfr_header *head)
{
	if (head->nreads > 1)
		return -EIO;
	if (head->proc == NFR_MSG)
		return head->nreads ? nfr_client_readread_check_data(req, head->reads) : 0;
	return head->nreads ? nfr_client_readread_check_whole(req, head->reads) : -EIO;
}

/* --- receiving --- */

static void nfr_client_readread_answer(struct nfr_conn *conn, struct nfr_req *req,
				       const struct nfr_header *head)
{
	int rc = nfr_client_readread_check(req, head);

	if (!rc && head->nreads) {
		nfr_client_fetch(conn, req, head->reads);
		return;
	}
	req->result = req->rpc_length ? rc : -EIO;
	if (head->nreads)
		nfr_client_fetch_refuse(conn, req);
	else
		nfr_client_reply_finish(conn, req);
}

static void nfr_client_readread_reply(struct nfr_conn *conn, struct nfr_recv *recv,
				      const struct nfr_header *head, const void *rpc, u32 length)
{
	struct nfr_req *req = nfr_client_reply_find(conn, head->xid);

	nfr_client_link_of(conn)->replies++;
	nfr_conn_grant(conn, head->credits);
	if (req) {
		req->recv = recv;
		req->reserved = 0;
		req->rpc = rpc;
		req->rpc_length = length;
		nfr_client_readread_answer(conn, req, head);
	} else {
		if (head->nreads)
			nfr_client_fetch_discard(conn, head->xid);
		nfr_client_reply_discard(conn, recv, head->xid);
	}
	conn->ops->writable(conn);
}

static void nfr_client_readread_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_link *link = nfr_client_link_of(conn);
	struct nfr_space space = {
		.chunks = link->chunks, .nchunks = NFR_DECODE_CHUNKS,
		.segs = link->segs, .nsegs = NFR_DECODE_SEGS,
	};
	struct nfr_header head = { };
	const void *rpc;
	u32 length;
	int header;

	header = nfr_wire_2003_decode(&head, &space, recv->data, recv->length);
	/* the server reads nothing that a Done could end */
	if (header >= 0 && head.proc == NFR_DONE)
		header = -EPROTO;
	if (header < 0) {
		nfr_client_reply_malformed(conn, recv, head.xid, header);
		return;
	}
	rpc = recv->data + header;
	length = recv->length - header;
	if (head.proc != NFR_MSG || !nfr_wire_is_call(rpc, length)) {
		nfr_client_readread_reply(conn, recv, &head, rpc, length);
		return;
	}
	nfr_client_callback_receive(conn, head.xid, rpc, length);
	nfr_conn_recv_return(conn, recv);
}

const struct nfr_personality nfr_client_version0 = {
	.marshal	= nfr_client_marshal_2003,
	.receive	= nfr_client_readread_receive,
	.send		= nfr_client_send_2003,
	.drained	= nfr_client_fetch_drained,
};
