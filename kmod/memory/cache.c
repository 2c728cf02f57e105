// SPDX-License-Identifier: GPL-2.0-only
/*
 * Registrations that survive their Call (personality cached).
 *
 * An application that reads again and again into the same buffers past the page
 * cache (O_DIRECT) registers the same pages for each Call. The cache keeps such
 * an MR valid when its Call is done, and finds it again by its pages, its offset
 * in the first one, its length and its direction. One Call uses an MR at a time.
 *
 * The cache holds references to the pages, so that they cannot become other
 * memory while the peer may access them. It keeps anonymous memory of processes
 * only, never pages of a file, of shared memory or of the kernel, and returns the
 * pages, least recently used first, when
 *
 *  - all caches together reach cache_memory,
 *  - an MR has not been used for NFR_CACHE_AGE,
 *  - the kernel is short of memory,
 *  - the connection ends.
 *
 * Returning takes an invalidation, which the owner of the pool posts: victims are
 * MRs that wait for it, and count against the limit until it is complete.
 *
 * Beside it the cache has slots: memory of its own that stays registered. A Reply
 * of NFR_SLOT_MIN to NFR_SLOT_SIZE bytes whose memory the cache must not keep
 * arrives in a slot, and is copied.
 */
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "compat/compat.h"
#include "gfp.h"
#include "memory/memory.h"
#include "memory/region.h"
#include "observe/trace.h"
#include "params.h"
#include "work.h"

/* Maximum time without use, in jiffies */
#define NFR_CACHE_AGE	(30 * HZ)

/* Pages of the largest folio: a reference to one page holds all of them */
#define NFR_CACHE_FOLIO	512

/* Replies that arrive in a slot, in bytes: copying more is dearer than registering it */
#define NFR_SLOT_MIN	(8 * 1024u)
#define NFR_SLOT_SIZE	(64 * 1024u)
#define NFR_SLOT_ORDER	get_order(NFR_SLOT_SIZE)

/* Slots of a connection */
#define NFR_SLOTS	64

/* MRs that a cache keeps: each has memory of its own, which cache_memory does not count */
#define NFR_CACHE_MRS	1024

static unsigned long nfr_mem_caches_evict(unsigned long pages);

/* Pages that all caches hold, in use or not */
static atomic_t nfr_mem_cached;

/* All caches, for the shrinker */
static DEFINE_SPINLOCK(nfr_mem_caches_lock);
static LIST_HEAD(nfr_mem_caches);

/* --- pages --- */

static u32 nfr_mem_cache_pages(const struct nfr_span *span)
{
	return DIV_ROUND_UP(offset_in_page(span->page_base) + span->page_len, PAGE_SIZE);
}

static struct page **nfr_mem_cache_first(const struct nfr_span *span)
{
	return span->pages + (span->page_base >> PAGE_SHIFT);
}

/*
 * Memory of a process, and of no file: a file could be read by others after the peer
 * changed it. A reference to a page of a huge one holds all of it, and a page that can
 * be moved would stay where it is.
 */
static bool nfr_mem_cache_is_user(struct page *page)
{
	struct folio *folio = page_folio(page);

	return folio_test_anon(folio) && folio_nr_pages(folio) <= NFR_CACHE_FOLIO &&
	       !is_zone_movable_page(page);
}

/**
 * nfr_mem_cache_unpin - release the pages of an MR
 * @mr: MR that the peer cannot access
 */
void nfr_mem_cache_unpin(struct nfr_mr *mr)
{
	struct nfr_pool *pool = mr->pool;
	u32 i;

	for (i = 0; i < mr->npages; i++)
		put_page(mr->pages[i]);
	atomic_sub(mr->npages, &nfr_mem_cached);
	spin_lock(&pool->lock);
	pool->cache->nslots -= !!mr->slot;
	pool->cache->held--;
	spin_unlock(&pool->lock);
	kfree(mr->pages);
	mr->pages = NULL;
	mr->npages = 0;
	mr->slot = NULL;
	mr->kept = false;
	mr->synced = false;
}

/* --- keeping and finding --- */

static struct hlist_head *nfr_mem_cache_bucket(struct nfr_cache *cache, const struct page *first,
					       enum dma_data_direction direction)
{
	return &cache->table[hash_ptr(first, NFR_CACHE_BITS) ^ (direction == DMA_TO_DEVICE)];
}

