// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threadless reads: an NFSv3 READ of data in the page cache is answered where its Call arrives.
 * nfsd wakes no thread, and clients do not notice it.
 *
 * nfsd decides who may read. When it has answered a READ for the second time, the server keeps a
 * permit: for a second, READs of the same file handle by the same user of the same client, on any
 * of its connections, are answered here. Squashing, export options and flavors are nfsd's. A change of the file sets ctime, which
 * ends the permit at once. A change that sets no ctime (of exports, of the groups of a user) takes
 * effect when the permit ends.
 *
 * The Reply has the form of nfsd's: the attributes of its last answer, which are those of the file
 * as long as ctime is the same (but for atime). A client may expect these: Linux allots the header
 * of a READ by the first Reply of a mount.
 *
 * A READ looks for its permit and takes references to folios under a lock of few permits of its
 * client, which keeps the inode valid, see permit.c.
 *
 * All of it runs with softirqs disabled, and takes no lock of the file system: filemap_get_folio()
 * needs none. What the file held at a moment between the Call and its Reply is what the client
 * gets, as from nfsd, which does not lock the file either.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/random.h>
#include <linux/sched/clock.h>
#include <linux/slab.h>
#include <linux/sunrpc/svc.h>

#include "compat/compat.h"
#include "connection/queues.h"
#include "gfp.h"
#include "observe/observe.h"
#include "observe/trace_server.h"
#include "params.h"
#include "server/budget.h"
#include "server/call.h"
#include "server/file.h"
#include "server/pages.h"
#include "server/threadless/permit.h"
#include "server/reply.h"
#include "server/threadless/threadless.h"
#include "server/watch.h"

/* Time of a CPU per tick for hits, in nanoseconds, if a task wants the CPU */
#define NFR_SVC_THREADLESS_TIME	(TICK_NSEC / 2)

/*
 * One in this many READs on average is measured, because reading the clock twice costs a tenth of
 * a hit. Chance decides which: a client that knew could have the others cost more.
 */
#define NFR_SVC_THREADLESS_SAMPLE	16

/*
 * Whether the processor reads the size of a file at once. Where it does not, i_size_read() waits
 * for a task that changes the size, which the softirq may have interrupted.
 */
#define NFR_SVC_THREADLESS	IS_ENABLED(CONFIG_64BIT)

/* Data that a message takes from pages, at least; in bytes */
#define NFR_SVC_THREADLESS_GATHER	1024u

/* A Reply */
struct nfr_svc_answer {
	u32 count;
	bool eof;
	u8 rpc[NFR_WIRE_READ_ANSWER];
};

/* Time that READs took of a CPU in a tick, by samples, of which the next comes after @others */
struct nfr_svc_threadless_time {
	unsigned long tick;
	u64 spent;
	u32 others;
};

static DEFINE_PER_CPU(struct nfr_svc_threadless_time, nfr_svc_threadless_times);

/* --- the file; callers hold the lock of the table --- */

static const enum nfr_threadless nfr_svc_permit_results[NFR_SVC_BYPASS_RESULTS] = {
	[NFR_SVC_BYPASS_MAY]		= NFR_THREADLESS_HIT,
	[NFR_SVC_BYPASS_DIRECT]		= NFR_THREADLESS_CHANGED,
	[NFR_SVC_BYPASS_OPEN]		= NFR_THREADLESS_OPEN,
	[NFR_SVC_BYPASS_LEASE]		= NFR_THREADLESS_LEASE,
	[NFR_SVC_BYPASS_LISTENER]	= NFR_THREADLESS_LISTENER,
	[NFR_SVC_BYPASS_LATE]		= NFR_THREADLESS_CHANGED,
};

static enum nfr_threadless nfr_svc_permit_check(const struct nfr_svc_permit *permit,
						const struct inode *inode)
{
	struct timespec64 ctime;
	enum nfr_svc_bypass result;

	if (!time_before(jiffies, permit->until))
		return NFR_THREADLESS_EXPIRED;
	result = nfr_svc_watch_may_bypass(inode, NULL, &ctime);
	if (!timespec64_equal(&ctime, &permit->ctime))
		return NFR_THREADLESS_CHANGED;
	return nfr_svc_permit_results[result];
}

