// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reads of 4 KiB by reference through libnfsrdma, over the device that check_client.c stands in for.
 * Usage: library_count DEPTH COUNT. DEPTH 1: one read at a time; more: as many leave by one doorbell.
 */
#define main check_main
#include "../../tests/wire/check_client.c"
#undef main

#define BLOCK	4096
#define EXTENT	65536
#define MOST_READS	16

int main(int argc, char **argv)
{
	static uint8_t data[MOST_READS * BLOCK];
	struct nfsrdma_completion done[MOST_READS];
	struct nfsrdma_options options = { .size = sizeof(options), .timeout = 60000, .optimistic = 1 };
	struct nfsrdma_region *region;
	struct nfsrdma_file *file;
	uint32_t count, i, j, before;

	expect(argc == 3, "arguments");
	options.depth = strtoul(argv[1], NULL, 10);
	count = strtoul(argv[2], NULL, 10);
	expect(options.depth && options.depth <= MOST_READS && !(count % options.depth), "depth %u", options.depth);
	optimistic = true;
	serve = takes_writes;
	expect(!nfsrdma_connect("127.0.0.1", &options, &session), "connect");
	session->directory = strdup("/export");
	session->root = (fh3){ 4, strdup("root") };
	session->read_max = session->write_max = session->list_max = 32768;
	join();
	file = open_optimistic();
	/* as long as those of nfsd for a file in an exported file system */
	file->fh.length = 28;
	expect(!nfsrdma_register(session, data, sizeof(data), &region), "register");
	expect(!reads_by_reference(file), "a reference before a grant");
	grant(file);
	before = rdma_reads;
	for (i = 0; i < count; i += options.depth) {
		if (options.depth == 1) {
			expect(nfsrdma_pread(file, data, BLOCK, i * BLOCK % EXTENT) == BLOCK, "pread");
			continue;
		}
		for (j = 0; j < options.depth; j++)
			expect(!nfsrdma_prepare_read(file, data + j * BLOCK, BLOCK, (i + j) * BLOCK % EXTENT, j),
			       "prepare");
		expect(nfsrdma_submit(session) == (int)options.depth, "submit");
		for (j = 0; j < options.depth; )
			j += nfsrdma_wait(session, done, MOST_READS, options.depth - j, -1);
	}
	expect(rdma_reads - before == count, "%u RDMA Reads of %u", rdma_reads - before, count);
	end_optimistic(file);
	return 0;
}
