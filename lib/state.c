// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * NFSv4.1: what the server keeps for this client, and its recovery (RFC 8881, sections 2.10, 8.4 and 9).
 *
 * The client ID, its session and open files come from calls of their own.  One of them is under way at a time (setup):
 * go_on() chooses it, finish_setup() decodes its reply and changes the state, setup_done() goes on.  No call waits here.
 *
 *             EXCHANGE_ID              CREATE_SESSION              OPEN (CLAIM_PREVIOUS) for each OPEN_LOST,
 *                                                                  RECLAIM_COMPLETE once for a client ID,
 *                                                                  FREE_STATEID for each OPEN_SUSPECT,
 *                                                                  OPEN (CLAIM_FH) for each OPEN_GONE
 *   NFS4_NONE ------------> NFS4_CLIENT -----------> NFS4_SESSION ------------------> NFS4_READY
 *       ^                                                  ^                              |
 *       |                                                  `---- an open file is lost ----'
 *       `-- from each state: the session is lost (BADSESSION and the like)
 *
 * In NFS4_READY the calls that nobody waits for: DELEGRETURN and CLOSE.
 *
 * Requests leave in NFS4_READY.  Those that have a slot leave in NFS4_SESSION, too: they were sent before, and setup
 * may need the slot.  A request takes its slot, and the stateid of its open file, when it leaves for the first time,
 * and keeps both over a lost connection: by slot and sequence the server recognizes a repeated call, which has to be
 * the same one.  What waits ends by the timeout of the session.  A request that ends without a reply leaves its slot
 * busy; a session without another slot is lost.
 *
 * An inode that is open for writing has a struct nfs4_open, which all its open files share.  READs of files that are
 * open for reading only have the anonymous stateid, without an OPEN.
 *
 *   OPEN_NONE       the server has nothing: OPEN of nfs4.c is on its way, or CLOSE has ended
 *   OPEN_HELD       the stateid is valid
 *   OPEN_LOST       the server has another client ID for this client: reclaim it; without grace -> OPEN_GONE
 *   OPEN_SUSPECT    the server refused the stateid, or says that it revoked some: FREE_STATEID frees it, if so
 *                   -> OPEN_GONE, or refuses that -> OPEN_HELD
 *   OPEN_GONE       open it again by its file handle -> OPEN_HELD, or OPEN_FAILED
 *   OPEN_CLOSING    no file is open any more -> OPEN_NONE
 *   OPEN_FAILED     it could not be opened again: requests that the server refuses get the error of that
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "compound.h"
#include "wait.h"

#define EXCHGID4_FLAG_USE_NON_PNFS	0x10000
#define EXCHGID4_FLAG_CONFIRMED_R	0x80000000

/* sr_status_flags: open files may be revoked; the server wants them to be reclaimed */
#define SEQ4_REVOKED		(8 | 0x10 | 0x20 | 0x40)
#define SEQ4_RECLAIM_NEEDED	0x100

/*
 * Places: SEQUENCE is behind the tag, the minor version and the number of operations; in its result, what a
 * server wants the highest slot to be, and its flags
 */
#define AT_SEQUENCE	16
#define AT_TARGET	28
#define AT_FLAGS	32
#define SEQUENCE_BYTES	36

/* Bytes of the longest reply that the server has to keep: that of a put of a block, with a delegation */
#define KEPT_MAX	1024

/* --- open files --- */

static enum open_work work_of(const struct nfs4_open *open)
{
	switch (open->state) {
	case OPEN_LOST:
		return WORK_RECLAIM;
	case OPEN_SUSPECT:
	case OPEN_GONE:
		return WORK_REOPEN;
	case OPEN_CLOSING:
		return WORK_ERRAND;
	default:
		return open->delegated ? WORK_ERRAND : WORK_NONE;
	}
}

static bool is_useless(const struct nfs4_open *open)
{
	return !open->users && !open->delegated && open->state != OPEN_SUSPECT && open->state != OPEN_CLOSING;
}

