/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Client transport: a struct rpc_xprt, its requests, and the Calls and Replies
 * on its connection.
 *
 * Locking: XPRT_LOCKED of the rpc_xprt serializes sending, connecting and
 * closing, and therefore protects @conn and @scratch. nfr_xprt.mutex serializes
 * the code that takes registered memory back without a Reply: closing a
 * connection, and releasing an abandoned request. Its holder must not wait for
 * the device. A request is pinned while its Reply is handled.
 */
#ifndef NFSRDMA_CLIENT_H
#define NFSRDMA_CLIENT_H

#include <linux/seq_file.h>
#include <linux/sunrpc/auth.h>
#include <linux/sunrpc/clnt.h>
#include <linux/sunrpc/xprt.h>

#include "connection/connection.h"
#include "memory/exposure.h"
#include "memory/memory.h"
#include "memory/transfer.h"
#include "observe/observe.h"
#include "variants.h"
#include "wire/wire.h"

/* Segments of one chunk: 1 MiB in MRs of minimum depth, plus one each for head and tail */
#define NFR_CHUNK_SEGS		20

/* Space before an encoded Call for the header: Read list, and Write or Reply chunk */
#define NFR_HEAD_ROOM		256

/* Capacity of the header decoder of a connection */
#define NFR_DECODE_CHUNKS	8
#define NFR_DECODE_SEGS		64

struct dentry;
struct nfr_branches;
struct nfr_lane;
struct nfr_lanes;
struct nfr_optimist;
struct nfr_req;
struct nfr_side_read;
struct nfr_xprt;

/**
 * struct nfr_personality - protocol variant of the client
 * @marshal: build and post the header and chunks of a Call
 * @receive: handle a received message
 * @send: send the reply to a callback, as nfr_client_send() does
 * @drained: give up what the drained connection was still doing, or NULL
 *
 * The client calls these operations through this table, so that a new variant
 * only adds a table.
 */
struct nfr_personality {
	int (*marshal)(struct nfr_conn *conn, struct nfr_req *req);
	void (*receive)(struct nfr_conn *conn, struct nfr_recv *recv);
	int (*send)(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		    const struct xdr_buf *message, bool signal);
	void (*drained)(struct nfr_conn *conn);
};

struct nfr_fetcher;

/**
 * struct nfr_link - connection of a client, with its memory regions
 * @conn: connection
 * @variant: personality that both ends agreed on
 * @personality: its operations
 * @pool: MRs
 * @refill: work that allocates more MRs
 * @evicted: MRs that the cache of @pool gives up, until they are invalid
 * @evict_cqe: completion of their invalidations
 * @evicting: whether the invalidations are posted
 * @replies: number of Replies received
 * @chunks: chunks of the message being decoded
 * @segs: segments of the message being decoded
 * @padded: largest data of a Call with padding, in bytes; see padded.c
 * @fetcher: RDMA Reads of Replies, or NULL; see fetch.c
 */
struct nfr_link {
	struct nfr_conn conn;
	enum nfr_variant variant;
	const struct nfr_personality *personality;
	struct nfr_pool pool;
	struct delayed_work refill;
	struct nfr_exposure evicted;
	struct ib_cqe evict_cqe;
	bool evicting;
	u64 replies;
	struct nfr_chunk chunks[NFR_DECODE_CHUNKS];
	struct nfr_segment segs[NFR_DECODE_SEGS];
	u32 padded;
	struct nfr_fetcher *fetcher;
};

static inline struct nfr_link *nfr_client_link_of(const struct nfr_conn *conn)
{
	return container_of(conn, struct nfr_link, conn);
}

/* Send buffer; it stays mapped for the lifetime of its connection */
struct nfr_buffer {
	struct list_head list;	/* link in nfr_xprt.abandoned */
	u32 size;
	u32 mark;		/* position of the send queue when the Call was abandoned */
	u64 addr;
	bool mapped;
	u8 data[];
};

