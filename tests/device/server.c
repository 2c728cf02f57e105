// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The server: RPC-over-RDMA version 1 (RFC 8166), its use by NFS (RFC 8267), NFSv3 (RFC 1813) and MNT. */
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <rpc/rpc.h>

#include "device.h"

#define ROOM		(4 << 20)
#define FH_BYTES	28

enum { GETATTR = 1, SETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, CREATE, MKDIR, SYMLINK, REMOVE = 12, RMDIR, RENAME,
       READDIRPLUS = 17, FSINFO = 19, COMMIT = 21 };
enum { OK = 0, ERR_NOENT = 2, ERR_ACCES = 13, ERR_EXIST = 17, ERR_NOTDIR = 20, ERR_ISDIR = 21, ERR_INVAL = 22, ERR_FBIG = 27,
       ERR_NOTEMPTY = 66, ERR_STALE = 70, ERR_NOTSUPP = 10004 };
enum { FILE_TYPE = 1, FOLDER_TYPE = 2, LINK_TYPE = 5 };
enum { UNSTABLE = 0, FILE_SYNC = 2 };

/* --- files --- */

struct entry {
	struct entry *next;
	uint64_t cookie;
	struct node *node;
	char name[256];
};

struct bytes {
	uint8_t *at;
	uint64_t size;
};

struct node {
	struct node *next;
	uint64_t number;
	uint32_t type, mode, links;
	struct bytes data, disk;	/* what the server answers with, and what a restart leaves */
	struct entry *entries;
	uint64_t cookie;
	uint8_t create_verifier[8];
	uint64_t modified;
};

static struct node *nodes, *root;
static uint64_t next_number = 2, verifier = 0x1122334455667788;

static void *must(void *memory)
{
	if (!memory)
		abort();
	return memory;
}

static void resize(struct bytes *bytes, uint64_t size)
{
	bytes->at = must(realloc(bytes->at, size + 1));
	if (size > bytes->size)
		memset(bytes->at + bytes->size, 0, size - bytes->size);
	bytes->size = size;
}

static void store(struct bytes *bytes, uint64_t offset, const void *data, uint64_t length)
{
	if (offset + length > bytes->size)
		resize(bytes, offset + length);
	if (length)
		memcpy(bytes->at + offset, data, length);
}

static void modify(struct node *node)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	/* times of two changes differ */
	node->modified = now.tv_sec * 1000000000ULL + now.tv_nsec;
}

static struct node *new_node(uint32_t type, uint32_t mode)
{
	struct node *node = must(calloc(1, sizeof(*node)));

	*node = (struct node){ .next = nodes, .number = next_number++, .type = type, .mode = mode, .links = 1 };
	modify(node);
	nodes = node;
	return node;
}

static struct entry *entry_of(struct node *folder, const char *name)
{
	struct entry *each;

	for (each = folder->entries; each; each = each->next)
		if (!strcmp(each->name, name))
			return each;
	return NULL;
}

static void add_entry(struct node *folder, const char *name, struct node *node)
{
	struct entry *new = must(calloc(1, sizeof(*new))), **at = &folder->entries;

	snprintf(new->name, sizeof(new->name), "%s", name);
	new->node = node;
	new->cookie = ++folder->cookie;
	while (*at)
		at = &(*at)->next;
	*at = new;
	modify(folder);
}

static void free_node(struct node *node)
{
	while (node->entries) {
		struct entry *entry = node->entries;

		node->entries = entry->next;
		free(entry);
	}
	free(node->data.at);
	free(node->disk.at);
	free(node);
}

static void remove_entry(struct node *folder, const char *name)
{
	struct entry **at = &folder->entries, *entry;
	struct node **node;

	while (strcmp((*at)->name, name))
		at = &(*at)->next;
	entry = *at;
	*at = entry->next;
	modify(folder);
	if (!--entry->node->links) {
		for (node = &nodes; *node != entry->node; node = &(*node)->next)
			;
		*node = entry->node->next;
		free_node(entry->node);
	}
	free(entry);
}

/* The node of an absolute path, or NULL; @make: the folders above, and the last component by its type */
static struct node *walk(const char *path, uint32_t make, uint32_t mode)
{
	struct node *at = root;
	char name[256];

	while (*(path += strspn(path, "/"))) {
		size_t length = strcspn(path, "/");
		struct entry *entry;

		if (at->type != FOLDER_TYPE || length >= sizeof(name))
			return NULL;
		memcpy(name, path, length);
		name[length] = '\0';
		path += length;
		entry = entry_of(at, name);
		if (!entry && make) {
			bool last = !path[strspn(path, "/")];

			add_entry(at, name, new_node(last ? make : FOLDER_TYPE, last ? mode : 0755));
			entry = entry_of(at, name);
		}
		if (!entry)
			return NULL;
		at = entry->node;
	}
	return at;
}

