// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * NFSv4.1 (RFC 8881) as far as reading goes.
 *
 * It needs no mount daemon, so that ordinary users can read.  A COMPOUND begins with SEQUENCE, which names the session
 * and one of its slots; nfs4_stamp() writes both when the message leaves, because a lost session is made again and
 * what waits then belongs to the new one.  Files are not opened: READ has the anonymous stateid.
 *
 * The client ID and the session come from calls of their own, one after the other: EXCHANGE_ID, CREATE_SESSION and
 * RECLAIM_COMPLETE.  The next one leaves when the reply to the last one arrives, so that no call waits here either.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "library.h"
#include "wait.h"

#define COMPOUND	1
#define MINOR_VERSION	1

/* Operations of a COMPOUND: to request, and those of a LOOKUP, its longest one */
#define OPERATIONS_MAX		8
#define OPERATIONS_LEAST	5

/* enum nfs_opnum4 */
enum {
	OP_GETATTR = 9, OP_GETFH = 10, OP_LOOKUP = 15, OP_PUTFH = 22, OP_PUTROOTFH = 24, OP_READ = 25,
	OP_READDIR = 26, OP_READLINK = 27, OP_EXCHANGE_ID = 42, OP_CREATE_SESSION = 43,
	OP_DESTROY_SESSION = 44, OP_SEQUENCE = 53, OP_DESTROY_CLIENTID = 57, OP_RECLAIM_COMPLETE = 58,
};

/* enum nfsstat4: what the library answers by another call */
enum {
	NFS4ERR_DELAY = 10008, NFS4ERR_GRACE = 10013, NFS4ERR_STALE_CLIENTID = 10022,
	NFS4ERR_BADSESSION = 10052, NFS4ERR_BADSLOT = 10053, NFS4ERR_CONN_NOT_BOUND = 10055,
	NFS4ERR_SEQ_MISORDERED = 10063, NFS4ERR_RETRY_UNCACHED_REP = 10068, NFS4ERR_SEQ_FALSE_RETRY = 10076,
	NFS4ERR_DEADSESSION = 10078,
};

#define EXCHGID4_FLAG_USE_NON_PNFS	0x10000
#define EXCHGID4_FLAG_CONFIRMED_R	0x80000000

/* Places in the RPC message, behind the RPC header: tag, minor version, number of operations, then SEQUENCE */
#define AT_SEQUENCE	16

/* Attributes: numbers of RFC 8881, sections 5.8.1 and 5.8.2 */
enum {
	ATTR_TYPE = 1, ATTR_SIZE = 4, ATTR_FSID = 8, ATTR_RDATTR_ERROR = 11, ATTR_FILEID = 20,
	ATTR_MAXREAD = 30, ATTR_MAXWRITE = 31, ATTR_MODE = 33, ATTR_NUMLINKS = 35, ATTR_OWNER = 36,
	ATTR_OWNER_GROUP = 37, ATTR_RAWDEV = 41, ATTR_SPACE_USED = 45, ATTR_TIME_ACCESS = 47,
	ATTR_TIME_METADATA = 52, ATTR_TIME_MODIFY = 53,
};

#define BIT(number)	(1ULL << (number))
#define STAT_ATTRIBUTES	(BIT(ATTR_TYPE) | BIT(ATTR_SIZE) | BIT(ATTR_FSID) | BIT(ATTR_FILEID) | BIT(ATTR_MODE) | \
			 BIT(ATTR_NUMLINKS) | BIT(ATTR_OWNER) | BIT(ATTR_OWNER_GROUP) | BIT(ATTR_RAWDEV) | \
			 BIT(ATTR_SPACE_USED) | BIT(ATTR_TIME_ACCESS) | BIT(ATTR_TIME_METADATA) | \
			 BIT(ATTR_TIME_MODIFY))
#define LIMITS		(BIT(ATTR_MAXREAD) | BIT(ATTR_MAXWRITE))

#define NOBODY		65534

/* Longest results: attributes with two owners, and a directory entry is not longer */
#define ATTR_MOST	1024

