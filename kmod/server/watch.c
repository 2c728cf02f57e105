// SPDX-License-Identifier: GPL-2.0-only
/*
 * Detect clients that are gone or that do not receive their Replies. The check
 * is periodic, because RDMA has no timer for an idle connection.
 */
#include "server/server.h"

/* Interval of the check; it takes up to two intervals to detect a failure */
#define NFR_SVC_WATCH	(20 * HZ)

/*
 * Probe an idle client with an empty RDMA Write: it does not access memory or
 * complete a receive, but needs an acknowledgment. If the client is gone, the
 * queue pair fails.
 */
static int nfr_svc_probe(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	struct ib_rdma_wr probe = {
		.wr = { .wr_cqe = &conn->signal_cqe, .opcode = IB_WR_RDMA_WRITE },
	};

	nfr_svc_count(svc, probes, 1);
	return nfr_conn_post(conn, &probe.wr, &probe.wr, 1, true);
}

/*
 * If a client posts no receives or does not serve RDMA Reads, the device may
 * retry forever, and everything behind in the send queue waits. Break the
 * connection if no completion occurred between two checks.
 */
static void nfr_svc_look(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	u64 calls = atomic64_read(&svc->counters.calls);
	bool waits, stuck;
	int rc = 0;

	spin_lock(&conn->lock);
	waits = conn->sq.marks_head != conn->sq.marks_tail;
	stuck = waits && svc->waited && conn->sq.marks_tail == svc->watched;
	if (!waits && calls == svc->heard)
		rc = nfr_svc_probe(svc);
	svc->waited = waits;
	svc->watched = conn->sq.marks_tail;
	svc->heard = calls;
	spin_unlock(&conn->lock);
	if (stuck)
		nfr_conn_break(conn, "the send queue is stalled");
	nfr_svc_posted(conn, rc);
}

static void nfr_svc_watch(struct work_struct *work)
{
	struct nfr_svc *svc = container_of(work, struct nfr_svc, watch.work);

	if (!nfr_conn_is_up(svc->conn))
		return;
	nfr_svc_look(svc);
	nfr_svc_watch_start(svc);
}

/**
 * nfr_svc_watch_init - initialize the periodic check
 * @svc: new connection
 */
void nfr_svc_watch_init(struct nfr_svc *svc)
{
	INIT_DELAYED_WORK(&svc->watch, nfr_svc_watch);
}

/**
 * nfr_svc_watch_start - schedule the next check
 * @svc: accepted connection
 *
 * The check reschedules itself until the connection breaks.
 */
void nfr_svc_watch_start(struct nfr_svc *svc)
{
	nfr_work_queue(&svc->watch, NFR_SVC_WATCH);
}
