/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One RDMA connection: its rdma_cm id, queue pair, completion queue, receive
 * buffers, credits and what both ends said in their private data. It knows
 * nothing of RPC: a role, client or server, gives it an owner and a table of
 * functions.
 *
 * Life: nfr_conn_open() or nfr_conn_accept(), any number of sends and receives,
 * nfr_conn_break() by whoever sees it fail first, nfr_conn_drain(),
 * nfr_conn_free(). Between drain and free no peer can reach any memory, and no
 * completion comes.
 */
#ifndef NFSRDMA_CONNECTION_H
#define NFSRDMA_CONNECTION_H

#include <linux/completion.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "params.h"
#include "registration.h"
#include "wire.h"

/* Receives kept for calls of the server: RFC 8167, section 4 */
#define NFR_CALLBACK_CREDITS	8

/* Completions taken from the queue at once, and receives posted at once */
#define NFR_BATCH		16

/* Receives beyond one per credit: for the peer's calls, for batches, and for draining */
#define NFR_QUEUE_SPARE		(NFR_CALLBACK_CREDITS + 3 * NFR_BATCH + 1)

/* One send request in this many is signaled */
#define NFR_SIGNAL_EVERY	16

/*
 * How memory is allocated. Small allocations that may block do not fail: they
 * reclaim for ever, and what is to be reclaimed may be dirty pages of a mount
 * whose server is this host.
 */
/* Where completions are handled: all that this connection waits for comes from there */
#define NFR_GFP_COMPLETION	(GFP_NOWAIT | __GFP_NOWARN)
/* Where failing costs a delay: the caller, or sunrpc, tries again */
#define NFR_GFP_RETRIED		(GFP_NOIO | __GFP_NORETRY | __GFP_NOWARN)
/* Where failing costs the connection */
#define NFR_GFP_ONCE		(GFP_NOIO | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

/* What a connection's header decoder has room for */
#define NFR_DECODE_CHUNKS	8
#define NFR_DECODE_SEGS		64

struct nfr_conn;
struct nfr_personality;

/* A posted receive: one message, in a buffer that stays mapped */
struct nfr_recv {
	struct list_head list;	/* received, to be posted again */
	struct list_head all;
	struct ib_cqe cqe;
	struct ib_recv_wr wr;
	struct ib_sge sge;
	struct nfr_conn *conn;
	void *data;
	u32 length;		/* bytes that came */
	u32 invalidated;	/* the key the peer invalidated */
	bool has_invalidated;
};

/**
 * struct nfr_conn_ops - what an owner does when its connection calls
 * @receive: a message came; nfr_recv_return() returns its buffer
 * @writable: room for sends, credits or memory regions came back
 * @broken: the connection failed; called once, in any context
 * @unanswered: the reason when Calls stay without a reply, see nfr_conn_lost()
 */
struct nfr_conn_ops {
	void (*receive)(struct nfr_conn *conn, struct nfr_recv *recv);
	void (*writable)(struct nfr_conn *conn);
	void (*broken)(struct nfr_conn *conn);
	const char *unanswered;
};

enum nfr_conn_state {
	NFR_CONN_OPENING,
	NFR_CONN_UP,
	NFR_CONN_BROKEN,
};

/* Counts of send work requests, all under nfr_conn.lock */
struct nfr_send_queue {
	bool closed;		/* nothing is posted any more */
	u32 size;
	u32 posted;		/* ever */
	u32 retired;		/* of these, known to be done */
	u32 reserved;		/* promised to invalidations to come */
	u32 last_signaled;	/* value of @posted then */
	u32 *marks;		/* ring of @posted at each signaled request */
	u32 ring;		/* its size */
	u32 needed;		/* by the Call that found it too full */
	u32 marks_head;
	u32 marks_tail;
};

/* A Call that was given up */
struct nfr_lost_call {
	u32 xid;
	unsigned long since;	/* jiffies */
};

/* Calls that were given up, the oldest first, all under nfr_conn.lock */
struct nfr_lost {
	struct nfr_lost_call *calls;
	u32 count;
	u32 *early;		/* xids of replies that came too soon */
	u32 nearly;
	u32 room;		/* in each, one for each credit */
	struct delayed_work work;
};

/**
 * struct nfr_conn - a connection
 * @owner: the transport it belongs to
 * @id_number: the owner's number in traces
 * @generation: tells connections of one owner apart
 * @wanted: the tunables, read when it was made
 * @receives: to be posted at first
 * @sends: work requests that the send queue is to hold; @least_sends: and must hold
 * @send_sges: pieces of memory in one of them
 * @rw_contexts: RDMA Reads and Writes of this side that may be under way
 * @step_timeout: one step of connecting may take so long, jiffies
 * @send_size: largest message the peer takes inline, bytes
 * @recv_size: largest message this side takes inline, bytes
 * @inflight: Calls sent that have no reply yet
 * @lost: Calls given up, whose replies have to come; see connection_lost.c
 * @granted: Calls the peer allows to be in flight
 * @reason: why it broke
 */
