// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Registered memory.
 *
 * Messages are memory that only this end reaches.  The arena holds data of callers who did not register
 * their memory, long Calls and long replies; the server can read and write it, as it can the regions of
 * the caller.  All of it is in one protection domain for each session, so that no other server's
 * connection reaches it.
 *
 * Memory of a dma-buf is a region whose addresses the processor may not reach: only RDMA moves its data.  Such a region
 * overlaps no other one, so that an address names one memory.
 *
 * A session that connects by another device registers all of it anew: a struct memory_span refers to the
 * registration and not to its key.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/* Take a region out of its session, and free it */
static void forget_region(struct nfsrdma_region *region)
{
	struct nfsrdma_region **at;

	process_lock();
	for (at = &region->session->regions; *at != region; at = &(*at)->next)
		;
	*at = region->next;
	region->session->ndmabufs -= region->fd >= 0;
	if (region->fd >= 0)
		close(region->fd);
	process_unlock();
	free(region);
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
	/* nfsrdma_unregister() refuses regions of unfinished operations */
	while (session->regions)
		forget_region(session->regions);
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

typedef struct ibv_mr *(*register_function)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					    int access);

/* Register a dma-buf; rdma-core before 34 has no function for that */
static struct ibv_mr *register_dmabuf(struct nfsrdma_session *session, const struct nfsrdma_region *region)
{
	register_function function = (register_function)dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr");
	struct ibv_mr *mr = NULL;
	int error;

	errno = EOPNOTSUPP;
	if (function)
		mr = function(session->pd, region->offset, region->length, (uintptr_t)region->addr, region->fd, REMOTE);
	error = errno;
	/* what kernels before 5.12 say */
	if (error == ENOSYS || error == ENOTTY || error == EPROTONOSUPPORT)
		error = EOPNOTSUPP;
	if (!function)
		fail(-error, "%s: libibverbs has no ibv_reg_dmabuf_mr(3): rdma-core is older than 34", session->device);
	else if (!mr)
		fail(-error, "%s: cannot register %zu bytes of a dma-buf: %s%s", session->device, region->length,
		     strerror(error), error == EOPNOTSUPP ? " (by this device or its driver)" : "");
	errno = error;
	return mr;
}

static struct ibv_mr *register_region(struct nfsrdma_session *session, const struct nfsrdma_region *region)
{
	return region->fd < 0 ? register_memory(session, region->addr, region->length, REMOTE) :
				register_dmabuf(session, region);
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
		region->mr = register_region(session, region);
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

/* Has the region all of the memory? */
bool memory_is_in(const struct nfsrdma_region *region, const void *addr, size_t bytes)
{
	const uint8_t *start = addr;

	return start >= region->addr && bytes <= region->length &&
	       (size_t)(start - region->addr) <= region->length - bytes;
}

/* Has it any of the memory? */
bool memory_overlaps(const struct nfsrdma_region *region, const void *addr, size_t bytes)
{
	uintptr_t start = (uintptr_t)addr, other = (uintptr_t)region->addr;

	return start < other ? other - start < bytes : start - other < region->length;
}

/* The region that has all of the memory; NULL if there is none */
struct nfsrdma_region *memory_find(struct nfsrdma_session *session, const void *addr, size_t bytes)
{
	struct nfsrdma_region *region;

