// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* NFSv4.1: COMPOUND, and the operations on files (RFC 8881, sections 16 and 18). */
#include <stdio.h>
#include <string.h>

#include "server4.h"

#define BIT(number)		(1ULL << (number))
#define ATTRIBUTES		76	/* numbers of attributes below that */
#define EXCLUSIVE_SETTABLE	75	/* suppattr_exclcreat */
#define NAME_MOST		255
#define ACCESS_BITS		0x3f
#define COOKIE_VERIFIER		0x0102030405060708
#define RESERVED_COOKIES	2	/* and 0 */
#define NOT_IDEMPOTENT	\
	(BIT(OP_CREATE) | BIT(OP_REMOVE) | BIT(OP_RENAME) | BIT(OP_SETATTR) | BIT(OP_OPEN))

void set_current(struct compound *c, struct node *node)
{
	c->current = node;
	c->current_number = node->number;
	c->has_id = false;
}

/* NULL behind an operation that removed the file */
static uint32_t check_current(struct compound *c)
{
	if (!c->current)
		return NFS4ERR_NOFILEHANDLE;
	return node_of(c->current_number) ? NFS4_OK : NFS4ERR_STALE;
}

uint32_t need_folder(const struct compound *c)
{
	return c->current->type == FOLDER_TYPE ? NFS4_OK : NFS4ERR_NOTDIR;
}

uint32_t get_component(struct compound *c, char *name)
{
	uint32_t length = get(c->in);
	const uint8_t *bytes = get_bytes(c->in, length);

	*name = '\0';
	if (!bytes)
		return NFS4ERR_BADXDR;
	if (!length || memchr(bytes, 0, length))
		return NFS4ERR_INVAL;
	if (length > NAME_MOST)
		return NFS4ERR_NAMETOOLONG;
	memcpy(name, bytes, length);
	name[length] = '\0';
	return !strcmp(name, ".") || !strcmp(name, "..") || strchr(name, '/') ? NFS4ERR_BADNAME : NFS4_OK;
}

void put_change_info(struct out *out, uint64_t before, const struct node *folder)
{
	put(out, 1);
	put64(out, before);
	put64(out, folder->change);
}

/* --- attributes (RFC 8881, section 5) --- */

struct bitmap {
	uint64_t low;
	uint32_t high;
};

static struct bitmap get_bitmap(struct in *in)
{
	struct bitmap map = {};
	uint32_t words = get(in), i;

	for (i = 0; i < words && !in->bad; i++) {
		uint32_t word = get(in);

		if (i < 2)
			map.low |= (uint64_t)word << (32 * i);
		else if (i == 2)
			map.high = word;
		if ((i > 2 && word) || (i == 2 && word >> (ATTRIBUTES - 64)))
			fault("a bitmap with unknown bits in word %u: %x", i, word);
	}
	return map;
}

static void put_map(struct out *out, const struct bitmap *map)
{
	uint32_t words = map->high ? 3 : map->low >> 32 ? 2 : map->low ? 1 : 0;

	put(out, words);
	if (words > 0)
		put(out, map->low);
	if (words > 1)
		put(out, map->low >> 32);
	if (words > 2)
		put(out, map->high);
}

void put_bitmap(struct out *out, uint64_t mask)
{
	put_map(out, &(struct bitmap){ .low = mask });
}

static const struct bitmap supported = {
	.low = BIT(0) | BIT(1) | BIT(2) | BIT(3) | BIT(4) | BIT(5) | BIT(6) | BIT(7) | BIT(8) | BIT(9) | BIT(10) |
	       BIT(11) | BIT(19) | BIT(20) | BIT(27) | BIT(29) | BIT(30) | BIT(31) | BIT(33) | BIT(35) | BIT(36) |
	       BIT(37) | BIT(41) | BIT(45) | BIT(47) | BIT(48) | BIT(52) | BIT(53) | BIT(54) | BIT(55),
	.high = 1 << (EXCLUSIVE_SETTABLE - 64),
};

/* nfstime4 */
static void put_time4(struct out *out, uint64_t ns)
{
	put64(out, ns / 1000000000);
	put(out, ns % 1000000000);
}

