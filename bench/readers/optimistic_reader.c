// SPDX-License-Identifier: GPL-2.0-only
/*
 * The application of bench/optimistic's measurements, in two forms:
 *
 *	optimistic_reader random FILE direct|buffered RECORD COUNT FIRST BURST
 *	optimistic_reader files FOLDER NUMBER COUNT HITS FIRST
 *
 * random: reads COUNT records of a file in an order without repetition until
 * each was read once, from the FIRST one of this order; buffered reads have no
 * read-ahead, and the file must not be in the page cache. After each BURST
 * records (0: never) the reader sleeps 11 seconds, outside the time. files: COUNT
 * transactions, each of which opens a file of FOLDER, reads it and closes it.
 * In HITS percent of them the file is in the client's page cache: the reader
 * drops the pages of the others after an earlier transaction, outside the time,
 * and begins with a transaction for each file, also outside the time.
 *
 * Each page of a file begins with its offset, plus 4096 times the number of the
 * file for files; the reader checks it. Prints nanoseconds, operations, bytes
 * and expected misses as JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stamps.h"

#define LARGEST	(2 * PAGE)

/* Longer than optimistic reads pause, in seconds */
#define PAUSE	11

static void random_reads(char **words)
{
	int cached = !strcmp(words[1], "buffered");
	int fd = open(words[0], O_RDONLY | (cached ? 0 : O_DIRECT));
	size_t record = strtoul(words[2], NULL, 10), first = strtoul(words[4], NULL, 10);
	size_t count = strtoul(words[3], NULL, 10), records, turn;
	size_t burst = strtoul(words[5], NULL, 10);
	unsigned char *room = memory(record);
	int64_t begin, ns = 0;
	struct stat file;
	off_t place;

	if (fd < 0 || fstat(fd, &file))
		fail(words[0]);
	records = file.st_size / record;
	if (!records || records & (records - 1))
		exit(2);
	if (cached && posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM))
		fail("posix_fadvise");
	begin = now();
	for (turn = 0; turn < count; turn++) {
		place = (off_t)scatter((first + turn) & (records - 1), records) * record;
		if (pread(fd, room, record, place) != (ssize_t)record)
			fail("pread");
		check(room, record, place);
		if (burst && (turn + 1) % burst == 0) {
			ns += now() - begin;
			sleep(PAUSE);
			begin = now();
		}
	}
	ns += now() - begin;
	printf("{\"ns\": %lld, \"operations\": %zu, \"bytes\": %zu, \"misses\": %zu}\n",
	       (long long)ns, count, count * record, count);
}

/* Open, read and close a file. Drops its pages afterwards, unless the next one may be a hit. */
static int64_t transaction(const char *path, unsigned char *room, size_t number, int drop,
			   size_t *bytes)
{
	int64_t begin = now(), dropping = 0;
	int fd = open(path, O_RDONLY);
	ssize_t length;

	if (fd < 0)
		fail(path);
	length = read(fd, room, LARGEST);
	if (length <= 0)
		fail(path);
	*bytes += length;
	check(room, length, number * PAGE);
	if (drop) {
		dropping = now();
		if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
			fail("posix_fadvise");
		dropping = now() - dropping;
	}
	close(fd);
	return now() - begin - dropping;
}

static void files(char **words)
{
	size_t number = strtoul(words[1], NULL, 10), count = strtoul(words[2], NULL, 10);
	unsigned int hits = strtoul(words[3], NULL, 10);
	size_t first = strtoul(words[4], NULL, 10), turn, bytes = 0, ignored = 0, misses = 0;
	char *in_cache = calloc(number, 1), path[4096];
	unsigned char *room = memory(LARGEST);
	int64_t ns = 0;

	if (!in_cache || !number || number & (number - 1))
		exit(2);
	for (turn = first; turn < first + number + count; turn++) {
		int counted = turn >= first + number;
		size_t file = scatter(turn & (number - 1), number);
		/* the decision is about the next transaction with this file */
		int drop = scatter((turn / number + file) & 63, 64) * 100 >= 64 * hits;
		int64_t taken;

		snprintf(path, sizeof(path), "%s/%zu", words[0], file);
		taken = transaction(path, room, file, drop, counted ? &bytes : &ignored);
		if (counted) {
			ns += taken;
			misses += !in_cache[file];
		}
		in_cache[file] = !drop;
	}
	printf("{\"ns\": %lld, \"operations\": %zu, \"bytes\": %zu, \"misses\": %zu}\n",
	       (long long)ns, count, bytes, misses);
}

int main(int argc, char **argv)
{
	if (argc == 8 && !strcmp(argv[1], "random"))
		random_reads(argv + 2);
	else if (argc == 7 && !strcmp(argv[1], "files"))
		files(argv + 2);
	else
		return 2;
	return 0;
}
