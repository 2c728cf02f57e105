// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * Paths.
 *
 * The library looks up each component of a path by itself, so that neither ".." nor a symbolic link leads out of
 * the directory of the session: ".." goes back to the file handle before, and is an error in the directory of the
 * session.  A link that begins with the directory's own path begins at its root.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "library.h"

#define LINKS_MAX	40

int path_getattr(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, attr3 *attr)
{
	fh3 args = nfs_fh3(fh);

	return session->dialect->getattr(session, path, &args, attr);
}

int path_lookup(struct nfsrdma_session *session, const char *path, struct nfs_fh *dir, const char *name,
		  struct nfs_fh *fh, attr3 *attr)
{
	fh3 args = nfs_fh3(dir);

	return session->dialect->lookup(session, path, &args, name, fh, attr);
}

/* The text of a link; the caller frees it */
int path_readlink(struct nfsrdma_session *session, const char *path, struct nfs_fh *fh, char **text)
{
	fh3 args = nfs_fh3(fh);

	return session->dialect->readlink(session, path, &args, text);
}

static int push_above(struct path_walk *walk)
{
	if (walk->depth == walk->room) {
		size_t room = walk->room ? 2 * walk->room : 16;
		struct nfs_fh *more = realloc(walk->above, room * sizeof(*more));

		if (!more)
			return fail_no_memory();
		walk->above = more;
		walk->room = room;
	}
	walk->above[walk->depth++] = walk->here;
	return 0;
}

static void at_root(struct path_walk *walk)
{
	walk->depth = 0;
	walk->here = nfs_fh_of(&walk->session->root);
}

/* Continue with the text of a link, and then the components behind it */
static int follow_link(struct path_walk *walk, struct nfs_fh *link)
{
	const char *directory = walk->session->directory;
	size_t length = strlen(directory);
	char *text, *at, *rest;
	int rc;

	/* the last component was the link, which is not where the walk is */
	walk->known = false;
	if (++walk->links > LINKS_MAX)
		return fail(-ELOOP, "%s: more than %d symbolic links", walk->path, LINKS_MAX);
	rc = path_readlink(walk->session, walk->path, link, &text);
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
	/* a slash at the end has a meaning */
	if (asprintf(&rest, "%s%s%s", at, *walk->rest ? "/" : "", walk->rest) < 0) {
		rc = fail_no_memory();
		goto out;
	}
	free(walk->rest);
	walk->rest = rest;
out:
	free(text);
	return rc;
}

/* A component that follows, or a slash at the end, is that of a directory */
static int need_directory(const struct path_walk *walk)
{
	if (walk->known && walk->attr.type != TYPE_DIRECTORY)
		return fail(-ENOTDIR, "%s: %s", walk->path, strerror(ENOTDIR));
	return 0;
}

/* The name of a file that may be made ends with a slash: Linux does not look whether there is one */
static int refuse_slash(const struct path_walk *walk)
{
	int rc = need_directory(walk);

	return rc ? rc : fail(-EISDIR, "%s: the name of a file ends with a slash", walk->path);
}

static int step_back(struct path_walk *walk)
{
	int rc = need_directory(walk);

	if (rc)
		return rc;
	if (!walk->depth)
		return fail(-EXDEV, "%s: leads out of %s", walk->path, walk->session->directory);
	walk->here = walk->above[--walk->depth];
	walk->known = false;
	return 0;
}

static int walk_step(struct path_walk *walk, char *name, bool last, bool follow_last)
{
	struct nfs_fh next;
	int rc;

	if (!strcmp(name, "."))
		return need_directory(walk);
	if (!strcmp(name, ".."))
		return step_back(walk);
	rc = path_lookup(walk->session, walk->path, &walk->here, name, &next, &walk->attr);
	if (rc)
		return rc;
	walk->known = true;
	if (walk->attr.type == TYPE_LINK && (!last || follow_last))
		return follow_link(walk, &next);
	rc = push_above(walk);
	walk->here = next;
	return rc;
}

/* Cut the first component off @walk->rest; the caller frees it.  NULL: none is left, or no memory */
static char *cut_component(struct path_walk *walk, bool *last)
{
	char *start = walk->rest + strspn(walk->rest, "/"), *end = strchrnul(start, '/');
	char *name = end == start ? NULL : strndup(start, end - start);

	*last = !end[strspn(end, "/")];
	if (name)
		memmove(walk->rest, end, strlen(end) + 1);
	return name;
}

void path_walk_end(struct path_walk *walk)
{
	free(walk->rest);
	free(walk->above);
	free(walk->missing);
}

/**
 * path_walk - look up a path
 * @walk: what to fill
 * @session: session
 * @path: path
 * @name: NULL to look up all of the path; else gets the last component, which is not looked up: the caller frees it
 * @how: of enum path_how
 *
 * The caller calls path_walk_end(), after an error too.
 *
 * Return: 0, or a negative errno value.
 */
int path_walk(struct path_walk *walk, struct nfsrdma_session *session, const char *path, char **name,
	      unsigned int how)
{
	char *part;
	bool last, named;
	int rc = process_check(session);

	*walk = (struct path_walk){.session = session, .path = path};
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
		return fail_no_memory();
	at_root(walk);
	while (!rc && (part = cut_component(walk, &last))) {
		named = last && strcmp(part, ".") && strcmp(part, "..");
		if (named && *walk->rest && how & PATH_CREATE) {
			rc = refuse_slash(walk);
		} else if (named && name) {
			*name = part;
			return 0;
		} else {
			rc = walk_step(walk, part, last, how & PATH_FOLLOW || *walk->rest);
		}
		if (rc == -ENOENT && !*walk->rest)
			walk->missing = part;
		else
			free(part);
	}
	if (!rc && walk->rest[strspn(walk->rest, "/")])
		rc = fail_no_memory();
	if (!rc && *walk->rest)
		rc = need_directory(walk);
	if (!rc && name)
		rc = fail(-EINVAL, "%s: no name at the end", path);
	/* LOOKUP has returned those of everything but the directory of the session, and what ".." leads to */
	if (!rc && !walk->known)
		rc = path_getattr(session, path, &walk->here, &walk->attr);
	return rc;
}