/* Note which call an open file needs, or free it */
static void settle(struct nfsrdma_session *session, struct nfs4_open *open)
{
	struct nfs4 *nfs4 = &session->nfs4;
	struct inode *inode = open->inode;

	/* the end of its call does that */
	if (open == nfs4->open)
		return;
	if (open->work != WORK_NONE)
		TAILQ_REMOVE(&nfs4->work[open->work], open, entry);
	open->work = WORK_NONE;
	if (!open->users && open->state == OPEN_HELD)
		open->state = OPEN_CLOSING;
	else if (open->users && open->state == OPEN_CLOSING)
		open->state = OPEN_HELD;
	if (is_useless(open)) {
		inode->open = NULL;
		free(open);
		inode_put(session, inode);
		return;
	}
	open->work = work_of(open);
	if (open->work == WORK_NONE)
		return;
	TAILQ_INSERT_TAIL(&nfs4->work[open->work], open, entry);
	if (open->work != WORK_ERRAND && nfs4->state == NFS4_READY)
		nfs4->state = NFS4_SESSION;
}

/* Change the state of each open file */
static void change_all(struct nfsrdma_session *session,
		       void (*change)(struct nfsrdma_session *session, struct nfs4_open *open))
{
	struct inode *inode, *next;
	uint32_t i;

	for (i = 0; i < session->inodes.size; i++) {
		for (inode = session->inodes.table[i]; inode; inode = next) {
			next = inode->next;
			if (!inode->open)
				continue;
			change(session, inode->open);
			settle(session, inode->open);
		}
	}
}

/* The server has forgotten the client ID, and all that belonged to it */
static void lose_open(struct nfsrdma_session *session, struct nfs4_open *open)
{
	(void)session;
	open->delegated = false;
	switch (open->state) {
	case OPEN_HELD:
		open->state = OPEN_LOST;
		break;
	case OPEN_SUSPECT:
		open->state = OPEN_GONE;
		break;
	case OPEN_CLOSING:
		open->state = OPEN_NONE;
		break;
	default:
		break;
	}
}

static void suspect_open(struct nfsrdma_session *session, struct nfs4_open *open)
{
	(void)session;
	if (open->state == OPEN_HELD)
		open->state = OPEN_SUSPECT;
}

static void close_open(struct nfsrdma_session *session, struct nfs4_open *open)
{
	(void)session;
	open->users = 0;
}

static void go_on(struct nfsrdma_session *session);

/**
 * state_use - count an open file of an inode
 * @session: session
 * @inode: inode, with its file open
 *
 * Return: 0, or -ENOMEM.  inode->open is there then; state_unuse() follows.
 */
int state_use(struct nfsrdma_session *session, struct inode *inode)
{
	struct nfs4_open *open = inode->open;

	if (!open) {
		open = calloc(1, sizeof(*open));
		if (!open)
			return fail_no_memory();
		open->inode = inode;
		open->work = WORK_NONE;
		inode->open = open;
		inode->users++;
	}
	open->users++;
	settle(session, open);
	go_on(session);
	return 0;
}

/* An open file of an inode is closed; without another one the server gets a CLOSE, for which nobody waits */
void state_unuse(struct nfsrdma_session *session, struct inode *inode)
{
	if (!inode->open || --inode->open->users)
		return;
	settle(session, inode->open);
	/* a child of fork(2) has no memory for a message */
	if (process_owns(session))
		go_on(session);
}

/**
 * state_opened - an OPEN has succeeded
 * @session: session
 * @inode: of the file
 * @opened: its results
 * @access: what it requested
 *
 * Return: 0, or -ENOMEM.
 */
int state_opened(struct nfsrdma_session *session, struct inode *inode, const struct opened *opened, uint32_t access)
{
	struct nfs4_open *open;
	int rc = state_use(session, inode);

	if (rc)
		return rc;
	open = inode->open;
	memcpy(open->stateid, opened->stateid, sizeof(open->stateid));
	open->access |= access;
	if (opened->delegated) {
		open->delegated = true;
		memcpy(open->delegation, opened->delegation, sizeof(open->delegation));
	}
	/* in the other states, calls are on their way, which do no harm */
	if (open->state == OPEN_NONE || open->state == OPEN_FAILED)
		open->state = OPEN_HELD;
	/* a file that this OPEN has made gets its user soon, or a CLOSE when the session ends */
	open->users--;
	if (open->users) {
		settle(session, open);
		go_on(session);
	}
	return 0;
}

