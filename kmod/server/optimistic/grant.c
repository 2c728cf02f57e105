// SPDX-License-Identifier: GPL-2.0-only
/*
 * Grants: extents of files that a client may read from the page cache by RDMA Read.
 *
 * A grant holds references to the pages, registers them for the client's branch,
 * and is announced by a notice behind the registration. The pages are the
 * file's own: what anybody writes through the page cache, the next RDMA Read returns. What
 * detaches pages from the file, or withdraws access to it, revokes the grants of the file
 * in the task that does it, which waits until the registrations are invalid, see revoke.c.
 *
 * No extent is granted while the file is open for writing: a write that bypasses the page
 * cache would leave stale pages behind, because referenced ones cannot be dropped.
 *
 * A thread prepares a grant without a lock: it collects pages, allocates regions and maps them.
 * Then it takes the lock, and announces the grant unless the file has changed meanwhile.
 */
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "connection/credential.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "memory/region.h"
#include "observe/trace_server.h"
#include "params.h"
#include "server/expose.h"
#include "server/file.h"
#include "server/optimistic/optimistic.h"

/* Minimum interval between two notices in a row of one grant to the same user */
#define NFR_SVC_GRANT_AGAIN	(HZ / 50)

/* --- the pages of an extent --- */

/* Folio and zone of the page taken last, and number and cost of all pages so far */
struct nfr_svc_pages {
	struct folio *folio;
	int zone;
	u32 count;
	u32 cost;
};

/*
 * Check whether a page may be kept for a long time, and read by a device. Memory in the movable
 * zone has to stay movable, and so has memory of a CMA area: the zone is all that modules see of
 * these. A poisoned page stays in the page cache of tmpfs.
 */
static bool nfr_svc_grant_may_keep(struct folio *folio, struct page *page, int *zone)
{
	int own = page_zone_id(page);

	if (!folio_test_uptodate(folio) || PageHWPoison(page))
		return false;
	/* most pages are of the zone of the one before */
	if (own != *zone && (is_zone_movable_page(page) || zone_cma_pages(page_zone(page))))
		return false;
	*zone = own;
	return true;
}

/*
 * Take a reference to a page of a file that is up to date, and count its folio unless the page
 * before is of the same one, because a reference to a page keeps all of it. Returns the page, or
 * NULL.
 */
static struct page *nfr_svc_grant_take(struct address_space *mapping, pgoff_t index,
				       struct nfr_svc_pages *pages)
{
	struct folio *folio = filemap_get_folio(mapping, index);
	struct page *page;

	/* NULL before Linux 6.3, 66dabbb65d67 ("mm: return an ERR_PTR from __filemap_get_folio") */
	if (IS_ERR_OR_NULL(folio))
		return NULL;
	page = folio_file_page(folio, index);
	if (!nfr_svc_grant_may_keep(folio, page, &pages->zone)) {
		folio_put(folio);
		return NULL;
	}
	if (folio != pages->folio)
		pages->cost += folio_nr_pages(folio);
	pages->folio = folio;
	pages->count++;
	return page;
}

/*
 * Collect the pages of the extent that are in the page cache, without a gap, around the page
 * @wanted. @end is the number of pages of the file. Returns the index of the first one.
 */
static pgoff_t nfr_svc_grant_collect(struct nfr_svc_grant *grant, struct address_space *mapping,
				     pgoff_t wanted, pgoff_t end)
{
	u32 order = nfr_svc_notices(grant->branch)->order;
	pgoff_t index = (wanted >> order) << order;
	pgoff_t stop = min(index + (1 << order), end), first = index;
	struct nfr_svc_pages pages = { .zone = -1 };
	struct page *page;

	for (; index < stop; index++) {
		page = nfr_svc_grant_take(mapping, index, &pages);
		if (page) {
			grant->pages[index - first] = page;
			continue;
		}
		if (index > wanted)
			break;
		release_pages(grant->pages, pages.count);
		pages = (struct nfr_svc_pages){ .zone = -1 };
		first = index + 1;
	}
	grant->npages = pages.count;
	grant->cost = pages.cost;
	return first;
}

