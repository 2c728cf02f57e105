// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Any bytes at all into the header code: libFuzzer's target, and drive.c's.
 *
 * Every array has the exact size, so that the address sanitizer sees one byte too far.
 */
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool condition)
{
	if (!condition)
		abort();
}

static void *exactly(size_t count, size_t size)
{
	void *array = malloc(count * size);

	check(array || !count);
	return array;
}

static struct nfr_space new_space(u32 chunks, u32 segs)
{
	return (struct nfr_space){
		.chunks = exactly(chunks, sizeof(struct nfr_chunk)),
		.nchunks = chunks,
		.segs = exactly(segs, sizeof(struct nfr_segment)),
		.nsegs = segs,
	};
}

static void free_space(struct nfr_space *space)
{
	free(space->chunks);
	free(space->segs);
}

/* A form of the header */
struct form {
	size_t (*size)(const struct nfr_header *head);
	int (*encode)(const struct nfr_header *head, void *buf, size_t room);
	int (*decode)(struct nfr_header *head, const struct nfr_space *space, const void *buf, size_t len);
};

static const struct form one = { nfr_wire_size, nfr_wire_encode, nfr_wire_decode };
static const struct form of_2003 = { nfr_wire_2003_size, nfr_wire_2003_encode, nfr_wire_2003_decode };

/* What decoding says with room for so much; nothing of the header is kept */
static int verdict(const struct form *form, const uint8_t *data, size_t size, u32 chunks, u32 segs)
{
	struct nfr_space space = new_space(chunks, segs);
	struct nfr_header head;
	int len = form->decode(&head, &space, data, size);

	free_space(&space);
	return len;
}

/* Its segments, all of them read, and none too long */
static u32 walk_chunk(const struct nfr_chunk *chunk)
{
	u64 length = 0;
	u32 i;

	for (i = 0; i < chunk->nsegs; i++)
		length += chunk->segs[i].length;
	check(length == nfr_wire_length(chunk));
	return chunk->nsegs;
}

static u32 walk_lists(const struct nfr_header *head)
{
	u32 segs = 0;
	u32 i;

	for (i = 0; i < head->nreads; i++) {
		check(head->reads[i].position % 4 == 0);
		check(!i || head->reads[i - 1].position < head->reads[i].position);
		segs += walk_chunk(&head->reads[i]);
	}
	for (i = 0; i < head->nwrites; i++)
		segs += walk_chunk(&head->writes[i]);
	if (head->reply)
		segs += walk_chunk(head->reply);
	return segs;
}

/* What was decoded is what its bytes say, and so it encodes to them again */
static void check_encode(const struct form *form, const struct nfr_header *head, const uint8_t *data,
			 size_t len)
{
	u8 *buf = exactly(len, 1);

	check(form->size(head) == len);
	check(form->encode(head, buf, len - 1) == -EMSGSIZE);
	check(form->encode(head, buf, len) == (int)len);
	check(!memcmp(buf, data, len));
	free(buf);
}

/* The space that is needed is enough, and one less is not */
static void check_space(const struct form *form, const struct nfr_header *head, const uint8_t *data,
			size_t size, int len)
{
	u32 chunks = head->nreads + head->nwrites + !!head->reply;
	u32 segs = walk_lists(head);

	check(verdict(form, data, size, chunks, segs) == len);
	if (!chunks)
		return;
	check(verdict(form, data, size, chunks - 1, segs) == -E2BIG);
	if (segs)
		check(verdict(form, data, size, chunks, segs - 1) == -E2BIG);
}

static void check_header(const uint8_t *data, size_t size)
{
	/* a segment takes 16 bytes, an empty chunk 8 */
	struct nfr_space space = new_space(size / 8, size / 16);
	struct nfr_header head;
	int len = nfr_wire_decode(&head, &space, data, size);
	int scant = verdict(&one, data, size, 2, 3);

	check(scant == len || scant == -E2BIG);
	if (len > 0) {
		check((size_t)len <= size);
		check_encode(&one, &head, data, len);
		check_space(&one, &head, data, size, len);
	} else {
		check(len == -EBADMSG || len == -EPROTO || len == -EPROTONOSUPPORT);
	}
	free_space(&space);
}