static int nfs4_error(uint32_t status)
{
	switch (status) {
	case NFS4ERR_GRACE:
		return -EINPROGRESS;
	case 10016:	/* NFS4ERR_WRONGSEC */
		return -EACCES;
	case 10029:	/* NFS4ERR_SYMLINK */
		return -EINVAL;
	case 10018:	/* NFS4ERR_RESOURCE */
	case 10067:	/* NFS4ERR_REP_TOO_BIG */
		return -EMSGSIZE;
	}
	return nfs_error(status);
}

/* --- messages --- */

static uint8_t *put_bitmap(uint8_t *at, uint64_t bits)
{
	at = put32(at, 2);
	at = put32(at, bits);
	return put32(at, bits >> 32);
}

static uint8_t *compound_of(const struct nfsrdma_session *session, struct request *req)
{
	return req->message + HEADER_ROOM + session->rpc_head_length;
}

/* Begin a COMPOUND; @operations counts all of them */
static uint8_t *begin_compound(struct nfsrdma_session *session, struct request *req, uint32_t operations)
{
	uint8_t *at = request_begin(session, req, COMPOUND);

	store32(req->message + HEADER_ROOM + 16, 4);
	at = put32(at, 0);
	at = put32(at, MINOR_VERSION);
	return put32(at, operations);
}

/* The same with SEQUENCE, which nfs4_stamp() completes */
static uint8_t *begin_sequence(struct nfsrdma_session *session, struct request *req, uint32_t operations)
{
	uint8_t *at = begin_compound(session, req, operations);

	at = put32(at, OP_SEQUENCE);
	memset(at, 0, 32);
	req->sequenced = true;
	return at + 32;
}

static uint8_t *put_fh(uint8_t *at, const fh3 *fh)
{
	if (!fh->fh3_len)
		return put32(at, OP_PUTROOTFH);
	at = put32(at, OP_PUTFH);
	return put_opaque(at, fh->fh3_val, fh->fh3_len);
}

static void end_compound(struct request *req, const uint8_t *at)
{
	req->length = at - (req->message + HEADER_ROOM);
}

static bool take_opaque(struct rpc_body *body, uint32_t most, const uint8_t **data, uint32_t *length)
{
	if (!take32(body, length) || *length > most)
		return false;
	*data = body->at;
	return skip(body, padded(*length));
}

/* The status of the whole COMPOUND, and the number of results */
static bool take_head(struct rpc_body *body, uint32_t *status)
{
	const uint8_t *tag;
	uint32_t length, results;

	return take32(body, status) && take_opaque(body, 64, &tag, &length) && take32(body, &results);
}

/* The result of the next operation: 0, -EBADMSG or the error of its status */
static int take_op(struct rpc_body *body, uint32_t operation)
{
	uint32_t found, status;

	if (!take32(body, &found) || !take32(body, &status) || found != operation)
		return -EBADMSG;
	return nfs4_error(status);
}

/* --- slots of the session --- */

static void nfs4_start(struct nfsrdma_session *session);

/*
 * Write session, slot and sequence into a message that is about to leave.  A request keeps its slot and the sequence
 * until its reply, also over a lost connection, by which the server recognizes it.
 *
 * Return: false if no slot is free.
 */
static bool nfs4_stamp(struct nfsrdma_session *session, struct request *req)
{
	uint8_t *at = compound_of(session, req) + AT_SEQUENCE;
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t i;

	if (!req->sequenced)
		return true;
	if (req->nfs4_slot < 0) {
		for (i = 0; i < nfs4->nslots && nfs4->slots[i].busy; i++)
			;
		if (i == nfs4->nslots)
			return false;
		nfs4->slots[i].busy = true;
		req->nfs4_slot = i;
	}
	memcpy(at, nfs4->session, sizeof(nfs4->session));
	at = put32(at + sizeof(nfs4->session), nfs4->slots[req->nfs4_slot].sequence);
	at = put32(at, req->nfs4_slot);
	at = put32(at, nfs4->nslots - 1);
	put32(at, 0);
	return true;
}

