// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Stores of blocks: files that are written once and read whole, over many sessions, without a thread.
 *
 * Each operation is a state machine.  A step sends one request, or the READs or WRITEs of the block; what follows its
 * end is in steps[]:
 *
 *	GET	FIND* READ
 *	PUT	(FIND | MKDIR)* CREATE [FIND_DRAFT] WRITE [COMMIT] RENAME [CHECK]
 *	EXISTS	FIND*
 *	REMOVE	FIND* REMOVE
 *
 * FIND looks up a component of the path that is not in the table of file handles, ATTRIBUTES follows if its reply has
 * none.  A file handle that is gone (-ESTALE) has the operation begin again, without what the table had.  A put that
 * fails ends with DISCARD, which removes the draft: the file that would have been renamed.
 *
 * An operation waits in one of two places: store->queue until a session takes it, and member->ready while its session
 * has no room for its requests.  Otherwise it has requests in the session (pending), whose user_data names it, see
 * tag_of().
 *
 * Deadlines and cancels: stop() ends an operation now.  One in store->queue or member->ready just ends.  One with
 * requests ends by wait_abandon(): the connection ends first if the server has one of them, because it could write
 * to memory that the caller gets back.  Nothing of that waits for the server or for the device.  Its DISCARD goes on
 * without it: such operations linger, for DISCARD_TIMEOUT, in places of their own.
 *
 * A session that has lost its connection keeps its requests for the next one, unless another session is connected: then
 * that one goes on with its operations, from their step.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "batch.h"
#include "library.h"

#define OPTIONS_FIRST		ABI_UP_TO(struct nfsrdma_blocks_options, trust)
#define MEMBERS_MOST		64
#define IN_FLIGHT_DEFAULT	256
#define IN_FLIGHT_MOST		65536
#define HANDLES_DEFAULT		65536
#define HANDLES_MOST		(1U << 24)
#define PATH_BYTES		1024

/* user_data of a request: the number of the operation, and an offset in the block */
#define TAG_SHIFT		40
#define SIZE_MOST		((1ULL << TAG_SHIFT) - 1)

/* How often an operation begins again because a file handle is gone, or a size has changed */
#define BEGIN_MOST		8

/* Milliseconds: for a DISCARD, and for all of them when the store is closed; those of wait.c */
#define DISCARD_TIMEOUT		2000
#define CLOSE_TIMEOUT		1000
#define SLEEP_MOST		1000
#define ASK_EVERY		200
#define YIELDS			20

/* The same, between two looks at the connections in a loop that does not sleep */
#define LOOK_EVERY		10

#define COMPLETIONS		64

/* Bytes behind the data of a block, with the option checksum: magic, version, CRC, length, 0 */
#define TRAILER_BYTES		32
#define TRAILER_MAGIC		"NFSRBLK"
#define TRAILER_VERSION		1

#define DRAFT			".nfsrdma-"

/* The part of a transfer if the arena has to copy it: room for several */
#define ARENA_PARTS		8

enum block_step {
	STEP_FIND, STEP_ATTRIBUTES, STEP_MKDIR, STEP_READ,
	STEP_CREATE, STEP_FIND_DRAFT, STEP_WRITE, STEP_COMMIT, STEP_RENAME, STEP_CHECK,
	STEP_REMOVE, STEP_DISCARD,
	STEP_DONE,
};

/**
 * struct block_entry - a file handle that the store knows
 * @next: next one with the same hash
 * @uses: in the list of all, the one used last first
 * @hash: of @path
 * @path: path
 * @length: bytes of @path
 * @directory: it is a directory, else a regular file
 * @size: of the file
 * @fh: file handle
 */
struct block_entry {
	struct block_entry *next;
	TAILQ_ENTRY(block_entry) uses;
	uint64_t hash;
	char *path;
	uint32_t length;
	bool directory;
	uint64_t size;
	struct nfs_fh fh;
};

/**
 * struct block_handles - table of file handles
 * @buckets: by hash
 * @mask: number of buckets less 1
 * @most: entries that it may have
 * @count: entries that it has
 * @seed: of the hash
 * @uses: all entries
 */
struct block_handles {
	struct block_entry **buckets;
	uint64_t mask;
	uint32_t most, count;
	uint64_t seed;
	TAILQ_HEAD(block_entries, block_entry) uses;
};

/**
 * struct block_op - an operation
 * @waits: in store->queue, store->unused or member->ready
 * @active: it is not in store->unused
 * @listed: it is in member->ready: not all requests of its step are prepared
 * @reported: the caller has its completion, or gets it
 * @drafted: the server may have its draft
 * @again: the data was written a second time, after a restart of the server
 * @moved: another session goes on with it
 * @ended: the last READ has the end of the file
 * @changed: the file has another size than it had when it was looked up
 * @kind: of enum nfsrdma_block_operation
 * @step: what it does
 * @batch: number of its batch
 * @deadline: milliseconds of the clock
 * @user_data: of the caller
 * @member: its session, NULL in store->queue
 * @buf: memory of the caller
 * @length: its bytes
 * @path: path of the block
 * @path_length: bytes of @path
 * @at: the component that is looked up or made, in @path
 * @dir: directory of that
 * @draft: number of the draft
 * @file: the block, or its draft
 * @inode: of @file, for verifiers of WRITE and COMMIT
 * @attr: attributes of what FIND has found
 * @size: bytes of the block on the server, with its trailer
 * @next: offset of the next READ or WRITE that is not prepared
 * @part: bytes of one
 * @trailer: see TRAILER_BYTES
 * @pending: requests that have no completion yet, and rests
 * @begun: how often it has begun
 * @confirmed: size of a file whose end no READ has said
 * @error: of its step
 * @stopped: why it was stopped
 * @result: for the caller
 * @results: of a call
 */
struct block_op {
	TAILQ_ENTRY(block_op) waits;
	bool active, listed, reported, drafted, again, moved, ended, changed;
	uint32_t kind;
	enum block_step step;
	uint64_t batch, deadline, user_data;
	struct block_member *member;
	uint8_t *buf;
	size_t length;
	char path[PATH_BYTES];
	uint32_t path_length, at;
	struct nfs_fh dir;
	uint64_t draft;
	struct nfsrdma_file file;
	struct inode inode;
	attr3 attr;
	uint64_t size, next;
	uint32_t part;
	uint8_t trailer[TRAILER_BYTES];
	uint32_t pending, begun;
	uint64_t confirmed;
	int error, stopped;
	int64_t result;
	union {
		lookup3_res lookup;
		getattr3_res getattr;
		create3_res create;
		wcc3_res wcc;
		rename3_res rename;
	} results;
};

/* The rest of a READ or WRITE that moved fewer bytes */
struct block_rest {
	struct block_op *op;
	uint64_t offset;
};

TAILQ_HEAD(block_ops, block_op);

/**
 * struct block_member - a session of a store
 * @session: session
 * @ready: operations that have requests to prepare
 * @rests: stack; they are sent before anything else, so that there are no more of them than requests
 * @nrests: elements of it
 */
