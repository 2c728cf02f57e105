/* SPDX-License-Identifier: GPL-2.0-only */
/* Interface between nfsrdma_card.ko and its provider for libibverbs, version CARD_ABI. */
#ifndef NFSRDMA_CARD_ABI_H
#define NFSRDMA_CARD_ABI_H

#include <linux/types.h>
#include <rdma/ib_user_verbs.h>

#define CARD_ABI		1

/* The firmware version of a card begins with this text; the provider matches it */
#define CARD_FIRMWARE		"nfsrdma_card "

/* Bit of wc_flags: IB_WC_WITH_INVALIDATE, which has another value in libibverbs */
#define CARD_ABI_WITH_INVALIDATE	(1 << 2)

/**
 * struct card_abi_ring - completion queue, which the card and a process share
 * @head: number of completions written, free-running; the card writes it
 * @unused: keeps @head and @tail in different cache lines
 * @tail: number of completions polled, free-running; the process writes it
 * @unused_too: keeps @tail and @wc in different cache lines
 * @wc: completions; the number of elements is a power of two
 */
struct card_abi_ring {
	__u32 head;
	__u32 unused[15];
	__u32 tail;
	__u32 unused_too[15];
	struct ib_uverbs_wc wc[];
};

/**
 * struct card_abi_create_cq_resp - response to create_cq
 * @offset: offset of the ring, for mmap()
 * @entries: number of elements of the ring
 * @reserved: 0
 */
struct card_abi_create_cq_resp {
	__aligned_u64 offset;
	__u32 entries;
	__u32 reserved;
};

#endif
