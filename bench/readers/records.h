/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Records of a file, as the readers of bench/papers read them: from its begin to its end, again and
 * again. Each page of the file begins with its offset. A part of each record is copied.
 */
#ifndef RECORDS_H
#define RECORDS_H

#include <string.h>

#include "reader.h"

static unsigned char *copied;
static size_t record, part;
static off_t records;

/* Offset of a record; the file is read from its begin after its last record */
static off_t place(size_t number)
{
	return (off_t)(number % records) * record;
}

static void check_page(const unsigned char *page, off_t offset)
{
	uint64_t found;

	memcpy(&found, page, sizeof(found));
	if (found != (uint64_t)offset) {
		fprintf(stderr, "offset %lld: found the page of %llu\n", (long long)offset,
			(unsigned long long)found);
		exit(1);
	}
}

/* Check the first and the last page of a record, and copy its part, a byte per instruction */
static void use(const unsigned char *data, off_t offset, ssize_t length)
{
	void *to = copied;
	size_t count = part;

	if (length != (ssize_t)record)
		fail("short read");
	check_page(data, offset);
	check_page(data + record - PAGE, offset + record - PAGE);
	asm volatile("rep movsb" : "+D"(to), "+S"(data), "+c"(count) : : "memory");
}

/* Begin with a file of some bytes; returns the number of records of a total */
static size_t records_begin(off_t size, const char *bytes, const char *total, const char *copy)
{
	record = strtoul(bytes, NULL, 10);
	part = strtoul(copy, NULL, 10);
	if (record < PAGE || record % PAGE || part > record)
		exit(2);
	records = size / record;
	if (!records || strtoul(total, NULL, 10) < record)
		exit(2);
	copied = memory(record);
	return strtoul(total, NULL, 10) / record;
}

#endif /* RECORDS_H */