struct block_member {
	struct nfsrdma_session *session;
	struct block_ops ready;
	struct block_rest *rests;
	uint32_t nrests;
};

/**
 * struct nfsrdma_blocks - a store
 * @options: options
 * @members: sessions
 * @nmembers: number of them
 * @ops: operations, for as many as may linger, too
 * @nops: number of them
 * @unused: those that are not active
 * @queue: those that no session has taken
 * @unfinished: active ones without a completion
 * @lingering: active ones with one
 * @earliest: no deadline is before that
 * @done: ring of completions that the caller has not got
 * @done_first: the first one in it
 * @ndone: elements of it
 * @batches: number of batches so far
 * @drafts: number of drafts so far
 * @own: random part of their names
 * @file_mode: of new files
 * @directory_mode: of new directories
 * @handles: table of file handles
 * @regions: registered memory
 * @look_at: milliseconds of the clock at which to look at the connections
 * @idle: turns in a row that found nothing
 * @epoll: descriptor that has those of the sessions, and @timer
 * @timer: descriptor; -1: nfsrdma_blocks_fd() was not called
 * @timer_at: milliseconds of the clock for which it is set
 */
struct nfsrdma_blocks {
	struct nfsrdma_blocks_options options;
	struct block_member members[MEMBERS_MOST];
	size_t nmembers;
	struct block_op *ops;
	uint32_t nops;
	struct block_ops unused, queue;
	uint32_t unfinished, lingering;
	uint64_t earliest;
	struct nfsrdma_completion *done;
	uint32_t done_first, ndone;
	uint64_t batches, drafts, own;
	mode_t file_mode, directory_mode;
	struct block_handles handles;
	struct nfsrdma_blocks_region *regions;
	uint64_t look_at;
	uint32_t idle;
	int epoll, timer;
	uint64_t timer_at;
};

struct nfsrdma_blocks_region {
	struct nfsrdma_blocks_region *next;
	struct nfsrdma_blocks *blocks;
	struct nfsrdma_region *each[MEMBERS_MOST];
};

/* --- the table of file handles --- */

static uint64_t hash_path(const struct block_handles *handles, const char *path, uint32_t length)
{
	uint64_t hash = handles->seed ^ length, word;
	unsigned __int128 product;
	uint32_t at;

	for (at = 0; at < length; at += sizeof(word)) {
		word = 0;
		memcpy(&word, path + at, length - at < sizeof(word) ? length - at : sizeof(word));
		product = (unsigned __int128)(hash ^ word) * (handles->seed | 1);
		hash = (uint64_t)product ^ (uint64_t)(product >> 64);
	}
	return hash;
}

static struct block_entry **entry_place(struct block_handles *handles, uint64_t hash, const char *path,
					uint32_t length)
{
	struct block_entry **at = &handles->buckets[hash & handles->mask];

	while (*at && ((*at)->hash != hash || (*at)->length != length || memcmp((*at)->path, path, length)))
		at = &(*at)->next;
	return at;
}

static struct block_entry *entry_find(struct block_handles *handles, const char *path, uint32_t length)
{
	struct block_entry *entry = *entry_place(handles, hash_path(handles, path, length), path, length);

	if (entry && entry != TAILQ_FIRST(&handles->uses)) {
		TAILQ_REMOVE(&handles->uses, entry, uses);
		TAILQ_INSERT_HEAD(&handles->uses, entry, uses);
	}
	return entry;
}

static void entry_drop(struct block_handles *handles, struct block_entry **at)
{
	struct block_entry *entry = *at;

	*at = entry->next;
	TAILQ_REMOVE(&handles->uses, entry, uses);
	handles->count--;
	free(entry->path);
	free(entry);
}

static void entry_forget(struct block_handles *handles, const char *path, uint32_t length)
{
	struct block_entry **at = entry_place(handles, hash_path(handles, path, length), path, length);

	if (*at)
		entry_drop(handles, at);
}

/* Note a file handle; without memory, the store looks it up again */
static void entry_note(struct block_handles *handles, const char *path, uint32_t length, const struct nfs_fh *fh,
		       bool directory, uint64_t size)
{
	struct block_entry *entry = entry_find(handles, path, length);
	uint64_t hash = hash_path(handles, path, length);

	if (!entry && handles->count == handles->most) {
		struct block_entry *last = TAILQ_LAST(&handles->uses, block_entries);

		entry_drop(handles, entry_place(handles, last->hash, last->path, last->length));
	}
	if (!entry) {
		entry = calloc(1, sizeof(*entry));
		if (!entry)
			return;
		entry->path = malloc(length + 1);
		if (!entry->path) {
			free(entry);
			return;
		}
		memcpy(entry->path, path, length);
		entry->path[length] = '\0';
		entry->length = length;
		entry->hash = hash;
		entry->next = handles->buckets[hash & handles->mask];
		handles->buckets[hash & handles->mask] = entry;
		TAILQ_INSERT_HEAD(&handles->uses, entry, uses);
		handles->count++;
	}
	entry->fh = *fh;
	entry->directory = directory;
	entry->size = size;
}

static int handles_allocate(struct block_handles *handles, uint32_t most)
{
	uint64_t size = 16;

	while (size < most)
		size *= 2;
	TAILQ_INIT(&handles->uses);
	handles->most = most;
	handles->mask = size - 1;
	handles->buckets = calloc(size, sizeof(struct block_entry *));
	return handles->buckets ? 0 : fail_no_memory();
}

static void handles_free(struct block_handles *handles)
{
	struct block_entry *entry;

	while (handles->buckets && (entry = TAILQ_FIRST(&handles->uses)))
		entry_drop(handles, entry_place(handles, entry->hash, entry->path, entry->length));
	free(handles->buckets);
}

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

static int set_path(struct block_op *op, const char *name)
{
	size_t length = name ? strnlen(name, PATH_BYTES) : 0, at, end;
	int rc = length < PATH_BYTES ? 0 : -ENAMETOOLONG;

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
		entry = entry_find(&store->handles, op->path, end - 1);
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
		entry_forget(&store->handles, op->path, end);
		while (end && op->path[--end] != '/')
			;
	}
}

/* --- the ends of operations --- */

static uint64_t tag_of(const struct nfsrdma_blocks *store, const struct block_op *op, uint64_t offset)
{
	return (uint64_t)(op - store->ops) << TAG_SHIFT | offset;
}

static void report(struct nfsrdma_blocks *store, struct block_op *op, int64_t result)
{
	uint32_t at = store->done_first + store->ndone++;

	if (at >= store->options.in_flight)
		at -= store->options.in_flight;
	store->done[at] = (struct nfsrdma_completion){.user_data = op->user_data, .result = result};
	op->reported = true;
	store->unfinished--;
}

static void release_op(struct nfsrdma_blocks *store, struct block_op *op)
{
	op->active = false;
	TAILQ_INSERT_HEAD(&store->unused, op, waits);
}

