// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Many sessions with a load, in one loop.
 *
 * The descriptors of all sessions are in one epoll(7).  The loop sleeps until one is readable or an operation is due;
 * ten times a second it also looks after sessions without a connection, and once a second after those that wait for a
 * reply, because time makes no event.
 *
 * An open loop counts from when an operation was due, not from when it could be sent: a server that stalls delays the
 * operations behind it, too.  Each session has random numbers of its own, so that its operations are the same in each
 * run with the same seed.
 */
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "library.h"
#include "load.h"

#define KINDS		5
#define DEPTH_MOST	127
#define ERRORS		8
#define NS		1000000000ULL
#define TICK		(NS / 10)
#define LOOK_AFTER	NS

/* After an operation failed, the next one of a closed loop waits this long at least: it may fail at once again */
#define FAILED_PAUSE	(NS / 100)

/* Arrivals between two looks at the sessions */
#define ARRIVALS_MOST	1024

/* Sessions that take privileged ports; more would leave none to others */
#define PRIVILEGED_MOST	256

#define DESCRIPTORS	6

/* @first: the first call on a connection, which is not counted */
struct operation {
	enum nfsrdma_load_kind kind;
	bool busy, first;
	uint64_t due, sent, offset;
	union {
		getattr3_res attributes;
		readdirplus3_res entries;
	} results;
};

struct arrival {
	enum nfsrdma_load_kind kind;
	uint64_t due, offset;
};

/**
 * struct load_file - a file that sessions read and write
 * @fh: file handle
 * @blocks: reads or writes that it has room for
 */
struct load_file {
	struct nfs_fh fh;
	uint64_t blocks;
};

/**
 * struct member - a session of a load
 * @session: session; NULL: closed, or not opened yet
 * @number: of the session
 * @file: its open file, or NULL
 * @blocks: of the file
 * @memory: data of the operations
 * @operations: as many as the depth
 * @unused: stack of operations that are not in use
 * @nunused: elements of @unused
 * @queue: ring of arrivals
 * @first: of @queue
 * @nqueued: elements of @queue
 * @ready: operations of a closed loop that are due
 * @random: state of the generator
 * @next_block: of sequential offsets
 * @done: operations without an error
 * @began: when the connection began
 * @looked: when the session was looked after
 * @connects: connections that were counted
 * @up: it has a connection
 * @lost_at: when it had lost that
 * @retry: when the library tries again, of the last failure that was counted
 */
struct member {
	struct nfsrdma_session *session;
	uint32_t number;
	struct nfsrdma_file *file;
	uint64_t blocks;
	uint8_t *memory;
	struct operation *operations;
	uint32_t *unused, nunused;
	struct arrival *queue;
	uint32_t first, nqueued;
	uint32_t ready;
	uint64_t random, next_block;
	uint64_t done;
	uint64_t began, looked;
	uint64_t connects;
	bool up;
	uint64_t lost_at, retry;
};

/* An operation of a closed loop that is due later */
struct thought {
	uint64_t due;
	struct member *member;
};

/**
 * struct nfsrdma_load - a load
 * @plan: what it does
 * @other: the session that the others are like
 * @members: sessions
 * @opened: number of those that have begun to connect
 * @files: files
 * @nfiles: number of them
 * @directory: that READDIR lists
 * @stride: bytes of memory of an operation
 * @epoll: descriptor
 * @weight: sum of the weights
 * @started: nfsrdma_load_start() was called
 * @running: operations begin
 * @targets: sessions that are connected at the start
 * @ntargets: number of them
 * @thoughts: heap of operations that are due later, the first one in front
 * @nthoughts: elements of it
 * @random: state of the generator of arrivals
 * @next: nanoseconds of the clock at which the next arrival is due
 * @tick: nanoseconds of the clock at which to look after sessions
 * @connecting: when the first connection began
 * @down: sessions without a connection
 * @down_since: when the outage began
 * @returned: when a connection was made again
 * @in_flight: operations without a reply
 * @queued: arrivals in queues
 * @resent: calls that were sent again before the start
 * @totals: counts
 * @times: see enum nfsrdma_load_times
 */
