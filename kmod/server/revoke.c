// SPDX-License-Identifier: GPL-2.0-only
/*
 * The grants that exist, and what ends them.
 *
 * A grant ends when the file changes, when its lifetime is over, when another one needs its
 * room in optimistic_memory or in the client's share of it (the oldest first, and none that is
 * new), when memory is short, and with the connection. If an invalidation fails or takes too
 * long, the connection is fenced; its grants are dead then, and keep their pages until the
 * queue pair is drained.
 */
#include <linux/completion.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "connection/send.h"
#include "connection/state.h"
#include "memory/exposure.h"
#include "observe/trace_server.h"
#include "params.h"
#include "server/optimistic.h"
#include "work.h"

/* Time that a connection has for the invalidations of a file: then it is fenced */
#define NFR_SVC_REVOKE_TIMEOUT	(HZ / 10)

/* Interval at which grants expire, and watches without grants end */
#define NFR_SVC_GRANTS_CHECK	HZ

/*
 * Time for which a grant stays although another one needs its room: where clients read more
 * than they can be granted, not each READ revokes a grant for a new one
 */
#define NFR_SVC_GRANT_STAYS	(HZ / 10)

/*
 * Pages that a small grant counts for: its MR, scatterlist and list of pages take about 15 KiB
 * of memory, however few pages it has
 */
#define NFR_SVC_GRANT_COST	4u

/* Buckets of the table, as a power of two */
#define NFR_SVC_GRANT_BITS	10

/* Protects all grants and watches, see optimistic.h */
DEFINE_MUTEX(nfr_svc_grants_mutex);
static DEFINE_HASHTABLE(nfr_svc_grants_table, NFR_SVC_GRANT_BITS);
static LIST_HEAD(nfr_svc_grants_lru);
static LIST_HEAD(nfr_svc_grants_watches);
static u32 nfr_svc_grants_pages;
static struct shrinker *nfr_svc_grants_shrinker;

static void nfr_svc_grants_check(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_svc_grants_work, nfr_svc_grants_check);

/* --- the table; callers hold the mutex --- */

static u64 nfr_svc_grant_key(const struct nfr_svc_watch *watch, const struct nfr_svc *side,
			     u64 index)
{
	return (unsigned long)watch ^ ((u64)(unsigned long)side << 8) ^ (index << 16);
}

/**
 * nfr_svc_grant_find - find the grant of an extent
 * @watch: watch of the file
 * @side: second connection of the client
 * @index: number of the extent in the file
 *
 * Return: grant, or NULL.
 */
struct nfr_svc_grant *nfr_svc_grant_find(const struct nfr_svc_watch *watch,
					 const struct nfr_svc *side, u64 index)
{
	struct nfr_svc_grant *grant;

	hash_for_each_possible(nfr_svc_grants_table, grant, node,
			       nfr_svc_grant_key(watch, side, index))
		if (grant->watch == watch && grant->side == side && grant->index == index)
			return grant;
	return NULL;
}

/**
 * nfr_svc_grant_add - add a grant that was announced
 * @grant: grant with its watch set
 */
void nfr_svc_grant_add(struct nfr_svc_grant *grant)
{
	hash_add(nfr_svc_grants_table, &grant->node,
		 nfr_svc_grant_key(grant->watch, grant->side, grant->index));
	list_add_tail(&grant->lru, &nfr_svc_grants_lru);
	list_add_tail(&grant->of_file, &grant->watch->grants);
	list_add_tail(&grant->of_side, &grant->side->notices->grants);
}

/**
 * nfr_svc_grant_renew - end a grant later than all others
 * @grant: grant that was announced again
 */
void nfr_svc_grant_renew(struct nfr_svc_grant *grant)
{
	list_move_tail(&grant->lru, &nfr_svc_grants_lru);
	list_move_tail(&grant->of_side, &grant->side->notices->grants);
}

/**
 * nfr_svc_grants_list - put a watch in the list, in which it stays as long as it has grants
 * @watch: watch of the caller
 */
void nfr_svc_grants_list(struct nfr_svc_watch *watch)
{
	if (watch->ended || !list_empty(&watch->list))
		return;
	nfr_svc_watch_hold(watch);
	list_add(&watch->list, &nfr_svc_grants_watches);
	nfr_work_queue(&nfr_svc_grants_work, NFR_SVC_GRANTS_CHECK);
}

