// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Messages of NFSv4.1 (RFC 8881): the operations of a COMPOUND and their results, file attributes, errors.
 *
 * A COMPOUND begins with SEQUENCE, which names the session and one of its slots; state.c writes both when the message
 * leaves, because a lost session is made again and what waits then belongs to the new one.  The same goes for the
 * stateid of an open file.
 */
#include <string.h>

#include "compound.h"

#define COMPOUND	1
#define MINOR_VERSION	1

/* OPEN: the names of RFC 8881, section 18.16 */
#define OPEN4_SHARE_ACCESS_WANT_NO_DELEG	0x400
enum { OPEN_DELEGATE_NONE, OPEN_DELEGATE_READ, OPEN_DELEGATE_WRITE, OPEN_DELEGATE_NONE_EXT };
enum { NFS_LIMIT_SIZE = 1, NFS_LIMIT_BLOCKS = 2 };
enum { WND4_CONTENTION = 1, WND4_RESOURCE = 2 };

/* Of an owner of open files; a client has one */
#define OPEN_OWNER	"libnfsrdma"

/* Longest name of a user in an access control entry */
#define WHO_MAX		1024

/* Words of the longest bitmap */
#define BITMAP_MAX	8

#define NOBODY		65534

int compound_error(uint32_t status)
{
	switch (status) {
	case NFS4ERR_GRACE:
		return -EINPROGRESS;
	case NFS4ERR_EXPIRED: case NFS4ERR_STALE_STATEID: case NFS4ERR_OLD_STATEID: case NFS4ERR_BAD_STATEID:
	case NFS4ERR_ADMIN_REVOKED: case NFS4ERR_DELEG_REVOKED:
		return NO_STATE;
	case 10012:	/* NFS4ERR_LOCKED */
	case 10046:	/* NFS4ERR_FILE_OPEN */
		return -EBUSY;
	case 10014:	/* NFS4ERR_FHEXPIRED */
		return -ESTALE;
	case 10015:	/* NFS4ERR_SHARE_DENIED */
	case 10016:	/* NFS4ERR_WRONGSEC */
		return -EACCES;
	case NFS4ERR_SYMLINK: case NFS4ERR_WRONG_TYPE:
	case 10040:	/* NFS4ERR_BADCHAR */
	case 10041:	/* NFS4ERR_BADNAME */
		return -EINVAL;
	case 10038:	/* NFS4ERR_OPENMODE */
		return -EBADF;
	case 10018:	/* NFS4ERR_RESOURCE */
	case 10065:	/* NFS4ERR_REQ_TOO_BIG */
	case 10066:	/* NFS4ERR_REP_TOO_BIG */
	case 10067:	/* NFS4ERR_REP_TOO_BIG_TO_CACHE */
		return -EMSGSIZE;
	}
	return nfs_error(status);
}

/* --- what a client sends --- */

/* Where the COMPOUND stands in a message */
uint8_t *compound_start(const struct nfsrdma_session *session, struct request *req)
{
	return req->message + HEADER_ROOM + session->rpc_head_length;
}

/* Begin a COMPOUND; @operations counts all of them */
uint8_t *compound_begin(struct nfsrdma_session *session, struct request *req, uint32_t operations)
{
	uint8_t *at = request_begin(session, req, COMPOUND);

	store32(req->message + HEADER_ROOM + 16, 4);
	at = put32(at, 0);
	at = put32(at, MINOR_VERSION);
	return put32(at, operations);
}

/* The same with SEQUENCE, which state_stamp() completes */
uint8_t *compound_begin_sequence(struct nfsrdma_session *session, struct request *req, uint32_t operations)
{
	uint8_t *at = compound_begin(session, req, operations);

	at = put32(at, OP_SEQUENCE);
	memset(at, 0, 32);
	req->sequenced = true;
	return at + 32;
}

void compound_end(struct request *req, const uint8_t *at)
{
	req->length = at - (req->message + HEADER_ROOM);
}

/* PUTFH; PUTROOTFH without a file handle */
uint8_t *compound_put_fh(uint8_t *at, const fh3 *fh)
{
	if (!fh->fh3_len)
		return put32(at, OP_PUTROOTFH);
	at = put32(at, OP_PUTFH);
	return put_opaque(at, fh->fh3_val, fh->fh3_len);
}

/* component4, or the text of a symbolic link */
uint8_t *compound_put_name(uint8_t *at, const char *name)
{
	return put_opaque(at, name, strlen(name));
}

uint8_t *compound_put_bitmap(uint8_t *at, uint64_t bits)
{
	at = put32(at, 2);
	at = put32(at, bits);
	return put32(at, bits >> 32);
}

