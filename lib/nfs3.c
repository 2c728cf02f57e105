// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* The procedures of NFSv3 (RFC 1813). */
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>

#include "batch.h"
#include "library.h"
#include "wait.h"

static const char *const names[] = {
	[NFS_NULL] = "NULL", [NFS_GETATTR] = "GETATTR", [NFS_SETATTR] = "SETATTR", [NFS_LOOKUP] = "LOOKUP",
	[NFS_READLINK] = "READLINK", [NFS_READ] = "READ", [NFS_WRITE] = "WRITE", [NFS_CREATE] = "CREATE",
	[NFS_MKDIR] = "MKDIR", [NFS_SYMLINK] = "SYMLINK", [NFS_REMOVE] = "REMOVE", [NFS_RMDIR] = "RMDIR",
	[NFS_RENAME] = "RENAME", [NFS_READDIRPLUS] = "READDIRPLUS", [NFS_FSINFO] = "FSINFO",
	[NFS_COMMIT] = "COMMIT",
};

static int decode_results(struct nfsrdma_session *session, struct request *req, struct rpc_body *results)
{
	XDR xdr;
	int rc = 0;

	(void)session;
	if (results->left >= 4)
		rc = nfs_error(load32(results->at));
	if (rc == -EINPROGRESS)
		return rc;
	xdrmem_create(&xdr, (char *)results->at, results->left, XDR_DECODE);
	if (!req->decode(&xdr, req->results))
		return -EBADMSG;
	/* a long reply is in memory that the server still reaches: the status that was decoded counts */
	return req->results && nfs_error(*(u_int *)req->results) != rc ? -EBADMSG : rc;
}

static int encode_args(struct nfsrdma_session *session, struct request *req, uint32_t procedure,
		       xdrproc_t encode, const void *args)
{
	uint8_t *at = request_begin(session, req, procedure);
	uint32_t head = at - (req->message + HEADER_ROOM);
	XDR xdr;

	xdrmem_create(&xdr, (char *)at, CALL_MAX - head, XDR_ENCODE);
	if (!encode(&xdr, (void *)args))
		return -ENAMETOOLONG;
	req->length = head + xdr_getpos(&xdr);
	return 0;
}

/* A request with its message, see nfs3_call() */
static int start_call(struct nfsrdma_session *session, enum nfs_procedure procedure, const char *path,
		      xdrproc_t encode, const void *args, xdrproc_t decode, void *results, uint32_t bytes,
		      struct request **request)
{
	struct request *req;
	int rc;

	if (session->dialect != &nfs3_dialect && procedure != NFS_NULL)
		return fail(-EOPNOTSUPP, "%s %s: a session with NFSv4.1", names[procedure], path);
	req = wait_take(session);
	if (!req)
		return wait_no_slot(session);
	req->finish = decode_results;
	req->decode = decode ? decode : nfs_xdr_nothing;
	req->results = results;
	rc = encode_args(session, req, procedure, encode ? encode : nfs_xdr_nothing, args);
	request_expect(req, bytes ? bytes : REPLY_SMALL);
	if (rc) {
		request_release(session, req);
		return fail(rc, "%s %s: %s", names[procedure], path, strerror(-rc));
	}
	*request = req;
	return 0;
}

/**
 * nfs3_call - call a procedure and wait for its results
 * @session: session
 * @procedure: see enum nfs_procedure
 * @path: what the call is about, for messages; may be empty
 * @encode: encodes the arguments; NULL if there are none
 * @args: arguments
 * @decode: decodes the results, whose first word is their status; NULL if there are none
 * @results: results, all zero; the caller frees them with xdr_free(3), after an error too
 * @bytes: of the longest results; 0 for results of little more than attributes
 *
 * Return: 0, or a negative errno value, also for the status of the results.
 */
int nfs3_call(struct nfsrdma_session *session, enum nfs_procedure procedure, const char *path,
	     xdrproc_t encode, const void *args, xdrproc_t decode, void *results, uint32_t bytes)
{
	struct request *req = NULL;
	int rc = start_call(session, procedure, path, encode, args, decode, results, bytes, &req);

	if (rc)
		return rc;
	rc = wait_call(session, req);
	request_release(session, req);
	/* what ended the connection has its message already */
	if (rc && rc != -ETIMEDOUT && rc != -EBADMSG && rc != -EPROTONOSUPPORT)
		fail(rc, "%s%s%s: %s", names[procedure], *path ? " " : "", path, strerror(-rc));
	return rc;
}

