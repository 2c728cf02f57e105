// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* Open directories. */
#include <stdlib.h>
#include <string.h>

#include "library.h"

/* "." and ".." in a row */
#define DOTS_MAX	16

/**
 * struct nfsrdma_dir - a directory that is listed
 * @session: its session
 * @fh: file handle
 * @args: of the next call
 * @res: results of the last one
 * @next: next entry of @res
 * @end: @res has the last entries
 */
struct nfsrdma_dir {
	struct nfsrdma_session *session;
	struct nfs_fh fh;
	readdirplus3_args args;
	readdirplus3_res res;
	entry3 *next;
	bool end;
};

EXPORTED int nfsrdma_opendir(struct nfsrdma_session *session, const char *path, struct nfsrdma_dir **dir)
{
	struct path_walk walk;
	int rc = path_walk(&walk, session, path, NULL, PATH_FOLLOW);

	if (!rc && walk.attr.type != TYPE_DIRECTORY)
		rc = fail(-ENOTDIR, "%s: not a directory", path);
	if (!rc) {
		*dir = calloc(1, sizeof(**dir));
		rc = *dir ? 0 : fail_no_memory();
	}
	if (!rc) {
		**dir = (struct nfsrdma_dir){.session = session, .fh = walk.here};
		(*dir)->args = (readdirplus3_args){
			.dir = nfs_fh3(&(*dir)->fh),
			.dircount = session->list_max, .maxcount = session->list_max,
		};
	}
	path_walk_end(&walk);
	return rc;
}

static int read_entries(struct nfsrdma_dir *dir)
{
	readdirplus3_ok *ok = &dir->res.readdirplus3_res_u.ok;
	const entry3 *last;
	int rc;

	xdr_free((xdrproc_t)xdr_readdirplus3_res, (char *)&dir->res);
	dir->res = (readdirplus3_res){};
	dir->next = NULL;
	rc = dir->session->dialect->list(dir->session, &dir->args, &dir->res);
	if (rc)
		return rc;
	memcpy(dir->args.verf, ok->verf, sizeof(verf3));
	dir->next = ok->entries;
	dir->end = ok->eof;
	if (dir->end)
		return 0;
	for (last = dir->next; last && last->next; last = last->next)
		;
	/* no entries, or none behind the last ones: the next call would be the same again */
	return last && last->cookie != dir->args.cookie ? 0 : fail(-EBADMSG, "READDIRPLUS: no more entries");
}

EXPORTED int nfsrdma_readdir(struct nfsrdma_dir *dir, struct nfsrdma_entry *entry)
{
	int rc = process_check(dir->session), left_out = 0;
	struct nfsrdma_entry all;
	size_t size = entry->size;
	entry3 *from;

	/* before the directory goes on to the next entry */
	if (!rc)
		rc = abi_check(size, ENTRY_LEAST, "entry");
	if (rc)
		return rc;
	do {
		/* a server that sends nothing else would keep the caller here */
		if (left_out++ > DOTS_MAX)
			return fail(-EBADMSG, "READDIRPLUS: the server sent . and .. again and again");
		if (!dir->next) {
			rc = dir->end ? 0 : read_entries(dir);
			if (rc || !dir->next)
				return rc;
		}
		from = dir->next;
		dir->next = from->next;
		dir->args.cookie = from->cookie;
	} while (!strcmp(from->name, ".") || !strcmp(from->name, ".."));
	if (!*from->name || strchr(from->name, '/'))
		return fail(-EBADMSG, "READDIRPLUS: the server sent a name with a slash, or an empty one");
	all = (struct nfsrdma_entry){
		.ino = from->fileid, .name = from->name, .has_stat = from->attr.present,
	};
	if (from->attr.present)
		nfs_stat(&from->attr.post_attr3_u.attr, &all.stat);
	abi_give(entry, &all, sizeof(all), ENTRY_LEAST, "entry");
	entry->size = size;
	return 1;
}

EXPORTED int nfsrdma_closedir(struct nfsrdma_dir *dir)
{
	int rc = dir ? process_check_end(dir->session) : 0;

	if (!dir || rc)
		return rc;
	xdr_free((xdrproc_t)xdr_readdirplus3_res, (char *)&dir->res);
	free(dir);
	return 0;
}
