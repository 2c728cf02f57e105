// SPDX-License-Identifier: GPL-2.0-only
/*
 * The application of the papers' measurements: reads a file from its begin to
 * its end, again and again, and copies a part of each record.
 *
 *	papers_reader FILE buffered|direct RECORD TOTAL DEPTH COPY
 *
 * buffered: read(2) of RECORD bytes, one after the other. direct: O_DIRECT with
 * DEPTH requests in flight, into the same DEPTH buffers. TOTAL is in bytes. The
 * first COPY bytes of each record are copied. Prints the nanoseconds of the loop
 * and the bytes as JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "records.h"

#define DEPTH_MAX	64

static int fd;

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
	depth = strtoul(argv[5], NULL, 10);
	fd = open(argv[1], O_RDONLY | (cached ? 0 : O_DIRECT));
	if (fd < 0 || fstat(fd, &file))
		fail(argv[1]);
	if (!depth || depth > DEPTH_MAX)
		return 2;
	count = records_begin(file.st_size, argv[3], argv[4], argv[6]);
	begin = now();
	if (cached)
		buffered(count);
	else
		direct(count, depth);
	printf("{\"ns\": %lld, \"bytes\": %zu}\n", (long long)(now() - begin), count * record);
	return 0;
}
