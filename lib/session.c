// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Sessions: from a target to a connection with a root directory, and their end.
 *
 * The connection knows nothing above it: session_reports has what it calls when it comes, goes and has completions.
 */
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "library.h"

#define PORT_DEFAULT	20049
#define DEPTH_DEFAULT	63
#define DEPTH_MAX	127
#define INLINE_DEFAULT	8192
#define INLINE_MIN	1024
#define INLINE_MAX	65536
#define TIMEOUT_DEFAULT	60000
#define VERSION_DEFAULT	3
#define ARENA_DEFAULT	(BLOCKS_MAX * BLOCK_BYTES)

/* --- what a connection reports --- */

static void connection_is_up(struct nfsrdma_session *session)
{
	if (session->dialect->start && session->directory)
		session->dialect->start(session);
}

static void handle_completions(struct nfsrdma_session *session, const struct ibv_wc *wcs, int n)
{
	uint32_t numbers[CONNECTION_POLL_MOST], nreceived = 0;
	int i;

	for (i = 0; i < n && session->link == LINK_UP; i++) {
		if (wcs[i].wr_id & SECOND_BIT && !(wcs[i].wr_id & SEND_BIT))
			optimist_complete(session, &wcs[i]);
		else if (reply_complete(session, &wcs[i]))
			numbers[nreceived++] = wcs[i].wr_id;
	}
	if (session->link == LINK_UP)
		reply_repost(session, numbers, nreceived);
}

const struct reports session_reports = {
	.opened = reply_opened,
	.up = connection_is_up,
	.closing = optimist_close,
	.closed = send_disconnected,
	.completed = handle_completions,
	.event = optimist_event,
	.look = optimist_look,
};

/* --- connecting --- */

static uint32_t or_default(uint32_t value, uint32_t other)
{
	return value ? value : other;
}

static int set_options(struct nfsrdma_session *session, const struct nfsrdma_options *given)
{
	struct nfsrdma_options all = {}, *options = &all, *to = &session->options;
	int rc = given ? abi_take(&all, sizeof(all), given, OPTIONS_LEAST, "options") : 0;

	if (rc)
		return rc;
	*to = (struct nfsrdma_options){
		.port = or_default(options->port, PORT_DEFAULT),
		.depth = or_default(options->depth, DEPTH_DEFAULT),
		.inline_size = or_default(options->inline_size, INLINE_DEFAULT) & ~(INLINE_MIN - 1),
		.timeout = or_default(options->timeout, TIMEOUT_DEFAULT),
		.arena = or_default(options->arena, ARENA_DEFAULT) & ~(BLOCK_BYTES - 1),
		.version = or_default(options->version, VERSION_DEFAULT),
		.personality = options->personality,
		.optimistic = options->optimistic, .cache = options->cache,
		.interrupted = options->interrupted, .interrupted_data = options->interrupted_data,
		.direct = options->direct,
	};
	session->dialect = to->version == 41 ? &nfs4_dialect : &nfs3_dialect;
	if (to->version != 3 && to->version != 41)
		return fail(-EINVAL, "version %u: 3 or 41", to->version);
	if (to->optimistic > 1 || (to->optimistic && to->version != 3))
		return fail(-EINVAL, "optimistic %u: 0, or 1 with version 3", to->optimistic);
	if (to->direct > 1)
		return fail(-EINVAL, "direct %llu: 0 or 1", (unsigned long long)to->direct);
	if (to->port > 65535)
		return fail(-EINVAL, "port %u: at most 65535", to->port);
	if (to->depth > DEPTH_MAX)
		return fail(-EINVAL, "depth %u: at most %d", to->depth, DEPTH_MAX);
	if (to->inline_size < INLINE_MIN || to->inline_size > INLINE_MAX)
		return fail(-EINVAL, "inline_size %u: %d to %d", options->inline_size, INLINE_MIN, INLINE_MAX);
	if (to->cache / CACHE_BLOCK > CACHE_BLOCKS_MAX)
		return fail(-EINVAL, "cache %llu: at most %llu", (unsigned long long)to->cache,
			    (unsigned long long)CACHE_BLOCKS_MAX * CACHE_BLOCK);
	if (!to->arena || to->arena > ARENA_DEFAULT)
		return fail(-EINVAL, "arena %u: %d to %d", options->arena, BLOCK_BYTES, ARENA_DEFAULT);
	return 0;
}

