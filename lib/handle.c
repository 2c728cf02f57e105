// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* File handles of a store of blocks, by path.  A full table drops the one whose last use was first. */
#include <stdlib.h>
#include <string.h>

#include "block.h"

static uint64_t hash_path(const struct block_handles *handles, const char *path, uint32_t length)
{
	uint64_t hash = handles->seed ^ length, word;
	unsigned __int128 product;
	uint32_t at;

	for (at = 0; at < length; at += sizeof(word)) {
		word = 0;
		memcpy(&word, path + at, length - at < sizeof(word) ? length - at : sizeof(word));
		product = (unsigned __int128)(hash ^ word) * (handles->seed | 1);
		hash = (uint64_t)product ^ (uint64_t)(product >> 64);
	}
	return hash;
}

static struct block_entry **entry_place(struct block_handles *handles, uint64_t hash, const char *path,
					uint32_t length)
{
	struct block_entry **at = &handles->buckets[hash & handles->mask];

	while (*at && ((*at)->hash != hash || (*at)->length != length || memcmp((*at)->path, path, length)))
		at = &(*at)->next;
	return at;
}

struct block_entry *handle_find(struct block_handles *handles, const char *path, uint32_t length)
{
	struct block_entry *entry = *entry_place(handles, hash_path(handles, path, length), path, length);

	if (entry && entry != TAILQ_FIRST(&handles->uses)) {
		TAILQ_REMOVE(&handles->uses, entry, uses);
		TAILQ_INSERT_HEAD(&handles->uses, entry, uses);
	}
	return entry;
}

static void entry_drop(struct block_handles *handles, struct block_entry **at)
{
	struct block_entry *entry = *at;

	*at = entry->next;
	TAILQ_REMOVE(&handles->uses, entry, uses);
	handles->count--;
	free(entry->path);
	free(entry);
}

void handle_forget(struct block_handles *handles, const char *path, uint32_t length)
{
	struct block_entry **at = entry_place(handles, hash_path(handles, path, length), path, length);

	if (*at)
		entry_drop(handles, at);
}

/* Note a file handle; without memory, the store looks it up again */
void handle_note(struct block_handles *handles, const char *path, uint32_t length, const struct nfs_fh *fh,
		 bool directory, uint64_t size)
{
	struct block_entry *entry = handle_find(handles, path, length);
	uint64_t hash = hash_path(handles, path, length);

	if (!entry && handles->count == handles->most) {
		struct block_entry *last = TAILQ_LAST(&handles->uses, block_entries);

		entry_drop(handles, entry_place(handles, last->hash, last->path, last->length));
	}
	if (!entry) {
		entry = calloc(1, sizeof(*entry));
		if (!entry)
			return;
		entry->path = malloc(length + 1);
		if (!entry->path) {
			free(entry);
			return;
		}
		memcpy(entry->path, path, length);
		entry->path[length] = '\0';
		entry->length = length;
		entry->hash = hash;
		entry->next = handles->buckets[hash & handles->mask];
		handles->buckets[hash & handles->mask] = entry;
		TAILQ_INSERT_HEAD(&handles->uses, entry, uses);
		handles->count++;
	}
	entry->fh = *fh;
	entry->directory = directory;
	entry->size = size;
}

int handle_table_allocate(struct block_handles *handles, uint32_t most)
{
	uint64_t size = 16;

	while (size < most)
		size *= 2;
	TAILQ_INIT(&handles->uses);
	handles->most = most;
	handles->mask = size - 1;
	handles->buckets = calloc(size, sizeof(struct block_entry *));
	return handles->buckets ? 0 : fail_no_memory();
}

void handle_table_free(struct block_handles *handles)
{
	struct block_entry *entry;

	while (handles->buckets && (entry = TAILQ_FIRST(&handles->uses)))
		entry_drop(handles, entry_place(handles, entry->hash, entry->path, entry->length));
	free(handles->buckets);
}
