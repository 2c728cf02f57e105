/* SPDX-License-Identifier: GPL-2.0-only */
/* Pages for RDMA Reads, and their limit. */
#ifndef NFSRDMA_SERVER_SINK_H
#define NFSRDMA_SERVER_SINK_H

#include "server/server.h"

int nfr_svc_sink_get(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req));
int nfr_svc_sink_again(struct nfr_svc_req *req, void (*resume)(struct nfr_svc_req *req));
void nfr_svc_sink_put(struct nfr_svc_req *req);
bool nfr_svc_sink_is_wanted(const struct nfr_svc *svc);
void nfr_svc_sink_leave(struct nfr_svc *svc);
void nfr_svc_sink_init(struct nfr_svc_host *host);
void nfr_svc_sink_destroy(struct nfr_svc_host *host);
void nfr_svc_sink_start(void);
void nfr_svc_sink_count_shortage(void);
u32 nfr_svc_sink_shortages(void);

#endif
