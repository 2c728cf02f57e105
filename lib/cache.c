// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * A cache of data in this process, for those who request one.
 *
 * It has blocks of 4 KiB; the one that was used least recently makes room for another one.  It is consistent from
 * close to open: nfsrdma_open() compares the attributes that the server sends with those of the last time, and drops
 * the blocks of a file whose size, mtime or ctime is another one.  While a file is open, reads may return what the
 * file had at the time of nfsrdma_open(), or later.  A write of this session drops the blocks of the file.
 *
 * A read fills blocks only if no open, write or truncate of this session has changed the file's version since the read
 * began: its data may be older than that.
 *
 * References to the server's memory are not part of it: they outlive the data of a block (reference.c).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "library.h"

struct block {
	struct block *next;
	TAILQ_ENTRY(block) uses;
	struct cached_file *file;	/* NULL: unused */
	uint64_t index;
	uint32_t length;		/* of the data in bytes; less than a block only at the end of the file */
	bool eof;			/* the file ends with it */
};

struct cached_file {
	struct inode *inode;
	uint32_t users, nblocks;
	uint32_t version;
	bool known;			/* @attr is valid */
	attr3 attr;
};

/**
 * struct cache - the cache of a session
 * @data: memory of @nblocks blocks
 * @bytes: of @data
 * @blocks: their headers
 * @used: number of those that were ever used
 * @unused: those of them without data
 * @uses: blocks with data, the one used last first
 * @table: blocks by file and index, @mask + 1 elements
 */
struct cache {
	uint8_t *data;
	size_t bytes;
	struct block *blocks;
	uint32_t nblocks, used;
	struct block *unused;
	TAILQ_HEAD(block_uses, block) uses;
	struct block **table;
	uint32_t mask;
};

static uint8_t *data_of(const struct cache *cache, const struct block *block)
{
	return cache->data + (size_t)(block - cache->blocks) * CACHE_BLOCK;
}

static struct block **bucket_of_block(const struct cache *cache, const struct cached_file *file, uint64_t index)
{
	uint64_t hash = ((uintptr_t)file >> 4 ^ index) * 0x9e3779b97f4a7c15ULL;

	return &cache->table[(hash >> 32) & cache->mask];
}

static struct block *find_block(const struct cache *cache, const struct cached_file *file, uint64_t index)
{
	struct block *block = *bucket_of_block(cache, file, index);

	while (block && (block->file != file || block->index != index))
		block = block->next;
	return block;
}

static void free_if_unused(struct nfsrdma_session *session, struct cached_file *file)
{
	struct inode *inode = file->inode;

	if (file->users || file->nblocks)
		return;
	inode->cached = NULL;
	free(file);
	inode_put(session, inode);
}

/* Free a block, but not its file */
static void release_block(struct cache *cache, struct block *block)
{
	struct block **at = bucket_of_block(cache, block->file, block->index);

	while (*at != block)
		at = &(*at)->next;
	*at = block->next;
	TAILQ_REMOVE(&cache->uses, block, uses);
	block->file->nblocks--;
	block->file = NULL;
	block->next = cache->unused;
	cache->unused = block;
}

static struct block *take_block(struct nfsrdma_session *session)
{
	struct cache *cache = session->cache;
	struct cached_file *file;
	struct block *block;

	if (!cache->unused && cache->used < cache->nblocks)
		return &cache->blocks[cache->used++];
	if (!cache->unused) {
		block = TAILQ_LAST(&cache->uses, block_uses);
		file = block->file;
		release_block(cache, block);
		free_if_unused(session, file);
	}
	block = cache->unused;
	cache->unused = block->next;
	return block;
}

static void drop_all(struct cache *cache, struct cached_file *file)
{
	uint32_t i;

	file->version++;
	for (i = 0; i < cache->used && file->nblocks; i++)
		if (cache->blocks[i].file == file)
			release_block(cache, &cache->blocks[i]);
}

/* --- files --- */

static bool same_time(time3 a, time3 b)
{
	return a.sec == b.sec && a.nsec == b.nsec;
}

/**
 * cache_open - use the cache for an open file
 * @session: session with a cache
 * @file: file
 * @attr: attributes that the server has sent since nfsrdma_open() began
 *
 * Return: 0, or -ENOMEM.
 */
int cache_open(struct nfsrdma_session *session, struct nfsrdma_file *file, const attr3 *attr)
{
	struct cache *cache = session->cache;
	struct cached_file *cached = file->inode->cached;

	if (!cached) {
		cached = calloc(1, sizeof(*cached));
		/* without an entry, its writes would not drop what another open of it has read */
		if (!cached)
			return fail_no_memory();
		cached->inode = file->inode;
		file->inode->cached = cached;
		file->inode->users++;
	}
	if (!cached->known || cached->attr.size != attr->size || !same_time(cached->attr.mtime, attr->mtime) ||
	    !same_time(cached->attr.ctime, attr->ctime))
		drop_all(cache, cached);
	cached->known = true;
	cached->attr = *attr;
	cached->users++;
	file->cached = cached;
	return 0;
}

void cache_close(struct nfsrdma_session *session, struct nfsrdma_file *file)
{
	if (!file->cached)
		return;
	file->cached->users--;
	free_if_unused(session, file->cached);
}