/* SERVER[:/DIRECTORY]; an IPv6 address stands in brackets */
static int set_target(struct nfsrdma_session *session, const char *target)
{
	const char *host = target, *end, *directory;
	size_t length;

	if (*target == '[') {
		host++;
		end = strchr(host, ']');
		directory = end ? end + 1 : NULL;
	} else {
		end = strstr(target, ":/");
		/* one colon is the end of a name, several are part of an IPv6 address */
		if (!end && strchr(target, ':') == strrchr(target, ':'))
			end = strchr(target, ':');
		end = end ? end : target + strlen(target);
		directory = end;
	}
	length = end ? end - host : 0;
	if (!length || length >= sizeof(session->host) || (*directory && strncmp(directory, ":/", 2)))
		return fail(-EINVAL, "%s: not of the form SERVER:/DIRECTORY", target);
	memcpy(session->host, host, length);
	if (!*directory)
		return 0;
	if (session->options.personality)
		return fail(-EINVAL, "%s: a session that requests a personality has no directory", target);
	if (strlen(directory + 1) > PATH_MAX_BYTES)
		return fail(-ENAMETOOLONG, "a directory of %zu bytes", strlen(directory + 1));
	session->directory = strdup(directory + 1);
	return session->directory ? 0 : fail_no_memory();
}

static int connect_address(struct nfsrdma_session *session, const struct addrinfo *address, uint64_t until)
{
	int rc;

	memcpy(&session->address, address->ai_addr, address->ai_addrlen);
	session->link = LINK_DOWN;
	/* only a session that was connected tries again */
	while (session->link != LINK_UP) {
		wait_look(session);
		if (session->link == LINK_PAUSE)
			return session->link_error;
		if (now_ms() >= until) {
			connection_close(session);
			return fail(-ETIMEDOUT, "%s: no connection after %u ms", session->host,
				    session->options.timeout);
		}
		rc = wait_sleep(session, until);
		if (rc) {
			connection_close(session);
			return rc;
		}
	}
	return 0;
}

static int connect_host(struct nfsrdma_session *session)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found, *each;
	uint64_t until = session->opening + session->options.timeout;
	char port[8];
	int rc;

	snprintf(port, sizeof(port), "%u", session->options.port);
	rc = getaddrinfo(session->host, port, &hints, &found);
	if (rc)
		return fail(-EHOSTUNREACH, "%s: %s", session->host, gai_strerror(rc));
	rc = -EHOSTUNREACH;
	for (each = found; each && rc && rc != -EINTR; each = each->ai_next)
		rc = connect_address(session, each, until);
	freeaddrinfo(found);
	return rc;
}

/* Make what a session needs before its connection; requires its options and its target */
static int prepare_session(struct nfsrdma_session *session)
{
	int rc = state_allocate(session);

	if (rc)
		return rc;
	session->offer.capabilities = session->options.personality;
	rc = requests_allocate(session);
	if (!rc && session->options.optimistic)
		rc = optimist_allocate(session);
	if (!rc && session->options.cache >= CACHE_BLOCK)
		rc = cache_allocate(session);
	if (!rc)
		rc = memory_allocate(session);
	if (rc)
		return rc;
	process_enter(session);
	return connection_open(session);
}

static int open_session(struct nfsrdma_session *session, const char *target,
			const struct nfsrdma_options *options)
{
	int rc = set_options(session, options);

	if (!rc)
		rc = set_target(session, target);
	if (!rc)
		rc = prepare_session(session);
	if (!rc)
		rc = connect_host(session);
	return rc || !session->directory ? rc : session->dialect->root(session);
}

/* A session without anything; NULL: no memory */
static struct nfsrdma_session *new_session(void)
{
	struct nfsrdma_session *new = calloc(1, sizeof(*new));

