// SPDX-License-Identifier: GPL-2.0-only
/* Personality read-write: version 1 (RFC 8166) as it is. */
#include "server/version1.h"

const struct nfr_svc_personality nfr_svc_readwrite = {
	.number		= NFR_READ_WRITE,
	.invalidates	= true,
	NFR_SVC_VERSION1,
};
