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
#include "memory/region.h"
#include "observe/observe.h"
#include "personality.h"
#include "wire/wire.h"

/* Segments of one chunk: 1 MiB in MRs of minimum depth, plus one each for head and tail */
#define NFR_CHUNK_SEGS		NFR_SPAN_MRS

/* Space before an encoded Call for the header: Read list, and Write or Reply chunk */
#define NFR_HEAD_ROOM		256

/* Interval at which a transport that waits to be closed checks who has locked it */
#define NFR_UNLOCK_AGAIN	HZ

/* Disconnect reason of a server that omits a Reply, see nfr_conn_abandon() */
#define NFR_CLIENT_UNANSWERED	"no reply to an abandoned Call"

/* Capacity of the header decoder of a connection */
#define NFR_DECODE_CHUNKS	8
#define NFR_DECODE_SEGS		64

struct dentry;
struct nfr_branches;
struct nfr_link;
struct nfr_loan;
struct nfr_req;
struct nfr_xprt;

/**
 * struct nfr_client_personality - protocol variant of the client
 * @number: number of the personality
 * @request_size: bytes that each request has in nfr_req.own
 * @ops: operations of connections that ask for it
 * @setup: allocate what a transport needs; false if that failed
 * @init: initialize what a new request has for it
 * @limits: print the limits of a device for it, for the file devices in debugfs
 * @fit: complete the profile of a connection that asks for it
 * @create: allocate what a connection that asks for it needs; 0 or a negative errno
 * @stop: end the work that this did; the connection is drained, and may lack what @create allocates
 * @destroy: undo @create, if it was called
 * @agree: use it, because the server accepts it; 0 or a negative errno
 * @show: print what a connection has for it, for the file connection in debugfs
 * @marshal: build and post the header and chunks of a Call
 * @receive: handle a received message
 * @send: send the reply to a callback, as nfr_client_send() does
 * @drained: give up what the connection was still doing; the peer cannot reach memory by it
 *
 * Those up to @destroy belong to the personality that a transport asks for, the others to the one
 * that a connection has. The client calls these operations through this table, so that a new
 * personality only adds a table. Only @ops, @marshal, @receive and @send may not be NULL.
 */
struct nfr_client_personality {
	enum nfr_personality number;
	size_t request_size;
	const struct nfr_conn_ops *ops;
	bool (*setup)(struct nfr_xprt *nx);
	void (*init)(struct nfr_req *req);
	void (*limits)(struct seq_file *seq, const struct ib_device *device);
	void (*fit)(struct nfr_conn *conn);
	int (*create)(struct nfr_conn *conn);
	void (*stop)(struct nfr_conn *conn);
	void (*destroy)(struct nfr_conn *conn);
	int (*agree)(struct nfr_link *link);
	void (*show)(const struct nfr_link *link, struct seq_file *seq);
	int (*marshal)(struct nfr_conn *conn, struct nfr_req *req);
	void (*receive)(struct nfr_conn *conn, struct nfr_recv *recv);
	int (*send)(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		    const struct xdr_buf *message, bool signal);
	void (*drained)(struct nfr_conn *conn);
};

#define NFR_CLIENT_DECLARE(_number, _constant, _symbol, _name)			\
	extern const struct nfr_client_personality nfr_client_##_symbol;

NFR_PERSONALITY_LIST(NFR_CLIENT_DECLARE)

/**
 * struct nfr_eviction - MRs that the cache of a pool gives up (personality cached)
 * @mrs: MRs, until they are invalid
 * @cqe: completion of their invalidations
 * @posted: whether the invalidations are posted
 */
struct nfr_eviction {
	struct nfr_exposure mrs;
	struct ib_cqe cqe;
	bool posted;
};

/**
 * struct nfr_link - connection of a client, with its memory regions
 * @conn: connection
 * @personality: what both ends agreed on
 * @pool: MRs
 * @refill: work that allocates more MRs
 * @eviction: see there
 * @replies: number of Replies received
 * @chunks: chunks of the message being decoded
 * @segs: segments of the message being decoded
 * @own: what it has for the personality of its transport: as much as a pointer
 */
struct nfr_link {
	struct nfr_conn conn;
	const struct nfr_client_personality *personality;
	struct nfr_pool pool;
	struct delayed_work refill;
	struct nfr_eviction eviction;
	u64 replies;
	struct nfr_chunk chunks[NFR_DECODE_CHUNKS];
	struct nfr_segment segs[NFR_DECODE_SEGS];
	u64 own;
};

static inline struct nfr_link *nfr_client_link_of(const struct nfr_conn *conn)
{
	return container_of(conn, struct nfr_link, conn);
}

/*
 * Send buffer; it stays mapped for the lifetime of its connection. @data is an allocation of its
 * own: of a power of two, it is aligned, and takes no more than that.
 */
struct nfr_buffer {
	struct list_head list;	/* link in nfr_xprt.replaced */
	u32 size;
	u32 mark;		/* position of the send queue when it was replaced */
	u64 addr;
	bool mapped;
	u8 *data;
};

