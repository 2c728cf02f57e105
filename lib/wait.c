// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Waiting: for replies, for events of the connection, and for time to go on.
 *
 * A request without a reply for half of the session's timeout ends the connection; after the timeout the request
 * fails.  No request fails before the queue pair is gone, because the server could still write to its memory.  The same
 * goes for a request whose call is interrupted.
 */
#include <sched.h>
#include <sys/epoll.h>

#include "library.h"
#include "wait.h"

/* Polls between two looks at the events of the connection, and at the clock */
#define LOOK_EVERY	256

static void expire(struct nfsrdma_session *session, struct request *req)
{
	if (req->state == REQUEST_SENT)
		connection_lost(session, -ETIMEDOUT, "no reply");
	request_list_remove(req->state == REQUEST_DELAYED ? &session->delayed : &session->waiting, req);
	request_finish(session, req, fail(-ETIMEDOUT, "%s: %s for %u ms", session->host,
				  req->delay ? "the server was busy (NFS3ERR_JUKEBOX)" : "no reply",
				  session->options.timeout));
}

/* End what has waited too long; returns when the next request may end so */
static uint64_t expire_requests(struct nfsrdma_session *session, uint64_t now)
{
	uint64_t next = NEVER;
	uint32_t i;

	for (i = 0; i < session->nslots; i++) {
		struct request *req = &session->slots[i];
		uint64_t end = req->began + session->options.timeout;

		/* those that read by reference end by reports->look() */
		if (!request_is_pending(req) || req->state == REQUEST_READING)
			continue;
		if (now >= end) {
			expire(session, req);
			continue;
		}
		if (req->state == REQUEST_SENT && now >= req->sent + session->options.timeout / 2)
			connection_lost(session, -ETIMEDOUT, "no reply");
		if (req->state == REQUEST_SENT && req->sent + session->options.timeout / 2 < end)
			end = req->sent + session->options.timeout / 2;
		next = end < next ? end : next;
	}
	return next;
}

/* Send delayed requests whose time has come; returns when that of the next one comes */
static uint64_t resend_delayed(struct nfsrdma_session *session, uint64_t now)
{
	uint64_t next = NEVER;
	struct request_list all = session->delayed;

	if (!all.head)
		return NEVER;
	request_list_clear(&session->delayed);
	while (all.head) {
		struct request *req = request_list_pop(&all);

		if (now >= req->not_before) {
			send_ready(session, req);
			continue;
		}
		request_list_add(&session->delayed, req);
		next = req->not_before < next ? req->not_before : next;
	}
	if (session->link == LINK_UP)
		send_flush(session);
	return next;
}

/**
 * wait_look - handle the events of the connection, and what time brings
 * @session: session
 *
 * Return: milliseconds of the clock at which to look again.
 */
uint64_t wait_look(struct nfsrdma_session *session)
{
	uint64_t now = now_ms(), next, later;

	session->looked = now;
	connection_event(session);
	next = session->reports->look(session, now);
	later = expire_requests(session, now);
	next = later < next ? later : next;
	later = resend_delayed(session, now);
	next = later < next ? later : next;
	if (session->link == LINK_CONNECTING && now >= session->link_retry)
		connection_expire(session);
	if (session->link == LINK_PAUSE && now >= session->link_retry)
		session->link = LINK_DOWN;
	if (session->link == LINK_DOWN)
		connection_start(session);
	if ((session->link == LINK_PAUSE || session->link == LINK_CONNECTING) && session->link_retry < next)
		next = session->link_retry;
	if (session->link == LINK_UP && session->waiting.head)
		send_flush(session);
	return next;
}

/**
 * wait_poll - handle what has arrived; does not wait
 * @session: session
 *
 * Return: number of completions of the device.
 */
int wait_poll(struct nfsrdma_session *session)
{
	if (!(++session->polls % LOOK_EVERY))
		wait_look(session);
	return connection_poll(session);
}

/* Poll until the queue is empty, or the caller has @most completions to take; returns whether anything had arrived */
bool wait_poll_all(struct nfsrdma_session *session, size_t most)
{
	bool found = false;
	int n = CONNECTION_POLL_MOST;

	/* a poll that returned fewer has emptied the queue */
	while (session->done.count < most && n == CONNECTION_POLL_MOST) {
		n = wait_poll(session);
		found = found || n;
	}
	return found;
}

/* Have the device report the next completion; returns whether that is so already */
bool wait_arm(struct nfsrdma_session *session)
{
	struct ibv_cq *cq;
	void *context;

	if (session->link != LINK_UP)
		return true;
	while (session->armed && !ibv_get_cq_event(session->channel, &cq, &context)) {
		ibv_ack_cq_events(cq, 1);
		session->armed = false;
	}
	if (session->armed)
		return true;
	if (ibv_req_notify_cq(session->cq, 0))
		connection_lost(session, -EIO, "the completion queue is broken");
	else
		session->armed = true;
	return false;
}

/*
 * Does the program want the call to end?  0, or -EINTR.  A signal that comes between a look and the sleep is noticed
 * after WAIT_ASK_EVERY.
 */