/*
 * Take a reference to a page that is up to date. nfsd has to find the mark of read-ahead, so that
 * the server reads ahead. Returns the page, or NULL.
 */
static struct page *nfr_svc_threadless_page(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = filemap_get_folio(mapping, index);
	struct page *page;

	/* NULL before Linux 6.3, 66dabbb65d67 ("mm: return an ERR_PTR from __filemap_get_folio") */
	if (IS_ERR_OR_NULL(folio))
		return NULL;
	page = folio_file_page(folio, index);
	if (!folio_test_uptodate(folio) || folio_test_readahead(folio) || PageHWPoison(page)) {
		folio_put(folio);
		return NULL;
	}
	if (!folio_test_referenced(folio))
		folio_set_referenced(folio);
	return page;
}

/* Take references to all pages of a READ. Returns false if one is not in the page cache. */
static bool nfr_svc_threadless_pages(struct nfr_svc_req *req, struct address_space *mapping,
				     u64 position, u32 count)
{
	pgoff_t index = position >> PAGE_SHIFT, last = (position + count - 1) >> PAGE_SHIFT;
	struct page *page;

	for (; index <= last; index++) {
		page = nfr_svc_threadless_page(mapping, index);
		if (!page)
			return false;
		req->kept[req->nkept++] = page;
	}
	return true;
}

/* Find out what the file has of a READ. */
static enum nfr_threadless nfr_svc_threadless_look(struct nfr_svc_req *req,
						   const struct nfr_svc_permit *permit,
						   const struct nfr_read *read,
						   struct nfr_svc_answer *answer)
{
	struct inode *inode = permit->watch->inode;
	enum nfr_threadless result = nfr_svc_permit_check(permit, inode);
	loff_t size = i_size_read(inode);

	if (result != NFR_THREADLESS_HIT)
		return result;
	if (read->position >= size || read->count > permit->most)
		return NFR_THREADLESS_SIZE;
	answer->count = min_t(u64, read->count, size - read->position);
	answer->eof = read->position + answer->count == size;
	if (!nfr_svc_pages_room(req, PFN_UP(offset_in_page(read->position) + answer->count)))
		return NFR_THREADLESS_MEMORY;
	if (!nfr_svc_threadless_pages(req, inode->i_mapping, read->position, answer->count))
		return NFR_THREADLESS_PAGES;
	if (i_size_read(inode) != size)
		return NFR_THREADLESS_CHANGED;
	memcpy(answer->rpc, permit->answer, sizeof(answer->rpc));
	return NFR_THREADLESS_HIT;
}

/* --- the Reply --- */

/* Check whether a task wants this CPU: one that waits for it, or that was interrupted */
static bool nfr_svc_threadless_is_wanted(void)
{
	if (need_resched())
		return true;
	/* the thread that handles softirqs is not such a task */
	return in_serving_softirq() && !is_idle_task(current) &&
	       strncmp(current->comm, "ksoftirqd/", 10);
}

/* Check whether hits may take more of the CPU. A Call that may not waits for nfsd, as others do. */
static bool nfr_svc_threadless_may_run(const struct nfr_svc_threadless_time *time)
{
	unsigned long now = jiffies;

	return time->tick != now || time->spent < NFR_SVC_THREADLESS_TIME ||
	       !nfr_svc_threadless_is_wanted();
}

/* Decide whether to measure a READ. Returns the time at which it begins, or 0. */
static u64 nfr_svc_threadless_sample(struct nfr_svc_threadless_time *time)
{
	if (time->others) {
		time->others--;
		return 0;
	}
	/* with the sample, one in NFR_SVC_THREADLESS_SAMPLE on average */
	time->others = get_random_u32() % (2 * NFR_SVC_THREADLESS_SAMPLE - 1);
	return local_clock();
}

static void nfr_svc_threadless_account(struct nfr_svc_threadless_time *time, u64 began)
{
	unsigned long now = jiffies;

	if (!began)
		return;
	if (time->tick != now) {
		time->tick = now;
		time->spent = 0;
	}
	time->spent += (local_clock() - began) * NFR_SVC_THREADLESS_SAMPLE;
}