/*
 * Allocate a grant for the extent around @page, and take references to its pages. Returns
 * NULL if the page is not part of the file any more, or an allocation failed.
 */
static struct nfr_svc_grant *nfr_svc_grant_pin(struct nfr_svc *branch, struct inode *inode,
					       const struct nfr_read *read, struct page *page)
{
	u32 order = nfr_svc_notices(branch)->order;
	pgoff_t wanted = read->position >> PAGE_SHIFT, first;
	loff_t size = i_size_read(inode);
	struct nfr_svc_grant *grant;
	u64 length;

	if (read->position >= size)
		return NULL;
	grant = kvzalloc(struct_size(grant, pages, 1 << order), NFR_GFP_RETRIED);
	if (!grant)
		return NULL;
	nfr_mem_exposure_init(&grant->exposure);
	timerqueue_init(&grant->expiry);
	INIT_LIST_HEAD(&grant->of_client);
	INIT_LIST_HEAD(&grant->of_file);
	grant->branch = branch;
	grant->created = jiffies;
	grant->index = wanted >> order;
	first = nfr_svc_grant_collect(grant, inode->i_mapping, wanted,
				      DIV_ROUND_UP(size, PAGE_SIZE));
	if (wanted < first || wanted - first >= grant->npages ||
	    grant->pages[wanted - first] != page) {
		nfr_svc_grant_drop_pages(grant);
		kvfree(grant);
		return NULL;
	}
	grant->position = (u64)first << PAGE_SHIFT;
	length = min_t(u64, (u64)grant->npages << PAGE_SHIFT, size - grant->position);
	grant->segment.length = length;
	grant->ends = grant->position + length == size;
	return grant;
}

/* --- granting --- */

/* Check for the part of a READ in its extent: another grant has no more of it. */
static bool nfr_svc_grant_covers(const struct nfr_svc_grant *grant, const struct nfr_read *read)
{
	u64 limit = (grant->index + 1) << nfr_svc_notices(grant->branch)->order << PAGE_SHIFT;
	u64 end = grant->position + grant->segment.length;

	return read->position >= grant->position && read->position < end &&
	       (grant->ends || min(read->position + read->count, limit) <= end);
}

/* Check whether the page of a READ has taken the place of a page of the grant. */
static bool nfr_svc_grant_is_stale(const struct nfr_svc_grant *grant, const struct nfr_read *read,
				   const struct page *page)
{
	u64 at = (read->position - grant->position) >> PAGE_SHIFT;

	return read->position >= grant->position && at < grant->npages && grant->pages[at] != page;
}

static u64 nfr_svc_grant_credential(const struct nfr_svc_grant *grant, const struct nfr_read *read)
{
	return nfr_conn_credential_digest(read, grant->branch->conn->peer.token);
}

/*
 * Register the pages of a grant unless they are registered, and tell the client. Caller holds
 * nfr_svc_grants_lock.
 */
static int nfr_svc_grant_announce(struct nfr_svc_grant *grant, const struct nfr_read *read)
{
	struct nfr_notice notice = {
		.kind = NFR_NOTICE_GRANT, .lifetime = nfr_params_optimistic_lifetime(),
		.ends = grant->ends, .position = grant->position, .extent = grant->segment,
		.credential = nfr_svc_grant_credential(grant, read),
		.fh_length = read->fh_length,
	};
	int rc;

	memcpy(notice.fh, read->fh, read->fh_length);
	rc = nfr_svc_notice_grant(grant->branch, &notice, &grant->exposure);
	if (rc)
		return rc;
	nfr_svc_grant_renew(grant, notice.lifetime);
	grant->announced = jiffies;
	grant->credential = notice.credential;
	return 0;
}