static void put_attribute(struct out *out, const struct node *node, uint32_t number)
{
	switch (number) {
	case 0:
		put_map(out, &supported);
		break;
	case 1:
		put(out, node->type);
		break;
	case 2:		/* FH4_PERSISTENT */
	case 7:		/* named_attr */
	case 11:	/* rdattr_error */
		put(out, 0);
		break;
	case 3:
		put64(out, node->change);
		break;
	case 4:
	case 45:	/* space_used */
		put64(out, node->data.size);
		break;
	case 5:		/* link_support */
	case 6:		/* symlink_support */
	case 9:		/* unique_handles */
		put(out, 1);
		break;
	case 8:
		put64(out, 7);
		put64(out, 0);
		break;
	case 10:
		put(out, settings.lease_time);
		break;
	case 19:
		put_fh(out, node);
		break;
	case 20:
	case 55:	/* mounted_on_fileid */
		put64(out, node->number);
		break;
	case 27:
		put64(out, INT64_MAX);
		break;
	case 29:
		put(out, NAME_MOST);
		break;
	case 30:
		put64(out, settings.read_max);
		break;
	case 31:
		put64(out, settings.write_max);
		break;
	case 33:
		put(out, node->mode);
		break;
	case 35:
		put(out, node->links);
		break;
	case 36:
	case 37:
		put_opaque(out, "0", 1);
		break;
	case 41:
		put64(out, 0);
		break;
	case 47:
	case 52:
	case 53:
		put_time4(out, node->modified);
		break;
	case EXCLUSIVE_SETTABLE:
		put_bitmap(out, ATTR_SETTABLE & ~(settings.exclusive_times ? ATTR_ACCESS_SET | ATTR_MODIFY_SET : 0));
		break;
	default:
		abort();
	}
}

/* fattr4 */
static void put_attributes4(struct out *out, const struct node *node, struct bitmap wanted)
{
	size_t at;
	uint32_t i;

	wanted.low &= supported.low;
	wanted.high &= supported.high;
	put_map(out, &wanted);
	at = out->used;
	put(out, 0);
	for (i = 0; i < ATTRIBUTES; i++)
		if (i < 64 ? wanted.low >> i & 1 : wanted.high >> (i - 64) & 1)
			put_attribute(out, node, i);
	put_at(out, at, out->used - at - 4);
}

static bool is_owner(const struct opaque *owner)
{
	uint32_t i;

	for (i = 0; i < owner->length; i++)
		if (owner->bytes[i] < '0' || owner->bytes[i] > '9')
			return memchr(owner->bytes, '@', owner->length);
	return owner->length;
}

static uint32_t get_time_set(struct in *in, struct attributes *attributes, bool modified)
{
	uint32_t how = get(in), ns;
	uint64_t seconds;

	if (how > 1)
		return NFS4ERR_BADXDR;
	if (modified)
		attributes->server_time = !how;
	if (!how)
		return NFS4_OK;
	seconds = get64(in);
	ns = get(in);
	if (modified)
		attributes->modified = seconds * 1000000000 + ns;
	return ns < 1000000000 ? NFS4_OK : NFS4ERR_INVAL;
}

static uint32_t get_values(struct in *in, struct attributes *attributes)
{
	uint32_t status = NFS4_OK;
	struct opaque owner;

	if (attributes->mask & ATTR_SIZE)
		attributes->size = get64(in);
	if (attributes->mask & ATTR_MODE)
		attributes->mode = get(in);
	if (attributes->mode & ~07777U) {
		fault("a mode with unknown bits: %o", attributes->mode);
		status = NFS4ERR_INVAL;
	}
	if (attributes->mask & ATTR_OWNER) {
		get_opaque(in, &owner);
		status = is_owner(&owner) ? status : NFS4ERR_BADOWNER;
	}
	if (attributes->mask & ATTR_GROUP) {
		get_opaque(in, &owner);
		status = is_owner(&owner) ? status : NFS4ERR_BADOWNER;
	}
	if (!status && attributes->mask & ATTR_ACCESS_SET)
		status = get_time_set(in, attributes, false);
	if (!status && attributes->mask & ATTR_MODIFY_SET)
		status = get_time_set(in, attributes, true);
	if (!status && attributes->size > INT64_MAX)
		status = NFS4ERR_FBIG;
	return status;
}

