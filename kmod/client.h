/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The client half: a struct rpc_xprt, its requests, and the calls and replies
 * that go over its connection.
 *
 * Locks. XPRT_LOCKED of the rpc_xprt serializes sending, connecting and
 * closing, and so guards @conn and @scratch. @mutex is held by whoever takes
 * registered memory back without a reply: closing, and releasing a request
 * that was given up. Nobody waits for the device while holding it. A request
 * whose reply is being handled is pinned.
 */
#ifndef NFSRDMA_CLIENT_H
#define NFSRDMA_CLIENT_H

#include <linux/sunrpc/clnt.h>
#include <linux/sunrpc/xprt.h>

#include "connection.h"
#include "personality.h"

/* Regions of one chunk: 1 MiB in regions of the smallest depth, and a buffer at each end */
#define NFR_CHUNK_SEGS		20

/* Space kept before an encoded Call, for the header: Write chunk or Reply chunk, Read list */
#define NFR_HEAD_ROOM		256

struct dentry;
struct nfr_xprt;

/* A buffer that messages are sent from; it stays mapped while its connection lasts */
struct nfr_buffer {
	struct list_head list;	/* given up while it was being sent */
	u32 size;
	u32 mark;		/* of the send queue, when it was given up */
	u64 addr;
	bool mapped;
	u8 data[];
};

/* A request's buffers */
enum nfr_buffer_use {
	NFR_BUFFER_CALL,	/* where a Call is encoded, and sent from if it lies in one piece */
	NFR_BUFFER_BOUNCE,	/* where other Calls are put together */
	NFR_BUFFERS,
};

/* What became of a Call */
enum nfr_req_state {
	NFR_REQ_IDLE,		/* not sent on this connection */
	NFR_REQ_SENT,
	NFR_REQ_ANSWERED,
};

/**
 * struct nfr_req - an RPC slot
 * @rqst: sunrpc's part
 * @all: of the transport's requests
 * @free: of its unused ones
 * @mrs: memory the peer was told of
 * @buffers: by enum nfr_buffer_use; each may be NULL
 * @large: a Call that the buffer has no room for, encoded apart; or NULL
 * @reply: where the head of the reply is decoded
 * @generation: of the connection it was sent on
 * @mark: of a callback: where the send queue was behind its reply
 * @state: enum nfr_req_state
 * @write_length: bytes offered in a Write chunk
 * @reply_length: bytes offered in a Reply chunk
 * @limbo: answered, but the connection broke before its memory was taken back
 * @recv: the reply, until it is delivered
 * @rpc, @rpc_length: what of it came inline
 * @result: bytes of it that came by chunk, padding included, or what is wrong with it
 */
struct nfr_req {
	struct rpc_rqst rqst;
	struct nfr_xprt *nx;
	struct list_head all;
	struct list_head free;
	struct list_head mrs;
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
	struct list_head limbo;
	struct nfr_recv *recv;
	const void *rpc;
	u32 rpc_length;
	int result;
};

/* Marshaling's work space: one Call at a time */
struct nfr_scratch {
	struct nfr_segment read_segs[NFR_CHUNK_SEGS];
	struct nfr_segment write_segs[NFR_CHUNK_SEGS];
	struct nfr_chunk read;
	struct nfr_chunk write;
};

/* Counters; each is written from one context */
struct nfr_counters {
	/* marshaling */
	u64 read_chunks;
	u64 write_chunks;
	u64 reply_chunks;
	u64 nomsg_calls;
	u64 request_bytes;	/* room offered in Write and Reply chunks, as the kernel's column has it */
	u64 pullup_bytes;
	u64 failed_marshals;
	u64 starved;
	/* replies */
	u64 reply_bytes;	/* what of it was used */
	u64 fixup_bytes;
	u64 bad_replies;
	u64 local_invs;
	u64 callbacks;
	/* buffers and life */
	u64 hardway_bytes;
	u64 mrs_made;
	u64 mrs_recycled;
	u64 mrs_orphaned;
	u64 disconnects;
};

/**
 * struct nfr_xprt - a transport
 * @conn: its connection, or NULL
 * @connected_once: the next connect is a reconnect, and may be delayed
 * @last_disconnect: why the connection before this one ended
 * @last_status: how the last attempt to connect ended; @last_failure: why, of the last that failed
 */
