/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Optimistic reads at the server (personality optimistic): a client that has read from an
 * extent of a file gets a reference to it, and then reads the page cache by itself.
 *
 * optimistic.c recognizes READs, grant.c grants references, revoke.c ends them, watch.c
 * learns that a file changes, notice.c has the connection that all of this uses.
 *
 * Locking: nfr_svc_grants_mutex protects all grants, and the lists of a watch. Its holder may
 * sleep until invalidations are complete, NFR_SVC_REVOKE_TIMEOUT per connection at most.
 * nfr_conn.lock nests inside it.
 */
#ifndef NFSRDMA_SERVER_OPTIMISTIC_H
#define NFSRDMA_SERVER_OPTIMISTIC_H

#include <linux/fsnotify_backend.h>

#include "memory/exposure.h"
#include "server/server.h"
#include "variants.h"

/* Grants that one batch of invalidations ends */
#define NFR_SVC_REVOKED_MAX	NFR_WIRE_REVOKED_MAX

/* Revocations that wait for a credit of the client; one that lets more wait loses its connection */
#define NFR_SVC_LATE_MAX	512

/* Largest message on the second connection, in bytes */
#define NFR_SVC_NOTICE_INLINE	1024

/**
 * struct nfr_svc_notices - what the second connection of a client has
 * @side: the connection
 * @credits: notices that the client has receives for; the lock of the connection protects
 *	the members up to @late
 * @sent: number of notices sent
 * @ring: their buffers, mapped at @addr
 * @marks: position of the send queue after each of them
 * @nlate: number of elements in use of @late
 * @late: handles that are invalid, and whose revocations wait for a credit
 * @order: pages of an extent, as a power of two
 * @grants: grants, oldest first; nfr_svc_grants_mutex protects it, and @pages
 * @pages: number of pages that they count for: those that they pin, or more for small ones
 * @batch: grants that are being revoked, @nbatch elements; same lock
 * @revoking: link in the list of connections that a task revokes grants of; same lock
 * @posted: the invalidations of @batch were posted
 * @began: time at which they were, in jiffies
 * @ended: time of the last completion, in jiffies
 * @left: time that the connection has left for the grants of a file, in jiffies
 * @revoke_cqe: completion of the last invalidation of @batch
 * @revoke_done: wait for it
 * @revoke_ok: whether they succeeded
 */
struct nfr_svc_notices {
	struct nfr_svc *side;
	u32 credits;
	u32 sent;
	u8 *ring;
	u64 addr;
	u32 marks[NFR_NOTICES];
	u32 nlate;
	u32 late[NFR_SVC_LATE_MAX];
	u32 order;
	struct list_head grants;
	u32 pages;
	struct list_head batch;
	u32 nbatch;
	struct list_head revoking;
	bool posted;
	unsigned long began;
	unsigned long ended;
	long left;
	struct ib_cqe revoke_cqe;
	struct completion revoke_done;
	bool revoke_ok;
};

/**
 * struct nfr_svc_watch - file of which clients have references
 * @mark: mark of its inode
 * @list: link in the list of all watches; nfr_svc_grants_mutex protects the other members
 * @grants: grants for the file
 * @ended: nothing can be granted any more
 */
struct nfr_svc_watch {
	struct fsnotify_mark mark;
	struct list_head list;
	struct list_head grants;
	bool ended;
};

/**
 * struct nfr_svc_grant - extent that a client may read
 * @node: link in the table
 * @lru: link in the list of all grants, oldest first
 * @of_file: link in nfr_svc_watch.grants
 * @of_side: link in nfr_svc_notices.grants
 * @watch: watch of the file
 * @side: second connection of the client
 * @index: number of the extent in the file
 * @position: position of the memory in the file, in bytes
 * @exposure: registration
 * @segment: handle and length in the notice
 * @ends: whether the file ends with the extent: a change of its size revokes the grant
 * @expires: in jiffies
 * @created: in jiffies
 * @announced: time of the last notice, in jiffies
 * @credential: digest in the last notice
 * @npages: number of @pages, to which the grant holds references
 * @pages: pages of the file
 */
struct nfr_svc_grant {
	struct hlist_node node;
	struct list_head lru;
	struct list_head of_file;
	struct list_head of_side;
	struct nfr_svc_watch *watch;
	struct nfr_svc *side;
	u64 index;
	u64 position;
	struct nfr_exposure exposure;
	struct nfr_segment segment;
	bool ends;
	unsigned long expires;
	unsigned long created;
	unsigned long announced;
	u64 credential;
	u32 npages;
	struct page *pages[];
};

/* Protects all grants, and the lists of watches */
extern struct mutex nfr_svc_grants_mutex;

/* notice.c */
bool nfr_svc_notice_may_grant(struct nfr_svc *side);
int nfr_svc_notice_grant(struct nfr_svc *side, const struct nfr_notice *notice,
			 struct nfr_exposure *exposure);
int nfr_svc_notice_revoke(struct nfr_svc *side, const struct nfr_notice *notice,
			  struct ib_send_wr *first, struct ib_send_wr *last);

/* watch.c */
int nfr_svc_watch_start(void (*changed)(struct nfr_svc_watch *watch, u32 mask));
void nfr_svc_watch_stop(void);
struct nfr_svc_watch *nfr_svc_watch_get(struct inode *inode);
void nfr_svc_watch_hold(struct nfr_svc_watch *watch);
void nfr_svc_watch_put(struct nfr_svc_watch *watch);
void nfr_svc_watch_end(struct nfr_svc_watch *watch);

/* revoke.c; callers hold the mutex */
struct nfr_svc_grant *nfr_svc_grant_find(const struct nfr_svc_watch *watch,
					 const struct nfr_svc *side, u64 index);
void nfr_svc_grant_add(struct nfr_svc_grant *grant);
void nfr_svc_grant_renew(struct nfr_svc_grant *grant);
void nfr_svc_grants_list(struct nfr_svc_watch *watch);
void nfr_svc_grant_charge(struct nfr_svc_grant *grant);
void nfr_svc_grant_free(struct nfr_svc_grant *grant);
bool nfr_svc_grant_stays(const struct nfr_svc_grant *grant);
void nfr_svc_revoke_file(struct nfr_svc_watch *watch, enum nfr_revoked why);
bool nfr_svc_revoke_one(struct nfr_svc_grant *grant, enum nfr_revoked why);
bool nfr_svc_revoke_for_room(struct nfr_svc *side, u32 pages);

/* grant.c */
void nfr_svc_grant_reference(struct nfr_svc *side, const struct nfr_read *read,
			     struct inode *inode, struct page *page, ktime_t began);

#endif
