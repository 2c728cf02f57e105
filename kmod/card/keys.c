// SPDX-License-Identifier: GPL-2.0-only
/* Keys: begin and end of an access to a region; requests that register or invalidate it. */
#include "queues.h"

/* --- access --- */

/* Look up a region, inside an RCU read section */
static struct card_mr *card_mr_at(const struct card *card, u32 index)
{
	return index <= CARD_MAX_MR ? rcu_dereference(card->regions[index]) : NULL;
}

static struct card_mr *card_mr_get(const struct card *card, u32 index)
{
	struct card_mr *mr;

	rcu_read_lock();
	mr = card_mr_at(card, index);
	if (mr && !atomic_inc_not_zero(&mr->users))
		mr = NULL;
	rcu_read_unlock();
	return mr;
}

/**
 * card_key_leave - end an access
 * @mr: region from card_key_enter()
 */
void card_key_leave(struct card_mr *mr)
{
	atomic_dec_return_release(&mr->users);
}

/**
 * card_key_enter - begin an access
 * @card: card that has the region
 * @pd: protection domain of the queue pair
 * @key: lkey or rkey
 * @access: IB_ACCESS_... that the access needs; 0 for local reads
 * @addr: start of the access
 * @length: in bytes
 *
 * Softirqs are disabled until card_key_leave().
 * Return: the region, or NULL if access is refused.
 */
struct card_mr *card_key_enter(struct card *card, struct ib_pd *pd, u32 key, int access, u64 addr,
			       u64 length)
{
	struct card_mr *mr = card_mr_get(card, key >> 8);

	if (!mr)
		return NULL;
	if (mr->key == key && mr->ib.pd == pd && (mr->access & access) == access &&
	    addr >= mr->iova && length <= mr->length && addr - mr->iova <= mr->length - length)
		return mr;
	card_key_leave(mr);
	return NULL;
}

static const struct card_range *card_range_find(const struct card_mr *mr, u64 at)
{
	u32 low = 0, high = mr->num_ranges;

	while (high - low > 1) {
		u32 middle = low + (high - low) / 2;

		if (mr->ranges[middle].start <= at)
			low = middle;
		else
			high = middle;
	}
	return &mr->ranges[low];
}

/**
 * card_key_at - convert an address of a region
 * @mr: region from card_key_enter()
 * @addr: address within the bounds of the region
 * @range: output: range that has the address; NULL for a region of all memory
 * @room: output: contiguous bytes at the address, U32_MAX at most
 *
 * Return: kernel pointer, or DMA address if the card has a function.
 */
u8 *card_key_at(const struct card_mr *mr, u64 addr, const struct card_range **range, u32 *room)
{
	u64 at = mr->offset + (addr - mr->iova);

	*range = NULL;
	*room = U32_MAX;
	if (!mr->max_ranges)
		return (u8 *)(uintptr_t)addr;
	*range = card_range_find(mr, at);
	at -= (*range)->start;
	*room = min_t(u64, (*range)->length - at, U32_MAX);
	return (u8 *)(uintptr_t)((*range)->addr + at);
}

/* --- work requests --- */

/*
 * Take over the bounds: consumers change iova after mapping. Returns false for a
 * region without memory, or if an access has not ended yet.
 */
static bool card_mr_place(struct card_mr *mr)
{
	if (atomic_read_acquire(&mr->users))
		return false;
	mr->iova = mr->ib.iova;
	mr->length = mr->ib.length;
	mr->offset = mr->ib.type == IB_MR_TYPE_SG_GAPS ? 0 : mr->iova & (mr->ib.page_size - 1);
	return mr->num_ranges && mr->length <= mr->mapped && mr->offset <= mr->mapped - mr->length;
}

static bool card_mr_register(struct card_mr *mr, u32 key, int access)
{
	if (atomic_cmpxchg(&mr->state, CARD_MR_INVALID, CARD_MR_CHANGES) != CARD_MR_INVALID)
		return false;
	if (!card_mr_place(mr)) {
		atomic_set(&mr->state, CARD_MR_INVALID);
		return false;
	}
	mr->key = key;
	mr->access = access;
	card_mr_open(mr);
	return true;
}

/* Look up a region for fast registration, in any state, inside an RCU read section */
static struct card_mr *card_mr_find(struct card_qp *qp, u32 index)
{
	struct card_mr *mr = card_mr_at(qp->card, index);

	return mr && card_mr_is_fast(mr) && mr->ib.pd == qp->ib.pd ? mr : NULL;
}

/**
 * card_key_register - execute IB_WR_REG_MR
 * @qp: queue pair
 * @index: index of the region
 * @key: new key
 * @access: IB_ACCESS_...
 *
 * Return: false if the region belongs to another protection domain, is valid, or
 * has no memory.
 */
bool card_key_register(struct card_qp *qp, u32 index, u32 key, int access)
{
	struct card_mr *mr;
	bool done = false;

	rcu_read_lock();
	mr = card_mr_find(qp, index);
	if (mr && key >> 8 == index)
		done = card_mr_register(mr, key, access);
	rcu_read_unlock();
	card_count(qp->card, CARD_COUNT_REGISTRATIONS);
	return done;
}

/**
 * card_key_invalidate - execute IB_WR_LOCAL_INV, or a peer's IB_WR_SEND_WITH_INV
 * @qp: queue pair that has the region
 * @key: key of the region
 * @must_be_valid: refuse an invalid region
 *
 * When this function returns true, no access is in progress, unless keep_keys injects a
 * fault: then the region stays valid.
 * Return: false if this queue pair has no such key to invalidate.
 */
bool card_key_invalidate(struct card_qp *qp, u32 key, bool must_be_valid)
{
	struct card_mr *mr;
	bool done = false;

	rcu_read_lock();
	mr = card_mr_find(qp, key >> 8);
	if (mr && mr->key == key)
		done = atomic_dec_if_positive(&qp->card->keep_keys) >= 0 || card_mr_close(mr) ||
		       !must_be_valid;
	rcu_read_unlock();
	card_count(qp->card, CARD_COUNT_INVALIDATIONS);
	return done;
}
