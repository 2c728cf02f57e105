/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The readers of optimistic.py and optimistic_user.py read records in this order, and check the stamps
 * of pages. Each page of a file begins with its offset, plus 4096 times the number of the file.
 */
#ifndef SCATTERED_H
#define SCATTERED_H

#include <string.h>

#include "reader.h"

/* A permutation of the numbers below a power of two */
static size_t scatter(size_t number, size_t records)
{
	size_t mask = records - 1;

	number = number * 0x9E3779B1 & mask;
	number ^= number >> 7;
	return number * 0x85EBCA77 & mask;
}

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

#endif /* SCATTERED_H */
