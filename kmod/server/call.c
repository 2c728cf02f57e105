// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way of a Call, from its receipt until its Reply is sent: one request, one function that
 * takes it from state to state, and the send queue that holds it.
 *
 * Requests are allocated on demand, reused, and limited by the number of credits. The
 * completion handler of the receive decodes and checks the message, and a worker starts RDMA
 * Reads. A complete Call waits for an nfsd thread, which takes it and leaves the Reply with the
 * send queue. RFC 8166, section 4.5, defines how to answer or drop malformed messages.
 *
 * Clients usually send one data item in a Read chunk (RFC 8166, sections 3.4.5 and 3.5.2). It
 * is read into separate pages, where nfsd expects it. Any other Call is assembled in pages as
 * if it had arrived inline: the position-zero Read chunk or the inline part is the frame, and
 * the data items are inserted at their positions, each padded to a multiple of four bytes.
 *
 * nfr_svc_post() does not wait: a chain that finds no room stays in @pending, in FIFO order,
 * until completions make room. A request whose chain ends with the Reply stays in @sent until
 * the send queue has retired it.
 */
#include <linux/highmem.h>
#include <linux/slab.h>
#include <linux/sunrpc/xdr.h>

#include "compat/compat.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "memory/region.h"
#include "observe/trace.h"
#include "observe/trace_server.h"
#include "server/budget.h"
#include "server/call.h"
#include "server/pages.h"
#include "server/server.h"
#include "server/sink.h"
#include "work.h"

/* Allowance for requests whose Reply was sent, but is not retired yet */
#define NFR_SVC_UNRETIRED	64

/* Length of an RPC Call with empty credentials: RFC 5531, section 9 */
#define NFR_CALL_MIN	40u

/* --- requests --- */

static void nfr_svc_req_free(struct nfr_svc_req *req)
{
	struct nfr_conn *conn = req->svc->conn;

	if (req->buffer)
		ib_dma_unmap_single(conn->device, req->addr, conn->send_size, DMA_TO_DEVICE);
	kvfree(req->gather);
	kvfree(req->kept);
	kfree(req->buffer);
	kfree(req);
}

static int nfr_svc_req_buffer(struct nfr_svc_req *req, gfp_t gfp)
{
	struct nfr_conn *conn = req->svc->conn;
	void *buffer = kmalloc_node(conn->send_size, gfp, ibdev_to_node(conn->device));

	if (!buffer)
		return -ENOMEM;
	req->addr = ib_dma_map_single(conn->device, buffer, conn->send_size, DMA_TO_DEVICE);
	if (ib_dma_mapping_error(conn->device, req->addr)) {
		kfree(buffer);
		return -ENOMEM;
	}
	req->buffer = buffer;
	return 0;
}

static struct nfr_svc_req *nfr_svc_req_create(struct nfr_svc *svc, gfp_t gfp)
{
	struct nfr_svc_req *req = kzalloc(sizeof(*req) + svc->personality->request_size, gfp);

	if (!req)
		return NULL;
	req->svc = svc;
	nfr_mem_transfer_init(&req->transfer, svc->conn->id);
	if (nfr_svc_req_buffer(req, gfp)) {
		kfree(req);
		return NULL;
	}
	if (svc->personality->init)
		svc->personality->init(req);
	spin_lock_bh(&svc->lock);
	list_add_tail(&req->all, &svc->all);
	svc->nreqs++;
	spin_unlock_bh(&svc->lock);
	return req;
}

/**
 * nfr_svc_req_get - get a request for a received message or a callback
 * @svc: connection
 * @gfp: allocation flags
 *
 * Return: request, ERR_PTR(-ENOMEM) if an allocation failed, or
 * ERR_PTR(-ENOBUFS) if the client exceeds its credits.
 */
struct nfr_svc_req *nfr_svc_req_get(struct nfr_svc *svc, gfp_t gfp)
{
	struct list_head *entry = nfr_svc_pop(svc, &svc->free);

	if (entry)
		return list_entry(entry, struct nfr_svc_req, list);
	if (READ_ONCE(svc->nreqs) >= 2 * svc->conn->wanted.credits + NFR_SVC_UNRETIRED)
		return ERR_PTR(-ENOBUFS);
	return nfr_svc_req_create(svc, gfp) ?: ERR_PTR(-ENOMEM);
}

/* Return a request to the free list; no work request and no thread uses it. */
static void nfr_svc_req_put(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	nfr_svc_req_answered(req);
	nfr_svc_req_release(req);
	req->nresults = 0;
	spin_lock_bh(&svc->lock);
	/* LIFO: the latest request is cache-hot */
	list_add(&req->list, &svc->free);
	spin_unlock_bh(&svc->lock);
}

/**
 * nfr_svc_req_destroy_all - free all requests in any state
 * @svc: connection that has ended, without references
 */
void nfr_svc_req_destroy_all(struct nfr_svc *svc)
{
	struct nfr_svc_req *req, *next;

	list_for_each_entry_safe(req, next, &svc->all, all) {
		nfr_svc_req_release(req);
		nfr_svc_req_free(req);
	}
}

/**
 * nfr_svc_req_pages - sum up what requests are charged for
 * @svc: connection
 * @pages: output, number of pages of each use
 */
