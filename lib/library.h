/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Types and functions that the files of the library share.  The files, from the bottom up; each calls those above it
 * in this list only, which tests/unit/lib/test_rooms.py checks:
 *
 *   fail.c        the line of text about the last failure
 *   histogram.c   counts of values
 *   process.c     the sessions of this process, and fork(2)
 *   abi.c         structs of programs of other versions
 *   memory.c      registered memory: messages, the arena, regions of the caller
 *   inode.c       files of the server, by file handle
 *   cache.c       data that was read
 *   file.c        open files
 *   reference.c   memory of the server that the session may read by RDMA
 *   connection.c  rdma_cm and verbs: from the address of a server to a queue pair and its completions, and its end
 *   request.c     the slots of requests, and XIDs
 *   send.c        from a request to a message: credits, chunks, doorbells, and what follows a lost connection
 *   reply.c       from a message to the end of a request
 *   wait.c        polls, sleeps, timeouts
 *   nfs.c         what the versions of NFS have in common
 *   mount.c       MNT, which the mount daemon answers over TCP
 *   nfs3.c        the procedures of NFSv3
 *   compound.c    messages of NFSv4.1: operations, errors, attributes
 *   state.c       NFSv4.1: client ID, session and open files, and their recovery
 *   nfs4.c        the procedures of NFSv4.1
 *   path.c        paths
 *   names.c       calls for names and attributes
 *   directory.c   open directories
 *   commit.c      from WRITE to stable storage: fsync and close
 *   optimistic.c  the second connection, and reads by RDMA on it
 *   io.c          reads and writes: one at a time, and batches
 *   open.c        from a path to an open file
 *   session.c     sessions, and what the connection reports
 *   crc32c.c      a checksum
 *   handle.c      file handles of a store of blocks, by path
 *   block_step.c  what an operation on a block does: its steps
 *   block_nfs4.c  the steps that NFSv4.1 has in place of those of NFSv3
 *   block.c       stores of blocks, on many sessions
 *   load.c        many sessions with a load: the engine of `nfsrdma load`
 *
 * A file calls no function of a file that stands below it in this list.  Tables of functions do that instead: struct
 * reports for the connection, struct nfs_dialect for the version of NFS, finish() and done() for a request.
 *
 * The server is not trusted: a decoder checks the number of bytes left before each read.
 */
#ifndef NFSRDMA_LIBRARY_H
#define NFSRDMA_LIBRARY_H

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rpc/rpc.h>

#include "nfsrdma.h"
#include "nfs3.h"
#include "wire/wire.h"
#include "xdr.h"

#define NEVER		UINT64_MAX

#define EXPORTED	__attribute__((visibility("default")))

#define NFS_PROGRAM	100003
#define NFS_VERSION	3

/* RFC 1813: fattr3, wcc_attr */
#define NFS_ATTR_BYTES		84
#define NFS_AT_NLINK		8
#define NFS_PRE_ATTR_BYTES	24

/* RFC 1813, section 3.3 */
enum nfs_procedure {
	NFS_NULL = 0, NFS_GETATTR = 1, NFS_SETATTR = 2, NFS_LOOKUP = 3, NFS_READLINK = 5, NFS_READ = 6,
	NFS_WRITE = 7, NFS_CREATE = 8, NFS_MKDIR = 9, NFS_SYMLINK = 10, NFS_REMOVE = 12, NFS_RMDIR = 13,
	NFS_RENAME = 14, NFS_READDIRPLUS = 17, NFS_FSINFO = 19, NFS_COMMIT = 21,
};

/* NFS3ERR_JUKEBOX */
#define NFS_BUSY	10008

/* Room in front of each RPC message, for the longest transport header that send.c encodes */
#define HEADER_ROOM	512

/* Longest piece of a reply that is more than attributes fit in */
#define REPLY_SMALL	512

/* Longest Call that send.c sends by a Read chunk: SYMLINK with the longest name and text */
#define CALL_MAX	8192

/* The arena has blocks, and one bit of a word for each */
#define BLOCK_BYTES	(64 << 10)
#define BLOCKS_MAX	64
#define IO_MAX		(1 << 20)

/* Bits of an XID that number a request; the other bits count */
#define XID_SLOT_BITS	8

/*
 * NFSv4.1: longest file handle (RFC 8881, section 4), slots, bytes of a stateid, milliseconds for the last calls of a
 * session
 */
#define FH_MAX			128
#define NFS4_SLOTS		160
#define NFS4_STATEID		16
#define NFS4_LEAVE_TIMEOUT	5000

/* Bytes of a reply that lists a directory, at most */
#define LIST_MAX	(32 << 10)

/* Longest RPC Call header: ten words, and a body of AUTH_SYS with 16 groups (RFC 5531, appendix A) */
#define RPC_HEAD_MAX	480

/* Private data, see kmod/personality.h: the personality optimistic, a further connection, units of an extent */
#define CAPABILITY_OPTIMISTIC	(1U << 4)
#define CAPABILITY_LANE		(1U << 31)
#define EXTENT_ORDER_SHIFT	16
#define EXTENT_ORDER_MASK	0xffU
#define EXTENT_ORDER_MAX	8
#define UNIT_SHIFT		12

/* Receives for the notices that a server may send at a time (NFR_NOTICES), and some more; credits to return */
#define NOTICES			64
#define NOTICE_RECEIVES		(NOTICES + 16)
#define CREDIT_SLOTS		4
#define NOTICE_ROOM		128

/* RFC 5531, section 9 */
#define RPC_CALL	0
#define RPC_AUTH_MAX	400

