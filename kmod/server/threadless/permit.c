// SPDX-License-Identifier: GPL-2.0-only
/*
 * Permits for threadless reads: which READs nfsd has allowed in the last second, see threadless.c.
 *
 * The connections of a client share its permits: the client is the address that nfsd knows, so
 * that the exports and their options are the same. A user is what nfsd makes of the credential,
 * which does not depend on the client's name and the stamp in it. The attributes in nfsd's answer
 * depend on the export, which may have another fsid for another client; therefore each permit has
 * its own.
 *
 * The lock of a set protects its permits with the inodes of their watches: a permit leaves its set
 * before its watch releases the inode. Changes also need nfr_svc_permits_lock, in which the lock of
 * a set nests, and which itself nests in nfr_svc_watch_lock(). It protects the lists of permits. A
 * permit begins under nfr_svc_watch_lock() as well: a watch with permits does not rest.
 *
 * A READ that nfsd answers leads to a permit if it is the second one within a second: a file that
 * is read once costs a hash. nfr_svc_permits.recent has the hashes of late, each in the one place
 * that it may have; a file that loses its place there is a file that is read for the first time.
 */
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "gfp.h"
#include "server/threadless/permit.h"
#include "server/watch.h"

/* Time for which a READ that could not lead to a permit is not tried again */
#define NFR_SVC_PERMIT_PUT_OFF	(HZ / 8)

/**
 * struct nfr_svc_permits - permits of a client
 * @list: link in the list of all clients
 * @net: network namespace
 * @users: what the ids of users mean in it
 * @address: address of the client; its port does not matter
 * @connections: first connections that share the permits
 * @count: number of permits
 * @sets: permits, by their hash
 * @recent: hash and time of READs that nfsd has answered, by the hash
 *
 * nfr_svc_permits_lock protects all but @sets, which have locks, and @recent, which needs none.
 */
struct nfr_svc_permits {
	struct list_head list;
	struct net *net;
	struct user_namespace *users;
	struct sockaddr_storage address;
	u32 connections;
	u32 count;
	struct nfr_svc_permit_set sets[NFR_SVC_PERMIT_SETS];
	u64 recent[NFR_SVC_PERMIT_RECENT];
};

static DEFINE_SPINLOCK(nfr_svc_permits_lock);
/* all permits, all clients, and the number of those with a permit */
static LIST_HEAD(nfr_svc_permits_all);
static LIST_HEAD(nfr_svc_permits_clients);
static u32 nfr_svc_permits_sharers;
static u32 nfr_svc_permits_count;

/* --- look-ups --- */

/*
 * Sum up a key, which has 8 bytes or more. A client that finds keys with one sum shortens its own
 * sets only.
 */
static u32 nfr_svc_permit_sum(const u8 *key, u32 length, bool privileged)
{
	u64 sum = (length << 1) | privileged;
	u32 i;

	for (i = 0; i + 8 <= length; i += 8)
		sum = (sum ^ get_unaligned((const u64 *)(key + i))) * GOLDEN_RATIO_64;
	if (i < length)
		sum = (sum ^ get_unaligned((const u64 *)(key + length - 8))) * GOLDEN_RATIO_64;
	return sum >> 32;
}

/**
 * nfr_svc_permit_asks - find out which permit a Call needs
 * @asked: output
 * @req: Call
 *
 * Return: false if the Call is no NFSv3 READ with AUTH_SYS.
 */
bool nfr_svc_permit_asks(struct nfr_svc_asked *asked, const struct nfr_svc_req *req)
{
	struct nfr_read *read = &asked->read;

	if (!nfr_wire_decode_read(read, req->rpc, req->rpc_length))
		return false;
	/* behind the stamp and the name; the number of groups says where the file handle begins */
	asked->key = read->credential + 8 +
		     xdr_align_size(get_unaligned_be32(read->credential + 4));
	asked->length = read->fh + read->fh_length - asked->key;
	asked->privileged = req->svc->first->svc.privileged;
	asked->sum = nfr_svc_permit_sum(asked->key, asked->length, asked->privileged);
	return true;
}

