// SPDX-License-Identifier: GPL-2.0-only
/*
 * The grants that exist, and what ends them. watch.c says when a file changes.
 *
 * A grant ends when the file changes, when its lifetime is over, when another one needs its
 * room in optimistic_memory or in the client's share of it (the oldest first, and none that is
 * new), when memory is short, and with the connection.
 *
 * nfr_svc_revoke_add() enters grants into the lists of their connections, and does not wait:
 * each connection posts up to 16 invalidations, and the completion of the last one posts the
 * next. Only a task that changes a file waits, until none of its grants is left. All connections
 * together have NFR_SVC_REVOKE_TIMEOUT for that. Then the task fences those that are late; their
 * grants are dead, and keep their pages until the queue pair is drained. A client whose
 * invalidations take too much time of such tasks loses its branches, and gets no
 * grants for a while.
 *
 * A worker ends grants whose time is over; that of watch.c finds the files that changed.
 */
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sunrpc/addr.h>

#include "compat/compat.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "observe/trace_server.h"
#include "params.h"
#include "server/optimistic.h"
#include "server/permit.h"
#include "server/watch.h"
#include "work.h"

/* Time that all connections together have for the invalidations of a file: then they are fenced */
#define NFR_SVC_REVOKE_TIMEOUT	(HZ / 10)

/* The same for invalidations that no task waits for */
#define NFR_SVC_REVOKE_IDLE	HZ

/*
 * Time that tasks may wait for the invalidations of a client in a period, in nanoseconds, beyond
 * a part of each wait: a device that is slow and honest takes less
 */
#define NFR_SVC_REVOKE_BUDGET	(1ULL * NSEC_PER_SEC)
#define NFR_SVC_REVOKE_FREE	(5ULL * NSEC_PER_MSEC)
#define NFR_SVC_REVOKE_PERIOD	(60 * HZ)

/* Interval at which grants expire */
#define NFR_SVC_GRANTS_CHECK	HZ

/* Grants to handle before the lock is released */
#define NFR_SVC_GRANTS_SLICE	64

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

/* Part of a limit that is revoked in one go where a grant needs room, which takes fewer notices */
#define NFR_SVC_GRANT_ROOM	16

/* Buckets of the table, as a power of two */
#define NFR_SVC_GRANT_BITS	12

static DEFINE_HASHTABLE(nfr_svc_grants_table, NFR_SVC_GRANT_BITS);
/* grants that clients may use, the one that expires first at the head */
static struct timerqueue_head nfr_svc_grants_expiry;
/* pages that all grants count for, and the part of those that are being revoked */
static u32 nfr_svc_grants_pages;
static u32 nfr_svc_grants_ending;
/* connections with a batch */
static LIST_HEAD(nfr_svc_grants_busy);
static LIST_HEAD(nfr_svc_clients);
static struct shrinker *nfr_svc_grants_shrinker;

static void nfr_svc_grants_check(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_svc_grants_work, nfr_svc_grants_check);

/* --- clients; callers hold the lock --- */

/*
 * Check whether a client may get grants. Returns false if tasks have waited for its
 * invalidations too often.
 */
bool nfr_svc_client_may_read(const struct nfr_svc_client *client)
{
	return client->waited <= NFR_SVC_REVOKE_BUDGET || time_after_eq(jiffies, client->until);
}

/* Account for a time that tasks waited for invalidations of a client. */
static void nfr_svc_client_charge(struct nfr_svc_client *client, s64 waited)
{
	struct nfr_svc_notices *notices;

	if (waited <= (s64)NFR_SVC_REVOKE_FREE)
		return;
	if (time_after_eq(jiffies, client->until)) {
		client->until = jiffies + NFR_SVC_REVOKE_PERIOD;
		client->waited = 0;
	}
	client->waited += waited - NFR_SVC_REVOKE_FREE;
	if (nfr_svc_client_may_read(client))
		return;
	list_for_each_entry(notices, &client->branches, of_client)
		nfr_conn_break(notices->branch->conn, "its invalidations took too much time");
}

static struct nfr_svc_client *nfr_svc_client_find(const struct nfr_svc *branch)
{
	const struct sockaddr *address = (const struct sockaddr *)&branch->remote;
	struct nfr_svc_client *client;

	list_for_each_entry(client, &nfr_svc_clients, list)
		if (client->net == branch->first->xprt.xpt_net &&
		    rpc_cmp_addr((const struct sockaddr *)&client->address, address))
			return client;
	return NULL;
}

