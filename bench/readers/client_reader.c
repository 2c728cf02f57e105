// SPDX-License-Identifier: GPL-2.0-only
/*
 * The application of client.py's measurements: reads a file through libnfsrdma.
 *
 *	client_reader TARGET FILE SIZE COUNT DEPTH SESSIONS OPTIMISTIC
 *
 * Reads COUNT blocks of SIZE bytes, in an order without repetition, with SESSIONS connections. DEPTH 1: one
 * read at a time; more: batches of DEPTH, each of which leaves by one doorbell; the connections take turns. All
 * blocks were read once before the time begins. The file has lines of "y"; each block is checked at its start.
 * OPTIMISTIC 1: read the page cache of the server by RDMA, which it has granted before the time begins. Prints
 * nanoseconds, nanoseconds of this process, reads, those by reference and doorbells as JSON, and after this line
 * the mappings of /proc/self/maps that have code.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>

#include "library.h"

#define SESSIONS_MAX	16

struct reader {
	struct nfsrdma_session *session;
	struct nfsrdma_file *file;
	struct nfsrdma_region *region;
	uint8_t *room;
	uint32_t unfinished;
};

static struct reader readers[SESSIONS_MAX];
static size_t size, blocks;
static uint32_t depth, sessions, optimistic;

static void check(const uint8_t *block)
{
	if (memcmp(block, "y\ny\ny\ny\n", 8)) {
		fprintf(stderr, "wrong data\n");
		exit(1);
	}
}

static void begin(struct reader *reader, const char *target, const char *path)
{
	struct nfsrdma_options options = {.size = sizeof(options), .depth = depth, .optimistic = optimistic};
	int flags = O_RDONLY | (optimistic ? NFSRDMA_OPTIMISTIC : 0);

	if (nfsrdma_connect(target, &options, &reader->session) ||
	    nfsrdma_open(reader->session, path, flags, 0, &reader->file))
		failed(path);
	reader->room = memory(size * depth);
	if (nfsrdma_register(reader->session, reader->room, size * depth, &reader->region))
		failed("register");
}

static void one(struct reader *reader, size_t number)
{
	if (nfsrdma_pread(reader->file, reader->room, size, scatter(number, blocks) * size) != (ssize_t)size)
		failed("pread");
	check(reader->room);
}

static uint64_t by_reference(const struct reader *reader)
{
	struct nfsrdma_stats stats = {.size = sizeof(stats)};

	nfsrdma_stats(reader->session, &stats);
	return stats.by_reference;
}

/* The second connection is made while the session is used */
static void wait_for_grant(struct reader *reader)
{
	int64_t end = now() + GRANTED_WITHIN * 1000000000ll;

	while (optimistic && !by_reference(reader)) {
		one(reader, 0);
		if (now() > end) {
			fprintf(stderr, "the server granted nothing in %d s\n", GRANTED_WITHIN);
			exit(1);
		}
	}
}

static void submit(struct reader *reader, size_t first)
{
	uint32_t i;

	for (i = 0; i < depth; i++)
		if (nfsrdma_prepare_read(reader->file, reader->room + i * size, size,
					 scatter(first + i, blocks) * size, i))
			failed("prepare");
	if (nfsrdma_submit(reader->session) != (int)depth)
		failed("submit");
	reader->unfinished = depth;
}

static void collect(struct reader *reader)
{
	struct nfsrdma_completion done[128];

	while (reader->unfinished) {
		int n = nfsrdma_wait(reader->session, done, 128, reader->unfinished, -1), i;

		if (n < 0)
			failed("wait");
		for (i = 0; i < n; i++) {
			if (done[i].result != (int64_t)size) {
				fprintf(stderr, "a read returned %lld\n", (long long)done[i].result);
				exit(1);
			}
			check(reader->room + done[i].user_data * size);
		}
		reader->unfinished -= n;
	}
}

static void run(size_t count)
{
	size_t number = 0;
	uint32_t i;

	if (depth == 1) {
		for (; number < count; number++)
			one(&readers[number % sessions], number);
		return;
	}
	while (number < count) {
		for (i = 0; i < sessions; i++, number += depth)
			submit(&readers[i], number);
		for (i = 0; i < sessions; i++)
			collect(&readers[i]);
	}
}

static void totals(uint64_t *doorbells, uint64_t *references)
{
	struct nfsrdma_stats stats = {.size = sizeof(stats)};
	uint32_t i;

	*doorbells = 0;
	*references = 0;
	for (i = 0; i < sessions; i++) {
		nfsrdma_stats(readers[i].session, &stats);
		*doorbells += stats.doorbells;
		*references += stats.by_reference;
	}
}

static void print_code(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];

	if (!maps)
		fail("/proc/self/maps");
	while (fgets(line, sizeof(line), maps))
		if (strstr(line, " r-xp "))
			fputs(line, stdout);
	fclose(maps);
}

int main(int argc, char **argv)
{
	uint64_t rung, rung_before, read, read_before;
	int64_t start, process;
	size_t count;
	struct stat st;
	uint32_t i;

	if (argc != 8)
		return 2;
	size = strtoul(argv[3], NULL, 10);
	count = strtoul(argv[4], NULL, 10);
	depth = strtoul(argv[5], NULL, 10);
	sessions = strtoul(argv[6], NULL, 10);
	optimistic = strtoul(argv[7], NULL, 10);
	if (!size || !depth || depth > 127 || !sessions || sessions > SESSIONS_MAX)
		return 2;
	for (i = 0; i < sessions; i++)
		begin(&readers[i], argv[1], argv[2]);
	if (nfsrdma_fstat(readers[0].file, &st))
		failed("fstat");
	for (blocks = 1; blocks * 2 * size <= (size_t)st.st_size;)
		blocks *= 2;
	count -= count % (depth * sessions);
	for (i = 0; i < sessions; i++)
		wait_for_grant(&readers[i]);
	run(count);
	totals(&rung_before, &read_before);
	process = own();
	start = now();
	run(count);
	start = now() - start;
	process = own() - process;
	totals(&rung, &read);
	printf("{\"ns\": %lld, \"process_ns\": %lld, \"reads\": %zu, \"by_reference\": %llu, \"doorbells\": %llu}\n",
	       (long long)start, (long long)process, count, (unsigned long long)(read - read_before),
	       (unsigned long long)(rung - rung_before));
	print_code();
	return 0;
}