/* Remove a grant that the client cannot use any more from all lists but that of its connection. */
static void nfr_svc_grant_forget(struct nfr_svc_grant *grant)
{
	hash_del(&grant->node);
	list_del_init(&grant->lru);
	list_del_init(&grant->of_file);
}

/* Pages that a grant counts for. */
static u32 nfr_svc_grant_cost(const struct nfr_svc_grant *grant)
{
	return max(grant->npages, NFR_SVC_GRANT_COST);
}

/**
 * nfr_svc_grant_charge - account for the pages of a new grant
 * @grant: grant
 */
void nfr_svc_grant_charge(struct nfr_svc_grant *grant)
{
	u32 cost = nfr_svc_grant_cost(grant);

	grant->side->notices->pages += cost;
	WRITE_ONCE(nfr_svc_grants_pages, nfr_svc_grants_pages + cost);
}

/**
 * nfr_svc_grant_free - give the pages of a grant back
 * @grant: charged grant in no list, whose registration is invalid
 */
void nfr_svc_grant_free(struct nfr_svc_grant *grant)
{
	u32 i, cost = nfr_svc_grant_cost(grant);

	for (i = 0; i < grant->npages; i++)
		put_page(grant->pages[i]);
	grant->side->notices->pages -= cost;
	WRITE_ONCE(nfr_svc_grants_pages, nfr_svc_grants_pages - cost);
	kvfree(grant);
}

/* --- revoking; callers hold the mutex --- */

static void nfr_svc_revocation_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_svc_notices *notices =
		container_of(wc->wr_cqe, struct nfr_svc_notices, revoke_cqe);

	notices->revoke_ok = nfr_conn_check(cq->cq_context, wc);
	notices->ended = jiffies;
	complete(&notices->revoke_done);
}

/* Put a grant into the batch of its connection. @sides gets the connection of the first one. */
static void nfr_svc_revoke_add(struct nfr_svc_grant *grant, struct list_head *sides)
{
	struct nfr_svc_notices *notices = grant->side->notices;

	if (notices->nbatch == NFR_SVC_REVOKED_MAX)
		return;
	list_move_tail(&grant->of_side, &notices->batch);
	if (!notices->nbatch++)
		list_add_tail(&notices->revoking, sides);
}

/* Chain the invalidations of a batch. */
static void nfr_svc_revoke_chain(struct list_head *grants, struct nfr_notice *notice,
				 struct ib_send_wr **first, struct ib_send_wr **last)
{
	struct ib_send_wr **link = first, *begin, *end;
	struct nfr_svc_grant *grant;

	notice->count = 0;
	list_for_each_entry(grant, grants, of_side) {
		nfr_mem_revoke(&grant->exposure, &begin, &end);
		*link = begin;
		link = &end->next;
		*last = end;
		notice->handles[notice->count++] = grant->segment.handle;
	}
	*link = NULL;
}

/* Post the invalidations of a batch; nfr_svc_revoke_wait() has the result. */
static void nfr_svc_revoke_post(struct nfr_svc *side)
{
	struct nfr_svc_notices *notices = side->notices;
	struct nfr_notice notice = { .kind = NFR_NOTICE_REVOKE };
	struct ib_send_wr *first, *last;

	notices->posted = false;
	if (!nfr_conn_is_up(side->conn))
		return;
	nfr_svc_revoke_chain(&notices->batch, &notice, &first, &last);
	notices->revoke_cqe.done = nfr_svc_revocation_done;
	reinit_completion(&notices->revoke_done);
	last->wr_cqe = &notices->revoke_cqe;
	notices->began = jiffies;
	notices->posted = !nfr_svc_notice_revoke(side, &notice, first, last);
}

/* Returns false if posting or an invalidation failed, or if they are not complete in time. */
static bool nfr_svc_revoke_wait(struct nfr_svc_notices *notices)
{
	long left = max_t(long, notices->began + notices->left - jiffies, 0);

	if (!notices->posted || !wait_for_completion_timeout(&notices->revoke_done, left))
		return false;
	/* the task may have waited for another connection meanwhile */
	notices->left -= notices->ended - notices->began;
	return notices->revoke_ok;
}