/* Check for room in the send queue, for each page and the Reply. Others may take it meanwhile. */
static bool nfr_svc_threadless_has_room(const struct nfr_svc_req *req, u32 pages)
{
	const struct nfr_svc *svc = req->svc;

	/* no lock: a request that finds no room later waits, as others do */
	return list_empty(&svc->pending) && data_race(nfr_conn_sq_free(&svc->conn->sq)) > pages;
}

/* Check what does not depend on the file. */
static enum nfr_threadless nfr_svc_threadless_begin(const struct nfr_svc_req *req,
						    const struct nfr_read *read)
{
	u32 pages = PFN_UP(offset_in_page(read->position) + read->count);

	/* a position beyond OFFSET_MAX is nfsd's to refuse */
	if (!read->count || read->count > nfr_params_server_threadless() || req->head.reply ||
	    read->position > LLONG_MAX - read->count)
		return NFR_THREADLESS_SIZE;
	if (!nfr_svc_threadless_has_room(req, pages))
		return NFR_THREADLESS_QUEUE;
	return NFR_THREADLESS_HIT;
}

/* Undo what was done for a Reply: nfsd answers the Call. */
static void nfr_svc_threadless_undo(struct nfr_svc_req *req, u32 nwrites)
{
	nfr_svc_req_release(req);
	req->nresults = 0;
	req->head.nwrites = nwrites;
}

/*
 * Prepare a message whose data the device takes from the pages. Shorter data is copied instead: a
 * completion, which this takes, costs more than that.
 */
static int nfr_svc_threadless_gather(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	struct nfr_header head = {
		.xid = req->head.xid, .credits = READ_ONCE(req->svc->grant), .proc = NFR_MSG,
	};
	struct nfr_span span = {
		.pages = res->pages, .page_base = res->page_base, .page_len = res->page_len,
	};
	u32 rest = res->head[0].iov_len;
	int rc;

	rc = nfr_wire_encode(&head, req->buffer, NFR_WIRE_MIN);
	if (rc < 0)
		return rc;
	memcpy(req->buffer + rc, res->head[0].iov_base, rest);
	rest += rc;
	rc = nfr_svc_gather_get(req, 1, req->nkept);
	if (!rc)
		rc = nfr_svc_gather_add(req, &span, true, res->page_len);
	if (rc)
		return rc;
	trace_nfsrdma_svc_reply(req, &head, res->len);
	nfr_svc_count(req->svc, inline_bytes, res->len);
	nfr_svc_gather_finish(req, NULL, rest, res->page_len);
	return 0;
}

/* Check for a message of version 1 with data that is long, and needs no padding. */
static bool nfr_svc_threadless_is_gathered(const struct nfr_svc_req *req, const struct xdr_buf *res)
{
	const struct nfr_conn *conn = req->svc->conn;

	return !req->head.nwrites && res->page_len >= NFR_SVC_THREADLESS_GATHER &&
	       !req->svc->long_pages &&
	       !res->tail[0].iov_len && req->nkept < conn->profile.send_sges &&
	       NFR_WIRE_MIN + res->len <= conn->send_size;
}

static int nfr_svc_threadless_reply(struct nfr_svc_req *req, const struct xdr_buf *res)
{
	if (nfr_svc_threadless_is_gathered(req, res))
		return nfr_svc_threadless_gather(req, res);
	if (req->head.nwrites)
		req->results[req->nresults++] = (struct nfr_result) {
			.offset = res->head[0].iov_len, .length = res->page_len,
		};
	return req->svc->personality->reply(req, res, NULL);
}

/* Send the pages of a request. */
static enum nfr_threadless nfr_svc_threadless_send(struct nfr_svc_req *req, u64 position,
						   struct nfr_svc_answer *answer)
{
	/* XDR pads data to a multiple of four bytes */
	static const u8 zeros[4];
	u32 pad = xdr_align_size(answer->count) - answer->count;
	const struct xdr_buf res = {
		.head[0] = { .iov_base = answer->rpc, .iov_len = sizeof(answer->rpc) },
		.pages = req->kept, .page_base = offset_in_page(position),
		.page_len = answer->count,
		.tail[0] = { .iov_base = (void *)zeros, .iov_len = pad },
		.len = sizeof(answer->rpc) + answer->count + pad,
	};
	u32 nwrites = req->head.nwrites;
	int rc;

