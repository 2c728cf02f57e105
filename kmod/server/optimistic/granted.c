// SPDX-License-Identifier: GPL-2.0-only
/*
 * The grants that exist: the table of extents, clients with their grants, and the order in which
 * grants expire. All callers hold nfr_svc_grants_lock, except where a comment says otherwise.
 *
 * A look-up in the table takes no lock: a grant stays allocated until RCU readers are done.
 */
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/rculist.h>
#include <linux/slab.h>

#include "connection/state.h"
#include "gfp.h"
#include "observe/trace_server.h"
#include "server/optimistic/optimistic.h"

/*
 * Time that tasks may wait for the invalidations of a client in a period, in nanoseconds, beyond
 * a part of each wait: a device that is slow and honest takes less
 */
#define NFR_SVC_REVOKE_BUDGET	(1ULL * NSEC_PER_SEC)
#define NFR_SVC_REVOKE_FREE	(5ULL * NSEC_PER_MSEC)
#define NFR_SVC_REVOKE_PERIOD	(60 * HZ)

/*
 * Time for which a grant stays although another one needs its room: where clients read more
 * than they can be granted, not each READ revokes a grant for a new one
 */
#define NFR_SVC_GRANT_STAYS	(HZ / 10)

/* Buckets of the table, as a power of two */
#define NFR_SVC_GRANT_BITS	12

/* Protects all grants and clients, see optimistic.h */
DEFINE_SPINLOCK(nfr_svc_grants_lock);
static DEFINE_HASHTABLE(nfr_svc_grants_table, NFR_SVC_GRANT_BITS);
/* grants that clients may use, the one that expires first at the head */
static struct timerqueue_head nfr_svc_grants_expiry;
/* pages that all grants count for, and the part of those that are being revoked */
static u32 nfr_svc_grants_pages;
static u32 nfr_svc_grants_ending;
static LIST_HEAD(nfr_svc_clients);

/* --- clients --- */

/**
 * nfr_svc_client_may_read - check whether a client may get grants
 * @client: client
 *
 * Return: false if tasks have waited for its invalidations too often.
 */
bool nfr_svc_client_may_read(const struct nfr_svc_client *client)
{
	return client->waited <= NFR_SVC_REVOKE_BUDGET || time_after_eq(jiffies, client->until);
}

/**
 * nfr_svc_client_charge - account for a time that tasks waited for invalidations of a client
 * @client: client; if that is too much, its branches break
 * @waited: time in nanoseconds
 */
void nfr_svc_client_charge(struct nfr_svc_client *client, s64 waited)
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
	struct nfr_svc_client *client;

	list_for_each_entry(client, &nfr_svc_clients, list)
		if (nfr_svc_comes_from(branch, client->net, &client->address))
			return client;
	return NULL;
}

/**
 * nfr_svc_client_join - find what the connections of a client have in common
 * @branch: new branch, whose addresses are set
 *
 * Context: The caller does not hold the lock; sleeps.
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_svc_client_join(struct nfr_svc *branch)
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
	nfr_svc_notices(branch)->client = found ?: client;
	list_add(&nfr_svc_notices(branch)->of_client, &nfr_svc_notices(branch)->client->branches);
	spin_unlock_bh(&nfr_svc_grants_lock);
	if (found)
		kfree(client);
	return 0;
}

/**
 * nfr_svc_clients_reap - free the clients without connections
 * @all: free those that made tasks wait as well
 *
 * Return: true if there are others.
 */
bool nfr_svc_clients_reap(bool all)
{
	struct nfr_svc_client *client, *next;

	list_for_each_entry_safe(client, next, &nfr_svc_clients, list) {
		if (!list_empty(&client->branches) ||
		    (!all && client->waited && time_before(jiffies, client->until)))
			continue;
		list_del(&client->list);
		kfree(client);
	}
	return !list_empty(&nfr_svc_clients);
}

/* --- grants --- */

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
 * Context: The caller holds nfr_svc_grants_lock; or rcu_read_lock() only: then the grant may end
 * meanwhile, and is valid if nfr_svc_grant_is_valid() with the lock says so.
 *
 * Return: grant, or NULL.
 */
struct nfr_svc_grant *nfr_svc_grant_find(const struct nfr_svc_watch *watch,
					 const struct nfr_svc *branch, u64 index)
{
	struct nfr_svc_grant *grant;

	hash_for_each_possible_rcu(nfr_svc_grants_table, grant, node,
				   nfr_svc_grant_key(watch, branch, index),
				   lockdep_is_held(&nfr_svc_grants_lock))
		if (READ_ONCE(grant->watch) == watch && grant->branch == branch &&
		    grant->index == index)
			return grant;
	return NULL;
}

/* Check for a grant that is announced, and not being revoked. */
bool nfr_svc_grant_is_valid(const struct nfr_svc_grant *grant)
{
	return hash_hashed((struct hlist_node *)&grant->node);
}

/**
 * nfr_svc_grant_add - add a grant that was announced
 * @grant: charged grant with its watch and its expiry set; the caller holds the lock of the watch
 *	as well
 */
