// SPDX-License-Identifier: GPL-2.0-only
/*
 * The server's use of the send queue. Whoever has something to post leaves it
 * here and goes on: what finds no room waits in @pending, in order, and is
 * posted when completions make room. What ends with a reply stays in @sent
 * until the queue has passed it.
 */
#include "server.h"

/* Work requests of the chain at @req->first; finds the last one */
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
 * nfr_svc_posted - what comes of posting: a full queue will move on, anything else has failed
 * @conn: the connection, its lock not held
 * @rc: from nfr_queue_post()
 */
void nfr_svc_posted(struct nfr_conn *conn, int rc)
{
	if (rc && rc != -EAGAIN)
		nfr_conn_break(conn, "posting failed");
}

/* Returns 0, -EAGAIN when the queue is full, or -ENOTCONN. The lock is held. */
static int nfr_svc_post_locked(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	rc = nfr_queue_post(conn, req->first, req->last, req->count, req->signal);
	if (rc || !req->replies)
		return rc;
	req->mark = nfr_queue_mark(conn);
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
 * nfr_svc_post - post a request's operations and its reply, now or when there is room
 * @req: with @first set; on an error it stays until the connection is freed
 */
void nfr_svc_post(struct nfr_svc_req *req)
{
	struct nfr_svc *svc = req->svc;
	struct nfr_conn *conn = svc->conn;
	int rc;

	nfr_svc_chain_ends(req);
	/* the last ones posted may have had no reason to be signaled */
	if (req->count > conn->sq.size - NFR_SIGNAL_EVERY) {
		nfr_conn_break(conn, "a call has too many segments for the send queue");
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
 * nfr_svc_writable - the send queue has moved on
 * @conn: the connection; called where completions are handled
 */
void nfr_svc_writable(struct nfr_conn *conn)
{
	struct nfr_svc *svc = conn->owner;
	struct nfr_svc_req *req, *next;
	LIST_HEAD(done);
	int rc;

	spin_lock(&conn->lock);
	list_for_each_entry_safe(req, next, &svc->sent, list) {
		if (!nfr_queue_is_retired(conn, req->mark))
			break;
		list_move_tail(&req->list, &done);
	}
	rc = nfr_svc_post_pending(svc);
	spin_unlock(&conn->lock);
	list_for_each_entry_safe(req, next, &done, list)
		nfr_svc_req_put(req);
	nfr_svc_posted(conn, rc);
}
