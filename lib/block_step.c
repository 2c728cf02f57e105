// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * The steps of operations on blocks.
 *
 * A step sends one request, or the READs or WRITEs of the block; what follows its end is in steps[].
 * With NFSv3 they are these; block_nfs4.c has those of NFSv4.1, and the functions that both have are here:
 *
 *	GET	FIND* READ
 *	PUT	(FIND | MKDIR)* CREATE [FIND_DRAFT] WRITE [COMMIT] RENAME [CHECK]
 *	EXISTS	FIND*
 *	REMOVE	FIND* REMOVE
 *
 * FIND looks up a component of the path that is not in the table of file handles, ATTRIBUTES follows if its reply has
 * none.  A file handle that is gone (-ESTALE) has the operation begin again, without what the table had.  A put that
 * fails ends with DISCARD, which removes the draft: the file that would have been renamed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "block.h"

/* How often an operation begins again because a file handle is gone, or a size has changed */
#define BEGIN_MOST		8

#define TRAILER_MAGIC		"NFSRBLK"
#define TRAILER_VERSION		1

#define DRAFT			".nfsrdma-"

/* The part of a transfer if the arena has to copy it: room for several */
#define ARENA_PARTS		8

/* --- paths --- */

static uint32_t component_length(const struct block_op *op)
{
	const char *start = op->path + op->at;

	return strchrnul(start, '/') - start;
}

static bool is_last(const struct block_op *op)
{
	return op->at + component_length(op) == op->path_length;
}

/* Is it a name that a block or a directory may have? */
static int check_component(const char *name, size_t length)
{
	if (length > NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	if (!length || (length <= 2 && !strncmp(name, "..", length)) ||
	    (length >= sizeof(DRAFT) - 1 && !memcmp(name, DRAFT, sizeof(DRAFT) - 1)))
		return -EINVAL;
	return 0;
}

int block_step_set_path(struct block_op *op, const char *name)
{
	size_t length = name ? strnlen(name, BLOCK_PATH_BYTES) : 0, at, end;
	int rc = length < BLOCK_PATH_BYTES ? 0 : -ENAMETOOLONG;

	for (at = 0; !rc && at <= length; at = end + 1) {
		end = at + strcspn(name ? name + at : "", "/");
		rc = check_component(name ? name + at : "", end - at);
	}
	if (rc)
		return rc;
	memcpy(op->path, name, length + 1);
	op->path_length = length;
	return 0;
}

/* The nearest directory above the block that the table has, and the component behind it */
static void find_above(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct block_entry *entry;
	uint32_t end = op->path_length;

	op->at = 0;
	op->dir = nfs_fh_of(&op->member->session->root);
	while (end) {
		while (end && op->path[end - 1] != '/')
			end--;
		if (!end)
			return;
		entry = handle_find(&store->handles, op->path, end - 1);
		if (entry && entry->directory) {
			op->at = end;
			op->dir = entry->fh;
			return;
		}
		end--;
	}
}

/* Forget the block and the directories above it */
static void forget_path(struct nfsrdma_blocks *store, const struct block_op *op)
{
	uint32_t end = op->path_length;

	while (end) {
		handle_forget(&store->handles, op->path, end);
		while (end && op->path[--end] != '/')
			;
	}
}

/* --- calls: each has a step --- */

static int prepare_call(struct nfsrdma_blocks *store, struct block_op *op, enum nfs_procedure procedure,
			xdrproc_t encode, const void *args)
{
	xdrproc_t decode = store->dialect->steps[op->step].decode;
	int rc = nfs3_prepare(op->member->session, procedure, encode, args, decode, &op->results, 0,
			      block_tag(store, op, 0));

	if (!rc)
		op->pending++;
	return rc;
}

static int prepare_dirop(struct nfsrdma_blocks *store, struct block_op *op, enum nfs_procedure procedure, char *name)
{
	dirop3 args = {nfs_fh3(&op->dir), name};

	return prepare_call(store, op, procedure, (xdrproc_t)xdr_dirop3, &args);
}

/* The component that is looked up or made */
void block_step_component(const struct block_op *op, char *name)
{
	uint32_t length = component_length(op);

	memcpy(name, op->path + op->at, length);
	name[length] = '\0';
}

void block_step_draft(const struct nfsrdma_blocks *store, const struct block_op *op, char *name, size_t room)
{
	snprintf(name, room, DRAFT "%016llx-%llx", (unsigned long long)store->own, (unsigned long long)op->draft);
}

static int prepare_find(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	block_step_component(op, name);
	return prepare_dirop(store, op, NFS_LOOKUP, name);
}

static int prepare_attributes(struct nfsrdma_blocks *store, struct block_op *op)
{
	fh3 args = nfs_fh3(&op->file.fh);

	return prepare_call(store, op, NFS_GETATTR, (xdrproc_t)xdr_fh3, &args);
}

static int prepare_mkdir(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];
	mkdir3_args args = {{nfs_fh3(&op->dir), name}, nfs3_mode(store->directory_mode)};

	block_step_component(op, name);
	return prepare_call(store, op, NFS_MKDIR, (xdrproc_t)xdr_mkdir3_args, &args);
}

