// SPDX-License-Identifier: GPL-2.0-only
/*
 * Grants: extents of files that a client may read from the page cache by RDMA Read.
 *
 * A grant holds references to the pages, registers them for the client's second
 * connection, and is announced by a notice behind the registration. The pages are the
 * file's own: what anybody writes through the page cache, the next RDMA Read returns. What
 * detaches pages from the file, or withdraws access to it, revokes the grants of the file
 * in the task that does it, which waits until the registrations are invalid, see revoke.c.
 *
 * No extent is granted while the file is open for writing: a write that bypasses the page
 * cache would leave stale pages behind, because referenced ones cannot be dropped.
 */
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "connection/credential.h"
#include "gfp.h"
#include "memory/exposure.h"
#include "memory/span.h"
#include "observe/trace_server.h"
#include "params.h"
#include "server/expose.h"
#include "server/optimistic.h"

/* Minimum interval between two notices in a row of one grant to the same user */
#define NFR_SVC_GRANT_AGAIN	(HZ / 50)

/* --- the pages of an extent --- */

/*
 * Find a page of a file that is up to date. Returns it with a reference, or NULL. A page in the
 * movable zone has to stay movable.
 */
static struct page *nfr_svc_grant_page(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = filemap_get_folio(mapping, index);
	struct page *page;

	/* NULL before Linux 6.3, 66dabbb65d67 ("mm: return an ERR_PTR from __filemap_get_folio") */
	if (IS_ERR_OR_NULL(folio))
		return NULL;
	page = folio_file_page(folio, index);
	if (folio_test_uptodate(folio) && !is_zone_movable_page(page))
		return page;
	folio_put(folio);
	return NULL;
}

static void nfr_svc_grant_drop_pages(struct nfr_svc_grant *grant)
{
	while (grant->npages)
		put_page(grant->pages[--grant->npages]);
}

/*
 * Collect the pages of the extent that are in the page cache, without a gap, around the page
 * @wanted. @end is the number of pages of the file. Returns the index of the first one.
 */
static pgoff_t nfr_svc_grant_collect(struct nfr_svc_grant *grant, struct address_space *mapping,
				     pgoff_t wanted, pgoff_t end)
{
	u32 order = grant->side->notices->order;
	pgoff_t index = (wanted >> order) << order;
	pgoff_t stop = min(index + (1 << order), end), first = index;
	struct page *page;

	for (; index < stop; index++) {
		page = nfr_svc_grant_page(mapping, index);
		if (page) {
			grant->pages[grant->npages++] = page;
			continue;
		}
		if (index > wanted)
			break;
		nfr_svc_grant_drop_pages(grant);
		first = index + 1;
	}
	return first;
}

/*
 * Allocate a grant for the extent around @page, and take references to its pages. Returns
 * NULL if the page is not part of the file any more, or an allocation failed.
 */
static struct nfr_svc_grant *nfr_svc_grant_pin(struct nfr_svc *side, struct inode *inode,
					       const struct nfr_read *read, struct page *page)
{
	u32 order = side->notices->order;
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
	grant->side = side;
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
	nfr_svc_grant_charge(grant);
	return grant;
}

/* --- granting; callers hold the mutex --- */

/* Check for the part of a READ in its extent: another grant has no more of it. */
static bool nfr_svc_grant_covers(const struct nfr_svc_grant *grant, const struct nfr_read *read)
{
	u64 limit = (grant->index + 1) << grant->side->notices->order << PAGE_SHIFT;
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
	return nfr_conn_credential_digest(read, grant->side->conn->peer.token);
}

/* Register the pages of a grant unless they are registered, and tell the client. */
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
	rc = nfr_svc_notice_grant(grant->side, &notice, &grant->exposure);
	if (rc)
		return rc;
	/* the client counts from the arrival of the notice: give it a second more */
	grant->expires = jiffies + (notice.lifetime + 1) * HZ;
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

	rc = nfr_svc_expose_memory(grant->side, &grant->exposure, &span, &grant->segment, 1);
	return rc < 0 ? rc : 0;
}

/* End a grant that could not be announced. If it may be registered, its connection is broken. */
static void nfr_svc_grant_undo(struct nfr_svc_grant *grant)
{
	if (grant->exposure.valid) {
		INIT_LIST_HEAD(&grant->lru);
		INIT_LIST_HEAD(&grant->of_file);
		list_add_tail(&grant->of_side, &grant->side->notices->grants);
		return;
	}
	local_bh_disable();
	nfr_mem_release(&grant->exposure);
	local_bh_enable();
	nfr_svc_grant_free(grant);
}

static void nfr_svc_grant_new(struct nfr_svc *side, const struct nfr_read *read,
			      struct nfr_svc_watch *watch, struct inode *inode, struct page *page)
{
	struct nfr_svc_grant *grant;