/**
 * state_return - return a delegation that came with an OPEN, whose file is no open file of the session
 * @session: session
 * @fh: of the file
 * @opened: results of the OPEN
 *
 * Return: 0, or -ENOMEM.
 */
int state_return(struct nfsrdma_session *session, const struct nfs_fh *fh, const struct opened *opened)
{
	struct inode *inode = inode_get(session, fh);
	int rc = inode ? state_use(session, inode) : fail_no_memory();

	if (!rc) {
		inode->open->delegated = true;
		memcpy(inode->open->delegation, opened->delegation, sizeof(opened->delegation));
		state_unuse(session, inode);
	}
	if (inode)
		inode_put(session, inode);
	return rc;
}

/* A CLOSE that is under way would close what a new OPEN gets: wait for its end */
int state_wait_close(struct nfsrdma_session *session, const struct inode *inode)
{
	struct nfs4 *nfs4 = &session->nfs4;
	int rc = 0;

	while (nfs4->open && nfs4->open == inode->open && nfs4->call == CALL_CLOSE && !rc)
		rc = wait_once(session);
	wait_end(session);
	return rc;
}

/*
 * The server refused the stateid of a request.  Return: -ERESTART if the request has to be made again, or why the file
 * could not be opened again.
 */
int state_refused(struct nfsrdma_session *session, const struct request *req)
{
	const uint8_t *sent = req->message + HEADER_ROOM + session->rpc_head_length + req->stateid_at;
	struct nfs4_open *open = req->inode ? req->inode->open : NULL;

	if (!open || open->state == OPEN_NONE)
		return -EIO;
	if (open->state == OPEN_FAILED)
		return open->error;
	/* the request may have had another one */
	if (open->state == OPEN_HELD && !memcmp(sent + 4, open->stateid + 4, NFS4_STATEID - 4)) {
		open->state = OPEN_SUSPECT;
		settle(session, open);
		go_on(session);
	}
	return -ERESTART;
}

/* --- slots of the session --- */

/* May a request with SEQUENCE leave? */
bool state_may_leave(const struct nfsrdma_session *session, const struct request *req)
{
	const struct nfs4 *nfs4 = &session->nfs4;

	if (req->nfs4_slot >= 0)
		return true;
	if (req == nfs4->setup ? nfs4->state < NFS4_SESSION : nfs4->state != NFS4_READY)
		return false;
	return nfs4->nbusy < nfs4->nslots;
}

/* The highest slot that has a request */
static uint32_t highest_slot(const struct nfs4 *nfs4)
{
	uint32_t i = NFS4_SLOTS;

	while (!nfs4->slots[--i].busy)
		;
	return i;
}

/* Complete a message that is about to leave; requires state_may_leave().  A repeated one stays as it is. */
void state_stamp(struct nfsrdma_session *session, struct request *req)
{
	uint8_t *start = compound_start(session, req), *at = start + AT_SEQUENCE;
	const struct nfs4_open *open = req->inode ? req->inode->open : NULL;
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t i;

	if (req->nfs4_slot >= 0)
		return;
	for (i = 0; nfs4->slots[i].busy; i++)
		;
	nfs4->slots[i].busy = true;
	nfs4->nbusy++;
	req->nfs4_slot = i;
	memcpy(at, nfs4->session, sizeof(nfs4->session));
	at = put32(at + sizeof(nfs4->session), nfs4->slots[i].sequence);
	at = put32(at, i);
	at = put32(at, highest_slot(nfs4));
	put32(at, req->kept && nfs4->keeps);
	/* a sequence of 0: the last one, because an OPEN may have changed it meanwhile (RFC 8881, section 8.2.2) */
	if (open)
		memcpy(start + req->stateid_at + 4, open->stateid + 4, NFS4_STATEID - 4);
}

static void free_slot(struct nfsrdma_session *session, struct request *req, uint32_t used)
{
	struct nfs4 *nfs4 = &session->nfs4;

	if (req->nfs4_slot < 0)
		return;
	nfs4->slots[req->nfs4_slot].sequence += used;
	nfs4->slots[req->nfs4_slot].busy = false;
	nfs4->nbusy--;
	req->nfs4_slot = -1;
}

