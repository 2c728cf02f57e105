// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Files of the server, by file handle: what all open files of one have in common.
 *
 * A file may be open more than once in a session.  What was written and is not on stable storage, and the data in the
 * cache, belong to the file of the server.  They stay when the last of its open files is closed: a later
 * nfsrdma_fsync() commits what an earlier open file has written.
 */
#include <stdlib.h>
#include <string.h>

#include "library.h"

#define HASHES_LEAST	64

static uint32_t hash_of(const struct nfs_fh *fh)
{
	const uint64_t factor = 0x9e3779b97f4a7c15ULL;
	uint64_t hash = fh->length, word;
	uint32_t at;

	for (at = 0; at < fh->length; at += sizeof(word)) {
		word = 0;
		memcpy(&word, fh->bytes + at, fh->length - at < sizeof(word) ? fh->length - at : sizeof(word));
		hash = (hash ^ word) * factor;
		hash ^= hash >> 32;
	}
	return hash;
}

static struct inode **inode_bucket(const struct inodes *inodes, const struct nfs_fh *fh)
{
	return &inodes->table[hash_of(fh) & (inodes->size - 1)];
}

/* Double the table; without memory it stays as it is */
static void inode_grow(struct inodes *inodes)
{
	struct inodes more = {.size = inodes->size ? 2 * inodes->size : HASHES_LEAST, .count = inodes->count};
	struct inode *inode, **bucket;
	uint32_t i;

	more.table = calloc(more.size, sizeof(struct inode *));
	if (!more.table)
		return;
	for (i = 0; i < inodes->size; i++) {
		while ((inode = inodes->table[i])) {
			inodes->table[i] = inode->next;
			bucket = inode_bucket(&more, &inode->fh);
			inode->next = *bucket;
			*bucket = inode;
		}
	}
	free(inodes->table);
	*inodes = more;
}

/* The inode of a file handle; NULL if there is none */
struct inode *inode_find(const struct nfsrdma_session *session, const struct nfs_fh *fh)
{
	struct inode *inode;

	if (!session->inodes.size)
		return NULL;
	inode = *inode_bucket(&session->inodes, fh);
	while (inode && (inode->fh.length != fh->length || memcmp(inode->fh.bytes, fh->bytes, fh->length)))
		inode = inode->next;
	return inode;
}

/* The same, or a new one, with one user more; NULL: no memory */
struct inode *inode_get(struct nfsrdma_session *session, const struct nfs_fh *fh)
{
	struct inodes *inodes = &session->inodes;
	struct inode *inode = inode_find(session, fh), **bucket;

	if (!inode) {
		if (inodes->count >= inodes->size)
			inode_grow(inodes);
		inode = inodes->size ? calloc(1, sizeof(*inode)) : NULL;
		if (!inode)
			return NULL;
		bucket = inode_bucket(inodes, fh);
		inode->fh = *fh;
		inode->next = *bucket;
		*bucket = inode;
		inodes->count++;
	}
	inode->users++;
	return inode;
}

/* Without a user, an inode stays as long as it has something to commit or to report */
void inode_put(struct nfsrdma_session *session, struct inode *inode)
{
	struct inode **at;

	if (--inode->users || inode->writes != inode->committed || inode->untold)
		return;
	at = inode_bucket(&session->inodes, &inode->fh);
	while (*at != inode)
		at = &(*at)->next;
	*at = inode->next;
	session->inodes.count--;
	free(inode);
}

void inodes_free(struct nfsrdma_session *session)
{
	struct inode *inode;
	uint32_t i;

	for (i = 0; i < session->inodes.size; i++) {
		while ((inode = session->inodes.table[i])) {
			session->inodes.table[i] = inode->next;
			free(inode->cached);
			free(inode->open);
			free(inode);
		}
	}
	free(session->inodes.table);
	session->inodes = (struct inodes){};
}
