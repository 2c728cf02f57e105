// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ends of grants. watch.c says when a file changes, limit.c when grants need too much memory.
 *
 * A grant ends when the file changes, when its lifetime is over, when another one needs its room,
 * when memory is short, and with the connection.
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
 *
 * Invalidations are posted with neither the lock of a watch nor nfr_svc_grants_lock held. The lock
 * @posting of a connection keeps its batch meanwhile.
 */
#include <linux/delay.h>
#include <linux/sched/mm.h>

#include "connection/queues.h"
#include "connection/state.h"
#include "memory/exposure.h"
#include "server/optimistic/optimistic.h"
#include "server/threadless/permit.h"
#include "server/watch.h"
#include "work.h"

/* Time that all connections together have for the invalidations of a file: then they are fenced */
#define NFR_SVC_REVOKE_TIMEOUT	(HZ / 10)

/* The same for invalidations that no task waits for */
#define NFR_SVC_REVOKE_IDLE	HZ

/* Pauses between attempts to fence a connection, in milliseconds: they grow to the last */
#define NFR_SVC_FENCE_AGAIN	10
#define NFR_SVC_FENCE_MAX	1000

/* Interval at which grants expire */
#define NFR_SVC_REVOKE_CHECK	HZ

/* Grants to handle before the lock is released */
#define NFR_SVC_REVOKE_SLICE	64

/* connections with a batch; nfr_svc_grants_lock protects it */
static LIST_HEAD(nfr_svc_revoke_busy);

static void nfr_svc_revoke_worker(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_svc_revoke_work, nfr_svc_revoke_worker);

/* --- invalidations --- */

/* Have the tasks that wait for a connection fence it. Caller holds nfr_svc_grants_lock. */
static void nfr_svc_revoke_hurry(struct list_head *grants)
{
	struct nfr_svc_grant *grant;

	list_for_each_entry(grant, grants, of_branch) {
		grant->watch->hurry = true;
		wake_up_all(&grant->watch->wait);
	}
}

/* The connection cannot end its grants: only a fence does. Caller holds nfr_svc_grants_lock. */
static void nfr_svc_revoke_failed(struct nfr_svc *branch, const char *reason)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);

	notices->failed = true;
	nfr_conn_break(branch->conn, reason);
	nfr_svc_revoke_hurry(&notices->batch);
	nfr_svc_revoke_hurry(&notices->ending);
}

/* Chain the invalidations of a batch. Caller holds the lock @posting. */
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

/*
 * Take the next batch of a connection, unless it has one. Returns false if there is nothing to
 * post. Caller holds both locks.
 */
static bool nfr_svc_revoke_batch(struct nfr_svc_notices *notices)
{
	struct nfr_svc_grant *grant;

	if (notices->failed) {
		nfr_svc_revoke_hurry(&notices->ending);
		return false;
	}
	if (notices->nbatch || list_empty(&notices->ending))
		return false;
	/* many notices need credits, which the client returns when it has handled some */
	if (!notices->nwaited && READ_ONCE(notices->nlate)) {
		if (list_empty(&notices->busy)) {
			notices->posted = jiffies;
			list_add_tail(&notices->busy, &nfr_svc_revoke_busy);
		}
		return false;
	}
	while (notices->nbatch < NFR_SVC_REVOKED_MAX && !list_empty(&notices->ending)) {
		grant = list_first_entry(&notices->ending, struct nfr_svc_grant, of_branch);
		grant->posted = true;
		list_move_tail(&grant->of_branch, &notices->batch);
		notices->nbatch++;
	}
	notices->posted = jiffies;
	list_move_tail(&notices->busy, &nfr_svc_revoke_busy);
	return true;
}

static void nfr_svc_revocation_done(struct ib_cq *cq, struct ib_wc *wc);

/* Post a batch. Returns false if the connection cannot do that. Caller holds the lock @posting. */
static bool nfr_svc_revoke_post_batch(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	struct nfr_notice notice = { .kind = NFR_NOTICE_REVOKE };
	struct ib_send_wr *first, *last;

	nfr_svc_revoke_chain(&notices->batch, &notice, &first, &last);
	notices->revoke_cqe.done = nfr_svc_revocation_done;
	last->wr_cqe = &notices->revoke_cqe;
	return nfr_conn_is_up(branch->conn) && !nfr_svc_notice_revoke(branch, &notice, first, last);
}

