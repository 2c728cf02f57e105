/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * A stand-in for libibverbs and librdmacm, and an NFSv3 server behind it, under the unchanged sources of lib/.
 *
 * verbs.c is the device: it checks what its user does against the manual pages of verbs and rdma_cm.
 * server.c is the server: RPC-over-RDMA version 1 (RFC 8166, RFC 8267) and NFSv3 (RFC 1813) over files in memory.
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

/* Settings, which a test sets by their names: see names[] in verbs.c */
struct settings {
	uint64_t late;		/* microseconds: most that a reply, an event or a completion is late */
	uint64_t late_calls;	/* the same, of a call: the server executes it, and reaches memory, later */
	uint64_t late_sends;	/* microseconds: how much later a Send completes than its message arrives */
	uint64_t spurious;	/* each n-th event of a completion channel, on average, comes twice; 0: none */
	uint64_t iwarp;		/* the device connects by itself */
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
};

/* What a test reads by name */
struct counters {
	uint64_t calls, reads, writes, commits, connects, registered, held;
	uint64_t contexts, pds, mrs, cqs, qps, channels, ids, event_channels, connections;
	uint64_t most_connections;	/* at a time */
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

/* --- server.c --- */

void server_call(struct connection *connection, const uint8_t *message, uint32_t length);
void server_release(void);
void server_forget(struct connection *connection);
void server_reset(void);

#endif