	if (!nfr_svc_notice_may_grant(side)) {
		nfr_svc_count(side, refused[NFR_REFUSED_CREDITS], 1);
		return;
	}
	if (!nfr_svc_revoke_for_room(side, 1 << side->notices->order)) {
		nfr_svc_count(side, refused[NFR_REFUSED_LIMIT], 1);
		return;
	}
	grant = nfr_svc_grant_pin(side, inode, read, page);
	if (!grant) {
		nfr_svc_count(side, refused[NFR_REFUSED_PAGES], 1);
		return;
	}
	grant->watch = watch;
	if (nfr_svc_grant_map(grant)) {
		nfr_svc_count(side, refused[NFR_REFUSED_MEMORY], 1);
		nfr_svc_grant_free(grant);
		return;
	}
	if (nfr_svc_grant_announce(grant, read)) {
		nfr_svc_count(side, refused[NFR_REFUSED_CREDITS], 1);
		nfr_svc_grant_undo(grant);
		return;
	}
	nfr_svc_grant_add(grant);
	nfr_svc_count(side, grants, 1);
	trace_nfsrdma_svc_grant(side, grant->segment.handle, grant->position,
				grant->segment.length);
}

/*
 * Announce a grant again, for another user, or to a client that renews it or has lost it, but not
 * for each READ.
 */
static void nfr_svc_grant_again(struct nfr_svc_grant *grant, const struct nfr_read *read)
{
	if (time_before(jiffies, grant->announced + NFR_SVC_GRANT_AGAIN) &&
	    grant->credential == nfr_svc_grant_credential(grant, read))
		return;
	if (nfr_svc_grant_announce(grant, read))
		return;
	nfr_svc_count(grant->side, grants_renewed, 1);
	nfr_svc_grant_renew(grant);
}

static void nfr_svc_grant_extent(struct nfr_svc *side, const struct nfr_read *read,
				 struct nfr_svc_watch *watch, struct inode *inode,
				 struct page *page)
{
	u64 index = read->position >> PAGE_SHIFT >> side->notices->order;
	struct nfr_svc_grant *grant = nfr_svc_grant_find(watch, side, index);

	if (grant && nfr_svc_grant_is_stale(grant, read, page)) {
		/* a change that fsnotify did not report */
		nfr_svc_revoke_file(watch, NFR_REVOKED_MODIFIED);
		grant = NULL;
	}
	if (grant && nfr_svc_grant_covers(grant, read)) {
		nfr_svc_grant_again(grant, read);
		return;
	}
	if (grant) {
		if (nfr_svc_grant_stays(grant)) {
			nfr_svc_count(side, refused[NFR_REFUSED_LIMIT], 1);
			return;
		}
		nfr_svc_revoke_one(grant, NFR_REVOKED_REPLACED);
	}
	nfr_svc_grant_new(side, read, watch, inode, page);
}

/*
 * Check whether access to a file may have changed after nfsd began to execute a READ: nfsd
 * checks it first, and then it may wait for a disk. Each change sets ctime, which is as coarse
 * as a tick.
 */
static bool nfr_svc_grant_is_late(const struct inode *inode, ktime_t began)
{
	ktime_t changed = timespec64_to_ktime(nfr_compat_inode_ctime(inode));

	return ktime_compare(changed, ktime_sub_ns(ktime_mono_to_real(began), 2 * TICK_NSEC)) >= 0;
}

static void nfr_svc_grant_watched(struct nfr_svc *side, const struct nfr_read *read,
				  struct nfr_svc_watch *watch, struct inode *inode,
				  struct page *page, ktime_t began)
{
	nfr_svc_grants_list(watch);
	/* a change that the watch does not report precedes what follows */
	smp_mb();
	if (inode_is_open_for_write(inode)) {
		/* kernel code may open files without a report of fsnotify */
		nfr_svc_revoke_file(watch, NFR_REVOKED_OPENED);
		nfr_svc_count(side, refused[NFR_REFUSED_OPEN], 1);
	} else if (nfr_svc_grant_is_late(inode, began)) {
		nfr_svc_count(side, refused[NFR_REFUSED_CHANGED], 1);
	} else if (!watch->ended && nfr_conn_is_up(side->conn)) {
		nfr_svc_grant_extent(side, read, watch, inode, page);
	}
}

/**
 * nfr_svc_grant_reference - let a client read an extent of a file by itself
 * @side: second connection of the client
 * @read: READ that nfsd has executed
 * @inode: inode of the file; the caller holds a reference to it, and to its file system
 * @page: page of the file that the data of the READ begins in
 * @began: time at which nfsd began to execute the READ
 *
 * Context: nfsd thread. Does not wait for other threads that grant or revoke.
 */
void nfr_svc_grant_reference(struct nfr_svc *side, const struct nfr_read *read,
			     struct inode *inode, struct page *page, ktime_t began)
{
	struct nfr_svc_watch *watch;

	if (!mutex_trylock(&nfr_svc_grants_mutex)) {
		nfr_svc_count(side, refused[NFR_REFUSED_BUSY], 1);
		return;
	}
	watch = nfr_svc_watch_get(inode);
	if (watch)
		nfr_svc_grant_watched(side, read, watch, inode, page, began);
	else
		nfr_svc_count(side, refused[NFR_REFUSED_MEMORY], 1);
	mutex_unlock(&nfr_svc_grants_mutex);
	if (watch)
		nfr_svc_watch_put(watch);
}
