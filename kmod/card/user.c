// SPDX-License-Identifier: GPL-2.0-only
/*
 * Verbs of user space: contexts, and queues in memory of a process.
 *
 * A process polls a completion queue without a system call, as with a card. The
 * ring is memory of the process, which the card pins as it does a region: it counts
 * against RLIMIT_MEMLOCK, and belongs to the control group of the process. The
 * card writes completions and @head, and reads only @tail, which can have any
 * value: a wrong one breaks the queue and the queue pairs of that process. The
 * uverbs command POLL_CQ is not available: it reads the queue pair of a
 * completion after another thread may have destroyed that queue pair.
 *
 * The rings of a queue pair are memory of the kernel, which counts in the same way.
 *
 * Send requests are in memory of the process, too, as with a card. Its doorbell is
 * the uverbs command POST_SEND without a request, so that the core holds the queue
 * pair meanwhile. The process may change a request while the card copies it:
 * post.c reads each byte once, and checks the copy.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <rdma/uverbs_ioctl.h>

#include "queues.h"

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
 * The core destroys the objects. Rings are memory of the processes, and stay: a
 * process that polls an empty one has to watch for IBV_EVENT_DEVICE_FATAL.
 */
void card_disassociate_ucontext(struct ib_ucontext *ib)
{
}

/* --- memory of a process --- */

/* Map pinned memory, which starts at a page, into the kernel; NULL without memory */
static void *card_umem_map(struct ib_umem *umem)
{
	size_t num = ib_umem_num_pages(umem), i = 0;
	struct sg_page_iter iter;
	struct page **pages;
	void *memory;

	pages = kvmalloc_array(num, sizeof(*pages), GFP_KERNEL_ACCOUNT);
	if (!pages)
		return NULL;
	for_each_sgtable_page(&umem->sgt_append.sgt, &iter, 0)
		pages[i++] = sg_page_iter_page(&iter);
	memory = vmap(pages, num, VM_MAP, PAGE_KERNEL);
	kvfree(pages);
	return memory;
}

/**
 * card_memory_map - pin memory of the current process, and map it
 * @ib: device
 * @udata: request with one member, the address of a page in the process
 * @bytes: length
 * @umem: output: the pinned memory
 *
 * Return: kernel pointer, or an error pointer.
 */
static void *card_memory_map(struct ib_device *ib, struct ib_udata *udata, size_t bytes,
			     struct ib_umem **umem)
{
	void *memory;
	u64 address;
	int rc;

	if (udata->inlen != sizeof(address) || udata->outlen)
		return ERR_PTR(-EINVAL);
	rc = ib_copy_from_udata(&address, udata, sizeof(address));
	if (rc)
		return ERR_PTR(rc);
	if (!PAGE_ALIGNED(address))
		return ERR_PTR(-EINVAL);
	*umem = card_umem_get(ib, address, bytes, IB_ACCESS_LOCAL_WRITE);
	if (IS_ERR(*umem))
		return ERR_CAST(*umem);
	memory = card_umem_map(*umem);
	if (memory)
		return memory;
	ib_umem_release(*umem);
	return ERR_PTR(-ENOMEM);
}

/**
 * card_memory_unmap - unmap and unpin memory of a process
 * @memory: pointer from card_memory_map()
 * @umem: the pinned memory
 */
static void card_memory_unmap(void *memory, struct ib_umem *umem)
{
	vunmap(memory);
	ib_umem_release(umem);
}

/* --- completion queues --- */

/**
 * card_shared_create - pin and map the ring of a process's completion queue
 * @cq: queue with its size
 * @udata: struct card_abi_create_cq
 *
 * Return: 0 or a negative errno.
 */
int card_shared_create(struct card_cq *cq, struct ib_udata *udata)
{
	size_t bytes = struct_size(cq->shared, wc, cq->size);
	void *memory;

	static_assert(sizeof(struct card_abi_create_cq) == sizeof(u64));
	memory = card_memory_map(cq->ib.device, udata, bytes, &cq->umem);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	cq->shared = memory;
	return 0;
}

/**
 * card_shared_destroy - unmap and unpin the ring of a process's completion queue
 * @cq: queue into which nothing writes
 */
void card_shared_destroy(struct card_cq *cq)
{
	card_memory_unmap(cq->shared, cq->umem);
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
	/* pairs with the provider's load: the completion is there */
	smp_store_release(&cq->shared->head, cq->head + 1);
}

/* --- rings of a queue pair --- */

static u32 card_rings_pages(const struct card_qp *qp)
{
	return PFN_UP((size_t)qp->sq.size * qp->sq.stride + (size_t)qp->rq.size * qp->rq.stride);
}

/**
 * card_rings_charge - charge the rings of a queue pair to the current process
 * @qp: queue pair with its rings
 *
 * The rings are memory of the kernel, which the process cannot give back to it. They count
 * against RLIMIT_MEMLOCK, together with the memory that ib_umem_get() pins.
 *
 * Return: 0 or -ENOMEM.
 */
int card_rings_charge(struct card_qp *qp)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	u32 pages = card_rings_pages(qp);
	struct mm_struct *mm = current->mm;

	if (atomic64_add_return(pages, &mm->pinned_vm) > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &mm->pinned_vm);
		return -ENOMEM;
	}
	mmgrab(mm);
	qp->owner = mm;
	qp->charged = pages;
	return 0;
}

/**
 * card_rings_uncharge - undo card_rings_charge()
 * @qp: queue pair
 */
void card_rings_uncharge(struct card_qp *qp)
{
	if (!qp->owner)
		return;
	atomic64_sub(qp->charged, &qp->owner->pinned_vm);
	mmdrop(qp->owner);
	qp->owner = NULL;
}

/* --- send requests --- */

/**
 * card_sends_create - pin and map the send requests of a process's queue pair
 * @qp: queue pair with its rings
 * @udata: struct card_abi_create_qp
 *
 * Return: 0 or a negative errno.
 */
int card_sends_create(struct card_qp *qp, struct ib_udata *udata)
{
	size_t bytes = sizeof(*qp->sends);
	void *memory;

	static_assert(sizeof(struct card_abi_create_qp) == sizeof(u64));
	qp->slot_bytes = card_abi_slot_bytes(qp->cap.max_send_sge, qp->cap.max_inline_data);
	bytes += (size_t)qp->sq.size * qp->slot_bytes;
	memory = card_memory_map(qp->ib.device, udata, bytes, &qp->umem);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	qp->sends = memory;
	return 0;
}

/**
 * card_sends_destroy - unmap and unpin the send requests of a process's queue pair
 * @qp: queue pair that nothing posts to
 */
void card_sends_destroy(struct card_qp *qp)
{
	card_memory_unmap(qp->sends, qp->umem);
}
