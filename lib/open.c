// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* From a path to an open file. */
#include <fcntl.h>
#include <string.h>

#include "library.h"

/* Of nfsrdma_open(); the last ones have no meaning here */
#define OPEN_FLAGS \
	(O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW | O_DSYNC | O_SYNC | NFSRDMA_OPTIMISTIC | \
	 O_CLOEXEC | O_LARGEFILE | O_NOCTTY)

static int create_file(struct path_walk *walk, const char *name, int flags, mode_t mode)
{
	struct nfs_fh fh;
	int rc = walk->session->dialect->create(walk->session, walk->path, &walk->here, name, flags,
						names_without_umask(mode), &fh);

	if (!rc)
		walk->here = fh;
	walk->attr.type = TYPE_FILE;
	return rc;
}

/* @created: gets whether the call has made the file */
static int open_walk(struct path_walk *walk, struct nfsrdma_session *session, const char *path, int flags,
		     mode_t mode, bool *created)
{
	unsigned int how = (flags & O_NOFOLLOW ? 0 : PATH_FOLLOW) | (flags & O_CREAT ? PATH_CREATE : 0);
	char *name;
	int rc;

	*created = false;
	if ((flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL)) {
		rc = path_walk(walk, session, path, NULL, how);
		/* a symbolic link may have led to the name */
		if (rc == -ENOENT && flags & O_CREAT && walk->missing) {
			rc = create_file(walk, walk->missing, flags, mode);
			*created = true;
		}
		return rc;
	}
	rc = path_walk(walk, session, path, &name, PATH_CREATE);
	if (!rc)
		rc = create_file(walk, name, flags, mode);
	*created = true;
	free(name);
	return rc;
}

static int check_type(const struct path_walk *walk, int flags)
{
	switch (walk->attr.type) {
	case TYPE_FILE:
		return 0;
	case TYPE_DIRECTORY:
		return fail(-EISDIR, "%s: a directory", walk->path);
	case TYPE_LINK:
		return fail(flags & O_NOFOLLOW ? -ELOOP : -EINVAL, "%s: a symbolic link", walk->path);
	}
	return fail(-EOPNOTSUPP, "%s: not a regular file", walk->path);
}

/* The attributes of the walk are those before a change by this call */
static int use_cache(struct path_walk *walk, struct nfsrdma_file *file)
{
	struct nfsrdma_session *session = walk->session;
	int rc = 0;

	if (!session->cache)
		return 0;
	if (file->flags & (O_CREAT | O_TRUNC))
		rc = path_getattr(session, walk->path, &walk->here, &walk->attr);
	return rc ? rc : cache_open(session, file, &walk->attr);
}

/* An open file of what the walk has found */
static int open_found(struct path_walk *walk, int flags, bool truncates, struct nfsrdma_file **file)
{
	struct nfsrdma_session *session = walk->session;
	int rc = 0;

	*file = file_make(session, &walk->here, flags);
	if (!*file)
		return fail_no_memory();
	if (session->dialect->open)
		rc = session->dialect->open(*file, walk->path);
	if (!rc && truncates)
		rc = names_resize(session, walk->path, &walk->here, 0);
	if (!rc)
		rc = use_cache(walk, *file);
	if (rc)
		file_put(*file);
	return rc;
}

EXPORTED int nfsrdma_open(struct nfsrdma_session *session, const char *path, int flags, mode_t mode,
			  struct nfsrdma_file **file)
{
	struct nfsrdma_file *new;
	struct path_walk walk;
	bool created;
	int rc;

	if (flags & ~OPEN_FLAGS)
		return fail(-EINVAL, "%s: flags %#o: the library has no %#o", path, flags, flags & ~OPEN_FLAGS);
	if (flags & NFSRDMA_OPTIMISTIC && !session->optimist)
		return fail(-EINVAL, "%s: the session was opened without the option optimistic", path);
	rc = open_walk(&walk, session, path, flags, mode, &created);
	/* another client made it meanwhile */
	if (rc == -EEXIST && !(flags & O_EXCL)) {
		path_walk_end(&walk);
		rc = open_walk(&walk, session, path, flags & ~O_CREAT, mode, &created);
	}
	if (!rc)
		rc = check_type(&walk, flags);
	if (!rc)
		rc = open_found(&walk, flags, flags & O_TRUNC && !created, &new);
	path_walk_end(&walk);
	if (!rc)
		*file = new;
	return rc;
}

EXPORTED int nfsrdma_fstat(struct nfsrdma_file *file, struct stat *st)
{
	attr3 attr;
	int rc = process_check(file->session);

	if (!rc)
		rc = path_getattr(file->session, "", &file->fh, &attr);
	if (!rc)
		nfs_stat(&attr, st);
	return rc;
}

EXPORTED int nfsrdma_ftruncate(struct nfsrdma_file *file, uint64_t size)
{
	int rc = process_check(file->session);

	if (!rc && (file->flags & O_ACCMODE) == O_RDONLY)
		rc = fail(-EBADF, "the file is not open for writing");
	return rc ? rc : names_resize(file->session, "", &file->fh, size);
}
