// SPDX-License-Identifier: Apache-2.0
/*
 * An application of libnfsrdma for test_client_faults.py: client_faults WHAT TARGET
 *
 *	storm	batches of reads and writes until a line arrives; each block that is read is compared
 *	hold	a batch in a file that changes hands, then sleep for ever
 *	fork	connect, and fork a child that sleeps; the child first reads by a session of its own
 *	full	write until the file system is full, and read what was written
 *	stale	read a file, wait for a line, read it again
 *	many	more unfinished reads than the server grants credits
 *	small	the limits of a server with small transfers
 *	session	the same with reads only, and NFSv4.1
 *	power	write files, some with fsync or close, until a line says that the server had no power: each loss is an error;
 *		write what was lost again
 *
 * Prints a line of JSON at the end, "ready" where a test waits for it, and the connections made so far after a batch. Exit status 1 with a reason if anything
 * else than the expected happens.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "../../wire/expect.h"

#define BLOCK		65536
#define BATCH		16
#define BLOCKS		256
#define MIB		(1 << 20)

static uint8_t room[BATCH * BLOCK], wanted[BLOCK];
static struct nfsrdma_session *session;
static const char *target;

static void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static void wait_for_line(void)
{
	char line[16];

	ready();
	expect(!!fgets(line, sizeof(line), stdin), "no line");
}

/* Contents of a block: its number and how often it was written */
static void fill(uint8_t *to, uint32_t block, uint32_t version)
{
	uint32_t words[2] = { block, version };
	size_t i;

	for (i = 0; i < BLOCK; i += sizeof(words)) {
		memcpy(to + i, words, sizeof(words));
		words[0] += BLOCKS;
	}
}

static void open_session(uint32_t depth, uint32_t version)
{
	struct nfsrdma_options options = { .size = sizeof(options), .depth = depth, .version = version };

	expect(!nfsrdma_connect(target, &options, &session), "connect");
}

static struct nfsrdma_file *open_file(const char *name, int flags)
{
	struct nfsrdma_file *file;

	expect(!nfsrdma_open(session, name, flags, 0644, &file), "open %s", name);
	return file;
}

/* Wait for @left completions, each of BLOCK bytes */
static void collect(int left)
{
	struct nfsrdma_completion done[128];

	while (left) {
		int n = nfsrdma_wait(session, done, 128, left, -1), i;

		expect(n > 0, "wait: %d", n);
		for (i = 0; i < n; i++)
			expect(done[i].result == BLOCK, "operation %d: %d", (int)done[i].user_data,
			       (int)done[i].result);
		left -= n;
	}
}

static void print_stats(const char *more, unsigned long value)
{
	struct nfsrdma_stats stats = {.size = sizeof(stats)};

	nfsrdma_stats(session, &stats);
	printf("{\"%s\": %lu, \"resent\": %lu, \"connects\": %lu, \"direct\": %lu, \"copied\": %lu,"
	       " \"inlined\": %lu}\n", more, value, stats.resent, stats.connects, stats.direct,
	       stats.copied, stats.inlined);
}

/* --- storm --- */

static uint32_t versions[BLOCKS];

/* One batch: operation i has a block whose number ends in i, so that no two meet */
static void one_batch(struct nfsrdma_file *file)
{
	uint32_t blocks[BATCH], write[BATCH], i;
	uint8_t *buf;

	for (i = 0; i < BATCH; i++) {
		int rc;

		buf = room + i * BLOCK;
		blocks[i] = rand() % (BLOCKS / BATCH) * BATCH + i;
		write[i] = rand() % 4 == 0;
		if (write[i]) {
			fill(buf, blocks[i], versions[blocks[i]] + 1);
			rc = nfsrdma_prepare_write(file, buf, BLOCK, (uint64_t)blocks[i] * BLOCK, i);
		} else {
			rc = nfsrdma_prepare_read(file, buf, BLOCK, (uint64_t)blocks[i] * BLOCK, i);
		}
		expect(!rc, "prepare: %d", rc);
	}
	expect(nfsrdma_submit(session) == BATCH, "submit");
	collect(BATCH);
	for (i = 0; i < BATCH; i++) {
		versions[blocks[i]] += write[i];
		fill(wanted, blocks[i], versions[blocks[i]]);
		expect(!memcmp(room + i * BLOCK, wanted, BLOCK), "wrong data in block %u", blocks[i]);
	}
}

/* Report a batch; true if the test wants no more of them */
static int enough(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	struct nfsrdma_stats stats = {.size = sizeof(stats)};

	nfsrdma_stats(session, &stats);
	printf("connects %lu\n", stats.connects);
	fflush(stdout);
	return poll(&input, 1, 0) != 0;
}