static void unlist(struct block_op *op)
{
	if (op->listed)
		TAILQ_REMOVE(&op->member->ready, op, waits);
	op->listed = false;
}

static bool member_has_room(const struct block_member *member)
{
	const struct nfsrdma_session *session = member->session;

	return session->unfinished + session->ndone < session->options.depth && request_is_free(session);
}

/* The connected session that has the least to do; NULL if none has room */
static struct block_member *pick_member(struct nfsrdma_blocks *store)
{
	struct block_member *best = NULL, *each;

	for (each = store->members; each < store->members + store->nmembers; each++) {
		if (each->session->link != LINK_UP || each->nrests || !TAILQ_EMPTY(&each->ready) ||
		    !member_has_room(each))
			continue;
		if (!best || each->session->unfinished < best->session->unfinished)
			best = each;
	}
	return best;
}

/* --- calls: each has a step --- */

struct step {
	xdrproc_t decode;
	int (*prepare)(struct nfsrdma_blocks *store, struct block_op *op);
	enum block_step (*ended)(struct nfsrdma_blocks *store, struct block_op *op);
};

static const struct step steps[];

static int prepare_call(struct nfsrdma_blocks *store, struct block_op *op, enum nfs_procedure procedure,
			xdrproc_t encode, const void *args)
{
	int rc = nfs3_prepare(op->member->session, procedure, encode, args, steps[op->step].decode, &op->results, 0,
			      tag_of(store, op, 0));

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
static void copy_component(const struct block_op *op, char *name)
{
	uint32_t length = component_length(op);

	memcpy(name, op->path + op->at, length);
	name[length] = '\0';
}

static void draft_name(const struct nfsrdma_blocks *store, const struct block_op *op, char *name, size_t room)
{
	snprintf(name, room, DRAFT "%016llx-%llx", (unsigned long long)store->own, (unsigned long long)op->draft);
}

static int prepare_find(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	copy_component(op, name);
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
	mkdir3_args args = {{nfs_fh3(&op->dir), name}, names_mode(store->directory_mode)};

	copy_component(op, name);
	return prepare_call(store, op, NFS_MKDIR, (xdrproc_t)xdr_mkdir3_args, &args);
}

static int prepare_remove(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	copy_component(op, name);
	return prepare_dirop(store, op, NFS_REMOVE, name);
}

/* UNCHECKED and without a size: a server that executes it twice finds the draft as it is */
static int prepare_create(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];
	create3_args args = {{nfs_fh3(&op->dir), name}, {.mode = CREATE_UNCHECKED}};
	int rc;

	args.how.create3_how_u.attr = names_mode(store->file_mode);
	if (!op->drafted)
		op->draft = ++store->drafts;
	draft_name(store, op, name, sizeof(name));
	rc = prepare_call(store, op, NFS_CREATE, (xdrproc_t)xdr_create3_args, &args);
	if (!rc)
		op->drafted = true;
	return rc;
}

static int prepare_find_draft(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	draft_name(store, op, name, sizeof(name));
	return prepare_dirop(store, op, NFS_LOOKUP, name);
}

static int prepare_discard(struct nfsrdma_blocks *store, struct block_op *op)
{
	char name[NAME_MAX_BYTES + 1];

	draft_name(store, op, name, sizeof(name));
	return prepare_dirop(store, op, NFS_REMOVE, name);
}

static int prepare_rename(struct nfsrdma_blocks *store, struct block_op *op)
{
	char draft[NAME_MAX_BYTES + 1], name[NAME_MAX_BYTES + 1];
	rename3_args args = {{nfs_fh3(&op->dir), draft}, {nfs_fh3(&op->dir), name}};

	draft_name(store, op, draft, sizeof(draft));
	copy_component(op, name);
	return prepare_call(store, op, NFS_RENAME, (xdrproc_t)xdr_rename3_args, &args);
}

/* --- data --- */

static uint32_t trailer_bytes(const struct nfsrdma_blocks *store)
{
	return store->options.checksum ? TRAILER_BYTES : 0;
}

static void fill_trailer(const struct block_op *op, uint64_t length, uint8_t *trailer)
{
	uint8_t *at;

	memset(trailer, 0, TRAILER_BYTES);
	memcpy(trailer, TRAILER_MAGIC, sizeof(TRAILER_MAGIC));
	at = put32(trailer + sizeof(TRAILER_MAGIC), TRAILER_VERSION);
	at = put32(at, crc32c_of(op->buf, length));
	put64(at, length);
}

/* The file of an operation's READs or WRITEs, which no table has */
static void set_file(struct block_op *op, int flags)
{
	struct nfs_fh fh = op->file.fh;

	op->inode = (struct inode){.fh = fh, .users = 1};
	op->file = (struct nfsrdma_file){
		.session = op->member->session, .fh = fh, .flags = flags, .users = 1, .inode = &op->inode,
	};
}

/* Bytes of a READ or WRITE */
static uint32_t part_of(const struct block_op *op, uint64_t length, uint32_t most)
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

static int prepare_part(struct nfsrdma_blocks *store, struct block_op *op, uint64_t offset)
{
	uint64_t data = op->size - trailer_bytes(store), count = part_end(store, op, offset) - offset;
	uint8_t *at = offset < data || !trailer_bytes(store) ? op->buf + offset : op->trailer + (offset - data);
	uint64_t tag = tag_of(store, op, offset);

	if (op->step == STEP_READ)
		return nfsrdma_prepare_read(&op->file, at, count, offset, tag);
	return nfsrdma_prepare_write(&op->file, at, count, offset, tag);
}

