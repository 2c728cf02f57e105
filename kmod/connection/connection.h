/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * RDMA connection: rdma_cm id, queue pair, completion queue, receive buffers,
 * credits, and the private data of both ends. It is independent of RPC and of
 * memory regions: a client or a server transport owns it, provides the
 * operations, and passes ready chains of work requests.
 *
 * Lifetime: nfr_conn_init(), nfr_conn_resolve() and nfr_conn_connect(), or nfr_conn_adopt() and
 * nfr_conn_accept(); sends and receives, nfr_conn_break() on the first failure, nfr_conn_drain(),
 * nfr_conn_end(), nfr_conn_free(). After nfr_conn_drain() no completion occurs. After
 * nfr_conn_end() the peer cannot access memory by this connection.
 */
#ifndef NFSRDMA_CONNECTION_H
#define NFSRDMA_CONNECTION_H

#include <linux/completion.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "params.h"
#include "proof.h"
#include "wire/wire.h"
#include "work.h"

/* Receives reserved for Calls of the server: RFC 8167, section 4 */
#define NFR_CALLBACK_CREDITS	8

/* Completions to poll, and receives to allocate, in one batch */
#define NFR_BATCH		16

/* Receives to post again in one batch, with one doorbell */
#define NFR_REPOST		8

/* Receives beyond one per credit: for Calls of the peer, for batches, and for draining */
#define NFR_QUEUE_SPARE		(NFR_CALLBACK_CREDITS + 3 * NFR_BATCH + 1)

/* One in this many send work requests is signaled */
#define NFR_SIGNAL_EVERY	16

/* Disconnect reason of a device that this module cannot use */
#define NFR_CONN_SMALL		"the limits of the device are too low"

struct nfr_conn;

/* Posted receive: one message, in a buffer that stays mapped */
struct nfr_recv {
	struct list_head list;	/* link while waiting to be reposted */
	struct list_head all;
	struct ib_cqe cqe;
	struct ib_recv_wr wr;
	struct ib_sge sge;
	struct nfr_conn *conn;
	void *data;
	u32 length;		/* of the message, in bytes */
	u32 invalidated;	/* key that the peer invalidated */
	bool has_invalidated;
	struct page **pages;	/* of padded data, behind the first bytes; or NULL */
};

/**
 * struct nfr_conn_ops - operations that the owner of a connection provides
 * @receive: handle a message; the owner calls nfr_conn_recv_return() when it is done
 * @writable: room for sends, or credits, became available
 * @broken: the connection failed; called once, in any context
 * @refused: the peer's device refused a message; called after @broken, or NULL
 * @sent: poll for completions of sends; only for connections with polled_sends
 * @unanswered: disconnect reason for Calls without a reply, see nfr_conn_abandon()
 * @softirq: the operations, and all completion handlers of the owner, may run in
 *	softirq context
 */
struct nfr_conn_ops {
	void (*receive)(struct nfr_conn *conn, struct nfr_recv *recv);
	void (*writable)(struct nfr_conn *conn);
	void (*broken)(struct nfr_conn *conn);
	void (*refused)(struct nfr_conn *conn);
	void (*sent)(struct nfr_conn *conn);
	const char *unanswered;
	bool softirq;
};

enum nfr_conn_state {
	NFR_CONN_OPENING,
	NFR_CONN_UP,
	NFR_CONN_BROKEN,
};

/**
 * struct nfr_profile - what the owner of a connection requires of it
 * @receives: number of receives to post initially
 * @sends: preferred size of the send queue, in work requests
 * @least_sends: minimum size of the send queue, see nfr_conn_fit_queue()
 * @send_sges: scatter-gather elements per send work request
 * @recv_sges: scatter-gather elements per receive work request
 * @recv_data: bytes of each receive that begin with a page, behind NFR_PADDED_ALIGN
 *	others; 0 if the receives are as small as inline messages
 * @rw_contexts: preferred number of concurrent RDMA Reads and Writes of this side
 * @least_contexts: minimum of that number
 * @dones: number of receives for Done messages, beyond those for credits
 * @reads_served: number of concurrent RDMA Reads that this side accepts
 * @reads_issued: number of concurrent RDMA Reads that this side issues
 * @polled_sends: send work requests complete in a queue of their own, which the owner
 *	polls, see nfr_conn_sends_poll()
 * @offers: capability bits of the personality of this side, beside its own
 * @private: private data of this side; its inline sizes are those of
 *	nfr_conn.wanted
 */
struct nfr_profile {
	u32 receives;
	u32 sends;
	u32 least_sends;
	u32 send_sges;
	u32 recv_sges;
	u32 recv_data;
	u32 rw_contexts;
	u32 least_contexts;
	u32 dones;
	u32 reads_served;
	u32 reads_issued;
	bool polled_sends;
	u32 offers;
	struct nfr_private private;
};

/* Accounting of send work requests; nfr_conn.lock protects it */
struct nfr_send_queue {
	bool closed;		/* no more posting */
	u32 size;
	u32 posted;		/* total number, free-running */
	u32 retired;		/* of @posted, known to be complete */
	u32 reserved;		/* for chains to come */
	u32 last_signaled;	/* value of @posted at that time */
	u32 *marks;		/* ring: @posted at each signaled request */
	u32 ring;		/* number of elements in @marks */
	u32 needed;		/* room that the last rejected Call needs */
	u32 marks_head;
	u32 marks_tail;
};