/* The session is gone: all that waits gets slots of the next one */
static void lose_session(struct nfsrdma_session *session)
{
	uint32_t i;

	for (i = 0; i < session->nslots; i++)
		session->slots[i].nfs4_slot = -1;
	session->nfs4.state = NFS4_NONE;
	state_start(session);
}

/* A request ended without a reply.  Whether the server has seen its sequence is unknown: the slot stays busy. */
void state_abandon(struct nfsrdma_session *session, struct request *req)
{
	req->nfs4_slot = -1;
	if (++session->nfs4.nabandoned >= session->nfs4.nslots)
		lose_session(session);
}

/* Heed target and flags in the result of SEQUENCE, which is at @result */
static void note_sequence(struct nfsrdma_session *session, const uint8_t *result)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t target = load32(result + AT_TARGET), flags = load32(result + AT_FLAGS);
	/* a server repeats them until it is satisfied, also for what this client does not know */
	uint32_t new = flags & ~nfs4->flags;

	/* the session gets no slots back: their sequences would begin again (RFC 8881, section 2.10.6.1) */
	if (target < nfs4->nslots - 1) {
		nfs4->nslots = target + 1;
		if (nfs4->nabandoned >= nfs4->nslots)
			lose_session(session);
	}
	nfs4->flags = flags;
	if (!(new & (SEQ4_REVOKED | SEQ4_RECLAIM_NEEDED)))
		return;
	if (new & SEQ4_RECLAIM_NEEDED) {
		nfs4->complete = false;
		if (nfs4->state == NFS4_READY)
			nfs4->state = NFS4_SESSION;
		change_all(session, lose_open);
	} else {
		change_all(session, suspect_open);
	}
	go_on(session);
}

/*
 * The result of SEQUENCE.  Return: 0; -ERESTART if the call has to be made again; -EINPROGRESS if it has to be made
 * again later, or another error.
 */
int state_take_sequence(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	bool current = req->nfs4_slot >= 0;
	uint32_t status, operation, found;
	const uint8_t *result;

	if (!compound_take_head(body, &status) || !take32(body, &operation) || operation != OP_SEQUENCE ||
	    !take32(body, &found))
		return -EBADMSG;
	switch (found) {
	case 0:
		result = body->at;
		if (!skip(body, SEQUENCE_BYTES))
			return -EBADMSG;
		free_slot(session, req, 1);
		if (current)
			note_sequence(session, result);
		/* the server executed an earlier copy of the call and did not keep its reply */
		if (status == NFS4ERR_RETRY_UNCACHED_REP)
			return -ERESTART;
		return 0;
	case NFS4ERR_DELAY:
		return -EINPROGRESS;
	case NFS4ERR_BADSESSION: case NFS4ERR_DEADSESSION: case NFS4ERR_STALE_CLIENTID: case NFS4ERR_BADSLOT:
	case NFS4ERR_SEQ_MISORDERED: case NFS4ERR_SEQ_FALSE_RETRY: case NFS4ERR_CONN_NOT_BOUND:
		/* a request of a session before this one */
		if (current)
			lose_session(session);
		return -ERESTART;
	case NFS4ERR_RETRY_UNCACHED_REP:
		free_slot(session, req, 1);
		return -ERESTART;
	}
	free_slot(session, req, 0);
	return compound_error(found);
}

/* --- client ID and session --- */

static uint8_t *put_channel(uint8_t *at, uint32_t request, uint32_t response, uint32_t kept, uint32_t operations,
			    uint32_t requests)
{
	at = put32(at, 0);
	at = put32(at, request);
	at = put32(at, response);
	at = put32(at, kept);
	at = put32(at, operations);
	at = put32(at, requests);
	return put32(at, 0);
}

/* channel_attrs4; the last word of @words is the number of words that follow */
enum { CHANNEL_REQUEST = 1, CHANNEL_RESPONSE, CHANNEL_KEPT, CHANNEL_OPERATIONS, CHANNEL_REQUESTS, CHANNEL_IRD,
       CHANNEL_WORDS };

static bool take_channel(struct rpc_body *body, uint32_t *words)
{
	uint32_t i;

	for (i = 0; i < CHANNEL_WORDS; i++)
		if (!take32(body, &words[i]))
			return false;
	return words[CHANNEL_IRD] <= 1 && skip(body, 4 * words[CHANNEL_IRD]);
}