/* Completions of one poll */
#define CONNECTION_POLL_MOST	16

#define CACHE_BLOCK		4096
#define CACHE_BLOCKS_MAX	(1U << 31)

/* A completion of a Send: this bit, and the number of the Send */
#define SEND_BIT		(1ULL << 63)

/* A completion of the second connection: this bit, kind, generation of the connection, and a number */
#define SECOND_BIT		(1ULL << 62)

struct memory_span {
	struct ibv_mr **mr;		/* the registration, which a reconnect replaces; NULL: no memory */
	uint8_t *addr;
	uint32_t length;
};

struct nfs_fh {
	uint32_t length;
	uint8_t bytes[FH_MAX];
};

struct request;

enum request_state {
	REQUEST_FREE,
	REQUEST_PREPARED,	/* has a message, not submitted */
	REQUEST_HELD,		/* a COMMIT that waits for writes */
	REQUEST_WAITING,	/* for a credit, or for a connection */
	REQUEST_SENT,
	REQUEST_READING,	/* an RDMA Read on the second connection */
	REQUEST_DELAYED,	/* the server was busy */
	REQUEST_DONE,
};

enum io_kind { IO_READ, IO_WRITE, IO_COMMIT };

/* READ, WRITE or COMMIT of a file */
struct io_operation {
	enum io_kind kind;
	struct nfsrdma_file *file;
	uint8_t *buf;			/* memory of the caller */
	uint64_t offset;
	uint32_t count;
	uint64_t user_data;
	struct nfsrdma_region *region;	/* that has @buf, or NULL */
	bool direct;			/* the processor does not touch @buf, see memory_check() */
	uint8_t *bounce;		/* copy of the data in the arena, or NULL */
	uint32_t moved;			/* bytes */
	uint32_t version;		/* of the file in the cache, when the read began */
	uint64_t barrier;		/* a COMMIT waits for the writes of its inode that have a lower one */
	uint64_t writes;		/* of the inode, when the COMMIT left */
	const struct io_form *form;	/* of the Call, if it is a READ or WRITE */
	bool commits;			/* no close of a file that is open for reading only */
	bool eof;
};

/**
 * struct remote_read - what becomes of a READ without a message
 * @by_rpc: it is no RDMA Read: encodes its message
 * @arrived: its data has arrived
 */
struct remote_read {
	void (*by_rpc)(struct nfsrdma_session *session, struct request *req);
	void (*arrived)(struct nfsrdma_session *session, struct request *req);
};

/**
 * struct request - an RPC
 * @next: next request in a list of the session
 * @state: see enum request_state
 * @xid: RFC 5531; its low bits number the request
 * @renumbered: the message has another one
 * @message: registered memory; the RPC message begins at HEADER_ROOM
 * @length: bytes of the RPC message
 * @position: of @read in the XDR stream
 * @call: a copy of a Call that is too long for the connection
 * @read: memory that the server reads
 * @write: memory that the server writes data to
 * @reply: memory that the server writes a long reply to
 * @reply_most: bytes of the longest reply with its transport header, without what goes to @write
 * @finish: decodes the results; returns 0, -EINPROGRESS if the server is busy, or an error
 * @done: called at the end, or NULL
 * @error: result of the request, once done
 * @send: number of its Send on the connection
 * @began: milliseconds of the monotonic clock; that of nfsrdma_connect() for its calls
 * @sent: the same
 * @not_before: the same, of a delayed request
 * @delay: milliseconds
 * @results: where @decode or @parse stores the results of other procedures than READ and WRITE
 * @parse: the same as @decode, of NFSv4.1
 * @placed: bytes that the server wrote to @write
 * @remote: a READ without a message: it may be an RDMA Read; NULL: any other request
 * @target: memory of the server that it reads then
 * @target_ends: the file ends with that memory
 * @sequenced: the message has SEQUENCE
 * @root: the message has PUTROOTFH
 * @kept: the server keeps the reply: a call that it must not execute twice
 * @nfs4_slot: of the NFSv4.1 session; -1: none
 * @inode: whose stateid the message has, or NULL; the caller keeps it until the request ends
 * @stateid_at: place of the stateid in the COMPOUND
 */
struct request {
	struct request *next;
	enum request_state state;
	uint32_t xid;
	bool renumbered;
	uint8_t *message;
	uint32_t length;
	uint32_t position;
	struct memory_span call, read, write, reply;
	uint32_t reply_most;
	int (*finish)(struct nfsrdma_session *session, struct request *req, struct rpc_body *results);
	void (*done)(struct nfsrdma_session *session, struct request *req);
	int error;
	uint32_t send;
	uint64_t began, sent, not_before;
	uint32_t delay;
	xdrproc_t decode;
	void *results;
	int (*parse)(struct nfsrdma_session *session, struct rpc_body *body, void *results);
	uint32_t placed;
	const struct remote_read *remote;
	struct nfr_segment target;
	bool target_ends;
	bool sequenced, root, kept;
	int nfs4_slot;
	struct inode *inode;
	uint32_t stateid_at;
	struct io_operation io;
};

struct request_list {
	struct request *head, **tail;
};

enum link_state {
	LINK_DOWN,		/* connection_start() makes a connection */
	LINK_ADDRESS,		/* resolving the address */
	LINK_ROUTE,
	LINK_CONNECTING,
	LINK_UP,
	LINK_PAUSE,		/* until @link_retry */
};

/* See state.c for these */
enum nfs4_state {
	NFS4_NONE, NFS4_CLIENT, NFS4_SESSION, NFS4_READY,
};

