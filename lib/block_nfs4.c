// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * The steps of operations on blocks with NFSv4.1 (RFC 8881).  A step is one COMPOUND, or the READs or WRITEs of the
 * block, each of which is one.
 *
 *	GET	FIND* FETCH [READ]
 *	PUT	(FIND | MKDIR)* STORE
 *	PUT	(FIND | MKDIR)* CREATE WRITE [COMMIT] RENAME, if one WRITE has no room for the block
 *	EXISTS	FIND*
 *	REMOVE	FIND* REMOVE
 *
 * FETCH looks up the block and reads its begin.  READ is its last operation, so that a server need not copy the data,
 * and the only one, because nfsd returns wrong bytes for more than one in a COMPOUND.  The first READ by a file handle
 * of the table follows GETATTR of the link count: a file that was replaced outlives its name while anyone has it open.
 *
 * STORE opens the draft, writes, closes and renames it.  VERIFY of its size follows WRITE: a server that has written
 * fewer bytes ends there, and a step WRITE follows.  A block with a trailer would be two WRITEs: what nfsd stored of
 * those failed its checksum.  COMMIT is no part of RENAME, because its verifier has to be that of the WRITEs before the
 * block may be replaced.
 *
 * The stateid of a draft is of use to the session that has opened it.  If the server does not know it any more, the put
 * begins again, which does no harm: each step may be executed twice, by UNCHECKED4.  DISCARD opens the draft by its
 * name, and gets the same stateid, because the reply of the OPEN before may be lost; CLOSE ends both.
 */
#include <fcntl.h>
#include <string.h>

#include "block.h"
#include "compound.h"

/* Bytes of a reply with LOOKUP, GETFH and GETATTR in front of the data of a READ */
#define FETCH_HEAD	(NFS4_READ_HEAD + 8 + 12 + FH_MAX + 8 + 20 + 12)

/* Bytes of a reply with GETATTR of the link count in front of the data of a READ */
#define READ_CACHED_HEAD	(NFS4_READ_HEAD + 8 + 12 + 8)

/* Operations of a STORE, and bytes of its message without data, at most */
#define STORE_OPERATIONS	10
#define STORE_HEAD		2048

/* --- what is in more than one COMPOUND --- */

/* @operation, and the last component as its argument */
static uint8_t *put_component(const struct block_op *op, uint8_t *at, uint32_t operation)
{
	char name[NAME_MAX_BYTES + 1];

	block_step_component(op, name);
	return compound_put_name(put32(at, operation), name);
}

static uint8_t *put_lookup(const struct block_op *op, uint8_t *at)
{
	at = put32(put_component(op, at, OP_LOOKUP), OP_GETFH);
	return compound_put_bitmap(put32(at, OP_GETATTR), BIT(ATTR_TYPE) | BIT(ATTR_SIZE));
}

static int take_lookup(struct rpc_body *body, struct block_found *found)
{
	const uint64_t needed = BIT(ATTR_TYPE) | BIT(ATTR_SIZE);
	struct nfs4_attributes attributes;
	int rc = compound_take_op(body, OP_LOOKUP);

	/* of a COMPOUND that failed behind that, and was sent again */
	found->known = false;
	if (!rc)
		rc = compound_take_fh(body, &found->fh);
	if (!rc)
		rc = compound_take_op(body, OP_GETATTR);
	if (rc)
		return rc;
	if (!compound_take_attributes(body, &attributes) || (attributes.present & needed) != needed)
		return -EBADMSG;
	found->known = true;
	found->type = attributes.attr.type;
	found->size = attributes.attr.size;
	return 0;
}

/* Begin a COMPOUND of SEQUENCE, PUTFH and more */
static int begin(struct block_op *op, const struct nfs_fh *fh, uint32_t operations, struct request **req, uint8_t **at)
{
	return nfs4_begin(op->member->session, fh, operations, req, at);
}

/* The same of a change, which a server must not execute twice: it keeps the reply */
static int begin_change(struct block_op *op, const struct nfs_fh *fh, uint32_t operations, struct request **req,
			uint8_t **at)
{
	int rc = begin(op, fh, operations, req, at);

	if (!rc)
		(*req)->kept = true;
	return rc;
}

/* Begin a COMPOUND that moves data; @operations: all of them */
static uint8_t *begin_in_dir(struct nfsrdma_session *session, struct request *req, uint32_t operations)
{
	const struct block_op *op = req->results;
	fh3 dir = nfs_fh3(&op->dir);

	req->root = !dir.fh3_len;
	return compound_put_fh(compound_begin_sequence(session, req, operations), &dir);
}