static void free_slot(struct nfsrdma_session *session, struct request *req, uint32_t used)
{
	if (req->nfs4_slot < 0)
		return;
	session->nfs4.slots[req->nfs4_slot].sequence += used;
	session->nfs4.slots[req->nfs4_slot].busy = false;
	req->nfs4_slot = -1;
}

/* The session is gone: all that waits gets slots of the next one */
static void nfs4_lost(struct nfsrdma_session *session)
{
	uint32_t i;

	for (i = 0; i < session->nslots; i++)
		session->slots[i].nfs4_slot = -1;
	session->nfs4.state = NFS4_NONE;
	nfs4_start(session);
}

/*
 * The result of SEQUENCE.  Return: 0; -ERESTART if the call has to be made again; -EINPROGRESS if it has to be made
 * again later, or another error.
 */
static int take_sequence(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	uint32_t status, operation, found;

	if (!take_head(body, &status) || !take32(body, &operation) || operation != OP_SEQUENCE ||
	    !take32(body, &found))
		return -EBADMSG;
	switch (found) {
	case 0:
		if (!skip(body, 36))
			return -EBADMSG;
		free_slot(session, req, 1);
		/* the server executed an earlier copy of the call and did not keep its reply */
		if (status == NFS4ERR_RETRY_UNCACHED_REP)
			return -ERESTART;
		return 0;
	case NFS4ERR_DELAY:
		return -EINPROGRESS;
	case NFS4ERR_BADSESSION: case NFS4ERR_DEADSESSION: case NFS4ERR_STALE_CLIENTID: case NFS4ERR_BADSLOT:
	case NFS4ERR_SEQ_MISORDERED: case NFS4ERR_SEQ_FALSE_RETRY: case NFS4ERR_CONN_NOT_BOUND:
		/* a request of a session before this one */
		if (req->nfs4_slot >= 0)
			nfs4_lost(session);
		return -ERESTART;
	case NFS4ERR_RETRY_UNCACHED_REP:
		free_slot(session, req, 1);
		return -ERESTART;
	}
	free_slot(session, req, 0);
	return nfs4_error(found);
}

/* --- client ID and session --- */

static uint8_t *put_channel(uint8_t *at, uint32_t request, uint32_t response, uint32_t operations,
			    uint32_t requests)
{
	at = put32(at, 0);
	at = put32(at, request);
	at = put32(at, response);
	at = put32(at, 0);
	at = put32(at, operations);
	at = put32(at, requests);
	return put32(at, 0);
}

static bool take_channel(struct rpc_body *body, uint32_t *operations, uint32_t *requests)
{
	uint32_t words[5], ird, i;

	for (i = 0; i < 4; i++)
		if (!take32(body, &words[i]))
			return false;
	return take32(body, operations) && take32(body, requests) && take32(body, &ird) && ird <= 1 &&
	       skip(body, 4 * ird);
}

static void encode_exchange_id(struct nfsrdma_session *session, struct request *req)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint8_t *at = begin_compound(session, req, 1);

	at = put32(at, OP_EXCHANGE_ID);
	memcpy(at, nfs4->verifier, sizeof(nfs4->verifier));
	at = put_opaque(at + sizeof(nfs4->verifier), nfs4->owner, strlen(nfs4->owner));
	at = put32(at, EXCHGID4_FLAG_USE_NON_PNFS);
	at = put32(at, 0);	/* SP4_NONE */
	at = put32(at, 0);	/* no implementation ID */
	end_compound(req, at);
}

static int decode_exchange_id(struct nfsrdma_session *session, struct rpc_body *body)
{
	uint32_t sequence, flags;
	int rc = take_op(body, OP_EXCHANGE_ID);

	if (rc)
		return rc;
	if (!take64(body, &session->nfs4.client) || !take32(body, &sequence) || !take32(body, &flags))
		return -EBADMSG;
	/* RFC 8881, section 18.35.4: the sequence goes on with a client ID that the server has confirmed */
	if (!(flags & EXCHGID4_FLAG_CONFIRMED_R))
		session->nfs4.create_sequence = sequence;
	return 0;
}