/* Map the pages of a grant. Returns 0 or a negative errno. */
static int nfr_svc_grant_map(struct nfr_svc_grant *grant)
{
	struct nfr_span span = {
		.pages = grant->pages, .page_len = grant->segment.length,
	};
	int rc;

	rc = nfr_svc_expose_memory(grant->branch, &grant->exposure, &span, &grant->segment, 1);
	return rc < 0 ? rc : 0;
}

/* Free a grant that is in no list, and whose pages are not registered. */
static void nfr_svc_grant_undo(struct nfr_svc_grant *grant)
{
	nfr_svc_expose_release(&grant->exposure);
	nfr_svc_grant_drop_pages(grant);
	kvfree(grant);
}

/*
 * Grant nothing through this connection's device. A grant maps the pages of a file once, and the
 * file changes later: a device that reads a copy, or bypasses the processor's caches, would read
 * old data.
 */
static void nfr_svc_grant_refuse_device(struct nfr_svc *branch)
{
	nfr_svc_count(branch, refused[NFR_REFUSED_DEVICE], 1);
	if (READ_ONCE(nfr_svc_notices(branch)->blind))
		return;
	WRITE_ONCE(nfr_svc_notices(branch)->blind, true);
	pr_info_ratelimited("nfsrdma: device %s: its mappings are copies, or not coherent; no references are granted\n",
			    branch->conn->device->name);
}

/* Collect and map the pages of an extent. Returns a grant in no list, or NULL. */
static struct nfr_svc_grant *nfr_svc_grant_prepare(struct nfr_svc *branch,
						   const struct nfr_read *read,
						   struct inode *inode, struct page *page)
{
	struct nfr_svc_grant *grant = nfr_svc_grant_pin(branch, inode, read, page);

	if (!grant) {
		nfr_svc_count(branch, refused[NFR_REFUSED_PAGES], 1);
		return NULL;
	}
	if (nfr_svc_grant_map(grant)) {
		nfr_svc_count(branch, refused[NFR_REFUSED_MEMORY], 1);
		nfr_svc_grant_undo(grant);
		return NULL;
	}
	if (!nfr_mem_device_sees(&grant->exposure)) {
		nfr_svc_grant_refuse_device(branch);
		nfr_svc_grant_undo(grant);
		return NULL;
	}
	return grant;
}

static const enum nfr_refused nfr_svc_grant_reasons[NFR_SVC_BYPASS_RESULTS] = {
	/* it is no file that may be granted at all */
	[NFR_SVC_BYPASS_MAY]		= NFR_REFUSED_FILE,
	[NFR_SVC_BYPASS_DIRECT]		= NFR_REFUSED_FILE,
	[NFR_SVC_BYPASS_OPEN]		= NFR_REFUSED_OPEN,
	[NFR_SVC_BYPASS_LEASE]		= NFR_REFUSED_LEASE,
	[NFR_SVC_BYPASS_LISTENER]	= NFR_REFUSED_LISTENER,
	[NFR_SVC_BYPASS_LATE]		= NFR_REFUSED_CHANGED,
};

/*
 * Check whether anything of a file may be granted. Returns the reason if not, or -1. Caller holds
 * the lock of the watch, see nfr_svc_revoke_add().
 */
static int nfr_svc_grant_obstacle(const struct nfr_svc *branch, struct nfr_svc_watch *watch,
				  const struct nfr_svc_handed *handed, struct list_head *due)
{
	enum nfr_svc_bypass result;

	if (watch->ended || READ_ONCE(watch->ending) || !nfr_conn_is_up(branch->conn))
		return NFR_REFUSED_BUSY;
	result = nfr_svc_revoke_unless_same(watch, handed, due);
	if (result != NFR_SVC_BYPASS_MAY)
		return nfr_svc_grant_reasons[result];
	return nfr_svc_client_may_read(nfr_svc_notices(branch)->client) ? -1 : NFR_REFUSED_LIMIT;
}

/*
 * Announce a grant again, for another user, or to a client that renews it or has lost it, but not
 * for each READ.
 */
