/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Limits of waits, and a request for each call: inline, because it is there nearly always. */
#ifndef NFSRDMA_WAIT_H
#define NFSRDMA_WAIT_H

#include "library.h"

/* Empty polls, each followed by a yield, before the process sleeps */
#define WAIT_YIELDS	20

/* Milliseconds of the longest sleep, and of that with options.interrupted */
#define WAIT_SLEEP_MOST	1000
#define WAIT_ASK_EVERY	200

/**
 * wait_take - take a free request
 * @session: session
 *
 * A reply may arrive before the completion of the Send: then this waits for the completion.
 *
 * Return: a request without a message, or NULL if all are in use.
 */
static inline struct request *wait_take(struct nfsrdma_session *session)
{
	struct request *req = request_take(session);

	return req ? req : wait_for_slot(session);
}

#endif
