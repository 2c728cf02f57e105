// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* Open files: as long as their users, which are the caller and unfinished operations. */
#include <stdlib.h>

#include "library.h"

/* A file with one user; NULL: no memory */
struct nfsrdma_file *file_make(struct nfsrdma_session *session, const struct nfs_fh *fh, int flags)
{
	struct nfsrdma_file *file = calloc(1, sizeof(*file));

	if (!file)
		return NULL;
	*file = (struct nfsrdma_file){
		.session = session, .fh = *fh, .flags = flags, .users = 1, .seen = session->losses,
		.inode = inode_get(session, fh),
	};
	if (file->inode)
		return file;
	free(file);
	return NULL;
}

/* The last user frees the file: the caller, or an operation that completes after nfsrdma_close() */
void file_put(struct nfsrdma_file *file)
{
	if (--file->users)
		return;
	if (file->cached)
		cache_close(file->session, file);
	if (file->opened)
		file->session->dialect->closed(file->session, file->inode);
	inode_put(file->session, file->inode);
	free(file);
}
