// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watches: the files of which clients have references, or that threadless reads read. A watch is
 * a mark of fsnotify on the inode, which keeps the inode.
 *
 * fsnotify calls the mark of a file in the task that changes the file, or access to it, before
 * the system call returns, or before nfsd replies. The task may hold locks of the file, which
 * nothing that it waits for needs. When the file system is unmounted, fsnotify ends the mark,
 * which then releases the inode.
 *
 * fsnotify does not report each change (ACLs that nfsd sets, writers among the file systems of
 * the kernel): a worker checks all watches with grants or permits each second.
 *
 * nfr_svc_watch_may_bypass() decides for all users whether a READ may pass nfsd by.
 *
 * This file calls its users by struct nfr_svc_watch_ops.
 */
#include <linux/fs.h>
#include <linux/fsnotify.h>
#include <linux/sched/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>

#include "compat/compat.h"
#include "gfp.h"
#include "server/watch.h"
#include "work.h"

/* Interval at which files are checked, and watches without grants and permits end */
#define NFR_SVC_WATCHES_CHECK	HZ

/* Time that a watch without grants and permits stays, in case it gets others */
#define NFR_SVC_WATCHES_REST	(HZ / 2)

/*
 * Watches that exist at most, because each keeps an inode in memory: as many as grants of the
 * smallest size in the default of optimistic_memory
 */
#define NFR_SVC_WATCHES_MAX	16384

/*
 * Time by which ctime has to precede a READ: ctime is as coarse as a tick, and a virtual CPU may
 * stop between reading the clock and setting ctime
 */
#define NFR_SVC_WATCH_SETTLED	NSEC_PER_SEC

/*
 * FS_MODIFY: written, truncated, or allocated (fallocate(2)). FS_ATTRIB: owner, mode, ACL, or
 * number of links. FS_MOVE_SELF: it may have left the exported tree. FS_OPEN: a process may
 * write past the page cache. An unmount ends the mark.
 */
#define NFR_SVC_WATCHED	(FS_MODIFY | FS_ATTRIB | FS_OPEN | FS_MOVE_SELF | FS_DELETE_SELF)

/* Protects the lists of watches; nests in all other locks of this room, see optimistic.h */
static DEFINE_SPINLOCK(nfr_svc_watches_lock);
/* watches with grants or permits, the one that was checked first at the head, and the others */
static LIST_HEAD(nfr_svc_watches);
static LIST_HEAD(nfr_svc_watches_idle);
static unsigned long nfr_svc_watches_resting;
/* watches that fsnotify has not freed */
static atomic_t nfr_svc_watch_count;
static struct fsnotify_group *nfr_svc_watch_group;
static const struct nfr_svc_watch_ops *nfr_svc_watch_users;
static struct shrinker *nfr_svc_watches_shrinker;
/* end the watches that rest, however short they have */
static bool nfr_svc_watches_short;

static void nfr_svc_watches_check(struct work_struct *work);
static void nfr_svc_watches_end(struct work_struct *work);
static DECLARE_DELAYED_WORK(nfr_svc_watches_work, nfr_svc_watches_check);
/* of its own, because a file system may take its time to release an inode */
static DECLARE_DELAYED_WORK(nfr_svc_watches_end_work, nfr_svc_watches_end);

/* --- may a READ pass nfsd by? --- */

static bool nfr_svc_watch_has_lease(const struct inode *inode)
{
	struct file_lock_context *locks = READ_ONCE(inode->i_flctx);

	return locks && !list_empty(&locks->flc_lease);
}

/*
 * Check whether somebody may decide about accesses to a file, by a mark of the file, its parent,
 * its mount or its file system; or asks for reports of accesses, by a mark of the file or its file
 * system.
 */
static bool nfr_svc_watch_has_listener(const struct inode *inode)
{
#ifdef CONFIG_FSNOTIFY
	if ((READ_ONCE(inode->i_fsnotify_mask) | READ_ONCE(inode->i_sb->s_fsnotify_mask)) &
	    (FS_ACCESS | ALL_FSNOTIFY_PERM_EVENTS))
		return true;
#endif
	return nfr_compat_may_have_decider(inode->i_sb);
}

/*
 * Check whether access to a file may have changed after nfsd got a Call, which checks access
 * first, and then may wait for a disk. If the clock was set since, ctime says nothing about that.
 */
