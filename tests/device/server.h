/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Shared by the parts of the server: files.c, server.c (RPC-over-RDMA, NFSv3), server4.c, session4.c, state4.c. */
#ifndef SERVER_H
#define SERVER_H

#include <stdlib.h>
#include <string.h>

#include "device.h"

#define ROOM		(4 << 20)
#define FH_BYTES	28
#define NAME_ROOM	256

enum { FILE_TYPE = 1, FOLDER_TYPE = 2, LINK_TYPE = 5 };
enum { UNSTABLE = 0, FILE_SYNC = 2 };

static inline void *must(void *memory)
{
	if (!memory)
		abort();
	return memory;
}

/* --- files.c --- */

struct entry {
	struct entry *next;
	uint64_t cookie;
	struct node *node;
	char name[NAME_ROOM];
};

struct bytes {
	uint8_t *at;
	uint64_t size;
};

struct node {
	struct node *next;
	uint64_t number;
	uint32_t type, mode, links;
	uint32_t opens;		/* of NFSv4.1: such a file outlives its last name */
	struct bytes data, disk;	/* what the server answers with, and what a restart leaves */
	struct entry *entries;
	uint64_t cookie;
	uint8_t create_verifier[8];
	uint64_t unset;		/* NFSv4.1: attributes that the client has to set behind an exclusive OPEN */
	uint64_t modified, change;
};

extern struct node *file_root;

void bytes_resize(struct bytes *bytes, uint64_t size);
void bytes_store(struct bytes *bytes, uint64_t offset, const void *data, uint64_t length);
void bytes_copy(struct bytes *to, const struct bytes *from);
void node_modify(struct node *node);
struct node *node_new(uint32_t type, uint32_t mode);
struct node *node_of(uint64_t number);
struct entry *node_entry(struct node *folder, const char *name);
void node_add(struct node *folder, const char *name, struct node *node);
void node_remove(struct node *folder, const char *name);
void node_drop(struct node *node);
struct node *node_walk(const char *path, uint32_t make, uint32_t mode);
void files_restart(void);
void files_reset(void);

/* --- XDR (RFC 4506) --- */

struct in {
	const uint8_t *at;
	size_t left;
	bool bad;
};

struct out {
	uint8_t *at;
	size_t used;
};

static inline uint32_t get(struct in *in)
{
	const uint8_t *at = in->at;

	if (in->left < 4) {
		in->bad = true;
		return 0;
	}
	in->at += 4;
	in->left -= 4;
	return (uint32_t)at[0] << 24 | at[1] << 16 | at[2] << 8 | at[3];
}

static inline uint64_t get64(struct in *in)
{
	uint64_t high = get(in);

	return high << 32 | get(in);
}

/* Bytes and their padding, which is zero (RFC 4506, section 3) */
static inline const uint8_t *get_bytes(struct in *in, uint32_t length)
{
	uint32_t whole = (length + 3) & ~3U, i;
	const uint8_t *at = in->at;

	if (whole < length || in->left < whole) {
		in->bad = true;
		return NULL;
	}
	for (i = length; i < whole; i++)
		if (at[i])
			fault("padding of XDR that is not zero");
	in->at += whole;
	in->left -= whole;
	return at;
}

static inline void get_name(struct in *in, char *name, uint32_t most)
{
	uint32_t length = get(in);
	const uint8_t *bytes = length < most ? get_bytes(in, length) : NULL;

	*name = '\0';
	in->bad |= !bytes;
	if (bytes) {
		memcpy(name, bytes, length);
		name[length] = '\0';
	}
}

static inline void put(struct out *out, uint32_t value)
{
	uint8_t *at = out->at + out->used;

	if (out->used + 4 > ROOM)
		abort();
	at[0] = value >> 24;
	at[1] = value >> 16;
	at[2] = value >> 8;
	at[3] = value;
	out->used += 4;
}

static inline void put64(struct out *out, uint64_t value)
{
	put(out, value >> 32);
	put(out, value);
}

static inline void put_bytes(struct out *out, const void *data, uint32_t length)
{
	uint32_t whole = (length + 3) & ~3U;

	if (out->used + whole > ROOM)
		abort();
	if (length)
		memcpy(out->at + out->used, data, length);
	memset(out->at + out->used + length, 0, whole - length);
	out->used += whole;
}

static inline void put_opaque(struct out *out, const void *data, uint32_t length)
{
	put(out, length);
	put_bytes(out, data, length);
}

/* Overwrite what was put before */
static inline void put_at(struct out *out, size_t at, uint32_t value)
{
	struct out before = { out->at, at };

	put(&before, value);
}

void put_fh(struct out *out, const struct node *node);
struct node *get_fh(struct in *in);

/* --- server.c --- */

#define MOST_CHUNKS	16

struct segment {
	uint32_t key, length;
	uint64_t offset;
};

/* A Read or a Write chunk (RFC 8166, section 3.4) */
struct chunk {
	uint32_t position, count, length;
	struct segment segments[MOST_CHUNKS];
	const uint8_t *at;	/* a Read chunk: where it stands in the whole Call */
	bool claimed;		/* an operation has used it */
};

/* Data in results that may be in a Write chunk instead (RFC 8267); such results are whole until the server answers */
struct range {
	size_t at;
	uint32_t length;
};

/* A Call that the server has accepted, with its Read chunks in their places */
struct call {
	struct connection *connection;
	uint32_t xid, version, procedure, principal;
	size_t size;		/* bytes of the whole Call */
	uint64_t operations;	/* that it has, a bit each: the procedure, or the operations of a COMPOUND */
	bool decoded;		/* to the end: no error came before */
	struct in in;
	struct out *out;
	struct chunk reads[MOST_CHUNKS];
	uint32_t nreads;
	struct range ranges[MOST_CHUNKS * 2];
	uint32_t nranges;
};

/* Each restart has another */
extern uint64_t server_verifier;

/* The status that a test wants for a procedure, or for an operation of NFSv4.1 (with OPERATION); else 0 */
#define OPERATION	0x10000
uint32_t server_failure(uint32_t procedure, uint64_t offset);

/* Opaque data of a Call that may be a Read chunk */
const uint8_t *call_data(struct call *call, uint32_t length);
/* Opaque data of results that may go into a Write chunk */
void put_data(struct call *call, const void *data, uint32_t length);

/* --- NFSv4.1: server4.c, and state4.c --- */

void compound(struct call *call);

/* The file loses its last name, and is not preserved: its opens end */
void state_unlinked(struct node *node);

#endif