struct nfsrdma_load {
	struct nfsrdma_load_plan plan;
	const struct nfsrdma_session *other;
	struct member *members;
	uint32_t opened;
	struct load_file *files;
	uint32_t nfiles;
	struct nfs_fh directory;
	size_t stride;
	int epoll;
	uint64_t weight;
	bool started, running;
	struct member **targets;
	uint32_t ntargets;
	struct thought *thoughts;
	size_t nthoughts;
	uint64_t random;
	double next;
	uint64_t tick;
	uint64_t connecting;
	uint32_t down;
	uint64_t down_since, returned;
	uint64_t in_flight, queued;
	uint64_t resent;
	struct nfsrdma_load_totals totals;
	struct nfsrdma_histogram times[NFSRDMA_LOAD_OUTAGE + 1];
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS + now.tv_nsec;
}

/* --- random numbers, and the pattern of files --- */

/* The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

static uint64_t random_next(uint64_t *state)
{
	return mix(*state += 0x9e3779b97f4a7c15ULL);
}

/* A number below @limit, which is not 0 */
static uint64_t random_below(uint64_t *state, uint64_t limit)
{
	return (unsigned __int128)random_next(state) * limit >> 64;
}

EXPORTED double nfsrdma_load_gap(uint64_t *state, double mean)
{
	/* 53 bits: below 1, so that the logarithm is finite */
	return -mean * log1p(-(double)(random_next(state) >> 11) * 0x1p-53);
}

static uint64_t pattern_word(uint64_t seed, uint32_t file, uint64_t offset)
{
	return mix(mix(seed + file) + offset / sizeof(uint64_t));
}

EXPORTED void nfsrdma_load_pattern(uint64_t seed, uint32_t file, void *buf, size_t length, uint64_t offset)
{
	uint64_t word;
	size_t at;

	for (at = 0; at < length; at += sizeof(word)) {
		word = pattern_word(seed, file, offset + at);
		memcpy((uint8_t *)buf + at, &word, sizeof(word));
	}
}

/* Where memory differs from the pattern; @length if it does not */
static size_t differs_at(uint64_t seed, uint32_t file, const uint8_t *buf, size_t length, uint64_t offset)
{
	uint64_t word;
	size_t at, part;

	for (at = 0; at < length; at += sizeof(word)) {
		part = length - at < sizeof(word) ? length - at : sizeof(word);
		word = pattern_word(seed, file, offset + at);
		if (memcmp(buf + at, &word, part))
			return at;
	}
	return length;
}

/* --- the heap of operations that are due later --- */

static void thought_add(struct nfsrdma_load *load, uint64_t due, struct member *member)
{
	size_t at = load->nthoughts++, above;

	for (; at; at = above) {
		above = (at - 1) / 2;
		if (load->thoughts[above].due <= due)
			break;
		load->thoughts[at] = load->thoughts[above];
	}
	load->thoughts[at] = (struct thought){due, member};
}

static struct thought thought_pop(struct nfsrdma_load *load)
{
	struct thought first = load->thoughts[0], last = load->thoughts[--load->nthoughts];
	size_t at = 0, below;

	for (;; at = below) {
		below = 2 * at + 1;
		if (below >= load->nthoughts)
			break;
		if (below + 1 < load->nthoughts && load->thoughts[below + 1].due < load->thoughts[below].due)
			below++;
		if (last.due <= load->thoughts[below].due)
			break;
		load->thoughts[at] = load->thoughts[below];
	}
	load->thoughts[at] = last;
	return first;
}

/* --- operations --- */

static uint32_t file_of(const struct nfsrdma_load *load, const struct member *member)
{
	return member->number % load->nfiles;
}

static uint8_t *memory_of(const struct nfsrdma_load *load, const struct member *member, const struct operation *op)
{
	return member->memory + (op - member->operations) * load->stride;
}

static void draw(const struct nfsrdma_load *load, struct member *member, struct arrival *arrival)
{
	uint64_t at = random_below(&member->random, load->weight);
	uint64_t block = 0;
	int kind = 0;

	while (at >= load->plan.weights[kind])
		at -= load->plan.weights[kind++];
	if (kind == NFSRDMA_LOAD_READ || kind == NFSRDMA_LOAD_WRITE)
		block = load->plan.sequential ? member->next_block++ % member->blocks :
						random_below(&member->random, member->blocks);
	arrival->kind = kind;
	arrival->offset = block * load->plan.bytes;
}

