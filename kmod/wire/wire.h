/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Encoder and decoder for the RPC-over-RDMA version 1 transport header (RFC
 * 8166), for messages with padding (RFC 5666), for the header of 2003, for the
 * private data of RFC 8797, and for the notices and the RPC messages of optimistic
 * reads.
 *
 * These files do not use verbs, allocate memory or sleep. They also compile in user
 * space, where tests/wire fuzzes them.
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

/* rdma_vers: RFC 8166, section 4.1 */
#define NFR_WIRE_VERSION	1

/* Smallest header with chunk lists: seven XDR words, RFC 8166, section 4.2 */
#define NFR_WIRE_MIN		28

/* The header of 2003, see header2003.c: its version, the smallest one with a chunk list, a Done */
#define NFR_WIRE_2003_VERSION	0
#define NFR_WIRE_2003_MIN	20
#define NFR_WIRE_2003_DONE	16

/* Longest header of a message with padding, see padded.c */
#define NFR_WIRE_PADDED_MAX	256

/* Bytes of CM private data: RFC 8797, section 4; the extension of this module; both */
#define NFR_WIRE_PRIVATE	8
#define NFR_WIRE_EXTENSION	20
#define NFR_WIRE_PRIVATE_MAX	(NFR_WIRE_PRIVATE + NFR_WIRE_EXTENSION)

/*
 * Notices, see notice.c: longest file handle (RFC 1813, section 2.3.3), most handles, and
 * bytes
 */
#define NFR_WIRE_FH_MAX		64
#define NFR_WIRE_REVOKED_MAX	16
#define NFR_WIRE_NOTICE_MAX	112

/* Reply to an NFSv3 READ without attributes, up to its data: see nfs3.c */
#define NFR_WIRE_READ_REPLY	44

/* The same with attributes (fattr3: RFC 1813, section 2.5) */
#define NFR_WIRE_READ_ANSWER	(NFR_WIRE_READ_REPLY + 84)

/* RDMA segment on the wire: handle, length, offset (RFC 8166, section 3.4.2) */
#define NFR_WIRE_SEGMENT	16

/* rdma_proc: RFC 8166, section 4.2.4 */
enum nfr_proc {
	NFR_MSG		= 0,	/* the RPC message follows the header */
	NFR_NOMSG	= 1,	/* a chunk conveys the RPC message */
	NFR_MSGP	= 2,	/* RFC 5666 only, see padded.c */
	NFR_DONE	= 3,	/* RFC 5666, and the header of 2003 */
	NFR_ERROR	= 4,
};

/* rdma_err: RFC 8166, section 4.5 */
enum nfr_error {
	NFR_ERR_VERS	= 1,
	NFR_ERR_CHUNK	= 2,
};

/* RDMA segment: memory that the peer may access (RFC 8166, section 3.4.2). @length is in bytes. */
struct nfr_segment {
	u32 handle;
	u32 length;
	u64 offset;
};

/*
 * A chunk: one data item or a whole message, conveyed by RDMA. @position is in
 * bytes of the unreduced XDR stream and valid in Read lists only.
 */
struct nfr_chunk {
	u32 position;
	u32 nsegs;
	struct nfr_segment *segs;
};

/* Transport header in host byte order. Only NFR_MSG and NFR_NOMSG have chunk lists. */
struct nfr_header {
	u32 xid;
	u32 version;
	u32 credits;
	u32 proc;
	u32 nreads;
	u32 nwrites;
	struct nfr_chunk *reads;
	struct nfr_chunk *writes;
	struct nfr_chunk *reply;	/* NULL if there is none */
	u32 error;			/* enum nfr_error; NFR_ERROR only */
	u32 vers_low;			/* NFR_ERR_VERS only */
	u32 vers_high;
};

/* What the header of a message with padding has in addition; in bytes */
struct nfr_padding {
	u32 align;		/* the data begins at this offset of the message */
	u32 thresh;		/* the sender pads data of this length or more */
};

/* Data of such a message, in bytes */
struct nfr_padded {
	u32 position;		/* in the RPC message; Calls only */
	u32 offset;		/* in the message */
	u32 length;
	u32 rpc_length;		/* of the RPC message without the data */
};

/* Arrays of the caller, in which nfr_wire_decode() stores chunks and segments */
struct nfr_space {
	struct nfr_chunk *chunks;
	u32 nchunks;
	struct nfr_segment *segs;
	u32 nsegs;
};

