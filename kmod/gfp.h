/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Allocation flags. The page allocator retries small blocking allocations
 * forever, and may reclaim dirty pages of a mount whose server is this host.
 * Allocations here have to be able to fail instead.
 */
#ifndef NFSRDMA_GFP_H
#define NFSRDMA_GFP_H

#include <linux/gfp.h>

/* Completion handlers must not block: their connection depends on them */
#define NFR_GFP_COMPLETION	(GFP_NOWAIT | __GFP_NOWARN)
/* Failure costs a delay: the caller or sunrpc retries */
#define NFR_GFP_RETRIED		(GFP_NOIO | __GFP_NORETRY | __GFP_NOWARN)
/* Failure costs the connection */
#define NFR_GFP_ONCE		(GFP_NOIO | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

#endif
