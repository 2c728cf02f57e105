// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Paths, files and directories.
 *
 * The library looks up each component of a path by itself, so that neither ".." nor a symbolic link leads out of
 * the directory of the session: ".." goes back to the file handle before, and a link that begins with the
 * directory's own path begins at its root.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "session.h"

#define LINKS_MAX	40

/* Of nfsrdma_open(); the last ones have no meaning here */
#define OPEN_FLAGS \
	(O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW | O_DSYNC | O_SYNC | NFSRDMA_OPTIMISTIC | \
	 O_CLOEXEC | O_LARGEFILE | O_NOCTTY)

/* "." and ".." in a row */
#define DOTS_MAX	16

/* ftype3 */
enum { TYPE_FILE = 1, TYPE_DIRECTORY = 2, TYPE_LINK = 5 };

static int setattr(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, set3 attr)
{
	setattr3_args args = {.fh = nfs_fh3(fh), .attr = attr};
	wcc3_res res = {};
	int rc = nfs_call(session, NFS_SETATTR, path, (xdrproc_t)xdr_setattr3_args, &args,
			  (xdrproc_t)xdr_wcc3_res, &res, 0);

	xdr_free((xdrproc_t)xdr_wcc3_res, (char *)&res);
	/* the server has ended the references to a file whose size it changed; its notice may be on its way */
	if (session->optimist)
		references_drop_file(&session->optimist->references, fh);
	cache_resized(session, fh);
	return rc;
}

static int getattr(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, attr3 *attr)
{
	fh3 args = nfs_fh3(fh);

	return session->dialect->getattr(session, path, &args, attr);
}

static int lookup(struct nfsrdma_session *session, const char *path, struct nfs_fh *dir, const char *name,
		  struct nfs_fh *fh, attr3 *attr)
{
	fh3 args = nfs_fh3(dir);

	return session->dialect->lookup(session, path, &args, name, fh, attr);
}

/* The text of a link; the caller frees it */
static int readlink_of(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, char **text)
{
	fh3 args = nfs_fh3(fh);

	return session->dialect->readlink(session, path, &args, text);
}

static set3 set_mode(mode_t mode)
{
	return (set3){.mode = {TRUE, {mode & 07777}}};
}

/* umask(2) could read it only by a change, which other threads would see */
static mode_t without_umask(mode_t mode)
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

static set3 set_size(uint64_t size)
{
	return (set3){.size = {TRUE, {size}}};
}

/* --- paths --- */

/**
 * struct walk - the way along a path
 * @session: session
 * @path: as the caller gave it, for messages
 * @rest: components not looked up yet; the walk owns it
 * @above: file handles of the directories above, the root first
 * @depth: number of @above
 * @room: elements that @above has room for
 * @here: where the walk has come
 * @known: @attr has its attributes
 * @attr: its attributes
 * @links: symbolic links followed
 */
struct walk {
	struct nfsrdma_session *session;
	const char *path;
	char *rest;
	struct nfs_fh *above;
	size_t depth, room;
	struct nfs_fh here;
	bool known;
	attr3 attr;
	unsigned int links;
};

static int push(struct walk *walk)
{
	if (walk->depth == walk->room) {
		size_t room = walk->room ? 2 * walk->room : 16;
		struct nfs_fh *more = realloc(walk->above, room * sizeof(*more));

		if (!more)
			return no_memory();
		walk->above = more;
		walk->room = room;
	}
	walk->above[walk->depth++] = walk->here;
	return 0;
}

static void at_root(struct walk *walk)
{
	walk->depth = 0;
	walk->here = nfs_fh_of(&walk->session->root);
}

/* Continue with the text of a link, and then the components behind it */
static int follow(struct walk *walk, struct nfs_fh *link)
{
	const char *directory = walk->session->directory;
	size_t length = strlen(directory);
	char *text, *at, *rest;
	int rc;

	/* the last component was the link, which is not where the walk is */
	walk->known = false;
	if (++walk->links > LINKS_MAX)
		return fail(-ELOOP, "%s: more than %d symbolic links", walk->path, LINKS_MAX);
	rc = readlink_of(walk->session, walk->path, link, &text);
	if (rc)
		return rc;
	at = text;
	if (*text == '/') {
		while (length && directory[length - 1] == '/')
			length--;
		if (strncmp(text, directory, length) || (text[length] && text[length] != '/')) {
			rc = fail(-EXDEV, "%s: a symbolic link leads to %s, out of %s", walk->path, text,
				  directory);
			goto out;
		}
		at += length;
		at_root(walk);
	}
	if (asprintf(&rest, "%s/%s", at, walk->rest) < 0) {
		rc = no_memory();
		goto out;
	}
	free(walk->rest);
	walk->rest = rest;
out:
	free(text);
	return rc;
}

