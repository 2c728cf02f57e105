// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory regions.
 *
 * A key consists of an index, which the card assigns, and a low byte, which the
 * consumer changes with each registration. An access enters a region, copies at
 * most CARD_PIECE bytes with softirqs disabled, and leaves it. An invalidation
 * refuses later accesses, and waits for current ones without sleeping. Neither
 * takes a lock.
 */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "queues.h"

/* --- validity --- */

/**
 * card_mr_open - make a region valid
 * @mr: region with all members set, in state CARD_MR_CHANGES or new
 */
void card_mr_open(struct card_mr *mr)
{
	atomic_set_release(&mr->users, 1);
	atomic_set_release(&mr->state, CARD_MR_VALID);
}

/**
 * card_mr_close - make a region invalid; waits for the end of accesses without sleeping
 * @mr: region
 *
 * A region becomes valid again only after the last access has ended, so the wait
 * ends there, too: another queue pair may register the region at any moment.
 * Return: false if it was invalid already.
 */
bool card_mr_close(struct card_mr *mr)
{
	bool closed = atomic_cmpxchg(&mr->state, CARD_MR_VALID, CARD_MR_INVALID) == CARD_MR_VALID;

	if (closed)
		atomic_dec(&mr->users);
	while (atomic_read_acquire(&mr->users) && atomic_read(&mr->state) != CARD_MR_VALID)
		cpu_relax();
	return closed;
}

/* --- indices --- */

/**
 * card_regions_create - create the table of a card's regions
 * @card: card
 *
 * Return: false without memory; card_regions_destroy() frees what there is.
 */
bool card_regions_create(struct card *card)
{
	spin_lock_init(&card->regions_lock);
	card->next_index = 1;
	card->regions = kvcalloc(CARD_MAX_MR + 1, sizeof(*card->regions), GFP_KERNEL);
	card->indices = bitmap_zalloc(CARD_MAX_MR + 1, GFP_KERNEL);
	return card->regions && card->indices;
}

/**
 * card_regions_destroy - free the table of a card's regions
 * @card: card that has no region any more
 */
void card_regions_destroy(struct card *card)
{
	bitmap_free(card->indices);
	kvfree(card->regions);
}

/* Give a region its index and key. They are cyclic, so that a stale key finds no new region. */
static bool card_mr_publish(struct card *card, struct card_mr *mr)
{
	unsigned long index;

	spin_lock(&card->regions_lock);
	index = find_next_zero_bit(card->indices, CARD_MAX_MR + 1, card->next_index);
	if (index > CARD_MAX_MR)
		index = find_next_zero_bit(card->indices, CARD_MAX_MR + 1, 1);
	if (index <= CARD_MAX_MR) {
		__set_bit(index, card->indices);
		card->next_index = index + 1;
		mr->index = index;
		mr->key = index << 8;
		rcu_assign_pointer(card->regions[index], mr);
	}
	spin_unlock(&card->regions_lock);
	return index <= CARD_MAX_MR;
}

static void card_mr_hide(struct card *card, const struct card_mr *mr)
{
	spin_lock(&card->regions_lock);
	RCU_INIT_POINTER(card->regions[mr->index], NULL);
	__clear_bit(mr->index, card->indices);
	spin_unlock(&card->regions_lock);
}

/* --- creation and destruction --- */

static void card_mr_free(struct rcu_head *rcu)
{
	struct card_mr *mr = container_of(rcu, struct card_mr, rcu);

	kvfree(mr->ranges);
	kfree(mr);
}

static struct ib_mr *card_mr_create(struct ib_pd *pd, u32 max_ranges, gfp_t gfp)
{
	struct card *card = to_card(pd->device);
	struct card_mr *mr = kzalloc(sizeof(*mr), gfp);

	if (!mr)
		return ERR_PTR(-ENOMEM);
	if (max_ranges) {
		mr->ranges = kvcalloc(max_ranges, sizeof(*mr->ranges), gfp);
		if (!mr->ranges)
			goto out_free;
	}
	mr->max_ranges = max_ranges;
	mr->ib.pd = pd;
	if (!card_mr_publish(card, mr))
		goto out_free;
	mr->ib.lkey = mr->key;
	mr->ib.rkey = mr->key;
	return &mr->ib;
out_free:
	kvfree(mr->ranges);
	kfree(mr);
	return ERR_PTR(-ENOMEM);
}

/**
 * card_get_dma_mr - create a region of all memory
 * @pd: protection domain
 * @access: IB_ACCESS_...
 *
 * Return: region, or an error pointer.
 */
struct ib_mr *card_get_dma_mr(struct ib_pd *pd, int access)
{
	struct ib_mr *ib = card_mr_create(pd, 0, GFP_KERNEL);
	struct card_mr *mr;

