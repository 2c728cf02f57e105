// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * The two RPC messages of NFSv3 that optimistic and threadless reads need to know: the server
 * finds the file in a READ Call, the client completes a READ with a Reply that the server did not
 * send, and the server repeats the attributes of a Reply (RFC 5531, section 9; RFC 1813, section
 * 3.3.6).
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
/* RFC 5531, appendix A: the longest name of a host, and the most groups */
#define AUTH_NAME_MAX		255
#define AUTH_GROUPS_MAX		16

/* Words before the body of the credential, and those that are the same in all Calls and Replies */
#define CALL_WORDS		8
#define SAME_CALL_WORDS		6
#define SAME_REPLY_WORDS	7

/* Unread part of a message: @at has @left bytes */
struct reader {
	const u8 *at;
	size_t left;
};

/* Take an opaque of at most @max bytes, whose length is the next word. Returns NULL if not. */
static inline const u8 *take_opaque(struct reader *reader, u32 max, u32 *length)
{
	const u8 *body = reader->at + 4;
	size_t size;

	if (reader->left < 4)
		return NULL;
	*length = nfr_wire_load32(reader->at);
	size = 4 + (((size_t)*length + 3) & ~(size_t)3);
	if (*length > max || size > reader->left)
		return NULL;
	reader->at += size;
	reader->left -= size;
	return body;
}

/*
 * Check that the length of a credential is that of its fields: stamp, name of the host, user,
 * group, groups. nfsd ignores the length, and would find the rest of another Call elsewhere.
 */
static inline bool is_credential(const u8 *body, u32 length)
{
	u32 name, groups, at;

	if (length < 20)
		return false;
	name = nfr_wire_load32(body + 4);
	at = 16 + ((name + 3) & ~3u);
	if (name > AUTH_NAME_MAX || at > length - 4)
		return false;
	groups = nfr_wire_load32(body + at);
	return groups <= AUTH_GROUPS_MAX && length == at + 4 + 4 * groups;
}

/* Check the words of a Call of NFSv3 READ with AUTH_SYS, up to the length of the credential. */
static inline bool is_read_call(const u8 *rpc)
{
	const u32 words[SAME_CALL_WORDS] = {
		RPC_CALL, RPC_VERSION, NFS_PROGRAM_NUMBER, NFS_VERSION_3, NFS3_READ,
		AUTH_SYS_FLAVOR,
	};
	u32 i;

	for (i = 0; i < SAME_CALL_WORDS; i++)
		if (nfr_wire_load32(rpc + 4 + 4 * i) != words[i])
			return false;
	return true;
}

/**
 * nfr_wire_decode_read - find the arguments of an NFSv3 READ with AUTH_SYS
 * @read: output; @credential and @fh point into @rpc
 * @rpc: start of an RPC message
 * @len: its length in bytes
 *
 * Return: false if the message is another one, or incomplete, or if nfsd would refuse its
 * credential or its verifier.
 */
bool nfr_wire_decode_read(struct nfr_read *read, const u8 *rpc, size_t len)
{
	struct reader reader = { .at = rpc + 4 * (CALL_WORDS - 1) };

	if (len < 4 * CALL_WORDS || !is_read_call(rpc))
		return false;
	reader.left = len - 4 * (CALL_WORDS - 1);
	read->credential = take_opaque(&reader, AUTH_BYTES_MAX, &read->credential_length);
	if (!read->credential || !is_credential(read->credential, read->credential_length))
		return false;
	/* the verifier is AUTH_NONE, which is empty */
	if (reader.left < 8 || nfr_wire_load32(reader.at) || nfr_wire_load32(reader.at + 4))
		return false;
	reader.at += 8;
	reader.left -= 8;
	read->fh = take_opaque(&reader, NFR_WIRE_FH_MAX, &read->fh_length);
	if (!read->fh || !read->fh_length || reader.left < 12)
		return false;
	read->position = (u64)nfr_wire_load32(reader.at) << 32 | nfr_wire_load32(reader.at + 4);
	read->count = nfr_wire_load32(reader.at + 8);
	return true;
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

/**
 * nfr_wire_is_read_answer - check for the Reply to a successful NFSv3 READ, with attributes
 * @rpc: RPC message up to its data
 * @len: length of that in bytes
 *
 * Return: true if it is, with a verifier AUTH_NONE.
 */
bool nfr_wire_is_read_answer(const u8 *rpc, size_t len)
{
	/* accepted; verifier AUTH_NONE; success; NFS3_OK; attributes follow */
	const u32 words[SAME_REPLY_WORDS] = { RPC_REPLY, 0, 0, 0, 0, 0, 1 };
	u32 i;

	if (len != NFR_WIRE_READ_ANSWER)
		return false;
	for (i = 0; i < SAME_REPLY_WORDS; i++)
		if (nfr_wire_load32(rpc + 4 + 4 * i) != words[i])
			return false;
	return true;
}

/**
 * nfr_wire_set_read_answer - set what a Reply to a READ has beside its attributes
 * @rpc: message for which nfr_wire_is_read_answer() is true
 * @xid: XID of the Call
 * @count: length of the data in bytes
 * @eof: whether the file ends with the data
 */
void nfr_wire_set_read_answer(u8 *rpc, u32 xid, u32 count, bool eof)
{
	nfr_wire_store32(rpc, xid);
	nfr_wire_store32(rpc + NFR_WIRE_READ_ANSWER - 12, count);
	nfr_wire_store32(rpc + NFR_WIRE_READ_ANSWER - 8, eof);
	nfr_wire_store32(rpc + NFR_WIRE_READ_ANSWER - 4, count);
}
