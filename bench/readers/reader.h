/* SPDX-License-Identifier: GPL-2.0-only */
/* Functions that the readers of all measurements share. */
#ifndef READER_H
#define READER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE	4096

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Nanoseconds of a clock that only moves forward */
static int64_t now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000ll + at.tv_nsec;
}

/* Memory whose pages are present */
static void *memory(size_t size)
{
	void *room = mmap(NULL, size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (room == MAP_FAILED)
		fail("mmap");
	return room;
}

/* A permutation of the numbers below a power of two */
static inline size_t scatter(size_t number, size_t records)
{
	size_t mask = records - 1;

	number = number * 0x9E3779B1 & mask;
	number ^= number >> 7;
	return number * 0x85EBCA77 & mask;
}

#endif /* READER_H */
