/* SPDX-License-Identifier: GPL-2.0-only */
/* Interface between nfsrdma_card.ko and its provider for libibverbs, version CARD_ABI. */
#ifndef NFSRDMA_CARD_ABI_H
#define NFSRDMA_CARD_ABI_H

#include <linux/types.h>
#include <rdma/ib_user_verbs.h>

#define CARD_ABI		2

/* The firmware version of a card begins with this text; the provider matches it */
#define CARD_FIRMWARE		"nfsrdma_card "

/* Bit of wc_flags: IB_WC_WITH_INVALIDATE, which has another value in libibverbs */
#define CARD_ABI_WITH_INVALIDATE	(1 << 2)

/**
 * struct card_abi_ring - completion queue, memory of a process that the card writes
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
 * struct card_abi_create_cq - request of create_cq
 * @ring: address of a struct card_abi_ring, at the start of a page
 *
 * The ring has the requested number of elements, rounded up to a power of two.
 */
struct card_abi_create_cq {
	__aligned_u64 ring;
};

#endif
