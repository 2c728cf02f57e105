/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Differences between kernel versions. features.sh detects them by compiling
 * test programs, never by version number.
 */
#ifndef NFSRDMA_COMPAT_H
#define NFSRDMA_COMPAT_H

#include <linux/fs.h>
#include <linux/fsnotify.h>
#include <linux/gfp.h>
#include <linux/shrinker.h>
#include <linux/timekeeping.h>
#include <linux/slab.h>
#include <linux/sunrpc/bc_xprt.h>
#include <linux/sunrpc/svc.h>
#include <linux/workqueue.h>

#include "compat/features.h"

#ifdef HAVE_FILELOCK_H
#include <linux/filelock.h>
#endif

#ifdef HAVE_WQ_PERCPU
#define NFR_WQ_BOUND WQ_PERCPU
#else
#define NFR_WQ_BOUND 0
#endif

#ifdef HAVE_WQ_BH_PERCPU
#define NFR_WQ_SOFTIRQ (WQ_BH | WQ_PERCPU)
#elif defined(HAVE_WQ_BH)
#define NFR_WQ_SOFTIRQ WQ_BH
#endif

/* Set the position of the pages of the Reply, after @used pages of the Call */
static inline void nfr_compat_set_respages(struct svc_rqst *rqstp, unsigned int used)
{
#ifndef HAVE_RQ_PAGES_NFREE
	rqstp->rq_respages = rqstp->rq_pages + used;
#endif
	rqstp->rq_next_page = rqstp->rq_respages + 1;
}

/* There is no Call: sunrpc would free the pages of the thread's previous Reply again */
static inline void nfr_compat_no_respages(struct svc_rqst *rqstp)
{
	nfr_compat_set_respages(rqstp, 0);
	rqstp->rq_next_page = rqstp->rq_respages;
}

/* Fill @pages with @count pages. Returns the number of elements in use. */
static inline unsigned long nfr_compat_alloc_pages(gfp_t gfp, unsigned long count,
						   struct page **pages)
{
#ifdef HAVE_ALLOC_PAGES_BULK_ARRAY
	return alloc_pages_bulk_array(gfp, count, pages);
#else
	return alloc_pages_bulk(gfp, count, pages);
#endif
}

static inline struct timespec64 nfr_compat_inode_ctime(const struct inode *inode)
{
#ifdef HAVE_INODE_GET_CTIME
	return inode_get_ctime(inode);
#else
	return inode->i_ctime;
#endif
}

/* Find the mark of a group on an inode. Returns it with a reference, or NULL. */
static inline struct fsnotify_mark *nfr_compat_find_inode_mark(struct inode *inode,
							       struct fsnotify_group *group)
{
#ifdef HAVE_FSNOTIFY_FIND_INODE_MARK
	return fsnotify_find_inode_mark(inode, group);
#else
	return fsnotify_find_mark(&inode->i_fsnotify_marks, group);
#endif
}

/*
 * Check whether somebody may decide about accesses to files of a file system (fanotify permission
 * events). Where the kernel does not count such listeners, a module does not see those of mounts,
 * and has to assume one.
 */
static inline bool nfr_compat_may_have_decider(struct super_block *sb)
{
#ifndef CONFIG_FANOTIFY_ACCESS_PERMISSIONS
	return false;
#elif defined(HAVE_FSNOTIFY_PRIORITY_WATCHERS)
	return fsnotify_sb_has_priority_watchers(sb, FSNOTIFY_PRIO_CONTENT);
#else
	return true;
#endif
}

typedef unsigned long (*nfr_shrink_fn)(struct shrinker *shrinker, struct shrink_control *control);

/* Register a shrinker. Returns NULL if that failed. */
static inline struct shrinker *nfr_compat_shrinker(nfr_shrink_fn count, nfr_shrink_fn scan)
{
#ifdef HAVE_SHRINKER_ALLOC
	struct shrinker *shrinker = shrinker_alloc(0, "nfsrdma");

	if (!shrinker)
		return NULL;
#else
	struct shrinker *shrinker = kzalloc(sizeof(*shrinker), GFP_KERNEL);

	if (!shrinker)
		return NULL;
#endif
	shrinker->count_objects = count;
	shrinker->scan_objects = scan;
	shrinker->seeks = DEFAULT_SEEKS;
#ifdef HAVE_SHRINKER_ALLOC
	shrinker_register(shrinker);
#else
	if (register_shrinker(shrinker, "nfsrdma")) {
		kfree(shrinker);
		return NULL;
	}
#endif
	return shrinker;
}

static inline void nfr_compat_shrinker_free(struct shrinker *shrinker)
{
#ifdef HAVE_SHRINKER_ALLOC
	shrinker_free(shrinker);
#else
	unregister_shrinker(shrinker);
	kfree(shrinker);
#endif
}

#ifndef HAVE_XPRT_ENQUEUE_BC_REQUEST
static inline void nfr_compat_wake_callback_service(struct svc_serv *serv, struct rpc_rqst *rqst)
{
#ifdef HAVE_SVC_CB_LWQ
	lwq_enqueue(&rqst->rq_bc_list, &serv->sv_cb_list);
	svc_pool_wake_idle_thread(&serv->sv_pools[0]);
#else
	spin_lock(&serv->sv_cb_lock);
	list_add(&rqst->rq_bc_list, &serv->sv_cb_list);
	wake_up(&serv->sv_cb_waitq);
	spin_unlock(&serv->sv_cb_lock);
#endif
}
#endif

/*
 * Queue a callback for the callback service of its transport. The service holds
 * a reference to the transport. Returns false if the service or the transport
 * is gone.
 */
static inline bool nfr_compat_enqueue_callback(struct rpc_rqst *rqst)
{
	struct rpc_xprt *xprt = xprt_get(rqst->rq_xprt);
	struct svc_serv *serv;

	if (!xprt)
		return false;
#ifdef HAVE_XPRT_ENQUEUE_BC_REQUEST
	/* the helper takes a reference itself, even if it rejects @rqst */
	serv = READ_ONCE(xprt->bc_serv);
	if (serv)
		xprt_enqueue_bc_request(rqst);
	xprt_put(xprt);
#else
	spin_lock(&xprt->bc_pa_lock);
	serv = xprt->bc_serv;
	if (serv)
		nfr_compat_wake_callback_service(serv, rqst);
	spin_unlock(&xprt->bc_pa_lock);
	if (!serv)
		xprt_put(xprt);
#endif
	return serv;
}

/* Get the number of times that the wall clock was set, which wraps. */
static inline u32 nfr_compat_clock_steps(void)
{
	struct system_time_snapshot snapshot;

#ifdef HAVE_KTIME_GET_SNAPSHOT_ID
	ktime_get_snapshot_id(CLOCK_REALTIME, &snapshot);
#else
	ktime_get_snapshot(&snapshot);
#endif
	return snapshot.clock_was_set_seq;
}

#endif