static bool nfr_svc_watch_is_late(const struct timespec64 *ctime,
				  const struct nfr_svc_handed *handed)
{
	/* a step of the clock that preceded ctime is seen */
	smp_rmb();
	return nfr_compat_clock_steps() != handed->steps ||
	       ktime_compare(timespec64_to_ktime(*ctime),
			     ktime_sub_ns(handed->real, NFR_SVC_WATCH_SETTLED)) >= 0;
}

/**
 * nfr_svc_watch_may_bypass - decide whether a READ may pass nfsd by
 * @inode: inode of the file, which the caller keeps
 * @handed: time at which nfsd got the READ that the others shall follow; NULL for one of these,
 *	whose caller compares @ctime with that of the first one
 * @ctime: output: ctime of the file, read once; each change of data, size, owner, mode and ACL
 *	sets it
 *
 * Context: Any; takes no lock.
 *
 * Return: NFR_SVC_BYPASS_MAY, or the reason why nfsd has to execute the READ.
 */
enum nfr_svc_bypass nfr_svc_watch_may_bypass(const struct inode *inode,
					     const struct nfr_svc_handed *handed,
					     struct timespec64 *ctime)
{
	*ctime = nfr_compat_inode_ctime(inode);
	if (IS_DAX(inode) || IS_SWAPFILE(inode))
		return NFR_SVC_BYPASS_DIRECT;
	if (inode_is_open_for_write(inode))
		return NFR_SVC_BYPASS_OPEN;
	if (nfr_svc_watch_has_lease(inode))
		return NFR_SVC_BYPASS_LEASE;
	if (nfr_svc_watch_has_listener(inode))
		return NFR_SVC_BYPASS_LISTENER;
	if (handed && nfr_svc_watch_is_late(ctime, handed))
		return NFR_SVC_BYPASS_LATE;
	return NFR_SVC_BYPASS_MAY;
}

/* --- marks --- */

static struct nfr_svc_watch *nfr_svc_watch_of(struct fsnotify_mark *mark)
{
	return container_of(mark, struct nfr_svc_watch, mark);
}

/* Have a worker end the watches that rest, all of them if @all is set. */
static void nfr_svc_watches_hurry(bool all)
{
	if (all)
		WRITE_ONCE(nfr_svc_watches_short, true);
	nfr_work_hurry(&nfr_svc_watches_end_work);
}

/* Count a new watch. Returns false if there are too many. */
static bool nfr_svc_watch_admit(void)
{
	if (atomic_inc_return(&nfr_svc_watch_count) <= NFR_SVC_WATCHES_MAX)
		return true;
	nfr_svc_watches_hurry(true);
	return false;
}

static void nfr_svc_watch_uncount(void)
{
	if (atomic_dec_and_test(&nfr_svc_watch_count))
		wake_up_var(&nfr_svc_watch_count);
}

static struct nfr_svc_watch *nfr_svc_watch_create(struct inode *inode)
{
	struct nfr_svc_watch *watch = NULL;

	if (nfr_svc_watch_admit())
		watch = kzalloc(sizeof(*watch), NFR_GFP_RETRIED);
	if (!watch) {
		nfr_svc_watch_uncount();
		return NULL;
	}
	spin_lock_init(&watch->lock);
	INIT_LIST_HEAD(&watch->list);
	INIT_LIST_HEAD(&watch->grants);
	INIT_LIST_HEAD(&watch->permits);
	init_waitqueue_head(&watch->wait);
	watch->inode = inode;
	fsnotify_init_mark(&watch->mark, nfr_svc_watch_group);
	watch->mark.mask = NFR_SVC_WATCHED;
	if (!fsnotify_add_inode_mark(&watch->mark, inode, 0))
		return watch;
	fsnotify_put_mark(&watch->mark);
	return NULL;
}

/**
 * nfr_svc_watch_admits - decide whether a READ can lead to others that pass nfsd by
 * @inode: inode of the file, which the caller keeps
 * @handed: time at which nfsd got the READ
 *
 * That avoids a watch for a READ which leads to nothing. Context: Any; takes no lock.
 *
 * Return: NFR_SVC_BYPASS_MAY if the file may be watched, or is watched, perhaps: then the caller
 * asks again when it has the watch, because a change may precede that, and has to end what others
 * have of the file. Or the reason why not.
 */
enum nfr_svc_bypass nfr_svc_watch_admits(const struct inode *inode,
					 const struct nfr_svc_handed *handed)
{
	struct timespec64 ctime;

#ifdef CONFIG_FSNOTIFY
	if (!(~READ_ONCE(inode->i_fsnotify_mask) & NFR_SVC_WATCHED))
		return NFR_SVC_BYPASS_MAY;
#endif
	return nfr_svc_watch_may_bypass(inode, handed, &ctime);
}

