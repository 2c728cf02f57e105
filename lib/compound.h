/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* NFSv4.1 (RFC 8881): what compound.c, state.c and nfs4.c share. */
#ifndef NFSRDMA_COMPOUND_H
#define NFSRDMA_COMPOUND_H

#include "library.h"

/* Operations of a COMPOUND: to request, as a put of a block has, and those of a LOOKUP or RENAME of a file */
#define OPERATIONS_MAX		10
#define OPERATIONS_LEAST	5

/* enum nfs_opnum4 */
enum {
	OP_CLOSE = 4, OP_COMMIT = 5, OP_CREATE = 6, OP_DELEGRETURN = 8, OP_GETATTR = 9, OP_GETFH = 10,
	OP_LOOKUP = 15, OP_NVERIFY = 17, OP_OPEN = 18, OP_PUTFH = 22, OP_PUTROOTFH = 24, OP_READ = 25, OP_READDIR = 26,
	OP_READLINK = 27, OP_REMOVE = 28, OP_RENAME = 29, OP_RESTOREFH = 31, OP_SAVEFH = 32, OP_SETATTR = 34,
	OP_VERIFY = 37, OP_WRITE = 38,
	OP_EXCHANGE_ID = 42, OP_CREATE_SESSION = 43, OP_DESTROY_SESSION = 44, OP_FREE_STATEID = 45,
	OP_SEQUENCE = 53, OP_DESTROY_CLIENTID = 57, OP_RECLAIM_COMPLETE = 58,
};

/* enum nfsstat4: what the library answers by another call, or with an error of its own */
enum {
	NFS4ERR_ISDIR = 21, NFS4ERR_DELAY = 10008, NFS4ERR_SAME = 10009, NFS4ERR_EXPIRED = 10011, NFS4ERR_GRACE = 10013,
	NFS4ERR_STALE_CLIENTID = 10022, NFS4ERR_STALE_STATEID = 10023, NFS4ERR_OLD_STATEID = 10024,
	NFS4ERR_BAD_STATEID = 10025, NFS4ERR_NOT_SAME = 10027, NFS4ERR_SYMLINK = 10029, NFS4ERR_NO_GRACE = 10033, NFS4ERR_RECLAIM_BAD = 10034,
	NFS4ERR_RECLAIM_CONFLICT = 10035, NFS4ERR_LOCKS_HELD = 10037, NFS4ERR_ADMIN_REVOKED = 10047,
	NFS4ERR_BADSESSION = 10052, NFS4ERR_BADSLOT = 10053, NFS4ERR_CONN_NOT_BOUND = 10055, NFS4ERR_SEQ_MISORDERED = 10063,
	NFS4ERR_RETRY_UNCACHED_REP = 10068, NFS4ERR_SEQ_FALSE_RETRY = 10076, NFS4ERR_DEADSESSION = 10078,
	NFS4ERR_WRONG_TYPE = 10083, NFS4ERR_DELEG_REVOKED = 10087,
};

/* Attributes: numbers of RFC 8881, sections 5.8.1 and 5.8.2 */
enum {
	ATTR_TYPE = 1, ATTR_SIZE = 4, ATTR_FSID = 8, ATTR_RDATTR_ERROR = 11, ATTR_FILEID = 20,
	ATTR_MAXREAD = 30, ATTR_MAXWRITE = 31, ATTR_MODE = 33, ATTR_NUMLINKS = 35, ATTR_OWNER = 36,
	ATTR_OWNER_GROUP = 37, ATTR_RAWDEV = 41, ATTR_SPACE_USED = 45, ATTR_TIME_ACCESS = 47,
	ATTR_TIME_ACCESS_SET = 48, ATTR_TIME_METADATA = 52, ATTR_TIME_MODIFY = 53, ATTR_TIME_MODIFY_SET = 54,
};

#define BIT(number)	(1ULL << (number))

