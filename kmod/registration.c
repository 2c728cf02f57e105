// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory regions and the stretches of memory they map.
 *
 * Normal operation: nfr_reg_map() takes as few regions as a span needs and
 * maps them for DMA; nfr_queue_send() registers them with the message that
 * names them; when the reply has come, what the peer did not invalidate is
 * invalidated by nfr_queue_invalidate(); nfr_reg_release() unmaps and returns
 * the regions to the pool.
 *
 * Recovery: a region whose invalidation failed belongs to a connection that is
 * broken. It stays with its request until the queue pair is drained, and then
 * nfr_reg_destroy() destroys it. Only then does its memory go back.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "connection.h"
#include "registration.h"
#include "trace.h"

/* --- one region --- */

/* A region has no gaps: only its first page may start late, only its last end early. */
static bool nfr_piece_joins(const struct scatterlist *last, const struct nfr_piece *piece)
{
	return !piece->offset && !offset_in_page(last->offset + last->length);
}

static bool nfr_piece_is_next(const struct scatterlist *last, const struct nfr_piece *piece)
{
	unsigned long after = page_to_pfn(sg_page((struct scatterlist *)last)) +
			      ((last->offset + last->length) >> PAGE_SHIFT);

	return page_to_pfn(piece->page) == after;
}

/* Fills the region's list with as much of @span as it takes; returns bytes. */
static u32 nfr_mr_fill(struct nfr_mr *mr, struct nfr_span *span, const struct nfr_pool *pool)
{
	struct scatterlist *last = NULL;
	struct nfr_piece piece;
	u32 pages, bytes = 0;

	mr->entries = 0;
	for (pages = 0; pages < pool->depth && nfr_span_peek(span, &piece); pages++) {
		if (last && !nfr_piece_joins(last, &piece))
			break;
		if (last && nfr_piece_is_next(last, &piece) &&
		    last->length + piece.length <= pool->max_entry) {
			last->length += piece.length;
		} else {
			last = &mr->sgl[mr->entries++];
			sg_set_page(last, piece.page, piece.length, piece.offset);
		}
		bytes += piece.length;
		nfr_span_skip(span, piece.length);
	}
	return bytes;
}

static void nfr_mr_unmap(struct nfr_mr *mr)
{
	trace_nfsrdma_mr_unmap(mr->conn, mr);
	ib_dma_unmap_sg(mr->conn->device, mr->sgl, mr->entries, mr->direction);
}

/* Maps a filled region under a new key. Returns 0, or -ENOBUFS: mapping may work later. */
static int nfr_mr_map(struct nfr_mr *mr, enum dma_data_direction direction)
{
	int mapped;

	mr->direction = direction;
	mapped = ib_dma_map_sg(mr->conn->device, mr->sgl, mr->entries, direction);
	if (!mapped)
		return -ENOBUFS;
	if (ib_map_mr_sg(mr->mr, mr->sgl, mapped, NULL, PAGE_SIZE) != mapped) {
		nfr_mr_unmap(mr);
		return -ENOBUFS;
	}
	ib_update_fast_reg_key(mr->mr, (mr->mr->rkey & 0xff) + 1);
	mr->reg.key = mr->mr->rkey;
	mr->reg.access = direction == DMA_TO_DEVICE ? IB_ACCESS_REMOTE_READ :
			 IB_ACCESS_REMOTE_WRITE | IB_ACCESS_LOCAL_WRITE;
	return 0;
}

/**
 * nfr_reg_invalidation - the work request that invalidates a region
 * @mr: valid
 */
struct ib_send_wr *nfr_reg_invalidation(struct nfr_mr *mr)
{
	mr->inv = (struct ib_send_wr) {
		.wr_cqe = &mr->cqe,
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = mr->mr->rkey,
	};
	return &mr->inv;
}

/* Destroys a region that is in use: all but the structure. */
static void nfr_mr_retire(struct nfr_mr *mr)
{
	ib_dereg_mr(mr->mr);
	ib_dma_unmap_sg(mr->conn->device, mr->sgl, mr->entries, mr->direction);
	kfree(mr->sgl);
}

/* --- what requests do --- */

