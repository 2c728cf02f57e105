// SPDX-License-Identifier: GPL-2.0-only
/*
 * Map memory for access by the peer, and revoke that access.
 *
 * Normal operation: nfr_mem_map() takes as few MRs as a span needs and maps
 * them for DMA. nfr_mem_register() chains their registrations before the message
 * that names them. When the reply arrives, nfr_mem_invalidate() chains the
 * invalidations of the MRs that the peer did not invalidate. nfr_mem_release()
 * unmaps the MRs and returns them to the pool.
 *
 * Recovery: an MR whose invalidation failed belongs to a broken connection. It
 * stays with its request until the queue pair is drained, then
 * nfr_mem_destroy() destroys it. Only after that does the memory return to its
 * owner.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "memory/memory.h"
#include "module.h"
#include "observe/trace.h"

/* Swiotlb and IOMMUs can map at least this many contiguous bytes */
#define NFR_MAX_ENTRY		(128 * 1024)

/* Covers the largest client payload, 1 MiB, at any offset in a page */
#define NFR_USEFUL_DEPTH	((1024 * 1024 >> PAGE_SHIFT) + 1)

/* --- creation --- */

static struct nfr_mr *nfr_mem_mr_alloc(struct nfr_pool *pool, struct ib_pd *pd)
{
	u32 depth = pool->depth;
	struct nfr_mr *mr;

	mr = kzalloc(sizeof(*mr), NFR_GFP_RETRIED);
	if (!mr)
		return NULL;
	mr->sgl = kcalloc(depth, sizeof(*mr->sgl), NFR_GFP_RETRIED);
	if (!mr->sgl)
		goto out_free;
	sg_init_table(mr->sgl, depth);
	mr->mr = ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, depth);
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

static void nfr_mem_mr_free(struct nfr_mr *mr)
{
	ib_dereg_mr(mr->mr);
	kfree(mr->sgl);
	kfree(mr);
}

/* --- the pool: it grows on demand and never shrinks --- */

/**
 * nfr_mem_pool_init - initialize an empty pool
 * @pool: pool whose @number and @done the owner sets
 */
void nfr_mem_pool_init(struct nfr_pool *pool)
{
	spin_lock_init(&pool->lock);
	INIT_LIST_HEAD(&pool->free);
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
	pool->depth = min(wanted ?: NFR_USEFUL_DEPTH, device->attrs.max_fast_reg_page_list_len);
	pool->max_entry = min_t(u32, ib_dma_max_seg_size(device), NFR_MAX_ENTRY);
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
	u32 regions = DIV_ROUND_UP(NFR_USEFUL_DEPTH, pool->depth) + 2;

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
		spin_lock(&pool->lock);
		list_add(&mr->list, &pool->free);
		pool->total++;
		spin_unlock(&pool->lock);
	}
	return made ? 0 : -ENOMEM;
}

static struct nfr_mr *nfr_mem_pool_take(struct nfr_pool *pool)
{
	struct nfr_mr *mr;

	spin_lock(&pool->lock);
	mr = list_first_entry_or_null(&pool->free, struct nfr_mr, list);
	if (mr)
		list_del(&mr->list);
	spin_unlock(&pool->lock);
	return mr;
}

/* Return an unmapped MR, which is removed from its list. */
static void nfr_mem_pool_give(struct nfr_pool *pool, struct nfr_mr *mr)
{
	spin_lock(&pool->lock);
	list_move(&mr->list, &pool->free);
	spin_unlock(&pool->lock);
}

/**
 * nfr_mem_pool_destroy - destroy the MRs in the pool
 * @pool: pool to which all requests have returned their MRs
 */
void nfr_mem_pool_destroy(struct nfr_pool *pool)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, &pool->free, list)
		nfr_mem_mr_free(mr);
	INIT_LIST_HEAD(&pool->free);
}

/* --- one MR --- */

/* An MR has no gaps: only its first piece may start, and only its last may end, within a page. */
static bool nfr_mem_piece_joins(const struct scatterlist *last, const struct nfr_piece *piece)
{
	return !piece->offset && !offset_in_page(last->offset + last->length);
}

static bool nfr_mem_piece_is_next(const struct scatterlist *last, const struct nfr_piece *piece)
{
	unsigned long after = page_to_pfn(sg_page((struct scatterlist *)last)) +
			      ((last->offset + last->length) >> PAGE_SHIFT);

	return page_to_pfn(piece->page) == after;
}