/* enum nfs_ftype4, createmode4, opentype4, open_claim_type4 */
enum { NF4DIR = 2, NF4LNK = 5 };
enum { UNCHECKED4 = 0, GUARDED4 = 1, EXCLUSIVE4_1 = 3 };
enum { OPEN4_NOCREATE = 0, OPEN4_CREATE = 1 };
enum { CLAIM_NULL = 0, CLAIM_PREVIOUS = 1, CLAIM_FH = 4 };

enum { OPEN4_SHARE_ACCESS_READ = 1, OPEN4_SHARE_ACCESS_WRITE = 2 };

/* Bytes of a reply in front of the data of a READ: RPC header, COMPOUND, SEQUENCE, PUTFH, READ */
#define NFS4_READ_HEAD	(24 + 12 + 44 + 8 + 16)

/* Bytes of change_info4 */
#define CHANGE_INFO	20

/* The error of an operation with a stateid that the server does not have any more */
#define NO_STATE	(-ENOLCK)

/**
 * struct opened - results of OPEN
 * @stateid: of the open file
 * @delegated: the server gave a delegation
 * @delegation: its stateid
 * @set: attributes that were set, a bit for each
 */
struct opened {
	uint8_t stateid[NFS4_STATEID];
	bool delegated;
	uint8_t delegation[NFS4_STATEID];
	uint64_t set;
};

/* --- compound.c --- */

int compound_error(uint32_t status);
uint8_t *compound_start(const struct nfsrdma_session *session, struct request *req);
uint8_t *compound_begin(struct nfsrdma_session *session, struct request *req, uint32_t operations);
uint8_t *compound_begin_sequence(struct nfsrdma_session *session, struct request *req, uint32_t operations);
void compound_end(struct request *req, const uint8_t *at);
uint8_t *compound_put_fh(uint8_t *at, const fh3 *fh);
uint8_t *compound_put_name(uint8_t *at, const char *name);
uint8_t *compound_put_bitmap(uint8_t *at, uint64_t bits);
uint8_t *compound_put_settable(uint8_t *at, const set3 *attr);
uint8_t *compound_put_stateid(const struct nfsrdma_session *session, struct request *req, uint8_t *at,
			      struct inode *inode);
uint8_t *compound_put_read(const struct nfsrdma_session *session, struct request *req, uint8_t *at,
			   struct inode *inode, uint64_t offset);
uint8_t *compound_put_open(uint8_t *at, uint32_t access);
bool compound_take_opaque(struct rpc_body *body, uint32_t most, const uint8_t **data, uint32_t *length);
bool compound_take_head(struct rpc_body *body, uint32_t *status);
bool compound_take_status(struct rpc_body *body, uint32_t operation, uint32_t *status);
int compound_take_op(struct rpc_body *body, uint32_t operation);
int compound_take_fh(struct rpc_body *body, struct nfs_fh *fh);
int compound_take_create(struct rpc_body *body);
int compound_take_read(struct rpc_body *body, uint32_t *count, uint32_t *eof);
int compound_take_open(struct rpc_body *body, struct opened *opened);
bool compound_take_attributes(struct rpc_body *body, struct nfs4_attributes *to);

/* --- state.c --- */

int state_take_sequence(struct nfsrdma_session *session, struct request *req, struct rpc_body *body);
int state_refused(struct nfsrdma_session *session, const struct request *req);
void state_start(struct nfsrdma_session *session);
bool state_may_leave(const struct nfsrdma_session *session, const struct request *req);
void state_stamp(struct nfsrdma_session *session, struct request *req);
void state_abandon(struct nfsrdma_session *session, struct request *req);
int state_use(struct nfsrdma_session *session, struct inode *inode);
void state_unuse(struct nfsrdma_session *session, struct inode *inode);
int state_opened(struct nfsrdma_session *session, struct inode *inode, const struct opened *opened, uint32_t access);
int state_return(struct nfsrdma_session *session, const struct nfs_fh *fh, const struct opened *opened);
int state_wait_close(struct nfsrdma_session *session, const struct inode *inode);
void state_leave(struct nfsrdma_session *session);

#endif