/* Requests wait for those in front of CALL_RETURN */
enum nfs4_call {
	CALL_EXCHANGE, CALL_CREATE, CALL_RECLAIM, CALL_COMPLETE, CALL_FREE, CALL_REOPEN, CALL_RETURN, CALL_CLOSE,
};

enum open_state {
	OPEN_NONE, OPEN_HELD, OPEN_LOST, OPEN_SUSPECT, OPEN_GONE, OPEN_CLOSING, OPEN_FAILED,
};

enum open_work {
	WORK_RECLAIM, WORK_REOPEN, WORK_ERRAND, WORK_NONE,
};

/**
 * struct nfs4_open - what the server keeps for an inode that is open for writing; all its open files share it
 * @entry: in the list @work of the session
 * @inode: of which it is a user
 * @users: open files
 * @access: that the server has granted (OPEN4_SHARE_ACCESS_READ, OPEN4_SHARE_ACCESS_WRITE)
 * @state: see state.c
 * @work: list that has it
 * @stateid: of the last OPEN
 * @delegated: the server gave a delegation, which goes back
 * @delegation: its stateid
 * @error: negative errno value of its I/O in OPEN_FAILED
 */
struct nfs4_open {
	TAILQ_ENTRY(nfs4_open) entry;
	struct inode *inode;
	uint32_t users, access;
	enum open_state state;
	enum open_work work;
	uint8_t stateid[NFS4_STATEID];
	bool delegated;
	uint8_t delegation[NFS4_STATEID];
	int error;
};

struct nfs4_slot {
	uint32_t sequence;
	bool busy;
};

/**
 * struct nfs4 - client ID, session and open files of NFSv4.1
 * @state: what there is
 * @setup: the call of state.c that is not answered, or NULL
 * @starved: there was no request for it: the Sends of those that are free have not completed
 * @call: what it is
 * @open: the open file that it is about, or NULL
 * @work: open files that need a call, by its urgency
 * @owner: name of the client owner
 * @verifier: of the client owner
 * @client: client ID
 * @complete: the client ID has had RECLAIM_COMPLETE
 * @flags: of the last SEQUENCE
 * @create_sequence: sequence of the next CREATE_SESSION
 * @session: session ID
 * @request_max: bytes of the longest request, with its data
 * @response_max: the same of a reply
 * @operations: of the longest COMPOUND
 * @keeps: the server keeps replies as long as those of calls that need it
 * @nslots: slots that the server lets the client use
 * @nbusy: those that are busy, with those that the server has taken back since
 * @nabandoned: those of them whose request has ended without a reply
 * @slots: slots
 */
struct nfs4 {
	enum nfs4_state state;
	struct request *setup;
	bool starved;
	enum nfs4_call call;
	struct nfs4_open *open;
	TAILQ_HEAD(nfs4_work, nfs4_open) work[WORK_NONE];
	char owner[128];
	uint8_t verifier[8];
	uint64_t client;
	bool complete;
	uint32_t flags;
	uint32_t create_sequence;
	uint8_t session[16];
	uint32_t request_max, response_max, operations;
	bool keeps;
	uint32_t nslots, nbusy, nabandoned;
	struct nfs4_slot slots[NFS4_SLOTS];
};

struct nfs4_attributes {
	uint64_t present;	/* a bit for each attribute */
	uint64_t read_max, write_max;
	attr3 attr;
};

/**
 * struct reference - an extent of a file that the session may read by RDMA, or has just read by RPC
 * @next_of_file: next one with the same hash of file handle and extent, or the next unused one
 * @next_of_handle: next one with the same hash of the key, if @extent has a length
 * @uses: in the list of all entries with a file
 * @index: number of the extent in the file
 * @position: position of the memory in the file
 * @extent: the memory; its length is 0 if the server has granted nothing
 * @ends: the file ends with it
 * @renew_at: milliseconds of the clock; a READ after that goes by RPC and renews it
 * @expires: the same, when it ends
 * @fh_length: bytes of @fh
 * @fh: file handle
 */
struct reference {
	struct reference *next_of_file, *next_of_handle;
	TAILQ_ENTRY(reference) uses;
	uint64_t index, position;
	struct nfr_segment extent;
	bool ends;
	uint64_t renew_at, expires;
	uint32_t fh_length;
	uint8_t fh[NFR_WIRE_FH_MAX];
};

#define REFERENCES		8192
#define REFERENCE_HASHES	1024

/**
 * struct references - the directory of references
 * @all: memory of REFERENCES entries
 * @used: number of those that ever had a file
 * @unused: those of them without one
 * @uses: entries with a file, the one used last first
 * @by_file: by hash of file handle and extent
 * @by_handle: by hash of the key
 * @shift: bytes of an extent, as a power of two
 * @credential: digest of the credential of the session's calls; it is that of all references
 * @accepted: number of grants so far that filled an entry
 */
struct references {
	struct reference *all;
	uint32_t used;
	struct reference *unused;
	TAILQ_HEAD(reference_uses, reference) uses;
	struct reference *by_file[REFERENCE_HASHES], *by_handle[REFERENCE_HASHES];
	uint32_t shift;
	uint64_t credential, accepted;
};

enum reference_answer {
	REFERENCE_FOUND,
	REFERENCE_NONE,		/* the server has granted nothing, or other bytes */
	REFERENCE_OLD,		/* an RPC has to renew it */
};