/* fattr4 of attributes that are set */
uint32_t get_settable(struct compound *c, struct attributes *attributes)
{
	struct bitmap map = get_bitmap(c->in);
	uint32_t length = get(c->in), status;
	struct in values = { c->in->at, length, false };

	*attributes = (struct attributes){ .mask = map.low };
	if (!get_bytes(c->in, length))
		return NFS4ERR_BADXDR;
	if (map.high || map.low & ~ATTR_SETTABLE) {
		bool known = !(map.low & ~supported.low) && !(map.high & ~supported.high);

		if (known)
			fault("attributes that cannot be set: %llx", (unsigned long long)(map.low & ~ATTR_SETTABLE));
		return known ? NFS4ERR_INVAL : NFS4ERR_ATTRNOTSUPP;
	}
	status = get_values(&values, attributes);
	if (!status && (values.bad || values.left)) {
		fault("values of attributes with %u bytes that do not fit their bitmap", length);
		status = NFS4ERR_BADXDR;
	}
	return status;
}

void apply_attributes(struct node *node, const struct attributes *attributes)
{
	if (attributes->mask & ATTR_MODE)
		node->mode = attributes->mode;
	if (attributes->mask & ATTR_SIZE) {
		bytes_resize(&node->data, attributes->size);
		bytes_resize(&node->disk, attributes->size);
	}
	if (attributes->mask)
		node_modify(node);
	if (attributes->mask & ATTR_MODIFY_SET && !attributes->server_time)
		node->modified = attributes->modified;
}

static uint32_t op_getattr(struct compound *c)
{
	struct bitmap wanted = get_bitmap(c->in);

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	/* they can be set only */
	if (wanted.low & (ATTR_ACCESS_SET | ATTR_MODIFY_SET)) {
		fault("GETATTR of attributes that can be set only");
		return NFS4ERR_INVAL;
	}
	put_attributes4(c->out, c->current, wanted);
	return NFS4_OK;
}

/*
 * RFC 8881, sections 18.15 and 18.31: compare attributes of the current file.  Those that are the same have the same
 * bytes, which section 5 gives one form.
 */
static uint32_t compare_attributes(struct compound *c, bool *same)
{
	const uint8_t *values;
	struct bitmap map = get_bitmap(c->in);
	uint32_t length = get(c->in);
	size_t before = c->out->used, bytes;

	values = get_bytes(c->in, length);
	if (!values)
		return NFS4ERR_BADXDR;
	if (map.low & ~supported.low || map.high & ~supported.high)
		return NFS4ERR_ATTRNOTSUPP;
	/* rdattr_error, and attributes that can be set only */
	if (map.low & (BIT(11) | ATTR_ACCESS_SET | ATTR_MODIFY_SET)) {
		fault("VERIFY or NVERIFY of attributes %llx", (unsigned long long)map.low);
		return NFS4ERR_INVAL;
	}
	put_attributes4(c->out, c->current, map);
	/* the bitmap of the client may have words of zeros at its end */
	bytes = 4 + ((length + 3) & ~3U);
	*same = c->out->used - before >= bytes && !memcmp(c->out->at + c->out->used - bytes, values - 4, bytes);
	c->out->used = before;
	return NFS4_OK;
}

static uint32_t op_verify(struct compound *c)
{
	bool same = false;
	uint32_t status = compare_attributes(c, &same);

	return status || same ? status : NFS4ERR_NOT_SAME;
}

static uint32_t op_nverify(struct compound *c)
{
	bool same = false;
	uint32_t status = compare_attributes(c, &same);

	return !status && same ? NFS4ERR_SAME : status;
}

static uint32_t set_attributes(struct compound *c, const struct stateid *id, const struct attributes *attributes)
{
	uint32_t status;

	if (attributes->mask & ATTR_SIZE) {
		if (c->current->type != FILE_TYPE)
			return c->current->type == FOLDER_TYPE ? NFS4ERR_ISDIR : NFS4ERR_INVAL;
		if (settings.grace_io && in_grace())
			return NFS4ERR_GRACE;
		status = check_use(c, *id, USE_WRITE);
		if (status)
			return status;
	}
	apply_attributes(c->current, attributes);
	if (c->made == c->current)
		fault("SETATTR in the COMPOUND of an exclusive OPEN");
	c->current->unset &= ~attributes->mask;
	return NFS4_OK;
}

