// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* From a path to an open file. */
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>

#include "library.h"

/* Of nfsrdma_open(); the last ones have no meaning here */
#define OPEN_FLAGS \
	(O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW | O_DSYNC | O_SYNC | NFSRDMA_OPTIMISTIC | \
	 O_CLOEXEC | O_LARGEFILE | O_NOCTTY)

/* Make the file @name; an exclusive one by a verifier, so that a repeated call makes it once */
static int create_file(struct path_walk *walk, char *name, int flags, mode_t mode)
{
	create3_args args = {{nfs_fh3(&walk->here), name}, {.mode = CREATE_GUARDED}};
	struct nfsrdma_session *session = walk->session;
	struct nfs_fh fh;
	set3 attr = names_mode(names_without_umask(mode));
	int rc;

	if (flags & O_EXCL) {
		args.how.mode = CREATE_EXCLUSIVE;
		if (getrandom(args.how.create3_how_u.verf, sizeof(verf3), 0) != sizeof(verf3))
			return fail(-EIO, "getrandom: %s", strerror(errno));
		/* the server keeps the verifier in the times */
		attr.atime = 1;
		attr.mtime = 1;
	} else {
		args.how.create3_how_u.attr = attr;
	}
	rc = names_make(session, walk->path, NFS_CREATE, (xdrproc_t)xdr_create3_args, &args, &fh);
	if (!rc && !fh.length)
		rc = path_lookup(session, walk->path, &walk->here, name, &fh, &walk->attr);
	if (!rc && flags & O_EXCL)
		rc = names_setattr(session, walk->path, &fh, attr);
	walk->here = fh;
	walk->attr.type = TYPE_FILE;
	return rc;
}

static int open_walk(struct path_walk *walk, struct nfsrdma_session *session, const char *path, int flags,
		     mode_t mode)
{
	char *name;
	int rc;

	if ((flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL)) {
		rc = path_walk(walk, session, path, NULL, !(flags & O_NOFOLLOW));
		if (!rc && flags & O_TRUNC && walk->attr.type == TYPE_FILE)
			rc = names_setattr(session, path, &walk->here, names_size(0));
		/* a symbolic link may have led to the name */
		if (rc == -ENOENT && flags & O_CREAT && walk->missing)
			rc = create_file(walk, walk->missing, flags, mode);
		return rc;
	}
	rc = path_walk(walk, session, path, &name, false);
	if (!rc)
		rc = create_file(walk, name, flags, mode);
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

EXPORTED int nfsrdma_open(struct nfsrdma_session *session, const char *path, int flags, mode_t mode,
			  struct nfsrdma_file **file)
{
	struct nfsrdma_file *new = NULL;
	struct path_walk walk;
	int rc;

	if (flags & ~OPEN_FLAGS)
		return fail(-EINVAL, "%s: flags %#o: the library has no %#o", path, flags, flags & ~OPEN_FLAGS);
	if (!session->dialect->writes && (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != O_RDONLY)
		return fail(-EROFS, "%s: a session with NFSv4.1 only reads", path);
	if (flags & NFSRDMA_OPTIMISTIC && !session->optimist)
		return fail(-EINVAL, "%s: the session was opened without the option optimistic", path);
	rc = open_walk(&walk, session, path, flags, mode);
	/* another client made it meanwhile */
	if (rc == -EEXIST && !(flags & O_EXCL)) {
		path_walk_end(&walk);
		rc = open_walk(&walk, session, path, flags & ~O_CREAT, mode);
	}
	if (!rc)
		rc = check_type(&walk, flags);
	if (!rc) {
		new = file_make(session, &walk.here, flags);
		rc = new ? use_cache(&walk, new) : fail_no_memory();
	}
	path_walk_end(&walk);
	if (!rc)
		*file = new;
	else if (new)
		file_put(new);
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
	return rc ? rc : names_setattr(file->session, "", &file->fh, names_size(size));
}