/* Get the set in which the permit for a READ is, if there is one. */
struct nfr_svc_permit_set *nfr_svc_permit_set(struct nfr_svc_permits *permits,
					      const struct nfr_svc_asked *asked)
{
	/* the highest bits of the sum depend on all of the key */
	return &permits->sets[asked->sum >> (32 - ilog2(NFR_SVC_PERMIT_SETS))];
}

/**
 * nfr_svc_permit_find - find a permit
 * @set: its set; the caller holds the lock of the set, or nfr_svc_permits_lock
 * @asked: READ
 *
 * Return: permit, which may have ended, or NULL.
 */
struct nfr_svc_permit *nfr_svc_permit_find(const struct nfr_svc_permit_set *set,
					   const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permit *permit;
	u32 i;

	for (i = 0; i < NFR_SVC_PERMIT_WAYS; i++) {
		permit = set->ways[i];
		if (permit && permit->sum == asked->sum && permit->length == asked->length &&
		    permit->privileged == asked->privileged &&
		    !memcmp(permit->key, asked->key, asked->length))
			return permit;
	}
	return NULL;
}

/* --- recent READs; races cost a permit that comes early or late --- */

static u64 *nfr_svc_permit_recent(struct nfr_svc_permits *permits, u32 sum)
{
	return &permits->recent[hash_32(sum, ilog2(NFR_SVC_PERMIT_RECENT))];
}

/* Remember a READ, as of a time in jiffies. */
static void nfr_svc_permit_note(struct nfr_svc_permits *permits, u32 sum, unsigned long time)
{
	WRITE_ONCE(*nfr_svc_permit_recent(permits, sum), (u64)sum << 32 | (u32)time);
}

/**
 * nfr_svc_permit_put_off - do not try to make a permit again for some time
 * @permits: permits of a client
 * @asked: READ that leads to no permit
 */
void nfr_svc_permit_put_off(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked)
{
	nfr_svc_permit_note(permits, asked->sum, jiffies + NFR_SVC_PERMIT_PUT_OFF);
}

/* Check whether a permit is not there, or nearly over. */
static bool nfr_svc_permit_is_wanted(struct nfr_svc_permits *permits,
				     const struct nfr_svc_asked *asked, bool second)
{
	struct nfr_svc_permit_set *set = nfr_svc_permit_set(permits, asked);
	const struct nfr_svc_permit *permit;
	bool wanted;

	spin_lock_bh(&set->lock);
	permit = nfr_svc_permit_find(set, asked);
	wanted = permit ? !time_before(jiffies + NFR_SVC_PERMIT_FRESH, permit->until) : second;
	spin_unlock_bh(&set->lock);
	return wanted;
}

/**
 * nfr_svc_permit_is_due - check whether a READ is to lead to a permit
 * @permits: permits of a client
 * @asked: READ that nfsd has answered
 *
 * Return: true if it is the second within a second, or soon after the end of a permit, and if
 * there is no permit that has time left.
 */
bool nfr_svc_permit_is_due(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked)
{
	u64 recent = READ_ONCE(*nfr_svc_permit_recent(permits, asked->sum));
	bool same = recent >> 32 == asked->sum, second;
	unsigned long now = jiffies;
	s32 age = (u32)now - (u32)recent;

	/* one that was put off */
	if (same && age < 0 && age >= -NFR_SVC_PERMIT_PUT_OFF)
		return false;
	second = same && age >= 0 && age <= NFR_SVC_PERMIT_LIFE;
	nfr_svc_permit_note(permits, asked->sum, now);
	return nfr_svc_permit_is_wanted(permits, asked, second);
}

/* --- changes; callers hold nfr_svc_permits_lock --- */

static void nfr_svc_permit_account(struct nfr_svc_permits *permits, s32 n)
{
	nfr_svc_permits_sharers -= !!permits->count;
	permits->count += n;
	nfr_svc_permits_sharers += !!permits->count;
	WRITE_ONCE(nfr_svc_permits_count, nfr_svc_permits_count + n);
}

/*
 * Take a permit out of its set, and free it: no READ uses it any more. The next one of its kind
 * is not the first.
 */