/*
 * The registrations are valid, but the client cannot reach them through a fenced queue pair.
 * That ends all grants of the connection: their lists lose more than the caller asked for.
 */
static void nfr_svc_revoke_by_fence(struct nfr_svc *side)
{
	struct nfr_svc_notices *notices = side->notices;
	struct nfr_svc_grant *grant;

	nfr_conn_break(side->conn, "an invalidation failed");
	nfr_conn_fence(side->conn);
	list_splice_init(&notices->batch, &notices->grants);
	list_for_each_entry(grant, &notices->grants, of_side)
		nfr_svc_grant_forget(grant);
}

static void nfr_svc_revoke_count(const struct nfr_svc_grant *grant, enum nfr_revoked why)
{
	nfr_svc_count(grant->side, grants_revoked, 1);
	nfr_svc_count(grant->side, revoked[why], 1);
	trace_nfsrdma_svc_revoke(grant->side, grant->segment.handle, grant->position,
				 nfr_observe_revoked(why));
}

/* End the grants of a batch that was posted. Returns false if the connection is fenced. */
static bool nfr_svc_revoke_finish(struct nfr_svc *side, enum nfr_revoked why)
{
	struct nfr_svc_notices *notices = side->notices;
	struct nfr_svc_grant *grant, *next;
	bool revoked = nfr_svc_revoke_wait(notices);

	list_del(&notices->revoking);
	notices->nbatch = 0;
	list_for_each_entry(grant, &notices->batch, of_side)
		nfr_svc_revoke_count(grant, why);
	if (!revoked) {
		nfr_svc_revoke_by_fence(side);
		return false;
	}
	list_for_each_entry_safe(grant, next, &notices->batch, of_side) {
		local_bh_disable();
		nfr_mem_release(&grant->exposure);
		local_bh_enable();
		nfr_svc_grant_forget(grant);
		list_del(&grant->of_side);
		nfr_svc_grant_free(grant);
	}
	return true;
}

/**
 * nfr_svc_revoke_one - end a grant
 * @grant: grant in its lists
 * @why: reason
 *
 * Context: Sleeps until the registration is invalid, or the connection fenced.
 *
 * Return: false if the connection is fenced, which ends its other grants, too.
 */
bool nfr_svc_revoke_one(struct nfr_svc_grant *grant, enum nfr_revoked why)
{
	struct nfr_svc *side = grant->side;
	LIST_HEAD(sides);

	side->notices->left = NFR_SVC_REVOKE_TIMEOUT;
	nfr_svc_revoke_add(grant, &sides);
	nfr_svc_revoke_post(side);
	return nfr_svc_revoke_finish(side, why);
}

/* Post a batch of each connection that has grants of a file. */
static void nfr_svc_revoke_begin(struct nfr_svc_watch *watch, struct list_head *sides)
{
	struct nfr_svc_notices *notices;
	struct nfr_svc_grant *grant;

	list_for_each_entry(grant, &watch->grants, of_file)
		nfr_svc_revoke_add(grant, sides);
	list_for_each_entry(notices, sides, revoking)
		nfr_svc_revoke_post(notices->side);
}

/**
 * nfr_svc_revoke_file - end all grants of a file
 * @watch: watch of the file
 * @why: reason
 *
 * The grants of all connections end at the same time, a batch of each after another.
 *
 * Context: Sleeps until the registrations are invalid, or their connections fenced.
 */
void nfr_svc_revoke_file(struct nfr_svc_watch *watch, enum nfr_revoked why)
{
	struct nfr_svc_notices *notices, *next;
	struct nfr_svc_grant *grant;
	LIST_HEAD(sides);

	list_for_each_entry(grant, &watch->grants, of_file)
		grant->side->notices->left = NFR_SVC_REVOKE_TIMEOUT;
	while (!list_empty(&watch->grants)) {
		nfr_svc_revoke_begin(watch, &sides);
		list_for_each_entry_safe(notices, next, &sides, revoking)
			nfr_svc_revoke_finish(notices->side, why);
	}
}

/**
 * nfr_svc_grant_stays - check for a new grant, which no other one may replace
 * @grant: grant that was announced
 *
 * Return: true in the first tenth of a second.
 */
bool nfr_svc_grant_stays(const struct nfr_svc_grant *grant)
{
	return time_before(jiffies, grant->created + NFR_SVC_GRANT_STAYS);
}

