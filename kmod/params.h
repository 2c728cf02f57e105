/* SPDX-License-Identifier: GPL-2.0-only */
/* Module parameters: a connection reads them when it is created. */
#ifndef NFSRDMA_PARAMS_H
#define NFSRDMA_PARAMS_H

#include <linux/types.h>

/*
 * Snapshot of the parameters. @inline_send, @inline_recv, @min_chunk and @padded_max
 * are in bytes, @mr_depth is in pages (0: maximum of the device).
 */
struct nfr_params {
	u32 inline_send;
	u32 inline_recv;
	u32 min_chunk;
	u32 credits;
	u32 mr_depth;
	u32 busy_poll_us;
	u32 lanes;
	u32 padded_max;
	u32 optimistic_spin_us;
	bool remote_invalidation;
};

void nfr_params_read(struct nfr_params *params);
bool nfr_params_client(void);
const char *nfr_params_server_name(void);
bool nfr_params_server_reserved_port(void);
u32 nfr_params_server_connections(void);
u32 nfr_params_server_pages(void);
u32 nfr_params_server_floor_pages(void);
unsigned long nfr_params_server_ack_timeout(void);
u32 nfr_params_server_threadless(void);
u32 nfr_params_cache_pages(void);
unsigned long nfr_params_server_done_timeout(void);
u32 nfr_params_optimistic_pages(void);
u32 nfr_params_optimistic_lifetime(void);

#endif
