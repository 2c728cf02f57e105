// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that the device accesses, from an xdr_buf, see struct nfr_span. It is listed in a
 * scatterlist, and mapped in one of three forms:
 *
 *  - a memory region, which has a key for the peer. A pool has those that are not in use; it
 *    grows on demand and never shrinks.
 *  - RDMA Reads and Writes between local pages and segments of the peer. The helpers of the
 *    RDMA core (rdma/rw.h) hide the requirements of devices: iWARP devices need an MR for the
 *    target of an RDMA Read. They may sleep. Where Writes must not, they are prepared here.
 *  - the elements of a message that the device sends from pages or receives in pages. They
 *    have no key of their own: no peer can name them.
 *
 * This file prepares and chains work requests. Their owner posts them, and keeps the pages
 * until they are complete.
 */
#include <linux/delay.h>
#include <linux/dma-map-ops.h>
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "gfp.h"
#include "memory/memory.h"
#include "memory/region.h"
#include "observe/trace.h"

/* Swiotlb and IOMMUs can map at least this many contiguous bytes */
#define NFR_MAX_ENTRY		(128 * 1024u)

/* Entries of an MR: a scatterlist of one more takes twice as much memory */
#define NFR_USEFUL_ROOM		256

/* Attempts to map where a failure costs the connection, one second in all */
#define NFR_MAP_TRIES	10

/* Partial pages: at both ends of head, pages and tail */
#define NFR_RW_ENDS	6
/* Maximum number of pages in an MR of the RDMA core (drivers/infiniband/core/rw.c) */
#define NFR_RW_MR_PAGES	256u

/* --- spans --- */

/**
 * nfr_mem_span_peek_kvec - get the first piece of a span that starts outside its pages
 * @span: span; not consumed
 * @piece: output, within one page
 *
 * Return: false if the span is empty.
 */
bool nfr_mem_span_peek_kvec(const struct nfr_span *span, struct nfr_piece *piece)
{
	const struct kvec *vec = span->head.iov_len ? &span->head : &span->tail;
	void *base = vec->iov_base;

	if (!vec->iov_len)
		return false;
	piece->page = is_vmalloc_addr(base) ? vmalloc_to_page(base) : virt_to_page(base);
	piece->offset = offset_in_page(base);
	piece->length = min_t(size_t, vec->iov_len, PAGE_SIZE - piece->offset);
	return true;
}

/**
 * nfr_mem_span_skip_kvec - consume the start of a span that starts outside its pages
 * @span: span
 * @length: bytes, at most the length of the piece from nfr_mem_span_peek()
 */
void nfr_mem_span_skip_kvec(struct nfr_span *span, u32 length)
{
	struct kvec *vec = span->head.iov_len ? &span->head : &span->tail;

	vec->iov_base += length;
	vec->iov_len -= length;
}

/**
 * nfr_mem_span_length - compute the length of a span
 * @span: span; not consumed
 *
 * Return: length in bytes.
 */
u32 nfr_mem_span_length(const struct nfr_span *span)
{
	return span->head.iov_len + span->page_len + span->tail.iov_len;
}

static u32 nfr_mem_kvec_regions(const struct kvec *vec, u32 room)
{
	u32 bytes = offset_in_page(vec->iov_base) + vec->iov_len;

	return vec->iov_len ? DIV_ROUND_UP(bytes, room * PAGE_SIZE) : 0;
}

/**
 * nfr_mem_span_regions - compute an upper bound for the MRs that a span needs
 * @span: span; not consumed
 * @room: scatterlist entries per MR, each of one page or more
 *
 * Return: number of MRs.
 */
u32 nfr_mem_span_regions(const struct nfr_span *span, u32 room)
{
	u32 bytes = offset_in_page(span->page_base) + span->page_len;
	u32 pages = span->page_len ? DIV_ROUND_UP(bytes, room * PAGE_SIZE) : 0;

	return nfr_mem_kvec_regions(&span->head, room) + pages +
	       nfr_mem_kvec_regions(&span->tail, room);
}

/* --- scatterlists --- */

/* An MR has no gaps: only its first entry may start, and only its last may end, within a page. */
static bool nfr_mem_span_joins(const struct scatterlist *last, const struct nfr_piece *piece)
{
	return !piece->offset && !offset_in_page(last->offset + last->length);
}