/* End the oldest grants until @pages are free below @limit. Returns false if that is impossible. */
static bool nfr_svc_revoke_oldest(u32 pages, u32 limit)
{
	struct nfr_svc_grant *grant;

	while (nfr_svc_grants_pages + pages > limit) {
		grant = list_first_entry_or_null(&nfr_svc_grants_lru, struct nfr_svc_grant, lru);
		if (!grant || nfr_svc_grant_stays(grant))
			return false;
		nfr_svc_revoke_one(grant, NFR_REVOKED_LIMIT);
	}
	return true;
}

/* The same for the share of one client. Grants of a fenced connection count, and remain. */
static bool nfr_svc_revoke_share(struct nfr_svc *side, u32 pages, u32 limit)
{
	struct nfr_svc_notices *notices = side->notices;
	struct nfr_svc_grant *grant;

	while (notices->pages + pages > limit) {
		grant = list_first_entry_or_null(&notices->grants, struct nfr_svc_grant, of_side);
		if (!grant || nfr_svc_grant_stays(grant) || !nfr_conn_is_up(side->conn))
			return false;
		nfr_svc_revoke_one(grant, NFR_REVOKED_LIMIT);
	}
	return true;
}

/**
 * nfr_svc_revoke_for_room - end old grants, so that there is room for another one
 * @side: second connection of the client that gets it
 * @pages: its size
 *
 * Return: false if there is no room.
 */
bool nfr_svc_revoke_for_room(struct nfr_svc *side, u32 pages)
{
	u32 limit = nfr_params_optimistic_pages();

	return nfr_svc_revoke_share(side, pages, max(limit / NFR_SVC_SHARE, pages)) &&
	       nfr_svc_revoke_oldest(pages, max(limit, pages));
}

static enum nfr_revoked nfr_svc_revoke_reason(u32 mask)
{
	/* the module ends marks without grants only */
	if (mask & FS_IN_IGNORED)
		return NFR_REVOKED_UNMOUNTED;
	if (mask & FS_MODIFY)
		return NFR_REVOKED_MODIFIED;
	if (mask & (FS_ATTRIB | FS_DELETE_SELF))
		return NFR_REVOKED_ATTRIBUTES;
	if (mask & FS_MOVE_SELF)
		return NFR_REVOKED_MOVED;
	return NFR_REVOKED_OPENED;
}

/* A file changes, or its watch ends: the task that does it waits. */
static void nfr_svc_grants_changed(struct nfr_svc_watch *watch, u32 mask)
{
	bool listed;

	mutex_lock(&nfr_svc_grants_mutex);
	nfr_svc_revoke_file(watch, nfr_svc_revoke_reason(mask));
	listed = (mask & FS_IN_IGNORED) && !list_empty(&watch->list);
	if (mask & FS_IN_IGNORED)
		watch->ended = true;
	if (listed)
		list_del_init(&watch->list);
	mutex_unlock(&nfr_svc_grants_mutex);
	if (listed)
		nfr_svc_watch_put(watch);
}

/* --- expiry and memory pressure --- */

static void nfr_svc_grants_expire(void)
{
	struct nfr_svc_grant *grant, *next;

restart:
	/* a change of optimistic_lifetime leaves grants in another order than that of expiry */
	list_for_each_entry_safe(grant, next, &nfr_svc_grants_lru, lru)
		/* a fence may take @next from the list */
		if (!time_before(jiffies, grant->expires) &&
		    !nfr_svc_revoke_one(grant, NFR_REVOKED_EXPIRED))
			goto restart;
}

/* Take a watch without grants from the list, with the reference of the list, or return NULL. */
static struct nfr_svc_watch *nfr_svc_grants_idle(void)
{
	struct nfr_svc_watch *watch;

	list_for_each_entry(watch, &nfr_svc_grants_watches, list) {
		if (!list_empty(&watch->grants))
			continue;
		watch->ended = true;
		list_del_init(&watch->list);
		return watch;
	}
	return NULL;
}

