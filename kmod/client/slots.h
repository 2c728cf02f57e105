/* SPDX-License-Identifier: GPL-2.0-only */
/* RPC slots, and their buffers. */
#ifndef NFSRDMA_CLIENT_SLOTS_H
#define NFSRDMA_CLIENT_SLOTS_H

#include "client/client.h"

void nfr_client_disconnect(struct nfr_xprt *nx, u32 generation, const char *reason);
void nfr_client_wait_closed(struct nfr_xprt *nx, u32 generation);
void nfr_client_sleep_until_closed(struct nfr_xprt *nx, struct rpc_task *task, u32 generation);
int nfr_client_revoke(struct nfr_conn *conn, struct nfr_exposure *exposure, struct ib_cqe *done);
int nfr_client_buf_alloc(struct rpc_task *task);
bool nfr_client_buffer_get(struct nfr_req *req, int which, u32 least, u32 size, gfp_t gfp);
int nfr_client_buffer_map(struct nfr_conn *conn, struct nfr_buffer *buffer);
void nfr_client_large_free(struct nfr_req *req);
void nfr_client_buffers_lose(struct nfr_xprt *nx);
void nfr_client_buffers_retire(struct nfr_xprt *nx, struct nfr_conn *conn, bool all);
void nfr_client_alloc_slot(struct rpc_xprt *xprt, struct rpc_task *task);
void nfr_client_free_slot(struct rpc_xprt *xprt, struct rpc_rqst *rqst);
void nfr_client_slot_return(struct nfr_req *req);
struct nfr_req *nfr_client_req_create(struct nfr_xprt *nx, gfp_t gfp);
void nfr_client_req_detach_all(struct nfr_xprt *nx, struct nfr_conn *conn, struct list_head *mrs);
void nfr_client_req_destroy_all(struct nfr_xprt *nx);
void nfr_client_req_destroy(struct nfr_req *req);

#endif