void check_set(const struct node *node)
{
	if (node->unset)
		fault("attributes %llx are not set behind an exclusive OPEN", (unsigned long long)node->unset);
}

/* Its results have the bitmap of the attributes with errors, too: see compound() */
static uint32_t op_setattr(struct compound *c)
{
	struct stateid id = get_stateid(c->in);
	struct attributes attributes;
	uint32_t status = get_settable(c, &attributes);

	if (c->in->bad)
		status = NFS4ERR_BADXDR;
	if (!status)
		status = set_attributes(c, &id, &attributes);
	put_bitmap(c->out, status ? 0 : attributes.mask);
	return status;
}

static uint32_t op_access(struct compound *c)
{
	uint32_t wanted = get(c->in);

	if (wanted & ~ACCESS_BITS)
		fault("ACCESS with unknown bits: %x", wanted);
	put(c->out, wanted & ACCESS_BITS);
	put(c->out, wanted & ACCESS_BITS);
	return NFS4_OK;
}

/* --- file handles and names --- */

static uint32_t op_putfh(struct compound *c)
{
	struct in before = *c->in;
	uint32_t length = get(&before);
	struct node *node;

	if (length != FH_BYTES) {
		get_bytes(&before, length);
		*c->in = before;
		return before.bad ? NFS4ERR_BADXDR : NFS4ERR_BADHANDLE;
	}
	node = get_fh(c->in);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (!node)
		return NFS4ERR_STALE;
	set_current(c, node);
	return NFS4_OK;
}

static uint32_t op_putrootfh(struct compound *c)
{
	set_current(c, file_root);
	return NFS4_OK;
}

static uint32_t op_getfh(struct compound *c)
{
	put_fh(c->out, c->current);
	c->wants_fh = 0;
	return NFS4_OK;
}

static uint32_t op_savefh(struct compound *c)
{
	c->saved = c->current;
	c->saved_number = c->current_number;
	c->saved_id = c->current_id;
	c->has_saved_id = c->has_id;
	return NFS4_OK;
}

static uint32_t op_restorefh(struct compound *c)
{
	if (!c->saved)
		return NFS4ERR_NOFILEHANDLE;
	c->current = c->saved;
	c->current_number = c->saved_number;
	c->current_id = c->saved_id;
	c->has_id = c->has_saved_id;
	return NFS4_OK;
}

static uint32_t op_lookup(struct compound *c)
{
	char name[NAME_ROOM];
	uint32_t status = get_component(c, name);
	struct entry *entry;

	if (c->current->type == LINK_TYPE)
		return NFS4ERR_SYMLINK;
	if (need_folder(c))
		return NFS4ERR_NOTDIR;
	if (status)
		return status;
	entry = node_entry(c->current, name);
	if (!entry)
		return NFS4ERR_NOENT;
	set_current(c, entry->node);
	return NFS4_OK;
}

static uint32_t op_readlink(struct compound *c)
{
	if (c->current->type != LINK_TYPE)
		return c->current->type == FOLDER_TYPE ? NFS4ERR_INVAL : NFS4ERR_WRONG_TYPE;
	put_data(c->call, c->current->data.at, c->current->data.size);
	return NFS4_OK;
}

static uint32_t op_create(struct compound *c)
{
	uint32_t type = get(c->in), status, name_status, length = 0;
	uint64_t before = c->current->change;
	struct attributes attributes;
	const uint8_t *text = NULL;
	char name[NAME_ROOM];
	struct node *made;

	if (type == LINK_TYPE) {
		length = get(c->in);
		text = call_data(c->call, length);
	} else if (type == 3 || type == 4) {
		get64(c->in);
	}
	name_status = get_component(c, name);
	status = get_settable(c, &attributes);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (type != FOLDER_TYPE && type != LINK_TYPE)
		return NFS4ERR_BADTYPE;
	if (need_folder(c))
		return NFS4ERR_NOTDIR;
	if (name_status)
		return name_status;
	if (status)
		return status;
	if (attributes.mask & ATTR_SIZE) {
		fault("CREATE sets the size");
		return NFS4ERR_INVAL;
	}
	if (node_entry(c->current, name))
		return NFS4ERR_EXIST;
	made = node_new(type, type == FOLDER_TYPE ? 0755 : 0777);
	node_add(c->current, name, made);
	bytes_store(&made->data, 0, text, length);
	apply_attributes(made, &attributes);
	put_change_info(c->out, before, c->current);
	put_bitmap(c->out, attributes.mask);
	set_current(c, made);
	c->wants_fh = OP_CREATE;
	return NFS4_OK;
}

