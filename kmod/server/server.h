/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Server transport: a listener, the connections that it accepted, and their
 * requests.
 *
 * A client's first connection is a transport of nfsd. Clients of some personalities have
 * branches beside it, which nfsd does not know, see branch.c.
 *
 * A request exists from the receipt of a Call until its Reply is sent. No
 * thread waits for the network meanwhile: the completion handler of the receive
 * starts RDMA Reads, an nfsd thread takes the request when the Call is
 * complete, and the send queue keeps it after the Reply is posted or queued.
 *
 * Locking: nfr_conn.lock protects the send queue, @sent, @pending, and the lists of
 * struct nfr_svc_exposures. nfr_svc.lock protects @late, @deferred, @free, @all and @spares,
 * and that of a first connection nfr_svc_first.ready. The two do not nest. share.c has a
 * lock for clients that wait for memory, which nests inside nfr_svc.lock; sunrpc's locks nest
 * inside it.
 *
 * Completions are handled in softirq context where the kernel has a workqueue
 * for that, so that a Call needs no thread before nfsd's. Locks of sunrpc's
 * clients and allocations of the RDMA core are not allowed there: a request that
 * needs them continues in a worker, see nfr_svc_defer().
 */
#ifndef NFSRDMA_SERVER_H
#define NFSRDMA_SERVER_H

#include <linux/seq_file.h>
#include <linux/sunrpc/addr.h>
#include <linux/sunrpc/svc_xprt.h>
#include <linux/sunrpc/xprt.h>

#include "connection/connection.h"
#include "connection/queues.h"
#include "memory/exposure.h"
#include "memory/memory.h"
#include "memory/region.h"
#include "observe/observe.h"
#include "personality.h"
#include "server/watch.h"
#include "wire/wire.h"

/* Offset of connection numbers in trace events, to tell them from client transports */
#define NFR_SVC_NUMBERS		0x80000000u

/* Idents of the classes; they differ from rpcrdma's, so that both modules can serve at once */
#define NFR_SVC_IDENT		0x6e6672
#define NFR_SVC_CALLBACK_IDENT		(NFR_SVC_IDENT | XPRT_TRANSPORT_BC)

/* Limits per Call; the server answers a Call that exceeds them with ERR_CHUNK */
#define NFR_SVC_CHUNKS		16
#define NFR_SVC_SEGS		128

/* Results of one COMPOUND that a Write chunk can convey */
#define NFR_SVC_RESULTS		NFR_SVC_CHUNKS

/* Pages that a connection keeps for RDMA Reads to come */
#define NFR_SVC_SPARES		512

/* Divisor for the share of server_memory that one client, or the kept pages, may have */
#define NFR_SVC_SHARE		4

/* Concurrent callbacks per connection: the number that Linux clients post receives for */
#define NFR_SVC_CALLBACKS	2

/*
 * Interval at which a connection ends exposures whose time is over, as long as it has any: an
 * invalidation that follows a Done is bounded as well, whatever server_done_timeout is
 */
#define NFR_SVC_EXPOSE_CHECK	HZ

/* Disconnect reason for a Call without a Reply */
#define NFR_SVC_UNANSWERED	"nfsd dropped a Call"

/* Operations of a first connection; @_writable is nfr_conn_ops.writable of its personality */
#define NFR_SVC_FIRST_OPS(_writable) {						\
	.receive	= nfr_svc_receive,					\
	.writable	= _writable,						\
	.broken		= nfr_svc_first_broken,					\
	.refused	= nfr_svc_first_refused,				\
	.unanswered	= NFR_SVC_UNANSWERED,					\
	.softirq	= true,							\
}

/* Credits of a new connection; the grant doubles when half of it is in use */
#define NFR_SVC_FIRST_GRANT	8u

struct dentry;
struct nfr_svc_gather;
struct nfr_svc_permits;
struct rpc_xprt;

/* A DDP-eligible result; @offset and @length are bytes in the unreduced Reply */
struct nfr_result {
	u32 offset;
	u32 length;
};

struct nfr_svc;
struct nfr_svc_req;

