// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality read-read: the client of 2003 (wire/header2003.c). A Call offers no
 * memory for its Reply. A Reply that does not fit inline stays with the server and
 * names its data, or all of it, in a chunk. The client reads it by RDMA Reads into the
 * reply buffer, and sends a Done.
 *
 * The request stays pinned meanwhile, so that its task, even if it is killed, waits
 * until the device does not write to its memory any more. A Read needs memory and
 * room in the send queue, a Done needs room; a Reply that cannot continue waits in a
 * list, which nfr_conn.lock protects. Completions make room, a worker makes memory.
 *
 * If the connection breaks, the Call of an incomplete Reply is sent again on the next
 * one: nfr_client_fetch_drained() releases the request without completing the RPC, when
 * the connection has ended.
 */
#include <linux/highmem.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/region.h"
#include "observe/trace.h"
#include "work.h"

/* Scatter-gather elements per RDMA Read, and pages of the largest Reply */
#define NFR_READ_SGES		32u
#define NFR_READ_PAGES		260

/* Segments and parts of a Reply, each of which takes an RDMA Read of its own */
#define NFR_READ_CONTEXTS	(NFR_DECODE_SEGS + 8)

/* Done messages under way, and the bytes that each occupies: a cache line of the largest */
#define NFR_DONES		64
#define NFR_DONE_BYTES		128

/* Delay before the next attempt to prepare RDMA Reads after an allocation failure */
#define NFR_FETCH_AGAIN		(HZ / 10)

/* Interval of the check that RDMA Reads complete */
#define NFR_FETCH_WATCH		(20 * HZ)

/**
 * struct nfr_fetch - RDMA Reads of a Reply (its nfr_req.own)
 * @transfer: operations
 * @first: their work requests, of which @last is the last
 * @last: see @first
 * @count: number of work requests
 * @cqe: their completion
 * @at: position of the data that they fetch; 0 for the whole message
 * @length: number of bytes that they fetch
 */
struct nfr_fetch {
	struct nfr_transfer transfer;
	struct ib_send_wr *first;
	struct ib_send_wr *last;
	u32 count;
	struct ib_cqe cqe;
	u32 at;
	u32 length;
};

/**
 * struct nfr_fetcher - RDMA Reads of a connection's Replies
 * @conn: connection
 * @starved: requests that wait for memory
 * @waiting: requests that wait for room in the send queue
 * @reading: requests whose RDMA Reads are posted
 * @again: work that prepares RDMA Reads for @starved
 * @watch: work that checks that RDMA Reads complete
 * @ended: number of Replies that were read
 * @watched: value of @ended at the last check
 * @chunks: chunks of a message that @again decodes
 * @segs: segments of that message
 * @dones: ring of Done messages, mapped at @addr
 * @addr: DMA address of @dones
 * @ndones: number of Done messages sent
 * @marks: position of the send queue after each message of the ring
 */
struct nfr_fetcher {
	struct nfr_conn *conn;
	struct list_head starved;
	struct list_head waiting;
	struct list_head reading;
	struct delayed_work again;
	struct delayed_work watch;
	u32 ended;
	u32 watched;
	struct nfr_chunk chunks[NFR_DECODE_CHUNKS];
	struct nfr_segment segs[NFR_DECODE_SEGS];
	u8 *dones;
	u64 addr;
	u32 ndones;
	u32 marks[NFR_DONES];
};

static struct nfr_fetch *nfr_client_fetch_of(const struct nfr_req *req)
{
	return (struct nfr_fetch *)req->own;
}

static void nfr_client_fetch_init(struct nfr_req *req)
{
	nfr_mem_transfer_init(&nfr_client_fetch_of(req)->transfer, NULL);
}

/* RDMA Reads of Replies, or NULL: the nfr_link.own of a connection */
static struct nfr_fetcher **nfr_client_fetcher_slot(const struct nfr_conn *conn)
{
	return (struct nfr_fetcher **)&nfr_client_link_of(conn)->own;
}

static struct nfr_fetcher *nfr_client_fetcher_of(const struct nfr_conn *conn)
{
	return *nfr_client_fetcher_slot(conn);
}