/* --- XDR --- */

struct in {
	const uint8_t *at;
	size_t left;
	bool bad;
};

struct out {
	uint8_t *at;
	size_t used;
};

static uint32_t get(struct in *in)
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

static uint64_t get64(struct in *in)
{
	uint64_t high = get(in);

	return high << 32 | get(in);
}

/* Bytes and their padding, which is zero (RFC 4506, section 3) */
static const uint8_t *get_bytes(struct in *in, uint32_t length)
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

static void get_name(struct in *in, char *name, uint32_t most)
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

static void put(struct out *out, uint32_t value)
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

static void put64(struct out *out, uint64_t value)
{
	put(out, value >> 32);
	put(out, value);
}

static void put_bytes(struct out *out, const void *data, uint32_t length)
{
	uint32_t whole = (length + 3) & ~3U;

	if (out->used + whole > ROOM)
		abort();
	memcpy(out->at + out->used, data, length);
	memset(out->at + out->used + length, 0, whole - length);
	out->used += whole;
}

static void put_opaque(struct out *out, const void *data, uint32_t length)
{
	put(out, length);
	put_bytes(out, data, length);
}

/* --- file handles and attributes --- */

static void put_fh(struct out *out, const struct node *node)
{
	uint8_t fh[FH_BYTES];

	memset(fh, 0x5c, sizeof(fh));
	memcpy(fh, &node->number, sizeof(node->number));
	put_opaque(out, fh, sizeof(fh));
}

/* The node of a handle, NULL if it is gone */
static struct node *get_fh(struct in *in)
{
	const uint8_t *fh;
	struct node *node;
	uint64_t number;

	if (get(in) != FH_BYTES || !(fh = get_bytes(in, FH_BYTES))) {
		in->bad = true;
		return NULL;
	}
	memcpy(&number, fh, sizeof(number));
	for (node = nodes; node && node->number != number; node = node->next)
		;
	return node;
}

static void put_time(struct out *out, uint64_t ns)
{
	put(out, ns / 1000000000);
	put(out, ns % 1000000000);
}

static void put_attributes(struct out *out, const struct node *node)
{
	put(out, node->type);
	put(out, node->mode);
	put(out, node->links);
	put(out, 0);
	put(out, 0);
	put64(out, node->data.size);
	put64(out, node->data.size);
	put64(out, 0);
	put64(out, 7);
	put64(out, node->number);
	put_time(out, node->modified);
	put_time(out, node->modified);
	put_time(out, node->modified);
}

/* post_op_attr */
static void put_after(struct out *out, const struct node *node)
{
	bool given = node && settings.attributes;

	put(out, given);
	if (given)
		put_attributes(out, node);
}

/* wcc_data without the attributes before */
static void put_wcc(struct out *out, const struct node *node)
{
	put(out, 0);
	put_after(out, node);
}

struct change {
	bool has_mode, has_size;
	uint32_t mode;
	uint64_t size;
};

static struct change get_change(struct in *in)
{
	struct change change = {};

	change.has_mode = get(in);
	if (change.has_mode)
		change.mode = get(in);
	/* uid and gid */
	if (get(in))
		get(in);
	if (get(in))
		get(in);
	change.has_size = get(in);
	if (change.has_size)
		change.size = get64(in);
	/* SET_TO_CLIENT_TIME has a time */
	if (get(in) == 2)
		get64(in);
	if (get(in) == 2)
		get64(in);
	return change;
}

static void apply(struct node *node, const struct change *change)
{
	if (change->has_mode)
		node->mode = change->mode & 07777;
	if (change->has_size) {
		resize(&node->data, change->size);
		resize(&node->disk, change->size);
		modify(node);
	}
}

/* --- errors that a test asks for --- */

static struct failure {
	uint32_t procedure, status;
	uint64_t offset, times;
} failures[16];

static uint32_t asked_failure(uint32_t procedure, uint64_t offset)
{
	size_t i;

	for (i = 0; i < sizeof(failures) / sizeof(*failures); i++) {
		struct failure *each = &failures[i];

		if (each->times && each->procedure == procedure &&
		    (each->offset == UINT64_MAX || each->offset == offset)) {
			each->times--;
			return each->status;
		}
	}
	return OK;
}

/* --- procedures --- */

/* A Call that the server has accepted */
struct call {
	struct connection *connection;
	uint32_t xid, version, procedure;
	struct in in;
	struct in data;		/* a Read chunk that holds the data of WRITE, or text of SYMLINK */
	struct out *out;
	struct bytes read;	/* data of READ, which may go into a Write chunk */
	size_t read_at;		/* where it stands in the results otherwise */
	bool write_chunk;
};

