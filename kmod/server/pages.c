// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages of nfsd threads, which would be freed after a Call and allocated for the next one. Where
 * the kernel clears allocated pages (init_on_alloc), that costs more than the data's way over RDMA.
 *
 * Reply: nfsd replaces pages of its thread with pages of the page cache (splice), and frees its
 * own. sunrpc frees the pages that a Reply used, and allocates others before the next Call. Here
 * a request keeps the thread's pages alive, and exchanges them for those of the Reply, which it
 * keeps until the RDMA Writes are complete.
 *
 * Call: an nfsd thread takes over the pages that RDMA Reads filled, and leaves as many of its own.
 * The connection keeps these for the next RDMA Reads, within the limits.
 */
#include <linux/mm.h>
#include <linux/nfs.h>
#include <linux/nfs3.h>
#include <linux/slab.h>

#include "memory/region.h"
#include "params.h"
#include "server/pages.h"
#include "server/server.h"

/* --- Replies --- */

/**
 * nfr_svc_pages_room - make room for pages that a request keeps
 * @req: request that keeps none
 * @count: number of pages
 *
 * Return: false if an allocation failed.
 */
bool nfr_svc_pages_room(struct nfr_svc_req *req, u32 count)
{
	if (count <= req->kept_room)
		return true;
	kvfree(req->kept);
	req->kept = kvmalloc_array(count, sizeof(*req->kept), req->transfer.gfp);
	req->kept_room = req->kept ? count : 0;
	return req->kept;
}

/* Bytes of a Call up to its program, and to the end of its procedure: RFC 5531, section 9 */
#define NFR_SVC_PAGES_PROGRAM	12
#define NFR_SVC_PAGES_CALL	24

/* Procedures of NFSv3 whose Replies have pages behind the first */
#define NFR_SVC_PAGES_NFS3	(BIT(NFS3PROC_READLINK) | BIT(NFS3PROC_READ) |		\
				 BIT(NFS3PROC_READDIR) | BIT(NFS3PROC_READDIRPLUS))

/*
 * Check that the Reply to a Call has one page only: then nfsd replaces none, and sunrpc frees none
 * that the request could keep. A COMPOUND of NFSv4 may have a READ anywhere.
 */
static __always_inline bool nfr_svc_pages_are_few(const struct nfr_svc_req *req)
{
	const u8 *rpc = req->rpc + NFR_SVC_PAGES_PROGRAM;
	u32 procedure;

	if (req->rpc_length < NFR_SVC_PAGES_CALL || req->head.nwrites ||
	    nfr_wire_load32(rpc) != NFS_PROGRAM || nfr_wire_load32(rpc + 4) != NFS3_VERSION)
		return false;
	procedure = nfr_wire_load32(rpc + 8);
	return procedure <= NFS3PROC_COMMIT && !(NFR_SVC_PAGES_NFS3 & BIT(procedure));
}

/**
 * nfr_svc_pages_keep - keep the pages of a thread that nfsd may replace
 * @req: Call
 * @rqstp: thread's request; its rq_respages is set
 * @room: maximum length of the Reply in pages
 */
void nfr_svc_pages_keep(struct nfr_svc_req *req, const struct svc_rqst *rqstp, u32 room)
{
	struct page **pages = rqstp->rq_respages + 1;
	/* data that is not aligned occupies one page more */
	u32 i, count = min_t(u32, room + 1, rqstp->rq_page_end - pages);

	if (nfr_svc_pages_are_few(req) || !nfr_svc_pages_room(req, count))
		return;
	for (i = 0; i < count && pages[i]; i++) {
		get_page(pages[i]);
		req->kept[i] = pages[i];
	}
	req->nkept = i;
}

static __always_inline void nfr_svc_pages_drop_from(struct nfr_svc_req *req, u32 first)
{
	while (req->nkept > first)
		put_page(req->kept[--req->nkept]);
}

/**
 * nfr_svc_pages_drop - release the pages that a request keeps
 * @req: request whose RDMA Writes are complete, or hold their pages
 */
void nfr_svc_pages_drop(struct nfr_svc_req *req)
{
	nfr_svc_pages_drop_from(req, 0);
}

/* Check that RDMA Writes take data from the @count pages after the first only, if at all. */
static __always_inline bool nfr_svc_pages_are_apart(const struct nfr_svc_req *req,
						    const struct svc_rqst *rqstp, u32 count)
{
	const struct xdr_buf *res = &rqstp->rq_res;
	const struct nfr_result *last;
	u32 end;

	if (req->by_chunk)
		return false;
	if (!req->nresults)
		return true;
	if (res->pages != rqstp->rq_respages + 1 || req->results[0].offset < res->head[0].iov_len)
		return false;
	last = &req->results[req->nresults - 1];
	end = last->offset + last->length - res->head[0].iov_len;
	return end <= res->page_len && PFN_UP(res->page_base + end) <= count;
}

/*
 * Check that each page of the Reply after the first was replaced, or that no RDMA
 * Write uses it.
 */
static __always_inline bool nfr_svc_pages_were_replaced(const struct nfr_svc_req *req,
							struct page **pages, u32 count)
{
	u32 i;

	if (count > req->nkept)
		return false;
	for (i = 0; i < count; i++)
		if (pages[i] == req->kept[i] && req->nresults)
			return false;
	return true;
}

/*
 * Give the thread its pages back, and take those of the Reply, so that sunrpc has no
 * page of the Reply to free. Returns false if an RDMA Write uses a page of the
 * thread, or one that is not known. If nfsd deferred the Call, the pages that the
 * request keeps are those of the thread that took it: they must not become pages of
 * this thread as well.
 */
