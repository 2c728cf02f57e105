/* SPDX-License-Identifier: GPL-2.0-only */
/* The files that nfsd reads. */
#ifndef NFSRDMA_SERVER_FILE_H
#define NFSRDMA_SERVER_FILE_H

#include "server/server.h"

/*
 * Time by which ctime has to precede a READ: ctime is as coarse as a tick, and a virtual CPU may
 * stop between reading the clock and setting ctime
 */
#define NFR_SVC_FILE_SETTLED	NSEC_PER_SEC

struct inode *nfr_svc_file_get(struct page *page, const struct nfr_read *read);
void nfr_svc_file_put(struct inode *inode);
bool nfr_svc_file_read(const struct nfr_svc_req *req, const struct svc_rqst *rqstp,
		       struct nfr_read *read);
bool nfr_svc_file_is_late(const struct inode *inode, ktime_t began);

#endif
