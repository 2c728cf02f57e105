/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* NFSv4.1 (RFC 8881), shared by its parts: server4.c has the files, session4.c clients and sessions, state4.c opens. */
#ifndef SERVER4_H
#define SERVER4_H

#include "server.h"

enum {
	OP_ACCESS = 3, OP_CLOSE = 4, OP_COMMIT = 5, OP_CREATE = 6, OP_DELEGRETURN = 8, OP_GETATTR = 9, OP_GETFH = 10,
	OP_LOOKUP = 15, OP_NVERIFY = 17, OP_OPEN = 18, OP_OPEN_CONFIRM = 20, OP_OPEN_DOWNGRADE = 21, OP_PUTFH = 22, OP_PUTROOTFH = 24,
	OP_READ = 25, OP_READDIR = 26, OP_READLINK = 27, OP_REMOVE = 28, OP_RENAME = 29, OP_RENEW = 30,
	OP_RESTOREFH = 31, OP_SAVEFH = 32, OP_SETATTR = 34, OP_SETCLIENTID = 35, OP_SETCLIENTID_CONFIRM = 36,
	OP_VERIFY = 37, OP_WRITE = 38, OP_RELEASE_LOCKOWNER = 39, OP_BIND_CONN_TO_SESSION = 41, OP_EXCHANGE_ID = 42,
	OP_CREATE_SESSION = 43, OP_DESTROY_SESSION = 44, OP_FREE_STATEID = 45, OP_SEQUENCE = 53, OP_TEST_STATEID = 55,
	OP_DESTROY_CLIENTID = 57, OP_RECLAIM_COMPLETE = 58, OP_ILLEGAL = 10044,
};

enum {
	NFS4_OK = 0, NFS4ERR_PERM = 1, NFS4ERR_NOENT = 2, NFS4ERR_ACCESS = 13, NFS4ERR_EXIST = 17, NFS4ERR_NOTDIR = 20,
	NFS4ERR_ISDIR = 21, NFS4ERR_INVAL = 22, NFS4ERR_FBIG = 27, NFS4ERR_NAMETOOLONG = 63, NFS4ERR_NOTEMPTY = 66,
	NFS4ERR_STALE = 70, NFS4ERR_BADHANDLE = 10001, NFS4ERR_NOTSUPP = 10004, NFS4ERR_TOOSMALL = 10005,
	NFS4ERR_BADTYPE = 10007, NFS4ERR_SAME = 10009, NFS4ERR_EXPIRED = 10011, NFS4ERR_LOCKED = 10012, NFS4ERR_GRACE = 10013,
	NFS4ERR_SHARE_DENIED = 10015, NFS4ERR_CLID_INUSE = 10017, NFS4ERR_NOFILEHANDLE = 10020,
	NFS4ERR_MINOR_VERS_MISMATCH = 10021, NFS4ERR_STALE_CLIENTID = 10022, NFS4ERR_OLD_STATEID = 10024,
	NFS4ERR_BAD_STATEID = 10025, NFS4ERR_NOT_SAME = 10027, NFS4ERR_SYMLINK = 10029, NFS4ERR_ATTRNOTSUPP = 10032,
	NFS4ERR_NO_GRACE = 10033, NFS4ERR_RECLAIM_BAD = 10034, NFS4ERR_BADXDR = 10036, NFS4ERR_LOCKS_HELD = 10037,
	NFS4ERR_OPENMODE = 10038, NFS4ERR_BADOWNER = 10039, NFS4ERR_BADNAME = 10041, NFS4ERR_OP_ILLEGAL = 10044,
	NFS4ERR_ADMIN_REVOKED = 10047, NFS4ERR_BADSESSION = 10052, NFS4ERR_BADSLOT = 10053,
	NFS4ERR_COMPLETE_ALREADY = 10054, NFS4ERR_CONN_NOT_BOUND_TO_SESSION = 10055, NFS4ERR_SEQ_MISORDERED = 10063,
	NFS4ERR_SEQUENCE_POS = 10064, NFS4ERR_REQ_TOO_BIG = 10065, NFS4ERR_REP_TOO_BIG = 10066,
	NFS4ERR_REP_TOO_BIG_TO_CACHE = 10067, NFS4ERR_RETRY_UNCACHED_REP = 10068, NFS4ERR_TOO_MANY_OPS = 10070,
	NFS4ERR_OP_NOT_IN_SESSION = 10071, NFS4ERR_CLIENTID_BUSY = 10074, NFS4ERR_SEQ_FALSE_RETRY = 10076,
	NFS4ERR_BAD_HIGH_SLOT = 10077, NFS4ERR_NOT_ONLY_OP = 10081, NFS4ERR_WRONG_TYPE = 10083,
	/* no status of the RFC: the reply is that of the slot, and the COMPOUND is not executed */
	REPLAYED = 0x7fffffff,
};

#define OPAQUE_LIMIT	1024
#define SESSION_ID	16

/* An opaque value of up to NFS4_OPAQUE_LIMIT bytes: a name of a client, or of an owner of opens */
struct opaque {
	uint32_t length;
	uint8_t bytes[OPAQUE_LIMIT];
};

struct stateid {
	uint32_t seqid;
	uint8_t other[12];
};

struct client {
	struct client *next;
	uint64_t id;
	uint8_t verifier[8];
	struct opaque owner;
	uint32_t principal;
	bool confirmed, complete;	/* CREATE_SESSION; RECLAIM_COMPLETE */
	bool had_state;			/* before the restart of the server */
	uint32_t sequence;		/* of CREATE_SESSION */
	uint8_t created[256];		/* its last results, with the status */
	size_t created_length;
	uint32_t revoked;		/* SEQ4_STATUS flags of state that it lost */
};

