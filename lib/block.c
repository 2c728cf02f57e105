// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Stores of blocks: files that are written once and read whole, over many sessions, without a thread.
 *
 * Each operation is a state machine, whose steps are in block_step.c.  It waits in one of two places: store->queue until
 * a session takes it, and member->ready while its session has no room for its requests.  Otherwise it has requests in
 * the session (pending), whose user_data names it, see block_tag().
 *
 * Deadlines and cancels: stop() ends an operation now.  One in store->queue or member->ready just ends.  One with
 * requests ends by wait_abandon(): the connection ends first if the server has one of them, because it could write
 * to memory that the caller gets back.  Nothing of that waits for the server or for the device.  Its DISCARD goes on
 * without it: such operations linger, for DISCARD_TIMEOUT, in places of their own.
 *
 * A session that has lost its connection keeps its requests for the next one, unless another session is connected: then
 * that one goes on with its operations, from their step.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "batch.h"
#include "block.h"
#include "wait.h"

#define OPTIONS_FIRST		ABI_UP_TO(struct nfsrdma_blocks_options, trust)
#define IN_FLIGHT_DEFAULT	256
#define IN_FLIGHT_MOST		65536
#define HANDLES_DEFAULT		65536
#define HANDLES_MOST		(1U << 24)

/* Milliseconds: for a DISCARD, and for all of them when the store is closed */
#define DISCARD_TIMEOUT		2000
#define CLOSE_TIMEOUT		1000

/* The same, for a DISCARD that nobody waits for with NFSv4.1: after a lease, a server ends what is open by itself */
#define LEASE_TIMEOUT		90000

/* The same, between two looks at the connections in a loop that does not sleep */
#define LOOK_EVERY		10

#define COMPLETIONS		64

struct nfsrdma_blocks_region {
	struct nfsrdma_blocks_region *next;
	struct nfsrdma_blocks *blocks;
	struct nfsrdma_region *each[BLOCK_MEMBERS_MOST];
};

/* --- the ends of operations --- */

static void report(struct nfsrdma_blocks *store, struct block_op *op, int64_t result)
{
	batch_add(&store->done, op->user_data, result, false);
	op->reported = true;
	store->unfinished--;
	if (op->member)
		store->started--;
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

/* The connected session that has the least to do; NULL if none has room */
static struct block_member *pick_member(struct nfsrdma_blocks *store)
{
	struct block_member *best = NULL, *each;

	for (each = store->members; each < store->members + store->nmembers; each++) {
		if (each->session->link != LINK_UP || each->nrests || !TAILQ_EMPTY(&each->ready) ||
		    !block_has_room(each))
			continue;
		if (!best || each->session->unfinished < best->session->unfinished)
			best = each;
	}
	return best;
}

/* --- from one step to the next --- */

static void enter(struct block_op *op, enum block_state step)
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

/* When to give up a DISCARD; @lingers: nobody waits for it */
static uint64_t discard_until(struct nfsrdma_blocks *store, bool lingers)
{
	uint64_t until = now_ms() + (lingers && store->dialect->keeps ? LEASE_TIMEOUT : DISCARD_TIMEOUT);

	if (until < store->earliest)
		store->earliest = until;
	return until;
}

/* Have the draft removed; false if too many operations do that already */
static bool discard(struct nfsrdma_blocks *store, struct block_op *op)
{
	uint64_t until;

	if (op->stopped && store->lingering >= store->places)
		return false;
	if (!store->dialect->keeps)
		change_member(store, op);
	until = discard_until(store, op->stopped);
	/* one that has failed is reported when its draft is removed, but not after its deadline */
	if (op->stopped || until < op->deadline)
		op->deadline = until;
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
			op->stopped = 0;
		}
		return;
	}
	if (op->reported)
		store->lingering--;
	else
		report(store, op, op->result);
	release_op(store, op);
}

static void reset_op(struct block_op *op)
{
	op->active = true;
	op->listed = op->reported = op->drafted = op->again = op->moved = op->ended = op->changed = false;
	op->pending = op->begun = 0;
	op->confirmed = 0;
	op->error = op->stopped = 0;
	op->result = 0;
}

