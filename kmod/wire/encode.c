// SPDX-License-Identifier: GPL-2.0-only
/*
 * Encode the RPC-over-RDMA version 1 transport header (RFC 8166, section 4).
 * decode.c is the decoder.
 */
#include "wire/wire.h"

/* Bytes per list item, without its segments */
#define READ_ITEM_BYTES		8	/* per segment: list discriminator, position */
#define WRITE_CHUNK_BYTES	8	/* per chunk: list discriminator, segment count */

/* RFC 8166, section 4.5: the fixed header, rdma_err and, for ERR_VERS, two versions */
#define ERR_CHUNK_BYTES		20
#define ERR_VERS_BYTES		28

/* Each put_ function writes at @at and returns the position after the last byte that it wrote. */

static u8 *put_segment(u8 *at, const struct nfr_segment *seg)
{
	at = nfr_wire_put32(at, seg->handle);
	at = nfr_wire_put32(at, seg->length);
	at = nfr_wire_put32(at, seg->offset >> 32);
	return nfr_wire_put32(at, seg->offset);
}

static u8 *put_read_chunk(u8 *at, const struct nfr_chunk *chunk)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		at = nfr_wire_put32(at, 1);
		at = nfr_wire_put32(at, chunk->position);
		at = put_segment(at, &chunk->segs[i]);
	}
	return at;
}

static u8 *put_write_chunk(u8 *at, const struct nfr_chunk *chunk)
{
	u32 i;

	at = nfr_wire_put32(at, 1);
	at = nfr_wire_put32(at, chunk->nsegs);
	for (i = 0; i < chunk->nsegs; i++)
		at = put_segment(at, &chunk->segs[i]);
	return at;
}

static u8 *put_lists(u8 *at, const struct nfr_header *head)
{
	u32 i;

	for (i = 0; i < head->nreads; i++)
		at = put_read_chunk(at, &head->reads[i]);
	at = nfr_wire_put32(at, 0);
	for (i = 0; i < head->nwrites; i++)
		at = put_write_chunk(at, &head->writes[i]);
	at = nfr_wire_put32(at, 0);
	if (head->reply)
		return put_write_chunk(at, head->reply);
	return nfr_wire_put32(at, 0);
}

static u8 *put_error(u8 *at, const struct nfr_header *head)
{
	at = nfr_wire_put32(at, head->error);
	if (head->error == NFR_ERR_CHUNK)
		return at;
	at = nfr_wire_put32(at, head->vers_low);
	return nfr_wire_put32(at, head->vers_high);
}

static size_t lists_size(const struct nfr_header *head)
{
	size_t size = NFR_WIRE_MIN;
	u32 i;

	for (i = 0; i < head->nreads; i++)
		size += (size_t)head->reads[i].nsegs * (READ_ITEM_BYTES + NFR_WIRE_SEGMENT);
	for (i = 0; i < head->nwrites; i++)
		size += WRITE_CHUNK_BYTES + (size_t)head->writes[i].nsegs * NFR_WIRE_SEGMENT;
	if (head->reply)	/* NFR_WIRE_MIN includes its discriminator */
		size += WRITE_CHUNK_BYTES - 4 + (size_t)head->reply->nsegs * NFR_WIRE_SEGMENT;
	return size;
}

static size_t error_size(const struct nfr_header *head)
{
	switch (head->error) {
	case NFR_ERR_VERS:
		return ERR_VERS_BYTES;
	case NFR_ERR_CHUNK:
		return ERR_CHUNK_BYTES;
	}
	return 0;
}

/**
 * nfr_wire_size - compute the encoded size of a header
 * @head: transport header
 *
 * Return: size in bytes, or 0 if @head has a message type other than NFR_MSG,
 * NFR_NOMSG and NFR_ERROR, or an unknown error code.
 */
size_t nfr_wire_size(const struct nfr_header *head)
{
	switch (head->proc) {
	case NFR_MSG:
	case NFR_NOMSG:
		return lists_size(head);
	case NFR_ERROR:
		return error_size(head);
	}
	return 0;
}

/**
 * nfr_wire_encode - encode a header
 * @head: transport header; @head->version is ignored, the encoder writes 1
 * @buf: output buffer, of any alignment
 * @room: size of @buf in bytes
 *
 * The encoder writes nothing if the header does not fit.
 *
 * Return: number of bytes written, -EMSGSIZE if @room is too small, or -EINVAL
 * if nfr_wire_size() rejects @head.
 */
int nfr_wire_encode(const struct nfr_header *head, void *buf, size_t room)
{
	size_t size = nfr_wire_size(head);
	u8 *at = buf;

	if (!size)
		return -EINVAL;
	if (size > room)
		return -EMSGSIZE;
	at = nfr_wire_put32(at, head->xid);
	at = nfr_wire_put32(at, NFR_WIRE_VERSION);
	at = nfr_wire_put32(at, head->credits);
	at = nfr_wire_put32(at, head->proc);
	at = head->proc == NFR_ERROR ? put_error(at, head) : put_lists(at, head);
	return at - (u8 *)buf;
}

/**
 * nfr_wire_length - compute the length of a chunk
 * @chunk: chunk
 *
 * Return: sum of the segment lengths in bytes. nfr_wire_decode() rejects chunks
 * whose sum does not fit in 32 bits.
 */
u32 nfr_wire_length(const struct nfr_chunk *chunk)
{
	u32 length = 0;
	u32 i;

	for (i = 0; i < chunk->nsegs; i++)
		length += chunk->segs[i].length;
	return length;
}