static void encode_exchange_id(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint8_t *at = compound_begin(session, req, 1);

	(void)open;
	at = put32(at, OP_EXCHANGE_ID);
	memcpy(at, nfs4->verifier, sizeof(nfs4->verifier));
	at = put_opaque(at + sizeof(nfs4->verifier), nfs4->owner, strlen(nfs4->owner));
	at = put32(at, EXCHGID4_FLAG_USE_NON_PNFS);
	at = put32(at, 0);	/* SP4_NONE */
	at = put32(at, 0);	/* no implementation ID */
	compound_end(req, at);
}

static int decode_exchange_id(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t sequence, flags;
	uint64_t client;
	int rc = compound_take_op(body, OP_EXCHANGE_ID);

	(void)open;
	if (rc)
		return rc;
	if (!take64(body, &client) || !take32(body, &sequence) || !take32(body, &flags))
		return -EBADMSG;
	/* RFC 8881, section 18.35.4: the sequence goes on with a client ID that the server has confirmed */
	if (!(flags & EXCHGID4_FLAG_CONFIRMED_R))
		nfs4->create_sequence = sequence;
	if (client != nfs4->client || !(flags & EXCHGID4_FLAG_CONFIRMED_R)) {
		nfs4->client = client;
		nfs4->complete = false;
		change_all(session, lose_open);
	}
	nfs4->state = NFS4_CLIENT;
	return 0;
}

static void encode_create_session(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	uint8_t *at = compound_begin(session, req, 1);

	(void)open;
	at = put32(at, OP_CREATE_SESSION);
	at = put64(at, session->nfs4.client);
	at = put32(at, session->nfs4.create_sequence);
	at = put32(at, 0);
	/* one slot more for calls that wait while a batch is unfinished, and one for setup */
	at = put_channel(at, IO_MAX + CALL_MAX, IO_MAX + CALL_MAX, KEPT_MAX, OPERATIONS_MAX,
			 session->options.depth + 2);
	/* the server has to be given one that it does not use */
	at = put_channel(at, 4096, 4096, 0, 2, 1);
	at = put32(at, 0x40000000);
	at = put32(at, 1);
	at = put32(at, AUTH_NONE);
	compound_end(req, at);
}

static int decode_create_session(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t words[CHANNEL_WORDS], i;
	const uint8_t *id;
	uint32_t status;

	(void)open;
	if (!compound_take_status(body, OP_CREATE_SESSION, &status))
		return -EBADMSG;
	/* the server restarted between the two calls */
	if (status == NFS4ERR_STALE_CLIENTID) {
		nfs4->state = NFS4_NONE;
		return 0;
	}
	if (status)
		return compound_error(status);
	id = body->at;
	if (!skip(body, sizeof(nfs4->session) + 8) || !take_channel(body, words) || !words[CHANNEL_REQUESTS] ||
	    words[CHANNEL_OPERATIONS] < OPERATIONS_LEAST)
		return -EBADMSG;
	memcpy(nfs4->session, id, sizeof(nfs4->session));
	nfs4->create_sequence++;
	nfs4->request_max = words[CHANNEL_REQUEST];
	nfs4->response_max = words[CHANNEL_RESPONSE];
	nfs4->operations = words[CHANNEL_OPERATIONS];
	nfs4->keeps = words[CHANNEL_KEPT] >= KEPT_MAX;
	nfs4->nslots = words[CHANNEL_REQUESTS] < NFS4_SLOTS ? words[CHANNEL_REQUESTS] : NFS4_SLOTS;
	nfs4->nbusy = nfs4->nabandoned = 0;
	for (i = 0; i < NFS4_SLOTS; i++)
		nfs4->slots[i] = (struct nfs4_slot){.sequence = 1};
	nfs4->flags = 0;
	nfs4->state = NFS4_SESSION;
	return 0;
}

static void encode_reclaim_complete(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	uint8_t *at = compound_begin_sequence(session, req, 2);

	(void)open;
	at = put32(at, OP_RECLAIM_COMPLETE);
	at = put32(at, 0);
	compound_end(req, at);
}

static int decode_reclaim_complete(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	/* NFS4ERR_COMPLETE_ALREADY is no error here: its result says nothing else */
	(void)body, (void)open;
	session->nfs4.complete = true;
	return 0;
}

