// SPDX-License-Identifier: GPL-2.0-only
/*
 * Verbs of user space: contexts, and completion queues in shared memory.
 *
 * A process polls a completion queue without a system call, as with a card. The
 * card writes completions and @head, and reads only @tail, which can have any
 * value: a wrong one breaks the queue and the queue pairs of that process. The
 * uverbs command POLL_CQ is not available: it reads the queue pair of a
 * completion after another thread may have destroyed that queue pair.
 */
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <rdma/uverbs_ioctl.h>

#include "qp.h"

/**
 * struct card_map - memory that a process can map
 * @entry: entry of the RDMA core; the last reference frees the map
 * @memory: from vmalloc_user()
 */
struct card_map {
	struct rdma_user_mmap_entry entry;
	void *memory;
};

/* --- contexts --- */

/**
 * card_alloc_ucontext - open a card for a process
 * @ib: context
 * @udata: no members
 *
 * Return: 0.
 */
int card_alloc_ucontext(struct ib_ucontext *ib, struct ib_udata *udata)
{
	return 0;
}

/**
 * card_dealloc_ucontext - close a card for a process
 * @ib: context without objects
 */
void card_dealloc_ucontext(struct ib_ucontext *ib)
{
}

/**
 * card_disassociate_ucontext - permit removal of a card that processes have open
 * @ib: context
 *
 * The core destroys the objects. Mapped rings are plain memory, and their pages
 * stay until the process unmaps them.
 */
void card_disassociate_ucontext(struct ib_ucontext *ib)
{
}

/**
 * card_mmap - map a completion queue into a process
 * @ib: context
 * @vma: area with the offset from struct card_abi_create_cq_resp
 *
 * Return: 0 or a negative errno.
 */
int card_mmap(struct ib_ucontext *ib, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *entry = rdma_user_mmap_entry_get(ib, vma);
	int rc;

	if (!entry)
		return -EINVAL;
	rc = remap_vmalloc_range(vma, container_of(entry, struct card_map, entry)->memory, 0);
	rdma_user_mmap_entry_put(entry);
	return rc;
}

/**
 * card_mmap_free - free memory that no process can map any more
 * @entry: entry of a struct card_map
 */
void card_mmap_free(struct rdma_user_mmap_entry *entry)
{
	struct card_map *map = container_of(entry, struct card_map, entry);

	vfree(map->memory);
	kfree(map);
}

static struct card_map *card_map_create(struct ib_ucontext *context, size_t size)
{
	struct card_map *map = kzalloc(sizeof(*map), GFP_KERNEL_ACCOUNT);
	int rc = -ENOMEM;

	if (!map)
		return ERR_PTR(-ENOMEM);
	map->memory = vmalloc_user(size);
	if (map->memory)
		rc = rdma_user_mmap_entry_insert(context, &map->entry, size);
	if (!rc)
		return map;
	vfree(map->memory);
	kfree(map);
	return ERR_PTR(rc);
}

/* --- completion queues --- */

/**
 * card_shared_create - create the ring of a process's completion queue
 * @cq: queue with its size
 * @udata: gets struct card_abi_create_cq_resp
 *
 * Return: 0 or a negative errno.
 */
int card_shared_create(struct card_cq *cq, struct ib_udata *udata)
{
	struct card_ucontext *context =
		rdma_udata_to_drv_context(udata, struct card_ucontext, ib);
	struct card_abi_create_cq_resp resp = { .entries = cq->size };
	struct card_map *map;
	int rc;

	if (udata->inlen || udata->outlen != sizeof(resp))
		return -EINVAL;
	map = card_map_create(&context->ib,
			      PAGE_ALIGN(struct_size(cq->shared, wc, cq->size)));
	if (IS_ERR(map))
		return PTR_ERR(map);
	resp.offset = rdma_user_mmap_get_offset(&map->entry);
	rc = ib_copy_to_udata(udata, &resp, sizeof(resp));
	if (rc) {
		rdma_user_mmap_entry_remove(&map->entry);
		return rc;
	}
	cq->map = map;
	cq->shared = map->memory;
	return 0;
}

/**
 * card_shared_destroy - destroy the ring of a process's completion queue
 * @cq: queue; the process may still have the ring mapped
 */
void card_shared_destroy(struct card_cq *cq)
{
	rdma_user_mmap_entry_remove(&cq->map->entry);
}

/**
 * card_shared_write - write a completion for a process
 * @cq: queue with room; its lock is held
 * @wc: completion
 */
void card_shared_write(struct card_cq *cq, const struct ib_wc *wc)
{
	struct ib_uverbs_wc *to = &cq->shared->wc[cq->head & (cq->size - 1)];

	static_assert(IB_WC_WITH_INVALIDATE == CARD_ABI_WITH_INVALIDATE);
	*to = (struct ib_uverbs_wc) {
		.wr_id = wc->wr_id, .status = wc->status, .opcode = wc->opcode,
		.byte_len = wc->byte_len, .qp_num = wc->qp->qp_num, .src_qp = wc->src_qp,
		.wc_flags = wc->wc_flags, .port_num = wc->port_num,
	};
	if (wc->wc_flags & IB_WC_WITH_INVALIDATE)
		to->ex.invalidate_rkey = wc->ex.invalidate_rkey;
	else
		to->ex.imm_data = wc->ex.imm_data;
	smp_store_release(&cq->shared->head, cq->head + 1);
}
