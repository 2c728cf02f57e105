// SPDX-License-Identifier: GPL-2.0-only
/*
 * Optimistic reads of a transport. The way of a READ that needs no server: an RDMA Read of the
 * server's page cache into the pages of the caller, and a Reply that the client makes itself.
 *
 * The sender polls for the completion: a card answers sooner than a sleeping thread wakes.
 * If it does not answer soon, or if others wait to send, the completion is left to a worker.
 * A refused Read becomes an ordinary Call, at once if the sender polls, else as a Call that
 * sunrpc sends again.
 *
 * A branch carries the RDMA Reads and the notices of the server, and ends when it breaks. A card
 * may end it for a refused Read; the first connection does not feel that, and READs go by RPC
 * until there is another one. If too many Reads are refused, Reads pause for a while.
 */
#include <linux/nfs_fs.h>
#include <linux/nfs_xdr.h>
#include <linux/slab.h>
#include <linux/sunrpc/clnt.h>

#include "client/call.h"
#include "client/optimistic/optimistic.h"
#include "client/reply.h"
#include "connection/cm.h"
#include "connection/queues.h"
#include "connection/state.h"
#include "gfp.h"
#include "observe/trace.h"

/* RDMA Reads in flight, and scatter-gather elements of each */
#define NFR_READER_READS		64
#define NFR_READER_SGES		32u

/* Messages in flight that return credits */
#define NFR_READER_CREDIT_SLOTS	4

/* A connection was useful if it lasted for so long */
#define NFR_READER_WORKED		(10 * HZ)

/* Largest message, in bytes */
#define NFR_READER_INLINE		1024

/* Size of the send queue: Reads, and credits */
#define NFR_READER_SENDS		(NFR_READER_READS + 64)

/* Notices to handle before their credits are returned, and the bytes of that message */
#define NFR_READER_CREDITS	16
#define NFR_READER_CREDIT_BYTES	128

/*
 * Reads pause if the server's device refused more than one of NFR_READER_REFUSALS in a window:
 * a refused Read costs less than another one saves
 */
#define NFR_READER_WINDOW		256
#define NFR_READER_REFUSALS	2
#define NFR_READER_PAUSE		(10 * HZ)

/*
 * Refusals that the end of a connection with Reads in flight counts as: another connection, and
 * grants for all extents, cost what 200 Reads save. The state of the queue pair does not show
 * whether a refused Read ended it: some drivers keep that state themselves.
 */
#define NFR_READER_ENDED		100

/* Time for a Read to complete after its task ended, before the connection breaks */
#define NFR_READER_ABANDON	HZ

/* Reads that the sender does not wait for after one that was slow */
#define NFR_OPTIMISTIC_SKIP	32

struct nfr_reader;

/* State of an RDMA Read */
enum nfr_read_status {
	NFR_READ_POSTED,
	NFR_READ_DONE,
	NFR_READ_REFUSED,
};

/**
 * struct nfr_rdma_read - RDMA Read of a Call
 * @loan: Call
 * @list: link in nfr_reader.free or nfr_reader.busy
 * @reader: branch
 * @cqe: completion
 * @status: state; the lock protects it, and @polled
 * @polled: the sender waits for the completion, and finishes the Call
 * @handle: handle of the memory that it reads
 * @count: in bytes
 * @eof: whether the file ends with them
 * @scatter: mapping of the memory of the Call
 * @sges: its elements
 */
struct nfr_rdma_read {
	struct nfr_loan loan;
	struct list_head list;
	struct nfr_reader *reader;
	struct ib_cqe cqe;
	enum nfr_read_status status;
	bool polled;
	u32 handle;
	u32 count;
	bool eof;
	struct nfr_scatter scatter;
	struct ib_sge sges[NFR_READER_SGES];
};

/**
 * struct nfr_reader - branch that reads, one of a transport
 * @branch: connection; its pages are those of an extent, its buffer is for returning credits
 * @since: time in jiffies at which the connection was established
 * @failed: the device has not done the last Read; the lock protects it
 * @free: unused Reads; the lock protects the lists
 * @busy: Reads that belong to a Call
 * @skip: number of Reads that the sender does not wait for, because the last one was slow
 * @handled: notices that were handled, and whose credits were not returned
 * @ncredits: number of messages that returned credits
 * @marks: position of the send queue after the last ones
 * @reads: Reads
 */
