// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The files of the server, in memory: those of all versions of NFS. */
#include <stdio.h>
#include <time.h>

#include "server.h"

struct node *file_root;
static struct node *nodes;
static uint64_t next_number = 2;

void bytes_resize(struct bytes *bytes, uint64_t size)
{
	bytes->at = must(realloc(bytes->at, size + 1));
	if (size > bytes->size)
		memset(bytes->at + bytes->size, 0, size - bytes->size);
	bytes->size = size;
}

void bytes_store(struct bytes *bytes, uint64_t offset, const void *data, uint64_t length)
{
	if (offset + length > bytes->size)
		bytes_resize(bytes, offset + length);
	if (length)
		memcpy(bytes->at + offset, data, length);
}

void bytes_copy(struct bytes *to, const struct bytes *from)
{
	bytes_resize(to, from->size);
	if (from->size)
		memcpy(to->at, from->at, from->size);
}

void node_modify(struct node *node)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	/* times of two changes differ */
	node->modified = now.tv_sec * 1000000000ULL + now.tv_nsec;
	node->change++;
}

struct node *node_new(uint32_t type, uint32_t mode)
{
	struct node *node = must(calloc(1, sizeof(*node)));

	*node = (struct node){ .next = nodes, .number = next_number++, .type = type, .mode = mode, .links = 1 };
	node_modify(node);
	nodes = node;
	return node;
}

struct node *node_of(uint64_t number)
{
	struct node *node;

	for (node = nodes; node && node->number != number; node = node->next)
		;
	return node;
}

struct entry *node_entry(struct node *folder, const char *name)
{
	struct entry *each;

	for (each = folder->entries; each; each = each->next)
		if (!strcmp(each->name, name))
			return each;
	return NULL;
}

void node_add(struct node *folder, const char *name, struct node *node)
{
	struct entry *new = must(calloc(1, sizeof(*new))), **at = &folder->entries;

	snprintf(new->name, sizeof(new->name), "%s", name);
	new->node = node;
	new->cookie = ++folder->cookie;
	while (*at)
		at = &(*at)->next;
	*at = new;
	node_modify(folder);
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

/* Free a file that has no name and that nobody has open */
void node_drop(struct node *node)
{
	struct node **at;

	if (node->links || node->opens)
		return;
	for (at = &nodes; *at != node; at = &(*at)->next)
		;
	*at = node->next;
	free_node(node);
}

void node_remove(struct node *folder, const char *name)
{
	struct entry **at = &folder->entries, *entry;

	while (strcmp((*at)->name, name))
		at = &(*at)->next;
	entry = *at;
	*at = entry->next;
	node_modify(folder);
	if (entry->node->links == 1 && !settings.preserve)
		state_unlinked(entry->node);
	entry->node->links--;
	node_drop(entry->node);
	free(entry);
}

/* The node of an absolute path, or NULL; @make: the folders above, and the last component by its type */
struct node *node_walk(const char *path, uint32_t make, uint32_t mode)
{
	struct node *at = file_root;
	char name[NAME_ROOM];

	while (*(path += strspn(path, "/"))) {
		size_t length = strcspn(path, "/");
		struct entry *entry;

		if (at->type != FOLDER_TYPE || length >= sizeof(name))
			return NULL;
		memcpy(name, path, length);
		name[length] = '\0';
		path += length;
		entry = node_entry(at, name);
		if (!entry && make) {
			bool last = !path[strspn(path, "/")];

			node_add(at, name, node_new(last ? make : FOLDER_TYPE, last ? mode : 0755));
			entry = node_entry(at, name);
		}
		if (!entry)
			return NULL;
		at = entry->node;
	}
	return at;
}

void put_fh(struct out *out, const struct node *node)
{
	uint8_t fh[FH_BYTES];

	memset(fh, 0x5c, sizeof(fh));
	memcpy(fh, &node->number, sizeof(node->number));
	put_opaque(out, fh, sizeof(fh));
}

/* The node of a handle, NULL if it is gone */
struct node *get_fh(struct in *in)
{
	const uint8_t *fh;
	uint64_t number;

	if (get(in) != FH_BYTES || !(fh = get_bytes(in, FH_BYTES))) {
		in->bad = true;
		return NULL;
	}
	memcpy(&number, fh, sizeof(number));
	return node_of(number);
}

/* All data that no COMMIT wrote to the disk is lost */
void files_restart(void)
{
	struct node *node;

	for (node = nodes; node; node = node->next)
		if (node->type == FILE_TYPE)
			bytes_copy(&node->data, &node->disk);
}

void files_reset(void)
{
	struct node *node;

	while ((node = nodes)) {
		nodes = node->next;
		free_node(node);
	}
	file_root = node_new(FOLDER_TYPE, 0755);
}

/* --- for tests --- */

/* Make a file (1), a directory (2) or a symbolic link (5), and the directories above it */
EXPORTED int device_put(const char *path, uint32_t type, uint32_t mode, const void *data, uint64_t length)
{
	struct node *node;

	device_lock();
	node = node_walk(path, type, mode);
	if (node)
		node->mode = mode;
	if (node && type != FOLDER_TYPE) {
		bytes_resize(&node->data, 0);
		bytes_store(&node->data, 0, data, length);
		bytes_resize(&node->disk, 0);
		bytes_store(&node->disk, 0, data, length);
		node_modify(node);
	}
	device_unlock();
	return node ? 0 : -1;
}

/* Put a file into a directory by a name that no path has, such as one with a slash */
EXPORTED int device_put_name(const char *path, const char *name)
{
	struct node *folder;

	device_lock();
	folder = node_walk(path, 0, 0);
	if (folder)
		node_add(folder, name, node_new(FILE_TYPE, 0644));
	device_unlock();
	return folder ? 0 : -1;
}

/* Set the times of a file, in nanoseconds */
EXPORTED int device_set_time(const char *path, uint64_t ns)
{
	struct node *node;

	device_lock();
	node = node_walk(path, 0, 0);
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
	node = node_walk(path, 0, 0);
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
	node = node_walk(path, 0, 0);
	*text = '\0';
	for (entry = node ? node->entries : NULL; entry; entry = entry->next)
		if (used < size)
			used += snprintf(text + used, size - used, "%s\n", entry->name);
	device_unlock();
	return used < size ? 0 : -1;
}
