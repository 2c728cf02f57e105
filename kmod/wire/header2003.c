// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Encode and decode the transport header of "NFS over RDMA" (Callaghan, Lingutla-Raj,
 * Chiu, Staubach, Asad; 2003), section 4.4. Both ends read: the server reads the
 * chunks of a Call, the client those of a Reply, and a Done message says that it has
 * read them. Integers are big-endian:
 *
 *   word 0   XID
 *   word 1   version, 0
 *   word 2   credits
 *   word 3   operation: enum nfr_proc without NFR_MSGP and NFR_ERROR
 *   then     the chunk list, except in a Done message: for each entry a 1, the
 *            position of its data in the XDR stream, its length, its handle and its
 *            address of 64 bits; a 0 ends the list
 *
 * The header of the paper has no credits. The extended header that the authors
 * presented in the same year puts them before the operation, and so do these files.
 * Consecutive entries with the same position are one chunk, as in version 1: the
 * paper's chunks have one registration each. An RPC message that is itself a chunk
 * (NFR_NOMSG) is the first one, at position 0.
 */
#include "wire/source.h"

/* Bytes per entry of the chunk list: discriminator, position, segment */
#define ENTRY_BYTES	(8 + NFR_WIRE_SEGMENT)

static u8 *put_chunk(u8 *at, const struct nfr_chunk *chunk)
{
	u32 i;

	for (i = 0; i < chunk->nsegs; i++) {
		const struct nfr_segment *seg = &chunk->segs[i];

		at = nfr_wire_put32(at, 1);
		at = nfr_wire_put32(at, chunk->position);
		at = nfr_wire_put32(at, seg->length);
		at = nfr_wire_put32(at, seg->handle);
		at = nfr_wire_put32(at, seg->offset >> 32);
		at = nfr_wire_put32(at, seg->offset);
	}
	return at;
}

/**
 * nfr_wire_2003_size - compute the encoded size of a header of 2003
 * @head: transport header; without Write list and Reply chunk
 *
 * Return: size in bytes, or 0 if @head has a message type other than NFR_MSG,
 * NFR_NOMSG and NFR_DONE.
 */
size_t nfr_wire_2003_size(const struct nfr_header *head)
{
	size_t size = NFR_WIRE_2003_MIN;
	u32 i;

	if (head->proc == NFR_DONE)
		return NFR_WIRE_2003_DONE;
	if (head->proc != NFR_MSG && head->proc != NFR_NOMSG)
		return 0;
	for (i = 0; i < head->nreads; i++)
		size += (size_t)head->reads[i].nsegs * ENTRY_BYTES;
	return size;
}

/**
 * nfr_wire_2003_encode - encode a header of 2003
 * @head: transport header; @head->version is ignored, the encoder writes 0
 * @buf: output buffer, of any alignment
 * @room: size of @buf in bytes
 *
 * The encoder writes nothing if the header does not fit.
 *
 * Return: number of bytes written, -EMSGSIZE if @room is too small, or -EINVAL
 * if nfr_wire_2003_size() rejects @head.
 */
int nfr_wire_2003_encode(const struct nfr_header *head, void *buf, size_t room)
{
	size_t size = nfr_wire_2003_size(head);
	u8 *at = buf;
	u32 i;

	if (!size)
		return -EINVAL;
	if (size > room)
		return -EMSGSIZE;
	at = nfr_wire_put32(at, head->xid);
	at = nfr_wire_put32(at, NFR_WIRE_2003_VERSION);
	at = nfr_wire_put32(at, head->credits);
	at = nfr_wire_put32(at, head->proc);
	if (head->proc == NFR_DONE)
		return at - (u8 *)buf;
	for (i = 0; i < head->nreads; i++)
		at = put_chunk(at, &head->reads[i]);
	at = nfr_wire_put32(at, 0);
	return at - (u8 *)buf;
}

static int get_body(struct source *from, struct nfr_header *head)
{
	switch (head->proc) {
	case NFR_MSG:
	case NFR_NOMSG:
		return get_read_list(from, head);
	case NFR_DONE:
		return 0;
	}
	return -EPROTO;
}

/**
 * nfr_wire_2003_decode - decode a header of 2003
 * @head: decoded header; its chunk list is @head->reads, in @space
 * @space: arrays for chunks and segments
 * @buf: received message, of any alignment
 * @len: length of @buf in bytes, including the RPC message
 *
 * The checks, and the members that are valid after an error, are those of
 * nfr_wire_decode().
 *
 * Return: length of the header in bytes, which is the offset of the RPC message,
 * -EBADMSG, -E2BIG, -EPROTONOSUPPORT if its version is not 0, or -EPROTO if its
 * operation is not NFR_MSG, NFR_NOMSG or NFR_DONE.
 */
int nfr_wire_2003_decode(struct nfr_header *head, const struct nfr_space *space,
			 const void *buf, size_t len)
{
	struct source from = { .at = buf, .left = len, .space = space, .length_first = true };
	int err;

	*head = (struct nfr_header){ .reply = NULL };
	err = get_start(&from, head, NFR_WIRE_2003_VERSION);
	if (!err)
		err = get_body(&from, head);
	return err ? err : (int)(len - from.left);
}