/* Post the next batch of a connection, unless it has one. Caller holds no lock. */
static void nfr_svc_revoke_next(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	bool ready;

	spin_lock_bh(&notices->posting);
	spin_lock(&nfr_svc_grants_lock);
	ready = nfr_svc_revoke_batch(notices);
	spin_unlock(&nfr_svc_grants_lock);
	/* nobody else takes the batch */
	if (ready && !nfr_svc_revoke_post_batch(branch)) {
		spin_lock(&nfr_svc_grants_lock);
		nfr_svc_revoke_failed(branch, "an invalidation could not be posted");
		spin_unlock(&nfr_svc_grants_lock);
	}
	spin_unlock_bh(&notices->posting);
}

/**
 * nfr_svc_revoke_add - enter a grant into the list of those to revoke
 * @grant: grant that was announced
 * @why: reason
 * @waited: a task waits
 * @due: gets the connection of the grant, with a reference, for nfr_svc_revoke_post()
 *
 * Context: The caller holds nfr_svc_grants_lock, and keeps softirqs disabled until it has called
 * nfr_svc_revoke_post(): the connection may be in its list alone, and other tasks wait for it.
 */
void nfr_svc_revoke_add(struct nfr_svc_grant *grant, enum nfr_revoked why, bool waited,
			struct list_head *due)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(grant->branch);

	if (!grant->ending)
		nfr_svc_grant_end(grant, why);
	if (waited && !grant->waited) {
		grant->waited = true;
		if (!notices->nwaited++)
			notices->waited_at = ktime_get();
		/* before those that no task waits for */
		if (!grant->posted)
			list_move(&grant->of_branch, &notices->ending);
	}
	/* a connection without references is drained soon, which ends its grants */
	if (list_empty(&notices->due) && nfr_svc_get(grant->branch))
		list_add_tail(&notices->due, due);
}

/**
 * nfr_svc_revoke_post - post the invalidations of grants that were added
 * @due: their connections; becomes empty
 *
 * Context: The caller holds no lock, and has softirqs disabled.
 */
void nfr_svc_revoke_post(struct list_head *due)
{
	struct nfr_svc_notices *notices;

	while (!list_empty(due)) {
		notices = list_first_entry(due, struct nfr_svc_notices, due);
		spin_lock(&nfr_svc_grants_lock);
		list_del_init(&notices->due);
		spin_unlock(&nfr_svc_grants_lock);
		nfr_svc_revoke_next(notices->branch);
		nfr_svc_put(notices->branch);
	}
}

/* Revoke all grants of a file. Caller holds its lock, see nfr_svc_revoke_add(). */
static void nfr_svc_revoke_grants_of(struct nfr_svc_watch *watch, enum nfr_revoked why,
				     bool waited, struct list_head *due)
{
	struct nfr_svc_grant *grant;

	spin_lock(&nfr_svc_grants_lock);
	list_for_each_entry(grant, &watch->grants, of_file)
		nfr_svc_revoke_add(grant, why, waited, due);
	spin_unlock(&nfr_svc_grants_lock);
}

/**
 * nfr_svc_revoke_soon - revoke all grants of a file, without waiting for that
 * @watch: watch of the file; the caller holds its lock, see nfr_svc_revoke_add()
 * @why: reason
 * @due: for nfr_svc_revoke_post()
 */
void nfr_svc_revoke_soon(struct nfr_svc_watch *watch, enum nfr_revoked why, struct list_head *due)
{
	nfr_svc_revoke_grants_of(watch, why, false, due);
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
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);

	spin_lock_bh(&notices->posting);
	spin_lock(&nfr_svc_grants_lock);
	list_del_init(&notices->busy);
	nfr_svc_revoke_charge(notices);
	if (revoked) {
		list_splice_init(&notices->batch, grants);
		notices->nbatch = 0;
	} else {
		nfr_svc_revoke_failed(branch, "an invalidation failed");
	}
	spin_unlock(&nfr_svc_grants_lock);
	spin_unlock_bh(&notices->posting);
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
	spin_unlock_bh(&nfr_svc_grants_lock);
	nfr_svc_revoke_next(branch);
}

