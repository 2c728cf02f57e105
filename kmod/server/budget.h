/* SPDX-License-Identifier: GPL-2.0-only */
/* Limit of the pages that Replies hold. */
#ifndef NFSRDMA_SERVER_BUDGET_H
#define NFSRDMA_SERVER_BUDGET_H

#include "server/server.h"
#include "server/share.h"

u32 nfr_svc_budget_room(const struct nfr_svc_req *req);
bool nfr_svc_budget_wait(struct nfr_svc_req *req, u32 pages);
bool nfr_svc_budget_try(struct nfr_svc_req *req, u32 pages);
void nfr_svc_budget_keep(struct nfr_svc_req *req, u32 bytes);
void nfr_svc_budget_raise(struct nfr_svc_req *req, u32 pages);
bool nfr_svc_budget_is_wanted(const struct nfr_svc *svc);
bool nfr_svc_budget_is_waiting(const struct nfr_svc *svc);
void nfr_svc_budget_leave(struct nfr_svc *svc);
void nfr_svc_budget_init(struct nfr_svc_host *host);
void nfr_svc_budget_start(void);

static inline struct nfr_svc_share *nfr_svc_budget_share(const struct nfr_svc *svc)
{
	return &svc->host->shares[NFR_SVC_REPLIES];
}

/*
 * Charge a Call for @pages that its Reply may hold. Returns false if the connection has to wait.
 * The caller holds the lock of nfr_svc_first.ready.
 */
static inline bool nfr_svc_budget_charge(struct nfr_svc_req *req, u32 pages)
{
	if (!nfr_svc_share_try(nfr_svc_budget_share(req->svc), pages))
		return nfr_svc_budget_wait(req, pages);
	req->reply_pages += pages;
	return true;
}

#endif
