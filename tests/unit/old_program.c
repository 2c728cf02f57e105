// SPDX-License-Identifier: Apache-2.0
/* A program of an earlier version of libnfsrdma: what needs neither a device nor a server. */
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

int main(void)
{
	struct nfsrdma_options options = {.size = sizeof(options), .timeout = 1000};
	/* a later program, whose options end with one that this library does not have */
	struct { struct nfsrdma_options known; uint64_t later; } longer = {.known = {.size = sizeof(longer)}};
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
	longer.later = 1;
	expect(nfsrdma_connect("127.0.0.1", &longer.known, &session) == -E2BIG, "later option");
	longer.later = 0;
	longer.known.depth = 200;
	expect(nfsrdma_connect("127.0.0.1", &longer.known, &session) == -EINVAL, "depth of a longer struct");
	expect(nfsrdma_connect("", NULL, &session) == -EINVAL, "target");
	expect(!session, "a session");
	nfsrdma_disconnect(NULL);
	nfsrdma_closedir(NULL);
	expect(!nfsrdma_unregister(NULL), "unregister");
	expect(!nfsrdma_prepare_reads(NULL, 0), "no ranges");
	printf("ok %d.%d.%d\n", NFSRDMA_VERSION_MAJOR, NFSRDMA_VERSION_MINOR, NFSRDMA_VERSION_PATCH);
	return 0;
}
