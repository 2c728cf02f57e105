// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Reads and writes: one at a time, and batches.
 *
 * Data that fits the messages of the connection is part of them and is copied.  RDMA moves other data from or
 * to the memory of the caller if it is registered, else from or to the arena, where it is copied too.  With the option
 * direct, and for memory of a dma-buf, RDMA moves all data of registered memory: no message and no cache has any.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "library.h"
#include "wait.h"

/* Bytes that are part of a message with each inline_size */
#define LITTLE	512

/* Milliseconds: nfsrdma_peek() looks at the events of the connection and at the clock at least as often */
#define LOOK_AFTER	100

/* --- messages --- */

/* The stability that a file's flags request (enum stable_how) */
static uint32_t stable_of(const struct nfsrdma_file *file)
{
	if ((file->flags & O_SYNC) == O_SYNC)
		return FILE_SYNC;
	return file->flags & O_DSYNC ? DATA_SYNC : UNSTABLE;
}

/* Memory for @io's data that RDMA reaches: the caller's, or the arena's */
static int provide_memory(struct nfsrdma_session *session, struct io_operation *io, struct memory_span *span)
{
	struct nfsrdma_region *region = memory_find(session, io->buf, io->count);

	if (region) {
		io->region = region;
		region->users++;
		*span = (struct memory_span){&region->mr, io->buf, io->count};
		return 0;
	}
	if (io->count > session->arena_bytes)
		return -EMSGSIZE;
	io->bounce = memory_take(session, io->count);
	if (!io->bounce)
		return -EAGAIN;
	*span = (struct memory_span){&session->arena_mr, io->bounce, io->count};
	return 0;
}

static void count_way(struct nfsrdma_session *session, const struct io_operation *io)
{
	if (io->bounce)
		session->stats.copied++;
	else
		session->stats.direct++;
}

/* A write begins or ends: what the session knows of the file is of no use any more */
static void forget_data(struct nfsrdma_session *session, struct nfsrdma_file *file)
{
	cache_written(session, file);
	if (session->optimist)
		references_written(&session->optimist->references, file);
}

static void release_io(struct nfsrdma_session *session, struct request *req)
{
	struct io_operation *io = &req->io;

	if (io->region)
		io->region->users--;
	if (io->bounce)
		memory_give(session, io->bounce, io->count);
	if (io->kind == IO_WRITE)
		forget_data(session, io->file);
	file_put(io->file);
	io->file = NULL;
	request_release(session, req);
	if (session->held.head)
		commit_held(session);
}

/* Expect the data in the reply if it has room there */
static bool expect_inline(struct nfsrdma_session *session, struct request *req)
{
	uint32_t reply = NFR_WIRE_MIN + req->io.form->read_head + padded(req->io.count);

	if (req->io.direct || reply > session->recv_size)
		return false;
	req->reply_most = reply;
	session->stats.inlined++;
	return true;
}

/* A READ that has memory, but is no RDMA Read: encode its message */
static void read_by_rpc(struct nfsrdma_session *session, struct request *req)
{
	req->remote = NULL;
	req->io.form->encode_read(session, req, req->io.offset);
	if (expect_inline(session, req))
		req->write = (struct memory_span){};
	else
		count_way(session, &req->io);
}

/* The data of an RDMA Read has arrived */
static void read_directly(struct nfsrdma_session *session, struct request *req)
{
	struct io_operation *io = &req->io;

	if (io->bounce)
		memory_copy(session, io->buf, io->bounce, req->target.length);
	io->moved = req->target.length;
	io->eof = req->target_ends;
	cache_fill(session, io);
	count_way(session, io);
	session->stats.read_bytes += io->moved;
	session->stats.by_reference++;
}

static const struct remote_read remote_read = {.by_rpc = read_by_rpc, .arrived = read_directly};

static int encode_read(struct nfsrdma_session *session, struct request *req, uint64_t offset)
{
	int rc;

	/* an RDMA Read needs memory, and no message; without memory it is a READ */
	if (req->io.file->flags & NFSRDMA_OPTIMISTIC && req->io.count &&
	    !provide_memory(session, &req->io, &req->write)) {
		req->remote = &remote_read;
		return 0;
	}
	req->io.form->encode_read(session, req, offset);
	if (expect_inline(session, req))
		return 0;
	rc = provide_memory(session, &req->io, &req->write);
	if (!rc)
		count_way(session, &req->io);
	return rc;
}

