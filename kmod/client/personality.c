// SPDX-License-Identifier: GPL-2.0-only
/* Table of the supported protocol variants, see client/personality.h. */
#include "client/client.h"
#include "client/personality.h"
#include "wire/wire.h"

const struct nfr_personality nfr_version1 = {
	.name		= "RPC-over-RDMA version 1",
	.version	= NFR_WIRE_VERSION,
	.marshal	= nfr_marshal_call,
	.receive	= nfr_client_receive,
};
