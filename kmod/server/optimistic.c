// SPDX-License-Identifier: GPL-2.0-only
/*
 * Personality optimistic: version 1, whose READs let the client read more of the file by
 * itself.
 *
 * nfsd knows file handles, this module does not. But nfsd answers a READ with pages of the
 * page cache, which name the file: the reference leads to the file that nfsd has just read
 * for this client.
 */
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/pagemap.h>

#include "server/call.h"
#include "server/optimistic.h"
#include "server/reply.h"
#include "server/request.h"

/* Type of a file handle of nfsd, see fs/nfsd/nfsfh.h: the fourth byte */
#define NFR_SVC_FH_TYPE		3
/* File handles of overlayfs, see fs/overlayfs/overlayfs.h */
#define NFR_SVC_FH_OVERLAY	0xf8
#define NFR_SVC_FH_OVERLAY_V0	0xfb

/*
 * File systems that change a file in its page cache only, and only from this host. Overlayfs
 * answers with pages of another file system, where it does not report all changes.
 */
static bool nfr_svc_optimistic_suits(const struct inode *inode, const struct nfr_read *read)
{
	u8 type = read->fh_length > NFR_SVC_FH_TYPE ? read->fh[NFR_SVC_FH_TYPE] : 0;

	if (!S_ISREG(inode->i_mode) || IS_DAX(inode) || type == NFR_SVC_FH_OVERLAY ||
	    type == NFR_SVC_FH_OVERLAY_V0)
		return false;
	switch (inode->i_sb->s_magic) {
	case BTRFS_SUPER_MAGIC:
	case EXT4_SUPER_MAGIC:
	case TMPFS_MAGIC:
	case XFS_SUPER_MAGIC:
		return true;
	default:
		return false;
	}
}

/*
 * Find the file of a page, and take references to its inode and its file system. A folio in
 * the page cache has its file as long as it is locked. Returns NULL if it has none.
 */
static struct inode *nfr_svc_optimistic_file(struct page *page, const struct nfr_read *read)
{
	struct folio *folio = page_folio(page);
	struct super_block *sb = NULL;
	struct inode *inode = NULL;
	struct address_space *mapping;

	if (!folio_trylock(folio))
		return NULL;
	mapping = folio_test_anon(folio) ? NULL : folio->mapping;
	if (!mapping || folio->index + folio_page_idx(folio, page) != read->position >> PAGE_SHIFT)
		goto out;
	if (!nfr_svc_optimistic_suits(mapping->host, read) ||
	    !atomic_inc_not_zero(&mapping->host->i_sb->s_active))
		goto out;
	/* nfsd has closed the file: the inode may be unused, or its eviction waits for the folio */
	inode = igrab(mapping->host);
	if (!inode)
		sb = mapping->host->i_sb;
out:
	folio_unlock(folio);
	if (sb)
		deactivate_super(sb);
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
	struct nfr_svc *side = nfr_svc_lane_latest(req->svc);
	struct page *page = rqstp->rq_res.pages[0];
	struct super_block *sb;
	struct inode *inode;

	if (!side)
		return;
	inode = nfr_svc_optimistic_file(page, read);
	if (inode) {
		sb = inode->i_sb;
		nfr_svc_grant_reference(side, read, inode, page, rqstp->rq_stime);
		iput(inode);
		deactivate_super(sb);
	} else {
		nfr_svc_count(side, refused[NFR_REFUSED_FILE], 1);
	}
	svc_xprt_put(&side->xprt);
}

static int nfr_svc_optimistic_reply(struct nfr_svc_req *req, struct svc_rqst *rqstp)
{
	struct nfr_read read;

	if (nfr_svc_optimistic_is_read(req, rqstp, &read))
		nfr_svc_optimistic_grant(req, &read, rqstp);
	return nfr_svc_reply(req, rqstp);
}

const struct nfr_svc_personality nfr_svc_optimistic = {
	.receive	= nfr_svc_version1_receive,
	.reply		= nfr_svc_optimistic_reply,
	.refuse		= nfr_svc_reply_error,
	.size		= nfr_wire_size,
	.finish		= nfr_svc_req_finish,
};