static u32 nfr_client_fetch_xid(const struct nfr_req *req)
{
	return be32_to_cpu(req->rqst.rq_xid);
}

/* --- the reply buffer --- */

/* Part of a reply buffer: no gap within it, as devices that need an MR require */
static int nfr_client_fetch_part(struct nfr_req *req, struct nfr_cursor *cursor,
				 struct nfr_span span)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);

	return nfr_mem_transfer_add(&fetch->transfer, cursor, &span, nfr_mem_span_length(&span),
				    DMA_FROM_DEVICE);
}

/* Prepare RDMA Reads of the whole message into head, pages and tail. */
static int nfr_client_fetch_whole(struct nfr_req *req, struct nfr_cursor *cursor)
{
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 left = nfr_client_fetch_of(req)->length;
	struct nfr_span head = {
		.head = { .iov_base = rcv->head[0].iov_base,
			  .iov_len = min_t(u32, rcv->head[0].iov_len, left) },
	};
	struct nfr_span pages = { .pages = rcv->pages, .page_base = rcv->page_base };
	struct nfr_span tail = { .tail.iov_base = rcv->tail[0].iov_base };

	left -= head.head.iov_len;
	pages.page_len = min(left, rcv->page_len);
	tail.tail.iov_len = left - pages.page_len;
	return nfr_client_fetch_part(req, cursor, head) ?:
	       nfr_client_fetch_part(req, cursor, pages) ?:
	       nfr_client_fetch_part(req, cursor, tail);
}

/* Prepare RDMA Reads of the data into pages. */
static int nfr_client_fetch_data(struct nfr_req *req, struct nfr_cursor *cursor)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;

	return nfr_client_fetch_part(req, cursor, (struct nfr_span) {
		.pages = rcv->pages, .page_base = rcv->page_base, .page_len = fetch->length,
	});
}

/* Returns 0, or a negative errno if the request has no RDMA Reads. */
static int nfr_client_fetch_prepare(struct nfr_conn *conn, struct nfr_req *req,
				    const struct nfr_chunk *chunk, gfp_t gfp)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);
	struct nfr_cursor cursor = { .chunk = chunk };
	int rc;

	fetch->transfer.id = conn->id;
	fetch->transfer.gfp = gfp;
	rc = fetch->at ? nfr_client_fetch_data(req, &cursor) :
			 nfr_client_fetch_whole(req, &cursor);
	if (rc)
		nfr_mem_transfer_destroy_all(&fetch->transfer);
	return rc;
}

/* Copy inline bytes that follow the data in the XDR stream. Returns the number that found room. */
static u32 nfr_client_fetch_place_rest(struct xdr_buf *rcv, u32 at, const u8 *from, u32 length)
{
	u32 done = 0, n;

	while (done < length && at < rcv->page_len) {
		u32 to = rcv->page_base + at;

		n = min3(length - done, rcv->page_len - at,
			 (u32)(PAGE_SIZE - offset_in_page(to)));
		memcpy_to_page(rcv->pages[to >> PAGE_SHIFT], offset_in_page(to), from + done, n);
		done += n;
		at += n;
	}
	at -= min(at, rcv->page_len);
	if (at > rcv->tail[0].iov_len)
		return done;
	n = min_t(u32, length - done, rcv->tail[0].iov_len - at);
	memcpy(rcv->tail[0].iov_base + at, from + done, n);
	return done + n;
}

/* Copy the inline part around the data that was read, and set the result of the Reply. */
static void nfr_client_fetch_place(struct nfr_req *req)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 length = xdr_align_size(fetch->length), rest;

	req->result = fetch->length;
	if (!fetch->at)
		return;
	memcpy(rcv->head[0].iov_base, req->rpc, fetch->at);
	/* XDR decoding continues in the pages where the inline part ends: cut the head there */
	rcv->head[0].iov_len = fetch->at;
	req->rqst.rq_private_buf.head[0].iov_len = fetch->at;
	rest = req->rpc_length - fetch->at;
	req->result = fetch->at + length + rest;
	if (nfr_client_fetch_place_rest(rcv, length, req->rpc + fetch->at, rest) < rest)
		req->result = -EIO;
	req->nx->counters.fixup_bytes += req->rpc_length;
	req->rpc_length = 0;
}