/* fattr4 of what the library sets: a size, a mode, times of the server */
uint8_t *compound_put_settable(uint8_t *at, const set3 *attr)
{
	uint64_t bits = (attr->size.set ? BIT(ATTR_SIZE) : 0) | (attr->mode.set ? BIT(ATTR_MODE) : 0) |
			(attr->atime ? BIT(ATTR_TIME_ACCESS_SET) : 0) | (attr->mtime ? BIT(ATTR_TIME_MODIFY_SET) : 0);
	uint8_t *length;

	length = compound_put_bitmap(at, bits);
	at = length + 4;
	if (attr->size.set)
		at = put64(at, attr->size.set_size3_u.value);
	if (attr->mode.set)
		at = put32(at, attr->mode.set_word3_u.value);
	/* SET_TO_SERVER_TIME4 */
	if (attr->atime)
		at = put32(at, 0);
	if (attr->mtime)
		at = put32(at, 0);
	put32(length, at - length - 4);
	return at;
}

/* The stateid of an inode that is open, which state_stamp() writes; NULL: the anonymous one (RFC 8881, section 8.2.3) */
uint8_t *compound_put_stateid(const struct nfsrdma_session *session, struct request *req, uint8_t *at,
			      struct inode *inode)
{
	req->inode = inode;
	req->stateid_at = at - compound_start(session, req);
	memset(at, 0, NFS4_STATEID);
	return at + NFS4_STATEID;
}

/* The arguments of READ; @inode: as above */
uint8_t *compound_put_read(const struct nfsrdma_session *session, struct request *req, uint8_t *at,
			   struct inode *inode, uint64_t offset)
{
	at = put64(compound_put_stateid(session, req, at, inode), offset);
	return put32(at, req->io.count);
}

/* OPEN up to openflag4.  Sequence and client ID have no meaning in NFSv4.1 (RFC 8881, section 18.16.3). */
uint8_t *compound_put_open(uint8_t *at, uint32_t access)
{
	at = put32(at, OP_OPEN);
	at = put32(at, 0);
	at = put32(at, access | OPEN4_SHARE_ACCESS_WANT_NO_DELEG);
	at = put32(at, 0);
	at = put64(at, 0);
	return put_opaque(at, OPEN_OWNER, strlen(OPEN_OWNER));
}

/* --- what a server sends --- */

bool compound_take_opaque(struct rpc_body *body, uint32_t most, const uint8_t **data, uint32_t *length)
{
	if (!take32(body, length) || *length > most)
		return false;
	*data = body->at;
	return skip(body, padded(*length));
}

/* The status of the whole COMPOUND, and the number of results */
bool compound_take_head(struct rpc_body *body, uint32_t *status)
{
	const uint8_t *tag;
	uint32_t length, results;

	return take32(body, status) && compound_take_opaque(body, 64, &tag, &length) && take32(body, &results);
}

/* The status of the next operation; false if it is another one */
bool compound_take_status(struct rpc_body *body, uint32_t operation, uint32_t *status)
{
	uint32_t found;

	return take32(body, &found) && take32(body, status) && found == operation;
}

/* The result of the next operation: 0, -EBADMSG or the error of its status */
int compound_take_op(struct rpc_body *body, uint32_t operation)
{
	uint32_t status;

	return compound_take_status(body, operation, &status) ? compound_error(status) : -EBADMSG;
}

/* The result of GETFH */
int compound_take_fh(struct rpc_body *body, struct nfs_fh *fh)
{
	const uint8_t *bytes;
	int rc = compound_take_op(body, OP_GETFH);

	if (rc)
		return rc;
	if (!compound_take_opaque(body, FH_MAX, &bytes, &fh->length) || !fh->length)
		return -EBADMSG;
	memcpy(fh->bytes, bytes, fh->length);
	return 0;
}

static bool take_bitmap(struct rpc_body *body, uint64_t *bits)
{
	uint32_t words, word, i;

	*bits = 0;
	if (!take32(body, &words) || words > BITMAP_MAX)
		return false;
	for (i = 0; i < words; i++) {
		if (!take32(body, &word))
			return false;
		*bits |= i < 2 ? (uint64_t)word << 32 * i : 0;
	}
	return true;
}

static bool take_stateid(struct rpc_body *body, uint8_t *stateid)
{
	const uint8_t *at = body->at;

	if (!skip(body, NFS4_STATEID))
		return false;
	memcpy(stateid, at, NFS4_STATEID);
	return true;
}

/* open_delegation4 */
static bool take_delegation(struct rpc_body *body, struct opened *opened)
{
	uint32_t type, word, length;
	const uint8_t *who;

	opened->delegated = false;
	if (!take32(body, &type))
		return false;
	switch (type) {
	case OPEN_DELEGATE_NONE:
		return true;
	case OPEN_DELEGATE_NONE_EXT:
		if (!take32(body, &word))
			return false;
		return (word != WND4_CONTENTION && word != WND4_RESOURCE) || skip(body, 4);
	case OPEN_DELEGATE_READ: case OPEN_DELEGATE_WRITE:
		opened->delegated = true;
		if (!take_stateid(body, opened->delegation) || !skip(body, 4))
			return false;
		/* how much the client may write before it tells the server, in one of two units */
		if (type == OPEN_DELEGATE_WRITE && (!take32(body, &word) || word < NFS_LIMIT_SIZE ||
						    word > NFS_LIMIT_BLOCKS || !skip(body, 8)))
			return false;
		/* nfsace4 */
		return skip(body, 12) && compound_take_opaque(body, WHO_MAX, &who, &length);
	}
	return false;
}