static int step(struct walk *walk, char *name, bool last, bool follow_last)
{
	struct nfs_fh next;
	int rc;

	if (!strcmp(name, "."))
		return 0;
	if (!strcmp(name, "..")) {
		if (walk->depth)
			walk->here = walk->above[--walk->depth];
		walk->known = false;
		return 0;
	}
	rc = lookup(walk->session, walk->path, &walk->here, name, &next, &walk->attr);
	if (rc)
		return rc;
	walk->known = true;
	if (walk->attr.type == TYPE_LINK && (!last || follow_last))
		return follow(walk, &next);
	rc = push(walk);
	walk->here = next;
	return rc;
}

/* Cut the first component off @walk->rest; the caller frees it.  NULL: none is left, or no memory */
static char *cut(struct walk *walk, bool *last)
{
	char *start = walk->rest + strspn(walk->rest, "/"), *end = strchrnul(start, '/');
	char *name = end == start ? NULL : strndup(start, end - start);

	*last = !end[strspn(end, "/")];
	if (name)
		memmove(walk->rest, end, strlen(end) + 1);
	return name;
}

static void walk_end(struct walk *walk)
{
	free(walk->rest);
	free(walk->above);
}

/**
 * walk_to - look up a path
 * @walk: what to fill
 * @session: session
 * @path: path
 * @name: NULL to look up all of the path; else gets the last component, which is not looked up: the caller frees it
 * @follow_last: follow a symbolic link at the end
 *
 * The caller calls walk_end(), after an error too.
 *
 * Return: 0, or a negative errno value.
 */
static int walk_to(struct walk *walk, struct nfsrdma_session *session, const char *path, char **name,
		   bool follow_last)
{
	char *part;
	bool last;
	int rc = session_check(session);

	*walk = (struct walk){.session = session, .path = path};
	if (name)
		*name = NULL;
	if (rc)
		return rc;
	if (!session->directory)
		return fail(-EINVAL, "%s: the session has no directory", path);
	if (strlen(path) >= PATH_MAX)
		return fail(-ENAMETOOLONG, "a path of %zu bytes", strlen(path));
	walk->rest = strdup(path);
	if (!walk->rest)
		return no_memory();
	at_root(walk);
	while (!rc && (part = cut(walk, &last))) {
		if (name && last && strcmp(part, ".") && strcmp(part, "..")) {
			*name = part;
			return 0;
		}
		rc = step(walk, part, last, follow_last);
		free(part);
	}
	if (!rc && walk->rest[strspn(walk->rest, "/")])
		rc = no_memory();
	if (!rc && name)
		rc = fail(-EINVAL, "%s: no name at the end", path);
	/* LOOKUP has returned those of everything but the directory of the session, and what ".." leads to */
	if (!rc && !walk->known)
		rc = getattr(session, path, &walk->here, &walk->attr);
	return rc;
}

