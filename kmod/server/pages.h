/* SPDX-License-Identifier: GPL-2.0-only */
/* Pages of nfsd threads. */
#ifndef NFSRDMA_SERVER_PAGES_H
#define NFSRDMA_SERVER_PAGES_H

#include "server/server.h"

bool nfr_svc_pages_room(struct nfr_svc_req *req, u32 count);
void nfr_svc_pages_keep(struct nfr_svc_req *req, const struct svc_rqst *rqstp, u32 room);
void nfr_svc_pages_drop(struct nfr_svc_req *req);
void nfr_svc_pages_restore(struct nfr_svc_req *req, struct svc_rqst *rqstp);
int nfr_svc_pages_lend(struct nfr_svc_req *req, struct svc_rqst *rqstp, struct nfr_span *span);
void nfr_svc_pages_give(struct nfr_svc *svc, struct page **pages, u32 count);
u32 nfr_svc_pages_take(struct nfr_svc *svc, struct page **pages, u32 count);
void nfr_svc_pages_free(struct nfr_svc *svc);

#endif