/* The result of CREATE */
int compound_take_create(struct rpc_body *body)
{
	int rc = compound_take_op(body, OP_CREATE);
	uint64_t set;

	return rc || (skip(body, CHANGE_INFO) && take_bitmap(body, &set)) ? rc : -EBADMSG;
}

/* The result of READ that succeeded, up to its data; its status was taken */
int compound_take_read(struct rpc_body *body, uint32_t *count, uint32_t *eof)
{
	return take32(body, eof) && *eof <= 1 && take32(body, count) ? 0 : -EBADMSG;
}

/* The result of OPEN */
int compound_take_open(struct rpc_body *body, struct opened *opened)
{
	int rc = compound_take_op(body, OP_OPEN);

	if (rc)
		return rc;
	/* change_info4 of the directory, and result flags: the library locks nothing */
	if (!take_stateid(body, opened->stateid) || !skip(body, CHANGE_INFO + 4) ||
	    !take_bitmap(body, &opened->set) || !take_delegation(body, opened))
		return -EBADMSG;
	return 0;
}

/* --- attributes --- */

/* "1000", as servers send with AUTH_SYS, or "name@domain" */
static bool take_owner(struct rpc_body *body, uint32_t *id)
{
	const uint8_t *text;
	uint32_t length, i;
	uint64_t value = 0;

	if (!compound_take_opaque(body, 256, &text, &length))
		return false;
	for (i = 0; i < length && text[i] >= '0' && text[i] <= '9' && value <= UINT32_MAX; i++)
		value = 10 * value + text[i] - '0';
	*id = length && i == length && value <= UINT32_MAX ? value : NOBODY;
	return true;
}

static bool take_time(struct rpc_body *body, time3 *time)
{
	uint64_t seconds;

	if (!take64(body, &seconds) || !take32(body, &time->nsec))
		return false;
	time->sec = seconds;
	return true;
}

static bool take_attribute(struct rpc_body *body, uint32_t number, struct nfs4_attributes *to)
{
	attr3 *attr = &to->attr;
	uint64_t minor;

	switch (number) {
	case ATTR_TYPE:
		return take32(body, &attr->type);
	case ATTR_SIZE:
		return take64(body, &attr->size);
	case ATTR_FSID:
		return take64(body, &attr->fsid) && take64(body, &minor);
	case ATTR_RDATTR_ERROR:
		/* such an entry has no other attributes: take_entry() looks which are present */
		return skip(body, 4);
	case ATTR_FILEID:
		return take64(body, &attr->fileid);
	case ATTR_MAXREAD:
		return take64(body, &to->read_max);
	case ATTR_MAXWRITE:
		return take64(body, &to->write_max);
	case ATTR_MODE:
		return take32(body, &attr->mode);
	case ATTR_NUMLINKS:
		return take32(body, &attr->nlink);
	case ATTR_OWNER:
		return take_owner(body, &attr->uid);
	case ATTR_OWNER_GROUP:
		return take_owner(body, &attr->gid);
	case ATTR_RAWDEV:
		return take32(body, &attr->rdev[0]) && take32(body, &attr->rdev[1]);
	case ATTR_SPACE_USED:
		return take64(body, &attr->used);
	case ATTR_TIME_ACCESS:
		return take_time(body, &attr->atime);
	case ATTR_TIME_METADATA:
		return take_time(body, &attr->ctime);
	case ATTR_TIME_MODIFY:
		return take_time(body, &attr->mtime);
	}
	/* nobody requested it */
	return false;
}

/* fattr4: a bitmap, and the attributes in the order of its bits */
bool compound_take_attributes(struct rpc_body *body, struct nfs4_attributes *to)
{
	uint32_t words, bits[3], length, i;
	struct rpc_body inside;

	*to = (struct nfs4_attributes){};
	if (!take32(body, &words) || words > 3)
		return false;
	for (i = 0; i < words; i++)
		if (!take32(body, &bits[i]))
			return false;
	if (!take32(body, &length) || length > body->left)
		return false;
	inside = (struct rpc_body){body->at, length};
	for (i = 0; i < 32 * words; i++) {
		if (!(bits[i / 32] >> i % 32 & 1))
			continue;
		to->present |= i < 64 ? BIT(i) : 0;
		if (!take_attribute(&inside, i, to))
			return false;
	}
	return !inside.left && skip(body, padded(length));
}