static void storm(void)
{
	struct nfsrdma_region *region;
	struct nfsrdma_file *file;
	unsigned long batches;
	uint32_t i;

	open_session(BATCH, 3);
	file = open_file("storm", O_RDWR | O_CREAT | O_TRUNC);
	for (i = 0; i < BLOCKS; i++) {
		fill(room, i, 0);
		expect(nfsrdma_pwrite(file, room, BLOCK, (uint64_t)i * BLOCK) == BLOCK, "pwrite");
	}
	/* every second batch moves data of a registered region */
	for (batches = 0; !enough(); batches++) {
		if (batches % 2)
			expect(!nfsrdma_register(session, room, sizeof(room), &region), "register");
		one_batch(file);
		if (batches % 2)
			expect(!nfsrdma_unregister(region), "unregister");
	}
	nfsrdma_close(file);
	print_stats("batches", batches);
}

/* --- the ends of processes --- */

static struct nfsrdma_file *submit_reads(int number)
{
	struct nfsrdma_file *file = open_file("data", O_RDONLY);
	int i;

	for (i = 0; i < number; i++)
		expect(!nfsrdma_prepare_read(file, room + i % BATCH * BLOCK, BLOCK,
					     (uint64_t)i % BLOCKS * BLOCK, i), "prepare %d", i);
	expect(nfsrdma_submit(session) == number, "submit");
	return file;
}

static void hold(void)
{
	open_session(BATCH, 3);
	submit_reads(BATCH);
	ready();
	pause();
}

static void child(void)
{
	struct nfsrdma_session *own;
	struct stat st;

	expect(nfsrdma_stat(session, "data", &st) == -EOWNERDEAD, "the parent's session works");
	expect(!nfsrdma_connect(target, NULL, &own), "connect");
	expect(!nfsrdma_stat(own, "data", &st), "stat");
	nfsrdma_disconnect(own);
	ready();
	pause();
}

static void forked(void)
{
	struct nfsrdma_region *region;
	pid_t pid;

	open_session(BATCH, 3);
	expect(!nfsrdma_register(session, room, sizeof(room), &region), "register");
	collect(0);
	submit_reads(BATCH);
	pid = fork();
	if (!pid)
		child();
	printf("child %d\n", pid);
	fflush(stdout);
	/* what the child did has no effect here */
	collect(BATCH);
	printf("parent goes on\n");
	fflush(stdout);
	pause();
}

/* --- errors --- */

static void full(void)
{
	struct nfsrdma_file *file;
	unsigned long written = 0;
	ssize_t n;

	open_session(1, 3);
	file = open_file("full", O_RDWR | O_CREAT | O_DSYNC);
	do {
		fill(room, written / BLOCK, 1);
		n = nfsrdma_pwrite(file, room, BLOCK, written);
		written += n > 0 ? n : 0;
	} while (n > 0 && written < 64 * MIB);
	expect(n == -ENOSPC, "found %zd, expected -ENOSPC", n);
	for (unsigned long at = 0; at + BLOCK <= written; at += BLOCK) {
		fill(wanted, at / BLOCK, 1);
		expect(nfsrdma_pread(file, room, BLOCK, at) == BLOCK && !memcmp(room, wanted, BLOCK),
		       "wrong data at %lu", at);
	}
	print_stats("written", written);
}

static void stale(void)
{
	struct nfsrdma_file *file;
	ssize_t n;
	int i;

	open_session(1, 3);
	file = open_file("gone", O_RDONLY);
	expect(nfsrdma_pread(file, room, BLOCK, 0) > 0, "pread");
	wait_for_line();
	/* older servers keep the file open for a while */
	for (i = 0; (n = nfsrdma_pread(file, room, BLOCK, 0)) > 0 && i < 300; i++)
		usleep(100000);
	expect(n == -ESTALE, "found %zd, expected -ESTALE", n);
	print_stats("stale", 1);
}

static void many(void)
{
	struct nfsrdma_region *region;
	struct nfsrdma_file *file;
	struct nfsrdma_terms terms = {.size = sizeof(terms)};

	open_session(127, 3);
	nfsrdma_terms(session, &terms);
	expect(terms.credits < 127, "the server grants %u credits: no test", terms.credits);
	expect(!nfsrdma_register(session, room, sizeof(room), &region), "register");
	file = submit_reads(127);
	expect(nfsrdma_prepare_read(file, room, BLOCK, 0, 0) == -EAGAIN, "a place too many");
	expect(nfsrdma_unregister(region) == -EBUSY, "unregistered under a read");
	collect(127);
	expect(!nfsrdma_unregister(region), "unregister");
	print_stats("credits", terms.credits);
}

static void small(void)
{
	struct nfsrdma_file *file;
	struct nfsrdma_terms terms = {.size = sizeof(terms)};
	int rc;

	open_session(4, 3);
	nfsrdma_terms(session, &terms);
	expect(terms.read_max < BLOCK, "the server reads %u bytes: no test", terms.read_max);
	file = open_file("data", O_RDWR);
	rc = nfsrdma_prepare_read(file, room, BLOCK, 0, 0);
	expect(rc == -EMSGSIZE, "found %d, expected -EMSGSIZE", rc);
	expect(nfsrdma_pread(file, room, sizeof(room), 0) == sizeof(room), "pread");
	expect(nfsrdma_pwrite(file, room, sizeof(room), 0) == sizeof(room), "pwrite");
	print_stats("read_max", terms.read_max);
}