/**
 * nfr_svc_watch_get - watch a file
 * @inode: its inode; the caller holds a reference to it, and keeps the file system mounted
 *
 * Context: The caller does not hold the lock; sleeps.
 *
 * Return: watch, for nfr_svc_watch_put(); NULL without memory, or if there are too many.
 */
struct nfr_svc_watch *nfr_svc_watch_get(struct inode *inode)
{
	struct fsnotify_mark *mark = nfr_compat_find_inode_mark(inode, nfr_svc_watch_group);
	struct nfr_svc_watch *watch;
	unsigned int noio;

	if (mark)
		return nfr_svc_watch_of(mark);
	/* the client may be this host, whose writeback of dirty pages depends on this thread */
	noio = memalloc_noio_save();
	watch = nfr_svc_watch_create(inode);
	memalloc_noio_restore(noio);
	return watch;
}

/*
 * Release a reference to a watch, which goes on. Context: The caller does not hold the lock;
 * may release the inode.
 */
void nfr_svc_watch_put(struct nfr_svc_watch *watch)
{
	fsnotify_put_mark(&watch->mark);
}

/* --- lists --- */

/* Both lists grow under the lock of the watch: without it, the answer may be out of date. */
static bool nfr_svc_watch_is_used(const struct nfr_svc_watch *watch)
{
	return !list_empty(&watch->grants) || !list_empty(&watch->permits);
}

/* Take a watch out of the list that it is in. Caller holds nfr_svc_watches_lock. */
static void nfr_svc_watch_unlist(struct nfr_svc_watch *watch)
{
	if (!list_empty(&watch->list) && watch->idle)
		WRITE_ONCE(nfr_svc_watches_resting, nfr_svc_watches_resting - 1);
	WRITE_ONCE(watch->idle, 0);
	list_del_init(&watch->list);
}

/* Put a watch in the list of those without grants and permits. Caller holds the same. */
static void nfr_svc_watch_lay(struct nfr_svc_watch *watch)
{
	nfr_svc_watch_unlist(watch);
	/* 0 stands for a watch that does not rest */
	WRITE_ONCE(watch->idle, jiffies ?: 1);
	list_add_tail(&watch->list, &nfr_svc_watches_idle);
	WRITE_ONCE(nfr_svc_watches_resting, nfr_svc_watches_resting + 1);
	nfr_work_queue(&nfr_svc_watches_end_work, NFR_SVC_WATCHES_REST);
}

/* Put a watch in the list of those with grants or permits. Caller holds the same. */
static void nfr_svc_watch_lift(struct nfr_svc_watch *watch)
{
	nfr_svc_watch_unlist(watch);
	watch->checked = jiffies;
	list_add_tail(&watch->list, &nfr_svc_watches);
}

/**
 * nfr_svc_watch_use - keep a watch, and check it for changes
 * @watch: watch in a list, which got a grant or a permit; the caller holds its lock
 */
void nfr_svc_watch_use(struct nfr_svc_watch *watch)
{
	/* nfr_svc_watch_take() finds one that rests by mistake */
	if (!READ_ONCE(watch->idle))
		return;
	spin_lock(&nfr_svc_watches_lock);
	if (!list_empty(&watch->list))
		nfr_svc_watch_lift(watch);
	spin_unlock(&nfr_svc_watches_lock);
}

/**
 * nfr_svc_watch_rest - end a watch some time later, if it is not used any more
 * @watch: watch; one that is in no list has ended. Softirqs are disabled
 */
void nfr_svc_watch_rest(struct nfr_svc_watch *watch)
{
	if (nfr_svc_watch_is_used(watch))
		return;
	spin_lock(&nfr_svc_watches_lock);
	if (!list_empty(&watch->list) && !watch->idle)
		nfr_svc_watch_lay(watch);
	spin_unlock(&nfr_svc_watches_lock);
}

/**
 * nfr_svc_watch_list - put a watch in a list, which holds a reference to it
 * @watch: watch of the caller, who holds its lock
 */
void nfr_svc_watch_list(struct nfr_svc_watch *watch)
{
	/* it leaves its list after it has ended */
	if (watch->ended || !list_empty_careful(&watch->list))
		return;
	refcount_inc(&watch->mark.refcnt);
	spin_lock(&nfr_svc_watches_lock);
	nfr_svc_watch_lay(watch);
	spin_unlock(&nfr_svc_watches_lock);
	nfr_work_queue(&nfr_svc_watches_work, NFR_SVC_WATCHES_CHECK);
}

