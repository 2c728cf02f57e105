/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Registration of memory that the peer may access.
 *
 * A fast registration work request (FRWR) registers a memory region (MR); it is
 * posted together with the message that names the MR. This room maps memory and
 * prepares the work requests; the owner of the pool posts them, and provides the
 * handler of their completions. The memory returns to its owner only when the
 * peer cannot access it any more: when the peer invalidated the MR, when our
 * LOCAL_INV completed, or when the queue pair is drained and the MR destroyed.
 * Each use of an MR has a new key.
 */
#ifndef NFSRDMA_MEMORY_H
#define NFSRDMA_MEMORY_H

#include <linux/list.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>
#include <linux/uio.h>
#include <rdma/ib_verbs.h>

#include "wire/wire.h"

/* Minimum number of pages per MR */
#define NFR_MIN_DEPTH	16

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

struct nfr_pool;

/**
 * struct nfr_mr - memory region
 * @list: link in the pool or in its exposure
 * @pool: pool that the MR belongs to
 * @mr: the verbs object
 * @sgl: scatterlist of nfr_pool.room entries
 * @entries: number of scatterlist entries in use
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 * @reg: registration work request
 * @inv: invalidation work request
 * @cqe: completion of both
 * @valid: whether the peer may access it, as far as this side knows
 */
struct nfr_mr {
	struct list_head list;
	struct nfr_pool *pool;
	struct ib_mr *mr;
	struct scatterlist *sgl;
	u32 entries;
	enum dma_data_direction direction;
	struct ib_reg_wr reg;
	struct ib_send_wr inv;
	struct ib_cqe cqe;
	bool valid;
};

/**
 * struct nfr_exposure - memory that one RPC exposes to the peer, see exposure.c
 * @mrs: MRs, in the order of their segments
 * @count: number of @mrs
 * @valid: number of @mrs that the peer may access, as far as this side knows
 */
struct nfr_exposure {
	struct list_head mrs;
	u32 count;
	u32 valid;
};

/**
 * struct nfr_pool - MRs of a connection
 * @lock: protects @free and @total
 * @free: unused MRs
 * @device: RDMA device
 * @done: completion handler of the work requests of MRs
 * @number: number of the owner in trace events
 * @depth: pages per MR
 * @room: scatterlist entries per MR, each of one page or more
 * @max_entry: bytes per scatterlist entry
 * @total: number of MRs allocated
 * @recycled: number of MRs whose work requests failed
 * @orphaned: number of MRs that were in use when the connection broke
 */
struct nfr_pool {
	spinlock_t lock;		/* protects @free and @total */
	struct list_head free;
	struct ib_device *device;
	void (*done)(struct ib_cq *cq, struct ib_wc *wc);
	u32 number;
	u32 depth;
	u32 room;
	u32 max_entry;
	u32 total;
	u64 recycled;
	u64 orphaned;
};

/* span.c */
bool nfr_mem_span_peek_kvec(const struct nfr_span *span, struct nfr_piece *piece);
void nfr_mem_span_skip_kvec(struct nfr_span *span, u32 length);
u32 nfr_mem_span_length(const struct nfr_span *span);
u32 nfr_mem_span_regions(const struct nfr_span *span, u32 room);

/* region.c */
void nfr_mem_pool_init(struct nfr_pool *pool);
void nfr_mem_pool_fit(struct nfr_pool *pool, struct ib_device *device, u32 wanted);
u32 nfr_mem_pool_chain(const struct nfr_pool *pool);
int nfr_mem_pool_fill(struct nfr_pool *pool, struct ib_pd *pd, u32 count);
void nfr_mem_pool_destroy(struct nfr_pool *pool);
struct nfr_mr *nfr_mem_pool_take(struct nfr_pool *pool);
void nfr_mem_pool_give(struct nfr_pool *pool, struct nfr_mr *mr);

/* exposure.c */
int nfr_mem_prepare(struct nfr_exposure *exposure, struct nfr_pool *pool, struct nfr_span *span,
		    enum dma_data_direction direction, struct nfr_segment *segs, u32 room);
struct ib_send_wr *nfr_mem_post(struct nfr_exposure *exposure, struct ib_send_wr *last);
bool nfr_mem_covers(const struct nfr_exposure *exposure, const struct nfr_chunk *chunk);
bool nfr_mem_invalidated(struct nfr_exposure *exposure, u32 handle);
u32 nfr_mem_revoke(struct nfr_exposure *exposure, struct ib_send_wr **first,
		   struct ib_send_wr **last);
void nfr_mem_release(struct nfr_exposure *exposure);
void nfr_mem_detach(struct nfr_exposure *exposure, struct list_head *mrs);
void nfr_mem_destroy(struct list_head *mrs);

static inline void nfr_mem_exposure_init(struct nfr_exposure *exposure)
{
	INIT_LIST_HEAD(&exposure->mrs);
	exposure->count = 0;
	exposure->valid = 0;
}

/* Check for MRs while another context may remove them. */
static inline bool nfr_mem_is_exposed(const struct nfr_exposure *exposure)
{
	return !list_empty_careful(&exposure->mrs);
}

/*
 * Give the memory back if the peer cannot access it. Returns false if it may: then
 * the caller has to revoke the exposure, and release it afterwards.
 */
static inline bool nfr_mem_settle(struct nfr_exposure *exposure)
{
	if (exposure->valid)
		return false;
	nfr_mem_release(exposure);
	return true;
}

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

/* Consume @length bytes, at most those of the piece from nfr_mem_span_peek() */
static inline void nfr_mem_span_skip(struct nfr_span *span, u32 length)
{
	if (!nfr_mem_span_is_in_pages(span)) {
		nfr_mem_span_skip_kvec(span, length);
		return;
	}
	span->page_base += length;
	span->page_len -= length;
}

#endif