struct nfr_reader {
	struct nfr_branch branch;
	unsigned long since;
	bool failed;
	struct list_head free;
	struct list_head busy;
	u32 skip;
	u32 handled;
	u32 ncredits;
	u32 marks[NFR_READER_CREDIT_SLOTS];
	struct nfr_rdma_read reads[NFR_READER_READS];
};

static struct nfr_optimist *nfr_client_optimist_of(struct nfr_branches *of)
{
	return container_of(of, struct nfr_optimist, branches);
}

/* --- completions --- */

/* Check whether the device has Reads to complete. */
static bool nfr_client_reader_is_busy(struct nfr_reader *reader)
{
	struct nfr_optimist *optimist = nfr_client_optimist_of(reader->branch.of);
	bool busy;

	spin_lock(&optimist->branches.lock);
	busy = !list_empty(&reader->busy);
	spin_unlock(&optimist->branches.lock);
	return busy;
}

/*
 * Handle the completions of sends, and have the next one reported. While no Read is in flight,
 * nobody needs the next completion.
 */
static void nfr_client_reader_poll(struct nfr_conn *conn)
{
	struct nfr_reader *reader = container_of(conn, struct nfr_reader, branch.conn);

	do {
		nfr_conn_sends_poll(conn);
	} while (nfr_client_reader_is_busy(reader) && nfr_conn_sends_arm(conn));
}

/* --- refused Reads --- */

/* Pause if too many of the last Reads were refused. Caller holds the lock. */
static void nfr_client_reader_decide(struct nfr_optimist *optimist)
{
	u32 most = max_t(u32, optimist->tried, NFR_READER_WINDOW);

	if (optimist->refused * NFR_READER_REFUSALS > most) {
		optimist->paused_until = jiffies + NFR_READER_PAUSE;
		optimist->branches.nx->counters.optimistic_pauses++;
		optimist->tried = 0;
		optimist->refused = 0;
	}
	/* older Reads count less */
	if (optimist->tried >= NFR_READER_WINDOW * NFR_READER_REFUSALS) {
		optimist->tried /= 2;
		optimist->refused /= 2;
	}
}

/* Drivers report a refusal in several ways. Not counted: an earlier failure, and no answer. */
static bool nfr_client_reader_is_refusal(enum ib_wc_status status)
{
	return status != IB_WC_WR_FLUSH_ERR && status != IB_WC_RETRY_EXC_ERR;
}

/* Learn from a Read that the server's device refused. */
static void nfr_client_reader_refused(struct nfr_rdma_read *read)
{
	struct nfr_optimist *optimist = nfr_client_optimist_of(read->reader->branch.of);

	spin_lock(&optimist->branches.lock);
	nfr_client_reference_drop(&optimist->references, read->handle);
	optimist->branches.nx->counters.optimistic_refused++;
	optimist->refused++;
	nfr_client_reader_decide(optimist);
	spin_unlock(&optimist->branches.lock);
}

/* Learn from the end of a connection. Caller holds the lock. */
static void nfr_client_reader_learn(struct nfr_reader *reader, struct nfr_optimist *optimist)
{
	if (!reader->failed)
		return;
	optimist->refused += NFR_READER_ENDED;
	nfr_client_reader_decide(optimist);
}

/* --- notices --- */

/* Post the message that returns credits. Returns -EAGAIN if its buffer is in use. */
static int nfr_client_reader_post_credits(struct nfr_reader *reader)
{
	struct nfr_notice notice = { .kind = NFR_NOTICE_CREDIT, .count = reader->handled };
	u32 slot = reader->ncredits % NFR_READER_CREDIT_SLOTS;
	u64 addr = reader->branch.addr + slot * NFR_READER_CREDIT_BYTES;
	struct nfr_conn *conn = &reader->branch.conn;
	struct ib_sge sge = { .addr = addr, .lkey = conn->pd->local_dma_lkey };
	struct ib_send_wr send = {
		.wr_cqe = &conn->signal_cqe, .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1,
	};
	int rc = -EAGAIN;

	spin_lock_bh(&conn->lock);
	if (reader->ncredits < NFR_READER_CREDIT_SLOTS ||
	    nfr_conn_is_retired(conn, reader->marks[slot])) {
		sge.length = nfr_wire_encode_notice(&notice, reader->branch.buffer +
						    slot * NFR_READER_CREDIT_BYTES);
		ib_dma_sync_single_for_device(conn->device, addr, sge.length, DMA_TO_DEVICE);
		rc = nfr_conn_post(conn, &send, &send, 1, true);
	}
	if (!rc) {
		reader->marks[slot] = nfr_conn_mark(conn);
		reader->ncredits++;
	}
	spin_unlock_bh(&conn->lock);
	return rc;
}

