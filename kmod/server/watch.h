/* SPDX-License-Identifier: GPL-2.0-only */
/* Watched files: what ends grants and permits, and which READs may pass nfsd by. */
#ifndef NFSRDMA_SERVER_WATCH_H
#define NFSRDMA_SERVER_WATCH_H

#include <linux/fsnotify_backend.h>
#include <linux/ktime.h>
#include <linux/spinlock.h>
#include <linux/time64.h>
#include <linux/wait.h>

#include "observe/observe.h"

/* Result of nfr_svc_watch_may_bypass(): the READ may pass nfsd by, or the reason why not */
enum nfr_svc_bypass {
	NFR_SVC_BYPASS_MAY,
	NFR_SVC_BYPASS_DIRECT,		/* DAX or a swap file: the page cache is not the file */
	NFR_SVC_BYPASS_OPEN,		/* for writing */
	NFR_SVC_BYPASS_LEASE,		/* or a delegation */
	NFR_SVC_BYPASS_LISTENER,	/* may decide about accesses, or asks for a report of them */
	NFR_SVC_BYPASS_LATE,		/* access may have changed after nfsd checked it */
	NFR_SVC_BYPASS_RESULTS,
};

/*
 * struct nfr_svc_handed - time at which the server handed a Call to nfsd
 * @real: by the wall clock, which sets ctime; 0 if nothing can be learned from the Call
 * @steps: number of times that this clock had been set before
 */
struct nfr_svc_handed {
	ktime_t real;
	u32 steps;
};

/**
 * struct nfr_svc_watch - file of which clients have references, or that threadless reads read
 * @mark: mark of its inode
 * @inode: its inode, as long as @ended is not set
 * @lock: protects @changes, @ctime, @ended, and additions to @grants and @permits
 * @list: link in the list of watches with grants or permits, or of those without; the lock of
 *	these lists protects it, @checked and @idle
 * @grants: grants for the file, in any state but dead; nfr_svc_grants_lock protects it, @ending
 *	and @hurry
 * @permits: permits for READs of the file, see permit.c
 * @ending: number of @grants that are being revoked
 * @hurry: a connection failed: a task that waits for @ending has to fence it
 * @wait: tasks that wait for @ending to become 0
 * @changes: number of changes that fsnotify reported
 * @ctime: ctime of the file when the first of @grants was made
 * @checked: time of the last check for changes that fsnotify does not report, in jiffies
 * @idle: time from which the watch has neither, in jiffies, or 0
 * @ended: nothing can be granted or permitted any more
 */
struct nfr_svc_watch {
	struct fsnotify_mark mark;
	struct inode *inode;
	spinlock_t lock;		/* see optimistic.h */
	struct list_head list;
	struct list_head grants;
	struct list_head permits;
	u32 ending;
	bool hurry;
	wait_queue_head_t wait;
	u32 changes;
	struct timespec64 ctime;
	unsigned long checked;
	unsigned long idle;
	bool ended;
};

/*
 * struct nfr_svc_watch_ops - what the users of watches do about changes; without locks
 * @change: end permits and grants of a file, and wait until no client can use them
 * @check: end them unless nothing has changed that fsnotify does not report; do not wait
 * @expire: end permits whose time is over
 */
struct nfr_svc_watch_ops {
	void (*change)(struct nfr_svc_watch *watch, enum nfr_revoked why);
	void (*check)(struct nfr_svc_watch *watch);
	void (*expire)(void);
};

static inline void nfr_svc_watch_lock(struct nfr_svc_watch *watch)
{
	spin_lock_bh(&watch->lock);
}

static inline void nfr_svc_watch_unlock(struct nfr_svc_watch *watch)
{
	spin_unlock_bh(&watch->lock);
}

enum nfr_svc_bypass nfr_svc_watch_may_bypass(const struct inode *inode,
					     const struct nfr_svc_handed *handed,
					     struct timespec64 *ctime);
enum nfr_svc_bypass nfr_svc_watch_admits(const struct inode *inode,
					 const struct nfr_svc_handed *handed);
struct nfr_svc_watch *nfr_svc_watch_get(struct inode *inode);
void nfr_svc_watch_put(struct nfr_svc_watch *watch);

void nfr_svc_watch_list(struct nfr_svc_watch *watch);
void nfr_svc_watch_use(struct nfr_svc_watch *watch);
void nfr_svc_watch_rest(struct nfr_svc_watch *watch);

int nfr_svc_watches_start(const struct nfr_svc_watch_ops *ops);
void nfr_svc_watches_stop(void);

#endif
