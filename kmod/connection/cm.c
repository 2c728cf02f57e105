// SPDX-License-Identifier: GPL-2.0-only
/* Connection setup with rdma_cm, one step at a time, and its event handler. */
#include "connection/connection.h"

static void nfr_cm_step(struct nfr_conn *conn, int status)
{
	conn->step_status = status;
	complete(&conn->step);
}

/**
 * nfr_cm_agree - set the inline sizes from the limits of both sides (RFC 8797, section 4)
 * @conn: connection with @wanted set
 * @peer: private data of the peer
 */
void nfr_cm_agree(struct nfr_conn *conn, const struct nfr_private *peer)
{
	conn->send_size = min(conn->wanted.inline_send, peer->recv_size);
	conn->recv_size = min(conn->wanted.inline_recv, peer->send_size);
}

static void nfr_cm_established(struct nfr_conn *conn, const struct rdma_conn_param *param)
{
	struct nfr_private peer;

	/* an accepting side has this information from the connection request */
	if (atomic_read(&conn->state) != NFR_CONN_OPENING)
		return;
	nfr_wire_decode_private(&peer, param->private_data, param->private_data_len);
	nfr_cm_agree(conn, &peer);
	if (atomic_cmpxchg(&conn->state, NFR_CONN_OPENING, NFR_CONN_UP) == NFR_CONN_OPENING)
		nfr_cm_step(conn, 0);
}

/* Translate a failed attempt to an errno that sunrpc retries */
static int nfr_cm_failure(const struct rdma_cm_event *event)
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

/**
 * nfr_cm_event - handle an rdma_cm event of a connection
 * @id: id of the connection
 * @event: event
 *
 * Return: 0, so that rdma_cm keeps the id; the owner destroys it.
 */
int nfr_cm_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct nfr_conn *conn = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		nfr_cm_step(conn, 0);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		nfr_cm_established(conn, &event->param.conn);
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
		nfr_cm_step(conn, nfr_cm_failure(event));
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		nfr_conn_break(conn, "disconnected by the peer");
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
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
static int nfr_cm_wait(struct nfr_conn *conn, int started)
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

/**
 * nfr_cm_resolve - resolve the device and the route to a peer
 * @conn: connection with an id
 * @peer: address of the peer
 *
 * Context: Sleeps.
 *
 * Return: 0 or a negative errno.
 */
int nfr_cm_resolve(struct nfr_conn *conn, struct sockaddr *peer)
{
	int timeout_ms = jiffies_to_msecs(conn->step_timeout);
	int rc;

	rc = nfr_cm_wait(conn, rdma_resolve_addr(conn->id, NULL, peer, timeout_ms));
	if (rc)
		return rc;
	conn->device = conn->id->device;
	return nfr_cm_wait(conn, rdma_resolve_route(conn->id, timeout_ms));
}

/* Set the private data of @param. @data has NFR_WIRE_PRIVATE bytes. */
static void nfr_cm_introduce(const struct nfr_conn *conn, bool remote_invalidation,
			     struct rdma_conn_param *param, u8 *data)
{
	struct nfr_private mine = {
		.remote_invalidation = remote_invalidation,
		.send_size = conn->wanted.inline_send,
		.recv_size = conn->wanted.inline_recv,
	};

	nfr_wire_encode_private(&mine, data);
	param->private_data = data;
	param->private_data_len = NFR_WIRE_PRIVATE;
}

/**
 * nfr_cm_connect - connect, and negotiate inline sizes
 * @conn: connection with queues
 *
 * Context: Sleeps.
 *
 * Return: 0 or a negative errno.
 */
int nfr_cm_connect(struct nfr_conn *conn)
{
	u8 private_data[NFR_WIRE_PRIVATE];
	struct rdma_conn_param param = {
		.retry_count = 6,
		/* RNR means a bug in credit accounting: do not hide it by retries */
		.rnr_retry_count = 0,
	};

	/* number of concurrent RDMA Reads that the server may issue */
	param.responder_resources = min_t(int, conn->device->attrs.max_qp_rd_atom, U8_MAX);
	nfr_cm_introduce(conn, conn->wanted.remote_invalidation, &param, private_data);
	return nfr_cm_wait(conn, rdma_connect(conn->id, &param));
}

/**
 * nfr_cm_accept - accept a connection
 * @conn: connection with queues, in state NFR_CONN_UP: the peer may send
 *	immediately
 * @remote_invalidation: whether to announce support for Send With Invalidate
 * @depth: number of concurrent RDMA Reads that the peer accepts
 *
 * Return: 0 or a negative errno.
 */
int nfr_cm_accept(struct nfr_conn *conn, bool remote_invalidation, u32 depth)
{
	struct rdma_conn_param param = { .rnr_retry_count = 0 };
	u8 private_data[NFR_WIRE_PRIVATE];
	int rc;

	param.initiator_depth = min_t(int, depth, conn->device->attrs.max_qp_init_rd_atom);
	nfr_cm_introduce(conn, remote_invalidation, &param, private_data);
	rdma_lock_handler(conn->id);
	rc = rdma_accept(conn->id, &param);
	rdma_unlock_handler(conn->id);
	return rc;
}