/**
 * struct optimist - optimistic reads of a session
 * @token: joins the second connection to the first one
 * @link: state of the second connection
 * @retry: milliseconds of the clock at which to connect again
 * @delay: milliseconds of the last pause
 * @since: milliseconds of the clock at which the connection was made
 * @id: connection
 * @qp: its queue pair, with the completion queue of the session
 * @peer: what the server accepted
 * @generation: number of connections so far
 * @wrs: Reads of the next doorbell, @nposting of them; those behind have what all Reads share
 * @sges: their memory
 * @nposting: see @wrs
 * @handled: notices whose credits were not returned
 * @credits_busy: a bit for each message with credits that is not complete
 * @paused_until: milliseconds of the clock before which Reads do not pay
 * @tried: Reads since the last decision
 * @refused: those that were refused, and more for an end of the connection
 * @references: directory
 */
struct optimist {
	uint64_t token;
	enum link_state link;
	uint64_t retry, since;
	uint32_t delay;
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	struct nfr_private peer;
	uint32_t generation;
	struct ibv_send_wr *wrs;
	struct ibv_sge *sges;
	uint32_t nposting;
	uint32_t handled, credits_busy;
	uint64_t paused_until;
	uint32_t tried, refused;
	struct references references;
};

/**
 * struct inode - a file of the server
 * @next: next one with the same hash
 * @fh: file handle
 * @users: open files, 1 for @cached and 1 for @open
 * @writes: WRITEs that left data which may not be on stable storage
 * @committed: those of them that a COMMIT has followed
 * @verifier: of the last WRITE or COMMIT
 * @barriers: closes and fsyncs of batches
 * @lost: number of the last loss in the session; 0: none
 * @refused: the same, of a COMMIT that the server refused
 * @refusal: negative errno value of that
 * @untold: negative errno value of what no open file has reported; 0: nothing
 * @unlinked: a READ has said that the file has no name any more
 * @cached: the same file in the cache, or NULL
 * @open: what an NFSv4.1 server keeps for it, or NULL
 */
struct inode {
	struct inode *next;
	struct nfs_fh fh;
	uint32_t users;
	uint64_t writes, committed, barriers, lost, refused;
	uint8_t verifier[8];
	int refusal, untold;
	bool unlinked;
	struct cached_file *cached;
	struct nfs4_open *open;
};

/* Hash table of all inodes; @size is a power of two, or 0 */
struct inodes {
	struct inode **table;
	uint32_t size, count;
};

/**
 * struct nfsrdma_region - registered memory of the caller
 * @next: next one of the session
 * @session: session
 * @addr: address by which the caller names the memory; the processor may not reach that of a dma-buf
 * @length: bytes
 * @fd: the dma-buf; -1: ordinary memory
 * @offset: of the memory in the dma-buf
 * @mr: registration; NULL without a connection
 * @users: unfinished operations
 */
struct nfsrdma_region {
	struct nfsrdma_region *next;
	struct nfsrdma_session *session;
	uint8_t *addr;
	size_t length;
	int fd;
	uint64_t offset;
	struct ibv_mr *mr;
	uint32_t users;
};

/**
 * struct completion_ring - completions that the caller has not got yet
 * @places: ring
 * @size: places
 * @first: place of the first completion
 * @count: number of completions
 */
struct completion_ring {
	struct nfsrdma_completion *places;
	uint32_t size, first, count;
};

/**
 * struct reports - what a connection reports to the files above it
 * @opened: its queues exist: post receives; returns 0 or a negative errno value
 * @up: messages may leave
 * @closing: it is about to end
 * @closed: its queues are gone
 * @completed: completions of the device have arrived
 * @event: an event of another rdma_cm_id; @peer: the private data of the server with it, or NULL
 * @look: time has gone on; returns milliseconds of the clock at which to look again
 */
struct reports {
	int (*opened)(struct nfsrdma_session *session);
	void (*up)(struct nfsrdma_session *session);
	void (*closing)(struct nfsrdma_session *session);
	void (*closed)(struct nfsrdma_session *session);
	void (*completed)(struct nfsrdma_session *session, const struct ibv_wc *wcs, int n);
	void (*event)(struct nfsrdma_session *session, const struct rdma_cm_id *id, enum rdma_cm_event_type type,
		      const struct nfr_private *peer);
	uint64_t (*look)(struct nfsrdma_session *session, uint64_t now);
};

struct nfsrdma_session {
	struct nfsrdma_session *next;	/* of this process */
	uint32_t generation;		/* of the process that opened it, see process.c */
	struct nfsrdma_options options;
	char host[256];
	struct sockaddr_storage address;
	uint64_t opening;		/* when nfsrdma_connect() began; 0: it has ended */
	bool any_port;			/* one of many: it takes no privileged port */

	/* connection.c */
	const struct reports *reports;
	struct nfr_private offer;	/* capabilities and token for the server */
	uint32_t more_completions;	/* that the queue has room for, of the second connection */
	enum link_state link;
	int link_error;			/* why the last attempt failed */
	uint64_t link_retry;		/* when the pause ends, or the attempt to connect */
	uint32_t link_delay;
	uint32_t link_patience;		/* milliseconds that the server has for the next attempt */
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	int epoll;
	bool armed;
	bool arriving;			/* at least one reply on this connection */
	struct nfr_private peer;
	uint32_t send_size, recv_size;
	char device[64];

	/* memory.c */
	struct ibv_pd *pd;
	uint8_t *messages;		/* of requests, then of receives */
	size_t messages_bytes;
	struct ibv_mr *messages_mr;
	uint8_t *arena;
	size_t arena_bytes;
	struct ibv_mr *arena_mr;
	uint64_t arena_used;		/* a bit for each block */
	struct nfsrdma_region *regions;
	uint32_t ndmabufs;		/* of them */

