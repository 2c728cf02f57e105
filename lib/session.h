/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */
/*
 * Types and functions that the files of the library share.  The files, from the bottom up:
 *
 *   memory.c      registered memory: messages, the arena, regions of the caller
 *   connection.c  rdma_cm and verbs: from the address of a server to a queue pair, and its end
 *   request.c     RPCs: credits, XIDs, chunks, doorbells, replies, and what follows a lost connection
 *   nfs3.c        the procedures of NFSv3, but WRITE
 *   nfs4.c        NFSv4.1 as far as reading goes
 *   mount.c       MNT, which the mount daemon answers over TCP
 *   file.c        paths, files and directories
 *   io.c          reads and writes: one at a time, and batches
 *   session.c     the calls of nfsrdma.h that concern a session
 *   reference.c   memory of the server that the session may read by RDMA
 *   optimistic.c  the second connection, and reads by RDMA on it
 *   cache.c       data that was read
 *
 * The server is not trusted: a decoder checks the number of bytes left before each read.
 */
#ifndef NFSRDMA_SESSION_H
#define NFSRDMA_SESSION_H

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/queue.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rpc/rpc.h>

#include "nfsrdma.h"
#include "nfs3.h"
#include "wire/wire.h"

#define EXPORTED	__attribute__((visibility("default")))

#define NFS_PROGRAM	100003
#define NFS_VERSION	3

/* RFC 1813: fattr3, wcc_attr */
#define NFS_ATTR_BYTES		84
#define NFS_PRE_ATTR_BYTES	24

/* RFC 1813, section 3.3 */
enum nfs_procedure {
	NFS_NULL = 0, NFS_GETATTR = 1, NFS_SETATTR = 2, NFS_LOOKUP = 3, NFS_READLINK = 5, NFS_READ = 6,
	NFS_WRITE = 7, NFS_CREATE = 8, NFS_MKDIR = 9, NFS_SYMLINK = 10, NFS_REMOVE = 12, NFS_RMDIR = 13,
	NFS_RENAME = 14, NFS_READDIRPLUS = 17, NFS_FSINFO = 19, NFS_COMMIT = 21,
};

/* NFS3ERR_JUKEBOX */
#define NFS_BUSY	10008

/* Room in front of each RPC message, for the longest transport header that request.c encodes */
#define HEADER_ROOM	512

/* Longest piece of a reply that is more than attributes fit in */
#define REPLY_SMALL	512

/* Longest Call that request.c sends by a Read chunk: SYMLINK with the longest name and text */
#define CALL_MAX	8192

/* The arena has blocks, and one bit of a word for each */
#define BLOCK_BYTES	(64 << 10)
#define BLOCKS_MAX	64
#define IO_MAX		(1 << 20)

/* Bits of an XID that number a request; the other bits count */
#define XID_SLOT_BITS	8

/* NFSv4.1: longest file handle (RFC 8881, section 4), slots, milliseconds for the last calls of a session */
#define FH_MAX			128
#define NFS4_SLOTS		160
#define NFS4_LEAVE_TIMEOUT	5000

/* Bytes of a reply that lists a directory, at most */
#define LIST_MAX	(32 << 10)

/* Longest RPC Call header: ten words, and a body of AUTH_SYS with 16 groups (RFC 5531, appendix A) */
#define RPC_HEAD_MAX	480

/* Private data, see kmod/variants.h: the personality optimistic, a further connection, pages of an extent */
#define CAPABILITY_OPTIMISTIC	(1U << 4)
#define CAPABILITY_LANE		(1U << 31)
#define EXTENT_ORDER_SHIFT	16
#define EXTENT_ORDER_MASK	0xffU
#define EXTENT_ORDER_MAX	8

/* Receives for the notices that a server may send at a time (NFR_NOTICES), and some more; credits to return */
#define NOTICES			64
#define NOTICE_RECEIVES		(NOTICES + 16)
#define CREDIT_SLOTS		4
#define NOTICE_ROOM		128

