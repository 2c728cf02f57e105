/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The readers of bench/optimistic and bench/optimistic_user check the stamps of pages. Each page of a file
 * begins with its offset, plus 4096 times the number of the file.
 */
#ifndef STAMPS_H
#define STAMPS_H

#include <string.h>

#include "reader.h"

static void check(const unsigned char *room, ssize_t length, uint64_t stamp)
{
	uint64_t found;
	ssize_t at;

	for (at = 0; at < length; at += PAGE) {
		memcpy(&found, room + at, sizeof(found));
		if (found != stamp + at) {
			fprintf(stderr, "found the page of offset %llu, expected that of %llu\n",
				(unsigned long long)found, (unsigned long long)(stamp + at));
			exit(1);
		}
	}
}

#endif /* STAMPS_H */
