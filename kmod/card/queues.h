/* SPDX-License-Identifier: GPL-2.0-only */
/* Queue pairs: requests, rings, and the engine that executes them. */
#ifndef NFSRDMA_CARD_QUEUES_H
#define NFSRDMA_CARD_QUEUES_H

#include "memory.h"

/**
 * struct card_send - send request in its ring
 * @wr_id: id that the consumer gave
 * @opcode: IB_WR_...
 * @flags: IB_SEND_..., signaled for all requests if the queue pair requires it
 * @status: result
 * @fatal: a failure of this request breaks the queue pair
 * @unanswered: the request was sent, and no answer came
 * @paid: the time of its cache misses has passed
 * @looked_up: the peer's card has looked up the state of its queue pair
 * @num_sge: number of elements in @sge; 0 for inline data
 * @length: length of the message in bytes
 * @moved: bytes copied
 * @exec_at: time at which the peer acts on it; 0 for immediately
 * @reply: nanoseconds until the peer's answer arrives
 * @done_at: time of completion
 * @imm: immediate data
 * @key: key to invalidate or to register
 * @remote_addr: address of a Read or Write
 * @rkey: key of a Read or Write
 * @mr: index of the region to register
 * @access: access rights of the region to register
 * @path: path of a datagram
 * @qpn: destination queue pair of a datagram
 * @qkey: queue key of a datagram
 * @sge: scatter-gather list
 * @data: inline data
 */
struct card_send {
	u64 wr_id;
	enum ib_wr_opcode opcode;
	int flags;
	enum ib_wc_status status;
	bool fatal;
	bool unanswered;
	bool paid;
	bool looked_up;
	u8 num_sge;
	u32 length;
	u32 moved;
	u64 exec_at;
	u64 reply;
	u64 done_at;
	union {
		__be32 imm;
		u32 key;
	};
	union {
		struct {
			u64 remote_addr;
			u32 rkey;
		};
		struct {
			u32 mr;
			int access;
		};
		struct {
			struct card_path path;
			u32 qpn;
			u32 qkey;
		};
	};
	union {
		DECLARE_FLEX_ARRAY(struct ib_sge, sge);
		DECLARE_FLEX_ARRAY(u8, data);
	};
};

/* Receive request in its ring */
struct card_recv {
	u64 wr_id;
	u64 length;
	u32 num_sge;
	struct ib_sge sge[];
};

/**
 * struct card_ring - requests in order of posting
 * @slots: @size slots of @stride bytes
 * @size: a power of two
 * @limit: number of requests that may be in the ring, at most @size
 * @stride: in bytes
 * @head: number of requests posted, free-running
 * @tail: number of requests completed, free-running
 * @freed: number of requests whose slots may be used again, free-running; only with
 *	card_qp.frees_at_poll, else @tail
 */
struct card_ring {
	void *slots;
	u32 size;
	u32 limit;
	u32 stride;
	u32 head;
	u32 tail;
	u32 freed;
};

/**
 * struct card_qp - queue pair
 * @ib: queue pair of the RDMA core
 * @card: card of this queue pair
 * @modify: serializes modify_qp: uverbs does not, for the threads of a process
 * @lock: protects state, heads and tails of the rings, and claims of the engine
 * @state: state of the InfiniBand specification
 * @attr: attributes, set by modify_qp
 * @cap: capacities
 * @signal_all: each send request is signaled
 * @path: path to the peer
 * @peer_card: id of the peer's card, 0 for none
 * @peer: peer of the last request, if @peer_since is still card_qps_erased
 * @peer_since: card_qps_erased at the time of the lookup
 * @sq: send requests; from tail: executed ones up to @executed, started ones up
 *	to @started, then the others up to head
 * @rq: receive requests
 * @sends: send requests of a process for its next doorbell; NULL for a queue pair of
 *	the kernel
 * @slot_bytes: distance between requests in @sends
 * @umem: pinned memory of @sends
 * @owner: memory of the process that the rings are charged to, or NULL
 * @charged: pages of the rings
 * @executed: number of send requests executed, free-running
 * @started: number of send requests started, free-running
 * @running: a context has claimed the engine
 * @again: requests were posted since that claim
 * @stopped: claims are refused
 * @failed: a request failed; the engine executes none after it
 * @in_timer: the engine runs in the timer, which stands for an interrupt
 * @entered: number of peers that access this queue pair
 * @idle: wait queue for the end of @running and @entered
 * @open: the key 0 in requests of this queue pair is all memory
 * @frees_at_poll: see struct card_profile; the lock of @sq's completion queue protects @sq.freed
 * @fences: see struct card_profile
 * @budget: bytes left in this turn of the engine
 * @timed: the ring has a request with a time
 * @last_exec: latest execution time assigned
 * @last_done: latest completion time reached
 * @reads: number of Reads in flight
 * @retries: retries left after a timeout
 * @rnr_retries: retries left after "receiver not ready"
 * @established: the first message has arrived
 * @timer: wakes the engine for requests with a time
 * @tasklet: executes requests that were posted with interrupts disabled
 * @events: bits of enum ib_event_type to report
 * @event_work: reports @events
 * @flush_sends: the delay before a flush of send requests has passed
 * @flush_recvs: likewise, of receives
 * @flush_work: flushes after the delay of the profile
 */
