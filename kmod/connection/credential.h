/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Digest of the credential of a READ: a grant of the personality optimistic says by it for which
 * user nfsd has executed the READ. Both peers know the credential as RPC transmits it.
 */
#ifndef NFSRDMA_CONNECTION_CREDENTIAL_H
#define NFSRDMA_CONNECTION_CREDENTIAL_H

#include <linux/siphash.h>

#include "wire/wire.h"

/**
 * nfr_conn_credential_digest - get the digest of a credential
 * @read: READ
 * @token: token of the transport. Users do not know it, and so cannot search for two credentials
 *	with one digest.
 *
 * Return: SipHash-2-4 of the body of the credential; the key is @token and 0.
 */
static inline u64 nfr_conn_credential_digest(const struct nfr_read *read, u64 token)
{
	const siphash_key_t key = { .key = { token } };

	return siphash(read->credential, read->credential_length, &key);
}

#endif
