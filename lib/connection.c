// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * From the address of a server to a queue pair, and its end.
 *
 * The events of rdma_cm(7) move a connection from one state to the next, so that no call waits here: the
 * loop of wait.c sleeps until an event or a message arrives.  What becomes of a connection is reported by the
 * functions of struct reports.
 *
 * librdmacm keeps an open device for each process, which a child of fork(2) inherits and cannot close without
 * harm to its own connections.  Each session therefore opens the device again and moves its queue pair through
 * its states by itself; the child closes that device's descriptors, and a server sees the end of the connection
 * when the parent ends.
 *
 * optimistic.c makes the second connection of a session in the same way.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "library.h"

/* Milliseconds */
#define RESOLVE_TIMEOUT	5000
#define DELAY_MIN	100
#define DELAY_MAX	5000

/* Attempts to connect that the timeout of the session has time for, if the server answers none */
#define ATTEMPTS	4

#define UNANSWERED	"the server does not answer over RDMA"
#define REFUSED		"the server refuses RDMA connections on this port"

/* Ports that only a privileged process may use, as far as bindresvport(3) goes down */
#define PORT_FIRST	665
#define PORT_LAST	1023

static uint32_t first_patience(const struct nfsrdma_session *session)
{
	return session->options.timeout / ATTEMPTS + 1;
}

static bool watch_descriptor(struct nfsrdma_session *session, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};

	return !fcntl(fd, F_SETFL, O_NONBLOCK) && !epoll_ctl(session->epoll, EPOLL_CTL_ADD, fd, &event);
}

static int open_descriptors(struct nfsrdma_session *session)
{
	session->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (session->epoll < 0)
		return fail(-errno, "epoll_create1: %s", strerror(errno));
	session->events = rdma_create_event_channel();
	if (!session->events)
		return fail(-errno, "/dev/infiniband/rdma_cm: %s; is the module rdma_ucm loaded, and may this"
				    " user open it?", strerror(errno));
	if (!watch_descriptor(session, session->events->fd))
		return fail(-errno, "epoll_ctl: %s", strerror(errno));
	return 0;
}

/* Descriptors that stay until the end of the session */
int connection_open(struct nfsrdma_session *session)
{
	int rc;

	session->link_patience = first_patience(session);
	process_lock();
	rc = open_descriptors(session);
	process_unlock();
	return rc;
}

/* Have another descriptor for completions that no message brings; 0, or a negative errno value */
int connection_use_fd(struct nfsrdma_session *session)
{
	int rc = 0;

	if (session->wake >= 0)
		return 0;
	process_lock();
	session->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (session->wake < 0 || !watch_descriptor(session, session->wake)) {
		rc = fail(-errno, "eventfd: %s", strerror(errno));
		if (session->wake >= 0)
			close(session->wake);
		session->wake = -1;
	}
	process_unlock();
	return rc;
}

/* Make the descriptor of the session readable */
void connection_wake(struct nfsrdma_session *session)
{
	uint64_t one = 1;

	session->woken = write(session->wake, &one, sizeof(one)) == sizeof(one);
}

/* The end of connection_wake() */
void connection_rest(struct nfsrdma_session *session)
{
	uint64_t count;

	if (session->woken)
		session->woken = read(session->wake, &count, sizeof(count)) != sizeof(count);
}

static void close_device(struct nfsrdma_session *session)
{
	memory_deregister(session);
	process_lock();
	if (session->context)
		ibv_close_device(session->context);
	session->context = NULL;
	process_unlock();
}

void connection_end(struct nfsrdma_session *session)
{
	connection_close(session);
	close_device(session);
	process_lock();
	if (session->events)
		rdma_destroy_event_channel(session->events);
	session->events = NULL;
	if (session->epoll >= 0)
		close(session->epoll);
	session->epoll = -1;
	if (session->wake >= 0)
		close(session->wake);
	session->wake = -1;
	process_unlock();
}