/* The message of begin() ends at @at; @parse gets the operation */
static int end(struct nfsrdma_blocks *store, struct block_op *op, struct request *req, const uint8_t *at,
	       int (*parse)(struct nfsrdma_session *, struct rpc_body *, void *))
{
	nfs4_prepare(op->member->session, req, at, parse, op, block_tag(store, op, 0));
	op->pending++;
	return 0;
}

/* --- FIND --- */

static int parse_find(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	struct block_op *op = results;

	(void)session;
	return take_lookup(body, &op->results.found);
}

static int prepare_find4(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct request *req;
	uint8_t *at;
	int rc = begin(op, &op->dir, 3, &req, &at);

	return rc ? rc : end(store, op, req, put_lookup(op, at), parse_find);
}

static enum block_state find_ended4(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct block_found *found = &op->results.found;

	if (op->error)
		return block_step_not_found(store, op);
	op->file.fh = found->fh;
	return block_step_found(store, op, found->type, found->size);
}

/* --- FETCH --- */

static void encode_fetch(struct nfsrdma_session *session, struct request *req, uint64_t offset)
{
	const struct block_op *op = req->results;
	uint8_t *at = begin_in_dir(session, req, 6);

	at = put32(put_lookup(op, at), OP_READ);
	compound_end(req, compound_put_read(session, req, at, NULL, offset));
}

static int take_fetch(struct nfsrdma_session *session, struct request *req, struct rpc_body *body, uint32_t *count,
		      uint32_t *eof)
{
	struct block_op *op = req->results;
	struct block_found *found = &op->results.found;
	int rc = nfs4_take_begin(session, req, body);

	if (!rc)
		rc = take_lookup(body, found);
	if (!rc)
		rc = compound_take_op(body, OP_READ);
	if (!rc)
		rc = compound_take_read(body, count, eof);
	if (rc)
		return rc;
	found->count = *count;
	found->eof = *eof;
	return 0;
}

static const struct io_form fetch_form = {
	.read_head = FETCH_HEAD, .encode_read = encode_fetch, .take_read = take_fetch,
};

static int prepare_fetch(struct nfsrdma_blocks *store, struct block_op *op)
{
	uint32_t most = block_step_part(op, op->length, op->member->session->read_max);
	int rc;

	/* no file yet */
	op->file.fh = op->dir;
	block_step_set_file(op, O_RDONLY);
	rc = io_prepare(&op->file, IO_READ, op->buf, op->length < most ? op->length : most, &fetch_form, op,
			block_tag(store, op, 0));
	if (!rc)
		op->pending++;
	return rc;
}

static enum block_state fetch_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct block_found *found = &op->results.found;
	enum block_state next;

	if (op->error && !found->known)
		return block_step_not_found(store, op);
	/* of what is no file, the type says more than the error of the READ */
	if (op->error && found->type == TYPE_FILE)
		return block_step_failed(store, op);
	op->file.fh = found->fh;
	next = block_step_found(store, op, found->type, found->size);
	return next == STEP_READ ? block_step_read_on(store, op, found->count, found->eof) : next;
}

/* --- READ by a file handle of the table --- */

static void encode_read_cached(struct nfsrdma_session *session, struct request *req, uint64_t offset)
{
	fh3 fh = nfs_fh3(&req->io.file->fh);
	uint8_t *at = compound_put_fh(compound_begin_sequence(session, req, 4), &fh);

	at = compound_put_bitmap(put32(at, OP_GETATTR), BIT(ATTR_NUMLINKS));
	compound_end(req, compound_put_read(session, req, put32(at, OP_READ), NULL, offset));
}

static int take_read_cached(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			    uint32_t *count, uint32_t *eof)
{
	struct nfs4_attributes attributes;
	int rc = nfs4_take_begin(session, req, body);

	if (!rc)
		rc = compound_take_op(body, OP_GETATTR);
	if (rc)
		return rc;
	if (!compound_take_attributes(body, &attributes))
		return -EBADMSG;
	if (attributes.present & BIT(ATTR_NUMLINKS) && !attributes.attr.nlink)
		req->io.file->inode->unlinked = true;
	rc = compound_take_op(body, OP_READ);
	return rc ? rc : compound_take_read(body, count, eof);
}

static const struct io_form read_cached_form = {
	.read_head = READ_CACHED_HEAD, .encode_read = encode_read_cached, .take_read = take_read_cached,
};

/* --- MKDIR --- */

