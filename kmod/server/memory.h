/* SPDX-License-Identifier: GPL-2.0-only */
/* Limits: pages for RDMA Reads, pages that Replies hold; pages of nfsd threads. */
#ifndef NFSRDMA_SERVER_MEMORY_H
#define NFSRDMA_SERVER_MEMORY_H

#include "server/server.h"

int nfr_svc_sink_get(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req));
int nfr_svc_sink_again(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req));
void nfr_svc_sink_put(struct nfr_svc_req *req);
void nfr_svc_sink_kick(void);
void nfr_svc_sink_stop(void);
u32 nfr_svc_sink_in_use(void);
void nfr_svc_sink_count_shortage(void);
u32 nfr_svc_sink_shortages(void);
u32 nfr_svc_budget_room(const struct nfr_svc_req *req);
bool nfr_svc_budget_charge(struct nfr_svc_req *req, u32 pages);
bool nfr_svc_budget_try(struct nfr_svc_req *req, u32 pages);
void nfr_svc_budget_keep(struct nfr_svc_req *req, u32 bytes);
void nfr_svc_budget_raise(struct nfr_svc_req *req, u32 pages);
void nfr_svc_budget_leave(struct nfr_svc *svc);
u32 nfr_svc_budget_in_use(void);

bool nfr_svc_pages_room(struct nfr_svc_req *req, u32 count);
void nfr_svc_pages_keep(struct nfr_svc_req *req, const struct svc_rqst *rqstp, u32 room);
void nfr_svc_pages_drop(struct nfr_svc_req *req);
void nfr_svc_pages_restore(struct nfr_svc_req *req, struct svc_rqst *rqstp);
int nfr_svc_pages_lend(struct nfr_svc_req *req, struct svc_rqst *rqstp, struct nfr_span *span);
void nfr_svc_pages_free(struct nfr_svc *svc);

#endif
