// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The server: RPC-over-RDMA version 1 (RFC 8166), its use by NFS (RFC 8267), NFSv3 (RFC 1813) and MNT. */
#include <netdb.h>
#include <stdio.h>
#include <time.h>

#include <rpc/rpc.h>

#include "server.h"

enum { GETATTR = 1, SETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, CREATE, MKDIR, SYMLINK, REMOVE = 12, RMDIR, RENAME,
       READDIRPLUS = 17, FSINFO = 19, COMMIT = 21 };
enum { OK = 0, ERR_NOENT = 2, ERR_ACCES = 13, ERR_EXIST = 17, ERR_NOTDIR = 20, ERR_ISDIR = 21, ERR_INVAL = 22, ERR_FBIG = 27,
       ERR_NOTEMPTY = 66, ERR_STALE = 70, ERR_NOTSUPP = 10004 };

uint64_t server_verifier = 0x1122334455667788;

/* --- attributes --- */

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
		bytes_resize(&node->data, change->size);
		bytes_resize(&node->disk, change->size);
		node_modify(node);
	}
}

/* --- errors that a test asks for --- */

/* The operation of NFSv4.1 that does the same as a procedure: it gets the procedure's errors and holds, too */
static const uint8_t operation_of[] = {
	[SETATTR] = 34, [LOOKUP] = 15, [ACCESS] = 3, [READLINK] = 27, [READ] = 25, [WRITE] = 38, [CREATE] = 18,
	[MKDIR] = 6, [SYMLINK] = 6, [REMOVE] = 28, [RMDIR] = 28, [RENAME] = 29, [READDIRPLUS] = 26, [COMMIT] = 5,
};

static bool does(uint32_t wanted, uint32_t procedure)
{
	return wanted == procedure || (wanted < sizeof(operation_of) && operation_of[wanted] &&
				       procedure == (OPERATION | operation_of[wanted]));
}

static struct failure {
	uint32_t procedure, status;
	uint64_t offset, times;
} failures[16];

uint32_t server_failure(uint32_t procedure, uint64_t offset)
{
	size_t i;

	for (i = 0; i < sizeof(failures) / sizeof(*failures); i++) {
		struct failure *each = &failures[i];

		if (each->times && does(each->procedure, procedure) &&
		    (each->offset == UINT64_MAX || each->offset == offset)) {
			each->times--;
			return each->status;
		}
	}
	return OK;
}

/* --- procedures --- */

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

/* The entry that a call names, in a directory; NULL, and why there is none */
static struct entry *get_entry(struct call *call, struct node *folder, char *name, uint32_t *status)
{
	struct entry *entry = NULL;

	get_name(&call->in, name, NAME_ROOM);
	*status = !folder ? ERR_STALE : folder->type != FOLDER_TYPE ? ERR_NOTDIR : OK;
	if (!*status && !(entry = node_entry(folder, name)))
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
		put_data(call, node->data.at, node->data.size);
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
		status = server_failure(READ, offset);
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
	put_data(call, count ? node->data.at + offset : NULL, count);
}

static void write_(struct call *call)
{
	struct node *node = get_fh(&call->in);
	uint64_t offset = get64(&call->in);
	uint32_t count = get(&call->in), stable = get(&call->in), length = get(&call->in), status;
	const uint8_t *data = call_data(call, length);

	if (length != count)
		fault("a WRITE of %u bytes with %u", count, length);
	if (count > settings.write_max)
		fault("a WRITE of %u bytes: wtmax is %llu", count, (unsigned long long)settings.write_max);
	status = !node ? ERR_STALE : !data ? ERR_INVAL : server_failure(WRITE, offset);
	/* maxfilesize of FSINFO */
	if (!status && (offset > INT64_MAX || count > INT64_MAX - offset))
		status = ERR_FBIG;
	if (settings.shortened && count > 1)
		count /= 2;
	counters.writes++;
	if (!status) {
		bytes_store(&node->data, offset, data, count);
		if (stable != UNSTABLE)
			bytes_store(&node->disk, offset, data, count);
		node_modify(node);
	}
	put(call->out, status);
	put_wcc(call->out, node);
	if (status)
		return;
	put(call->out, count);
	put(call->out, stable == UNSTABLE ? UNSTABLE : FILE_SYNC);
	put64(call->out, server_verifier);
}