static int prepare_remove(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	block_step_component(op, name);
	return prepare_dirop(store, op, NFS_REMOVE, name);
}

/* An operation that begins again has its draft already */
void block_step_begin_draft(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (!op->drafted)
		op->draft = ++store->drafts;
	op->draft_dir = op->dir;
}

/* UNCHECKED and without a size: a server that executes it twice finds the draft as it is */
static int prepare_create(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];
	create3_args args = {{nfs_fh3(&op->dir), name}, {.mode = CREATE_UNCHECKED}};
	int rc;

	args.how.create3_how_u.attr = nfs3_mode(store->file_mode);
	block_step_begin_draft(store, op);
	block_step_draft(store, op, name, sizeof(name));
	rc = prepare_call(store, op, NFS_CREATE, (xdrproc_t)xdr_create3_args, &args);
	if (!rc)
		op->drafted = true;
	return rc;
}

static int prepare_find_draft(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	block_step_draft(store, op, name, sizeof(name));
	return prepare_dirop(store, op, NFS_LOOKUP, name);
}

static int prepare_discard(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	block_step_draft(store, op, name, sizeof(name));
	op->dir = op->draft_dir;
	return prepare_dirop(store, op, NFS_REMOVE, name);
}

static int prepare_rename(struct nfsrdma_blocks *store, struct block_op *op)
{
	char draft[NAME_MAX_BYTES + 1], name[NAME_MAX_BYTES + 1];
	rename3_args args = {{nfs_fh3(&op->dir), draft}, {nfs_fh3(&op->dir), name}};

	block_step_draft(store, op, draft, sizeof(draft));
	block_step_component(op, name);
	return prepare_call(store, op, NFS_RENAME, (xdrproc_t)xdr_rename3_args, &args);
}

/* --- data --- */

static uint32_t trailer_bytes(const struct nfsrdma_blocks *store)
{
	return store->options.checksum ? BLOCK_TRAILER_BYTES : 0;
}

/* The trailer of the first @length bytes of an operation's memory */
static void fill_trailer(const struct block_op *op, uint64_t length, uint8_t *trailer)
{
	uint8_t *at;

	memset(trailer, 0, BLOCK_TRAILER_BYTES);
	memcpy(trailer, TRAILER_MAGIC, sizeof(TRAILER_MAGIC));
	at = put32(trailer + sizeof(TRAILER_MAGIC), TRAILER_VERSION);
	at = put32(at, crc32c_of(op->buf, length));
	put64(at, length);
}

/* The file of an operation's READs or WRITEs, which no table has */
void block_step_set_file(struct block_op *op, int flags)
{
	struct nfs_fh fh = op->file.fh;

	op->inode = (struct inode){.fh = fh, .users = 1, .open = &op->open};
	op->file = (struct nfsrdma_file){
		.session = op->member->session, .fh = fh, .flags = flags, .users = 1, .inode = &op->inode,
	};
}