/**
 * nfs3_prepare - add a call of a procedure to the next batch
 * @session: session
 * @procedure: see enum nfs_procedure
 * @encode: see nfs3_call(), and so on
 * @args: the same; the call does not use them any more when this returns
 * @decode: the same
 * @results: the same; when the completion has been reported, the caller frees them
 * @bytes: the same
 * @user_data: value that the completion returns
 *
 * Return: 0, or a negative errno value as nfsrdma_prepare_read().
 */
int nfs3_prepare(struct nfsrdma_session *session, enum nfs_procedure procedure, xdrproc_t encode, const void *args,
		 xdrproc_t decode, void *results, uint32_t bytes, uint64_t user_data)
{
	struct request *req = NULL;
	int rc = batch_room(session);

	if (!rc)
		rc = start_call(session, procedure, "", encode, args, decode, results, bytes, &req);
	if (!rc)
		nfs_prepare(session, req, user_data);
	return rc;
}

/* NULL of NFSv3, which servers answer whatever the session's version */
int nfs3_null(struct nfsrdma_session *session)
{
	return nfs3_call(session, NFS_NULL, "", NULL, NULL, NULL, NULL, 0);
}

/* --- what both versions have --- */

static int nfs3_getattr(struct nfsrdma_session *session, const char *path, const fh3 *fh, attr3 *attr)
{
	getattr3_res res = {};
	int rc = nfs3_call(session, NFS_GETATTR, path, (xdrproc_t)xdr_fh3, fh,
			  (xdrproc_t)xdr_getattr3_res, &res, 0);

	if (!rc)
		*attr = res.getattr3_res_u.attr;
	xdr_free((xdrproc_t)xdr_getattr3_res, (char *)&res);
	return rc;
}

static int nfs3_lookup(struct nfsrdma_session *session, const char *path, const fh3 *dir, const char *name,
		       struct nfs_fh *fh, attr3 *attr)
{
	dirop3 args = {*dir, (char *)name};
	lookup3_res res = {};
	lookup3_ok *ok = &res.lookup3_res_u.ok;
	int rc = nfs3_call(session, NFS_LOOKUP, path, (xdrproc_t)xdr_dirop3, &args,
			  (xdrproc_t)xdr_lookup3_res, &res, 0);
	bool attributes = !rc && ok->attr.present;
	fh3 found;

	if (!rc)
		*fh = nfs_fh_of(&ok->fh);
	if (attributes)
		*attr = ok->attr.post_attr3_u.attr;
	xdr_free((xdrproc_t)xdr_lookup3_res, (char *)&res);
	found = nfs_fh3(fh);
	return rc || attributes ? rc : nfs3_getattr(session, path, &found, attr);
}

static int nfs3_readlink(struct nfsrdma_session *session, const char *path, const fh3 *fh, char **text)
{
	readlink3_res res = {};
	int rc = nfs3_call(session, NFS_READLINK, path, (xdrproc_t)xdr_fh3, fh,
			  (xdrproc_t)xdr_readlink3_res, &res, PATH_MAX_BYTES + 128);

	if (!rc) {
		*text = strdup(res.readlink3_res_u.ok.path);
		rc = *text ? 0 : fail_no_memory();
	}
	xdr_free((xdrproc_t)xdr_readlink3_res, (char *)&res);
	return rc;
}

static int nfs3_list(struct nfsrdma_session *session, const readdirplus3_args *args, readdirplus3_res *res)
{
	return nfs3_call(session, NFS_READDIRPLUS, "", (xdrproc_t)xdr_readdirplus3_args, args,
			(xdrproc_t)xdr_readdirplus3_res, res, args->maxcount);
}

set3 nfs3_mode(mode_t mode)
{
	return (set3){.mode = {TRUE, {mode & 07777}}};
}

/* SETATTR, REMOVE and RMDIR have results of one form, of which only the status counts */
static int call_for_status(struct nfsrdma_session *session, const char *path, enum nfs_procedure procedure,
		       xdrproc_t encode, const void *args)
{
	wcc3_res res = {};
	int rc = nfs3_call(session, procedure, path, encode, args, (xdrproc_t)xdr_wcc3_res, &res, 0);

	xdr_free((xdrproc_t)xdr_wcc3_res, (char *)&res);
	return rc;
}

