// SPDX-License-Identifier: GPL-2.0-only
/*
 * RDMA Reads and Writes between memory of this host and segments of the peer.
 *
 * The RDMA core's helpers (rdma/rw.h) know what a device needs for them: iWARP
 * wants even the target of a Read registered. Each operation holds the pages
 * it uses, so a reply's pages may be given back by nfsd before they have left.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "server.h"

/* Pieces that are not whole pages: at both ends of a head, of pages and of a tail */
#define NFR_RW_ENDS	6

static void nfr_rw_pages(struct nfr_rw *rw, void (*each)(struct page *page))
{
	struct scatterlist *sg;
	u32 i, n;
	int j;

	for_each_sg(rw->sg, sg, rw->entries, j) {
		n = DIV_ROUND_UP(sg->offset + sg->length, PAGE_SIZE);
		for (i = 0; i < n; i++)
			each(sg_page(sg) + i);
	}
}

/* Appends a piece; one that goes on where the last one ended makes that longer. */
static void nfr_rw_piece(struct nfr_rw *rw, const struct nfr_piece *piece, u32 length, u32 max)
{
	struct scatterlist *sg = rw->entries ? &rw->sg[rw->entries - 1] : NULL;

	if (sg && page_to_phys(sg_page(sg)) + sg->offset + sg->length ==
		  page_to_phys(piece->page) + piece->offset &&
	    sg->length + length <= max) {
		sg->length += length;
		return;
	}
	sg_set_page(&rw->sg[rw->entries++], piece->page, length, piece->offset);
}

static void nfr_rw_fill(struct nfr_rw *rw, struct nfr_span *span, u32 length, u32 max)
{
	struct nfr_piece piece;
	u32 n;

	while (length && nfr_span_peek(span, &piece)) {
		n = min(piece.length, length);
		nfr_rw_piece(rw, &piece, n, max);
		nfr_span_skip(span, n);
		length -= n;
	}
	sg_mark_end(&rw->sg[rw->entries - 1]);
}

/*
 * The core allocates with GFP_KERNEL, some bytes for each page. Where req->gfp
 * does not block, it must not reclaim either; what it takes of the reserves
 * then is bounded with the pages themselves (server_sink.c).
 */
static int nfr_rw_init(struct nfr_svc_req *req, struct nfr_rw *rw, const struct nfr_segment *seg,
		       u32 at)
{
	struct rdma_cm_id *id = req->svc->conn->id;
	bool blocks = gfpflags_allow_blocking(req->gfp);
	unsigned int flags;
	int rc;

	flags = blocks ? memalloc_noio_save() : memalloc_noreclaim_save();
	rc = rdma_rw_ctx_init(&rw->ctx, id->qp, id->port_num, rw->sg, rw->entries, 0,
			      seg->offset + at, seg->handle, rw->direction);
	if (blocks)
		memalloc_noio_restore(flags);
	else
		memalloc_noreclaim_restore(flags);
	return rc;
}

/* One operation: @length bytes of @span, and as many at @at in @seg */
static int nfr_rw_one(struct nfr_svc_req *req, const struct nfr_segment *seg, u32 at,
		      struct nfr_span *span, u32 length, enum dma_data_direction direction)
{
	struct nfr_conn *conn = req->svc->conn;
	u32 room = (length >> PAGE_SHIFT) + NFR_RW_ENDS;
	struct nfr_rw *rw;
	int rc;

	rw = kvmalloc(struct_size(rw, sg, room), req->gfp);
	if (!rw)
		return -ENOMEM;
	rw->entries = 0;
	rw->direction = direction;
	rw->length = length;
	sg_init_table(rw->sg, room);
	nfr_rw_fill(rw, span, length, ib_dma_max_seg_size(conn->device));
	rc = nfr_rw_init(req, rw, seg, at);
	if (rc < 0) {
		kvfree(rw);
		return rc;
	}
	nfr_rw_pages(rw, get_page);
	list_add_tail(&rw->list, &req->rws);
	return 0;
}

/**
 * nfr_rw_add - prepare to move data
 * @req: the operations are added to
 * @cursor: where in the peer's chunk; moves on
 * @span: memory of this host; consumed as far as @length
 * @length: bytes; the chunk and the span have as many
 * @direction: DMA_FROM_DEVICE to read from the peer, DMA_TO_DEVICE to write to it
 *
 * Returns 0, -ENOMEM, or -EAGAIN when the device has no regions left for it.
 */
int nfr_rw_add(struct nfr_svc_req *req, struct nfr_cursor *cursor, struct nfr_span *span,
	       u32 length, enum dma_data_direction direction)
{
	const struct nfr_segment *seg;
	int rc = 0;
	u32 n;

	while (length && !rc) {
		seg = &cursor->chunk->segs[cursor->seg];
		n = min(length, seg->length - cursor->offset);
		if (n)
			rc = nfr_rw_one(req, seg, cursor->offset, span, n, direction);
		length -= n;
		cursor->offset += n;
		if (cursor->offset == seg->length) {
			cursor->seg++;
			cursor->offset = 0;
		}
	}
	return rc;
}

/**
 * nfr_rw_bytes - bytes that a request's operations move
 * @req: the request
 */
u32 nfr_rw_bytes(const struct nfr_svc_req *req)
{
	const struct nfr_rw *rw;
	u32 bytes = 0;

	list_for_each_entry(rw, &req->rws, list)
		bytes += rw->length;
	return bytes;
}

/**
 * nfr_rw_chain - the work requests of all operations, in order
 * @req: its operations
 * @cqe: completes after the last of them; not used with @last
 * @last: what follows them, or NULL
 *
 * Returns the first, or @last if there are no operations.
 */
struct ib_send_wr *nfr_rw_chain(struct nfr_svc_req *req, struct ib_cqe *cqe,
				struct ib_send_wr *last)
{
	struct nfr_conn *conn = req->svc->conn;
	struct nfr_rw *rw;

	list_for_each_entry_reverse(rw, &req->rws, list)
		last = rdma_rw_ctx_wrs(&rw->ctx, conn->id->qp, conn->id->port_num,
				       last ? NULL : cqe, last);
	return last;
}

/**
 * nfr_rw_destroy_all - undo nfr_rw_add(): the operations are over, or were never posted
 * @req: the request; the queue pair exists
 */
void nfr_rw_destroy_all(struct nfr_svc_req *req)
{
	struct nfr_conn *conn = req->svc->conn;
	struct nfr_rw *rw, *next;

	list_for_each_entry_safe(rw, next, &req->rws, list) {
		list_del(&rw->list);
		rdma_rw_ctx_destroy(&rw->ctx, conn->id->qp, conn->id->port_num, rw->sg,
				    rw->entries, rw->direction);
		nfr_rw_pages(rw, put_page);
		kvfree(rw);
	}
}