struct nfr_conn {
	void *owner;
	const struct nfr_conn_ops *ops;
	u32 id_number;
	u32 generation;
	struct nfr_params wanted;
	u32 receives;
	u32 sends;
	u32 least_sends;
	u32 send_sges;
	u32 rw_contexts;
	unsigned long step_timeout;

	struct rdma_cm_id *id;
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct work_struct poll_work;
	struct work_struct event_work;
	struct work_struct fence_work;
	const char *event;
	struct ib_wc wcs[NFR_BATCH];
	bool queues_end;	/* they are being destroyed: no worker may use them any more */

	struct completion step;
	int step_status;
	atomic_t state;
	const char *reason;

	u32 send_size;
	u32 recv_size;

	spinlock_t lock;
	struct nfr_send_queue sq;
	struct ib_cqe signal_cqe;
	u32 inflight;
	struct nfr_lost lost;
	u32 granted;
	u64 replies;

	struct list_head recvs;
	u32 recvs_back;
	struct list_head all_recvs;
	u32 recv_total;
	struct nfr_pool pool;

	struct nfr_chunk chunks[NFR_DECODE_CHUNKS];
	struct nfr_segment segs[NFR_DECODE_SEGS];
};

/* connection.c */
extern const char nfr_conn_flushed[];
int nfr_conn_fit_queue(struct nfr_conn *conn, u32 chain);
int nfr_conn_open(struct nfr_conn *conn, struct net *net, struct sockaddr *peer);
void nfr_conn_adopt(struct nfr_conn *conn, struct rdma_cm_id *id);
int nfr_conn_accept(struct nfr_conn *conn, bool remote_invalidation, u32 depth);
void nfr_conn_break(struct nfr_conn *conn, const char *reason);
void nfr_conn_drain(struct nfr_conn *conn);
void nfr_conn_free(struct nfr_conn *conn);

static inline bool nfr_conn_is_up(const struct nfr_conn *conn)
{
	return atomic_read(&conn->state) == NFR_CONN_UP;
}

/* connection_lost.c */
void nfr_conn_lost(struct nfr_conn *conn, u32 xid);
void nfr_conn_found(struct nfr_conn *conn, u32 xid);
void nfr_lost_init(struct nfr_conn *conn);
int nfr_lost_create(struct nfr_conn *conn);
void nfr_lost_destroy(struct nfr_conn *conn);

/* connection_work.c */
int nfr_conn_start(void);
void nfr_conn_stop(void);
void nfr_conn_flush(void);
void nfr_conn_queue(struct delayed_work *work, unsigned long delay);
void nfr_conn_hurry(struct delayed_work *work);
void nfr_conn_refill(struct nfr_conn *conn, unsigned long delay);
void nfr_conn_event_later(struct nfr_conn *conn, const char *reason);

/* connection_cm.c */
void nfr_cm_agree(struct nfr_conn *conn, const struct nfr_private *peer);
int nfr_cm_event(struct rdma_cm_id *id, struct rdma_cm_event *event);
int nfr_cm_resolve(struct nfr_conn *conn, struct sockaddr *peer);
int nfr_cm_connect(struct nfr_conn *conn);
int nfr_cm_accept(struct nfr_conn *conn, bool remote_invalidation, u32 depth);

/* connection_queue.c */
int nfr_queue_start(void);
void nfr_queue_stop(void);
void nfr_queue_init(struct nfr_conn *conn);
int nfr_queue_create(struct nfr_conn *conn);
void nfr_queue_fence(struct nfr_conn *conn);
void nfr_queue_quiesce(struct nfr_conn *conn);
void nfr_queue_destroy(struct nfr_conn *conn);

/* connection_recv.c */
int nfr_recv_more(struct nfr_conn *conn, gfp_t gfp);
void nfr_recv_return(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_recv_free_all(struct nfr_conn *conn);
int nfr_queue_credit(struct nfr_conn *conn);
void nfr_queue_credit_back(struct nfr_conn *conn);
void nfr_queue_grant(struct nfr_conn *conn, u32 credits);

/* connection_send.c */
int nfr_sq_create(struct nfr_conn *conn, u32 size);
void nfr_sq_close(struct nfr_conn *conn);
void nfr_sq_destroy(struct nfr_conn *conn);
bool nfr_queue_has_room(struct nfr_conn *conn);
int nfr_queue_send(struct nfr_conn *conn, u32 xid, struct list_head *mrs, struct ib_sge *sge,
		   bool signal);
int nfr_queue_post(struct nfr_conn *conn, struct ib_send_wr *first, struct ib_send_wr *last,
		   u32 count, bool signal);
int nfr_queue_invalidate(struct nfr_conn *conn, struct list_head *mrs, struct ib_cqe *done);
void nfr_queue_unreserve(struct nfr_conn *conn, u32 count);
u32 nfr_queue_mark(struct nfr_conn *conn);
bool nfr_queue_is_retired(struct nfr_conn *conn, u32 mark);
void nfr_queue_failed(struct nfr_conn *conn, const struct ib_wc *wc);
bool nfr_queue_check(struct nfr_conn *conn, const struct ib_wc *wc);

#endif
