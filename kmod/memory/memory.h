/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Registration of memory that the peer may access.
 *
 * A fast registration work request (FRWR) registers a memory region (MR); it is
 * posted together with the message that names the MR. This room maps memory and
 * prepares the work requests; the owner of the pool posts them, and provides the
 * handler of their completions. The memory returns to its owner only when the
 * peer cannot access it any more: when the peer invalidated the MR, when our
 * LOCAL_INV completed, when the queue pair is drained, or when the queue pair and
 * the MR are destroyed.
 * Each use of an MR has a new key, and addresses that no other use of the pool's
 * MRs has.
 */
#ifndef NFSRDMA_MEMORY_H
#define NFSRDMA_MEMORY_H

#include <linux/list.h>
#include <linux/scatterlist.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "proof.h"
#include "wire/wire.h"

/* Minimum number of pages per MR */
#define NFR_MIN_DEPTH	16

/* Number of pages that covers the largest client payload, 1 MiB, at any offset in a page */
#define NFR_USEFUL_DEPTH	((1024u * 1024 >> PAGE_SHIFT) + 1)

/* MRs that a part of a span, its head, pages or tail, needs in addition where memory bounces */
#define NFR_CUTS	2

/* Number of MRs of a span of the largest client payload, at most */
#define NFR_SPAN_MRS	20

/* Minimum number of pages per MR where memory bounces, for that limit: head and tail take an MR */
#define NFR_BOUNCED_DEPTH \
	max_t(u32, NFR_MIN_DEPTH, \
	      DIV_ROUND_UP(NFR_USEFUL_DEPTH, NFR_SPAN_MRS - 2 - 3 * NFR_CUTS))

struct nfr_pool;
struct nfr_span;

/**
 * struct nfr_mr - memory region
 * @list: link in the pool or in its exposure
 * @pool: pool that the MR belongs to
 * @mr: the verbs object; NULL when the device has destroyed it
 * @sgl: scatterlist of nfr_pool.room entries
 * @entries: number of scatterlist entries in use
 * @offered: bytes that the peer may access for the current Call
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 * @reg: registration work request
 * @inv: invalidation work request
 * @cqe: completion of both
 * @valid: whether the peer may access it, as far as this side knows
 * @refused: the device has refused to destroy it
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
	bool refused;
	bool kept;
	bool synced;
	u32 npages;
	u32 base;
	void *slot;
	struct page **pages;
	struct hlist_node node;
	unsigned long used;
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
 * @max_entry: bytes per scatterlist entry, whole pages
 * @cuts: MRs that head, pages and tail of a span may need in addition each, see nfr_mem_map()
 * @next: address of the next use of an MR
 * @total: number of MRs allocated
 * @recycled: number of MRs whose work requests failed
 * @orphaned: number of MRs that were in use when the connection broke
 * @refusing: link in the list of pools of which the device has refused to destroy an MR
 * @device_ends: whether the device is being removed, or has reported a fatal error; see proof.h
 * @give_up: time when MRs are given up, in jiffies; 0 unless a device that ends has refused
 * @lost: number of pages of MRs that were given up
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
	u32 cuts;
	atomic64_t next;
	u32 total;
	u64 recycled;
	u64 orphaned;
	struct list_head refusing;
	const bool *device_ends;
	unsigned long give_up;
	u32 lost;
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

/**
 * struct nfr_scatter - mapping of the memory of a message, whose elements have no key of their own
 * @sgl: list of the memory; NULL if nothing is mapped, also because the device accesses memory by
 *	its kernel addresses
 * @entries: number of entries of @sgl
 * @direction: DMA_FROM_DEVICE to receive, DMA_TO_DEVICE to send
 */
struct nfr_scatter {
	struct scatterlist *sgl;
	u32 entries;
	enum dma_data_direction direction;
};

/* region.c */
void nfr_mem_pool_init(struct nfr_pool *pool);
u32 nfr_mem_device_least(struct ib_device *device);
u32 nfr_mem_device_depth(struct ib_device *device, u32 wanted);
void nfr_mem_pool_fit(struct nfr_pool *pool, struct ib_device *device, u32 wanted);
u32 nfr_mem_pool_regions(const struct nfr_pool *pool, const struct nfr_span *span);
u32 nfr_mem_pool_chain(const struct nfr_pool *pool);
int nfr_mem_pool_fill(struct nfr_pool *pool, struct ib_pd *pd, u32 count);
struct nfr_mr *nfr_mem_pool_take(struct nfr_pool *pool);
void nfr_mem_pool_give(struct nfr_pool *pool, struct nfr_mr *mr);
int nfr_mem_map(struct nfr_mr *mr, struct nfr_span *span, enum dma_data_direction direction);
void nfr_mem_unmap(const struct nfr_mr *mr);
u32 nfr_mem_device_read_sges(const struct ib_device *device, u32 sends);
bool nfr_mem_device_joins(const struct ib_device *device);
u32 nfr_mem_scatter_least(struct ib_device *device, struct page **pages, u32 base, u32 length);
int nfr_mem_scatter_map(struct nfr_scatter *scatter, const struct ib_pd *pd, struct nfr_span *span,
			u32 length, enum dma_data_direction direction, struct ib_sge *sges,
			u32 room, gfp_t gfp);
void nfr_mem_scatter_unmap_list(struct ib_device *device, struct nfr_scatter *scatter);

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

/* Undo nfr_mem_scatter_map(). What is not mapped stays as it is. */
static inline void nfr_mem_scatter_unmap(struct ib_device *device, struct nfr_scatter *scatter)
{
	if (scatter->sgl)
		nfr_mem_scatter_unmap_list(device, scatter);
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

#endif