#define CACHE_BLOCK		4096
#define CACHE_BLOCKS_MAX	(1U << 31)

/* A completion of the second connection: this bit, kind, generation of the connection, and a number */
#define SECOND_BIT		(1ULL << 62)

struct span {
	struct ibv_mr **mr;		/* the registration, which a reconnect replaces; NULL: no memory */
	uint8_t *addr;
	uint32_t length;
};

struct nfs_fh {
	uint32_t length;
	uint8_t bytes[FH_MAX];
};

struct body {
	const uint8_t *at;
	size_t left;
};

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
struct io {
	enum io_kind kind;
	struct nfsrdma_file *file;
	uint8_t *buf;			/* memory of the caller */
	uint64_t offset;
	uint32_t count;
	uint64_t user_data;
	struct nfsrdma_region *region;	/* that has @buf, or NULL */
	uint8_t *bounce;		/* copy of the data in the arena, or NULL */
	uint32_t moved;			/* bytes */
	uint32_t version;		/* of the file in the cache, when the read began */
	uint64_t barrier;		/* a COMMIT waits for the writes of its inode that have a lower one */
	uint64_t writes;		/* of the inode, when the COMMIT left */
	bool commits;			/* no close of a file that is open for reading only */
	bool eof;
};

/**
 * struct request - an RPC
 * @next: next request in a list of the session
 * @state: see enum request_state
 * @xid: RFC 5531; its low bits number the request
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
 * @remote: a READ without a message: it may be an RDMA Read; flush() encodes it if it is not
 * @target: memory of the server that it reads then
 * @target_ends: the file ends with that memory
 * @sequenced: the message has SEQUENCE
 * @root: the message has PUTROOTFH
 * @nfs4_slot: of the NFSv4.1 session; -1: none
 */
struct request {
	struct request *next;
	enum request_state state;
	uint32_t xid;
	uint8_t *message;
	uint32_t length;
	uint32_t position;
	struct span call, read, write, reply;
	uint32_t reply_most;
	int (*finish)(struct nfsrdma_session *session, struct request *req, struct body *results);
	void (*done)(struct nfsrdma_session *session, struct request *req);
	int error;
	uint32_t send;
	uint64_t began, sent, not_before;
	uint32_t delay;
	xdrproc_t decode;
	void *results;
	int (*parse)(struct nfsrdma_session *session, struct body *body, void *results);
	uint32_t placed;
	bool remote;
	struct nfr_segment target;
	bool target_ends;
	bool sequenced, root;
	int nfs4_slot;
	struct io io;
};

struct list {
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

enum nfs4_state {
	NFS4_NONE, NFS4_EXCHANGE, NFS4_CREATE, NFS4_RECLAIM, NFS4_READY,
};

struct nfs4_slot {
	uint32_t sequence;
	bool busy;
};

/**
 * struct nfs4 - client ID and session of NFSv4.1
 * @state: what the last call of setup was, or NFS4_READY
 * @setup: the call that is not answered
 * @owner: name of the client owner
 * @verifier: of the client owner
 * @client: client ID
 * @create_sequence: sequence of the next CREATE_SESSION
 * @session: session ID
 * @nslots: slots that the server granted
 * @slots: slots
 */
struct nfs4 {
	enum nfs4_state state;
	struct request *setup;
	char owner[128];
	uint8_t verifier[8];
	uint64_t client;
	uint32_t create_sequence;
	uint8_t session[16];
	uint32_t nslots;
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
 * @users: open files, and 1 for @cached
 * @writes: WRITEs that left data which may not be on stable storage
 * @committed: those of them that a COMMIT has followed
 * @verifier: of the last WRITE or COMMIT
 * @barriers: closes and fsyncs of batches
 * @lost: number of the last loss in the session; 0: none
 * @lost_error: negative errno value of the loss
 * @untold: no open file has reported it
 * @cached: the same file in the cache, or NULL
 */
struct inode {
	struct inode *next;
	struct nfs_fh fh;
	uint32_t users;
	uint64_t writes, committed, barriers, lost;
	uint8_t verifier[8];
	int lost_error;
	bool untold;
	struct cached_file *cached;
};

/* Hash table of all inodes; @size is a power of two, or 0 */
struct inodes {
	struct inode **table;
	uint32_t size, count;
};

struct nfsrdma_region {
	struct nfsrdma_region *next;
	struct nfsrdma_session *session;
	uint8_t *addr;
	size_t length;
	struct ibv_mr *mr;
	uint32_t users;
};

struct nfsrdma_session {
	struct nfsrdma_session *next;	/* of this process */
	uint32_t generation;		/* of the process that opened it, see session.c */
	struct nfsrdma_options options;
	char host[256];
	struct sockaddr_storage address;
	uint64_t opening;		/* when nfsrdma_connect() began; 0: it has ended */

