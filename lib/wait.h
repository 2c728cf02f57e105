/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* A request for each call: inline, because it is there nearly always. */
#ifndef NFSRDMA_WAIT_H
#define NFSRDMA_WAIT_H

#include "library.h"

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