static inline void nfr_mem_span_entry(struct scatterlist *sg, struct page *page, u32 length,
				      u32 offset)
{
	*sg = (struct scatterlist) { };
	sg_set_page(sg, page, length, offset);
}

/*
 * Count the bytes at an offset of the first of pages, up to @most, that lie in pages which follow
 * each other in memory. Advances @at behind these.
 */
static __always_inline u32 nfr_mem_adjacent(struct page ***at, u32 offset, u32 most)
{
	struct page **page = *at;
	unsigned long pfn = page_to_pfn(*page++);
	u32 n = PAGE_SIZE - offset;

	for (; n < most && page_to_pfn(*page) == ++pfn; page++)
		n += PAGE_SIZE;
	*at = page;
	return min(n, most);
}

/*
 * List pages, with one entry for those that follow each other in memory. Advances @at, up
 * to @end. Returns the number of bytes, up to @length.
 */
static u32 nfr_mem_span_list_pages(const struct nfr_span *span, u32 length, u32 max_entry,
				   struct scatterlist **at, const struct scatterlist *end)
{
	struct page **page = span->pages + (span->page_base >> PAGE_SHIFT);
	u32 offset = offset_in_page(span->page_base), rest = length;
	struct scatterlist *sg;

	for (sg = *at; rest && sg < end; sg++) {
		struct page *first = *page;
		u32 n = nfr_mem_adjacent(&page, offset, min(rest, max_entry - offset));

		nfr_mem_span_entry(sg, first, n, offset);
		rest -= n;
		offset = 0;
	}
	*at = sg;
	return length - rest;
}

/*
 * List up to @length bytes of a span in @sgl, an array without chains, and consume them. The last
 * of at most @room entries is marked. An entry has up to @max_entry bytes, whole pages;
 * with @gaps, entries may start and end within pages. Returns the number of entries.
 */
static u32 nfr_mem_span_list(struct nfr_span *span, u32 length, u32 max_entry, bool gaps,
			     struct scatterlist *sgl, u32 room)
{
	u32 n;
	struct scatterlist *sg = sgl;
	struct nfr_piece piece;

	while (length && sg < sgl + room && nfr_mem_span_peek(span, &piece)) {
		if (!gaps && sg > sgl && !nfr_mem_span_joins(sg - 1, &piece))
			break;
		if (nfr_mem_span_is_in_pages(span)) {
			n = nfr_mem_span_list_pages(span, min(length, span->page_len), max_entry,
						    &sg, sgl + room);
		} else {
			n = min(length, piece.length);
			nfr_mem_span_entry(sg++, piece.page, n, piece.offset);
		}
		nfr_mem_span_skip(span, n);
		length -= n;
	}
	if (sg > sgl)
		sg_mark_end(sg - 1);
	return sg - sgl;
}

/*
 * Most bytes of an entry, or of an element: whole pages, and one at least. The device takes them as
 * one, and the DMA layer maps them as one.
 */
static u32 nfr_mem_entry_max(struct ib_device *device)
{
	return (min(ib_dma_max_seg_size(device), NFR_MAX_ENTRY) & PAGE_MASK) ?: PAGE_SIZE;
}

/*
 * Whether the DMA layer may copy memory to bounce buffers: swiotlb limits the size of a mapping,
 * and small memory of kmalloc() is copied for devices that are not coherent.
 */
static bool nfr_mem_device_bounces(struct ib_device *device)
{
	struct device *dma = device->dma_device;

	if (ib_uses_virt_dma(device))
		return false;
	return dma_max_mapping_size(dma) != SIZE_MAX || !dev_is_dma_coherent(dma);
}

/*
 * Decide whether to map again, after a pause. Addresses of an IOMMU and bounce buffers become free
 * when others unmap. Where the caller must not sleep, or loses little, it tries again itself.
 */
static bool nfr_mem_map_again(gfp_t gfp, u32 *tries)
{
	if (!(gfp & __GFP_RETRY_MAYFAIL) || *tries == NFR_MAP_TRIES)
		return false;
	msleep(1 << (*tries)++);
	return true;
}

/* --- memory regions --- */

static struct nfr_mr *nfr_mem_mr_alloc(struct nfr_pool *pool, struct ib_pd *pd)
{
	struct nfr_mr *mr;

