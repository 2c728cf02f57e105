// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files of which clients have references: an fsnotify mark on the inode.
 *
 * fsnotify calls the mark in the task that changes the file, or access to it, before the
 * system call returns, or before nfsd replies. The owner revokes all references meanwhile.
 * When the file system is unmounted, fsnotify ends the mark, which then releases the inode.
 */
#include <linux/fs.h>
#include <linux/fsnotify.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/wait_bit.h>

#include "compat/compat.h"
#include "gfp.h"
#include "server/optimistic.h"

/*
 * FS_MODIFY: written, truncated, or allocated (fallocate(2)). FS_ATTRIB: owner, mode, ACL, or
 * number of links. FS_MOVE_SELF: it may have left the exported tree. FS_OPEN: a process may
 * write past the page cache. An unmount ends the mark.
 */
#define NFR_SVC_WATCHED	(FS_MODIFY | FS_ATTRIB | FS_OPEN | FS_MOVE_SELF | FS_DELETE_SELF)

static struct fsnotify_group *nfr_svc_watch_group;
/* watches that fsnotify has not freed */
static atomic_t nfr_svc_watch_count;
static void (*nfr_svc_watch_changed)(struct nfr_svc_watch *watch, u32 mask);

static struct nfr_svc_watch *nfr_svc_watch_of(struct fsnotify_mark *mark)
{
	return container_of(mark, struct nfr_svc_watch, mark);
}

static int nfr_svc_watch_event(struct fsnotify_mark *mark, u32 mask, struct inode *inode,
			       struct inode *dir, const struct qstr *name, u32 cookie)
{
	/* readers do no harm */
	if (!(mask & NFR_SVC_WATCHED & ~FS_OPEN) && !inode_is_open_for_write(inode))
		return 0;
	nfr_svc_watch_changed(nfr_svc_watch_of(mark), mask);
	return 0;
}

/* fsnotify, or nfr_svc_watch_end(), has ended the mark */
static void nfr_svc_watch_freeing(struct fsnotify_mark *mark, struct fsnotify_group *group)
{
	nfr_svc_watch_changed(nfr_svc_watch_of(mark), FS_IN_IGNORED);
}

static void nfr_svc_watch_free(struct fsnotify_mark *mark)
{
	kfree(nfr_svc_watch_of(mark));
	if (atomic_dec_and_test(&nfr_svc_watch_count))
		wake_up_var(&nfr_svc_watch_count);
}

static const struct fsnotify_ops nfr_svc_watch_ops = {
	.handle_inode_event	= nfr_svc_watch_event,
	.freeing_mark		= nfr_svc_watch_freeing,
	.free_mark		= nfr_svc_watch_free,
};

static struct nfr_svc_watch *nfr_svc_watch_create(struct inode *inode)
{
	struct nfr_svc_watch *watch = kzalloc(sizeof(*watch), NFR_GFP_RETRIED);

	if (!watch)
		return NULL;
	INIT_LIST_HEAD(&watch->list);
	INIT_LIST_HEAD(&watch->grants);
	atomic_inc(&nfr_svc_watch_count);
	fsnotify_init_mark(&watch->mark, nfr_svc_watch_group);
	watch->mark.mask = NFR_SVC_WATCHED;
	if (!fsnotify_add_inode_mark(&watch->mark, inode, 0))
		return watch;
	fsnotify_put_mark(&watch->mark);
	return NULL;
}

/**
 * nfr_svc_watch_get - watch a file
 * @inode: its inode; the caller holds a reference to it, and to its file system
 *
 * Return: watch, for nfr_svc_watch_put(), or NULL.
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

/**
 * nfr_svc_watch_hold - take a reference to a watch
 * @watch: watch of the caller
 */
void nfr_svc_watch_hold(struct nfr_svc_watch *watch)
{
	refcount_inc(&watch->mark.refcnt);
}

/**
 * nfr_svc_watch_put - release a reference to a watch, which goes on
 * @watch: watch
 */
void nfr_svc_watch_put(struct nfr_svc_watch *watch)
{
	fsnotify_put_mark(&watch->mark);
}

/**
 * nfr_svc_watch_end - do not watch a file any more
 * @watch: watch; the function releases a reference of the caller
 *
 * Context: Sleeps.
 */
void nfr_svc_watch_end(struct nfr_svc_watch *watch)
{
	fsnotify_destroy_mark(&watch->mark, nfr_svc_watch_group);
	fsnotify_put_mark(&watch->mark);
}

/**
 * nfr_svc_watch_start - allow watches
 * @changed: called for each change of a watched file, with the events of fsnotify, and with
 *	FS_IN_IGNORED when a watch ends; may sleep
 *
 * Return: 0 or a negative errno.
 */
int nfr_svc_watch_start(void (*changed)(struct nfr_svc_watch *watch, u32 mask))
{
	nfr_svc_watch_changed = changed;
	nfr_svc_watch_group = fsnotify_alloc_group(&nfr_svc_watch_ops, 0);
	return PTR_ERR_OR_ZERO(nfr_svc_watch_group);
}

/**
 * nfr_svc_watch_stop - undo nfr_svc_watch_start()
 *
 * Context: No watch is in use; sleeps until fsnotify, which may be ending some of them because
 * of an unmount, has freed all.
 */
void nfr_svc_watch_stop(void)
{
	wait_var_event(&nfr_svc_watch_count, !atomic_read(&nfr_svc_watch_count));
	/* fsnotify uses its reference to the group after it freed a mark */
	fsnotify_wait_marks_destroyed();
	fsnotify_put_group(nfr_svc_watch_group);
}