static int parse_mkdir(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	struct block_op *op = results;
	int rc = compound_take_create(body);

	(void)session;
	return rc ? rc : compound_take_fh(body, &op->results.found.fh);
}

static int prepare_mkdir4(struct nfsrdma_blocks *store, struct block_op *op)
{
	set3 attr = nfs3_mode(store->directory_mode);
	char name[NAME_MAX_BYTES + 1];
	struct request *req;
	uint8_t *at;
	int rc = begin_change(op, &op->dir, 2, &req, &at);

	if (rc)
		return rc;
	block_step_component(op, name);
	at = compound_put_name(put32(put32(at, OP_CREATE), NF4DIR), name);
	return end(store, op, req, put32(compound_put_settable(at, &attr), OP_GETFH), parse_mkdir);
}

static enum block_state mkdir_ended4(struct nfsrdma_blocks *store, struct block_op *op)
{
	return block_step_made(store, op, &op->results.found.fh);
}

/* --- the draft: CREATE, STORE, RENAME, DISCARD --- */

static uint8_t *put_current_stateid(uint8_t *at)
{
	at = put32(at, 1);
	return put64(put32(at, 0), 0);
}

/* OPEN the draft, and GETFH */
static uint8_t *put_open(const struct nfsrdma_blocks *store, const struct block_op *op, uint8_t *at, uint32_t how)
{
	set3 attr = nfs3_mode(store->file_mode);
	char name[NAME_MAX_BYTES + 1];

	at = put32(compound_put_open(at, OPEN4_SHARE_ACCESS_WRITE), how);
	if (how == OPEN4_CREATE)
		at = compound_put_settable(put32(at, UNCHECKED4), &attr);
	block_step_draft(store, op, name, sizeof(name));
	return put32(compound_put_name(put32(at, CLAIM_NULL), name), OP_GETFH);
}

static int take_open(struct nfsrdma_session *session, struct rpc_body *body, struct block_op *op)
{
	struct block_found *found = &op->results.found;
	struct opened opened;
	int rc = compound_take_open(body, &opened);

	found->known = false;
	if (!rc)
		rc = compound_take_fh(body, &found->fh);
	if (!rc && opened.delegated)
		rc = state_return(session, &found->fh, &opened);
	if (rc)
		return rc == NO_STATE ? -ESTALE : rc;
	found->known = true;
	op->open = (struct nfs4_open){.state = OPEN_FAILED, .error = -ESTALE};
	memcpy(op->open.stateid, opened.stateid, sizeof(op->open.stateid));
	return 0;
}

/* CLOSE; its stateid follows */
static uint8_t *put_close(uint8_t *at)
{
	return put32(put32(at, OP_CLOSE), 0);
}

static int take_close(struct rpc_body *body)
{
	int rc = compound_take_op(body, OP_CLOSE);

	return rc || skip(body, NFS4_STATEID) ? rc : -EBADMSG;
}

static uint8_t *put_rename(const struct nfsrdma_blocks *store, const struct block_op *op, uint8_t *at)
{
	char name[NAME_MAX_BYTES + 1];

	block_step_draft(store, op, name, sizeof(name));
	at = compound_put_name(put32(at, OP_RENAME), name);
	block_step_component(op, name);
	return compound_put_name(at, name);
}

static int take_rename(struct rpc_body *body)
{
	int rc = compound_take_op(body, OP_RENAME);

	/* another client removed the draft, or an earlier copy of the call has renamed it: begin again */
	if (rc == -ENOENT)
		return -ESTALE;
	/* RFC 8881, section 18.26.3: the name is that of a directory */
	return rc == -EEXIST ? -EISDIR : rc;
}

/* --- CREATE --- */

static int parse_open_draft(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	return take_open(session, body, results);
}

static int prepare_create4(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct request *req;
	uint8_t *at;
	int rc = begin_change(op, &op->dir, 2, &req, &at);

	if (rc)
		return rc;
	block_step_begin_draft(store, op);
	op->drafted = true;
	return end(store, op, req, put_open(store, op, at, OPEN4_CREATE), parse_open_draft);
}

static enum block_state create_ended4(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return block_step_failed(store, op);
	op->file.fh = op->results.found.fh;
	return block_step_write(store, op);
}

/* --- STORE --- */

/* WRITE up to its data */
static uint8_t *put_write(uint8_t *at, uint64_t offset, uint32_t count)
{
	at = put64(put_current_stateid(put32(at, OP_WRITE)), offset);
	return put32(put32(at, FILE_SYNC), count);
}

