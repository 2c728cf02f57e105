/* SPDX-License-Identifier: GPL-2.0-only */
/* Clients whose receives are too short for a Reply. */
#ifndef NFSRDMA_SERVER_SHORT_H
#define NFSRDMA_SERVER_SHORT_H

#include "server/server.h"

u32 nfr_svc_short_limit(const struct nfr_svc *svc);
void nfr_svc_short_refused(struct nfr_svc *svc);
void nfr_svc_short_drained(struct nfr_svc *svc);

#endif
