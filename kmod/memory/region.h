/* SPDX-License-Identifier: GPL-2.0-only */
/* The memory that regions map: walking an xdr_buf. memory.h has the regions. */
#ifndef NFSRDMA_MEMORY_REGION_H
#define NFSRDMA_MEMORY_REGION_H

#include <linux/mm.h>
#include <linux/uio.h>

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

bool nfr_mem_span_peek_kvec(const struct nfr_span *span, struct nfr_piece *piece);
void nfr_mem_span_skip_kvec(struct nfr_span *span, u32 length);
u32 nfr_mem_span_length(const struct nfr_span *span);
u32 nfr_mem_span_regions(const struct nfr_span *span, u32 room);

/* --- walking a span: each page of an RPC takes these steps --- */

static inline bool nfr_mem_span_is_in_pages(const struct nfr_span *span)
{
	return !span->head.iov_len && span->page_len;
}

/* Get the first piece of a span, within one page. Returns false if the span is empty. */
static inline bool nfr_mem_span_peek(const struct nfr_span *span, struct nfr_piece *piece)
{
	if (!nfr_mem_span_is_in_pages(span))
		return nfr_mem_span_peek_kvec(span, piece);
	piece->page = span->pages[span->page_base >> PAGE_SHIFT];
	piece->offset = offset_in_page(span->page_base);
	piece->length = min_t(u32, span->page_len, PAGE_SIZE - piece->offset);
	return true;
}

/*
 * Consume @length bytes: at most those of the piece from nfr_mem_span_peek(), or, if the
 * span starts in its pages, those of the pages
 */
static inline void nfr_mem_span_skip(struct nfr_span *span, u32 length)
{
	if (!nfr_mem_span_is_in_pages(span)) {
		nfr_mem_span_skip_kvec(span, length);
		return;
	}
	span->page_base += length;
	span->page_len -= length;
}

#endif