/* Put what follows the data of a WRITE; returns its bytes */
static uint32_t put_rest(struct nfsrdma_session *session, struct request *req, uint8_t *at)
{
	const struct io_form *form = req->io.form;

	return form->encode_rest ? form->encode_rest(session, req, at) - at : 0;
}

static int encode_write(struct nfsrdma_session *session, struct request *req, uint64_t offset)
{
	struct io_operation *io = &req->io;
	uint32_t rest;
	uint8_t *at;
	int rc;

	io->form->encode_write(session, req, offset, stable_of(io->file));
	at = req->message + HEADER_ROOM + req->length;
	req->position = req->length;
	rest = put_rest(session, req, at);
	req->length += rest;
	if (!io->direct && NFR_WIRE_MIN + req->length + padded(io->count) <= session->send_size) {
		memmove(at + padded(io->count), at, rest);
		memory_copy(session, at, io->buf, io->count);
		memset(at + io->count, 0, padded(io->count) - io->count);
		req->length += padded(io->count);
		session->stats.inlined++;
		return 0;
	}
	rc = provide_memory(session, io, &req->read);
	if (!rc)
		count_way(session, io);
	if (!rc && io->bounce)
		memory_copy(session, io->bounce, io->buf, io->count);
	return rc;
}

static int store_read(struct nfsrdma_session *session, struct request *req, struct rpc_body *results,
		      uint32_t count, uint32_t eof)
{
	struct io_operation *io = &req->io;

	if (count > io->count)
		return -EBADMSG;
	if (req->write.addr) {
		/* some servers write up to three bytes behind the data, not always as many as round it up */
		if (req->placed < count || req->placed - count >= sizeof(uint32_t))
			return -EBADMSG;
		if (io->bounce)
			memory_copy(session, io->buf, io->bounce, count);
	} else {
		if (results->left < count)
			return -EBADMSG;
		memory_copy(session, io->buf, results->at, count);
	}
	io->moved = count;
	io->eof = eof;
	cache_fill(session, io);
	session->stats.read_bytes += count;
	return 0;
}

static int finish_read(struct nfsrdma_session *session, struct request *req, struct rpc_body *results)
{
	uint32_t count, eof;
	int rc = req->io.form->take_read(session, req, results, &count, &eof);

	return rc ? rc : store_read(session, req, results, count, eof);
}

static int finish_write(struct nfsrdma_session *session, struct request *req, struct rpc_body *results)
{
	struct io_operation *io = &req->io;
	struct written written;
	int rc = req->io.form->take_write(session, req, results, &written);

	if (rc)
		return rc;
	if (written.committed > FILE_SYNC || written.committed < stable_of(io->file) || written.count > io->count ||
	    (!written.count && io->count))
		return -EBADMSG;
	if (written.committed == UNSTABLE)
		commit_written(session, io->file->inode, written.verifier);
	io->moved = written.count;
	session->stats.written_bytes += written.count;
	return 0;
}

/* --- batches --- */

static void complete_io(struct nfsrdma_session *session, struct request *req)
{
	batch_add(&session->done, req->io.user_data, req->error ? req->error : (int64_t)req->io.moved,
		  !req->error && req->io.eof);
	session->unfinished--;
	release_io(session, req);
}

static int check_mode(const struct nfsrdma_file *file, enum io_kind kind)
{
	if ((file->flags & O_ACCMODE) == (kind == IO_READ ? O_WRONLY : O_RDONLY))
		return fail(-EBADF, "the file is not open for this");
	return 0;
}

/* @form and @results: NULL for a READ or WRITE of an open file */
static int begin_io(struct nfsrdma_file *file, enum io_kind kind, uint8_t *buf, size_t count, uint64_t offset,
		    const struct io_form *form, void *results, struct request **request)
{
	struct nfsrdma_session *session = file->session;
	struct request *req;
	bool direct;
	int rc;

	if (count > (kind == IO_READ ? session->read_max : session->write_max))
		return fail(-EMSGSIZE, "%zu bytes: the server takes %u", count,
			    kind == IO_READ ? session->read_max : session->write_max);
	rc = check_mode(file, kind);
	if (!rc)
		rc = memory_check(session, buf, count, &direct);
	if (rc)
		return rc;
	req = wait_take(session);
	if (!req)
		return wait_no_slot(session);
	/* the others are 0 */
	req->io.kind = kind;
	req->io.file = file;
	req->io.buf = buf;
	req->io.count = count;
	req->io.offset = offset;
	req->io.version = cache_version(file);
	req->io.direct = direct;
	req->io.form = form ? form : &session->dialect->data;
	req->results = results;
	file->users++;
	if (kind == IO_WRITE) {
		req->io.barrier = file->inode->barriers;
		forget_data(session, file);
	}
	req->finish = kind == IO_READ ? finish_read : finish_write;
	rc = kind == IO_READ ? encode_read(session, req, offset) : encode_write(session, req, offset);
	if (rc) {
		release_io(session, req);
		return fail(rc, "the arena has no room for %zu bytes", count);
	}
	*request = req;
	return 0;
}

