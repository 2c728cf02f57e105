// SPDX-License-Identifier: GPL-2.0-only
/*
 * References to the page cache of the server, by file handle and extent.
 *
 * A READ without a reference goes by RPC, and leaves an entry for its extent behind. The
 * server's grant fills the entry: a server cannot add references that nobody asked for. An
 * entry belongs to the credentials that read by RPC, because the server has checked only
 * those; a grant names them by a digest. Half way to the end of a reference, one READ goes by
 * RPC again and renews it. References of a user that are in use take no room from each other:
 * if there are too many, further READs go by RPC. But a user who has fewer than another takes
 * room from that one.
 */
#include <linux/cred.h>
#include <linux/hashtable.h>
#include <linux/random.h>
#include <linux/siphash.h>
#include <linux/slab.h>

#include "client/optimistic/optimistic.h"
#include "connection/credential.h"
#include "gfp.h"

/* Maximum number of entries */
#define NFR_REFERENCES		8192

/* Delay of the next attempt to renew a reference */
#define NFR_REFERENCE_RENEW	HZ

/**
 * struct nfr_reference - entry for an extent of a file
 * @by_file: link in nfr_references.by_file
 * @by_handle: link in nfr_references.by_handle, if @extent has a length
 * @lru: link in @share
 * @share: references of @user
 * @index: number of the extent in the file
 * @user: file-system user ID of @cred; what a search compares first is in one cache line
 * @position: position of the memory in the file, in bytes
 * @extent: memory; its length is 0 if the server has granted nothing
 * @ends: whether the file ends with the memory
 * @renew_at: time of a READ that renews it, in jiffies
 * @expires: in jiffies
 * @cred: credentials
 * @credential: digest of them, as RPC transmits them
 * @fh_length: length of @fh in bytes
 * @fh: file handle
 */
struct nfr_reference {
	struct hlist_node by_file;
	struct hlist_node by_handle;
	struct list_head lru;
	struct nfr_reference_share *share;
	u64 index;
	kuid_t user;
	u64 position;
	struct nfr_segment extent;
	bool ends;
	unsigned long renew_at;
	unsigned long expires;
	const struct cred *cred;
	u64 credential;
	u32 fh_length;
	u8 fh[NFR_WIRE_FH_MAX];
};

/*
 * A user knows the handle of a file and chooses offsets. The secret key keeps that user from
 * filling one bucket, which others would have to search with the lock held.
 */
static struct hlist_head *nfr_client_reference_bucket(struct nfr_references *references,
						      const u8 *fh, u32 length, u64 index)
{
	u32 hash = hsiphash_3u32(hsiphash(fh, length, &references->key), lower_32_bits(index),
				 upper_32_bits(index), &references->key);

	return &references->by_file[hash_32(hash, NFR_REFERENCE_BITS)];
}

static struct hlist_head *nfr_client_reference_handles(struct nfr_references *references,
						       u32 handle)
{
	return &references->by_handle[hash_32(handle, NFR_REFERENCE_BITS)];
}

static bool nfr_client_reference_is_of(const struct nfr_reference *reference, const u8 *fh,
				       u32 length, u64 index)
{
	return reference->index == index && reference->fh_length == length &&
	       !memcmp(reference->fh, fh, length);
}

/* Find the entry for a READ, or return NULL. */
static struct nfr_reference *nfr_client_reference_search(struct hlist_head *bucket,
							 const struct nfr_wanted *wanted, u64 index)
{
	struct nfr_reference *reference;

	hlist_for_each_entry(reference, bucket, by_file)
		if (uid_eq(reference->user, wanted->cred->fsuid) &&
		    nfr_client_reference_is_of(reference, wanted->fh, wanted->fh_length, index) &&
		    (reference->cred == wanted->cred || !cred_fscmp(reference->cred, wanted->cred)))
			return reference;
	return NULL;
}

/* The memory may not be read any more; the entry remains. */
static void nfr_client_reference_end(struct nfr_reference *reference)
{
	if (!reference->extent.length)
		return;
	reference->extent.length = 0;
	hlist_del(&reference->by_handle);
}

static void nfr_client_reference_free(struct nfr_references *references,
				      struct nfr_reference *reference)
{
	nfr_client_reference_end(reference);
	hlist_del(&reference->by_file);
	list_del(&reference->lru);
	reference->share->count--;
	put_cred(reference->cred);
	kfree(reference);
	references->count--;
}

static struct nfr_reference_share *nfr_client_reference_share(struct nfr_references *references,
							      kuid_t user)
{
	return &references->shares[hash_32(__kuid_val(user), NFR_REFERENCE_SHARE_BITS)];
}

static bool nfr_client_reference_is_in_use(const struct nfr_reference *reference)
{
	return reference->extent.length && time_before(jiffies, reference->expires);
}

