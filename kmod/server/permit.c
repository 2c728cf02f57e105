// SPDX-License-Identifier: GPL-2.0-only
/*
 * Permits for threadless reads: which READs nfsd has allowed in the last second, see threadless.c.
 *
 * A client has a table of permits, which its lock protects with the inodes of their watches: a
 * permit leaves the table before its watch releases the inode. Changes also need
 * nfr_svc_grants_lock, in which the lock nests, and which protects the lists of permits.
 */
#include <linux/hash.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "gfp.h"
#include "server/optimistic.h"
#include "server/permit.h"

/* All permits; nfr_svc_grants_lock protects both */
static LIST_HEAD(nfr_svc_permits_all);
static u32 nfr_svc_permits_count;

/* --- look-ups --- */

/*
 * Sum up a key, which has 8 bytes or more. A client that finds keys with one sum shortens its own
 * sets only.
 */
static u32 nfr_svc_permit_set(const u8 *key, u32 length)
{
	u64 sum = length;
	u32 i;

	for (i = 0; i + 8 <= length; i += 8)
		sum = (sum ^ get_unaligned((const u64 *)(key + i))) * GOLDEN_RATIO_64;
	if (i < length)
		sum = (sum ^ get_unaligned((const u64 *)(key + length - 8))) * GOLDEN_RATIO_64;
	return sum >> 58;
}

/**
 * nfr_svc_permit_asks - find out which permit a Call needs
 * @asked: output
 * @rpc: RPC message
 * @rpc_length: its length in bytes
 *
 * Return: false if the Call is no NFSv3 READ with AUTH_SYS.
 */
bool nfr_svc_permit_asks(struct nfr_svc_asked *asked, const u8 *rpc, u32 rpc_length)
{
	struct nfr_read *read = &asked->read;

	BUILD_BUG_ON(NFR_SVC_PERMIT_SETS != 1 << (64 - 58));
	if (!nfr_wire_decode_read(read, rpc, rpc_length))
		return false;
	/* the length of the credential says where the file handle begins */
	asked->key = read->credential - 4;
	asked->length = read->fh + read->fh_length - asked->key;
	asked->set = nfr_svc_permit_set(asked->key, asked->length) * NFR_SVC_PERMIT_WAYS;
	return true;
}

/**
 * nfr_svc_permit_find - find a permit
 * @permits: permits of a client; the caller holds the lock of the table, or that of changes
 * @asked: READ
 *
 * Return: permit, which may have ended, or NULL.
 */
struct nfr_svc_permit *nfr_svc_permit_find(struct nfr_svc_permits *permits,
					   const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permit *permit;
	u32 i;

	for (i = 0; i < NFR_SVC_PERMIT_WAYS; i++) {
		permit = permits->table[asked->set + i];
		if (permit && permit->length == asked->length &&
		    !memcmp(permit->key, asked->key, asked->length))
			return permit;
	}
	return NULL;
}

/**
 * nfr_svc_permit_is_fresh - check for a permit that is not due for renewal
 * @permits: permits of a client
 * @asked: READ
 *
 * Return: true if this READ needs to make none.
 */
bool nfr_svc_permit_is_fresh(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permit *permit;
	bool fresh;

	spin_lock_bh(&permits->lock);
	permit = nfr_svc_permit_find(permits, asked);
	fresh = permit && time_before(jiffies + NFR_SVC_PERMIT_FRESH, permit->until);
	spin_unlock_bh(&permits->lock);
	return fresh;
}

/* --- changes; callers hold nfr_svc_grants_lock --- */

/* Take a permit out of its table, and free it: no READ uses it any more. */
static void nfr_svc_permit_remove(struct nfr_svc_permit *permit)
{
	spin_lock(&permit->permits->lock);
	*permit->slot = NULL;
	spin_unlock(&permit->permits->lock);
	list_del(&permit->all);
	list_del(&permit->of_file);
	WRITE_ONCE(nfr_svc_permits_count, nfr_svc_permits_count - 1);
	kfree(permit);
}

