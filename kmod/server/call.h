/* SPDX-License-Identifier: GPL-2.0-only */
/* The way of a Call. */
#ifndef NFSRDMA_SERVER_CALL_H
#define NFSRDMA_SERVER_CALL_H

#include "server/server.h"

extern const struct nfr_svc_personality nfr_svc_version1;
void nfr_svc_version1_receive(struct nfr_svc_req *req);
void nfr_svc_work_init(struct nfr_svc *svc);
void nfr_svc_receive(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_svc_writable(struct nfr_conn *conn);
void nfr_svc_advance(struct nfr_svc_req *req);
void nfr_svc_dispatch(struct nfr_svc_req *req);
void nfr_svc_reject(struct nfr_svc_req *req);
int nfr_svc_recvfrom(struct svc_rqst *rqstp);
int nfr_svc_sendto(struct svc_rqst *rqstp);

#endif
