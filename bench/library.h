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

#endif /* LIBRARY_H */