/* --- calls for open files --- */

static void encode_open(struct nfsrdma_session *session, struct request *req, const struct nfs4_open *open,
			uint32_t claim)
{
	fh3 fh = nfs_fh3(&open->inode->fh);
	uint8_t *at = compound_put_fh(compound_begin_sequence(session, req, 3), &fh);

	at = compound_put_open(at, open->access);
	at = put32(at, OPEN4_NOCREATE);
	at = put32(at, claim);
	/* OPEN_DELEGATE_NONE: the client had no delegation */
	compound_end(req, claim == CLAIM_PREVIOUS ? put32(at, 0) : at);
}

static void encode_reclaim(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	encode_open(session, req, open, CLAIM_PREVIOUS);
}

static void encode_reopen(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	encode_open(session, req, open, CLAIM_FH);
}

static int decode_open(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	struct opened opened;
	int rc = compound_take_op(body, OP_PUTFH);

	if (!rc)
		rc = compound_take_open(body, &opened);
	if (rc)
		return rc;
	open->state = OPEN_HELD;
	return state_opened(session, open->inode, &opened, open->access);
}

/* Results of a reclaim that make OPEN with CLAIM_FH the next try */
static int decode_reclaim(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	struct rpc_body look = *body;
	struct nfs4_open *other, *next;
	uint32_t status = 0;

	if (!compound_take_op(&look, OP_PUTFH) && compound_take_status(&look, OP_OPEN, &status)) {
		switch (status) {
		case NFS4ERR_NO_GRACE:
			/* it is the same for all of them */
			open->state = OPEN_GONE;
			for (other = TAILQ_FIRST(&session->nfs4.work[WORK_RECLAIM]); other; other = next) {
				next = TAILQ_NEXT(other, entry);
				other->state = OPEN_GONE;
				settle(session, other);
			}
			return 0;
		case NFS4ERR_RECLAIM_BAD: case NFS4ERR_RECLAIM_CONFLICT:
			open->state = OPEN_GONE;
			return 0;
		}
	}
	return decode_open(session, body, open);
}

static void encode_free(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	uint8_t *at = put32(compound_begin_sequence(session, req, 2), OP_FREE_STATEID);

	memcpy(at, open->stateid, NFS4_STATEID);
	compound_end(req, at + NFS4_STATEID);
}

/* The server frees a stateid that it has revoked (RFC 8881, section 18.38), and none that is valid */
static int decode_free(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	uint32_t status;

	(void)session;
	if (!compound_take_status(body, OP_FREE_STATEID, &status))
		return -EBADMSG;
	if (status == NFS4ERR_DELAY)
		return -EINPROGRESS;
	open->state = status == NFS4ERR_LOCKS_HELD || status == NFS4ERR_OLD_STATEID ? OPEN_HELD : OPEN_GONE;
	return 0;
}

static uint8_t *begin_errand(struct nfsrdma_session *session, struct request *req, const struct nfs4_open *open,
			     uint32_t operation)
{
	fh3 fh = nfs_fh3(&open->inode->fh);

	return put32(compound_put_fh(compound_begin_sequence(session, req, 3), &fh), operation);
}

static void encode_return(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	uint8_t *at = begin_errand(session, req, open, OP_DELEGRETURN);

	memcpy(at, open->delegation, NFS4_STATEID);
	compound_end(req, at + NFS4_STATEID);
}

static void encode_close(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open)
{
	uint8_t *at = put32(begin_errand(session, req, open, OP_CLOSE), 0);

	memcpy(at, open->stateid, NFS4_STATEID);
	compound_end(req, at + NFS4_STATEID);
}

/* The client has no use for an error: it cannot give the state back in another way */
static int decode_errand(struct rpc_body *body, uint32_t operation)
{
	int rc = compound_take_op(body, OP_PUTFH);

	if (!rc)
		rc = compound_take_op(body, operation);
	return rc == -EINPROGRESS ? rc : 0;
}

static int decode_return(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	int rc = decode_errand(body, OP_DELEGRETURN);

	(void)session;
	open->delegated &= rc != 0;
	return rc;
}