	mr = kzalloc(sizeof(*mr), NFR_GFP_RETRIED);
	if (!mr)
		return NULL;
	mr->sgl = kcalloc(pool->room, sizeof(*mr->sgl), NFR_GFP_RETRIED);
	if (!mr->sgl)
		goto out_free;
	mr->mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, pool->depth);
	if (IS_ERR(mr->mr))
		goto out_free;
	mr->pool = pool;
	mr->cqe.done = pool->done;
	mr->reg.wr.opcode = IB_WR_REG_MR;
	mr->reg.wr.wr_cqe = &mr->cqe;
	mr->reg.mr = mr->mr;
	return mr;
out_free:
	kfree(mr->sgl);
	kfree(mr);
	return NULL;
}

/*
 * Fill the scatterlist from @span, with @limit bytes at most, as far as the MR reaches. Returns
 * the number of bytes.
 */
static u32 nfr_mem_mr_fill(struct nfr_mr *mr, struct nfr_span *span, const struct nfr_pool *pool,
			   u32 limit)
{
	u32 length = nfr_mem_span_length(span);
	struct nfr_piece piece = { };
	u64 most;

	nfr_mem_span_peek(span, &piece);
	most = min((u64)pool->depth * PAGE_SIZE - piece.offset, limit);
	mr->entries = nfr_mem_span_list(span, min_t(u64, length, most), pool->max_entry, false,
					mr->sgl, pool->room);
	return length - nfr_mem_span_length(span);
}

/**
 * nfr_mem_unmap - unmap an MR
 * @mr: mapped MR that the peer cannot access
 *
 * If the cache kept the MR, its owner may have written to the memory since: unmapping
 * must not copy what the device wrote over that.
 */
void nfr_mem_unmap(const struct nfr_mr *mr)
{
	ib_dma_unmap_sg_attrs(mr->pool->device, mr->sgl, mr->entries, mr->direction,
			      mr->synced ? DMA_ATTR_SKIP_CPU_SYNC : 0);
}

/*
 * Give this use of a mapped MR addresses of its own, which no other use of the pool's MRs has: a
 * key has 8 bits to tell uses of an MR apart, and the 256th use has the key of the first one. The
 * gap makes neighbors refuse an access that is too long. A device needs the offset in a page only.
 */
static void nfr_mem_mr_place(struct nfr_mr *mr)
{
	u32 offset = offset_in_page(mr->mr->iova);
	u32 room = PAGE_ALIGN(offset + mr->mr->length) + PAGE_SIZE;

	mr->mr->iova = atomic64_fetch_add(room, &mr->pool->next) + offset;
}

/*
 * Map a filled MR under a new key, at a new address. Returns 0, -ENOBUFS if the caller may retry
 * later, or -EAGAIN if the MR can cover the first @limit bytes only.
 */
static int nfr_mem_mr_map(struct nfr_mr *mr, enum dma_data_direction direction, u32 *limit)
{
	int mapped, taken;

	mr->direction = direction;
	mapped = ib_dma_map_sg(mr->pool->device, mr->sgl, mr->entries, direction);
	if (!mapped)
		return -ENOBUFS;
	taken = ib_map_mr_sg(mr->mr, mr->sgl, mapped, NULL, PAGE_SIZE);
	if (taken != mapped) {
		trace_nfsrdma_mr_unmap(mr);
		nfr_mem_unmap(mr);
		*limit = taken > 0 ? mr->mr->length : 0;
		return *limit && *limit < mr->offered ? -EAGAIN : -ENOBUFS;
	}
	nfr_mem_mr_place(mr);
	ib_update_fast_reg_key(mr->mr, (mr->mr->rkey & 0xff) + 1);
	mr->reg.key = mr->mr->rkey;
	mr->reg.access = direction == DMA_TO_DEVICE ? IB_ACCESS_REMOTE_READ :
			 IB_ACCESS_REMOTE_WRITE | IB_ACCESS_LOCAL_WRITE;
	return 0;
}

/**
 * nfr_mem_map - map an MR to the start of a span, under a new key and at a new address
 * @mr: unused MR
 * @span: memory; consumed as far as the MR reaches
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 *
 * The addresses of an MR have no gaps. Bounce buffers do not keep the offset of memory in its
 * page, so a partial page at the start or the end of the memory may need an MR of its own.
 *
 * Return: 0, or -ENOBUFS if the caller may retry later.
 */