static __always_inline bool nfr_svc_pages_exchange(struct nfr_svc_req *req,
						   struct svc_rqst *rqstp)
{
	struct page **pages = rqstp->rq_respages + 1;
	u32 i, count = rqstp->rq_next_page - pages;

	if (rqstp->rq_deferred || !nfr_svc_pages_are_apart(req, rqstp, count) ||
	    !nfr_svc_pages_were_replaced(req, pages, count))
		return false;
	for (i = 0; i < count; i++)
		swap(pages[i], req->kept[i]);
	rqstp->rq_next_page = rqstp->rq_respages;
	/* without results, the pages may be the thread's own */
	nfr_svc_pages_drop_from(req, req->nresults ? count : 0);
	return true;
}

/**
 * nfr_svc_pages_restore - keep the pages of a Reply until its RDMA Writes are complete
 * @req: request with its RDMA Writes prepared
 * @rqstp: thread's request with the Reply in rq_res, or NULL for a threadless read
 *
 * The thread gets its pages back, if possible. Otherwise sunrpc frees them and those
 * of the Reply, and the RDMA Writes hold references. A threadless read has taken its pages from
 * the file.
 */
void nfr_svc_pages_restore(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	if (!rqstp && nfr_mem_transfer_is_empty(&req->transfer))
		nfr_svc_pages_drop(req);
	if (!rqstp || nfr_svc_pages_exchange(req, rqstp))
		return;
	nfr_mem_transfer_hold(&req->transfer);
	nfr_svc_pages_drop(req);
}

/**
 * nfr_svc_pages_lend - keep the pages of a Reply until its client has read them
 * @req: request, @by_chunk if its client reads more than its result
 * @rqstp: thread's request with the Reply in rq_res
 * @span: memory that the client reads; consumed
 *
 * Return: 0 or -ENOMEM.
 */
int nfr_svc_pages_lend(struct nfr_svc_req *req, struct svc_rqst *rqstp, struct nfr_span *span)
{
	struct nfr_piece piece;

	if (nfr_svc_pages_exchange(req, rqstp))
		return 0;
	nfr_svc_pages_drop(req);
	/* head, pages and tail, each of which may begin and end within a page */
	if (!nfr_svc_pages_room(req, PFN_UP(nfr_mem_span_length(span)) + 6))
		return -ENOMEM;
	while (nfr_mem_span_peek(span, &piece)) {
		get_page(piece.page);
		req->kept[req->nkept++] = piece.page;
		nfr_mem_span_skip(span, piece.length);
	}
	return 0;
}

/* --- Calls --- */

/* Pages that a connection reserves at once, so that a Call seldom changes the total */
#define NFR_SVC_RESERVE	64

/* Pages that all connections may keep: those that they reserved */
static atomic_t nfr_svc_pages_reserved;

/* Reserve room for more pages, within the limits. Caller holds the lock. */
static void nfr_svc_pages_reserve(struct nfr_svc *svc, u32 pages)
{
	u32 limit = nfr_params_server_pages() / NFR_SVC_SHARE;

	while (svc->spare_room < min_t(u32, pages, NFR_SVC_SPARES)) {
		/* look first: at the limit, no Call shall write to what all CPUs read */
		if (atomic_read(&nfr_svc_pages_reserved) + NFR_SVC_RESERVE > limit)
			return;
		atomic_add(NFR_SVC_RESERVE, &nfr_svc_pages_reserved);
		svc->spare_room += NFR_SVC_RESERVE;
	}
}

/* Returns false if the page has another user, or if the room is used up. */
static bool nfr_svc_pages_spare(struct nfr_svc *svc, struct page *page)
{
	if (page_count(page) != 1 || svc->nspares == svc->spare_room)
		return false;
	svc->spares[svc->nspares++] = page;
	return true;
}

/**
 * nfr_svc_pages_give - keep pages of a thread for RDMA Reads to come
 * @svc: connection
 * @pages: pages; their order changes, and those that the connection does not keep are freed
 * @count: number of pages
 *
 * All connections together keep a quarter of server_memory at most, or little more.
 */
void nfr_svc_pages_give(struct nfr_svc *svc, struct page **pages, u32 count)
{
	u32 i, left = 0;

	spin_lock_bh(&svc->lock);
	nfr_svc_pages_reserve(svc, svc->nspares + count);
	for (i = 0; i < count; i++)
		if (!nfr_svc_pages_spare(svc, pages[i]))
			pages[left++] = pages[i];
	spin_unlock_bh(&svc->lock);
	for (i = 0; i < left; i++)
		put_page(pages[i]);
}

/**
 * nfr_svc_pages_take - take pages that were kept for RDMA Reads
 * @svc: connection
 * @pages: output
 * @count: maximum number of pages
 *
 * Return: number of pages.
 */
u32 nfr_svc_pages_take(struct nfr_svc *svc, struct page **pages, u32 count)
{
	spin_lock_bh(&svc->lock);
	count = min(count, svc->nspares);
	svc->nspares -= count;
	memcpy(pages, svc->spares + svc->nspares, count * sizeof(*pages));
	spin_unlock_bh(&svc->lock);
	return count;
}

/**
 * nfr_svc_pages_free - free the pages that a connection keeps
 * @svc: connection that is idle, or about to be freed
 */
void nfr_svc_pages_free(struct nfr_svc *svc)
{
	struct page *pages[NFR_BATCH];
	u32 n;

	while ((n = nfr_svc_pages_take(svc, pages, NFR_BATCH)))
		while (n)
			put_page(pages[--n]);
	spin_lock_bh(&svc->lock);
	if (!svc->nspares) {
		atomic_sub(svc->spare_room, &nfr_svc_pages_reserved);
		svc->spare_room = 0;
	}
	spin_unlock_bh(&svc->lock);
}