/* Begin a read or write of a batch */
static int begin_in_batch(struct nfsrdma_file *file, enum io_kind kind, uint8_t *buf, size_t count, uint64_t offset,
			  const struct io_form *form, void *results, uint64_t user_data)
{
	struct nfsrdma_session *session = file->session;
	struct request *req = NULL;
	int rc = begin_io(file, kind, buf, count, offset, form, results, &req);

	if (rc)
		return rc;
	req->io.user_data = user_data;
	req->done = complete_io;
	session->unfinished++;
	request_prepare(session, req);
	return 0;
}

/**
 * io_prepare - add a Call that moves data to the next batch
 * @file: file that has the memory for the time of the Call; only its session and flags count
 * @kind: IO_READ or IO_WRITE
 * @buf: memory of the caller
 * @count: its bytes
 * @form: of the Call
 * @results: for @form, as req->results
 * @user_data: value that the completion returns
 *
 * Return: 0, or a negative errno value as nfsrdma_prepare_read().
 */
int io_prepare(struct nfsrdma_file *file, enum io_kind kind, uint8_t *buf, size_t count, const struct io_form *form,
	       void *results, uint64_t user_data)
{
	int rc = batch_room(file->session);

	return rc ? rc : begin_in_batch(file, kind, buf, count, 0, form, results, user_data);
}

/* A read of a batch whose data is in the cache completes at once */
static bool complete_from_cache(struct nfsrdma_file *file, uint8_t *buf, size_t count, uint64_t offset, uint64_t user_data)
{
	struct nfsrdma_session *session = file->session;
	ssize_t moved;
	bool eof, direct;

	/* no event would tell those who wait for the descriptor */
	if (session->fd_used || (file->flags & O_ACCMODE) == O_WRONLY || count > session->read_max)
		return false;
	if (memory_check(session, buf, count, &direct) || direct)
		return false;
	moved = cache_read(file, buf, count, offset, &eof);
	if (moved < 0)
		return false;
	batch_add(&session->done, user_data, moved, eof);
	session->nhits++;
	return true;
}

static int prepare_io(struct nfsrdma_file *file, enum io_kind kind, uint8_t *buf, size_t count,
		   uint64_t offset, uint64_t user_data)
{
	int rc = batch_room(file->session);

	if (rc)
		return rc;
	if (kind == IO_READ && complete_from_cache(file, buf, count, offset, user_data))
		return 0;
	return begin_in_batch(file, kind, buf, count, offset, NULL, NULL, user_data);
}

EXPORTED int nfsrdma_prepare_read(struct nfsrdma_file *file, void *buf, size_t count, uint64_t offset,
				  uint64_t user_data)
{
	return prepare_io(file, IO_READ, buf, count, offset, user_data);
}

EXPORTED int nfsrdma_prepare_write(struct nfsrdma_file *file, const void *buf, size_t count,
				   uint64_t offset, uint64_t user_data)
{
	return prepare_io(file, IO_WRITE, (uint8_t *)buf, count, offset, user_data);
}

static int prepare_all(const struct nfsrdma_range *ranges, size_t count, enum io_kind kind)
{
	const struct nfsrdma_range *range;
	size_t n;
	int rc = 0;

	if (count > INT_MAX)
		count = INT_MAX;
	for (n = 0; n < count && !rc; n += !rc) {
		range = &ranges[n];
		if (range->reserved)
			rc = fail(-EINVAL, "range %zu: reserved is not 0", n);
		else
			rc = prepare_io(range->file, kind, range->buf, range->count, range->offset, range->user_data);
	}
	return n ? (int)n : rc;
}

