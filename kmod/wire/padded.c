// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Encode and decode messages of type RDMA_MSGP (RFC 5666): the header of
 * version 1 with two more words behind the message type, and data behind the RPC message
 * that begins at the offset in the first of them:
 *
 *   word 0 to 3   XID, version, credits, 2
 *   word 4        rdma_align: offset of the data in the message
 *   word 5        rdma_thresh: the sender pads data of this length or more
 *   then          Read list, Write list, Reply chunk
 *   then          RPC message without the data
 *   then          zeros, up to rdma_align
 *   then          the data, with or without its XDR padding
 *
 * RFC 5666 leaves it to the receiver's XDR decoder to find out which data item was
 * padded. Here a segment with handle 0 names it: in a Call the only one of the Read
 * list, whose position is that of the data, and in a Reply the only one of the Write
 * list. Its length is that of the data, its offset the length of the RPC message
 * without the data. No other part of the message is conveyed by a chunk.
 */
#include "wire/wire.h"

#ifdef __KERNEL__
#include <linux/string.h>
#else
#include <string.h>
#endif

/* Offsets of the words that this type of message adds, and of those behind them */
#define ALIGN_AT	16
#define THRESH_AT	20
#define LISTS_AT	24
#define MORE_BYTES	(LISTS_AT - ALIGN_AT)

/* The same header as one of RDMA_MSG, which the functions for version 1 accept */
static struct nfr_header plain(const struct nfr_header *head)
{
	struct nfr_header copy = *head;

	copy.proc = NFR_MSG;
	return copy;
}

/**
 * nfr_wire_padded_size - compute the encoded size of a header
 * @head: transport header, NFR_MSGP
 *
 * Return: size in bytes.
 */
size_t nfr_wire_padded_size(const struct nfr_header *head)
{
	struct nfr_header copy = plain(head);

	return nfr_wire_size(&copy) + MORE_BYTES;
}

/**
 * nfr_wire_padded_encode - encode a header
 * @head: transport header, NFR_MSGP
 * @padding: the words that it has in addition
 * @buf: output buffer, of any alignment
 * @room: size of @buf in bytes
 *
 * The encoder writes nothing if the header does not fit.
 *
 * Return: number of bytes written, or -EMSGSIZE if @room is too small.
 */
int nfr_wire_padded_encode(const struct nfr_header *head, const struct nfr_padding *padding,
			   void *buf, size_t room)
{
	struct nfr_header copy = plain(head);
	u8 *at = buf;
	int size;

	if (room < MORE_BYTES)
		return -EMSGSIZE;
	size = nfr_wire_encode(&copy, at + MORE_BYTES, room - MORE_BYTES);
	if (size < 0)
		return size;
	memmove(at, at + MORE_BYTES, ALIGN_AT);
	nfr_wire_store32(at + ALIGN_AT - 4, NFR_MSGP);
	nfr_wire_store32(at + ALIGN_AT, padding->align);
	nfr_wire_store32(at + THRESH_AT, padding->thresh);
	return size + MORE_BYTES;
}

/**
 * nfr_wire_is_padded - check the type of a message
 * @buf: received message
 * @len: length of @buf in bytes
 *
 * Return: true if the message is of version 1 and of type NFR_MSGP.
 */
bool nfr_wire_is_padded(const void *buf, size_t len)
{
	const u8 *at = buf;

	return len >= LISTS_AT && nfr_wire_load32(at + 4) == NFR_WIRE_VERSION &&
	       nfr_wire_load32(at + ALIGN_AT - 4) == NFR_MSGP;
}

/**
 * nfr_wire_padded_decode - decode a header
 * @head: decoded header; its chunk lists point into @space
 * @padding: output, the words that it has in addition
 * @space: arrays for chunks and segments
 * @buf: message that nfr_wire_is_padded() accepts, of any alignment
 * @len: length of @buf in bytes
 *
 * The header of such a message is short: the decoder looks at NFR_WIRE_PADDED_MAX
 * bytes only.
 *
 * Return: length of the header in bytes, -EBADMSG if it is truncated, malformed or
 * longer, or -E2BIG if it has more chunks or segments than @space holds.
 */
int nfr_wire_padded_decode(struct nfr_header *head, struct nfr_padding *padding,
			   const struct nfr_space *space, const void *buf, size_t len)
{
	u8 copy[NFR_WIRE_PADDED_MAX - MORE_BYTES];
	const u8 *at = buf;
	int size;

	if (len > NFR_WIRE_PADDED_MAX)
		len = NFR_WIRE_PADDED_MAX;
	if (len < LISTS_AT)
		return -EBADMSG;
	memcpy(copy, at, ALIGN_AT);
	nfr_wire_store32(copy + ALIGN_AT - 4, NFR_MSG);
	memcpy(copy + ALIGN_AT, at + LISTS_AT, len - LISTS_AT);
	size = nfr_wire_decode(head, space, copy, len - MORE_BYTES);
	if (size < 0)
		return size;
	head->proc = NFR_MSGP;
	padding->align = nfr_wire_load32(at + ALIGN_AT);
	padding->thresh = nfr_wire_load32(at + THRESH_AT);
	return size + MORE_BYTES;
}

/* Get the chunk that names the data, or NULL if the lists are not those of such a message. */
static const struct nfr_chunk *named(const struct nfr_header *head)
{
	const struct nfr_chunk *chunk = head->nreads ? head->reads : head->writes;

	if (head->nreads + (size_t)head->nwrites != 1 || head->reply)
		return NULL;
	return chunk->nsegs == 1 && !chunk->segs[0].handle ? chunk : NULL;
}

/**
 * nfr_wire_padded_find - find the data in a message
 * @data: output; the offset is that in the message
 * @head: decoded header, of @size bytes
 * @padding: decoded words
 * @size: result of nfr_wire_padded_decode()
 * @len: length of the message in bytes
 *
 * Return: 0, or -EBADMSG if lengths, offsets and the threshold contradict each other.
 */
int nfr_wire_padded_find(struct nfr_padded *data, const struct nfr_header *head,
			 const struct nfr_padding *padding, u32 size, u32 len)
{
	const struct nfr_chunk *chunk = named(head);
	u32 behind;

	if (!chunk || padding->align < size || padding->align >= len)
		return -EBADMSG;
	data->position = chunk->position;
	data->offset = padding->align;
	data->length = chunk->segs[0].length;
	if (chunk->segs[0].offset > padding->align - size)
		return -EBADMSG;
	data->rpc_length = chunk->segs[0].offset;
	if (data->position > data->rpc_length)
		return -EBADMSG;
	behind = len - padding->align;
	if (!data->length || data->length < padding->thresh || data->length > behind ||
	    behind - data->length > (4 - data->length % 4) % 4)
		return -EBADMSG;
	return 0;
}
