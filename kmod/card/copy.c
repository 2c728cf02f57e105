// SPDX-License-Identifier: GPL-2.0-only
/* Copy between scatter-gather lists; each element is checked when the copy reaches it. */
#include <linux/sizes.h>

#include "queues.h"

/**
 * card_sg_init - set a position in a scatter-gather list
 * @sg: position
 * @qp: queue pair whose keys and protection domain apply
 * @sge: list
 * @num: number of elements
 * @access: IB_ACCESS_... that the regions need
 * @skip: bytes before the position
 */
void card_sg_init(struct card_sg *sg, struct card_qp *qp, const struct ib_sge *sge, u32 num,
		  int access, u32 skip)
{
	bool remote = access & (IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE);

	while (num && skip >= sge->length) {
		skip -= sge->length;
		sge++;
		num--;
	}
	*sg = (struct card_sg) {
		.qp = qp, .sge = sge, .left = num, .skip = skip, .access = access,
		.open = !remote && qp->open,
	};
}

/**
 * card_sg_flat - set a position in memory that needs no key
 * @sg: position
 * @data: memory
 * @length: in bytes
 */
void card_sg_flat(struct card_sg *sg, void *data, u32 length)
{
	*sg = (struct card_sg) { .at = data, .room = length };
}

/**
 * card_sg_end - release the region of a position
 * @sg: position
 */
void card_sg_end(struct card_sg *sg)
{
	if (sg->mr)
		card_key_leave(sg->mr);
	sg->mr = NULL;
}

/* Whether the key of an element is that of all memory, for a card where that is not 0 */
static bool card_sg_is_open(const struct card_sg *sg, const struct ib_sge *sge)
{
	const struct card_profile *profile = sg->qp->card->profile;

	return profile->lkey && profile->lkey != CARD_NO_LKEY && sge->lkey == profile->lkey &&
	       !sg->qp->ib.uobject &&
	       !(sg->access & (IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE));
}

/*
 * Begin an access to the region of an element, @skip bytes behind its start. Not
 * inline: most elements of the kernel have key 0, and need no call.
 */
static noinline bool card_sg_enter(struct card_sg *sg, const struct ib_sge *sge, u32 skip)
{
	u32 rest = sge->length - skip;

	if (card_sg_is_open(sg, sge)) {
		sg->at = (u8 *)(uintptr_t)(sge->addr + skip);
		sg->room = rest;
		return true;
	}
	sg->mr = card_key_enter(sg->qp->card, sg->qp->ib.pd, sge->lkey, sg->access, sge->addr,
				sge->length);
	if (!sg->mr)
		return false;
	sg->at = card_key_at(sg->mr, sge->addr + skip, &sg->range, &sg->room);
	sg->room = min(sg->room, rest);
	sg->rest = rest - sg->room;
	return true;
}

/*
 * Go to the next element that has bytes. Key 0 (local_dma_lkey of the model) is all memory, for
 * requests of this kernel; a peer cannot use it. Returns false if access is refused
 * or the list ends.
 */
static bool card_sg_next(struct card_sg *sg)
{
	const struct ib_sge *sge;
	u32 skip = sg->skip;

	card_sg_end(sg);
	do {
		if (!sg->left)
			return false;
		sge = sg->sge++;
		sg->left--;
	} while (!sge->length);
	sg->skip = 0;
	if (sge->lkey || !sg->open)
		return card_sg_enter(sg, sge, skip);
	sg->at = (u8 *)(uintptr_t)(sge->addr + skip);
	sg->room = sge->length - skip;
	return true;
}

/* Go to the next range or element; returns false if access is refused or the list ends */
static __always_inline bool card_sg_range(struct card_sg *sg)
{
	if (!sg->rest)
		return card_sg_next(sg);
	/* an element continues at the start of the next range of its region */
	sg->range++;
	sg->at = (u8 *)(uintptr_t)sg->range->addr;
	sg->room = min_t(u64, sg->range->length, sg->rest);
	sg->rest -= sg->room;
	return true;
}

/*
 * The same for a card that may have to translate addresses: an IOMMU maps 4 KiB or more. Returns
 * false also if nothing is mapped.
 */
