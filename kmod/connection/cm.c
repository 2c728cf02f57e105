// SPDX-License-Identifier: GPL-2.0-only
/*
 * RDMA connections: set up with rdma_cm one step at a time, drained before their
 * resources are released.
 *
 * nfr_conn_resolve() and nfr_conn_connect() run in a worker and wait for one
 * rdma_cm event per step. Between them the owner sizes the queues and creates
 * them. nfr_conn_drain() waits until the device has flushed all work requests,
 * after which no completion occurs. A device may refuse that: nfr_conn_end() then destroys
 * the queue pair. Only then the owner releases its memory and frees the connection.
 */
#include <linux/random.h>
#include <linux/sunrpc/addr.h>
#include <net/sock.h>

#include "connection/cm.h"
#include "connection/connection.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "observe/trace.h"

/* --- rdma_cm --- */

static void nfr_conn_cm_step(struct nfr_conn *conn, int status)
{
	conn->step_status = status;
	complete(&conn->step);
}

/**
 * nfr_conn_meet - learn the properties of the peer, and set the inline sizes
 * @conn: connection with @wanted set
 * @param: parameters of the connection event
 *
 * The limits of both sides decide: RFC 8797, section 4.
 */
void nfr_conn_meet(struct nfr_conn *conn, const struct rdma_conn_param *param)
{
	struct nfr_private *peer = &conn->peer;

	nfr_wire_decode_private(peer, param->private_data, param->private_data_len);
	conn->send_size = min(conn->wanted.inline_send, peer->recv_size);
	conn->recv_size = min(conn->wanted.inline_recv, peer->send_size);
}

static void nfr_conn_cm_established(struct nfr_conn *conn, const struct rdma_conn_param *param)
{
	/* an accepting side has this information from the connection request */
	if (atomic_read(&conn->state) != NFR_CONN_OPENING)
		return;
	nfr_conn_meet(conn, param);
	if (atomic_cmpxchg(&conn->state, NFR_CONN_OPENING, NFR_CONN_UP) == NFR_CONN_OPENING)
		nfr_conn_cm_step(conn, 0);
}

/* Translate a failed attempt to an errno that sunrpc retries */
static int nfr_conn_cm_failure(const struct rdma_cm_event *event)
{
	switch (event->event) {
	case RDMA_CM_EVENT_REJECTED:
		return -ECONNREFUSED;
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		return -ENETUNREACH;
	default:
		return -EHOSTUNREACH;
	}
}

/* Handle an rdma_cm event. Returns 0, so that rdma_cm keeps the id; the owner destroys it. */
static int nfr_conn_cm_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct nfr_conn *conn = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		nfr_conn_cm_step(conn, 0);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		nfr_conn_cm_established(conn, &event->param.conn);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		if (nfr_conn_is_up(conn)) {
			nfr_conn_break(conn, rdma_event_msg(event->event));
			break;
		}
		conn->reason = rdma_event_msg(event->event);
		nfr_conn_cm_step(conn, nfr_conn_cm_failure(event));
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		nfr_conn_break(conn, nfr_conn_disconnected);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		WRITE_ONCE(conn->device_ends, true);
		nfr_conn_break(conn, "RDMA device removed");
		break;
	case RDMA_CM_EVENT_ADDR_CHANGE:
		nfr_conn_break(conn, "RDMA address changed");
		break;
	default:
		break;
	}
	return 0;
}

/* Wait for the event that ends a step. @started is the result of the rdma_cm call. */
static int nfr_conn_cm_wait(struct nfr_conn *conn, int started)
{
	if (started)
		return started;
	if (atomic_read(&conn->state) == NFR_CONN_BROKEN)
		return -ENOTCONN;
	if (!wait_for_completion_timeout(&conn->step, conn->step_timeout)) {
		conn->reason = "the connection attempt timed out";
		return -ETIMEDOUT;
	}
	reinit_completion(&conn->step);
	if (atomic_read(&conn->state) == NFR_CONN_BROKEN)
		return -ENOTCONN;
	return conn->step_status;
}

/* Set the private data of @param. @data has NFR_WIRE_PRIVATE_MAX bytes. */
static void nfr_conn_cm_introduce(const struct nfr_conn *conn, struct rdma_conn_param *param,
				  u8 *data)
{
	struct nfr_private mine = conn->profile.private;

	mine.send_size = conn->wanted.inline_send;
	mine.recv_size = conn->wanted.inline_recv;
	param->private_data = data;
	param->private_data_len = nfr_wire_encode_private(&mine, data);
}

/* --- limits of the device --- */

/**
 * nfr_conn_unfit - record why a device is unsuitable
 * @conn: connection
 * @reason: disconnect reason, a string constant
 *
 * Return: -EOPNOTSUPP.
 */
