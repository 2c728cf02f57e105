// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whether a client is still there, and takes what it asked for. Looked at now
 * and then; RDMA has no timer of its own for a peer that is silent.
 */
#include "server.h"

/* Between two looks; what is wrong is known after twice as long */
#define NFR_SVC_WATCH	(20 * HZ)

/*
 * An empty RDMA Write touches no memory and wakes nobody, but it has to be
 * acknowledged: a client that went without a word has the queue pair fail.
 */
static int nfr_svc_probe(struct nfr_svc *svc)
{
	struct nfr_conn *conn = svc->conn;
	struct ib_rdma_wr probe = {
		.wr = { .wr_cqe = &conn->signal_cqe, .opcode = IB_WR_RDMA_WRITE },
	};

	nfr_svc_count(svc, probes, 1);
	return nfr_queue_post(conn, &probe.wr, &probe.wr, 1, true);
}

/*
 * A client that posts no receives, or takes no RDMA Reads, may have the device
 * try for ever, and all that is queued waits with it.
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
		nfr_conn_break(conn, "the client takes nothing");
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
 * nfr_svc_watch_init - prepare to watch a connection
 * @svc: new
 */
void nfr_svc_watch_init(struct nfr_svc *svc)
{
	INIT_DELAYED_WORK(&svc->watch, nfr_svc_watch);
}

/**
 * nfr_svc_watch_start - look at a connection after a while, and again until it breaks
 * @svc: accepted
 */
void nfr_svc_watch_start(struct nfr_svc *svc)
{
	nfr_conn_queue(&svc->watch, NFR_SVC_WATCH);
}