void nfr_svc_req_pages(struct nfr_svc *svc, u32 pages[NFR_SVC_PURPOSES])
{
	struct nfr_svc_req *req;

	pages[NFR_SVC_READS] = 0;
	pages[NFR_SVC_REPLIES] = 0;
	spin_lock_bh(&svc->lock);
	list_for_each_entry(req, &svc->all, all) {
		pages[NFR_SVC_READS] += READ_ONCE(req->sunk);
		pages[NFR_SVC_REPLIES] += READ_ONCE(req->reply_pages);
	}
	spin_unlock_bh(&svc->lock);
}

/* Check whether the device of the client delays the end of what a request is charged for. */
static bool nfr_svc_req_holds(const struct nfr_svc_req *req, enum nfr_svc_purpose use)
{
	switch (READ_ONCE(req->state)) {
	case NFR_SVC_READING:
		return use == NFR_SVC_READS && READ_ONCE(req->sunk);
	case NFR_SVC_SENT:
	case NFR_SVC_EXPOSED:
	case NFR_SVC_REVOKING:
		return use == NFR_SVC_REPLIES && READ_ONCE(req->reply_pages);
	default:
		return false;
	}
}

/**
 * nfr_svc_req_is_late - check whether a client acknowledges too late
 * @svc: connection
 * @use: Replies, or RDMA Reads
 *
 * The oldest one counts, not whether others were acknowledged: a client that acknowledges one from
 * time to time could hold the memory of all others for ever.
 *
 * Return: true if one of those that hold memory was posted more than server_ack_timeout ago.
 */
bool nfr_svc_req_is_late(struct nfr_svc *svc, enum nfr_svc_purpose use)
{
	unsigned long posted, before = jiffies - nfr_params_server_ack_timeout();
	struct nfr_svc_req *req;
	bool late = false;

	spin_lock_bh(&svc->lock);
	list_for_each_entry(req, &svc->all, all) {
		if (!nfr_svc_req_holds(req, use))
			continue;
		/* the state first: what it posts is written later */
		smp_rmb();
		posted = READ_ONCE(req->posted);
		late |= posted && time_before(posted, before);
	}
	spin_unlock_bh(&svc->lock);
	return late;
}

/* --- send queue --- */