/**
 * struct nfr_svc_personality - protocol variant of a connection
 * @number: number of the personality
 * @request_size: bytes that each request has in nfr_svc_req.own
 * @invalidates: Replies may invalidate a key of the client
 * @learns: Replies of nfsd say which READs may pass it by: note when nfsd gets a Call
 * @single: of a branch: a new one ends the earlier one
 * @branch: personality of the branches that may join a connection, or NULL
 * @conn: operations of the connection
 * @start: prepare for connections; @ops are the operations of their transports
 * @stop: undo @start; no connection exists
 * @totals: print what all connections have, for the file server in debugfs
 * @limits: print the limits of a device for it, for the file devices in debugfs
 * @agree: prepare a new connection, or return a negative errno if the device or the client
 *	does not suit: then a first connection becomes one of version 1, and a branch is refused
 * @fit: adapt the profile of a first connection, or set that of a branch; 0 or a negative errno
 * @establish: adapt a first connection that sunrpc has just initialized
 * @fence: end the access of the client, after nfr_conn_drain(), which the device may have refused
 * @destroy: free what a drained connection and its requests have for this personality
 * @show: print that for the file connection in debugfs
 * @init: initialize what a new request has for this personality
 * @receive: decode and dispatch the message of a new request
 * @threadless: answer a Call without Read chunks where it arrives, see threadless.c; returns
 *	false if nfsd has to answer
 * @inspect: find out about the Reply of an nfsd thread what @reply needs
 * @reply: plan and prepare a Reply, as nfr_svc_reply() does; -EINPROGRESS if the function has
 *	completed or ended the request itself
 * @refuse: prepare an error, as nfr_svc_reply_error() does
 * @exposed: a Reply was posted whose memory the client may read (NFR_SVC_EXPOSED)
 * @revoke: prepare the end of that; nfr_svc_post() follows (NFR_SVC_REVOKING)
 * @size: compute the size of a header
 * @finish: encode a header and chain the Send, as nfr_svc_req_finish() does
 *
 * The server calls these operations through this table, so that a new personality only adds a
 * table. Those from @start to @init, and @threadless, @exposed and @revoke, may be NULL.
 */
struct nfr_svc_personality {
	enum nfr_personality number;
	size_t request_size;
	bool invalidates;
	bool learns;
	bool single;
	const struct nfr_svc_personality *branch;
	struct nfr_conn_ops conn;
	int (*start)(const struct svc_xprt_ops *ops);
	void (*stop)(void);
	void (*totals)(struct seq_file *seq);
	void (*limits)(struct seq_file *seq, struct ib_device *device);
	int (*agree)(struct nfr_svc *svc, const struct rdma_conn_param *param);
	int (*fit)(struct nfr_svc *svc);
	void (*establish)(struct nfr_svc *svc);
	void (*fence)(struct nfr_svc *svc);
	void (*destroy)(struct nfr_svc *svc);
	void (*show)(const struct nfr_svc *svc, struct seq_file *seq);
	void (*init)(struct nfr_svc_req *req);
	void (*receive)(struct nfr_svc_req *req);
	bool (*threadless)(struct nfr_svc_req *req);
	void (*inspect)(struct nfr_svc_req *req, struct svc_rqst *rqstp);
	int (*reply)(struct nfr_svc_req *req, const struct xdr_buf *res, struct svc_rqst *rqstp);
	int (*refuse)(struct nfr_svc_req *req, enum nfr_error error);
	void (*exposed)(struct nfr_svc_req *req);
	void (*revoke)(struct nfr_svc_req *req);
	size_t (*size)(const struct nfr_header *head);
	int (*finish)(struct nfr_svc_req *req, const struct nfr_header *head, u32 length);
};

#define NFR_SVC_DECLARE(_number, _constant, _symbol, _name)			\
	extern const struct nfr_svc_personality nfr_svc_##_symbol;

NFR_PERSONALITY_LIST(NFR_SVC_DECLARE)

/* States of a request; nfr_svc_advance() takes it to each of them */
enum nfr_svc_state {
	NFR_SVC_FREE,		/* not in use */
	NFR_SVC_RECEIVED,	/* in its receive buffer; decoded and checked */
	NFR_SVC_READING,	/* RDMA Reads wait for memory, or are in progress */
	NFR_SVC_READY,		/* complete: waits for an nfsd thread */
	NFR_SVC_REPLYING,	/* nfsd works on it, or the Reply is prepared */
	NFR_SVC_SENT,		/* the Reply is posted, or waits for room in the send queue */
	NFR_SVC_EXPOSED,	/* in place of that: the client may read memory until Done */
	NFR_SVC_REVOKING,	/* the registrations are being invalidated */
};

