/* SPDX-License-Identifier: GPL-2.0-only */
/* Functions that the readers through libnfsrdma share. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <nfsrdma.h>

#include "reader.h"

static void failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, nfsrdma_message());
	exit(1);
}

/* Nanoseconds of the CPU that this process used */
static inline int64_t own(void)
{
	struct timespec at;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
	return at.tv_sec * 1000000000ll + at.tv_nsec;
}

/* Seconds until the server has accepted a second connection, or granted something */
#define GRANTED_WITHIN	60

/* The second connection is made while the session is used */
static inline void wait_for_second(struct nfsrdma_session *session)
{
	int64_t end = now() + GRANTED_WITHIN * 1000000000ll;
	struct nfsrdma_stats stats = {.size = sizeof(stats)};

	while (!stats.second_connects) {
		if (nfsrdma_null(session))
			failed("null");
		nfsrdma_stats(session, &stats);
		if (now() > end) {
			fprintf(stderr, "no second connection after %d s\n", GRANTED_WITHIN);
			exit(1);
		}
	}
}

#endif /* LIBRARY_H */