/* A session that keeps the open draft of an operation has it removed, while another one goes on with the operation */
static void leave_draft(struct nfsrdma_blocks *store, struct block_op *op, struct block_member *member)
{
	struct block_op *rest = TAILQ_FIRST(&store->unused);

	op->drafted = false;
	TAILQ_REMOVE(&store->unused, rest, waits);
	reset_op(rest);
	rest->kind = NFSRDMA_BLOCK_PUT;
	rest->batch = op->batch;
	rest->member = member;
	rest->draft = op->draft;
	rest->draft_dir = op->draft_dir;
	rest->drafted = rest->reported = true;
	rest->deadline = discard_until(store, true);
	store->lingering++;
	enter(rest, STEP_DISCARD);
}

/* May another session go on with the operation?  One with an open draft needs a place for leave_draft(). */
static bool may_move(const struct nfsrdma_blocks *store, const struct block_op *op)
{
	if (!store->dialect->keeps)
		return true;
	return op->step != STEP_DISCARD && (!op->drafted || store->lingering < store->places);
}

/* The step once more, by another session */
static enum block_state move_op(struct nfsrdma_blocks *store, struct block_op *op)
{
	struct block_member *before = op->member;

	op->moved = false;
	change_member(store, op);
	if (store->dialect->keeps && op->drafted && op->member != before)
		leave_draft(store, op, before);
	return block_step_again(store, op);
}

/* All requests of the step have ended */
static void conclude(struct nfsrdma_blocks *store, struct block_op *op)
{
	const struct block_step *step = &store->dialect->steps[op->step];
	enum block_state next = STEP_DONE;

	if (op->stopped && op->step != STEP_DISCARD)
		op->result = op->stopped;
	else
		next = op->moved ? move_op(store, op) : step->ended(store, op);
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
	uint64_t number = completion->user_data >> BLOCK_TAG_SHIFT;
	struct block_op *op = &store->ops[number];

	op->pending--;
	if (op->step == STEP_READ || op->step == STEP_WRITE)
		block_step_part_ended(store, op, completion->user_data & BLOCK_SIZE_MOST, completion);
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

	while ((n = batch_take(&member->session->done, done, COMPLETIONS)))
		for (i = 0; i < n; i++)
			request_ended(store, &done[i]);
}

/* Prepare what is left of an operation's step; returns whether it has nothing more to prepare */
static bool prepare_op(struct nfsrdma_blocks *store, struct block_op *op)
{
	int rc = block_has_room(op->member) ? store->dialect->steps[op->step].prepare(store, op) : -EAGAIN;

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

	if (block_has_room(member))
		rc = rest.op->error ? rest.op->error : block_step_prepare_part(store, rest.op, rest.offset);
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
	enum block_state step;

	if (!op || store->started >= store->options.in_flight)
		return false;
	op->member = pick_member(store);
	if (!op->member)
		return false;
	store->started++;
	TAILQ_REMOVE(&store->queue, op, waits);
	step = block_step_first(store, op);
	if (step == STEP_DONE)
		finish_op(store, op);
	else
		enter(op, step);
	return true;
}

/* From now on, the batches of the sessions are for the store, or are refused */
static void set_calls(struct nfsrdma_blocks *store, bool store_calls)
{
	size_t i;

	for (i = 0; i < store->nmembers; i++)
		store->members[i].session->store_calls = store_calls;
}

/* Prepare and send what there is room for */
static void fill(struct nfsrdma_blocks *store)
{
	struct block_member *each, *end = store->members + store->nmembers;
	bool again;

	set_calls(store, true);
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
			again |= each->session->done.count;
			collect(store, each);
		}
	} while (again);
	set_calls(store, false);
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
	wait_abandon(member->session, block_tag(store, op, 0), block_tag(store, op, BLOCK_SIZE_MOST), error, why);
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
	if (op->step == STEP_DISCARD && !op->reported && store->lingering < store->places) {
		/* it has its result */
		report(store, op, op->result);
		store->lingering++;
		op->deadline = discard_until(store, true);
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
		if (!op->active || op->member != from || !may_move(store, op))
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
		if (each->session->link != link || each->session->done.count)
			next = 0;
	}
	return next;
}