int nfr_mem_map(struct nfr_mr *mr, struct nfr_span *span, enum dma_data_direction direction)
{
	const struct nfr_span start = *span;
	u32 limit = U32_MAX;
	int rc;

	do {
		*span = start;
		mr->offered = nfr_mem_mr_fill(mr, span, mr->pool, limit);
		rc = nfr_mem_mr_map(mr, direction, &limit);
	} while (rc == -EAGAIN);
	return rc;
}

/* --- the pool --- */

/**
 * nfr_mem_pool_init - initialize an empty pool
 * @pool: pool whose @number and @done the owner sets
 */
void nfr_mem_pool_init(struct nfr_pool *pool)
{
	spin_lock_init(&pool->lock);
	INIT_LIST_HEAD(&pool->free);
	INIT_LIST_HEAD(&pool->refusing);
	/* nobody but the peer can guess addresses; three quarters of them are left */
	atomic64_set(&pool->next, (get_random_u64() >> 2) & PAGE_MASK);
}

/**
 * nfr_mem_device_least - get the minimum depth of MRs for a device
 * @device: RDMA device
 *
 * Return: number of pages.
 */
u32 nfr_mem_device_least(struct ib_device *device)
{
	return nfr_mem_device_bounces(device) ? NFR_BOUNCED_DEPTH : NFR_MIN_DEPTH;
}

/**
 * nfr_mem_device_depth - choose the depth of MRs for a device
 * @device: RDMA device
 * @wanted: preferred depth in pages; 0 for the default
 *
 * Return: number of pages; 0 if the device has no fast registration.
 */
u32 nfr_mem_device_depth(struct ib_device *device, u32 wanted)
{
	if (!(device->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS))
		return 0;
	wanted = wanted ? max(wanted, nfr_mem_device_least(device)) : NFR_USEFUL_DEPTH;
	return min(wanted, device->attrs.max_fast_reg_page_list_len);
}

/**
 * nfr_mem_pool_fit - choose the depth of the MRs for a device
 * @pool: empty pool
 * @device: RDMA device
 * @wanted: preferred depth in pages; 0 for the default
 *
 * Deeper MRs mean fewer registrations per request, but pages beyond the largest
 * payload would waste memory.
 */
void nfr_mem_pool_fit(struct nfr_pool *pool, struct ib_device *device, u32 wanted)
{
	pool->device = device;
	pool->cuts = nfr_mem_device_bounces(device) ? NFR_CUTS : 0;
	pool->depth = nfr_mem_device_depth(device, wanted);
	pool->room = min(pool->depth, NFR_USEFUL_ROOM);
	pool->max_entry = nfr_mem_entry_max(device);
}

/**
 * nfr_mem_pool_regions - compute an upper bound for the MRs that a span needs
 * @pool: pool after nfr_mem_pool_fit()
 * @span: span; not consumed
 *
 * Return: number of MRs.
 */
u32 nfr_mem_pool_regions(const struct nfr_pool *pool, const struct nfr_span *span)
{
	u32 parts = !!span->head.iov_len + !!span->page_len + !!span->tail.iov_len;

	return nfr_mem_span_regions(span, pool->room) + parts * pool->cuts;
}

/**
 * nfr_mem_pool_chain - compute the longest chain of work requests of one Call
 * @pool: pool after nfr_mem_pool_fit()
 *
 * A Call has at most a Read chunk, and a Write or Reply chunk. Each MR takes a
 * registration and an invalidation. The head and the tail of a span take an MR
 * each.
 *
 * Return: number of work requests.
 */
u32 nfr_mem_pool_chain(const struct nfr_pool *pool)
{
	u32 regions = DIV_ROUND_UP(NFR_USEFUL_DEPTH, pool->room) + 2 + 3 * pool->cuts;

	return 2 * 2 * regions + 1;
}

/**
 * nfr_mem_pool_fill - allocate MRs
 * @pool: pool
 * @pd: protection domain
 * @count: number of MRs to allocate
 *
 * Context: May sleep.
 *
 * Return: 0, or -ENOMEM if no MR could be allocated.
 */