static uint32_t op_remove(struct compound *c)
{
	uint64_t before = c->current->change;
	char name[NAME_ROOM];
	uint32_t status = get_component(c, name);
	struct entry *entry;

	if (need_folder(c))
		return NFS4ERR_NOTDIR;
	if (!status && settings.grace_io && in_grace())
		status = NFS4ERR_GRACE;
	if (status)
		return status;
	entry = node_entry(c->current, name);
	if (!entry)
		return NFS4ERR_NOENT;
	if (entry->node->entries)
		return NFS4ERR_NOTEMPTY;
	node_remove(c->current, name);
	put_change_info(c->out, before, c->current);
	return NFS4_OK;
}

static uint32_t check_rename(const struct node *source, const struct node *target)
{
	if (target && (target->type == FOLDER_TYPE) != (source->type == FOLDER_TYPE))
		return NFS4ERR_EXIST;
	if (target && target->entries && target != source)
		return NFS4ERR_NOTEMPTY;
	return settings.grace_io && in_grace() ? NFS4ERR_GRACE : NFS4_OK;
}

static uint32_t op_rename(struct compound *c)
{
	char old[NAME_ROOM], new[NAME_ROOM];
	uint32_t old_status = get_component(c, old), new_status = get_component(c, new), status;
	uint64_t from_before, to_before = c->current->change;
	struct entry *source, *target;
	struct node *from = c->saved, *node;

	if (!from)
		return NFS4ERR_NOFILEHANDLE;
	if (!node_of(c->saved_number))
		return NFS4ERR_STALE;
	if (from->type != FOLDER_TYPE || need_folder(c))
		return NFS4ERR_NOTDIR;
	if (old_status || new_status)
		return old_status ? old_status : new_status;
	from_before = from->change;
	source = node_entry(from, old);
	if (!source)
		return NFS4ERR_NOENT;
	target = node_entry(c->current, new);
	status = check_rename(source->node, target ? target->node : NULL);
	if (status)
		return status;
	node = source->node;
	if (!target || target->node != node) {
		node->links++;
		if (target)
			node_remove(c->current, new);
		node_remove(from, old);
		node_add(c->current, new, node);
	}
	put_change_info(c->out, from_before, from);
	put_change_info(c->out, to_before, c->current);
	return NFS4_OK;
}

/* --- directories --- */

static void put_entry(struct compound *c, const struct entry *entry, struct bitmap wanted)
{
	put(c->out, 1);
	put64(c->out, entry->cookie + RESERVED_COOKIES);
	put_opaque(c->out, entry->name, strlen(entry->name));
	if (!settings.entry_error) {
		put_attributes4(c->out, entry->node, wanted);
		return;
	}
	/* rdattr_error alone */
	put_bitmap(c->out, BIT(11));
	put(c->out, 4);
	put(c->out, settings.entry_error);
}

static uint32_t op_readdir(struct compound *c)
{
	uint64_t cookie = get64(c->in), verifier = get64(c->in);
	uint32_t names_most = get(c->in), most = get(c->in), names = 0;
	struct bitmap wanted = get_bitmap(c->in);
	size_t start = c->out->used, limit;
	const struct entry *entry;
	bool any = false;

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (need_folder(c))
		return NFS4ERR_NOTDIR;
	if (cookie == 1 || cookie == RESERVED_COOKIES || (cookie && verifier != COOKIE_VERIFIER)) {
		fault("READDIR with the cookie %llu and the verifier %llx", (unsigned long long)cookie,
		      (unsigned long long)verifier);
		return NFS4ERR_NOT_SAME;
	}
	if (settings.entry_error && !(wanted.low & BIT(11)))
		return settings.entry_error;
	limit = start + most;
	if (limit > c->session->response_max)
		limit = c->session->response_max;
	put64(c->out, COOKIE_VERIFIER);
	for (entry = c->current->entries; entry; entry = entry->next) {
		size_t before = c->out->used;

		if (entry->cookie + RESERVED_COOKIES <= cookie)
			continue;
		put_entry(c, entry, wanted);
		names += 12 + ((strlen(entry->name) + 3) & ~3U);
		/* the end of the list, and eof */
		if (c->out->used + 8 > limit || (any && names_most && names > names_most)) {
			c->out->used = before;
			break;
		}
		any = true;
	}
	put(c->out, 0);
	put(c->out, !entry);
	return entry && !any ? NFS4ERR_TOOSMALL : NFS4_OK;
}