/* Send buffers of a request */
enum nfr_buffer_use {
	NFR_BUFFER_CALL,	/* an encoded Call; sent from here if it is contiguous */
	NFR_BUFFER_BOUNCE,	/* copies of all other messages */
	NFR_BUFFERS,
};

/* How a Call or a Reply is conveyed */
enum nfr_way {
	NFR_INLINE,
	NFR_REDUCED,	/* data in a Read or Write chunk */
	NFR_LONG,	/* whole message in a position-zero Read chunk or a Reply chunk */
	NFR_BY_LANE,	/* data in the receives of a lane */
	NFR_BEHIND_PADDING,	/* data in the message, aligned to pages */
};

/*
 * State of a request. docs/dev/module-internals.md has the transitions; the functions
 * nfr_client_req_...() make them. From NFR_REQ_SENT on, the Call is under way.
 */
enum nfr_req_state {
	NFR_REQ_IDLE,		/* not sent, or done */
	NFR_REQ_LOST,		/* a branch failed: the Call goes by the first connection */
	NFR_REQ_ANSWERED,	/* the Reply is being handled */
	NFR_REQ_STARVED,	/* the Reply waits for memory for RDMA Reads */
	NFR_REQ_BLOCKED,	/* the Reply waits for room in the send queue for RDMA Reads */
	NFR_REQ_READING,	/* the RDMA Reads are posted */
	NFR_REQ_READ,		/* the Reply waits for room in the send queue for the Done */
	NFR_REQ_HELD,		/* the Reply waits for the broken connection to be closed */
	NFR_REQ_SENT,		/* on the first connection, without a Reply */
	NFR_REQ_LENT,		/* on a branch, which has not returned it */
	NFR_REQ_ABANDONED,	/* its task has ended: the transport keeps its memory */
	NFR_REQ_LEFT,		/* the same, and sunrpc has freed the slot */
};

/**
 * struct nfr_req - RPC slot
 * @rqst: sunrpc's part
 * @nx: transport
 * @all: link in nfr_xprt.reqs
 * @list: link in the list of its state: unused requests, Replies that are read, held Replies
 * @state: enum nfr_req_state
 * @generation: generation of the connection that has the Call
 * @loan: what a branch has of the Call, or NULL; the lock of the branches protects it
 * @exposure: memory that the Call offers to the peer
 * @buffers: send buffers, indexed by enum nfr_buffer_use; NULL if not allocated
 * @large: buffer of a Call that does not fit into @buffers, or NULL
 * @reply: buffer for the part of the Reply that is not in pages
 * @reply_size: size of @reply in bytes
 * @lost: the device may access @large and @reply for ever: they are not freed
 * @mark: position of the send queue after the reply to a callback
 * @write_length: size of the offered Write chunk in bytes
 * @reply_length: size of the offered Reply chunk in bytes
 * @pages: pages of the Reply to an abandoned Call, with references; or NULL
 * @npages: number of @pages
 * @inv_cqe: completion of the last invalidation
 * @inv_done: wait of a task for the end of its abandoned Call
 * @inv_ok: whether the peer cannot access the memory of that Call any more
 * @inv_waits: the task waits for an invalidation that is posted; nfr_xprt.mutex protects it
 * @recv: received Reply, until it is delivered
 * @reserved: work requests that were reserved for invalidations, and not needed
 * @rpc: inline part of the Reply
 * @rpc_length: length of @rpc in bytes
 * @result: bytes of the Reply conveyed by chunk, including padding, or a
 *	negative errno
 * @own: what it has for the personality of @nx
 */
