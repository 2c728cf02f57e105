/* SPDX-License-Identifier: GPL-2.0-only */
/* Receives, credits, and abandoned Calls. */
#ifndef NFSRDMA_CONNECTION_RECEIVE_H
#define NFSRDMA_CONNECTION_RECEIVE_H

#include "connection/connection.h"

void nfr_conn_recv_align(struct nfr_conn *conn);
int nfr_conn_recv_more(struct nfr_conn *conn, gfp_t gfp);
void nfr_conn_recv_return(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_conn_answered(struct nfr_conn *conn, struct nfr_recv *recv, u32 reserved);
void nfr_conn_recv_free_all(struct nfr_conn *conn);
int nfr_conn_credit(struct nfr_conn *conn);
void nfr_conn_credit_back(struct nfr_conn *conn);
void nfr_conn_grant(struct nfr_conn *conn, u32 credits);
void nfr_conn_abandon(struct nfr_conn *conn, u32 xid);
void nfr_conn_abandoned_reply(struct nfr_conn *conn, u32 xid);
void nfr_conn_abandoned_init(struct nfr_conn *conn);
int nfr_conn_abandoned_create(struct nfr_conn *conn);
void nfr_conn_abandoned_destroy(struct nfr_conn *conn);

#endif