static bool nfr_mem_cache_matches(const struct nfr_mr *mr, const struct nfr_span *span,
				  enum dma_data_direction direction)
{
	return mr->direction == direction && mr->mr->length == span->page_len &&
	       mr->base == offset_in_page(span->page_base) &&
	       !memcmp(mr->pages, nfr_mem_cache_first(span), mr->npages * sizeof(*mr->pages));
}

/* Find a valid MR of the memory of a span, and consume it. Returns NULL if there is none. */
static struct nfr_mr *nfr_mem_cache_find(struct nfr_pool *pool, struct nfr_span *span,
					 enum dma_data_direction direction)
{
	struct nfr_cache *cache = pool->cache;
	struct hlist_head *bucket;
	struct nfr_mr *mr;

	bucket = nfr_mem_cache_bucket(cache, *nfr_mem_cache_first(span), direction);
	spin_lock(&pool->lock);
	hlist_for_each_entry(mr, bucket, node)
		if (nfr_mem_cache_matches(mr, span, direction))
			goto found;
	cache->misses++;
	spin_unlock(&pool->lock);
	return NULL;
found:
	hlist_del_init(&mr->node);
	list_del_init(&mr->list);
	cache->idle -= mr->npages;
	cache->hits++;
	spin_unlock(&pool->lock);
	nfr_mem_span_skip(span, span->page_len);
	nfr_mem_sync_for_device(mr);
	return mr;
}

/* --- slots --- */

/* Charge pages. If there is no room, caches give back what was not used for long, for later. */
static bool nfr_mem_cache_admit(struct nfr_pool *pool, u32 pages)
{
	if (READ_ONCE(pool->cache->held) < NFR_CACHE_MRS) {
		if (atomic_add_return(pages, &nfr_mem_cached) <= nfr_params_cache_pages())
			return true;
		atomic_sub(pages, &nfr_mem_cached);
	}
	if (!nfr_mem_cache_evict(pool, pages))
		nfr_mem_caches_evict(pages);
	return false;
}

/* Have an unused MR describe the memory of a new slot. */
static bool nfr_mem_slot_map(struct nfr_mr *mr, struct page *memory)
{
	struct nfr_span span;
	u32 i;

	mr->pages = kmalloc_array(1 << NFR_SLOT_ORDER, sizeof(*mr->pages), NFR_GFP_RETRIED);
	if (!mr->pages)
		return false;
	for (i = 0; i < 1 << NFR_SLOT_ORDER; i++)
		mr->pages[i] = memory + i;
	span = (struct nfr_span) { .pages = mr->pages, .page_len = NFR_SLOT_SIZE };
	if (nfr_mem_map(mr, &span, DMA_FROM_DEVICE)) {
		kfree(mr->pages);
		mr->pages = NULL;
		return false;
	}
	split_page(memory, NFR_SLOT_ORDER);
	mr->npages = 1 << NFR_SLOT_ORDER;
	mr->slot = page_address(memory);
	mr->kept = true;
	return true;
}

/* Returns NULL if memory is short; then the Call's own memory is registered. */
static struct nfr_mr *nfr_mem_slot_new(struct nfr_pool *pool)
{
	struct nfr_mr *mr = nfr_mem_pool_take(pool);
	struct page *memory;

	if (!mr)
		return NULL;
	/* zeroed: a server may claim that it wrote what it did not write */
	memory = pool->depth < 1 << NFR_SLOT_ORDER ? NULL :
		 alloc_pages(NFR_GFP_RETRIED | __GFP_ZERO, NFR_SLOT_ORDER);
	if (memory && nfr_mem_slot_map(mr, memory)) {
		nfr_work_queue(&pool->cache->work, NFR_CACHE_AGE);
		return mr;
	}
	if (memory)
		__free_pages(memory, NFR_SLOT_ORDER);
	nfr_mem_pool_give(pool, mr);
	return NULL;
}

static struct nfr_mr *nfr_mem_slot_make(struct nfr_pool *pool)
{
	struct nfr_mr *mr;

	if (READ_ONCE(pool->cache->nslots) >= NFR_SLOTS ||
	    !nfr_mem_cache_admit(pool, 1 << NFR_SLOT_ORDER))
		return NULL;
	mr = nfr_mem_slot_new(pool);
	if (!mr) {
		atomic_sub(1 << NFR_SLOT_ORDER, &nfr_mem_cached);
		return NULL;
	}
	spin_lock(&pool->lock);
	pool->cache->nslots++;
	pool->cache->held++;
	spin_unlock(&pool->lock);
	return mr;
}