/* Count a notice, and return credits for several. The receive of the notice is posted again. */
static void nfr_client_reader_handled(struct nfr_reader *reader)
{
	int rc;

	if (++reader->handled < NFR_READER_CREDITS)
		return;
	/* earlier messages may be complete */
	nfr_conn_sends_poll(&reader->branch.conn);
	rc = nfr_client_reader_post_credits(reader);
	if (!rc)
		reader->handled = 0;
	else if (rc != -EAGAIN)
		nfr_conn_break(&reader->branch.conn, "returning credits failed");
}

static void nfr_client_reader_receive(struct nfr_conn *conn, struct nfr_recv *recv)
{
	struct nfr_reader *reader = container_of(conn, struct nfr_reader, branch.conn);
	struct nfr_optimist *optimist = nfr_client_optimist_of(reader->branch.of);
	struct nfr_notice notice;
	u32 i;

	if (nfr_wire_decode_notice(&notice, recv->data, recv->length) ||
	    notice.kind == NFR_NOTICE_CREDIT) {
		nfr_conn_recv_return(conn, recv);
		nfr_conn_break(conn, "malformed notice");
		return;
	}
	spin_lock(&optimist->branches.lock);
	if (notice.kind == NFR_NOTICE_GRANT)
		nfr_client_reference_grant(&optimist->references, &notice);
	for (i = 0; notice.kind == NFR_NOTICE_REVOKE && i < notice.count; i++)
		nfr_client_reference_drop(&optimist->references, notice.handles[i]);
	spin_unlock(&optimist->branches.lock);
	nfr_conn_recv_return(conn, recv);
	nfr_client_reader_handled(reader);
}

/* --- the connection --- */

static void nfr_client_reader_init(struct nfr_branch *branch)
{
	struct nfr_reader *reader = container_of(branch, struct nfr_reader, branch);
	u32 i;

	branch->conn.wanted.busy_poll_us = 0;
	INIT_LIST_HEAD(&reader->free);
	INIT_LIST_HEAD(&reader->busy);
	for (i = 0; i < NFR_READER_READS; i++) {
		reader->reads[i].reader = reader;
		reader->reads[i].loan.branch = branch;
		list_add_tail(&reader->reads[i].list, &reader->free);
	}
}

/* Elements of an RDMA Read; 0 if it would need a registration of the memory that it writes to */
static u32 nfr_client_reader_sges(const struct ib_device *device, u32 port)
{
	u32 sends = min_t(u32, device->attrs.max_send_sge, NFR_READER_SGES);

	return rdma_protocol_iwarp(device, port) ? 0 : nfr_mem_device_read_sges(device, sends);
}

/* See nfr_client_personality.limits. Other memory takes fewer elements than one for each page. */
static void nfr_client_optimistic_limits(struct seq_file *seq, const struct ib_device *device)
{
	u32 sges = nfr_client_reader_sges(device, rdma_start_port(device));

	seq_printf(seq, "optimistic_elements %u of %u\n", sges, NFR_READER_SGES);
	seq_printf(seq, "optimistic_read %lu of %u\n",
		   nfr_mem_device_joins(device) && sges ? NFR_EXTENT_MAX : sges * PAGE_SIZE,
		   NFR_EXTENT_MAX);
}

static int nfr_client_reader_fit(struct nfr_branch *branch)
{
	struct nfr_conn *conn = &branch->conn;
	const struct ib_device_attr *attrs = &conn->device->attrs;
	struct nfr_profile *profile = &conn->profile;

	profile->send_sges = nfr_client_reader_sges(conn->device, conn->id->port_num);
	if (!profile->send_sges)
		return nfr_conn_unfit(conn, "optimistic reads do not work on iWARP");
	profile->receives = NFR_NOTICES + 2 * NFR_BATCH;
	profile->sends = NFR_READER_SENDS;
	profile->recv_sges = 1;
	profile->reads_issued = min_t(int, attrs->max_qp_init_rd_atom, U8_MAX);
	profile->polled_sends = true;
	return 0;
}