	/* request.c, send.c, reply.c, wait.c */
	uint32_t nslots, signal_every, nreceives;
	struct request *slots;
	struct request_list free, prepared, held, waiting, delayed;
	uint32_t nprepared;
	uint32_t counter;		/* of XIDs */
	uint32_t credits, in_flight;
	uint32_t sends, sends_done;
	struct ibv_send_wr *send_wrs;
	struct ibv_sge *send_sges;
	struct ibv_recv_wr *receive_wrs;
	struct ibv_sge *receive_sges;
	uint8_t rpc_head[RPC_HEAD_MAX];	/* of each Call, XID and procedure are 0 */
	uint32_t rpc_head_length;
	uint32_t idle;			/* polls in a row that found nothing */
	uint32_t polls;
	uint64_t looked;		/* when wait_look() was called */
	uint64_t asked;			/* when options.interrupted was called */
	bool interrupted;		/* its last result */
	bool asking;			/* it is being called */

	struct completion_ring done;	/* a place for each operation of options.depth */
	uint32_t unfinished;
	bool in_store;			/* a store of blocks has it */
	bool store_calls;		/* that store makes the call */
	bool fd_used;
	int wake;			/* eventfd that makes the descriptor readable without a message; -1: none */
	bool woken;

	struct inodes inodes;
	uint64_t losses;		/* of all inodes so far */

	const struct nfs_dialect *dialect;
	struct nfs4 nfs4;
	struct optimist *optimist;	/* NULL: not requested */
	struct cache *cache;		/* the same */
	uint32_t nhits;			/* reads of the next batch that are complete */

	/* path.c */
	fh3 root;
	char *directory;		/* path of the export on the server; NULL: none */
	uint32_t read_max, write_max, list_max;

	struct nfsrdma_stats stats;
};

/* --- fail.c --- */

int fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_no_memory(void);

/* --- process.c --- */

void process_lock(void);
void process_unlock(void);
void process_enter(struct nfsrdma_session *session);
void process_leave(struct nfsrdma_session *session);
void process_adopt(struct nfsrdma_session *session);
bool process_owns(const struct nfsrdma_session *session);
int process_check_end(const struct nfsrdma_session *session);
int process_check(const struct nfsrdma_session *session);

/* Milliseconds of the monotonic clock */
static inline uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* When a call of the library began that makes an RPC now */
static inline uint64_t began_at(const struct nfsrdma_session *session)
{
	return session->opening ? session->opening : now_ms();
}

/* --- abi.c --- */

/* Bytes of the structs in version 0.1.0: no caller has fewer */
#define ABI_UP_TO(type, member)	(offsetof(type, member) + sizeof(((type *)0)->member))
#define OPTIONS_LEAST		ABI_UP_TO(struct nfsrdma_options, cache)
#define TERMS_LEAST		ABI_UP_TO(struct nfsrdma_terms, device)
#define STATS_LEAST		ABI_UP_TO(struct nfsrdma_stats, cached)
#define ENTRY_LEAST		ABI_UP_TO(struct nfsrdma_entry, stat)

int abi_check(size_t size, size_t least, const char *name);
int abi_take(void *to, size_t known, const void *from, size_t least, const char *name);
int abi_give(void *to, const void *from, size_t known, size_t least, const char *name);

/* --- memory.c --- */

int memory_allocate(struct nfsrdma_session *session);
int memory_register(struct nfsrdma_session *session, struct ibv_context *device);
void memory_deregister(struct nfsrdma_session *session);
void memory_free(struct nfsrdma_session *session);
uint8_t *memory_take(struct nfsrdma_session *session, size_t bytes);
void memory_give(struct nfsrdma_session *session, const uint8_t *addr, size_t bytes);
bool memory_is_in(const struct nfsrdma_region *region, const void *addr, size_t bytes);
bool memory_overlaps(const struct nfsrdma_region *region, const void *addr, size_t bytes);
struct nfsrdma_region *memory_find(struct nfsrdma_session *session, const void *addr, size_t bytes);
int memory_check(struct nfsrdma_session *session, const void *addr, size_t bytes, bool *direct);
bool memory_has_dmabuf(const struct nfsrdma_session *session, const void *addr, size_t bytes);
uint8_t *memory_receive(struct nfsrdma_session *session, uint32_t number);
uint8_t *memory_notice(struct nfsrdma_session *session, uint32_t number);

/* Copy data from or to memory of the caller; a read or write of no bytes may have none */
static inline void memory_copy(struct nfsrdma_session *session, void *to, const void *from, size_t bytes)
{
	if (bytes)
		memcpy(to, from, bytes);
	session->stats.copied_bytes += bytes;
}

/* --- connection.c --- */

void connection_start(struct nfsrdma_session *session);
void connection_event(struct nfsrdma_session *session);
void connection_lost(struct nfsrdma_session *session, int error, const char *why);
void connection_expire(struct nfsrdma_session *session);
void connection_close(struct nfsrdma_session *session);
int connection_open(struct nfsrdma_session *session);
int connection_use_fd(struct nfsrdma_session *session);
void connection_wake(struct nfsrdma_session *session);
void connection_rest(struct nfsrdma_session *session);
void connection_end(struct nfsrdma_session *session);
void connection_bind(struct nfsrdma_session *session, struct rdma_cm_id *id);
int connection_request(struct rdma_cm_id *id, struct ibv_qp *qp, const struct nfr_private *wanted,
		       uint8_t served, uint8_t reads);