/* See nfr_svc_req_prepare(); inlined into the way of each Reply of version 1. */
static __always_inline bool nfr_svc_req_prepare_send(struct nfr_svc_req *req, int encoded,
						     u32 length)
{
	struct nfr_conn *conn = req->svc->conn;

	if (encoded < 0) {
		nfr_conn_break(conn, "no room for the header of a Reply");
		return false;
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
	trace_nfsrdma_message(conn, req->buffer, length, true);
	return true;
}

/**
 * nfr_svc_req_prepare - prepare the Send of a message in the buffer of a request
 * @req: request
 * @encoded: result of encoding the header of the message
 * @length: length of header and message in bytes
 *
 * Return: false if the header does not fit; then the connection breaks.
 */
bool nfr_svc_req_prepare(struct nfr_svc_req *req, int encoded, u32 length)
{
	return nfr_svc_req_prepare_send(req, encoded, length);
}

/**
 * nfr_svc_req_finish - chain the RDMA Writes and the Send of a request
 * @req: request with the message in its buffer
 * @head: header; encoded in front of the message
 * @length: length of header and message in bytes
 *
 * The caller has to post the chain.
 *
 * Return: 0, or -EIO if the header does not fit; then the connection breaks.
 */
int nfr_svc_req_finish(struct nfr_svc_req *req, const struct nfr_header *head, u32 length)
{
	struct nfr_conn *conn = req->svc->conn;

	if (!nfr_svc_req_prepare_send(req, nfr_wire_encode(head, req->buffer, conn->send_size),
				      length))
		return -EIO;
	/* release unused pages: other Calls may wait for them */
	nfr_svc_budget_keep(req, nfr_mem_transfer_bytes(&req->transfer));
	req->signal = req->reply_pages;
	req->first = nfr_mem_transfer_chain(&req->transfer, NULL, &req->send);
	nfr_svc_req_answered(req);
	return 0;
}

/* Find the last work request of the chain at @req->first, and the length of the chain. */
static void nfr_svc_chain_ends(struct nfr_svc_req *req)
{
	struct ib_send_wr *wr;

	req->count = 0;
	for (wr = req->first; wr; wr = wr->next) {
		req->last = wr;
		req->count++;
	}
}

/**
 * nfr_svc_posted - break the connection if posting failed
 * @conn: connection; the caller must not hold its lock
 * @rc: result of nfr_conn_post(); -EAGAIN is no failure, because completions
 *	will make room
 */
void nfr_svc_posted(struct nfr_conn *conn, int rc)
{
	if (rc && rc != -EAGAIN)
		nfr_conn_break(conn, "posting a work request failed");
}

/* Returns 0, -EAGAIN if the queue is full, or -ENOTCONN. Caller holds the lock. */
static int nfr_svc_post_locked(struct nfr_svc_req *req)
{
	/* look first: RDMA Reads may complete at once, and the request go on */
	enum nfr_svc_state state = req->state;
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	rc = nfr_conn_post(conn, req->first, req->last, req->count, req->signal);
	if (rc)
		return rc;
	if (state != NFR_SVC_SENT) {
		if (state == NFR_SVC_EXPOSED)
			svc->personality->exposed(req);
		return 0;
	}
	req->mark = nfr_conn_mark(conn);
	list_add_tail(&req->list, &svc->sent);
	return 0;
}

static int nfr_svc_post_pending(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;
	int rc = 0;

	while (!rc && (req = list_first_entry_or_null(&svc->pending, struct nfr_svc_req, list))) {
		list_del_init(&req->list);
		rc = nfr_svc_post_locked(req);
		if (rc == -EAGAIN)
			list_add(&req->list, &svc->pending);
	}
	return rc;
}

/*
 * Post the chain of a request, or queue it. On an error the request stays allocated until the
 * connection is freed.
 */
static void nfr_svc_post(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	nfr_svc_chain_ends(req);
	WRITE_ONCE(req->posted, jiffies);
	/* the latest work requests in the queue may be unsignaled and not retire */
	if (req->count > conn->sq.size - NFR_SIGNAL_EVERY) {
		nfr_conn_break(conn, "a Call exceeds the send queue");
		return;
	}
	spin_lock_bh(&conn->lock);
	rc = list_empty(&svc->pending) ? nfr_svc_post_locked(req) : -EAGAIN;
	if (rc == -EAGAIN) {
		nfr_svc_count(svc, queue_waits, 1);
		list_add_tail(&req->list, &svc->pending);
	}
	spin_unlock_bh(&conn->lock);
	nfr_svc_posted(conn, rc);
}

/**
 * nfr_svc_retire - collect retired requests, and post queued ones
 * @svc: connection
 * @done: list to move requests to whose Replies the send queue has retired
 */
void nfr_svc_retire(struct nfr_svc *svc, struct list_head *done)
{
	struct nfr_conn *conn = svc->conn;
	struct nfr_svc_req *req, *next;
	int rc;

	spin_lock_bh(&conn->lock);
	list_for_each_entry_safe(req, next, &svc->sent, list) {
		if (!nfr_conn_is_retired(conn, req->mark))
			break;
		list_move_tail(&req->list, done);
	}
	rc = nfr_svc_post_pending(svc);
	spin_unlock_bh(&conn->lock);
	nfr_svc_posted(conn, rc);
}

/* --- states --- */

static void nfr_svc_read(struct nfr_svc_req *req);

/* Continue a request where RDMA operations may be prepared, and locks of sunrpc taken. */
static void nfr_svc_defer(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	struct nfr_svc *svc = req->svc;

	if (!nfr_conn_polls_in_softirq(svc->conn)) {
		resume(req);
		return;
	}
	req->resume = resume;
	spin_lock_bh(&svc->lock);
	list_add_tail(&req->list, &svc->deferred);
	spin_unlock_bh(&svc->lock);
	queue_work(nfr_work_poll, &svc->deferred_work);
}

/* Queue a complete Call for an nfsd thread. */
static void nfr_svc_enqueue(struct nfr_svc_req *req)
{
	struct nfr_svc_first *first = req->svc->first;

	spin_lock_bh(&first->svc.lock);
	list_add_tail(&req->list, &first->ready);
	set_bit(XPT_DATA, &first->xprt.xpt_flags);
	spin_unlock_bh(&first->svc.lock);
	svc_xprt_enqueue(&first->xprt);
}

/* States from which a request may get to a state */
static const u8 nfr_svc_before[] = {
	[NFR_SVC_FREE]		= BIT(NFR_SVC_RECEIVED) | BIT(NFR_SVC_READING) |
				  BIT(NFR_SVC_READY) | BIT(NFR_SVC_REPLYING) | BIT(NFR_SVC_SENT) |
				  BIT(NFR_SVC_REVOKING),
	[NFR_SVC_RECEIVED]	= BIT(NFR_SVC_FREE),
	[NFR_SVC_READING]	= BIT(NFR_SVC_RECEIVED),
	/* from the last of them: a READ that nfsd has to answer, see threadless.c */
	[NFR_SVC_READY]		= BIT(NFR_SVC_RECEIVED) | BIT(NFR_SVC_READING) |
				  BIT(NFR_SVC_REPLYING),
	/* from there: a callback; a message that is refused; a Call; a Reply that is refused */
	[NFR_SVC_REPLYING]	= BIT(NFR_SVC_FREE) | BIT(NFR_SVC_RECEIVED) |
				  BIT(NFR_SVC_READY) | BIT(NFR_SVC_REPLYING),
	[NFR_SVC_SENT]		= BIT(NFR_SVC_REPLYING),
	[NFR_SVC_EXPOSED]	= BIT(NFR_SVC_REPLYING),
	[NFR_SVC_REVOKING]	= BIT(NFR_SVC_EXPOSED),
};

/*
 * See nfr_svc_advance(). Inlined where the state is known: each Call takes five of them, and the
 * switch, with the registers that it saves, has about 20 instructions.
 */
static __always_inline void nfr_svc_enter(struct nfr_svc_req *req, enum nfr_svc_state state)
{
	/* on debug kernels only: the way of each Call has this several times */
	if (IS_ENABLED(CONFIG_PROVE_LOCKING))
		WARN_ON_ONCE(!(nfr_svc_before[state] & BIT(req->state)));
	req->state = state;
	switch (state) {
	case NFR_SVC_FREE:
		nfr_svc_req_put(req);
		return;
	case NFR_SVC_READING:
		nfr_svc_defer(req, nfr_svc_read);
		return;
	case NFR_SVC_READY:
		nfr_svc_enqueue(req);
		return;
	case NFR_SVC_RECEIVED:
	case NFR_SVC_REPLYING:
		return;
	case NFR_SVC_SENT:
	case NFR_SVC_EXPOSED:
		nfr_svc_post(req);
		return;
	case NFR_SVC_REVOKING:
		req->svc->personality->revoke(req);
		nfr_svc_post(req);
		return;
	}
}

/**
 * nfr_svc_advance - take a request to another state, and begin the work of that state
 * @req: request for which the work of its state is done
 * @state: state that may follow
 *
 * The caller must not use the request any more, except after NFR_SVC_REPLYING.
 */
void nfr_svc_advance(struct nfr_svc_req *req, enum nfr_svc_state state)
{
	nfr_svc_enter(req, state);
}

/**
 * nfr_svc_refuse - answer a request with RDMA_ERROR, or end the connection
 * @req: request, which no nfsd thread uses
 * @error: error code
 */
void nfr_svc_refuse(struct nfr_svc_req *req, enum nfr_error error)
{
	nfr_svc_enter(req, NFR_SVC_REPLYING);
	nfr_svc_enter(req, req->svc->personality->refuse(req, error) ? NFR_SVC_FREE :
								       NFR_SVC_SENT);
}

/* --- reading --- */

static bool nfr_svc_read_is_nomsg(const struct nfr_svc_req *req)
{
	return req->head.proc == NFR_NOMSG;
}

/* Get the Read chunks of data items: all except the position-zero chunk. */
static u32 nfr_svc_read_items(const struct nfr_svc_req *req, const struct nfr_chunk **items)
{
	u32 skip = nfr_svc_read_is_nomsg(req);

	*items = req->head.reads + skip;
	return req->head.nreads - skip;
}

/* Get the length of the frame. */
static u32 nfr_svc_read_frame(const struct nfr_svc_req *req)
{
	return nfr_svc_read_is_nomsg(req) ? nfr_wire_length(req->head.reads) : req->rpc_length;
}

static bool nfr_svc_read_frame_is_sound(const struct nfr_svc_req *req)
{
	const struct nfr_header *head = &req->head;

	if (nfr_svc_read_is_nomsg(req))
		return head->nreads && !head->reads[0].position && !req->rpc_length;
	return !head->nreads || head->reads[0].position;
}

/**
 * nfr_svc_read_check - check that the Read list is consistent with the message
 * @req: decoded request; the function sets its length to that of the assembled
 *	message
 * @max: maximum message size in bytes
 *
 * Each item has to start within the frame and after the previous item. The RPC
 * header has to precede all of them.
 *
 * Return: true if the Read list is valid.
 */
bool nfr_svc_read_check(struct nfr_svc_req *req, u32 max)
{
	const struct nfr_chunk *items;
	u32 i, n, left, at = 0;
	u64 length;

	if (!nfr_svc_read_frame_is_sound(req))
		return false;
	n = nfr_svc_read_items(req, &items);
	left = nfr_svc_read_frame(req);
	if ((n ? min(items[0].position, left) : left) < NFR_CALL_MIN || left > max)
		return false;
	for (i = 0, length = left; i < n; i++) {
		if (items[i].position < at || items[i].position - at > left)
			return false;
		left -= items[i].position - at;
		at = items[i].position + xdr_align_size(nfr_wire_length(&items[i]));
		length += xdr_align_size((u64)nfr_wire_length(&items[i]));
		if (length > max)
			return false;
	}
	req->length = length;
	return true;
}

static int nfr_svc_read_remote(struct nfr_svc_req *req, struct nfr_cursor *from, u32 to, u32 length)
{
	struct nfr_span span = {
		.pages = req->pages, .page_base = to, .page_len = length,
	};

	return nfr_mem_transfer_add(&req->transfer, from, &span, length, DMA_FROM_DEVICE);
}

static void nfr_svc_read_copy(struct nfr_svc_req *req, const u8 *from, u32 to, u32 length)
{
	u32 n;

	for (; length; length -= n, from += n, to += n) {
		n = min_t(u32, length, PAGE_SIZE - offset_in_page(to));
		memcpy_to_page(req->pages[to >> PAGE_SHIFT], offset_in_page(to), from, n);
	}
}

/* Place the next part of the frame. @from is its offset in the inline message or in the chunk. */
static int nfr_svc_read_frame_part(struct nfr_svc_req *req, struct nfr_cursor *cursor, u32 from,
				   u32 to, u32 length)
{
	if (nfr_svc_read_is_nomsg(req))
		return nfr_svc_read_remote(req, cursor, to, length);
	nfr_svc_read_copy(req, req->rpc + from, to, length);
	return 0;
}

/* Place a data item and its padding, which does not cross a page because @to is a multiple of 4. */
static int nfr_svc_read_item(struct nfr_svc_req *req, const struct nfr_chunk *item, u32 to)
{
	u32 length = nfr_wire_length(item), end = to + length;
	struct nfr_cursor cursor = { .chunk = item };

	if (xdr_pad_size(length))
		memzero_page(req->pages[end >> PAGE_SHIFT], offset_in_page(end),
			     xdr_pad_size(length));
	return nfr_svc_read_remote(req, &cursor, to, length);
}

static int nfr_svc_read_whole(struct nfr_svc_req *req)
{
	struct nfr_cursor frame = { .chunk = req->head.reads };
	const struct nfr_chunk *items;
	u32 i, n, used = 0, at = 0;
	int rc = 0;

	n = nfr_svc_read_items(req, &items);
	for (i = 0; i < n && !rc; i++) {
		u32 gap = items[i].position - at;

		rc = nfr_svc_read_frame_part(req, &frame, used, at, gap);
		used += gap;
		at += gap;
		if (!rc)
			rc = nfr_svc_read_item(req, &items[i], at);
		at += xdr_align_size(nfr_wire_length(&items[i]));
	}
	if (rc)
		return rc;
	return nfr_svc_read_frame_part(req, &frame, used, at, nfr_svc_read_frame(req) - used);
}

static int nfr_svc_read_plan(struct nfr_svc_req *req)
{
	return req->whole ? nfr_svc_read_whole(req) : nfr_svc_read_item(req, req->head.reads, 0);
}

/* Choose the layout of the pages: a single data item, or the whole message. */
static void nfr_svc_read_layout(struct nfr_svc_req *req)
{
	req->whole = nfr_svc_read_is_nomsg(req) || req->head.nreads > 1;
	if (!req->whole)
		req->length = xdr_align_size(nfr_wire_length(req->head.reads));
	req->npages = DIV_ROUND_UP(req->length, PAGE_SIZE);
}

/* Maximum number of MRs that a device may need: one per operation, and per piece of a split one */
static u32 nfr_svc_read_operations(const struct nfr_svc_req *req)
{
	struct ib_device *device = req->svc->conn->device;
	u32 i, count = req->length / nfr_mem_transfer_read_max(device, PAGE_SIZE - 1);

	for (i = 0; i < req->head.nreads; i++)
		count += req->head.reads[i].nsegs;
	return count * nfr_mem_transfer_pieces(device);
}

/*
 * Check whether the failure is temporary: memory is short, as that of a bounce buffer (-EIO) or of
 * an IOMMU, or other Calls use all MRs.
 */
static bool nfr_svc_read_may_work_later(const struct nfr_svc_req *req, int rc)
{
	u32 contexts = req->svc->conn->profile.rw_contexts;

	return rc == -ENOMEM || rc == -EIO || (rc == -EAGAIN && nfr_svc_read_operations(req) <= contexts);
}

/*
 * Prepare the RDMA Reads of a Call that nfr_svc_read_check() accepted. Returns 0,
 * -EINPROGRESS if the request waits for memory, or another negative errno if it cannot be
 * served.
 */
static int nfr_svc_read_prepare(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req))
{
	int rc;

	nfr_svc_read_layout(req);
	rc = req->npages ? nfr_svc_sink_get(req, resume) : 0;
	if (!rc)
		rc = nfr_svc_read_plan(req);
	if (nfr_svc_read_may_work_later(req, rc)) {
		nfr_mem_transfer_destroy_all(&req->transfer);
		rc = nfr_svc_sink_again(req, resume);
	}
	return rc;
}