/**
 * nfr_svc_grants_join - find what the connections of a client have in common
 * @branch: new branch, whose addresses are set
 *
 * Context: The caller does not hold the lock; sleeps.
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_svc_grants_join(struct nfr_svc *branch)
{
	struct nfr_svc_client *client, *found;

	client = kzalloc(sizeof(*client), NFR_GFP_RETRIED);
	if (!client)
		return -ENOMEM;
	INIT_LIST_HEAD(&client->branches);
	INIT_LIST_HEAD(&client->grants);
	client->net = branch->first->xprt.xpt_net;
	client->address = branch->remote;
	client->until = jiffies;
	spin_lock_bh(&nfr_svc_grants_lock);
	found = nfr_svc_client_find(branch);
	if (!found)
		list_add(&client->list, &nfr_svc_clients);
	branch->notices->client = found ?: client;
	list_add(&branch->notices->of_client, &branch->notices->client->branches);
	spin_unlock_bh(&nfr_svc_grants_lock);
	nfr_work_queue(&nfr_svc_grants_work, NFR_SVC_GRANTS_CHECK);
	if (found)
		kfree(client);
	return 0;
}

/* Free the clients without connections. One that made tasks wait is kept, unless @all is set. */
static void nfr_svc_clients_reap(bool all)
{
	struct nfr_svc_client *client, *next;

	list_for_each_entry_safe(client, next, &nfr_svc_clients, list) {
		if (!list_empty(&client->branches) ||
		    (!all && client->waited && time_before(jiffies, client->until)))
			continue;
		list_del(&client->list);
		kfree(client);
	}
}

/* --- grants; callers hold the lock --- */

static u64 nfr_svc_grant_key(const struct nfr_svc_watch *watch, const struct nfr_svc *branch,
			     u64 index)
{
	return (unsigned long)watch ^ ((u64)(unsigned long)branch << 8) ^ (index << 16);
}

/**
 * nfr_svc_grant_find - find the grant of an extent
 * @watch: watch of the file
 * @branch: branch of the client
 * @index: number of the extent in the file
 *
 * Return: grant, or NULL.
 */
struct nfr_svc_grant *nfr_svc_grant_find(const struct nfr_svc_watch *watch,
					 const struct nfr_svc *branch, u64 index)
{
	struct nfr_svc_grant *grant;

	hash_for_each_possible(nfr_svc_grants_table, grant, node,
			       nfr_svc_grant_key(watch, branch, index))
		if (grant->watch == watch && grant->branch == branch && grant->index == index)
			return grant;
	return NULL;
}

/**
 * nfr_svc_grant_add - add a grant that was announced
 * @grant: charged grant with its watch and its expiry set
 */
void nfr_svc_grant_add(struct nfr_svc_grant *grant)
{
	struct nfr_svc_watch *watch = grant->watch;

	hash_add(nfr_svc_grants_table, &grant->node,
		 nfr_svc_grant_key(watch, grant->branch, grant->index));
	timerqueue_add(&nfr_svc_grants_expiry, &grant->expiry);
	list_add_tail(&grant->of_client, &grant->branch->notices->client->grants);
	list_add_tail(&grant->of_branch, &grant->branch->notices->grants);
	nfr_svc_watch_use(watch);
	list_add_tail(&grant->of_file, &watch->grants);
}

/**
 * nfr_svc_grant_renew - set the time at which a grant expires
 * @grant: grant that was announced
 * @lifetime: what the notice told the client, in seconds
 */