static void getattr(struct call *call)
{
	struct node *node = get_fh(&call->in);

	put(call->out, node ? OK : ERR_STALE);
	if (node)
		put_attributes(call->out, node);
}

static void setattr(struct call *call)
{
	struct node *node = get_fh(&call->in);
	struct change change = get_change(&call->in);

	if (get(&call->in))
		get64(&call->in);
	if (node && !call->in.bad)
		apply(node, &change);
	put(call->out, node ? OK : ERR_STALE);
	put_wcc(call->out, node);
}

#define NAME_ROOM	256

/* The entry that a call names, in a directory; NULL, and why there is none */
static struct entry *get_entry(struct call *call, struct node *folder, char *name, uint32_t *status)
{
	struct entry *entry = NULL;

	get_name(&call->in, name, NAME_ROOM);
	*status = !folder ? ERR_STALE : folder->type != FOLDER_TYPE ? ERR_NOTDIR : OK;
	if (!*status && !(entry = entry_of(folder, name)))
		*status = ERR_NOENT;
	return entry;
}

static void lookup(struct call *call)
{
	struct node *folder = get_fh(&call->in);
	char name[NAME_ROOM];
	uint32_t status;
	struct entry *entry = get_entry(call, folder, name, &status);

	put(call->out, status);
	if (entry) {
		put_fh(call->out, entry->node);
		put_after(call->out, entry->node);
	}
	put_after(call->out, folder);
}

static void readlink_(struct call *call)
{
	struct node *node = get_fh(&call->in);
	uint32_t status = !node ? ERR_STALE : node->type != LINK_TYPE ? ERR_INVAL : OK;

	put(call->out, status);
	put_after(call->out, node);
	if (!status)
		put_opaque(call->out, node->data.at, node->data.size);
}

static void read_(struct call *call)
{
	struct node *node = get_fh(&call->in);
	uint64_t offset = get64(&call->in);
	uint32_t count = get(&call->in), status = !node ? ERR_STALE : node->type != FILE_TYPE ? ERR_ISDIR : OK;
	uint64_t left;

	if (count > settings.read_max)
		fault("a READ of %u bytes: rtmax is %llu", count, (unsigned long long)settings.read_max);
	if (!status)
		status = asked_failure(READ, offset);
	counters.reads++;
	put(call->out, status);
	put_after(call->out, node);
	if (status)
		return;
	left = offset < node->data.size ? node->data.size - offset : 0;
	if (count > left)
		count = left;
	if (settings.shortened && count > 1)
		count /= 2;
	put(call->out, count);
	put(call->out, offset + count >= node->data.size);
	put(call->out, count);
	call->read = (struct bytes){ node->data.at ? node->data.at + offset : NULL, count };
	call->read_at = call->out->used;
	if (!call->write_chunk && count)
		put_bytes(call->out, call->read.at, count);
}

static void write_(struct call *call)
{
	struct node *node = get_fh(&call->in);
	uint64_t offset = get64(&call->in);
	uint32_t count = get(&call->in), stable = get(&call->in), length = get(&call->in), status;
	const uint8_t *data = call->data.at ? call->data.at : get_bytes(&call->in, length);

	if (length != count)
		fault("a WRITE of %u bytes with %u", count, length);
	/* RFC 8166, section 3.4.5: a Read chunk may leave the padding out */
	if (call->data.at && (call->data.left < length || call->data.left > ((length + 3) & ~3U)))
		fault("a Read chunk of %zu bytes for a WRITE of %u", call->data.left, length);
	if (count > settings.write_max)
		fault("a WRITE of %u bytes: wtmax is %llu", count, (unsigned long long)settings.write_max);
	status = !node ? ERR_STALE : !data ? ERR_INVAL : asked_failure(WRITE, offset);
	/* maxfilesize of FSINFO */
	if (!status && (offset > INT64_MAX || count > INT64_MAX - offset))
		status = ERR_FBIG;
	if (settings.shortened && count > 1)
		count /= 2;
	counters.writes++;
	if (!status) {
		store(&node->data, offset, data, count);
		if (stable != UNSTABLE)
			store(&node->disk, offset, data, count);
		modify(node);
	}
	put(call->out, status);
	put_wcc(call->out, node);
	if (status)
		return;
	put(call->out, count);
	put(call->out, stable == UNSTABLE ? UNSTABLE : FILE_SYNC);
	put64(call->out, verifier);
}

static void commit(struct call *call)
{
	struct node *node = get_fh(&call->in);
	uint32_t status = node ? asked_failure(COMMIT, 0) : ERR_STALE;

	get64(&call->in);
	get(&call->in);
	counters.commits++;
	if (!status) {
		resize(&node->disk, node->data.size);
		if (node->data.size)
			memcpy(node->disk.at, node->data.at, node->data.size);
	}
	put(call->out, status);
	put_wcc(call->out, node);
	if (!status)
		put64(call->out, verifier);
}

