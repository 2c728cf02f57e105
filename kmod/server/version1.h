/* SPDX-License-Identifier: GPL-2.0-only */
/* Operations of personalities whose messages on the first connection are those of RFC 8166. */
#ifndef NFSRDMA_SERVER_VERSION1_H
#define NFSRDMA_SERVER_VERSION1_H

#include "server/branch.h"
#include "server/call.h"
#include "server/reply.h"
#include "server/threadless/threadless.h"

#define NFR_SVC_VERSION1							\
	.conn		= NFR_SVC_FIRST_OPS(nfr_svc_writable),			\
	.receive	= nfr_svc_version1_receive,				\
	.threadless	= nfr_svc_threadless_read,				\
	.inspect	= nfr_svc_threadless_inspect,				\
	.reply		= nfr_svc_reply,					\
	.refuse		= nfr_svc_reply_error,					\
	.size		= nfr_wire_size,					\
	.finish		= nfr_svc_req_finish

#endif