/* As many READs or WRITEs as there is room for; 0 if these were all */
static int prepare_parts(struct nfsrdma_blocks *store, struct block_op *op)
{
	int rc;

	/* an empty file has one, too */
	while (!op->error && (op->next < op->size || !op->next)) {
		if (!member_has_room(op->member))
			return -EAGAIN;
		rc = prepare_part(store, op, op->next);
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
static void part_ended(const struct nfsrdma_blocks *store, struct block_op *op, uint64_t offset,
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

static int prepare_commit_step(struct nfsrdma_blocks *store, struct block_op *op)
{
	int rc = nfsrdma_prepare_fsync(&op->file, tag_of(store, op, 0));

	if (!rc)
		op->pending++;
	return rc;
}

/* --- what follows a step --- */

static enum block_step end_with(struct block_op *op, int64_t result)
{
	op->result = result;
	return STEP_DONE;
}

/* Forget all that may be old, and begin again */
static enum block_step first_step(struct nfsrdma_blocks *store, struct block_op *op);

static enum block_step begin_again(struct nfsrdma_blocks *store, struct block_op *op)
{
	forget_path(store, op);
	if (op->begun == BEGIN_MOST)
		return end_with(op, -ESTALE);
	return first_step(store, op);
}

static enum block_step ended_badly(struct nfsrdma_blocks *store, struct block_op *op)
{
	return op->error == -ESTALE ? begin_again(store, op) : end_with(op, op->error);
}

/* Bytes of the data of a block; -EBADMSG if its file is shorter than a trailer */
static int64_t data_bytes(const struct nfsrdma_blocks *store, uint64_t size)
{
	return size < trailer_bytes(store) ? -EBADMSG : (int64_t)(size - trailer_bytes(store));
}

/* op->file.fh has the block; @fresh: its size comes from the server just now */
static enum block_step begin_read(struct nfsrdma_blocks *store, struct block_op *op, uint64_t size, bool fresh)
{
	int64_t bytes = size > SIZE_MOST ? -EFBIG : data_bytes(store, size);

	if (bytes > 0 && (uint64_t)bytes > op->length)
		bytes = -EFBIG;
	if (bytes < 0)
		return fresh ? end_with(op, bytes) : begin_again(store, op);
	op->size = size;
	op->next = 0;
	op->ended = false;
	op->changed = false;
	op->part = part_of(op, bytes, op->member->session->read_max);
	set_file(op, O_RDONLY);
	return STEP_READ;
}

/* The step for the component behind op->dir */
static enum block_step next_component(const struct block_op *op)
{
	if (!is_last(op))
		return STEP_FIND;
	switch (op->kind) {
	case NFSRDMA_BLOCK_PUT:
		return STEP_CREATE;
	case NFSRDMA_BLOCK_REMOVE:
		return STEP_REMOVE;
	}
	return STEP_FIND;
}

static enum block_step first_step(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct block_entry *entry = NULL;
	bool asks = op->kind == NFSRDMA_BLOCK_GET || (op->kind == NFSRDMA_BLOCK_EXISTS && store->options.trust);

	op->begun++;
	if (asks)
		entry = entry_find(&store->handles, op->path, op->path_length);
	if (entry && !entry->directory) {
		if (op->kind == NFSRDMA_BLOCK_EXISTS)
			return end_with(op, data_bytes(store, entry->size));
		op->file.fh = entry->fh;
		return begin_read(store, op, entry->size, false);
	}
	find_above(store, op);
	return next_component(op);
}

/* op->dir is the directory @fh now */
static enum block_step go_down(struct nfsrdma_blocks *store, struct block_op *op, const struct nfs_fh *fh)
{
	uint32_t end = op->at + component_length(op);

	entry_note(&store->handles, op->path, end, fh, true, 0);
	op->dir = *fh;
	op->at = end + 1;
	return next_component(op);
}

/* FIND has found op->file.fh with op->attr */
static enum block_step found(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct nfs_fh fh = op->file.fh;

	if (op->attr.type == TYPE_LINK)
		return end_with(op, -ELOOP);
	if (!is_last(op))
		return op->attr.type == TYPE_DIRECTORY ? go_down(store, op, &fh) : end_with(op, -ENOTDIR);
	if (op->attr.type != TYPE_FILE)
		return end_with(op, op->attr.type == TYPE_DIRECTORY ? -EISDIR : -EOPNOTSUPP);
	entry_note(&store->handles, op->path, op->path_length, &fh, false, op->attr.size);
	if (op->kind == NFSRDMA_BLOCK_EXISTS)
		return end_with(op, data_bytes(store, op->attr.size));
	return begin_read(store, op, op->attr.size, true);
}

static enum block_step find_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	const lookup3_ok *ok = &op->results.lookup.lookup3_res_u.ok;

	if (op->error == -ENOENT && is_last(op))
		entry_forget(&store->handles, op->path, op->path_length);
	if (op->error == -ENOENT && op->kind == NFSRDMA_BLOCK_PUT)
		return STEP_MKDIR;
	if (op->error)
		return ended_badly(store, op);
	op->file.fh = nfs_fh_of(&ok->fh);
	if (!ok->attr.present)
		return STEP_ATTRIBUTES;
	op->attr = ok->attr.post_attr3_u.attr;
	return found(store, op);
}

static enum block_step attributes_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return ended_badly(store, op);
	op->attr = op->results.getattr.getattr3_res_u.attr;
	return found(store, op);
}

static bool has_handle(const struct block_op *op)
{
	const post_fh3 *fh = &op->results.create.create3_res_u.ok.fh;

	return fh->present && fh->post_fh3_u.fh.fh3_len;
}

static enum block_step mkdir_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct nfs_fh fh;

	if (!op->error && has_handle(op)) {
		fh = nfs_fh_of(&op->results.create.create3_res_u.ok.fh.post_fh3_u.fh);
		return go_down(store, op, &fh);
	}
	if (op->error && op->error != -EEXIST)
		return ended_badly(store, op);
	/* another client made it, or this one did and the reply has no handle; it may go as fast as it came */
	return op->begun++ < BEGIN_MOST ? STEP_FIND : end_with(op, -ESTALE);
}

static enum block_step begin_write(struct nfsrdma_blocks *store, struct block_op *op)
{
	uint32_t most = op->member->session->write_max;

	op->size = op->length + trailer_bytes(store);
	op->next = 0;
	op->part = part_of(op, op->length, most);
	if (trailer_bytes(store))
		fill_trailer(op, op->length, op->trailer);
	/* one WRITE on stable storage costs less than a WRITE and a COMMIT */
	set_file(op, op->length <= op->part ? O_WRONLY | O_SYNC : O_WRONLY);
	return STEP_WRITE;
}

static enum block_step create_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return ended_badly(store, op);
	if (!has_handle(op))
		return STEP_FIND_DRAFT;
	op->file.fh = nfs_fh_of(&op->results.create.create3_res_u.ok.fh.post_fh3_u.fh);
	return begin_write(store, op);
}

static enum block_step draft_found(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return ended_badly(store, op);
	op->file.fh = nfs_fh_of(&op->results.lookup.lookup3_res_u.ok.fh);
	return begin_write(store, op);
}

/* The server has restarted and may have lost the data: write it once more */
static enum block_step write_again(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->again)
		return end_with(op, -EIO);
	op->again = true;
	return begin_write(store, op);
}

static enum block_step write_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->error)
		return ended_badly(store, op);
	/* a WRITE of no bytes behind an error */
	if (op->changed)
		return end_with(op, -EIO);
	if (op->inode.lost)
		return write_again(store, op);
	return op->inode.writes == op->inode.committed ? STEP_RENAME : STEP_COMMIT;
}

static enum block_step commit_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->inode.lost)
		return write_again(store, op);
	return op->error ? ended_badly(store, op) : STEP_RENAME;
}

/* The draft has the name of the block now */
static enum block_step put_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	op->drafted = false;
	entry_note(&store->handles, op->path, op->path_length, &op->file.fh, false, op->size);
	return end_with(op, op->length);
}

static enum block_step rename_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	/* a server that has restarted may have executed it before */
	if (op->error == -ENOENT)
		return STEP_CHECK;
	return op->error ? ended_badly(store, op) : put_ended(store, op);
}