struct card_qp {
	struct ib_qp ib;
	struct card *card;
	struct mutex modify;
	spinlock_t lock;
	enum ib_qp_state state;
	struct ib_qp_attr attr;
	struct ib_qp_cap cap;
	bool signal_all;
	struct card_path path;
	u32 peer_card;
	struct card_qp *peer;
	u64 peer_since;
	struct card_ring sq;
	struct card_ring rq;
	struct card_abi_sends *sends;
	u32 slot_bytes;
	struct ib_umem *umem;
	struct mm_struct *owner;
	u32 charged;
	u32 executed;
	u32 started;
	bool running;
	bool again;
	bool stopped;
	bool failed;
	bool in_timer;
	u32 entered;
	wait_queue_head_t idle;
	bool open;
	bool frees_at_poll;
	bool fences;
	int budget;
	bool timed;
	u64 last_exec;
	u64 last_done;
	u32 reads;
	u32 retries;
	u32 rnr_retries;
	bool established;
	struct hrtimer timer;
	struct tasklet_struct tasklet;
	unsigned long events;
	struct work_struct event_work;
	bool flush_sends;
	bool flush_recvs;
	struct delayed_work flush_work;
};

/* Result of copying the data of a request */
enum card_moved {
	CARD_ALL,
	CARD_PART,		/* the budget is spent */
	CARD_LOCAL_REFUSED,
	CARD_REMOTE_REFUSED,
	CARD_REMOTE_FAULTED,	/* a valid key, and nothing is mapped */
};

/* Memory of the peer: the list of a receive, or one range of an rkey */
struct card_remote {
	struct card_qp *peer;
	const struct ib_sge *sge;
	u32 num;
	int access;
};

/* Result of executing a request */
enum card_step {
	CARD_DONE,	/* status is set */
	CARD_LATER,	/* exec_at is in the future */
	CARD_MORE,	/* the budget is spent */
};

static inline struct card_qp *to_card_qp(struct ib_qp *ib)
{
	return container_of(ib, struct card_qp, ib);
}

static inline void *card_ring_slot(const struct card_ring *ring, u32 at)
{
	return ring->slots + (size_t)(at & (ring->size - 1)) * ring->stride;
}

/* Requests that do not involve the peer */
static inline bool card_is_local(const struct card_send *send)
{
	return send->opcode == IB_WR_REG_MR || send->opcode == IB_WR_LOCAL_INV;
}

/* Retry a request after @ns */
static inline enum card_step card_wait(struct card_send *send, u64 ns)
{
	send->exec_at = ns == CARD_NEVER ? CARD_NEVER : ktime_get_ns() + ns;
	return CARD_LATER;
}

/* Whether the request has a completion once it is complete */
static inline bool card_is_signaled(const struct card_send *send)
{
	return send->flags & IB_SEND_SIGNALED || send->status != IB_WC_SUCCESS;
}