static void put_made(struct call *call, uint32_t status, const struct node *made, const struct node *folder)
{
	put(call->out, status);
	if (!status) {
		put(call->out, 1);
		put_fh(call->out, made);
		put_after(call->out, made);
	}
	put_wcc(call->out, folder);
}

static void create(struct call *call)
{
	enum { UNCHECKED, GUARDED, EXCLUSIVE };
	struct node *folder = get_fh(&call->in), *made = NULL;
	struct change change = {};
	const uint8_t *exclusive = NULL;
	uint32_t how, status;
	struct entry *entry;
	char name[256];

	get_name(&call->in, name, sizeof(name));
	how = get(&call->in);
	if (how == EXCLUSIVE)
		exclusive = get_bytes(&call->in, 8);
	else
		change = get_change(&call->in);
	status = !folder ? ERR_STALE : folder->type != FOLDER_TYPE ? ERR_NOTDIR : call->in.bad ? ERR_INVAL : OK;
	entry = status ? NULL : entry_of(folder, name);
	if (entry) {
		made = entry->node;
		if (how == GUARDED || (exclusive && memcmp(made->create_verifier, exclusive, 8)))
			status = ERR_EXIST;
	} else if (!status) {
		made = new_node(FILE_TYPE, 0);
		add_entry(folder, name, made);
		if (exclusive)
			memcpy(made->create_verifier, exclusive, 8);
	}
	if (!status)
		apply(made, &change);
	put_made(call, status, made, folder);
}

static void make(struct call *call)
{
	struct node *folder = get_fh(&call->in), *made = NULL;
	char name[256], text[4097];
	struct change change;
	uint32_t status;

	get_name(&call->in, name, sizeof(name));
	change = get_change(&call->in);
	if (call->procedure == SYMLINK)
		get_name(&call->in, text, sizeof(text));
	status = !folder ? ERR_STALE : folder->type != FOLDER_TYPE ? ERR_NOTDIR : call->in.bad ? ERR_INVAL : OK;
	if (!status && entry_of(folder, name))
		status = ERR_EXIST;
	if (!status) {
		made = new_node(call->procedure == MKDIR ? FOLDER_TYPE : LINK_TYPE, 0);
		add_entry(folder, name, made);
		apply(made, &change);
		if (call->procedure == SYMLINK)
			store(&made->data, 0, text, strlen(text));
	}
	put_made(call, status, made, folder);
}

static void remove_(struct call *call)
{
	struct node *folder = get_fh(&call->in);
	char name[NAME_ROOM];
	uint32_t status;
	struct entry *entry = get_entry(call, folder, name, &status);

	if (entry && call->procedure == REMOVE && entry->node->type == FOLDER_TYPE)
		status = ERR_ISDIR;
	if (entry && call->procedure == RMDIR)
		status = entry->node->type != FOLDER_TYPE ? ERR_NOTDIR : entry->node->entries ? ERR_NOTEMPTY : OK;
	if (!status)
		remove_entry(folder, name);
	put(call->out, status);
	put_wcc(call->out, folder);
}

static void rename_(struct call *call)
{
	struct node *from = get_fh(&call->in), *to;
	struct entry *source, *target;
	char old[256], new[256];
	uint32_t status = OK;

	get_name(&call->in, old, sizeof(old));
	to = get_fh(&call->in);
	get_name(&call->in, new, sizeof(new));
	if (!from || !to)
		status = ERR_STALE;
	else if (from->type != FOLDER_TYPE || to->type != FOLDER_TYPE)
		status = ERR_NOTDIR;
	source = status ? NULL : entry_of(from, old);
	if (!status && !source)
		status = ERR_NOENT;
	target = status ? NULL : entry_of(to, new);
	if (target && target->node->type == FOLDER_TYPE && source->node->type != FOLDER_TYPE)
		status = ERR_ISDIR;
	else if (target && target->node->type != FOLDER_TYPE && source->node->type == FOLDER_TYPE)
		status = ERR_NOTDIR;
	else if (target && target->node != source->node && target->node->entries)
		status = ERR_NOTEMPTY;
	if (!status && (!target || target->node != source->node)) {
		struct node *node = source->node;

		node->links++;
		if (target)
			remove_entry(to, new);
		remove_entry(from, old);
		add_entry(to, new, node);
	}
	put(call->out, status);
	put_wcc(call->out, from);
	put_wcc(call->out, to);
}