/* --- posting; the caller holds the lock of the connection --- */

/* Returns 0, -EAGAIN if there is no room, or -ENOTCONN. */
static int nfr_client_fetch_post_done(struct nfr_conn *conn, u32 xid)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	u32 slot = fetcher->ndones % NFR_DONES, at = slot * NFR_DONE_BYTES;
	struct nfr_header head = {
		.xid = xid, .credits = conn->wanted.credits, .proc = NFR_DONE,
	};
	struct ib_sge sge = {
		.addr = fetcher->addr + at, .length = NFR_WIRE_2003_DONE,
		.lkey = conn->pd->local_dma_lkey,
	};
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .sg_list = &sge, .num_sge = 1,
		.opcode = IB_WR_SEND,
	};
	int rc;

	if (!nfr_conn_is_retired(conn, fetcher->marks[slot]))
		return -EAGAIN;
	nfr_wire_2003_encode(&head, fetcher->dones + at, NFR_DONE_BYTES);
	ib_dma_sync_single_for_device(conn->device, sge.addr, sge.length, DMA_TO_DEVICE);
	rc = nfr_conn_post(conn, &send, &send, 1, false);
	if (rc)
		return rc;
	fetcher->marks[slot] = nfr_conn_mark(conn);
	fetcher->ndones++;
	((struct nfr_xprt *)conn->owner)->counters.dones++;
	trace_nfsrdma_done(conn, xid);
	return 0;
}

static int nfr_client_fetch_post_reads(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);
	struct nfr_client_counters *counters = &req->nx->counters;
	int rc = nfr_conn_post(conn, fetch->first, fetch->last, fetch->count, true);

	if (rc)
		return rc;
	counters->fetches++;
	counters->fetch_reads += fetch->count;
	counters->fetch_bytes += fetch->length;
	trace_nfsrdma_fetch(conn, req, fetch->at, fetch->length, fetch->count);
	return 0;
}

/* --- stages --- */

/* Returns the oldest request of a list, or NULL. */
static struct nfr_req *nfr_client_fetch_pop(struct nfr_conn *conn, struct list_head *list)
{
	struct nfr_req *req;

	spin_lock_bh(&conn->lock);
	req = list_first_entry_or_null(list, struct nfr_req, list);
	if (req)
		list_del_init(&req->list);
	spin_unlock_bh(&conn->lock);
	return req;
}

/* Post the RDMA Reads, or make the request wait. Returns 0, -EAGAIN or -ENOTCONN. */
static int nfr_client_fetch_read(struct nfr_conn *conn, struct nfr_req *req, bool first)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	int rc;

	spin_lock_bh(&conn->lock);
	rc = nfr_client_fetch_post_reads(conn, req);
	if (rc == -EAGAIN)
		nfr_client_req_fetch(req, conn, NFR_REQ_BLOCKED,
				     first ? &fetcher->waiting : fetcher->waiting.prev);
	else
		/* if the connection is broken, nfr_client_fetch_drained() finds it here */
		nfr_client_req_fetch(req, conn, NFR_REQ_READING, fetcher->reading.prev);
	spin_unlock_bh(&conn->lock);
	if (!rc)
		nfr_work_queue(&fetcher->watch, NFR_FETCH_WATCH);
	else if (rc != -EAGAIN)
		nfr_conn_break(conn, "posting an RDMA Read failed");
	return rc;
}

/* Send the Done and complete the RPC, or make the request wait. Returns 0 or -EAGAIN. */
static int nfr_client_fetch_end(struct nfr_conn *conn, struct nfr_req *req, bool first)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	int rc;

	spin_lock_bh(&conn->lock);
	rc = nfr_client_fetch_post_done(conn, nfr_client_fetch_xid(req));
	if (rc == -EAGAIN)
		nfr_client_req_fetch(req, conn, NFR_REQ_READ,
				     first ? &fetcher->waiting : fetcher->waiting.prev);
	spin_unlock_bh(&conn->lock);
	if (rc == -EAGAIN)
		return rc;
	if (rc)
		nfr_conn_break(conn, "posting a Done failed");
	/* the data is complete, even if the connection is broken */
	nfr_client_reply_finish(conn, req);
	return 0;
}

