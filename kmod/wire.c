// SPDX-License-Identifier: GPL-2.0-only
/*
 * The RPC-over-RDMA transport header, version 1 (RFC 8166, section 4), and the
 * private data of RFC 8797: bytes to structures and back.
 *
 * Bytes are loaded and stored one at a time: a header may start anywhere.
 * A decoder looks at the bytes that are left before it takes any, and walks
 * each of them once.
 */
#include "wire.h"

/* A segment on the wire: handle, length and offset */
#define SEGMENT_BYTES		16

/* What the lists cost per item, without the segments themselves */
#define READ_ITEM_BYTES		8	/* per segment: a boolean, the position */
#define WRITE_CHUNK_BYTES	8	/* per chunk: a boolean, the count */

/* RFC 8166, section 4.5: the four words, the error, and the two versions */
#define ERR_CHUNK_BYTES		20
#define ERR_VERS_BYTES		28

/* RFC 8797, section 4 */
#define PRIVATE_MAGIC		0xf6ab0e18
#define PRIVATE_VERSION		1
#define PRIVATE_REMOTE_INV	0x01
#define PRIVATE_UNIT		1024	/* bytes; an octet counts them from one */
#define PRIVATE_MAX		(256 * PRIVATE_UNIT)

static u32 load32(const u8 *at)
{
	return (u32)at[0] << 24 | (u32)at[1] << 16 | (u32)at[2] << 8 | at[3];
}

static void store32(u8 *at, u32 value)
{
	at[0] = value >> 24;
	at[1] = value >> 16;
	at[2] = value >> 8;
	at[3] = value;
}

/* Every function below that writes takes where to, and returns where the next byte goes. */