/* A file of the server has another size */
void cache_resized(struct nfsrdma_session *session, const struct nfs_fh *fh)
{
	struct inode *inode = session->cache ? inode_find(session, fh) : NULL;

	if (inode && inode->cached)
		drop_all(session->cache, inode->cached);
}

/* A write begins or ends: its data is elsewhere than in blocks, and so may be the end of the file */
void cache_written(struct nfsrdma_session *session, struct nfsrdma_file *file)
{
	if (file->cached)
		drop_all(session->cache, file->cached);
}

uint32_t cache_version(const struct nfsrdma_file *file)
{
	return file->cached ? file->cached->version : 0;
}

/* --- data --- */

/* The block that has the byte at @position, or that says that the file ends before */
static struct block *block_at(const struct cache *cache, const struct cached_file *file, uint64_t position)
{
	struct block *block = find_block(cache, file, position / CACHE_BLOCK);

	return block && (position % CACHE_BLOCK < block->length || block->eof) ? block : NULL;
}

static bool has_all(const struct cache *cache, const struct cached_file *file, uint64_t position, size_t count)
{
	uint64_t end = position + count;
	struct block *block;

	while (position < end) {
		block = block_at(cache, file, position);
		if (!block)
			return false;
		if (block->eof)
			return true;
		position = (block->index + 1) * CACHE_BLOCK;
	}
	return true;
}

/**
 * cache_read - read from the cache
 * @file: file
 * @buf: buffer of @count bytes
 * @count: bytes
 * @offset: position
 * @eof: gets whether the file ends with them
 *
 * Return: bytes, fewer than @count at the end of the file; or -1 if the cache lacks some of them.
 */
ssize_t cache_read(const struct nfsrdma_file *file, uint8_t *buf, size_t count, uint64_t offset, bool *eof)
{
	struct cache *cache = file->session->cache;
	struct block *block;
	size_t done = 0;
	uint32_t at, n;

	if (!file->cached || !file->cached->nblocks || !count || offset + count < offset ||
	    !has_all(cache, file->cached, offset, count))
		return -1;
	*eof = false;
	while (done < count) {
		block = block_at(cache, file->cached, offset + done);
		at = (offset + done) % CACHE_BLOCK;
		if (at >= block->length) {
			*eof = true;
			break;
		}
		n = block->length - at;
		if (n > count - done)
			n = count - done;
		memory_copy(file->session, buf + done, data_of(cache, block) + at, n);
		done += n;
		if (block != TAILQ_FIRST(&cache->uses)) {
			TAILQ_REMOVE(&cache->uses, block, uses);
			TAILQ_INSERT_HEAD(&cache->uses, block, uses);
		}
		*eof = block->eof && at + n == block->length;
		if (block->eof)
			break;
	}
	file->session->stats.cached++;
	return done;
}

static void fill_block(struct nfsrdma_session *session, struct cached_file *file, uint64_t index,
		       const uint8_t *from, uint32_t length, bool eof)
{
	struct cache *cache = session->cache;
	struct block *block = find_block(cache, file, index), **at;

	if (!block) {
		block = take_block(session);
		at = bucket_of_block(cache, file, index);
		*block = (struct block){.next = *at, .file = file, .index = index};
		*at = block;
		file->nblocks++;
		TAILQ_INSERT_HEAD(&cache->uses, block, uses);
	}
	block->length = length;
	block->eof = eof;
	memory_copy(session, data_of(cache, block), from, length);
}

/* Keep the whole blocks of the data that a read has moved, and the last one of the file */
void cache_fill(struct nfsrdma_session *session, const struct io_operation *io)
{
	uint64_t at = (io->offset + CACHE_BLOCK - 1) / CACHE_BLOCK * CACHE_BLOCK, end = io->offset + io->moved;
	struct cached_file *file = io->file->cached;
	bool last;

	if (!file || io->direct || io->version != file->version || at < io->offset || end < io->offset ||
	    end > UINT64_MAX - CACHE_BLOCK)
		return;
	for (; at < end; at += CACHE_BLOCK) {
		last = end - at <= CACHE_BLOCK;
		if (end - at < CACHE_BLOCK && !io->eof)
			break;
		fill_block(session, file, at / CACHE_BLOCK, io->buf + (at - io->offset),
			   last ? end - at : CACHE_BLOCK, last && io->eof);
	}
}

/* --- life --- */

int cache_allocate(struct nfsrdma_session *session)
{
	struct cache *cache = calloc(1, sizeof(*cache));
	uint32_t size = 16;

	if (!cache)
		return fail_no_memory();
	session->cache = cache;
	TAILQ_INIT(&cache->uses);
	cache->nblocks = session->options.cache / CACHE_BLOCK;
	cache->bytes = (size_t)cache->nblocks * CACHE_BLOCK;
	while (size < cache->nblocks)
		size *= 2;
	cache->mask = size - 1;
	cache->data = mmap(NULL, cache->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (cache->data == MAP_FAILED)
		cache->data = NULL;
	cache->blocks = calloc(cache->nblocks, sizeof(*cache->blocks));
	cache->table = calloc(size, sizeof(struct block *));
	return cache->data && cache->blocks && cache->table ? 0 : fail_no_memory();
}

void cache_free(struct nfsrdma_session *session)
{
	struct cache *cache = session->cache;

	if (!cache)
		return;
	if (cache->data)
		munmap(cache->data, cache->bytes);
	free(cache->blocks);
	free(cache->table);
	free(cache);
	session->cache = NULL;
}