	if (IS_ERR(ib))
		return ib;
	mr = to_card_mr(ib);
	mr->access = access;
	mr->length = U64_MAX;
	card_mr_open(mr);
	return ib;
}

/**
 * card_alloc_mr - create a region for fast registration
 * @pd: protection domain
 * @type: IB_MR_TYPE_MEM_REG or IB_MR_TYPE_SG_GAPS
 * @max_num_sg: maximum number of pages, or of elements of a list with gaps
 *
 * Return: region in the invalid state, or an error pointer.
 */
struct ib_mr *card_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg)
{
	const struct card_profile *profile = to_card(pd->device)->profile;

	if (type != IB_MR_TYPE_MEM_REG && (type != IB_MR_TYPE_SG_GAPS || !profile->gaps))
		return ERR_PTR(-EOPNOTSUPP);
	if (!max_num_sg || max_num_sg > profile->pages)
		return ERR_PTR(-EINVAL);
	if (READ_ONCE(to_card(pd->device)->firmware) != CARD_RUNS)
		return ERR_PTR(-ETIMEDOUT);
	return card_mr_create(pd, max_num_sg, GFP_KERNEL);
}

/* Undo card_dmabuf_get() */
static void card_dmabuf_put(struct dma_buf *dmabuf, struct iosys_map *map)
{
	card_dmabuf_vunmap(dmabuf, map);
	dma_buf_put(dmabuf);
}

/**
 * card_dereg_mr - destroy a region; waits for the end of accesses
 * @ib: region
 * @udata: no members
 *
 * Return: 0, or a negative errno if keep_regions or stopped firmware has it fail: then the
 * region stays as it is.
 */
int card_dereg_mr(struct ib_mr *ib, struct ib_udata *udata)
{
	struct card *card = to_card(ib->device);
	struct card_mr *mr = to_card_mr(ib);
	int rc;

	if (card_mr_is_fast(mr) && atomic_dec_if_positive(&card->keep_regions) >= 0)
		return -EIO;
	rc = card_result(card, card->profile->stopped_dereg, card->profile->failed_dereg);
	if (rc)
		return rc;
	card_mr_hide(card, mr);
	card_mr_close(mr);
	ib_umem_release(mr->umem);
	if (mr->dmabuf)
		card_dmabuf_put(mr->dmabuf, &mr->map);
	/* a lookup may still hold the pointer, and a late registration may open the region */
	call_rcu(&mr->rcu, card_mr_free);
	return 0;
}

/* --- mapping --- */

static void card_mr_clear(struct card_mr *mr)
{
	mr->num_ranges = 0;
	mr->mapped = 0;
}

/* Append memory to the ranges; returns false if they are full */
static bool card_mr_add(struct card_mr *mr, u64 addr, u64 length)
{
	struct card_range *last = mr->num_ranges ? &mr->ranges[mr->num_ranges - 1] : NULL;

	if (last && last->addr + last->length == addr) {
		last->length += length;
	} else {
		if (mr->num_ranges == mr->max_ranges)
			return false;
		mr->ranges[mr->num_ranges++] = (struct card_range) {
			.start = mr->mapped, .addr = addr, .length = length,
		};
	}
	mr->mapped += length;
	return true;
}

/* Take over pinned memory: make a valid region of it, or release it. @addr: of its first byte */
static struct ib_mr *card_umem_mr(struct ib_pd *pd, struct ib_umem *umem, u64 addr, int access)
{
	struct scatterlist *sg;
	struct card_mr *mr;
	struct ib_mr *ib;
	int i;

	ib = card_mr_create(pd, umem->sgt_append.sgt.nents, GFP_KERNEL_ACCOUNT);
	if (IS_ERR(ib)) {
		ib_umem_release(umem);
		return ib;
	}
	mr = to_card_mr(ib);
	/* the number of elements is the number of ranges at most */
	for_each_sgtable_dma_sg(&umem->sgt_append.sgt, sg, i)
		card_mr_add(mr, sg_dma_address(sg), sg_dma_len(sg));
	mr->umem = umem;
	mr->iova = addr;
	mr->length = umem->length;
	mr->offset = ib_umem_offset(umem);
	mr->access = access;
	card_mr_open(mr);
	return ib;
}

/**
 * card_user_mr - create a region of a process's memory
 * @pd: protection domain
 * @start: address in the current process
 * @length: in bytes
 * @addr: address of the first byte in requests
 * @access: IB_ACCESS_...
 *
 * Return: valid region with pinned memory, or an error pointer.
 */
struct ib_mr *card_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 addr, int access)
{
	struct ib_umem *umem;

