/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Types and functions that handle.c, block_step.c, block_nfs4.c and block.c share: stores of blocks. */
#ifndef NFSRDMA_BLOCK_H
#define NFSRDMA_BLOCK_H

#include "library.h"

#define BLOCK_MEMBERS_MOST	64
#define BLOCK_PATH_BYTES	1024

/* user_data of a request: the number of the operation, and an offset in the block */
#define BLOCK_TAG_SHIFT		40
#define BLOCK_SIZE_MOST		((1ULL << BLOCK_TAG_SHIFT) - 1)

/* Bytes behind the data of a block, with the option checksum: magic, version, CRC, length, 0 */
#define BLOCK_TRAILER_BYTES	32

/* Operations of the COMPOUNDs that no other ones can replace, with NFSv4.1 */
#define BLOCK_OPERATIONS	8

enum block_state {
	STEP_FIND, STEP_ATTRIBUTES, STEP_MKDIR, STEP_FETCH, STEP_READ,
	STEP_STORE, STEP_CREATE, STEP_FIND_DRAFT, STEP_WRITE, STEP_COMMIT, STEP_RENAME, STEP_CHECK,
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
 * struct block_found - results of LOOKUP or OPEN with NFSv4.1
 * @known: the server has the name; the others are from its reply
 * @fh: file handle
 * @type: enum ftype3
 * @size: bytes
 * @count: bytes of the READ that followed
 * @eof: the file ends behind them
 * @stored: the draft has the name of the block
 */
struct block_found {
	bool known;
	struct nfs_fh fh;
	uint32_t type;
	uint64_t size;
	uint32_t count, eof;
	bool stored;
};

/**
 * struct block_op - an operation
 * @waits: in store->queue, store->unused or member->ready
 * @store: its store
 * @active: it is not in store->unused
 * @listed: it is in member->ready: not all requests of its step are prepared
 * @reported: the caller has its completion, or gets it
 * @drafted: the server may have its draft
 * @again: the data was written a second time, after a restart of the server
 * @moved: another session goes on with it
 * @ended: the last READ has the end of the file
 * @changed: the file has another size than it had when it was looked up
 * @cached: its file handle is from the table: no server has said since that the file has the name
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
 * @draft_dir: its directory
 * @open: what an NFSv4.1 server keeps for it; its stateid is lost with the session, and nothing recovers it
 * @file: the block, or its draft
 * @inode: of @file, for verifiers of WRITE and COMMIT
 * @size: bytes of the block on the server, with its trailer
 * @next: offset of the next READ or WRITE that is not prepared
 * @part: bytes of one
 * @trailer: see BLOCK_TRAILER_BYTES
 * @pending: requests that have no completion yet, and rests
 * @begun: how often it has begun
 * @confirmed: size of a file whose end no READ has said
 * @error: of its step
 * @stopped: why it was stopped
 * @result: for the caller
 * @results: of a call; all zero at the begin of a step
 */
struct block_op {
	TAILQ_ENTRY(block_op) waits;
	struct nfsrdma_blocks *store;
	bool active, listed, reported, drafted, again, moved, ended, changed, cached;
	uint32_t kind;
	enum block_state step;
	uint64_t batch, deadline, user_data;
	struct block_member *member;
	uint8_t *buf;
	size_t length;
	char path[BLOCK_PATH_BYTES];
	uint32_t path_length, at;
	struct nfs_fh dir;
	uint64_t draft;
	struct nfs_fh draft_dir;
	struct nfs4_open open;
	struct nfsrdma_file file;
	struct inode inode;
	uint64_t size, next;
	uint32_t part;
	uint8_t trailer[BLOCK_TRAILER_BYTES];
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
		struct block_found found;
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
 * @dialect: the steps of their version of NFS
 * @members: sessions
 * @nmembers: number of them
 * @ops: operations, for as many as may linger, too
 * @nops: number of them
 * @unused: those that are not active
 * @queue: those that no session has taken
 * @unfinished: active ones without a completion
 * @started: those of them that a session has taken
 * @lingering: active ones with one
 * @places: for operations without a completion; as many more may linger
 * @earliest: no deadline is before that
 * @done: completions; it has as many places
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
	const struct block_dialect *dialect;
	struct block_member members[BLOCK_MEMBERS_MOST];
	size_t nmembers;
	struct block_op *ops;
	uint32_t nops;
	struct block_ops unused, queue;
	uint32_t unfinished, started, lingering, places;
	uint64_t earliest;
	struct completion_ring done;
	uint64_t batches, drafts, own;
	mode_t file_mode, directory_mode;
	struct block_handles handles;
	struct nfsrdma_blocks_region *regions;
	uint64_t look_at;
	uint32_t idle;
	int epoll, timer;
	uint64_t timer_at;
};

/**
 * struct block_step - what an operation does, and what follows
 * @decode: decodes the results of its request; NULL: it has READs, WRITEs or a COMMIT
 * @prepare: prepares its requests; 0 if these were all, or a negative errno value: -EAGAIN if there is no room
 * @ended: called when all of them have ended; returns the next step
 */
struct block_step {
	xdrproc_t decode;
	int (*prepare)(struct nfsrdma_blocks *store, struct block_op *op);
	enum block_state (*ended)(struct nfsrdma_blocks *store, struct block_op *op);
};

/**
 * struct block_dialect - what operations do with a version of NFS
 * @steps: by enum block_state
 * @last: the step for the last component of the path, whose directory is op->dir
 * @read_cached: the first READ by a file handle of the table, which notes in the inode whether the file has a name;
 *	NULL: each READ does
 * @keeps: the server keeps the open draft for the session that has made it
 */
struct block_dialect {
	const struct block_step *steps;
	enum block_state (*last)(const struct block_op *op);
	const struct io_form *read_cached;
	bool keeps;
};

/* --- handle.c --- */

int handle_table_allocate(struct block_handles *handles, uint32_t most);
void handle_table_free(struct block_handles *handles);
struct block_entry *handle_find(struct block_handles *handles, const char *path, uint32_t length);
void handle_forget(struct block_handles *handles, const char *path, uint32_t length);
void handle_note(struct block_handles *handles, const char *path, uint32_t length, const struct nfs_fh *fh,
		 bool directory, uint64_t size);

/* --- block_step.c --- */

extern const struct block_dialect block_step_nfs3;
int block_step_set_path(struct block_op *op, const char *name);
enum block_state block_step_first(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_again(struct nfsrdma_blocks *store, struct block_op *op);
int block_step_prepare_part(struct nfsrdma_blocks *store, struct block_op *op, uint64_t offset);
void block_step_component(const struct block_op *op, char *name);
void block_step_set_file(struct block_op *op, int flags);
void block_step_draft(const struct nfsrdma_blocks *store, const struct block_op *op, char *name, size_t room);
void block_step_begin_draft(struct nfsrdma_blocks *store, struct block_op *op);
uint32_t block_step_part(const struct block_op *op, uint64_t length, uint32_t most);
int block_step_prepare_parts(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_found(struct nfsrdma_blocks *store, struct block_op *op, uint32_t type, uint64_t size);
enum block_state block_step_not_found(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_failed(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_made(struct nfsrdma_blocks *store, struct block_op *op, const struct nfs_fh *fh);
enum block_state block_step_removed(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_write(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_written(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_committed(struct nfsrdma_blocks *store, struct block_op *op);
int block_step_prepare_commit(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_put(struct nfsrdma_blocks *store, struct block_op *op);
enum block_state block_step_read_on(struct nfsrdma_blocks *store, struct block_op *op, uint64_t count, bool eof);
enum block_state block_step_read(struct nfsrdma_blocks *store, struct block_op *op);
void block_step_part_ended(const struct nfsrdma_blocks *store, struct block_op *op, uint64_t offset,
			   const struct nfsrdma_completion *completion);

static inline uint64_t block_tag(const struct nfsrdma_blocks *store, const struct block_op *op, uint64_t offset)
{
	return (uint64_t)(op - store->ops) << BLOCK_TAG_SHIFT | offset;
}

/* --- block_nfs4.c --- */

extern const struct block_dialect block_nfs4_dialect;

/* Does the session take another request now? */
static inline bool block_has_room(const struct block_member *member)
{
	const struct nfsrdma_session *session = member->session;

	return session->unfinished + session->done.count < session->options.depth && request_is_free(session);
}

#endif