static int nfs3_setattr(struct nfsrdma_session *session, const char *path, const struct nfs_fh *fh, const set3 *attr)
{
	setattr3_args args = {.fh = nfs_fh3(fh), .attr = *attr};

	return call_for_status(session, path, NFS_SETATTR, (xdrproc_t)xdr_setattr3_args, &args);
}

static int nfs3_remove(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		       bool directory)
{
	dirop3 args = {nfs_fh3(dir), (char *)name};

	return call_for_status(session, path, directory ? NFS_RMDIR : NFS_REMOVE, (xdrproc_t)xdr_dirop3, &args);
}

/* CREATE, MKDIR and SYMLINK have results of one form; @fh may be NULL, and gets no bytes if the server sent none */
static int make_name(struct nfsrdma_session *session, const char *path, enum nfs_procedure procedure,
		     xdrproc_t encode, const void *args, struct nfs_fh *fh)
{
	create3_res res = {};
	int rc = nfs3_call(session, procedure, path, encode, args, (xdrproc_t)xdr_create3_res, &res, 0);

	if (!rc && fh)
		*fh = res.create3_res_u.ok.fh.present ? nfs_fh_of(&res.create3_res_u.ok.fh.post_fh3_u.fh) :
							(struct nfs_fh){};
	xdr_free((xdrproc_t)xdr_create3_res, (char *)&res);
	return rc;
}

static int nfs3_mkdir(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		      mode_t mode)
{
	mkdir3_args args = {{nfs_fh3(dir), (char *)name}, nfs3_mode(mode)};

	return make_name(session, path, NFS_MKDIR, (xdrproc_t)xdr_mkdir3_args, &args, NULL);
}

static int nfs3_symlink(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
			const char *text)
{
	symlink3_args args = {{nfs_fh3(dir), (char *)name}, nfs3_mode(0777), (char *)text};

	return make_name(session, path, NFS_SYMLINK, (xdrproc_t)xdr_symlink3_args, &args, NULL);
}

static int nfs3_rename(struct nfsrdma_session *session, const char *path, const struct nfs_fh *from, const char *old,
		       const struct nfs_fh *to, const char *new)
{
	rename3_args args = {{nfs_fh3(from), (char *)old}, {nfs_fh3(to), (char *)new}};
	rename3_res res = {};
	int rc = nfs3_call(session, NFS_RENAME, path, (xdrproc_t)xdr_rename3_args, &args,
			  (xdrproc_t)xdr_rename3_res, &res, 0);

	xdr_free((xdrproc_t)xdr_rename3_res, (char *)&res);
	return rc;
}

static int nfs3_create(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		       int flags, mode_t mode, struct nfs_fh *fh)
{
	create3_args args = {{nfs_fh3(dir), (char *)name}, {.mode = CREATE_GUARDED}};
	set3 attr = nfs3_mode(mode);
	attr3 found;
	int rc;

	if (flags & O_EXCL) {
		args.how.mode = CREATE_EXCLUSIVE;
		if (getrandom(args.how.create3_how_u.verf, sizeof(verf3), 0) != sizeof(verf3))
			return fail(-EIO, "getrandom: %s", strerror(errno));
		/* the server keeps the verifier in the times */
		attr.atime = 1;
		attr.mtime = 1;
	} else {
		args.how.create3_how_u.attr = attr;
	}
	rc = make_name(session, path, NFS_CREATE, (xdrproc_t)xdr_create3_args, &args, fh);
	if (!rc && !fh->length)
		rc = nfs3_lookup(session, path, &args.where.dir, name, fh, &found);
	if (!rc && flags & O_EXCL)
		rc = nfs3_setattr(session, path, fh, &attr);
	return rc;
}

/* The mount daemon has the file handle, FSINFO the limits */
static int nfs3_root(struct nfsrdma_session *session)
{
	fsinfo3_res res = {};
	fsinfo3_ok *ok = &res.fsinfo3_res_u.ok;
	int rc = mount_root(session);

	if (!rc)
		rc = nfs3_call(session, NFS_FSINFO, session->directory, (xdrproc_t)xdr_fh3, &session->root,
			      (xdrproc_t)xdr_fsinfo3_res, &res, 0);
	if (!rc) {
		session->read_max = io_limit(ok->rtmax);
		session->write_max = io_limit(ok->wtmax);
		session->list_max = ok->dtpref && ok->dtpref < LIST_MAX ? ok->dtpref : LIST_MAX;
		if (!session->read_max || !session->write_max)
			rc = fail(-EBADMSG, "%s: the server says that reads are 0 bytes long", session->host);
	}
	xdr_free((xdrproc_t)xdr_fsinfo3_res, (char *)&res);
	return rc;
}