static int prepare(struct nfsrdma_load *load, struct member *member, struct operation *op)
{
	struct nfsrdma_session *session = member->session;
	uint64_t number = op - member->operations;
	uint8_t *memory = memory_of(load, member, op);
	readdirplus3_args args;
	fh3 fh;

	switch (op->kind) {
	case NFSRDMA_LOAD_NULL:
		return nfs3_prepare(session, NFS_NULL, NULL, NULL, NULL, NULL, 0, number);
	case NFSRDMA_LOAD_GETATTR:
		fh = op->first ? session->root : nfs_fh3(&member->file->fh);
		op->results.attributes = (getattr3_res){};
		return nfs3_prepare(session, NFS_GETATTR, (xdrproc_t)xdr_fh3, &fh,
				    (xdrproc_t)xdr_getattr3_res, &op->results, 0, number);
	case NFSRDMA_LOAD_READ:
		return nfsrdma_prepare_read(member->file, memory, load->plan.bytes, op->offset, number);
	case NFSRDMA_LOAD_WRITE:
		nfsrdma_load_pattern(load->plan.seed, file_of(load, member), memory, load->plan.bytes, op->offset);
		return nfsrdma_prepare_write(member->file, memory, load->plan.bytes, op->offset, number);
	case NFSRDMA_LOAD_READDIR:
		op->results.entries = (readdirplus3_res){};
		args = (readdirplus3_args){
			.dir = nfs_fh3(&load->directory),
			.dircount = session->list_max, .maxcount = session->list_max,
		};
		return nfs3_prepare(session, NFS_READDIRPLUS, (xdrproc_t)xdr_readdirplus3_args, &args,
				    (xdrproc_t)xdr_readdirplus3_res, &op->results, session->list_max, number);
	}
	return -EINVAL;
}

static void count_error(struct nfsrdma_load_totals *totals, int error)
{
	int i;

	for (i = 0; i < ERRORS - 1 && totals->errors[i] != error && totals->error_counts[i]; i++)
		;
	totals->errors[i] = i < ERRORS - 1 ? error : 0;
	totals->error_counts[i]++;
}

static void check_data(struct nfsrdma_load *load, const struct member *member, const struct operation *op,
		       uint32_t length)
{
	uint32_t file = file_of(load, member);
	size_t at = differs_at(load->plan.seed, file, memory_of(load, member, op), length, op->offset);

	if (at == length)
		return;
	if (!load->totals.mismatches++)
		snprintf(load->totals.mismatch, sizeof(load->totals.mismatch),
			 "session %u, file %u: the data at %llu is not what was written", member->number, file,
			 (unsigned long long)(op->offset + at));
}

static void count_success(struct nfsrdma_load *load, struct member *member, const struct operation *op,
			  uint32_t moved, uint64_t now)
{
	nfsrdma_histogram_record(&load->times[NFSRDMA_LOAD_RESPONSE + op->kind], now - op->due);
	nfsrdma_histogram_record(&load->times[NFSRDMA_LOAD_SERVICE + op->kind], now - op->sent);
	nfsrdma_histogram_record(&load->times[NFSRDMA_LOAD_INTERVAL], now - op->due);
	load->totals.done[op->kind]++;
	member->done++;
	if (op->kind != NFSRDMA_LOAD_READ && op->kind != NFSRDMA_LOAD_WRITE)
		return;
	load->totals.bytes[op->kind] += moved;
	if (moved < load->plan.bytes)
		load->totals.short_moves++;
	if (op->kind == NFSRDMA_LOAD_READ && load->plan.verify)
		check_data(load, member, op, moved);
}

static struct member *random_target(struct nfsrdma_load *load)
{
	return load->targets[random_below(&load->random, load->ntargets)];
}

static void free_results(struct operation *op)
{
	if (op->busy && op->kind == NFSRDMA_LOAD_READDIR)
		xdr_free((xdrproc_t)xdr_readdirplus3_res, (char *)&op->results);
	op->busy = false;
}

/* An operation has ended; a closed loop has the next one due some time after it */
static void end_operation(struct nfsrdma_load *load, struct member *member, struct operation *op, int64_t result,
			  uint64_t now)
{
	uint64_t pause = 0;

	free_results(op);
	load->in_flight--;
	member->unused[member->nunused++] = op - member->operations;
	if (op->first)
		return;
	if (result < 0) {
		load->totals.failed[op->kind]++;
		count_error(&load->totals, result);
	} else {
		count_success(load, member, op, result, now);
	}
	if (!load->running || load->plan.rate > 0)
		return;
	if (load->plan.think > 0)
		pause = nfsrdma_load_gap(&member->random, load->plan.think * NS);
	if (result < 0 && pause < FAILED_PAUSE)
		pause = FAILED_PAUSE;
	if (load->plan.in_flight)
		thought_add(load, now + pause, random_target(load));
	else if (pause)
		thought_add(load, now + pause, member);
	else
		member->ready++;
}

