/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory made reachable for the peer, and taken back.
 *
 * A memory region (MR) is registered by a work request (FRWR) that goes out
 * together with the message that names it. It is given back only when the
 * peer can no longer use it: because the peer invalidated it, because our own
 * invalidation completed, or because the queue pair is drained and the MR is
 * destroyed. Each use has a new key.
 */
#ifndef NFSRDMA_REGISTRATION_H
#define NFSRDMA_REGISTRATION_H

#include <linux/list.h>
#include <linux/scatterlist.h>
#include <linux/uio.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "wire.h"

struct nfr_conn;

/* The fewest pages of an MR that this module works with */
#define NFR_MIN_DEPTH	16

/*
 * A stretch of memory as an xdr_buf has it: a buffer, pages, a buffer.
 * Lengths are bytes. Functions that take one consume it.
 */
struct nfr_span {
	struct kvec head;
	struct page **pages;
	u32 page_base;
	u32 page_len;
	struct kvec tail;
};

/* A part of a span within one page; @offset and @length are bytes */
struct nfr_piece {
	struct page *page;
	u32 offset;
	u32 length;
};

/**
 * struct nfr_mr - one memory region
 * @list: the pool's, or the request's that uses it
 * @valid: the peer may use it, as far as this side knows
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
 * struct nfr_pool - the MRs of a connection
 * @depth: pages in one MR
 * @max_entry: bytes in one scatter-gather element
 * @total: MRs made; @recycled: of these, failed; @orphaned: in use when the connection broke
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

/* span.c */
bool nfr_span_peek(const struct nfr_span *span, struct nfr_piece *piece);
void nfr_span_skip(struct nfr_span *span, u32 length);
u32 nfr_span_length(const struct nfr_span *span);
u32 nfr_span_segments(const struct nfr_span *span, u32 depth);

/* registration_pool.c */
void nfr_pool_init(struct nfr_conn *conn);
u32 nfr_pool_chain(const struct nfr_conn *conn);
int nfr_pool_fill(struct nfr_conn *conn, u32 count);
struct nfr_mr *nfr_pool_take(struct nfr_conn *conn);
void nfr_pool_give(struct nfr_conn *conn, struct nfr_mr *mr);
void nfr_pool_destroy(struct nfr_conn *conn);

/* registration.c */
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