void nfr_svc_grant_renew(struct nfr_svc_grant *grant, u32 lifetime)
{
	bool listed = hash_hashed(&grant->node);

	if (listed)
		timerqueue_del(&nfr_svc_grants_expiry, &grant->expiry);
	/* the client counts from the arrival of the notice: give it a second more */
	grant->expiry.expires = ktime_add_ns(ktime_get(), (lifetime + 1) * NSEC_PER_SEC);
	if (!listed)
		return;
	timerqueue_add(&nfr_svc_grants_expiry, &grant->expiry);
	list_move_tail(&grant->of_client, &grant->branch->notices->client->grants);
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

/* Remove a grant from all lists in which others find it. */
static void nfr_svc_grant_hide(struct nfr_svc_grant *grant)
{
	hash_del(&grant->node);
	timerqueue_del(&nfr_svc_grants_expiry, &grant->expiry);
	list_del_init(&grant->of_client);
}

/* The client cannot use a grant any more: remove it from all lists but that of its connection. */
static void nfr_svc_grant_gone(struct nfr_svc_grant *grant)
{
	struct nfr_svc_notices *notices = grant->branch->notices;
	struct nfr_svc_watch *watch = grant->watch;

	if (!grant->ending) {
		nfr_svc_grant_hide(grant);
	} else {
		nfr_svc_count(grant->branch, grants_revoked, 1);
		nfr_svc_count(grant->branch, revoked[grant->why], 1);
		trace_nfsrdma_svc_revoke(grant->branch, grant->segment.handle, grant->position,
					 nfr_observe_revoked(grant->why));
		notices->nwaited -= grant->waited;
		notices->client->ending -= grant->cost;
		nfr_svc_grants_ending -= grant->cost;
		/* a task that wakes takes the lock before it goes on */
		if (!--watch->ending)
			wake_up_all(&watch->wait);
	}
	list_del_init(&grant->of_file);
	grant->watch = NULL;
	nfr_svc_watch_rest(watch);
}

/**
 * nfr_svc_grant_drop_pages - give the pages of a grant back
 * @grant: grant whose registration is invalid
 *
 * Context: Any; better without the lock.
 */
void nfr_svc_grant_drop_pages(struct nfr_svc_grant *grant)
{
	release_pages(grant->pages, grant->npages);
	grant->npages = 0;
}

/* Undo nfr_svc_grant_charge(). */
void nfr_svc_grant_discharge(struct nfr_svc_grant *grant)
{
	struct nfr_svc_notices *notices = grant->branch->notices;

	notices->pages -= grant->cost;
	notices->client->pages -= grant->cost;
	WRITE_ONCE(nfr_svc_grants_pages, nfr_svc_grants_pages - grant->cost);
}

/* Free a charged grant in no list, without pages. */
static void nfr_svc_grant_free(struct nfr_svc_grant *grant)
{
	nfr_svc_grant_discharge(grant);
	kvfree(grant);
}

/* --- invalidations; callers hold the lock --- */

/* Have the tasks that wait for a connection fence it. */
static void nfr_svc_revoke_hurry(struct list_head *grants)
{
	struct nfr_svc_grant *grant;

	list_for_each_entry(grant, grants, of_branch) {
		grant->watch->hurry = true;
		wake_up_all(&grant->watch->wait);
	}
}

/* The connection cannot end its grants: only a fence does. */
static void nfr_svc_revoke_failed(struct nfr_svc *branch, const char *reason)
{
	struct nfr_svc_notices *notices = branch->notices;

	notices->failed = true;
	nfr_conn_break(branch->conn, reason);
	nfr_svc_revoke_hurry(&notices->batch);
	nfr_svc_revoke_hurry(&notices->ending);
}

/* Chain the invalidations of a batch. */
static void nfr_svc_revoke_chain(struct list_head *grants, struct nfr_notice *notice,
				 struct ib_send_wr **first, struct ib_send_wr **last)
{
	struct ib_send_wr **link = first, *begin, *end;
	struct nfr_svc_grant *grant;

	notice->count = 0;
	list_for_each_entry(grant, grants, of_branch) {
		nfr_mem_revoke(&grant->exposure, &begin, &end);
		*link = begin;
		link = &end->next;
		*last = end;
		notice->handles[notice->count++] = grant->segment.handle;
	}
	*link = NULL;
}

static void nfr_svc_revocation_done(struct ib_cq *cq, struct ib_wc *wc);

/* Post the next batch of a connection, unless it has one. */
static void nfr_svc_revoke_next(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = branch->notices;
	struct nfr_notice notice = { .kind = NFR_NOTICE_REVOKE };
	struct ib_send_wr *first, *last;
	struct nfr_svc_grant *grant;

	if (notices->failed) {
		nfr_svc_revoke_hurry(&notices->ending);
		return;
	}
	if (notices->nbatch || list_empty(&notices->ending))
		return;
	/* many notices need credits, which the client returns when it has handled some */
	if (!notices->nwaited && READ_ONCE(notices->nlate)) {
		if (list_empty(&notices->busy)) {
			notices->posted = jiffies;
			list_add_tail(&notices->busy, &nfr_svc_grants_busy);
		}
		return;
	}
	while (notices->nbatch < NFR_SVC_REVOKED_MAX && !list_empty(&notices->ending)) {
		grant = list_first_entry(&notices->ending, struct nfr_svc_grant, of_branch);
		grant->posted = true;
		list_move_tail(&grant->of_branch, &notices->batch);
		notices->nbatch++;
	}
	nfr_svc_revoke_chain(&notices->batch, &notice, &first, &last);
	notices->revoke_cqe.done = nfr_svc_revocation_done;
	last->wr_cqe = &notices->revoke_cqe;
	notices->posted = jiffies;
	list_move_tail(&notices->busy, &nfr_svc_grants_busy);
	if (!nfr_conn_is_up(branch->conn) || nfr_svc_notice_revoke(branch, &notice, first, last))
		nfr_svc_revoke_failed(branch, "an invalidation could not be posted");
}

/* A client has returned credits. Completion handler; the caller does not hold the lock. */
static void nfr_svc_revoke_on(struct nfr_svc *branch)
{
	spin_lock_bh(&nfr_svc_grants_lock);
	nfr_svc_revoke_next(branch);
	spin_unlock_bh(&nfr_svc_grants_lock);
}

/* Enter a grant into the list of those to revoke. @branches gets its connection. */
static void nfr_svc_revoke_add(struct nfr_svc_grant *grant, enum nfr_revoked why, bool waited,
			       struct list_head *branches)
{
	struct nfr_svc_notices *notices = grant->branch->notices;

	if (!grant->ending) {
		nfr_svc_grant_hide(grant);
		grant->ending = true;
		grant->why = why;
		grant->watch->ending++;
		notices->client->ending += grant->cost;
		WRITE_ONCE(nfr_svc_grants_ending, nfr_svc_grants_ending + grant->cost);
		list_move_tail(&grant->of_branch, &notices->ending);
	}
	if (waited && !grant->waited) {
		grant->waited = true;
		if (!notices->nwaited++)
			notices->waited_at = ktime_get();
		/* before those that no task waits for */
		if (!grant->posted)
			list_move(&grant->of_branch, &notices->ending);
	}
	if (list_empty(&notices->due))
		list_add_tail(&notices->due, branches);
}

/* Post the invalidations of grants that were added. @branches becomes empty. */
static void nfr_svc_revoke_post(struct list_head *branches)
{
	struct nfr_svc_notices *notices, *next;

	list_for_each_entry_safe(notices, next, branches, due) {
		list_del_init(&notices->due);
		nfr_svc_revoke_next(notices->branch);
	}
}

/* Revoke all grants of a file. */
static void nfr_svc_revoke_watch(struct nfr_svc_watch *watch, enum nfr_revoked why, bool waited)
{
	struct nfr_svc_grant *grant;
	LIST_HEAD(branches);

	list_for_each_entry(grant, &watch->grants, of_file)
		nfr_svc_revoke_add(grant, why, waited, &branches);
	nfr_svc_revoke_post(&branches);
}

/* End the permits of a file, and revoke its grants (nfr_svc_watch_ops.revoke). */
static void nfr_svc_revoke_uses(struct nfr_svc_watch *watch, enum nfr_revoked why, bool waited)
{
	nfr_svc_permits_end(watch);
	nfr_svc_revoke_watch(watch, why, waited);
}

/**
 * nfr_svc_revoke_soon - revoke all grants of a file, without waiting for that
 * @watch: watch of the file
 * @why: reason
 */
void nfr_svc_revoke_soon(struct nfr_svc_watch *watch, enum nfr_revoked why)
{
	nfr_svc_revoke_watch(watch, why, false);
}

/**
 * nfr_svc_revoke_grant - revoke a grant, without waiting for that
 * @grant: grant
 * @why: reason
 */
void nfr_svc_revoke_grant(struct nfr_svc_grant *grant, enum nfr_revoked why)
{
	LIST_HEAD(branches);

	nfr_svc_revoke_add(grant, why, false, &branches);
	nfr_svc_revoke_post(&branches);
}

/* --- limits; callers hold the lock --- */

static struct nfr_svc_grant *nfr_svc_grant_oldest(void)
{
	struct timerqueue_node *node = timerqueue_getnext(&nfr_svc_grants_expiry);

	return node ? container_of(node, struct nfr_svc_grant, expiry) : NULL;
}

static struct nfr_svc_grant *nfr_svc_grant_oldest_of(struct nfr_svc_client *client)
{
	return list_first_entry_or_null(&client->grants, struct nfr_svc_grant, of_client);
}

/*
 * Revoke the oldest grants of all clients, or of @client, if @cost pages do not fit below @limit.
 * Returns false if they do not fit now: a grant does not wait for room.
 */
static bool nfr_svc_revoke_for_room(struct nfr_svc_client *client, u32 cost, u32 limit)
{
	const u32 *pages = client ? &client->pages : &nfr_svc_grants_pages;
	const u32 *ending = client ? &client->ending : &nfr_svc_grants_ending;
	u32 room = limit / NFR_SVC_GRANT_ROOM;
	struct nfr_svc_grant *grant;
	LIST_HEAD(branches);

	limit = max(limit, cost);
	/* files that fill the limit stay granted */
	if (*pages + cost <= limit)
		return true;
	while (*pages - *ending + cost + room > limit) {
		grant = client ? nfr_svc_grant_oldest_of(client) : nfr_svc_grant_oldest();
		if (!grant || nfr_svc_grant_stays(grant))
			break;
		nfr_svc_revoke_add(grant, NFR_REVOKED_LIMIT, false, &branches);
	}
	nfr_svc_revoke_post(&branches);
	return false;
}

/**
 * nfr_svc_grant_charge - account for the pages of a new grant
 * @grant: grant with its pages
 *
 * Return: false if there is no room.
 */
bool nfr_svc_grant_charge(struct nfr_svc_grant *grant)
{
	struct nfr_svc_notices *notices = grant->branch->notices;
	u32 cost = max(grant->cost, NFR_SVC_GRANT_COST), limit = nfr_params_optimistic_pages();

	if (!nfr_svc_revoke_for_room(notices->client, cost, limit / NFR_SVC_SHARE) ||
	    !nfr_svc_revoke_for_room(NULL, cost, limit))
		return false;
	grant->cost = cost;
	notices->pages += cost;
	notices->client->pages += cost;
	WRITE_ONCE(nfr_svc_grants_pages, nfr_svc_grants_pages + cost);
	return true;
}

/* --- the ends of invalidations --- */

/* Account for a time that tasks waited for a connection; they go on waiting for others. */
static void nfr_svc_revoke_charge(struct nfr_svc_notices *notices)
{
	ktime_t now = ktime_get();

	if (notices->nwaited)
		nfr_svc_client_charge(notices->client,
				      ktime_to_ns(ktime_sub(now, notices->waited_at)));
	notices->waited_at = now;
}

/* Take a complete batch. Returns false if it failed: then its grants wait for a fence. */
static bool nfr_svc_revoke_take(struct nfr_svc *branch, bool revoked, struct list_head *grants)
{
	struct nfr_svc_notices *notices = branch->notices;

	spin_lock_bh(&nfr_svc_grants_lock);
	list_del_init(&notices->busy);
	nfr_svc_revoke_charge(notices);
	if (revoked) {
		list_splice_init(&notices->batch, grants);
		notices->nbatch = 0;
	} else {
		nfr_svc_revoke_failed(branch, "an invalidation failed");
	}
	spin_unlock_bh(&nfr_svc_grants_lock);
	return revoked;
}

/* The last invalidation of a batch is complete. Completion handler. */
static void nfr_svc_revocation_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_svc_notices *notices =
		container_of(wc->wr_cqe, struct nfr_svc_notices, revoke_cqe);
	struct nfr_svc *branch = notices->branch;
	struct nfr_svc_grant *grant, *next;
	LIST_HEAD(grants);

	if (!nfr_svc_revoke_take(branch, nfr_conn_check(cq->cq_context, wc), &grants))
		return;
	local_bh_disable();
	list_for_each_entry(grant, &grants, of_branch) {
		nfr_mem_release(&grant->exposure);
		nfr_svc_grant_drop_pages(grant);
	}
	local_bh_enable();
	spin_lock_bh(&nfr_svc_grants_lock);
	list_for_each_entry_safe(grant, next, &grants, of_branch) {
		nfr_svc_grant_gone(grant);
		nfr_svc_grant_free(grant);
	}
	nfr_svc_revoke_next(branch);
	spin_unlock_bh(&nfr_svc_grants_lock);
}