/* Bytes of a READ or WRITE, of @length to come */
uint32_t block_step_part(const struct block_op *op, uint64_t length, uint32_t most)
{
	struct nfsrdma_session *session = op->member->session;
	uint32_t copied = session->arena_bytes / ARENA_PARTS;

	if (memory_find(session, op->buf, length))
		return most;
	if (copied < BLOCK_BYTES)
		copied = BLOCK_BYTES;
	return most < copied ? most : copied;
}

/* Where the READ or WRITE ends that has the byte at @offset */
static uint64_t part_end(const struct nfsrdma_blocks *store, const struct block_op *op, uint64_t offset)
{
	uint64_t data = op->size - trailer_bytes(store), end;

	if (offset >= data)
		return op->size;
	end = (offset / op->part + 1) * op->part;
	return end < data ? end : data;
}

int block_step_prepare_part(struct nfsrdma_blocks *store, struct block_op *op, uint64_t offset)
{
	uint64_t data = op->size - trailer_bytes(store), count = part_end(store, op, offset) - offset;
	uint8_t *at = offset < data || !trailer_bytes(store) ? op->buf + offset : op->trailer + (offset - data);
	uint64_t tag = block_tag(store, op, offset);

	if (op->step == STEP_READ && op->cached && !offset && store->dialect->read_cached)
		return io_prepare(&op->file, IO_READ, at, count, store->dialect->read_cached, NULL, tag);
	if (op->step == STEP_READ)
		return nfsrdma_prepare_read(&op->file, at, count, offset, tag);
	return nfsrdma_prepare_write(&op->file, at, count, offset, tag);
}

/* As many READs or WRITEs as there is room for; 0 if these were all */
int block_step_prepare_parts(struct nfsrdma_blocks *store, struct block_op *op)
{
	int rc;

	/* an empty file has one, too */
	while (!op->error && (op->next < op->size || !op->next)) {
		if (!block_has_room(op->member))
			return -EAGAIN;
		rc = block_step_prepare_part(store, op, op->next);
		if (rc)
			return rc;
		op->pending++;
		op->next = op->size ? part_end(store, op, op->next) : 1;
	}
	return 0;
}

static void add_rest(struct block_op *op, uint64_t offset)
{
	struct block_member *member = op->member;

	member->rests[member->nrests++] = (struct block_rest){op, offset};
	op->pending++;
}

/* A READ or WRITE is complete */
void block_step_part_ended(const struct nfsrdma_blocks *store, struct block_op *op, uint64_t offset,
			   const struct nfsrdma_completion *completion)
{
	uint64_t end = op->size ? part_end(store, op, offset) : 0, moved;

	if (completion->result < 0) {
		op->error = completion->result;
		return;
	}
	moved = offset + completion->result;
	if (moved == end) {
		op->ended |= completion->eof && end == op->size;
		op->changed |= completion->eof && end != op->size;
	} else if (completion->eof || !completion->result) {
		op->changed = true;
	} else if (!op->error) {
		add_rest(op, moved);
	}
}

int block_step_prepare_commit(struct nfsrdma_blocks *store, struct block_op *op)
{
	int rc = nfsrdma_prepare_fsync(&op->file, block_tag(store, op, 0));

	if (!rc)
		op->pending++;
	return rc;
}

/* --- what follows a step --- */

static enum block_state end_with(struct block_op *op, int64_t result)
{
	op->result = result;
	return STEP_DONE;
}

/* Forget all that may be old, and begin again */
static enum block_state begin_again(struct nfsrdma_blocks *store, struct block_op *op)
{
	forget_path(store, op);
	if (op->begun == BEGIN_MOST)
		return end_with(op, -ESTALE);
	return block_step_first(store, op);
}

enum block_state block_step_failed(struct nfsrdma_blocks *store, struct block_op *op)
{
	return op->error == -ESTALE ? begin_again(store, op) : end_with(op, op->error);
}

/* Bytes of the data of a block; -EBADMSG if its file is shorter than a trailer */
static int64_t data_bytes(const struct nfsrdma_blocks *store, uint64_t size)
{
	return size < trailer_bytes(store) ? -EBADMSG : (int64_t)(size - trailer_bytes(store));
}