static void readdirplus(struct call *call)
{
	struct node *folder = get_fh(&call->in);
	uint64_t cookie = get64(&call->in);
	struct entry *entry;
	uint32_t status, most;

	get64(&call->in);
	get(&call->in);
	most = get(&call->in);
	status = !folder ? ERR_STALE : folder->type != FOLDER_TYPE ? ERR_NOTDIR : OK;
	put(call->out, status);
	put_after(call->out, folder);
	if (status)
		return;
	put64(call->out, 0);
	for (entry = folder->entries; entry; entry = entry->next) {
		if (entry->cookie <= cookie)
			continue;
		/* maxcount bounds all of the results; an entry has at most 460 bytes */
		if (call->out->used + 600 > most)
			break;
		put(call->out, 1);
		put64(call->out, entry->node->number);
		put_opaque(call->out, entry->name, strlen(entry->name));
		put64(call->out, entry->cookie);
		put_after(call->out, entry->node);
		put(call->out, 1);
		put_fh(call->out, entry->node);
	}
	put(call->out, 0);
	put(call->out, !entry);
}

static void access_(struct call *call)
{
	struct node *node = get_fh(&call->in);
	uint32_t wanted = get(&call->in);

	put(call->out, node ? OK : ERR_STALE);
	put_after(call->out, node);
	if (node)
		put(call->out, wanted);
}

static void fsinfo(struct call *call)
{
	struct node *node = get_fh(&call->in);

	put(call->out, node ? OK : ERR_STALE);
	put_after(call->out, node);
	if (!node)
		return;
	put(call->out, settings.read_max);
	put(call->out, settings.read_max);
	put(call->out, 4096);
	put(call->out, settings.write_max);
	put(call->out, settings.write_max);
	put(call->out, 4096);
	put(call->out, 4096);
	put64(call->out, INT64_MAX);
	put64(call->out, 1);
	put(call->out, 0x1b);
}

static void (*const procedures[])(struct call *) = {
	[GETATTR] = getattr, [SETATTR] = setattr, [LOOKUP] = lookup, [ACCESS] = access_, [READLINK] = readlink_,
	[READ] = read_, [WRITE] = write_, [CREATE] = create, [MKDIR] = make, [SYMLINK] = make, [REMOVE] = remove_,
	[RMDIR] = remove_, [RENAME] = rename_, [READDIRPLUS] = readdirplus, [FSINFO] = fsinfo, [COMMIT] = commit,
};

/* --- RPC-over-RDMA --- */

struct segment {
	uint32_t key, length;
	uint64_t offset;
};

struct header {
	uint32_t xid, credits, type;
	uint32_t position;
	struct segment read, special, write, reply;	/* length 0: none; @special: position 0, RDMA_NOMSG */
	bool has_read, has_special, has_write, has_reply;
};

static struct segment get_segment(struct in *in)
{
	struct segment segment = { .key = get(in), .length = get(in) };

	segment.offset = get64(in);
	return segment;
}

/* The client that is tested sends chunks of one segment */
static bool get_header(struct in *in, struct header *header)
{
	*header = (struct header){ .xid = get(in) };
	if (get(in) != 1)
		return false;
	header->credits = get(in);
	header->type = get(in);
	if (header->type > 1)
		return false;
	while (get(in) == 1) {
		uint32_t position = get(in);
		struct segment segment = get_segment(in);

		if (!position && !header->has_special) {
			header->special = segment;
			header->has_special = true;
		} else if (position && !header->has_read) {
			header->read = segment;
			header->position = position;
			header->has_read = true;
		} else {
			return false;
		}
	}
	while (get(in) == 1) {
		if (header->has_write || get(in) != 1)
			return false;
		header->write = get_segment(in);
		header->has_write = true;
	}
	if (get(in) == 1) {
		if (get(in) != 1)
			return false;
		header->reply = get_segment(in);
		header->has_reply = true;
	}
	return !in->bad && header->has_special == (header->type == 1);
}

static void put_segment(struct out *out, const struct segment *segment, uint32_t length)
{
	put(out, segment->key);
	put(out, length);
	put64(out, segment->offset);
}

/* --- replies to repeated calls, and those that a test holds --- */

static struct kept {
	uint32_t xid, procedure;
	uint8_t *results;
	size_t length;
} cache[128];
static uint32_t next_kept;

static struct held {
	struct held *next;
	struct connection *connection;
	uint32_t procedure;
	uint8_t *message;
	size_t length;
} *held;

static bool is_kept(uint32_t procedure)
{
	return (1 << SETATTR | 1 << CREATE | 1 << MKDIR | 1 << SYMLINK | 1 << REMOVE | 1 << RMDIR | 1 << RENAME) >>
	       procedure & 1;
}

static const struct kept *find_kept(const struct call *call)
{
	size_t i;

	for (i = 0; i < 128; i++)
		if (cache[i].results && cache[i].xid == call->xid && cache[i].procedure == call->procedure)
			return &cache[i];
	return NULL;
}

