/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What differs between protocol variants, as a table of functions. One exists:
 * version 1 (RFC 8166). Calls are made through the table of the transport, so
 * that another variant replaces these four and nothing else.
 */
#ifndef NFSRDMA_PERSONALITY_H
#define NFSRDMA_PERSONALITY_H

#include <linux/types.h>

struct nfr_conn;
struct nfr_recv;
struct nfr_req;
struct rdma_conn_param;

/**
 * struct nfr_personality - a protocol variant, as the client speaks it
 * @name: for people
 * @version: the header's version word
 * @marshal: builds a Call's header and chunks before it is sent
 * @receive: takes an incoming message; the buffer is reposted when it returns
 */
struct nfr_personality {
	const char *name;
	u32 version;
	int (*marshal)(struct nfr_conn *conn, struct nfr_req *req);
	void (*receive)(struct nfr_conn *conn, struct nfr_recv *recv);
};

extern const struct nfr_personality nfr_version1;

#endif