static void nfr_svc_read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_svc_req *req = container_of(wc->wr_cqe, struct nfr_svc_req, read_cqe);
	struct nfr_conn *conn = req->svc->conn;

	/* on failure, the request is freed with the connection */
	if (!nfr_conn_check(conn, wc))
		return;
	WRITE_ONCE(req->posted, 0);
	nfr_mem_transfer_destroy_all(&req->transfer);
	nfr_svc_count(req->svc, read_bytes, req->length);
	trace_nfsrdma_svc_read(req);
	nfr_svc_enter(req, NFR_SVC_READY);
	conn->ops->writable(conn);
}

/*
 * Read the chunks of a Call. The request may wait for memory first, which calls
 * this function again. The connection breaks if the device cannot perform the
 * RDMA Reads.
 */
static void nfr_svc_read(struct nfr_svc_req *req)
{
	int rc = nfr_svc_read_prepare(req, nfr_svc_read);

	if (rc == -EINPROGRESS)
		return;
	if (rc) {
		struct nfr_conn *conn = req->svc->conn;

		nfr_svc_enter(req, NFR_SVC_FREE);
		nfr_conn_break(conn, "preparing an RDMA Read failed");
		return;
	}
	req->read_cqe.done = nfr_svc_read_done;
	req->first = nfr_mem_transfer_chain(&req->transfer, &req->read_cqe, NULL);
	/* all chunks are empty */
	if (!req->first) {
		nfr_svc_enter(req, NFR_SVC_READY);
		return;
	}
	req->signal = true;
	nfr_svc_post(req);
}