/* --- data --- */

static uint32_t regular_file(const struct compound *c)
{
	uint32_t type = c->current->type;

	return type == FILE_TYPE ? NFS4_OK : type == LINK_TYPE ? NFS4ERR_SYMLINK : NFS4ERR_ISDIR;
}

static uint32_t op_read(struct compound *c)
{
	struct stateid id = get_stateid(c->in);
	uint64_t offset = get64(c->in), left;
	uint32_t count = get(c->in), status;
	const struct node *node = c->current;

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	counters.reads++;
	status = server_failure(OPERATION | OP_READ, offset);
	if (!status)
		status = regular_file(c);
	if (!status && settings.grace_io && in_grace())
		status = NFS4ERR_GRACE;
	if (!status)
		status = check_use(c, id, USE_READ);
	if (status)
		return status;
	left = offset < node->data.size ? node->data.size - offset : 0;
	if (count > settings.read_max)
		count = settings.read_max;
	if (count > left)
		count = left;
	if (settings.shortened && count > 1)
		count /= 2;
	if (c->out->used + 8 + count > c->session->response_max)
		return NFS4ERR_REP_TOO_BIG;
	put(c->out, offset + count >= node->data.size);
	put_data(c->call, count ? node->data.at + offset : NULL, count);
	return NFS4_OK;
}

static uint32_t check_write(struct compound *c, const struct stateid *id, uint64_t offset, uint32_t length)
{
	bool special = !id->seqid || id->seqid == UINT32_MAX;
	uint32_t status = server_failure(OPERATION | OP_WRITE, offset), i;

	for (i = 1; i < sizeof(id->other); i++)
		special = special && id->other[i] == id->other[0];
	/* RFC 8881, section 9.8: the client has to open the file */
	if (special && (id->other[0] == 0 || id->other[0] == 0xff))
		fault("WRITE with a special stateid: the file is not open");
	if (!status)
		status = regular_file(c);
	if (!status && settings.grace_io && in_grace())
		status = NFS4ERR_GRACE;
	if (!status) {
		status = check_use(c, *id, USE_WRITE);
		if (status == NFS4ERR_OPENMODE)
			fault("WRITE to a file that is open to read only");
	}
	/* maxfilesize */
	if (!status && (offset > INT64_MAX || length > INT64_MAX - offset))
		status = NFS4ERR_FBIG;
	return status;
}

static uint32_t op_write(struct compound *c)
{
	struct stateid id = get_stateid(c->in);
	uint64_t offset = get64(c->in);
	uint32_t stable = get(c->in), length = get(c->in), status;
	const uint8_t *data = call_data(c->call, length);

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	counters.writes++;
	if (stable > FILE_SYNC) {
		fault("WRITE with stable %u", stable);
		return NFS4ERR_BADXDR;
	}
	status = check_write(c, &id, offset, length);
	if (status)
		return status;
	if (length > settings.write_max)
		length = settings.write_max;
	if (settings.shortened && length > 1)
		length /= 2;
	check_set(c->current);
	bytes_store(&c->current->data, offset, data, length);
	if (stable != UNSTABLE)
		bytes_store(&c->current->disk, offset, data, length);
	if (length)
		node_modify(c->current);
	put(c->out, length);
	put(c->out, stable == UNSTABLE ? UNSTABLE : FILE_SYNC);
	put64(c->out, server_verifier);
	return NFS4_OK;
}

static uint32_t op_commit(struct compound *c)
{
	uint32_t status;

	get64(c->in);
	get(c->in);
	if (c->in->bad)
		return NFS4ERR_BADXDR;
	counters.commits++;
	status = regular_file(c);
	if (status)
		return status;
	bytes_copy(&c->current->disk, &c->current->data);
	put64(c->out, server_verifier);
	return NFS4_OK;
}

/* --- COMPOUND --- */

enum needs { NEEDS_NOTHING, NEEDS_FH };

