// SPDX-License-Identifier: GPL-2.0-only
/* Copy between scatter-gather lists; each element is checked when the copy reaches it. */
#include "qp.h"

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
	while (num && skip >= sge->length) {
		skip -= sge->length;
		sge++;
		num--;
	}
	*sg = (struct card_sg) {
		.qp = qp, .sge = sge, .left = num, .skip = skip, .access = access,
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

static bool card_sg_is_remote(const struct card_sg *sg)
{
	return sg->access & (IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE);
}

/* Key 0 (local_dma_lkey) is all memory, for requests of this kernel; a peer cannot use it */
static bool card_sg_is_open(const struct card_sg *sg)
{
	return !sg->sge->lkey && !card_sg_is_remote(sg) && !sg->qp->ib.uobject;
}

/* Go to the next element that has bytes; returns false if access is refused or the list ends */
static bool card_sg_next(struct card_sg *sg)
{
	const struct ib_sge *sge;

	card_sg_end(sg);
	while (sg->left && sg->skip == sg->sge->length) {
		sg->sge++;
		sg->left--;
		sg->skip = 0;
	}
	if (!sg->left)
		return false;
	sge = sg->sge;
	if (!card_sg_is_open(sg)) {
		sg->mr = card_key_enter(sg->qp->card, sg->qp->ib.pd, sge->lkey, sg->access,
					sge->addr, sge->length);
		if (!sg->mr)
			return false;
	}
	sg->addr = sge->addr + sg->skip;
	sg->rest = sge->length - sg->skip;
	sg->skip = sge->length;
	return true;
}

/* Find the next memory; returns false if access is refused or the list ends */
static bool card_sg_more(struct card_sg *sg)
{
	u64 room;

	if (!sg->rest && !card_sg_next(sg))
		return false;
	room = sg->rest;
	sg->at = (u8 *)(uintptr_t)sg->addr;
	if (sg->mr) {
		sg->at = card_key_at(sg->mr, sg->addr, &sg->range, &room);
		room = min_t(u64, room, sg->rest);
	}
	sg->room = room;
	sg->addr += room;
	sg->rest -= room;
	return true;
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
	return refused == &ours ? CARD_LOCAL_REFUSED : CARD_REMOTE_REFUSED;
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