static void nfr_client_fetch_read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_fetch *fetch = container_of(wc->wr_cqe, struct nfr_fetch, cqe);
	struct nfr_req *req = container_of((void *)fetch, struct nfr_req, own);
	struct nfr_conn *conn = cq->cq_context;

	/* on failure, nfr_client_fetch_drained() gives the request up */
	if (!nfr_conn_check(conn, wc))
		return;
	spin_lock_bh(&conn->lock);
	list_del_init(&req->list);
	nfr_client_fetcher_of(conn)->ended++;
	spin_unlock_bh(&conn->lock);
	nfr_mem_transfer_destroy_all(&nfr_client_fetch_of(req)->transfer);
	/* that may have returned MRs of the device */
	if (!list_empty_careful(&nfr_client_fetcher_of(conn)->starved))
		nfr_work_hurry(&nfr_client_fetcher_of(conn)->again);
	nfr_client_fetch_place(req);
	nfr_client_fetch_end(conn, req, false);
	conn->ops->writable(conn);
}

/* Chain and post the prepared RDMA Reads. */
static void nfr_client_fetch_start(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);
	struct ib_send_wr *wr;

	fetch->cqe.done = nfr_client_fetch_read_done;
	fetch->first = nfr_mem_transfer_chain(&fetch->transfer, &fetch->cqe, NULL);
	fetch->count = 0;
	for (wr = fetch->first; wr; wr = wr->next) {
		fetch->last = wr;
		fetch->count++;
	}
	/* the latest work requests in the queue may be unsignaled and not retire */
	if (fetch->count > conn->sq.size - NFR_SIGNAL_EVERY)
		nfr_conn_break(conn, "a Reply exceeds the send queue");
	nfr_client_fetch_read(conn, req, false);
}

/* Make a request wait for memory. */
static void nfr_client_fetch_starve(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);

	spin_lock_bh(&conn->lock);
	nfr_client_req_fetch(req, conn, NFR_REQ_STARVED, fetcher->starved.prev);
	spin_unlock_bh(&conn->lock);
}

/* Read a Reply, send a Done and complete the RPC. */
static void nfr_client_fetch(struct nfr_conn *conn, struct nfr_req *req,
			     const struct nfr_chunk *chunk)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);

	if (!nfr_client_fetch_prepare(conn, req, chunk, NFR_GFP_COMPLETION)) {
		nfr_client_fetch_start(conn, req);
		return;
	}
	nfr_client_fetch_starve(conn, req);
	nfr_work_queue(&fetcher->again, 0);
}

/* Send a Done for a Reply that the client does not read. */
static void nfr_client_fetch_refuse(struct nfr_conn *conn, struct nfr_req *req)
{
	nfr_client_fetch_end(conn, req, false);
}

/* Send a Done for a Reply that no task waits for. */
static void nfr_client_fetch_discard(struct nfr_conn *conn, u32 xid)
{
	int rc;

	spin_lock_bh(&conn->lock);
	rc = nfr_client_fetch_post_done(conn, xid);
	spin_unlock_bh(&conn->lock);
	if (rc && rc != -EAGAIN)
		nfr_conn_break(conn, "posting a Done failed");
}

/* Continue Replies that waited for room in the send queue. */
static void nfr_client_fetch_waiting(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	struct nfr_req *req;
	int rc = 0;

	if (list_empty_careful(&fetcher->waiting))
		return;
	while (!rc && (req = nfr_client_fetch_pop(conn, &fetcher->waiting)))
		rc = req->state == NFR_REQ_READ ? nfr_client_fetch_end(conn, req, true) :
						  nfr_client_fetch_read(conn, req, true);
}

/* --- workers --- */

/* Decode the received Reply again. Its header was sound, and its chunk the only one. */
static const struct nfr_chunk *nfr_client_fetch_chunk(struct nfr_fetcher *fetcher,
						      const struct nfr_req *req)
{
	struct nfr_space space = {
		.chunks = fetcher->chunks, .nchunks = NFR_DECODE_CHUNKS,
		.segs = fetcher->segs, .nsegs = NFR_DECODE_SEGS,
	};
	struct nfr_header head;

	nfr_wire_2003_decode(&head, &space, req->recv->data, req->recv->length);
	return head.reads;
}