/*
 * struct nfr_svc_req - a Call, from its receipt until its Reply is sent
 * @list: link in the list of its state: ready, waiting, pending, sent or free
 * @all: link in nfr_svc.all
 * @state: what happens to the request now
 * @recv: receive that holds the Call; NULL after the Reply
 * @head: transport header of the Call; its chunks are in @chunks and @segs
 * @rpc: inline part of the Call; @rpc_length bytes
 * @pages: target pages of RDMA Reads; @npages elements, @length bytes
 * @sunk: pages charged for RDMA Reads, see sink.c
 * @waited: whether the request was queued for memory
 * @whole: whether @pages holds the whole message, rather than one data item
 * @transfer: RDMA Reads or Writes in progress; its @gfp is that of the context that
 *	handles the request now
 * @handed: wall-clock time at which nfsd got the Call, and how often that clock had been set
 * @reply_pages: pages charged for the Reply, see budget.c
 * @kept: the thread's pages while nfsd may replace them, then the pages of the Reply,
 *	see pages.c; pages of the file for a threadless read; @nkept elements, room for @kept_room
 * @by_chunk: whether the device takes more than the results from the pages of the Reply: they go
 *	into the Reply chunk, into a long Send, or the client reads them
 * @unlimited: length of the Reply in bytes if it is a Send that may be too long, or 0
 * @results: DDP-eligible results, in the order of the Write list
 * @buffer: send buffer of the Reply, mapped at @addr
 * @first: chain of work requests to post; ends with @last, has @count
 * @posted: jiffies when its last chain was posted or queued for that; 0 if none was, or if
 *	the RDMA Reads are complete
 * @mark: end of the chain in the send queue, if it ends with the Reply
 * @gather: messages of the Reply that the device takes from pages, or NULL, see gather.c
 * @resume: function that continues the request when it has waited for memory or
 *	for a worker
 * @own: what it has for its personality, see nfr_svc_personality.request_size
 */
struct nfr_svc_req {
	struct list_head list;
	struct list_head all;
	struct nfr_svc *svc;
	enum nfr_svc_state state;
	struct nfr_recv *recv;
	struct nfr_header head;
	const u8 *rpc;
	u32 rpc_length;

	struct page **pages;
	u32 npages;
	u32 length;
	u32 sunk;
	bool whole;
	bool waited;
	struct nfr_transfer transfer;
	struct ib_cqe read_cqe;

	struct nfr_svc_handed handed;
	u32 reply_pages;
	struct page **kept;
	u32 nkept;
	u32 kept_room;
	bool by_chunk;
	u32 unlimited;
	struct nfr_result results[NFR_SVC_RESULTS];
	u32 nresults;
	void *buffer;
	u64 addr;
	struct ib_sge sge;
	struct ib_send_wr send;

	struct ib_send_wr *first;
	struct ib_send_wr *last;
	u32 count;
	bool signal;
	unsigned long posted;
	u32 mark;
	struct nfr_svc_gather *gather;
	void (*resume)(struct nfr_svc_req *req);

	struct nfr_chunk chunks[NFR_SVC_CHUNKS];
	struct nfr_segment segs[NFR_SVC_SEGS];
	u64 own[];
};

/* Uses of the pages that the server holds for clients */
enum nfr_svc_purpose {
	NFR_SVC_READS,		/* RDMA Reads, until an nfsd thread takes the data over */
	NFR_SVC_REPLIES,	/* until the client's device acknowledges them */
	NFR_SVC_PURPOSES,
};

/*
 * struct nfr_svc_share - pages of one use that the connections of a client address may hold
 * @room: pages that can be charged; negative while Replies exceed the limits
 * @urgent: who returns pages takes the lock: somebody waits, or @guest is set
 * @use: what the pages are for
 * @lent: pages borrowed from the stock
 * @guest: pages borrowed from the floor that clients without one share
 * @host: the client address
 * @waiting: link in the list of shares that wait for the stock
 * @floorless: link in the list of shares that wait for the shared floor
 */
struct nfr_svc_share {
	atomic_t room;
	bool urgent;
	enum nfr_svc_purpose use;
	u32 lent;
	u32 guest;
	struct nfr_svc_host *host;
	struct list_head waiting;
	struct list_head floorless;
};

/*
 * struct nfr_svc_host - client address, and what its connections share, see share.c
 * @shares: pages that they may hold
 * @net: network namespace
 * @address: address; port 0
 * @list: link in the list of client addresses
 * @connections: number of connections
 * @floor: pages of each use that no other client can take
 * @wanted: length of the largest message in pages: what @floor is if server_floors suffices
 * @starved: connections that wait for memory for Replies
 * @sinking: requests that wait for memory for RDMA Reads, @nsinking elements
 * @sink_work: work that resumes them
 */
struct nfr_svc_host {
	struct nfr_svc_share shares[NFR_SVC_PURPOSES];
	struct net *net;
	struct sockaddr_storage address;
	struct list_head list;
	u32 connections;
	u32 floor;
	u32 wanted;
	struct list_head starved;
	struct list_head sinking;
	u32 nsinking;
	struct delayed_work sink_work;
};

