/* SPDX-License-Identifier: GPL-2.0-only */
/* State and counters of transports: /sys/kernel/debug/nfsrdma and nfsrdma-server */
#ifndef NFSRDMA_DEBUGFS_H
#define NFSRDMA_DEBUGFS_H

struct nfr_svc;
struct nfr_xprt;

void nfr_debugfs_start(void);
void nfr_debugfs_stop(void);

/* observe/debugfs_server.c */
void nfr_debugfs_svc_start(void);
void nfr_debugfs_svc_stop(void);
void nfr_debugfs_svc_add(struct nfr_svc *svc);
void nfr_debugfs_svc_remove(struct nfr_svc *svc);
void nfr_debugfs_add(struct nfr_xprt *nx);
void nfr_debugfs_remove(struct nfr_xprt *nx);

#endif
