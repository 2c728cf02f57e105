// SPDX-License-Identifier: GPL-2.0-only
/*
 * Use of the send queue by the server. nfr_svc_post() does not wait: a chain
 * that finds no room stays in @pending, in FIFO order, until completions make
 * room. A request whose chain ends with the Reply stays in @sent until the send
 * queue has retired it.
 */
#include "server/server.h"

/* Find the last work request of the chain at @req->first, and the length of the chain. */
static void nfr_svc_chain_ends(struct nfr_svc_req *req)
{
	struct ib_send_wr *wr;

	req->count = 0;
	for (wr = req->first; wr; wr = wr->next) {
		req->last = wr;
		req->count++;
	}
}

/**
 * nfr_svc_posted - break the connection if posting failed
 * @conn: connection; the caller must not hold its lock
 * @rc: result of nfr_conn_post(); -EAGAIN is no failure, because completions
 *	will make room
 */
void nfr_svc_posted(struct nfr_conn *conn, int rc)
{
	if (rc && rc != -EAGAIN)
		nfr_conn_break(conn, "posting a work request failed");
}

/* Returns 0, -EAGAIN if the queue is full, or -ENOTCONN. Caller holds the lock. */
static int nfr_svc_post_locked(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	rc = nfr_conn_post(conn, req->first, req->last, req->count, req->signal);
	if (rc || !req->replies)
		return rc;
	req->mark = nfr_conn_mark(conn);
	list_add_tail(&req->list, &svc->sent);
	return 0;
}

static int nfr_svc_post_pending(struct nfr_svc *svc)
{
	struct nfr_svc_req *req;
	int rc = 0;

	while (!rc && (req = list_first_entry_or_null(&svc->pending, struct nfr_svc_req, list))) {
		list_del_init(&req->list);
		rc = nfr_svc_post_locked(req);
		if (rc == -EAGAIN)
			list_add(&req->list, &svc->pending);
	}
	return rc;
}

/**
 * nfr_svc_post - post the operations and the Reply of a request, or queue them
 * @req: request with @first set
 *
 * On an error the request stays allocated until the connection is freed.
 */
void nfr_svc_post(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	nfr_svc_chain_ends(req);
	/* the latest work requests in the queue may be unsignaled and not retire */
	if (req->count > conn->sq.size - NFR_SIGNAL_EVERY) {
		nfr_conn_break(conn, "a Call exceeds the send queue");
		return;
	}
	spin_lock(&conn->lock);
	rc = list_empty(&svc->pending) ? nfr_svc_post_locked(req) : -EAGAIN;
	if (rc == -EAGAIN) {
		nfr_svc_count(svc, queue_waits, 1);
		list_add_tail(&req->list, &svc->pending);
	}
	spin_unlock(&conn->lock);
	nfr_svc_posted(conn, rc);
}

/**
 * nfr_svc_writable - release sent requests and post queued ones
 * @conn: connection
 *
 * Context: Completion handler.
 */
void nfr_svc_writable(struct nfr_conn *conn)
{
	struct nfr_svc *svc = conn->owner;
	struct nfr_svc_req *req, *next;
	LIST_HEAD(done);
	int rc;

	spin_lock(&conn->lock);
	list_for_each_entry_safe(req, next, &svc->sent, list) {
		if (!nfr_conn_is_retired(conn, req->mark))
			break;
		list_move_tail(&req->list, &done);
	}
	rc = nfr_svc_post_pending(svc);
	spin_unlock(&conn->lock);
	list_for_each_entry_safe(req, next, &done, list)
		nfr_svc_req_put(req);
	nfr_svc_posted(conn, rc);
}