/* The client cannot reach the grants of a connection any more, which keeps them. */
static void nfr_svc_revoke_all_gone(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = branch->notices;
	struct nfr_svc_grant *grant;
	LIST_HEAD(grants);

	notices->failed = true;
	list_del_init(&notices->busy);
	notices->nbatch = 0;
	list_splice_init(&notices->grants, &grants);
	list_splice_init(&notices->ending, &grants);
	list_splice_init(&notices->batch, &grants);
	list_for_each_entry(grant, &grants, of_branch)
		nfr_svc_grant_gone(grant);
	list_splice(&grants, &notices->dead);
}

/* Destroy the registrations of a connection whose fence failed. Its grants are not gone yet. */
static void nfr_svc_revoke_by_cut(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = branch->notices;
	struct list_head *const lists[] = {
		&notices->grants, &notices->ending, &notices->batch, &notices->dead,
	};
	struct nfr_svc_grant *grant;
	LIST_HEAD(mrs);
	u32 i;

	spin_lock_bh(&nfr_svc_grants_lock);
	/* no invalidation is posted any more */
	notices->failed = true;
	for (i = 0; i < ARRAY_SIZE(lists); i++)
		list_for_each_entry(grant, lists[i], of_branch)
			nfr_mem_detach(&grant->exposure, &mrs);
	spin_unlock_bh(&nfr_svc_grants_lock);
	nfr_mem_cut(&mrs);
	list_splice(&mrs, &notices->cut);
}

