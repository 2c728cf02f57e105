// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * The procedures of NFSv4.1 (RFC 8881).
 *
 * It needs no mount daemon, so that ordinary users can use it.  Each procedure is one COMPOUND that begins with
 * SEQUENCE and the file handle; but REMOVE, which does not look at what it removes, has a LOOKUP in front.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "batch.h"
#include "compound.h"
#include "wait.h"

#define STAT_ATTRIBUTES	(BIT(ATTR_TYPE) | BIT(ATTR_SIZE) | BIT(ATTR_FSID) | BIT(ATTR_FILEID) | BIT(ATTR_MODE) | \
			 BIT(ATTR_NUMLINKS) | BIT(ATTR_OWNER) | BIT(ATTR_OWNER_GROUP) | BIT(ATTR_RAWDEV) | \
			 BIT(ATTR_SPACE_USED) | BIT(ATTR_TIME_ACCESS) | BIT(ATTR_TIME_METADATA) | \
			 BIT(ATTR_TIME_MODIFY))
#define LIMITS		(BIT(ATTR_MAXREAD) | BIT(ATTR_MAXWRITE))

/* Longest results: attributes with two owners, and neither a directory entry nor an OPEN is longer */
#define ATTR_MOST	1024

/* Bytes of a message beside the data of a READ or WRITE, at most */
#define IO_HEAD_MAX	1024

/* --- procedures --- */

/* The results of SEQUENCE and PUTFH */
int nfs4_take_begin(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	int rc = state_take_sequence(session, req, body);

	return rc ? rc : compound_take_op(body, req->root ? OP_PUTROOTFH : OP_PUTFH);
}

static int finish_compound(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	int rc = nfs4_take_begin(session, req, body);

	if (!rc)
		rc = req->parse(session, body, req->results);
	return rc == NO_STATE ? state_refused(session, req) : rc;
}

/* Complete a message whose results @parse decodes, behind those of PUTFH */
static void end_message(struct request *req, const uint8_t *at,
			int (*parse)(struct nfsrdma_session *, struct rpc_body *, void *), void *results, uint32_t bytes)
{
	compound_end(req, at);
	req->finish = finish_compound;
	req->parse = parse;
	req->results = results;
	request_expect(req, bytes);
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

	end_message(req, at, parse, results, bytes);
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
	*at = compound_put_fh(compound_begin_sequence(session, req, 2 + operations), fh);
	req->root = !fh->fh3_len;
	return req;
}

/**
 * nfs4_begin - begin a COMPOUND of a batch
 * @session: session
 * @fh: file handle for PUTFH
 * @operations: number of operations behind that
 * @req: gets the request, for nfs4_prepare()
 * @at: gets the place of the next operation
 *
 * Return: 0, or a negative errno value as nfsrdma_prepare_read().
 */
int nfs4_begin(struct nfsrdma_session *session, const struct nfs_fh *fh, uint32_t operations, struct request **req,
	       uint8_t **at)
{
	fh3 args = nfs_fh3(fh);
	int rc = batch_room(session);

	if (rc)
		return rc;
	*req = begin_call(session, &args, operations, at);
	return *req ? 0 : wait_no_slot(session);
}

/**
 * nfs4_prepare - add a COMPOUND to the next batch
 * @session: session
 * @req: request of nfs4_begin()
 * @at: end of the message
 * @parse: decodes the results behind those of PUTFH, once more if the COMPOUND is sent again
 * @results: for @parse
 * @user_data: value that the completion returns
 */
void nfs4_prepare(struct nfsrdma_session *session, struct request *req, const uint8_t *at,
		  int (*parse)(struct nfsrdma_session *, struct rpc_body *, void *), void *results, uint64_t user_data)
{
	end_message(req, at, parse, results, ATTR_MOST);
	nfs_prepare(session, req, user_data);
}

/* --- attributes --- */

