/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Functions that the decoders of both transport headers use: header.c and header2003.c.
 *
 * The peer is untrusted. A decoder checks the number of remaining bytes before each
 * read, and reads each byte once.
 */
#ifndef NFSRDMA_WIRE_SOURCE_H
#define NFSRDMA_WIRE_SOURCE_H

#include "wire/wire.h"

/* Decoder state: unread input, and the used part of the caller's arrays */
struct source {
	const u8 *at;
	size_t left;			/* in bytes */
	const struct nfr_space *space;
	u32 nchunks;
	u32 nsegs;
	u32 length;			/* of the current chunk so far, in bytes */
	bool length_first;		/* a segment begins with its length, not with its handle */
};

static inline int get_word(struct source *from, u32 *value)
{
	if (from->left < 4)
		return -EBADMSG;
	*value = nfr_wire_load32(from->at);
	from->at += 4;
	from->left -= 4;
	return 0;
}

/* XDR boolean: a list discriminator, or the presence of the Reply chunk */
static inline int get_more(struct source *from, bool *more)
{
	u32 value;

	if (get_word(from, &value) || value > 1)
		return -EBADMSG;
	*more = value;
	return 0;
}

static inline struct nfr_chunk *new_chunk(struct source *from, u32 position)
{
	struct nfr_chunk *chunk;

	if (from->nchunks == from->space->nchunks)
		return NULL;
	chunk = &from->space->chunks[from->nchunks++];
	chunk->position = position;
	chunk->nsegs = 0;
	chunk->segs = from->space->segs + from->nsegs;
	from->length = 0;
	return chunk;
}

/* Append the next segment to @chunk, which is the current chunk */
static inline int get_segment(struct source *from, struct nfr_chunk *chunk)
{
	struct nfr_segment *seg;

	if (from->left < NFR_WIRE_SEGMENT)
		return -EBADMSG;
	if (from->nsegs == from->space->nsegs)
		return -E2BIG;
	seg = &from->space->segs[from->nsegs++];
	seg->handle = nfr_wire_load32(from->at + (from->length_first ? 4 : 0));
	seg->length = nfr_wire_load32(from->at + (from->length_first ? 0 : 4));
	seg->offset = (u64)nfr_wire_load32(from->at + 8) << 32 | nfr_wire_load32(from->at + 12);
	from->at += NFR_WIRE_SEGMENT;
	from->left -= NFR_WIRE_SEGMENT;
	chunk->nsegs++;
	from->length += seg->length;
	return from->length < seg->length ? -EBADMSG : 0;	/* overflow */
}

/* RFC 8166, section 3.4.5: consecutive items with the same position are one chunk */
static inline int get_read_item(struct source *from, struct nfr_chunk **chunk)
{
	u32 position;

	if (get_word(from, &position) || position % 4)
		return -EBADMSG;
	if (*chunk && position < (*chunk)->position)
		return -EBADMSG;
	if (!*chunk || position > (*chunk)->position)
		*chunk = new_chunk(from, position);
	return *chunk ? get_segment(from, *chunk) : -E2BIG;
}

static inline int get_read_list(struct source *from, struct nfr_header *head)
{
	struct nfr_chunk *chunk = NULL;
	bool more;
	int err;

	head->reads = from->space->chunks + from->nchunks;
	err = get_more(from, &more);
	while (!err && more) {
		err = get_read_item(from, &chunk);
		if (!err)
			err = get_more(from, &more);
	}
	head->nreads = from->nchunks;
	return err;
}

/* The words that all versions share, RFC 8166, section 4.2. The decoder accepts @version only. */
static inline int get_start(struct source *from, struct nfr_header *head, u32 version)
{
	if (get_word(from, &head->xid) || get_word(from, &head->version) ||
	    get_word(from, &head->credits) || get_word(from, &head->proc))
		return -EBADMSG;
	return head->version == version ? 0 : -EPROTONOSUPPORT;
}

#endif
