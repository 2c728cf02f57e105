/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Optimistic reads at the server (personality optimistic): a client that has read from an
 * extent of a file gets a reference to it, and then reads the page cache by itself.
 *
 * personality/optimistic.c recognizes READs, and finds the file that nfsd has read. grant.c grants
 * references, its entry is nfr_svc_grant_reference(). granted.c has
 * the grants that exist. watch.c says when files change. revoke.c ends grants, its entry is
 * nfr_svc_revoke_add(). limit.c bounds them. notice.c has the connection that all of this uses.
 *
 * Locking, outer locks first; holders do not sleep or wait for a device:
 *
 * - nfr_svc_watch.lock of a file: changes of the file, and new grants and permits for it. A READ
 *   by RPC that leads to nothing new takes no other lock of this room.
 * - nfr_svc_notices.posting of a connection: the invalidations that it posts. Does not nest in
 *   the lock of a watch
 * - nfr_svc_grants_lock: all grants and clients, and the lists of the connections. A completion
 *   handler takes it, too
 * - nfr_svc_watches_lock in watch.c, the lock of permit.c, and nfr_conn.lock. The last one nests in
 *   each of the others but these two
 */
#ifndef NFSRDMA_SERVER_OPTIMISTIC_H
#define NFSRDMA_SERVER_OPTIMISTIC_H

#include <linux/timerqueue.h>

#include "memory/exposure.h"
#include "personality/optimistic.h"
#include "server/server.h"
#include "server/watch.h"

/* Grants that one batch of invalidations ends */
#define NFR_SVC_REVOKED_MAX	NFR_WIRE_REVOKED_MAX

/* Revocations that wait for a credit of the client; one that lets more wait loses its connection */
#define NFR_SVC_LATE_MAX	512

/* Largest message on the branch, in bytes */
#define NFR_SVC_NOTICE_INLINE	1024

/**
 * struct nfr_svc_client - what all connections of a client have in common
 * @list: link in the list of all clients
 * @net: network namespace of the server
 * @address: address of the client, without a port
 * @branches: its branches
 * @grants: grants that it may use, the one that was announced first at the head
 * @pages: pages that all its grants count for
 * @ending: part of @pages whose grants are being revoked
 * @waited: time that tasks waited for its invalidations in this period, in nanoseconds; short
 *	ones do not count
 * @until: end of the period, in jiffies
 */
struct nfr_svc_client {
	struct list_head list;
	const struct net *net;
	struct sockaddr_storage address;
	struct list_head branches;
	struct list_head grants;
	u32 pages;
	u32 ending;
	u64 waited;
	unsigned long until;
};

/**
 * struct nfr_svc_notices - what the branch of a client has
 * @branch: the connection
 * @pool: its MRs
 * @credits: notices that the client has receives for; the lock of the connection protects
 *	the members up to @late
 * @sent: number of notices sent
 * @ring: their buffers, mapped at @addr
 * @marks: position of the send queue after each of them
 * @nlate: number of elements in use of @late
 * @late: handles that are invalid, and whose revocations wait for a credit
 * @order: pages of an extent, as a power of two
 * @credited: called when the client has returned credits for all revocations
 * @client: the client, or NULL; nfr_svc_grants_lock protects it, and the other members
 * @posting: serializes the posting of batches: who takes a batch away, or makes one, holds it and
 *	nfr_svc_grants_lock
 * @of_client: link in nfr_svc_client.branches
 * @pages: pages that all its grants count for
 * @grants: grants that the client may use
 * @ending: grants to revoke, those that a task waits for at the head
 * @batch: grants whose invalidations are posted, @nbatch elements
 * @dead: grants that a fence has ended; they keep their pages until the queue pair is drained
 * @fencing: serializes tasks that fence the connection, outside of the lock
 * @cut: MRs that the device has destroyed because it refused the fence
 * @busy: link in the list of connections with a batch, or that wait for credits to post one
 * @due: link in a list of connections that have to post a batch
 * @nwaited: number of grants in @ending and @batch that a task waits for
 * @waited_at: time from which tasks have waited, for the first of them or since the last batch
 * @posted: time at which @batch was posted, or the wait for credits began, in jiffies
 * @failed: posting or an invalidation failed: only a fence ends the grants
 * @blind: the device does not see what the processor writes to mapped memory: nothing is granted
 * @revoke_cqe: completion of the last invalidation of @batch
 */
struct nfr_svc_notices {
	struct nfr_svc *branch;
	struct nfr_pool pool;
	u32 credits;
	u32 sent;
	u8 *ring;
	u64 addr;
	u32 marks[NFR_NOTICES];
	u32 nlate;
	u32 late[NFR_SVC_LATE_MAX];
	u32 order;
	void (*credited)(struct nfr_svc *branch);
	struct nfr_svc_client *client;
	spinlock_t posting;		/* see above */
	struct list_head of_client;
	u32 pages;
	struct list_head grants;
	struct list_head ending;
	struct list_head batch;
	u32 nbatch;
	struct list_head dead;
	struct mutex fencing;		/* see above */
	struct list_head cut;
	struct list_head busy;
	struct list_head due;
	u32 nwaited;
	ktime_t waited_at;
	unsigned long posted;
	bool failed;
	bool blind;
	struct ib_cqe revoke_cqe;
};