/* VERIFY of the size */
static uint8_t *put_verify(uint8_t *at, uint64_t bytes)
{
	set3 size = {.size = {TRUE, {bytes}}};

	return compound_put_settable(put32(at, OP_VERIFY), &size);
}

static void encode_store(struct nfsrdma_session *session, struct request *req, uint64_t offset, uint32_t stable)
{
	const struct block_op *op = req->results;
	uint8_t *at = begin_in_dir(session, req, STORE_OPERATIONS);

	(void)stable;
	req->kept = true;
	at = put_open(op->store, op, put32(at, OP_SAVEFH), OPEN4_CREATE);
	compound_end(req, put_write(at, offset, req->io.count));
}

static uint8_t *encode_store_rest(struct nfsrdma_session *session, struct request *req, uint8_t *at)
{
	const struct block_op *op = req->results;

	(void)session;
	at = put_verify(at, op->length);
	at = put32(put_current_stateid(put_close(at)), OP_RESTOREFH);
	return put_rename(op->store, op, at);
}

/* WRITE and VERIFY; @whole: all of the bytes were written */
static int take_written(struct rpc_body *body, struct written *written, bool *whole)
{
	uint32_t status;
	int rc = compound_take_op(body, OP_WRITE);

	if (rc)
		return rc;
	if (!take32(body, &written->count) || !take32(body, &written->committed))
		return -EBADMSG;
	written->verifier = body->at;
	if (!skip(body, NFS_VERIFIER) || !compound_take_status(body, OP_VERIFY, &status))
		return -EBADMSG;
	*whole = !status;
	return status == NFS4ERR_NOT_SAME ? 0 : compound_error(status);
}

/* CLOSE, RESTOREFH and RENAME */
static int take_store_rest(struct rpc_body *body, struct block_found *found)
{
	int rc = take_close(body);

	if (!rc)
		rc = compound_take_op(body, OP_RESTOREFH);
	if (!rc)
		rc = take_rename(body);
	found->stored = !rc;
	return rc;
}

static int take_store(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
		      struct written *written)
{
	struct block_op *op = req->results;
	bool whole = false;
	int rc = nfs4_take_begin(session, req, body);

	op->results.found.stored = false;
	if (!rc)
		rc = compound_take_op(body, OP_SAVEFH);
	if (!rc)
		rc = take_open(session, body, op);
	if (!rc)
		rc = take_written(body, written, &whole);
	if (!rc && whole)
		rc = take_store_rest(body, &op->results.found);
	/* the stateid is lost between two operations: begin again */
	return rc == NO_STATE ? -ESTALE : rc;
}

static const struct io_form store_form = {
	.encode_write = encode_store, .encode_rest = encode_store_rest, .take_write = take_store,
};

static int prepare_store(struct nfsrdma_blocks *store, struct block_op *op)
{
	int rc;

	/* no file yet */
	op->file.fh = op->dir;
	block_step_set_file(op, O_WRONLY | O_SYNC);
	block_step_begin_draft(store, op);
	rc = io_prepare(&op->file, IO_WRITE, op->buf, op->length, &store_form, op, block_tag(store, op, 0));
	if (rc)
		return rc;
	op->drafted = true;
	op->pending++;
	return 0;
}

static enum block_state store_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct block_found *found = &op->results.found;

	if (op->error)
		return block_step_failed(store, op);
	op->file.fh = found->fh;
	return found->stored ? block_step_put(store, op) : block_step_write(store, op);
}

/* Has a STORE room for the block? */
static bool may_store(const struct block_op *op)
{
	const struct nfsrdma_session *session = op->member->session;

	return !op->store->options.checksum && session->nfs4.operations >= STORE_OPERATIONS &&
	       op->length <= block_step_part(op, op->length, session->write_max) &&
	       op->length + STORE_HEAD <= session->nfs4.request_max;
}

/* --- RENAME --- */

static int parse_rename_draft(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	const struct block_op *op = results;
	int rc = take_close(body);

	(void)session;
	if (!rc)
		rc = compound_take_op(body, op->dir.length ? OP_PUTFH : OP_PUTROOTFH);
	if (!rc)
		rc = compound_take_op(body, OP_SAVEFH);
	return rc ? rc : take_rename(body);
}