/* --- credits --- */

/*
 * Double the grant when half of it is in use, so that an idle client does not
 * occupy many buffers. Post the receives before granting the credits.
 * Completion handler only.
 */
static void nfr_svc_grow(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	u32 grant = min(2 * svc->grant, conn->wanted.credits);

	if (grant == svc->grant || atomic_read(&svc->busy) < svc->grant / 2)
		return;
	if (!nfr_conn_recv_fill(conn, nfr_svc_recvs_for(svc, grant), NFR_GFP_COMPLETION))
		WRITE_ONCE(svc->grant, grant);
}

static void nfr_svc_drop(struct nfr_svc_req *req, const char *what)
{
	trace_nfsrdma_svc_error(req->svc, req->head.xid, what, 0);
	nfr_svc_count(req->svc, dropped, 1);
	nfr_svc_enter(req, NFR_SVC_FREE);
}

/**
 * nfr_svc_drop_and_break - drop a message that has no answer, and end its connection
 * @req: request, which no nfsd thread uses
 * @what: disconnect reason, a string constant
 */
void nfr_svc_drop_and_break(struct nfr_svc_req *req, const char *what)
{
	struct nfr_conn *conn = req->svc->conn;

	nfr_svc_drop(req, what);
	nfr_conn_break(conn, what);
}

/* --- replies to callbacks --- */

static struct rpc_xprt *nfr_svc_callback_xprt(struct nfr_svc *svc)
{
	/* pairs with the cmpxchg() in nfr_svc_callback_attach() */
	return smp_load_acquire(&svc->first->callbacks);
}

