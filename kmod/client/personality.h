/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Operations that differ between protocol variants. There is one variant,
 * version 1 (RFC 8166). The client calls them through the table of the
 * transport, so that a new variant only adds a table.
 */
#ifndef NFSRDMA_PERSONALITY_H
#define NFSRDMA_PERSONALITY_H

#include <linux/types.h>

struct nfr_conn;
struct nfr_recv;
struct nfr_req;
struct rdma_conn_param;

/**
 * struct nfr_personality - protocol variant of the client
 * @name: name in debugfs
 * @version: value of rdma_vers
 * @marshal: build and post the header and chunks of a Call
 * @receive: handle a received message
 */
struct nfr_personality {
	const char *name;
	u32 version;
	int (*marshal)(struct nfr_conn *conn, struct nfr_req *req);
	void (*receive)(struct nfr_conn *conn, struct nfr_recv *recv);
};

extern const struct nfr_personality nfr_version1;

#endif