int nfr_mem_pool_fill(struct nfr_pool *pool, struct ib_pd *pd, u32 count)
{
	struct nfr_mr *mr;
	u32 made;

	for (made = 0; made < count; made++) {
		mr = nfr_mem_mr_alloc(pool, pd);
		if (!mr)
			break;
		/* the server returns MRs in softirq context */
		spin_lock_bh(&pool->lock);
		list_add(&mr->list, &pool->free);
		pool->total++;
		spin_unlock_bh(&pool->lock);
	}
	return made ? 0 : -ENOMEM;
}

/* Take an unused MR. Returns NULL if all are in use. */
struct nfr_mr *nfr_mem_pool_take(struct nfr_pool *pool)
{
	struct nfr_mr *mr;

	spin_lock(&pool->lock);
	mr = list_first_entry_or_null(&pool->free, struct nfr_mr, list);
	if (mr)
		list_del_init(&mr->list);
	spin_unlock(&pool->lock);
	return mr;
}

/**
 * nfr_mem_pool_give - return an MR
 * @pool: pool that the MR belongs to
 * @mr: unmapped MR; removed from its list
 */
void nfr_mem_pool_give(struct nfr_pool *pool, struct nfr_mr *mr)
{
	spin_lock(&pool->lock);
	list_move(&mr->list, &pool->free);
	spin_unlock(&pool->lock);
}

/* --- RDMA Reads and Writes --- */

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
	u32 tries = 0;
	int rc;

	flags = blocks ? memalloc_noio_save() : memalloc_noreclaim_save();
	do {
		rc = rdma_rw_ctx_init(&rw->ctx, id->qp, id->port_num, rw->sg, rw->entries, 0,
				      seg->offset + at, seg->handle, rw->direction);
	} while ((rc == -EIO || rc == -ENOMEM) && nfr_mem_map_again(transfer->gfp, &tries));
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

/**
 * nfr_mem_transfer_pieces - get the maximum number of operations in place of one
 * @device: RDMA device
 *
 * Return: number of operations, see nfr_mem_transfer_some().
 */
u32 nfr_mem_transfer_pieces(struct ib_device *device)
{
	return nfr_mem_device_bounces(device) ? 1 + NFR_CUTS : 1;
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
	rw->plain = false;
	rw->entries = nfr_mem_span_list(span, length, nfr_mem_entry_max(transfer->id->device),
					true, rw->sg, room);
	rc = nfr_mem_transfer_prepare(transfer, rw, seg, at);
	if (rc < 0) {
		kvfree(rw);
		return rc;
	}
	list_add_tail(&rw->list, &transfer->rws);
	return 0;
}

/*
 * The same for a Write, where the caller must not sleep, as the RDMA core may. Returns the number
 * of bytes, at most @length: those that one work request takes from @span; or a negative errno.
 */
static int nfr_mem_transfer_plain(struct nfr_transfer *transfer, const struct nfr_segment *seg,
				  u32 at, struct nfr_span *span, u32 length)
{
	struct ib_qp *qp = transfer->id->qp;
	u32 offset = offset_in_page(span->page_base), room;
	struct nfr_rw *rw;
	int rc;

	length = min(length, (qp->max_write_sge << PAGE_SHIFT) - offset);
	room = PFN_UP(offset + length);
	rw = kmalloc(struct_size(rw, sges, room), transfer->gfp);
	if (!rw)
		return -ENOMEM;
	rc = nfr_mem_scatter_map(&rw->scatter, qp->pd, span, length, DMA_TO_DEVICE, rw->sges, room,
				 transfer->gfp);
	if (rc < 0) {
		kfree(rw);
		return rc;
	}
	rw->direction = DMA_TO_DEVICE;
	rw->length = length;
	rw->holds = false;
	rw->plain = true;
	rw->entries = rc;
	rw->write = (struct ib_rdma_wr) {
		.wr = { .opcode = IB_WR_RDMA_WRITE, .sg_list = rw->sges, .num_sge = rc },
		.remote_addr = seg->offset + at, .rkey = seg->handle,
	};
	list_add_tail(&rw->list, &transfer->rws);
	return length;
}

/*
 * Get the length of the start of a span, up to @length bytes, which one MR takes in any case: a
 * partial page, or whole pages.
 */
static u32 nfr_mem_span_even(const struct nfr_span *span, u32 length)
{
	struct nfr_piece piece = { };

	nfr_mem_span_peek(span, &piece);
	if (piece.offset)
		return min(length, piece.length);
	return length & PAGE_MASK ?: length;
}

