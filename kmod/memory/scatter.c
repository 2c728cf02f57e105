// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory in scatter-gather lists, for messages that the device sends from pages or
 * receives in pages. The memory has no key of its own: no peer can name it.
 */
#include "memory/memory.h"
#include "memory/region.h"

/**
 * nfr_mem_scatter_unmap - undo nfr_mem_scatter_map()
 * @device: RDMA device
 * @sges: mapped elements
 * @count: number of elements
 * @direction: direction in which they were mapped
 */
void nfr_mem_scatter_unmap(struct ib_device *device, const struct ib_sge *sges, u32 count,
			   enum dma_data_direction direction)
{
	const struct ib_sge *sge;

	/* the device accesses the memory by its address: nothing to undo */
	if (ib_uses_virt_dma(device))
		return;
	for (sge = sges; sge < sges + count; sge++)
		ib_dma_unmap_page(device, sge->addr, sge->length, direction);
}

/**
 * nfr_mem_scatter_map - map memory for one message
 * @device: RDMA device
 * @lkey: local key of the elements
 * @span: memory; @length bytes of it are consumed
 * @length: number of bytes, at most those of @span
 * @direction: DMA_FROM_DEVICE to receive, DMA_TO_DEVICE to send
 * @sges: output array, one element per page
 * @room: number of elements in @sges
 *
 * Return: number of elements, -EMSGSIZE if @room is too small, or -ENOBUFS if mapping
 * failed.
 */
int nfr_mem_scatter_map(struct ib_device *device, u32 lkey, struct nfr_span *span, u32 length,
			enum dma_data_direction direction, struct ib_sge *sges, u32 room)
{
	struct nfr_piece piece;
	u32 n, count = 0;
	int rc = 0;
	u64 addr;

	for (; length; length -= n, count++) {
		rc = -EMSGSIZE;
		if (count == room || !nfr_mem_span_peek(span, &piece))
			break;
		n = min(piece.length, length);
		addr = ib_dma_map_page(device, piece.page, piece.offset, n, direction);
		rc = -ENOBUFS;
		if (ib_dma_mapping_error(device, addr))
			break;
		sges[count] = (struct ib_sge) { .addr = addr, .length = n, .lkey = lkey };
		nfr_mem_span_skip(span, n);
	}
	if (!length)
		return count;
	nfr_mem_scatter_unmap(device, sges, count, direction);
	return rc;
}
