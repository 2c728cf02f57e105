/* SPDX-License-Identifier: GPL-2.0-only */
/* Threadless reads: operations of personalities. */
#ifndef NFSRDMA_SERVER_THREADLESS_H
#define NFSRDMA_SERVER_THREADLESS_H

#include "server/server.h"

bool nfr_svc_threadless_read(struct nfr_svc_req *req);
void nfr_svc_threadless_inspect(struct nfr_svc_req *req, struct svc_rqst *rqstp);

#endif
