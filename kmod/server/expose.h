/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory that clients read. */
#ifndef NFSRDMA_SERVER_EXPOSE_H
#define NFSRDMA_SERVER_EXPOSE_H

#include "server/server.h"

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
u32 nfr_svc_expose_total(void);
u32 nfr_svc_expose_dones(void);

#endif