int connection_set_state(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state);
int connection_complete(struct nfsrdma_session *session, struct rdma_cm_id *id, struct ibv_qp *qp);
int connection_poll(struct nfsrdma_session *session);

/* --- request.c --- */

int requests_allocate(struct nfsrdma_session *session);
void requests_free(struct nfsrdma_session *session);
struct request *request_take(struct nfsrdma_session *session);
bool request_is_free(const struct nfsrdma_session *session);
uint32_t request_count_free(const struct nfsrdma_session *session);
uint8_t *request_begin(struct nfsrdma_session *session, struct request *req, uint32_t procedure);
void request_renumber(struct nfsrdma_session *session, struct request *req);
bool request_may_change(struct nfsrdma_session *session, struct request *req);
void request_release(struct nfsrdma_session *session, struct request *req);
void request_expect(struct request *req, uint32_t bytes);
void request_finish(struct nfsrdma_session *session, struct request *req, int error);
void request_prepare(struct nfsrdma_session *session, struct request *req);
void request_hold(struct nfsrdma_session *session, struct request *req);
void request_unhold(struct nfsrdma_session *session, struct request *req);

static inline void request_list_clear(struct request_list *list)
{
	list->head = NULL;
	list->tail = &list->head;
}

static inline void request_list_add(struct request_list *list, struct request *req)
{
	req->next = NULL;
	*list->tail = req;
	list->tail = &req->next;
}

static inline struct request *request_list_pop(struct request_list *list)
{
	struct request *req = list->head;

	list->head = req->next;
	if (!list->head)
		list->tail = &list->head;
	return req;
}

static inline void request_list_join(struct request_list *to, struct request_list *from)
{
	if (!from->head)
		return;
	*to->tail = from->head;
	to->tail = from->tail;
	request_list_clear(from);
}

static inline void request_list_remove(struct request_list *list, const struct request *req)
{
	struct request **at = &list->head;

	while (*at && *at != req)
		at = &(*at)->next;
	if (!*at)
		return;
	*at = req->next;
	if (!*at)
		list->tail = at;
}

/* --- send.c --- */

void send_ready(struct nfsrdma_session *session, struct request *req);
void send_by_rpc(struct nfsrdma_session *session, struct request *req);
void send_again(struct nfsrdma_session *session, struct request *req);
void send_start(struct nfsrdma_session *session, struct request *req);
void send_setup(struct nfsrdma_session *session, struct request *req);
void send_flush(struct nfsrdma_session *session);
void send_fail_waiting(struct nfsrdma_session *session, int error);
void send_disconnected(struct nfsrdma_session *session);

/* --- reply.c --- */

int reply_opened(struct nfsrdma_session *session);
bool reply_complete(struct nfsrdma_session *session, const struct ibv_wc *wc);
void reply_repost(struct nfsrdma_session *session, const uint32_t *numbers, uint32_t n);

/* --- wait.c --- */

int wait_poll(struct nfsrdma_session *session);
bool wait_poll_all(struct nfsrdma_session *session, size_t most);
uint64_t wait_look(struct nfsrdma_session *session);
bool wait_arm(struct nfsrdma_session *session);
int wait_sleep(struct nfsrdma_session *session, uint64_t until);
void wait_end(struct nfsrdma_session *session);
int wait_once(struct nfsrdma_session *session);
int wait_ask(struct nfsrdma_session *session);
struct request *wait_for_slot(struct nfsrdma_session *session);
int wait_no_slot(const struct nfsrdma_session *session);
int wait_for(struct nfsrdma_session *session, struct request *req);
int wait_call(struct nfsrdma_session *session, struct request *req);
void wait_abandon(struct nfsrdma_session *session, uint64_t first, uint64_t last, int error, const char *why);

/* Will it end without another call of the library's user? */
static inline bool request_is_pending(const struct request *req)
{
	return req->state == REQUEST_WAITING || req->state == REQUEST_SENT || req->state == REQUEST_DELAYED ||
	       req->state == REQUEST_READING;
}

/* Bytes of a read or write, by what the server allows */
static inline uint32_t io_limit(uint64_t bytes)
{
	return bytes < IO_MAX ? bytes : IO_MAX;
}

/* Results of a WRITE */
struct written {
	uint32_t count, committed;
	const uint8_t *verifier;
};

/**
 * struct io_form - Calls that move data
 * @read_head: bytes of a reply in front of the data of a READ, without the transport header
 * @encode_read: encodes the Call of a READ
 * @take_read: decodes the results of a READ up to its data
 * @encode_write: encodes the Call of a WRITE up to its data
 * @encode_rest: encodes what follows the data of a WRITE; returns the end of that; or NULL
 * @take_write: decodes the results of a WRITE
 */
struct io_form {
	uint32_t read_head;
	void (*encode_read)(struct nfsrdma_session *session, struct request *req, uint64_t offset);
	int (*take_read)(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			 uint32_t *count, uint32_t *eof);
	void (*encode_write)(struct nfsrdma_session *session, struct request *req, uint64_t offset, uint32_t stable);
	uint8_t *(*encode_rest)(struct nfsrdma_session *session, struct request *req, uint8_t *at);
	int (*take_write)(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			  struct written *written);
};

