// SPDX-License-Identifier: GPL-2.0-only
/*
 * RDMA Reads and Writes between local pages and segments of the peer.
 *
 * The helpers of the RDMA core (rdma/rw.h) hide the requirements of devices:
 * iWARP devices need an MR for the target of an RDMA Read. The request keeps the
 * pages of its operations until they are complete.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "server/server.h"

/* Partial pages: at both ends of head, pages and tail */
#define NFR_RW_ENDS	6
/* Maximum number of pages in an MR of the RDMA core (drivers/infiniband/core/rw.c) */
#define NFR_RW_MR_PAGES	256u

/* Call @each for each page. The entries are an array, without chains. */
static __always_inline void nfr_svc_rdma_pages(struct nfr_rw *rw, void (*each)(struct page *page))
{
	const struct scatterlist *sg;

	for (sg = rw->sg; sg < rw->sg + rw->entries; sg++) {
		struct page *page = sg_page((struct scatterlist *)sg);
		u32 n = PFN_UP(sg->offset + sg->length);

		while (n--)
			each(page++);
	}
}

/* Append a piece, or extend the last entry if it is contiguous. */
static void nfr_svc_rdma_piece(struct nfr_rw *rw, const struct nfr_piece *piece, u32 length,
			       u32 max)
{
	struct scatterlist *sg = rw->entries ? &rw->sg[rw->entries - 1] : NULL;

	if (sg && page_to_phys(sg_page(sg)) + sg->offset + sg->length ==
		  page_to_phys(piece->page) + piece->offset &&
	    sg->length + length <= max) {
		sg->length += length;
		return;
	}
	/* initialized here, because few of many entries may be used */
	sg = &rw->sg[rw->entries++];
	*sg = (struct scatterlist) { };
	sg_set_page(sg, piece->page, length, piece->offset);
}

static void nfr_svc_rdma_fill(struct nfr_rw *rw, struct nfr_span *span, u32 length, u32 max)
{
	struct nfr_piece piece;
	u32 n;

	while (length && nfr_mem_span_peek(span, &piece)) {
		n = min(piece.length, length);
		nfr_svc_rdma_piece(rw, &piece, n, max);
		nfr_mem_span_skip(span, n);
		length -= n;
	}
	sg_mark_end(&rw->sg[rw->entries - 1]);
}

/*
 * The RDMA core allocates with GFP_KERNEL, some bytes per page. If req->gfp
 * does not block, it must not reclaim either. The limit on pages (memory.c) also
 * bounds its use of the reserves.
 */
static int nfr_svc_rdma_init(struct nfr_svc_req *req, struct nfr_rw *rw,
			     const struct nfr_segment *seg, u32 at)
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

/**
 * nfr_svc_rdma_read_max - get the maximum size of an RDMA Read
 * @conn: connection
 * @offset: offset of the local memory in its first page
 *
 * If a device needs an MR for the target, the RDMA core counts the entries of
 * the list, and not their pages (drivers/infiniband/core/rw.c, rdma_rw_init_mr_wrs()).
 * An operation of this size fits into one MR in any case.
 *
 * Return: number of bytes.
 */
u32 nfr_svc_rdma_read_max(const struct nfr_conn *conn, u32 offset)
{
	u32 pages = min(conn->device->attrs.max_fast_reg_page_list_len, NFR_RW_MR_PAGES);

	return pages ? (pages << PAGE_SHIFT) - offset : U32_MAX;
}

/* Add one operation: @length bytes of @span, at offset @at of @seg */
static int nfr_svc_rdma_one(struct nfr_svc_req *req, const struct nfr_segment *seg, u32 at,
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
	rw->holds = false;
	nfr_svc_rdma_fill(rw, span, length, ib_dma_max_seg_size(conn->device));
	rc = nfr_svc_rdma_init(req, rw, seg, at);
	if (rc < 0) {
		kvfree(rw);
		return rc;
	}
	list_add_tail(&rw->list, &req->rws);
	return 0;
}

/**
 * nfr_svc_rdma_add - prepare RDMA Reads or Writes
 * @req: request to add the operations to
 * @cursor: position in the chunk of the peer; advanced
 * @span: local memory; @length bytes of it are consumed
 * @length: number of bytes, which the chunk and the span must have
 * @direction: DMA_FROM_DEVICE to read from the peer, DMA_TO_DEVICE to write to
 *	it
 *
 * The caller has to keep the pages until the operations are destroyed, see
 * nfr_svc_rdma_hold().
 *
 * Return: 0, -ENOMEM, or -EAGAIN if the device has no free MRs for it.
 */
int nfr_svc_rdma_add(struct nfr_svc_req *req, struct nfr_cursor *cursor, struct nfr_span *span,
		     u32 length, enum dma_data_direction direction)
{
	const struct nfr_segment *seg;
	int rc = 0;
	u32 n;

	while (length && !rc) {
		seg = &cursor->chunk->segs[cursor->seg];
		n = min(length, seg->length - cursor->offset);
		if (direction == DMA_FROM_DEVICE)
			n = min(n, nfr_svc_rdma_read_max(req->svc->conn,
							 offset_in_page(span->page_base)));
		if (n)
			rc = nfr_svc_rdma_one(req, seg, cursor->offset, span, n, direction);
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
 * nfr_svc_rdma_hold - keep the pages of all operations until they are destroyed
 * @req: request with operations
 */
void nfr_svc_rdma_hold(struct nfr_svc_req *req)
{
	struct nfr_rw *rw;

	list_for_each_entry(rw, &req->rws, list) {
		nfr_svc_rdma_pages(rw, get_page);
		rw->holds = true;
	}
}

/**
 * nfr_svc_rdma_bytes - compute the length of all operations of a request
 * @req: request
 *
 * Return: number of bytes.
 */
u32 nfr_svc_rdma_bytes(const struct nfr_svc_req *req)
{
	const struct nfr_rw *rw;
	u32 bytes = 0;

	list_for_each_entry(rw, &req->rws, list)
		bytes += rw->length;
	return bytes;
}

/**
 * nfr_svc_rdma_chain - link the work requests of all operations
 * @req: request with operations
 * @cqe: completion of the last operation; unused if @last is set
 * @last: work request that follows them, or NULL
 *
 * Return: first work request, or @last if there are no operations.
 */
struct ib_send_wr *nfr_svc_rdma_chain(struct nfr_svc_req *req, struct ib_cqe *cqe,
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
 * nfr_svc_rdma_destroy_all - undo nfr_svc_rdma_add()
 * @req: request, whose operations are complete or were not posted; the queue pair
 *	exists
 */
void nfr_svc_rdma_destroy_all(struct nfr_svc_req *req)
{
	struct nfr_conn *conn = req->svc->conn;
	struct nfr_rw *rw, *next;

	list_for_each_entry_safe(rw, next, &req->rws, list) {
		list_del(&rw->list);
		rdma_rw_ctx_destroy(&rw->ctx, conn->id->qp, conn->id->port_num, rw->sg,
				    rw->entries, rw->direction);
		if (rw->holds)
			nfr_svc_rdma_pages(rw, put_page);
		kvfree(rw);
	}
}