/* The server states the size of its extents. */
static int nfr_client_reader_agree(struct nfr_branch *branch)
{
	u32 order = FIELD_GET(NFR_EXTENT_ORDER, branch->conn.peer.capabilities);

	if (order > NFR_EXTENT_ORDER_MAX)
		return nfr_conn_unfit(&branch->conn, "the server accepts no optimistic reads");
	branch->units = 1 << order;
	return 0;
}

static void nfr_client_reader_opened(struct nfr_branch *branch)
{
	struct nfr_reader *reader = container_of(branch, struct nfr_reader, branch);
	struct nfr_optimist *optimist = nfr_client_optimist_of(reader->branch.of);

	branch->of->nx->counters.optimistic_connects++;
	optimist->references.order = ilog2(branch->units);
	optimist->reader = reader;
	reader->since = jiffies;
}

/* The Read is available for the next Call. */
static void nfr_client_reader_returned(struct nfr_loan *loan, enum nfr_req_state state)
{
	struct nfr_rdma_read *read = container_of(loan, struct nfr_rdma_read, loan);
	struct nfr_client_counters *counters = &loan->branch->of->nx->counters;

	if (state == NFR_REQ_ANSWERED) {
		counters->optimistic_reads++;
		counters->optimistic_bytes += read->count;
		counters->optimistic_polled += read->polled;
	}
	list_move(&read->list, &read->reader->free);
}

/* Get a Read that the device did not complete, and never will. Returns NULL if there is none. */
static struct nfr_rdma_read *nfr_client_reader_unfinished(struct nfr_reader *reader)
{
	struct nfr_branches *of = reader->branch.of;
	struct nfr_rdma_read *read;

	spin_lock(&of->lock);
	read = list_first_entry_or_null(&reader->busy, struct nfr_rdma_read, list);
	reader->failed |= !!read;
	spin_unlock(&of->lock);
	return read;
}

/* The device does not write to the memory of Reads any more: their Calls are sent again by RPC. */
static void nfr_client_reader_ended(struct nfr_branch *branch)
{
	struct nfr_reader *reader = container_of(branch, struct nfr_reader, branch);
	struct nfr_optimist *optimist = nfr_client_optimist_of(reader->branch.of);
	struct nfr_rdma_read *read;

	trace_nfsrdma_lane_end(&branch->conn, 0);
	while ((read = nfr_client_reader_unfinished(reader))) {
		nfr_mem_scatter_unmap(branch->conn.device, &read->scatter);
		/* removes it from the list */
		nfr_client_loan_lose(&read->loan);
	}
	nfr_client_references_end(optimist);
	branch->useful = reader->since && time_after(jiffies, reader->since + NFR_READER_WORKED);
	spin_lock(&branch->of->lock);
	nfr_client_reader_learn(reader, optimist);
	optimist->reader = NULL;
	spin_unlock(&branch->of->lock);
}

static void nfr_client_optimist_destroy(struct nfr_branches *of)
{
	struct nfr_optimist *optimist = nfr_client_optimist_of(of);

	nfr_client_references_destroy(&optimist->references);
	kvfree(optimist);
}

static void nfr_client_optimist_show(struct nfr_branches *of, struct seq_file *seq)
{
	struct nfr_optimist *optimist = nfr_client_optimist_of(of);

	seq_printf(seq, "optimistic_connection %s\n",
		   READ_ONCE(optimist->reader) ? "yes" : "no");
	seq_printf(seq, "optimistic_paused %s\n",
		   time_before(jiffies, READ_ONCE(optimist->paused_until)) ? "yes" : "no");
	seq_printf(seq, "references %u\n", READ_ONCE(optimist->references.count));
}

static const struct nfr_branch_kind nfr_client_reader_kind = {
	.ops = {
		.receive	= nfr_client_reader_receive,
		.writable	= nfr_client_branch_writable,
		.broken		= nfr_client_branch_broken,
		.sent		= nfr_client_reader_poll,
	},
	.size		= sizeof(struct nfr_reader),
	.buffer		= NFR_READER_CREDIT_SLOTS * NFR_READER_CREDIT_BYTES,
	.inline_size	= NFR_READER_INLINE,
	.credits	= NFR_NOTICES,
	.patience	= NFR_READER_ABANDON,
	.init		= nfr_client_reader_init,
	.fit		= nfr_client_reader_fit,
	.agree		= nfr_client_reader_agree,
	.opened		= nfr_client_reader_opened,
	.returned	= nfr_client_reader_returned,
	.ended		= nfr_client_reader_ended,
	.destroy	= nfr_client_optimist_destroy,
	.show		= nfr_client_optimist_show,
};

