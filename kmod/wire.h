/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The RPC-over-RDMA transport header, version 1 (RFC 8166), and the private
 * data of RFC 8797: bytes to structures and back.
 *
 * Nothing here knows verbs, allocates memory or sleeps. wire.c writes headers,
 * wire_decode.c reads them, wire_private.c does both for private data. They
 * compile in user space too, where they are fuzzed (tests/wire).
 */
#ifndef NFSRDMA_WIRE_H
#define NFSRDMA_WIRE_H

#ifdef __KERNEL__
#include <linux/errno.h>
#include <linux/types.h>
#else
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#endif

/* RFC 8166, section 4.1 */
#define NFR_WIRE_VERSION	1

/* The shortest header with chunk lists: seven words, RFC 8166, section 4.2 */
#define NFR_WIRE_MIN		28

/* Bytes of CM private data, RFC 8797, section 4 */
#define NFR_WIRE_PRIVATE	8

/* What a message is, RFC 8166, section 4.2.4 */
enum nfr_proc {
	NFR_MSG		= 0,	/* an RPC message follows the header */
	NFR_NOMSG	= 1,	/* the RPC message is in a chunk */
	NFR_MSGP	= 2,	/* RFC 5666 only */
	NFR_DONE	= 3,	/* RFC 5666 only */
	NFR_ERROR	= 4,
};

/* Why a message was refused, RFC 8166, section 4.5 */
enum nfr_error {
	NFR_ERR_VERS	= 1,
	NFR_ERR_CHUNK	= 2,
};

/* Memory the peer may reach: RFC 8166, section 3.4.2. @length is in bytes. */
struct nfr_segment {
	u32 handle;
	u32 length;
	u64 offset;
};

/*
 * One data item (or whole message) that moves by RDMA. @position, in bytes of
 * the unreduced XDR stream, counts in Read lists only.
 */
struct nfr_chunk {
	u32 position;
	u32 nsegs;
	struct nfr_segment *segs;
};

/* A header in host order. Chunk lists for NFR_MSG and NFR_NOMSG only. */
struct nfr_header {
	u32 xid;
	u32 version;
	u32 credits;
	u32 proc;
	u32 nreads;
	u32 nwrites;
	struct nfr_chunk *reads;
	struct nfr_chunk *writes;
	struct nfr_chunk *reply;	/* NULL: none */
	u32 error;			/* enum nfr_error, NFR_ERROR only */
	u32 vers_low;			/* NFR_ERR_VERS only */
	u32 vers_high;
};

/* Where nfr_wire_decode() puts chunks and segments: the caller's arrays. */
struct nfr_space {
	struct nfr_chunk *chunks;
	u32 nchunks;
	struct nfr_segment *segs;
	u32 nsegs;
};

/* RFC 8797: sizes in bytes, of the sender of this data */
struct nfr_private {
	bool remote_invalidation;	/* it can receive Send With Invalidate */
	u32 send_size;
	u32 recv_size;
};

size_t nfr_wire_size(const struct nfr_header *head);
int nfr_wire_encode(const struct nfr_header *head, void *buf, size_t room);
int nfr_wire_decode(struct nfr_header *head, const struct nfr_space *space,
		    const void *buf, size_t len);
u32 nfr_wire_length(const struct nfr_chunk *chunk);
bool nfr_wire_is_call(const void *rpc, size_t len);
void nfr_wire_encode_private(const struct nfr_private *priv, u8 *buf);
void nfr_wire_decode_private(struct nfr_private *priv, const u8 *buf, size_t len);

#endif