/*
 * Private data of RFC 8797; sizes are in bytes, from the sender's point of view.
 * The extension follows it. A peer that does not know the extension ignores it.
 */
struct nfr_private {
	bool remote_invalidation;	/* the sender accepts Send With Invalidate */
	bool extended;			/* the sender knows the extension */
	bool given;			/* the sender sent private data; decoding only */
	u32 send_size;
	u32 recv_size;
	u32 capabilities;		/* personalities; one bit each, see nfr_personality_bit() */
	u64 token;			/* the same for all queue pairs of a transport */
};

/* First word of a notice */
enum nfr_notice_kind {
	NFR_NOTICE_GRANT	= 1,
	NFR_NOTICE_REVOKE	= 2,
	NFR_NOTICE_CREDIT	= 3,
};

/* Notice of the personality optimistic; lengths and positions are in bytes */
struct nfr_notice {
	u32 kind;			/* enum nfr_notice_kind */
	u32 lifetime;			/* of a grant, in seconds */
	bool ends;			/* the file ends with the granted extent */
	u64 position;			/* of the granted extent in the file */
	struct nfr_segment extent;	/* memory that the client may read */
	u64 credential;			/* digest, see connection/credential.h */
	u32 fh_length;
	u8 fh[NFR_WIRE_FH_MAX];		/* file handle */
	u32 count;			/* of @handles, or of notices that were handled */
	u32 handles[NFR_WIRE_REVOKED_MAX];
};

/* Arguments of an NFSv3 READ (RFC 1813, section 3.3.6) */
struct nfr_read {
	const u8 *credential;	/* body of AUTH_SYS (RFC 5531, appendix A) */
	u32 credential_length;
	const u8 *fh;
	u32 fh_length;
	u32 count;		/* bytes */
	u64 position;		/* bytes */
};

size_t nfr_wire_size(const struct nfr_header *head);
int nfr_wire_encode(const struct nfr_header *head, void *buf, size_t room);
int nfr_wire_decode(struct nfr_header *head, const struct nfr_space *space,
		    const void *buf, size_t len);
size_t nfr_wire_2003_size(const struct nfr_header *head);
int nfr_wire_2003_encode(const struct nfr_header *head, void *buf, size_t room);
int nfr_wire_2003_decode(struct nfr_header *head, const struct nfr_space *space,
			 const void *buf, size_t len);
size_t nfr_wire_padded_size(const struct nfr_header *head);
int nfr_wire_padded_encode(const struct nfr_header *head, const struct nfr_padding *padding,
			   void *buf, size_t room);
bool nfr_wire_is_padded(const void *buf, size_t len);
int nfr_wire_padded_decode(struct nfr_header *head, struct nfr_padding *padding,
			   const struct nfr_space *space, const void *buf, size_t len);
int nfr_wire_padded_find(struct nfr_padded *data, const struct nfr_header *head,
			 const struct nfr_padding *padding, u32 size, u32 len);
u32 nfr_wire_length(const struct nfr_chunk *chunk);
bool nfr_wire_is_call(const void *rpc, size_t len);
size_t nfr_wire_encode_private(const struct nfr_private *priv, u8 *buf);
void nfr_wire_decode_private(struct nfr_private *priv, const u8 *buf, size_t len);
size_t nfr_wire_encode_notice(const struct nfr_notice *notice, u8 *buf);
int nfr_wire_decode_notice(struct nfr_notice *notice, const u8 *buf, size_t len);
bool nfr_wire_decode_read(struct nfr_read *read, const u8 *rpc, size_t len);
void nfr_wire_encode_read_reply(u8 *buf, u32 xid, u32 count, bool eof);
bool nfr_wire_is_read_answer(const u8 *rpc, size_t len);
void nfr_wire_set_read_answer(u8 *rpc, u32 xid, u32 count, bool eof);

/* Access to XDR words (RFC 4506) by byte, because they may be unaligned */

static inline u32 nfr_wire_load32(const u8 *at)
{
	return (u32)at[0] << 24 | (u32)at[1] << 16 | (u32)at[2] << 8 | at[3];
}

static inline void nfr_wire_store32(u8 *at, u32 value)
{
	at[0] = value >> 24;
	at[1] = value >> 16 & 0xff;
	at[2] = value >> 8 & 0xff;
	at[3] = value & 0xff;
}

/* Returns the address behind the word */
static inline u8 *nfr_wire_put32(u8 *at, u32 value)
{
	nfr_wire_store32(at, value);
	return at + 4;
}

#endif
