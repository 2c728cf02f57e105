// SPDX-License-Identifier: GPL-2.0-only
/*
 * The files that nfsd reads. nfsd knows file handles, this module does not. But nfsd answers a
 * READ with pages of the page cache, which name the file: the page leads to the inode of the
 * file that nfsd has just read for this client.
 */
#include <linux/exportfs.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/pagemap.h>
#include <linux/sunrpc/svc.h>

#include "compat/compat.h"
#include "server/file.h"

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
 * File systems whose pages clients may get without nfsd. Each of these changes a file in its page
 * cache only, and only from this host; it sets ctime with each change of data, size, owner, mode
 * and ACL; it replaces no page that has a reference, without an open for writing or an event of
 * fsnotify; and its writeback needs no exclusive access to a page that a device reads. Others are
 * refused: network, cluster and FUSE file systems change files behind the page cache, and overlayfs
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
static bool nfr_svc_file_names(const struct nfr_read *read, const struct inode *inode)
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
static bool nfr_svc_file_suits(const struct inode *inode, const struct nfr_read *read)
{
	return S_ISREG(inode->i_mode) && inode->i_nlink && !IS_DAX(inode) && !IS_SWAPFILE(inode) &&
	       nfr_svc_file_names(read, inode);
}

/*
 * Keep a file system mounted: take its s_umount for reading, as trylock_super() does. An active
 * reference would let an unmount return before the file system is down.
 */
static bool nfr_svc_file_keep(struct super_block *sb)
{
	if (!down_read_trylock(&sb->s_umount))
		return false;
	if (sb->s_root && (sb->s_flags & SB_ACTIVE))
		return true;
	up_read(&sb->s_umount);
	return false;
}

/* Take references to a file and its file system. Returns its inode, or NULL. */
static struct inode *nfr_svc_file_grab(struct inode *inode)
{
	struct super_block *sb = inode->i_sb;

	if (!nfr_svc_file_keep(sb))
		return NULL;
	/*
	 * nfsd has closed the file: its eviction may wait for the folio. One that has lost its name
	 * before the file system was frozen must not be evicted by nfr_svc_file_put(); nobody takes
	 * a name on a frozen file system, or freezes one with s_umount held.
	 */
	inode = inode->i_nlink ? igrab(inode) : NULL;
	if (!inode)
		up_read(&sb->s_umount);
	return inode;
}

/**
 * nfr_svc_file_get - find the file that nfsd has read
 * @page: page of the Reply that the data of the READ begins in
 * @read: READ
 * @handed: time at which nfsd got the READ
 * @result: output: what nfr_svc_watch_admits() says of the file; NFR_SVC_BYPASS_MAY if it does not
 *	suit, or the page is not one of a file
 *
 * A folio in the page cache has its file as long as it is locked.
 *
 * Return: inode with a reference, whose file system stays mounted, for nfr_svc_file_put(); or
 * NULL if the READ leads to no other that passes nfsd by.
 */
struct inode *nfr_svc_file_get(struct page *page, const struct nfr_read *read,
			       const struct nfr_svc_handed *handed, enum nfr_svc_bypass *result)
{
	struct folio *folio = page_folio(page);
	struct inode *inode = NULL;
	struct address_space *mapping;

	*result = NFR_SVC_BYPASS_MAY;
	if (!folio_trylock(folio))
		return NULL;
	mapping = folio_test_anon(folio) ? NULL : folio->mapping;
	if (mapping && folio->index + folio_page_idx(folio, page) == read->position >> PAGE_SHIFT &&
	    nfr_svc_file_suits(mapping->host, read)) {
		*result = nfr_svc_watch_admits(mapping->host, handed);
		if (*result == NFR_SVC_BYPASS_MAY)
			inode = nfr_svc_file_grab(mapping->host);
	}
	folio_unlock(folio);
	return inode;
}

/**
 * nfr_svc_file_put - undo nfr_svc_file_get()
 * @inode: inode. Without a watch, this may be the last reference: its release does not wait for a
 *	thaw, which takes s_umount, see nfr_svc_file_grab()
 */
void nfr_svc_file_put(struct inode *inode)
{
	struct super_block *sb = inode->i_sb;

	iput(inode);
	up_read(&sb->s_umount);
}

/**
 * nfr_svc_file_read - check that a Call is a READ whose Reply has the file's own pages
 * @req: request
 * @rqstp: nfsd thread's request with the Reply in rq_res
 * @read: output
 *
 * Return: true if it is.
 */
bool nfr_svc_file_read(const struct nfr_svc_req *req, const struct svc_rqst *rqstp,
		       struct nfr_read *read)
{
	const struct xdr_buf *res = &rqstp->rq_res;

	return res->page_len && !req->npages &&
	       nfr_wire_decode_read(read, req->rpc, req->rpc_length) && read->count &&
	       res->page_base == offset_in_page(read->position);
}
