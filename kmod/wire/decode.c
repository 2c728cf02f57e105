// SPDX-License-Identifier: GPL-2.0-only
/*
 * Decode the RPC-over-RDMA version 1 transport header (RFC 8166, section 4).
 *
 * The peer is untrusted. The decoder checks the number of remaining bytes
 * before each read, and reads each byte once.
 */
#include "wire/wire.h"

/* Decoder state: unread input, and the used part of the caller's arrays */
struct source {
	const u8 *at;
	size_t left;			/* in bytes */
	const struct nfr_space *space;
	u32 nchunks;
	u32 nsegs;
	u32 length;			/* of the current chunk so far, in bytes */
};

static int get_word(struct source *from, u32 *value)
{
	if (from->left < 4)
		return -EBADMSG;
	*value = nfr_wire_load32(from->at);
	from->at += 4;
	from->left -= 4;
	return 0;
}

/* XDR boolean: a list discriminator, or the presence of the Reply chunk */
static int get_more(struct source *from, bool *more)
{
	u32 value;

	if (get_word(from, &value) || value > 1)
		return -EBADMSG;
	*more = value;
	return 0;
}

static struct nfr_chunk *new_chunk(struct source *from, u32 position)
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
static int get_segment(struct source *from, struct nfr_chunk *chunk)
{
	struct nfr_segment *seg;

	if (from->left < NFR_WIRE_SEGMENT)
		return -EBADMSG;
	if (from->nsegs == from->space->nsegs)
		return -E2BIG;
	seg = &from->space->segs[from->nsegs++];
	seg->handle = nfr_wire_load32(from->at);
	seg->length = nfr_wire_load32(from->at + 4);
	seg->offset = (u64)nfr_wire_load32(from->at + 8) << 32 | nfr_wire_load32(from->at + 12);
	from->at += NFR_WIRE_SEGMENT;
	from->left -= NFR_WIRE_SEGMENT;
	chunk->nsegs++;
	from->length += seg->length;
	return from->length < seg->length ? -EBADMSG : 0;	/* overflow */
}

/* RFC 8166, section 3.4.5: consecutive items with the same position are one chunk */
static int get_read_item(struct source *from, struct nfr_chunk **chunk)
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

static int get_read_list(struct source *from, struct nfr_header *head)
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

/* The words that all protocol versions share, RFC 8166, section 4.2 */
static int get_start(struct source *from, struct nfr_header *head)
{
	if (get_word(from, &head->xid) || get_word(from, &head->version) ||
	    get_word(from, &head->credits) || get_word(from, &head->proc))
		return -EBADMSG;
	return head->version == NFR_WIRE_VERSION ? 0 : -EPROTONOSUPPORT;
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
	err = get_start(&from, head);
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
