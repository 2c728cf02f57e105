// SPDX-License-Identifier: GPL-2.0-only
/*
 * Expose memory to the peer for one RPC, and end that exposure.
 *
 * prepare takes as few MRs as the memory needs, and maps them. post chains their
 * registrations before the message that names them: from then on the peer may
 * access them. When the Reply arrives, settle gives the memory back, unless the
 * peer may still access an MR. Then revoke chains the invalidations that end it,
 * and release follows their completion.
 *
 * An MR whose invalidation failed belongs to a broken connection. destroy ends
 * the exposure when the queue pair is drained. Only then does the memory return
 * to its owner.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "memory/memory.h"
#include "observe/trace.h"

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
			if (mr->entries == pool->room)
				break;
			last = &mr->sgl[mr->entries++];
			sg_set_page(last, piece.page, piece.length, piece.offset);
		}
		bytes += piece.length;
		nfr_mem_span_skip(span, piece.length);
	}
	return bytes;
}

/*
 * If the cache kept the MR, its owner may have written to the memory since: unmapping
 * must not copy what the device wrote over that.
 */
static void nfr_mem_mr_unmap_dma(const struct nfr_mr *mr)
{
	ib_dma_unmap_sg_attrs(mr->pool->device, mr->sgl, mr->entries, mr->direction,
			      mr->synced ? DMA_ATTR_SKIP_CPU_SYNC : 0);
}

static void nfr_mem_mr_unmap(struct nfr_mr *mr)
{
	trace_nfsrdma_mr_unmap(mr);
	nfr_mem_mr_unmap_dma(mr);
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
	nfr_mem_mr_unmap_dma(mr);
	if (mr->npages)
		nfr_mem_cache_unpin(mr);
	kfree(mr->sgl);
}

/**
 * nfr_mem_map - map an MR to the start of a span, under a new key
 * @mr: unused MR
 * @span: memory; consumed as far as the MR reaches
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 *
 * Return: 0, or -ENOBUFS if the caller may retry later.
 */
int nfr_mem_map(struct nfr_mr *mr, struct nfr_span *span, enum dma_data_direction direction)
{
	mr->offered = nfr_mem_mr_fill(mr, span, mr->pool);
	return nfr_mem_mr_map(mr, direction);
}

/*
 * Take an MR, and map it to the start of @span. @keep: offer it to the cache. Returns an
 * ERR_PTR of nfr_mem_prepare().
 */
static struct nfr_mr *nfr_mem_mr_new(struct nfr_pool *pool, struct nfr_span *span,
				     enum dma_data_direction direction, bool keep)
{
	struct nfr_mr *mr = nfr_mem_pool_take(pool);
	struct nfr_span whole;
	int rc;

	if (!mr)
		return ERR_PTR(-ENOMEM);
	if (keep)
		whole = *span;
	rc = nfr_mem_map(mr, span, direction);
	if (rc) {
		nfr_mem_pool_give(pool, mr);
		return ERR_PTR(rc);
	}
	if (keep)
		nfr_mem_cache_keep(mr, &whole);
	trace_nfsrdma_mr_map(mr);
	return mr;
}

/* --- all MRs of an exposure --- */

/**
 * nfr_mem_prepare - map memory under new keys
 * @exposure: exposure; an error leaves the MRs mapped so far in it
 * @pool: pool
 * @span: memory to map; consumed
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 * @segs: output array, one segment per MR
 * @room: number of elements in @segs
 *
 * Return: number of segments, or
 *
 * * -ENOMEM if the pool has too few MRs: the caller has to fill it,
 * * -ENOBUFS if DMA mapping failed,
 * * -EMSGSIZE if @room is too small.
 */
int nfr_mem_prepare(struct nfr_exposure *exposure, struct nfr_pool *pool, struct nfr_span *span,
		    enum dma_data_direction direction, struct nfr_segment *segs, u32 room)
{
	bool keep = pool->cache;
	struct nfr_mr *mr;
	u32 n = 0;

	while (nfr_mem_span_length(span)) {
		if (n == room)
			return -EMSGSIZE;
		mr = keep ? nfr_mem_cache_get(exposure, pool, span, direction) : NULL;
		if (!mr)
			mr = nfr_mem_mr_new(pool, span, direction, keep);
		if (IS_ERR(mr))
			return PTR_ERR(mr);
		list_add_tail(&mr->list, &exposure->mrs);
		exposure->count++;
		exposure->kept += mr->kept;
		segs[n++] = (struct nfr_segment) {
			.handle = mr->mr->rkey, .length = mr->offered, .offset = mr->mr->iova,
		};
		/* the rest of a span that takes several MRs is not worth keeping */
		keep = false;
	}
	return n;
}

/**
 * nfr_mem_post - chain the registrations before a work request
 * @exposure: exposure; the peer may access it as soon as the chain is posted
 * @last: work request that names the MRs
 *
 * Return: first work request of the chain, which has one more for each of
 * @exposure->mrs that was not valid before, and ends with @last.
 */