/* The peer reaches no memory of this process by the connection when this returns */
void connection_close(struct nfsrdma_session *session)
{
	session->reports->closing(session);
	if (session->id)
		rdma_disconnect(session->id);
	if (session->qp)
		ibv_destroy_qp(session->qp);
	if (session->cq)
		ibv_destroy_cq(session->cq);
	process_lock();
	if (session->channel)
		ibv_destroy_comp_channel(session->channel);
	session->channel = NULL;
	process_unlock();
	if (session->id)
		rdma_destroy_id(session->id);
	session->id = NULL;
	session->qp = NULL;
	session->cq = NULL;
	session->link = LINK_DOWN;
	session->armed = false;
	session->reports->closed(session);
}

/**
 * connection_lost - end a connection, or an attempt to connect
 * @session: session
 * @error: negative errno value that says why
 * @why: the same in words
 *
 * The requests wait for the next connection.  It begins at once if the server replied on this one, else after
 * a pause.
 */
void connection_lost(struct nfsrdma_session *session, int error, const char *why)
{
	session->link_error = fail(error, "%s: %s", session->host, why);
	connection_close(session);
	if (session->arriving) {
		session->link_delay = 0;
	} else {
		session->link_delay = session->link_delay ? session->link_delay * 2 : DELAY_MIN;
		if (session->link_delay > DELAY_MAX)
			session->link_delay = DELAY_MAX;
		session->link = LINK_PAUSE;
		session->link_retry = now_ms() + session->link_delay;
	}
	session->arriving = false;
}

/* Some servers accept privileged ports only: take one if this process may */
void connection_bind(struct nfsrdma_session *session, struct rdma_cm_id *id)
{
	struct sockaddr_storage any = {.ss_family = session->address.ss_family};
	uint32_t ports = PORT_LAST - PORT_FIRST + 1, first = 0, i;

	if (session->any_port)
		return;
	if (getrandom(&first, sizeof(first), 0) < 0)
		return;
	for (i = 0; i < ports; i++) {
		uint16_t port = htons(PORT_FIRST + (first % ports + i) % ports);

		if (any.ss_family == AF_INET)
			((struct sockaddr_in *)&any)->sin_port = port;
		else
			((struct sockaddr_in6 *)&any)->sin6_port = port;
		if (!rdma_bind_addr(id, (struct sockaddr *)&any) || errno != EADDRINUSE)
			return;
	}
}

/* A step towards a connection failed, with a message */
static void step_failed(struct nfsrdma_session *session, int error)
{
	char why[256];

	snprintf(why, sizeof(why), "%s", nfsrdma_message());
	connection_lost(session, error, why);
}

/* For a loopback address, rdma_cm takes any device: with RoCE this ends in ENODEV, with soft-iWARP in EINVAL */
static int no_route(int error)
{
	if (error == ENODEV || error == EINVAL)
		return fail(-ENODEV, "no RDMA device has a route to the server");
	return fail(-error, "%s", strerror(error));
}

void connection_start(struct nfsrdma_session *session)
{
	if (rdma_create_id(session->events, &session->id, session, RDMA_PS_TCP)) {
		session->id = NULL;
		connection_lost(session, -errno, strerror(errno));
		return;
	}
	connection_bind(session, session->id);
	session->link = LINK_ADDRESS;
	if (rdma_resolve_addr(session->id, NULL, (struct sockaddr *)&session->address,
			      RESOLVE_TIMEOUT))
		step_failed(session, no_route(errno));
}

/* --- events --- */

/* Move a queue pair to the next state; returns 0 or a negative errno value */
int connection_set_state(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};
	int mask;

	if (rdma_init_qp_attr(id, &attr, &mask))
		return -errno;
	return -ibv_modify_qp(qp, &attr, mask);
}

/* The device of the route: the one that the session has opened already, or another one */
static int open_device(struct nfsrdma_session *session)
{
	struct ibv_device *device = session->id->verbs->device;

	if (session->context && session->context->device != device)
		close_device(session);
	snprintf(session->device, sizeof(session->device), "%s", ibv_get_device_name(device));
	process_lock();
	if (!session->context)
		session->context = ibv_open_device(device);
	process_unlock();
	if (!session->context)
		return fail(-errno, "%s: %s; may this user open /dev/infiniband/uverbs*?",
			    session->device, strerror(errno));
	return session->pd ? 0 : memory_register(session, session->context);
}

