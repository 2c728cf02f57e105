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
 * the exposure when the connection has ended. Only then does the memory return
 * to its owner.
 *
 * A device may refuse to destroy an MR. Then the MR is kept, and destroyed later. Its
 * memory waits for that, unless the queue pair is drained. If the device ends, it has ten
 * seconds for that: then the MR is given up, and its memory is never freed.
 */
#include <linux/delay.h>
#include <linux/dma-map-ops.h>
#include <linux/iommu.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "memory/exposure.h"
#include "memory/memory.h"
#include "memory/region.h"
#include "observe/trace.h"

/* Pools of which the device has refused to destroy an MR; nothing new is exposed by its device */
static DEFINE_SPINLOCK(nfr_mem_refusing_lock);
static LIST_HEAD(nfr_mem_refusing);

/* --- devices that refuse --- */

static void nfr_mem_refused(struct nfr_pool *pool, int rc)
{
	if (!pool->give_up && READ_ONCE(*pool->device_ends))
		pool->give_up = (jiffies + NFR_DESTROY_ENDS) | 1;
	spin_lock(&nfr_mem_refusing_lock);
	if (list_empty(&pool->refusing)) {
		list_add(&pool->refusing, &nfr_mem_refusing);
		pr_err("nfsrdma: device %s: a memory region cannot be destroyed: %d; its memory stays in use\n",
		       pool->device->name, rc);
	}
	spin_unlock(&nfr_mem_refusing_lock);
}

static void nfr_mem_complied(struct nfr_pool *pool)
{
	if (list_empty(&pool->refusing))
		return;
	spin_lock(&nfr_mem_refusing_lock);
	list_del_init(&pool->refusing);
	spin_unlock(&nfr_mem_refusing_lock);
}

/**
 * nfr_mem_device_refuses - check whether a device has MRs that it did not destroy when it had to
 * @device: RDMA device
 *
 * Return: true if memory must not be exposed by it.
 */
bool nfr_mem_device_refuses(const struct ib_device *device)
{
	const struct nfr_pool *pool;
	bool found = false;

	if (list_empty_careful(&nfr_mem_refusing))
		return false;
	spin_lock(&nfr_mem_refusing_lock);
	list_for_each_entry(pool, &nfr_mem_refusing, refusing)
		found |= pool->device == device;
	spin_unlock(&nfr_mem_refusing_lock);
	return found;
}

/* --- devices that do not see memory --- */

/* The page table that translates the addresses of a device; NULL without one */
static struct iommu_domain *nfr_mem_domain(struct device *device)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(device);

	/* IOMMU_DOMAIN_PLATFORM (powerpc) has no iova_to_phys(), which the core does not check */
	return domain && (domain->type & __IOMMU_DOMAIN_PAGING) ? domain : NULL;
}

/*
 * Whether the device accesses mapped memory itself, and not a copy (swiotlb). Where the DMA layer
 * would sync nothing, it copies nothing. Where it uses an IOMMU, it may sync for other mappings
 * of the device.
 */
static bool nfr_mem_is_direct(struct device *device, struct iommu_domain *domain, dma_addr_t addr,
			      phys_addr_t phys)
{
	if (!dma_need_sync(device, addr))
		return true;
	return domain && dev_is_dma_coherent(device) && iommu_iova_to_phys(domain, addr) == phys;
}

/* The same for all memory of an MR. The DMA layer may have merged entries. */
static bool nfr_mem_mr_is_direct(const struct nfr_mr *mr, struct device *device)
{
	struct iommu_domain *domain = nfr_mem_domain(device);
	struct scatterlist *sg, *mapped = mr->sgl;
	u32 at = 0;

	for (sg = mr->sgl; sg < mr->sgl + mr->entries; sg++) {
		if (!nfr_mem_is_direct(device, domain, sg_dma_address(mapped) + at, sg_phys(sg)))
			return false;
		at += sg->length;
		if (at == sg_dma_len(mapped)) {
			mapped++;
			at = 0;
		}
	}
	return true;
}

/**
 * nfr_mem_device_sees - check whether the device sees what the processor writes later
 * @exposure: mapped memory
 *
 * Return: false if the device accesses a copy of the memory, or bypasses the caches of processors.
 */
bool nfr_mem_device_sees(const struct nfr_exposure *exposure)
{
	const struct nfr_mr *mr;

	list_for_each_entry(mr, &exposure->mrs, list)
		if (!ib_uses_virt_dma(mr->pool->device) &&
		    !nfr_mem_mr_is_direct(mr, mr->pool->device->dma_device))
			return false;
	return true;
}