static void nfr_svc_permit_remove(struct nfr_svc_permit *permit)
{
	spin_lock(&permit->set->lock);
	*permit->slot = NULL;
	spin_unlock(&permit->set->lock);
	nfr_svc_permit_note(permit->permits, permit->sum, jiffies);
	nfr_svc_permit_account(permit->permits, -1);
	list_del(&permit->all);
	/* pairs with nfr_svc_permits_end(): who finds the list empty, finds the slot empty, too */
	smp_wmb();
	list_del(&permit->of_file);
	kfree(permit);
}

/*
 * Find a place for a permit: that of the same READs, a free one, or that of one that has ended.
 * Another one keeps its place until its end: READs of many files must not take turns at that.
 */
static struct nfr_svc_permit **nfr_svc_permit_place(struct nfr_svc_permit_set *set,
						    const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permit *same = nfr_svc_permit_find(set, asked);
	u32 i;

	if (same)
		return same->slot;
	for (i = 0; i < NFR_SVC_PERMIT_WAYS; i++)
		if (!set->ways[i] || !time_before(jiffies, set->ways[i]->until))
			return &set->ways[i];
	return NULL;
}

/*
 * Find a place for a permit, unless the client has its share of all permits. A share shrinks when
 * another client comes; then the client gets no new permits until enough have ended.
 */
static struct nfr_svc_permit **nfr_svc_permit_room(struct nfr_svc_permits *permits,
						   const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permit **slot = nfr_svc_permit_place(nfr_svc_permit_set(permits, asked),
							    asked);
	u32 sharers = nfr_svc_permits_sharers + !permits->count;
	/* the permit that leaves the place */
	u32 less = slot && *slot;

	if (nfr_svc_permits_count - less >= NFR_SVC_PERMITS_MAX ||
	    permits->count - less >= NFR_SVC_PERMITS_MAX / sharers)
		return NULL;
	return slot;
}

/* --- changes; callers do not hold nfr_svc_permits_lock --- */

/**
 * nfr_svc_permit_fits - check whether there is room for a permit
 * @permits: permits of a client
 * @asked: READ
 *
 * Return: false if it would have none.
 */
bool nfr_svc_permit_fits(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked)
{
	bool fits;

	spin_lock_bh(&nfr_svc_permits_lock);
	fits = nfr_svc_permit_room(permits, asked);
	spin_unlock_bh(&nfr_svc_permits_lock);
	return fits;
}

/**
 * nfr_svc_permits_end - end the permits for a file
 * @watch: watch of the file; the caller holds its lock
 *
 * After that, no READ uses the inode.
 */
void nfr_svc_permits_end(struct nfr_svc_watch *watch)
{
	struct nfr_svc_permit *permit, *next;

	/* permits are entered with the lock that the caller has; see nfr_svc_permit_remove() */
	if (list_empty_careful(&watch->permits))
		return;
	spin_lock_bh(&nfr_svc_permits_lock);
	list_for_each_entry_safe(permit, next, &watch->permits, of_file)
		nfr_svc_permit_remove(permit);
	spin_unlock_bh(&nfr_svc_permits_lock);
}

/* Free permits that have ended. */
void nfr_svc_permits_expire(void)
{
	struct nfr_svc_permit *permit, *next;

	spin_lock_bh(&nfr_svc_permits_lock);
	list_for_each_entry_safe(permit, next, &nfr_svc_permits_all, all) {
		if (time_before(jiffies, permit->until))
			break;
		nfr_svc_permit_remove(permit);
	}
	spin_unlock_bh(&nfr_svc_permits_lock);
}

/**
 * nfr_svc_permit_enter - enter a permit into its set, perhaps in place of another one
 * @permit: permit with its watch, whose inode it may use from now on
 * @permits: permits of the client
 * @asked: READ that it permits
 *
 * Return: false if there is no room for it.
 */
bool nfr_svc_permit_enter(struct nfr_svc_permit *permit, struct nfr_svc_permits *permits,
			  const struct nfr_svc_asked *asked)
{
	struct nfr_svc_permit **slot;

	spin_lock_bh(&nfr_svc_permits_lock);
	slot = nfr_svc_permit_room(permits, asked);
	if (slot) {
		/* nobody else changes the set */
		if (*slot)
			nfr_svc_permit_remove(*slot);
		permit->permits = permits;
		permit->set = nfr_svc_permit_set(permits, asked);
		permit->slot = slot;
		nfr_svc_permit_account(permits, 1);
		list_add_tail(&permit->all, &nfr_svc_permits_all);
		list_add_tail(&permit->of_file, &permit->watch->permits);
		spin_lock(&permit->set->lock);
		*slot = permit;
		spin_unlock(&permit->set->lock);
	}
	spin_unlock_bh(&nfr_svc_permits_lock);
	return slot;
}

