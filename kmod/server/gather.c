// SPDX-License-Identifier: GPL-2.0-only
/*
 * Messages of a Reply that the device takes from pages, without a copy: the data of
 * a Reply on a lane, that of a Reply with padding, and a Reply that is longer than its buffer.
 *
 * The pages are mapped and referenced until the client's device has acknowledged the
 * last message.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "gfp.h"
#include "memory/region.h"
#include "server/budget.h"
#include "server/pages.h"
#include "server/server.h"

/*
 * struct nfr_svc_gather - messages of a Reply
 * @count: number of messages
 * @entries: number of elements of @sges in use; the first is the head, without a page
 * @held: number of elements of @pages in use: an element of @sges may have several pages
 * @messages: number of elements of @sends
 * @room: number of elements of @sges, and of @pages
 * @sends: messages
 * @scatters: mappings of the data of the messages
 * @pages: pages of all messages, referenced; behind @sends
 * @sges: elements of all messages
 */
struct nfr_svc_gather {
	u32 count;
	u32 entries;
	u32 held;
	u32 messages;
	u32 room;
	struct ib_send_wr *sends;
	struct nfr_scatter *scatters;
	struct page **pages;
	struct ib_sge sges[];
};

static struct nfr_svc_gather *nfr_svc_gather_alloc(u32 messages, u32 room, gfp_t gfp)
{
	struct nfr_svc_gather *gather;

	gather = kvmalloc(struct_size(gather, sges, room) +
			  messages * (sizeof(*gather->sends) + sizeof(*gather->scatters)) +
			  room * sizeof(*gather->pages), gfp);
	if (!gather)
		return NULL;
	gather->messages = messages;
	gather->room = room;
	gather->sends = (struct ib_send_wr *)&gather->sges[room];
	gather->scatters = (struct nfr_scatter *)&gather->sends[messages];
	gather->pages = (struct page **)&gather->scatters[messages];
	return gather;
}

/**
 * nfr_svc_gather_get - begin the messages of a Reply
 * @req: request without messages
 * @messages: maximum number of messages
 * @pages: maximum number of pages; a message has an element for the head, and one for each page
 *	at most
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_svc_gather_get(struct nfr_svc_req *req, u32 messages, u32 pages)
{
	struct nfr_svc_gather *gather = req->gather;

	if (!gather || gather->room <= pages || gather->messages < messages) {
		kvfree(gather);
		gather = nfr_svc_gather_alloc(messages, 1 + pages, req->transfer.gfp);
		req->gather = gather;
		if (!gather)
			return -ENOMEM;
	}
	gather->count = 0;
	gather->entries = 1;
	gather->held = 0;
	return 0;
}

/* Reference the pages of the first @data bytes of @span. Returns false if they are too many. */
static bool nfr_svc_gather_hold(struct nfr_svc_gather *gather, struct nfr_span span, u32 data)
{
	struct nfr_piece piece;

	for (; data; data -= piece.length) {
		if (gather->held == gather->room || !nfr_mem_span_peek(&span, &piece))
			return false;
		get_page(piece.page);
		gather->pages[gather->held++] = piece.page;
		piece.length = min(piece.length, data);
		nfr_mem_span_skip(&span, piece.length);
	}
	return true;
}

/**
 * nfr_svc_gather_add - add a message
 * @req: request
 * @span: memory of the data; consumed
 * @head: whether the message begins with the head
 * @data: number of bytes of @span
 *
 * Return: 0 or a negative errno; then nfr_svc_gather_release() undoes what was added.
 */
int nfr_svc_gather_add(struct nfr_svc_req *req, struct nfr_span *span, bool head, u32 data)
{
	struct nfr_svc_gather *gather = req->gather;
	u32 first = head ? 0 : gather->entries;
	struct nfr_conn *conn = req->svc->conn;
	struct ib_send_wr *send;
	int count;

	if (!nfr_svc_gather_hold(gather, *span, data))
		return -EMSGSIZE;
	count = nfr_mem_scatter_map(&gather->scatters[gather->count], conn->pd, span, data,
				    DMA_TO_DEVICE, gather->sges + gather->entries,
				    min(gather->room - gather->entries,
					conn->profile.send_sges - head),
				    req->transfer.gfp);
	if (count < 0)
		return count;
	gather->entries += count;
	send = &gather->sends[gather->count++];
	*send = (struct ib_send_wr) {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND,
		.sg_list = gather->sges + first, .num_sge = gather->entries - first,
	};
	if (gather->count > 1)
		send[-1].next = send;
	return 0;
}

/**
 * nfr_svc_gather_finish - chain the messages of a Reply
 * @req: request, whose messages are complete
 * @rqstp: nfsd thread's request, or NULL for a threadless read
 * @head: length of the head in bytes; it is in the buffer of the request
 * @data: number of bytes that the messages take from pages
 *
 * The caller has to post the chain.
 */
void nfr_svc_gather_finish(struct nfr_svc_req *req, struct svc_rqst *rqstp, u32 head, u32 data)
{
	struct nfr_conn *conn = req->svc->conn;

	req->gather->sges[0] = (struct ib_sge) {
		.addr = req->addr, .length = head, .lkey = conn->pd->local_dma_lkey,
	};
	ib_dma_sync_single_for_device(conn->device, req->addr, head, DMA_TO_DEVICE);
	nfr_svc_count(req->svc, replies, 1);
	req->first = req->gather->sends;
	req->signal = true;
	/* release unused pages: other Calls may wait for them */
	nfr_svc_budget_keep(req, data);
	nfr_svc_req_answered(req);
	nfr_svc_pages_restore(req, rqstp);
}

/**
 * nfr_svc_gather_release - release the pages of a Reply
 * @req: request whose messages are complete, flushed or not posted; the queue pair exists
 */
void nfr_svc_gather_release(struct nfr_svc_req *req)
{
	struct nfr_svc_gather *gather = req->gather;

	if (!gather)
		return;
	while (gather->count)
		nfr_mem_scatter_unmap(req->svc->conn->device, &gather->scatters[--gather->count]);
	gather->entries = 1;
	while (gather->held)
		put_page(gather->pages[--gather->held]);
}
