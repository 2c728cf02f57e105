// SPDX-License-Identifier: GPL-2.0-only
/*
 * papers_reader without a mount: reads a file through libnfsrdma from its begin to its end, again
 * and again, and copies a part of each record.
 *
 *	library_reader TARGET FILE RECORD TOTAL DEPTH COPY [OPTIMISTIC [GATE]]
 *
 * DEPTH 1: one read at a time; more: as many in flight, into as many registered buffers, and those
 * that end together are followed by others with one doorbell. With a GATE, the loop begins when
 * nobody has that file locked. Prints the begin of the loop and its nanoseconds, those of the CPU
 * that this process used, bytes, RPCs and doorbells as JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "library.h"
#include "records.h"

#define DEPTH_MAX	64

/* Bytes of the smallest extent that the server grants */
#define EXTENT_LEAST	65536

static struct nfsrdma_session *session;
static struct nfsrdma_file *file;
static unsigned char *room;
/* the record that a buffer is for */
static size_t wanted[DEPTH_MAX];

static void alone(size_t count)
{
	size_t i;

	for (i = 0; i < count; i++)
		use(room, place(i), nfsrdma_pread(file, room, record, place(i)));
}

static void prepare(size_t buffer, size_t number)
{
	wanted[buffer] = number;
	if (nfsrdma_prepare_read(file, room + buffer * record, record, place(number), buffer))
		failed("prepare");
}

static void together(size_t count, size_t depth)
{
	struct nfsrdma_completion ended[DEPTH_MAX];
	size_t i, buffer, next = 0, done = 0;
	int found;

	for (i = 0; i < depth && next < count; i++)
		prepare(i, next++);
	while (done < count) {
		if (nfsrdma_submit(session) < 0)
			failed("submit");
		found = nfsrdma_wait(session, ended, DEPTH_MAX, 1, -1);
		if (found < 1)
			failed("wait");
		for (i = 0; i < (size_t)found; i++, done++) {
			buffer = ended[i].user_data;
			use(room + buffer * record, place(wanted[buffer]), ended[i].result);
			if (next < count)
				prepare(buffer, next++);
		}
	}
}

/* A reference to each extent of the file, and the connection that they need */
static void collect_references(size_t bytes)
{
	size_t at;

	wait_for_second(session);
	for (at = 0; at + PAGE <= bytes; at += EXTENT_LEAST)
		if (nfsrdma_pread(file, room, PAGE, at) != PAGE)
			failed("pread");
}

/* Several readers begin together: who starts them has locked the file until all wait here */
static void wait_at(const char *gate)
{
	int fd = open(gate, O_RDONLY);

	if (fd < 0 || flock(fd, LOCK_SH)) {
		perror(gate);
		exit(1);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	struct nfsrdma_options options = {.size = sizeof(options)};
	struct nfsrdma_region *region;
	struct nfsrdma_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	int64_t begin, spent, process;
	int flags = O_RDONLY;
	size_t count, depth;
	struct stat st;

	if (argc < 7 || argc > 9)
		return 2;
	options.optimistic = argc > 7 && strtoul(argv[7], NULL, 10);
	if (options.optimistic)
		flags |= NFSRDMA_OPTIMISTIC;
	depth = strtoul(argv[5], NULL, 10);
	if (!depth || depth > DEPTH_MAX)
		return 2;
	options.depth = depth;
	if (nfsrdma_connect(argv[1], &options, &session) ||
	    nfsrdma_open(session, argv[2], flags, 0, &file) || nfsrdma_fstat(file, &st))
		failed(argv[2]);
	count = records_begin(st.st_size, argv[3], argv[4], argv[6]);
	room = memory(depth * record);
	if (nfsrdma_register(session, room, depth * record, &region))
		failed("register");
	if (options.optimistic)
		collect_references(st.st_size);
	if (argc > 8)
		wait_at(argv[8]);
	nfsrdma_stats(session, &before);
	process = own();
	begin = now();
	if (depth == 1)
		alone(count);
	else
		together(count, depth);
	spent = now() - begin;
	process = own() - process;
	nfsrdma_stats(session, &after);
	printf("{\"begin\": %lld, \"ns\": %lld, \"process_ns\": %lld, \"bytes\": %zu, \"rpcs\": %llu, "
	       "\"doorbells\": %llu, \"by_reference\": %llu}\n",
	       (long long)begin, (long long)spent, (long long)process, count * record,
	       (unsigned long long)(after.calls - before.calls),
	       (unsigned long long)(after.doorbells - before.doorbells),
	       (unsigned long long)(after.by_reference - before.by_reference));
	nfsrdma_close(file);
	nfsrdma_disconnect(session);
	return 0;
}
