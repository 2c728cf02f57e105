// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* Names and attributes: the calls that need no open file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

int names_setattr(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, set3 attr)
{
	setattr3_args args = {.fh = nfs_fh3(fh), .attr = attr};
	wcc3_res res = {};
	int rc = nfs3_call(session, NFS_SETATTR, path, (xdrproc_t)xdr_setattr3_args, &args,
			  (xdrproc_t)xdr_wcc3_res, &res, 0);

	xdr_free((xdrproc_t)xdr_wcc3_res, (char *)&res);
	/* the server has ended the references to a file whose size it changed; its notice may be on its way */
	if (session->optimist)
		references_drop_file(&session->optimist->references, fh);
	cache_resized(session, fh);
	return rc;
}

set3 names_mode(mode_t mode)
{
	return (set3){.mode = {TRUE, {mode & 07777}}};
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

set3 names_size(uint64_t size)
{
	return (set3){.size = {TRUE, {size}}};
}

static int stat_path(struct nfsrdma_session *session, const char *path, struct stat *st, bool follow_last)
{
	struct path_walk walk;
	int rc = path_walk(&walk, session, path, NULL, follow_last);

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
	ssize_t rc = path_walk(&walk, session, path, NULL, false);

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

/* Call @procedure for the last component of @path */
static int call_in_parent(struct nfsrdma_session *session, const char *path, enum nfs_procedure procedure)
{
	struct path_walk walk;
	wcc3_res res = {};
	char *name;
	int rc = path_walk(&walk, session, path, &name, false);

	if (!rc) {
		dirop3 args = {nfs_fh3(&walk.here), name};

		rc = nfs3_call(session, procedure, path, (xdrproc_t)xdr_dirop3, &args,
			      (xdrproc_t)xdr_wcc3_res, &res, 0);
		xdr_free((xdrproc_t)xdr_wcc3_res, (char *)&res);
	}
	free(name);
	path_walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_unlink(struct nfsrdma_session *session, const char *path)
{
	return call_in_parent(session, path, NFS_REMOVE);
}

EXPORTED int nfsrdma_rmdir(struct nfsrdma_session *session, const char *path)
{
	return call_in_parent(session, path, NFS_RMDIR);
}

/* CREATE, MKDIR and SYMLINK have results of one form */
int names_make(struct nfsrdma_session *session, const char *path, enum nfs_procedure procedure,
		xdrproc_t encode, const void *args, struct nfs_fh *fh)
{
	create3_res res = {};
	int rc = nfs3_call(session, procedure, path, encode, args, (xdrproc_t)xdr_create3_res, &res, 0);

	if (!rc && fh)
		*fh = res.create3_res_u.ok.fh.present ? nfs_fh_of(&res.create3_res_u.ok.fh.post_fh3_u.fh) :
							(struct nfs_fh){};
	xdr_free((xdrproc_t)xdr_create3_res, (char *)&res);
	return rc;
}

EXPORTED int nfsrdma_mkdir(struct nfsrdma_session *session, const char *path, mode_t mode)
{
	struct path_walk walk;
	char *name;
	int rc = path_walk(&walk, session, path, &name, false);

	if (!rc) {
		mkdir3_args args = {{nfs_fh3(&walk.here), name}, names_mode(names_without_umask(mode))};

		rc = names_make(session, path, NFS_MKDIR, (xdrproc_t)xdr_mkdir3_args, &args, NULL);
	}
	free(name);
	path_walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_symlink(struct nfsrdma_session *session, const char *text, const char *path)
{
	struct path_walk walk;
	char *name;
	int rc = path_walk(&walk, session, path, &name, false);

	if (!rc) {
		symlink3_args args = {{nfs_fh3(&walk.here), name}, names_mode(0777), (char *)text};

		rc = names_make(session, path, NFS_SYMLINK, (xdrproc_t)xdr_symlink3_args, &args, NULL);
	}
	free(name);
	path_walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_rename(struct nfsrdma_session *session, const char *from, const char *to)
{
	char *old = NULL, *new = NULL;
	struct path_walk source, target = {};
	rename3_res res = {};
	int rc = path_walk(&source, session, from, &old, false);

	if (!rc)
		rc = path_walk(&target, session, to, &new, false);
	if (!rc) {
		rename3_args args = {{nfs_fh3(&source.here), old}, {nfs_fh3(&target.here), new}};

		rc = nfs3_call(session, NFS_RENAME, from, (xdrproc_t)xdr_rename3_args, &args,
			      (xdrproc_t)xdr_rename3_res, &res, 0);
		xdr_free((xdrproc_t)xdr_rename3_res, (char *)&res);
	}
	free(old);
	free(new);
	path_walk_end(&source);
	path_walk_end(&target);
	return rc;
}

EXPORTED int nfsrdma_truncate(struct nfsrdma_session *session, const char *path, uint64_t size)
{
	struct path_walk walk;
	int rc = path_walk(&walk, session, path, NULL, true);

	if (!rc)
		rc = names_setattr(session, path, &walk.here, names_size(size));
	path_walk_end(&walk);
	return rc;
}