int nfr_conn_unfit(struct nfr_conn *conn, const char *reason)
{
	conn->reason = reason;
	return -EOPNOTSUPP;
}

/**
 * nfr_conn_fit_queue - limit credits to the depth of the device's queues
 * @conn: connection whose device is known
 * @chain: number of work requests of the largest message
 *
 * The send queue must hold two such chains: earlier work requests may be
 * unsignaled, and without a completion the wait for room would not end, see
 * nfr_conn_sq_take().
 *
 * Return: 0, or -EOPNOTSUPP if the queues of the device are too small.
 */
int nfr_conn_fit_queue(struct nfr_conn *conn, u32 chain)
{
	int deep = conn->device->attrs.max_qp_wr;
	int least = max_t(int, NFR_QUEUE_SPARE + 2, 2 * chain + 1);

	conn->profile.least_sends = 2 * chain;
	if (deep < least) {
		pr_err_ratelimited("nfsrdma: device %s: max_qp_wr is %d, expected at least %d\n",
				   conn->device->name, deep, least);
		return nfr_conn_unfit(conn, NFR_CONN_SMALL);
	}
	conn->wanted.credits = min_t(u32, conn->wanted.credits, deep - NFR_QUEUE_SPARE);
	return 0;
}

/* --- setup --- */

/**
 * nfr_conn_init - initialize a connection, which may break from now on
 * @conn: zeroed structure with owner, ops, numbers and @wanted set
 */
void nfr_conn_init(struct nfr_conn *conn)
{
	nfr_conn_state_init(conn);
	spin_lock_init(&conn->lock);
	INIT_LIST_HEAD(&conn->recvs);
	INIT_LIST_HEAD(&conn->all_recvs);
	nfr_conn_queues_init(conn);
	conn->granted = 1;
}

/* Reserved ports, the defaults of sunrpc's sockets: its sysctls are not exported */
#define NFR_CONN_PORT	665
#define NFR_CONN_PORTS	(PROT_SOCK - NFR_CONN_PORT)

/* rdma_cm takes the scope of a link-local address from the peer, unless the id is bound. */
static void nfr_conn_cm_scope(struct nfr_conn *conn, const struct sockaddr *peer)
{
	const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)peer;

	if (peer->sa_family == AF_INET6 && ipv6_addr_type(&sin6->sin6_addr) & IPV6_ADDR_LINKLOCAL)
		conn->id->route.addr.dev_addr.bound_dev_if = sin6->sin6_scope_id;
}

/*
 * Bind to a reserved port, which shows the peer that a process with CAP_NET_BIND_SERVICE made
 * the connection. Begin anywhere: the peer may still remember the port of the last connection.
 * Without a free one, rdma_cm chooses another port, and it is the peer that decides.
 */
static void nfr_conn_cm_reserve(struct nfr_conn *conn, const struct sockaddr *peer)
{
	struct sockaddr_storage any = { .ss_family = peer->sa_family };
	u32 i, first = get_random_u32() % NFR_CONN_PORTS;
	int rc = -EADDRINUSE;

	for (i = 0; i < NFR_CONN_PORTS && (rc == -EADDRINUSE || rc == -EADDRNOTAVAIL); i++) {
		rpc_set_port((struct sockaddr *)&any,
			     NFR_CONN_PORT + (first + i) % NFR_CONN_PORTS);
		rc = rdma_bind_addr(conn->id, (struct sockaddr *)&any);
	}
	if (!rc)
		nfr_conn_cm_scope(conn, peer);
}

/**
 * nfr_conn_resolve - find the device and the route to a peer
 * @conn: initialized connection
 * @net: network namespace
 * @peer: address of the peer
 * @reserved: use a reserved port, if one is free
 *
 * The caller has to call nfr_conn_drain(), nfr_conn_end() and nfr_conn_free() even after an
 * error.
 *
 * Context: Sleeps.
 *
 * Return: 0, or a negative errno that is valid for xprt_wake_pending_tasks().
 */
int nfr_conn_resolve(struct nfr_conn *conn, struct net *net, struct sockaddr *peer, bool reserved)
{
	int timeout_ms = jiffies_to_msecs(conn->step_timeout);
	int rc;

	conn->id = rdma_create_id(net, nfr_conn_cm_event, conn, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(conn->id)) {
		rc = PTR_ERR(conn->id);
		conn->id = NULL;
		return rc;
	}
	if (reserved)
		nfr_conn_cm_reserve(conn, peer);
	rc = nfr_conn_cm_wait(conn, rdma_resolve_addr(conn->id, NULL, peer, timeout_ms));
	if (rc)
		return rc;
	conn->device = conn->id->device;
	return nfr_conn_cm_wait(conn, rdma_resolve_route(conn->id, timeout_ms));
}