/**
 * nfr_reg_map - map a span with as few regions as possible
 * @conn: the connection
 * @span: consumed
 * @direction: DMA_TO_DEVICE when the peer reads, DMA_FROM_DEVICE when it writes
 * @mrs: the regions are added at its end, also when an error is returned
 * @segs: one for each region
 * @room: for so many
 *
 * Returns the number of regions; -ENOMEM when the pool has too few:
 * nfr_conn_refill() is due; -ENOBUFS when mapping failed; -EMSGSIZE when @room
 * is too small.
 */
int nfr_reg_map(struct nfr_conn *conn, struct nfr_span *span, enum dma_data_direction direction,
		struct list_head *mrs, struct nfr_segment *segs, u32 room)
{
	struct nfr_mr *mr;
	u32 bytes, n = 0;
	int rc;

	while (nfr_span_length(span)) {
		if (n == room)
			return -EMSGSIZE;
		mr = nfr_pool_take(conn);
		if (!mr)
			return -ENOMEM;
		bytes = nfr_mr_fill(mr, span, &conn->pool);
		rc = nfr_mr_map(mr, direction);
		if (rc) {
			INIT_LIST_HEAD(&mr->list);
			nfr_pool_give(conn, mr);
			return rc;
		}
		list_add_tail(&mr->list, mrs);
		segs[n++] = (struct nfr_segment) {
			.handle = mr->mr->rkey, .length = bytes, .offset = mr->mr->iova,
		};
		trace_nfsrdma_mr_map(conn, mr);
	}
	return n;
}

/**
 * nfr_reg_invalidated - the peer has invalidated a region
 * @conn: the connection
 * @mrs: the regions of the request it answers
 * @handle: the key it named
 *
 * Returns false when none of @mrs is it.
 */
bool nfr_reg_invalidated(struct nfr_conn *conn, struct list_head *mrs, u32 handle)
{
	struct nfr_mr *mr;

	list_for_each_entry(mr, mrs, list) {
		if (mr->mr->rkey != handle || !mr->valid)
			continue;
		mr->valid = false;
		trace_nfsrdma_mr_remoteinv(conn, mr);
		nfr_queue_unreserve(conn, 1);
		return true;
	}
	return false;
}

/**
 * nfr_reg_offered - whether what a peer says it wrote fits what it was offered
 * @mrs: regions of the request, those it may write in the order of their segments
 * @chunk: as the peer returned it
 *
 * Segments are filled in order: after one that is not full come empty ones.
 */
bool nfr_reg_offered(const struct list_head *mrs, const struct nfr_chunk *chunk)
{
	const struct nfr_mr *mr;
	bool full = true;
	u32 i = 0;

	list_for_each_entry(mr, mrs, list) {
		u32 written = i < chunk->nsegs ? chunk->segs[i].length : 0;

		if (mr->direction != DMA_FROM_DEVICE)
			continue;
		if (written > mr->mr->length || (written && !full))
			return false;
		full = written == mr->mr->length;
		i++;
	}
	return chunk->nsegs <= i;
}

/**
 * nfr_reg_any_valid - whether the peer may still use one of these
 * @mrs: regions of a request
 */
bool nfr_reg_any_valid(const struct list_head *mrs)
{
	const struct nfr_mr *mr;

	list_for_each_entry(mr, mrs, list)
		if (mr->valid)
			return true;
	return false;
}

/**
 * nfr_reg_count - how many regions there are
 * @mrs: regions of a request
 */
u32 nfr_reg_count(const struct list_head *mrs)
{
	return list_count_nodes((struct list_head *)mrs);
}

/**
 * nfr_reg_release - return regions that the peer cannot use
 * @conn: the connection
 * @mrs: invalidated, or never registered; empty afterwards
 */
void nfr_reg_release(struct nfr_conn *conn, struct list_head *mrs)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, mrs, list) {
		mr->valid = false;
		nfr_mr_unmap(mr);
		nfr_pool_give(conn, mr);
	}
}

/**
 * nfr_reg_destroy - destroy the regions of requests that lost their connection
 * @conn: drained
 * @mrs: in any state; empty afterwards
 *
 * Waits for the device.
 */
void nfr_reg_destroy(struct nfr_conn *conn, struct list_head *mrs)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, mrs, list) {
		conn->pool.orphaned++;
		/* the peer loses it first; then it is unmapped */
		nfr_mr_retire(mr);
		list_del(&mr->list);
		kfree(mr);
	}
}