static void check_header_2003(const uint8_t *data, size_t size)
{
	/* an entry of the list takes 24 bytes */
	struct nfr_space space = new_space(size / 24, size / 24);
	struct nfr_header head;
	int len = nfr_wire_2003_decode(&head, &space, data, size);
	int scant = verdict(&of_2003, data, size, 2, 3);

	check(scant == len || scant == -E2BIG);
	if (len > 0) {
		check((size_t)len <= size);
		check(!head.nwrites && !head.reply);
		check_encode(&of_2003, &head, data, len);
		check_space(&of_2003, &head, data, size, len);
	} else {
		check(len == -EBADMSG || len == -EPROTO || len == -EPROTONOSUPPORT);
	}
	free_space(&space);
}

/* What the header of a message with padding says with room for so much */
static int verdict_padded(const uint8_t *data, size_t size, u32 chunks, u32 segs)
{
	struct nfr_space space = new_space(chunks, segs);
	struct nfr_padding padding;
	struct nfr_header head;
	int len = nfr_wire_padded_decode(&head, &padding, &space, data, size);

	free_space(&space);
	return len;
}

static void check_encode_padded(const struct nfr_header *head, const struct nfr_padding *padding,
				const uint8_t *data, size_t len)
{
	u8 *buf = exactly(len, 1);

	check(nfr_wire_padded_size(head) == len);
	check(nfr_wire_padded_encode(head, padding, buf, len - 1) == -EMSGSIZE);
	check(nfr_wire_padded_encode(head, padding, buf, len) == (int)len);
	check(!memcmp(buf, data, len));
	free(buf);
}

/* Data that was found lies in the message, behind the RPC message, and all of it */
static void check_found(const struct nfr_header *head, const struct nfr_padding *padding, u32 len,
			u32 size)
{
	struct nfr_padded found;

	if (nfr_wire_padded_find(&found, head, padding, len, size))
		return;
	check(found.length && found.length >= padding->thresh);
	check(found.offset == padding->align);
	check((u64)len + found.rpc_length <= found.offset);
	check((u64)found.offset + found.length <= size);
	check(size - found.offset - found.length < 4);
	check(found.position <= found.rpc_length && found.position % 4 == 0);
}

static void check_padded(const uint8_t *data, size_t size)
{
	struct nfr_space space = new_space(size / 8, size / 16);
	struct nfr_padding padding;
	struct nfr_header head;
	int len, scant;

	if (!nfr_wire_is_padded(data, size)) {
		free_space(&space);
		return;
	}
	len = nfr_wire_padded_decode(&head, &padding, &space, data, size);
	scant = verdict_padded(data, size, 2, 3);
	check(scant == len || scant == -E2BIG);
	if (len > 0) {
		check((size_t)len <= size && len <= NFR_WIRE_PADDED_MAX);
		walk_lists(&head);
		check_encode_padded(&head, &padding, data, len);
		check_found(&head, &padding, len, size);
	} else {
		check(len == -EBADMSG);
	}
	free_space(&space);
}

static void check_private(const uint8_t *data, size_t size)
{
	struct nfr_private said, again;
	size_t length;
	u8 *buf;

	nfr_wire_decode_private(&said, data, size);
	check(!said.extended || size >= NFR_WIRE_PRIVATE_MAX);
	check(said.extended || (!said.capabilities && !said.token));
	buf = exactly(said.extended ? NFR_WIRE_PRIVATE_MAX : NFR_WIRE_PRIVATE, 1);
	length = nfr_wire_encode_private(&said, buf);
	nfr_wire_decode_private(&again, buf, length);
	check(said.remote_invalidation == again.remote_invalidation);
	check(said.send_size == again.send_size && said.recv_size == again.recv_size);
	check(said.extended == again.extended && said.capabilities == again.capabilities);
	check(said.token == again.token);
	free(buf);
}

