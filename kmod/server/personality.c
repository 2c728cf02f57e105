// SPDX-License-Identifier: GPL-2.0-only
/* The personalities of the server, and which of them a connection has. */
#include "server/server.h"

#define NFR_SVC_ELEMENT(_number, _constant, _symbol, _name)			\
	[_number] = &nfr_svc_##_symbol,

static const struct nfr_svc_personality * const nfr_svc_personalities[NFR_PERSONALITIES] = {
	NFR_PERSONALITY_LIST(NFR_SVC_ELEMENT)
};

/* --- all of them --- */

/* Undo the starts of those before @end, the last one first. */
static void nfr_svc_personalities_stop_before(int end)
{
	while (end--)
		if (nfr_svc_personalities[end]->stop)
			nfr_svc_personalities[end]->stop();
}

/**
 * nfr_svc_personalities_start - prepare for connections
 * @ops: operations of their transports
 *
 * Return: 0 or a negative errno.
 */
int nfr_svc_personalities_start(const struct svc_xprt_ops *ops)
{
	int i, rc = 0;

	for (i = 0; i < NFR_PERSONALITIES && !rc; i++)
		if (nfr_svc_personalities[i]->start)
			rc = nfr_svc_personalities[i]->start(ops);
	if (rc)
		nfr_svc_personalities_stop_before(i - 1);
	return rc;
}

/* Undo nfr_svc_personalities_start(). Context: No connection exists. Sleeps. */
void nfr_svc_personalities_stop(void)
{
	nfr_svc_personalities_stop_before(NFR_PERSONALITIES);
}

/* Print what all connections have. */
void nfr_svc_personalities_totals(struct seq_file *seq)
{
	int i;

	for (i = 0; i < NFR_PERSONALITIES; i++)
		if (nfr_svc_personalities[i]->totals)
			nfr_svc_personalities[i]->totals(seq);
}

/* Print the limits of a device. */
void nfr_svc_device_show(struct seq_file *seq, struct ib_device *device)
{
	int i;

	for (i = 0; i < NFR_PERSONALITIES; i++)
		if (nfr_svc_personalities[i]->limits)
			nfr_svc_personalities[i]->limits(seq, device);
}

/* --- that of a connection --- */

static int nfr_svc_use(struct nfr_svc *svc, const struct nfr_svc_personality *personality,
		       const struct rdma_conn_param *param)
{
	svc->personality = personality;
	svc->conn->ops = &personality->conn;
	return personality->agree ? personality->agree(svc, param) : 0;
}

/**
 * nfr_svc_agree - agree on a personality
 * @svc: new first connection
 * @capabilities: capability bits that the client sent
 * @param: parameters of the connection request
 *
 * The connection is one of version 1 if the device or the client lacks what the personality needs.
 */
void nfr_svc_agree(struct nfr_svc *svc, u32 capabilities, const struct rdma_conn_param *param)
{
	if (nfr_svc_use(svc, nfr_svc_personalities[nfr_personality_agree(capabilities)], param))
		nfr_svc_use(svc, nfr_svc_personalities[NFR_READ_WRITE], param);
}

/**
 * nfr_svc_agree_branch - agree on the personality of a branch
 * @svc: new branch; its first connection has to have the personality
 * @capabilities: capability bits that the client sent
 * @param: parameters of the connection request
 *
 * Return: 0 or a negative errno.
 */
int nfr_svc_agree_branch(struct nfr_svc *svc, u32 capabilities,
			 const struct rdma_conn_param *param)
{
	const struct nfr_svc_personality *branch;
	int i;

	for (i = NFR_PERSONALITIES - 1; i >= 0; i--) {
		branch = nfr_svc_personalities[i]->branch;
		if (branch && capabilities & nfr_personality_bit(i))
			return nfr_svc_use(svc, branch, param);
	}
	return -EOPNOTSUPP;
}