static void encode_create_session(struct nfsrdma_session *session, struct request *req)
{
	uint8_t *at = begin_compound(session, req, 1);

	at = put32(at, OP_CREATE_SESSION);
	at = put64(at, session->nfs4.client);
	at = put32(at, session->nfs4.create_sequence);
	at = put32(at, 0);
	at = put_channel(at, CALL_MAX, IO_MAX + CALL_MAX, OPERATIONS_MAX, session->options.depth + 1);
	/* the server has to be given one that it does not use */
	at = put_channel(at, 4096, 4096, 2, 1);
	at = put32(at, 0x40000000);
	at = put32(at, 1);
	at = put32(at, AUTH_NONE);
	end_compound(req, at);
}

static int decode_create_session(struct nfsrdma_session *session, struct rpc_body *body)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t operations = 0, requests = 0, i;
	int rc = take_op(body, OP_CREATE_SESSION);

	if (rc)
		return rc;
	if (body->left < sizeof(nfs4->session))
		return -EBADMSG;
	memcpy(nfs4->session, body->at, sizeof(nfs4->session));
	if (!skip(body, sizeof(nfs4->session) + 8) || !take_channel(body, &operations, &requests) ||
	    !requests || operations < OPERATIONS_LEAST)
		return -EBADMSG;
	nfs4->create_sequence++;
	nfs4->nslots = requests < NFS4_SLOTS ? requests : NFS4_SLOTS;
	for (i = 0; i < NFS4_SLOTS; i++)
		nfs4->slots[i] = (struct nfs4_slot){.sequence = 1};
	return 0;
}

static void encode_reclaim_complete(struct nfsrdma_session *session, struct request *req)
{
	uint8_t *at = begin_sequence(session, req, 2);

	at = put32(at, OP_RECLAIM_COMPLETE);
	at = put32(at, 0);
	end_compound(req, at);
}

static int finish_setup(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t status;
	int rc = -EBADMSG;

	if (nfs4->state == NFS4_RECLAIM) {
		rc = take_sequence(session, req, body);
		/* NFS4ERR_COMPLETE_ALREADY is no error here: its result says nothing else */
	} else if (take_head(body, &status)) {
		/* the server restarted between the two calls */
		if (status == NFS4ERR_STALE_CLIENTID)
			rc = -ERESTART;
		else
			rc = nfs4->state == NFS4_EXCHANGE ? decode_exchange_id(session, body) :
							    decode_create_session(session, body);
	}
	if (rc != -ERESTART)
		return rc;
	nfs4->state = NFS4_NONE;
	return 0;
}

static void next_setup(struct nfsrdma_session *session);

static void setup_done(struct nfsrdma_session *session, struct request *req)
{
	struct nfs4 *nfs4 = &session->nfs4;
	int error = req->error;

	nfs4->setup = NULL;
	request_end_setup(session, req);
	if (error) {
		nfs4->state = NFS4_NONE;
		send_fail_waiting(session, error);
	} else if (nfs4->state == NFS4_NONE) {
		nfs4_start(session);
	} else {
		nfs4->state++;
		if (nfs4->state != NFS4_READY)
			next_setup(session);
	}
}

static void next_setup(struct nfsrdma_session *session)
{
	static void (*const encode[])(struct nfsrdma_session *, struct request *) = {
		[NFS4_EXCHANGE] = encode_exchange_id, [NFS4_CREATE] = encode_create_session,
		[NFS4_RECLAIM] = encode_reclaim_complete,
	};
	struct request *req = request_take_setup(session);

	encode[session->nfs4.state](session, req);
	req->finish = finish_setup;
	req->done = setup_done;
	session->nfs4.setup = req;
	send_setup(session, req);
}

/* Begin to make a client ID and a session, if there is none and the connection is up */
static void nfs4_start(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;

	if (nfs4->setup || nfs4->state == NFS4_READY || session->link != LINK_UP)
		return;
	nfs4->state = NFS4_EXCHANGE;
	next_setup(session);
}

/* --- procedures --- */

static int finish_compound(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	int rc = take_sequence(session, req, body);

	if (!rc)
		rc = take_op(body, req->root ? OP_PUTROOTFH : OP_PUTFH);
	return rc ? rc : req->parse(session, body, req->results);
}