/*
 * The client cannot reach the grants of a connection any more, which keeps them. Caller holds
 * no lock.
 */
static void nfr_svc_revoke_all_gone(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	struct nfr_svc_grant *grant;
	LIST_HEAD(grants);

	spin_lock_bh(&notices->posting);
	spin_lock(&nfr_svc_grants_lock);
	notices->failed = true;
	list_del_init(&notices->busy);
	notices->nbatch = 0;
	list_splice_init(&notices->grants, &grants);
	list_splice_init(&notices->ending, &grants);
	list_splice_init(&notices->batch, &grants);
	list_for_each_entry(grant, &grants, of_branch)
		nfr_svc_grant_gone(grant);
	list_splice(&grants, &notices->dead);
	spin_unlock(&nfr_svc_grants_lock);
	spin_unlock_bh(&notices->posting);
}

/*
 * Destroy the registrations of a connection whose fence failed. Its grants are not gone yet. Returns
 * false if the device refuses that, too.
 */
static bool nfr_svc_revoke_by_cut(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	struct list_head *const lists[] = {
		&notices->grants, &notices->ending, &notices->batch, &notices->dead,
	};
	struct nfr_svc_grant *grant;
	LIST_HEAD(mrs);
	bool cut;
	u32 i;

	spin_lock_bh(&notices->posting);
	spin_lock(&nfr_svc_grants_lock);
	/* no invalidation is posted any more */
	notices->failed = true;
	for (i = 0; i < ARRAY_SIZE(lists); i++)
		list_for_each_entry(grant, lists[i], of_branch)
			nfr_mem_detach(&grant->exposure, &mrs);
	spin_unlock(&nfr_svc_grants_lock);
	spin_unlock_bh(&notices->posting);
	list_splice_init(&notices->cut, &mrs);
	cut = nfr_mem_cut(&mrs);
	list_splice(&mrs, &notices->cut);
	return cut;
}

/*
 * Fence a connection whose invalidations are late or failed. Its registrations are valid, but the
 * client cannot reach them through a fenced queue pair. If the device refuses the fence, it has to
 * destroy them. That ends all grants of the connection. If the device refuses both, the client may
 * still read: then the task waits, and tries again, unless the device ends and is given up. The
 * caller does not hold the lock, and may hold locks of a file system.
 */
static void nfr_svc_revoke_by_fence(struct nfr_svc *branch)
{
	unsigned int noio = memalloc_noio_save(), pause = NFR_SVC_FENCE_AGAIN;
	bool ended;

	/* nobody may take the grants for dead before the task that ends them is done */
	mutex_lock(&nfr_svc_notices(branch)->fencing);
	ended = nfr_conn_fence(branch->conn) >= NFR_PROOF_FENCED;
	nfr_conn_break(branch->conn, "an invalidation was late");
	while (!ended && !nfr_svc_revoke_by_cut(branch) && !nfr_mem_gives_up(branch->pool)) {
		msleep(pause);
		pause = min(2 * pause, NFR_SVC_FENCE_MAX);
		ended = nfr_conn_fence(branch->conn) >= NFR_PROOF_FENCED;
	}
	mutex_unlock(&nfr_svc_notices(branch)->fencing);
	memalloc_noio_restore(noio);
	spin_lock_bh(&nfr_svc_grants_lock);
	nfr_svc_revoke_charge(nfr_svc_notices(branch));
	spin_unlock_bh(&nfr_svc_grants_lock);
	nfr_svc_revoke_all_gone(branch);
}

/**
 * nfr_svc_revoke_fence - end the access of a client to the grants of a connection
 * @branch: connection without references, after nfr_conn_drain(), which may have failed
 *
 * Tasks that wait for the grants cannot fence this connection any more.
 *
 * Context: Sleeps until the device complies.
 */
void nfr_svc_revoke_fence(struct nfr_svc *branch)
{
	/* there is one if the connection was set up */
	if (nfr_svc_notices(branch)->client)
		nfr_svc_revoke_by_fence(branch);
}