static void commit(struct call *call)
{
	struct node *node = get_fh(&call->in);
	uint32_t status = node ? server_failure(COMMIT, 0) : ERR_STALE;

	get64(&call->in);
	get(&call->in);
	counters.commits++;
	if (!status)
		bytes_copy(&node->disk, &node->data);
	put(call->out, status);
	put_wcc(call->out, node);
	if (!status)
		put64(call->out, server_verifier);
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
	entry = status ? NULL : node_entry(folder, name);
	if (entry) {
		made = entry->node;
		if (how == GUARDED || (exclusive && memcmp(made->create_verifier, exclusive, 8)))
			status = ERR_EXIST;
	} else if (!status) {
		made = node_new(FILE_TYPE, 0);
		node_add(folder, name, made);
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
	char name[NAME_ROOM];
	const uint8_t *text = NULL;
	struct change change;
	uint32_t status, length = 0;

	get_name(&call->in, name, sizeof(name));
	change = get_change(&call->in);
	if (call->procedure == SYMLINK) {
		length = get(&call->in);
		text = call_data(call, length);
	}
	status = !folder ? ERR_STALE : folder->type != FOLDER_TYPE ? ERR_NOTDIR : call->in.bad ? ERR_INVAL : OK;
	if (!status && node_entry(folder, name))
		status = ERR_EXIST;
	if (!status) {
		made = node_new(call->procedure == MKDIR ? FOLDER_TYPE : LINK_TYPE, 0);
		node_add(folder, name, made);
		apply(made, &change);
		if (call->procedure == SYMLINK)
			bytes_store(&made->data, 0, text, length);
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
		node_remove(folder, name);
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
	source = status ? NULL : node_entry(from, old);
	if (!status && !source)
		status = ERR_NOENT;
	target = status ? NULL : node_entry(to, new);
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
			node_remove(to, new);
		node_remove(from, old);
		node_add(to, new, node);
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

struct header {
	uint32_t xid, credits, type;
	struct chunk special;		/* position 0, RDMA_NOMSG */
	struct chunk writes[MOST_CHUNKS], reply;
	uint32_t nwrites;
	bool has_reply;
};

static bool get_segment(struct in *in, struct chunk *chunk)
{
	struct segment segment = { .key = get(in), .length = get(in) };

	segment.offset = get64(in);
	if (chunk->count == MOST_CHUNKS || segment.length > ROOM - chunk->length)
		return false;
	chunk->segments[chunk->count++] = segment;
	chunk->length += segment.length;
	return true;
}

/* A Write or a Reply chunk */
static bool get_chunk(struct in *in, struct chunk *chunk)
{
	uint32_t count = get(in);

	*chunk = (struct chunk){};
	while (!in->bad && count--)
		if (!get_segment(in, chunk))
			return false;
	return true;
}

/* Segments of the same position are one Read chunk */
static bool get_read_segment(struct in *in, struct call *call, struct header *header)
{
	uint32_t position = get(in);
	struct chunk *last = call->nreads ? &call->reads[call->nreads - 1] : NULL;

	if (!position)
		return !last && get_segment(in, &header->special);
	if (!last || last->position != position) {
		/* RFC 8166, section 3.4.5: in the order of the positions */
		if (call->nreads == MOST_CHUNKS || (last && last->position > position))
			return false;
		last = &call->reads[call->nreads++];
		*last = (struct chunk){ .position = position };
	}
	return get_segment(in, last);
}

static bool get_header(struct call *call, struct header *header)
{
	struct in *in = &call->in;

	*header = (struct header){ .xid = get(in) };
	if (get(in) != 1)
		return false;
	header->credits = get(in);
	header->type = get(in);
	if (header->type > 1)
		return false;
	while (get(in) == 1)
		if (!get_read_segment(in, call, header))
			return false;
	while (get(in) == 1)
		if (header->nwrites == MOST_CHUNKS || !get_chunk(in, &header->writes[header->nwrites++]))
			return false;
	header->has_reply = get(in) == 1;
	if (header->has_reply && !get_chunk(in, &header->reply))
		return false;
	return !in->bad && !!header->special.count == (header->type == 1);
}

/* A chunk of which the server used @length bytes, from its first segment on */
static void put_chunk(struct out *out, const struct chunk *chunk, uint32_t length)
{
	uint32_t i;

	put(out, chunk->count);
	for (i = 0; i < chunk->count; i++) {
		const struct segment *segment = &chunk->segments[i];
		uint32_t part = length < segment->length ? length : segment->length;

		put(out, segment->key);
		put(out, part);
		put64(out, segment->offset);
		length -= part;
	}
}

static bool read_chunk(struct connection *connection, const struct chunk *chunk, uint8_t *to)
{
	uint32_t i;

	for (i = 0; i < chunk->count; to += chunk->segments[i++].length)
		if (!device_rdma_read(connection, chunk->segments[i].key, chunk->segments[i].offset, to,
				      chunk->segments[i].length))
			return false;
	return true;
}

static bool write_chunk(struct connection *connection, const struct chunk *chunk, const uint8_t *from, uint32_t length)
{
	uint32_t i;

	for (i = 0; i < chunk->count && length; i++) {
		const struct segment *segment = &chunk->segments[i];
		uint32_t part = length < segment->length ? length : segment->length;

		if (!device_rdma_write(connection, segment->key, segment->offset, from, part))
			return false;
		from += part;
		length -= part;
	}
	return true;
}

const uint8_t *call_data(struct call *call, uint32_t length)
{
	const uint8_t *at = call->in.at;
	uint32_t i;

	for (i = 0; i < call->nreads; i++) {
		struct chunk *chunk = &call->reads[i];

		if (chunk->at != at)
			continue;
		chunk->claimed = true;
		/* RFC 8166, section 3.4.5: a Read chunk may leave the padding out */
		if (chunk->length < length || chunk->length > ((length + 3) & ~3U))
			fault("a Read chunk of %u bytes for data of %u", chunk->length, length);
	}
	return get_bytes(&call->in, length);
}

void put_data(struct call *call, const void *data, uint32_t length)
{
	put(call->out, length);
	if (call->nranges == sizeof(call->ranges) / sizeof(*call->ranges))
		abort();
	call->ranges[call->nranges++] = (struct range){ call->out->used, length };
	put_bytes(call->out, data, length);
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
	uint32_t version;
	uint64_t operations;
	uint8_t *message;
	size_t length;
} *held;

static bool is_held(uint32_t version, uint64_t operations)
{
	uint64_t wanted = settings.hold;
	uint32_t i;

	if (version == 4)
		for (i = 0, wanted = settings.hold4; i < sizeof(operation_of); i++)
			if (settings.hold >> i & 1 && operation_of[i])
				wanted |= 1ULL << operation_of[i];
	return wanted & operations;
}

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

static void send_reply(const struct call *call, const uint8_t *message, size_t length)
{
	struct held *new, **at = &held;

	if (!is_held(call->version, call->operations)) {
		device_reply(call->connection, message, length);
		return;
	}
	new = must(calloc(1, sizeof(*new)));
	*new = (struct held){ .connection = call->connection, .version = call->version,
			      .operations = call->operations, .message = must(malloc(length)), .length = length };
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
		if (is_held(each->version, each->operations)) {
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

	sessions_forget(connection);
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

/* RFC 5531: AUTH_SYS, whose user is the principal */
static bool get_credential(struct call *call)
{
	struct in *in = &call->in, body;
	uint32_t length, groups;

	if (get(in) != 1 || (length = get(in)) > 400)
		return false;
	body = (struct in){ in->at, length, false };
	if (!get_bytes(in, length))
		return false;
	get(&body);
	length = get(&body);
	get_bytes(&body, length);
	call->principal = get(&body);
	get(&body);
	for (groups = get(&body); groups && !body.bad; groups--)
		get(&body);
	if (body.bad || body.left)
		fault("a credential of AUTH_SYS that is malformed");
	return !get(in) && !get(in) && !in->bad;
}

static bool get_rpc(struct call *call)
{
	struct in *in = &call->in;
	uint32_t program;

	call->xid = get(in);
	if (get(in) || get(in) != 2)
		return false;
	program = get(in);
	call->version = get(in);
	if (program != 100003 || (call->version != 3 && call->version != 4))
		return false;
	call->procedure = get(in);
	return get_credential(call);
}

/* A status that a test asks for, of a procedure without data; false if it asks for none */
static bool fail_call(struct call *call)
{
	uint32_t procedure = call->procedure, status;

	if (procedure == READ || procedure == WRITE || procedure == COMMIT)
		return false;
	status = server_failure(procedure, 0);
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
	if (call->in.bad || call->in.left)
		fault("arguments of procedure %u that are too short, or longer than they are", call->procedure);
	if (is_kept(call->procedure))
		keep(call, start);
	return true;
}

/* Data of results that is in a Write chunk of its own; NULL: it is part of the message */
struct reduced {
	const struct chunk *chunk;
	const struct range *range;
};

/*
 * Leave out of the results what goes into Write chunks.  RFC 8166, section 3.4.6: data takes the next chunk that is
 * not used; an empty chunk has it in the message.
 */
static bool reduce(const struct call *call, const struct header *header, struct reduced *reduced, struct out *out)
{
	uint32_t i, used = 0;
	size_t from = 0;

	for (i = 0; i < call->nranges; i++) {
		const struct range *range = &call->ranges[i];
		const struct chunk *chunk;

		if (used == header->nwrites)
			break;
		chunk = &header->writes[used];
		reduced[used++] = (struct reduced){ chunk, chunk->length ? range : NULL };
		if (!chunk->length)
			continue;
		if (range->length > chunk->length) {
			fault("a Write chunk of %u bytes for %u", chunk->length, range->length);
			return false;
		}
		memcpy(out->at + out->used, call->out->at + from, range->at - from);
		out->used += range->at - from;
		from = range->at + ((range->length + 3) & ~3U);
	}
	memcpy(out->at + out->used, call->out->at + from, call->out->used - from);
	out->used += call->out->used - from;
	while (used < header->nwrites) {
		reduced[used] = (struct reduced){ &header->writes[used], NULL };
		used++;
	}
	return true;
}

static void put_head(struct out *out, const struct header *header)
{
	put(out, header->xid);
	put(out, 1);
	put(out, settings.credits);
}

static void put_chunk_error(const struct call *call, const struct header *header, struct out *out)
{
	out->used = 0;
	put_head(out, header);
	put(out, 4);
	put(out, 2);
	send_reply(call, out->at, out->used);
}

/* The transport header of a reply, and the reply: as a message, or in the Reply chunk */
static void answer(struct call *call, const struct header *header)
{
	static uint8_t message[ROOM], results[ROOM];
	struct reduced reduced[MOST_CHUNKS];
	struct out out = { message, 0 }, body = { results, 0 };
	const struct terms *terms = terms_of(call->connection);
	size_t head = 28 + (header->has_reply ? 4 + 16 * header->reply.count : 0);
	bool is_long;
	uint32_t i;

	for (i = 0; i < header->nwrites; i++)
		head += 8 + 16 * header->writes[i].count;
	if (!reduce(call, header, reduced, &body)) {
		put_chunk_error(call, header, &out);
		return;
	}
	is_long = head + body.used > terms->reply_max;
	if (is_long && header->reply.length < body.used) {
		fault("a reply of %zu bytes to procedure %u: the client has no room for it", body.used,
		      call->procedure);
		put_chunk_error(call, header, &out);
		return;
	}
	put_head(&out, header);
	put(&out, is_long);
	put(&out, 0);
	for (i = 0; i < header->nwrites; i++) {
		const struct range *range = reduced[i].range;

		if (range && !write_chunk(call->connection, reduced[i].chunk, call->out->at + range->at, range->length))
			return;
		put(&out, 1);
		put_chunk(&out, reduced[i].chunk, range ? range->length : 0);
	}
	put(&out, 0);
	if (is_long && !write_chunk(call->connection, &header->reply, body.at, body.used))
		return;
	put(&out, header->has_reply);
	if (header->has_reply)
		put_chunk(&out, &header->reply, is_long ? body.used : 0);
	if (!is_long) {
		memcpy(message + out.used, body.at, body.used);
		out.used += body.used;
	}
	send_reply(call, message, out.used);
}

/* The whole Call: what the message or the chunk at position 0 has, and each Read chunk in its place */
static bool gather(struct call *call, const struct header *header, uint8_t *whole)
{
	static uint8_t special[ROOM];
	struct in from = call->in;
	size_t used = 0;
	uint32_t i;

	if (header->special.count) {
		if (from.left)
			fault("bytes behind the header of RDMA_NOMSG");
		if (!read_chunk(call->connection, &header->special, special))
			return false;
		from = (struct in){ special, header->special.length, false };
	}
	for (i = 0; i < call->nreads; i++) {
		struct chunk *chunk = &call->reads[i];
		size_t before = chunk->position - used;

		if (chunk->position % 4 || chunk->position < used || before > from.left) {
			fault("a Read chunk at position %u of %zu bytes", chunk->position, used + from.left);
			before = from.left;
		}
		if (used + before + chunk->length + 3 > ROOM)
			return false;
		memcpy(whole + used, from.at, before);
		from.at += before;
		from.left -= before;
		used += before;
		chunk->at = whole + used;
		if (!read_chunk(call->connection, chunk, whole + used))
			return false;
		memset(whole + used + chunk->length, 0, 3);
		used += (chunk->length + 3) & ~3U;
	}
	if (used + from.left > ROOM)
		return false;
	memcpy(whole + used, from.at, from.left);
	call->size = used + from.left;
	call->in = (struct in){ whole, call->size, false };
	return true;
}

/* Check that each chunk has an item that RFC 8267 allows in one */
static void check_chunks(const struct call *call, const struct header *header)
{
	uint32_t i;

	if (!call->decoded)
		return;
	for (i = 0; i < call->nreads; i++)
		if (!call->reads[i].claimed)
			fault("a Read chunk at position %u for what is not data, procedure %u", call->reads[i].position,
			      call->procedure);
	if (header->nwrites && call->version == 3 && call->procedure != READ && call->procedure != READLINK)
		fault("a Write chunk for procedure %u", call->procedure);
	/* READ is operation 25 there, and READLINK 27 */
	if (header->nwrites && call->version == 4 && !(call->operations & (1ULL << 25 | 1ULL << 27)))
		fault("a Write chunk for a COMPOUND without READ and READLINK");
}

void server_call(struct connection *connection, const uint8_t *message, uint32_t length)
{
	static uint8_t whole[ROOM + 4], results[ROOM];
	struct out out = { results, 0 };
	struct call call = { .connection = connection, .in = { message, length, false }, .out = &out };
	const struct terms *terms = terms_of(connection);
	struct header header;
	uint32_t lowest = settings.nfs4 == 2 ? 4 : 3, highest = settings.nfs4 ? 4 : 3;

	if (length > terms->call_max)
		fault("a message of %u bytes: the server takes %u", length, terms->call_max);
	if (!get_header(&call, &header)) {
		fault("a malformed transport header");
		device_end_connection(connection);
		return;
	}
	if (!header.credits)
		fault("a Call that requests no credits");
	if (!gather(&call, &header, whole))
		return;
	if (!get_rpc(&call) || call.xid != header.xid) {
		fault("a malformed Call");
		device_end_connection(connection);
		return;
	}
	call.operations = 1ULL << (call.procedure & 63);
	call.decoded = call.version == 3;
	put(&out, call.xid);
	put(&out, 1);
	put(&out, 0);
	put64(&out, 0);
	if (call.version < lowest || call.version > highest) {
		/* PROG_MISMATCH, and the versions that there are */
		put(&out, 2);
		put(&out, lowest);
		put(&out, highest);
		answer(&call, &header);
		return;
	}
	put(&out, OK);
	if (call.version == 4 && call.procedure == 1) {
		compound(&call);
	} else if (call.version == 4 ? call.procedure : !run(&call)) {
		out.used -= 4;
		put(&out, 3);
	}
	check_chunks(&call, &header);
	answer(&call, &header);
}

/* --- MNT, in place of a mount daemon over TCP --- */

static uint8_t mount_results[1024];

static void mount(const char *path, struct out *out)
{
	struct node *node = node_walk(path, 0, 0);
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

static void forget_kept(void)
{
	size_t i;

	for (i = 0; i < 128; i++) {
		free(cache[i].results);
		cache[i] = (struct kept){};
	}
}

/* All data that no COMMIT wrote to the disk is lost */
EXPORTED void device_restart(void)
{
	device_lock();
	device_end_connections();
	server_verifier++;
	files_restart();
	forget_kept();
	sessions_restart();
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

void server_reset(void)
{
	sessions_reset();
	files_reset();
	memset(failures, 0, sizeof(failures));
	forget_kept();
}