/* A Call that its task abandoned */
struct nfr_abandoned_call {
	u32 xid;
	unsigned long since;	/* jiffies */
	void *kept;		/* what its owner keeps until the reply, or NULL */
};

/* Reply to an abandoned Call, or one that came before nfr_conn_abandon() */
struct nfr_late_reply {
	u32 xid;
	u32 invalidated;	/* key that the peer invalidated */
	bool has_invalidated;
};

/* Abandoned Calls, oldest first; nfr_conn.lock protects the lists */
struct nfr_abandoned {
	struct nfr_abandoned_call *calls;
	u32 count;
	struct nfr_late_reply *early;	/* replies that came before nfr_conn_abandon() */
	u32 nearly;
	u32 room;		/* capacity of each array: one per credit */
	struct delayed_work work;
};

/* Last work request of a queue that is being drained */
struct nfr_conn_last {
	struct ib_cqe cqe;
	struct completion done;
};

/**
 * struct nfr_conn - RDMA connection
 * @owner: transport that owns the connection
 * @ops: operations of the owner
 * @id_number: number of the owner in trace events
 * @generation: distinguishes the connections of one owner
 * @wanted: module parameters at the time of creation
 * @profile: what the owner requires
 * @peer: private data of the peer
 * @step_timeout: timeout for each step of connecting, in jiffies
 * @id: rdma_cm id
 * @device: RDMA device
 * @pd: protection domain
 * @cq: completion queue
 * @send_cq: completion queue of sends: @cq, unless the owner polls for them
 * @poll_work: work that polls @cq
 * @poll_queue: workqueue of @poll_work
 * @sent_work: work that polls @send_cq
 * @event_work: work that breaks the connection for an interrupt
 * @fence_work: work that moves the queue pair to the error state
 * @event: disconnect reason for @event_work
 * @wcs: batch of work completions, for @poll_work
 * @of_device: link in the list of connections with queues
 * @device_failed: the device has reported a fatal error; completions may never come
 * @device_ends: the device has reported a fatal error, or is being removed; memory does not wait
 *	for ever for what it refuses
 * @queues_end: the queues are being destroyed; workers must not use them
 * @ending: serializes the fence and the end of the queue pair
 * @proof: what the end of the connection has achieved; @ending protects it
 * @last: last work request of the send queue and of the receive queue
 * @step: wait for a step of connecting
 * @step_status: result of that step
 * @state: enum nfr_conn_state
 * @reason: disconnect reason
 * @send_size: largest message that the peer receives inline, in bytes
 * @recv_size: largest message that this side receives inline, in bytes
 * @recv_room: size of each receive in bytes, for as long as the connection lasts, see
 *	nfr_profile.recv_data for others
 * @lock: protects @sq, @inflight, @abandoned, @granted, @recvs and @recvs_back
 * @sq: accounting of the send queue
 * @signal_cqe: completion of signaled work requests without a handler of their
 *	own
 * @inflight: number of Calls without a Reply
 * @abandoned: abandoned Calls whose Replies are pending, see queues.c
 * @granted: number of Calls that the peer allows in flight
 * @recvs: receives to repost
 * @recvs_back: number of @recvs
 * @all_recvs: all receives
 * @recv_total: number of @all_recvs
 */
struct nfr_conn {
	void *owner;
	const struct nfr_conn_ops *ops;
	u32 id_number;
	u32 generation;
	struct nfr_params wanted;
	struct nfr_profile profile;
	struct nfr_private peer;
	unsigned long step_timeout;

	struct rdma_cm_id *id;
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_cq *send_cq;
	struct work_struct poll_work;
	struct workqueue_struct *poll_queue;
	struct work_struct sent_work;
	struct work_struct event_work;
	struct work_struct fence_work;
	const char *event;
	struct ib_wc wcs[NFR_BATCH];
	struct list_head of_device;
	bool device_failed;
	bool device_ends;
	bool queues_end;
	struct mutex ending;		/* serializes the fence and the end */
	enum nfr_proof proof;
	struct nfr_conn_last last[2];

	struct completion step;
	int step_status;
	atomic_t state;
	const char *reason;

	u32 send_size;
	u32 recv_size;
	u32 recv_room;

	spinlock_t lock;		/* protects queues, credits and receives */
	struct nfr_send_queue sq;
	struct ib_cqe signal_cqe;
	u32 inflight;
	struct nfr_abandoned abandoned;
	u32 granted;

	struct list_head recvs;
	u32 recvs_back;
	struct list_head all_recvs;
	u32 recv_total;
};

static inline bool nfr_conn_is_up(const struct nfr_conn *conn)
{
	return atomic_read(&conn->state) == NFR_CONN_UP;
}

static inline bool nfr_conn_polls_in_softirq(const struct nfr_conn *conn)
{
	return conn->poll_queue == nfr_work_softirq;
}

#endif
