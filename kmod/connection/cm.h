/* SPDX-License-Identifier: GPL-2.0-only */
/* Connections by rdma_cm: their beginning and their end. */
#ifndef NFSRDMA_CONNECTION_CM_H
#define NFSRDMA_CONNECTION_CM_H

#include "connection/connection.h"

void nfr_conn_meet(struct nfr_conn *conn, const struct rdma_conn_param *param);
int nfr_conn_unfit(struct nfr_conn *conn, const char *reason);
int nfr_conn_fit_queue(struct nfr_conn *conn, u32 chain);
void nfr_conn_init(struct nfr_conn *conn);
int nfr_conn_resolve(struct nfr_conn *conn, struct net *net, struct sockaddr *peer, bool reserved);
int nfr_conn_connect(struct nfr_conn *conn);
void nfr_conn_adopt(struct nfr_conn *conn, struct rdma_cm_id *id);
int nfr_conn_accept(struct nfr_conn *conn);
enum nfr_proof nfr_conn_drain(struct nfr_conn *conn);
enum nfr_proof nfr_conn_end(struct nfr_conn *conn);
void nfr_conn_free(struct nfr_conn *conn);

#endif
