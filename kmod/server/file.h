/* SPDX-License-Identifier: GPL-2.0-only */
/* The files that nfsd reads. */
#ifndef NFSRDMA_SERVER_FILE_H
#define NFSRDMA_SERVER_FILE_H

#include "server/server.h"
#include "server/watch.h"

struct inode *nfr_svc_file_get(struct page *page, const struct nfr_read *read,
			       const struct nfr_svc_handed *handed, enum nfr_svc_bypass *result);
void nfr_svc_file_put(struct inode *inode);
bool nfr_svc_file_read(const struct nfr_svc_req *req, const struct svc_rqst *rqstp,
		       struct nfr_read *read);

#endif