static void nfr_client_fetch_again(struct work_struct *work)
{
	struct nfr_fetcher *fetcher = container_of(work, struct nfr_fetcher, again.work);
	struct nfr_conn *conn = fetcher->conn;
	/* writeback of dirty pages may depend on this work */
	unsigned int noio = memalloc_noio_save();
	struct nfr_req *req;

	while (nfr_conn_is_up(conn) && (req = nfr_client_fetch_pop(conn, &fetcher->starved))) {
		if (nfr_client_fetch_prepare(conn, req, nfr_client_fetch_chunk(fetcher, req),
					     NFR_GFP_RETRIED)) {
			nfr_client_fetch_starve(conn, req);
			nfr_work_queue(&fetcher->again, NFR_FETCH_AGAIN);
			break;
		}
		nfr_client_fetch_start(conn, req);
	}
	memalloc_noio_restore(noio);
}

/*
 * A server that is alive and does not serve RDMA Reads would hold tasks, even killed
 * ones, for ever. Break the connection if no Reply was read between two checks.
 */
static void nfr_client_fetch_watch(struct work_struct *work)
{
	struct nfr_fetcher *fetcher = container_of(work, struct nfr_fetcher, watch.work);
	struct nfr_conn *conn = fetcher->conn;
	bool reads, stuck;

	spin_lock_bh(&conn->lock);
	reads = !list_empty(&fetcher->reading);
	stuck = reads && fetcher->ended == fetcher->watched;
	fetcher->watched = fetcher->ended;
	spin_unlock_bh(&conn->lock);
	if (stuck)
		nfr_conn_break(conn, "RDMA Reads do not complete");
	else if (reads)
		nfr_work_queue(&fetcher->watch, NFR_FETCH_WATCH);
}

/* --- life --- */

/* Give up an incomplete Reply: sunrpc sends its Call again. */
static void nfr_client_fetch_release(struct nfr_req *req)
{
	struct rpc_xprt *xprt = &req->nx->xprt;

	nfr_mem_transfer_destroy_all(&nfr_client_fetch_of(req)->transfer);
	req->recv = NULL;
	spin_lock(&xprt->queue_lock);
	xprt_unpin_rqst(&req->rqst);
	spin_unlock(&xprt->queue_lock);
}

/* Prepare no more RDMA Reads (nfr_client_personality.stop). */
static void nfr_client_fetch_stop(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);

	if (!fetcher)
		return;
	cancel_delayed_work_sync(&fetcher->again);
	cancel_delayed_work_sync(&fetcher->watch);
}

/* Give up Replies that were not read completely: the device does not write to their memory. */
static void nfr_client_fetch_drained(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	struct nfr_req *req, *next;
	LIST_HEAD(all);

	list_splice_init(&fetcher->starved, &all);
	list_splice_init(&fetcher->waiting, &all);
	list_splice_init(&fetcher->reading, &all);
	list_for_each_entry_safe(req, next, &all, list) {
		list_del_init(&req->list);
		if (req->state == NFR_REQ_READ)
			nfr_client_reply_hold(req);
		else
			nfr_client_fetch_release(req);
	}
}

/* Allocate what the Replies of a connection need. */
static int nfr_client_fetch_create(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = kzalloc(sizeof(*fetcher), NFR_GFP_RETRIED);

	if (!fetcher)
		return -ENOMEM;
	fetcher->conn = conn;
	INIT_LIST_HEAD(&fetcher->starved);
	INIT_LIST_HEAD(&fetcher->waiting);
	INIT_LIST_HEAD(&fetcher->reading);
	INIT_DELAYED_WORK(&fetcher->again, nfr_client_fetch_again);
	INIT_DELAYED_WORK(&fetcher->watch, nfr_client_fetch_watch);
	fetcher->dones = kmalloc(NFR_DONES * NFR_DONE_BYTES, NFR_GFP_RETRIED);
	if (!fetcher->dones)
		goto out_free;
	fetcher->addr = ib_dma_map_single(conn->device, fetcher->dones,
					  NFR_DONES * NFR_DONE_BYTES, DMA_TO_DEVICE);
	if (ib_dma_mapping_error(conn->device, fetcher->addr))
		goto out_free;
	*nfr_client_fetcher_slot(conn) = fetcher;
	return 0;
out_free:
	kfree(fetcher->dones);
	kfree(fetcher);
	return -ENOMEM;
}

