// SPDX-License-Identifier: GPL-2.0-only
/*
 * The application of bench/optimistic_user: what optimistic_reader does over a mount, by libnfsrdma.
 *
 *	optimistic_user_reader random TARGET FILE direct|buffered RECORD COUNT FIRST WAY
 *	optimistic_user_reader files TARGET FOLDER NUMBER COUNT HITS FIRST WAY
 *
 * WAY: inline, direct or optimistic. random: reads COUNT records in an order without repetition
 * until each was read once; direct into registered memory, buffered through the cache of the
 * session, which has room for a part of them. files: COUNT transactions, each of which reads a
 * file of FOLDER from its begin to its end. Both sessions have all files open, as a client with open
 * delegations has. HITS percent of the transactions use the one whose cache has all files, the
 * others the one without a cache; transactions with each file by both precede the time.
 *
 * Each page of a file begins with its offset, plus 4096 times the number of the file for files; the
 * reader checks it. Prints nanoseconds, operations, bytes, reads by reference, by RPC and by the
 * cache as JSON.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>

#include "library.h"
#include "stamps.h"

#define LARGEST		(2 * PAGE)
#define SMALL_CACHE	(1 << 20)
#define LARGE_CACHE	(64 << 20)
/* forces data into chunks: the smallest message is shorter than a page */
#define INLINE_LEAST	1024

static int optimistic;

static struct nfsrdma_session *opened(const char *target, const char *way, uint32_t cache)
{
	struct nfsrdma_options options = {.size = sizeof(options), .cache = cache};
	struct nfsrdma_session *session;

	optimistic = !strcmp(way, "optimistic");
	options.optimistic = optimistic;
	if (!strcmp(way, "direct"))
		options.inline_size = INLINE_LEAST;
	if (nfsrdma_connect(target, &options, &session))
		failed(target);
	return session;
}

static struct nfsrdma_file *file_of(struct nfsrdma_session *session, const char *path)
{
	struct nfsrdma_file *file;

	if (nfsrdma_open(session, path, O_RDONLY | (optimistic ? NFSRDMA_OPTIMISTIC : 0), 0, &file))
		failed(path);
	return file;
}

static void *registered(struct nfsrdma_session *session, size_t size)
{
	struct nfsrdma_region *region;
	void *room = memory(size);

	if (nfsrdma_register(session, room, size, &region))
		failed("register");
	return room;
}

static void print(int64_t ns, size_t operations, size_t bytes, const struct nfsrdma_stats *before,
		  const struct nfsrdma_stats *after)
{
	printf("{\"ns\": %lld, \"operations\": %zu, \"bytes\": %zu, \"by_reference\": %llu, \"rpcs\": %llu,"
	       " \"cached\": %llu}\n", (long long)ns, operations, bytes,
	       (unsigned long long)(after->by_reference - before->by_reference),
	       (unsigned long long)(after->calls - before->calls),
	       (unsigned long long)(after->cached - before->cached));
}

static void random_reads(char **words)
{
	int cached = !strcmp(words[2], "buffered");
	size_t record = strtoul(words[3], NULL, 10), count = strtoul(words[4], NULL, 10);
	size_t first = strtoul(words[5], NULL, 10), records, turn;
	struct nfsrdma_session *session = opened(words[0], words[6], cached ? SMALL_CACHE : 0);
	struct nfsrdma_file *file = file_of(session, words[1]);
	unsigned char *room = registered(session, record);
	struct nfsrdma_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	struct stat st;
	int64_t begin;
	off_t place;

	if (nfsrdma_fstat(file, &st))
		failed("fstat");
	records = st.st_size / record;
	if (!records || records & (records - 1))
		exit(2);
	if (optimistic)
		wait_for_second(session);
	/* a reference to each extent: outside of the time, as the mount has them before */
	for (place = 0; optimistic && place < st.st_size; place += 16 * PAGE)
		if (nfsrdma_pread(file, room, record, place) != (ssize_t)record)
			failed("pread");
	nfsrdma_stats(session, &before);
	begin = now();
	for (turn = 0; turn < count; turn++) {
		place = (off_t)scatter((first + turn) & (records - 1), records) * record;
		if (nfsrdma_pread(file, room, record, place) != (ssize_t)record)
			failed("pread");
		check(room, record, place);
	}
	begin = now() - begin;
	nfsrdma_stats(session, &after);
	print(begin, count, count * record, &before, &after);
	nfsrdma_close(file);
	nfsrdma_disconnect(session);
}

