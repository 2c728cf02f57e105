// SPDX-License-Identifier: GPL-2.0-only
/*
 * The two RPC messages of NFSv3 that optimistic reads need to know: the server finds
 * the file in a READ Call, and the client completes a READ with a Reply that the server
 * did not send (RFC 5531, section 9; RFC 1813, section 3.3.6).
 */
#include "wire/wire.h"

#define RPC_CALL		0
#define RPC_REPLY		1
#define RPC_VERSION		2
#define NFS_PROGRAM_NUMBER	100003
#define NFS_VERSION_3		3
#define NFS3_READ		6
#define AUTH_SYS_FLAVOR		1
#define AUTH_BYTES_MAX		400	/* RFC 5531, section 8.2 */

/* Read position in a message; @left is in bytes */
struct reader {
	const u8 *at;
	size_t left;
	bool failed;
};

static const u8 *take(struct reader *reader, size_t length)
{
	const u8 *at = reader->at;

	if (reader->failed || reader->left < length) {
		reader->failed = true;
		return NULL;
	}
	reader->at += length;
	reader->left -= length;
	return at;
}

/* Returns 0 after the end of the message, which @failed records. */
static u32 take32(struct reader *reader)
{
	const u8 *at = take(reader, 4);

	return at ? nfr_wire_load32(at) : 0;
}

/* Take an opaque of at most @max bytes. Sets its length. */
static const u8 *take_opaque(struct reader *reader, u32 max, u32 *length)
{
	*length = take32(reader);
	if (*length > max) {
		reader->failed = true;
		return NULL;
	}
	return take(reader, (*length + 3) & ~3u);
}

/* Take the header of a Call of NFSv3 READ with AUTH_SYS. Sets the credential of @read. */
static bool take_read_header(struct reader *reader, struct nfr_read *read)
{
	u32 length;

	take32(reader);
	if (take32(reader) != RPC_CALL || take32(reader) != RPC_VERSION ||
	    take32(reader) != NFS_PROGRAM_NUMBER || take32(reader) != NFS_VERSION_3 ||
	    take32(reader) != NFS3_READ || take32(reader) != AUTH_SYS_FLAVOR)
		return false;
	read->credential = take_opaque(reader, AUTH_BYTES_MAX, &read->credential_length);
	take32(reader);
	take_opaque(reader, AUTH_BYTES_MAX, &length);
	return !reader->failed;
}

/**
 * nfr_wire_decode_read - find the arguments of an NFSv3 READ with AUTH_SYS
 * @read: output; @credential and @fh point into @rpc
 * @rpc: start of an RPC message
 * @len: its length in bytes
 *
 * Return: false if the message is another one, or incomplete.
 */
bool nfr_wire_decode_read(struct nfr_read *read, const u8 *rpc, size_t len)
{
	struct reader reader = { .at = rpc, .left = len };

	if (!take_read_header(&reader, read))
		return false;
	read->fh = take_opaque(&reader, NFR_WIRE_FH_MAX, &read->fh_length);
	read->position = (u64)take32(&reader) << 32;
	read->position |= take32(&reader);
	read->count = take32(&reader);
	return !reader.failed && read->fh_length;
}

/**
 * nfr_wire_encode_read_reply - encode the Reply to an NFSv3 READ, up to its data
 * @buf: output buffer of NFR_WIRE_READ_REPLY bytes
 * @xid: XID of the Call
 * @count: length of the data in bytes
 * @eof: whether the file ends with the data
 *
 * The Reply has no attributes.
 */
void nfr_wire_encode_read_reply(u8 *buf, u32 xid, u32 count, bool eof)
{
	/* accepted; verifier AUTH_NONE; success; NFS3_OK; no attributes */
	const u32 words[NFR_WIRE_READ_REPLY / 4] = {
		xid, RPC_REPLY, 0, 0, 0, 0, 0, 0, count, eof, count,
	};
	u32 i;

	for (i = 0; i < NFR_WIRE_READ_REPLY / 4; i++)
		nfr_wire_store32(buf + 4 * i, words[i]);
}
