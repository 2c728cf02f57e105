// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/*
 * The file handle of a directory, from the mount daemon (RFC 1813, appendix I), over TCP.
 *
 * The daemon's list of mounts has no use for sessions, which end without a word to it: the entry is removed at once.
 */
#include <string.h>

#include "session.h"

#define MOUNT_PROGRAM	100005
#define MOUNT_VERSION	3

enum { MOUNT_MNT = 1, MOUNT_UMNT = 3 };

static int ask(struct nfsrdma_session *session, CLIENT *client, struct timeval timeout)
{
	mnt3_res res = {};
	bool sys = false;
	int rc;
	u_int i;

	if (clnt_call(client, MOUNT_MNT, (xdrproc_t)xdr_path3, (char *)&session->directory,
		      (xdrproc_t)xdr_mnt3_res, (char *)&res, timeout) != RPC_SUCCESS) {
		xdr_free((xdrproc_t)xdr_mnt3_res, (char *)&res);
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
		  xdr_nothing, NULL, timeout);
out:
	xdr_free((xdrproc_t)xdr_mnt3_res, (char *)&res);
	return rc;
}

/* Get the file handle of session->directory */
int mount_root(struct nfsrdma_session *session)
{
	struct timeval timeout = {
		.tv_sec = session->options.timeout / 1000, .tv_usec = session->options.timeout % 1000 * 1000,
	};
	CLIENT *client = clnt_create_timed(session->host, MOUNT_PROGRAM, MOUNT_VERSION, "tcp", &timeout);
	int rc;

	if (!client)
		return fail(-ECONNREFUSED, "%s", clnt_spcreateerror(session->host));
	auth_destroy(client->cl_auth);
	client->cl_auth = authunix_create_default();
	rc = client->cl_auth ? ask(session, client, timeout) : no_memory();
	if (client->cl_auth)
		auth_destroy(client->cl_auth);
	client->cl_auth = NULL;
	clnt_destroy(client);
	return rc;
}