static int create_queues(struct nfsrdma_session *session)
{
	int sends = session->nslots, receives = session->nreceives;
	int completions = sends + receives + session->more_completions;
	struct ibv_qp_init_attr attr = {
		.cap = {
			.max_send_wr = sends, .max_recv_wr = receives,
			.max_send_sge = 1, .max_recv_sge = 1,
		},
		.qp_type = IBV_QPT_RC,
	};

	process_lock();
	session->channel = ibv_create_comp_channel(session->context);
	process_unlock();
	if (!session->channel || !watch_descriptor(session, session->channel->fd))
		return -errno;
	session->cq = ibv_create_cq(session->context, completions, NULL, session->channel, 0);
	if (!session->cq)
		return -errno;
	attr.send_cq = session->cq;
	attr.recv_cq = session->cq;
	session->qp = ibv_create_qp(session->pd, &attr);
	if (!session->qp)
		return -errno;
	return connection_set_state(session->id, session->qp, IBV_QPS_INIT);
}

/**
 * connection_request - request a connection from the server
 * @id: id with a route
 * @qp: its queue pair
 * @wanted: what this end offers and requests
 * @served: RDMA Reads by the peer that this end serves at a time
 * @reads: RDMA Reads of this end at a time
 *
 * Return: 0, or a negative errno value.
 */
int connection_request(struct rdma_cm_id *id, struct ibv_qp *qp, const struct nfr_private *wanted,
		       uint8_t served, uint8_t reads)
{
	uint8_t private[NFR_WIRE_PRIVATE_MAX];
	struct rdma_conn_param param = {
		.private_data = private,
		.private_data_len = nfr_wire_encode_private(wanted, private),
		.responder_resources = served,
		.initiator_depth = reads,
		.retry_count = 6,
		.rnr_retry_count = 0,
		.qp_num = qp->qp_num,
	};

	return rdma_connect(id, &param) ? -errno : 0;
}

static int connect_server(struct nfsrdma_session *session)
{
	struct nfr_private wanted = {
		.send_size = session->options.inline_size,
		.recv_size = session->options.inline_size,
		.extended = true,
		.capabilities = session->offer.capabilities, .token = session->offer.token,
	};
	struct ibv_device_attr device;
	int rc = open_device(session);

	if (rc)
		return rc;
	rc = -ibv_query_device(session->context, &device);
	if (!rc)
		rc = create_queues(session);
	if (!rc)
		rc = session->reports->opened(session);
	if (rc)
		return fail(rc, "%s: no queue pair: %s", session->device, strerror(-rc));
	/* the server reads memory of this end, never the other way round */
	session->link = LINK_CONNECTING;
	/* nfsrdma_connect() makes one attempt, for as long as the timeout */
	session->link_retry = session->opening ? NEVER : now_ms() + session->link_patience;
	rc = connection_request(session->id, session->qp, &wanted,
				device.max_qp_rd_atom < 16 ? device.max_qp_rd_atom : 16, 0);
	/* soft-iWARP makes the TCP connection in this call; other devices report the refusal by an event */
	if (rc == -ECONNREFUSED)
		return fail(rc, REFUSED);
	return rc ? fail(rc, "rdma_connect: %s", strerror(-rc)) : 0;
}

/*
 * A server that restarts may forget the request, and neither end would ever report that.  One that has many clients may
 * only be slow: each attempt has twice the time of the last one.
 */
void connection_expire(struct nfsrdma_session *session)
{
	session->link_patience *= 2;
	if (session->link_patience > session->options.timeout)
		session->link_patience = session->options.timeout;
	connection_lost(session, -ETIMEDOUT, UNANSWERED);
}

