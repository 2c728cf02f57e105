/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The memory that regions map: walking an xdr_buf, and RDMA Reads and Writes between its pages
 * and segments of the peer. memory.h has the regions.
 */
#ifndef NFSRDMA_MEMORY_REGION_H
#define NFSRDMA_MEMORY_REGION_H

#include <linux/mm.h>
#include <linux/uio.h>
#include <rdma/rw.h>

#include "memory/memory.h"
#include "wire/wire.h"

/*
 * Memory described by an xdr_buf: head, pages, tail. Lengths are in bytes.
 * Functions that walk a span consume it.
 */
struct nfr_span {
	struct kvec head;
	struct page **pages;
	u32 page_base;
	u32 page_len;
	struct kvec tail;
};

/* Part of a span within one page; @offset and @length are in bytes */
struct nfr_piece {
	struct page *page;
	u32 offset;
	u32 length;
};

bool nfr_mem_span_peek_kvec(const struct nfr_span *span, struct nfr_piece *piece);
void nfr_mem_span_skip_kvec(struct nfr_span *span, u32 length);
u32 nfr_mem_span_length(const struct nfr_span *span);
u32 nfr_mem_span_regions(const struct nfr_span *span, u32 room);

/* --- walking a span: each page of an RPC takes these steps --- */

static inline bool nfr_mem_span_is_in_pages(const struct nfr_span *span)
{
	return !span->head.iov_len && span->page_len;
}

/* Get the first piece of a span, within one page. Returns false if the span is empty. */
static inline bool nfr_mem_span_peek(const struct nfr_span *span, struct nfr_piece *piece)
{
	if (!nfr_mem_span_is_in_pages(span))
		return nfr_mem_span_peek_kvec(span, piece);
	piece->page = span->pages[span->page_base >> PAGE_SHIFT];
	piece->offset = offset_in_page(span->page_base);
	piece->length = min_t(u32, span->page_len, PAGE_SIZE - piece->offset);
	return true;
}

/*
 * Consume @length bytes: at most those of the piece from nfr_mem_span_peek(), or, if the
 * span starts in its pages, those of the pages
 */
static inline void nfr_mem_span_skip(struct nfr_span *span, u32 length)
{
	if (!nfr_mem_span_is_in_pages(span)) {
		nfr_mem_span_skip_kvec(span, length);
		return;
	}
	span->page_base += length;
	span->page_len -= length;
}

/* --- RDMA Reads and Writes --- */

/**
 * struct nfr_rw - RDMA Read or Write between local pages and one segment of the peer
 * @list: link in nfr_transfer.rws
 * @direction: DMA_FROM_DEVICE for a Read, DMA_TO_DEVICE for a Write
 * @length: in bytes
 * @entries: number of elements of @sg, or of @sges
 * @holds: whether it holds references to its pages
 * @plain: whether it is a Write that was prepared without the RDMA core
 * @ctx: work requests of the RDMA core, for @sg
 * @write: work request of a plain Write, from @sges
 * @scatter: mapping of @sges
 */
struct nfr_rw {
	struct list_head list;
	enum dma_data_direction direction;
	u32 length;
	u32 entries;
	bool holds;
	bool plain;
	union {
		struct rdma_rw_ctx ctx;
		struct {
			struct ib_rdma_wr write;
			struct nfr_scatter scatter;
		};
	};
	union {
		DECLARE_FLEX_ARRAY(struct scatterlist, sg);
		DECLARE_FLEX_ARRAY(struct ib_sge, sges);
	};
};

/**
 * struct nfr_transfer - RDMA Reads or Writes of one RPC
 * @rws: operations
 * @id: rdma_cm id of the connection
 * @gfp: allocation flags for the context that prepares the operations; RDMA Writes may be
 *	prepared in softirq context
 */
struct nfr_transfer {
	struct list_head rws;
	struct rdma_cm_id *id;
	gfp_t gfp;
};

/* Position in a chunk of the peer */
struct nfr_cursor {
	const struct nfr_chunk *chunk;
	u32 seg;
	u32 offset;
};

u32 nfr_mem_transfer_read_max(const struct ib_device *device, u32 offset);
u32 nfr_mem_transfer_pieces(struct ib_device *device);
int nfr_mem_transfer_add(struct nfr_transfer *transfer, struct nfr_cursor *cursor,
			 struct nfr_span *span, u32 length, enum dma_data_direction direction);
struct ib_send_wr *nfr_mem_transfer_chain(struct nfr_transfer *transfer, struct ib_cqe *cqe,
					  struct ib_send_wr *last);
void nfr_mem_transfer_hold(struct nfr_transfer *transfer);
u32 nfr_mem_transfer_bytes(const struct nfr_transfer *transfer);
void nfr_mem_transfer_destroy_all(struct nfr_transfer *transfer);

static inline bool nfr_mem_transfer_is_empty(const struct nfr_transfer *transfer)
{
	return list_empty(&transfer->rws);
}

static inline void nfr_mem_transfer_init(struct nfr_transfer *transfer, struct rdma_cm_id *id)
{
	INIT_LIST_HEAD(&transfer->rws);
	transfer->id = id;
}

#endif
