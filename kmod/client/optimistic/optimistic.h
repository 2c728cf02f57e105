/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Optimistic reads at the client (personality optimistic): the client reads the page cache of
 * the server by RDMA Read, with references that the server granted, and falls back to an RPC.
 *
 * reference.c has the references, personality/optimistic.c the way of a READ. The lock of the
 * branches protects the references.
 */
#ifndef NFSRDMA_CLIENT_OPTIMISTIC_H
#define NFSRDMA_CLIENT_OPTIMISTIC_H

#include <linux/siphash.h>

#include "client/branch.h"
#include "personality/optimistic.h"

/* Buckets of the tables of references, as a power of two */
#define NFR_REFERENCE_BITS	10

/* Users that have a share of the references each, as a power of two: more users share shares */
#define NFR_REFERENCE_SHARE_BITS	6

struct cred;
struct nfr_reader;

/**
 * struct nfr_reference_share - references of a user
 * @lru: last used first
 * @count: number of them
 */
struct nfr_reference_share {
	struct list_head lru;
	u32 count;
};

/**
 * struct nfr_references - extents of files that the client may read, or has just read by RPC
 * @by_file: by file handle and extent
 * @by_handle: by handle of the memory, while there is one
 * @shares: of each user
 * @count: number of references
 * @order: size of an extent in units of 4096 bytes, as a power of two
 * @token: token of the transport
 * @key: secret of the hash of @by_file
 */
struct nfr_references {
	struct hlist_head by_file[1 << NFR_REFERENCE_BITS];
	struct hlist_head by_handle[1 << NFR_REFERENCE_BITS];
	struct nfr_reference_share shares[1 << NFR_REFERENCE_SHARE_BITS];
	u32 count;
	u32 order;
	u64 token;
	hsiphash_key_t key;
};

/**
 * struct nfr_wanted - what a READ asks for
 * @fh: file handle
 * @fh_length: its length in bytes
 * @count: in bytes
 * @position: in bytes
 * @cred: credentials of the reader
 * @call: encoded Call
 * @measured: the NFS client knows how long the header of a READ's reply is. It learns that from
 *	the first reply of a mount, and sizes buffers accordingly; the header of an optimistic read
 *	is shorter than that of a server's reply, which would not fit.
 */
struct nfr_wanted {
	const u8 *fh;
	u32 fh_length;
	u32 count;
	u64 position;
	const struct cred *cred;
	const struct kvec *call;
	bool measured;
};

/**
 * struct nfr_optimist - optimistic reads of a transport
 * @branches: branch that reads, and the lock of the members
 * @reader: the same when it is connected, or NULL
 * @paused_until: time in jiffies before which Reads do not pay
 * @tried: number of Reads since the last decision
 * @refused: number of them that were refused
 * @references: references
 */
struct nfr_optimist {
	struct nfr_branches branches;
	struct nfr_reader *reader;
	unsigned long paused_until;
	u32 tried;
	u32 refused;
	struct nfr_references references;
};

/* reference.c; callers of the functions for one reference hold the lock */
void nfr_client_references_init(struct nfr_references *references, u64 token);
void nfr_client_references_end(struct nfr_optimist *optimist);
void nfr_client_references_destroy(struct nfr_references *references);
bool nfr_client_reference_find(struct nfr_references *references, const struct nfr_wanted *wanted,
			       struct nfr_segment *found, bool *eof);
void nfr_client_reference_grant(struct nfr_references *references,
				const struct nfr_notice *notice);
void nfr_client_reference_drop(struct nfr_references *references, u32 handle);

#endif
