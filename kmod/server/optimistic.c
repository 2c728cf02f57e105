// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality optimistic: version 1, whose READs let the client read more of the file by
 * itself.
 *
 * nfsd knows file handles, this module does not. But nfsd answers a READ with pages of the
 * page cache, which name the file: the reference leads to the file that nfsd has just read
 * for this client.
 */
#include <linux/exportfs.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/pagemap.h>

#include "connection/queues.h"
#include "server/branch.h"
#include "server/call.h"
#include "server/optimistic.h"
#include "server/reply.h"

/* A file handle of nfsd, see fs/nfsd/nfsfh.h: 1, 0, types of the two ids that follow, and these */
#define NFR_SVC_FH_FSID_TYPE	2
#define NFR_SVC_FH_TYPE		3
#define NFR_SVC_FH_FSID		4

/* File ids of XFS with an inode number of 64 bits: FILEID_INO32_GEN with a flag */
#define NFR_SVC_FH_XFS64		0x81
#define NFR_SVC_FH_XFS64_PARENT		0x82

/* Lengths of the ids of file systems, by their types (enum nfsd_fsid), in bytes */
static const u8 nfr_svc_fsids[] = { 8, 4, 12, 8, 8, 8, 16, 24 };

/* Meaning of a file id in a file handle */
struct nfr_svc_file_id {
	u64 ino;
	u32 generation;
};

/* ext4: struct fid.i32, see generic_encode_ino32_fh() */
static bool nfr_svc_file_id_ino32(struct nfr_svc_file_id *id, u8 type, const u8 *fid, u32 length)
{
	if ((type != FILEID_INO32_GEN && type != FILEID_INO32_GEN_PARENT) || length < 8)
		return false;
	id->ino = get_unaligned((const u32 *)fid);
	id->generation = get_unaligned((const u32 *)(fid + 4));
	return true;
}

/* XFS: the same, or struct xfs_fid64 */
static bool nfr_svc_file_id_xfs(struct nfr_svc_file_id *id, u8 type, const u8 *fid, u32 length)
{
	if (type != NFR_SVC_FH_XFS64 && type != NFR_SVC_FH_XFS64_PARENT)
		return nfr_svc_file_id_ino32(id, type, fid, length);
	if (length < 12)
		return false;
	id->ino = get_unaligned((const u64 *)fid);
	id->generation = get_unaligned((const u32 *)(fid + 8));
	return true;
}

/* btrfs: struct btrfs_fid; a number is unique in its subvolume only */
static bool nfr_svc_file_id_btrfs(struct nfr_svc_file_id *id, u8 type, const u8 *fid, u32 length)
{
	if (type < FILEID_BTRFS_WITHOUT_PARENT || type > FILEID_BTRFS_WITH_PARENT_ROOT ||
	    length < 20)
		return false;
	id->ino = get_unaligned((const u64 *)fid);
	id->generation = get_unaligned((const u32 *)(fid + 16));
	return true;
}

/* tmpfs: see shmem_encode_fh() */
static bool nfr_svc_file_id_tmpfs(struct nfr_svc_file_id *id, u8 type, const u8 *fid, u32 length)
{
	if (type != FILEID_INO32_GEN || length < 12)
		return false;
	id->generation = get_unaligned((const u32 *)fid);
	id->ino = get_unaligned((const u32 *)(fid + 4)) |
		  (u64)get_unaligned((const u32 *)(fid + 8)) << 32;
	return true;
}

/*
 * File systems whose pages may be granted. Each of these changes a file in its page cache only,
 * and only from this host; it sets ctime with each change of data, size, owner, mode and ACL; it
 * replaces no page that has a reference, without an open for writing or an event of fsnotify; and
 * its writeback needs no exclusive access to a page that a device reads. Others are refused:
 * network, cluster and FUSE file systems change files behind the page cache, and overlayfs
 * answers with pages of another file system, whose changes it does not report.
 */
static const struct {
	u64 magic;
	bool (*decode)(struct nfr_svc_file_id *id, u8 type, const u8 *fid, u32 length);
} nfr_svc_file_systems[] = {
	/* writes and extents work on the page cache; also ext2 and ext3, which ext4 mounts */
	{ EXT4_SUPER_MAGIC, nfr_svc_file_id_ino32 },
	/* reflink and exchange of extents need writers of both files, and drop pages first */
	{ XFS_SUPER_MAGIC, nfr_svc_file_id_xfs },
	/* copies on write below the page cache; so do compression and checksums */
	{ BTRFS_SUPER_MAGIC, nfr_svc_file_id_btrfs },
	/* the page cache is the file; a page with a reference is not swapped out */
	{ TMPFS_MAGIC, nfr_svc_file_id_tmpfs },
};

/*
 * Check that the file handle of a READ names the inode that a page of the reply belongs to. If it
 * does not, nfsd has read from a file system that passed the READ on to another one: overlayfs, or
 * FUSE. The handle of an exported file itself has no id (FILEID_ROOT).
 */
static bool nfr_svc_optimistic_names(const struct nfr_read *read, const struct inode *inode)
{
	u32 i, skip, fsid = read->fh_length > NFR_SVC_FH_FSID ? read->fh[NFR_SVC_FH_FSID_TYPE] :
							      ARRAY_SIZE(nfr_svc_fsids);
	struct nfr_svc_file_id id;

	if (read->fh[0] != 1 || fsid >= ARRAY_SIZE(nfr_svc_fsids))
		return false;
	skip = NFR_SVC_FH_FSID + nfr_svc_fsids[fsid];
	if (read->fh_length < skip)
		return false;
	for (i = 0; i < ARRAY_SIZE(nfr_svc_file_systems); i++)
		if (nfr_svc_file_systems[i].magic == inode->i_sb->s_magic)
			return nfr_svc_file_systems[i].decode(&id, read->fh[NFR_SVC_FH_TYPE],
							      read->fh + skip,
							      read->fh_length - skip) &&
			       id.ino == inode->i_ino && id.generation == inode->i_generation;
	return false;
}

