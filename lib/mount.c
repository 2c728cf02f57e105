// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * The file handle of a directory, from the mount daemon (RFC 1813, appendix I), over TCP.
 *
 * The daemon's list of mounts has no use for sessions, which end without a word to it: the entry is removed at once.
 */
#include <string.h>

#include "library.h"

#define MOUNT_PROGRAM	100005
#define MOUNT_VERSION	3

enum { MOUNT_MNT = 1, MOUNT_UMNT = 3 };

/* Milliseconds to wait for a reply that says nothing */
#define UMNT_TIMEOUT	1000

/* Returns the remaining milliseconds of nfsrdma_connect(), at most @most */
static struct timeval time_left(const struct nfsrdma_session *session, uint64_t most)
{
	uint64_t end = session->opening + session->options.timeout, now = now_ms(), ms = end > now ? end - now : 1;

	ms = ms < most ? ms : most;
	return (struct timeval){.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
}

static int no_reply(const struct nfsrdma_session *session)
{
	return fail(-ETIMEDOUT, "%s: no reply of the mount daemon for %u ms", session->host,
		    session->options.timeout);
}

static int call_mount(struct nfsrdma_session *session, CLIENT *client)
{
	mnt3_res res = {};
	enum clnt_stat status;
	bool sys = false;
	int rc;
	u_int i;

	status = clnt_call(client, MOUNT_MNT, (xdrproc_t)xdr_path3, (char *)&session->directory,
			   (xdrproc_t)xdr_mnt3_res, (char *)&res, time_left(session, UINT64_MAX));
	if (status != RPC_SUCCESS) {
		xdr_free((xdrproc_t)xdr_mnt3_res, (char *)&res);
		if (status == RPC_TIMEDOUT)
			return no_reply(session);
		return fail(-EIO, "%s", clnt_sperror(client, session->host));
	}
	rc = nfs_error(res.status);
	if (rc) {
		fail(rc, "%s:%s: the mount daemon refuses it: %s%s", session->host, session->directory,
		     strerror(-rc), rc == -EACCES ? " (ports below 1024, which need root, or the export"
						    " option insecure)" : "");
		goto out;
	}
	for (i = 0; i < res.mnt3_res_u.ok.flavors.flavors_len; i++)
		sys |= res.mnt3_res_u.ok.flavors.flavors_val[i] == AUTH_SYS;
	if (!sys) {
		rc = fail(-EACCES, "%s:%s: exported without sec=sys", session->host, session->directory);
		goto out;
	}
	session->root = res.mnt3_res_u.ok.fh;
	res.mnt3_res_u.ok.fh = (fh3){};
	clnt_call(client, MOUNT_UMNT, (xdrproc_t)xdr_path3, (char *)&session->directory,
		  nfs_xdr_nothing, NULL, time_left(session, UMNT_TIMEOUT));
out:
	xdr_free((xdrproc_t)xdr_mnt3_res, (char *)&res);
	return rc;
}

/* Get the file handle of session->directory */
int mount_root(struct nfsrdma_session *session)
{
	struct timeval timeout = time_left(session, UINT64_MAX);
	CLIENT *client = clnt_create_timed(session->host, MOUNT_PROGRAM, MOUNT_VERSION, "tcp", &timeout);
	int rc;

	if (!client && (rpc_createerr.cf_stat == RPC_TIMEDOUT ||
			rpc_createerr.cf_error.re_status == RPC_TIMEDOUT))
		return no_reply(session);
	if (!client)
		return fail(-ECONNREFUSED, "%s", clnt_spcreateerror(session->host));
	auth_destroy(client->cl_auth);
	client->cl_auth = authunix_create_default();
	rc = client->cl_auth ? call_mount(session, client) : fail_no_memory();
	if (client->cl_auth)
		auth_destroy(client->cl_auth);
	client->cl_auth = NULL;
	clnt_destroy(client);
	return rc;
}