/* op->file.fh has the block; @fresh: its size comes from the server just now */
static enum block_state begin_read(struct nfsrdma_blocks *store, struct block_op *op, uint64_t size, bool fresh)
{
	int64_t bytes = size > BLOCK_SIZE_MOST ? -EFBIG : data_bytes(store, size);

	if (bytes > 0 && (uint64_t)bytes > op->length)
		bytes = -EFBIG;
	if (bytes < 0)
		return fresh ? end_with(op, bytes) : begin_again(store, op);
	op->size = size;
	op->next = 0;
	op->ended = false;
	op->changed = false;
	op->part = block_step_part(op, bytes, op->member->session->read_max);
	block_step_set_file(op, O_RDONLY);
	return STEP_READ;
}

static enum block_state last_component(const struct block_op *op)
{
	switch (op->kind) {
	case NFSRDMA_BLOCK_PUT:
		return STEP_CREATE;
	case NFSRDMA_BLOCK_REMOVE:
		return STEP_REMOVE;
	}
	return STEP_FIND;
}

/* The step for the component behind op->dir */
static enum block_state next_component(const struct nfsrdma_blocks *store, const struct block_op *op)
{
	return is_last(op) ? store->dialect->last(op) : STEP_FIND;
}

enum block_state block_step_first(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct block_entry *entry = NULL;
	bool asks = op->kind == NFSRDMA_BLOCK_GET || (op->kind == NFSRDMA_BLOCK_EXISTS && store->options.trust);

	op->begun++;
	if (asks)
		entry = handle_find(&store->handles, op->path, op->path_length);
	op->cached = entry && !entry->directory;
	if (op->cached) {
		if (op->kind == NFSRDMA_BLOCK_EXISTS)
			return end_with(op, data_bytes(store, entry->size));
		op->file.fh = entry->fh;
		return begin_read(store, op, entry->size, false);
	}
	find_above(store, op);
	return next_component(store, op);
}

/* op->dir is the directory @fh now */
static enum block_state go_down(struct nfsrdma_blocks *store, struct block_op *op, const struct nfs_fh *fh)
{
	uint32_t end = op->at + component_length(op);

	handle_note(&store->handles, op->path, end, fh, true, 0);
	op->dir = *fh;
	op->at = end + 1;
	return next_component(store, op);
}

/* The name has op->file.fh, with this type and size */
enum block_state block_step_found(struct nfsrdma_blocks *store, struct block_op *op, uint32_t type, uint64_t size)
{
	struct nfs_fh fh = op->file.fh;

	if (type == TYPE_LINK)
		return end_with(op, -ELOOP);
	if (!is_last(op))
		return type == TYPE_DIRECTORY ? go_down(store, op, &fh) : end_with(op, -ENOTDIR);
	if (type != TYPE_FILE)
		return end_with(op, type == TYPE_DIRECTORY ? -EISDIR : -EOPNOTSUPP);
	handle_note(&store->handles, op->path, op->path_length, &fh, false, size);
	if (op->kind == NFSRDMA_BLOCK_EXISTS)
		return end_with(op, data_bytes(store, size));
	return begin_read(store, op, size, true);
}

/* The server did not find the name: op->error says why */
enum block_state block_step_not_found(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error == -ENOENT && is_last(op))
		handle_forget(&store->handles, op->path, op->path_length);
	if (op->error == -ENOENT && op->kind == NFSRDMA_BLOCK_PUT)
		return STEP_MKDIR;
	return block_step_failed(store, op);
}

static enum block_state find_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	const lookup3_ok *ok = &op->results.lookup.lookup3_res_u.ok;
	const attr3 *attr = &ok->attr.post_attr3_u.attr;

	if (op->error)
		return block_step_not_found(store, op);
	op->file.fh = nfs_fh_of(&ok->fh);
	return ok->attr.present ? block_step_found(store, op, attr->type, attr->size) : STEP_ATTRIBUTES;
}