static noinline bool card_sg_translate(struct card_sg *sg)
{
	if (!sg->behind) {
		if (!card_sg_range(sg))
			return false;
		if (!sg->qp->card->function)
			return true;
		sg->dma = (uintptr_t)sg->at;
		sg->behind = sg->room;
	}
	sg->at = card_dma_at(sg->qp->card, sg->dma);
	sg->faulted = !sg->at;
	sg->room = sg->at ? min_t(u32, sg->behind, SZ_4K - sg->dma % SZ_4K) : 0;
	sg->dma += sg->room;
	sg->behind -= sg->room;
	return sg->at;
}

/* Find the next memory; returns false if access is refused or the list ends */
static __always_inline bool card_sg_more(struct card_sg *sg)
{
	if (static_branch_unlikely(&card_dma_used))
		return card_sg_translate(sg);
	return card_sg_range(sg);
}

/*
 * Stands for the card's DMA engine; a function of its own, so that profiles show it.
 * memcpy() without FSRM takes three instructions for 8 bytes, "rep movsq" takes one.
 */
static noinline void card_dma(void *to, const void *from, size_t length)
{
#if defined(CONFIG_X86_64) && !defined(CONFIG_KASAN) && !defined(CONFIG_KCSAN)
	size_t words = length / 8;

	asm volatile("rep movsq" : "+D" (to), "+S" (from), "+c" (words) : : "memory");
	length %= 8;
#endif
	memcpy(to, from, length);
}

/**
 * card_copy - copy between two positions
 * @to: destination
 * @from: source
 * @length: in bytes, at most CARD_PIECE
 *
 * Softirqs are disabled.
 * Return: NULL on success, else the position that refused access.
 */
struct card_sg *card_copy(struct card_sg *to, struct card_sg *from, u32 length)
{
	while (length) {
		u32 piece;

		if (!from->room && !card_sg_more(from))
			return from;
		if (!to->room && !card_sg_more(to))
			return to;
		piece = min3(from->room, to->room, length);
		card_dma(to->at, from->at, piece);
		to->at += piece;
		to->room -= piece;
		from->at += piece;
		from->room -= piece;
		length -= piece;
	}
	return NULL;
}

/* Copy one piece. Returns CARD_ALL, or the side that refused access. */
static enum card_moved card_move_piece(struct card_qp *qp, struct card_send *send,
				       const struct card_remote *remote, bool inbound, u32 piece)
{
	struct card_sg ours, theirs, *refused;

	card_sg_init(&theirs, remote->peer, remote->sge, remote->num, remote->access, send->moved);
	if (send->flags & IB_SEND_INLINE)
		card_sg_flat(&ours, send->data + send->moved, piece);
	else
		card_sg_init(&ours, qp, send->sge, send->num_sge,
			     inbound ? IB_ACCESS_LOCAL_WRITE : 0, send->moved);
	if (inbound)
		refused = card_copy(&ours, &theirs, piece);
	else
		refused = card_copy(&theirs, &ours, piece);
	card_sg_end(&ours);
	card_sg_end(&theirs);
	if (!refused)
		return CARD_ALL;
	if (refused == &ours)
		return CARD_LOCAL_REFUSED;
	return refused->faulted ? CARD_REMOTE_FAULTED : CARD_REMOTE_REFUSED;
}

/**
 * card_move - copy the data of a request until the budget is spent
 * @qp: queue pair
 * @send: request; continues at send->moved
 * @remote: memory of the peer
 * @inbound: copy from the peer
 *
 * Return: enum card_moved.
 */
enum card_moved card_move(struct card_qp *qp, struct card_send *send,
			  const struct card_remote *remote, bool inbound)
{
	while (send->moved < send->length) {
		u32 piece = min_t(u32, send->length - send->moved, CARD_PIECE);
		enum card_moved moved;

		if (qp->budget <= 0)
			return CARD_PART;
		moved = card_move_piece(qp, send, remote, inbound, piece);
		if (moved != CARD_ALL)
			return moved;
		send->moved += piece;
		qp->budget -= piece;
	}
	card_count_add(qp->card, CARD_COUNT_BYTES, send->length);
	return CARD_ALL;
}
