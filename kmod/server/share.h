/* SPDX-License-Identifier: GPL-2.0-only */
/* Client addresses, and the pages that each may make the server hold. */
#ifndef NFSRDMA_SERVER_SHARE_H
#define NFSRDMA_SERVER_SHARE_H

#include <linux/spinlock.h>

#include "server/server.h"

/*
 * Protects the client addresses, the lists of those that wait, and all of struct nfr_svc_share
 * but its @room. sunrpc's locks nest in it.
 */
extern spinlock_t nfr_svc_shares_lock;

/*
 * struct nfr_svc_floors - how the floors are distributed
 * @clients: client addresses with connections
 * @sharing: those of them that have no floor of their own
 * @pages: sum of the floors
 */
struct nfr_svc_floors {
	u32 clients;
	u32 sharing;
	u32 pages;
};

int nfr_svc_host_join(struct nfr_svc *svc, void (*init)(struct nfr_svc_host *host));
struct nfr_svc_host *nfr_svc_host_leave(struct nfr_svc *svc);
void nfr_svc_hosts_floors(struct nfr_svc_floors *floors);
bool nfr_svc_share_charge(struct nfr_svc_share *share, u32 pages);
void nfr_svc_share_want(struct nfr_svc_share *share);
void nfr_svc_share_rest(struct nfr_svc_share *share);
void nfr_svc_share_put(struct nfr_svc_share *share, u32 pages);
bool nfr_svc_share_is_wanted(const struct nfr_svc_share *share);
void nfr_svc_shares_start(void (*check)(void));
void nfr_svc_shares_stop(void);
u32 nfr_svc_shares_in_use(enum nfr_svc_purpose use);
void nfr_svc_shares_wake_by(enum nfr_svc_purpose use, void (*wake)(struct nfr_svc_host *host));

/* Check whether a link is the first of those that wait in a list, or would be the only one. */
static inline bool nfr_svc_share_is_turn(const struct list_head *list, const struct list_head *link)
{
	return list_empty(list) || list->next == link;
}

/* Check whether others than the owner of a link wait in a list. */
static inline bool nfr_svc_share_others_wait(const struct list_head *list,
					     const struct list_head *link)
{
	return !list_empty(list) && !(list->next == link && list_is_last(link, list));
}

/* Charge a share for pages that it has. */
static inline bool nfr_svc_share_take(struct nfr_svc_share *share, u32 pages)
{
	int room = atomic_read(&share->room);

	do {
		if (room < (int)pages)
			return false;
	} while (!atomic_try_cmpxchg(&share->room, &room, room - (int)pages));
	return true;
}

/* The same, without a lock, unless others wait for pages of the share. */
static inline bool nfr_svc_share_try(struct nfr_svc_share *share, u32 pages)
{
	return !READ_ONCE(share->urgent) && nfr_svc_share_take(share, pages);
}

#endif
