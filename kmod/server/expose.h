/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory that clients read. */
#ifndef NFSRDMA_SERVER_EXPOSE_H
#define NFSRDMA_SERVER_EXPOSE_H

#include "server/server.h"

/*
 * struct nfr_svc_exposed - memory of a Reply that the client reads (read-read): its nfr_svc_req.own
 * @exposure: its registrations
 * @pages: number of its pages
 * @since: jiffies when the Reply was posted, and later when its revocation began
 * @revoking: link in nfr_svc_exposures.revoking
 * @revoke_cqe: completion of the last invalidation
 */
struct nfr_svc_exposed {
	struct nfr_exposure exposure;
	u32 pages;
	unsigned long since;
	struct list_head revoking;
	struct ib_cqe revoke_cqe;
};

/*
 * struct nfr_svc_exposures - what a connection has for read-read
 * @svc: the connection
 * @pool: MRs for Replies that the client reads
 * @exposed: requests whose Reply the client may read, oldest first; @nexposed elements;
 *	nfr_conn.lock protects both, and @revoking
 * @revoking: requests whose registrations are being invalidated, oldest first
 * @pages: number of pages that MRs of @pool expose
 * @expire: work that ends exposures without a Done
 * @room: expected length of a Reply in pages, and the longest of the last @nreplies
 */
struct nfr_svc_exposures {
	struct nfr_svc *svc;
	struct nfr_pool pool;
	struct list_head exposed;
	u32 nexposed;
	struct list_head revoking;
	atomic_t pages;
	struct delayed_work expire;
	u32 room;
	u32 longest;
	u32 nreplies;
};

static inline struct nfr_svc_exposed *nfr_svc_exposed(const struct nfr_svc_req *req)
{
	return (struct nfr_svc_exposed *)req->own;
}

static inline struct nfr_svc_req *nfr_svc_exposed_req(struct nfr_svc_exposed *exposed)
{
	return container_of((void *)exposed, struct nfr_svc_req, own);
}

static inline struct nfr_svc_exposures *nfr_svc_exposures(const struct nfr_svc *svc)
{
	return *(struct nfr_svc_exposures **)nfr_svc_own(svc);
}

int nfr_svc_pool_init(struct nfr_svc *svc, struct nfr_pool *pool);
int nfr_svc_expose_init(struct nfr_svc *svc);
void nfr_svc_expose_init_request(struct nfr_svc_req *req);
void nfr_svc_expose_release(struct nfr_exposure *exposure);
int nfr_svc_expose_memory(struct nfr_svc *svc, struct nfr_exposure *exposure,
			  const struct nfr_span *span, struct nfr_segment *segs, u32 room);
int nfr_svc_expose(struct nfr_svc_req *req, const struct nfr_span *span, struct nfr_chunk *chunk,
		   u32 room);
void nfr_svc_expose_undo(struct nfr_svc_req *req);
void nfr_svc_expose_posted(struct nfr_svc_req *req);
void nfr_svc_expose_revoke(struct nfr_svc_req *req);
void nfr_svc_expose_end(struct nfr_svc_req *req);
struct nfr_svc_req *nfr_svc_expose_done(struct nfr_svc *svc, u32 xid);
bool nfr_svc_expose_late(struct nfr_svc *svc, struct list_head *late);
bool nfr_svc_expose_is_stuck(struct nfr_svc *svc);
void nfr_svc_expose_destroy(struct nfr_svc *svc);
void nfr_svc_expose_totals(struct seq_file *seq);

#endif