static u8 *put_word(u8 *at, u32 value)
{
	store32(at, value);
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
		size += (size_t)head->reads[i].nsegs * (READ_ITEM_BYTES + SEGMENT_BYTES);
	for (i = 0; i < head->nwrites; i++)
		size += WRITE_CHUNK_BYTES + (size_t)head->writes[i].nsegs * SEGMENT_BYTES;
	if (head->reply)	/* its boolean is one of the seven words */
		size += WRITE_CHUNK_BYTES - 4 + (size_t)head->reply->nsegs * SEGMENT_BYTES;
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

/* What is still to be read, and how much of the caller's space is taken */
struct source {
	const u8 *at;
	size_t left;			/* bytes */
	const struct nfr_space *space;
	u32 nchunks;
	u32 nsegs;
	u32 length;			/* bytes in the newest chunk's segments */
};

static int get_word(struct source *from, u32 *value)
{
	if (from->left < 4)
		return -EBADMSG;
	*value = load32(from->at);
	from->at += 4;
	from->left -= 4;
	return 0;
}

/* An XDR boolean: "one more follows" in a list, "there is one" for the Reply chunk */
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

/* Append the next segment to @chunk, the newest one */
static int get_segment(struct source *from, struct nfr_chunk *chunk)
{
	struct nfr_segment *seg;

	if (from->left < SEGMENT_BYTES)
		return -EBADMSG;
	if (from->nsegs == from->space->nsegs)
		return -E2BIG;
	seg = &from->space->segs[from->nsegs++];
	seg->handle = load32(from->at);
	seg->length = load32(from->at + 4);
	seg->offset = (u64)load32(from->at + 8) << 32 | load32(from->at + 12);
	from->at += SEGMENT_BYTES;
	from->left -= SEGMENT_BYTES;
	chunk->nsegs++;
	from->length += seg->length;
	return from->length < seg->length ? -EBADMSG : 0;	/* wrapped */
}

/* Segments of one position, one after the other, are one chunk: RFC 8166, section 3.4.5 */
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

	if (get_word(from, &nsegs) || !nsegs || nsegs > from->left / SEGMENT_BYTES)
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

/* The words all versions share, RFC 8166, section 4.2 */
static int get_start(struct source *from, struct nfr_header *head)
{
	if (get_word(from, &head->xid) || get_word(from, &head->version) ||
	    get_word(from, &head->credits) || get_word(from, &head->proc))
		return -EBADMSG;
	return head->version == NFR_WIRE_VERSION ? 0 : -EPROTONOSUPPORT;
}

/**
 * nfr_wire_decode - read a header
 * @head: filled in; its chunk lists point into @space. The xid, version,
 *	credits and proc are good after -EPROTONOSUPPORT and -EPROTO, and after
 *	-E2BIG and -EBADMSG when @len is at least 16; all else is good on success
 * @space: the caller's arrays for chunks and segments, not NULL; the arrays may
 *	be NULL when their counts are 0
 * @buf: the received bytes, with no alignment asked
 * @len: bytes at @buf, RPC message included
 *
 * Read list items of one position that follow each other become one chunk.
 * The lists are checked as far as the header alone can tell: counts, booleans,
 * aligned and ascending positions, and lengths of a chunk that add up within
 * 32 bits. Whether a chunk is one that was asked for, the caller knows.
 *
 * Return: the header's bytes, after which the RPC message starts, or
 * -EBADMSG for a truncated or malformed header, -E2BIG for one with more
 * chunks or segments than @space holds, -EPROTONOSUPPORT for a version that
 * is not 1, -EPROTO for a proc that is unknown or not spoken (NFR_MSGP,
 * NFR_DONE).
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

/**
 * nfr_wire_is_call - does an RPC message ask, rather than answer?
 * @rpc: the RPC message: xid, then its direction (RFC 5531, section 9)
 * @len: bytes at @rpc
 *
 * Return: true for a Call; false for a Reply, and for what is too short to tell.
 */
bool nfr_wire_is_call(const void *rpc, size_t len)
{
	return len >= 8 && load32((const u8 *)rpc + 4) == 0;
}

/* An inline size to the octet that says it, RFC 8797, section 4 */
static u8 size_to_octet(u32 bytes)
{
	if (bytes < PRIVATE_UNIT)
		return 0;
	if (bytes > PRIVATE_MAX)
		bytes = PRIVATE_MAX;
	return bytes / PRIVATE_UNIT - 1;
}

/**
 * nfr_wire_encode_private - write the CM private data
 * @priv: what this end can do; sizes are rounded down to 1024 bytes and held
 *	between 1 and 256 KiB
 * @buf: NFR_WIRE_PRIVATE bytes
 */
void nfr_wire_encode_private(const struct nfr_private *priv, u8 *buf)
{
	store32(buf, PRIVATE_MAGIC);
	buf[4] = PRIVATE_VERSION;
	buf[5] = priv->remote_invalidation ? PRIVATE_REMOTE_INV : 0;
	buf[6] = size_to_octet(priv->send_size);
	buf[7] = size_to_octet(priv->recv_size);
}

/**
 * nfr_wire_decode_private - read the peer's CM private data
 * @priv: filled in: what the peer said, or what version 1 assumes of a peer
 *	that said nothing: 1024 bytes both ways, no remote invalidation
 * @buf: what came with the connection event, NULL when @len is 0
 * @len: bytes at @buf; InfiniBand pads with zeros, so only the magic and the
 *	version tell whether the peer said anything
 */
void nfr_wire_decode_private(struct nfr_private *priv, const u8 *buf, size_t len)
{
	*priv = (struct nfr_private){
		.send_size = PRIVATE_UNIT,
		.recv_size = PRIVATE_UNIT,
	};
	if (len < NFR_WIRE_PRIVATE || load32(buf) != PRIVATE_MAGIC || buf[4] != PRIVATE_VERSION)
		return;
	priv->remote_invalidation = buf[5] & PRIVATE_REMOTE_INV;
	priv->send_size = (buf[6] + 1) * PRIVATE_UNIT;
	priv->recv_size = (buf[7] + 1) * PRIVATE_UNIT;
}