static enum block_step check_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	const fh3 *fh = &op->results.lookup.lookup3_res_u.ok.fh;

	if (!op->error && fh->fh3_len == op->file.fh.length && !memcmp(fh->fh3_val, op->file.fh.bytes, fh->fh3_len))
		return put_ended(store, op);
	/* the draft is gone: another client removed it, or replaced the block */
	if (!op->error || op->error == -ENOENT)
		return begin_again(store, op);
	return ended_badly(store, op);
}

static enum block_step remove_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (!op->error || op->error == -ENOENT)
		entry_forget(&store->handles, op->path, op->path_length);
	return op->error ? ended_badly(store, op) : end_with(op, 0);
}

static enum block_step discard_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	(void)store;
	op->drafted = false;
	return STEP_DONE;
}

static enum block_step read_ended(struct nfsrdma_blocks *store, struct block_op *op)
{
	uint64_t bytes = op->size - trailer_bytes(store);
	uint8_t trailer[TRAILER_BYTES];

	if (op->error)
		return ended_badly(store, op);
	/* a server that does not say where the file ends: its size has not changed either */
	if (op->changed || (!op->ended && op->confirmed != op->size + 1)) {
		op->confirmed = op->changed ? 0 : op->size + 1;
		return begin_again(store, op);
	}
	if (trailer_bytes(store)) {
		fill_trailer(op, bytes, trailer);
		if (memcmp(trailer, op->trailer, TRAILER_BYTES)) {
			entry_forget(&store->handles, op->path, op->path_length);
			return end_with(op, -EBADMSG);
		}
	}
	return end_with(op, bytes);
}

static const struct step steps[] = {
	[STEP_FIND] = {(xdrproc_t)xdr_lookup3_res, prepare_find, find_ended},
	[STEP_ATTRIBUTES] = {(xdrproc_t)xdr_getattr3_res, prepare_attributes, attributes_ended},
	[STEP_MKDIR] = {(xdrproc_t)xdr_create3_res, prepare_mkdir, mkdir_ended},
	[STEP_READ] = {NULL, prepare_parts, read_ended},
	[STEP_CREATE] = {(xdrproc_t)xdr_create3_res, prepare_create, create_ended},
	[STEP_FIND_DRAFT] = {(xdrproc_t)xdr_lookup3_res, prepare_find_draft, draft_found},
	[STEP_WRITE] = {NULL, prepare_parts, write_ended},
	[STEP_COMMIT] = {NULL, prepare_commit_step, commit_ended},
	[STEP_RENAME] = {(xdrproc_t)xdr_rename3_res, prepare_rename, rename_ended},
	[STEP_CHECK] = {(xdrproc_t)xdr_lookup3_res, prepare_find, check_ended},
	[STEP_REMOVE] = {(xdrproc_t)xdr_wcc3_res, prepare_remove, remove_ended},
	[STEP_DISCARD] = {(xdrproc_t)xdr_wcc3_res, prepare_discard, discard_ended},
};

/* --- from one step to the next --- */

static void enter(struct block_op *op, enum block_step step)
{
	op->step = step;
	op->error = 0;
	op->listed = true;
	TAILQ_INSERT_TAIL(&op->member->ready, op, waits);
}

/* Go on with another session if that of the operation has lost its connection */
static void change_member(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct block_member *each = store->members;

	if (op->member->session->link == LINK_UP)
		return;
	while (each < store->members + store->nmembers && each->session->link != LINK_UP)
		each++;
	if (each < store->members + store->nmembers)
		op->member = each;
}

/* Have the draft removed; false if too many operations do that already */
static bool discard(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->stopped && store->lingering >= store->options.in_flight)
		return false;
	change_member(store, op);
	op->deadline = now_ms() + DISCARD_TIMEOUT;
	if (op->deadline < store->earliest)
		store->earliest = op->deadline;
	enter(op, STEP_DISCARD);
	return true;
}

/* An operation has its result */
static void finish_op(struct nfsrdma_blocks *store, struct block_op *op)
{
	if (op->drafted && discard(store, op)) {
		/* the caller of a stopped one does not wait for it */
		if (op->stopped) {
			report(store, op, op->result);
			store->lingering++;
		}
		return;
	}
	if (op->reported)
		store->lingering--;
	else
		report(store, op, op->result);
	release_op(store, op);
}

/* The step once more, by another session */
static enum block_step move_step(struct nfsrdma_blocks *store, struct block_op *op)
{
	op->moved = false;
	change_member(store, op);
	op->file.session = op->member->session;
	if (op->step == STEP_READ)
		return begin_read(store, op, op->size, true);
	return op->step == STEP_WRITE ? begin_write(store, op) : op->step;
}

/* All requests of the step have ended */
static void conclude(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct step *step = &steps[op->step];
	enum block_step next = STEP_DONE;

	if (op->stopped && op->step != STEP_DISCARD)
		op->result = op->stopped;
	else
		next = op->moved ? move_step(store, op) : step->ended(store, op);
	if (step->decode)
		xdr_free(step->decode, (char *)&op->results);
	memset(&op->results, 0, sizeof(op->results));
	if (next == STEP_DONE)
		finish_op(store, op);
	else
		enter(op, next);
}

/* A request has ended */
static void request_ended(struct nfsrdma_blocks *store, const struct nfsrdma_completion *completion)
{
	uint64_t number = completion->user_data >> TAG_SHIFT;
	struct block_op *op = &store->ops[number];

	/* of a batch that the caller should not have made */
	if (number >= store->nops || !op->pending)
		return;
	op->pending--;
	if (op->step == STEP_READ || op->step == STEP_WRITE)
		part_ended(store, op, completion->user_data & SIZE_MOST, completion);
	else
		op->error = completion->result < 0 ? completion->result : 0;
	if (op->error)
		unlist(op);
	if (!op->pending && !op->listed)
		conclude(store, op);
}

/* Take the completions of a session that have arrived */
static void collect(struct nfsrdma_blocks *store, struct block_member *member)
{
	struct nfsrdma_completion done[COMPLETIONS];
	int n, i;

	while ((n = batch_take(member->session, done, COMPLETIONS)))
		for (i = 0; i < n; i++)
			request_ended(store, &done[i]);
}

/* Prepare what is left of an operation's step; returns whether it has nothing more to prepare */
static bool prepare_op(struct nfsrdma_blocks *store, struct block_op *op)
{
	int rc = member_has_room(op->member) ? steps[op->step].prepare(store, op) : -EAGAIN;

	if (rc == -EAGAIN)
		return false;
	unlist(op);
	if (rc)
		op->error = rc;
	if (!op->pending)
		conclude(store, op);
	return true;
}

static bool prepare_rest(struct nfsrdma_blocks *store, struct block_member *member)
{
	struct block_rest rest = member->rests[member->nrests - 1];
	int rc = -EAGAIN;

	if (member_has_room(member))
		rc = rest.op->error ? rest.op->error : prepare_part(store, rest.op, rest.offset);
	if (rc == -EAGAIN)
		return false;
	member->nrests--;
	if (!rc)
		return true;
	rest.op->error = rc;
	unlist(rest.op);
	if (!--rest.op->pending)
		conclude(store, rest.op);
	return true;
}