/* Send buffers of a request */
enum nfr_buffer_use {
	NFR_BUFFER_CALL,	/* an encoded Call; sent from here if it is contiguous */
	NFR_BUFFER_BOUNCE,	/* copies of all other messages */
	NFR_BUFFERS,
};

/* What a Reply that the client reads waits for; see fetch.c */
enum nfr_fetch_stage {
	NFR_FETCH_PREPARE,	/* memory for the RDMA Reads */
	NFR_FETCH_POST,		/* room in the send queue for them */
	NFR_FETCH_READ,		/* their completion */
	NFR_FETCH_DONE,		/* room in the send queue for the Done */
};

/* How a Call or a Reply is conveyed */
enum nfr_way {
	NFR_INLINE,
	NFR_REDUCED,	/* data in a Read or Write chunk */
	NFR_LONG,	/* whole message in a position-zero Read chunk or a Reply chunk */
	NFR_BY_LANE,	/* data in the receives of a lane */
	NFR_BEHIND_PADDING,	/* data in the message, aligned to pages */
};

/* State of a Call */
enum nfr_req_state {
	NFR_REQ_IDLE,		/* not sent on this connection */
	NFR_REQ_SENT,
	NFR_REQ_ANSWERED,
};

/**
 * struct nfr_req - RPC slot
 * @rqst: sunrpc's part
 * @nx: transport
 * @all: link in nfr_xprt.reqs
 * @free: link in nfr_xprt.free_reqs
 * @exposure: memory that the Call offers to the peer
 * @buffers: send buffers, indexed by enum nfr_buffer_use; NULL if not allocated
 * @large: buffer of a Call that does not fit into @buffers, or NULL
 * @reply: buffer for the part of the Reply that is not in pages
 * @reply_size: size of @reply in bytes
 * @generation: generation of the connection that the Call was sent on
 * @mark: position of the send queue after the reply to a callback
 * @state: enum nfr_req_state
 * @write_length: size of the offered Write chunk in bytes
 * @reply_length: size of the offered Reply chunk in bytes
 * @inv_cqe: completion of the last invalidation
 * @inv_done: wait for @inv_cqe, for an abandoned Call
 * @inv_ok: whether that invalidation succeeded
 * @held: link in nfr_xprt.held, while a received Reply has valid MRs on a broken
 *	connection
 * @recv: received Reply, until it is delivered
 * @reserved: work requests that were reserved for invalidations, and not needed
 * @rpc: inline part of the Reply
 * @rpc_length: length of @rpc in bytes
 * @result: bytes of the Reply conveyed by chunk, including padding, or a
 *	negative errno
 * @fetch: link in the list of its stage, while a Reply is read
 * @stage: what the Reply waits for
 * @transfer: RDMA Reads of the Reply
 * @reads: their work requests, of which @last_read is the last
 * @last_read: see @reads
 * @nreads: number of work requests
 * @read_cqe: their completion
 * @read_at: position of the data that they fetch; 0 for the whole message
 * @read_length: number of bytes that they fetch
 * @lane: lane that carries the Call, or NULL; the lock of nfr_xprt.lanes protects it
 * @read: RDMA Read that takes the place of the Call, or NULL; the lock of
 *	nfr_xprt.optimist protects it
 * @lost: XID of the last Call whose lane or RDMA Read failed: it goes by @conn of @nx
 * @padded_length: largest data that the Reply may have behind padding, in bytes
 */
struct nfr_req {
	struct rpc_rqst rqst;
	struct nfr_xprt *nx;
	struct list_head all;
	struct list_head free;
	struct nfr_exposure exposure;
	struct nfr_buffer *buffers[NFR_BUFFERS];
	void *large;
	void *reply;
	size_t reply_size;
	u32 generation;
	u32 mark;
	int state;
	u32 write_length;
	u32 reply_length;
	struct ib_cqe inv_cqe;
	struct completion inv_done;
	bool inv_ok;
	struct list_head held;
	struct nfr_recv *recv;
	u32 reserved;
	const void *rpc;
	u32 rpc_length;
	int result;
	struct list_head fetch;
	enum nfr_fetch_stage stage;
	struct nfr_transfer transfer;
	struct ib_send_wr *reads;
	struct ib_send_wr *last_read;
	u32 nreads;
	struct ib_cqe read_cqe;
	u32 read_at;
	u32 read_length;
	struct nfr_lane *lane;
	struct nfr_side_read *read;
	u32 lost;
	u32 padded_length;
};