static enum block_state attributes_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	const attr3 *attr = &op->results.getattr.getattr3_res_u.attr;

	if (op->error)
		return block_step_failed(store, op);
	return block_step_found(store, op, attr->type, attr->size);
}

static bool has_handle(const struct block_op *op)
{
	const post_fh3 *fh = &op->results.create.create3_res_u.ok.fh;

	return fh->present && fh->post_fh3_u.fh.fh3_len;
}

/* A directory was made; @fh: its file handle, or NULL */
enum block_state block_step_made(struct nfsrdma_blocks *store, struct block_op *op, const struct nfs_fh *fh)
{
	if (!op->error && fh)
		return go_down(store, op, fh);
	if (op->error && op->error != -EEXIST)
		return block_step_failed(store, op);
	/* another client made the directory, or the reply has no file handle; another client may remove it again */
	return op->begun++ < BEGIN_MOST ? STEP_FIND : end_with(op, -ESTALE);
}

static enum block_state mkdir_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct nfs_fh fh;

	if (op->error || !has_handle(op))
		return block_step_made(store, op, NULL);
	fh = nfs_fh_of(&op->results.create.create3_res_u.ok.fh.post_fh3_u.fh);
	return block_step_made(store, op, &fh);
}

/* op->file.fh has the draft */
enum block_state block_step_write(struct nfsrdma_blocks *store, struct block_op *op)
{
	uint32_t most = op->member->session->write_max;

	op->size = op->length + trailer_bytes(store);
	op->next = 0;
	op->part = block_step_part(op, op->length, most);
	if (trailer_bytes(store))
		fill_trailer(op, op->length, op->trailer);
	/* one WRITE on stable storage costs less than a WRITE and a COMMIT */
	block_step_set_file(op, op->length <= op->part ? O_WRONLY | O_SYNC : O_WRONLY);
	return STEP_WRITE;
}

static enum block_state create_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return block_step_failed(store, op);
	if (!has_handle(op))
		return STEP_FIND_DRAFT;
	op->file.fh = nfs_fh_of(&op->results.create.create3_res_u.ok.fh.post_fh3_u.fh);
	return block_step_write(store, op);
}

static enum block_state draft_found(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return block_step_failed(store, op);
	op->file.fh = nfs_fh_of(&op->results.lookup.lookup3_res_u.ok.fh);
	return block_step_write(store, op);
}

/* The server has restarted and may have lost the data: write it once more */
static enum block_state write_again(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->again)
		return end_with(op, -EIO);
	op->again = true;
	return block_step_write(store, op);
}

enum block_state block_step_written(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return block_step_failed(store, op);
	/* a WRITE of no bytes behind an error */
	if (op->changed)
		return end_with(op, -EIO);
	if (op->inode.lost)
		return write_again(store, op);
	return op->inode.writes == op->inode.committed ? STEP_RENAME : STEP_COMMIT;
}

enum block_state block_step_committed(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->inode.lost)
		return write_again(store, op);
	return op->error ? block_step_failed(store, op) : STEP_RENAME;
}

/* The draft has the name of the block now */
enum block_state block_step_put(struct nfsrdma_blocks *store, struct block_op *op)
{
	op->drafted = false;
	op->size = op->length + trailer_bytes(store);
	handle_note(&store->handles, op->path, op->path_length, &op->file.fh, false, op->size);
	return end_with(op, op->length);
}

static enum block_state rename_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	/* a server that has restarted may have executed it before */
	if (op->error == -ENOENT)
		return STEP_CHECK;
	return op->error ? block_step_failed(store, op) : block_step_put(store, op);
}

static enum block_state check_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	const fh3 *fh = &op->results.lookup.lookup3_res_u.ok.fh;

	if (!op->error && fh->fh3_len == op->file.fh.length && !memcmp(fh->fh3_val, op->file.fh.bytes, fh->fh3_len))
		return block_step_put(store, op);
	/* the draft is gone: another client removed it, or replaced the block */
	if (!op->error || op->error == -ENOENT)
		return begin_again(store, op);
	return block_step_failed(store, op);
}