/*
 * Fence a connection whose invalidations are late or failed. Its registrations are valid, but the
 * client cannot reach them through a fenced queue pair. If the device refuses the fence, it has to
 * destroy them. That ends all grants of the connection. The caller does not hold the lock, and may
 * hold locks of a file system.
 */
static void nfr_svc_revoke_by_fence(struct nfr_svc *branch)
{
	unsigned int noio = memalloc_noio_save();
	bool fenced;

	/* nobody may take the grants for dead before the task that ends them is done */
	mutex_lock(&branch->notices->fencing);
	fenced = !nfr_conn_fence(branch->conn);
	nfr_conn_break(branch->conn, "an invalidation was late");
	if (!fenced)
		nfr_svc_revoke_by_cut(branch);
	mutex_unlock(&branch->notices->fencing);
	memalloc_noio_restore(noio);
	spin_lock_bh(&nfr_svc_grants_lock);
	nfr_svc_revoke_charge(branch->notices);
	nfr_svc_revoke_all_gone(branch);
	spin_unlock_bh(&nfr_svc_grants_lock);
}

/*
 * Find a connection to fence, whose invalidations a task waits for, with a reference. One that is
 * being destroyed is drained instead. Caller holds the lock.
 */
static struct nfr_svc *nfr_svc_revoke_late(struct nfr_svc_watch *watch, bool late)
{
	struct nfr_svc_grant *grant;

