/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Registration of memory that the peer may access.
 *
 * A fast registration work request (FRWR) registers a memory region (MR); it is
 * posted together with the message that names the MR. The memory returns to its
 * owner only when the peer cannot access it any more: when the peer invalidated
 * the MR, when our LOCAL_INV completed, or when the queue pair is drained and
 * the MR destroyed. Each use of an MR has a new key.
 */
#ifndef NFSRDMA_REGISTRATION_H
#define NFSRDMA_REGISTRATION_H

#include <linux/list.h>
#include <linux/scatterlist.h>
#include <linux/uio.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "wire/wire.h"

struct nfr_conn;

/* Minimum number of pages per MR */
#define NFR_MIN_DEPTH	16

/*
 * Memory described by an xdr_buf: head, pages, tail. Lengths are in bytes.
 * Functions that walk a span consume it.
 */
struct nfr_span {
	struct kvec head;
	struct page **pages;
	u32 page_base;
	u32 page_len;
	struct kvec tail;
};

/* Part of a span within one page; @offset and @length are in bytes */
struct nfr_piece {
	struct page *page;
	u32 offset;
	u32 length;
};

/**
 * struct nfr_mr - memory region
 * @list: link in the pool or in the list of its request
 * @conn: connection
 * @mr: the verbs object
 * @sgl: scatterlist of nfr_pool.depth entries
 * @entries: number of scatterlist entries in use
 * @direction: DMA_TO_DEVICE if the peer reads, DMA_FROM_DEVICE if it writes
 * @reg: registration work request
 * @inv: invalidation work request
 * @cqe: completion of both
 * @valid: whether the peer may access it, as far as this side knows
 */
struct nfr_mr {
	struct list_head list;
	struct nfr_conn *conn;
	struct ib_mr *mr;
	struct scatterlist *sgl;
	u32 entries;
	enum dma_data_direction direction;
	struct ib_reg_wr reg;
	struct ib_send_wr inv;
	struct ib_cqe cqe;
	bool valid;
};

/**
 * struct nfr_pool - MRs of a connection
 * @lock: protects @free and @total
 * @free: unused MRs
 * @refill: work that allocates more
 * @depth: pages per MR
 * @max_entry: bytes per scatterlist entry
 * @total: number of MRs allocated
 * @recycled: number of MRs whose work requests failed
 * @orphaned: number of MRs that were in use when the connection broke
 */
struct nfr_pool {
	spinlock_t lock;
	struct list_head free;
	struct delayed_work refill;
	u32 depth;
	u32 max_entry;
	u32 total;
	u64 recycled;
	u64 orphaned;
};

/* memory/span.c */
bool nfr_span_peek(const struct nfr_span *span, struct nfr_piece *piece);
void nfr_span_skip(struct nfr_span *span, u32 length);
u32 nfr_span_length(const struct nfr_span *span);
u32 nfr_span_segments(const struct nfr_span *span, u32 depth);

/* memory/pool.c */
void nfr_pool_init(struct nfr_conn *conn);
u32 nfr_pool_chain(const struct nfr_conn *conn);
int nfr_pool_fill(struct nfr_conn *conn, u32 count);
struct nfr_mr *nfr_pool_take(struct nfr_conn *conn);
void nfr_pool_give(struct nfr_conn *conn, struct nfr_mr *mr);
void nfr_pool_destroy(struct nfr_conn *conn);

/* memory/region.c */
int nfr_reg_map(struct nfr_conn *conn, struct nfr_span *span, enum dma_data_direction direction,
		struct list_head *mrs, struct nfr_segment *segs, u32 room);
struct ib_send_wr *nfr_reg_invalidation(struct nfr_mr *mr);
bool nfr_reg_invalidated(struct nfr_conn *conn, struct list_head *mrs, u32 handle);
bool nfr_reg_offered(const struct list_head *mrs, const struct nfr_chunk *chunk);
bool nfr_reg_any_valid(const struct list_head *mrs);
u32 nfr_reg_count(const struct list_head *mrs);
void nfr_reg_release(struct nfr_conn *conn, struct list_head *mrs);
void nfr_reg_destroy(struct nfr_conn *conn, struct list_head *mrs);

#endif
