/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A stand-in for libibverbs and librdmacm, and a server behind it, under the unchanged sources of lib/.
 *
 * verbs.c is the device: it checks what its user does against the manual pages of verbs and rdma_cm.
 * server.c is the server: RPC-over-RDMA version 1 (RFC 8166, RFC 8267) and NFSv3 (RFC 1813) over files in memory,
 * which files.c has; server4.c, session4.c and state4.c have NFSv4.1 (RFC 8881).
 * Neither has a line of the library or of the module: both follow the documents.
 *
 * One thread, the world, moves messages and events; one lock protects all state.  Whatever the user of the device
 * may not do is a fault: device_faults() returns the text of all of them, and a test that finds any has failed.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED	__attribute__((visibility("default")))

/* Grace periods: until all clients have reclaimed what they had; until the test sets 0 */
#define GRACE_CLIENTS	(UINT64_MAX - 1)
#define GRACE_FOREVER	UINT64_MAX

/* Settings, which a test sets by their names: see names[] in verbs.c; counts of calls and bytes, or flags */
struct settings {
	uint64_t late;		/* microseconds: most that a reply, an event or a completion is late */
	uint64_t late_calls;	/* the same, of a call: the server executes it, and reaches memory, later */
	uint64_t late_sends;	/* microseconds: how much later a Send completes than its message arrives */
	uint64_t spurious;	/* each n-th event of a completion channel, on average, comes twice; 0: none */
	uint64_t iwarp;		/* the device connects by itself */
	uint64_t second_device;	/* the next route goes over the second device */
	uint64_t refuse;	/* the server refuses connections */
	uint64_t silent;	/* the server does not answer requests for connections */
	uint64_t credits;	/* that the server grants */
	uint64_t inline_size;	/* of the server */
	uint64_t reply_size;	/* of what it sends, if that differs; else 0 */
	uint64_t private_data;	/* the server sends private data (RFC 8797) */
	uint64_t read_max, write_max;
	uint64_t shortened;	/* READ and WRITE move half of the bytes */
	uint64_t hold;		/* a bit for each procedure whose replies the server keeps until the bit is 0 */
	uint64_t end_after;	/* the connection ends instead of the reply to this call, counted from now; 0: never */
	uint64_t attributes;	/* replies have post_op_attr */
	uint64_t mount_error;	/* status of MNT */
	uint64_t no_mount_daemon;	/* the server has none */
	uint64_t personalities;	/* bits of those that the server, then one of nfsrdma, accepts; 0: another server */
	uint64_t seed;
	uint64_t end_behind;	/* the connection ends behind the execution of this call, counted from now; 0: never */

	/* NFSv4.1 */
	uint64_t nfs4;		/* the server has it; 2: and no NFSv3 */
	uint64_t hold4;		/* a bit for each operation: as hold, of each COMPOUND that has one of them */
	uint64_t slots;		/* of a session, at most */
	uint64_t target_slots;	/* of all sessions, from now on; 0: as many as they have */
	uint64_t request_max, response_max, cached_max, operations_max;	/* of a session, at most */
	uint64_t keep_all;	/* the reply cache has all results, without sa_cachethis, too */
	uint64_t bind;		/* SEQUENCE binds no connection to its session */
	uint64_t sequence_flags;	/* bits of sr_status_flags in all replies */
	uint64_t grace;		/* 0: no grace period; else COMPOUNDs until its end, or one of GRACE_ */
	uint64_t restart_grace;	/* grace after a restart */
	uint64_t grace_io;	/* READ, WRITE and changes of the size have to wait for the end of the grace period */
	uint64_t delegate;	/* each OPEN of an owner has a delegation: 1 to read, 2 to write */
	uint64_t preserve;	/* OPEN4_RESULT_PRESERVE_UNLINKED: open files outlive their last name */
	uint64_t exclusive_times;	/* the verifier of EXCLUSIVE4_1 is kept in the times of the file */
	uint64_t lease_time;	/* seconds */
	uint64_t entry_error;	/* rdattr_error of the entries of directories */
	uint64_t scope;		/* number of the server: clients cannot reclaim at another one what they had here */
};

/* What a test reads by name */
struct counters {
	uint64_t calls, reads, writes, commits, connects, registered, held;
	uint64_t contexts, pds, mrs, cqs, qps, channels, ids, event_channels, connections;
	uint64_t most_connections;	/* at a time */
	/* NFSv4.1: what there is, and what there was */
	uint64_t clients, sessions, opens, delegations;
	uint64_t compounds, created_sessions, opened, closed, reclaimed, delegreturns;
	uint64_t replays, uncached;	/* replies from the cache; NFS4ERR_RETRY_UNCACHED_REP */
	uint64_t uncached_changes;	/* COMPOUNDs that change something, without sa_cachethis */
	uint64_t highest_slot;		/* that was used */
	uint64_t port;		/* of the last address that the client resolved */
};

extern struct settings settings;
extern struct counters counters;

void device_lock(void);
void device_unlock(void);

/* Note what the user of the device, or the client of the server, may not do */
void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t chance(uint64_t below);

struct connection;

/* --- verbs.c, for the server; each returns false if the device of the client refuses it, after a fault() --- */

bool device_rdma_read(struct connection *connection, uint32_t key, uint64_t addr, void *to, uint32_t length);
bool device_rdma_write(struct connection *connection, uint32_t key, uint64_t addr, const void *from, uint32_t length);
void device_reply(struct connection *connection, const void *message, uint32_t length);
void device_end_connection(struct connection *connection);
void device_end_connections(void);

/* What the two ends of a connection agreed on */
struct terms {
	uint32_t call_max, reply_max;	/* bytes of the longest messages */
	uint32_t granted, unanswered;
};

struct terms *terms_of(struct connection *connection);

/* --- session4.c, for server.c and verbs.c --- */

void sessions_forget(const struct connection *connection);
void sessions_restart(void);
void sessions_reset(void);

/* --- server.c --- */

void server_call(struct connection *connection, const uint8_t *message, uint32_t length);
void server_release(void);
void server_forget(struct connection *connection);
void server_delivered(const struct connection *connection, uint32_t xid);
void server_reset(void);

#endif
