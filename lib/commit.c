// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * From WRITE to stable storage: fsync and close.
 *
 * The server may keep the data of a WRITE in memory until a COMMIT.  Its replies to both have a verifier, which changes
 * when the server may have lost such data (RFC 1813, section 3.3.21).  Each inode has the verifier of its writes, and
 * counts those that a COMMIT must follow.  A verifier that changed is a loss: each open file of the inode reports it
 * once, by fsync or close, and so does a later open file if none did.
 *
 * A COMMIT waits for the writes that were prepared before it, because it would miss those that the server has not seen:
 * each inode numbers its barriers, and each write has the number of those before it.  A COMMIT that waits is in
 * session->held.
 */
#include <fcntl.h>
#include <string.h>

#include "batch.h"
#include "library.h"
#include "wait.h"

/* The server may have lost what it has not committed */
static void note_loss(struct nfsrdma_session *session, struct inode *inode)
{
	inode->lost = ++session->losses;
	inode->untold = -EIO;
}

/* The server refused a COMMIT: after that, a program repeats the call; after a loss, it has to write again */
static void note_refusal(struct nfsrdma_session *session, struct inode *inode, int error)
{
	inode->refused = ++session->losses;
	inode->refusal = error;
	if (!inode->untold)
		inode->untold = error;
}

static void compare_verifier(struct nfsrdma_session *session, struct inode *inode, const uint8_t *verifier)
{
	if (inode->writes != inode->committed && memcmp(inode->verifier, verifier, sizeof(inode->verifier)))
		note_loss(session, inode);
	memcpy(inode->verifier, verifier, sizeof(inode->verifier));
}

/* A WRITE whose data may not be on stable storage is complete */
void commit_written(struct nfsrdma_session *session, struct inode *inode, const uint8_t *verifier)
{
	compare_verifier(session, inode, verifier);
	inode->writes++;
}

/* The result of a close or an fsync: @rc, unless the file has a loss to report */
static int result_of(struct nfsrdma_file *file, int rc)
{
	struct inode *inode = file->inode;
	int error = inode->untold;

	if (inode->refused > file->seen)
		error = inode->refusal;
	if (inode->lost > file->seen || inode->untold == -EIO)
		error = -EIO;
	file->seen = file->session->losses;
	inode->untold = 0;
	if (!error)
		return rc;
	if (error == -EIO)
		return fail(-EIO, "the server may have lost data that it had not committed: write it again");
	return fail(error, "COMMIT: %s", strerror(-error));
}

/* --- COMMIT --- */

static void encode_commit(struct nfsrdma_session *session, struct request *req)
{
	session->dialect->encode_commit(session, req);
	request_expect(req, REPLY_SMALL);
}

static int finish_commit(struct nfsrdma_session *session, struct request *req, struct rpc_body *results)
{
	struct inode *inode = req->io.file->inode;
	const uint8_t *verifier;
	int rc = session->dialect->take_commit(session, req, results, &verifier);

	/* a malformed reply refuses nothing */
	if (rc == -EINPROGRESS || rc == -ERESTART || rc == -EBADMSG)
		return rc;
	if (rc) {
		note_refusal(session, inode, rc);
		/* no COMMIT will ever succeed */
		if (rc == -ESTALE)
			inode->committed = inode->writes;
		return rc;
	}
	compare_verifier(session, inode, verifier);
	/* writes that completed meanwhile may be missing */
	if (req->io.writes > inode->committed)
		inode->committed = req->io.writes;
	return 0;
}

/* Is a write of this inode on its way that was prepared before this barrier? */
static bool has_writes(const struct nfsrdma_session *session, const struct inode *inode, uint64_t barrier)
{
	uint32_t i;

	for (i = 0; i < session->nslots; i++) {
		const struct request *req = &session->slots[i];

		if (req->io.file && req->io.kind == IO_WRITE && req->io.file->inode == inode &&
		    req->io.barrier < barrier && request_is_pending(req))
			return true;
	}
	return false;
}

