/* SPDX-License-Identifier: GPL-2.0-only */
/* The way of a Call. */
#ifndef NFSRDMA_CLIENT_CALL_H
#define NFSRDMA_CLIENT_CALL_H

#include "client/client.h"

int nfr_client_send(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		    const struct xdr_buf *message, bool signal);
int nfr_client_send_2003(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
			 const struct xdr_buf *message, bool signal);
int nfr_client_send_bounce(struct nfr_conn *conn, struct nfr_req *req, u32 xid, u32 length);
int nfr_client_marshal(struct nfr_conn *conn, struct nfr_req *req);
int nfr_client_marshal_2003(struct nfr_conn *conn, struct nfr_req *req);
int nfr_client_send_request(struct rpc_rqst *rqst);
void nfr_client_wait_for_reply(struct rpc_task *task);
void nfr_client_wait_or_resend(struct rpc_task *task);

#endif
