// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* Completions that the caller has not got yet: a ring with a place for each operation of options.depth. */
#include "session.h"

/* Is there a place for another operation?  0, or -EAGAIN, or -EOWNERDEAD */
int batch_room(const struct nfsrdma_session *session)
{
	int rc = session_check(session);

	if (rc)
		return rc;
	if (session->unfinished + session->ndone < session->options.depth)
		return 0;
	return fail(-EAGAIN, "%u operations are unfinished or not yet reported", session->options.depth);
}

/* A new completion for the caller */
void batch_add(struct nfsrdma_session *session, uint64_t user_data, int64_t result, bool eof)
{
	uint32_t at = (session->done_first + session->ndone++) % session->options.depth;

	session->done[at] = (struct nfsrdma_completion){.user_data = user_data, .result = result, .eof = eof};
}

/* Move completions to the caller; returns their number */
int batch_take(struct nfsrdma_session *session, struct nfsrdma_completion *completions, size_t count)
{
	size_t n;

	for (n = 0; n < count && session->ndone; n++) {
		completions[n] = session->done[session->done_first];
		session->done_first = (session->done_first + 1) % session->options.depth;
		session->ndone--;
	}
	return n;
}