struct nfr_req {
	struct rpc_rqst rqst;
	struct nfr_xprt *nx;
	struct list_head all;
	struct list_head list;
	int state;
	u32 generation;
	struct nfr_loan *loan;
	struct nfr_exposure exposure;
	struct nfr_buffer *buffers[NFR_BUFFERS];
	void *large;
	void *reply;
	size_t reply_size;
	bool lost;
	u32 mark;
	u32 write_length;
	u32 reply_length;
	u32 npages;
	struct page **pages;
	struct ib_cqe inv_cqe;
	struct completion inv_done;
	bool inv_ok;
	bool inv_waits;
	struct nfr_recv *recv;
	u32 reserved;
	const void *rpc;
	u32 rpc_length;
	int result;
	u64 own[];
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
 * @personality: what each connection asks for
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
 * @unlock_work: work that takes the lock from a task that cannot give it back
 * @mutex: serializes the code that takes memory back without a Reply
 * @reqs: all requests; rpc_xprt.reserve_lock protects it
 * @free_reqs: unused requests; rpc_xprt.reserve_lock protects it
 * @slots_kept: slots of abandoned Calls; rpc_xprt.reserve_lock protects it
 * @replaced: send buffers that were replaced, and that the send queue may still refer to
 * @detached: wait queue of threads that wait for a connection to be closed
 * @closing: sunrpc tasks that wait for the same, after a timeout
 * @held_lock: protects @held
 * @held: requests whose Reply waits for the connection to be closed
 * @branches: connections beside @conn, or NULL if the personality has none
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
	const struct nfr_client_personality *personality;
	struct nfr_conn __rcu *conn;
	u64 token;
	u32 generation;
	u32 inline_send;
	bool connected_once;
	const char *last_disconnect;
	const char *last_failure;
	int last_status;
	struct delayed_work connect_work;
	struct delayed_work unlock_work;
	struct mutex mutex;		/* see the comment on locking above */
	struct list_head reqs;
	struct list_head free_reqs;
	u32 slots_kept;
	struct list_head replaced;
	wait_queue_head_t detached;
	struct rpc_wait_queue closing;
	spinlock_t held_lock;		/* protects @held */
	struct list_head held;
	struct nfr_branches *branches;
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

/* --- transitions of a request --- */

/* The sender begins: no Reply counts until the Call is posted. */
static inline void nfr_client_req_begin(struct nfr_req *req, const struct nfr_conn *conn)
{
	lockdep_assert(test_bit(XPRT_LOCKED, &req->nx->xprt.state));
	req->generation = conn->generation;
	if (req->state != NFR_REQ_LOST)
		req->state = NFR_REQ_IDLE;
}

/* The Call is being posted. From now on a Reply finds its MRs valid. */
static inline void nfr_client_req_sent(struct nfr_req *req, const struct nfr_conn *conn)
{
	lockdep_assert_held(&conn->lock);
	/* pairs with nfr_client_req_answered() */
	smp_store_release(&req->state, NFR_REQ_SENT);
}

/* A Reply came by @conn. Returns false if that has no Call to answer. */
static inline bool nfr_client_req_answered(struct nfr_req *req, const struct nfr_conn *conn)
{
	lockdep_assert_held(&req->nx->xprt.queue_lock);
	/* pairs with nfr_client_req_sent() */
	if (smp_load_acquire(&req->state) != NFR_REQ_SENT || req->generation != conn->generation)
		return false;
	req->state = NFR_REQ_ANSWERED;
	return true;
}

/* The Reply waits for an RDMA Read, or for what that needs, in the list at @list. */
static inline void nfr_client_req_fetch(struct nfr_req *req, struct nfr_conn *conn,
					enum nfr_req_state state, struct list_head *list)
{
	lockdep_assert_held(&conn->lock);
	req->state = state;
	list_add(&req->list, list);
}

/* The Reply waits for the connection to be closed. */
static inline void nfr_client_req_held(struct nfr_req *req)
{
	lockdep_assert_held(&req->nx->held_lock);
	req->state = NFR_REQ_HELD;
	list_add_tail(&req->list, &req->nx->held);
}

/* The task ends: the transport keeps the Call's memory until the Reply, or until it closes. */
static inline void nfr_client_req_abandoned(struct nfr_req *req)
{
	lockdep_assert_held(&req->nx->mutex);
	/* the record of the Call follows, see nfr_conn_abandon(), whose lock orders it */
	WRITE_ONCE(req->state, NFR_REQ_ABANDONED);
}

/* sunrpc frees the slot of an abandoned Call. */
static inline void nfr_client_req_left(struct nfr_req *req)
{
	lockdep_assert_held(&req->nx->xprt.reserve_lock);
	WRITE_ONCE(req->state, NFR_REQ_LEFT);
}

/* The Call is over, and the peer cannot access its memory. */
static inline void nfr_client_req_end(struct nfr_req *req)
{
	req->state = NFR_REQ_IDLE;
}

/* transport.c */
int nfr_client_register(void);
void nfr_client_device_show(struct seq_file *seq, struct ib_device *device);
void nfr_client_unregister(void);

/* connect.c */
void nfr_client_unlock_worker(struct work_struct *work);
void nfr_client_connect_worker(struct work_struct *work);
void nfr_client_connect(struct rpc_xprt *xprt, struct rpc_task *task);
void nfr_client_close(struct rpc_xprt *xprt);

/* abandon.c */
void nfr_client_abandon_answered(struct nfr_conn *conn, struct nfr_req *req,
				 const struct nfr_late_reply *reply);
void nfr_client_abandon_close(struct nfr_xprt *nx);
void nfr_client_buf_free(struct rpc_task *task);

/* regions.c */
void nfr_client_regions_init(struct nfr_link *link);
int nfr_client_regions_cache(struct nfr_link *link);
void nfr_client_regions_end(struct nfr_link *link);

/* branch.c */
void nfr_client_branches_close(struct nfr_branches *of);
void nfr_client_branches_destroy(struct nfr_branches *of);
void nfr_client_branches_show(struct nfr_branches *of, struct seq_file *seq);
bool nfr_client_loan_abandon(struct nfr_req *req);
bool nfr_client_loan_timeout(struct nfr_xprt *nx, struct rpc_task *task);

/* callback.c */
int nfr_client_callback_setup(struct rpc_xprt *xprt, unsigned int requests);
size_t nfr_client_callback_maxpayload(struct rpc_xprt *xprt);
unsigned int nfr_client_callback_slots(struct rpc_xprt *xprt);
void nfr_client_callback_free_rqst(struct rpc_rqst *rqst);
void nfr_client_callback_destroy(struct rpc_xprt *xprt, unsigned int requests);
void nfr_client_callback_receive(struct nfr_conn *conn, u32 xid, const void *rpc, u32 length);

#endif
