/* SPDX-License-Identifier: GPL-2.0-only */
/* Requests of a connection: creation, reuse, posting. */
#ifndef NFSRDMA_SERVER_REQUEST_H
#define NFSRDMA_SERVER_REQUEST_H

#include "server/server.h"

struct nfr_svc_req *nfr_svc_req_get(struct nfr_svc *svc, gfp_t gfp);
void nfr_svc_req_put(struct nfr_svc_req *req);
void nfr_svc_req_destroy_all(struct nfr_svc *svc);
int nfr_svc_req_finish(struct nfr_svc_req *req, const struct nfr_header *head, u32 length);
int nfr_svc_req_finish_2003(struct nfr_svc_req *req, const struct nfr_header *head, u32 length);
void nfr_svc_req_received(struct nfr_svc_req *req);
void nfr_svc_posted(struct nfr_conn *conn, int rc);
void nfr_svc_post(struct nfr_svc_req *req);
void nfr_svc_retire(struct nfr_svc *svc, struct list_head *done);

#endif