/*
 * Find a connection to fence, whose invalidations a task waits for, with a reference. One that is
 * being destroyed is fenced by nfr_svc_revoke_fence(). Caller holds nfr_svc_grants_lock.
 */
static struct nfr_svc *nfr_svc_revoke_late(struct nfr_svc_watch *watch, bool late)
{
	struct nfr_svc_grant *grant;

	list_for_each_entry(grant, &watch->grants, of_file)
		if (grant->ending && (late || nfr_svc_notices(grant->branch)->failed) &&
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

/* --- the worker --- */

/* Revoke the grants whose lifetime is over. */
static void nfr_svc_revoke_expire(void)
{
	struct nfr_svc_grant *grant;
	LIST_HEAD(due);
	u32 n = 0;

	do {
		local_bh_disable();
		spin_lock(&nfr_svc_grants_lock);
		for (n = 0; n < NFR_SVC_REVOKE_SLICE; n++) {
			grant = nfr_svc_grant_oldest(NULL);
			if (!grant || ktime_before(ktime_get(), grant->expiry.expires))
				break;
			nfr_svc_revoke_add(grant, NFR_REVOKED_EXPIRED, false, &due);
		}
		spin_unlock(&nfr_svc_grants_lock);
		nfr_svc_revoke_post(&due);
		local_bh_enable();
		cond_resched();
	} while (n == NFR_SVC_REVOKE_SLICE);
}

/*
 * Break the connections whose invalidations are late although no task waits for them, and free
 * clients. Returns whether there are clients.
 */
static bool nfr_svc_revoke_check_busy(void)
{
	struct nfr_svc_notices *notices;
	bool more;

	spin_lock_bh(&nfr_svc_grants_lock);
	list_for_each_entry(notices, &nfr_svc_revoke_busy, busy)
		if (time_after(jiffies, notices->posted + NFR_SVC_REVOKE_IDLE))
			nfr_svc_revoke_failed(notices->branch, "an invalidation was late");
	more = nfr_svc_clients_reap(false);
	spin_unlock_bh(&nfr_svc_grants_lock);
	return more;
}

static void nfr_svc_revoke_worker(struct work_struct *work)
{
	nfr_svc_revoke_expire();
	if (nfr_svc_revoke_check_busy())
		nfr_work_queue(&nfr_svc_revoke_work, NFR_SVC_REVOKE_CHECK);
}

/* --- life --- */

/**
 * nfr_svc_revoke_init - initialize the grants of a connection
 * @branch: new branch
 */
void nfr_svc_revoke_init(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);

	INIT_LIST_HEAD(&notices->of_client);
	INIT_LIST_HEAD(&notices->grants);
	INIT_LIST_HEAD(&notices->ending);
	INIT_LIST_HEAD(&notices->batch);
	INIT_LIST_HEAD(&notices->dead);
	mutex_init(&notices->fencing);
	INIT_LIST_HEAD(&notices->cut);
	INIT_LIST_HEAD(&notices->busy);
	INIT_LIST_HEAD(&notices->due);
	spin_lock_init(&notices->posting);
	notices->credited = nfr_svc_revoke_next;
}

/**
 * nfr_svc_revoke_join - let a client have grants
 * @branch: new branch, whose addresses are set
 *
 * Context: Sleeps.
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_svc_revoke_join(struct nfr_svc *branch)
{
	int rc = nfr_svc_client_join(branch);

	if (!rc)
		nfr_work_queue(&nfr_svc_revoke_work, NFR_SVC_REVOKE_CHECK);
	return rc;
}

/**
 * nfr_svc_revoke_destroy - end the grants of a connection
 * @branch: connection that has ended
 *
 * Context: Sleeps.
 */
void nfr_svc_revoke_destroy(struct nfr_svc *branch)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(branch);
	struct nfr_svc_grant *grant, *next;
	LIST_HEAD(grants);
	LIST_HEAD(mrs);