static const struct operation {
	uint32_t (*run)(struct compound *c);
	enum needs needs;
} operations[] = {
	[OP_ACCESS] = { op_access, NEEDS_FH },
	[OP_CLOSE] = { op_close, NEEDS_FH },
	[OP_COMMIT] = { op_commit, NEEDS_FH },
	[OP_CREATE] = { op_create, NEEDS_FH },
	[OP_DELEGRETURN] = { op_delegreturn, NEEDS_FH },
	[OP_GETATTR] = { op_getattr, NEEDS_FH },
	[OP_GETFH] = { op_getfh, NEEDS_FH },
	[OP_LOOKUP] = { op_lookup, NEEDS_FH },
	[OP_NVERIFY] = { op_nverify, NEEDS_FH },
	[OP_OPEN] = { op_open, NEEDS_FH },
	[OP_OPEN_DOWNGRADE] = { op_open_downgrade, NEEDS_FH },
	[OP_PUTFH] = { op_putfh, NEEDS_NOTHING },
	[OP_PUTROOTFH] = { op_putrootfh, NEEDS_NOTHING },
	[OP_READ] = { op_read, NEEDS_FH },
	[OP_READDIR] = { op_readdir, NEEDS_FH },
	[OP_READLINK] = { op_readlink, NEEDS_FH },
	[OP_REMOVE] = { op_remove, NEEDS_FH },
	[OP_RENAME] = { op_rename, NEEDS_FH },
	[OP_RESTOREFH] = { op_restorefh, NEEDS_NOTHING },
	[OP_SAVEFH] = { op_savefh, NEEDS_FH },
	[OP_SETATTR] = { op_setattr, NEEDS_FH },
	[OP_VERIFY] = { op_verify, NEEDS_FH },
	[OP_WRITE] = { op_write, NEEDS_FH },
	[OP_BIND_CONN_TO_SESSION] = { op_bind_conn_to_session, NEEDS_NOTHING },
	[OP_EXCHANGE_ID] = { op_exchange_id, NEEDS_NOTHING },
	[OP_CREATE_SESSION] = { op_create_session, NEEDS_NOTHING },
	[OP_DESTROY_SESSION] = { op_destroy_session, NEEDS_NOTHING },
	[OP_FREE_STATEID] = { op_free_stateid, NEEDS_NOTHING },
	[OP_SEQUENCE] = { op_sequence, NEEDS_NOTHING },
	[OP_TEST_STATEID] = { op_test_stateid, NEEDS_NOTHING },
	[OP_DESTROY_CLIENTID] = { op_destroy_clientid, NEEDS_NOTHING },
	[OP_RECLAIM_COMPLETE] = { op_reclaim_complete, NEEDS_NOTHING },
};

/* They may come without SEQUENCE, and are alone then */
static bool is_alone(uint32_t op)
{
	return op == OP_EXCHANGE_ID || op == OP_CREATE_SESSION || op == OP_DESTROY_SESSION ||
	       op == OP_DESTROY_CLIENTID || op == OP_BIND_CONN_TO_SESSION;
}

/* Where an operation may be (RFC 8881, sections 18.34 to 18.37, 18.46, 18.50) */
static uint32_t check_position(const struct compound *c, uint32_t op)
{
	if (op == OP_SEQUENCE && c->index) {
		fault("SEQUENCE as operation %u", c->index);
		return NFS4ERR_SEQUENCE_POS;
	}
	if (is_alone(op) && c->count > 1 && (!c->index || op == OP_BIND_CONN_TO_SESSION)) {
		fault("operation %u is one of %u", op, c->count);
		return NFS4ERR_NOT_ONLY_OP;
	}
	if (!c->index && op != OP_SEQUENCE && !is_alone(op)) {
		fault("operation %u without SEQUENCE", op);
		return NFS4ERR_OP_NOT_IN_SESSION;
	}
	return NFS4_OK;
}

static bool changes_current(uint32_t op)
{
	return op == OP_PUTFH || op == OP_PUTROOTFH || op == OP_LOOKUP || op == OP_RESTOREFH || op == OP_OPEN ||
	       op == OP_CREATE;
}