	if (access & ~CARD_USER_ACCESS)
		return ERR_PTR(-EOPNOTSUPP);
	umem = card_umem_get(pd->device, start, length, access);
	return IS_ERR(umem) ? ERR_CAST(umem) : card_umem_mr(pd, umem, addr, access);
}

/*
 * Map a dma-buf for a card without a function: it has no device that an exporter could map pages
 * for. Returns the dma-buf, or an error pointer.
 */
static struct dma_buf *card_dmabuf_get(int fd, u64 offset, u64 length, struct iosys_map *map)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	int rc = -EINVAL;

	if (IS_ERR(dmabuf))
		return dmabuf;
	if (!length || offset > dmabuf->size || length > dmabuf->size - offset)
		goto out_put;
	rc = card_dmabuf_vmap(dmabuf, map);
	if (rc)
		goto out_put;
	if (!map->is_iomem)
		return dmabuf;
	rc = -EOPNOTSUPP;
	card_dmabuf_vunmap(dmabuf, map);
out_put:
	dma_buf_put(dmabuf);
	return ERR_PTR(rc);
}

static struct ib_mr *card_mapped_mr(struct ib_pd *pd, u64 offset, u64 length, u64 addr, int fd,
				    int access)
{
	struct iosys_map map;
	struct dma_buf *dmabuf = card_dmabuf_get(fd, offset, length, &map);
	struct card_mr *mr;
	struct ib_mr *ib;

	if (IS_ERR(dmabuf))
		return ERR_CAST(dmabuf);
	ib = card_mr_create(pd, 1, GFP_KERNEL_ACCOUNT);
	if (IS_ERR(ib)) {
		card_dmabuf_put(dmabuf, &map);
		return ib;
	}
	mr = to_card_mr(ib);
	card_mr_add(mr, (uintptr_t)map.vaddr, dmabuf->size);
	mr->dmabuf = dmabuf;
	mr->map = map;
	mr->iova = addr;
	mr->length = length;
	mr->offset = offset;
	mr->access = access;
	card_mr_open(mr);
	return ib;
}

/**
 * card_dmabuf_mr - create a region of a dma-buf's memory
 * @pd: protection domain
 * @offset: offset in the dma-buf
 * @length: in bytes
 * @addr: address of the first byte in requests
 * @fd: the dma-buf
 * @access: IB_ACCESS_...
 *
 * Return: valid region with pinned memory, or an error pointer.
 */
struct ib_mr *card_dmabuf_mr(struct ib_pd *pd, u64 offset, u64 length, u64 addr, int fd, int access)
{
	struct ib_umem_dmabuf *umem;

	if (access & ~CARD_USER_ACCESS)
		return ERR_PTR(-EOPNOTSUPP);
	if (!to_card(pd->device)->function)
		return card_mapped_mr(pd, offset, length, addr, fd, access);
	umem = ib_umem_dmabuf_get_pinned(pd->device, offset, length, fd, access);
	return IS_ERR(umem) ? ERR_CAST(umem) : card_umem_mr(pd, &umem->umem, addr, access);
}

static int card_mr_add_page(struct ib_mr *ib, u64 addr)
{
	struct card_mr *mr = to_card_mr(ib);

	/* adjacent pages share a range, but the limit is a number of pages */
	if (mr->mapped == (u64)mr->max_ranges * ib->page_size)
		return -ENOMEM;
	return card_mr_add(mr, addr, ib->page_size) ? 0 : -ENOMEM;
}

/* Map elements with gaps between them */
static int card_map_gaps(struct card_mr *mr, struct scatterlist *sgl, int nents, u64 skip)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(sgl, sg, nents, i) {
		if (!card_mr_add(mr, sg_dma_address(sg) + skip, sg_dma_len(sg) - skip))
			break;
		if (!i)
			mr->ib.iova = sg_dma_address(sg) + skip;
		skip = 0;
	}
	mr->ib.length = mr->mapped;
	return i;
}

/**
 * card_map_mr_sg - set the memory of a region
 * @ib: invalid region
 * @sg: list, mapped for DMA
 * @nents: number of elements of @sg
 * @offset: bytes to skip in the first element, or NULL
 *
 * Return: number of elements mapped, or a negative errno.
 */
int card_map_mr_sg(struct ib_mr *ib, struct scatterlist *sg, int nents, unsigned int *offset)
{
	struct card_mr *mr = to_card_mr(ib);

	if (atomic_read(&mr->users))
		return -EBUSY;
	card_mr_clear(mr);
	if (ib->type == IB_MR_TYPE_SG_GAPS)
		return card_map_gaps(mr, sg, nents, offset ? *offset : 0);
	return ib_sg_to_pages(ib, sg, nents, offset, card_mr_add_page);
}
