// SPDX-License-Identifier: GPL-2.0-only
/*
 * The RPC-over-RDMA transport header, version 1 (RFC 8166, section 4), from
 * structures to bytes. wire_decode.c is the way back.
 */
#include "wire.h"
#include "wire_bytes.h"

/* What the lists cost per item, without the segments themselves */
#define READ_ITEM_BYTES		8	/* per segment: a boolean, the position */
#define WRITE_CHUNK_BYTES	8	/* per chunk: a boolean, the count */

/* RFC 8166, section 4.5: the four words, the error, and the two versions */
#define ERR_CHUNK_BYTES		20
#define ERR_VERS_BYTES		28

/* Every function below that writes takes where to, and returns where the next byte goes. */

static u8 *put_word(u8 *at, u32 value)
{
	nfr_store32(at, value);
	return at + 4;
}

static u8 *put_segment(u8 *at, const struct nfr_segment *seg)
{
	at = put_word(at, seg->handle);
	at = put_word(at, seg->length);
	at = put_word(at, seg->offset >> 32);
	return put_word(at, seg->offset);
}

static u8 *put_read_chunk(u8 *at, const struct nfr_chunk *chunk)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		at = put_word(at, 1);
		at = put_word(at, chunk->position);
		at = put_segment(at, &chunk->segs[i]);
	}
	return at;
}

static u8 *put_write_chunk(u8 *at, const struct nfr_chunk *chunk)
{
	u32 i;

	at = put_word(at, 1);
	at = put_word(at, chunk->nsegs);
	for (i = 0; i < chunk->nsegs; i++)
		at = put_segment(at, &chunk->segs[i]);
	return at;
}

static u8 *put_lists(u8 *at, const struct nfr_header *head)
{
	u32 i;

	for (i = 0; i < head->nreads; i++)
		at = put_read_chunk(at, &head->reads[i]);
	at = put_word(at, 0);
	for (i = 0; i < head->nwrites; i++)
		at = put_write_chunk(at, &head->writes[i]);
	at = put_word(at, 0);
	if (head->reply)
		return put_write_chunk(at, head->reply);
	return put_word(at, 0);
}

static u8 *put_error(u8 *at, const struct nfr_header *head)
{
	at = put_word(at, head->error);
	if (head->error == NFR_ERR_CHUNK)
		return at;
	at = put_word(at, head->vers_low);
	return put_word(at, head->vers_high);
}

static size_t lists_size(const struct nfr_header *head)
{
	size_t size = NFR_WIRE_MIN;
	u32 i;

	for (i = 0; i < head->nreads; i++)
		size += (size_t)head->reads[i].nsegs * (READ_ITEM_BYTES + NFR_SEGMENT_BYTES);
	for (i = 0; i < head->nwrites; i++)
		size += WRITE_CHUNK_BYTES + (size_t)head->writes[i].nsegs * NFR_SEGMENT_BYTES;
	if (head->reply)	/* its boolean is one of the seven words */
		size += WRITE_CHUNK_BYTES - 4 + (size_t)head->reply->nsegs * NFR_SEGMENT_BYTES;
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
 * nfr_wire_size - bytes a header takes on the wire
 * @head: the header
 *
 * Return: bytes, or 0 for a header that is none in version 1: a proc other
 * than NFR_MSG, NFR_NOMSG and NFR_ERROR, or an unknown error.
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
 * nfr_wire_encode - write a header
 * @head: the header; its version is not looked at, what is written says 1
 * @buf: where to, with no alignment asked
 * @room: bytes at @buf; nothing is written when the header does not fit
 *
 * Return: bytes written, -EMSGSIZE when @room is too small, -EINVAL for a
 * header that is none (see nfr_wire_size()).
 */
int nfr_wire_encode(const struct nfr_header *head, void *buf, size_t room)
{
	size_t size = nfr_wire_size(head);
	u8 *at = buf;

	if (!size)
		return -EINVAL;
	if (size > room)
		return -EMSGSIZE;
	at = put_word(at, head->xid);
	at = put_word(at, NFR_WIRE_VERSION);
	at = put_word(at, head->credits);
	at = put_word(at, head->proc);
	at = head->proc == NFR_ERROR ? put_error(at, head) : put_lists(at, head);
	return at - (u8 *)buf;
}

/**
 * nfr_wire_length - bytes a chunk moves
 * @chunk: the chunk
 *
 * Return: the sum of its segments' lengths, which fits in 32 bits in whatever
 * nfr_wire_decode() accepted.
 */
u32 nfr_wire_length(const struct nfr_chunk *chunk)
{
	u32 length = 0;
	u32 i;

	for (i = 0; i < chunk->nsegs; i++)
		length += chunk->segs[i].length;
	return length;
}