static int decode_close(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open)
{
	int rc = decode_errand(body, OP_CLOSE);

	(void)session;
	if (!rc) {
		open->state = OPEN_NONE;
		open->access = 0;
	}
	return rc;
}

/* --- setup --- */

static const struct setup_call {
	void (*encode)(struct nfsrdma_session *session, struct request *req, struct nfs4_open *open);
	int (*decode)(struct nfsrdma_session *session, struct rpc_body *body, struct nfs4_open *open);
	bool kept;	/* the server must not execute it twice */
} setup_calls[] = {
	[CALL_EXCHANGE] = {encode_exchange_id, decode_exchange_id, false},
	[CALL_CREATE] = {encode_create_session, decode_create_session, false},
	[CALL_RECLAIM] = {encode_reclaim, decode_reclaim, true},
	[CALL_COMPLETE] = {encode_reclaim_complete, decode_reclaim_complete, true},
	[CALL_FREE] = {encode_free, decode_free, true},
	[CALL_REOPEN] = {encode_reopen, decode_open, true},
	[CALL_RETURN] = {encode_return, decode_return, true},
	[CALL_CLOSE] = {encode_close, decode_close, true},
};

static int finish_setup(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint32_t status;
	int rc;

	if (req->sequenced)
		rc = state_take_sequence(session, req, body);
	else
		rc = compound_take_head(body, &status) ? 0 : -EBADMSG;
	if (!rc)
		rc = setup_calls[nfs4->call].decode(session, body, nfs4->open);
	/* setup_done() looks what is to be done now */
	return rc == -ERESTART ? 0 : rc;
}

/* Setup ends; whatever it was about has its state */
static void end_setup(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	struct nfs4_open *open = nfs4->open;

	request_release(session, nfs4->setup);
	nfs4->setup = NULL;
	nfs4->open = NULL;
	if (open)
		settle(session, open);
}

/* An open file did not come back.  Return: whether all that waits has to end with it. */
static bool note_failure(struct nfs4_open *open, enum nfs4_call call, int error)
{
	switch (call) {
	case CALL_RECLAIM:
	case CALL_REOPEN:
	case CALL_FREE:
		/* the server, or the way to it, fails all of them */
		if (error == -ETIMEDOUT)
			return true;
		open->state = OPEN_FAILED;
		open->error = error;
		return false;
	case CALL_RETURN:
		open->delegated &= error == -ETIMEDOUT;
		return false;
	case CALL_CLOSE:
		if (error != -ETIMEDOUT)
			open->state = OPEN_NONE;
		return false;
	default:
		return true;
	}
}

static void setup_done(struct nfsrdma_session *session, struct request *req)
{
	struct nfs4 *nfs4 = &session->nfs4;
	bool fails = req->error && note_failure(nfs4->open, nfs4->call, req->error);
	int error = req->error;

	/* the next request makes another attempt */
	if (fails && nfs4->state == NFS4_CLIENT)
		nfs4->state = NFS4_NONE;
	end_setup(session);
	if (fails)
		send_fail_waiting(session, error);
	else
		go_on(session);
}

static void begin_setup(struct nfsrdma_session *session, enum nfs4_call call, struct nfs4_open *open)
{
	struct nfs4 *nfs4 = &session->nfs4;
	struct request *req = request_take(session);

	nfs4->starved = !req;
	if (!req)
		return;
	nfs4->setup = req;
	nfs4->call = call;
	nfs4->open = open;
	setup_calls[call].encode(session, req, open);
	req->kept = setup_calls[call].kept;
	req->finish = finish_setup;
	req->done = setup_done;
	send_setup(session, req);
}

/* The call that comes next while there is a session; false: none */
static bool begin_next(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	struct nfs4_open *open;

	if ((open = TAILQ_FIRST(&nfs4->work[WORK_RECLAIM])))
		begin_setup(session, CALL_RECLAIM, open);
	else if (!nfs4->complete)
		begin_setup(session, CALL_COMPLETE, NULL);
	else if ((open = TAILQ_FIRST(&nfs4->work[WORK_REOPEN])))
		begin_setup(session, open->state == OPEN_SUSPECT ? CALL_FREE : CALL_REOPEN, open);
	return open || !nfs4->complete;
}

