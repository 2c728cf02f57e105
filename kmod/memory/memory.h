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
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>
#include <rdma/rw.h>

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
 * @offered: bytes that the peer may access for the current Call
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 * @reg: registration work request
 * @inv: invalidation work request
 * @cqe: completion of both
 * @valid: whether the peer may access it, as far as this side knows
 * @kept: whether it stays valid after its Call, see cache.c
 * @node: link in the table of the cache, while no Call uses it
 * @slot: start of its memory, if it is a slot; otherwise NULL
 * @pages: its pages, which it holds references to; @npages elements, 0 if the cache
 *	never kept it
 * @synced: whether the processor may have changed the memory since the device wrote it
 * @base: offset of the memory in the first of @pages
 * @used: time of its last use, in jiffies
 */
struct nfr_mr {
	struct list_head list;
	struct nfr_pool *pool;
	struct ib_mr *mr;
	struct scatterlist *sgl;
	u32 entries;
	u32 offered;
	enum dma_data_direction direction;
	struct ib_reg_wr reg;
	struct ib_send_wr inv;
	struct ib_cqe cqe;
	bool valid;
	bool kept;
	bool synced;
	u32 npages;
	u32 base;
	void *slot;
	struct page **pages;
	struct hlist_node node;
	unsigned long used;
};

/**
 * struct nfr_exposure - memory that one RPC exposes to the peer, see exposure.c
 * @mrs: MRs, in the order of their segments
 * @count: number of @mrs
 * @valid: number of @mrs that the peer may access, as far as this side knows, and
 *	that have to be invalidated before the memory returns to its owner
 * @kept: number of @mrs that stay valid instead
 * @found: number of @mrs that were valid before, a part of @kept
 * @slot: start of the slot that the Reply arrives in; otherwise NULL
 */
struct nfr_exposure {
	struct list_head mrs;
	u32 count;
	u32 valid;
	u32 kept;
	u32 found;
	void *slot;
};

/* Buckets of a cache, as a power of two */
#define NFR_CACHE_BITS	8

/**
 * struct nfr_cache - MRs that stay valid between Calls, see cache.c
 *
 * The lock of the pool protects it.
 *
 * @list: link in the list of all caches
 * @pool: pool that the MRs belong to
 * @table: unused MRs by their first page
 * @lru: unused MRs, last used first
 * @slots: unused slots, last used first
 * @nslots: number of slots, used or not
 * @victims: MRs to invalidate
 * @idle: number of pages of @lru and @slots
 * @held: number of MRs that the cache keeps, in use or not
 * @work: invalidates victims, and looks for MRs that were not used for long
 * @hits: number of MRs found
 * @misses: number of MRs not found
 * @copies: number of Calls that got a slot
 */
struct nfr_cache {
	struct list_head list;
	struct nfr_pool *pool;
	struct hlist_head table[1 << NFR_CACHE_BITS];
	struct list_head lru;
	struct list_head slots;
	u32 nslots;
	struct list_head victims;
	u32 idle;
	u32 held;
	struct delayed_work work;
	u64 hits;
	u64 misses;
	u64 copies;
};

/**
 * struct nfr_pool - MRs of a connection
 * @lock: protects @free, @total and @cache
 * @free: unused MRs
 * @cache: MRs that stay valid between Calls; NULL if none do
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
	spinlock_t lock;		/* protects @free, @total and @cache */
	struct list_head free;
	struct nfr_cache *cache;
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

/* RDMA Read or Write between local pages and one segment of the peer, see transfer.c */
struct nfr_rw {
	struct list_head list;
	struct rdma_rw_ctx ctx;
	enum dma_data_direction direction;
	u32 length;		/* in bytes */
	u32 entries;
	bool holds;		/* references to its pages */
	struct scatterlist sg[];
};

/**
 * struct nfr_transfer - RDMA Reads or Writes of one RPC
 * @rws: operations
 * @id: rdma_cm id of the connection
 * @gfp: allocation flags for the context that prepares the operations
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

/* span.c */
bool nfr_mem_span_peek_kvec(const struct nfr_span *span, struct nfr_piece *piece);
void nfr_mem_span_skip_kvec(struct nfr_span *span, u32 length);
u32 nfr_mem_span_length(const struct nfr_span *span);
u32 nfr_mem_span_regions(const struct nfr_span *span, u32 room);
u32 nfr_mem_span_list(struct nfr_span *span, u32 length, u32 max_entry, bool gaps,
		      struct scatterlist *sgl, u32 room);