/**
 * struct nfs_dialect - a version of NFS
 * @data: READ and WRITE of an open file
 * @root: finds the directory of the session and the limits of the server
 * @getattr: attributes of a file handle
 * @setattr: sets the mode or the size
 * @lookup: file handle and attributes of a name
 * @readlink: text of a symbolic link, which the caller frees
 * @list: entries of a directory; the caller frees them with xdr_free(3), after an error too
 * @remove: removes a directory, or what is none
 * @mkdir: makes a directory
 * @symlink: makes a symbolic link
 * @rename: renames
 * @create: makes a file, with O_EXCL in @flags so that a repeated call makes it once; @open follows
 * @open: tells the server that a file is open; or NULL
 * @closed: an open file of the inode is closed, for which @open has set nfsrdma_file.opened
 * @encode_commit: encodes the Call of a COMMIT of the whole file
 * @take_commit: decodes the results of a COMMIT
 * @leave: ends what the server keeps for this client; or NULL
 * @start: makes what requests need beside a connection, if it is not there; or NULL
 * @may_leave: has a request what it needs beside a credit?  This, @stamp and @abandon are for requests with SEQUENCE
 * @stamp: completes the message of a request that is about to leave
 * @abandon: a request ends without a reply
 */
struct nfs_dialect {
	struct io_form data;
	int (*root)(struct nfsrdma_session *session);
	int (*getattr)(struct nfsrdma_session *session, const char *path, const fh3 *fh, attr3 *attr);
	int (*setattr)(struct nfsrdma_session *session, const char *path, const struct nfs_fh *fh, const set3 *attr);
	int (*lookup)(struct nfsrdma_session *session, const char *path, const fh3 *dir, const char *name,
		      struct nfs_fh *fh, attr3 *attr);
	int (*readlink)(struct nfsrdma_session *session, const char *path, const fh3 *fh, char **text);
	int (*list)(struct nfsrdma_session *session, const readdirplus3_args *args, readdirplus3_res *res);
	int (*remove)(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		      bool directory);
	int (*mkdir)(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		     mode_t mode);
	int (*symlink)(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		       const char *text);
	int (*rename)(struct nfsrdma_session *session, const char *path, const struct nfs_fh *from, const char *old,
		      const struct nfs_fh *to, const char *new);
	int (*create)(struct nfsrdma_session *session, const char *path, const struct nfs_fh *dir, const char *name,
		      int flags, mode_t mode, struct nfs_fh *fh);
	int (*open)(struct nfsrdma_file *file, const char *path);
	void (*closed)(struct nfsrdma_session *session, struct inode *inode);
	void (*encode_commit)(struct nfsrdma_session *session, struct request *req);
	int (*take_commit)(struct nfsrdma_session *session, struct request *req, struct rpc_body *body,
			   const uint8_t **verifier);
	void (*leave)(struct nfsrdma_session *session);
	void (*start)(struct nfsrdma_session *session);
	bool (*may_leave)(const struct nfsrdma_session *session, const struct request *req);
	void (*stamp)(struct nfsrdma_session *session, struct request *req);
	void (*abandon)(struct nfsrdma_session *session, struct request *req);
};

static inline fh3 nfs_fh3(const struct nfs_fh *handle)
{
	return (fh3){handle->length, (char *)handle->bytes};
}

/* --- nfs.c --- */

/* Bytes of the verifier of WRITE and COMMIT */
#define NFS_VERIFIER	8

/* stable_how */
enum { UNSTABLE = 0, DATA_SYNC = 1, FILE_SYNC = 2 };

int nfs_error(uint32_t status);
bool_t nfs_xdr_nothing(XDR *xdr, ...);
void nfs_stat(const attr3 *attr, struct stat *st);
struct nfs_fh nfs_fh_of(const fh3 *fh);
void nfs_prepare(struct nfsrdma_session *session, struct request *req, uint64_t user_data);

/* --- mount.c --- */

int mount_root(struct nfsrdma_session *session);

/* --- nfs3.c --- */

extern const struct nfs_dialect nfs3_dialect;
int nfs3_null(struct nfsrdma_session *session);
set3 nfs3_mode(mode_t mode);
int nfs3_call(struct nfsrdma_session *session, enum nfs_procedure procedure, const char *path,
	      xdrproc_t encode, const void *args, xdrproc_t decode, void *results, uint32_t bytes);
int nfs3_prepare(struct nfsrdma_session *session, enum nfs_procedure procedure, xdrproc_t encode, const void *args,
		 xdrproc_t decode, void *results, uint32_t bytes, uint64_t user_data);

/* --- state.c; compound.h has the rest of it --- */

int state_allocate(struct nfsrdma_session *session);

/* --- nfs4.c --- */

extern const struct nfs_dialect nfs4_dialect;
int nfs4_begin(struct nfsrdma_session *session, const struct nfs_fh *fh, uint32_t operations, struct request **req,
	       uint8_t **at);
void nfs4_prepare(struct nfsrdma_session *session, struct request *req, const uint8_t *at,
		  int (*parse)(struct nfsrdma_session *, struct rpc_body *, void *), void *results, uint64_t user_data);
int nfs4_take_begin(struct nfsrdma_session *session, struct request *req, struct rpc_body *body);

/* --- path.c --- */

/* ftype3 */
enum { TYPE_FILE = 1, TYPE_DIRECTORY = 2, TYPE_LINK = 5 };

/**
 * struct path_walk - the way along a path
 * @session: session
 * @path: as the caller gave it, for messages
 * @rest: components not looked up yet; the walk owns it
 * @above: file handles of the directories above, the root first
 * @depth: number of @above
 * @room: elements that @above has room for
 * @here: where the walk has come
 * @known: @attr has its attributes
 * @attr: its attributes
 * @links: symbolic links followed
 * @missing: the last component, if @here does not have it; the walk owns it
 */