/* The file has lines of "y" */
static void session_lost(void)
{
	unsigned long batches;
	size_t i;

	open_session(BATCH, 41);
	for (i = 0; i < BLOCK; i++)
		wanted[i] = i % 2 ? '\n' : 'y';
	for (batches = 0; !enough(); batches++) {
		memset(room, 0, sizeof(room));
		nfsrdma_close(submit_reads(BATCH));
		collect(BATCH);
		for (i = 0; i < BATCH; i++)
			expect(!memcmp(room + i * BLOCK, wanted, BLOCK), "wrong data in block %zu", i);
	}
	print_stats("batches", batches);
}

/* --- power cut --- */

/* What the program does with a file before the power cut */
enum deed { SYNCED, CLOSED, OPEN, RELEASED, BATCHED, DEEDS };

static struct nfsrdma_file *opened[DEEDS];
static const char *const names[DEEDS] = {"synced", "closed", "open", "released", "batched"};

/* A file of BATCH blocks, each with this version */
static void write_file(struct nfsrdma_file *file, enum deed deed, uint32_t version)
{
	for (uint32_t i = 0; i < BATCH; i++) {
		ssize_t n;

		fill(room, deed * BATCH + i, version);
		n = nfsrdma_pwrite(file, room, BLOCK, (uint64_t)i * BLOCK);
		expect(n == BLOCK, "write of %s: %zd", names[deed], n);
	}
}

static void check_file(struct nfsrdma_file *file, enum deed deed, uint32_t version)
{
	for (uint32_t i = 0; i < BATCH; i++) {
		ssize_t n = nfsrdma_pread(file, room, BLOCK, (uint64_t)i * BLOCK);

		fill(wanted, deed * BATCH + i, version);
		expect(n == BLOCK && !memcmp(room, wanted, BLOCK), "%s: block %u, read %zd", names[deed], i, n);
	}
}

static void close_in_a_batch(struct nfsrdma_file *file, int result)
{
	struct nfsrdma_completion done;

	expect(!nfsrdma_prepare_close(file, 0), "prepare_close");
	expect(nfsrdma_submit(session) == 1, "submit");
	expect(nfsrdma_wait(session, &done, 1, 1, -1) == 1, "wait");
	expect(done.result == result, "close in a batch: found %d, expected %d", (int)done.result, result);
}

static void expect_fsync(struct nfsrdma_file *file, enum deed deed, int result)
{
	int rc = nfsrdma_fsync(file);

	expect(rc == result, "fsync of %s: found %d, expected %d", names[deed], rc, result);
}

static struct nfsrdma_file *before_cut(enum deed deed)
{
	struct nfsrdma_file *file = open_file(names[deed], O_RDWR | O_CREAT);

	write_file(file, deed, 1);
	if (deed == SYNCED)
		expect_fsync(file, deed, 0);
	if (deed == CLOSED)
		expect(!nfsrdma_close(file), "close");
	if (deed == RELEASED)
		nfsrdma_release(file);
	if (deed == BATCHED)
		close_in_a_batch(file, 0);
	return deed == SYNCED || deed == OPEN ? file : NULL;
}

/* The first fsync reports the loss, the data is written again, and the second one succeeds */
static void after_cut(struct nfsrdma_file *file, enum deed deed)
{
	bool lost = deed == OPEN || deed == RELEASED;

	if (!file)
		file = open_file(names[deed], O_RDWR);
	expect_fsync(file, deed, lost ? -EIO : 0);
	if (lost)
		write_file(file, deed, 1);
	expect_fsync(file, deed, 0);
	check_file(file, deed, 1);
	/* for the next cut, which a close reports */
	write_file(file, deed, 2);
	opened[deed] = file;
}

static void power(void)
{
	open_session(BATCH, 3);
	for (int i = 0; i < DEEDS; i++)
		opened[i] = before_cut(i);
	wait_for_line();
	for (int i = 0; i < DEEDS; i++)
		after_cut(opened[i], i);
	wait_for_line();
	for (int i = 0; i < DEEDS; i++) {
		int rc;

		if (i == BATCHED) {
			close_in_a_batch(opened[i], -EIO);
			continue;
		}
		rc = nfsrdma_close(opened[i]);
		expect(rc == -EIO, "close of %s: found %d, expected %d", names[i], rc, -EIO);
	}
	print_stats("cuts", 2);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	target = argv[2];
	if (!strcmp(what, "storm"))
		storm();
	else if (!strcmp(what, "hold"))
		hold();
	else if (!strcmp(what, "fork"))
		forked();
	else if (!strcmp(what, "full"))
		full();
	else if (!strcmp(what, "stale"))
		stale();
	else if (!strcmp(what, "many"))
		many();
	else if (!strcmp(what, "small"))
		small();
	else if (!strcmp(what, "session"))
		session_lost();
	else if (!strcmp(what, "power"))
		power();
	else
		return 2;
	nfsrdma_disconnect(session);
	return 0;
}