/*
 * Add operations for @length bytes, at an offset of a segment. Returns as the function above. If
 * the RDMA core has to map an MR to bounce buffers, it refuses a list with gaps, see
 * nfr_mem_map(). Elsewhere, and of a part without gaps, that error has another reason.
 */
static int nfr_mem_transfer_some(struct nfr_transfer *transfer, const struct nfr_segment *seg,
				 u32 at, struct nfr_span *span, u32 length,
				 enum dma_data_direction direction)
{
	const struct nfr_span start = *span;
	u32 most = length, even;
	int rc;

	if (direction == DMA_TO_DEVICE && !gfpflags_allow_blocking(transfer->gfp))
		return nfr_mem_transfer_plain(transfer, seg, at, span, length);
	if (direction == DMA_FROM_DEVICE)
		most = nfr_mem_transfer_read_max(transfer->id->device,
						 offset_in_page(span->page_base));
	length = min(length, most);
	rc = nfr_mem_transfer_one(transfer, seg, at, span, length, direction);
	if (rc != -EINVAL || !nfr_mem_device_bounces(transfer->id->device))
		return rc ?: length;
	even = nfr_mem_span_even(&start, length);
	if (even == length)
		return rc;
	*span = start;
	rc = nfr_mem_transfer_one(transfer, seg, at, span, even, direction);
	return rc ?: even;
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
 * Return: 0, -ENOMEM, -ENOBUFS or -EIO if mapping failed, or -EAGAIN if the device has no free MRs
 * for it. The caller may try again later after each of them.
 */
int nfr_mem_transfer_add(struct nfr_transfer *transfer, struct nfr_cursor *cursor,
			 struct nfr_span *span, u32 length, enum dma_data_direction direction)
{
	const struct nfr_segment *seg;
	u32 n;
	int rc;

	while (length) {
		seg = &cursor->chunk->segs[cursor->seg];
		n = min(length, seg->length - cursor->offset);
		if (n) {
			rc = nfr_mem_transfer_some(transfer, seg, cursor->offset, span, n,
						   direction);
			if (rc < 0)
				return rc;
			n = rc;
		}
		length -= n;
		cursor->offset += n;
		if (cursor->offset == seg->length) {
			cursor->seg++;
			cursor->offset = 0;
		}
	}
	return 0;
}

/* Keep the pages of all operations until they are destroyed. */
void nfr_mem_transfer_hold(struct nfr_transfer *transfer)
{
	struct nfr_rw *rw;

	list_for_each_entry(rw, &transfer->rws, list) {
		nfr_mem_transfer_pages(rw, get_page);
		rw->holds = true;
	}
}

/* Compute the length of all operations in bytes. */
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
 * @last: work request that follows them; NULL only without plain Writes
 *
 * Return: first work request, or @last if there are no operations.
 */
struct ib_send_wr *nfr_mem_transfer_chain(struct nfr_transfer *transfer, struct ib_cqe *cqe,
					  struct ib_send_wr *last)
{
	struct rdma_cm_id *id = transfer->id;
	struct nfr_rw *rw;