static uint32_t run_operation(struct compound *c, uint32_t op)
{
	uint32_t status = check_position(c, op);

	if (!status && op != OP_READ && op != OP_WRITE)
		status = server_failure(OPERATION | op, 0);
	if (status)
		return status;
	if (op >= sizeof(operations) / sizeof(*operations) || !operations[op].run) {
		/* RFC 8881, section 17: those of NFSv4.0 that NFSv4.1 MUST NOT have */
		if (op == OP_OPEN_CONFIRM || op == OP_RENEW || op == OP_SETCLIENTID || op == OP_SETCLIENTID_CONFIRM ||
		    op == OP_RELEASE_LOCKOWNER)
			fault("operation %u, which NFSv4.1 does not have", op);
		return NFS4ERR_NOTSUPP;
	}
	if (operations[op].needs == NEEDS_FH) {
		status = check_current(c);
		if (status)
			return status;
	}
	/* RFC 8881, section 2.10.6.4 */
	if (c->wants_fh && changes_current(op)) {
		fault("no GETFH behind operation %u", c->wants_fh);
		c->wants_fh = 0;
	}
	if (NOT_IDEMPOTENT & BIT(op))
		c->changes = true;
	return operations[op].run(c);
}

/* The size of the reply, and of one that the client wants to be kept (RFC 8881, section 2.10.6.4) */
static uint32_t check_size(const struct compound *c)
{
	if (!c->session)
		return NFS4_OK;
	if (c->out->used > c->session->response_max)
		return NFS4ERR_REP_TOO_BIG;
	return c->cached && c->out->used > c->session->cached_max ? NFS4ERR_REP_TOO_BIG_TO_CACHE : NFS4_OK;
}

static uint32_t next_operation(struct compound *c)
{
	uint32_t op = get(c->in), status, nranges = c->call->nranges;
	size_t start = c->out->used;

	if (c->in->bad)
		return NFS4ERR_BADXDR;
	if (c->slot && c->index == 1)
		c->slot->second = op;
	if (op < OP_ACCESS || op > OP_RECLAIM_COMPLETE) {
		fault("operation %u", op);
		put(c->out, OP_ILLEGAL);
		put(c->out, NFS4ERR_OP_ILLEGAL);
		return NFS4ERR_OP_ILLEGAL;
	}
	c->call->operations |= BIT(op);
	put(c->out, op);
	put(c->out, 0);
	status = run_operation(c, op);
	if (status == REPLAYED)
		return status;
	if (!status)
		status = check_size(c);
	if (!status)
		return NFS4_OK;
	if (status == NFS4ERR_BADXDR)
		fault("arguments of operation %u that are malformed", op);
	/* all that follows the status of an error; attrsset of SETATTR follows both */
	c->out->used = start + 8;
	c->call->nranges = nranges;
	if (op == OP_SETATTR)
		put(c->out, 0);
	put_at(c->out, start + 4, status);
	return status;
}

static uint64_t digest_of(const struct in *in)
{
	uint64_t digest = 0xcbf29ce484222325;
	size_t i;

	for (i = 0; i < in->left; i++)
		digest = (digest ^ in->at[i]) * 0x100000001b3;
	return digest;
}

void compound(struct call *call)
{
	struct compound c = { .call = call, .in = &call->in, .out = call->out, .start = call->out->used };
	uint32_t minor, status = NFS4_OK;
	struct opaque tag;
	size_t count_at;

	call->operations = 0;
	c.digest = digest_of(c.in);
	counters.compounds++;
	get_opaque(c.in, &tag);
	minor = get(c.in);
	c.count = get(c.in);
	put(c.out, 0);
	put_opaque(c.out, tag.bytes, tag.length);
	count_at = c.out->used;
	put(c.out, 0);
	if (minor != 1)
		status = NFS4ERR_MINOR_VERS_MISMATCH;
	else if (c.in->bad)
		status = NFS4ERR_BADXDR;
	while (!status && c.index < c.count) {
		status = next_operation(&c);
		if (status == REPLAYED)
			return;
		c.index++;
	}
	call->decoded = !status;
	if (!status && c.in->left)
		fault("%zu bytes behind the operations of a COMPOUND", c.in->left);
	if (!status && c.wants_fh)
		fault("no GETFH behind operation %u", c.wants_fh);
	if (c.changes && !c.cached)
		counters.uncached_changes++;
	put_at(c.out, c.start, status);
	put_at(c.out, count_at, c.index);
	keep_reply(&c);
}