/* Map a page, and see whether the device would access it itself */
static bool nfr_mem_page_is_direct(struct ib_device *device, struct page *page)
{
	struct device *dma = device->dma_device;
	u64 addr = ib_dma_map_page(device, page, 0, PAGE_SIZE, DMA_TO_DEVICE);
	bool direct;

	if (ib_dma_mapping_error(device, addr))
		return false;
	direct = nfr_mem_is_direct(dma, nfr_mem_domain(dma), addr, page_to_phys(page));
	ib_dma_unmap_page(device, addr, PAGE_SIZE, DMA_TO_DEVICE);
	return direct;
}

/**
 * nfr_mem_device_grants - find out whether a device may let peers read the page cache
 * @device: RDMA device
 *
 * Each grant is checked by itself, too: a device may access some memory only by a copy.
 *
 * Return: "yes", or why not, in a word.
 */
const char *nfr_mem_device_grants(struct ib_device *device)
{
	struct page *page;
	bool direct;

	if (nfr_mem_device_refuses(device))
		return "stuck";
	if (ib_uses_virt_dma(device))
		return "yes";
	if (!dev_is_dma_coherent(device->dma_device))
		return "caches";
	page = alloc_page(GFP_KERNEL);
	direct = page && nfr_mem_page_is_direct(device, page);
	if (page)
		__free_page(page);
	return direct ? "yes" : "copies";
}

/* --- taking and destroying an MR --- */

/**
 * nfr_mem_gives_up - decide whether to give up MRs that a device does not destroy
 * @pool: pool of the MRs
 *
 * A driver may wait for this module before it resets the device, and the device may destroy
 * nothing before the reset.
 *
 * Return: true if the device has refused, is being removed or has reported a fatal error, and has
 * had time since.
 */
bool nfr_mem_gives_up(const struct nfr_pool *pool)
{
	return pool->give_up && time_after(jiffies, pool->give_up);
}

/*
 * Have the device destroy an MR that may be valid. Returns false if it refuses. An attempt may take
 * a minute, so there is no second one after the time of nfr_mem_gives_up(). The first one takes the
 * MR out of the RDMA core's list, which has to be empty when the device goes.
 */
static bool nfr_mem_mr_destroy(struct nfr_mr *mr)
{
	int rc;

	if (mr->mr && mr->refused && nfr_mem_gives_up(mr->pool))
		return false;
	rc = mr->mr ? ib_dereg_mr(mr->mr) : 0;
	if (rc) {
		mr->refused = true;
		nfr_mem_refused(mr->pool, rc);
		return false;
	}
	mr->mr = NULL;
	mr->valid = false;
	return true;
}

/* Have the device destroy MRs in a list. Returns false if some are left. Frees nothing. */
static bool nfr_mem_mrs_destroy(struct list_head *mrs)
{
	struct nfr_mr *mr;
	bool all = true;

	list_for_each_entry(mr, mrs, list)
		all &= nfr_mem_mr_destroy(mr);
	return all;
}

/*
 * Whether the peer cannot reach the memory of an MR. The only place where the memory of a
 * connection's MRs returns without an invalidation asks this.
 */
static bool nfr_mem_mr_is_proven(const struct nfr_mr *mr, enum nfr_proof proof)
{
	return !mr->valid || proof == NFR_PROOF_DRAINED;
}