void nfr_svc_grant_add(struct nfr_svc_grant *grant)
{
	struct nfr_svc_watch *watch = grant->watch;

	hash_add_rcu(nfr_svc_grants_table, &grant->node,
		 nfr_svc_grant_key(watch, grant->branch, grant->index));
	timerqueue_add(&nfr_svc_grants_expiry, &grant->expiry);
	list_add_tail(&grant->of_client, &nfr_svc_notices(grant->branch)->client->grants);
	list_add_tail(&grant->of_branch, &nfr_svc_notices(grant->branch)->grants);
	list_add_tail(&grant->of_file, &watch->grants);
	nfr_svc_watch_use(watch);
}

/**
 * nfr_svc_grant_renew - set the time at which a grant expires
 * @grant: grant that was announced
 * @lifetime: what the notice told the client, in seconds
 */
void nfr_svc_grant_renew(struct nfr_svc_grant *grant, u32 lifetime)
{
	bool listed = nfr_svc_grant_is_valid(grant);

	if (listed)
		timerqueue_del(&nfr_svc_grants_expiry, &grant->expiry);
	/* the client counts from the arrival of the notice: give it a second more */
	grant->expiry.expires = ktime_add_ns(ktime_get(), (lifetime + 1) * NSEC_PER_SEC);
	if (!listed)
		return;
	timerqueue_add(&nfr_svc_grants_expiry, &grant->expiry);
	list_move_tail(&grant->of_client, &nfr_svc_notices(grant->branch)->client->grants);
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
	hash_del_rcu(&grant->node);
	timerqueue_del(&nfr_svc_grants_expiry, &grant->expiry);
	list_del_init(&grant->of_client);
}

/**
 * nfr_svc_grant_end - let nobody find a grant any more, which is being revoked
 * @grant: grant that was announced
 * @why: reason
 */
void nfr_svc_grant_end(struct nfr_svc_grant *grant, enum nfr_revoked why)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(grant->branch);

	nfr_svc_grant_hide(grant);
	grant->ending = true;
	grant->why = why;
	WRITE_ONCE(grant->watch->ending, grant->watch->ending + 1);
	notices->client->ending += grant->cost;
	WRITE_ONCE(nfr_svc_grants_ending, nfr_svc_grants_ending + grant->cost);
	list_move_tail(&grant->of_branch, &notices->ending);
}

/**
 * nfr_svc_grant_gone - remove a grant from all lists but that of its connection
 * @grant: grant that the client cannot use any more
 */
void nfr_svc_grant_gone(struct nfr_svc_grant *grant)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(grant->branch);
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
		WRITE_ONCE(nfr_svc_grants_ending, nfr_svc_grants_ending - grant->cost);
		/* a task that wakes takes the lock before it goes on */
		WRITE_ONCE(watch->ending, watch->ending - 1);
		if (!watch->ending)
			wake_up_all(&watch->wait);
	}
	list_del_init(&grant->of_file);
	WRITE_ONCE(grant->watch, NULL);
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

/**
 * nfr_svc_grant_account - add the pages of a grant to those of its client
 * @grant: grant in no list
 * @cost: number of pages that it counts for
 */
void nfr_svc_grant_account(struct nfr_svc_grant *grant, u32 cost)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(grant->branch);

	grant->cost = cost;
	notices->pages += cost;
	notices->client->pages += cost;
	WRITE_ONCE(nfr_svc_grants_pages, nfr_svc_grants_pages + cost);
}

/* Undo nfr_svc_grant_account(). */
void nfr_svc_grant_discharge(struct nfr_svc_grant *grant)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(grant->branch);

	notices->pages -= grant->cost;
	notices->client->pages -= grant->cost;
	WRITE_ONCE(nfr_svc_grants_pages, nfr_svc_grants_pages - grant->cost);
}

/* Free a charged grant in no list, without pages. */
void nfr_svc_grant_free(struct nfr_svc_grant *grant)
{
	nfr_svc_grant_discharge(grant);
	kvfree_rcu(grant, rcu);
}

/**
 * nfr_svc_grant_oldest - find the grant that expires first
 * @client: client, or NULL for all clients
 *
 * Return: grant, or NULL.
 */
struct nfr_svc_grant *nfr_svc_grant_oldest(struct nfr_svc_client *client)
{
	struct timerqueue_node *node;

	if (client)
		return list_first_entry_or_null(&client->grants, struct nfr_svc_grant, of_client);
	node = timerqueue_getnext(&nfr_svc_grants_expiry);
	return node ? container_of(node, struct nfr_svc_grant, expiry) : NULL;
}

/* Initialize the order in which grants expire, which needs a function. */
void nfr_svc_grants_init(void)
{
	timerqueue_init_head(&nfr_svc_grants_expiry);
}

/**
 * nfr_svc_grants_show - print the state of the grants of a connection
 * @branch: branch of a client
 * @seq: file connection in debugfs
 */
void nfr_svc_grants_show(const struct nfr_svc *branch, struct seq_file *seq)
{
	seq_printf(seq, "granted_pages %u\n", READ_ONCE(nfr_svc_notices(branch)->pages));
	seq_printf(seq, "notice_credits %u\n", READ_ONCE(nfr_svc_notices(branch)->credits));
	seq_printf(seq, "late_revocations %u\n", READ_ONCE(nfr_svc_notices(branch)->nlate));
}

/* Get the number of pages that all grants count for which are being revoked. */
u32 nfr_svc_grants_total_ending(void)
{
	return READ_ONCE(nfr_svc_grants_ending);
}

/* Get the number of pages that grants of all connections count for. */
u32 nfr_svc_grants_total(void)
{
	return READ_ONCE(nfr_svc_grants_pages);
}
