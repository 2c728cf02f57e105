// SPDX-License-Identifier: GPL-2.0-only
/* Personality cached: version 1; registrations of the client survive their Call. */
#include "server/version1.h"

const struct nfr_svc_personality nfr_svc_cached = {
	.number		= NFR_CACHED,
	NFR_SVC_VERSION1,
};
