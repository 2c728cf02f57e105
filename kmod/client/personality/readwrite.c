// SPDX-License-Identifier: GPL-2.0-only
/* Personality read-write: version 1 (RFC 8166) as it is. */
#include "client/call.h"
#include "client/client.h"
#include "client/reply.h"

const struct nfr_client_personality nfr_client_readwrite = {
	.number		= NFR_READ_WRITE,
	.ops		= &nfr_client_conn_ops,
	.marshal	= nfr_client_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};
