/* SPDX-License-Identifier: GPL-2.0-only */
/* What the peer may access for one RPC, and until when. */
#ifndef NFSRDMA_MEMORY_EXPOSURE_H
#define NFSRDMA_MEMORY_EXPOSURE_H

#include "memory/memory.h"

int nfr_mem_prepare(struct nfr_exposure *exposure, struct nfr_pool *pool, struct nfr_span *span,
		    enum dma_data_direction direction, struct nfr_segment *segs, u32 room);
struct ib_send_wr *nfr_mem_post(struct nfr_exposure *exposure, struct ib_send_wr *last);
bool nfr_mem_covers(const struct nfr_exposure *exposure, const struct nfr_chunk *chunk);
bool nfr_mem_invalidated(struct nfr_exposure *exposure, u32 handle);
u32 nfr_mem_revoke(struct nfr_exposure *exposure, struct ib_send_wr **first,
		   struct ib_send_wr **last);
void nfr_mem_release(struct nfr_exposure *exposure);
void nfr_mem_forget(struct nfr_exposure *exposure);
bool nfr_mem_cut(struct list_head *mrs);
void nfr_mem_detach(struct nfr_exposure *exposure, struct list_head *mrs);
bool nfr_mem_gives_up(const struct nfr_pool *pool);
bool nfr_mem_destroy(struct list_head *mrs, enum nfr_proof proof);
void nfr_mem_pool_destroy(struct nfr_pool *pool);
bool nfr_mem_device_refuses(const struct ib_device *device);
bool nfr_mem_device_sees(const struct nfr_exposure *exposure);
const char *nfr_mem_device_grants(struct ib_device *device);

static inline void nfr_mem_exposure_init(struct nfr_exposure *exposure)
{
	INIT_LIST_HEAD(&exposure->mrs);
	exposure->count = 0;
	exposure->valid = 0;
	exposure->kept = 0;
	exposure->found = 0;
	exposure->slot = NULL;
}

/* Check for MRs while another context may remove them. */
static inline bool nfr_mem_is_exposed(const struct nfr_exposure *exposure)
{
	return !list_empty_careful(&exposure->mrs);
}

/*
 * Give the memory back if the peer cannot access it. Returns false if it may: then
 * the caller has to revoke the exposure, and release it afterwards.
 */
static inline bool nfr_mem_settle(struct nfr_exposure *exposure)
{
	if (exposure->valid)
		return false;
	if (exposure->count)
		nfr_mem_release(exposure);
	return true;
}

#endif