static int parse_attributes(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	int rc = compound_take_op(body, OP_GETATTR);

	(void)session;
	if (rc)
		return rc;
	return compound_take_attributes(body, results) ? 0 : -EBADMSG;
}

static uint8_t *put_getattr(uint8_t *at, uint64_t bits)
{
	return compound_put_bitmap(put32(at, OP_GETATTR), bits);
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

static int parse_setattr(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	(void)session, (void)results;
	return compound_take_op(body, OP_SETATTR);
}

static int nfs4_setattr(struct nfsrdma_session *session, const char *path, const struct nfs_fh *fh, const set3 *attr)
{
	fh3 args = nfs_fh3(fh);
	uint8_t *at;
	struct request *req = begin_call(session, &args, 1, &at);
	struct inode *inode;
	int rc;

	if (!req)
		return wait_no_slot(session);
	inode = inode_find(session, fh);
	if (inode && !(inode->open && inode->open->users && inode->open->access & OPEN4_SHARE_ACCESS_WRITE))
		inode = NULL;
	/* a close that completes meanwhile leaves both as they are */
	if (inode) {
		inode->users++;
		inode->open->users++;
	}
	req->kept = true;
	at = compound_put_stateid(session, req, put32(at, OP_SETATTR), inode);
	rc = call_compound(session, req, compound_put_settable(at, attr), "SETATTR", path, parse_setattr, NULL, 0);
	if (inode) {
		state_unuse(session, inode);
		inode_put(session, inode);
	}
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
	int rc = compound_take_op(body, OP_LOOKUP);

	if (!rc)
		rc = compound_take_fh(body, &to->fh);
	return rc ? rc : parse_attributes(session, body, &to->attributes);
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
	at = compound_put_name(put32(at, OP_LOOKUP), name);
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
	int rc = compound_take_op(body, OP_READLINK);

	(void)session;
	if (rc)
		return rc;
	if (!compound_take_opaque(body, PATH_MAX_BYTES, &bytes, &length) || memchr(bytes, 0, length))
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

static int too_long(const char *what, const char *path)
{
	return fail(-ENAMETOOLONG, "%s %s: %s", what, path, strerror(ENAMETOOLONG));
}

static int parse_remove(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	(void)session, (void)results;
	return compound_take_op(body, OP_REMOVE);
}

static int nfs4_remove(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		       bool directory)
{
	fh3 args = nfs_fh3(dir);
	struct request *req;
	struct nfs_fh fh;
	attr3 attr;
	uint8_t *at;
	int rc = nfs4_lookup(session, path, &args, name, &fh, &attr);

	if (rc)
		return rc;
	if (directory != (attr.type == NF4DIR)) {
		rc = directory ? -ENOTDIR : -EISDIR;
		return fail(rc, "REMOVE %s: %s", path, strerror(-rc));
	}
	req = begin_call(session, &args, 1, &at);
	if (!req)
		return wait_no_slot(session);
	req->kept = true;
	return call_compound(session, req, compound_put_name(put32(at, OP_REMOVE), name), "REMOVE", path, parse_remove, NULL,
			     0);
}

static int parse_make(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	(void)session, (void)results;
	/* the reply of the GETFH, without which RFC 8881, section 15.1.3.9, has no CREATE, is of no use here */
	return compound_take_op(body, OP_CREATE);
}

/* Make a directory, or a symbolic link with @text */
static int make_node(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		     mode_t mode, const char *text)
{
	set3 attr = {.mode = {TRUE, {mode & 07777}}};
	fh3 args = nfs_fh3(dir);
	struct request *req;
	uint8_t *at;

	if (strlen(name) > NAME_MAX_BYTES || (text && strlen(text) > PATH_MAX_BYTES))
		return too_long("CREATE", path);
	req = begin_call(session, &args, 2, &at);
	if (!req)
		return wait_no_slot(session);
	req->kept = true;
	at = put32(put32(at, OP_CREATE), text ? NF4LNK : NF4DIR);
	if (text)
		at = compound_put_name(at, text);
	at = compound_put_settable(compound_put_name(at, name), &attr);
	return call_compound(session, req, put32(at, OP_GETFH), "CREATE", path, parse_make, NULL, ATTR_MOST);
}

static int nfs4_mkdir(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		      mode_t mode)
{
	return make_node(session, path, dir, name, mode, NULL);
}

static int nfs4_symlink(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
			const char *text)
{
	return make_node(session, path, dir, name, 0777, text);
}

static int parse_rename(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	int rc = compound_take_op(body, OP_SAVEFH);

	(void)session, (void)results;
	if (!rc)
		rc = compound_take_op(body, OP_PUTFH);
	return rc ? rc : compound_take_op(body, OP_RENAME);
}

static int nfs4_rename(struct nfsrdma_session *session, const char *path, const struct nfs_fh *from, const char *old,
		       const struct nfs_fh *to, const char *new)
{
	fh3 source = nfs_fh3(from), target = nfs_fh3(to);
	struct request *req;
	uint8_t *at;

	if (strlen(old) > NAME_MAX_BYTES || strlen(new) > NAME_MAX_BYTES)
		return too_long("RENAME", path);
	req = begin_call(session, &source, 3, &at);
	if (!req)
		return wait_no_slot(session);
	req->kept = true;
	at = compound_put_fh(put32(at, OP_SAVEFH), &target);
	at = compound_put_name(compound_put_name(put32(at, OP_RENAME), old), new);
	return call_compound(session, req, at, "RENAME", path, parse_rename, NULL, 0);
}

/* --- open files --- */

/* The share access that the server has to grant to an open file; 0: none */
static uint32_t access_of(int flags)
{
	switch (flags & O_ACCMODE) {
	case O_WRONLY:
		return OPEN4_SHARE_ACCESS_WRITE;
	case O_RDWR:
		return OPEN4_SHARE_ACCESS_READ | OPEN4_SHARE_ACCESS_WRITE;
	}
	return 0;
}

/* An OPEN that makes a file, and what it has made */
struct creation {
	uint32_t access;
	struct nfs_fh fh;
	uint64_t set;
};

static int parse_create(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	struct creation *to = results;
	struct rpc_body look = *body;
	struct opened opened;
	struct inode *inode;
	uint32_t status;
	int rc;

	if (!compound_take_status(&look, OP_OPEN, &status))
		return -EBADMSG;
	/* there is something else: servers may look at the type first */
	if (status == NFS4ERR_ISDIR || status == NFS4ERR_SYMLINK || status == NFS4ERR_WRONG_TYPE)
		return -EEXIST;
	rc = compound_take_open(body, &opened);
	if (!rc)
		rc = compound_take_fh(body, &to->fh);
	if (rc)
		return rc;
	to->set = opened.set;
	inode = inode_get(session, &to->fh);
	if (!inode)
		return fail_no_memory();
	rc = state_opened(session, inode, &opened, to->access);
	inode_put(session, inode);
	return rc;
}

static int nfs4_create(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		       int flags, mode_t mode, struct nfs_fh *fh)
{
	set3 attr = {.mode = {TRUE, {mode & 07777}}};
	struct creation made = {.access = access_of(flags)};
	uint8_t verifier[NFS_VERIFIER], *at;
	fh3 args = nfs_fh3(dir);
	struct request *req;
	int rc;

	if (strlen(name) > NAME_MAX_BYTES)
		return too_long("OPEN", path);
	if (getrandom(verifier, sizeof(verifier), 0) != sizeof(verifier))
		return fail(-EIO, "getrandom: %s", strerror(errno));
	req = begin_call(session, &args, 2, &at);
	if (!req)
		return wait_no_slot(session);
	req->kept = true;
	if (!made.access)
		made.access = OPEN4_SHARE_ACCESS_READ;
	at = put32(compound_put_open(at, made.access), OPEN4_CREATE);
	at = put32(at, flags & O_EXCL ? EXCLUSIVE4_1 : GUARDED4);
	if (flags & O_EXCL) {
		memcpy(at, verifier, sizeof(verifier));
		at += sizeof(verifier);
	}
	at = compound_put_settable(at, &attr);
	at = compound_put_name(put32(at, CLAIM_NULL), name);
	rc = call_compound(session, req, put32(at, OP_GETFH), "OPEN", path, parse_create, &made, ATTR_MOST);
	if (rc)
		return rc;
	*fh = made.fh;
	/* what the server did not set, and what it keeps the verifier in (RFC 8881, section 18.16.3) */
	attr.mode.set = !(made.set & BIT(ATTR_MODE));
	attr.atime = !!(made.set & (BIT(ATTR_TIME_ACCESS) | BIT(ATTR_TIME_ACCESS_SET)));
	attr.mtime = !!(made.set & (BIT(ATTR_TIME_MODIFY) | BIT(ATTR_TIME_MODIFY_SET)));
	return attr.mode.set || attr.atime || attr.mtime ? nfs4_setattr(session, path, fh, &attr) : 0;
}

/* An OPEN of a file that exists */
struct opening {
	struct inode *inode;
	uint32_t access;
};

static int parse_open(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	const struct opening *opening = results;
	struct opened opened;
	int rc = compound_take_open(body, &opened);

	return rc ? rc : state_opened(session, opening->inode, &opened, opening->access);
}

static int call_open(struct nfsrdma_session *session, const char *path, struct inode *inode, uint32_t access)
{
	struct opening opening = {inode, access | inode->open->access};
	fh3 args = nfs_fh3(&inode->fh);
	uint8_t *at;
	struct request *req = begin_call(session, &args, 1, &at);

	if (!req)
		return wait_no_slot(session);
	req->kept = true;
	at = put32(compound_put_open(at, opening.access), OPEN4_NOCREATE);
	return call_compound(session, req, put32(at, CLAIM_FH), "OPEN", path, parse_open, &opening, ATTR_MOST);
}

/* Have the server open a file for writing, if it is not open for that; a file of nfs4_create() is */
static int nfs4_open(struct nfsrdma_file *file, const char *path)
{
	struct nfsrdma_session *session = file->session;
	uint32_t access = access_of(file->flags);
	struct inode *inode = file->inode;
	int rc;

	if (!access && !inode->open)
		return 0;
	rc = state_use(session, inode);
	if (rc)
		return rc;
	/* what it was made with goes away again */
	if (!access) {
		state_unuse(session, inode);
		if (session->link == LINK_UP)
			send_flush(session);
		return 0;
	}
	file->opened = true;
	rc = state_wait_close(session, inode);
	if (rc)
		return rc;
	if (inode->open->state != OPEN_NONE && inode->open->state != OPEN_FAILED &&
	    (inode->open->access & access) == access)
		return 0;
	return call_open(session, path, inode, access);
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
	if (!take64(body, &entry->cookie) || !compound_take_opaque(body, NAME_MAX_BYTES, &name, &length) ||
	    memchr(name, 0, length) || !compound_take_attributes(body, &found))
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
	int rc = compound_take_op(body, OP_READDIR);

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
	at = compound_put_bitmap(at, STAT_ATTRIBUTES | BIT(ATTR_RDATTR_ERROR));
	return call_compound(session, req, at, "READDIR", "", parse_readdir, res, args->maxcount + 256);
}

/* --- the directory of the session --- */

/* The bytes of a READ or WRITE, by the longest message of the session */
static uint32_t limit_by(uint32_t message_max, uint32_t bytes)
{
	uint32_t most = message_max > IO_HEAD_MAX ? message_max - IO_HEAD_MAX : 0;

	return bytes < most ? bytes : most;
}

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
	session->read_max = limit_by(session->nfs4.response_max, io_limit(found.read_max));
	session->write_max = limit_by(session->nfs4.request_max, io_limit(found.write_max));
	session->list_max = LIST_MAX;
	return session->read_max && session->write_max ? 0 :
	       fail(-EBADMSG, "%s: the server says that reads are 0 bytes long", session->host);
}

/* --- data --- */

static uint8_t *begin_data(struct nfsrdma_session *session, struct request *req, uint32_t operation)
{
	fh3 fh = nfs_fh3(&req->io.file->fh);

	return put32(compound_put_fh(compound_begin_sequence(session, req, 3), &fh), operation);
}

static int take_data(struct nfsrdma_session *session, struct request *req, struct rpc_body *body, uint32_t operation)
{
	int rc = state_take_sequence(session, req, body);

	if (!rc)
		rc = compound_take_op(body, OP_PUTFH);
	if (!rc)
		rc = compound_take_op(body, operation);
	return rc == NO_STATE ? state_refused(session, req) : rc;
}

static void nfs4_encode_read(struct nfsrdma_session *session, struct request *req, uint64_t offset)
{
	struct nfsrdma_file *file = req->io.file;
	uint8_t *at = begin_data(session, req, OP_READ);

	compound_end(req, compound_put_read(session, req, at, file->opened ? file->inode : NULL, offset));
}

static int nfs4_take_read(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			  uint32_t *count, uint32_t *eof)
{
	int rc = take_data(session, req, body, OP_READ);

	return rc ? rc : compound_take_read(body, count, eof);
}

static void nfs4_encode_write(struct nfsrdma_session *session, struct request *req, uint64_t offset, uint32_t stable)
{
	uint8_t *at = begin_data(session, req, OP_WRITE);

	at = compound_put_stateid(session, req, at, req->io.file->inode);
	at = put64(at, offset);
	at = put32(at, stable);
	compound_end(req, put32(at, req->io.count));
}

static int nfs4_take_write(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			   struct written *written)
{
	int rc = take_data(session, req, body, OP_WRITE);

	if (rc)
		return rc;
	if (!take32(body, &written->count) || !take32(body, &written->committed))
		return -EBADMSG;
	written->verifier = body->at;
	return skip(body, NFS_VERIFIER) ? 0 : -EBADMSG;
}

static void nfs4_encode_commit(struct nfsrdma_session *session, struct request *req)
{
	uint8_t *at = begin_data(session, req, OP_COMMIT);

	/* all of the file */
	at = put64(at, 0);
	compound_end(req, put32(at, 0));
}

static int nfs4_take_commit(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			    const uint8_t **verifier)
{
	int rc = take_data(session, req, body, OP_COMMIT);

	*verifier = body->at;
	return rc || skip(body, NFS_VERIFIER) ? rc : -EBADMSG;
}

const struct nfs_dialect nfs4_dialect = {
	.data = {
		.read_head = NFS4_READ_HEAD,
		.encode_read = nfs4_encode_read,
		.take_read = nfs4_take_read,
		.encode_write = nfs4_encode_write,
		.take_write = nfs4_take_write,
	},
	.root = nfs4_root,
	.getattr = nfs4_getattr,
	.setattr = nfs4_setattr,
	.lookup = nfs4_lookup,
	.readlink = nfs4_readlink,
	.list = nfs4_list,
	.remove = nfs4_remove,
	.mkdir = nfs4_mkdir,
	.symlink = nfs4_symlink,
	.rename = nfs4_rename,
	.create = nfs4_create,
	.open = nfs4_open,
	.closed = state_unuse,
	.encode_commit = nfs4_encode_commit,
	.take_commit = nfs4_take_commit,
	.leave = state_leave,
	.start = state_start,
	.may_leave = state_may_leave,
	.stamp = state_stamp,
	.abandon = state_abandon,
};