	list_for_each_entry(grant, &watch->grants, of_file)
		if (grant->ending && (late || grant->branch->notices->failed) &&
		    nfr_svc_get(grant->branch))
			return grant->branch;
	return NULL;
}

/* Wait until the grants of a file that are being revoked are gone. */
static void nfr_svc_revoke_wait(struct nfr_svc_watch *watch)
{
	unsigned long end = jiffies + NFR_SVC_REVOKE_TIMEOUT;
	struct nfr_svc *branch;
	bool late = false;
	u32 ending;

	do {
		wait_event_timeout(watch->wait,
				   !READ_ONCE(watch->ending) || READ_ONCE(watch->hurry),
				   late ? 1 : max_t(long, end - jiffies, 0));
		late = late || !time_before(jiffies, end);
		spin_lock_bh(&nfr_svc_grants_lock);
		watch->hurry = false;
		ending = watch->ending;
		branch = ending ? nfr_svc_revoke_late(watch, late) : NULL;
		spin_unlock_bh(&nfr_svc_grants_lock);
		if (branch) {
			nfr_svc_revoke_by_fence(branch);
			nfr_svc_put(branch);
		}
	} while (ending);
}

/* --- the worker, and memory pressure --- */

/* Revoke the grants whose lifetime is over. */
static void nfr_svc_grants_expire(void)
{
	struct nfr_svc_grant *grant;
	LIST_HEAD(branches);
	u32 n = 0;

	do {
		spin_lock_bh(&nfr_svc_grants_lock);
		for (n = 0; n < NFR_SVC_GRANTS_SLICE; n++) {
			grant = nfr_svc_grant_oldest();
			if (!grant || ktime_before(ktime_get(), grant->expiry.expires))
				break;
			nfr_svc_revoke_add(grant, NFR_REVOKED_EXPIRED, false, &branches);
		}
		nfr_svc_revoke_post(&branches);
		spin_unlock_bh(&nfr_svc_grants_lock);
		cond_resched();
	} while (n == NFR_SVC_GRANTS_SLICE);
}