static void nfr_svc_grant_again(struct nfr_svc_grant *grant, const struct nfr_read *read)
{
	if (time_before(jiffies, READ_ONCE(grant->announced) + NFR_SVC_GRANT_AGAIN) &&
	    READ_ONCE(grant->credential) == nfr_svc_grant_credential(grant, read))
		return;
	spin_lock(&nfr_svc_grants_lock);
	if (nfr_svc_grant_is_valid(grant) && !nfr_svc_grant_announce(grant, read))
		nfr_svc_count(grant->branch, grants_renewed, 1);
	spin_unlock(&nfr_svc_grants_lock);
}

/* Revoke a grant for which there shall be a larger one. */
static void nfr_svc_grant_replace(struct nfr_svc_grant *grant, struct list_head *due)
{
	spin_lock(&nfr_svc_grants_lock);
	if (nfr_svc_grant_is_valid(grant))
		nfr_svc_revoke_add(grant, NFR_REVOKED_REPLACED, false, due);
	spin_unlock(&nfr_svc_grants_lock);
}

/* See nfr_svc_grant_known(). Caller holds rcu_read_lock(), too: the grant may end meanwhile. */
static int nfr_svc_grant_use(struct nfr_svc_grant *grant, const struct nfr_read *read,
			     struct nfr_svc_watch *watch, struct page *page, struct list_head *due)
{
	if (nfr_svc_grant_is_stale(grant, read, page)) {
		/* a change that fsnotify did not report */
		nfr_svc_revoke_soon(watch, NFR_REVOKED_MODIFIED, due);
		return NFR_REFUSED_BUSY;
	}
	if (nfr_svc_grant_covers(grant, read)) {
		nfr_svc_grant_again(grant, read);
		return NFR_REFUSED_REASONS;
	}
	if (nfr_svc_grant_stays(grant))
		return NFR_REFUSED_LIMIT;
	nfr_svc_grant_replace(grant, due);
	return NFR_REFUSED_BUSY;
}

/*
 * Look for the grant of an extent, and announce it again. Returns -1 if a new one has to be made,
 * or the reason why not. Caller holds the lock of the watch, see nfr_svc_revoke_add().
 */
static int nfr_svc_grant_known(struct nfr_svc *branch, const struct nfr_read *read,
			       struct nfr_svc_watch *watch, struct page *page,
			       struct list_head *due)
{
	u64 index = read->position >> PAGE_SHIFT >> nfr_svc_notices(branch)->order;
	struct nfr_svc_grant *grant;
	int why = -1;

	rcu_read_lock();
	grant = nfr_svc_grant_find(watch, branch, index);
	if (grant)
		why = nfr_svc_grant_use(grant, read, watch, page, due);
	rcu_read_unlock();
	return why;
}

/*
 * Announce a new grant. Returns the reason why not, or -1. @kept: whether somebody else has it
 * then. Caller holds the lock of the watch and nfr_svc_grants_lock, see nfr_svc_revoke_add().
 */
static int nfr_svc_grant_publish(struct nfr_svc_grant *grant, const struct nfr_read *read,
				 struct nfr_svc_watch *watch, struct list_head *due, bool *kept)
{
	struct nfr_svc *branch = grant->branch;

	/* a grant of the file that ends now would let a task wait for this one as well */
	if (watch->ending)
		return NFR_REFUSED_BUSY;
	if (!nfr_svc_limit_charge(grant, due))
		return NFR_REFUSED_LIMIT;
	grant->watch = watch;
	if (!nfr_svc_grant_announce(grant, read)) {
		nfr_svc_grant_add(grant);
		nfr_svc_count(branch, grants, 1);
		trace_nfsrdma_svc_grant(branch, grant->segment.handle, grant->position,
					grant->segment.length);
		*kept = true;
		return -1;
	}
	/* it may be registered, and its connection is broken */
	*kept = grant->exposure.valid;
	if (*kept)
		list_add_tail(&grant->of_branch, &nfr_svc_notices(branch)->dead);
	else
		nfr_svc_grant_discharge(grant);
	return NFR_REFUSED_CREDITS;
}