static void keep(const struct call *call, size_t start)
{
	struct kept *kept = &cache[next_kept++ % 128];

	free(kept->results);
	*kept = (struct kept){ call->xid, call->procedure, must(malloc(call->out->used - start)),
			       call->out->used - start };
	memcpy(kept->results, call->out->at + start, kept->length);
}

static void send_reply(struct connection *connection, uint32_t procedure, const uint8_t *message, size_t length)
{
	struct held *new, **at = &held;

	if (!(settings.hold >> procedure & 1)) {
		device_reply(connection, message, length);
		return;
	}
	new = must(calloc(1, sizeof(*new)));
	*new = (struct held){ .connection = connection, .procedure = procedure, .message = must(malloc(length)),
			      .length = length };
	memcpy(new->message, message, length);
	while (*at)
		at = &(*at)->next;
	*at = new;
	counters.held++;
}

void server_release(void)
{
	struct held **at = &held, *each;

	while ((each = *at)) {
		if (settings.hold >> each->procedure & 1) {
			at = &each->next;
			continue;
		}
		*at = each->next;
		counters.held--;
		device_reply(each->connection, each->message, each->length);
		free(each->message);
		free(each);
	}
}

void server_forget(struct connection *connection)
{
	struct held **at = &held, *each;

	while ((each = *at)) {
		if (each->connection != connection) {
			at = &each->next;
			continue;
		}
		*at = each->next;
		counters.held--;
		free(each->message);
		free(each);
	}
}

/* --- calls --- */

/* RFC 5531; the credential of AUTH_SYS is checked by its length only */
static bool get_rpc(struct call *call)
{
	struct in *in = &call->in;
	uint32_t program, length;

	call->xid = get(in);
	if (get(in) || get(in) != 2)
		return false;
	program = get(in);
	call->version = get(in);
	if (program != 100003 || (call->version != 3 && call->version != 4))
		return false;
	call->procedure = get(in);
	if (get(in) != 1 || (length = get(in)) > 400 || !get_bytes(in, length))
		return false;
	return !get(in) && !get(in) && !in->bad;
}

/* A status that a test asks for, of a procedure without data; false if it asks for none */
static bool fail_call(struct call *call)
{
	uint32_t procedure = call->procedure, status;

	if (procedure == READ || procedure == WRITE || procedure == COMMIT)
		return false;
	status = asked_failure(procedure, 0);
	if (!status)
		return false;
	put(call->out, status);
	/* GETATTR has nothing behind it; post_op_attr, and wcc_data before which there is one word more */
	if (procedure != GETATTR)
		put(call->out, 0);
	if (is_kept(procedure))
		put(call->out, 0);
	if (procedure == RENAME)
		put64(call->out, 0);
	return true;
}

static bool run(struct call *call)
{
	size_t start = call->out->used;
	const struct kept *kept = find_kept(call);

	if (!call->procedure)
		return true;
	if (kept) {
		put_bytes(call->out, kept->results, kept->length);
		return true;
	}
	if (call->procedure >= sizeof(procedures) / sizeof(*procedures) || !procedures[call->procedure])
		return false;
	if (fail_call(call))
		return true;
	procedures[call->procedure](call);
	if (call->in.bad || (call->in.left && !call->data.at))
		fault("arguments of procedure %u that are too short, or longer than they are", call->procedure);
	if (is_kept(call->procedure))
		keep(call, start);
	return true;
}

/* The transport header of a reply, and the reply: as a message, or in the Reply chunk */
static void answer(struct call *call, const struct header *header)
{
	static uint8_t message[ROOM];
	struct out out = { message, 0 };
	const struct terms *terms = terms_of(call->connection);
	size_t head = 28 + (header->has_write ? 24 : 0) + (header->has_reply ? 20 : 0);
	bool is_long = head + call->out->used > terms->reply_max;

	/* RFC 8166, section 4.4.2: data that has no Write chunk goes into the message */
	if (call->read.size && header->has_write &&
	    !device_rdma_write(call->connection, header->write.key, header->write.offset, call->read.at, call->read.size))
		return;
	put(&out, header->xid);
	put(&out, 1);
	put(&out, settings.credits);
	if (is_long && (!header->has_reply || header->reply.length < call->out->used)) {
		fault("a reply of %zu bytes to procedure %u: the client has no room for it", call->out->used,
		      call->procedure);
		put(&out, 4);
		put(&out, 2);
		send_reply(call->connection, call->procedure, message, out.used);
		return;
	}
	if (is_long && !device_rdma_write(call->connection, header->reply.key, header->reply.offset, call->out->at,
					  call->out->used))
		return;
	put(&out, is_long);
	put(&out, 0);
	if (header->has_write) {
		put(&out, 1);
		put(&out, 1);
		put_segment(&out, &header->write, call->read.size);
	}
	put(&out, 0);
	put(&out, header->has_reply);
	if (header->has_reply) {
		put(&out, 1);
		put_segment(&out, &header->reply, is_long ? call->out->used : 0);
	}
	if (!is_long) {
		memcpy(message + out.used, call->out->at, call->out->used);
		out.used += call->out->used;
	}
	send_reply(call->connection, call->procedure, message, out.used);
}