EXPORTED int nfsrdma_prepare_reads(const struct nfsrdma_range *ranges, size_t count)
{
	return prepare_all(ranges, count, IO_READ);
}

EXPORTED int nfsrdma_prepare_writes(const struct nfsrdma_range *ranges, size_t count)
{
	return prepare_all(ranges, count, IO_WRITE);
}

/* Send the batch; returns its number of requests */
static int submit_batch(struct nfsrdma_session *session)
{
	struct request *req;
	int n = session->nprepared + session->nhits;
	uint64_t now;

	/* a reference whose end has been announced would only be refused */
	if (session->optimist)
		optimist_heed(session);
	now = now_ms();
	while (session->prepared.head) {
		req = request_list_pop(&session->prepared);
		req->began = now;
		if (!req->remote || !optimist_add(session, req))
			send_by_rpc(session, req);
	}
	session->nprepared = 0;
	session->nhits = 0;
	if (session->held.head)
		commit_submit(session);
	optimist_post(session);
	if (session->link == LINK_UP)
		send_flush(session);
	return n;
}

EXPORTED int nfsrdma_submit(struct nfsrdma_session *session)
{
	int rc = batch_check(session);

	if (rc)
		return rc;
	rc = submit_batch(session);
	/* completions without a message */
	wait_end(session);
	return rc;
}

EXPORTED int nfsrdma_peek(struct nfsrdma_session *session, struct nfsrdma_completion *completions,
			  size_t count)
{
	int rc = batch_check(session);
	bool found;

	if (rc)
		return rc;
	connection_rest(session);
	do {
		/* who waits for the descriptor sees the next message: request its report before the poll */
		if (session->fd_used)
			wait_arm(session);
		found = wait_poll_all(session, count);
		/* events of the connection make the descriptor readable, too, and no sleep handles them here */
		if (!session->fd_used || (found && session->link == LINK_UP && now_ms() < session->looked + LOOK_AFTER))
			break;
		wait_look(session);
		/* a connection that is new reports no message yet */
	} while (session->done.count < count && session->link == LINK_UP && !session->armed);
	return batch_take(&session->done, completions, count);
}

EXPORTED int nfsrdma_wait(struct nfsrdma_session *session, struct nfsrdma_completion *completions,
			  size_t count, size_t min, int timeout)
{
	uint64_t until = timeout < 0 ? UINT64_MAX : now_ms() + timeout;
	int rc = batch_check(session);

	if (rc)
		return rc;
	if (min > count)
		min = count;
	/* nothing to wait for: what has arrived */
	if (!min)
		wait_poll_all(session, count);
	/* what was not submitted does not complete */
	while (session->done.count < min && session->unfinished > session->nprepared) {
		if (wait_poll(session))
			continue;
		if (timeout >= 0 && now_ms() >= until)
			break;
		rc = wait_sleep(session, until);
		if (rc)
			break;
	}
	if (session->done.count || !rc)
		rc = batch_take(&session->done, completions, count);
	wait_end(session);
	return rc;
}

EXPORTED int nfsrdma_fd(struct nfsrdma_session *session)
{
	int rc = process_check(session);

	if (!rc)
		rc = connection_use_fd(session);
	if (rc)
		return rc;
	session->fd_used = true;
	return session->epoll;
}

/* --- one at a time --- */

/* Send a request and wait for its end; returns its error */
static int call_io(struct nfsrdma_session *session, struct request *req)
{
	if (!req->remote)
		return wait_call(session, req);
	optimist_heed(session);
	req->began = began_at(session);
	if (optimist_add(session, req))
		optimist_post(session);
	else
		send_by_rpc(session, req);
	return wait_for(session, req);
}

static size_t less_than(size_t count)
{
	if (count > 2 * BLOCK_BYTES)
		return count / 2;
	return count > BLOCK_BYTES ? BLOCK_BYTES : LITTLE;
}

