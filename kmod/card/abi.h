/* SPDX-License-Identifier: GPL-2.0-only */
/* Interface between nfsrdma_card.ko and its provider for libibverbs, version CARD_ABI. */
#ifndef NFSRDMA_CARD_ABI_H
#define NFSRDMA_CARD_ABI_H

#include <linux/types.h>
#include <rdma/ib_user_verbs.h>

#define CARD_ABI		3

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

/**
 * struct card_abi_send - send request in memory of a process
 * @wr_id: id that the consumer gave
 * @remote_addr: address of a Read or Write
 * @rkey: key of a Read or Write
 * @opcode: IB_WR_...: Send, Write or Read
 * @flags: IB_SEND_...
 * @imm: immediate data, or the key to invalidate
 * @num_sge: number of elements in @data; not used with IB_SEND_INLINE
 * @length: length of @data with IB_SEND_INLINE, in bytes
 * @data: inline data, or a list of struct ib_uverbs_sge
 */
struct card_abi_send {
	__aligned_u64 wr_id;
	__aligned_u64 remote_addr;
	__u32 rkey;
	__u32 opcode;
	__u32 flags;
	__u32 imm;
	__u32 num_sge;
	__u32 length;
	__aligned_u64 data[];
};

/**
 * struct card_abi_sends - requests for a doorbell, memory of a process that the card reads
 * @count: number of requests to post; the process writes it
 * @taken: number of requests that the last doorbell has posted; the card writes it
 * @unused: keeps the requests in other cache lines
 * @slots: requests; card_abi_slot_bytes() is the distance between them
 *
 * The doorbell is the uverbs command POST_SEND without a request.
 */
struct card_abi_sends {
	__u32 count;
	__u32 taken;
	__u32 unused[14];
	__u8 slots[];
};

/**
 * struct card_abi_create_qp - request of create_qp
 * @sends: address of a struct card_abi_sends, at the start of a page
 *
 * There is room for the requested number of send requests, rounded up to a power of two.
 */
struct card_abi_create_qp {
	__aligned_u64 sends;
};

/* Distance between send requests, by the capacities of their queue pair */
static inline __u32 card_abi_slot_bytes(__u32 max_sge, __u32 max_inline)
{
	__u32 sges = max_sge * sizeof(struct ib_uverbs_sge), data = (max_inline + 7) & ~7U;

	return sizeof(struct card_abi_send) + (sges > data ? sges : data);
}

#endif