static void nfr_svc_grants_check(struct work_struct *work)
{
	struct nfr_svc_watch *watch;
	bool more;

	do {
		mutex_lock(&nfr_svc_grants_mutex);
		nfr_svc_grants_expire();
		watch = nfr_svc_grants_idle();
		more = !list_empty(&nfr_svc_grants_watches);
		mutex_unlock(&nfr_svc_grants_mutex);
		/* takes the mutex */
		if (watch)
			nfr_svc_watch_end(watch);
	} while (watch);
	if (more)
		nfr_work_queue(&nfr_svc_grants_work, NFR_SVC_GRANTS_CHECK);
}

static unsigned long nfr_svc_grants_count(struct shrinker *shrinker,
					  struct shrink_control *control)
{
	return READ_ONCE(nfr_svc_grants_pages) ?: SHRINK_EMPTY;
}

static unsigned long nfr_svc_grants_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	u32 before, freed;

	/* a thread that grants may wait for memory */
	if (!mutex_trylock(&nfr_svc_grants_mutex))
		return SHRINK_STOP;
	before = nfr_svc_grants_pages;
	while (before - nfr_svc_grants_pages < control->nr_to_scan &&
	       !list_empty(&nfr_svc_grants_lru))
		nfr_svc_revoke_one(list_first_entry(&nfr_svc_grants_lru, struct nfr_svc_grant,
						    lru), NFR_REVOKED_MEMORY);
	freed = before - nfr_svc_grants_pages;
	mutex_unlock(&nfr_svc_grants_mutex);
	return freed ?: SHRINK_STOP;
}

/* --- life --- */

/**
 * nfr_svc_grants_destroy - end the grants of a connection
 * @side: drained connection
 *
 * Context: Sleeps.
 */
void nfr_svc_grants_destroy(struct nfr_svc *side)
{
	struct nfr_svc_grant *grant, *next;
	LIST_HEAD(grants);
	LIST_HEAD(mrs);

	if (!side->notices)
		return;
	mutex_lock(&nfr_svc_grants_mutex);
	list_splice_init(&side->notices->grants, &grants);
	list_for_each_entry(grant, &grants, of_side) {
		nfr_svc_grant_forget(grant);
		nfr_mem_detach(&grant->exposure, &mrs);
	}
	mutex_unlock(&nfr_svc_grants_mutex);
	/* the device may take its time; others grant and revoke meanwhile */
	nfr_mem_destroy(&mrs);
	mutex_lock(&nfr_svc_grants_mutex);
	list_for_each_entry_safe(grant, next, &grants, of_side)
		nfr_svc_grant_free(grant);
	mutex_unlock(&nfr_svc_grants_mutex);
}

/**
 * nfr_svc_grants_start - allow grants
 *
 * Return: 0 or a negative errno.
 */
int nfr_svc_grants_start(void)
{
	int rc;

	nfr_svc_grants_shrinker = nfr_compat_shrinker(nfr_svc_grants_count, nfr_svc_grants_scan);
	if (!nfr_svc_grants_shrinker)
		return -ENOMEM;
	rc = nfr_svc_watch_start(nfr_svc_grants_changed);
	if (rc)
		nfr_compat_shrinker_free(nfr_svc_grants_shrinker);
	return rc;
}

/**
 * nfr_svc_grants_stop - undo nfr_svc_grants_start()
 *
 * Context: No connection exists.
 */
void nfr_svc_grants_stop(void)
{
	nfr_compat_shrinker_free(nfr_svc_grants_shrinker);
	cancel_delayed_work_sync(&nfr_svc_grants_work);
	/* ends the remaining watches, none of which has a grant */
	nfr_svc_grants_check(NULL);
	nfr_svc_watch_stop();
}

/**
 * nfr_svc_grants_show - print the state of the grants of a connection
 * @side: second connection of a client
 * @seq: file connection in debugfs
 */
void nfr_svc_grants_show(const struct nfr_svc *side, struct seq_file *seq)
{
	seq_printf(seq, "granted_pages %u\n", READ_ONCE(side->notices->pages));
	seq_printf(seq, "notice_credits %u\n", READ_ONCE(side->notices->credits));
	seq_printf(seq, "late_revocations %u\n", READ_ONCE(side->notices->nlate));
}

/**
 * nfr_svc_grants_total - get the number of pages that clients may read
 *
 * Return: pages of all connections.
 */
u32 nfr_svc_grants_total(void)
{
	return READ_ONCE(nfr_svc_grants_pages);
}