/* Number of send requests whose slots may be used again */
static inline u32 card_send_freed(const struct card_qp *qp)
{
	const u32 *freed = qp->frees_at_poll ? &qp->sq.freed : &qp->sq.tail;

	/* pairs with card_complete_one() or card_cq_free() */
	return smp_load_acquire(freed);
}

static inline bool card_is_gsi(const struct card_qp *qp)
{
	return qp->ib.qp_type == IB_QPT_GSI;
}

/*
 * Whether the driver flushes the requests of a queue pair. Drivers that report a device as failed
 * flush queue pair 1, too, though it is not in the error state: mlx4/main.c
 * mlx4_ib_handle_catas_error(), mlx5/main.c mlx5_ib_handle_internal_error(). bnxt_re/main.c
 * bnxt_re_dev_stop() leaves it out: rdma_cm waits for its requests until the firmware works again.
 */
static inline bool card_is_flushed(const struct card_qp *qp)
{
	return READ_ONCE(qp->state) == IB_QPS_ERR ||
	       (card_is_gsi(qp) && READ_ONCE(qp->card->firmware) == CARD_FAILED &&
		qp->card->profile->failed_device);
}

/* qp.c */
int card_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *init, struct ib_udata *udata);
int card_destroy_qp(struct ib_qp *ib, struct ib_udata *udata);
void card_qp_stop(struct card_qp *qp);

/* state.c */
int card_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int card_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask,
		  struct ib_qp_init_attr *init);
void card_qp_break(struct card *card, u32 qpn, bool reports);
void card_set_firmware(struct card *card, enum card_firmware firmware);

/* error.c */
bool card_flush_is_due(struct card_qp *qp, const bool *due);
void card_qp_report(struct work_struct *work);
void card_qp_event(struct card_qp *qp, enum ib_event_type event);
bool card_recv_flush(struct card_qp *qp);
bool card_qp_error(struct card_qp *qp);

/* post.c */
int card_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int card_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);

/* user.c */
int card_rings_charge(struct card_qp *qp);
void card_rings_uncharge(struct card_qp *qp);
int card_sends_create(struct card_qp *qp, struct ib_udata *udata);
void card_sends_destroy(struct card_qp *qp);

/* engine.c */
void card_engine_run(struct card_qp *qp);
void card_engine_kick(struct card_qp *qp);
void card_engine_tasklet(struct tasklet_struct *tasklet);
enum hrtimer_restart card_engine_timer(struct hrtimer *timer);

void card_flush_later(struct work_struct *work);

/* claim.c */
bool card_engine_claim(struct card_qp *qp);
bool card_engine_try(struct card_qp *qp);
bool card_engine_release(struct card_qp *qp);
void card_engine_later(struct card_qp *qp);

/* steps.c */
void card_engine_reset(struct card_qp *qp);
bool card_start(struct card_qp *qp, u64 now);
bool card_execute(struct card_qp *qp, u64 now);
bool card_complete(struct card_qp *qp, u64 now);
void card_flush(struct card_qp *qp);

/* copy.c */
enum card_moved card_move(struct card_qp *qp, struct card_send *send,
			  const struct card_remote *remote, bool inbound);

/* request.c */
enum card_step card_request(struct card_qp *qp, struct card_send *send);

/* receive.c */
struct card_recv *card_recv_first(struct card_qp *qp);
void card_recv_complete(struct card_qp *qp, struct ib_wc *wc, bool solicited, bool in_timer);

/* peer.c */
extern struct xarray card_qps;
extern u64 card_qps_erased;
struct card_qp *card_peer_enter(struct card_qp *qp);
void card_peer_leave(struct card_qp *peer);
enum card_step card_no_answer(struct card_qp *qp, struct card_send *send);
bool card_retry(struct card_qp *qp);

/* gsi.c */
void card_gsi_send(struct card_qp *qp, struct card_send *send);

/* wire.c */
void card_wire_start(struct card_qp *qp, struct card_send *send, u64 now);
void card_wire_cancel(struct card_qp *qp);
u64 card_wire_answer(struct card *card, const struct card_qp *qp, const struct card_send *send);
u64 card_wire_look_up(struct card_qp *qp);
u64 card_wire_translate(struct card *card, const struct card_mr *mr, u64 addr, u64 length);

#endif