/* Break the connections whose invalidations are late although no task waits for them. */
static void nfr_svc_grants_check_busy(void)
{
	struct nfr_svc_notices *notices;

	spin_lock_bh(&nfr_svc_grants_lock);
	list_for_each_entry(notices, &nfr_svc_grants_busy, busy)
		if (time_after(jiffies, notices->posted + NFR_SVC_REVOKE_IDLE))
			nfr_svc_revoke_failed(notices->branch, "an invalidation was late");
	nfr_svc_clients_reap(false);
	spin_unlock_bh(&nfr_svc_grants_lock);
}

static void nfr_svc_grants_check(struct work_struct *work)
{
	bool more;

	nfr_svc_grants_expire();
	nfr_svc_grants_check_busy();
	spin_lock_bh(&nfr_svc_grants_lock);
	more = !list_empty(&nfr_svc_clients);
	spin_unlock_bh(&nfr_svc_grants_lock);
	if (more)
		nfr_work_queue(&nfr_svc_grants_work, NFR_SVC_GRANTS_CHECK);
}

static unsigned long nfr_svc_grants_count(struct shrinker *shrinker,
					  struct shrink_control *control)
{
	return READ_ONCE(nfr_svc_grants_pages) - READ_ONCE(nfr_svc_grants_ending) ?: SHRINK_EMPTY;
}

/* The pages return soon: no task that needs memory waits for a device. */
static unsigned long nfr_svc_grants_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	struct nfr_svc_grant *grant;
	unsigned long freed = 0;
	LIST_HEAD(branches);

	spin_lock_bh(&nfr_svc_grants_lock);
	while (freed < control->nr_to_scan) {
		grant = nfr_svc_grant_oldest();
		if (!grant)
			break;
		freed += grant->cost;
		nfr_svc_revoke_add(grant, NFR_REVOKED_MEMORY, false, &branches);
	}
	nfr_svc_revoke_post(&branches);
	spin_unlock_bh(&nfr_svc_grants_lock);
	return freed ?: SHRINK_STOP;
}

/* --- life --- */

/**
 * nfr_svc_grants_init - initialize the grants of a connection
 * @branch: new branch
 */
void nfr_svc_grants_init(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = branch->notices;

	INIT_LIST_HEAD(&notices->of_client);
	INIT_LIST_HEAD(&notices->grants);
	INIT_LIST_HEAD(&notices->ending);
	INIT_LIST_HEAD(&notices->batch);
	INIT_LIST_HEAD(&notices->dead);
	mutex_init(&notices->fencing);
	INIT_LIST_HEAD(&notices->cut);
	INIT_LIST_HEAD(&notices->busy);
	INIT_LIST_HEAD(&notices->due);
	notices->credited = nfr_svc_revoke_on;
}

/**
 * nfr_svc_grants_destroy - end the grants of a connection
 * @branch: drained connection
 *
 * Context: Sleeps.
 */
void nfr_svc_grants_destroy(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = branch->notices;
	struct nfr_svc_grant *grant, *next;
	LIST_HEAD(grants);
	LIST_HEAD(mrs);

	if (!notices->client)
		return;
	spin_lock_bh(&nfr_svc_grants_lock);
	nfr_svc_revoke_all_gone(branch);
	list_splice_init(&notices->dead, &grants);
	list_splice_init(&notices->cut, &mrs);
	list_for_each_entry(grant, &grants, of_branch)
		nfr_mem_detach(&grant->exposure, &mrs);
	spin_unlock_bh(&nfr_svc_grants_lock);
	/* the device may take its time; others grant and revoke meanwhile */
	nfr_mem_destroy(&mrs);
	list_for_each_entry(grant, &grants, of_branch)
		nfr_svc_grant_drop_pages(grant);
	spin_lock_bh(&nfr_svc_grants_lock);
	list_for_each_entry_safe(grant, next, &grants, of_branch)
		nfr_svc_grant_free(grant);
	list_del_init(&notices->of_client);
	spin_unlock_bh(&nfr_svc_grants_lock);
	/* frees clients */
	nfr_work_queue(&nfr_svc_grants_work, NFR_SVC_GRANTS_CHECK);
}

