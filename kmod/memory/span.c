// SPDX-License-Identifier: GPL-2.0-only
/* Walk the memory of an xdr_buf, or list it in a scatterlist: see struct nfr_span. */
#include <linux/mm.h>

#include "memory/memory.h"
#include "memory/span.h"

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

/* --- scatterlists --- */

/* An MR has no gaps: only its first entry may start, and only its last may end, within a page. */
static bool nfr_mem_span_joins(const struct scatterlist *last, const struct nfr_piece *piece)
{
	return !piece->offset && !offset_in_page(last->offset + last->length);
}

static inline void nfr_mem_span_entry(struct scatterlist *sg, struct page *page, u32 length,
				      u32 offset)
{
	*sg = (struct scatterlist) { };
	sg_set_page(sg, page, length, offset);
}

/*
 * List pages, with one entry for those that follow each other in memory. Advances @at, up
 * to @end. Returns the number of bytes, up to @length.
 */
static u32 nfr_mem_span_list_pages(const struct nfr_span *span, u32 length, u32 pages,
				   struct scatterlist **at, const struct scatterlist *end)
{
	struct page **page = span->pages + (span->page_base >> PAGE_SHIFT);
	u32 offset = offset_in_page(span->page_base), rest = length;
	struct scatterlist *sg;

	for (sg = *at; rest && sg < end; sg++) {
		u32 most = min_t(u32, rest, pages * PAGE_SIZE - offset);
		u32 n = PAGE_SIZE - offset;
		struct page *first = *page++;
		unsigned long pfn = page_to_pfn(first);

		for (; n < most && page_to_pfn(*page) == ++pfn; page++)
			n += PAGE_SIZE;
		n = min(n, rest);
		nfr_mem_span_entry(sg, first, n, offset);
		rest -= n;
		offset = 0;
	}
	*at = sg;
	return length - rest;
}

/**
 * nfr_mem_span_list - list memory in a scatterlist
 * @span: memory; what is listed is consumed
 * @length: maximum number of bytes
 * @max_entry: maximum number of bytes per entry; an entry has a page at least
 * @gaps: whether entries may start and end within pages
 * @sgl: output array, without chains; the last entry is marked
 * @room: number of elements in @sgl
 *
 * Return: number of entries.
 */
u32 nfr_mem_span_list(struct nfr_span *span, u32 length, u32 max_entry, bool gaps,
		      struct scatterlist *sgl, u32 room)
{
	u32 pages = max_entry / PAGE_SIZE ?: 1, n;
	struct scatterlist *sg = sgl;
	struct nfr_piece piece;

	while (length && sg < sgl + room && nfr_mem_span_peek(span, &piece)) {
		if (!gaps && sg > sgl && !nfr_mem_span_joins(sg - 1, &piece))
			break;
		if (nfr_mem_span_is_in_pages(span)) {
			n = nfr_mem_span_list_pages(span, min(length, span->page_len), pages,
						    &sg, sgl + room);
		} else {
			n = min(length, piece.length);
			nfr_mem_span_entry(sg++, piece.page, n, piece.offset);
		}
		nfr_mem_span_skip(span, n);
		length -= n;
	}
	if (sg > sgl)
		sg_mark_end(sg - 1);
	return sg - sgl;
}