static void nfr_svc_callback_complete(struct rpc_xprt *xprt, u32 xid, const void *rpc, u32 length)
{
	struct rpc_rqst *rqst;
	struct kvec *to;

	spin_lock(&xprt->queue_lock);
	rqst = xprt_lookup_rqst(xprt, cpu_to_be32(xid));
	if (rqst) {
		to = &rqst->rq_private_buf.head[0];
		/* sunrpc's decoder rejects a truncated message */
		length = min_t(u32, length, to->iov_len);
		memcpy(to->iov_base, rpc, length);
		xprt_complete_rqst(rqst->rq_task, length);
	}
	spin_unlock(&xprt->queue_lock);
}

static void nfr_svc_callback_reply(struct nfr_svc_req *req)
{
	struct nfr_svc_first *first = req->svc->first;
	struct rpc_xprt *xprt = nfr_svc_callback_xprt(req->svc);

	if (xprt) {
		WRITE_ONCE(first->callbacks_granted,
			   clamp_t(u32, req->head.credits, 1, NFR_SVC_CALLBACKS));
		atomic_add_unless(&first->callbacks_inflight, -1, 0);
		nfr_svc_callback_complete(xprt, req->head.xid, req->rpc, req->rpc_length);
		xprt_write_space(xprt);
	} else {
		trace_nfsrdma_svc_error(req->svc, req->head.xid,
					"a reply, but no callback was sent", 0);
	}
	nfr_svc_enter(req, NFR_SVC_FREE);
}

/*
 * An error of the client must concern a callback: a credit becomes free, and the callback gets
 * no reply and times out.
 */
static void nfr_svc_callback_refused(struct nfr_svc_req *req)
{
	struct rpc_xprt *xprt = nfr_svc_callback_xprt(req->svc);

	if (xprt) {
		atomic_add_unless(&req->svc->first->callbacks_inflight, -1, 0);
		xprt_write_space(xprt);
	}
	nfr_svc_drop(req, "RDMA_ERROR");
}

/* --- dispatching --- */

static void nfr_svc_call(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;

	if (!nfr_svc_read_check(req, svc->max_message)) {
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
		return;
	}
	nfr_svc_count(svc, calls, 1);
	nfr_svc_count(svc, read_chunks, req->head.nreads);
	trace_nfsrdma_svc_call(req);
	if (req->head.nreads && !svc->conn->profile.reads_issued) {
		nfr_svc_drop(req, "Read chunk, but no RDMA Reads accepted");
		nfr_conn_break(svc->conn, "the client does not accept RDMA Reads");
	} else if (req->head.nreads) {
		nfr_svc_enter(req, NFR_SVC_READING);
	} else if (!nfr_svc_threadless(req)) {
		nfr_svc_enter(req, NFR_SVC_READY);
	}
}

/* Tell a Call from the reply to a callback. Its XID has to match that of the header. */
static void nfr_svc_inline(struct nfr_svc_req *req)
{
	if (req->rpc_length < 8 || get_unaligned_be32(req->rpc) != req->head.xid)
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
	else if (nfr_wire_is_call(req->rpc, req->rpc_length))
		nfr_svc_call(req);
	else
		nfr_svc_defer(req, nfr_svc_callback_reply);
}

/**
 * nfr_svc_dispatch - handle a message with a sound header
 * @req: request with @head, @rpc and @rpc_length set; NFR_MSG, NFR_NOMSG or NFR_ERROR
 */
void nfr_svc_dispatch(struct nfr_svc_req *req)
{
	switch (req->head.proc) {
	case NFR_MSG:
		nfr_svc_inline(req);
		return;
	case NFR_NOMSG:
		nfr_svc_call(req);
		return;
	}
	nfr_svc_defer(req, nfr_svc_callback_refused);
}

static void nfr_svc_malformed(struct nfr_svc_req *req, int error)
{
	/* RFC 8166, section 4.5: its XID cannot be trusted */
	if (req->recv->length < NFR_WIRE_MIN) {
		nfr_svc_drop(req, "message is shorter than a header");
		return;
	}
	/* never answer an error, even a malformed one */
	if (req->head.proc == NFR_ERROR)
		nfr_svc_drop(req, "RDMA_ERROR");
	/* RFC 8166, section 4.2.4: the sender violates the protocol; there is no reply to it */
	else if (req->head.proc == NFR_DONE && error == -EPROTO)
		nfr_svc_drop(req, "RDMA_DONE");
	else
		nfr_svc_refuse(req, error == -EPROTONOSUPPORT ? NFR_ERR_VERS : NFR_ERR_CHUNK);
}

/**
 * nfr_svc_version1_receive - decode and dispatch a message of version 1
 * @req: new request
 */
void nfr_svc_version1_receive(struct nfr_svc_req *req)
{
	struct nfr_space space = {
		.chunks = req->chunks, .nchunks = NFR_SVC_CHUNKS,
		.segs = req->segs, .nsegs = NFR_SVC_SEGS,
	};
	int rc = nfr_wire_decode(&req->head, &space, req->recv->data, req->recv->length);

	if (rc < 0) {
		nfr_svc_malformed(req, rc);
		return;
	}
	req->rpc = req->recv->data + rc;
	req->rpc_length = req->recv->length - rc;
	nfr_svc_dispatch(req);
}