/* Work area for marshaling one Call */
struct nfr_scratch {
	struct nfr_segment read_segs[NFR_CHUNK_SEGS];
	struct nfr_segment write_segs[NFR_CHUNK_SEGS];
	struct nfr_chunk read;
	struct nfr_chunk write;
};

/**
 * struct nfr_xprt - client transport
 * @xprt: sunrpc's part
 * @variant: personality that each connection asks for
 * @conn: connection, or NULL
 * @token: tells the server which connections belong to this transport
 * @generation: generation of the latest connection
 * @inline_send: parameter inline_send of that connection, the size of send buffers
 * @connected_once: the next connect is a reconnect, to which the back-off
 *	applies
 * @last_disconnect: disconnect reason of the previous connection
 * @last_failure: reason of the last failed attempt to connect
 * @last_status: result of the last attempt to connect
 * @connect_work: work that connects
 * @mutex: serializes the code that takes memory back without a Reply
 * @reqs: all requests; rpc_xprt.reserve_lock protects it
 * @free_reqs: unused requests; rpc_xprt.reserve_lock protects it
 * @abandoned: buffers of abandoned Calls that the send queue may still refer to
 * @detached: wait queue of threads that wait for a connection to be closed
 * @closing: sunrpc tasks that wait for the same, after a timeout
 * @held_lock: protects @held
 * @held: requests whose Reply waits for the connection to be closed
 * @branches: connections beside @conn, or NULL if the personality has none
 * @lanes: lanes, or NULL if the personality is not pre-posted
 * @optimist: optimistic reads, or NULL if the personality is another one
 * @scratch: work area for marshaling
 * @counters: counters
 * @num_callbacks: number of requests for callbacks
 * @sessions: number of sessions that the server may call; rpc_xprt.bc_pa_lock protects it
 * @delivered: number of callbacks that the callback service has; same lock
 * @undelivered: wait queue of a thread that waits for @delivered to become 0
 * @debugfs: debugfs directory
 */
struct nfr_xprt {
	struct rpc_xprt xprt;
	enum nfr_variant variant;
	struct nfr_conn __rcu *conn;
	u64 token;
	u32 generation;
	u32 inline_send;
	bool connected_once;
	const char *last_disconnect;
	const char *last_failure;
	int last_status;
	struct delayed_work connect_work;
	struct mutex mutex;		/* see the comment on locking above */
	struct list_head reqs;
	struct list_head free_reqs;
	struct list_head abandoned;
	wait_queue_head_t detached;
	struct rpc_wait_queue closing;
	spinlock_t held_lock;		/* protects @held */
	struct list_head held;
	struct nfr_branches *branches;
	struct nfr_lanes *lanes;
	struct nfr_optimist *optimist;
	struct nfr_scratch scratch;
	struct nfr_client_counters counters;
	u32 num_callbacks;
	u32 sessions;
	u32 delivered;
	wait_queue_head_t undelivered;
	struct dentry *debugfs;
};

static inline struct nfr_xprt *nfr_client_xprt_of(struct rpc_xprt *xprt)
{
	return container_of(xprt, struct nfr_xprt, xprt);
}

/* Get the connection, or NULL. The caller owns XPRT_LOCKED or holds the mutex. */
static inline struct nfr_conn *nfr_client_xprt_conn(struct nfr_xprt *nx)
{
	return rcu_dereference_protected(nx->conn,
					 test_bit(XPRT_LOCKED, &nx->xprt.state) ||
					 lockdep_is_held(&nx->mutex));
}

static inline struct nfr_req *nfr_client_req_of(struct rpc_rqst *rqst)
{
	return container_of(rqst, struct nfr_req, rqst);
}