	if (!new)
		return NULL;
	new->epoll = -1;
	new->wake = -1;
	process_adopt(new);
	new->reports = &session_reports;
	return new;
}

EXPORTED int nfsrdma_connect(const char *target, const struct nfsrdma_options *options,
			     struct nfsrdma_session **session)
{
	struct nfsrdma_session *new = new_session();
	int rc;

	if (!new)
		return fail_no_memory();
	new->opening = now_ms();
	rc = open_session(new, target, options);
	if (rc) {
		nfsrdma_disconnect(new);
		return rc;
	}
	new->opening = 0;
	*session = new;
	return 0;
}

static int copy_target(struct nfsrdma_session *session, const struct nfsrdma_session *other)
{
	memcpy(session->host, other->host, sizeof(session->host));
	session->address = other->address;
	session->read_max = other->read_max;
	session->write_max = other->write_max;
	session->list_max = other->list_max;
	if (!other->directory)
		return 0;
	session->directory = strdup(other->directory);
	session->root.fh3_val = malloc(other->root.fh3_len);
	if (!session->directory || !session->root.fh3_val)
		return fail_no_memory();
	session->root.fh3_len = other->root.fh3_len;
	memcpy(session->root.fh3_val, other->root.fh3_val, other->root.fh3_len);
	return 0;
}

/**
 * session_like - open a session with the server and the directory of another one
 * @other: an open session
 * @options: of the new one
 * @session: the new one
 *
 * Asks no mount daemon, and waits for nothing: the first nfsrdma_peek() begins the connection.
 *
 * Return: 0, or a negative errno value.
 */
int session_like(const struct nfsrdma_session *other, const struct nfsrdma_options *options,
		 struct nfsrdma_session **session)
{
	struct nfsrdma_session *new = new_session();
	int rc;

	if (!new)
		return fail_no_memory();
	rc = set_options(new, options);
	if (!rc)
		rc = copy_target(new, other);
	if (!rc)
		rc = prepare_session(new);
	if (rc) {
		nfsrdma_disconnect(new);
		return rc;
	}
	*session = new;
	return 0;
}

EXPORTED int nfsrdma_disconnect(struct nfsrdma_session *session)
{
	int rc = session ? process_check_end(session) : 0;

	if (!session || rc)
		return rc;
	if (session->in_store)
		return fail(-EBUSY, "%s: a store of blocks has the session: close the store first", session->host);
	if (process_owns(session)) {
		/* a reply to an unfinished read or write would complete it */
		if (session->dialect && session->dialect->leave && !session->unfinished)
			session->dialect->leave(session);
		connection_end(session);
		process_leave(session);
		memory_free(session);
	}
	io_abandon(session);
	requests_free(session);
	optimist_free(session);
	cache_free(session);
	inodes_free(session);
	xdr_free((xdrproc_t)xdr_fh3, (char *)&session->root);
	free(session->directory);
	free(session);
	return 0;
}

EXPORTED int nfsrdma_null(struct nfsrdma_session *session)
{
	int rc = process_check(session);

	return rc ? rc : nfs3_null(session);
}

EXPORTED int nfsrdma_terms(const struct nfsrdma_session *session, struct nfsrdma_terms *terms)
{
	struct nfsrdma_terms all = {
		.credits = session->credits, .send_size = session->send_size, .recv_size = session->recv_size,
		.private_data = session->peer.given, .extended = session->peer.extended,
		.personalities = session->peer.capabilities &
				 (session->options.personality | (session->optimist ? CAPABILITY_OPTIMISTIC : 0)),
		.read_max = session->read_max, .write_max = session->write_max,
	};
	getnameinfo((struct sockaddr *)&session->address, sizeof(session->address), all.address,
		    sizeof(all.address), NULL, 0, NI_NUMERICHOST);
	snprintf(all.device, sizeof(all.device), "%s", session->device);
	return abi_give(terms, &all, sizeof(all), TERMS_LEAST, "terms");
}

EXPORTED int nfsrdma_stats(const struct nfsrdma_session *session, struct nfsrdma_stats *stats)
{
	return abi_give(stats, &session->stats, sizeof(session->stats), STATS_LEAST, "stats");
}