/**
 * struct nfr_svc_grant - extent that a client may read
 * @rcu: frees the grant, which others may find without a lock
 * @node: link in the table
 * @expiry: time at which the grant expires, and link in the queue of all grants
 * @of_client: link in nfr_svc_client.grants
 * @of_file: link in nfr_svc_watch.grants
 * @of_branch: link in a list of nfr_svc_notices
 * @watch: watch of the file; NULL if a fence has ended the grant
 * @branch: branch of the client
 * @index: number of the extent in the file
 * @position: position of the memory in the file, in bytes
 * @exposure: registration
 * @segment: handle and length in the notice
 * @ends: whether the file ends with the extent: a change of its size revokes the grant
 * @ending: the grant is being revoked: it is in no list in which others find it
 * @posted: its invalidation is posted
 * @waited: a task waits for that
 * @why: reason
 * @created: in jiffies
 * @announced: time of the last notice, in jiffies
 * @credential: digest in the last notice
 * @cost: number of pages that the grant counts for
 * @npages: number of @pages, to which the grant holds references
 * @pages: pages of the file
 */
struct nfr_svc_grant {
	struct rcu_head rcu;
	struct hlist_node node;
	struct timerqueue_node expiry;
	struct list_head of_client;
	struct list_head of_file;
	struct list_head of_branch;
	struct nfr_svc_watch *watch;
	struct nfr_svc *branch;
	u64 index;
	u64 position;
	struct nfr_exposure exposure;
	struct nfr_segment segment;
	bool ends;
	bool ending;
	bool posted;
	bool waited;
	enum nfr_revoked why;
	unsigned long created;
	unsigned long announced;
	u64 credential;
	u32 cost;
	u32 npages;
	struct page *pages[];
};

static inline struct nfr_svc_notices *nfr_svc_notices(const struct nfr_svc *branch)
{
	return *(struct nfr_svc_notices **)nfr_svc_own(branch);
}

/* Protects all grants and clients, see above */
extern spinlock_t nfr_svc_grants_lock;

/* notice.c */
int nfr_svc_notice_agree(struct nfr_svc *branch, const struct rdma_conn_param *param);
int nfr_svc_notice_fit(struct nfr_svc *branch);
void nfr_svc_notice_destroy(struct nfr_svc *branch);
void nfr_svc_notice_receive(struct nfr_conn *conn, struct nfr_recv *recv);
bool nfr_svc_notice_may_grant(struct nfr_svc *branch);
int nfr_svc_notice_grant(struct nfr_svc *branch, const struct nfr_notice *notice,
			 struct nfr_exposure *exposure);
int nfr_svc_notice_revoke(struct nfr_svc *branch, const struct nfr_notice *notice,
			  struct ib_send_wr *first, struct ib_send_wr *last);

/* granted.c; callers hold the lock, except where a comment there says otherwise */
struct nfr_svc_grant *nfr_svc_grant_find(const struct nfr_svc_watch *watch,
					 const struct nfr_svc *branch, u64 index);
bool nfr_svc_grant_is_valid(const struct nfr_svc_grant *grant);
void nfr_svc_grant_add(struct nfr_svc_grant *grant);
void nfr_svc_grant_renew(struct nfr_svc_grant *grant, u32 lifetime);
bool nfr_svc_grant_stays(const struct nfr_svc_grant *grant);
void nfr_svc_grant_end(struct nfr_svc_grant *grant, enum nfr_revoked why);
void nfr_svc_grant_gone(struct nfr_svc_grant *grant);
void nfr_svc_grant_drop_pages(struct nfr_svc_grant *grant);
void nfr_svc_grant_account(struct nfr_svc_grant *grant, u32 cost);
void nfr_svc_grant_discharge(struct nfr_svc_grant *grant);
void nfr_svc_grant_free(struct nfr_svc_grant *grant);
struct nfr_svc_grant *nfr_svc_grant_oldest(struct nfr_svc_client *client);
void nfr_svc_grants_init(void);
void nfr_svc_grants_show(const struct nfr_svc *branch, struct seq_file *seq);
u32 nfr_svc_grants_total(void);
u32 nfr_svc_grants_total_ending(void);
int nfr_svc_client_join(struct nfr_svc *branch);
bool nfr_svc_client_may_read(const struct nfr_svc_client *client);
void nfr_svc_client_charge(struct nfr_svc_client *client, s64 waited);
bool nfr_svc_clients_reap(bool all);

/* revoke.c; comments there say which locks callers hold */
enum nfr_svc_bypass nfr_svc_revoke_unless_same(struct nfr_svc_watch *watch,
					       const struct nfr_svc_handed *handed,
					       struct list_head *due);
void nfr_svc_revoke_add(struct nfr_svc_grant *grant, enum nfr_revoked why, bool waited,
			struct list_head *due);
void nfr_svc_revoke_post(struct list_head *due);
void nfr_svc_revoke_soon(struct nfr_svc_watch *watch, enum nfr_revoked why, struct list_head *due);

/* revoke.c; callers hold no lock */
void nfr_svc_revoke_init(struct nfr_svc *branch);
int nfr_svc_revoke_join(struct nfr_svc *branch);
void nfr_svc_revoke_fence(struct nfr_svc *branch);
void nfr_svc_revoke_destroy(struct nfr_svc *branch);
int nfr_svc_revoke_start(void);
void nfr_svc_revoke_stop(void);

/* limit.c; callers of the first one hold the lock */
bool nfr_svc_limit_charge(struct nfr_svc_grant *grant, struct list_head *due);
int nfr_svc_grants_start(void);
void nfr_svc_grants_stop(void);

/* grant.c */
void nfr_svc_grant_reference(struct nfr_svc *branch, const struct nfr_read *read,
			     struct page *page, const struct nfr_svc_handed *handed);

#endif