static int stat_path(struct nfsrdma_session *session, const char *path, struct stat *st, bool follow_last)
{
	struct walk walk;
	int rc = walk_to(&walk, session, path, NULL, follow_last);

	if (!rc)
		nfs_stat(&walk.attr, st);
	walk_end(&walk);
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
	struct walk walk;
	ssize_t rc = walk_to(&walk, session, path, NULL, false);

	if (!rc && walk.attr.type != TYPE_LINK)
		rc = fail(-EINVAL, "%s: not a symbolic link", path);
	if (!rc)
		rc = readlink_of(session, path, &walk.here, &text);
	walk_end(&walk);
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

/* --- changes of names --- */

/* Call @procedure for the last component of @path */
static int call_in_parent(struct nfsrdma_session *session, const char *path, enum nfs_procedure procedure)
{
	struct walk walk;
	wcc3_res res = {};
	char *name;
	int rc = walk_to(&walk, session, path, &name, false);

	if (!rc) {
		dirop3 args = {nfs_fh3(&walk.here), name};

		rc = nfs_call(session, procedure, path, (xdrproc_t)xdr_dirop3, &args,
			      (xdrproc_t)xdr_wcc3_res, &res, 0);
		xdr_free((xdrproc_t)xdr_wcc3_res, (char *)&res);
	}
	free(name);
	walk_end(&walk);
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
static int make(struct nfsrdma_session *session, const char *path, enum nfs_procedure procedure,
		xdrproc_t encode, const void *args, struct nfs_fh *fh)
{
	create3_res res = {};
	int rc = nfs_call(session, procedure, path, encode, args, (xdrproc_t)xdr_create3_res, &res, 0);

	if (!rc && fh)
		*fh = res.create3_res_u.ok.fh.present ? nfs_fh_of(&res.create3_res_u.ok.fh.post_fh3_u.fh) :
							(struct nfs_fh){};
	xdr_free((xdrproc_t)xdr_create3_res, (char *)&res);
	return rc;
}

EXPORTED int nfsrdma_mkdir(struct nfsrdma_session *session, const char *path, mode_t mode)
{
	struct walk walk;
	char *name;
	int rc = walk_to(&walk, session, path, &name, false);

	if (!rc) {
		mkdir3_args args = {{nfs_fh3(&walk.here), name}, set_mode(without_umask(mode))};

		rc = make(session, path, NFS_MKDIR, (xdrproc_t)xdr_mkdir3_args, &args, NULL);
	}
	free(name);
	walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_symlink(struct nfsrdma_session *session, const char *text, const char *path)
{
	struct walk walk;
	char *name;
	int rc = walk_to(&walk, session, path, &name, false);

	if (!rc) {
		symlink3_args args = {{nfs_fh3(&walk.here), name}, set_mode(0777), (char *)text};

		rc = make(session, path, NFS_SYMLINK, (xdrproc_t)xdr_symlink3_args, &args, NULL);
	}
	free(name);
	walk_end(&walk);
	return rc;
}

EXPORTED int nfsrdma_rename(struct nfsrdma_session *session, const char *from, const char *to)
{
	char *old = NULL, *new = NULL;
	struct walk source, target = {};
	rename3_res res = {};
	int rc = walk_to(&source, session, from, &old, false);

	if (!rc)
		rc = walk_to(&target, session, to, &new, false);
	if (!rc) {
		rename3_args args = {{nfs_fh3(&source.here), old}, {nfs_fh3(&target.here), new}};

		rc = nfs_call(session, NFS_RENAME, from, (xdrproc_t)xdr_rename3_args, &args,
			      (xdrproc_t)xdr_rename3_res, &res, 0);
		xdr_free((xdrproc_t)xdr_rename3_res, (char *)&res);
	}
	free(old);
	free(new);
	walk_end(&source);
	walk_end(&target);
	return rc;
}

EXPORTED int nfsrdma_truncate(struct nfsrdma_session *session, const char *path, uint64_t size)
{
	struct walk walk;
	int rc = walk_to(&walk, session, path, NULL, true);

	if (!rc)
		rc = setattr(session, path, &walk.here, set_size(size));
	walk_end(&walk);
	return rc;
}

/* --- files --- */

/* Make the file @name; an exclusive one by a verifier, so that a repeated call makes it once */
static int create(struct walk *walk, char *name, int flags, mode_t mode)
{
	create3_args args = {{nfs_fh3(&walk->here), name}, {.mode = CREATE_GUARDED}};
	struct nfsrdma_session *session = walk->session;
	struct nfs_fh fh;
	set3 attr = set_mode(without_umask(mode));
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
	rc = make(session, walk->path, NFS_CREATE, (xdrproc_t)xdr_create3_args, &args, &fh);
	if (!rc && !fh.length)
		rc = lookup(session, walk->path, &walk->here, name, &fh, &walk->attr);
	if (!rc && flags & O_EXCL)
		rc = setattr(session, walk->path, &fh, attr);
	walk->here = fh;
	walk->attr.type = TYPE_FILE;
	return rc;
}

static int open_walk(struct walk *walk, struct nfsrdma_session *session, const char *path, int flags,
		     mode_t mode)
{
	char *name;
	int rc;

	if ((flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL)) {
		rc = walk_to(walk, session, path, NULL, !(flags & O_NOFOLLOW));
		if (!rc && flags & O_TRUNC && walk->attr.type == TYPE_FILE)
			rc = setattr(session, path, &walk->here, set_size(0));
		if (rc != -ENOENT || !(flags & O_CREAT))
			return rc;
		walk_end(walk);
	}
	rc = walk_to(walk, session, path, &name, false);
	if (!rc)
		rc = create(walk, name, flags, mode);
	free(name);
	return rc;
}

static int check_type(const struct walk *walk, int flags)
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
static int use_cache(struct walk *walk, struct nfsrdma_file *file)
{
	struct nfsrdma_session *session = walk->session;
	int rc = 0;

	if (!session->cache)
		return 0;
	if (file->flags & (O_CREAT | O_TRUNC))
		rc = getattr(session, walk->path, &walk->here, &walk->attr);
	return rc ? rc : cache_open(session, file, &walk->attr);
}

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

EXPORTED int nfsrdma_open(struct nfsrdma_session *session, const char *path, int flags, mode_t mode,
			  struct nfsrdma_file **file)
{
	struct nfsrdma_file *new = NULL;
	struct walk walk;
	int rc;

	if (flags & ~OPEN_FLAGS)
		return fail(-EINVAL, "%s: flags %#o: the library has no %#o", path, flags, flags & ~OPEN_FLAGS);
	if (session->dialect != &nfs3_dialect && (flags & (O_ACCMODE | O_CREAT | O_TRUNC)) != O_RDONLY)
		return fail(-EROFS, "%s: a session with NFSv4.1 only reads", path);
	if (flags & NFSRDMA_OPTIMISTIC && !session->optimist)
		return fail(-EINVAL, "%s: the session was opened without the option optimistic", path);
	rc = open_walk(&walk, session, path, flags, mode);
	/* another client made it meanwhile */
	if (rc == -EEXIST && !(flags & O_EXCL)) {
		walk_end(&walk);
		rc = open_walk(&walk, session, path, flags & ~O_CREAT, mode);
	}
	if (!rc)
		rc = check_type(&walk, flags);
	if (!rc) {
		new = file_make(session, &walk.here, flags);
		rc = new ? use_cache(&walk, new) : no_memory();
	}
	walk_end(&walk);
	if (!rc)
		*file = new;
	else if (new)
		file_put(new);
	return rc;
}

/* The last user frees the file: the caller, or an operation that completes after nfsrdma_close() */
void file_put(struct nfsrdma_file *file)
{
	if (--file->users)
		return;
	if (file->cached)
		cache_close(file->session, file);
	inode_put(file->session, file->inode);
	free(file);
}

EXPORTED int nfsrdma_fstat(struct nfsrdma_file *file, struct stat *st)
{
	attr3 attr;
	int rc = session_check(file->session);

	if (!rc)
		rc = getattr(file->session, "", &file->fh, &attr);
	if (!rc)
		nfs_stat(&attr, st);
	return rc;
}

EXPORTED int nfsrdma_ftruncate(struct nfsrdma_file *file, uint64_t size)
{
	int rc = session_check(file->session);

	return rc ? rc : setattr(file->session, "", &file->fh, set_size(size));
}

/* --- directories --- */

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
	struct walk walk;
	int rc = walk_to(&walk, session, path, NULL, true);

	if (!rc && walk.attr.type != TYPE_DIRECTORY)
		rc = fail(-ENOTDIR, "%s: not a directory", path);
	if (!rc) {
		*dir = calloc(1, sizeof(**dir));
		rc = *dir ? 0 : no_memory();
	}
	if (!rc) {
		**dir = (struct nfsrdma_dir){.session = session, .fh = walk.here};
		(*dir)->args = (readdirplus3_args){
			.dir = nfs_fh3(&(*dir)->fh),
			.dircount = session->list_max, .maxcount = session->list_max,
		};
	}
	walk_end(&walk);
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
	int rc = session_check(dir->session), left_out = 0;
	struct nfsrdma_entry all;
	size_t size;
	entry3 *from;

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
	size = entry->size;
	rc = abi_give(entry, &all, sizeof(all), ENTRY_LEAST, "entry");
	entry->size = size;
	return rc ? rc : 1;
}

EXPORTED void nfsrdma_closedir(struct nfsrdma_dir *dir)
{
	if (!dir)
		return;
	xdr_free((xdrproc_t)xdr_readdirplus3_res, (char *)&dir->res);
	free(dir);
}