/* Wait for the writes of the file that have left, and for a COMMIT if one has to follow */
static int commit_now(struct nfsrdma_file *file)
{
	struct nfsrdma_session *session = file->session;
	struct inode *inode = file->inode;
	struct request *req;
	int rc;

	while (has_writes(session, inode, UINT64_MAX)) {
		rc = wait_once(session);
		wait_end(session);
		if (rc)
			return rc;
	}
	if (inode->writes == inode->committed)
		return result_of(file, 0);
	req = wait_take(session);
	if (!req)
		return wait_no_slot(session);
	req->io = (struct io_operation){.file = file, .kind = IO_COMMIT, .writes = inode->writes};
	req->finish = finish_commit;
	encode_commit(session, req);
	rc = wait_call(session, req);
	req->io.file = NULL;
	request_release(session, req);
	if (rc && rc != -ETIMEDOUT && rc != -EBADMSG)
		fail(rc, "COMMIT: %s", strerror(-rc));
	return result_of(file, rc);
}

EXPORTED int nfsrdma_fsync(struct nfsrdma_file *file)
{
	int rc = process_check(file->session);

	return rc ? rc : commit_now(file);
}

static bool writable(const struct nfsrdma_file *file)
{
	return (file->flags & O_ACCMODE) != O_RDONLY;
}

/* The caller closes a file: NFSv4.1 has a message about that, for which nobody waits */
static void put_file(struct nfsrdma_file *file)
{
	struct nfsrdma_session *session = file->session;

	file_put(file);
	if (!session->dialect->closed || !process_owns(session) || session->link != LINK_UP)
		return;
	send_flush(session);
	wait_end(session);
}

EXPORTED int nfsrdma_close(struct nfsrdma_file *file)
{
	int rc;

	if (!file)
		return 0;
	rc = process_check(file->session);
	if (rc == -EDEADLK)
		return rc;
	if (!rc && writable(file))
		rc = commit_now(file);
	put_file(file);
	return rc;
}

EXPORTED int nfsrdma_release(struct nfsrdma_file *file)
{
	int rc = file ? process_check_end(file->session) : 0;

	if (file && !rc)
		put_file(file);
	return rc;
}

/* --- in a batch --- */

static void commit_done(struct nfsrdma_session *session, struct request *req)
{
	struct nfsrdma_file *file = req->io.file;

	batch_add(&session->done, req->io.user_data, req->io.commits ? result_of(file, req->error) : req->error, false);
	session->unfinished--;
	req->io.file = NULL;
	file_put(file);
	request_release(session, req);
}

static int prepare_commit(struct nfsrdma_file *file, bool closes, uint64_t user_data)
{
	struct nfsrdma_session *session = file->session;
	bool commits = !closes || writable(file);
	struct request *req;
	int rc = batch_room(session);

	if (rc)
		return rc;
	req = wait_take(session);
	if (!req)
		return wait_no_slot(session);
	/* a request that closes the file takes the place of the caller, who uses it until then */
	if (!closes)
		file->users++;
	req->io = (struct io_operation){
		.file = file, .kind = IO_COMMIT, .user_data = user_data, .commits = commits,
		.barrier = commits ? ++file->inode->barriers : 0,
	};
	req->finish = finish_commit;
	req->done = commit_done;
	session->unfinished++;
	session->nprepared++;
	request_hold(session, req);
	return 0;
}

EXPORTED int nfsrdma_prepare_fsync(struct nfsrdma_file *file, uint64_t user_data)
{
	return prepare_commit(file, false, user_data);
}

EXPORTED int nfsrdma_prepare_close(struct nfsrdma_file *file, uint64_t user_data)
{
	return prepare_commit(file, true, user_data);
}

/* Send each COMMIT that waits for no write any more, and complete those that have nothing to commit */
void commit_held(struct nfsrdma_session *session)
{
	struct request *req = session->held.head, *next;

	for (; req; req = next) {
		struct inode *inode = req->io.file->inode;

		next = req->next;
		/* not submitted */
		if (req->state != REQUEST_HELD || has_writes(session, inode, req->io.barrier))
			continue;
		request_unhold(session, req);
		if (!req->io.commits || inode->writes == inode->committed) {
			request_finish(session, req, 0);
			continue;
		}
		req->io.writes = inode->writes;
		encode_commit(session, req);
		send_start(session, req);
	}
}

/* The batch leaves: what it holds may start from now on */
void commit_submit(struct nfsrdma_session *session)
{
	struct request *req;

	for (req = session->held.head; req; req = req->next)
		req->state = REQUEST_HELD;
	commit_held(session);
}