static int prepare_rename4(struct nfsrdma_blocks *store, struct block_op *op)
{
	fh3 dir = nfs_fh3(&op->dir);
	struct request *req;
	uint8_t *at;
	int rc = begin_change(op, &op->file.fh, 4, &req, &at);

	if (rc)
		return rc;
	at = compound_put_stateid(op->member->session, req, put_close(at), &op->inode);
	at = put32(compound_put_fh(at, &dir), OP_SAVEFH);
	return end(store, op, req, put_rename(store, op, at), parse_rename_draft);
}

static enum block_state rename_ended4(struct nfsrdma_blocks *store, struct block_op *op)
{
	return op->error ? block_step_failed(store, op) : block_step_put(store, op);
}

/* --- DISCARD --- */

static int parse_discard(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	int rc = compound_take_op(body, OP_SAVEFH);

	if (!rc)
		rc = take_open(session, body, results);
	if (!rc)
		rc = take_close(body);
	if (!rc)
		rc = compound_take_op(body, OP_RESTOREFH);
	return rc ? rc : compound_take_op(body, OP_REMOVE);
}

static int prepare_discard4(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];
	struct request *req;
	uint8_t *at;
	int rc = begin_change(op, &op->draft_dir, 6, &req, &at);

	if (rc)
		return rc;
	at = put_open(store, op, put32(at, OP_SAVEFH), OPEN4_NOCREATE);
	at = put32(put_current_stateid(put_close(at)), OP_RESTOREFH);
	block_step_draft(store, op, name, sizeof(name));
	return end(store, op, req, compound_put_name(put32(at, OP_REMOVE), name), parse_discard);
}

static enum block_state discard_ended4(struct nfsrdma_blocks *store, struct block_op *op)
{
	(void)store;
	/* the session has no connection: its deadline ends that */
	if (op->error == -ETIMEDOUT && !op->stopped)
		return STEP_DISCARD;
	op->drafted = false;
	return STEP_DONE;
}

/* --- REMOVE --- */

static int parse_remove_block(struct nfsrdma_session *session, struct rpc_body *body, void *results)
{
	int rc = compound_take_op(body, OP_SAVEFH);
	uint32_t status;

	(void)session, (void)results;
	if (!rc)
		rc = compound_take_op(body, OP_LOOKUP);
	if (rc)
		return rc;
	if (!compound_take_status(body, OP_NVERIFY, &status))
		return -EBADMSG;
	if (status)
		return status == NFS4ERR_SAME ? -EISDIR : compound_error(status);
	rc = compound_take_op(body, OP_RESTOREFH);
	return rc ? rc : compound_take_op(body, OP_REMOVE);
}

/* NVERIFY ends it at a directory, which REMOVE would remove */
static int prepare_remove4(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct request *req;
	uint8_t *at;
	int rc = begin_change(op, &op->dir, 5, &req, &at);

	if (rc)
		return rc;
	at = put_component(op, put32(at, OP_SAVEFH), OP_LOOKUP);
	at = compound_put_bitmap(put32(at, OP_NVERIFY), BIT(ATTR_TYPE));
	at = put32(put32(put32(at, 4), NF4DIR), OP_RESTOREFH);
	return end(store, op, req, put_component(op, at, OP_REMOVE), parse_remove_block);
}

/* --- all of them --- */

static const struct block_step steps[] = {
	[STEP_FIND] = {NULL, prepare_find4, find_ended4},
	[STEP_MKDIR] = {NULL, prepare_mkdir4, mkdir_ended4},
	[STEP_FETCH] = {NULL, prepare_fetch, fetch_ended},
	[STEP_READ] = {NULL, block_step_prepare_parts, block_step_read},
	[STEP_STORE] = {NULL, prepare_store, store_ended},
	[STEP_CREATE] = {NULL, prepare_create4, create_ended4},
	[STEP_WRITE] = {NULL, block_step_prepare_parts, block_step_written},
	[STEP_COMMIT] = {NULL, block_step_prepare_commit, block_step_committed},
	[STEP_RENAME] = {NULL, prepare_rename4, rename_ended4},
	[STEP_REMOVE] = {NULL, prepare_remove4, block_step_removed},
	[STEP_DISCARD] = {NULL, prepare_discard4, discard_ended4},
};

static enum block_state last_component4(const struct block_op *op)
{
	switch (op->kind) {
	case NFSRDMA_BLOCK_GET:
		return STEP_FETCH;
	case NFSRDMA_BLOCK_PUT:
		return may_store(op) ? STEP_STORE : STEP_CREATE;
	case NFSRDMA_BLOCK_REMOVE:
		return STEP_REMOVE;
	}
	return STEP_FIND;
}

const struct block_dialect block_nfs4_dialect = {steps, last_component4, &read_cached_form, true};