/* Undo nfr_client_fetch_create(), if that succeeded. */
static void nfr_client_fetch_destroy(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);

	if (!fetcher)
		return;
	ib_dma_unmap_single(conn->device, fetcher->addr, NFR_DONES * NFR_DONE_BYTES,
			    DMA_TO_DEVICE);
	kfree(fetcher->dones);
	kfree(fetcher);
}

/* --- checks of a Reply --- */

/* The inline part ends where the data begins, or goes on behind it. */
static int nfr_client_readread_check_data(struct nfr_req *req, const struct nfr_chunk *chunk)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 length = nfr_wire_length(chunk);

	if (!chunk->position || chunk->position > req->rpc_length ||
	    chunk->position > rcv->head[0].iov_len || !length || length > rcv->page_len)
		return -EIO;
	fetch->at = chunk->position;
	fetch->length = length;
	return 0;
}

static int nfr_client_readread_check_whole(struct nfr_req *req, const struct nfr_chunk *chunk)
{
	struct nfr_fetch *fetch = nfr_client_fetch_of(req);
	const struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u64 room = rcv->head[0].iov_len + rcv->page_len + rcv->tail[0].iov_len;
	u32 length = nfr_wire_length(chunk);

	if (chunk->position || req->rpc_length || !length || length > room)
		return -EIO;
	fetch->at = 0;
	fetch->length = length;
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
	struct nfr_req *req = nfr_client_reply_find(conn, recv, head);

	if (req) {
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
	if (!nfr_client_reply_is_call(conn, recv, &head, rpc, length))
		nfr_client_readread_reply(conn, recv, &head, rpc, length);
}

/* --- the connection --- */

/* RDMA Reads of Replies come before Calls. */
static void nfr_client_fetch_writable(struct nfr_conn *conn)
{
	nfr_client_fetch_waiting(conn);
	nfr_client_writable(conn);
}

static const struct nfr_conn_ops nfr_client_fetch_ops = {
	.receive	= nfr_client_received,
	.writable	= nfr_client_fetch_writable,
	.broken		= nfr_client_broken,
	.unanswered	= NFR_CLIENT_UNANSWERED,
};

/* The client reads Replies as the server reads Calls. */
static void nfr_client_fetch_fit(struct nfr_conn *conn)
{
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;
	u32 sges, chain;

	profile->send_sges = min_t(u32, attrs->max_send_sge, NFR_READ_SGES);
	sges = nfr_mem_device_read_sges(conn->device, profile->send_sges);
	chain = NFR_READ_CONTEXTS + NFR_READ_PAGES / sges;
	profile->least_sends = max(profile->least_sends, 2 * chain);
	profile->sends += conn->wanted.credits + 2 * chain;
	profile->rw_contexts = max_t(u32, conn->wanted.credits, NFR_READ_CONTEXTS);
	profile->least_contexts = NFR_READ_CONTEXTS;
	profile->reads_issued = min_t(int, attrs->max_qp_init_rd_atom, U8_MAX);
}

const struct nfr_client_personality nfr_client_readread = {
	.number		= NFR_READ_READ,
	.request_size	= sizeof(struct nfr_fetch),
	.ops		= &nfr_client_fetch_ops,
	.init		= nfr_client_fetch_init,
	.fit		= nfr_client_fetch_fit,
	.create		= nfr_client_fetch_create,
	.stop		= nfr_client_fetch_stop,
	.destroy	= nfr_client_fetch_destroy,
	.marshal	= nfr_client_marshal_2003,
	.receive	= nfr_client_readread_receive,
	.send		= nfr_client_send_2003,
	.drained	= nfr_client_fetch_drained,
};
