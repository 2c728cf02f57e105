/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Places of a batch, and completions that the caller has not got yet. */
#ifndef NFSRDMA_BATCH_H
#define NFSRDMA_BATCH_H

#include "library.h"

/* May the caller use the batch of the session?  0, -EBUSY, or as process_check() */
static inline int batch_check(const struct nfsrdma_session *session)
{
	int rc = process_check(session);

	if (rc || !session->in_store || session->store_calls)
		return rc;
	return fail(-EBUSY, "%s: a store of blocks has the session", session->host);
}

/* Is there a place for another operation?  0, -EAGAIN, or as batch_check() */
static inline int batch_room(const struct nfsrdma_session *session)
{
	int rc = batch_check(session);

	if (rc)
		return rc;
	if (session->unfinished + session->done.count < session->options.depth)
		return 0;
	return fail(-EAGAIN, "%u operations are unfinished or not yet reported", session->options.depth);
}

/* A new completion for the caller, who has found a place */
static inline void batch_add(struct completion_ring *ring, uint64_t user_data, int64_t result, bool eof)
{
	uint32_t at = ring->first + ring->count++;

	if (at >= ring->size)
		at -= ring->size;
	/* the reserved members of the ring are 0 */
	ring->places[at].user_data = user_data;
	ring->places[at].result = result;
	ring->places[at].eof = eof;
}

/* Move completions to the caller; returns their number */
static inline int batch_take(struct completion_ring *ring, struct nfsrdma_completion *completions, size_t count)
{
	size_t n;

	for (n = 0; n < count && ring->count; n++) {
		completions[n] = ring->places[ring->first];
		if (++ring->first == ring->size)
			ring->first = 0;
		ring->count--;
	}
	return n;
}

#endif