/**
 * nfr_conn_connect - connect, and negotiate inline sizes
 * @conn: connection with queues
 *
 * Context: Sleeps.
 *
 * Return: 0 or a negative errno.
 */
int nfr_conn_connect(struct nfr_conn *conn)
{
	u8 private_data[NFR_WIRE_PRIVATE_MAX];
	struct rdma_conn_param param = {
		.retry_count = 6,
		/* RNR means a bug in credit accounting: do not hide it by retries */
		.rnr_retry_count = 0,
		.responder_resources = conn->profile.reads_served,
		.initiator_depth = conn->profile.reads_issued,
	};

	nfr_conn_cm_introduce(conn, &param, private_data);
	return nfr_conn_cm_wait(conn, rdma_connect(conn->id, &param));
}

/**
 * nfr_conn_adopt - take over a connection that a peer requests
 * @conn: zeroed structure with owner, ops, numbers and @wanted set
 * @id: id of the connection request
 *
 * Context: rdma_cm event handler of @id.
 */
void nfr_conn_adopt(struct nfr_conn *conn, struct rdma_cm_id *id)
{
	nfr_conn_init(conn);
	conn->id = id;
	conn->device = id->device;
	id->context = conn;
	id->event_handler = nfr_conn_cm_event;
}

/* Accept in state NFR_CONN_UP: the peer may send immediately. */
static int nfr_conn_cm_accept(struct nfr_conn *conn)
{
	struct rdma_conn_param param = {
		.rnr_retry_count = 0,
		.responder_resources = conn->profile.reads_served,
		.initiator_depth = conn->profile.reads_issued,
	};
	u8 private_data[NFR_WIRE_PRIVATE_MAX];
	int rc;

	nfr_conn_cm_introduce(conn, &param, private_data);
	rdma_lock_handler(conn->id);
	rc = rdma_accept(conn->id, &param);
	rdma_unlock_handler(conn->id);
	return rc;
}

/**
 * nfr_conn_accept - accept the connection request of a peer
 * @conn: adopted connection with its profile set
 *
 * Messages may arrive before this function returns. The caller has to call
 * nfr_conn_drain() and nfr_conn_free() even after an error.
 *
 * Return: 0 or a negative errno.
 */
int nfr_conn_accept(struct nfr_conn *conn)
{
	int rc = nfr_conn_queues_create(conn);

	if (rc)
		return rc;
	if (atomic_cmpxchg(&conn->state, NFR_CONN_OPENING, NFR_CONN_UP) != NFR_CONN_OPENING)
		return -ENOTCONN;
	rc = nfr_conn_cm_accept(conn);
	/* lanes may have joined: the owner has to end them */
	if (rc)
		nfr_conn_break(conn, "accepting failed");
	return rc;
}

/* --- end --- */

/**
 * nfr_conn_drain - end the completions of a connection
 * @conn: connection, broken or not
 *
 * When this function returns, no completion handler runs. The owner has to stop its own work for
 * the connection, and to call nfr_conn_end(), before any memory returns.
 *
 * Context: Sleeps.
 *
 * Return: NFR_PROOF_DRAINED or more if all work requests are complete, and the peer cannot access
 * memory. Less if the device refused.
 */
enum nfr_proof nfr_conn_drain(struct nfr_conn *conn)
{
	static const char reason[] = "closed by this side";

	if (atomic_xchg(&conn->state, NFR_CONN_BROKEN) == NFR_CONN_UP) {
		WRITE_ONCE(conn->reason, reason);
		trace_nfsrdma_disconnect(conn, reason);
	}
	return nfr_conn_queues_drain(conn);
}

/**
 * nfr_conn_end - make sure that the peer cannot access memory by a connection
 * @conn: connection after nfr_conn_drain(), whose owner prepares nothing for its queue pair
 *
 * Context: Sleeps, until the device has destroyed the queue pair if it did not drain it.
 *
 * Return: NFR_PROOF_DRAINED; or NFR_PROOF_DESTROYED: then work requests are not complete, and
 * their handlers will not run. The owner has to end what waits for them.
 */
enum nfr_proof nfr_conn_end(struct nfr_conn *conn)
{
	return nfr_conn_queues_end(conn);
}

/**
 * nfr_conn_free - release the resources of a drained connection
 * @conn: connection; its owner frees the structure
 */
void nfr_conn_free(struct nfr_conn *conn)
{
	nfr_conn_queues_destroy(conn);
	if (conn->id)
		rdma_destroy_id(conn->id);
	nfr_conn_state_end(conn);
}