/* Returns -ENOMEM if no request could be allocated; then the caller keeps @recv. */
static int nfr_svc_handle(struct nfr_svc *svc, struct nfr_recv *recv, gfp_t gfp)
{
	struct nfr_svc_req *req = nfr_svc_req_get(svc, gfp);

	if (req == ERR_PTR(-ENOMEM))
		return -ENOMEM;
	if (IS_ERR(req)) {
		nfr_conn_recv_return(svc->conn, recv);
		nfr_conn_break(svc->conn, "more Calls than credits");
		return 0;
	}
	atomic_inc(&svc->busy);
	nfr_svc_enter(req, NFR_SVC_RECEIVED);
	req->recv = recv;
	req->transfer.gfp = gfp;
	req->npages = 0;
	req->waited = false;
	WRITE_ONCE(req->posted, 0);
	svc->personality->receive(req);
	return 0;
}

/* Handle a message from a client. Context: completion handler. */
void nfr_svc_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_svc *svc = conn->owner;

	nfr_svc_grow(svc);
	if (!nfr_svc_handle(svc, recv, NFR_GFP_COMPLETION))
		return;
	spin_lock_bh(&svc->lock);
	list_add_tail(&recv->list, &svc->late);
	spin_unlock_bh(&svc->lock);
	nfr_svc_sink_count_shortage();
	nfr_work_queue(&svc->late_work, 0);
}

/* --- work that the completion handler leaves to workers --- */

static void nfr_svc_late_work(struct work_struct *work)
{
	struct nfr_svc *svc = container_of(work, struct nfr_svc, late_work.work);
	struct list_head *entry;
	struct nfr_recv *recv;

	while ((entry = nfr_svc_pop(svc, &svc->late))) {
		recv = list_entry(entry, struct nfr_recv, list);
		if (!nfr_svc_handle(svc, recv, NFR_GFP_ONCE))
			continue;
		nfr_conn_recv_return(svc->conn, recv);
		nfr_conn_break(svc->conn, "no memory for a Call");
	}
}

static void nfr_svc_deferred_work(struct work_struct *work)
{
	struct nfr_svc *svc = container_of(work, struct nfr_svc, deferred_work);
	struct nfr_svc_req *req;
	struct list_head *entry;

	while ((entry = nfr_svc_pop(svc, &svc->deferred))) {
		req = list_entry(entry, struct nfr_svc_req, list);
		req->resume(req);
	}
}

/**
 * nfr_svc_work_init - initialize the work of messages that wait for memory or for a worker
 * @svc: new connection
 */
void nfr_svc_work_init(struct nfr_svc *svc)
{
	INIT_LIST_HEAD(&svc->late);
	INIT_LIST_HEAD(&svc->deferred);
	INIT_WORK(&svc->deferred_work, nfr_svc_deferred_work);
	INIT_DELAYED_WORK(&svc->late_work, nfr_svc_late_work);
}

/* --- nfsd threads --- */

/* Exchange the sink pages with pages of the nfsd thread. */
static void nfr_svc_give_pages(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	u32 i;

	for (i = 0; i < req->npages; i++)
		swap(rqstp->rq_pages[i], req->pages[i]);
	nfr_svc_sink_put(req);
}

static void nfr_svc_arg_inline(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	struct xdr_buf *arg = &rqstp->rq_arg;

	arg->head[0].iov_base = (void *)req->rpc;
	arg->head[0].iov_len = req->rpc_length;
	arg->page_len = 0;
	arg->tail[0].iov_len = 0;
}

/* Inline part before the data item, the item in pages, and the rest of the inline part */
static void nfr_svc_arg_item(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	u32 position = req->head.reads[0].position;
	struct xdr_buf *arg = &rqstp->rq_arg;

	arg->head[0].iov_base = (void *)req->rpc;
	arg->head[0].iov_len = position;
	arg->pages = rqstp->rq_pages;
	arg->page_len = req->length;
	arg->tail[0].iov_base = (void *)req->rpc + position;
	arg->tail[0].iov_len = req->rpc_length - position;
}

static void nfr_svc_arg_whole(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	struct xdr_buf *arg = &rqstp->rq_arg;

	arg->head[0].iov_base = page_address(rqstp->rq_pages[0]);
	arg->head[0].iov_len = min_t(u32, req->length, PAGE_SIZE);
	arg->pages = rqstp->rq_pages + 1;
	arg->page_len = req->length - arg->head[0].iov_len;
	arg->tail[0].iov_len = 0;
}

/* Maximum length of a Reply in pages; its chunks, or the inline size, limit it. */
static u32 nfr_svc_reply_room(const struct nfr_svc_req *req)
{
	return nfr_svc_budget_room(req) ?: PFN_UP(req->svc->conn->send_size);
}

static int nfr_svc_build_arg(struct svc_rqst *rqstp, struct nfr_svc_req *req)
{
	struct xdr_buf *arg = &rqstp->rq_arg;

	nfr_svc_give_pages(rqstp, req);
	/* without Read chunks, or with empty ones */
	if (!req->npages)
		nfr_svc_arg_inline(rqstp, req);
	else if (req->whole)
		nfr_svc_arg_whole(rqstp, req);
	else
		nfr_svc_arg_item(rqstp, req);
	arg->page_base = 0;
	arg->len = arg->head[0].iov_len + arg->page_len + arg->tail[0].iov_len;
	arg->buflen = arg->len;
	nfr_compat_set_respages(rqstp, req->npages);
	nfr_svc_pages_keep(req, rqstp, nfr_svc_reply_room(req));
	return arg->len;
}

/*
 * Get the first Call whose Reply fits into the budget. Calls that wait for it
 * keep their order; Calls that are not charged may overtake them.
 */
static struct nfr_svc_req *nfr_svc_next(struct nfr_svc_first *first)
{
	struct nfr_svc_req *req;
	bool waits = false;

