// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits of grants: optimistic_memory, the share of a client, and memory pressure. The oldest
 * grants end first, and none that is new.
 */
#include <linux/mm.h>
#include <linux/shrinker.h>

#include "compat/compat.h"
#include "params.h"
#include "server/optimistic/optimistic.h"

/*
 * Pages that a small grant counts for: its MR, scatterlist and list of pages take about 15 KiB
 * of memory, however few pages it has
 */
#define NFR_SVC_GRANT_COST	4u

/* Part of a limit that is revoked in one go where a grant needs room, which takes fewer notices */
#define NFR_SVC_GRANT_ROOM	16

static struct shrinker *nfr_svc_limit_shrinker;

/*
 * Revoke the oldest grants of all clients, or of @client, if @cost pages do not fit below @limit.
 * Returns false if they do not fit now: a grant does not wait for room.
 */
static bool nfr_svc_limit_make_room(struct nfr_svc_client *client, u32 cost, u32 limit,
				    struct list_head *due)
{
	u32 pages = client ? client->pages : nfr_svc_grants_total();
	u32 room = limit / NFR_SVC_GRANT_ROOM;
	struct nfr_svc_grant *grant;

	limit = max(limit, cost);
	/* files that fill the limit stay granted */
	if (pages + cost <= limit)
		return true;
	while (pages - (client ? client->ending : nfr_svc_grants_total_ending()) + cost + room >
	       limit) {
		grant = nfr_svc_grant_oldest(client);
		if (!grant || nfr_svc_grant_stays(grant))
			break;
		nfr_svc_revoke_add(grant, NFR_REVOKED_LIMIT, false, due);
	}
	return false;
}

/**
 * nfr_svc_limit_charge - account for the pages of a new grant
 * @grant: grant with its pages
 * @due: for nfr_svc_revoke_post()
 *
 * Context: The caller holds nfr_svc_grants_lock, see nfr_svc_revoke_add().
 *
 * Return: false if there is no room.
 */
bool nfr_svc_limit_charge(struct nfr_svc_grant *grant, struct list_head *due)
{
	struct nfr_svc_notices *notices = nfr_svc_notices(grant->branch);
	u32 cost = max(grant->cost, NFR_SVC_GRANT_COST), limit = nfr_params_optimistic_pages();

	if (!nfr_svc_limit_make_room(notices->client, cost, limit / NFR_SVC_SHARE, due) ||
	    !nfr_svc_limit_make_room(NULL, cost, limit, due))
		return false;
	nfr_svc_grant_account(grant, cost);
	return true;
}

static unsigned long nfr_svc_limit_count(struct shrinker *shrinker,
					  struct shrink_control *control)
{
	u32 pages = nfr_svc_grants_total();

	/* no lock: more may be ending by now */
	return pages - min(pages, nfr_svc_grants_total_ending()) ?: SHRINK_EMPTY;
}

/* The pages return soon: no task that needs memory waits for a device. */
static unsigned long nfr_svc_limit_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	struct nfr_svc_grant *grant;
	unsigned long freed = 0;
	LIST_HEAD(due);

	local_bh_disable();
	spin_lock(&nfr_svc_grants_lock);
	while (freed < control->nr_to_scan) {
		grant = nfr_svc_grant_oldest(NULL);
		if (!grant)
			break;
		freed += grant->cost;
		nfr_svc_revoke_add(grant, NFR_REVOKED_MEMORY, false, &due);
	}
	spin_unlock(&nfr_svc_grants_lock);
	nfr_svc_revoke_post(&due);
	local_bh_enable();
	return freed ?: SHRINK_STOP;
}

/* Allow grants and permits. Returns 0 or a negative errno. */
int nfr_svc_grants_start(void)
{
	int rc = nfr_svc_revoke_start();

	if (rc)
		return rc;
	nfr_svc_limit_shrinker = nfr_compat_shrinker(nfr_svc_limit_count, nfr_svc_limit_scan);
	if (nfr_svc_limit_shrinker)
		return 0;
	nfr_svc_revoke_stop();
	return -ENOMEM;
}

/* Undo nfr_svc_grants_start(). Context: No connection exists, and therefore no grant. Sleeps. */
void nfr_svc_grants_stop(void)
{
	nfr_compat_shrinker_free(nfr_svc_limit_shrinker);
	nfr_svc_revoke_stop();
}