/* --- changes of files, see watch.c --- */

static const enum nfr_revoked nfr_svc_revoke_reasons[NFR_SVC_BYPASS_RESULTS] = {
	[NFR_SVC_BYPASS_DIRECT]		= NFR_REVOKED_ATTRIBUTES,
	[NFR_SVC_BYPASS_OPEN]		= NFR_REVOKED_OPENED,
	[NFR_SVC_BYPASS_LEASE]		= NFR_REVOKED_OPENED,
	[NFR_SVC_BYPASS_LISTENER]	= NFR_REVOKED_LISTENER,
};

/**
 * nfr_svc_revoke_unless_same - check whether a file may be granted, and is what it was
 * @watch: watch that has not ended
 * @handed: time at which nfsd got the READ that leads to a grant, or NULL to check grants only
 *
 * fsnotify does not report each change. Each one sets ctime, and a file is granted when its ctime
 * is older than the resolution of the clock.
 *
 * Return: NFR_SVC_BYPASS_MAY, or the reason why not. Then its grants are being revoked, and its
 * permits have ended, but for a reason that concerns this READ alone.
 */
enum nfr_svc_bypass nfr_svc_revoke_unless_same(struct nfr_svc_watch *watch,
					       const struct nfr_svc_handed *handed)
{
	enum nfr_svc_bypass result;
	struct timespec64 ctime;

	result = nfr_svc_watch_may_bypass(watch->inode, handed, &ctime);
	if (list_empty(&watch->grants))
		watch->ctime = ctime;
	if (result != NFR_SVC_BYPASS_MAY && result != NFR_SVC_BYPASS_LATE) {
		nfr_svc_revoke_uses(watch, nfr_svc_revoke_reasons[result], false);
	} else if (!timespec64_equal(&watch->ctime, &ctime)) {
		nfr_svc_revoke_soon(watch, NFR_REVOKED_ATTRIBUTES);
		result = NFR_SVC_BYPASS_LATE;
	}
	return result;
}

static void nfr_svc_revoke_check(struct nfr_svc_watch *watch)
{
	nfr_svc_revoke_unless_same(watch, NULL);
}

static void nfr_svc_revoke_expired(void)
{
	spin_lock_bh(&nfr_svc_grants_lock);
	nfr_svc_permits_expire();
	spin_unlock_bh(&nfr_svc_grants_lock);
}

static const struct nfr_svc_watch_ops nfr_svc_revoke_watch_ops = {
	.revoke	= nfr_svc_revoke_uses,
	.wait	= nfr_svc_revoke_wait,
	.check	= nfr_svc_revoke_check,
	.expire	= nfr_svc_revoke_expired,
};

/* Allow grants and permits. Returns 0 or a negative errno. */
int nfr_svc_grants_start(void)
{
	int rc;

	timerqueue_init_head(&nfr_svc_grants_expiry);
	rc = nfr_svc_watches_start(&nfr_svc_revoke_watch_ops);
	if (rc)
		return rc;
	nfr_svc_grants_shrinker = nfr_compat_shrinker(nfr_svc_grants_count, nfr_svc_grants_scan);
	if (nfr_svc_grants_shrinker)
		return 0;
	nfr_svc_watches_stop();
	return -ENOMEM;
}

/* Undo nfr_svc_grants_start(). Context: No connection exists, and therefore no grant. Sleeps. */
void nfr_svc_grants_stop(void)
{
	nfr_compat_shrinker_free(nfr_svc_grants_shrinker);
	cancel_delayed_work_sync(&nfr_svc_grants_work);
	nfr_svc_watches_stop();
	nfr_svc_clients_reap(true);
}

/**
 * nfr_svc_grants_show - print the state of the grants of a connection
 * @branch: branch of a client
 * @seq: file connection in debugfs
 */
void nfr_svc_grants_show(const struct nfr_svc *branch, struct seq_file *seq)
{
	seq_printf(seq, "granted_pages %u\n", READ_ONCE(branch->notices->pages));
	seq_printf(seq, "notice_credits %u\n", READ_ONCE(branch->notices->credits));
	seq_printf(seq, "late_revocations %u\n", READ_ONCE(branch->notices->nlate));
}

/* Get the number of pages that grants of all connections count for. */
u32 nfr_svc_grants_total(void)
{
	return READ_ONCE(nfr_svc_grants_pages);
}