/* --- recognizing a READ --- */

/* Describe what a READ of NFSv3 asks for. Returns false for other Calls. */
static bool nfr_client_optimistic_wants(const struct rpc_rqst *rqst, struct nfr_wanted *wanted)
{
	const struct rpc_task *task = rqst->rq_task;
	const struct xdr_buf *rcv = &rqst->rq_rcv_buf;
	const struct nfs_pgio_args *args;

	if (!(rcv->flags & XDRBUF_READ) || !task->tk_client ||
	    task->tk_client->cl_prog != NFS_PROGRAM || task->tk_client->cl_vers != NFS3_VERSION ||
	    task->tk_msg.rpc_proc->p_proc != NFS3PROC_READ ||
	    rqst->rq_cred->cr_auth->au_flavor != RPC_AUTH_UNIX)
		return false;
	args = task->tk_msg.rpc_argp;
	*wanted = (struct nfr_wanted) {
		.fh = args->fh->data, .fh_length = args->fh->size, .count = args->count,
		.position = args->offset, .cred = rqst->rq_cred->cr_cred, .call = &rqst->rq_snd_buf.head[0],
		.measured = args->replen,
	};
	return args->count && args->count <= rcv->page_len && wanted->cred &&
	       args->fh->size <= NFR_WIRE_FH_MAX &&
	       rcv->head[0].iov_len >= NFR_WIRE_READ_REPLY;
}

/* --- completing --- */

/* Make the Reply of a pinned request whose data has arrived. */
static void nfr_client_optimistic_place(struct nfr_req *req, u32 count, bool eof)
{
	struct rpc_rqst *rqst = &req->rqst;
	struct kvec *head = &rqst->rq_rcv_buf.head[0];

	nfr_wire_encode_read_reply(head->iov_base, be32_to_cpu(rqst->rq_xid), count, eof);
	/* XDR decoding continues in the pages where the header ends */
	head->iov_len = NFR_WIRE_READ_REPLY;
	rqst->rq_private_buf.head[0].iov_len = NFR_WIRE_READ_REPLY;
	req->result = NFR_WIRE_READ_REPLY + xdr_align_size(count);
}

/* Complete the RPC of a Read that has arrived. */
static void nfr_client_optimistic_finish(struct nfr_rdma_read *read)
{
	struct nfr_req *req = read->loan.req;

	if (!nfr_client_loan_pin(&read->loan)) {
		nfr_client_loan_return(&read->loan, NFR_REQ_IDLE);
		return;
	}
	nfr_client_optimistic_place(req, read->count, read->eof);
	nfr_client_loan_return(&read->loan, NFR_REQ_ANSWERED);
	nfr_client_reply_apart(req);
}

/* Handle the completion of a Read, in the sender or in a worker. */
static void nfr_client_optimistic_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct nfr_rdma_read *read = container_of(wc->wr_cqe, struct nfr_rdma_read, cqe);
	struct nfr_optimist *optimist = nfr_client_optimist_of(read->reader->branch.of);
	struct nfr_conn *conn = &read->reader->branch.conn;
	bool failed = wc->status != IB_WC_SUCCESS, polled;

	nfr_mem_scatter_unmap(conn->device, &read->scatter);
	trace_nfsrdma_optimistic(conn, &read->loan.req->rqst, read->handle, read->count,
				 wc->status);
	if (failed && nfr_client_reader_is_refusal(wc->status))
		nfr_client_reader_refused(read);
	/* the queue pair may survive a refused Read; if it does not, the device flushes its receives */
	if (wc->status == IB_WC_REM_ACCESS_ERR)
		nfr_conn_retire(conn, wc);
	else
		nfr_conn_check(conn, wc);
	spin_lock(&optimist->branches.lock);
	read->reader->failed = failed;
	read->status = failed ? NFR_READ_REFUSED : NFR_READ_DONE;
	polled = read->polled;
	spin_unlock(&optimist->branches.lock);
	if (polled)
		return;
	if (failed)
		nfr_client_loan_lose(&read->loan);
	else
		nfr_client_optimistic_finish(read);
}