static int ask(struct nfsrdma_session *session, uint64_t now)
{
	session->asked = now;
	session->asking = true;
	session->interrupted = session->options.interrupted(session->options.interrupted_data);
	session->asking = false;
	return session->interrupted ? fail(-EINTR, "%s: interrupted", session->host) : 0;
}

/* The same for a call of many RPCs, whose replies may come too fast for a sleep */
int wait_ask(struct nfsrdma_session *session)
{
	uint64_t now;

	if (!session->options.interrupted)
		return 0;
	now = now_ms();
	return now >= session->asked + WAIT_ASK_EVERY ? ask(session, now) : 0;
}

/**
 * wait_sleep - wait for a message or an event, after a poll that found nothing
 * @session: session
 * @until: milliseconds of the clock
 *
 * Yields the processor first; a process that runs alone soon sleeps.
 *
 * Return: 0 after each event, or earlier; -EINTR if the call has to end.
 */
int wait_sleep(struct nfsrdma_session *session, uint64_t until)
{
	enum link_state link = session->link;
	bool asks = session->options.interrupted;
	struct epoll_event event;
	uint64_t now, next, most = asks ? WAIT_ASK_EVERY : WAIT_SLEEP_MOST;
	int n;

	if (session->link == LINK_UP && session->idle++ < WAIT_YIELDS) {
		sched_yield();
		return 0;
	}
	/* a message that arrived before the request to report it: poll once more */
	if (!wait_arm(session))
		return 0;
	next = wait_look(session);
	/* the caller may wait for this, and no event would come for it */
	if (session->link != link)
		return 0;
	now = now_ms();
	if (until < next)
		next = until;
	if (next <= now)
		return 0;
	next = next == NEVER ? NEVER : next - now;
	/* of no use to this call, and the sleep would end at once */
	connection_rest(session);
	n = epoll_wait(session->epoll, &event, 1, next > most ? most : next);
	wait_look(session);
	/* after a signal, and from time to time also if events end each sleep */
	if (asks && (n < 0 || now >= session->asked + WAIT_ASK_EVERY))
		return ask(session, now);
	return 0;
}

/*
 * The end of a call that handled what has arrived: completions of other operations may be among it, and nothing else
 * would make the descriptor readable.  The same goes for a connection that reports no completion yet.
 */
void wait_end(struct nfsrdma_session *session)
{
	if (session->fd_used && !session->woken && (session->done.count || !session->armed))
		connection_wake(session);
}

/* Handle what has arrived, or wait for it; 0, or -EINTR */
int wait_once(struct nfsrdma_session *session)
{
	return wait_poll(session) ? 0 : wait_sleep(session, NEVER);
}

/* No free slot has a completed Send: wait for one, see wait_take() */
struct request *wait_for_slot(struct nfsrdma_session *session)
{
	struct request *req = NULL;

	session->interrupted = false;
	/* as many as signal_every may wait for a completion that no Send reports */
	while (!req && request_count_free(session) >= session->signal_every) {
		if (wait_once(session))
			break;
		req = request_take(session);
	}
	wait_end(session);
	return req;
}

/* The reason why wait_take() returned NULL */
int wait_no_slot(const struct nfsrdma_session *session)
{
	if (session->interrupted)
		return fail(-EINTR, "%s: interrupted", session->host);
	return fail(-EAGAIN, "no request is free");
}

/* End a request without its reply, which would go to memory that the caller gets back: the connection ends first */
static void give_up(struct nfsrdma_session *session, struct request *req, int error, const char *why)
{
	if (req->state == REQUEST_SENT || req->state == REQUEST_READING)
		connection_lost(session, error, why);
	request_list_remove(req->state == REQUEST_DELAYED ? &session->delayed : &session->waiting, req);
	request_finish(session, req, error);
}

/* Wait for the end of a request that has left or waits to; returns its error */
int wait_for(struct nfsrdma_session *session, struct request *req)
{
	int rc;

	if (session->link == LINK_UP)
		send_flush(session);
	while (req->state != REQUEST_DONE) {
		rc = wait_once(session);
		if (rc && req->state != REQUEST_DONE)
			give_up(session, req, rc, "interrupted");
	}
	wait_end(session);
	return req->error;
}

/* Send a request and wait for its end; returns its error */
int wait_call(struct nfsrdma_session *session, struct request *req)
{
	req->began = began_at(session);
	send_by_rpc(session, req);
	return wait_for(session, req);
}

/**
 * wait_abandon - end requests of a batch without their replies
 * @session: session
 * @first: least user_data of those to end
 * @last: greatest one
 * @error: negative errno value that their completions have
 * @why: the same in words
 *
 * The server reaches no memory of theirs when this returns: if it has one of them, the connection ends, and other
 * requests are sent again on the next one.
 */
void wait_abandon(struct nfsrdma_session *session, uint64_t first, uint64_t last, int error, const char *why)
{
	uint32_t i;

	for (i = 0; i < session->nslots; i++) {
		struct request *req = &session->slots[i];

		/* a call of state.c is none of a batch, and has no user_data */
		if (!req->done || req == session->nfs4.setup || !request_is_pending(req))
			continue;
		if (req->io.user_data >= first && req->io.user_data <= last)
			give_up(session, req, error, why);
	}
}
