/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/* Places of a batch, and completions that the caller has not got yet. */
#ifndef NFSRDMA_BATCH_H
#define NFSRDMA_BATCH_H

#include "library.h"

/* Is there a place for another operation?  0, or -EAGAIN, or -EOWNERDEAD */
static inline int batch_room(const struct nfsrdma_session *session)
{
	int rc = process_check(session);

	if (rc)
		return rc;
	if (session->unfinished + session->ndone < session->options.depth)
		return 0;
	return fail(-EAGAIN, "%u operations are unfinished or not yet reported", session->options.depth);
}

/* A new completion for the caller; batch_room() has found a place */
static inline void batch_add(struct nfsrdma_session *session, uint64_t user_data, int64_t result, bool eof)
{
	uint32_t at = session->done_first + session->ndone++;

	if (at >= session->options.depth)
		at -= session->options.depth;
	/* the reserved members of the ring are 0 */
	session->done[at].user_data = user_data;
	session->done[at].result = result;
	session->done[at].eof = eof;
}

/* Move completions to the caller; returns their number */
static inline int batch_take(struct nfsrdma_session *session, struct nfsrdma_completion *completions, size_t count)
{
	size_t n;

	for (n = 0; n < count && session->ndone; n++) {
		completions[n] = session->done[session->done_first];
		if (++session->done_first == session->options.depth)
			session->done_first = 0;
		session->ndone--;
	}
	return n;
}

#endif
