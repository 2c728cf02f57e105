/* SPDX-License-Identifier: GPL-2.0-only */
/* Permits for threadless reads. */
#ifndef NFSRDMA_SERVER_PERMIT_H
#define NFSRDMA_SERVER_PERMIT_H

#include "server/server.h"

/* Permits of all clients */
#define NFR_SVC_PERMITS_MAX	4096u

/* Time for which nfsd's answer permits others, and time after which a READ renews it */
#define NFR_SVC_PERMIT_LIFE	HZ
#define NFR_SVC_PERMIT_FRESH	(HZ / 2)

/* Permits of a client: sets by a hash, so that a look-up is short whatever the client sends */
#define NFR_SVC_PERMIT_SETS	64u
#define NFR_SVC_PERMIT_WAYS	4u

/* Longest credential with the file handle, in bytes */
#define NFR_SVC_PERMIT_KEY	512u

struct nfr_svc_watch;

/**
 * struct nfr_svc_permit - READs of a file by a user
 * @permits: table that has the permit
 * @slot: its place there
 * @of_file: link in nfr_svc_watch.permits
 * @all: link in the list of all permits, the oldest at the head
 * @watch: watch of the file
 * @until: end, in jiffies
 * @ctime: ctime of the file
 * @most: largest READ that nfsd answers in full, in bytes
 * @answer: RPC message of nfsd's Reply, up to its data
 * @length: length of @key in bytes
 * @key: credential and file handle as in the Call, with all between them
 */
struct nfr_svc_permit {
	struct nfr_svc_permits *permits;
	struct nfr_svc_permit **slot;
	struct list_head of_file;
	struct list_head all;
	struct nfr_svc_watch *watch;
	unsigned long until;
	struct timespec64 ctime;
	u32 most;
	u8 answer[NFR_WIRE_READ_ANSWER];
	u32 length;
	u8 key[];
};

/**
 * struct nfr_svc_permits - permits of a client
 * @lock: protects the table, and with nfr_svc_grants_lock its changes
 * @table: permits, set by set
 */
struct nfr_svc_permits {
	spinlock_t lock;		/* see permit.c */
	struct nfr_svc_permit *table[NFR_SVC_PERMIT_SETS * NFR_SVC_PERMIT_WAYS];
};

/* A READ, and what it needs of its permit; @key has @length bytes */
struct nfr_svc_asked {
	struct nfr_read read;
	const u8 *key;
	u32 length;
	u32 set;		/* position of the first permit of its set */
};

bool nfr_svc_permit_asks(struct nfr_svc_asked *asked, const u8 *rpc, u32 rpc_length);
struct nfr_svc_permit *nfr_svc_permit_find(struct nfr_svc_permits *permits,
					   const struct nfr_svc_asked *asked);
bool nfr_svc_permit_is_fresh(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked);

/* Callers hold nfr_svc_grants_lock */
void nfr_svc_permits_end(struct nfr_svc_watch *watch);
void nfr_svc_permits_expire(void);
bool nfr_svc_permit_enter(struct nfr_svc_permit *permit, const struct nfr_svc_asked *asked);

struct nfr_svc_permits *nfr_svc_permits_get(struct nfr_svc_first *first);
void nfr_svc_permits_destroy(struct nfr_svc_first *first);
u32 nfr_svc_permits_total(void);

#endif
