// SPDX-License-Identifier: GPL-2.0-only
/*
 * RDMA Reads and Writes between local pages and segments of the peer. This file
 * prepares and chains them; the owner of the transfer posts them.
 *
 * The helpers of the RDMA core (rdma/rw.h) hide the requirements of devices:
 * iWARP devices need an MR for the target of an RDMA Read. The owner keeps the
 * pages of its operations until they are complete.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "memory/memory.h"
#include "memory/region.h"
#include "memory/transfer.h"

/* Partial pages: at both ends of head, pages and tail */
#define NFR_RW_ENDS	6
/* Maximum number of pages in an MR of the RDMA core (drivers/infiniband/core/rw.c) */
#define NFR_RW_MR_PAGES	256u

/* Call @each for each page. The entries are an array, without chains. */
static __always_inline void nfr_mem_transfer_pages(struct nfr_rw *rw,
						   void (*each)(struct page *page))
{
	const struct scatterlist *sg;

	for (sg = rw->sg; sg < rw->sg + rw->entries; sg++) {
		struct page *page = sg_page((struct scatterlist *)sg);
		u32 n = PFN_UP(sg->offset + sg->length);

		while (n--)
			each(page++);
	}
}

/*
 * The RDMA core allocates with GFP_KERNEL, some bytes per page. If transfer->gfp
 * does not block, it must not reclaim either. The owner's limit on pages also
 * bounds its use of the reserves.
 */
static int nfr_mem_transfer_prepare(struct nfr_transfer *transfer, struct nfr_rw *rw,
				    const struct nfr_segment *seg, u32 at)
{
	struct rdma_cm_id *id = transfer->id;
	bool blocks = gfpflags_allow_blocking(transfer->gfp);
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
 * nfr_mem_transfer_read_max - get the maximum size of an RDMA Read
 * @device: RDMA device
 * @offset: offset of the local memory in its first page
 *
 * If a device needs an MR for the target, the RDMA core counts the entries of
 * the list, and not their pages (drivers/infiniband/core/rw.c, rdma_rw_init_mr_wrs()).
 * An operation of this size fits into one MR in any case.
 *
 * Return: number of bytes.
 */
u32 nfr_mem_transfer_read_max(const struct ib_device *device, u32 offset)
{
	u32 pages = min(device->attrs.max_fast_reg_page_list_len, NFR_RW_MR_PAGES);

	return pages ? (pages << PAGE_SHIFT) - offset : U32_MAX;
}

/* Add one operation: @length bytes of @span, at offset @at of @seg */
static int nfr_mem_transfer_one(struct nfr_transfer *transfer, const struct nfr_segment *seg,
				u32 at, struct nfr_span *span, u32 length,
				enum dma_data_direction direction)
{
	u32 room = (length >> PAGE_SHIFT) + NFR_RW_ENDS;
	struct nfr_rw *rw;
	int rc;

	rw = kvmalloc(struct_size(rw, sg, room), transfer->gfp);
	if (!rw)
		return -ENOMEM;
	rw->direction = direction;
	rw->length = length;
	rw->holds = false;
	rw->entries = nfr_mem_span_list(span, length, ib_dma_max_seg_size(transfer->id->device),
					true, rw->sg, room);
	rc = nfr_mem_transfer_prepare(transfer, rw, seg, at);
	if (rc < 0) {
		kvfree(rw);
		return rc;
	}
	list_add_tail(&rw->list, &transfer->rws);
	return 0;
}

/**
 * nfr_mem_transfer_add - prepare RDMA Reads or Writes
 * @transfer: transfer to add the operations to
 * @cursor: position in the chunk of the peer; advanced
 * @span: local memory; @length bytes of it are consumed. For Reads, it has no gaps, and
 *	all of it is in pages or within one MR of the RDMA core
 * @length: number of bytes, which the chunk and the span must have
 * @direction: DMA_FROM_DEVICE to read from the peer, DMA_TO_DEVICE to write to
 *	it
 *
 * The caller has to keep the pages until the operations are destroyed, see
 * nfr_mem_transfer_hold().
 *
 * Return: 0, -ENOMEM, or -EAGAIN if the device has no free MRs for it.
 */
int nfr_mem_transfer_add(struct nfr_transfer *transfer, struct nfr_cursor *cursor,
			 struct nfr_span *span, u32 length, enum dma_data_direction direction)
{
	const struct nfr_segment *seg;
	int rc = 0;
	u32 n;

	while (length && !rc) {
		seg = &cursor->chunk->segs[cursor->seg];
		n = min(length, seg->length - cursor->offset);
		if (direction == DMA_FROM_DEVICE)
			n = min(n, nfr_mem_transfer_read_max(transfer->id->device,
							     offset_in_page(span->page_base)));
		if (n)
			rc = nfr_mem_transfer_one(transfer, seg, cursor->offset, span, n,
						  direction);
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
 * nfr_mem_transfer_hold - keep the pages of all operations until they are destroyed
 * @transfer: transfer with operations
 */
void nfr_mem_transfer_hold(struct nfr_transfer *transfer)
{
	struct nfr_rw *rw;

	list_for_each_entry(rw, &transfer->rws, list) {
		nfr_mem_transfer_pages(rw, get_page);
		rw->holds = true;
	}
}

/**
 * nfr_mem_transfer_bytes - compute the length of all operations
 * @transfer: transfer
 *
 * Return: number of bytes.
 */
u32 nfr_mem_transfer_bytes(const struct nfr_transfer *transfer)
{
	const struct nfr_rw *rw;
	u32 bytes = 0;

	list_for_each_entry(rw, &transfer->rws, list)
		bytes += rw->length;
	return bytes;
}

/**
 * nfr_mem_transfer_chain - link the work requests of all operations
 * @transfer: transfer with operations
 * @cqe: completion of the last operation; unused if @last is set
 * @last: work request that follows them, or NULL
 *
 * Return: first work request, or @last if there are no operations.
 */
struct ib_send_wr *nfr_mem_transfer_chain(struct nfr_transfer *transfer, struct ib_cqe *cqe,
					  struct ib_send_wr *last)
{
	struct rdma_cm_id *id = transfer->id;
	struct nfr_rw *rw;

	list_for_each_entry_reverse(rw, &transfer->rws, list)
		last = rdma_rw_ctx_wrs(&rw->ctx, id->qp, id->port_num, last ? NULL : cqe, last);
	return last;
}

/**
 * nfr_mem_transfer_destroy_all - undo nfr_mem_transfer_add()
 * @transfer: transfer whose operations are complete or were not posted; the queue
 *	pair exists
 */
void nfr_mem_transfer_destroy_all(struct nfr_transfer *transfer)
{
	struct rdma_cm_id *id = transfer->id;
	struct nfr_rw *rw, *next;

	list_for_each_entry_safe(rw, next, &transfer->rws, list) {
		list_del(&rw->list);
		rdma_rw_ctx_destroy(&rw->ctx, id->qp, id->port_num, rw->sg, rw->entries,
				    rw->direction);
		if (rw->holds)
			nfr_mem_transfer_pages(rw, put_page);
		kvfree(rw);
	}
}