/* Begin the next call, if one is needed and none is under way */
static void go_on(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	struct nfs4_open *open;

	if (nfs4->setup || session->link != LINK_UP)
		return;
	switch (nfs4->state) {
	case NFS4_NONE:
		begin_setup(session, CALL_EXCHANGE, NULL);
		return;
	case NFS4_CLIENT:
		begin_setup(session, CALL_CREATE, NULL);
		return;
	case NFS4_SESSION:
		if (begin_next(session))
			return;
		nfs4->state = NFS4_READY;
		/* fallthrough */
	case NFS4_READY:
		open = TAILQ_FIRST(&nfs4->work[WORK_ERRAND]);
		if (open)
			begin_setup(session, open->delegated ? CALL_RETURN : CALL_CLOSE, open);
	}
}

/* Make what is missing: the connection is up, or a request wants to leave */
void state_start(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	struct request *req = nfs4->setup;

	/* a call of a session that is lost, and that nothing will answer */
	if (req && req->sequenced && nfs4->state == NFS4_NONE &&
	    (req->state == REQUEST_WAITING || req->state == REQUEST_DELAYED)) {
		request_list_remove(req->state == REQUEST_DELAYED ? &session->delayed : &session->waiting, req);
		end_setup(session);
	}
	go_on(session);
}

/* --- the begin and the end --- */

static int finish_destroy(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	(void)session, (void)req, (void)body;
	return 0;
}

/* SEQUENCE binds the connection, without which a server destroys no session (RFC 8881, section 18.37.3) */
static int finish_destroy_session(struct nfsrdma_session *session, struct request *req, struct rpc_body *body)
{
	(void)body;
	/* whatever the server answers: without the session, it executed an earlier copy */
	free_slot(session, req, 1);
	return 0;
}

static void destroy_session(struct nfsrdma_session *session)
{
	struct request *req = session->link == LINK_UP ? wait_take(session) : NULL;
	uint8_t *at;

	if (!req)
		return;
	at = put32(compound_begin_sequence(session, req, 2), OP_DESTROY_SESSION);
	memcpy(at, session->nfs4.session, sizeof(session->nfs4.session));
	compound_end(req, at + sizeof(session->nfs4.session));
	req->finish = finish_destroy_session;
	wait_call(session, req);
	request_release(session, req);
}

static void destroy_client(struct nfsrdma_session *session)
{
	struct request *req = session->link == LINK_UP ? wait_take(session) : NULL;
	uint8_t *at;

	if (!req)
		return;
	at = put32(compound_begin(session, req, 1), OP_DESTROY_CLIENTID);
	compound_end(req, put64(at, session->nfs4.client));
	req->finish = finish_destroy;
	wait_call(session, req);
	request_release(session, req);
}

/* Close what is open */
static void close_all(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint64_t end = now_ms() + session->options.timeout;

	change_all(session, close_open);
	go_on(session);
	send_flush(session);
	while (nfs4->state == NFS4_READY && nfs4->setup && session->link == LINK_UP && now_ms() < end)
		if (wait_once(session))
			break;
}

/* Have the server forget the open files, the session and the client ID, if the connection is up */
void state_leave(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;

	if (session->options.timeout > NFS4_LEAVE_TIMEOUT)
		session->options.timeout = NFS4_LEAVE_TIMEOUT;
	if (nfs4->state == NFS4_READY && session->link == LINK_UP)
		close_all(session);
	if (nfs4->state != NFS4_READY)
		return;
	destroy_session(session);
	destroy_client(session);
}

/* Choose the names by which the server knows this client */
int state_allocate(struct nfsrdma_session *session)
{
	struct nfs4 *nfs4 = &session->nfs4;
	uint64_t chance;
	char host[64] = "";
	int i;

	for (i = 0; i < WORK_NONE; i++)
		TAILQ_INIT(&nfs4->work[i]);
	if (getrandom(nfs4->verifier, sizeof(nfs4->verifier), 0) != sizeof(nfs4->verifier) ||
	    getrandom(&chance, sizeof(chance), 0) != sizeof(chance))
		return fail(-errno, "getrandom: %s", strerror(errno));
	gethostname(host, sizeof(host) - 1);
	snprintf(nfs4->owner, sizeof(nfs4->owner), "libnfsrdma %s %d %016llx", host, getpid(),
		 (unsigned long long)chance);
	return 0;
}