/* --- sending --- */

/* Map the memory of a Call, and post the Read. Returns 0, or a negative errno for an RPC. */
static int nfr_client_optimistic_post(struct nfr_rdma_read *read, const struct nfr_segment *target)
{
	const struct xdr_buf *rcv = &read->loan.req->rqst.rq_rcv_buf;
	struct nfr_conn *conn = &read->reader->branch.conn;
	struct nfr_span span = {
		.pages = rcv->pages, .page_base = rcv->page_base, .page_len = target->length,
	};
	struct ib_rdma_wr wr = {
		.wr = { .wr_cqe = &read->cqe, .opcode = IB_WR_RDMA_READ, .sg_list = read->sges },
		.remote_addr = target->offset, .rkey = target->handle,
	};
	int rc;

	rc = nfr_mem_scatter_map(&read->scatter, conn->pd, &span, target->length, DMA_FROM_DEVICE,
				 read->sges, conn->profile.send_sges, NFR_GFP_RETRIED);
	if (rc < 0)
		return rc;
	wr.wr.num_sge = rc;
	read->cqe.done = nfr_client_optimistic_done;
	nfr_client_loan_post(&read->loan);
	spin_lock_bh(&conn->lock);
	rc = nfr_conn_post(conn, &wr.wr, &wr.wr, 1, true);
	spin_unlock_bh(&conn->lock);
	if (!rc)
		return 0;
	nfr_mem_scatter_unmap(conn->device, &read->scatter);
	if (rc != -EAGAIN)
		nfr_conn_break(conn, "posting an optimistic read failed");
	return rc;
}

/* Decide whether the sender may wait: nobody else does, and the last Reads were fast. */
static bool nfr_client_optimistic_may_spin(struct nfr_reader *reader)
{
	if (reader->skip) {
		reader->skip--;
		return false;
	}
	return !READ_ONCE(reader->branch.of->nx->xprt.sending.qlen);
}

/* Poll until a Read is complete, for a short time. */
static void nfr_client_optimistic_spin(struct nfr_rdma_read *read)
{
	struct nfr_reader *reader = read->reader;
	ktime_t end;

	nfr_conn_sends_poll(&reader->branch.conn);
	if (READ_ONCE(read->status) != NFR_READ_POSTED || !nfr_client_optimistic_may_spin(reader))
		return;
	end = ktime_add_us(ktime_get(), reader->branch.conn.wanted.optimistic_spin_us);
	do {
		if (need_resched() || ktime_after(ktime_get(), end)) {
			reader->skip = NFR_OPTIMISTIC_SKIP;
			return;
		}
		cpu_relax();
		nfr_conn_sends_poll(&reader->branch.conn);
	} while (READ_ONCE(read->status) == NFR_READ_POSTED);
}

/* Wait for a Read, or leave it to a worker. Returns its status. */
static enum nfr_read_status nfr_client_optimistic_wait(struct nfr_rdma_read *read)
{
	struct nfr_reader *reader = read->reader;
	struct nfr_optimist *optimist = nfr_client_optimist_of(reader->branch.of);
	enum nfr_read_status status;

	nfr_client_optimistic_spin(read);
	spin_lock(&optimist->branches.lock);
	status = read->status;
	if (status == NFR_READ_POSTED)
		read->polled = false;
	spin_unlock(&optimist->branches.lock);
	if (status != NFR_READ_POSTED)
		return status;
	if (nfr_conn_sends_arm(&reader->branch.conn))
		nfr_client_reader_poll(&reader->branch.conn);
	return NFR_READ_POSTED;
}

/* Check for a connected one with enough elements for the memory: a longer READ goes by RPC. */
static bool nfr_client_reader_suits(const struct nfr_reader *reader, const struct xdr_buf *rcv,
				    u32 length)
{
	const struct nfr_conn *conn;

	if (!reader || !nfr_conn_is_up(&reader->branch.conn))
		return false;
	conn = &reader->branch.conn;
	return PFN_UP(offset_in_page(rcv->page_base) + length) <= conn->profile.send_sges ||
	       nfr_mem_scatter_least(conn->device, rcv->pages, rcv->page_base, length) <=
	       conn->profile.send_sges;
}