static struct nfr_mr *nfr_mem_slot_take(struct nfr_pool *pool)
{
	struct nfr_cache *cache = pool->cache;
	struct nfr_mr *mr;

	spin_lock(&pool->lock);
	mr = list_first_entry_or_null(&cache->slots, struct nfr_mr, list);
	if (mr) {
		list_del_init(&mr->list);
		cache->idle -= mr->npages;
	}
	spin_unlock(&pool->lock);
	if (mr)
		nfr_mem_sync_for_device(mr);
	return mr ?: nfr_mem_slot_make(pool);
}

/* Get a slot for the Reply, and consume the span. Returns NULL if there is none. */
static struct nfr_mr *nfr_mem_cache_slot(struct nfr_exposure *exposure, struct nfr_pool *pool,
					 struct nfr_span *span)
{
	u32 length = nfr_mem_span_length(span);
	struct nfr_mr *mr;

	if (length < NFR_SLOT_MIN || length > NFR_SLOT_SIZE)
		return NULL;
	mr = nfr_mem_slot_take(pool);
	if (!mr)
		return NULL;
	mr->offered = length;
	exposure->slot = mr->slot;
	pool->cache->copies++;
	*span = (struct nfr_span) { };
	return mr;
}

/**
 * nfr_mem_cache_get - get an MR that the peer may access already
 * @exposure: exposure to prepare
 * @pool: pool with a cache
 * @span: memory; consumed if there is an MR
 * @direction: direction of the transfer
 *
 * Return: MR of this memory, or of a slot in its place; NULL if there is neither.
 */
struct nfr_mr *nfr_mem_cache_get(struct nfr_exposure *exposure, struct nfr_pool *pool,
				 struct nfr_span *span, enum dma_data_direction direction)
{
	bool user = nfr_mem_span_is_in_pages(span) && !span->tail.iov_len &&
		    nfr_mem_cache_is_user(*nfr_mem_cache_first(span));
	struct nfr_mr *mr = NULL;

	if (user)
		mr = nfr_mem_cache_find(pool, span, direction);
	else if (direction == DMA_FROM_DEVICE && !exposure->count)
		mr = nfr_mem_cache_slot(exposure, pool, span);
	if (mr && mr->valid) {
		exposure->found++;
		trace_nfsrdma_mr_reuse(mr);
	}
	return mr;
}

/* --- keeping --- */

static bool nfr_mem_cache_pin(struct nfr_mr *mr, struct page **pages, u32 count)
{
	for (mr->npages = 0; mr->npages < count; mr->npages++) {
		struct page *page = pages[mr->npages];

		if (!nfr_mem_cache_is_user(page))
			return false;
		get_page(page);
		mr->pages[mr->npages] = page;
	}
	return true;
}

/**
 * nfr_mem_cache_keep - decide whether the registration of an MR survives its Call
 * @mr: mapped MR, not registered yet
 * @span: the memory that it covers
 */
void nfr_mem_cache_keep(struct nfr_mr *mr, const struct nfr_span *span)
{
	u32 count = nfr_mem_cache_pages(span);

	if (span->head.iov_len || span->tail.iov_len || mr->mr->length != span->page_len)
		return;
	if (!nfr_mem_cache_admit(mr->pool, count))
		return;
	mr->pages = kmalloc_array(count, sizeof(*mr->pages), NFR_GFP_RETRIED);
	if (!mr->pages) {
		atomic_sub(count, &nfr_mem_cached);
		return;
	}
	spin_lock(&mr->pool->lock);
	mr->pool->cache->held++;
	spin_unlock(&mr->pool->lock);
	mr->base = offset_in_page(span->page_base);
	mr->kept = nfr_mem_cache_pin(mr, nfr_mem_cache_first(span), count);
	if (mr->kept) {
		/* looks for it when it has not been used for long */
		nfr_work_queue(&mr->pool->cache->work, NFR_CACHE_AGE);
		return;
	}
	atomic_sub(count - mr->npages, &nfr_mem_cached);
	nfr_mem_cache_unpin(mr);
}

/**
 * nfr_mem_cache_return - keep an MR for the next Call with the same memory
 * @mr: kept MR whose Call is done; valid
 */
