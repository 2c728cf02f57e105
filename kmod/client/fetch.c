// SPDX-License-Identifier: GPL-2.0-only
/*
 * Replies that stay in memory of the server until the client has read them
 * (personality read-read): RDMA Reads into the reply buffer, then a Done.
 *
 * The request stays pinned meanwhile, so that its task, even if it is killed, waits
 * until the device does not write to its memory any more. A Read needs memory and
 * room in the send queue, a Done needs room; a Reply that cannot continue waits in a
 * list, which nfr_conn.lock protects. Completions make room, a worker makes memory.
 *
 * If the connection breaks, the Call of an incomplete Reply is sent again on the next
 * one: nfr_client_fetch_drained() releases the request without completing the RPC.
 */
#include <linux/highmem.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "client/client.h"
#include "client/reply.h"
#include "connection/send.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/span.h"
#include "memory/transfer.h"
#include "observe/trace.h"
#include "work.h"

/* Done messages under way, and the bytes that each occupies: a cache line of the largest */
#define NFR_DONES		64
#define NFR_DONE_BYTES		128

/* Delay before the next attempt to prepare RDMA Reads after an allocation failure */
#define NFR_FETCH_AGAIN		(HZ / 10)

/* Interval of the check that RDMA Reads complete */
#define NFR_FETCH_WATCH		(20 * HZ)

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

static struct nfr_fetcher *nfr_client_fetcher_of(const struct nfr_conn *conn)
{
	return nfr_client_link_of(conn)->fetcher;
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
	return nfr_mem_transfer_add(&req->transfer, cursor, &span, nfr_mem_span_length(&span),
				    DMA_FROM_DEVICE);
}

/* Prepare RDMA Reads of the whole message into head, pages and tail. */
static int nfr_client_fetch_whole(struct nfr_req *req, struct nfr_cursor *cursor)
{
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 left = req->read_length;
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
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;

	return nfr_client_fetch_part(req, cursor, (struct nfr_span) {
		.pages = rcv->pages, .page_base = rcv->page_base, .page_len = req->read_length,
	});
}

/* Returns 0, or a negative errno if the request has no RDMA Reads. */
static int nfr_client_fetch_prepare(struct nfr_conn *conn, struct nfr_req *req,
				    const struct nfr_chunk *chunk, gfp_t gfp)
{
	struct nfr_cursor cursor = { .chunk = chunk };
	int rc;

	req->transfer.id = conn->id;
	req->transfer.gfp = gfp;
	rc = req->read_at ? nfr_client_fetch_data(req, &cursor) :
			    nfr_client_fetch_whole(req, &cursor);
	if (rc)
		nfr_mem_transfer_destroy_all(&req->transfer);
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
	struct xdr_buf *rcv = &req->rqst.rq_rcv_buf;
	u32 length = xdr_align_size(req->read_length), rest;

	req->result = req->read_length;
	if (!req->read_at)
		return;
	memcpy(rcv->head[0].iov_base, req->rpc, req->read_at);
	/* XDR decoding continues in the pages where the inline part ends: cut the head there */
	rcv->head[0].iov_len = req->read_at;
	req->rqst.rq_private_buf.head[0].iov_len = req->read_at;
	rest = req->rpc_length - req->read_at;
	req->result = req->read_at + length + rest;
	if (nfr_client_fetch_place_rest(rcv, length, req->rpc + req->read_at, rest) < rest)
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
	struct nfr_client_counters *counters = &req->nx->counters;
	int rc = nfr_conn_post(conn, req->reads, req->last_read, req->nreads, true);

	if (rc)
		return rc;
	counters->fetches++;
	counters->fetch_reads += req->nreads;
	counters->fetch_bytes += req->read_length;
	trace_nfsrdma_fetch(conn, req, req->nreads);
	return 0;
}

/* --- stages --- */

/* Returns the oldest request of a list, or NULL. */
static struct nfr_req *nfr_client_fetch_pop(struct nfr_conn *conn, struct list_head *list)
{
	struct nfr_req *req;

	spin_lock_bh(&conn->lock);
	req = list_first_entry_or_null(list, struct nfr_req, fetch);
	if (req)
		list_del_init(&req->fetch);
	spin_unlock_bh(&conn->lock);
	return req;
}

/* Post the RDMA Reads, or make the request wait. Returns 0, -EAGAIN or -ENOTCONN. */
static int nfr_client_fetch_read(struct nfr_conn *conn, struct nfr_req *req, bool first)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	int rc;

	spin_lock_bh(&conn->lock);
	req->stage = NFR_FETCH_READ;
	rc = nfr_client_fetch_post_reads(conn, req);
	if (rc == -EAGAIN) {
		req->stage = NFR_FETCH_POST;
		list_add(&req->fetch, first ? &fetcher->waiting : fetcher->waiting.prev);
	} else {
		/* if the connection is broken, nfr_client_fetch_drained() finds it here */
		list_add_tail(&req->fetch, &fetcher->reading);
	}
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

	req->stage = NFR_FETCH_DONE;
	spin_lock_bh(&conn->lock);
	rc = nfr_client_fetch_post_done(conn, nfr_client_fetch_xid(req));
	if (rc == -EAGAIN)
		list_add(&req->fetch, first ? &fetcher->waiting : fetcher->waiting.prev);
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
	struct nfr_req *req = container_of(wc->wr_cqe, struct nfr_req, read_cqe);
	struct nfr_conn *conn = cq->cq_context;

	/* on failure, nfr_client_fetch_drained() gives the request up */
	if (!nfr_conn_check(conn, wc))
		return;
	spin_lock_bh(&conn->lock);
	list_del_init(&req->fetch);
	nfr_client_fetcher_of(conn)->ended++;
	spin_unlock_bh(&conn->lock);
	nfr_mem_transfer_destroy_all(&req->transfer);
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
	struct ib_send_wr *wr;

	req->read_cqe.done = nfr_client_fetch_read_done;
	req->reads = nfr_mem_transfer_chain(&req->transfer, &req->read_cqe, NULL);
	req->nreads = 0;
	for (wr = req->reads; wr; wr = wr->next) {
		req->last_read = wr;
		req->nreads++;
	}
	/* the latest work requests in the queue may be unsignaled and not retire */
	if (req->nreads > conn->sq.size - NFR_SIGNAL_EVERY)
		nfr_conn_break(conn, "a Reply exceeds the send queue");
	nfr_client_fetch_read(conn, req, false);
}

