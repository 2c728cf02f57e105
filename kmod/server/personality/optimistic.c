// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality optimistic: version 1, whose READs let the client read more of the file by
 * itself.
 */
#include <linux/sunrpc/svc.h>

#include "connection/queues.h"
#include "params.h"
#include "server/branch.h"
#include "server/call.h"
#include "server/file.h"
#include "server/optimistic/optimistic.h"
#include "server/reply.h"
#include "server/threadless/threadless.h"

static void nfr_svc_optimistic_grant(const struct nfr_svc_req *req, const struct nfr_read *read,
				     const struct svc_rqst *rqstp)
{
	struct nfr_svc *branch = nfr_svc_branches_latest(req->svc);

	if (!branch)
		return;
	nfr_svc_grant_reference(branch, read, rqstp->rq_res.pages[0], &req->handed);
	nfr_svc_put(branch);
}

static int nfr_svc_optimistic_reply(struct nfr_svc_req *req, const struct xdr_buf *res,
				    struct svc_rqst *rqstp)
{
	struct nfr_read read;

	if (rqstp && nfr_svc_file_read(req, rqstp, &read))
		nfr_svc_optimistic_grant(req, &read, rqstp);
	return nfr_svc_reply(req, res, rqstp);
}

/* --- the branch, see optimistic/notice.c --- */

static void nfr_svc_optimistic_writable(struct nfr_conn *conn)
{
}

static int nfr_svc_optimistic_agree(struct nfr_svc *branch, const struct rdma_conn_param *param)
{
	int rc = nfr_svc_notice_agree(branch, param);

	if (!rc)
		nfr_svc_revoke_init(branch);
	return rc;
}

static int nfr_svc_optimistic_fit(struct nfr_svc *branch)
{
	return nfr_svc_notice_fit(branch) ?: nfr_svc_revoke_join(branch);
}

static void nfr_svc_optimistic_destroy(struct nfr_svc *branch)
{
	nfr_svc_revoke_destroy(branch);
	nfr_svc_notice_destroy(branch);
}

static const struct nfr_svc_personality nfr_svc_optimistic_branch = {
	.number		= NFR_OPTIMISTIC,
	.single		= true,
	.conn		= {
		.receive	= nfr_svc_notice_receive,
		.writable	= nfr_svc_optimistic_writable,
		.broken		= nfr_svc_branch_broken,
		.unanswered	= "none",
		.softirq	= true,
	},
	.agree		= nfr_svc_optimistic_agree,
	.fit		= nfr_svc_optimistic_fit,
	.fence		= nfr_svc_revoke_fence,
	.destroy	= nfr_svc_optimistic_destroy,
	.show		= nfr_svc_grants_show,
};

/* --- the first connection --- */

static int nfr_svc_optimistic_start(const struct svc_xprt_ops *ops)
{
	return nfr_svc_grants_start();
}

static void nfr_svc_optimistic_totals(struct seq_file *seq)
{
	seq_printf(seq, "granted_pages %u of %u\n", nfr_svc_grants_total(),
		   nfr_params_optimistic_pages());
}

/* See nfr_svc_personality.limits. */
static void nfr_svc_optimistic_limits(struct seq_file *seq, struct ib_device *device)
{
	seq_printf(seq, "grants %s\n", nfr_mem_device_grants(device));
}

const struct nfr_svc_personality nfr_svc_optimistic = {
	.number		= NFR_OPTIMISTIC,
	.invalidates	= true,
	.learns		= true,
	.branch		= &nfr_svc_optimistic_branch,
	.conn		= NFR_SVC_FIRST_OPS(nfr_svc_writable),
	.start		= nfr_svc_optimistic_start,
	.stop		= nfr_svc_grants_stop,
	.totals		= nfr_svc_optimistic_totals,
	.limits		= nfr_svc_optimistic_limits,
	.receive	= nfr_svc_version1_receive,
	.threadless	= nfr_svc_threadless_read,
	.inspect	= nfr_svc_threadless_inspect,
	.reply		= nfr_svc_optimistic_reply,
	.refuse		= nfr_svc_reply_error,
	.size		= nfr_wire_size,
	.finish		= nfr_svc_req_finish,
};