/**
 * nfr_svc_permits_end - end the permits for a file
 * @watch: watch of the file
 *
 * After that, no READ uses the inode.
 */
void nfr_svc_permits_end(struct nfr_svc_watch *watch)
{
	struct nfr_svc_permit *permit, *next;

	list_for_each_entry_safe(permit, next, &watch->permits, of_file)
		nfr_svc_permit_remove(permit);
}

/* Free permits that have ended. */
void nfr_svc_permits_expire(void)
{
	struct nfr_svc_permit *permit, *next;

	list_for_each_entry_safe(permit, next, &nfr_svc_permits_all, all) {
		if (time_before(jiffies, permit->until))
			return;
		nfr_svc_permit_remove(permit);
	}
}

/* Find a place for a permit: that of the same READs, a free one, or that of the first to end. */
static struct nfr_svc_permit **nfr_svc_permit_place(struct nfr_svc_permits *permits,
						    const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permit **slot = &permits->table[asked->set];
	struct nfr_svc_permit **best = slot, **end = slot + NFR_SVC_PERMIT_WAYS;
	struct nfr_svc_permit *same = nfr_svc_permit_find(permits, asked);

	if (same)
		return same->slot;
	for (; slot < end; slot++) {
		if (!*slot)
			return slot;
		if (time_before((*slot)->until, (*best)->until))
			best = slot;
	}
	return best;
}

/**
 * nfr_svc_permit_enter - enter a permit into its table, in place of another one
 * @permit: permit with its watch, whose inode it may use from now on
 * @asked: READ that it permits
 *
 * Return: false if there are too many permits.
 */
bool nfr_svc_permit_enter(struct nfr_svc_permit *permit, const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permits *permits = permit->permits;
	struct nfr_svc_permit **slot = nfr_svc_permit_place(permits, asked);

	/* nobody else changes the table */
	if (*slot)
		nfr_svc_permit_remove(*slot);
	if (nfr_svc_permits_count >= NFR_SVC_PERMITS_MAX)
		return false;
	WRITE_ONCE(nfr_svc_permits_count, nfr_svc_permits_count + 1);
	permit->slot = slot;
	list_add_tail(&permit->all, &nfr_svc_permits_all);
	list_add_tail(&permit->of_file, &permit->watch->permits);
	spin_lock(&permits->lock);
	*slot = permit;
	spin_unlock(&permits->lock);
	return true;
}

/* --- the permits of a client; callers hold no lock --- */

/* Get the permits of a client, new ones if it has none. Returns NULL without memory. */
struct nfr_svc_permits *nfr_svc_permits_get(struct nfr_svc_first *first)
{
	struct nfr_svc_permits *permits = READ_ONCE(first->permits), *other;

	if (permits)
		return permits;
	permits = kzalloc(sizeof(*permits), NFR_GFP_RETRIED);
	if (!permits)
		return NULL;
	spin_lock_init(&permits->lock);
	/* pairs with the smp_load_acquire() in nfr_svc_threadless_answer() */
	other = cmpxchg(&first->permits, NULL, permits);
	if (!other)
		return permits;
	kfree(permits);
	return other;
}

/**
 * nfr_svc_permits_destroy - end the permits of a client
 * @first: drained first connection without branches
 */
void nfr_svc_permits_destroy(struct nfr_svc_first *first)
{
	struct nfr_svc_permits *permits = first->permits;
	u32 i;

	if (!permits)
		return;
	spin_lock_bh(&nfr_svc_grants_lock);
	for (i = 0; i < ARRAY_SIZE(permits->table); i++)
		if (permits->table[i])
			nfr_svc_permit_remove(permits->table[i]);
	spin_unlock_bh(&nfr_svc_grants_lock);
	kfree(permits);
}

/* Get the number of permits of all connections. */
u32 nfr_svc_permits_total(void)
{
	return READ_ONCE(nfr_svc_permits_count);
}