/* Read what a Call has outside of its message */
static bool fetch(struct call *call, const struct header *header, uint8_t *special, uint8_t *data)
{
	if (header->has_special) {
		if (header->special.length > ROOM ||
		    !device_rdma_read(call->connection, header->special.key, header->special.offset, special,
				      header->special.length))
			return false;
		if (call->in.left)
			fault("bytes behind the header of RDMA_NOMSG");
		call->in = (struct in){ special, header->special.length, false };
	}
	if (header->has_read) {
		if (header->read.length > ROOM ||
		    !device_rdma_read(call->connection, header->read.key, header->read.offset, data,
				      header->read.length))
			return false;
		call->data = (struct in){ data, header->read.length, false };
	}
	return true;
}

void server_call(struct connection *connection, const uint8_t *message, uint32_t length)
{
	static uint8_t special[ROOM], data[ROOM], results[ROOM];
	struct out out = { results, 0 };
	struct call call = { .connection = connection, .in = { message, length, false }, .out = &out };
	const struct terms *terms = terms_of(connection);
	struct header header;
	size_t rpc;

	if (length > terms->call_max)
		fault("a message of %u bytes: the server takes %u", length, terms->call_max);
	if (!get_header(&call.in, &header)) {
		fault("a malformed transport header");
		device_end_connection(connection);
		return;
	}
	if (!header.credits)
		fault("a Call that requests no credits");
	if (!fetch(&call, &header, special, data))
		return;
	rpc = call.in.left;
	if (!get_rpc(&call) || call.xid != header.xid) {
		fault("a malformed Call");
		device_end_connection(connection);
		return;
	}
	/* RFC 8267, section 2.1: what may be a chunk of its own */
	if (header.has_write && call.procedure != READ && call.procedure != READLINK)
		fault("a Write chunk for procedure %u", call.procedure);
	if (header.has_read && call.procedure != WRITE && call.procedure != SYMLINK)
		fault("a Read chunk for procedure %u", call.procedure);
	/* the data of WRITE is the last of its arguments: the chunk stands where the stream ends */
	if (header.has_read && header.position != rpc)
		fault("a Read chunk at position %u of %zu bytes", header.position, rpc);
	call.write_chunk = header.has_write;
	put(&out, call.xid);
	put(&out, 1);
	put(&out, 0);
	put64(&out, 0);
	if (call.version != 3) {
		/* PROG_MISMATCH, and the versions that there are */
		put(&out, 2);
		put(&out, 3);
		put(&out, 3);
		answer(&call, &header);
		return;
	}
	put(&out, OK);
	if (!run(&call)) {
		out.used -= 4;
		put(&out, 3);
	}
	answer(&call, &header);
}

/* --- MNT, in place of a mount daemon over TCP --- */

static uint8_t mount_results[1024];

static void mount(const char *path, struct out *out)
{
	struct node *node = walk(path, 0, 0);
	bool exported = !strcmp(path, "/") || (!strncmp(path, "/export", 7) && (!path[7] || path[7] == '/'));
	uint32_t status = settings.mount_error;

	if (!status)
		status = !node ? ERR_NOENT : !exported ? ERR_ACCES : OK;
	put(out, status);
	if (status)
		return;
	put_fh(out, node);
	put(out, 1);
	put(out, AUTH_SYS);
}

static enum clnt_stat mount_call(CLIENT *client, rpcproc_t procedure, xdrproc_t encode, void *args,
				 xdrproc_t decode, void *res, struct timeval timeout)
{
	struct out out = { mount_results, 0 };
	char bytes[4200], path[4097];
	struct in in;
	bool good;
	XDR xdr;

	(void)client, (void)timeout;
	xdrmem_create(&xdr, bytes, sizeof(bytes), XDR_ENCODE);
	if (!encode(&xdr, args))
		return RPC_CANTENCODEARGS;
	in = (struct in){ (uint8_t *)bytes, xdr_getpos(&xdr), false };
	device_lock();
	get_name(&in, path, sizeof(path));
	if (procedure == 1)
		mount(path, &out);
	xdrmem_create(&xdr, (char *)mount_results, out.used, XDR_DECODE);
	good = decode(&xdr, res);
	device_unlock();
	return good ? RPC_SUCCESS : RPC_CANTDECODERES;
}

static void mount_end(CLIENT *client)
{
	free(client);
}

