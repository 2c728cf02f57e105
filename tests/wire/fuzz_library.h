/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The fuzzed programs of libnfsrdma have this session, over a device that does nothing by itself. */
#ifndef FUZZ_LIBRARY_H
#define FUZZ_LIBRARY_H

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include "library.h"

#define KEY	0x1234
#define BUFFER	65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int fuzz_clock(clockid_t clock, struct timespec *now);
int fuzz_epoll(int fd, struct epoll_event *events, int most, int timeout);

static struct ibv_mr mr = { .lkey = KEY, .rkey = KEY };
static struct nfsrdma_session session;

static void check(bool condition)
{
	if (!condition)
		abort();
}

static int notify(struct ibv_cq *cq, int solicited)
{
	(void)cq, (void)solicited;
	return 0;
}

/* Requests and memory of a session that has both; it is up afterwards */
static void connected(struct ibv_context *context, struct ibv_qp *qp)
{
	static struct ibv_cq cq;
	static struct rdma_event_channel events = { .fd = -1 };
	static struct ibv_pd pd;

	qp->context = cq.context = context;
	session.send_size = session.recv_size = session.options.inline_size;
	session.events = &events;
	session.qp = qp;
	session.cq = &cq;
	session.pd = &pd;
	session.messages_mr = session.arena_mr = &mr;
	session.armed = true;
	session.reports = &session_reports;
	check(!reply_opened(&session));
	session.link = LINK_UP;
}

/* All memory and all requests have to be free again */
static void close_session(void)
{
	uint32_t i;

	check(!session.arena_used);
	/* but that of NFSv4.1's own calls */
	for (i = 0; i < session.nslots; i++)
		check(session.slots[i].state == REQUEST_FREE || &session.slots[i] == session.nfs4.setup);
	session.regions = NULL;
	memory_free(&session);
	inodes_free(&session);
	requests_free(&session);
}

/* --- what the library links, and no input reaches --- */

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *user,
		   enum rdma_port_space ps)
{
	(void)channel, (void)id, (void)user, (void)ps;
	errno = ENODEV;
	return -1;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	(void)channel, (void)event;
	errno = EAGAIN;
	return -1;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	(void)cq;
	return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	(void)status;
	return "the connection is gone";
}

#endif /* FUZZ_LIBRARY_H */