static void issue(struct nfsrdma_load *load, struct member *member, const struct arrival *arrival, bool first,
		  uint64_t now)
{
	struct operation *op = &member->operations[member->unused[--member->nunused]];
	int rc;

	load->in_flight++;
	op->kind = arrival->kind;
	op->busy = true;
	op->first = first;
	op->due = arrival->due;
	op->offset = arrival->offset;
	op->sent = now;
	rc = prepare(load, member, op);
	if (rc)
		end_operation(load, member, op, rc, now);
}

/* Send what is due, as far as the depth allows */
static void refill(struct nfsrdma_load *load, struct member *member, uint64_t now)
{
	struct arrival arrival;

	while (load->running && member->nunused && member->nqueued) {
		arrival = member->queue[member->first];
		member->first = (member->first + 1) % load->plan.queue;
		member->nqueued--;
		load->queued--;
		issue(load, member, &arrival, false, now);
	}
	while (load->running && member->nunused && member->ready) {
		member->ready--;
		arrival.due = now;
		draw(load, member, &arrival);
		issue(load, member, &arrival, false, now);
	}
	if (member->session->nprepared)
		nfsrdma_submit(member->session);
}

/* --- the connections of sessions --- */

/*
 * Begin a connection with a call: Linux closes the oldest one if there are more than 64 on which it has accepted no
 * call.  A client that mounts makes some at once.
 */
static void greet(struct nfsrdma_load *load, struct member *member, uint64_t now)
{
	struct arrival first = {.kind = NFSRDMA_LOAD_GETATTR, .due = now};

	if (member->session->directory && member->nunused == load->plan.depth)
		issue(load, member, &first, true, now);
}

static void keep_message(struct nfsrdma_load *load)
{
	snprintf(load->totals.message, sizeof(load->totals.message), "%s", nfsrdma_message());
}

static void count_first(struct nfsrdma_load *load, struct member *member, uint64_t now)
{
	nfsrdma_histogram_record(&load->times[NFSRDMA_LOAD_CONNECT], now - member->began);
	member->up = true;
	load->totals.up++;
	if (++load->totals.connected == load->plan.sessions)
		load->totals.connect_ns = now - load->connecting;
}

static void count_loss(struct nfsrdma_load *load, struct member *member, uint64_t now)
{
	member->up = false;
	member->lost_at = now;
	load->totals.up--;
	load->totals.lost++;
	/* a session may be connected again before the loop comes to the next one, which was lost as early */
	if (!load->down++ && (!load->totals.outages || now - load->returned >= NS)) {
		load->totals.outages++;
		load->down_since = now;
	}
	keep_message(load);
}

static void count_return(struct nfsrdma_load *load, struct member *member, uint64_t now)
{
	nfsrdma_histogram_record(&load->times[NFSRDMA_LOAD_OUTAGE], now - member->lost_at);
	member->up = true;
	load->totals.up++;
	load->totals.reconnects++;
	load->returned = now;
	if (!--load->down && now - load->down_since > load->totals.recovery_ns)
		load->totals.recovery_ns = now - load->down_since;
}

/* Count what has become of the connection between @before and @now */
static void note_link(struct nfsrdma_load *load, struct member *member, uint64_t before, uint64_t now)
{
	const struct nfsrdma_session *session = member->session;
	uint64_t more = session->stats.connects - member->connects;
	bool was_up = member->up, fresh = more;

	if (more && !member->connects) {
		count_first(load, member, now);
		more--;
	}
	member->connects = session->stats.connects;
	for (; more; more--) {
		/* lost and made again */
		if (member->up)
			count_loss(load, member, before);
		count_return(load, member, now);
	}
	if (member->up && session->link != LINK_UP)
		count_loss(load, member, now);
	if (member->up && fresh)
		greet(load, member, now);
	if (session->link == LINK_PAUSE && session->link_retry != member->retry) {
		member->retry = session->link_retry;
		if (was_up)
			return;
		load->totals.failures++;
		keep_message(load);
	}
}

/* Handle what has arrived for a session, and send what is due */
static int pump(struct nfsrdma_load *load, struct member *member)
{
	struct nfsrdma_completion done[DEPTH_MOST + 1];
	uint64_t before = now_ns(), now;
	int n, i;

	n = nfsrdma_peek(member->session, done, load->plan.depth + 1);
	if (n < 0)
		return n;
	now = now_ns();
	member->looked = now;
	note_link(load, member, before, now);
	for (i = 0; i < n; i++)
		end_operation(load, member, &member->operations[done[i].user_data], done[i].result, now);
	refill(load, member, now);
	return 0;
}