/*
 * Call a COMPOUND of SEQUENCE, PUTFH and more; @parse decodes the results behind those of PUTFH.
 * @bytes: of the longest results
 */
static int call_compound(struct nfsrdma_session *session, struct request *req, const uint8_t *at, const char *what,
		const char *path, int (*parse)(struct nfsrdma_session *, struct rpc_body *, void *), void *results,
		uint32_t bytes)
{
	int rc;

	end_compound(req, at);
	req->finish = finish_compound;
	req->parse = parse;
	req->results = results;
	request_expect(req, bytes);
	rc = wait_call(session, req);
	request_release(session, req);
	if (rc && rc != -ETIMEDOUT && rc != -EBADMSG)
		fail(rc, "%s %s: %s", what, path, strerror(-rc));
	return rc;
}

static struct request *begin_call(struct nfsrdma_session *session, const fh3 *fh, uint32_t operations,
				  uint8_t **at)
{
	struct request *req = wait_take(session);

	if (!req)
		return NULL;
	*at = put_fh(begin_sequence(session, req, 2 + operations), fh);
	req->root = !fh->fh3_len;
	return req;
}

/* --- attributes --- */

/* "1000", as servers send with AUTH_SYS, or "name@domain" */
static bool take_owner(struct rpc_body *body, uint32_t *id)
{
	const uint8_t *text;
	uint32_t length, i;
	uint64_t value = 0;

	if (!take_opaque(body, 256, &text, &length))
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
static bool take_attributes(struct rpc_body *body, struct nfs4_attributes *to)
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

static int parse_attributes(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	int rc = take_op(body, OP_GETATTR);

	(void)session;
	if (rc)
		return rc;
	return take_attributes(body, results) ? 0 : -EBADMSG;
}

static uint8_t *put_getattr(uint8_t *at, uint64_t bits)
{
	return put_bitmap(put32(at, OP_GETATTR), bits);
}

static int get_attributes(struct nfsrdma_session *session, const char *path, const fh3 *fh, uint64_t bits,
			  struct nfs4_attributes *to)
{
	uint8_t *at;
	struct request *req = begin_call(session, fh, 1, &at);

	if (!req)
		return wait_no_slot(session);
	return call_compound(session, req, put_getattr(at, bits), "GETATTR", path, parse_attributes, to, ATTR_MOST);
}

static int nfs4_getattr(struct nfsrdma_session *session, const char *path, const fh3 *fh, attr3 *attr)
{
	struct nfs4_attributes found;
	int rc = get_attributes(session, path, fh, STAT_ATTRIBUTES, &found);

	*attr = found.attr;
	return rc;
}

/* --- names --- */

struct lookup_results {
	struct nfs_fh fh;
	struct nfs4_attributes attributes;
};

static int parse_lookup(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	struct lookup_results *to = results;
	const uint8_t *bytes;
	int rc = take_op(body, OP_LOOKUP);

	if (!rc)
		rc = take_op(body, OP_GETFH);
	if (rc)
		return rc;
	if (!take_opaque(body, FH_MAX, &bytes, &to->fh.length) || !to->fh.length)
		return -EBADMSG;
	memcpy(to->fh.bytes, bytes, to->fh.length);
	return parse_attributes(session, body, &to->attributes);
}

static int nfs4_lookup(struct nfsrdma_session *session, const char *path, const fh3 *dir, const char *name,
		       struct nfs_fh *fh, attr3 *attr)
{
	struct lookup_results found;
	struct request *req;
	uint8_t *at;
	int rc;

	if (strlen(name) > NAME_MAX_BYTES)
		return fail(-ENAMETOOLONG, "LOOKUP %s: %s", path, strerror(ENAMETOOLONG));
	req = begin_call(session, dir, 3, &at);
	if (!req)
		return wait_no_slot(session);
	at = put32(at, OP_LOOKUP);
	at = put_opaque(at, name, strlen(name));
	at = put32(at, OP_GETFH);
	rc = call_compound(session, req, put_getattr(at, STAT_ATTRIBUTES), "LOOKUP", path, parse_lookup, &found,
		  ATTR_MOST);
	if (!rc) {
		*fh = found.fh;
		*attr = found.attributes.attr;
	}
	return rc;
}

static int parse_readlink(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	const uint8_t *bytes;
	char **text = results;
	uint32_t length;
	int rc = take_op(body, OP_READLINK);

	(void)session;
	if (rc)
		return rc;
	if (!take_opaque(body, PATH_MAX_BYTES, &bytes, &length) || memchr(bytes, 0, length))
		return -EBADMSG;
	*text = strndup((const char *)bytes, length);
	return *text ? 0 : fail_no_memory();
}

static int nfs4_readlink(struct nfsrdma_session *session, const char *path, const fh3 *fh, char **text)
{
	uint8_t *at;
	struct request *req = begin_call(session, fh, 1, &at);

	if (!req)
		return wait_no_slot(session);
	return call_compound(session, req, put32(at, OP_READLINK), "READLINK", path, parse_readlink, text,
		    PATH_MAX_BYTES + 64);
}

/* --- directories --- */

/* An entry as that of NFSv3, which the caller frees with the results */
static int take_entry(struct rpc_body *body, entry3 **to)
{
	entry3 *entry = calloc(1, sizeof(*entry));
	struct nfs4_attributes found;
	const uint8_t *name;
	uint32_t length;

	if (!entry)
		return fail_no_memory();
	*to = entry;
	if (!take64(body, &entry->cookie) || !take_opaque(body, NAME_MAX_BYTES, &name, &length) ||
	    memchr(name, 0, length) || !take_attributes(body, &found))
		return -EBADMSG;
	entry->name = strndup((const char *)name, length);
	if (!entry->name)
		return fail_no_memory();
	entry->fileid = found.attr.fileid;
	entry->attr.present = (found.present & STAT_ATTRIBUTES) == STAT_ATTRIBUTES;
	entry->attr.post_attr3_u.attr = found.attr;
	return 0;
}

static int parse_readdir(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	readdirplus3_ok *ok = &((readdirplus3_res *)results)->readdirplus3_res_u.ok;
	entry3 **next = &ok->entries;
	uint32_t more, eof;
	int rc = take_op(body, OP_READDIR);

	(void)session;
	if (rc)
		return rc;
	if (body->left < sizeof(verf3))
		return -EBADMSG;
	memcpy(ok->verf, body->at, sizeof(verf3));
	skip(body, sizeof(verf3));
	while (!rc) {
		if (!take32(body, &more) || more > 1)
			return -EBADMSG;
		if (!more)
			break;
		rc = take_entry(body, next);
		if (!rc)
			next = &(*next)->next;
	}
	if (!rc && (!take32(body, &eof) || eof > 1))
		return -EBADMSG;
	ok->eof = !rc && eof;
	return rc;
}

static int nfs4_list(struct nfsrdma_session *session, const readdirplus3_args *args, readdirplus3_res *res)
{
	uint8_t *at;
	struct request *req = begin_call(session, &args->dir, 1, &at);

	if (!req)
		return wait_no_slot(session);
	at = put32(at, OP_READDIR);
	at = put64(at, args->cookie);
	memcpy(at, args->verf, sizeof(verf3));
	at = put32(at + sizeof(verf3), args->dircount);
	at = put32(at, args->maxcount);
	at = put_bitmap(at, STAT_ATTRIBUTES | BIT(ATTR_RDATTR_ERROR));
	return call_compound(session, req, at, "READDIR", "", parse_readdir, res, args->maxcount + 256);
}

/* --- the directory of the session --- */

/* Look up the path of the export from the root of the server, and get the limits */
static int nfs4_root(struct nfsrdma_session *session)
{
	struct nfs4_attributes found = {};
	struct nfs_fh here = {}, next;
	char *rest = strdup(session->directory), *name, *save;
	fh3 fh = {};
	attr3 attr;
	int rc = rest ? 0 : fail_no_memory();

	for (name = rest ? strtok_r(rest, "/", &save) : NULL; name && !rc; name = strtok_r(NULL, "/", &save)) {
		rc = nfs4_lookup(session, session->directory, &fh, name, &next, &attr);
		here = next;
		fh = nfs_fh3(&here);
	}
	free(rest);
	if (!rc)
		rc = get_attributes(session, session->directory, &fh, LIMITS, &found);
	if (rc)
		return rc;
	session->root = (fh3){here.length, malloc(FH_MAX)};
	if (!session->root.fh3_val)
		return fail_no_memory();
	memcpy(session->root.fh3_val, here.bytes, here.length);
	session->read_max = io_limit(found.read_max);
	session->list_max = LIST_MAX;
	return session->read_max ? 0 : fail(-EBADMSG, "%s: the server says that reads are 0 bytes long",
					    session->host);
}

/* --- READ --- */

static uint8_t *put_read(uint8_t *at, uint32_t count, uint64_t offset)
{
	at = put32(at, OP_READ);
	/* the anonymous stateid: RFC 8881, section 8.2.3 */
	memset(at, 0, 16);
	at = put64(at + 16, offset);
	return put32(at, count);
}

static void nfs4_encode_read(struct nfsrdma_session *session, struct request *req, uint64_t offset)
{
	fh3 fh = nfs_fh3(&req->io.file->fh);
	uint8_t *at = put_fh(begin_sequence(session, req, 3), &fh);

	end_compound(req, put_read(at, req->io.count, offset));
}

static int nfs4_take_read(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			  uint32_t *count, uint32_t *eof)
{
	int rc = take_sequence(session, req, body);

	if (!rc)
		rc = take_op(body, OP_PUTFH);
	if (!rc)
		rc = take_op(body, OP_READ);
	if (rc)
		return rc;
	return take32(body, eof) && *eof <= 1 && take32(body, count) ? 0 : -EBADMSG;
}

/* --- the end --- */

static int finish_destroy(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	(void)session, (void)req, (void)body;
	return 0;
}

static void call_destroy(struct nfsrdma_session *session, uint32_t operation, const void *id, uint32_t bytes)
{
	struct request *req = session->link == LINK_UP ? wait_take(session) : NULL;
	uint8_t *at;

	if (!req)
		return;
	at = put32(begin_compound(session, req, 1), operation);
	memcpy(at, id, bytes);
	end_compound(req, at + bytes);
	req->finish = finish_destroy;
	wait_call(session, req);
	request_release(session, req);
}

/* Have the server forget the session and the client ID, if the connection is up */
static void nfs4_leave(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint8_t client[8];

	if (nfs4->state != NFS4_READY)
		return;
	if (session->options.timeout > NFS4_LEAVE_TIMEOUT)
		session->options.timeout = NFS4_LEAVE_TIMEOUT;
	put64(client, nfs4->client);
	call_destroy(session, OP_DESTROY_SESSION, nfs4->session, sizeof(nfs4->session));
	call_destroy(session, OP_DESTROY_CLIENTID, client, sizeof(client));
}

/* Choose the names by which the server knows this client */
int nfs4_allocate(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint64_t chance;
	char host[64] = "";

	if (getrandom(nfs4->verifier, sizeof(nfs4->verifier), 0) != sizeof(nfs4->verifier) ||
	    getrandom(&chance, sizeof(chance), 0) != sizeof(chance))
		return fail(-errno, "getrandom: %s", strerror(errno));
	gethostname(host, sizeof(host) - 1);
	snprintf(nfs4->owner, sizeof(nfs4->owner), "libnfsrdma %s %d %016llx", host, getpid(),
		 (unsigned long long)chance);
	return 0;
}

const struct nfs_dialect nfs4_dialect = {
	/* RPC header, COMPOUND, SEQUENCE, PUTFH and READ in front of the data */
	.read_head = 24 + 12 + 44 + 8 + 16,
	.root = nfs4_root,
	.getattr = nfs4_getattr,
	.lookup = nfs4_lookup,
	.readlink = nfs4_readlink,
	.list = nfs4_list,
	.encode_read = nfs4_encode_read,
	.take_read = nfs4_take_read,
	.leave = nfs4_leave,
	.start = nfs4_start,
	.stamp = nfs4_stamp,
	.lost = nfs4_lost,
};
