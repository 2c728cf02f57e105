// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Registered memory.
 *
 * Messages are memory that only this end reaches.  The arena holds data of callers who did not register
 * their memory, long Calls and long replies; the server can read and write it, as it can the regions of
 * the caller.  All of it is in one protection domain for each session, so that no other server's
 * connection reaches it.
 *
 * A session that connects by another device registers all of it anew: a struct memory_span refers to the
 * registration and not to its key.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "library.h"

#define LOCAL	IBV_ACCESS_LOCAL_WRITE
#define REMOTE	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)

static uint8_t *map_memory(size_t bytes)
{
	void *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return addr == MAP_FAILED ? NULL : addr;
}

static size_t message_bytes(const struct nfsrdma_session *session)
{
	size_t room = session->options.inline_size > CALL_MAX ? session->options.inline_size : CALL_MAX;

	return HEADER_ROOM + room;
}

/* Map the messages and the arena, which stay until the end of the session */
int memory_allocate(struct nfsrdma_session *session)
{
	size_t each = message_bytes(session);
	uint32_t i;

	session->messages_bytes = session->nslots * each +
				  (size_t)session->nreceives * session->options.inline_size;
	if (session->optimist)
		session->messages_bytes += (NOTICE_RECEIVES + CREDIT_SLOTS) * NOTICE_ROOM;
	session->arena_bytes = session->options.arena;
	session->messages = map_memory(session->messages_bytes);
	session->arena = map_memory(session->arena_bytes);
	if (!session->messages || !session->arena)
		return fail_no_memory();
	for (i = 0; i < session->nslots; i++)
		session->slots[i].message = session->messages + i * each;
	return 0;
}

void memory_free(struct nfsrdma_session *session)
{
	struct nfsrdma_region *region;

	/* nfsrdma_unregister() refuses regions of unfinished operations */
	while ((region = session->regions)) {
		session->regions = region->next;
		free(region);
	}
	if (session->messages)
		munmap(session->messages, session->messages_bytes);
	if (session->arena)
		munmap(session->arena, session->arena_bytes);
}

/* The buffer of receive @number */
uint8_t *memory_receive(struct nfsrdma_session *session, uint32_t number)
{
	return session->messages + session->nslots * message_bytes(session) +
	       (size_t)number * session->options.inline_size;
}

/* The buffer of notice @number, behind the receives; those behind NOTICE_RECEIVES are for credits */
uint8_t *memory_notice(struct nfsrdma_session *session, uint32_t number)
{
	return memory_receive(session, session->nreceives) + (size_t)number * NOTICE_ROOM;
}

static struct ibv_mr *register_memory(struct nfsrdma_session *session, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(session->pd, addr, length, access);
	int error = errno;

	if (!mr)
		fail(-error, "%s: cannot register %zu bytes: %s (see ulimit -l)", session->device, length,
		     strerror(error));
	errno = error;
	return mr;
}

static void deregister_memory(struct ibv_mr **mr)
{
	if (*mr)
		ibv_dereg_mr(*mr);
	*mr = NULL;
}

/* Register everything with @device */
int memory_register(struct nfsrdma_session *session, struct ibv_context *device)
{
	struct nfsrdma_region *region;
	int rc;

	session->pd = ibv_alloc_pd(device);
	if (!session->pd)
		return fail(-errno, "%s: no protection domain: %s", session->device, strerror(errno));
	session->messages_mr = register_memory(session, session->messages, session->messages_bytes, LOCAL);
	session->arena_mr = register_memory(session, session->arena, session->arena_bytes, REMOTE);
	if (!session->messages_mr || !session->arena_mr)
		goto out_deregister;
	for (region = session->regions; region; region = region->next) {
		region->mr = register_memory(session, region->addr, region->length, REMOTE);
		if (!region->mr)
			goto out_deregister;
	}
	return 0;

out_deregister:
	rc = -errno;
	memory_deregister(session);
	return rc;
}

void memory_deregister(struct nfsrdma_session *session)
{
	struct nfsrdma_region *region;

	for (region = session->regions; region; region = region->next)
		deregister_memory(&region->mr);
	deregister_memory(&session->messages_mr);
	deregister_memory(&session->arena_mr);
	if (session->pd)
		ibv_dealloc_pd(session->pd);
	session->pd = NULL;
}

/* --- the arena --- */

static uint64_t run_of(uint32_t blocks, uint32_t first)
{
	return (blocks == 64 ? ~0ULL : (1ULL << blocks) - 1) << first;
}

static uint32_t blocks_of(size_t bytes)
{
	return bytes ? (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES : 1;
}

/* Memory of @bytes in one piece; NULL if there is none */
uint8_t *memory_take(struct nfsrdma_session *session, size_t bytes)
{
	uint32_t all = session->arena_bytes / BLOCK_BYTES, blocks = blocks_of(bytes), first;

	for (first = 0; first + blocks <= all; first++) {
		uint64_t run = run_of(blocks, first);

		if (session->arena_used & run)
			continue;
		session->arena_used |= run;
		return session->arena + (size_t)first * BLOCK_BYTES;
	}
	return NULL;
}

void memory_give(struct nfsrdma_session *session, const uint8_t *addr, size_t bytes)
{
	session->arena_used &= ~run_of(blocks_of(bytes), (addr - session->arena) / BLOCK_BYTES);
}

/* --- regions of the caller --- */

/* The region that has all of the memory; NULL if there is none */
struct nfsrdma_region *memory_find(struct nfsrdma_session *session, const void *addr, size_t bytes)
{
	const uint8_t *start = addr;
	struct nfsrdma_region *region;

	for (region = session->regions; region; region = region->next)
		if (start >= region->addr && bytes <= region->length &&
		    (size_t)(start - region->addr) <= region->length - bytes)
			return region;
	return NULL;
}

EXPORTED int nfsrdma_register(struct nfsrdma_session *session, void *addr, size_t length,
			      struct nfsrdma_region **region)
{
	struct nfsrdma_region *new;
	int rc = process_check(session);

	if (rc)
		return rc;
	if (!addr || !length || (uintptr_t)addr + length < (uintptr_t)addr)
		return fail(-EINVAL, "cannot register %zu bytes at %p", length, addr);
	new = calloc(1, sizeof(*new));
	if (!new)
		return fail_no_memory();
	*new = (struct nfsrdma_region){.session = session, .addr = addr, .length = length};
	/* without a connection, the next one registers it */
	if (session->pd) {
		new->mr = register_memory(session, addr, length, REMOTE);
		rc = new->mr ? 0 : -errno;
	}
	if (rc) {
		free(new);
		return rc;
	}
	new->next = session->regions;
	session->regions = new;
	*region = new;
	return 0;
}

EXPORTED int nfsrdma_unregister(struct nfsrdma_region *region)
{
	struct nfsrdma_region **at;
	int rc;

	if (!region)
		return 0;
	rc = process_check(region->session);
	if (rc)
		return rc;
	if (region->users)
		return fail(-EBUSY, "%u unfinished operations use the region", region->users);
	for (at = &region->session->regions; *at != region; at = &(*at)->next)
		;
	*at = region->next;
	deregister_memory(&region->mr);
	free(region);
	return 0;
}
