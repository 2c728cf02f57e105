/* SPDX-License-Identifier: GPL-2.0-only */
/* RDMA Reads and Writes between pages and segments of the peer. */
#ifndef NFSRDMA_MEMORY_TRANSFER_H
#define NFSRDMA_MEMORY_TRANSFER_H

#include <rdma/rw.h>

#include "memory/region.h"
#include "wire/wire.h"

/* RDMA Read or Write between local pages and one segment of the peer, see region.c */
struct nfr_rw {
	struct list_head list;
	struct rdma_rw_ctx ctx;
	enum dma_data_direction direction;
	u32 length;		/* in bytes */
	u32 entries;
	bool holds;		/* references to its pages */
	struct scatterlist sg[];
};

/**
 * struct nfr_transfer - RDMA Reads or Writes of one RPC
 * @rws: operations
 * @id: rdma_cm id of the connection
 * @gfp: allocation flags for the context that prepares the operations
 */
struct nfr_transfer {
	struct list_head rws;
	struct rdma_cm_id *id;
	gfp_t gfp;
};

/* Position in a chunk of the peer */
struct nfr_cursor {
	const struct nfr_chunk *chunk;
	u32 seg;
	u32 offset;
};

u32 nfr_mem_transfer_read_max(const struct ib_device *device, u32 offset);
int nfr_mem_transfer_add(struct nfr_transfer *transfer, struct nfr_cursor *cursor,
			 struct nfr_span *span, u32 length, enum dma_data_direction direction);
struct ib_send_wr *nfr_mem_transfer_chain(struct nfr_transfer *transfer, struct ib_cqe *cqe,
					  struct ib_send_wr *last);
void nfr_mem_transfer_hold(struct nfr_transfer *transfer);
u32 nfr_mem_transfer_bytes(const struct nfr_transfer *transfer);
void nfr_mem_transfer_destroy_all(struct nfr_transfer *transfer);

static inline void nfr_mem_transfer_init(struct nfr_transfer *transfer, struct rdma_cm_id *id)
{
	INIT_LIST_HEAD(&transfer->rws);
	transfer->id = id;
}

#endif