/* --- clients --- */

static struct user_namespace *nfr_svc_permits_users(const struct nfr_svc_first *first)
{
	return first->xprt.xpt_cred ? first->xprt.xpt_cred->user_ns : &init_user_ns;
}

static struct nfr_svc_permits *nfr_svc_permits_create(const struct nfr_svc_first *first)
{
	struct nfr_svc_permits *permits = kvzalloc(sizeof(*permits), NFR_GFP_RETRIED);
	u32 i;

	if (!permits)
		return NULL;
	permits->net = first->xprt.xpt_net;
	permits->users = nfr_svc_permits_users(first);
	permits->address = first->svc.remote;
	for (i = 0; i < NFR_SVC_PERMIT_SETS; i++)
		spin_lock_init(&permits->sets[i].lock);
	return permits;
}

/* Find the permits of a client. Caller holds the lock. */
static struct nfr_svc_permits *nfr_svc_permits_of(const struct nfr_svc_first *first)
{
	struct nfr_svc_permits *permits;

	list_for_each_entry(permits, &nfr_svc_permits_clients, list)
		if (permits->users == nfr_svc_permits_users(first) &&
		    nfr_svc_comes_from(&first->svc, permits->net, &permits->address))
			return permits;
	return NULL;
}

/* Let a connection share the permits of its client. Returns the permits. */
static struct nfr_svc_permits *nfr_svc_permits_join(struct nfr_svc_first *first,
						    struct nfr_svc_permits *created)
{
	struct nfr_svc_permits *permits = nfr_svc_permits_of(first);

	/* another thread of nfsd was faster */
	if (first->permits)
		return first->permits;
	if (!permits) {
		permits = created;
		list_add(&permits->list, &nfr_svc_permits_clients);
	}
	permits->connections++;
	/* pairs with the smp_load_acquire() in nfr_svc_threadless_answer() */
	smp_store_release(&first->permits, permits);
	return permits;
}

/**
 * nfr_svc_permits_get - get the permits of a client, new ones if it has none
 * @first: first connection
 *
 * Context: nfsd thread.
 *
 * Return: permits, until nfr_svc_permits_put(); NULL without memory.
 */
struct nfr_svc_permits *nfr_svc_permits_get(struct nfr_svc_first *first)
{
	/* as above */
	struct nfr_svc_permits *permits = smp_load_acquire(&first->permits), *created;

	if (permits)
		return permits;
	created = nfr_svc_permits_create(first);
	if (!created)
		return NULL;
	spin_lock_bh(&nfr_svc_permits_lock);
	permits = nfr_svc_permits_join(first, created);
	spin_unlock_bh(&nfr_svc_permits_lock);
	if (permits != created)
		kvfree(created);
	return permits;
}

/* End the permits of a client. Caller holds the lock. */
static void nfr_svc_permits_clear(struct nfr_svc_permits *permits)
{
	u32 i, way;

	for (i = 0; i < NFR_SVC_PERMIT_SETS; i++)
		for (way = 0; way < NFR_SVC_PERMIT_WAYS; way++)
			if (permits->sets[i].ways[way])
				nfr_svc_permit_remove(permits->sets[i].ways[way]);
}

/**
 * nfr_svc_permits_put - undo nfr_svc_permits_get(): the last connection ends the permits
 * @first: drained first connection without branches
 */
void nfr_svc_permits_put(struct nfr_svc_first *first)
{
	struct nfr_svc_permits *permits = first->permits;
	bool last;

	if (!permits)
		return;
	spin_lock_bh(&nfr_svc_permits_lock);
	last = !--permits->connections;
	if (last) {
		list_del(&permits->list);
		nfr_svc_permits_clear(permits);
	}
	spin_unlock_bh(&nfr_svc_permits_lock);
	if (last)
		kvfree(permits);
}

/* Get the number of permits of all clients. */
u32 nfr_svc_permits_total(void)
{
	return READ_ONCE(nfr_svc_permits_count);
}
