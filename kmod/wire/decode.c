// SPDX-License-Identifier: GPL-2.0-only
/* Decode the RPC-over-RDMA version 1 transport header (RFC 8166, section 4). */
#include "wire/source.h"

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