	list_for_each_entry_reverse(rw, &transfer->rws, list) {
		if (rw->plain) {
			rw->write.wr.next = last;
			last = &rw->write.wr;
		} else {
			last = rdma_rw_ctx_wrs(&rw->ctx, id->qp, id->port_num,
					       last ? NULL : cqe, last);
		}
	}
	return last;
}

/*
 * Destroy an operation whose queue pair is destroyed. The RDMA core returns the MRs of the operation
 * to the queue pair, which a structure on the stack stands for. No peer can reach these MRs: their
 * protection domain has no queue pair.
 */
static noinline void nfr_mem_transfer_destroy_late(const struct rdma_cm_id *id, struct nfr_rw *rw)
{
	struct ib_pd pd = { .device = id->device };
	struct ib_qp qp = { .device = id->device, .pd = &pd };
	struct ib_mr *mr, *next;
	int rc;

	spin_lock_init(&qp.mr_lock);
	INIT_LIST_HEAD(&qp.rdma_mrs);
	rdma_rw_ctx_destroy(&rw->ctx, &qp, id->port_num, rw->sg, rw->entries, rw->direction);
	list_for_each_entry_safe(mr, next, &qp.rdma_mrs, qp_entry) {
		rc = ib_dereg_mr(mr);
		if (rc)
			pr_err_ratelimited("nfsrdma: device %s: a memory region of the RDMA core cannot be destroyed: %d\n",
					   id->device->name, rc);
	}
}

static void nfr_mem_transfer_destroy_one(struct rdma_cm_id *id, struct nfr_rw *rw)
{
	if (rw->plain)
		nfr_mem_scatter_unmap(id->device, &rw->scatter);
	else if (id->qp)
		rdma_rw_ctx_destroy(&rw->ctx, id->qp, id->port_num, rw->sg, rw->entries,
				    rw->direction);
	else
		nfr_mem_transfer_destroy_late(id, rw);
}

/**
 * nfr_mem_transfer_destroy_all - undo nfr_mem_transfer_add()
 * @transfer: transfer whose operations are complete or were not posted, or whose queue pair is
 *	drained or destroyed
 */
void nfr_mem_transfer_destroy_all(struct nfr_transfer *transfer)
{
	struct rdma_cm_id *id = transfer->id;
	struct nfr_rw *rw, *next;

	list_for_each_entry_safe(rw, next, &transfer->rws, list) {
		list_del(&rw->list);
		nfr_mem_transfer_destroy_one(id, rw);
		if (rw->holds)
			nfr_mem_transfer_pages(rw, put_page);
		kvfree(rw);
	}
}

/* --- elements of a message --- */

/**
 * nfr_mem_device_read_sges - compute how many elements an RDMA Read of a queue pair may have
 * @device: RDMA device
 * @sends: max_send_sge of the queue pair
 *
 * Return: number of elements, of which a driver may allow a Read fewer than other requests.
 */
u32 nfr_mem_device_read_sges(const struct ib_device *device, u32 sends)
{
	return min(sends, (u32)device->attrs.max_sge_rd ?: sends);
}

/**
 * nfr_mem_device_joins - check whether pages, wherever they lie, take one element of a message
 * @device: RDMA device
 *
 * Return: true if the DMA layer makes one range of addresses of them.
 */
bool nfr_mem_device_joins(const struct ib_device *device)
{
	unsigned long boundary;

	if (!device->dma_device)
		return false;
	boundary = dma_get_merge_boundary(device->dma_device);
	return boundary && boundary < PAGE_SIZE;
}

/**
 * nfr_mem_scatter_least - count the elements that nfr_mem_scatter_map() makes of pages
 * @device: RDMA device
 * @pages: pages
 * @base: offset of the memory in @pages, in bytes
 * @length: in bytes
 *
 * Return: number of elements; more, if an IOMMU does not join what it could.
 */
u32 nfr_mem_scatter_least(struct ib_device *device, struct page **pages, u32 base, u32 length)
{
	u32 offset = offset_in_page(base), most = nfr_mem_entry_max(device), count;
	struct page **page = pages + (base >> PAGE_SHIFT);

	if (nfr_mem_device_joins(device))
		return 1;
	for (count = 0; length; count++) {
		length -= nfr_mem_adjacent(&page, offset, min(length, most - offset));
		offset = 0;
	}
	return count;
}

/*
 * Get the first piece of a span, up to @length bytes, and the array of its pages: all of the
 * span's pages are one piece. Returns NULL if the span is empty.
 */
static struct page **nfr_mem_span_run(const struct nfr_span *span, u32 length,
				      struct nfr_piece *piece)
{
	struct page **page = &piece->page;

	if (nfr_mem_span_is_in_pages(span)) {
		page = span->pages + (span->page_base >> PAGE_SHIFT);
		piece->offset = offset_in_page(span->page_base);
		piece->length = span->page_len;
	} else if (!nfr_mem_span_peek_kvec(span, piece)) {
		return NULL;
	}
	piece->length = min(piece->length, length);
	return page;
}

/*
 * Make the elements of a device that accesses memory by its kernel addresses: nothing is mapped.
 * Returns as nfr_mem_scatter_map().
 */
static int nfr_mem_scatter_virtual(const struct ib_pd *pd, struct nfr_span *span, u32 length,
				   struct ib_sge *sges, u32 room)
{
	u32 n, rest, offset, most = nfr_mem_entry_max(pd->device), lkey = pd->local_dma_lkey;
	const struct ib_sge *end = sges + room;
	struct ib_sge *sge = sges;
	struct page **page, *first;
	struct nfr_piece piece;