/* Make a grant known, unless something has happened since it was prepared. */
static void nfr_svc_grant_commit(struct nfr_svc_grant *grant, const struct nfr_read *read,
				 struct nfr_svc_watch *watch, struct page *page,
				 const struct nfr_svc_handed *handed, u32 changes)
{
	struct nfr_svc *branch = grant->branch;
	bool kept = false;
	LIST_HEAD(due);
	int why;

	local_bh_disable();
	nfr_svc_watch_lock(watch);
	why = watch->changes == changes ? nfr_svc_grant_obstacle(branch, watch, handed, &due) :
					  NFR_REFUSED_BUSY;
	if (why < 0)
		why = nfr_svc_grant_known(branch, read, watch, page, &due);
	if (why < 0) {
		spin_lock(&nfr_svc_grants_lock);
		why = nfr_svc_grant_publish(grant, read, watch, &due, &kept);
		spin_unlock(&nfr_svc_grants_lock);
	}
	nfr_svc_watch_unlock(watch);
	nfr_svc_revoke_post(&due);
	local_bh_enable();
	if (why >= 0 && why < NFR_REFUSED_REASONS)
		nfr_svc_count(branch, refused[why], 1);
	if (!kept)
		nfr_svc_grant_undo(grant);
}

static void nfr_svc_grant_watched(struct nfr_svc *branch, const struct nfr_read *read,
				  struct nfr_svc_watch *watch, struct inode *inode,
				  struct page *page, const struct nfr_svc_handed *handed)
{
	struct nfr_svc_grant *grant;
	LIST_HEAD(due);
	u32 changes;
	int why;

	/* a change that the watch does not report precedes what follows */
	smp_mb();
	local_bh_disable();
	nfr_svc_watch_lock(watch);
	nfr_svc_watch_list(watch);
	changes = watch->changes;
	why = nfr_svc_grant_obstacle(branch, watch, handed, &due);
	if (why < 0)
		why = nfr_svc_grant_known(branch, read, watch, page, &due);
	nfr_svc_watch_unlock(watch);
	nfr_svc_revoke_post(&due);
	local_bh_enable();
	if (why < 0 && READ_ONCE(nfr_svc_notices(branch)->blind))
		why = NFR_REFUSED_DEVICE;
	if (why < 0 && !nfr_svc_notice_may_grant(branch))
		why = NFR_REFUSED_CREDITS;
	if (why < 0)
		grant = nfr_svc_grant_prepare(branch, read, inode, page);
	else if (why < NFR_REFUSED_REASONS)
		nfr_svc_count(branch, refused[why], 1);
	if (why < 0 && grant)
		nfr_svc_grant_commit(grant, read, watch, page, handed, changes);
}

/**
 * nfr_svc_grant_reference - let a client read an extent of a file by itself
 * @branch: branch of the client
 * @read: READ that nfsd has executed
 * @page: page of the file that the data of the READ begins in
 * @handed: time at which nfsd got the READ
 *
 * Context: nfsd thread. Waits for no device.
 */
void nfr_svc_grant_reference(struct nfr_svc *branch, const struct nfr_read *read,
			     struct page *page, const struct nfr_svc_handed *handed)
{
	enum nfr_svc_bypass result;
	struct nfr_svc_watch *watch;
	struct inode *inode;

	inode = nfr_svc_file_get(page, read, handed, &result);
	if (!inode) {
		nfr_svc_count(branch, refused[nfr_svc_grant_reasons[result]], 1);
		return;
	}
	watch = nfr_svc_watch_get(inode);
	if (watch)
		nfr_svc_grant_watched(branch, read, watch, inode, page, handed);
	else
		nfr_svc_count(branch, refused[NFR_REFUSED_MEMORY], 1);
	nfr_svc_file_put(inode);
	if (watch)
		nfr_svc_watch_put(watch);
}