	nfr_wire_set_read_answer(answer->rpc, req->head.xid, answer->count, answer->eof);
	/* an inline message holds no more than its buffer has */
	if (nwrites && !nfr_svc_budget_try(req, req->nkept)) {
		nfr_svc_pages_drop(req);
		return NFR_THREADLESS_MEMORY;
	}
	nfr_svc_advance(req, NFR_SVC_REPLYING);
	rc = nfr_svc_threadless_reply(req, &res);
	if (!rc)
		nfr_svc_advance(req, NFR_SVC_SENT);
	if (!rc || rc == -EINPROGRESS)
		return NFR_THREADLESS_HIT;
	nfr_svc_threadless_undo(req, nwrites);
	return rc == -EMSGSIZE ? NFR_THREADLESS_SIZE : NFR_THREADLESS_MEMORY;
}

static enum nfr_threadless nfr_svc_threadless_answer(struct nfr_svc_req *req,
						     const struct nfr_svc_asked *asked,
						     struct nfr_svc_answer *answer)
{
	/* pairs with the smp_store_release() in nfr_svc_permits_join() */
	struct nfr_svc_permits *permits = smp_load_acquire(&req->svc->first->permits);
	enum nfr_threadless result = nfr_svc_threadless_begin(req, &asked->read);
	struct nfr_svc_permit_set *set;
	struct nfr_svc_permit *permit;

	if (result != NFR_THREADLESS_HIT)
		return result;
	if (!permits)
		return NFR_THREADLESS_ABSENT;
	set = nfr_svc_permit_set(permits, asked);
	spin_lock(&set->lock);
	permit = nfr_svc_permit_find(set, asked);
	result = permit ? nfr_svc_threadless_look(req, permit, &asked->read, answer) :
			  NFR_THREADLESS_ABSENT;
	spin_unlock(&set->lock);
	if (result == NFR_THREADLESS_HIT)
		return nfr_svc_threadless_send(req, asked->read.position, answer);
	nfr_svc_pages_drop(req);
	return result;
}

/**
 * nfr_svc_threadless_read - answer a Call without a thread (nfr_svc_personality.threadless)
 * @req: Call without Read chunks
 *
 * Context: Completion handler, or a worker.
 *
 * Return: true if the function has completed the request: the caller must not use it any more.
 *	false if nfsd has to answer.
 */
bool nfr_svc_threadless_read(struct nfr_svc_req *req)
{
	struct nfr_svc_threadless_time *time;
	struct nfr_svc_answer answer;
	struct nfr_svc *svc = req->svc;
	enum nfr_threadless result;
	struct nfr_svc_asked asked;
	gfp_t gfp = req->transfer.gfp;
	u32 xid = req->head.xid;
	bool hit;
	u64 began;

	if (!NFR_SVC_THREADLESS || !nfr_svc_permit_asks(&asked, req))
		return false;
	/* a worker's requests may sleep until here */
	req->transfer.gfp = NFR_GFP_COMPLETION;
	local_bh_disable();
	time = this_cpu_ptr(&nfr_svc_threadless_times);
	result = NFR_THREADLESS_SHARE;
	if (nfr_svc_threadless_may_run(time)) {
		began = nfr_svc_threadless_sample(time);
		result = nfr_svc_threadless_answer(req, &asked, &answer);
		nfr_svc_threadless_account(time, began);
	}
	local_bh_enable();
	hit = result == NFR_THREADLESS_HIT;
	if (!hit)
		req->transfer.gfp = gfp;
	nfr_svc_count(svc, threadless[result], 1);
	nfr_svc_count(svc, threadless_bytes, hit ? answer.count : 0);
	trace_nfsrdma_svc_threadless(svc, xid, asked.read.position, hit ? answer.count : 0,
				     nfr_observe_threadless(result));
	return hit;
}

/* --- nfsd's answers; callers hold no lock --- */

/* Enter a permit, if nothing has changed since nfsd began. Returns false if it was not entered. */
static bool nfr_svc_permit_add(struct nfr_svc_permit *permit, struct nfr_svc_permits *permits,
			       const struct nfr_svc_asked *asked, const struct nfr_svc_handed *handed)
{
	struct nfr_svc_watch *watch = permit->watch;

	nfr_svc_watch_list(watch);
	if (watch->ended ||
	    nfr_svc_watch_may_bypass(watch->inode, handed, &permit->ctime) != NFR_SVC_BYPASS_MAY)
		return false;
	if (!nfr_svc_permit_enter(permit, permits, asked))
		return false;
	nfr_svc_watch_use(watch);
	return true;
}