/* Check that the security flavor permits moving data apart from the message */
static inline bool nfr_client_may_reduce(const struct rpc_rqst *rqst)
{
	return !test_bit(RPCAUTH_AUTH_DATATOUCH, &rqst->rq_cred->cr_auth->au_flags);
}

/* Maximum size of a Reply without chunks */
static inline u32 nfr_client_inline_reply_room(const struct nfr_conn *conn)
{
	return conn->recv_size - NFR_WIRE_MIN;
}

/* Client number as in sunrpc's trace events: -1 if the task has no client */
static inline u32 nfr_client_number(const struct rpc_rqst *rqst)
{
	return rqst->rq_task->tk_client ? rqst->rq_task->tk_client->cl_clid : -1;
}

/* transport.c */
int nfr_client_register(void);
void nfr_client_unregister(void);

/* connect.c */
void nfr_client_connect_worker(struct work_struct *work);
void nfr_client_connect(struct rpc_xprt *xprt, struct rpc_task *task);
void nfr_client_close(struct rpc_xprt *xprt);

/* abandon.c */
void nfr_client_disconnect(struct nfr_xprt *nx, u32 generation, const char *reason);
void nfr_client_sleep_until_closed(struct nfr_xprt *nx, struct rpc_task *task, u32 generation);
void nfr_client_buf_free(struct rpc_task *task);

/* send.c */
int nfr_client_send_request(struct rpc_rqst *rqst);
void nfr_client_wait_for_reply(struct rpc_task *task);
void nfr_client_wait_or_resend(struct rpc_task *task);
void nfr_client_resend(struct nfr_req *req);

/* fetch.c */
int nfr_client_fetch_create(struct nfr_conn *conn);
void nfr_client_fetch_destroy(struct nfr_conn *conn);
void nfr_client_fetch(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_chunk *chunk);
void nfr_client_fetch_refuse(struct nfr_conn *conn, struct nfr_req *req);
void nfr_client_fetch_discard(struct nfr_conn *conn, u32 xid);
void nfr_client_fetch_waiting(struct nfr_conn *conn);
void nfr_client_fetch_drained(struct nfr_conn *conn);

/* readread.c */
extern const struct nfr_personality nfr_client_version0;

/* padded.c */
extern const struct nfr_personality nfr_client_padded;

/* branch.c */
void nfr_client_branches_close(struct nfr_branches *of);

/* lane.c */
struct nfr_lanes *nfr_client_lanes_create(struct nfr_xprt *nx);
void nfr_client_lanes_destroy(struct nfr_lanes *lanes);
bool nfr_client_lane_abandon(struct nfr_req *req);
bool nfr_client_lane_timeout(struct nfr_xprt *nx, struct rpc_task *task);
void nfr_client_lanes_show(struct nfr_xprt *nx, struct seq_file *seq);

/* lane_call.c */
int nfr_client_lane_marshal(struct nfr_conn *conn, struct nfr_req *req);

/* optimistic.c */
struct nfr_optimist *nfr_client_optimist_create(struct nfr_xprt *nx);
void nfr_client_optimist_destroy(struct nfr_optimist *optimist);
bool nfr_client_optimist_abandon(struct nfr_req *req);
bool nfr_client_optimist_timeout(struct nfr_xprt *nx, struct rpc_task *task);
bool nfr_client_optimist_again(struct nfr_req *req);
void nfr_client_optimist_show(struct nfr_xprt *nx, struct seq_file *seq);

/* optimistic_read.c */
extern const struct nfr_personality nfr_client_optimistic;

/* callback.c */
int nfr_client_callback_setup(struct rpc_xprt *xprt, unsigned int requests);
size_t nfr_client_callback_maxpayload(struct rpc_xprt *xprt);
unsigned int nfr_client_callback_slots(struct rpc_xprt *xprt);
void nfr_client_callback_free_rqst(struct rpc_rqst *rqst);
void nfr_client_callback_destroy(struct rpc_xprt *xprt, unsigned int requests);
void nfr_client_callback_receive(struct nfr_conn *conn, u32 xid, const void *rpc, u32 length);

#endif