struct slot {
	uint32_t sequence, xid, principal;
	bool used, whole;		/* has a request; has all results of it */
	bool pending;			/* the reply has not reached the client */
	uint32_t told;			/* slots that the client should use, as the reply says; 0: all */
	struct connection *connection;	/* of the last request for it */
	uint64_t digest, operations;
	uint32_t second;		/* operation behind SEQUENCE; 0: none */
	uint8_t *results;
	size_t length;
	struct range ranges[MOST_CHUNKS * 2];
	uint32_t nranges;
};

struct session {
	struct session *next;
	struct client *client;
	uint8_t id[SESSION_ID];
	uint32_t request_max, response_max, cached_max, operations_max, slots_max;
	uint32_t enforced;		/* slots that the client may use */
	struct slot *slots;
	struct connection *bound[64];
	uint32_t nbound;
};

/* A set of opens of a file by an owner, or a delegation */
struct state {
	struct state *next;
	struct client *client;
	struct node *node;
	struct stateid id;
	struct opaque owner;
	bool delegation;
	uint32_t access, deny;
	uint32_t opened, denied;	/* a bit for each value of share_access and of share_deny that an OPEN had */
	uint32_t revoked;		/* status of its use */
};

struct compound {
	struct call *call;
	struct in *in;
	struct out *out;
	uint32_t index, count;		/* of the operation; of all */
	size_t start;			/* of the results */
	uint64_t digest;
	struct session *session;
	struct slot *slot;
	bool cached;			/* sa_cachethis */
	struct node *current, *saved;
	uint64_t current_number, saved_number;	/* of nodes that another operation may remove */
	struct stateid current_id, saved_id;
	bool has_id, has_saved_id;
	uint32_t wants_fh;		/* OPEN or CREATE, until GETFH */
	const struct node *made;	/* by an exclusive OPEN */
	bool changes;			/* has an operation that is not idempotent */
};

static inline struct stateid get_stateid(struct in *in)
{
	struct stateid id = { .seqid = get(in) };
	const uint8_t *other = get_bytes(in, 12);

	if (other)
		memcpy(id.other, other, 12);
	return id;
}

static inline void put_stateid(struct out *out, const struct stateid *id)
{
	put(out, id->seqid);
	put_bytes(out, id->other, 12);
}

static inline void get_opaque(struct in *in, struct opaque *to)
{
	uint32_t length = get(in);
	const uint8_t *bytes = length <= OPAQUE_LIMIT ? get_bytes(in, length) : NULL;

	*to = (struct opaque){};
	in->bad |= !bytes;
	if (bytes) {
		to->length = length;
		memcpy(to->bytes, bytes, length);
	}
}

static inline bool same_opaque(const struct opaque *a, const struct opaque *b)
{
	return a->length == b->length && !memcmp(a->bytes, b->bytes, a->length);
}

/* --- server4.c --- */

struct attributes {
	uint64_t mask;
	bool server_time;
	uint32_t mode;
	uint64_t size, modified;
};

#define ATTR_SIZE		(1ULL << 4)
#define ATTR_MODE		(1ULL << 33)
#define ATTR_OWNER		(1ULL << 36)
#define ATTR_GROUP		(1ULL << 37)
#define ATTR_ACCESS_SET		(1ULL << 48)
#define ATTR_MODIFY_SET		(1ULL << 54)
#define ATTR_SETTABLE		(ATTR_SIZE | ATTR_MODE | ATTR_OWNER | ATTR_GROUP | ATTR_ACCESS_SET | ATTR_MODIFY_SET)

uint32_t get_settable(struct compound *c, struct attributes *attributes);
void apply_attributes(struct node *node, const struct attributes *attributes);
void put_bitmap(struct out *out, uint64_t mask);
void put_change_info(struct out *out, uint64_t before, const struct node *folder);
uint32_t get_component(struct compound *c, char *name);
uint32_t need_folder(const struct compound *c);
void set_current(struct compound *c, struct node *node);
/* RFC 8881, section 18.16.4: of a file that an exclusive OPEN has made */
void check_set(const struct node *node);

/* --- session4.c --- */

uint32_t op_exchange_id(struct compound *c);
uint32_t op_create_session(struct compound *c);
uint32_t op_destroy_session(struct compound *c);
uint32_t op_destroy_clientid(struct compound *c);
uint32_t op_bind_conn_to_session(struct compound *c);
uint32_t op_sequence(struct compound *c);
uint32_t op_reclaim_complete(struct compound *c);
void keep_reply(struct compound *c);
bool in_grace(void);

/* --- state4.c --- */

uint32_t op_open(struct compound *c);
uint32_t op_open_downgrade(struct compound *c);
uint32_t op_close(struct compound *c);
uint32_t op_delegreturn(struct compound *c);
uint32_t op_test_stateid(struct compound *c);
uint32_t op_free_stateid(struct compound *c);

/* The access that an operation needs by its stateid */
enum use { USE_READ = 1, USE_WRITE = 2 };
uint32_t check_use(struct compound *c, struct stateid id, enum use use);

bool state_any(const struct client *client);
void state_forget(const struct client *client);
/* Before the restart is forgotten: the opens that clients may reclaim */
void state_restart(void);
bool state_reclaimable(const struct opaque *client);
void state_reclaimed(const struct opaque *client);
void state_drop(void);
void state_reset(void);

#endif