/*
 * Find the entry to free for another one of @share: the oldest one of a user, if it is not in use
 * or if that user has the most, and more than @share. Returns NULL if there is none.
 */
static struct nfr_reference *nfr_client_reference_victim(struct nfr_references *references,
							 const struct nfr_reference_share *share)
{
	struct nfr_reference *oldest, *victim = NULL;
	u32 i, most = share->count + 1;

	for (i = 0; i < ARRAY_SIZE(references->shares); i++) {
		if (!references->shares[i].count)
			continue;
		oldest = list_last_entry(&references->shares[i].lru, struct nfr_reference, lru);
		if (!nfr_client_reference_is_in_use(oldest))
			return oldest;
		if (references->shares[i].count > most) {
			most = references->shares[i].count;
			victim = oldest;
		}
	}
	return victim;
}

/* Make room for an entry of a user. Returns false if that is impossible. */
static bool nfr_client_reference_evict(struct nfr_references *references,
				       const struct nfr_reference_share *share)
{
	struct nfr_reference *victim;

	if (references->count < NFR_REFERENCES)
		return true;
	victim = nfr_client_reference_victim(references, share);
	if (victim)
		nfr_client_reference_free(references, victim);
	return victim;
}

/* Add an entry without memory. */
static void nfr_client_reference_add(struct nfr_references *references, struct hlist_head *bucket,
				     const struct nfr_wanted *wanted, u64 index)
{
	struct nfr_reference_share *share =
		nfr_client_reference_share(references, wanted->cred->fsuid);
	struct nfr_reference *reference;
	struct nfr_read read;

	if (!nfr_wire_decode_read(&read, wanted->call->iov_base, wanted->call->iov_len))
		return;
	if (!nfr_client_reference_evict(references, share))
		return;
	reference = kzalloc(sizeof(*reference), NFR_GFP_COMPLETION);
	if (!reference)
		return;
	reference->index = index;
	reference->user = wanted->cred->fsuid;
	reference->cred = get_cred(wanted->cred);
	reference->credential = nfr_conn_credential_digest(&read, references->token);
	reference->fh_length = wanted->fh_length;
	memcpy(reference->fh, wanted->fh, wanted->fh_length);
	hlist_add_head(&reference->by_file, bucket);
	reference->share = share;
	list_add(&reference->lru, &share->lru);
	share->count++;
	references->count++;
}

/* Check that a reference may be used now. If not, the READ that goes by RPC renews it. */
static bool nfr_client_reference_is_fresh(struct nfr_reference *reference)
{
	if (time_before(jiffies, reference->renew_at))
		return true;
	reference->renew_at = jiffies + NFR_REFERENCE_RENEW;
	if (time_after_eq(jiffies, reference->expires))
		nfr_client_reference_end(reference);
	return false;
}

/* Get the number of bytes that a READ can read, or 0 if it needs others. Sets @eof. */
static u32 nfr_client_reference_covers(const struct nfr_reference *reference,
				       const struct nfr_wanted *wanted, bool *eof)
{
	u64 end = reference->position + reference->extent.length;

	if (!reference->extent.length || wanted->position < reference->position ||
	    wanted->position >= end)
		return 0;
	*eof = reference->ends && wanted->count >= end - wanted->position;
	if (*eof)
		return end - wanted->position;
	return wanted->count <= end - wanted->position ? wanted->count : 0;
}

/**
 * nfr_client_reference_find - find the memory that a READ can read
 * @references: references
 * @wanted: READ
 * @found: output, the memory
 * @eof: output, whether the file ends with it
 *
 * If there is none, the function prepares for a grant.
 *
 * Return: whether there is memory.
 */
bool nfr_client_reference_find(struct nfr_references *references, const struct nfr_wanted *wanted,
			       struct nfr_segment *found, bool *eof)
{
	u64 index = wanted->position >> NFR_UNIT_SHIFT >> references->order;
	struct hlist_head *bucket = nfr_client_reference_bucket(references, wanted->fh,
								wanted->fh_length, index);
	struct nfr_reference *reference;
	u32 count;

	reference = nfr_client_reference_search(bucket, wanted, index);
	if (!reference) {
		nfr_client_reference_add(references, bucket, wanted, index);
		return false;
	}
	list_move(&reference->lru, &reference->share->lru);
	count = nfr_client_reference_covers(reference, wanted, eof);
	if (!count || !nfr_client_reference_is_fresh(reference))
		return false;
	*found = (struct nfr_segment) {
		.handle = reference->extent.handle, .length = count,
		.offset = reference->extent.offset + (wanted->position - reference->position),
	};
	return true;
}

