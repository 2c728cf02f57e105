// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* Encode and decode the RPC-over-RDMA version 1 transport header (RFC 8166, section 4). */
#include "wire/source.h"

/* --- encoding --- */

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

/* --- decoding --- */

static int get_write_chunk(struct source *from)
{
	struct nfr_chunk *chunk;
	u32 nsegs;
	int err = 0;

	if (get_word(from, &nsegs))
		return -EBADMSG;
	chunk = new_chunk(from, 0);
	if (!chunk)
		return -E2BIG;
	while (!err && chunk->nsegs < nsegs)
		err = get_segment(from, chunk);
	return err;
}

static int get_write_list(struct source *from, struct nfr_header *head)
{
	u32 before = from->nchunks;
	bool more;
	int err;

	head->writes = from->space->chunks + before;
	err = get_more(from, &more);
	while (!err && more) {
		err = get_write_chunk(from);
		if (!err)
			err = get_more(from, &more);
	}
	head->nwrites = from->nchunks - before;
	return err;
}

static int get_reply_chunk(struct source *from, struct nfr_header *head)
{
	struct nfr_chunk *chunk = from->space->chunks + from->nchunks;
	bool there;
	int err;

	err = get_more(from, &there);
	if (err || !there)
		return err;
	err = get_write_chunk(from);
	if (!err)
		head->reply = chunk;
	return err;
}

static int get_lists(struct source *from, struct nfr_header *head)
{
	int err;

	err = get_read_list(from, head);
	if (!err)
		err = get_write_list(from, head);
	if (!err)
		err = get_reply_chunk(from, head);
	return err;
}

static int get_error(struct source *from, struct nfr_header *head)
{
	if (get_word(from, &head->error))
		return -EBADMSG;
	switch (head->error) {
	case NFR_ERR_VERS:
		if (get_word(from, &head->vers_low) || get_word(from, &head->vers_high))
			return -EBADMSG;
		return 0;
	case NFR_ERR_CHUNK:
		return 0;
	}
	return -EBADMSG;
}

static int get_body(struct source *from, struct nfr_header *head)
{
	switch (head->proc) {
	case NFR_MSG:
	case NFR_NOMSG:
		return get_lists(from, head);
	case NFR_ERROR:
		return get_error(from, head);
	}
	return -EPROTO;
}

/**
 * nfr_wire_decode - decode a header
 * @head: decoded header; its chunk lists point into @space
 * @space: arrays for chunks and segments
 * @buf: received message, of any alignment
 * @len: length of @buf in bytes, including the RPC message
 *
 * Consecutive Read list items with the same position become one chunk. The
 * decoder checks what the header alone determines: counts, booleans, alignment
 * and order of positions, and that the length of each chunk fits in 32 bits.
 * The caller has to check that the chunks match the Call.
 *
 * On -EPROTONOSUPPORT and -EPROTO, @head->xid, version, credits and proc are
 * valid; on -E2BIG and -EBADMSG they are valid if @len is at least 16. All
 * other members are valid on success only.
 *
 * Return: length of the header in bytes, which is the offset of the RPC
 * message, or
 *
 * * -EBADMSG if the header is truncated or malformed,
 * * -E2BIG if it has more chunks or segments than @space holds,
 * * -EPROTONOSUPPORT if its version is not 1,
 * * -EPROTO if its message type is unknown or unsupported (NFR_MSGP, NFR_DONE).
 */
int nfr_wire_decode(struct nfr_header *head, const struct nfr_space *space,
		    const void *buf, size_t len)
{
	struct source from = { .at = buf, .left = len, .space = space };
	int err;

	*head = (struct nfr_header){ .reply = NULL };
	err = get_start(&from, head, NFR_WIRE_VERSION);
	if (!err)
		err = get_body(&from, head);
	return err ? err : (int)(len - from.left);
}

/**
 * nfr_wire_is_call - check the direction of an RPC message
 * @rpc: RPC message: XID, then message type (RFC 5531, section 9)
 * @len: length of @rpc in bytes
 *
 * Return: true for a Call, false for a Reply or a message of less than 8 bytes.
 */
bool nfr_wire_is_call(const void *rpc, size_t len)
{
	return len >= 8 && nfr_wire_load32((const u8 *)rpc + 4) == 0;
}