struct nfr_xprt {
	struct rpc_xprt xprt;
	const struct nfr_personality *personality;
	struct nfr_conn __rcu *conn;
	u32 generation;
	bool connected_once;
	const char *last_disconnect;
	const char *last_failure;
	int last_status;
	struct delayed_work connect_work;
	struct mutex mutex;
	struct list_head reqs;
	struct list_head free_reqs;
	struct list_head orphans;
	wait_queue_head_t detached;	/* woken when a connection is closed */
	struct rpc_wait_queue closing;	/* tasks that timed out, until then */
	spinlock_t limbo_lock;
	struct list_head limbo;
	struct nfr_scratch scratch;
	struct nfr_counters counters;
	struct list_head callbacks;
	u32 num_callbacks;
	struct dentry *debugfs;
};

static inline struct nfr_xprt *nfr_xprt_of(struct rpc_xprt *xprt)
{
	return container_of(xprt, struct nfr_xprt, xprt);
}

/* The connection, or NULL: for the owner of XPRT_LOCKED, and of the mutex */
static inline struct nfr_conn *nfr_xprt_conn(struct nfr_xprt *nx)
{
	return rcu_dereference_protected(nx->conn,
					 test_bit(XPRT_LOCKED, &nx->xprt.state) ||
					 lockdep_is_held(&nx->mutex));
}

static inline struct nfr_req *nfr_req_of(struct rpc_rqst *rqst)
{
	return container_of(rqst, struct nfr_req, rqst);
}

/* client_xprt.c */
int nfr_client_register(void);
void nfr_client_unregister(void);

/* client_connect.c */
extern const struct nfr_conn_ops nfr_client_conn_ops;
void nfr_client_connect_worker(struct work_struct *work);
void nfr_client_connect(struct rpc_xprt *xprt, struct rpc_task *task);
void nfr_client_close(struct rpc_xprt *xprt);
void nfr_client_disconnect(struct nfr_xprt *nx, u32 generation, const char *reason);
void nfr_client_wait_closed(struct nfr_xprt *nx, u32 generation);
void nfr_client_sleep_until_closed(struct nfr_xprt *nx, struct rpc_task *task, u32 generation);

/* client_buffer.c */
int nfr_client_buf_alloc(struct rpc_task *task);
bool nfr_req_buffer(struct nfr_req *req, int which, u32 size, gfp_t gfp);
int nfr_req_map(struct nfr_conn *conn, struct nfr_buffer *buffer);
void nfr_req_unmap(struct nfr_conn *conn, struct nfr_req *req);
void nfr_req_orphan(struct nfr_req *req, struct nfr_conn *conn, int which);
void nfr_orphans_free(struct nfr_xprt *nx, struct nfr_conn *conn, bool all);

/* client_request.c */
void nfr_client_alloc_slot(struct rpc_xprt *xprt, struct rpc_task *task);
void nfr_client_free_slot(struct rpc_xprt *xprt, struct rpc_rqst *rqst);
void nfr_client_buf_free(struct rpc_task *task);
struct nfr_req *nfr_req_create(struct nfr_xprt *nx, gfp_t gfp);
void nfr_req_detach_all(struct nfr_xprt *nx, struct nfr_conn *conn, struct list_head *mrs);
void nfr_req_destroy_all(struct nfr_xprt *nx);
void nfr_req_destroy(struct nfr_req *req);

/* client_marshal.c */
int nfr_marshal_call(struct nfr_conn *conn, struct nfr_req *req);

/* client_send.c */
int nfr_client_send_request(struct rpc_rqst *rqst);
int nfr_send_buffer(struct nfr_conn *conn, struct nfr_req *req, const struct nfr_header *head,
		    const struct xdr_buf *message, bool signal);
int nfr_wait_for_room(struct nfr_xprt *nx, struct nfr_conn *conn);

/* client_reply.c */
void nfr_client_receive(struct nfr_conn *conn, struct nfr_recv *recv);
void nfr_reply_flush_limbo(struct nfr_xprt *nx, struct nfr_conn *conn);

/* client_callback.c */
int nfr_callback_setup(struct rpc_xprt *xprt, unsigned int requests);
size_t nfr_callback_maxpayload(struct rpc_xprt *xprt);
unsigned int nfr_callback_slots(struct rpc_xprt *xprt);
void nfr_callback_free_rqst(struct rpc_rqst *rqst);
void nfr_callback_destroy(struct rpc_xprt *xprt, unsigned int requests);
void nfr_callback_receive(struct nfr_conn *conn, u32 xid, const void *rpc, u32 length);
int nfr_callback_reply(struct nfr_conn *conn, struct rpc_rqst *rqst);

/* sunrpc's number of the client that asks: -1 where there is none, as in its own events */
static inline u32 nfr_rqst_client(const struct rpc_rqst *rqst)
{
	return rqst->rq_task->tk_client ? rqst->rq_task->tk_client->cl_clid : -1;
}

/* client_stats.c */
void nfr_client_print_stats(struct rpc_xprt *xprt, struct seq_file *seq);

#endif