static void nfs3_encode_read(struct nfsrdma_session *session, struct request *req, uint64_t offset)
{
	const struct nfs_fh *fh = &req->io.file->fh;
	uint8_t *at = put_opaque(request_begin(session, req, NFS_READ), fh->bytes, fh->length);

	at = put64(at, offset);
	at = put32(at, req->io.count);
	req->length = at - (req->message + HEADER_ROOM);
}

/* Attributes in the results of a READ, of which only nlink counts */
static bool take_links(struct rpc_body *results, struct inode *inode)
{
	const uint8_t *attr = results->at + 4;

	if (!skip_optional(results, NFS_ATTR_BYTES))
		return false;
	if (results->at != attr && !load32(attr + NFS_AT_NLINK))
		inode->unlinked = true;
	return true;
}

static int nfs3_take_read(struct nfsrdma_session *session, struct request *req, struct rpc_body *results,
			  uint32_t *count, uint32_t *eof)
{
	uint32_t status, length;

	(void)session;
	if (!take32(results, &status) || !take_links(results, req->io.file->inode))
		return -EBADMSG;
	if (status)
		return nfs_error(status);
	if (!take32(results, count) || !take32(results, eof) || *eof > 1 || !take32(results, &length) ||
	    length != *count)
		return -EBADMSG;
	return 0;
}

static void nfs3_encode_write(struct nfsrdma_session *session, struct request *req, uint64_t offset, uint32_t stable)
{
	const struct nfs_fh *fh = &req->io.file->fh;
	uint8_t *at = put_opaque(request_begin(session, req, NFS_WRITE), fh->bytes, fh->length);

	at = put64(at, offset);
	at = put32(at, req->io.count);
	at = put32(at, stable);
	at = put32(at, req->io.count);
	req->length = at - (req->message + HEADER_ROOM);
}

static bool take_verifier(struct rpc_body *results, const uint8_t **verifier)
{
	*verifier = results->at;
	return skip(results, NFS_VERIFIER);
}

static int nfs3_take_write(struct nfsrdma_session *session, struct request *req, struct rpc_body *results,
			   struct written *written)
{
	uint32_t status;

	(void)session, (void)req;
	if (!take32(results, &status) || !skip_optional(results, NFS_PRE_ATTR_BYTES) ||
	    !skip_optional(results, NFS_ATTR_BYTES))
		return -EBADMSG;
	if (status)
		return nfs_error(status);
	if (!take32(results, &written->count) || !take32(results, &written->committed) ||
	    !take_verifier(results, &written->verifier))
		return -EBADMSG;
	return 0;
}

static void nfs3_encode_commit(struct nfsrdma_session *session, struct request *req)
{
	const struct nfs_fh *fh = &req->io.file->fh;
	uint8_t *at = put_opaque(request_begin(session, req, NFS_COMMIT), fh->bytes, fh->length);

	/* all of the file */
	at = put64(at, 0);
	at = put32(at, 0);
	req->length = at - (req->message + HEADER_ROOM);
}

static int nfs3_take_commit(struct nfsrdma_session *session, struct request *req, struct rpc_body *results,
			    const uint8_t **verifier)
{
	uint32_t status;

	(void)session, (void)req;
	if (!take32(results, &status) || !skip_optional(results, NFS_PRE_ATTR_BYTES) ||
	    !skip_optional(results, NFS_ATTR_BYTES))
		return -EBADMSG;
	if (status)
		return nfs_error(status);
	return take_verifier(results, verifier) ? 0 : -EBADMSG;
}

const struct nfs_dialect nfs3_dialect = {
	.data = {
		.read_head = NFR_WIRE_READ_ANSWER,
		.encode_read = nfs3_encode_read,
		.take_read = nfs3_take_read,
		.encode_write = nfs3_encode_write,
		.take_write = nfs3_take_write,
	},
	.root = nfs3_root,
	.getattr = nfs3_getattr,
	.setattr = nfs3_setattr,
	.lookup = nfs3_lookup,
	.readlink = nfs3_readlink,
	.list = nfs3_list,
	.remove = nfs3_remove,
	.mkdir = nfs3_mkdir,
	.symlink = nfs3_symlink,
	.rename = nfs3_rename,
	.create = nfs3_create,
	.encode_commit = nfs3_encode_commit,
	.take_commit = nfs3_take_commit,
};
