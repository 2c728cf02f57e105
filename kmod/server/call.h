/* SPDX-License-Identifier: GPL-2.0-only */
/* The way of a Call: its request, its states, the send queue. */
#ifndef NFSRDMA_SERVER_CALL_H
#define NFSRDMA_SERVER_CALL_H

#include "connection/queues.h"
#include "memory/region.h"
#include "params.h"
#include "server/budget.h"
#include "server/pages.h"
#include "server/server.h"
#include "server/sink.h"

struct nfr_svc_req *nfr_svc_req_get(struct nfr_svc *svc, gfp_t gfp);
void nfr_svc_req_destroy_all(struct nfr_svc *svc);
bool nfr_svc_req_is_late(struct nfr_svc *svc, enum nfr_svc_purpose use);
void nfr_svc_req_pages(struct nfr_svc *svc, u32 pages[NFR_SVC_PURPOSES]);
int nfr_svc_req_finish(struct nfr_svc_req *req, const struct nfr_header *head, u32 length);
bool nfr_svc_req_prepare(struct nfr_svc_req *req, int encoded, u32 length);
void nfr_svc_posted(struct nfr_conn *conn, int rc);
void nfr_svc_retire(struct nfr_svc *svc, struct list_head *done);

void nfr_svc_version1_receive(struct nfr_svc_req *req);
void nfr_svc_work_init(struct nfr_svc *svc);
void nfr_svc_receive(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_svc_writable(struct nfr_conn *conn);
void nfr_svc_advance(struct nfr_svc_req *req, enum nfr_svc_state state);
bool nfr_svc_read_check(struct nfr_svc_req *req, u32 max);
void nfr_svc_dispatch(struct nfr_svc_req *req);
void nfr_svc_drop_and_break(struct nfr_svc_req *req, const char *what);
void nfr_svc_refuse(struct nfr_svc_req *req, enum nfr_error error);
int nfr_svc_has_wspace(struct svc_xprt *xprt);
void nfr_svc_set_secure(struct svc_rqst *rqstp);
int nfr_svc_recvfrom(struct svc_rqst *rqstp);
int nfr_svc_sendto(struct svc_rqst *rqstp);
void nfr_svc_release_ctxt(struct svc_xprt *xprt, void *ctxt);

/* Release all memory that a request has borrowed. */
static inline void nfr_svc_req_release(struct nfr_svc_req *req)
{
	nfr_mem_transfer_destroy_all(&req->transfer);
	if (req->gather)
		nfr_svc_gather_release(req);
	nfr_svc_pages_drop(req);
	nfr_svc_sink_put(req);
	nfr_svc_budget_keep(req, 0);
}

/* Answer a Call without a thread, see threadless.c. Returns false if nfsd has to answer. */
static inline bool nfr_svc_threadless(struct nfr_svc_req *req)
{
	const struct nfr_svc_personality *personality = req->svc->personality;

	return nfr_params_server_threadless() && personality->threadless &&
	       personality->threadless(req);
}

#endif