void nfr_mem_cache_return(struct nfr_mr *mr)
{
	struct nfr_pool *pool = mr->pool;
	struct nfr_cache *cache = pool->cache;

	nfr_mem_sync_for_cpu(mr);
	spin_lock(&pool->lock);
	mr->used = jiffies;
	cache->idle += mr->npages;
	if (mr->slot) {
		list_move(&mr->list, &cache->slots);
		goto out;
	}
	hlist_add_head(&mr->node, nfr_mem_cache_bucket(cache, mr->pages[0], mr->direction));
	/* the list may contain it: the exposure's */
	list_move(&mr->list, &cache->lru);
out:
	spin_unlock(&pool->lock);
}

/* --- eviction --- */

/* Get the unused MR whose last use was the earliest, or NULL. Caller holds the lock. */
static struct nfr_mr *nfr_mem_cache_oldest(const struct nfr_cache *cache)
{
	struct nfr_mr *mr = NULL, *slot = NULL;

	if (!list_empty(&cache->lru))
		mr = list_last_entry(&cache->lru, struct nfr_mr, list);
	if (!list_empty(&cache->slots))
		slot = list_last_entry(&cache->slots, struct nfr_mr, list);
	if (mr && slot)
		return time_before(slot->used, mr->used) ? slot : mr;
	return mr ?: slot;
}

/* Make an unused MR a victim. Returns its pages. Caller holds the lock. */
static u32 nfr_mem_cache_evict_one(struct nfr_cache *cache, struct nfr_mr *mr)
{
	if (!mr->slot)
		hlist_del_init(&mr->node);
	list_move_tail(&mr->list, &cache->victims);
	cache->idle -= mr->npages;
	return mr->npages;
}

/**
 * nfr_mem_cache_evict - invalidate the MRs that were not used for the longest time
 * @pool: pool with a cache
 * @pages: number of pages to give back
 *
 * The owner of the pool posts the invalidations later.
 *
 * Context: Any thread; does not sleep.
 *
 * Return: number of pages that will return.
 */
u32 nfr_mem_cache_evict(struct nfr_pool *pool, u32 pages)
{
	struct nfr_cache *cache = pool->cache;
	struct nfr_mr *mr;
	u32 found = 0;

	spin_lock(&pool->lock);
	while (found < pages && (mr = nfr_mem_cache_oldest(cache)))
		found += nfr_mem_cache_evict_one(cache, mr);
	spin_unlock(&pool->lock);
	if (found)
		mod_delayed_work(nfr_work_slow, &cache->work, 0);
	return found;
}

/* Have all caches give back pages. Returns the number of pages that will return. */
static unsigned long nfr_mem_caches_evict(unsigned long pages)
{
	unsigned long found = 0;
	struct nfr_cache *cache;

	spin_lock(&nfr_mem_caches_lock);
	list_for_each_entry(cache, &nfr_mem_caches, list) {
		if (found >= pages)
			break;
		found += nfr_mem_cache_evict(cache->pool, pages - found);
	}
	spin_unlock(&nfr_mem_caches_lock);
	return found;
}

/* An unused MR that nobody would find, or that the limit of now does not allow */
static bool nfr_mem_cache_is_useless(const struct nfr_mr *mr)
{
	return time_after(jiffies, mr->used + NFR_CACHE_AGE) ||
	       atomic_read(&nfr_mem_cached) > nfr_params_cache_pages();
}

/* Make MRs victims whose memory its process gave up. Caller holds the lock. */
static void nfr_mem_cache_evict_unmapped(struct nfr_cache *cache)
{
	struct nfr_mr *mr, *next;

	list_for_each_entry_safe(mr, next, &cache->lru, list)
		if (!folio_mapped(page_folio(mr->pages[0])))
			nfr_mem_cache_evict_one(cache, mr);
}

/**
 * nfr_mem_cache_victims - take MRs to invalidate
 * @pool: pool with a cache
 * @exposure: empty exposure, which gets them
 * @most: maximum number of MRs
 *
 * MRs that were not used for NFR_CACHE_AGE become victims first, and those whose
 * memory no process maps any more.
 *
 * Return: true if the cache keeps other MRs, and has to be looked at again.
 */