/* Look after sessions for which no event comes */
static int tick(struct nfsrdma_load *load, uint64_t now)
{
	uint32_t i;
	int rc;

	if (now < load->tick)
		return 0;
	for (i = 0; i < load->opened; i++) {
		struct member *member = &load->members[i];
		bool waits = member->nunused < load->plan.depth && now - member->looked >= LOOK_AFTER;

		if (!member->session || (member->up && !waits))
			continue;
		rc = pump(load, member);
		if (rc)
			return rc;
	}
	load->tick = now + TICK;
	return 0;
}

static void close_member(struct nfsrdma_load *load, struct member *member)
{
	uint32_t i;

	if (member->file)
		nfsrdma_release(member->file);
	member->file = NULL;
	nfsrdma_disconnect(member->session);
	member->session = NULL;
	for (i = 0; member->operations && i < load->plan.depth; i++)
		free_results(&member->operations[i]);
	if (member->memory)
		munmap(member->memory, load->stride * load->plan.depth);
	member->memory = NULL;
	free(member->operations);
	free(member->unused);
	free(member->queue);
	member->operations = NULL;
	member->unused = NULL;
	member->queue = NULL;
}

static int provide_operations(struct nfsrdma_load *load, struct member *member)
{
	size_t bytes = load->stride * load->plan.depth;
	struct nfsrdma_region *region;
	uint32_t i;

	member->operations = calloc(load->plan.depth, sizeof(*member->operations));
	member->unused = calloc(load->plan.depth, sizeof(*member->unused));
	member->queue = calloc(load->plan.queue, sizeof(*member->queue));
	if (!member->operations || !member->unused || !member->queue)
		return fail_no_memory();
	for (i = 0; i < load->plan.depth; i++)
		member->unused[member->nunused++] = i;
	if (!bytes)
		return 0;
	member->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (member->memory == MAP_FAILED) {
		member->memory = NULL;
		return fail_no_memory();
	}
	return nfsrdma_register(member->session, member->memory, bytes, &region);
}

static int open_file(struct nfsrdma_load *load, struct member *member)
{
	const struct load_file *file = &load->files[file_of(load, member)];
	int flags = load->plan.weights[NFSRDMA_LOAD_WRITE] ? O_RDWR : O_RDONLY;

	if (load->plan.stable)
		flags |= O_DSYNC;
	member->file = file_make(member->session, &file->fh, flags);
	if (!member->file)
		return fail_no_memory();
	member->blocks = file->blocks;
	/* not all sessions at the same place */
	member->next_block = member->blocks ? random_below(&member->random, member->blocks) : 0;
	return 0;
}

static int make_member(struct nfsrdma_load *load, struct member *member)
{
	struct nfsrdma_options options = {
		.size = sizeof(options), .port = load->other->options.port, .depth = load->plan.depth,
		.inline_size = load->plan.inline_size, .timeout = load->plan.timeout, .arena = BLOCK_BYTES,
	};
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = member};
	int fd, rc = session_like(load->other, &options, &member->session);

	if (rc)
		return rc;
	member->session->any_port = load->plan.sessions > PRIVILEGED_MOST;
	member->random = mix(load->plan.seed ^ mix(member->number + 1));
	rc = provide_operations(load, member);
	if (!rc && load->nfiles)
		rc = open_file(load, member);
	if (rc)
		return rc;
	fd = nfsrdma_fd(member->session);
	if (fd < 0)
		return fd;
	return epoll_ctl(load->epoll, EPOLL_CTL_ADD, fd, &event) ? fail(-errno, "epoll_ctl: %s", strerror(errno)) : 0;
}

/* Begin connections, as many at a time as the plan says */
static int open_more(struct nfsrdma_load *load)
{
	int rc;

	while (load->opened < load->plan.sessions &&
	       load->opened - load->totals.connected < load->plan.at_once) {
		struct member *member = &load->members[load->opened];

		rc = member->session ? 0 : make_member(load, member);
		if (rc) {
			close_member(load, member);
			return rc;
		}
		member->began = now_ns();
		if (!load->opened++)
			load->connecting = member->began;
		rc = pump(load, member);
		if (rc)
			return rc;
	}
	return 0;
}

/* --- the loop --- */