/* Give the memory of an MR back. The MR itself may still exist. */
static void nfr_mem_mr_return(struct nfr_mr *mr)
{
	mr->pool->orphaned++;
	nfr_mem_unmap(mr);
	if (mr->npages)
		nfr_mem_cache_unpin(mr);
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
		trace_nfsrdma_mr_unmap(mr);
		nfr_mem_unmap(mr);
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
 * nfr_mem_cut - end the access of the peer without the queue pair
 * @mrs: detached MRs of a broken connection whose fence failed
 *
 * The memory stays mapped, and the MRs in the list: work requests that are not complete refer to
 * them. When the connection has ended, nfr_mem_destroy() has to follow.
 *
 * Context: Sleeps until the device has answered.
 *
 * Return: false if the device refused: the peer may still reach memory, and the caller has to try
 * again.
 */
bool nfr_mem_cut(struct list_head *mrs)
{
	return nfr_mem_mrs_destroy(mrs);
}

/**
 * nfr_mem_detach - move the MRs of a request that lost its connection
 * @exposure: exposure of a drained connection, in any state; becomes empty
 * @mrs: list to append the MRs to, for nfr_mem_destroy(); before the connection is drained, for
 *	nfr_mem_cut()
 */
void nfr_mem_detach(struct nfr_exposure *exposure, struct list_head *mrs)
{
	list_splice_tail(&exposure->mrs, mrs);
	nfr_mem_exposure_init(exposure);
}

static void nfr_mem_mr_free(struct nfr_mr *mr)
{
	list_del(&mr->list);
	kfree(mr->sgl);
	kfree(mr);
}

/*
 * Destroy MRs, and give memory back that the peer cannot reach. The pool gets MRs whose memory
 * is back, but which still exist. Returns false if memory is left in the list.
 */
static bool nfr_mem_destroy_some(struct list_head *mrs, enum nfr_proof proof)
{
	struct nfr_mr *mr, *next;
	bool gone;

	list_for_each_entry_safe(mr, next, mrs, list) {
		/* revoke the peer's access before unmapping */
		gone = nfr_mem_mr_destroy(mr);
		if (!nfr_mem_mr_is_proven(mr, proof))
			continue;
		nfr_mem_mr_return(mr);
		if (gone)
			nfr_mem_mr_free(mr);
		else
			list_move(&mr->list, &mr->pool->free);
	}
	return list_empty(mrs);
}

static void nfr_mem_destroy_pause(unsigned int *pause)
{
	msleep(*pause);
	*pause = min(2 * *pause, NFR_DESTROY_MAX);
}

/*
 * Keep the pages of an MR allocated for ever. Memory of kmalloc() may have no references: its owner
 * does not free it. Returns the number of pages.
 */
static u32 nfr_mem_mr_hold(const struct nfr_mr *mr)
{
	struct scatterlist *sg;
	u32 pages = 0, i, n;

	for (sg = mr->sgl; sg < mr->sgl + mr->entries; sg++) {
		n = PFN_UP(sg->offset + sg->length);
		for (i = 0; i < n; i++)
			(void)folio_try_get(page_folio(sg_page(sg) + i));
		pages += n;
	}
	return pages;
}

/*
 * Give up MRs whose memory the device may still access. The memory stays mapped.
 * nfr_mem_pool_destroy() reports that.
 */
static void nfr_mem_mrs_lose(struct list_head *mrs)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, mrs, list) {
		mr->pool->orphaned++;
		mr->pool->lost += nfr_mem_mr_hold(mr);
		if (mr->npages)
			nfr_mem_cache_unpin(mr);
		list_move(&mr->list, &mr->pool->free);
	}
}

/**
 * nfr_mem_destroy - destroy the MRs of requests that lost their connection, and give back their
 *	memory
 * @mrs: MRs of a connection that has ended, in any state; the list becomes empty
 * @proof: what nfr_conn_end() returned
 *
 * Context: Sleeps until the device has destroyed them, if nothing else proves that no peer
 * reaches the memory; or until nfr_mem_gives_up().
 *
 * Return: false if the device may still access memory: pages stay allocated for ever, and the
 * caller must not free what it had from kmalloc().
 */
bool nfr_mem_destroy(struct list_head *mrs, enum nfr_proof proof)
{
	unsigned int pause = NFR_DESTROY_AGAIN;
	const struct nfr_mr *mr;

	if (WARN_ON_ONCE(proof < NFR_PROOF_DRAINED))
		proof = NFR_PROOF_NONE;
	while (!nfr_mem_destroy_some(mrs, proof)) {
		mr = list_first_entry(mrs, struct nfr_mr, list);
		if (nfr_mem_gives_up(mr->pool)) {
			nfr_mem_mrs_lose(mrs);
			return false;
		}
		nfr_mem_destroy_pause(&pause);
	}
	return true;
}

/**
 * nfr_mem_pool_destroy - destroy the MRs in the pool
 * @pool: pool to which all requests have returned their MRs, or their memory
 *
 * The verbs objects of MRs that the device does not destroy stay allocated: their driver refers
 * to them.
 *
 * Context: Sleeps until the device has destroyed them, or nfr_mem_gives_up().
 */
void nfr_mem_pool_destroy(struct nfr_pool *pool)
{
	unsigned int pause = NFR_DESTROY_AGAIN;
	struct nfr_mr *mr, *next;
	u32 kept = 0;

	while (!nfr_mem_mrs_destroy(&pool->free) && !nfr_mem_gives_up(pool))
		nfr_mem_destroy_pause(&pause);
	list_for_each_entry_safe(mr, next, &pool->free, list) {
		kept += !!mr->mr;
		nfr_mem_mr_free(mr);
	}
	if (kept)
		pr_err("nfsrdma: device %s ends, and has not destroyed %u memory regions: they and %u pages stay allocated for ever\n",
		       pool->device->name, kept, pool->lost);
	nfr_mem_complied(pool);
}
