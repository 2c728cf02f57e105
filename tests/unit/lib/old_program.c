// SPDX-License-Identifier: Apache-2.0
/*
 * A program of an earlier version of libnfsrdma: what needs neither a device nor a server; and with DEVICE, over the
 * device of tests/device, each struct that the library fills.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nfsrdma.h>

static void expect(int condition, const char *what)
{
	if (condition)
		return;
	printf("%s (%s)\n", what, nfsrdma_message());
	exit(1);
}

#ifdef DEVICE
int device_put(const char *path, int kind, unsigned mode, const void *data, uint64_t size);
void device_reset(void);

enum { FILE_KIND = 1, FOLDER_KIND = 2 };

static void use_session(void)
{
	struct { struct nfsrdma_stats known; uint64_t behind; } stats = {.known = {.size = sizeof(stats.known)}};
	struct { struct nfsrdma_terms known; uint64_t behind; } terms = {.known = {.size = sizeof(terms.known)}};
	struct { struct nfsrdma_entry known; uint64_t behind; } entry = {.known = {.size = sizeof(entry.known)}};
	struct { struct nfsrdma_completion known[2]; uint64_t behind; } done = {0};
	struct nfsrdma_range ranges[2];
	char data[2][16] = {"", ""};
	struct nfsrdma_session *session;
	struct nfsrdma_file *file;
	struct nfsrdma_dir *dir;
	int i;

	stats.behind = terms.behind = entry.behind = done.behind = 0x5a5a;
	device_reset();
	expect(!device_put("/export", FOLDER_KIND, 0755, "", 0), "put");
	expect(!device_put("/export/data", FILE_KIND, 0644, "0123456789abcdefghij", 20), "put");
	expect(!nfsrdma_connect("server:/export", NULL, &session), "connect");
	expect(!nfsrdma_terms(session, &terms.known) && terms.known.read_max >= 16, "terms");
	expect(terms.known.device[0] && terms.known.address[0], "texts of the terms");
	expect(!nfsrdma_opendir(session, "", &dir), "opendir");
	expect(nfsrdma_readdir(dir, &entry.known) == 1 && !strcmp(entry.known.name, "data"), "readdir");
	expect(!entry.known.has_stat || entry.known.stat.st_size == 20, "size in the entry");
	expect(!nfsrdma_readdir(dir, &entry.known), "end of the directory");
	nfsrdma_closedir(dir);
	expect(!nfsrdma_open(session, "data", O_RDWR, 0, &file), "open");
	for (i = 0; i < 2; i++)
		ranges[i] = (struct nfsrdma_range){
			.file = file, .buf = data[i], .count = 16, .offset = 16 * i, .user_data = 7 + i,
		};
	expect(nfsrdma_prepare_reads(ranges, 2) == 2 && nfsrdma_submit(session) == 2, "submit");
	expect(nfsrdma_wait(session, done.known, 2, 2, -1) == 2, "wait");
	for (i = 0; i < 2; i++) {
		int second = done.known[i].user_data == 8;

		expect(done.known[i].result == (second ? 4 : 16) && done.known[i].eof == (unsigned)second, "completion");
	}
	expect(!memcmp(data[0], "0123456789abcdef", 16) && !memcmp(data[1], "ghij", 4), "data");
	expect(nfsrdma_pwrite(file, "X", 1, 0) == 1 && !nfsrdma_close(file), "write and close");
	expect(!nfsrdma_stats(session, &stats.known) && stats.known.read_bytes == 20 &&
	       stats.known.written_bytes == 1 && stats.known.connects == 1, "stats");
	expect(stats.behind == 0x5a5a && terms.behind == 0x5a5a && entry.behind == 0x5a5a && done.behind == 0x5a5a,
	       "bytes behind a struct");
	nfsrdma_disconnect(session);
}
#else
static void use_session(void)
{
}
#endif

int main(void)
{
	struct nfsrdma_options options = {.size = sizeof(options), .timeout = 1000};
	/* a later program, whose options end with members that this library does not have: far behind those of today */
	struct { struct nfsrdma_options known; uint64_t later[64]; } longer = {.known = {.size = sizeof(longer)}};
	struct nfsrdma_session *session = NULL;
	uint32_t version = nfsrdma_version();

	expect(version >= NFSRDMA_VERSION && version >> 16 == NFSRDMA_VERSION_MAJOR, "version");
	/* each option is where the library expects it */
	options.depth = 200;
	expect(nfsrdma_connect("127.0.0.1", &options, &session) == -EINVAL, "depth");
	expect(!!strstr(nfsrdma_message(), "depth 200"), "message of depth");
	options.depth = 0;
	options.cache = 1ULL << 60;
	expect(nfsrdma_connect("127.0.0.1", &options, &session) == -EINVAL, "cache");
	expect(!!strstr(nfsrdma_message(), "cache 1152921504606846976"), "message of cache");
	options.cache = 0;
	options.size = 0;
	expect(nfsrdma_connect("127.0.0.1", &options, &session) == -EINVAL, "size");
	expect(!!strstr(nfsrdma_message(), "options.size"), "message of size");
	longer.later[63] = 1;
	expect(nfsrdma_connect("127.0.0.1", &longer.known, &session) == -E2BIG, "later option");
	longer.later[63] = 0;
	longer.known.depth = 200;
	expect(nfsrdma_connect("127.0.0.1", &longer.known, &session) == -EINVAL, "depth of a longer struct");
	expect(nfsrdma_connect("", NULL, &session) == -EINVAL, "target");
	expect(!session, "a session");
	nfsrdma_disconnect(NULL);
	nfsrdma_closedir(NULL);
	expect(!nfsrdma_unregister(NULL), "unregister");
	expect(!nfsrdma_prepare_reads(NULL, 0), "no ranges");
	use_session();
	printf("ok %d.%d.%d\n", NFSRDMA_VERSION_MAJOR, NFSRDMA_VERSION_MINOR, NFSRDMA_VERSION_PATCH);
	return 0;
}