/* Fill the scatterlist from @span, as far as the MR reaches. Returns the number of bytes. */
static u32 nfr_mem_mr_fill(struct nfr_mr *mr, struct nfr_span *span, const struct nfr_pool *pool)
{
	struct scatterlist *last = NULL;
	struct nfr_piece piece;
	u32 pages, bytes = 0;

	mr->entries = 0;
	for (pages = 0; pages < pool->depth && nfr_mem_span_peek(span, &piece); pages++) {
		if (last && !nfr_mem_piece_joins(last, &piece))
			break;
		if (last && nfr_mem_piece_is_next(last, &piece) &&
		    last->length + piece.length <= pool->max_entry) {
			last->length += piece.length;
		} else {
			last = &mr->sgl[mr->entries++];
			sg_set_page(last, piece.page, piece.length, piece.offset);
		}
		bytes += piece.length;
		nfr_mem_span_skip(span, piece.length);
	}
	return bytes;
}

static void nfr_mem_mr_unmap(struct nfr_mr *mr)
{
	trace_nfsrdma_mr_unmap(mr);
	ib_dma_unmap_sg(mr->pool->device, mr->sgl, mr->entries, mr->direction);
}

/* Map a filled MR under a new key. Returns 0, or -ENOBUFS if the caller may retry later. */
static int nfr_mem_mr_map(struct nfr_mr *mr, enum dma_data_direction direction)
{
	int mapped;

	mr->direction = direction;
	mapped = ib_dma_map_sg(mr->pool->device, mr->sgl, mr->entries, direction);
	if (!mapped)
		return -ENOBUFS;
	if (ib_map_mr_sg(mr->mr, mr->sgl, mapped, NULL, PAGE_SIZE) != mapped) {
		nfr_mem_mr_unmap(mr);
		return -ENOBUFS;
	}
	ib_update_fast_reg_key(mr->mr, (mr->mr->rkey & 0xff) + 1);
	mr->reg.key = mr->mr->rkey;
	mr->reg.access = direction == DMA_TO_DEVICE ? IB_ACCESS_REMOTE_READ :
			 IB_ACCESS_REMOTE_WRITE | IB_ACCESS_LOCAL_WRITE;
	return 0;
}

/* Destroy an MR that may be valid, but not its structure. */
static void nfr_mem_mr_retire(struct nfr_mr *mr)
{
	ib_dereg_mr(mr->mr);
	ib_dma_unmap_sg(mr->pool->device, mr->sgl, mr->entries, mr->direction);
	kfree(mr->sgl);
}

/* --- MRs of a request --- */

/**
 * nfr_mem_map - map a span with as few MRs as possible
 * @pool: pool
 * @span: memory to map; consumed
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 * @mrs: list to append the MRs to, even if an error is returned
 * @segs: output array, one segment per MR
 * @room: number of elements in @segs
 *
 * Return: number of MRs, or
 *
 * * -ENOMEM if the pool has too few: the caller has to fill it,
 * * -ENOBUFS if DMA mapping failed,
 * * -EMSGSIZE if @room is too small.
 */
int nfr_mem_map(struct nfr_pool *pool, struct nfr_span *span, enum dma_data_direction direction,
		struct list_head *mrs, struct nfr_segment *segs, u32 room)
{
	struct nfr_mr *mr;
	u32 bytes, n = 0;
	int rc;

	while (nfr_mem_span_length(span)) {
		if (n == room)
			return -EMSGSIZE;
		mr = nfr_mem_pool_take(pool);
		if (!mr)
			return -ENOMEM;
		bytes = nfr_mem_mr_fill(mr, span, pool);
		rc = nfr_mem_mr_map(mr, direction);
		if (rc) {
			INIT_LIST_HEAD(&mr->list);
			nfr_mem_pool_give(pool, mr);
			return rc;
		}
		list_add_tail(&mr->list, mrs);
		segs[n++] = (struct nfr_segment) {
			.handle = mr->mr->rkey, .length = bytes, .offset = mr->mr->iova,
		};
		trace_nfsrdma_mr_map(mr);
	}
	return n;
}

/**
 * nfr_mem_register - chain the registrations of MRs before a work request
 * @mrs: mapped MRs; the peer may access them as soon as the chain is posted
 * @last: work request that names the MRs
 *
 * Return: first work request of the chain, which ends with @last.
 */
