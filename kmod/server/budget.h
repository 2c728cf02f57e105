/* SPDX-License-Identifier: GPL-2.0-only */
/* Limit of the pages that Replies hold. */
#ifndef NFSRDMA_SERVER_BUDGET_H
#define NFSRDMA_SERVER_BUDGET_H

#include "server/server.h"

u32 nfr_svc_budget_room(const struct nfr_svc_req *req);
bool nfr_svc_budget_charge(struct nfr_svc_req *req, u32 pages);
bool nfr_svc_budget_try(struct nfr_svc_req *req, u32 pages);
void nfr_svc_budget_keep(struct nfr_svc_req *req, u32 bytes);
void nfr_svc_budget_raise(struct nfr_svc_req *req, u32 pages);
void nfr_svc_budget_leave(struct nfr_svc *svc);
u32 nfr_svc_budget_in_use(void);

#endif