/* Prepare what a session has room for; returns whether there was anything */
static bool fill_member(struct nfsrdma_blocks *store, struct block_member *member)
{
	bool any = false;

	while (member->nrests) {
		if (!prepare_rest(store, member))
			return any;
		any = true;
	}
	while (!TAILQ_EMPTY(&member->ready)) {
		if (!prepare_op(store, TAILQ_FIRST(&member->ready)))
			return any;
		any = true;
	}
	return any;
}

/* Have a session take the next operation of the queue; returns whether one did */
static bool start_next(struct nfsrdma_blocks *store)
{
	struct block_op *op = TAILQ_FIRST(&store->queue);
	enum block_step step;

	if (!op)
		return false;
	op->member = pick_member(store);
	if (!op->member)
		return false;
	TAILQ_REMOVE(&store->queue, op, waits);
	step = first_step(store, op);
	if (step == STEP_DONE)
		finish_op(store, op);
	else
		enter(op, step);
	return true;
}

/* Prepare and send what there is room for */
static void fill(struct nfsrdma_blocks *store)
{
	struct block_member *each, *end = store->members + store->nmembers;
	bool again;

	do {
		again = start_next(store);
		for (each = store->members; each < end; each++)
			again |= fill_member(store, each);
		if (again)
			continue;
		for (each = store->members; each < end; each++) {
			if (each->session->nprepared || each->session->held.head)
				nfsrdma_submit(each->session);
			/* it may have ended at once */
			again |= each->session->ndone;
			collect(store, each);
		}
	} while (again);
}

/* --- deadlines and cancels --- */

static void drop_rests(struct block_op *op)
{
	struct block_member *member = op->member;
	uint32_t i, n = 0;

	for (i = 0; i < member->nrests; i++) {
		if (member->rests[i].op == op)
			op->pending--;
		else
			member->rests[n++] = member->rests[i];
	}
	member->nrests = n;
}

/* End the requests of an operation, which concludes its step */
static void end_requests(struct nfsrdma_blocks *store, struct block_op *op, int error, const char *why)
{
	struct block_member *member = op->member;

	unlist(op);
	drop_rests(op);
	if (!op->pending) {
		conclude(store, op);
		return;
	}
	wait_abandon(member->session, tag_of(store, op, 0), tag_of(store, op, SIZE_MOST), error, why);
	collect(store, member);
}

/* End an operation now */
static void stop(struct nfsrdma_blocks *store, struct block_op *op, int error, const char *why)
{
	if (!op->member) {
		TAILQ_REMOVE(&store->queue, op, waits);
		report(store, op, error);
		release_op(store, op);
		return;
	}
	if (op->step == STEP_DISCARD && !op->reported && store->lingering < store->options.in_flight) {
		/* it has its result */
		report(store, op, op->result);
		store->lingering++;
		op->deadline = now_ms() + DISCARD_TIMEOUT;
		return;
	}
	op->stopped = error;
	end_requests(store, op, error, why);
}

/* End the operations whose deadline has passed */
static void expire_ops(struct nfsrdma_blocks *store, uint64_t now)
{
	struct block_op *op;

	if (now < store->earliest)
		return;
	store->earliest = NEVER;
	for (op = store->ops; op < store->ops + store->nops; op++) {
		if (op->active && now >= op->deadline)
			stop(store, op, -ETIMEDOUT, "a deadline has passed");
		if (op->active && op->deadline < store->earliest)
			store->earliest = op->deadline;
	}
}

/* Have other sessions go on with the operations of one that has lost its connection */
static void move_ops(struct nfsrdma_blocks *store, const struct block_member *from)
{
	struct block_op *op;

	for (op = store->ops; op < store->ops + store->nops; op++) {
		if (!op->active || op->member != from)
			continue;
		op->moved = true;
		end_requests(store, op, -ECONNRESET, "moved");
	}
}

static void move_from_lost(struct nfsrdma_blocks *store)
{
	struct block_member *each;
	size_t up = 0;

	for (each = store->members; each < store->members + store->nmembers; each++)
		up += each->session->link == LINK_UP;
	if (!up || up == store->nmembers)
		return;
	for (each = store->members; each < store->members + store->nmembers; each++)
		if (each->session->link != LINK_UP && (each->session->unfinished || !TAILQ_EMPTY(&each->ready)))
			move_ops(store, each);
}

/* --- the loop --- */

/* Look after all connections; returns when to do that again, 0 if it has changed anything */
static uint64_t look(struct nfsrdma_blocks *store)
{
	uint64_t now = now_ms(), next = store->earliest, later;
	struct block_member *each;

	store->look_at = now + LOOK_EVERY;
	for (each = store->members; each < store->members + store->nmembers; each++) {
		enum link_state link = each->session->link;

		later = wait_look(each->session);
		next = later < next ? later : next;
		if (each->session->link != link || each->session->ndone)
			next = 0;
	}
	return next;
}

/* Handle what has arrived and what time brings; returns whether there was anything */
static bool turn(struct nfsrdma_blocks *store)
{
	struct block_member *each;
	uint64_t now = now_ms();
	uint32_t before = store->ndone;
	bool any = false;

	if (now >= store->look_at)
		look(store);
	for (each = store->members; each < store->members + store->nmembers; each++) {
		while (wait_poll(each->session))
			any = true;
		any |= each->session->ndone;
		collect(store, each);
	}
	expire_ops(store, now);
	move_from_lost(store);
	fill(store);
	any |= store->ndone != before;
	if (any)
		store->idle = 0;
	return any;
}

/* Have all devices report the next completion; returns whether that was so already */
static bool arm(struct nfsrdma_blocks *store)
{
	struct block_member *each;
	bool armed = true;

	for (each = store->members; each < store->members + store->nmembers; each++)
		armed &= wait_arm(each->session);
	return armed;
}

/* Wait for a message, an event or a deadline, after a turn that found nothing; 0, or -EINTR */
static int sleep_once(struct nfsrdma_blocks *store, uint64_t until)
{
	struct nfsrdma_session *first = store->members[0].session;
	uint64_t next, now, most = first->options.interrupted ? ASK_EVERY : SLEEP_MOST;
	struct epoll_event event;

	if (store->idle++ < YIELDS) {
		sched_yield();
		return 0;
	}
	/* a message that arrived before the request to report it: poll once more */
	if (!arm(store))
		return 0;
	next = look(store);
	now = now_ms();
	if (until < next)
		next = until;
	if (next > now) {
		next = next == NEVER || next - now > most ? most : next - now;
		epoll_wait(store->epoll, &event, 1, next);
		look(store);
	}
	return wait_ask(first);
}