/* A small file that is open */
struct small {
	struct nfsrdma_file *file;
	size_t size;
};

static int64_t transaction(const struct small *small, unsigned char *room, size_t number, size_t *bytes)
{
	int64_t begin = now();

	if (nfsrdma_pread(small->file, room, small->size, 0) != (ssize_t)small->size)
		failed("pread");
	*bytes += small->size;
	check(room, small->size, number * PAGE);
	return now() - begin;
}

/* All files of a folder */
static struct small *all_of(struct nfsrdma_session *session, const char *folder, size_t number)
{
	struct small *files = calloc(number, sizeof(*files));
	char path[4096];
	struct stat st;
	size_t i;

	if (!files)
		fail("calloc");
	for (i = 0; i < number; i++) {
		snprintf(path, sizeof(path), "%s/%zu", folder, i);
		files[i].file = file_of(session, path);
		if (nfsrdma_fstat(files[i].file, &st) || st.st_size > LARGEST)
			failed(path);
		files[i].size = st.st_size;
	}
	return files;
}

static void add(struct nfsrdma_stats *to, const struct nfsrdma_session *session)
{
	struct nfsrdma_stats stats = {.size = sizeof(stats)};

	nfsrdma_stats(session, &stats);
	to->by_reference += stats.by_reference;
	to->calls += stats.calls;
	to->cached += stats.cached;
}

static void files(char **words)
{
	size_t number = strtoul(words[2], NULL, 10), count = strtoul(words[3], NULL, 10);
	unsigned int hits = strtoul(words[4], NULL, 10);
	size_t first = strtoul(words[5], NULL, 10), turn, bytes = 0;
	struct nfsrdma_session *sessions[] = {
		opened(words[0], words[6], 0), opened(words[0], words[6], LARGE_CACHE),
	};
	unsigned char *rooms[] = { registered(sessions[0], LARGEST), registered(sessions[1], LARGEST) };
	struct small *opened[2];
	struct nfsrdma_stats before = {.size = sizeof(before)}, after = {.size = sizeof(after)};
	int64_t ns = 0;
	int which, twice;

	if (!number || number & (number - 1))
		exit(2);
	for (which = 0; which < 2; which++) {
		if (optimistic)
			wait_for_second(sessions[which]);
		opened[which] = all_of(sessions[which], words[1], number);
	}
	/* twice: the grant for a file follows the reply to its first READ */
	for (turn = 0; turn < number; turn++)
		for (twice = 0; twice < 4; twice++)
			transaction(&opened[twice & 1][turn], rooms[twice & 1], turn, &bytes);
	bytes = 0;
	for (which = 0; which < 2; which++)
		add(&before, sessions[which]);
	for (turn = first; turn < first + count; turn++) {
		size_t file = scatter(turn & (number - 1), number);

		which = scatter((turn / number + file) & 63, 64) * 100 < 64 * hits;
		ns += transaction(&opened[which][file], rooms[which], file, &bytes);
	}
	for (which = 0; which < 2; which++)
		add(&after, sessions[which]);
	print(ns, count, bytes, &before, &after);
	for (which = 0; which < 2; which++) {
		for (turn = 0; turn < number; turn++)
			nfsrdma_close(opened[which][turn].file);
		free(opened[which]);
		nfsrdma_disconnect(sessions[which]);
	}
}

int main(int argc, char **argv)
{
	if (argc == 9 && !strcmp(argv[1], "random"))
		random_reads(argv + 2);
	else if (argc == 9 && !strcmp(argv[1], "files"))
		files(argv + 2);
	else
		return 2;
	return 0;
}