/*
 * struct nfr_svc - connection of a client: what first connections and branches have
 * @first: first connection: the one that has this structure, or the one that the branch joined
 * @personality: what both ends agreed on
 * @remote: address of the client; port 0
 * @port: port of the client
 * @privileged: whether exports with the option secure admit the client
 * @counted: link in the list of connections whose counters the totals have
 * @list: link in nfr_listener.arrived until the connection is accepted
 * @grant: number of credits that the client has
 * @busy: number of Calls without a Reply
 * @host: what the connections of the client's address share
 * @starved: link in nfr_svc_host.starved
 * @late: received messages that wait for memory for a request
 * @deferred: requests that need a worker to continue
 * @spares: pages for RDMA Reads to come, see pages.c; @nspares elements, room for
 *	@spare_room
 * @pending: requests that wait for room in the send queue
 * @sent: requests whose Reply is posted
 * @free_work: work that destroys the connection after its last reference is dropped
 * @watched: number of signaled completions at the last check
 * @waited: whether completions were outstanding at the last check
 * @heard: number of Calls at the last check
 * @max_message: maximum message size of the service in bytes
 * @long_pages: number of pages of a Send to a client without private data, see
 *	nfr_svc_reply_long(); 0 for other clients
 * @pool: MRs for memory that the client reads, or NULL
 * @own: what it has for its personality: as much as a pointer, see nfr_svc_own()
 */
struct nfr_svc {
	struct nfr_svc_first *first;
	const struct nfr_svc_personality *personality;
	struct nfr_conn *conn;
	struct sockaddr_storage remote;
	u16 port;
	bool privileged;
	struct list_head list;
	u32 grant;
	atomic_t busy;
	struct nfr_svc_host *host;
	struct list_head starved;
	spinlock_t lock;		/* protects the lists but @pending and @sent */
	struct list_head late;
	struct delayed_work late_work;
	struct list_head deferred;
	struct work_struct deferred_work;
	struct list_head free;
	struct list_head all;
	u32 nreqs;
	struct page *spares[NFR_SVC_SPARES];
	u32 nspares;
	u32 spare_room;
	struct list_head pending;
	struct list_head sent;
	struct delayed_work free_work;
	struct delayed_work watch;
	u32 watched;
	bool waited;
	u64 heard;
	u32 max_message;
	u32 long_pages;
	struct nfr_svc_counters counters;
	struct list_head counted;
	struct dentry *debugfs;
	struct nfr_pool *pool;
	u64 own;
};

/*
 * struct nfr_svc_first - first connection of a client, which nfsd knows
 * @xprt: the transport; its references are those of the connection
 * @svc: the connection
 * @ready: requests that wait for an nfsd thread, those of branches as well
 * @permits: what threadless reads the client is permitted, by all its connections; or NULL
 * @callbacks: rpc_xprt for callbacks, or NULL
 * @known: link in the list of connections that branches may join; the lock of branch.c
 *	protects it
 * @branches: branches that joined, @nbranches elements; same lock, and for changes that of @svc
 */
struct nfr_svc_first {
	struct svc_xprt xprt;
	struct nfr_svc svc;
	struct list_head ready;
	struct nfr_svc_permits *permits;
	struct rpc_xprt *callbacks;
	u32 callbacks_granted;
	atomic_t callbacks_inflight;
	struct list_head known;
	struct list_head branches;
	u32 nbranches;
};

/*
 * struct nfr_svc_branch - connection of a client beside its first one
 * @ref: references: one until the branch ends, and one for each Call on its way to nfsd and back
 * @svc: the connection
 * @joined: link in nfr_svc_first.branches
 * @end_work: work that ends a broken branch
 * @broken: bit 0: it broke
 * @holds: what has to happen before @end_work is queued: it was opened, and it broke
 */
struct nfr_svc_branch {
	struct kref ref;
	struct nfr_svc svc;
	struct list_head joined;
	struct work_struct end_work;
	unsigned long broken;
	atomic_t holds;
};

/* Get the memory of a connection for its personality: a structure, or a pointer to one. */
static inline void *nfr_svc_own(const struct nfr_svc *svc)
{
	return (void *)&svc->own;
}

static inline struct nfr_svc *nfr_svc_of(struct svc_xprt *xprt)
{
	return &container_of(xprt, struct nfr_svc_first, xprt)->svc;
}

static inline struct nfr_svc_branch *nfr_svc_branch_of(struct nfr_svc *svc)
{
	return container_of(svc, struct nfr_svc_branch, svc);
}