/* Make a request wait for memory. */
static void nfr_client_fetch_starve(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);

	spin_lock_bh(&conn->lock);
	req->stage = NFR_FETCH_PREPARE;
	list_add_tail(&req->fetch, &fetcher->starved);
	spin_unlock_bh(&conn->lock);
}

/**
 * nfr_client_fetch - read a Reply, send a Done and complete the RPC
 * @conn: connection
 * @req: pinned request with @recv, @rpc, @read_at and @read_length set; the reply
 *	buffer has room for what it reads
 * @chunk: chunk that the Reply names
 *
 * Context: Completion handler.
 */
void nfr_client_fetch(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_chunk *chunk)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);

	if (!nfr_client_fetch_prepare(conn, req, chunk, NFR_GFP_COMPLETION)) {
		nfr_client_fetch_start(conn, req);
		return;
	}
	nfr_client_fetch_starve(conn, req);
	nfr_work_queue(&fetcher->again, 0);
}

/**
 * nfr_client_fetch_refuse - send a Done for a Reply that the client does not read
 * @conn: connection
 * @req: pinned request with @recv and @result set
 */
void nfr_client_fetch_refuse(struct nfr_conn *conn, struct nfr_req *req)
{
	nfr_client_fetch_end(conn, req, false);
}

/**
 * nfr_client_fetch_discard - send a Done for a Reply that no task waits for
 * @conn: connection
 * @xid: XID of the Reply
 *
 * If the send queue has no room, the server waits until the time for the Done is over.
 */
void nfr_client_fetch_discard(struct nfr_conn *conn, u32 xid)
{
	int rc;

	spin_lock_bh(&conn->lock);
	rc = nfr_client_fetch_post_done(conn, xid);
	spin_unlock_bh(&conn->lock);
	if (rc && rc != -EAGAIN)
		nfr_conn_break(conn, "posting a Done failed");
}

/**
 * nfr_client_fetch_waiting - continue Replies that waited for room in the send queue
 * @conn: connection whose send queue has retired work requests
 */
void nfr_client_fetch_waiting(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	struct nfr_req *req;
	int rc = 0;

	if (list_empty_careful(&fetcher->waiting))
		return;
	while (!rc && (req = nfr_client_fetch_pop(conn, &fetcher->waiting)))
		rc = req->stage == NFR_FETCH_DONE ? nfr_client_fetch_end(conn, req, true) :
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

	nfr_mem_transfer_destroy_all(&req->transfer);
	req->recv = NULL;
	spin_lock(&xprt->queue_lock);
	xprt_unpin_rqst(&req->rqst);
	spin_unlock(&xprt->queue_lock);
}

/**
 * nfr_client_fetch_drained - give up Replies that were not read completely
 * @conn: drained connection, whose queue pair still exists
 */
void nfr_client_fetch_drained(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);
	struct nfr_req *req, *next;
	LIST_HEAD(all);

	cancel_delayed_work_sync(&fetcher->again);
	cancel_delayed_work_sync(&fetcher->watch);
	list_splice_init(&fetcher->starved, &all);
	list_splice_init(&fetcher->waiting, &all);
	list_splice_init(&fetcher->reading, &all);
	list_for_each_entry_safe(req, next, &all, fetch) {
		list_del_init(&req->fetch);
		if (req->stage == NFR_FETCH_DONE)
			nfr_client_reply_hold(req);
		else
			nfr_client_fetch_release(req);
	}
}

/**
 * nfr_client_fetch_create - allocate what the Replies of a connection need
 * @conn: resolved connection
 *
 * Return: 0 or -ENOMEM; the caller has to call nfr_client_fetch_destroy() in any case.
 */
int nfr_client_fetch_create(struct nfr_conn *conn)
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
	nfr_client_link_of(conn)->fetcher = fetcher;
	return 0;
out_free:
	kfree(fetcher->dones);
	kfree(fetcher);
	return -ENOMEM;
}

/**
 * nfr_client_fetch_destroy - undo nfr_client_fetch_create()
 * @conn: drained connection, or one that did not connect
 */
void nfr_client_fetch_destroy(struct nfr_conn *conn)
{
	struct nfr_fetcher *fetcher = nfr_client_fetcher_of(conn);

	if (!fetcher)
		return;
	ib_dma_unmap_single(conn->device, fetcher->addr, NFR_DONES * NFR_DONE_BYTES,
			    DMA_TO_DEVICE);
	kfree(fetcher->dones);
	kfree(fetcher);
}
