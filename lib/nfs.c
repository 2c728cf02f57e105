// SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause
/* File handles, attributes and errors: NFSv3, NFSv4.1 and the mount protocol share them. */
#include <string.h>
#include <sys/sysmacros.h>

#include "batch.h"
#include "library.h"

/* nfsstat3, RFC 1813, section 2.6: the numbers up to 71 that are not Linux's, and the others */
int nfs_error(uint32_t status)
{
	switch (status) {
	case 0:
		return 0;
	case 63:
		return -ENAMETOOLONG;
	case 66:
		return -ENOTEMPTY;
	case 69:
		return -EDQUOT;
	case 70:
	case 10001:	/* NFS3ERR_BADHANDLE */
		return -ESTALE;
	case 71:
		return -EREMOTE;
	case 10002:	/* NFS3ERR_NOT_SYNC */
		return -EBUSY;
	case 10003:	/* NFS3ERR_BAD_COOKIE */
		return -EAGAIN;
	case 10004:	/* NFS3ERR_NOTSUPP */
		return -EOPNOTSUPP;
	case 10005:	/* NFS3ERR_TOOSMALL */
		return -ERANGE;
	case NFS_BUSY:
		return -EINPROGRESS;
	case 1: case 2: case 5: case 6: case 13: case 17: case 18: case 19: case 20: case 21: case 22:
	case 27: case 28: case 30: case 31:
		return -(int)status;
	}
	return -EREMOTEIO;
}

/* Arguments and results that are void */
bool_t nfs_xdr_nothing(XDR *xdr, ...)
{
	(void)xdr;
	return TRUE;
}

static struct timespec to_timespec(time3 from)
{
	return (struct timespec){.tv_sec = from.sec, .tv_nsec = from.nsec};
}

/* attr3 as struct stat; RFC 1813, section 2.5 */
void nfs_stat(const attr3 *attr, struct stat *st)
{
	/* ftype3: NF3REG, NF3DIR, NF3BLK, NF3CHR, NF3LNK, NF3SOCK, NF3FIFO */
	static const mode_t types[] = {0, S_IFREG, S_IFDIR, S_IFBLK, S_IFCHR, S_IFLNK, S_IFSOCK, S_IFIFO};
	mode_t type = attr->type < sizeof(types) / sizeof(types[0]) ? types[attr->type] : 0;

	*st = (struct stat){
		.st_dev = attr->fsid, .st_ino = attr->fileid, .st_mode = type | (attr->mode & 07777),
		.st_nlink = attr->nlink, .st_uid = attr->uid, .st_gid = attr->gid,
		.st_rdev = makedev(attr->rdev[0], attr->rdev[1]), .st_size = attr->size,
		.st_blksize = 65536, .st_blocks = (attr->used + 511) / 512,
		.st_atim = to_timespec(attr->atime), .st_mtim = to_timespec(attr->mtime),
		.st_ctim = to_timespec(attr->ctime),
	};
}

struct nfs_fh nfs_fh_of(const fh3 *fh)
{
	struct nfs_fh handle = {.length = fh->fh3_len};

	if (fh->fh3_len)
		memcpy(handle.bytes, fh->fh3_val, fh->fh3_len);
	return handle;
}

/* A call of a batch has ended */
static void complete_call(struct nfsrdma_session *session, struct request *req)
{
	batch_add(&session->done, req->io.user_data, req->error, false);
	session->unfinished--;
	request_release(session, req);
}

/* Add a call to the next batch, which has room for it */
void nfs_prepare(struct nfsrdma_session *session, struct request *req, uint64_t user_data)
{
	req->io.user_data = user_data;
	req->done = complete_call;
	session->unfinished++;
	request_prepare(session, req);
}