	list_for_each_entry(req, &first->ready, list) {
		u32 room = nfr_svc_budget_room(req);

		if (!room || (!waits && nfr_svc_budget_charge(req, room)))
			return req;
		waits = true;
	}
	return NULL;
}

static struct nfr_svc_req *nfr_svc_take(struct nfr_svc_first *first)
{
	struct nfr_svc_req *req;

	spin_lock_bh(&first->svc.lock);
	/* clear it first: nfr_svc_wake() may set it again at any time */
	clear_bit(XPT_DATA, &first->xprt.xpt_flags);
	req = nfr_svc_next(first);
	if (req)
		list_del(&req->list);
	if (req && !list_empty(&first->ready))
		set_bit(XPT_DATA, &first->xprt.xpt_flags);
	spin_unlock_bh(&first->svc.lock);
	return req;
}

/*
 * Let nfsd threads take Calls (svc_xprt_ops.xpo_has_wspace). Returns 1; nfr_svc_next() decides
 * which Calls wait for memory.
 */
int nfr_svc_has_wspace(struct svc_xprt *xprt)
{
	return 1;
}

/**
 * nfr_svc_set_secure - say whether exports with the option secure admit the client
 *	(svc_xprt_ops.xpo_secure_port)
 * @rqstp: request of an nfsd thread
 */
void nfr_svc_set_secure(struct svc_rqst *rqstp)
{
	if (nfr_svc_of(rqstp->rq_xprt)->privileged)
		set_bit(RQ_SECURE, &rqstp->rq_flags);
	else
		clear_bit(RQ_SECURE, &rqstp->rq_flags);
}

/* Note when nfsd gets a Call, if something may be learned from its Reply, see watch.c. */
static void nfr_svc_stamp(struct nfr_svc_req *req)
{
	req->handed.real = 0;
	if (!nfr_params_server_threadless() && !req->svc->personality->learns)
		return;
	/* a step of the clock between the two is seen */
	req->handed.steps = nfr_compat_clock_steps();
	smp_rmb();
	req->handed.real = ktime_get_coarse_real();
}

/**
 * nfr_svc_recvfrom - pass a Call to an nfsd thread (svc_xprt_ops.xpo_recvfrom)
 * @rqstp: request of the thread; the function sets its rq_arg
 *
 * Return: length of the Call in bytes, or 0 if no Call is available.
 */
int nfr_svc_recvfrom(struct svc_rqst *rqstp)
{
	struct svc_xprt *xprt = rqstp->rq_xprt;
	struct nfr_svc_req *req = nfr_svc_take(nfr_svc_of(xprt)->first);

	rqstp->rq_xprt_ctxt = req;
	/* allow another thread to take the next Call */
	svc_xprt_received(xprt);
	if (!req) {
		nfr_compat_no_respages(rqstp);
		return 0;
	}
	nfr_svc_enter(req, NFR_SVC_REPLYING);
	req->transfer.gfp = NFR_GFP_ONCE;
	nfr_svc_stamp(req);
	rqstp->rq_prot = IPPROTO_MAX;
	svc_xprt_copy_addrs(rqstp, xprt);
	nfr_svc_set_secure(rqstp);
	return nfr_svc_build_arg(rqstp, req);
}

/* Handle a Reply that was not prepared. Returns the result of nfr_svc_sendto(). */
static noinline int nfr_svc_unsent(struct nfr_svc_req *req, int rc)
{
	/* the personality posted it, or ended the request */
	if (rc == -EINPROGRESS)
		return 0;
	if (rc == -EMSGSIZE) {
		nfr_svc_refuse(req, NFR_ERR_CHUNK);
		return 0;
	}
	nfr_conn_break(req->svc->conn, "sending a Reply failed");
	nfr_svc_enter(req, NFR_SVC_FREE);
	return rc;
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
	req->svc->personality->inspect(req, rqstp);
	rc = req->svc->personality->reply(req, &rqstp->rq_res, rqstp);
	if (!rc) {
		nfr_svc_enter(req, NFR_SVC_SENT);
		return 0;
	}
	return nfr_svc_unsent(req, rc);
}

/**
 * nfr_svc_release_ctxt - end a Call that nfsd drops (svc_xprt_ops.xpo_release_ctxt)
 * @xprt: first connection
 * @ctxt: request, or NULL after nfr_svc_sendto()
 *
 * The client may retransmit the Call on another connection only.
 */
void nfr_svc_release_ctxt(struct svc_xprt *xprt, void *ctxt)
{
	struct nfr_svc_req *req = ctxt;
	struct nfr_svc *svc;
	u32 xid;

	if (!req)
		return;
	svc = req->svc;
	xid = req->head.xid;
	nfr_svc_count(svc, dropped, 1);
	nfr_svc_advance(req, NFR_SVC_FREE);
	/* delayed, because nfsd also drops a retransmission while it still handles the original */
	nfr_conn_abandon(svc->conn, xid, NULL, NULL);
	/* a Call of a branch has a reference to it */
	if (nfr_svc_is_branch(svc))
		nfr_svc_put(svc);
}

/* --- send queue --- */

/* Release sent requests and post queued ones. Context: completion handler. */
void nfr_svc_writable(struct nfr_conn *conn)
{
	struct nfr_svc_req *req, *next;
	LIST_HEAD(done);

	nfr_svc_retire(conn->owner, &done);
	list_for_each_entry_safe(req, next, &done, list)
		nfr_svc_enter(req, NFR_SVC_FREE);
}