/* Handle what has arrived and what time brings; returns whether there was anything */
static bool turn(struct nfsrdma_blocks *store)
{
	struct block_member *each;
	uint64_t now = now_ms();
	uint32_t before = store->done.count;
	bool any = false;

	if (now >= store->look_at)
		look(store);
	for (each = store->members; each < store->members + store->nmembers; each++) {
		any |= wait_poll_all(each->session, SIZE_MAX);
		any |= each->session->done.count;
		collect(store, each);
	}
	expire_ops(store, now);
	move_from_lost(store);
	fill(store);
	any |= store->done.count != before;
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
	uint64_t next, now, most = first->options.interrupted ? WAIT_ASK_EVERY : WAIT_SLEEP_MOST;
	struct epoll_event event;

	if (store->idle++ < WAIT_YIELDS) {
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
	if (store->done.count)
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
	if (session->options.version != first->options.version)
		return fail(-EINVAL, "%s: sessions of a store have one version of NFS", session->host);
	if (session->options.version == 41 && session->nfs4.operations < BLOCK_OPERATIONS)
		return fail(-EOPNOTSUPP, "%s: a store of blocks needs COMPOUNDs of %d operations: the server takes %u",
			    session->host, BLOCK_OPERATIONS, session->nfs4.operations);
	if (session->root.fh3_len != first->root.fh3_len ||
	    memcmp(session->root.fh3_val, first->root.fh3_val, first->root.fh3_len))
		return fail(-EINVAL, "%s: the sessions have other directories", session->host);
	if (session->unfinished || session->done.count)
		return fail(-EBUSY, "%s: operations of the session are unfinished", session->host);
	if (session->in_store)
		return fail(-EBUSY, "%s: another store has the session", session->host);
	return 0;
}

/* Check the sessions of a new store */
static int check_members(struct nfsrdma_session *const *sessions, size_t count)
{
	size_t i, j;
	int rc = 0;

	if (!count || count > BLOCK_MEMBERS_MOST)
		return fail(-EINVAL, "%zu sessions: 1 to %d", count, BLOCK_MEMBERS_MOST);
	for (i = 0; i < count && !rc; i++) {
		rc = check_member(sessions[i], sessions[0]);
		for (j = 0; j < i && !rc; j++)
			if (sessions[j] == sessions[i])
				rc = fail(-EINVAL, "sessions %zu and %zu are the same", j, i);
	}
	return rc;
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

	store->places = store->options.in_flight;
	if (store->places < IN_FLIGHT_DEFAULT)
		store->places = IN_FLIGHT_DEFAULT;
	store->nops = 2 * store->places;
	store->ops = calloc(store->nops, sizeof(*store->ops));
	store->done.size = store->places;
	store->done.places = calloc(store->done.size, sizeof(*store->done.places));
	if (!store->ops || !store->done.places)
		return fail_no_memory();
	for (i = 0; i < store->nops; i++) {
		store->ops[i].store = store;
		TAILQ_INSERT_TAIL(&store->unused, &store->ops[i], waits);
	}
	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		return fail(-errno, "getrandom: %s", strerror(errno));
	store->own = random[0];
	store->handles.seed = random[1];
	store->file_mode = names_without_umask(0666);
	store->directory_mode = names_without_umask(0777);
	store->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (store->epoll < 0)
		return fail(-errno, "epoll_create1: %s", strerror(errno));
	return handle_table_allocate(&store->handles, store->options.handles);
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
	handle_table_free(&store->handles);
	free(store->ops);
	free(store->done.places);
	free(store);
}

EXPORTED int nfsrdma_blocks_open(struct nfsrdma_session *const *sessions, size_t count,
				 const struct nfsrdma_blocks_options *options, struct nfsrdma_blocks **blocks)
{
	struct nfsrdma_blocks *store;
	size_t i;
	int rc = check_members(sessions, count);

	if (rc)
		return rc;
	store = calloc(1, sizeof(*store));
	if (!store)
		return fail_no_memory();
	store->dialect = sessions[0]->options.version == 41 ? &block_nfs4_dialect : &block_step_nfs3;
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

/* Register memory in all sessions; @fd: the dma-buf, or -1 */
static int register_in_all(struct nfsrdma_blocks *store, int fd, uint64_t offset, size_t length, void *addr,
			   struct nfsrdma_blocks_region **region)
{
	struct nfsrdma_blocks_region *new = calloc(1, sizeof(*new));
	struct nfsrdma_session *session;
	size_t i;
	int rc = 0;

	if (!new)
		return fail_no_memory();
	for (i = 0; i < store->nmembers && !rc; i++) {
		session = store->members[i].session;
		rc = fd < 0 ? nfsrdma_register(session, addr, length, &new->each[i]) :
			      nfsrdma_register_dmabuf(session, fd, offset, length, addr, &new->each[i]);
	}
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

EXPORTED int nfsrdma_blocks_register(struct nfsrdma_blocks *store, void *addr, size_t length,
				     struct nfsrdma_blocks_region **region)
{
	return register_in_all(store, -1, 0, length, addr, region);
}

static int refuse_checksum(void)
{
	return fail(-EOPNOTSUPP, "the store has checksums, which the processor cannot compute of a dma-buf");
}

EXPORTED int nfsrdma_blocks_register_dmabuf(struct nfsrdma_blocks *store, int fd, uint64_t offset, size_t length,
					    void *addr, struct nfsrdma_blocks_region **region)
{
	if (fd < 0)
		return fail(-EINVAL, "descriptor %d is no dma-buf", fd);
	if (store->options.checksum)
		return refuse_checksum();
	return register_in_all(store, fd, offset, length, addr, region);
}

static bool moves_data(uint32_t kind)
{
	return kind == NFSRDMA_BLOCK_GET || kind == NFSRDMA_BLOCK_PUT;
}

/* Operations that may still move data from or to a region */
static uint32_t count_users(const struct nfsrdma_blocks *store, const struct nfsrdma_blocks_region *region)
{
	const struct block_op *op;
	uint32_t users = 0;

	for (op = store->ops; op < store->ops + store->nops; op++)
		if (op->active && !op->reported && moves_data(op->kind))
			users += memory_overlaps(region->each[0], op->buf, op->length);
	return users;
}

EXPORTED int nfsrdma_blocks_unregister(struct nfsrdma_blocks_region *region)
{
	struct nfsrdma_blocks_region **at;
	struct nfsrdma_blocks *store;
	uint32_t users;
	size_t i;
	int rc;

	if (!region)
		return 0;
	store = region->blocks;
	rc = check_store(store);
	if (rc)
		return rc;
	users = count_users(store, region);
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

/* Is all of the memory in one region of the store? */
static bool is_registered(const struct nfsrdma_blocks *store, const struct nfsrdma_block *block)
{
	const struct nfsrdma_blocks_region *region;

	for (region = store->regions; region; region = region->next)
		if (memory_is_in(region->each[0], block->buf, block->length))
			return true;
	return false;
}

/* Only RDMA reaches a dma-buf: it is a region of the store, which goes after the operation, and has no checksum */
static int check_memory(const struct nfsrdma_blocks *store, const struct nfsrdma_block *block)
{
	bool is_dmabuf = false;
	size_t i;

	for (i = 0; i < store->nmembers && moves_data(block->operation); i++)
		is_dmabuf |= memory_has_dmabuf(store->members[i].session, block->buf, block->length);
	if (!is_dmabuf)
		return 0;
	if (store->options.checksum)
		return refuse_checksum();
	if (!is_registered(store, block))
		return fail(-EOPNOTSUPP, "the store has not all of the memory, which is a dma-buf of a session: "
			    "nfsrdma_blocks_register_dmabuf()");
	return 0;
}

/* Add an operation to the queue */
static int add_op(struct nfsrdma_blocks *store, const struct nfsrdma_block *block, uint64_t deadline)
{
	struct block_op *op = TAILQ_FIRST(&store->unused);
	int rc = check_operation(block);

	if (rc)
		return rc;
	if (store->unfinished + store->done.count >= store->places || !op)
		return fail(-EAGAIN, "%u operations are unfinished or not yet reported", store->places);
	TAILQ_REMOVE(&store->unused, op, waits);
	reset_op(op);
	op->kind = block->operation;
	op->step = STEP_FIND;
	op->batch = store->batches;
	op->deadline = deadline;
	op->user_data = block->user_data;
	op->member = NULL;
	op->buf = block->buf;
	op->length = block->length;
	store->unfinished++;
	rc = block_step_set_path(op, block->name);
	if (!rc && op->kind == NFSRDMA_BLOCK_PUT && op->length > BLOCK_SIZE_MOST - BLOCK_TRAILER_BYTES)
		rc = -EFBIG;
	if (!rc)
		rc = check_memory(store, block);
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
	while (store->done.count < min && store->unfinished && !rc) {
		if (turn(store)) {
			rc = wait_ask(store->members[0].session);
			continue;
		}
		if (timeout >= 0 && now_ms() >= until)
			break;
		rc = sleep_once(store, until);
	}
	if (store->done.count || !rc)
		rc = batch_take(&store->done, completions, count);
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