enum block_state block_step_removed(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (!op->error || op->error == -ENOENT)
		handle_forget(&store->handles, op->path, op->path_length);
	return op->error ? block_step_failed(store, op) : end_with(op, 0);
}

static enum block_state discard_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	(void)store;
	op->drafted = false;
	return STEP_DONE;
}

enum block_state block_step_read(struct nfsrdma_blocks *store, struct block_op *op)
{
	uint64_t bytes = op->size - trailer_bytes(store);
	uint8_t trailer[BLOCK_TRAILER_BYTES];

	if (op->error)
		return block_step_failed(store, op);
	/* it was replaced, and someone has the old file open, or READ would fail with ESTALE */
	if (op->cached && op->inode.unlinked)
		return begin_again(store, op);
	/* a server that does not say where the file ends: its size has not changed either */
	if (op->changed || (!op->ended && op->confirmed != op->size + 1)) {
		op->confirmed = op->changed ? 0 : op->size + 1;
		return begin_again(store, op);
	}
	if (trailer_bytes(store)) {
		fill_trailer(op, bytes, trailer);
		if (memcmp(trailer, op->trailer, BLOCK_TRAILER_BYTES)) {
			handle_forget(&store->handles, op->path, op->path_length);
			return end_with(op, -EBADMSG);
		}
	}
	return end_with(op, bytes);
}

/*
 * The same of a READ that came before the size was known, and has read @count bytes from the begin of the file into the
 * memory of the data; the step is STEP_READ.
 */
enum block_state block_step_read_on(struct nfsrdma_blocks *store, struct block_op *op, uint64_t count, bool eof)
{
	uint64_t data = op->size - trailer_bytes(store);

	op->ended = eof && count == op->size;
	op->changed = count > op->size || (eof && count != op->size) || (!count && op->size && op->length);
	if (!op->changed && count == op->size && trailer_bytes(store))
		memcpy(op->trailer, op->buf + data, BLOCK_TRAILER_BYTES);
	if (op->changed || count == op->size)
		return block_step_read(store, op);
	op->next = count < data ? count : data;
	return STEP_READ;
}

/* The same step with another session: what a step of data has done counts no more */
enum block_state block_step_again(struct nfsrdma_blocks *store, struct block_op *op)
{
	op->file.session = op->member->session;
	if (store->dialect->keeps && op->kind == NFSRDMA_BLOCK_PUT && is_last(op))
		return store->dialect->last(op);
	if (op->step == STEP_READ)
		return begin_read(store, op, op->size, true);
	return op->step == STEP_WRITE ? block_step_write(store, op) : op->step;
}

static const struct block_step steps[] = {
	[STEP_FIND] = {(xdrproc_t)xdr_lookup3_res, prepare_find, find_ended},
	[STEP_ATTRIBUTES] = {(xdrproc_t)xdr_getattr3_res, prepare_attributes, attributes_ended},
	[STEP_MKDIR] = {(xdrproc_t)xdr_create3_res, prepare_mkdir, mkdir_ended},
	[STEP_READ] = {NULL, block_step_prepare_parts, block_step_read},
	[STEP_CREATE] = {(xdrproc_t)xdr_create3_res, prepare_create, create_ended},
	[STEP_FIND_DRAFT] = {(xdrproc_t)xdr_lookup3_res, prepare_find_draft, draft_found},
	[STEP_WRITE] = {NULL, block_step_prepare_parts, block_step_written},
	[STEP_COMMIT] = {NULL, block_step_prepare_commit, block_step_committed},
	[STEP_RENAME] = {(xdrproc_t)xdr_rename3_res, prepare_rename, rename_ended},
	[STEP_CHECK] = {(xdrproc_t)xdr_lookup3_res, prepare_find, check_ended},
	[STEP_REMOVE] = {(xdrproc_t)xdr_wcc3_res, prepare_remove, block_step_removed},
	[STEP_DISCARD] = {(xdrproc_t)xdr_wcc3_res, prepare_discard, discard_ended},
};

const struct block_dialect block_step_nfs3 = {steps, last_component, NULL, false};