static void arrive(struct nfsrdma_load *load, uint64_t now)
{
	struct member *member;
	struct arrival arrival;
	uint32_t n;

	for (n = 0; n < ARRIVALS_MOST && load->next <= now; n++) {
		arrival.due = load->next;
		load->next += nfsrdma_load_gap(&load->random, NS / load->plan.rate);
		member = random_target(load);
		draw(load, member, &arrival);
		load->totals.arrivals++;
		nfsrdma_histogram_record(&load->times[NFSRDMA_LOAD_LATE], now - arrival.due);
		if (member->nqueued == load->plan.queue) {
			load->totals.dropped++;
			continue;
		}
		member->queue[(member->first + member->nqueued++) % load->plan.queue] = arrival;
		load->queued++;
		refill(load, member, now);
	}
}

static void think(struct nfsrdma_load *load, uint64_t now)
{
	struct thought thought;

	while (load->nthoughts && load->thoughts[0].due <= now) {
		thought = thought_pop(load);
		nfsrdma_histogram_record(&load->times[NFSRDMA_LOAD_LATE], now - thought.due);
		thought.member->ready++;
		refill(load, thought.member, now);
	}
}

/* Begin what is due; returns when the next operation is */
static uint64_t begin_due(struct nfsrdma_load *load, uint64_t now)
{
	if (!load->running || !load->ntargets)
		return NEVER;
	if (load->plan.rate > 0) {
		arrive(load, now);
		return load->next < (double)NEVER / 2 ? (uint64_t)load->next : NEVER;
	}
	think(load, now);
	return load->nthoughts ? load->thoughts[0].due : NEVER;
}

static void sleep_until(const struct nfsrdma_load *load, uint64_t until)
{
	struct pollfd fd = {.fd = load->epoll, .events = POLLIN};
	uint64_t now = now_ns(), left = until > now ? until - now : 0;
	struct timespec most = {.tv_sec = left / NS, .tv_nsec = left % NS};

	if (left)
		ppoll(&fd, 1, &most, NULL);
}

static int handle_events(struct nfsrdma_load *load)
{
	struct epoll_event events[64];
	int n = epoll_wait(load->epoll, events, 64, 0), i, rc;

	if (n < 0)
		return errno == EINTR ? 0 : fail(-errno, "epoll_wait: %s", strerror(errno));
	for (i = 0; i < n; i++) {
		rc = pump(load, events[i].data.ptr);
		if (rc)
			return rc;
	}
	return n;
}

static bool is_over(const struct nfsrdma_load *load)
{
	if (!load->started)
		return load->totals.connected == load->plan.sessions && !load->in_flight;
	return !load->running && !load->in_flight;
}

static int work(struct nfsrdma_load *load, uint32_t ms)
{
	uint64_t until = now_ns() + ms * (NS / 1000), now, next;
	int rc;

	do {
		rc = load->started ? 0 : open_more(load);
		if (rc)
			return rc;
		now = now_ns();
		next = begin_due(load, now);
		rc = tick(load, now);
		if (!rc)
			rc = handle_events(load);
		if (rc < 0)
			return rc;
		if (rc || is_over(load))
			continue;
		if (load->tick < next)
			next = load->tick;
		sleep_until(load, until < next ? until : next);
	} while (!is_over(load) && now_ns() < until);
	return 0;
}

/* --- calls --- */

static int find_files(struct nfsrdma_load *load, struct nfsrdma_session *session, const char *const *paths)
{
	bool moves = load->plan.weights[NFSRDMA_LOAD_READ] || load->plan.weights[NFSRDMA_LOAD_WRITE];
	struct path_walk walk;
	uint32_t i;
	int rc = 0;

	for (i = 0; i < load->nfiles && !rc; i++) {
		struct load_file *file = &load->files[i];

		rc = path_walk(&walk, session, paths[i], NULL, PATH_FOLLOW);
		if (!rc) {
			file->fh = walk.here;
			file->blocks = moves ? walk.attr.size / load->plan.bytes : 0;
		}
		if (!rc && walk.attr.type != TYPE_FILE)
			rc = fail(-EINVAL, "%s: not a regular file", paths[i]);
		if (!rc && moves && !file->blocks)
			rc = fail(-EINVAL, "%s: %llu bytes, less than one READ", paths[i],
				  (unsigned long long)walk.attr.size);
		path_walk_end(&walk);
	}
	return rc;
}

static int find_directory(struct nfsrdma_load *load, struct nfsrdma_session *session, const char *directory)
{
	struct path_walk walk;
	int rc;

	if (!directory)
		return load->plan.weights[NFSRDMA_LOAD_READDIR] ? fail(-EINVAL, "READDIR: no directory") : 0;
	rc = path_walk(&walk, session, directory, NULL, PATH_FOLLOW);
	if (!rc && walk.attr.type != TYPE_DIRECTORY)
		rc = fail(-ENOTDIR, "%s: not a directory", directory);
	if (!rc)
		load->directory = walk.here;
	path_walk_end(&walk);
	return rc;
}