static inline bool nfr_svc_is_branch(const struct nfr_svc *svc)
{
	return svc != &svc->first->svc;
}

/* Take a reference. Returns false if the last one was dropped. */
static inline bool nfr_svc_get(struct nfr_svc *svc)
{
	return kref_get_unless_zero(nfr_svc_is_branch(svc) ? &nfr_svc_branch_of(svc)->ref :
							     &svc->first->xprt.xpt_ref);
}

static inline void nfr_svc_branch_release(struct kref *ref)
{
	nfr_work_queue(&container_of(ref, struct nfr_svc_branch, ref)->svc.free_work, 0);
}

static inline void nfr_svc_put(struct nfr_svc *svc)
{
	if (nfr_svc_is_branch(svc))
		kref_put(&nfr_svc_branch_of(svc)->ref, nfr_svc_branch_release);
	else
		svc_xprt_put(&svc->first->xprt);
}

/* Have nfsd look at the Calls of a client. */
static inline void nfr_svc_wake(struct nfr_svc *svc)
{
	struct svc_xprt *xprt = &svc->first->xprt;

	set_bit(XPT_DATA, &xprt->xpt_flags);
	svc_xprt_enqueue(xprt);
}

/*
 * Receives for a grant: one per credit, replies to callbacks, and what waits to be posted again:
 * a Call has its receive until its Reply is prepared. A client of 2003 may send a Done before each
 * Call.
 */
static inline u32 nfr_svc_recvs_for(const struct nfr_svc *svc, u32 grant)
{
	u32 dones = min(grant, svc->conn->profile.dones);

	return grant + dones + NFR_SVC_CALLBACKS + NFR_REPOST - 1;
}

/* Take the first entry from a list that the lock of @svc protects, or return NULL. */
static inline struct list_head *nfr_svc_pop(struct nfr_svc *svc, struct list_head *list)
{
	struct list_head *entry = NULL;

	spin_lock_bh(&svc->lock);
	if (!list_empty(list)) {
		entry = list->next;
		list_del(entry);
	}
	spin_unlock_bh(&svc->lock);
	return entry;
}

/* Context: any thread */
#define nfr_svc_count(svc, name, n) do {					\
	u64 _n = (n);							\
									\
	if (_n)								\
		atomic64_add(_n, &(svc)->counters.name);		\
} while (0)

/* Return the receive of a Call whose Reply is prepared, or that has none. */
static inline void nfr_svc_req_answered(struct nfr_svc_req *req)
{
	struct nfr_recv *recv = req->recv;

	if (!recv)
		return;
	req->recv = NULL;
	atomic_dec(&req->svc->busy);
	nfr_conn_recv_return(req->svc->conn, recv);
}

/* transport.c */
int nfr_svc_register(void);
void nfr_svc_unregister(void);

/* connection.c */
struct nfr_svc *nfr_svc_create(struct rdma_cm_id *id, const struct rdma_conn_param *param);
void nfr_svc_destroy(struct nfr_svc *svc);
struct svc_xprt *nfr_svc_establish(struct nfr_svc *svc, struct svc_xprt *listener);
void nfr_svc_observe_totals(void);
void nfr_svc_fence_start(void);

/* personality.c */
int nfr_svc_personalities_start(const struct svc_xprt_ops *ops);
void nfr_svc_personalities_stop(void);
void nfr_svc_personalities_totals(struct seq_file *seq);
void nfr_svc_device_show(struct seq_file *seq, struct ib_device *device);
void nfr_svc_agree(struct nfr_svc *svc, u32 capabilities, const struct rdma_conn_param *param);
int nfr_svc_agree_branch(struct nfr_svc *svc, u32 capabilities,
			 const struct rdma_conn_param *param);

/* Check whether a connection comes from an address in a network namespace, from whatever port. */
static inline bool nfr_svc_comes_from(const struct nfr_svc *svc, const struct net *net,
				      const struct sockaddr_storage *address)
{
	return net == svc->first->xprt.xpt_net &&
	       rpc_cmp_addr((const struct sockaddr *)address,
			    (const struct sockaddr *)&svc->remote);
}

/* gather.c */
int nfr_svc_gather_get(struct nfr_svc_req *req, u32 messages, u32 pages);
int nfr_svc_gather_add(struct nfr_svc_req *req, struct nfr_span *span, bool head, u32 data);
void nfr_svc_gather_finish(struct nfr_svc_req *req, struct svc_rqst *rqstp, u32 head, u32 data);
void nfr_svc_gather_release(struct nfr_svc_req *req);

/* callback.c */
int nfr_svc_callback_register(void);
void nfr_svc_callback_unregister(void);

#endif
