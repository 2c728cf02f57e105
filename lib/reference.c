// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * References to the page cache of the server, by file handle and extent.
 *
 * The rules are those of the module's client (kmod/client/optimistic/reference.c).  A READ without a reference
 * goes by RPC and leaves an entry for its extent behind; only the server's grant fills it: a server cannot add references that
 * nobody requested.  A grant names by a digest the credential for which nfsd has executed the READ; a session
 * has one credential.  Half way to the end of a reference, one READ goes by RPC again and renews it.
 *
 * Entries are the "empty headers" of DAFS: they have no data, and there are many more of them than a cache of the
 * data has blocks.  The entry that was used least recently makes room for another one, unless its reference is
 * valid: if all are, further READs go by RPC.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

/* Milliseconds until the next attempt to renew a reference; longest lifetime in seconds */
#define RENEW_AGAIN	1000
#define LIFETIME_MAX	3600U

/* --- SipHash-2-4 --- */

static uint64_t rotated(uint64_t word, unsigned int bits)
{
	return word << bits | word >> (64 - bits);
}

static void sip_rounds(uint64_t v[4], unsigned int count)
{
	while (count--) {
		v[0] += v[1];
		v[1] = rotated(v[1], 13) ^ v[0];
		v[0] = rotated(v[0], 32);
		v[2] += v[3];
		v[3] = rotated(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = rotated(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = rotated(v[1], 17) ^ v[2];
		v[2] = rotated(v[2], 32);
	}
}

static uint64_t word_of(const uint8_t *bytes, size_t count)
{
	uint64_t word = 0;
	size_t i;

	for (i = 0; i < count; i++)
		word |= (uint64_t)bytes[i] << 8 * i;
	return word;
}

/* Digest of a credential as RPC transmits it: kmod/connection/credential.h; the key is @token and 0 */
uint64_t reference_digest(const uint8_t *body, size_t length, uint64_t token)
{
	uint64_t v[4] = {
		0x736f6d6570736575ULL ^ token, 0x646f72616e646f6dULL, 0x6c7967656e657261ULL ^ token,
		0x7465646279746573ULL,
	};
	size_t at, rest = length % 8;
	uint64_t word;

	for (at = 0; at < length - rest; at += 8) {
		word = word_of(body + at, 8);
		v[3] ^= word;
		sip_rounds(v, 2);
		v[0] ^= word;
	}
	word = (uint64_t)length << 56 | word_of(body + at, rest);
	v[3] ^= word;
	sip_rounds(v, 2);
	v[0] ^= word;
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* --- the tables --- */

static struct reference **bucket_of_file(struct references *references, const uint8_t *fh, uint32_t length,
					 uint64_t index)
{
	const uint64_t factor = 0x9e3779b97f4a7c15ULL;
	uint64_t hash = index, word;

	/* eight bytes at a time: a READ spends more on its handle than on all else here */
	for (; length >= sizeof(word); fh += sizeof(word), length -= sizeof(word)) {
		memcpy(&word, fh, sizeof(word));
		hash = (hash ^ word) * factor;
		hash ^= hash >> 32;
	}
	hash = (hash ^ word_of(fh, length)) * factor;
	return &references->by_file[(hash >> 32) % REFERENCE_HASHES];
}

static struct reference **bucket_of_handle(struct references *references, uint32_t handle)
{
	return &references->by_handle[(handle ^ handle >> 10 ^ handle >> 20) % REFERENCE_HASHES];
}

static bool is_of(const struct reference *reference, const uint8_t *fh, uint32_t length, uint64_t index)
{
	return reference->index == index && reference->fh_length == length &&
	       !memcmp(reference->fh, fh, length);
}

/* The memory may not be read any more; the entry remains */
static void end_reference(struct references *references, struct reference *reference)
{
	struct reference **at;

	if (!reference->extent.length)
		return;
	reference->extent.length = 0;
	at = bucket_of_handle(references, reference->extent.handle);
	while (*at != reference)
		at = &(*at)->next_of_handle;
	*at = reference->next_of_handle;
}

static void release_reference(struct references *references, struct reference *reference)
{
	struct reference **at = bucket_of_file(references, reference->fh, reference->fh_length,
					       reference->index);

	end_reference(references, reference);
	TAILQ_REMOVE(&references->uses, reference, uses);
	while (*at != reference)
		at = &(*at)->next_of_file;
	*at = reference->next_of_file;
	reference->next_of_file = references->unused;
	references->unused = reference;
}

/* Add an entry without memory, if there is room */
static void add_reference(struct references *references, const struct nfsrdma_file *file, uint64_t index, uint64_t now)
{
	struct reference *reference = TAILQ_LAST(&references->uses, reference_uses), **bucket;

	if (!references->unused && references->used < REFERENCES)
		references->unused = &references->all[references->used++];
	else if (!references->unused && (!reference->extent.length || now >= reference->expires))
		release_reference(references, reference);
	reference = references->unused;
	if (!reference)
		return;
	references->unused = reference->next_of_file;
	bucket = bucket_of_file(references, file->fh.bytes, file->fh.length, index);
	*reference = (struct reference){
		.next_of_file = *bucket, .index = index, .fh_length = file->fh.length,
	};
	memcpy(reference->fh, file->fh.bytes, file->fh.length);
	*bucket = reference;
	TAILQ_INSERT_HEAD(&references->uses, reference, uses);
}

/* Bytes of a READ that the memory has; 0 if the READ needs others.  Sets @eof. */
static uint32_t covers(const struct reference *reference, uint64_t position, uint32_t count, bool *eof)
{
	uint64_t last = reference->position + reference->extent.length;

	if (!reference->extent.length || position < reference->position || position >= last)
		return 0;
	*eof = reference->ends && count >= last - position;
	if (*eof)
		return last - position;
	return count <= last - position ? count : 0;
}

/**
 * reference_find - find the memory that a READ can read
 * @references: directory
 * @file: file
 * @position: of the READ
 * @count: bytes
 * @now: milliseconds of the clock
 * @found: gets the memory
 * @eof: gets whether the file ends with it
 *
 * If there is none, the function prepares for a grant.
 *
 * Return: REFERENCE_FOUND, or why there is none.
 */
enum reference_answer reference_find(struct references *references, const struct nfsrdma_file *file,
				     uint64_t position, uint32_t count, uint64_t now,
				     struct nfr_segment *found, bool *eof)
{
	uint64_t index = position >> references->shift;
	struct reference *reference;
	uint32_t bytes;

	if (file->fh.length > NFR_WIRE_FH_MAX)
		return REFERENCE_NONE;
	reference = *bucket_of_file(references, file->fh.bytes, file->fh.length, index);
	while (reference && !is_of(reference, file->fh.bytes, file->fh.length, index))
		reference = reference->next_of_file;
	if (!reference) {
		add_reference(references, file, index, now);
		return REFERENCE_NONE;
	}
	if (reference != TAILQ_FIRST(&references->uses)) {
		TAILQ_REMOVE(&references->uses, reference, uses);
		TAILQ_INSERT_HEAD(&references->uses, reference, uses);
	}
	bytes = covers(reference, position, count, eof);
	if (!bytes)
		return REFERENCE_NONE;
	if (now >= reference->renew_at) {
		reference->renew_at = now + RENEW_AGAIN;
		if (now >= reference->expires)
			end_reference(references, reference);
		return REFERENCE_OLD;
	}
	*found = (struct nfr_segment){
		.handle = reference->extent.handle, .length = bytes,
		.offset = reference->extent.offset + (position - reference->position),
	};
	return REFERENCE_FOUND;
}

/* --- what the server says --- */

/**
 * reference_grant - accept a grant, if a READ has prepared for it
 * @references: directory
 * @notice: grant
 * @now: milliseconds of the clock
 *
 * Afterwards, no entry has other memory with the same key: the server has ended that.
 */
void reference_grant(struct references *references, const struct nfr_notice *notice, uint64_t now)
{
	uint64_t lifetime = (notice->lifetime < LIFETIME_MAX ? notice->lifetime : LIFETIME_MAX) * 1000ULL;
	uint64_t index = notice->position >> references->shift;
	uint64_t last = (notice->position + notice->extent.length - 1) >> references->shift;
	struct reference *reference, **bucket;

	reference_drop(references, notice->extent.handle);
	if (index != last || notice->credential != references->credential)
		return;
	reference = *bucket_of_file(references, notice->fh, notice->fh_length, index);
	while (reference && !is_of(reference, notice->fh, notice->fh_length, index))
		reference = reference->next_of_file;
	if (!reference)
		return;
	end_reference(references, reference);
	references->accepted++;
	reference->position = notice->position;
	reference->extent = notice->extent;
	reference->ends = notice->ends;
	reference->renew_at = now + lifetime / 2;
	reference->expires = now + lifetime;
	bucket = bucket_of_handle(references, notice->extent.handle);
	reference->next_of_handle = *bucket;
	*bucket = reference;
}

/* Do not use the memory with this key any more; returns the number of references to it */
uint32_t reference_drop(struct references *references, uint32_t handle)
{
	struct reference *reference = *bucket_of_handle(references, handle), *next;
	uint32_t count = 0;

	for (; reference; reference = next) {
		next = reference->next_of_handle;
		if (reference->extent.handle != handle)
			continue;
		end_reference(references, reference);
		count++;
	}
	return count;
}

/* Do not use memory of this file any more */
void references_drop_file(struct references *references, const struct nfs_fh *fh)
{
	struct reference *reference;

	TAILQ_FOREACH(reference, &references->uses, uses)
		if (reference->fh_length == fh->length && !memcmp(reference->fh, fh->bytes, fh->length))
			end_reference(references, reference);
}

/*
 * A write begins or ends: the server ends the references to the file, and its notice may be on its way.  Without a
 * grant since the last write, there are none.
 */
void references_written(struct references *references, struct nfsrdma_file *file)
{
	if (file->dropped == references->accepted)
		return;
	references_drop_file(references, &file->fh);
	file->dropped = references->accepted;
}

/* Do not use any memory any more: the connection has ended.  The entries remain. */
void references_end(struct references *references)
{
	struct reference *reference;

	TAILQ_FOREACH(reference, &references->uses, uses)
		end_reference(references, reference);
}

/* --- life --- */

bool references_allocate(struct references *references)
{
	TAILQ_INIT(&references->uses);
	/* the pages that hold entries come with their first use */
	references->all = calloc(REFERENCES, sizeof(*references->all));
	return references->all;
}

void references_free(struct references *references)
{
	free(references->all);
}
