/* SPDX-License-Identifier: GPL-2.0-only */
/* The way of a Reply. */
#ifndef NFSRDMA_SERVER_REPLY_H
#define NFSRDMA_SERVER_REPLY_H

#include "server/server.h"

int nfr_svc_result_payload(struct svc_rqst *rqstp, unsigned int offset, unsigned int length);
void nfr_svc_reply_results(struct nfr_svc_req *req, struct svc_rqst *rqstp);
int nfr_svc_reply(struct nfr_svc_req *req, const struct xdr_buf *res, struct svc_rqst *rqstp);
int nfr_svc_reply_span(const struct xdr_buf *res, u32 offset, u32 length, struct nfr_span *span);
int nfr_svc_reply_split(struct nfr_svc_req *req, const struct xdr_buf *res, u32 *rest);
int nfr_svc_reply_inline(struct nfr_svc_req *req, const struct xdr_buf *res, u32 offset);
void nfr_svc_chunk_used(struct nfr_chunk *chunk, u32 length);
int nfr_svc_reply_error(struct nfr_svc_req *req, enum nfr_error error);

#endif