/* A file without a name may be evicted with its last reference. */
static bool nfr_svc_optimistic_suits(const struct inode *inode, const struct nfr_read *read)
{
	return S_ISREG(inode->i_mode) && inode->i_nlink && !IS_DAX(inode) && !IS_SWAPFILE(inode) &&
	       nfr_svc_optimistic_names(read, inode);
}

/*
 * Keep a file system mounted: take its s_umount for reading, as trylock_super() does. An active
 * reference would let an unmount return before the file system is down.
 */
static bool nfr_svc_optimistic_keep(struct super_block *sb)
{
	if (!down_read_trylock(&sb->s_umount))
		return false;
	if (sb->s_root && (sb->s_flags & SB_ACTIVE))
		return true;
	up_read(&sb->s_umount);
	return false;
}

/*
 * Find the file of a page, take a reference to its inode, and keep its file system mounted. A
 * folio in the page cache has its file as long as it is locked. Returns NULL if it has none.
 */
static struct inode *nfr_svc_optimistic_file(struct page *page, const struct nfr_read *read)
{
	struct folio *folio = page_folio(page);
	struct inode *inode = NULL;
	struct address_space *mapping;

	if (!folio_trylock(folio))
		return NULL;
	mapping = folio_test_anon(folio) ? NULL : folio->mapping;
	if (mapping && folio->index + folio_page_idx(folio, page) == read->position >> PAGE_SHIFT &&
	    nfr_svc_optimistic_suits(mapping->host, read) &&
	    nfr_svc_optimistic_keep(mapping->host->i_sb)) {
		/* nfsd has closed the file: its eviction may wait for the folio */
		inode = igrab(mapping->host);
		if (!inode)
			up_read(&mapping->host->i_sb->s_umount);
	}
	folio_unlock(folio);
	return inode;
}

/* Check that a Call is a READ whose Reply has the file's own pages. */
static bool nfr_svc_optimistic_is_read(const struct nfr_svc_req *req,
				       const struct svc_rqst *rqstp, struct nfr_read *read)
{
	const struct xdr_buf *res = &rqstp->rq_res;

	return res->page_len && !req->npages &&
	       nfr_wire_decode_read(read, req->rpc, req->rpc_length) && read->count &&
	       res->page_base == offset_in_page(read->position);
}

static void nfr_svc_optimistic_grant(const struct nfr_svc_req *req, const struct nfr_read *read,
				     const struct svc_rqst *rqstp)
{
	struct nfr_svc *branch = nfr_svc_branches_latest(req->svc);
	struct page *page = rqstp->rq_res.pages[0];
	struct inode *inode;

	if (!branch)
		return;
	inode = nfr_svc_optimistic_file(page, read);
	if (inode)
		nfr_svc_grant_reference(branch, read, inode, page, rqstp->rq_stime);
	else
		nfr_svc_count(branch, refused[NFR_REFUSED_FILE], 1);
	nfr_svc_put(branch);
}

static int nfr_svc_optimistic_reply(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	struct nfr_read read;

	if (nfr_svc_optimistic_is_read(req, rqstp, &read))
		nfr_svc_optimistic_grant(req, &read, rqstp);
	return nfr_svc_reply(req, rqstp);
}

/* --- the branch, see notice.c --- */

static void nfr_svc_optimistic_writable(struct nfr_conn *conn)
{
}

static int nfr_svc_optimistic_agree(struct nfr_svc *branch, const struct rdma_conn_param *param)
{
	int rc = nfr_svc_notice_agree(branch, param);

	if (!rc)
		nfr_svc_grants_init(branch);
	return rc;
}

static int nfr_svc_optimistic_fit(struct nfr_svc *branch)
{
	return nfr_svc_notice_fit(branch) ?: nfr_svc_grants_join(branch);
}

static void nfr_svc_optimistic_destroy(struct nfr_svc *branch)
{
	nfr_svc_grants_destroy(branch);
	nfr_svc_notice_destroy(branch);
}

static const struct nfr_svc_personality nfr_svc_optimistic_branch = {
	.variant	= NFR_OPTIMISTIC,
	.conn		= {
		.receive	= nfr_svc_notice_receive,
		.writable	= nfr_svc_optimistic_writable,
		.broken		= nfr_svc_branch_broken,
		.unanswered	= "none",
		.softirq	= true,
	},
	.agree		= nfr_svc_optimistic_agree,
	.fit		= nfr_svc_optimistic_fit,
	.destroy	= nfr_svc_optimistic_destroy,
	.show		= nfr_svc_grants_show,
};

const struct nfr_svc_personality nfr_svc_optimistic = {
	.variant	= NFR_OPTIMISTIC,
	.invalidates	= true,
	.branch		= &nfr_svc_optimistic_branch,
	.conn		= NFR_SVC_FIRST_OPS(nfr_svc_writable),
	.receive	= nfr_svc_version1_receive,
	.reply		= nfr_svc_optimistic_reply,
	.refuse		= nfr_svc_reply_error,
	.size		= nfr_wire_size,
	.finish		= nfr_svc_req_finish,
};