/* One RPC; returns the bytes that it moved */
static ssize_t transfer_once(struct nfsrdma_file *file, enum io_kind kind, uint8_t *buf, size_t count,
		    uint64_t offset, bool *eof)
{
	struct nfsrdma_session *session = file->session;
	struct request *req = NULL;
	ssize_t moved;
	int rc = begin_io(file, kind, buf, count, offset, NULL, NULL, &req);

	if (rc == -EMSGSIZE && count > session->arena_bytes)
		return transfer_once(file, kind, buf, session->arena_bytes, offset, eof);
	/* a batch has most of the arena: less data needs less of it, and none of it if there is little */
	if (rc == -EAGAIN && count > LITTLE)
		return transfer_once(file, kind, buf, less_than(count), offset, eof);
	if (rc)
		return rc;
	rc = call_io(session, req);
	moved = rc ? rc : (ssize_t)req->io.moved;
	*eof = !rc && req->io.eof;
	release_io(session, req);
	if (rc && rc != -ETIMEDOUT && rc != -EBADMSG)
		fail(rc, "%s at %llu: %s", kind == IO_READ ? "READ" : "WRITE", (unsigned long long)offset,
		     strerror(-rc));
	return moved;
}

/* As many RPCs as that takes; @eof gets whether the file ends behind the bytes */
static ssize_t transfer_all(struct nfsrdma_file *file, enum io_kind kind, uint8_t *buf, size_t count, uint64_t offset,
			    bool *eof)
{
	size_t most = kind == IO_READ ? file->session->read_max : file->session->write_max, done = 0;
	int rc = process_check(file->session);
	bool direct;

	*eof = false;
	if (!rc)
		rc = memory_check(file->session, buf, count, &direct);
	if (rc)
		return rc;
	/* no RPC would find it out */
	if (!count)
		return check_mode(file, kind);
	if (count > SSIZE_MAX)
		count = SSIZE_MAX;
	while (done < count && !*eof) {
		size_t part = count - done < most ? count - done : most;
		ssize_t moved;

		if (done && wait_ask(file->session))
			break;
		moved = transfer_once(file, kind, buf + done, part, offset + done, eof);
		if (moved < 0)
			return done ? (ssize_t)done : moved;
		/* a server at the end of a file says so, or returns nothing */
		if (!moved)
			*eof = true;
		done += moved;
	}
	return done;
}

/* A part of a block: read all of it, for the cache */
static ssize_t read_block(struct nfsrdma_file *file, uint8_t *buf, size_t count, uint64_t offset, bool *eof)
{
	uint8_t block[CACHE_BLOCK];
	uint32_t at = offset % CACHE_BLOCK;
	ssize_t got = transfer_all(file, IO_READ, block, sizeof(block), offset - at, eof);

	if (got < 0)
		return got;
	/* a later part of the block failed: the caller may not want it, or gets its error */
	if (!*eof && (size_t)got < at + count)
		return transfer_all(file, IO_READ, buf, count, offset, eof);
	if (got <= at)
		return 0;
	if (count < (size_t)got - at)
		*eof = false;
	else
		count = got - at;
	memory_copy(file->session, buf, block + at, count);
	return count;
}

static ssize_t read_cached(struct nfsrdma_file *file, uint8_t *buf, size_t count, uint64_t offset, bool *eof)
{
	uint32_t at = offset % CACHE_BLOCK;
	ssize_t got;
	int rc = process_check(file->session);
	bool direct = false;

	if (!rc)
		rc = memory_check(file->session, buf, count, &direct);
	if (rc)
		return rc;
	if (direct)
		return transfer_all(file, IO_READ, buf, count, offset, eof);
	got = cache_read(file, buf, count, offset, eof);
	if (got >= 0)
		return got;
	if (count && count < CACHE_BLOCK && at + count <= CACHE_BLOCK)
		return read_block(file, buf, count, offset, eof);
	return transfer_all(file, IO_READ, buf, count, offset, eof);
}

EXPORTED ssize_t nfsrdma_pread(struct nfsrdma_file *file, void *buf, size_t count, uint64_t offset)
{
	if (file->cached && (file->flags & O_ACCMODE) != O_WRONLY)
		return read_cached(file, buf, count, offset, &file->ended);
	return transfer_all(file, IO_READ, buf, count, offset, &file->ended);
}

EXPORTED int nfsrdma_eof(const struct nfsrdma_file *file)
{
	return file->ended;
}

EXPORTED ssize_t nfsrdma_pwrite(struct nfsrdma_file *file, const void *buf, size_t count, uint64_t offset)
{
	bool eof;

	return transfer_all(file, IO_WRITE, (uint8_t *)buf, count, offset, &eof);
}

/* The session ends: drop the files of operations that will not complete */
void io_abandon(struct nfsrdma_session *session)
{
	uint32_t i;

	for (i = 0; session->slots && i < session->nslots; i++)
		if (session->slots[i].io.file)
			file_put(session->slots[i].io.file);
}