	for (; length; length -= piece.length) {
		page = nfr_mem_span_run(span, length, &piece);
		if (!page)
			return -EMSGSIZE;
		/* each page of a READ takes these steps: they use locals, not @span */
		offset = piece.offset;
		for (rest = piece.length; rest; rest -= n, sge++) {
			if (sge == end)
				return -EMSGSIZE;
			first = *page;
			n = nfr_mem_adjacent(&page, offset, min(rest, most - offset));
			*sge = (struct ib_sge) {
				.addr = (uintptr_t)page_address(first) + offset, .length = n,
				.lkey = lkey,
			};
			offset = 0;
		}
		nfr_mem_span_skip(span, piece.length);
	}
	return sge - sges;
}

/* Make elements of the @count ranges of addresses that a list is mapped to */
static void nfr_mem_scatter_elements(const struct nfr_scatter *scatter, u32 lkey, u32 count,
				     struct ib_sge *sges)
{
	struct scatterlist *sg;
	u32 i;

	for_each_sg(scatter->sgl, sg, count, i)
		sges[i] = (struct ib_sge) {
			.addr = sg_dma_address(sg), .length = sg_dma_len(sg), .lkey = lkey,
		};
}

/* List memory, and map the list. Returns the number of ranges of addresses, or a negative errno. */
static int nfr_mem_scatter_list(struct nfr_scatter *scatter, struct ib_device *device,
				struct nfr_span *span, u32 length, gfp_t gfp)
{
	u32 room = min(nfr_mem_span_regions(span, 1), (length >> PAGE_SHIFT) + NFR_RW_ENDS);
	u32 before = nfr_mem_span_length(span), tries = 0;
	int mapped;

	scatter->sgl = kmalloc_array(room, sizeof(*scatter->sgl), gfp);
	if (!scatter->sgl)
		return -ENOBUFS;
	scatter->entries = nfr_mem_span_list(span, length, nfr_mem_entry_max(device), true,
					     scatter->sgl, room);
	if (before - nfr_mem_span_length(span) != length)
		return -EMSGSIZE;
	do {
		mapped = ib_dma_map_sg(device, scatter->sgl, scatter->entries, scatter->direction);
	} while (!mapped && nfr_mem_map_again(gfp, &tries));
	return mapped ?: -ENOBUFS;
}

/**
 * nfr_mem_scatter_map - map memory for one message
 * @scatter: output, for nfr_mem_scatter_unmap()
 * @pd: protection domain
 * @span: memory; @length bytes of it are consumed
 * @length: number of bytes, at most those of @span
 * @direction: DMA_FROM_DEVICE to receive, DMA_TO_DEVICE to send
 * @sges: output array, one element for each range of addresses that the DMA layer makes of the
 *	memory
 * @room: number of elements in @sges
 * @gfp: allocation flags
 *
 * Return: number of elements, -EMSGSIZE if @room is too small, or -ENOBUFS if mapping
 * failed: the caller may try again. After an error nothing is mapped.
 */
int nfr_mem_scatter_map(struct nfr_scatter *scatter, const struct ib_pd *pd, struct nfr_span *span,
			u32 length, enum dma_data_direction direction, struct ib_sge *sges,
			u32 room, gfp_t gfp)
{
	int count;

	*scatter = (struct nfr_scatter) { .direction = direction };
	if (ib_uses_virt_dma(pd->device) || !length)
		return nfr_mem_scatter_virtual(pd, span, length, sges, room);
	count = nfr_mem_scatter_list(scatter, pd->device, span, length, gfp);
	if (count > 0 && count <= room) {
		nfr_mem_scatter_elements(scatter, pd->local_dma_lkey, count, sges);
		return count;
	}
	if (count > 0) {
		nfr_mem_scatter_unmap_list(pd->device, scatter);
		return -EMSGSIZE;
	}
	kfree(scatter->sgl);
	scatter->sgl = NULL;
	return count;
}

/**
 * nfr_mem_scatter_unmap_list - undo nfr_mem_scatter_map()
 * @device: RDMA device
 * @scatter: mapped memory, with a list
 */
void nfr_mem_scatter_unmap_list(struct ib_device *device, struct nfr_scatter *scatter)
{
	ib_dma_unmap_sg(device, scatter->sgl, scatter->entries, scatter->direction);
	kfree(scatter->sgl);
	scatter->sgl = NULL;
}