/* region.c */
void nfr_mem_pool_init(struct nfr_pool *pool);
void nfr_mem_pool_fit(struct nfr_pool *pool, struct ib_device *device, u32 wanted);
u32 nfr_mem_pool_chain(const struct nfr_pool *pool);
int nfr_mem_pool_fill(struct nfr_pool *pool, struct ib_pd *pd, u32 count);
void nfr_mem_pool_destroy(struct nfr_pool *pool);
struct nfr_mr *nfr_mem_pool_take(struct nfr_pool *pool);
void nfr_mem_pool_give(struct nfr_pool *pool, struct nfr_mr *mr);
int nfr_mem_map(struct nfr_mr *mr, struct nfr_span *span, enum dma_data_direction direction);
void nfr_mem_unmap(const struct nfr_mr *mr);

/* scatter.c */
int nfr_mem_scatter_map(struct ib_device *device, u32 lkey, struct nfr_span *span, u32 length,
			enum dma_data_direction direction, struct ib_sge *sges, u32 room);
void nfr_mem_scatter_unmap(struct ib_device *device, const struct ib_sge *sges, u32 count,
			   enum dma_data_direction direction);

/* exposure.c */
int nfr_mem_prepare(struct nfr_exposure *exposure, struct nfr_pool *pool, struct nfr_span *span,
		    enum dma_data_direction direction, struct nfr_segment *segs, u32 room);
struct ib_send_wr *nfr_mem_post(struct nfr_exposure *exposure, struct ib_send_wr *last);
bool nfr_mem_covers(const struct nfr_exposure *exposure, const struct nfr_chunk *chunk);
bool nfr_mem_invalidated(struct nfr_exposure *exposure, u32 handle);
u32 nfr_mem_revoke(struct nfr_exposure *exposure, struct ib_send_wr **first,
		   struct ib_send_wr **last);
void nfr_mem_release(struct nfr_exposure *exposure);
void nfr_mem_forget(struct nfr_exposure *exposure);
void nfr_mem_detach(struct nfr_exposure *exposure, struct list_head *mrs);
void nfr_mem_destroy(struct list_head *mrs);

/* cache.c */
int nfr_mem_cache_start(void);
void nfr_mem_cache_stop(void);
int nfr_mem_cache_create(struct nfr_pool *pool, work_func_t evict);
void nfr_mem_cache_close(struct nfr_pool *pool);
void nfr_mem_cache_detach(struct nfr_pool *pool, struct list_head *mrs);
struct nfr_mr *nfr_mem_cache_get(struct nfr_exposure *exposure, struct nfr_pool *pool,
				 struct nfr_span *span, enum dma_data_direction direction);
void nfr_mem_cache_keep(struct nfr_mr *mr, const struct nfr_span *span);
void nfr_mem_cache_return(struct nfr_mr *mr);
void nfr_mem_cache_unpin(struct nfr_mr *mr);
u32 nfr_mem_cache_evict(struct nfr_pool *pool, u32 pages);
bool nfr_mem_cache_victims(struct nfr_pool *pool, struct nfr_exposure *exposure, u32 most);
u32 nfr_mem_cache_pages_held(void);

/* transfer.c */
u32 nfr_mem_transfer_read_max(const struct ib_device *device, u32 offset);
int nfr_mem_transfer_add(struct nfr_transfer *transfer, struct nfr_cursor *cursor,
			 struct nfr_span *span, u32 length, enum dma_data_direction direction);
struct ib_send_wr *nfr_mem_transfer_chain(struct nfr_transfer *transfer, struct ib_cqe *cqe,
					  struct ib_send_wr *last);
void nfr_mem_transfer_hold(struct nfr_transfer *transfer);
u32 nfr_mem_transfer_bytes(const struct nfr_transfer *transfer);
void nfr_mem_transfer_destroy_all(struct nfr_transfer *transfer);

static inline void nfr_mem_transfer_init(struct nfr_transfer *transfer, struct rdma_cm_id *id)
{
	INIT_LIST_HEAD(&transfer->rws);
	transfer->id = id;
}

static inline void nfr_mem_exposure_init(struct nfr_exposure *exposure)
{
	INIT_LIST_HEAD(&exposure->mrs);
	exposure->count = 0;
	exposure->valid = 0;
	exposure->kept = 0;
	exposure->found = 0;
	exposure->slot = NULL;
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
	if (exposure->count)
		nfr_mem_release(exposure);
	return true;
}

/* --- memory that the processor and the device use in turn, under one mapping --- */

static inline void nfr_mem_sync_for_device(struct nfr_mr *mr)
{
	mr->synced = false;
	if (!ib_uses_virt_dma(mr->pool->device))
		dma_sync_sg_for_device(mr->pool->device->dma_device, mr->sgl, mr->entries,
				       mr->direction);
}

static inline void nfr_mem_sync_for_cpu(struct nfr_mr *mr)
{
	if (mr->synced)
		return;
	mr->synced = true;
	if (!ib_uses_virt_dma(mr->pool->device))
		dma_sync_sg_for_cpu(mr->pool->device->dma_device, mr->sgl, mr->entries,
				    mr->direction);
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

#endif