struct ib_send_wr *nfr_mem_post(struct nfr_exposure *exposure, struct ib_send_wr *last)
{
	struct ib_send_wr *first, **link = &first;
	struct nfr_mr *mr;

	list_for_each_entry(mr, &exposure->mrs, list) {
		if (mr->valid)
			continue;
		mr->valid = true;
		trace_nfsrdma_mr_fastreg(mr);
		*link = &mr->reg.wr;
		link = &mr->reg.wr.next;
	}
	exposure->valid = exposure->count - exposure->kept;
	*link = last;
	return first;
}

/**
 * nfr_mem_covers - check a returned chunk against the memory that the Call offered
 * @exposure: exposure; writable MRs are in the order of their segments
 * @chunk: chunk as the peer returned it
 *
 * A responder fills segments in order: only empty ones follow a partly filled
 * one.
 *
 * Return: true if the peer can have written what @chunk states.
 */
bool nfr_mem_covers(const struct nfr_exposure *exposure, const struct nfr_chunk *chunk)
{
	const struct nfr_mr *mr;
	bool full = true;
	u32 i = 0;

	list_for_each_entry(mr, &exposure->mrs, list) {
		u32 written = i < chunk->nsegs ? chunk->segs[i].length : 0;

		if (mr->direction != DMA_FROM_DEVICE)
			continue;
		if (written > mr->offered || (written && !full))
			return false;
		full = written == mr->offered;
		i++;
	}
	return chunk->nsegs <= i;
}

/**
 * nfr_mem_invalidated - record that the peer invalidated an MR
 * @exposure: exposure of the Call that the message answers
 * @handle: key that the peer invalidated
 *
 * Return: false if no MR is valid under @handle.
 */
bool nfr_mem_invalidated(struct nfr_exposure *exposure, u32 handle)
{
	struct nfr_mr *mr;

	list_for_each_entry(mr, &exposure->mrs, list) {
		if (mr->mr->rkey != handle || !mr->valid)
			continue;
		mr->valid = false;
		if (mr->kept)
			exposure->kept--;
		else
			exposure->valid--;
		mr->kept = false;
		trace_nfsrdma_mr_remoteinv(mr);
		return true;
	}
	return false;
}

/**
 * nfr_mem_revoke - chain the invalidations of the MRs that the peer may access
 * @exposure: exposure that nfr_mem_settle() did not settle
 * @first: output, first work request of the chain
 * @last: output, last work request of the chain
 *
 * Return: number of work requests.
 */
u32 nfr_mem_revoke(struct nfr_exposure *exposure, struct ib_send_wr **first,
		   struct ib_send_wr **last)
{
	struct ib_send_wr **link = first;
	struct nfr_mr *mr;

	list_for_each_entry(mr, &exposure->mrs, list) {
		if (!mr->valid || mr->kept)
			continue;
		trace_nfsrdma_mr_localinv(mr);
		mr->inv = (struct ib_send_wr) {
			.wr_cqe = &mr->cqe,
			.opcode = IB_WR_LOCAL_INV,
			.ex.invalidate_rkey = mr->mr->rkey,
		};
		*last = *link = &mr->inv;
		link = &mr->inv.next;
	}
	return exposure->valid;
}

/**
 * nfr_mem_release - unmap MRs and return them to their pool
 * @exposure: exposure whose invalidations are complete, or that was not posted;
 *	becomes empty
 */
void nfr_mem_release(struct nfr_exposure *exposure)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, &exposure->mrs, list) {
		if (mr->npages && mr->kept && mr->valid) {
			nfr_mem_cache_return(mr);
			continue;
		}
		mr->valid = false;
		nfr_mem_mr_unmap(mr);
		if (mr->npages)
			nfr_mem_cache_unpin(mr);
		nfr_mem_pool_give(mr->pool, mr);
	}
	nfr_mem_exposure_init(exposure);
}

/**
 * nfr_mem_forget - keep no MR of an exposure valid
 * @exposure: exposure of an abandoned Call, which the peer may still access
 */
void nfr_mem_forget(struct nfr_exposure *exposure)
{
	struct nfr_mr *mr;

	if (!exposure->kept)
		return;
	list_for_each_entry(mr, &exposure->mrs, list) {
		exposure->valid += mr->kept && mr->valid;
		mr->kept = false;
	}
	exposure->kept = 0;
}

/**
 * nfr_mem_detach - move the MRs of a request that lost its connection
 * @exposure: exposure of a drained connection, in any state; becomes empty
 * @mrs: list to append the MRs to, for nfr_mem_destroy()
 */
void nfr_mem_detach(struct nfr_exposure *exposure, struct list_head *mrs)
{
	list_splice_tail(&exposure->mrs, mrs);
	nfr_mem_exposure_init(exposure);
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