static void nfr_client_reference_fill(struct nfr_references *references,
				      struct nfr_reference *reference,
				      const struct nfr_notice *notice)
{
	unsigned long lifetime = min(notice->lifetime, 3600u) * HZ;

	nfr_client_reference_end(reference);
	reference->position = notice->position;
	reference->extent = notice->extent;
	reference->ends = notice->ends;
	reference->renew_at = jiffies + lifetime / 2;
	reference->expires = jiffies + lifetime;
	hlist_add_head(&reference->by_handle,
		       nfr_client_reference_handles(references, notice->extent.handle));
}

/* Check whether an entry has the memory of a grant. */
static bool nfr_client_reference_matches(const struct nfr_reference *reference,
					 const struct nfr_notice *notice, u64 index)
{
	return reference->extent.offset == notice->extent.offset &&
	       reference->extent.length == notice->extent.length &&
	       reference->position == notice->position &&
	       nfr_client_reference_is_of(reference, notice->fh, notice->fh_length, index);
}

/*
 * Drop the entries of an earlier grant whose handle has come again: the server has revoked it.
 * Other users of this grant keep theirs.
 */
static void nfr_client_reference_replace(struct nfr_references *references,
					 const struct nfr_notice *notice, u64 index)
{
	u32 handle = notice->extent.handle;
	struct nfr_reference *reference;
	struct hlist_node *next;

	hlist_for_each_entry_safe(reference, next,
				  nfr_client_reference_handles(references, handle), by_handle)
		if (reference->extent.handle == handle &&
		    !nfr_client_reference_matches(reference, notice, index))
			nfr_client_reference_end(reference);
}

/**
 * nfr_client_reference_grant - accept a grant, if a READ has prepared for it
 * @references: references
 * @notice: grant
 *
 * Afterwards, no entry has other memory with the same handle.
 */
void nfr_client_reference_grant(struct nfr_references *references,
				const struct nfr_notice *notice)
{
	u64 index = notice->position >> NFR_UNIT_SHIFT >> references->order;
	u64 last = (notice->position + notice->extent.length - 1) >> NFR_UNIT_SHIFT >>
		   references->order;
	struct hlist_head *bucket = nfr_client_reference_bucket(references, notice->fh,
								notice->fh_length, index);
	struct nfr_reference *reference;

	nfr_client_reference_replace(references, notice, index);
	if (index != last)
		return;
	/* RPC transmits 16 groups: credentials that differ only in others have one digest */
	hlist_for_each_entry(reference, bucket, by_file)
		if (reference->credential == notice->credential &&
		    nfr_client_reference_is_of(reference, notice->fh, notice->fh_length, index))
			nfr_client_reference_fill(references, reference, notice);
}

/**
 * nfr_client_reference_drop - do not use memory any more
 * @references: references
 * @handle: its handle
 */
void nfr_client_reference_drop(struct nfr_references *references, u32 handle)
{
	struct hlist_head *bucket = nfr_client_reference_handles(references, handle);
	struct nfr_reference *reference;
	struct hlist_node *next;

	hlist_for_each_entry_safe(reference, next, bucket, by_handle)
		if (reference->extent.handle == handle)
			nfr_client_reference_end(reference);
}

/**
 * nfr_client_references_end - do not use any memory any more; the entries remain
 * @optimist: optimistic reads whose connection is drained, so that no grant comes meanwhile
 *
 * Context: The function takes the lock for a bucket at a time.
 */
void nfr_client_references_end(struct nfr_optimist *optimist)
{
	struct nfr_references *references = &optimist->references;
	struct nfr_reference *reference;
	struct hlist_node *next;
	u32 i;

	for (i = 0; i < ARRAY_SIZE(references->by_handle); i++) {
		spin_lock(&optimist->branches.lock);
		hlist_for_each_entry_safe(reference, next, &references->by_handle[i], by_handle)
			nfr_client_reference_end(reference);
		spin_unlock(&optimist->branches.lock);
	}
}

/**
 * nfr_client_references_destroy - free all entries
 * @references: references, which nothing else uses
 */
void nfr_client_references_destroy(struct nfr_references *references)
{
	struct nfr_reference *reference, *next;
	u32 i;

	for (i = 0; i < ARRAY_SIZE(references->shares); i++)
		list_for_each_entry_safe(reference, next, &references->shares[i].lru, lru)
			nfr_client_reference_free(references, reference);
}

/**
 * nfr_client_references_init - initialize an empty directory
 * @references: references
 * @token: token of the transport
 */
void nfr_client_references_init(struct nfr_references *references, u64 token)
{
	u32 i;

	hash_init(references->by_file);
	hash_init(references->by_handle);
	for (i = 0; i < ARRAY_SIZE(references->shares); i++)
		INIT_LIST_HEAD(&references->shares[i].lru);
	references->token = token;
	get_random_bytes(&references->key, sizeof(references->key));
	/* until a server states another one */
	references->order = NFR_EXTENT_ORDER_MAX;
}