	if (!notices->client)
		return;
	nfr_svc_revoke_all_gone(branch);
	spin_lock_bh(&nfr_svc_grants_lock);
	list_splice_init(&notices->dead, &grants);
	list_splice_init(&notices->cut, &mrs);
	list_for_each_entry(grant, &grants, of_branch)
		nfr_mem_detach(&grant->exposure, &mrs);
	spin_unlock_bh(&nfr_svc_grants_lock);
	/* the device may take long: other threads grant and revoke meanwhile */
	nfr_mem_destroy(&mrs, branch->conn->proof);
	list_for_each_entry(grant, &grants, of_branch)
		nfr_svc_grant_drop_pages(grant);
	spin_lock_bh(&nfr_svc_grants_lock);
	list_for_each_entry_safe(grant, next, &grants, of_branch)
		nfr_svc_grant_free(grant);
	list_del_init(&notices->of_client);
	spin_unlock_bh(&nfr_svc_grants_lock);
	/* frees clients */
	nfr_work_queue(&nfr_svc_revoke_work, NFR_SVC_REVOKE_CHECK);
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
 * @due: for nfr_svc_revoke_post()
 *
 * fsnotify does not report each change. Each one sets ctime, and a file is granted when its ctime
 * is older than the resolution of the clock.
 *
 * Context: The caller holds the lock of the watch, see nfr_svc_revoke_add().
 *
 * Return: NFR_SVC_BYPASS_MAY, or the reason why not. Then its grants are being revoked, and its
 * permits have ended, but for a reason that concerns this READ alone.
 */
enum nfr_svc_bypass nfr_svc_revoke_unless_same(struct nfr_svc_watch *watch,
					       const struct nfr_svc_handed *handed,
					       struct list_head *due)
{
	enum nfr_svc_bypass result;
	struct timespec64 ctime;

	result = nfr_svc_watch_may_bypass(watch->inode, handed, &ctime);
	if (list_empty(&watch->grants))
		watch->ctime = ctime;
	if (result != NFR_SVC_BYPASS_MAY && result != NFR_SVC_BYPASS_LATE) {
		nfr_svc_permits_end(watch);
		nfr_svc_revoke_soon(watch, nfr_svc_revoke_reasons[result], due);
	} else if (!timespec64_equal(&watch->ctime, &ctime)) {
		nfr_svc_revoke_soon(watch, NFR_REVOKED_ATTRIBUTES, due);
		result = NFR_SVC_BYPASS_LATE;
	}
	return result;
}

/* A file changes (nfr_svc_watch_ops.change): end its permits and grants, and wait for that. */
static void nfr_svc_revoke_change(struct nfr_svc_watch *watch, enum nfr_revoked why)
{
	LIST_HEAD(due);
	bool waits;

	local_bh_disable();
	spin_lock(&watch->lock);
	nfr_svc_permits_end(watch);
	nfr_svc_revoke_grants_of(watch, why, true, &due);
	waits = READ_ONCE(watch->ending);
	spin_unlock(&watch->lock);
	nfr_svc_revoke_post(&due);
	local_bh_enable();
	if (waits)
		nfr_svc_revoke_wait(watch);
}

static void nfr_svc_revoke_check(struct nfr_svc_watch *watch)
{
	LIST_HEAD(due);

	local_bh_disable();
	spin_lock(&watch->lock);
	if (!watch->ended)
		nfr_svc_revoke_unless_same(watch, NULL, &due);
	spin_unlock(&watch->lock);
	nfr_svc_revoke_post(&due);
	local_bh_enable();
}

static const struct nfr_svc_watch_ops nfr_svc_revoke_watch_ops = {
	.change	= nfr_svc_revoke_change,
	.check	= nfr_svc_revoke_check,
	.expire	= nfr_svc_permits_expire,
};

/* Prepare to revoke. Returns 0 or a negative errno. */
int nfr_svc_revoke_start(void)
{
	nfr_svc_grants_init();
	return nfr_svc_watches_start(&nfr_svc_revoke_watch_ops);
}

/* Undo nfr_svc_revoke_start(). Context: No connection exists. Sleeps. */
void nfr_svc_revoke_stop(void)
{
	cancel_delayed_work_sync(&nfr_svc_revoke_work);
	nfr_svc_watches_stop();
	nfr_svc_clients_reap(true);
}
