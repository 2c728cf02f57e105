// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* The sessions of this process, and what fork(2) does to them. */
#include <pthread.h>
#include <unistd.h>

#include "library.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nfsrdma_session *sessions;
static uint32_t generation;

/*
 * A thread that opens or closes descriptors of its session, and notes it in the session, holds the lock: what a fork
 * by another thread finds there are the open ones.
 */
void process_lock(void)
{
	pthread_mutex_lock(&lock);
}

void process_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

/*
 * The child closes what it inherited, or the server would keep the connection after the end of its owner.  It
 * frees nothing: memory and queues are the parent's.
 */
static void child_after_fork(void)
{
	const struct nfsrdma_region *region;
	struct nfsrdma_session *session;

	generation++;
	for (session = sessions; session; session = session->next) {
		if (session->epoll >= 0)
			close(session->epoll);
		if (session->wake >= 0)
			close(session->wake);
		if (session->events)
			close(session->events->fd);
		if (session->channel)
			close(session->channel->fd);
		if (session->context) {
			close(session->context->async_fd);
			close(session->context->cmd_fd);
		}
		for (region = session->regions; region; region = region->next)
			if (region->fd >= 0)
				close(region->fd);
	}
	sessions = NULL;
	pthread_mutex_unlock(&lock);
}

static void prepare_fork(void)
{
	/*
	 * A kernel without copy-on-fork (RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK) gives the parent another page when it
	 * writes to registered memory after a fork, and the device keeps the old one.  There, this call leaves
	 * registered memory out of children; elsewhere it has no effect.  It fails if the application has already
	 * registered memory, which then decided about it.
	 */
	ibv_fork_init();
	pthread_atfork(process_lock, process_unlock, child_after_fork);
}

/* A session that has descriptors, or will have some */
void process_enter(struct nfsrdma_session *session)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, prepare_fork);
	pthread_mutex_lock(&lock);
	session->next = sessions;
	sessions = session;
	pthread_mutex_unlock(&lock);
}

void process_leave(struct nfsrdma_session *session)
{
	struct nfsrdma_session **at;

	pthread_mutex_lock(&lock);
	for (at = &sessions; *at; at = &(*at)->next) {
		if (*at != session)
			continue;
		*at = session->next;
		break;
	}
	pthread_mutex_unlock(&lock);
}

/* The session belongs to this process, and not to its children */
void process_adopt(struct nfsrdma_session *session)
{
	session->generation = generation;
}

bool process_owns(const struct nfsrdma_session *session)
{
	return session->generation == generation;
}

/* May the caller free the session or a part of it?  A child process may.  0, or -EDEADLK */
int process_check_end(const struct nfsrdma_session *session)
{
	if (session->asking && process_owns(session))
		return fail(-EDEADLK, "options.interrupted uses the session that called it");
	return 0;
}

/* May the caller use the session?  0, -EOWNERDEAD or -EDEADLK */
int process_check(const struct nfsrdma_session *session)
{
	if (!process_owns(session))
		return fail(-EOWNERDEAD, "the session belongs to the parent process: open another one");
	return process_check_end(session);
}