static int check_plan(const struct nfsrdma_session *session, const struct nfsrdma_load_plan *plan, size_t files)
{
	const uint32_t *weights = plan->weights;
	bool moves = weights[NFSRDMA_LOAD_READ] || weights[NFSRDMA_LOAD_WRITE];
	uint64_t weight = 0;
	int kind;

	for (kind = 0; kind < KINDS; kind++)
		weight += weights[kind];
	if (!plan->sessions || !plan->depth || plan->depth > DEPTH_MOST || !plan->at_once || !plan->queue || !weight)
		return fail(-EINVAL, "a number of the plan is out of range");
	if (moves && (!plan->bytes || plan->bytes % sizeof(uint64_t)))
		return fail(-EINVAL, "reads and writes of %u bytes: not a multiple of 8", plan->bytes);
	if (weight != weights[NFSRDMA_LOAD_NULL] && (!session->directory || session->options.version != 3))
		return fail(-EINVAL, "a session with a directory and NFSv3 is needed");
	if ((moves || weights[NFSRDMA_LOAD_GETATTR]) && !files)
		return fail(-EINVAL, "no files");
	if ((weights[NFSRDMA_LOAD_READ] && plan->bytes > session->read_max) ||
	    (weights[NFSRDMA_LOAD_WRITE] && plan->bytes > session->write_max))
		return fail(-EMSGSIZE, "%u bytes: the server takes %u to read and %u to write", plan->bytes,
			    session->read_max, session->write_max);
	return 0;
}

static int allocate(struct nfsrdma_load *load)
{
	const struct nfsrdma_load_plan *plan = &load->plan;
	uint32_t i;

	load->members = calloc(plan->sessions, sizeof(*load->members));
	load->targets = calloc(plan->sessions, sizeof(*load->targets));
	load->thoughts = calloc((size_t)plan->sessions * plan->depth, sizeof(*load->thoughts));
	load->files = calloc(load->nfiles + 1, sizeof(*load->files));
	if (!load->members || !load->targets || !load->thoughts || !load->files)
		return fail_no_memory();
	for (i = 0; i < plan->sessions; i++)
		load->members[i].number = i;
	for (i = 0; i < KINDS; i++)
		load->weight += plan->weights[i];
	load->random = mix(~plan->seed);
	load->epoll = epoll_create1(EPOLL_CLOEXEC);
	return load->epoll < 0 ? fail(-errno, "epoll_create1: %s", strerror(errno)) : 0;
}

EXPORTED int nfsrdma_load_open(struct nfsrdma_session *session, const struct nfsrdma_load_plan *plan,
			       const char *const *paths, size_t count, const char *directory,
			       struct nfsrdma_load **load)
{
	struct nfsrdma_load *new;
	int rc = process_check(session);

	if (!rc)
		rc = check_plan(session, plan, count);
	if (rc)
		return rc;
	new = calloc(1, sizeof(*new));
	if (!new)
		return fail_no_memory();
	new->plan = *plan;
	new->other = session;
	new->nfiles = count;
	if (plan->weights[NFSRDMA_LOAD_READ] || plan->weights[NFSRDMA_LOAD_WRITE])
		new->stride = plan->bytes;
	new->epoll = -1;
	rc = allocate(new);
	if (!rc)
		rc = find_files(new, session, paths);
	if (!rc)
		rc = find_directory(new, session, directory);
	/* nfsrdma_load_limits() looks at it */
	if (!rc)
		rc = make_member(new, &new->members[0]);
	if (rc) {
		nfsrdma_load_close(new);
		return rc;
	}
	*load = new;
	return 0;
}

EXPORTED int nfsrdma_load_limits(const struct nfsrdma_load *load, struct nfsrdma_load_limits *limits)
{
	const struct nfsrdma_session *first = load->members[0].session;
	struct ibv_device_attr device = {};

	if (ibv_query_device(load->other->context, &device))
		return fail(-EIO, "%s: the device reports no limits", load->other->device);
	*limits = (struct nfsrdma_load_limits){
		.locked = first->messages_bytes + first->arena_bytes + load->stride * load->plan.depth,
		.descriptors = DESCRIPTORS,
		.qps = device.max_qp, .cqs = device.max_cq, .mrs = device.max_mr, .pds = device.max_pd,
	};
	return 0;
}