static struct nfr_svc_permit *nfr_svc_permit_create(const struct nfr_svc_asked *asked,
						    const struct svc_rqst *rqstp)
{
	struct nfr_svc_permit *permit;
	s64 age;

	permit = kmalloc(struct_size(permit, key, asked->length), NFR_GFP_RETRIED);
	if (!permit)
		return NULL;
	permit->most = svc_max_payload(rqstp);
	permit->privileged = asked->privileged;
	permit->sum = asked->sum;
	permit->length = asked->length;
	memcpy(permit->key, asked->key, asked->length);
	memcpy(permit->answer, rqstp->rq_res.head[0].iov_base, sizeof(permit->answer));
	age = ktime_to_ns(ktime_sub(ktime_get(), rqstp->rq_stime));
	permit->until = jiffies + NFR_SVC_PERMIT_LIFE - min_t(u64, nsecs_to_jiffies(age) + 1,
							      NFR_SVC_PERMIT_LIFE);
	return permit;
}

/* Watch a file, and enter a permit for its READs. Returns false if it was not entered. */
static bool nfr_svc_permit_watch(struct nfr_svc_permits *permits, const struct nfr_svc_asked *asked,
				 struct inode *inode, const struct svc_rqst *rqstp,
				 const struct nfr_svc_handed *handed)
{
	struct nfr_svc_permit *permit = nfr_svc_permit_create(asked, rqstp);
	struct nfr_svc_watch *watch = permit ? nfr_svc_watch_get(inode) : NULL;
	bool added = false;

	if (watch) {
		permit->watch = watch;
		nfr_svc_watch_lock(watch);
		added = nfr_svc_permit_add(permit, permits, asked, handed);
		nfr_svc_watch_unlock(watch);
	}
	nfr_svc_file_put(inode);
	if (watch)
		nfr_svc_watch_put(watch);
	if (!added)
		kfree(permit);
	return added;
}

/*
 * Make a permit for READs like one that nfsd has answered. What may be against it is checked before
 * the file gets a watch, and when it has one. Returns false if there is none.
 */
static bool nfr_svc_permit_make(const struct nfr_svc_req *req, struct nfr_svc_permits *permits,
				const struct nfr_svc_asked *asked, const struct svc_rqst *rqstp)
{
	enum nfr_svc_bypass result;
	struct inode *inode;

	if (!nfr_svc_permit_fits(permits, asked))
		return false;
	inode = nfr_svc_file_get(rqstp->rq_res.pages[0], &asked->read, &req->handed, &result);
	return inode && nfr_svc_permit_watch(permits, asked, inode, rqstp, &req->handed);
}

/* Keep a permit for READs like one that nfsd has answered. */
static void nfr_svc_threadless_learn(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	const struct xdr_buf *res = &rqstp->rq_res;
	struct nfr_svc_permits *permits;
	struct nfr_svc_asked asked;

	if (!nfr_svc_file_read(req, rqstp, &asked.read) ||
	    asked.read.count > nfr_params_server_threadless() ||
	    !nfr_wire_is_read_answer(res->head[0].iov_base, res->head[0].iov_len))
		return;
	nfr_svc_permit_asks(&asked, req);
	permits = nfr_svc_permits_get(req->svc->first);
	if (permits && nfr_svc_permit_is_due(permits, &asked) &&
	    !nfr_svc_permit_make(req, permits, &asked, rqstp))
		nfr_svc_permit_put_off(permits, &asked);
}

/**
 * nfr_svc_threadless_inspect - learn from the Reply of an nfsd thread
 *	(nfr_svc_personality.inspect)
 * @req: request
 * @rqstp: nfsd thread's request with the Reply in rq_res
 *
 * Context: nfsd thread.
 */
void nfr_svc_threadless_inspect(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	nfr_svc_reply_results(req, rqstp);
	if (NFR_SVC_THREADLESS && nfr_params_server_threadless())
		nfr_svc_threadless_learn(req, rqstp);
}