/* iWARP devices connect by themselves, and report that they have */
int connection_complete(struct nfsrdma_session *session, struct rdma_cm_id *id, struct ibv_qp *qp)
{
	int rc = connection_set_state(id, qp, IBV_QPS_INIT);

	if (!rc)
		rc = connection_set_state(id, qp, IBV_QPS_RTR);
	if (!rc)
		rc = connection_set_state(id, qp, IBV_QPS_RTS);
	if (!rc)
		rc = rdma_establish(id) ? -errno : 0;
	return rc ? fail(rc, "%s: %s", session->device, strerror(-rc)) : 0;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void first_established(struct nfsrdma_session *session)
{
	session->send_size = least(session->options.inline_size, session->peer.recv_size);
	session->recv_size = least(session->options.inline_size, session->peer.send_size);
	session->link = LINK_UP;
	session->link_patience = first_patience(session);
	session->stats.connects++;
	session->reports->up(session);
}

static void first_failed(struct nfsrdma_session *session, enum rdma_cm_event_type type, int status)
{
	int error = status < 0 ? status : -EIO;
	const char *why = rdma_event_str(type);

	switch (type) {
	case RDMA_CM_EVENT_ADDR_ERROR:
		error = status == -ETIMEDOUT ? -EHOSTUNREACH : error;
		why = error == -ENODEV ? "no RDMA device has a route to the server" :
					 "the address cannot be resolved over an RDMA device";
		break;
	case RDMA_CM_EVENT_REJECTED:
		error = -ECONNREFUSED;
		why = REFUSED;
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		error = -ETIMEDOUT;
		why = UNANSWERED;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		error = -ECONNRESET;
		why = "the server disconnected";
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		error = -ENODEV;
		why = "the RDMA device was removed";
		break;
	default:
		break;
	}
	connection_lost(session, error, why);
	if (type == RDMA_CM_EVENT_DEVICE_REMOVAL)
		close_device(session);
}

static void first_event(struct nfsrdma_session *session, enum rdma_cm_event_type type, int status)
{
	int rc = 0;

	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		session->link = LINK_ROUTE;
		if (rdma_resolve_route(session->id, RESOLVE_TIMEOUT))
			rc = no_route(errno);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		rc = connect_server(session);
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		rc = connection_complete(session, session->id, session->qp);
		if (!rc)
			first_established(session);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		if (session->link == LINK_CONNECTING)
			first_established(session);
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
	case RDMA_CM_EVENT_ADDR_CHANGE:
		break;
	default:
		first_failed(session, type, status);
	}
	if (rc)
		step_failed(session, rc);
}

/* Handle the events that have arrived; does not wait */
void connection_event(struct nfsrdma_session *session)
{
	struct rdma_cm_event *event;

	while (!rdma_get_cm_event(session->events, &event)) {
		enum rdma_cm_event_type type = event->event;
		const struct rdma_conn_param *param = &event->param.conn;
		struct rdma_cm_id *id = event->id;
		int status = event->status;
		struct nfr_private peer;
		bool answer = type == RDMA_CM_EVENT_CONNECT_RESPONSE || type == RDMA_CM_EVENT_ESTABLISHED;

		if (answer)
			nfr_wire_decode_private(&peer, param->private_data, param->private_data_len);
		rdma_ack_cm_event(event);
		if (id != session->id) {
			session->reports->event(session, id, type, answer ? &peer : NULL);
			continue;
		}
		if (answer)
			session->peer = peer;
		first_event(session, type, status);
	}
}

/* --- completions --- */

/* Report what has arrived; returns the number of completions */
int connection_poll(struct nfsrdma_session *session)
{
	struct ibv_wc wcs[CONNECTION_POLL_MOST];
	int n;

	if (session->link != LINK_UP)
		return 0;
	n = ibv_poll_cq(session->cq, CONNECTION_POLL_MOST, wcs);
	if (n < 0) {
		connection_lost(session, -EIO, "the completion queue is broken");
		return 0;
	}
	if (n) {
		session->idle = 0;
		session->reports->completed(session, wcs, n);
	}
	return n;
}