/* The end of a call: make the descriptor readable at the right time */
static void set_timer(struct nfsrdma_blocks *store)
{
	struct itimerspec at = {};
	uint64_t next;
	size_t i;

	if (store->timer < 0)
		return;
	/* all that they have is handled below */
	for (i = 0; i < store->nmembers; i++)
		connection_rest(store->members[i].session);
	do {
		while (!arm(store))
			turn(store);
		next = look(store);
		if (!next)
			turn(store);
	} while (!next);
	if (store->ndone)
		next = 0;
	if (next == store->timer_at && next > now_ms())
		return;
	store->timer_at = next;
	if (next != NEVER) {
		at.it_value.tv_sec = next / 1000;
		at.it_value.tv_nsec = next % 1000 * 1000000 + 1;
	}
	timerfd_settime(store->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* --- calls --- */

static int check_store(const struct nfsrdma_blocks *store)
{
	size_t i;
	int rc = 0;

	for (i = 0; i < store->nmembers && !rc; i++)
		rc = process_check(store->members[i].session);
	return rc;
}

static int set_store_options(struct nfsrdma_blocks *store, const struct nfsrdma_blocks_options *given)
{
	struct nfsrdma_blocks_options *options = &store->options;
	int rc = given ? abi_take(options, sizeof(*options), given, OPTIONS_FIRST, "blocks_options") : 0;

	if (rc)
		return rc;
	if (!options->in_flight)
		options->in_flight = IN_FLIGHT_DEFAULT;
	if (!options->handles)
		options->handles = HANDLES_DEFAULT;
	if (options->in_flight > IN_FLIGHT_MOST)
		return fail(-EINVAL, "in_flight %u: at most %u", options->in_flight, IN_FLIGHT_MOST);
	if (options->handles > HANDLES_MOST)
		return fail(-EINVAL, "handles %u: at most %u", options->handles, HANDLES_MOST);
	if (options->checksum > 1 || options->trust > 1)
		return fail(-EINVAL, "checksum %u, trust %u: 0 or 1", options->checksum, options->trust);
	return 0;
}

static int check_member(const struct nfsrdma_session *session, const struct nfsrdma_session *first)
{
	int rc = process_check(session);

	if (rc)
		return rc;
	if (!session->directory)
		return fail(-EINVAL, "%s: the session has no directory", session->host);
	if (session->options.version != 3)
		return fail(-EOPNOTSUPP, "%s: a store of blocks needs NFSv3", session->host);
	if (session->root.fh3_len != first->root.fh3_len ||
	    memcmp(session->root.fh3_val, first->root.fh3_val, first->root.fh3_len))
		return fail(-EINVAL, "%s: the sessions have other directories", session->host);
	if (session->unfinished || session->ndone)
		return fail(-EBUSY, "%s: operations of the session are unfinished", session->host);
	if (session->in_store)
		return fail(-EBUSY, "%s: another store has the session", session->host);
	return 0;
}

static int add_member(struct nfsrdma_blocks *store, struct nfsrdma_session *session)
{
	struct block_member *member = &store->members[store->nmembers];
	struct epoll_event event = {.events = EPOLLIN};

	TAILQ_INIT(&member->ready);
	member->rests = calloc(session->options.depth, sizeof(*member->rests));
	if (!member->rests)
		return fail_no_memory();
	member->session = session;
	session->in_store = true;
	store->nmembers++;
	return epoll_ctl(store->epoll, EPOLL_CTL_ADD, session->epoll, &event) ?
	       fail(-errno, "epoll_ctl: %s", strerror(errno)) : 0;
}

static int allocate_store(struct nfsrdma_blocks *store)
{
	uint64_t random[2];
	uint32_t i;

	store->nops = 2 * store->options.in_flight;
	store->ops = calloc(store->nops, sizeof(*store->ops));
	store->done = calloc(store->options.in_flight, sizeof(*store->done));
	if (!store->ops || !store->done)
		return fail_no_memory();
	for (i = 0; i < store->nops; i++)
		TAILQ_INSERT_TAIL(&store->unused, &store->ops[i], waits);
	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return fail(-errno, "getrandom: %s", strerror(errno));
	store->own = random[0];
	store->handles.seed = random[1];
	store->file_mode = names_without_umask(0666);
	store->directory_mode = names_without_umask(0777);
	store->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (store->epoll < 0)
		return fail(-errno, "epoll_create1: %s", strerror(errno));
	return handles_allocate(&store->handles, store->options.handles);
}

/* The sessions are those of a parent process, or have nothing of the store any more */
static void free_store(struct nfsrdma_blocks *store)
{
	struct nfsrdma_blocks_region *region;
	size_t i;

	while ((region = store->regions)) {
		store->regions = region->next;
		free(region);
	}
	for (i = 0; i < store->nmembers; i++) {
		store->members[i].session->in_store = false;
		free(store->members[i].rests);
	}
	if (store->epoll >= 0)
		close(store->epoll);
	if (store->timer >= 0)
		close(store->timer);
	handles_free(&store->handles);
	free(store->ops);
	free(store->done);
	free(store);
}

EXPORTED int nfsrdma_blocks_open(struct nfsrdma_session *const *sessions, size_t count,
				 const struct nfsrdma_blocks_options *options, struct nfsrdma_blocks **blocks)
{
	struct nfsrdma_blocks *store;
	size_t i;
	int rc = count && count <= MEMBERS_MOST ? 0 : fail(-EINVAL, "%zu sessions: 1 to %d", count, MEMBERS_MOST);

	for (i = 0; i < count && !rc; i++)
		rc = check_member(sessions[i], sessions[0]);
	if (rc)
		return rc;
	store = calloc(1, sizeof(*store));
	if (!store)
		return fail_no_memory();
	store->epoll = -1;
	store->timer = -1;
	store->earliest = NEVER;
	TAILQ_INIT(&store->unused);
	TAILQ_INIT(&store->queue);
	rc = set_store_options(store, options);
	if (!rc)
		rc = allocate_store(store);
	for (i = 0; i < count && !rc; i++)
		rc = add_member(store, sessions[i]);
	if (rc) {
		free_store(store);
		return rc;
	}
	*blocks = store;
	return 0;
}

/* End what is unfinished, and have the drafts removed */
static void end_ops(struct nfsrdma_blocks *store)
{
	uint64_t until = now_ms() + CLOSE_TIMEOUT;
	struct block_op *op;

	for (op = store->ops; op < store->ops + store->nops; op++)
		if (op->active && !op->reported)
			stop(store, op, -ECANCELED, "canceled");
	fill(store);
	while (store->lingering && now_ms() < until)
		if (!turn(store) && sleep_once(store, until))
			break;
	for (op = store->ops; op < store->ops + store->nops; op++)
		if (op->active)
			stop(store, op, -ECANCELED, "canceled");
}

EXPORTED int nfsrdma_blocks_close(struct nfsrdma_blocks *store)
{
	size_t i;
	int rc = 0;

	for (i = 0; store && i < store->nmembers && !rc; i++)
		rc = process_check_end(store->members[i].session);
	if (!store || rc)
		return rc;
	if (process_owns(store->members[0].session)) {
		end_ops(store);
		while (store->regions)
			nfsrdma_blocks_unregister(store->regions);
	}
	free_store(store);
	return 0;
}

EXPORTED int nfsrdma_blocks_register(struct nfsrdma_blocks *store, void *addr, size_t length,
				     struct nfsrdma_blocks_region **region)
{
	struct nfsrdma_blocks_region *new = calloc(1, sizeof(*new));
	size_t i;
	int rc = 0;

	if (!new)
		return fail_no_memory();
	for (i = 0; i < store->nmembers && !rc; i++)
		rc = nfsrdma_register(store->members[i].session, addr, length, &new->each[i]);
	if (rc) {
		for (i = 0; i < store->nmembers && new->each[i]; i++)
			nfsrdma_unregister(new->each[i]);
		free(new);
		return rc;
	}
	new->blocks = store;
	new->next = store->regions;
	store->regions = new;
	*region = new;
	return 0;
}

EXPORTED int nfsrdma_blocks_unregister(struct nfsrdma_blocks_region *region)
{
	struct nfsrdma_blocks_region **at;
	struct nfsrdma_blocks *store;
	uint32_t users = 0;
	size_t i;
	int rc;

	if (!region)
		return 0;
	store = region->blocks;
	rc = check_store(store);
	if (rc)
		return rc;
	for (i = 0; i < store->nmembers; i++)
		users += region->each[i]->users;
	if (users)
		return fail(-EBUSY, "%u unfinished operations use the region", users);
	for (i = 0; i < store->nmembers; i++)
		nfsrdma_unregister(region->each[i]);
	for (at = &store->regions; *at != region; at = &(*at)->next)
		;
	*at = region->next;
	free(region);
	return 0;
}

static int check_operation(const struct nfsrdma_block *block)
{
	if (block->operation < NFSRDMA_BLOCK_GET || block->operation > NFSRDMA_BLOCK_REMOVE)
		return fail(-EINVAL, "operation %u: one of enum nfsrdma_block_operation", block->operation);
	if (block->reserved[0] || block->reserved[1] || block->reserved[2])
		return fail(-EINVAL, "a reserved member of an operation is not 0");
	return 0;
}

/* Add an operation to the queue */
static int add_op(struct nfsrdma_blocks *store, const struct nfsrdma_block *block, uint64_t deadline)
{
	struct block_op *op = TAILQ_FIRST(&store->unused);
	int rc = check_operation(block);

	if (rc)
		return rc;
	if (store->unfinished + store->ndone >= store->options.in_flight || !op)
		return fail(-EAGAIN, "%u operations are unfinished or not yet reported", store->options.in_flight);
	TAILQ_REMOVE(&store->unused, op, waits);
	op->active = true;
	op->listed = op->reported = op->drafted = op->again = op->moved = op->ended = op->changed = false;
	op->kind = block->operation;
	op->step = STEP_FIND;
	op->batch = store->batches;
	op->deadline = deadline;
	op->user_data = block->user_data;
	op->member = NULL;
	op->buf = block->buf;
	op->length = block->length;
	op->pending = op->begun = 0;
	op->confirmed = 0;
	op->error = op->stopped = 0;
	op->result = 0;
	store->unfinished++;
	rc = set_path(op, block->name);
	if (!rc && op->kind == NFSRDMA_BLOCK_PUT && op->length > SIZE_MOST - TRAILER_BYTES)
		rc = -EFBIG;
	if (rc) {
		report(store, op, rc);
		release_op(store, op);
		return 0;
	}
	TAILQ_INSERT_TAIL(&store->queue, op, waits);
	return 0;
}

EXPORTED int nfsrdma_blocks_submit(struct nfsrdma_blocks *store, const struct nfsrdma_block *operations, size_t count,
				   uint32_t deadline, uint64_t *batch)
{
	uint64_t until;
	size_t n;
	int rc = check_store(store);

	if (rc)
		return rc;
	until = now_ms() + (deadline ? deadline : store->members[0].session->options.timeout);
	store->batches++;
	if (batch)
		*batch = store->batches;
	for (n = 0; n < count && n < IN_FLIGHT_MOST && !rc; n += !rc)
		rc = add_op(store, &operations[n], until);
	if (n && until < store->earliest)
		store->earliest = until;
	fill(store);
	set_timer(store);
	return n ? (int)n : rc;
}

static int take_done(struct nfsrdma_blocks *store, struct nfsrdma_completion *completions, size_t count)
{
	size_t n;

	for (n = 0; n < count && store->ndone; n++) {
		completions[n] = store->done[store->done_first];
		if (++store->done_first == store->options.in_flight)
			store->done_first = 0;
		store->ndone--;
	}
	return n;
}

EXPORTED int nfsrdma_blocks_wait(struct nfsrdma_blocks *store, struct nfsrdma_completion *completions, size_t count,
				 size_t min, int timeout)
{
	uint64_t until = timeout < 0 ? NEVER : now_ms() + timeout;
	int rc = check_store(store);

	if (rc)
		return rc;
	if (min > count)
		min = count;
	turn(store);
	while (store->ndone < min && store->unfinished && !rc) {
		if (turn(store)) {
			rc = wait_ask(store->members[0].session);
			continue;
		}
		if (timeout >= 0 && now_ms() >= until)
			break;
		rc = sleep_once(store, until);
	}
	if (store->ndone || !rc)
		rc = take_done(store, completions, count);
	set_timer(store);
	return rc;
}

EXPORTED int nfsrdma_blocks_cancel(struct nfsrdma_blocks *store, uint64_t batch)
{
	struct block_op *op;
	int n = 0, rc = check_store(store);

	if (rc)
		return rc;
	for (op = store->ops; op < store->ops + store->nops; op++) {
		if (!op->active || op->reported || op->batch != batch)
			continue;
		stop(store, op, -ECANCELED, "canceled");
		n++;
	}
	fill(store);
	set_timer(store);
	return n;
}

EXPORTED int nfsrdma_blocks_fd(struct nfsrdma_blocks *store)
{
	struct epoll_event event = {.events = EPOLLIN};
	size_t i;
	int fd, rc = check_store(store);

	for (i = 0; i < store->nmembers && !rc; i++) {
		fd = nfsrdma_fd(store->members[i].session);
		rc = fd < 0 ? fd : 0;
	}
	if (rc || store->timer >= 0)
		return rc ? rc : store->epoll;
	fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (fd < 0)
		return fail(-errno, "timerfd_create: %s", strerror(errno));
	if (epoll_ctl(store->epoll, EPOLL_CTL_ADD, fd, &event)) {
		rc = fail(-errno, "epoll_ctl: %s", strerror(errno));
		close(fd);
		return rc;
	}
	store->timer = fd;
	store->timer_at = NEVER;
	set_timer(store);
	return store->epoll;
}