/* --- events --- */

static enum nfr_revoked nfr_svc_watch_reason(u32 mask)
{
	if (mask & FS_MODIFY)
		return NFR_REVOKED_MODIFIED;
	if (mask & (FS_ATTRIB | FS_DELETE_SELF))
		return NFR_REVOKED_ATTRIBUTES;
	if (mask & FS_MOVE_SELF)
		return NFR_REVOKED_MOVED;
	return NFR_REVOKED_OPENED;
}

/* A file changes: the task that does it waits until no client reads by itself. */
static int nfr_svc_watch_event(struct fsnotify_mark *mark, u32 mask, struct inode *inode,
			       struct inode *dir, const struct qstr *name, u32 cookie)
{
	struct nfr_svc_watch *watch = nfr_svc_watch_of(mark);
	bool used;

	/* readers do no harm */
	if (!(mask & NFR_SVC_WATCHED & ~FS_OPEN) && !inode_is_open_for_write(inode))
		return 0;
	nfr_svc_watch_lock(watch);
	/* a grant or permit that is being made sees that */
	watch->changes++;
	used = nfr_svc_watch_is_used(watch);
	nfr_svc_watch_unlock(watch);
	if (used)
		nfr_svc_watch_users->change(watch, nfr_svc_watch_reason(mask));
	return 0;
}

/* An unmount, or nfr_svc_watches_end(), has ended the mark. */
static void nfr_svc_watch_freeing(struct fsnotify_mark *mark, struct fsnotify_group *group)
{
	struct nfr_svc_watch *watch = nfr_svc_watch_of(mark);
	bool listed;

	nfr_svc_watch_lock(watch);
	watch->ended = true;
	nfr_svc_watch_unlock(watch);
	nfr_svc_watch_users->change(watch, NFR_REVOKED_UNMOUNTED);
	spin_lock_bh(&nfr_svc_watches_lock);
	listed = !list_empty(&watch->list);
	nfr_svc_watch_unlist(watch);
	spin_unlock_bh(&nfr_svc_watches_lock);
	if (listed)
		nfr_svc_watch_put(watch);
}

static void nfr_svc_watch_free(struct fsnotify_mark *mark)
{
	kfree(nfr_svc_watch_of(mark));
	nfr_svc_watch_uncount();
}

static const struct fsnotify_ops nfr_svc_watch_fsnotify_ops = {
	.handle_inode_event	= nfr_svc_watch_event,
	.freeing_mark		= nfr_svc_watch_freeing,
	.free_mark		= nfr_svc_watch_free,
};

/* --- the workers, and memory pressure --- */

/* Take the watch that was checked first, if that was before @now. Returns it with a reference. */
static struct nfr_svc_watch *nfr_svc_watch_due(unsigned long now)
{
	struct nfr_svc_watch *watch;

	spin_lock_bh(&nfr_svc_watches_lock);
	watch = list_first_entry_or_null(&nfr_svc_watches, struct nfr_svc_watch, list);
	if (watch && time_before(watch->checked, now)) {
		watch->checked = now;
		list_move_tail(&watch->list, &nfr_svc_watches);
		/* the list has one */
		refcount_inc(&watch->mark.refcnt);
	} else {
		watch = NULL;
	}
	spin_unlock_bh(&nfr_svc_watches_lock);
	return watch;
}

/* Look for changes that fsnotify did not report, in all files with grants or permits. */
static void nfr_svc_watches_check(struct work_struct *work)
{
	unsigned long now = jiffies;
	struct nfr_svc_watch *watch;
	bool more;

	while ((watch = nfr_svc_watch_due(now))) {
		nfr_svc_watch_users->check(watch);
		local_bh_disable();
		nfr_svc_watch_rest(watch);
		local_bh_enable();
		nfr_svc_watch_put(watch);
		cond_resched();
	}
	nfr_svc_watch_users->expire();
	spin_lock_bh(&nfr_svc_watches_lock);
	more = !list_empty(&nfr_svc_watches) || !list_empty(&nfr_svc_watches_idle);
	spin_unlock_bh(&nfr_svc_watches_lock);
	if (more)
		nfr_work_queue(&nfr_svc_watches_work, NFR_SVC_WATCHES_CHECK);
}

/*
 * End a watch that rests, unless it got a grant or permit. Returns whether it has ended, which
 * takes it out of its list. Caller holds nfr_svc_watches_lock, in which that of the watch does not
 * nest: a watch in use counts as one that does not rest.
 */