	for (region = session->regions; region; region = region->next)
		if (memory_is_in(region, addr, bytes))
			return region;
	return NULL;
}

/**
 * memory_check - see whether the processor may reach memory of the caller
 * @session: session
 * @addr: start of the memory
 * @bytes: its length
 * @direct: gets whether RDMA alone moves its data: it is part of a dma-buf, or registered with the option direct
 *
 * Return: 0, or -EOPNOTSUPP if a part of the memory, but not all, is one dma-buf.
 */
int memory_check(struct nfsrdma_session *session, const void *addr, size_t bytes, bool *direct)
{
	struct nfsrdma_region *region;

	*direct = false;
	if (!bytes || (!session->ndmabufs && !session->options.direct))
		return 0;
	region = memory_find(session, addr, bytes);
	*direct = region && (region->fd >= 0 || session->options.direct);
	if (!region && memory_has_dmabuf(session, addr, bytes))
		return fail(-EOPNOTSUPP, "%zu bytes at %p: a part of them is a dma-buf, which only RDMA reaches", bytes,
			    addr);
	return 0;
}

/* Is any of the memory a dma-buf? */
bool memory_has_dmabuf(const struct nfsrdma_session *session, const void *addr, size_t bytes)
{
	const struct nfsrdma_region *region;

	for (region = session->ndmabufs ? session->regions : NULL; region; region = region->next)
		if (region->fd >= 0 && memory_overlaps(region, addr, bytes))
			return true;
	return false;
}

/* An address that two regions have would name two memories */
static int check_region(const struct nfsrdma_session *session, const struct nfsrdma_region *new)
{
	const struct nfsrdma_region *region;

	if (!new->addr || !new->length || (uintptr_t)new->addr + new->length < (uintptr_t)new->addr)
		return fail(-EINVAL, "cannot register %zu bytes at %p", new->length, new->addr);
	for (region = session->regions; region; region = region->next)
		if ((new->fd >= 0 || region->fd >= 0) && memory_overlaps(region, new->addr, new->length))
			return fail(-EEXIST, "cannot register %zu bytes at %p: a dma-buf and another region would overlap",
				    new->length, new->addr);
	return 0;
}

/* Make a region, whose fd it closes after an error */
static int add_region(struct nfsrdma_session *session, const struct nfsrdma_region *given,
		      struct nfsrdma_region **region)
{
	struct nfsrdma_region *new;
	int rc = check_region(session, given);

	if (rc)
		return rc;
	new = malloc(sizeof(*new));
	if (!new)
		return fail_no_memory();
	*new = *given;
	new->session = session;
	process_lock();
	if (given->fd >= 0)
		new->fd = fcntl(given->fd, F_DUPFD_CLOEXEC, 0);
	if (given->fd >= 0 && new->fd < 0)
		rc = fail(-errno, "descriptor %d: %s", given->fd, strerror(errno));
	new->next = session->regions;
	session->regions = rc ? session->regions : new;
	session->ndmabufs += !rc && new->fd >= 0;
	process_unlock();
	if (rc) {
		free(new);
		return rc;
	}
	/* without a connection, the next one registers it */
	if (session->pd) {
		new->mr = register_region(session, new);
		rc = new->mr ? 0 : -errno;
	}
	if (rc) {
		forget_region(new);
		return rc;
	}
	*region = new;
	return 0;
}

EXPORTED int nfsrdma_register(struct nfsrdma_session *session, void *addr, size_t length,
			      struct nfsrdma_region **region)
{
	const struct nfsrdma_region new = {.addr = addr, .length = length, .fd = -1};
	int rc = process_check(session);

	return rc ? rc : add_region(session, &new, region);
}

EXPORTED int nfsrdma_register_dmabuf(struct nfsrdma_session *session, int fd, uint64_t offset, size_t length,
				     void *addr, struct nfsrdma_region **region)
{
	const struct nfsrdma_region new = {.addr = addr, .length = length, .fd = fd, .offset = offset};
	int rc = process_check(session);
	off_t size;

	if (rc)
		return rc;
	size = lseek(fd, 0, SEEK_END);
	if (size < 0)
		return fail(-EINVAL, "descriptor %d is no dma-buf: %s", fd, strerror(errno));
	if (offset > (uint64_t)size || length > (uint64_t)size - offset)
		return fail(-EINVAL, "%zu bytes at offset %llu of a dma-buf of %lld", length, (unsigned long long)offset,
			    (long long)size);
	return add_region(session, &new, region);
}

EXPORTED int nfsrdma_unregister(struct nfsrdma_region *region)
{
	int rc;

	if (!region)
		return 0;
	rc = process_check(region->session);
	if (rc)
		return rc;
	if (region->users)
		return fail(-EBUSY, "%u unfinished operations use the region", region->users);
	deregister_memory(&region->mr);
	forget_region(region);
	return 0;
}
