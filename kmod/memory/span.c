// SPDX-License-Identifier: GPL-2.0-only
/* Walk the memory of an xdr_buf page by page: see struct nfr_span. */
#include <linux/mm.h>

#include "memory/memory.h"

/**
 * nfr_mem_span_peek_kvec - get the first piece of a span that starts outside its pages
 * @span: span; not consumed
 * @piece: output, within one page
 *
 * Return: false if the span is empty.
 */
bool nfr_mem_span_peek_kvec(const struct nfr_span *span, struct nfr_piece *piece)
{
	const struct kvec *vec = span->head.iov_len ? &span->head : &span->tail;
	void *base = vec->iov_base;

	if (!vec->iov_len)
		return false;
	piece->page = is_vmalloc_addr(base) ? vmalloc_to_page(base) : virt_to_page(base);
	piece->offset = offset_in_page(base);
	piece->length = min_t(size_t, vec->iov_len, PAGE_SIZE - piece->offset);
	return true;
}

/**
 * nfr_mem_span_skip_kvec - consume the start of a span that starts outside its pages
 * @span: span
 * @length: bytes, at most the length of the piece from nfr_mem_span_peek()
 */
void nfr_mem_span_skip_kvec(struct nfr_span *span, u32 length)
{
	struct kvec *vec = span->head.iov_len ? &span->head : &span->tail;

	vec->iov_base += length;
	vec->iov_len -= length;
}

/**
 * nfr_mem_span_length - compute the length of a span
 * @span: span; not consumed
 *
 * Return: length in bytes.
 */
u32 nfr_mem_span_length(const struct nfr_span *span)
{
	return span->head.iov_len + span->page_len + span->tail.iov_len;
}

static u32 nfr_mem_kvec_regions(const struct kvec *vec, u32 room)
{
	u32 bytes = offset_in_page(vec->iov_base) + vec->iov_len;

	return vec->iov_len ? DIV_ROUND_UP(bytes, room * PAGE_SIZE) : 0;
}

/**
 * nfr_mem_span_regions - compute an upper bound for the MRs that a span needs
 * @span: span; not consumed
 * @room: scatterlist entries per MR, each of one page or more
 *
 * Return: number of MRs.
 */
u32 nfr_mem_span_regions(const struct nfr_span *span, u32 room)
{
	u32 bytes = offset_in_page(span->page_base) + span->page_len;
	u32 pages = span->page_len ? DIV_ROUND_UP(bytes, room * PAGE_SIZE) : 0;

	return nfr_mem_kvec_regions(&span->head, room) + pages +
	       nfr_mem_kvec_regions(&span->tail, room);
}
