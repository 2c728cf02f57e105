// SPDX-License-Identifier: GPL-2.0-only
/*
 * The application of the papers' measurements: reads a file from its begin to
 * its end, again and again, and copies a part of each record.
 *
 *	papers_reader FILE buffered|direct RECORD TOTAL DEPTH COPY
 *
 * buffered: read(2) of RECORD bytes, one after the other. direct: O_DIRECT with
 * DEPTH requests in flight, into the same DEPTH buffers. TOTAL is in bytes. The
 * first COPY bytes of each record are copied a byte per instruction. Each page
 * of the file begins with its offset, which is checked in the first and the last
 * page of each record. Prints the nanoseconds of the loop and the bytes as JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "reader.h"

#define DEPTH_MAX	64

static unsigned char *copied;
static size_t record, part;
static off_t records;
static int fd;

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

static void buffered(size_t count)
{
	unsigned char *data = memory(record);
	size_t i;

	for (i = 0; i < count; i++)
		use(data, place(i), pread(fd, data, record, place(i)));
}

static void submit(aio_context_t context, struct iocb *cb, size_t number)
{
	cb->aio_offset = place(number);
	if (syscall(SYS_io_submit, context, 1, &cb) != 1)
		fail("io_submit");
}

static void direct(size_t count, size_t depth)
{
	static struct iocb cbs[DEPTH_MAX];
	static struct io_event events[DEPTH_MAX];
	aio_context_t context = 0;
	size_t i, next = 0, done = 0;
	struct iocb *cb;
	long found, at;

	if (syscall(SYS_io_setup, depth, &context))
		fail("io_setup");
	for (i = 0; i < depth; i++) {
		cbs[i].aio_fildes = fd;
		cbs[i].aio_lio_opcode = IOCB_CMD_PREAD;
		cbs[i].aio_buf = (uintptr_t)memory(record);
		cbs[i].aio_nbytes = record;
		if (next < count)
			submit(context, &cbs[i], next++);
	}
	while (done < count) {
		found = syscall(SYS_io_getevents, context, 1, depth, events, NULL);
		if (found < 1)
			fail("io_getevents");
		for (at = 0; at < found; at++, done++) {
			cb = (struct iocb *)(uintptr_t)events[at].obj;
			use((void *)(uintptr_t)cb->aio_buf, cb->aio_offset, events[at].res);
			if (next < count)
				submit(context, cb, next++);
		}
	}
}

int main(int argc, char **argv)
{
	size_t count, depth;
	struct stat file;
	int64_t begin;
	int cached;

	if (argc != 7)
		return 2;
	cached = !strcmp(argv[2], "buffered");
	record = strtoul(argv[3], NULL, 10);
	depth = strtoul(argv[5], NULL, 10);
	part = strtoul(argv[6], NULL, 10);
	fd = open(argv[1], O_RDONLY | (cached ? 0 : O_DIRECT));
	if (fd < 0 || fstat(fd, &file))
		fail(argv[1]);
	if (record < PAGE || record % PAGE || part > record || !depth || depth > DEPTH_MAX)
		return 2;
	records = file.st_size / record;
	count = strtoul(argv[4], NULL, 10) / record;
	if (!records || !count)
		return 2;
	copied = memory(record);
	begin = now();
	if (cached)
		buffered(count);
	else
		direct(count, depth);
	printf("{\"ns\": %lld, \"bytes\": %zu}\n", (long long)(now() - begin), count * record);
	return 0;
}