struct path_walk {
	struct nfsrdma_session *session;
	const char *path;
	char *rest;
	struct nfs_fh *above;
	size_t depth, room;
	struct nfs_fh here;
	bool known;
	attr3 attr;
	unsigned int links;
	char *missing;
};

/**
 * enum path_how - what a walk does at the end of its path
 * @PATH_FOLLOW: follow a symbolic link
 * @PATH_CREATE: the caller may make a file there: a slash behind its name is an error, in the text of a link, too
 */
enum path_how { PATH_FOLLOW = 1, PATH_CREATE = 2 };

int path_walk(struct path_walk *walk, struct nfsrdma_session *session, const char *path, char **name,
	      unsigned int how);
void path_walk_end(struct path_walk *walk);
int path_getattr(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, attr3 *attr);
int path_lookup(struct nfsrdma_session *session, const char *path, struct nfs_fh *dir, const char *name,
		struct nfs_fh *fh, attr3 *attr);
int path_readlink(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, char **text);

/* --- names.c --- */

int names_resize(struct nfsrdma_session *session, const char *path, const struct nfs_fh *fh, uint64_t size);
mode_t names_without_umask(mode_t mode);

/* --- inode.c --- */

struct inode *inode_find(const struct nfsrdma_session *session, const struct nfs_fh *fh);
struct inode *inode_get(struct nfsrdma_session *session, const struct nfs_fh *fh);
void inode_put(struct nfsrdma_session *session, struct inode *inode);
void inodes_free(struct nfsrdma_session *session);

/* --- commit.c --- */

void commit_written(struct nfsrdma_session *session, struct inode *inode, const uint8_t *verifier);
void commit_held(struct nfsrdma_session *session);
void commit_submit(struct nfsrdma_session *session);

/* --- file.c --- */

struct nfsrdma_file *file_make(struct nfsrdma_session *session, const struct nfs_fh *fh, int flags);
void file_put(struct nfsrdma_file *file);

/* --- reference.c --- */

bool references_allocate(struct references *references);
void references_free(struct references *references);
enum reference_answer reference_find(struct references *references, const struct nfsrdma_file *file,
				     uint64_t position, uint32_t count, uint64_t now,
				     struct nfr_segment *found, bool *eof);
void reference_grant(struct references *references, const struct nfr_notice *notice, uint64_t now);
uint32_t reference_drop(struct references *references, uint32_t handle);
void references_drop_file(struct references *references, const struct nfs_fh *fh);
void references_written(struct references *references, struct nfsrdma_file *file);
void references_end(struct references *references);
uint64_t reference_digest(const uint8_t *body, size_t length, uint64_t token);

/* --- optimistic.c --- */

int optimist_allocate(struct nfsrdma_session *session);
void optimist_free(struct nfsrdma_session *session);
uint64_t optimist_look(struct nfsrdma_session *session, uint64_t now);
void optimist_event(struct nfsrdma_session *session, const struct rdma_cm_id *id, enum rdma_cm_event_type type,
		    const struct nfr_private *peer);
void optimist_heed(struct nfsrdma_session *session);
void optimist_complete(struct nfsrdma_session *session, const struct ibv_wc *wc);
bool optimist_add(struct nfsrdma_session *session, struct request *req);
void optimist_post(struct nfsrdma_session *session);
void optimist_lost(struct nfsrdma_session *session);
void optimist_close(struct nfsrdma_session *session);

/* --- cache.c --- */

int cache_allocate(struct nfsrdma_session *session);
void cache_free(struct nfsrdma_session *session);
int cache_open(struct nfsrdma_session *session, struct nfsrdma_file *file, const attr3 *attr);
void cache_close(struct nfsrdma_session *session, struct nfsrdma_file *file);
void cache_resized(struct nfsrdma_session *session, const struct nfs_fh *fh);
void cache_written(struct nfsrdma_session *session, struct nfsrdma_file *file);
uint32_t cache_version(const struct nfsrdma_file *file);
ssize_t cache_read(const struct nfsrdma_file *file, uint8_t *buf, size_t count, uint64_t offset, bool *eof);
void cache_fill(struct nfsrdma_session *session, const struct io_operation *io);

/* --- io.c --- */

void io_abandon(struct nfsrdma_session *session);
int io_prepare(struct nfsrdma_file *file, enum io_kind kind, uint8_t *buf, size_t count, const struct io_form *form,
	       void *results, uint64_t user_data);

/* --- session.c --- */

extern const struct reports session_reports;
int session_like(const struct nfsrdma_session *other, const struct nfsrdma_options *options,
		 struct nfsrdma_session **session);

/* --- crc32c.c --- */

uint32_t crc32c_of(const void *data, size_t length);

/**
 * struct nfsrdma_file - an open file
 * @session: its session
 * @fh: file handle
 * @flags: of open(2)
 * @inode: what all open files of the same one have in common
 * @seen: number of the last loss in the session that this file need not report
 * @users: unfinished operations, and the caller until nfsrdma_close()
 * @cached: the same file in the cache, or NULL
 * @dropped: struct references.accepted at the last write, which dropped the references to the file
 * @ended: the last nfsrdma_pread() reached the end of the file
 * @opened: the server knows of it: nfs_dialect.closed() follows
 */
struct nfsrdma_file {
	struct nfsrdma_session *session;
	struct nfs_fh fh;
	int flags;
	struct inode *inode;
	uint64_t seen;
	uint32_t users;
	struct cached_file *cached;
	uint64_t dropped;
	bool ended, opened;
};

#endif
