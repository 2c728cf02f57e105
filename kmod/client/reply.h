/* SPDX-License-Identifier: GPL-2.0-only */
/* The way of a Reply. */
#ifndef NFSRDMA_CLIENT_REPLY_H
#define NFSRDMA_CLIENT_REPLY_H

#include "client/client.h"

extern const struct nfr_conn_ops nfr_client_conn_ops;
void nfr_client_received(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_client_writable(struct nfr_conn *conn);
void nfr_client_broken(struct nfr_conn *conn);
struct nfr_req *nfr_client_reply_find(struct nfr_conn *conn, struct nfr_recv *recv,
				      const struct nfr_header *head);
bool nfr_client_reply_is_call(struct nfr_conn *conn, struct nfr_recv *recv,
			      const struct nfr_header *head, const void *rpc, u32 length);
void nfr_client_reply_finish(struct nfr_conn *conn, struct nfr_req *req);
void nfr_client_reply_apart(struct nfr_req *req);
void nfr_client_reply_hold(struct nfr_req *req);
void nfr_client_reply_discard(struct nfr_conn *conn, struct nfr_recv *recv, u32 xid);
void nfr_client_reply_malformed(struct nfr_conn *conn, struct nfr_recv *recv, u32 xid, int rc);
void nfr_client_receive(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_client_deliver_held(struct nfr_xprt *nx, struct nfr_conn *conn);

#endif