struct ib_send_wr *nfr_mem_register(struct list_head *mrs, struct ib_send_wr *last)
{
	struct ib_send_wr *first, **link = &first;
	struct nfr_mr *mr;

	list_for_each_entry(mr, mrs, list) {
		mr->valid = true;
		trace_nfsrdma_mr_fastreg(mr);
		*link = &mr->reg.wr;
		link = &mr->reg.wr.next;
	}
	*link = last;
	return first;
}

/**
 * nfr_mem_invalidate - chain the invalidations of MRs
 * @mrs: registered MRs, at least one of them valid; the function skips invalid
 *	ones
 * @first: output, first work request of the chain
 * @last: output, last work request of the chain
 *
 * Return: number of work requests.
 */
u32 nfr_mem_invalidate(struct list_head *mrs, struct ib_send_wr **first,
		       struct ib_send_wr **last)
{
	struct ib_send_wr **link = first;
	struct nfr_mr *mr;
	u32 count = 0;

	list_for_each_entry(mr, mrs, list) {
		if (!mr->valid)
			continue;
		trace_nfsrdma_mr_localinv(mr);
		mr->inv = (struct ib_send_wr) {
			.wr_cqe = &mr->cqe,
			.opcode = IB_WR_LOCAL_INV,
			.ex.invalidate_rkey = mr->mr->rkey,
		};
		*last = *link = &mr->inv;
		link = &mr->inv.next;
		count++;
	}
	return count;
}

/**
 * nfr_mem_invalidated - record that the peer invalidated an MR
 * @mrs: MRs of the request that the message answers
 * @handle: key that the peer invalidated
 *
 * Return: false if none of @mrs is valid under @handle.
 */
bool nfr_mem_invalidated(struct list_head *mrs, u32 handle)
{
	struct nfr_mr *mr;

	list_for_each_entry(mr, mrs, list) {
		if (mr->mr->rkey != handle || !mr->valid)
			continue;
		mr->valid = false;
		trace_nfsrdma_mr_remoteinv(mr);
		return true;
	}
	return false;
}

/**
 * nfr_mem_offered - check a returned chunk against the MRs that the Call offered
 * @mrs: MRs of the request; writable ones are in the order of their segments
 * @chunk: chunk as the peer returned it
 *
 * A responder fills segments in order: only empty ones follow a partly filled
 * one.
 *
 * Return: true if the peer can have written what @chunk states.
 */
bool nfr_mem_offered(const struct list_head *mrs, const struct nfr_chunk *chunk)
{
	const struct nfr_mr *mr;
	bool full = true;
	u32 i = 0;

	list_for_each_entry(mr, mrs, list) {
		u32 written = i < chunk->nsegs ? chunk->segs[i].length : 0;

		if (mr->direction != DMA_FROM_DEVICE)
			continue;
		if (written > mr->mr->length || (written && !full))
			return false;
		full = written == mr->mr->length;
		i++;
	}
	return chunk->nsegs <= i;
}

/**
 * nfr_mem_any_valid - check whether the peer may access any MR
 * @mrs: MRs of a request
 *
 * Return: true if at least one of @mrs is valid.
 */
bool nfr_mem_any_valid(const struct list_head *mrs)
{
	const struct nfr_mr *mr;

	list_for_each_entry(mr, mrs, list)
		if (mr->valid)
			return true;
	return false;
}

/**
 * nfr_mem_release - unmap MRs and return them to their pool
 * @mrs: MRs that are invalidated or were never registered; the list becomes
 *	empty
 */
void nfr_mem_release(struct list_head *mrs)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, mrs, list) {
		mr->valid = false;
		nfr_mem_mr_unmap(mr);
		nfr_mem_pool_give(mr->pool, mr);
	}
}

/**
 * nfr_mem_destroy - destroy the MRs of requests that lost their connection
 * @mrs: MRs of a drained connection, in any state; the list becomes empty
 *
 * Context: Sleeps until the device has destroyed them.
 */
void nfr_mem_destroy(struct list_head *mrs)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, mrs, list) {
		mr->pool->orphaned++;
		/* revoke the peer's access before unmapping */
		nfr_mem_mr_retire(mr);
		list_del(&mr->list);
		kfree(mr);
	}
}
