// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Encode and decode notices: the messages on the branch of a transport with
 * the personality optimistic. All fields are XDR words (RFC 4506).
 *
 *   a server grants a reference   1, lifetime in seconds, position of the extent in the
 *                                 file (2 words), segment (handle, length, offset in
 *                                 2 words), 1 if the file ends with the extent, else 0,
 *                                 digest of the credential of the READ (2 words), file
 *                                 handle (length, bytes, padding)
 *   a server revokes references   2, number of handles, handles
 *   a client returns credits      3, number of notices that it has handled
 */
#include "wire/wire.h"

#define GRANT_FIXED	48	/* bytes of a grant before the file handle */

static u32 padded(u32 length)
{
	return (length + 3) & ~3u;
}

static void store64(u8 *at, u64 value)
{
	nfr_wire_store32(at, value >> 32);
	nfr_wire_store32(at + 4, (u32)value);
}

static u64 load64(const u8 *at)
{
	return (u64)nfr_wire_load32(at) << 32 | nfr_wire_load32(at + 4);
}

static void copy(u8 *to, const u8 *from, u32 length)
{
	u32 i;

	for (i = 0; i < length; i++)
		to[i] = from[i];
}

static size_t encode_grant(const struct nfr_notice *notice, u8 *buf)
{
	u32 i, length = notice->fh_length;

	nfr_wire_store32(buf + 4, notice->lifetime);
	store64(buf + 8, notice->position);
	nfr_wire_store32(buf + 16, notice->extent.handle);
	nfr_wire_store32(buf + 20, notice->extent.length);
	store64(buf + 24, notice->extent.offset);
	nfr_wire_store32(buf + 32, notice->ends);
	store64(buf + 36, notice->credential);
	nfr_wire_store32(buf + 44, length);
	copy(buf + GRANT_FIXED, notice->fh, length);
	for (i = length; i < padded(length); i++)
		buf[GRANT_FIXED + i] = 0;
	return GRANT_FIXED + padded(length);
}

static int decode_grant(struct nfr_notice *notice, const u8 *buf, size_t len)
{
	if (len < GRANT_FIXED)
		return -EBADMSG;
	notice->lifetime = nfr_wire_load32(buf + 4);
	notice->position = load64(buf + 8);
	notice->extent.handle = nfr_wire_load32(buf + 16);
	notice->extent.length = nfr_wire_load32(buf + 20);
	notice->extent.offset = load64(buf + 24);
	notice->ends = nfr_wire_load32(buf + 32);
	notice->credential = load64(buf + 36);
	notice->fh_length = nfr_wire_load32(buf + 44);
	if (nfr_wire_load32(buf + 32) > 1 || !notice->fh_length ||
	    notice->fh_length > NFR_WIRE_FH_MAX ||
	    len != GRANT_FIXED + padded(notice->fh_length))
		return -EBADMSG;
	/* the extent lies in the file, and in the address space of the peer */
	if (!notice->extent.length ||
	    notice->position + notice->extent.length < notice->position ||
	    notice->extent.offset + notice->extent.length < notice->extent.offset)
		return -EBADMSG;
	copy(notice->fh, buf + GRANT_FIXED, notice->fh_length);
	return 0;
}

static size_t encode_revoke(const struct nfr_notice *notice, u8 *buf)
{
	u32 i;

	nfr_wire_store32(buf + 4, notice->count);
	for (i = 0; i < notice->count; i++)
		nfr_wire_store32(buf + 8 + 4 * i, notice->handles[i]);
	return 8 + 4 * notice->count;
}

static int decode_revoke(struct nfr_notice *notice, const u8 *buf, size_t len)
{
	u32 i;

	notice->count = nfr_wire_load32(buf + 4);
	if (!notice->count || notice->count > NFR_WIRE_REVOKED_MAX ||
	    len != 8 + 4 * (size_t)notice->count)
		return -EBADMSG;
	for (i = 0; i < notice->count; i++)
		notice->handles[i] = nfr_wire_load32(buf + 8 + 4 * i);
	return 0;
}

/**
 * nfr_wire_encode_notice - encode a notice
 * @notice: notice; @fh_length and @count are within their limits
 * @buf: output buffer of NFR_WIRE_NOTICE_MAX bytes
 *
 * Return: length of the message in bytes.
 */
size_t nfr_wire_encode_notice(const struct nfr_notice *notice, u8 *buf)
{
	nfr_wire_store32(buf, notice->kind);
	switch (notice->kind) {
	case NFR_NOTICE_GRANT:
		return encode_grant(notice, buf);
	case NFR_NOTICE_REVOKE:
		return encode_revoke(notice, buf);
	default:
		nfr_wire_store32(buf + 4, notice->count);
		return 8;
	}
}

/**
 * nfr_wire_decode_notice - decode a notice
 * @notice: output; only the fields of its kind are set
 * @buf: message of the peer
 * @len: its length in bytes
 *
 * Return: 0, or -EBADMSG if the message is none.
 */
int nfr_wire_decode_notice(struct nfr_notice *notice, const u8 *buf, size_t len)
{
	if (len < 8)
		return -EBADMSG;
	notice->kind = nfr_wire_load32(buf);
	switch (notice->kind) {
	case NFR_NOTICE_GRANT:
		return decode_grant(notice, buf, len);
	case NFR_NOTICE_REVOKE:
		return decode_revoke(notice, buf, len);
	case NFR_NOTICE_CREDIT:
		notice->count = nfr_wire_load32(buf + 4);
		return len == 8 && notice->count ? 0 : -EBADMSG;
	default:
		return -EBADMSG;
	}
}