	/* connection.c */
	enum link_state link;
	int link_error;			/* why the last attempt failed */
	uint64_t link_retry;
	uint32_t link_delay;
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

	/* request.c */
	uint32_t nslots, signal_every, nreceives;
	struct request *slots;
	struct list free, prepared, held, waiting, delayed;
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

	/* io.c: completions that the caller has not got yet, a ring */
	struct nfsrdma_completion *done;
	uint32_t done_first, ndone, unfinished;
	bool fd_used;
	int wake;			/* eventfd that makes the descriptor readable without a message; -1: none */
	bool woken;

	struct inodes inodes;
	uint64_t losses;		/* of all inodes so far */

	const struct dialect *dialect;
	struct nfs4 nfs4;
	struct optimist *optimist;	/* NULL: not requested */
	struct cache *cache;		/* the same */
	uint32_t nhits;			/* reads of the next batch that are complete */

	/* file.c */
	fh3 root;
	char *directory;		/* path of the export on the server; NULL: none */
	uint32_t read_max, write_max, list_max;

	struct nfsrdma_stats stats;
};

/* --- abi.c --- */

/* Bytes of the structs in version 0.1.0: no caller has fewer */
#define ABI_UP_TO(type, member)	(offsetof(type, member) + sizeof(((type *)0)->member))
#define OPTIONS_LEAST		ABI_UP_TO(struct nfsrdma_options, cache)
#define TERMS_LEAST		ABI_UP_TO(struct nfsrdma_terms, device)
#define STATS_LEAST		ABI_UP_TO(struct nfsrdma_stats, cached)
#define ENTRY_LEAST		ABI_UP_TO(struct nfsrdma_entry, stat)

int abi_take(void *to, size_t known, const void *from, size_t least, const char *name);
int abi_give(void *to, const void *from, size_t known, size_t least, const char *name);

/* --- session.c --- */

int fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
int no_memory(void);
int session_check(const struct nfsrdma_session *session);
void descriptors_lock(void);
void descriptors_unlock(void);
uint64_t now_ms(void);
uint64_t began_at(const struct nfsrdma_session *session);

/* --- memory.c --- */

int memory_allocate(struct nfsrdma_session *session);
int memory_register(struct nfsrdma_session *session, struct ibv_context *device);
void memory_deregister(struct nfsrdma_session *session);
void memory_free(struct nfsrdma_session *session);
uint8_t *memory_take(struct nfsrdma_session *session, size_t bytes);
void memory_give(struct nfsrdma_session *session, const uint8_t *addr, size_t bytes);
struct nfsrdma_region *memory_find(struct nfsrdma_session *session, const void *addr, size_t bytes);
uint8_t *memory_receive(struct nfsrdma_session *session, uint32_t number);
uint8_t *memory_notice(struct nfsrdma_session *session, uint32_t number);

/* --- connection.c --- */

void connection_start(struct nfsrdma_session *session);
void connection_event(struct nfsrdma_session *session);
void connection_lost(struct nfsrdma_session *session, int error, const char *why);
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

/* --- request.c --- */

int requests_allocate(struct nfsrdma_session *session);
void requests_free(struct nfsrdma_session *session);
int requests_connected(struct nfsrdma_session *session);
void requests_disconnected(struct nfsrdma_session *session);
struct request *request_take(struct nfsrdma_session *session);
uint8_t *request_begin(struct nfsrdma_session *session, struct request *req, uint32_t procedure);
void request_release(struct nfsrdma_session *session, struct request *req);
void request_expect(struct request *req, uint32_t bytes);
struct request *request_take_setup(struct nfsrdma_session *session);
void request_send_setup(struct nfsrdma_session *session, struct request *req);
void request_end_setup(struct nfsrdma_session *session, struct request *req);
void requests_fail_waiting(struct nfsrdma_session *session, int error);
void request_again(struct nfsrdma_session *session, struct request *req);
void request_by_rpc(struct nfsrdma_session *session, struct request *req);
void request_finish(struct nfsrdma_session *session, struct request *req, int error);
void request_prepare(struct nfsrdma_session *session, struct request *req);
int request_submit(struct nfsrdma_session *session);
int request_call(struct nfsrdma_session *session, struct request *req);
void request_wait(struct nfsrdma_session *session);
void request_hold(struct nfsrdma_session *session, struct request *req);
void request_unhold(struct nfsrdma_session *session, struct request *req);
void request_start(struct nfsrdma_session *session, struct request *req);
int session_poll(struct nfsrdma_session *session);
void session_sleep(struct nfsrdma_session *session, uint64_t until);
uint64_t session_look(struct nfsrdma_session *session);
bool session_arm(struct nfsrdma_session *session);

/* Will it end without another call of the library's user? */
static inline bool request_is_pending(const struct request *req)
{
	return req->state == REQUEST_WAITING || req->state == REQUEST_SENT || req->state == REQUEST_DELAYED ||
	       req->state == REQUEST_READING;
}

static inline bool take32(struct body *body, uint32_t *value)
{
	if (body->left < 4)
		return false;
	*value = nfr_wire_load32(body->at);
	body->at += 4;
	body->left -= 4;
	return true;
}

static inline bool take64(struct body *body, uint64_t *value)
{
	uint32_t high, low;

	if (!take32(body, &high) || !take32(body, &low))
		return false;
	*value = (uint64_t)high << 32 | low;
	return true;
}

static inline uint8_t *put64(uint8_t *at, uint64_t value)
{
	at = nfr_wire_put32(at, value >> 32);
	return nfr_wire_put32(at, value);
}

static inline bool skip(struct body *body, size_t bytes)
{
	if (body->left < bytes)
		return false;
	body->at += bytes;
	body->left -= bytes;
	return true;
}

static inline uint32_t padded(uint32_t bytes)
{
	return (bytes + 3) & ~3U;
}

/* An optional part of results: a word that is 0 or 1, and @bytes after a 1 */
static inline bool skip_optional(struct body *results, size_t bytes)
{
	uint32_t present;

	return take32(results, &present) && present <= 1 && skip(results, present ? bytes : 0);
}

/* Bytes of a read or write, by what the server allows */
static inline uint32_t io_limit(uint64_t bytes)
{
	return bytes < IO_MAX ? bytes : IO_MAX;
}

/**
 * struct dialect - a version of NFS
 * @read_head: bytes of a reply in front of the data of a READ, without the transport header
 * @root: finds the directory of the session and the limits of the server
 * @getattr: attributes of a file handle
 * @lookup: file handle and attributes of a name
 * @readlink: text of a symbolic link, which the caller frees
 * @list: entries of a directory; the caller frees them with xdr_free(3), after an error too
 * @encode_read: encodes the Call of a READ
 * @take_read: decodes the results of a READ up to its data
 * @leave: ends what the server keeps for this client; or NULL
 */
struct dialect {
	uint32_t read_head;
	int (*root)(struct nfsrdma_session *session);
	int (*getattr)(struct nfsrdma_session *session, const char *path, const fh3 *fh, attr3 *attr);
	int (*lookup)(struct nfsrdma_session *session, const char *path, const fh3 *dir, const char *name,
		      struct nfs_fh *fh, attr3 *attr);
	int (*readlink)(struct nfsrdma_session *session, const char *path, const fh3 *fh, char **text);
	int (*list)(struct nfsrdma_session *session, const readdirplus3_args *args, readdirplus3_res *res);
	void (*encode_read)(struct nfsrdma_session *session, struct request *req, uint64_t offset);
	int (*take_read)(struct nfsrdma_session *session, struct request *req, struct body *body,
			 uint32_t *count, uint32_t *eof);
	void (*leave)(struct nfsrdma_session *session);
};

/* Opaque data of variable length (RFC 4506, section 4.10) */
static inline uint8_t *put_opaque(uint8_t *at, const void *data, uint32_t length)
{
	at = nfr_wire_put32(at, length);
	memcpy(at, data, length);
	memset(at + length, 0, padded(length) - length);
	return at + padded(length);
}

static inline fh3 nfs_fh3(const struct nfs_fh *handle)
{
	return (fh3){handle->length, (char *)handle->bytes};
}

/* --- nfs3.c --- */

extern const struct dialect nfs3_dialect;
int nfs_error(uint32_t status);
int nfs_null(struct nfsrdma_session *session);
struct nfs_fh nfs_fh_of(const fh3 *fh);
int nfs_call(struct nfsrdma_session *session, enum nfs_procedure procedure, const char *path,
	     xdrproc_t encode, const void *args, xdrproc_t decode, void *results, uint32_t bytes);
bool_t xdr_nothing(XDR *xdr, ...);
void nfs_stat(const attr3 *attr, struct stat *st);

/* --- nfs4.c --- */

extern const struct dialect nfs4_dialect;
int nfs4_allocate(struct nfsrdma_session *session);
void nfs4_start(struct nfsrdma_session *session);
bool nfs4_stamp(struct nfsrdma_session *session, struct request *req);
void nfs4_lost(struct nfsrdma_session *session);

/* --- inode.c --- */

struct inode *inode_find(const struct nfsrdma_session *session, const struct nfs_fh *fh);
struct inode *inode_get(struct nfsrdma_session *session, const struct nfs_fh *fh);
void inode_put(struct nfsrdma_session *session, struct inode *inode);
void inodes_free(struct nfsrdma_session *session);

/* --- batch.c --- */

int batch_room(const struct nfsrdma_session *session);
void batch_add(struct nfsrdma_session *session, uint64_t user_data, int64_t result, bool eof);
int batch_take(struct nfsrdma_session *session, struct nfsrdma_completion *completions, size_t count);

/* --- commit.c --- */

void commit_written(struct nfsrdma_session *session, struct inode *inode, const uint8_t *verifier);
void commit_held(struct nfsrdma_session *session);

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
uint64_t credential_digest(const uint8_t *body, size_t length, uint64_t token);

/* --- optimistic.c --- */

int optimist_allocate(struct nfsrdma_session *session);
void optimist_free(struct nfsrdma_session *session);
uint32_t optimist_completions(const struct nfsrdma_session *session);
uint64_t optimist_look(struct nfsrdma_session *session, uint64_t now);
void optimist_event(struct nfsrdma_session *session, enum rdma_cm_event_type type);
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
void cache_fill(struct nfsrdma_session *session, const struct io *io);

/* --- io.c --- */

void io_by_rpc(struct nfsrdma_session *session, struct request *req);
void io_read_directly(struct nfsrdma_session *session, struct request *req);

/* --- mount.c --- */

int mount_root(struct nfsrdma_session *session);

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
};

#endif