bool nfr_mem_cache_victims(struct nfr_pool *pool, struct nfr_exposure *exposure, u32 most)
{
	struct nfr_cache *cache = pool->cache;
	struct nfr_mr *mr;
	bool more;

	spin_lock(&pool->lock);
	nfr_mem_cache_evict_unmapped(cache);
	while ((mr = nfr_mem_cache_oldest(cache)) && nfr_mem_cache_is_useless(mr))
		nfr_mem_cache_evict_one(cache, mr);
	while (exposure->count < most &&
	       (mr = list_first_entry_or_null(&cache->victims, struct nfr_mr, list))) {
		list_move_tail(&mr->list, &exposure->mrs);
		mr->kept = false;
		exposure->count++;
		exposure->valid++;
	}
	more = cache->held;
	spin_unlock(&pool->lock);
	return more;
}

/* --- shortage of memory --- */

static unsigned long nfr_mem_cache_shrink_count(struct shrinker *shrinker,
						struct shrink_control *control)
{
	unsigned long idle = 0;
	struct nfr_cache *cache;

	spin_lock(&nfr_mem_caches_lock);
	list_for_each_entry(cache, &nfr_mem_caches, list)
		idle += READ_ONCE(cache->idle);
	spin_unlock(&nfr_mem_caches_lock);
	return idle ?: SHRINK_EMPTY;
}

/* The pages return when the invalidations are complete, which nobody waits for. */
static unsigned long nfr_mem_cache_shrink_scan(struct shrinker *shrinker,
					       struct shrink_control *control)
{
	return nfr_mem_caches_evict(control->nr_to_scan) ?: SHRINK_STOP;
}

static struct shrinker *nfr_mem_cache_shrinker;

/* Register the shrinker of all caches. Returns 0 or -ENOMEM. */
int nfr_mem_cache_start(void)
{
	nfr_mem_cache_shrinker = nfr_compat_shrinker(nfr_mem_cache_shrink_count,
						     nfr_mem_cache_shrink_scan);
	return nfr_mem_cache_shrinker ? 0 : -ENOMEM;
}

/* Undo nfr_mem_cache_start(). */
void nfr_mem_cache_stop(void)
{
	nfr_compat_shrinker_free(nfr_mem_cache_shrinker);
}

/* --- creation --- */

/**
 * nfr_mem_cache_create - give a pool a cache
 * @pool: pool of a connection with personality cached
 * @evict: work that invalidates what nfr_mem_cache_victims() finds
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_mem_cache_create(struct nfr_pool *pool, work_func_t evict)
{
	struct nfr_cache *cache = kzalloc(sizeof(*cache), NFR_GFP_RETRIED);

	if (!cache)
		return -ENOMEM;
	cache->pool = pool;
	INIT_LIST_HEAD(&cache->lru);
	INIT_LIST_HEAD(&cache->slots);
	INIT_LIST_HEAD(&cache->victims);
	INIT_DELAYED_WORK(&cache->work, evict);
	pool->cache = cache;
	spin_lock(&nfr_mem_caches_lock);
	list_add_tail(&cache->list, &nfr_mem_caches);
	spin_unlock(&nfr_mem_caches_lock);
	return 0;
}

/**
 * nfr_mem_cache_close - end eviction
 * @pool: pool of a drained connection, with or without a cache
 */
void nfr_mem_cache_close(struct nfr_pool *pool)
{
	struct nfr_cache *cache = pool->cache;

	if (!cache)
		return;
	spin_lock(&nfr_mem_caches_lock);
	list_del_init(&cache->list);
	spin_unlock(&nfr_mem_caches_lock);
	cancel_delayed_work_sync(&cache->work);
}

/**
 * nfr_mem_cache_detach - move all MRs of a cache
 * @pool: pool of a closed cache, or without a cache
 * @mrs: list to append the MRs to, for nfr_mem_destroy()
 */
void nfr_mem_cache_detach(struct nfr_pool *pool, struct list_head *mrs)
{
	struct nfr_cache *cache = pool->cache;

	if (!cache)
		return;
	spin_lock(&pool->lock);
	list_splice_tail_init(&cache->lru, mrs);
	list_splice_tail_init(&cache->slots, mrs);
	list_splice_tail_init(&cache->victims, mrs);
	memset(cache->table, 0, sizeof(cache->table));
	cache->idle = 0;
	spin_unlock(&pool->lock);
}

/* Get the number of pages that all caches hold. */
u32 nfr_mem_cache_pages_held(void)
{
	return atomic_read(&nfr_mem_cached);
}