/*
 * Find memory of the server for a READ, and borrow it. Returns the RDMA Read and @target, or NULL
 * if the READ has to go by RPC. If there is no branch, one connects for READs to come.
 */
static struct nfr_rdma_read *nfr_client_reader_take(struct nfr_conn *conn, struct nfr_req *req,
						    const struct nfr_wanted *wanted,
						    struct nfr_segment *target)
{
	struct nfr_optimist *optimist = nfr_client_optimist_of(req->nx->branches);
	struct nfr_rdma_read *read = NULL;
	struct nfr_reader *reader;
	bool add, eof, paused, found;

	spin_lock(&optimist->branches.lock);
	reader = optimist->reader;
	paused = time_before(jiffies, optimist->paused_until);
	add = !paused && nfr_client_branches_may_add(&optimist->branches, 1);
	/* also without a connection: the grant for this READ may come on the next one */
	found = nfr_client_reference_find(&optimist->references, wanted, target, &eof);
	if (found && wanted->measured && !paused &&
	    nfr_client_reader_suits(reader, &req->rqst.rq_rcv_buf, target->length))
		read = list_first_entry_or_null(&reader->free, struct nfr_rdma_read, list);
	if (read) {
		list_move_tail(&read->list, &reader->busy);
		nfr_client_loan_take(&read->loan, req);
		read->status = NFR_READ_POSTED;
		read->polled = true;
		read->handle = target->handle;
		read->count = target->length;
		read->eof = eof;
		optimist->tried++;
	} else {
		req->nx->counters.optimistic_misses++;
	}
	spin_unlock(&optimist->branches.lock);
	if (add)
		nfr_client_branch_add(&optimist->branches, conn);
	return read;
}

/* Read from memory of the server. Returns false if the READ has to go by RPC. */
static bool nfr_client_optimistic_send(struct nfr_rdma_read *read, const struct nfr_segment *target)
{
	enum nfr_read_status status = NFR_READ_REFUSED;

	if (!nfr_client_optimistic_post(read, target))
		status = nfr_client_optimistic_wait(read);
	if (status == NFR_READ_DONE)
		nfr_client_optimistic_finish(read);
	else if (status == NFR_READ_REFUSED)
		nfr_client_loan_return(&read->loan, NFR_REQ_IDLE);
	return status != NFR_READ_REFUSED;
}

/*
 * See nfr_client_personality.marshal. @req holds a credit of @conn, which an RDMA Read does not
 * need.
 */
static int nfr_client_optimistic_marshal(struct nfr_conn *conn, struct nfr_req *req)
{
	struct nfr_rdma_read *read = NULL;
	struct nfr_segment target;
	struct nfr_wanted wanted;
	bool sent;

	if (!nfr_client_optimistic_wants(&req->rqst, &wanted))
		return nfr_client_marshal(conn, req);
	sent = req->loan && nfr_client_loan_retransmit(req);
	if (!sent && req->state != NFR_REQ_LOST)
		read = nfr_client_reader_take(conn, req, &wanted, &target);
	if (read) {
		sent = nfr_client_optimistic_send(read, &target);
		nfr_client_loan_posted(req->nx->branches);
	}
	if (!sent) {
		/* a branch may have had it */
		req->generation = conn->generation;
		return nfr_client_marshal(conn, req);
	}
	nfr_conn_credit_back(conn);
	return 0;
}

/* Allocate what the optimistic reads of a transport need. */
static bool nfr_client_optimist_setup(struct nfr_xprt *nx)
{
	struct nfr_optimist *optimist = kvzalloc(sizeof(*optimist), GFP_KERNEL);

	if (!optimist)
		return false;
	nfr_client_branches_init(&optimist->branches, nx, &nfr_client_reader_kind);
	optimist->paused_until = jiffies;
	nfr_client_references_init(&optimist->references, nx->token);
	return true;
}

const struct nfr_client_personality nfr_client_optimistic = {
	.number		= NFR_OPTIMISTIC,
	.ops		= &nfr_client_conn_ops,
	.setup		= nfr_client_optimist_setup,
	.limits		= nfr_client_optimistic_limits,
	.marshal	= nfr_client_optimistic_marshal,
	.receive	= nfr_client_receive,
	.send		= nfr_client_send,
};
