/* SPDX-License-Identifier: GPL-2.0-only */
/* Permits for threadless reads. */
#ifndef NFSRDMA_SERVER_PERMIT_H
#define NFSRDMA_SERVER_PERMIT_H

#include "server/server.h"

/* Permits of all clients, which those with a permit share in equal parts */
#define NFR_SVC_PERMITS_MAX	8192u

/* Time for which nfsd's answer permits others, and time after which a READ renews it */
#define NFR_SVC_PERMIT_LIFE	HZ
#define NFR_SVC_PERMIT_FRESH	(HZ / 2)

/* Permits of a client: sets by a hash, so that a look-up is short whatever the client sends */
#define NFR_SVC_PERMIT_SETS	256u
#define NFR_SVC_PERMIT_WAYS	4u

/* READs that nfsd has answered of late, of a client */
#define NFR_SVC_PERMIT_RECENT	1024u

struct nfr_svc_watch;
struct nfr_svc_permits;

/**
 * struct nfr_svc_permit - READs of a file by a user
 * @permits: permits of the client
 * @set: its set there
 * @slot: its place in the set
 * @of_file: link in nfr_svc_watch.permits
 * @all: link in the list of all permits, the oldest at the head
 * @watch: watch of the file
 * @until: end, in jiffies
 * @ctime: ctime of the file
 * @most: largest READ that nfsd answers in full, in bytes
 * @answer: RPC message of nfsd's Reply, up to its data
 * @privileged: whether exports with the option secure admit the client
 * @sum: hash of @key and @privileged
 * @length: length of @key in bytes
 * @key: user, groups and file handle as in the Call, with all between them
 */
struct nfr_svc_permit {
	struct nfr_svc_permits *permits;
	struct nfr_svc_permit_set *set;
	struct nfr_svc_permit **slot;
	struct list_head of_file;
	struct list_head all;
	struct nfr_svc_watch *watch;
	unsigned long until;
	struct timespec64 ctime;
	u32 most;
	u8 answer[NFR_WIRE_READ_ANSWER];
	bool privileged;
	u32 sum;
	u32 length;
	u8 key[];
};

/* Permits whose keys have similar hashes; @lock protects their presence, see permit.c */
struct nfr_svc_permit_set {
	spinlock_t lock;		/* see permit.c */
	struct nfr_svc_permit *ways[NFR_SVC_PERMIT_WAYS];
};

/* A READ, and what it needs of its permit; @key has @length bytes */
struct nfr_svc_asked {
	struct nfr_read read;
	const u8 *key;
	u32 length;
	bool privileged;
	u32 sum;
};

bool nfr_svc_permit_asks(struct nfr_svc_asked *asked, const struct nfr_svc_req *req);
struct nfr_svc_permit_set *nfr_svc_permit_set(struct nfr_svc_permits *permits,
					      const struct nfr_svc_asked *asked);
struct nfr_svc_permit *nfr_svc_permit_find(const struct nfr_svc_permit_set *set,
					   const struct nfr_svc_asked *asked);
bool nfr_svc_permit_is_due(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked);
bool nfr_svc_permit_fits(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked);
void nfr_svc_permit_put_off(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked);

/* Callers hold nfr_svc_watch_lock() */
void nfr_svc_permits_end(struct nfr_svc_watch *watch);
bool nfr_svc_permit_enter(struct nfr_svc_permit *permit, struct nfr_svc_permits *permits,
			  const struct nfr_svc_asked *asked);

void nfr_svc_permits_expire(void);
struct nfr_svc_permits *nfr_svc_permits_get(struct nfr_svc_first *first);
void nfr_svc_permits_put(struct nfr_svc_first *first);
u32 nfr_svc_permits_total(void);

#endif
