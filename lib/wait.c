// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Waiting: for replies, for events of the connection, and for time to go on.
 *
 * A request without a reply for half of the session's timeout ends the connection; after the timeout the request
 * fails.  No request fails before the queue pair is gone, because the server could still write to its memory.
 */
#include <sched.h>
#include <sys/epoll.h>

#include "session.h"

/* Empty polls, each followed by a yield, before the process sleeps */
#define YIELDS		20

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

	connection_event(session);
	next = session->reports->look(session, now);
	later = expire_requests(session, now);
	next = later < next ? later : next;
	later = resend_delayed(session, now);
	next = later < next ? later : next;
	if (session->link == LINK_PAUSE && now >= session->link_retry)
		session->link = LINK_DOWN;
	if (session->link == LINK_DOWN)
		connection_start(session);
	if (session->link == LINK_PAUSE && session->link_retry < next)
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

/**
 * wait_sleep - wait for a message or an event, after a poll that found nothing
 * @session: session
 * @until: milliseconds of the clock
 *
 * Yields the processor first; a process that runs alone soon sleeps.  Returns after each event, or earlier.
 */
void wait_sleep(struct nfsrdma_session *session, uint64_t until)
{
	enum link_state link = session->link;
	struct epoll_event event;
	uint64_t now, next;

	if (session->link == LINK_UP && session->idle++ < YIELDS) {
		sched_yield();
		return;
	}
	/* a message that arrived before the request to report it: poll once more */
	if (!wait_arm(session))
		return;
	next = wait_look(session);
	/* the caller may wait for this, and no event would come for it */
	if (session->link != link)
		return;
	now = now_ms();
	if (until < next)
		next = until;
	if (next <= now)
		return;
	next = next == NEVER ? NEVER : next - now;
	epoll_wait(session->epoll, &event, 1, next > 1000 ? 1000 : (int)next);
	wait_look(session);
}

/* Handle what has arrived, or wait for it */
void wait_once(struct nfsrdma_session *session)
{
	if (!wait_poll(session))
		wait_sleep(session, NEVER);
}

/* No free slot has a completed Send: wait for one, see wait_take() */
struct request *wait_for_slot(struct nfsrdma_session *session)
{
	struct request *req = NULL;

	/* as many as signal_every may wait for a completion that no Send reports */
	while (!req && request_count_free(session) >= session->signal_every) {
		wait_once(session);
		req = request_take(session);
	}
	return req;
}

/* Wait for the end of a request that has left or waits to; returns its error */
int wait_for(struct nfsrdma_session *session, struct request *req)
{
	if (session->link == LINK_UP)
		send_flush(session);
	while (req->state != REQUEST_DONE)
		wait_once(session);
	return req->error;
}

/* Send a request and wait for its end; returns its error */
int wait_call(struct nfsrdma_session *session, struct request *req)
{
	req->began = began_at(session);
	send_by_rpc(session, req);
	return wait_for(session, req);
}