static struct clnt_ops mount_ops = { .cl_call = mount_call, .cl_destroy = mount_end };

CLIENT *clnt_create_timed(const char *host, rpcprog_t program, rpcvers_t version, const char *type,
			  const struct timeval *timeout)
{
	CLIENT *client;

	(void)host, (void)program, (void)version, (void)type, (void)timeout;
	if (settings.no_mount_daemon) {
		rpc_createerr.cf_stat = RPC_PROGNOTREGISTERED;
		return NULL;
	}
	client = must(calloc(1, sizeof(*client)));
	client->cl_ops = &mount_ops;
	client->cl_auth = authnone_create();
	return client;
}

int __real_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found);

/* Any name is the server's */
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
	(void)host;
	return __real_getaddrinfo("10.9.1.1", port, hints, found);
}

/* --- for tests --- */

/* All data that no COMMIT wrote to the disk is lost */
EXPORTED void device_restart(void)
{
	struct node *node;
	size_t i;

	device_lock();
	device_end_connections();
	verifier++;
	for (node = nodes; node; node = node->next) {
		if (node->type != FILE_TYPE)
			continue;
		resize(&node->data, node->disk.size);
		if (node->disk.size)
			memcpy(node->data.at, node->disk.at, node->disk.size);
	}
	for (i = 0; i < 128; i++) {
		free(cache[i].results);
		cache[i] = (struct kept){};
	}
	device_unlock();
}

/* The next calls of a procedure, at an offset or at any (UINT64_MAX), have a status; @times 0: none has */
EXPORTED void device_error(uint32_t procedure, uint64_t offset, uint32_t status, uint64_t times)
{
	size_t i;

	device_lock();
	if (!times)
		memset(failures, 0, sizeof(failures));
	for (i = 0; i < sizeof(failures) / sizeof(*failures) && failures[i].times; i++)
		;
	if (i == sizeof(failures) / sizeof(*failures))
		abort();
	failures[i] = (struct failure){ procedure, status, offset, times };
	device_unlock();
}

/* Make a file (1), a directory (2) or a symbolic link (5), and the directories above it */
EXPORTED int device_put(const char *path, uint32_t type, uint32_t mode, const void *data, uint64_t length)
{
	struct node *node;

	device_lock();
	node = walk(path, type, mode);
	if (node)
		node->mode = mode;
	if (node && type != FOLDER_TYPE) {
		resize(&node->data, 0);
		store(&node->data, 0, data, length);
		resize(&node->disk, 0);
		store(&node->disk, 0, data, length);
		modify(node);
	}
	device_unlock();
	return node ? 0 : -1;
}

/* Put a file into a directory by a name that no path has, such as one with a slash */
EXPORTED int device_put_name(const char *path, const char *name)
{
	struct node *folder;

	device_lock();
	folder = walk(path, 0, 0);
	if (folder)
		add_entry(folder, name, new_node(FILE_TYPE, 0644));
	device_unlock();
	return folder ? 0 : -1;
}

/* Set the times of a file, in nanoseconds */
EXPORTED int device_set_time(const char *path, uint64_t ns)
{
	struct node *node;

	device_lock();
	node = walk(path, 0, 0);
	if (node)
		node->modified = ns;
	device_unlock();
	return node ? 0 : -1;
}

/* The bytes of a file, or of what a restart would leave of it; returns their number, -1 if there is no file */
EXPORTED int64_t device_get_file(const char *path, bool disk, void *to, uint64_t room)
{
	const struct bytes *bytes;
	struct node *node;
	int64_t size = -1;

	device_lock();
	node = walk(path, 0, 0);
	if (node) {
		bytes = disk ? &node->disk : &node->data;
		size = bytes->size;
		if (size && room)
			memcpy(to, bytes->at, bytes->size < room ? bytes->size : room);
	}
	device_unlock();
	return size;
}

/* The names in a directory, a line each; -1 if there is no room */
EXPORTED int device_names(const char *path, char *text, size_t size)
{
	const struct entry *entry;
	struct node *node;
	size_t used = 0;

	device_lock();
	node = walk(path, 0, 0);
	*text = '\0';
	for (entry = node ? node->entries : NULL; entry; entry = entry->next)
		if (used < size)
			used += snprintf(text + used, size - used, "%s\n", entry->name);
	device_unlock();
	return used < size ? 0 : -1;
}

void server_reset(void)
{
	struct node *node;
	size_t i;

	while ((node = nodes)) {
		nodes = node->next;
		free_node(node);
	}
	root = new_node(FOLDER_TYPE, 0755);
	memset(failures, 0, sizeof(failures));
	for (i = 0; i < 128; i++) {
		free(cache[i].results);
		cache[i] = (struct kept){};
	}
}
