/* SPDX-License-Identifier: GPL-2.0-only */
/* Branches: connections of a client beside its first one. */
#ifndef NFSRDMA_SERVER_BRANCH_H
#define NFSRDMA_SERVER_BRANCH_H

#include "server/server.h"

bool nfr_svc_branch_join(struct nfr_svc *svc);
void nfr_svc_branch_leave(struct nfr_svc *svc);
void nfr_svc_branch_broken(struct nfr_conn *conn);
void nfr_svc_branch_opened(struct nfr_svc *svc, int rc);
void nfr_svc_branch_init(struct nfr_svc_branch *branch);
void nfr_svc_branches_admit(struct nfr_svc *svc);
void nfr_svc_branches_refuse(struct nfr_svc *svc);
struct nfr_svc *nfr_svc_branches_latest(struct nfr_svc *svc);
u32 nfr_svc_branches_total(void);
void nfr_svc_first_broken(struct nfr_conn *conn);
void nfr_svc_first_refused(struct nfr_conn *conn);

#endif