/* Bytes of a notice that count: padding of a file handle may have any value */
static size_t meaning(const struct nfr_notice *notice, size_t len)
{
	return notice->kind == NFR_NOTICE_GRANT ? 48 + notice->fh_length : len;
}

/* A notice encodes to its bytes again, and its numbers are within their limits */
static void check_notice(const uint8_t *data, size_t size)
{
	struct nfr_notice notice;
	int rc = nfr_wire_decode_notice(&notice, data, size);
	u8 *buf;

	if (rc) {
		check(rc == -EBADMSG);
		return;
	}
	check(size <= NFR_WIRE_NOTICE_MAX);
	if (notice.kind == NFR_NOTICE_GRANT) {
		check(notice.fh_length && notice.fh_length <= NFR_WIRE_FH_MAX);
		check(notice.extent.length);
		check(notice.position <= UINT64_MAX - notice.extent.length);
		check(notice.extent.offset <= UINT64_MAX - notice.extent.length);
	} else {
		check(notice.count);
		check(notice.kind == NFR_NOTICE_CREDIT || notice.count <= NFR_WIRE_REVOKED_MAX);
	}
	buf = exactly(size, 1);
	check(nfr_wire_encode_notice(&notice, buf) == size);
	check(!memcmp(buf, data, meaning(&notice, size)));
	free(buf);
}

/* Credential and file handle of a READ lie in the message, with what follows them */
static void check_read(const uint8_t *data, size_t size)
{
	struct nfr_read read;
	size_t at;

	if (!nfr_wire_decode_read(&read, data, size))
		return;
	check(nfr_wire_is_call(data, size));
	check(read.credential == data + 32 && read.credential_length <= 400);
	check(nfr_wire_load32(data + 28) == read.credential_length);
	check(read.credential + read.credential_length < read.fh);
	check(read.fh_length && read.fh_length <= NFR_WIRE_FH_MAX);
	check(read.fh > data && read.fh < data + size);
	at = read.fh - data;
	check(nfr_wire_load32(data + at - 4) == read.fh_length);
	at += (read.fh_length + 3) / 4 * 4;
	check(at + 12 <= size);
	check(nfr_wire_load32(data + at) == read.position >> 32);
	check(nfr_wire_load32(data + at + 4) == (u32)read.position);
	check(nfr_wire_load32(data + at + 8) == read.count);
}

/* A Reply has its xid and its length, whatever they are */
/* Another Reply with the same attributes */
static void check_read_answer(const uint8_t *data, size_t size)
{
	u8 buf[NFR_WIRE_READ_ANSWER];

	if (!nfr_wire_is_read_answer(data, size))
		return;
	check(size == sizeof(buf));
	memcpy(buf, data, sizeof(buf));
	nfr_wire_set_read_answer(buf, 7, 8, true);
	check(nfr_wire_is_read_answer(buf, sizeof(buf)));
	check(!memcmp(buf + 4, data + 4, sizeof(buf) - 16));
}

static void check_read_reply(const uint8_t *data, size_t size)
{
	u8 *buf = exactly(NFR_WIRE_READ_REPLY, 1);

	if (size >= 8) {
		nfr_wire_encode_read_reply(buf, nfr_wire_load32(data), nfr_wire_load32(data + 4),
					   size & 1);
		check(!memcmp(buf, data, 4));
		check(!memcmp(buf + 32, data + 4, 4));
		check(!memcmp(buf + 40, data + 4, 4));
	}
	free(buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_header(data, size);
	check_header_2003(data, size);
	check_padded(data, size);
	check_private(data, size);
	check_notice(data, size);
	check_read(data, size);
	check_read_reply(data, size);
	check_read_answer(data, size);
	check(size >= 8 || !nfr_wire_is_call(data, size));
	return 0;
}