EXPORTED int nfsrdma_load_connect(struct nfsrdma_load *load, uint32_t ms)
{
	int rc = load->started ? 0 : work(load, ms);

	return rc ? rc : (int)load->totals.connected;
}

static uint64_t count_resent(const struct nfsrdma_load *load)
{
	uint64_t resent = 0;
	uint32_t i;

	for (i = 0; i < load->opened; i++)
		if (load->members[i].session)
			resent += load->members[i].session->stats.resent;
	return resent;
}

/* All counts anew, but those of connections */
static void clear_counts(struct nfsrdma_load *load)
{
	struct nfsrdma_load_totals *totals = &load->totals, before = *totals;
	uint32_t i;

	*totals = (struct nfsrdma_load_totals){
		.connected = before.connected, .up = before.up, .failures = before.failures, .lost = before.lost,
		.reconnects = before.reconnects, .connect_ns = before.connect_ns,
		.outages = before.outages, .recovery_ns = before.recovery_ns,
	};
	memcpy(totals->message, before.message, sizeof(totals->message));
	for (i = 0; i < NFSRDMA_LOAD_CONNECT; i++)
		load->times[i] = (struct nfsrdma_histogram){};
	for (i = 0; i < load->plan.sessions; i++)
		load->members[i].done = 0;
	load->resent = count_resent(load);
}

/* Have the first operations of a closed loop due, for each session as many as the depth */
static void start_closed(struct nfsrdma_load *load, uint64_t now)
{
	uint64_t most = (uint64_t)load->ntargets * load->plan.depth, i;

	if (load->plan.in_flight && load->plan.in_flight < most)
		most = load->plan.in_flight;
	for (i = 0; i < most; i++) {
		struct member *member = load->plan.in_flight ? random_target(load) : load->targets[i % load->ntargets];
		uint64_t due = now;

		if (load->plan.think > 0)
			due += nfsrdma_load_gap(&member->random, load->plan.think * NS);
		thought_add(load, due, member);
	}
}

EXPORTED void nfsrdma_load_start(struct nfsrdma_load *load)
{
	uint32_t i;

	clear_counts(load);
	if (load->started)
		return;
	load->started = true;
	load->running = true;
	for (i = 0; i < load->plan.sessions; i++) {
		struct member *member = &load->members[i];

		/* it would connect at any time from now on */
		if (!member->connects)
			close_member(load, member);
		else
			load->targets[load->ntargets++] = member;
	}
	if (load->plan.rate > 0)
		load->next = now_ns() + nfsrdma_load_gap(&load->random, NS / load->plan.rate);
	else if (load->ntargets)
		start_closed(load, now_ns());
}

EXPORTED void nfsrdma_load_stop(struct nfsrdma_load *load)
{
	load->running = false;
	load->totals.unsent = load->queued;
	load->nthoughts = 0;
}

EXPORTED int nfsrdma_load_run(struct nfsrdma_load *load, uint32_t ms)
{
	return load->started ? work(load, ms) : fail(-EINVAL, "nfsrdma_load_start() was not called");
}

EXPORTED void nfsrdma_load_totals(const struct nfsrdma_load *load, struct nfsrdma_load_totals *totals)
{
	*totals = load->totals;
	totals->unfinished = load->started ? load->in_flight + (load->running ? load->queued : 0) : 0;
	totals->resent = count_resent(load) - load->resent;
}

EXPORTED int64_t nfsrdma_load_operations(const struct nfsrdma_load *load, uint32_t number)
{
	if (number >= load->plan.sessions || !load->members[number].session)
		return -1;
	return load->members[number].done;
}

EXPORTED const struct nfsrdma_histogram *nfsrdma_load_histogram(const struct nfsrdma_load *load, uint32_t which)
{
	return which <= NFSRDMA_LOAD_OUTAGE ? &load->times[which] : NULL;
}

EXPORTED void nfsrdma_load_interval(struct nfsrdma_load *load)
{
	load->times[NFSRDMA_LOAD_INTERVAL] = (struct nfsrdma_histogram){};
}

EXPORTED void nfsrdma_load_close(struct nfsrdma_load *load)
{
	uint32_t i;

	if (!load)
		return;
	for (i = 0; load->members && i < load->plan.sessions; i++)
		close_member(load, &load->members[i]);
	if (load->epoll >= 0)
		close(load->epoll);
	free(load->members);
	free(load->targets);
	free(load->thoughts);
	free(load->files);
	free(load);
}
