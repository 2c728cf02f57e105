// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* Names and attributes: the calls that need no open file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

/* Set the size of a file */
int names_resize(struct nfsrdma_session *session, const char *path, const struct nfs_fh *fh, uint64_t size)
{
	set3 attr = {.size = {TRUE, {size}}};
	int rc = session->dialect->setattr(session, path, fh, &attr);

	/* the server has ended the references to a file whose size it changed; its notice may be on its way */
	if (session->optimist)
		references_drop_file(&session->optimist->references, fh);
	cache_resized(session, fh);
	return rc;
}

/* umask(2) could read it only by a change, which other threads would see */
mode_t names_without_umask(mode_t mode)
{
	FILE *file = fopen("/proc/self/status", "re");
	unsigned int mask = 077;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Umask: %o", &mask) == 1)
			break;
	if (file)
		fclose(file);
	return mode & ~mask;
}

static int stat_path(struct nfsrdma_session *session, const char *path, struct stat *st, bool follow_last)
{
	struct path_walk walk;
	int rc = path_walk(&walk, session, path, NULL, follow_last ? PATH_FOLLOW : 0);

	if (!rc)
		nfs_stat(&walk.attr, st);
	path_walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_stat(struct nfsrdma_session *session, const char *path, struct stat *st)
{
	return stat_path(session, path, st, true);
}

EXPORTED int nfsrdma_lstat(struct nfsrdma_session *session, const char *path, struct stat *st)
{
	return stat_path(session, path, st, false);
}

EXPORTED ssize_t nfsrdma_readlink(struct nfsrdma_session *session, const char *path, char *buf, size_t size)
{
	char *text = NULL;
	struct path_walk walk;
	ssize_t rc = path_walk(&walk, session, path, NULL, 0);

	if (!rc && walk.attr.type != TYPE_LINK)
		rc = fail(-EINVAL, "%s: not a symbolic link", path);
	if (!rc)
		rc = path_readlink(session, path, &walk.here, &text);
	path_walk_end(&walk);
	if (!rc) {
		rc = strlen(text);
		if ((size_t)rc >= size)
			rc = fail(-ERANGE, "%s: a text of %zd bytes", path, rc);
		else
			memcpy(buf, text, rc + 1);
	}
	free(text);
	return rc;
}

static int remove_path(struct nfsrdma_session *session, const char *path, bool directory)
{
	struct path_walk walk;
	char *name;
	int rc = path_walk(&walk, session, path, &name, 0);

	if (!rc)
		rc = session->dialect->remove(session, path, &walk.here, name, directory);
	free(name);
	path_walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_unlink(struct nfsrdma_session *session, const char *path)
{
	return remove_path(session, path, false);
}

EXPORTED int nfsrdma_rmdir(struct nfsrdma_session *session, const char *path)
{
	return remove_path(session, path, true);
}

EXPORTED int nfsrdma_mkdir(struct nfsrdma_session *session, const char *path, mode_t mode)
{
	struct path_walk walk;
	char *name;
	int rc = path_walk(&walk, session, path, &name, 0);

	if (!rc)
		rc = session->dialect->mkdir(session, path, &walk.here, name, names_without_umask(mode));
	free(name);
	path_walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_symlink(struct nfsrdma_session *session, const char *text, const char *path)
{
	struct path_walk walk;
	char *name;
	int rc = path_walk(&walk, session, path, &name, 0);

	if (!rc)
		rc = session->dialect->symlink(session, path, &walk.here, name, text);
	free(name);
	path_walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_rename(struct nfsrdma_session *session, const char *from, const char *to)
{
	char *old = NULL, *new = NULL;
	struct path_walk source, target = {};
	int rc = path_walk(&source, session, from, &old, 0);

	if (!rc)
		rc = path_walk(&target, session, to, &new, 0);
	if (!rc)
		rc = session->dialect->rename(session, from, &source.here, old, &target.here, new);
	free(old);
	free(new);
	path_walk_end(&source);
	path_walk_end(&target);
	return rc;
}

EXPORTED int nfsrdma_truncate(struct nfsrdma_session *session, const char *path, uint64_t size)
{
	struct path_walk walk;
	int rc = path_walk(&walk, session, path, NULL, PATH_FOLLOW);

	if (!rc)
		rc = names_resize(session, path, &walk.here, size);
	path_walk_end(&walk);
	return rc;
}