static bool nfr_svc_watch_retire(struct nfr_svc_watch *watch)
{
	bool ends;

	if (!spin_trylock(&watch->lock)) {
		nfr_svc_watch_lift(watch);
		return false;
	}
	ends = !nfr_svc_watch_is_used(watch);
	watch->ended = watch->ended || ends;
	spin_unlock(&watch->lock);
	if (ends)
		nfr_svc_watch_unlist(watch);
	else
		nfr_svc_watch_lift(watch);
	return ends;
}

/*
 * Take a watch that rests since @before from its list, with the reference of the list, or return
 * NULL.
 */
static struct nfr_svc_watch *nfr_svc_watch_take(unsigned long before)
{
	struct nfr_svc_watch *watch;

	spin_lock_bh(&nfr_svc_watches_lock);
	do {
		watch = list_first_entry_or_null(&nfr_svc_watches_idle, struct nfr_svc_watch,
						 list);
		if (watch && time_after(watch->idle, before))
			watch = NULL;
	} while (watch && !nfr_svc_watch_retire(watch));
	spin_unlock_bh(&nfr_svc_watches_lock);
	return watch;
}

/* End the watches that rest since @before. */
static void nfr_svc_watches_end_since(unsigned long before)
{
	struct nfr_svc_watch *watch;

	while ((watch = nfr_svc_watch_take(before))) {
		/* takes the lock */
		fsnotify_destroy_mark(&watch->mark, nfr_svc_watch_group);
		nfr_svc_watch_put(watch);
		cond_resched();
	}
}

static void nfr_svc_watches_end(struct work_struct *work)
{
	bool all = xchg(&nfr_svc_watches_short, false);

	nfr_svc_watches_end_since(jiffies - (all ? 0 : NFR_SVC_WATCHES_REST));
	if (READ_ONCE(nfr_svc_watches_resting))
		nfr_work_queue(&nfr_svc_watches_end_work, NFR_SVC_WATCHES_REST);
}

static unsigned long nfr_svc_watches_count(struct shrinker *shrinker,
					   struct shrink_control *control)
{
	return READ_ONCE(nfr_svc_watches_resting) ?: SHRINK_EMPTY;
}

/* A worker releases the inodes: no task that needs memory waits for a file system. */
static unsigned long nfr_svc_watches_scan(struct shrinker *shrinker,
					  struct shrink_control *control)
{
	nfr_svc_watches_hurry(true);
	return SHRINK_STOP;
}

/* --- life --- */

/**
 * nfr_svc_watches_start - allow watches
 * @ops: what their users do about changes
 *
 * Return: 0 or a negative errno.
 */
int nfr_svc_watches_start(const struct nfr_svc_watch_ops *ops)
{
	nfr_svc_watch_users = ops;
	nfr_svc_watch_group = fsnotify_alloc_group(&nfr_svc_watch_fsnotify_ops, 0);
	if (IS_ERR(nfr_svc_watch_group))
		return PTR_ERR(nfr_svc_watch_group);
	nfr_svc_watches_shrinker = nfr_compat_shrinker(nfr_svc_watches_count,
						       nfr_svc_watches_scan);
	if (nfr_svc_watches_shrinker)
		return 0;
	fsnotify_put_group(nfr_svc_watch_group);
	return -ENOMEM;
}

/*
 * Undo nfr_svc_watches_start(). Context: No connection exists, and therefore no grant and no
 * permit. Sleeps until fsnotify, which may be ending some watches because of an unmount, has freed
 * all.
 */
void nfr_svc_watches_stop(void)
{
	struct nfr_svc_watch *watch, *next;

	nfr_compat_shrinker_free(nfr_svc_watches_shrinker);
	cancel_delayed_work_sync(&nfr_svc_watches_work);
	/* the worker has not seen all that lost their last permit */
	spin_lock_bh(&nfr_svc_watches_lock);
	list_for_each_entry_safe(watch, next, &nfr_svc_watches, list)
		nfr_svc_watch_lay(watch);
	spin_unlock_bh(&nfr_svc_watches_lock);
	cancel_delayed_work_sync(&nfr_svc_watches_end_work);
	nfr_svc_watches_end_since(jiffies);
	wait_var_event(&nfr_svc_watch_count, !atomic_read(&nfr_svc_watch_count));
	/* fsnotify uses its reference to the group after it freed a mark */
	fsnotify_wait_marks_destroyed();
	fsnotify_put_group(nfr_svc_watch_group);
}
