// SPDX-License-Identifier: GPL-2.0-only
/* Requests and their completion statuses: InfiniBand specification, 9.9 and 11.6. */
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/string.h>

#include "pair.h"

#define PAGES		(REGION * PAGE_SIZE)
#define REMOTE		(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE)

static void fill(struct end *end, u32 length)
{
	u32 i;

	for (i = 0; i < length; i++)
		end->data[i] = i * 7 + i / 251;
}

static bool same(const struct pair *pair, u64 far_at, u32 length)
{
	return !memcmp(pair->near.data, pair->far.data + far_at, length);
}

static int post_rdma(struct pair *pair, enum ib_wr_opcode opcode, u64 id, u64 addr, u32 key,
		     u32 length)
{
	struct ib_rdma_wr wr = { .wr.opcode = opcode, .remote_addr = addr, .rkey = key };

	return post(&pair->near, &wr.wr, id, 0, length);
}

static int post_send_wr(struct end *end, enum ib_wr_opcode opcode, u64 id, u32 length, u32 key)
{
	struct ib_send_wr wr = { .opcode = opcode, .ex.invalidate_rkey = key };

	return post(end, &wr, id, 0, length);
}

static int post_inv(struct end *end, u64 id, u32 key)
{
	return post_send_wr(end, IB_WR_LOCAL_INV, id, 0, key);
}

/* Registers the far end's memory for the near end */
static bool offered(struct pair *pair, int access)
{
	return !reg(&pair->far, 90, access) && comes(&pair->far, 90, IB_WC_SUCCESS);
}

/* --- messages --- */

static const char *send_delivers_the_message(struct pair *pair)
{
	struct ib_wc wc;

	fill(&pair->near, 5000);
	EXPECT(!post_recv(&pair->far, 1, 100, 8192));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 5000, 0));
	EXPECT(poll(&pair->far, &wc) && wc.status == IB_WC_SUCCESS);
	EXPECT(wc.wr_id == 1 && wc.opcode == IB_WC_RECV && wc.byte_len == 5000 && !wc.wc_flags);
	EXPECT(poll(&pair->near, &wc) && wc.status == IB_WC_SUCCESS);
	EXPECT(wc.wr_id == 2 && wc.opcode == IB_WC_SEND);
	EXPECT(same(pair, 100, 5000));
	EXPECT(!pair->far.data[99] && !pair->far.data[5100]);
	return NULL;
}

static const char *send_delivers_immediate_data(struct pair *pair)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND_WITH_IMM, .ex.imm_data = htonl(77) };
	struct ib_wc wc;

	EXPECT(!post_recv(&pair->far, 1, 0, 100));
	EXPECT(!post(&pair->near, &wr, 2, 0, 0));
	EXPECT(poll(&pair->far, &wc) && wc.status == IB_WC_SUCCESS && !wc.byte_len);
	EXPECT(wc.wc_flags == IB_WC_WITH_IMM && wc.ex.imm_data == htonl(77));
	return NULL;
}

static const char *post_copies_inline_data(struct pair *pair)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .send_flags = IB_SEND_INLINE };

	EXPECT(!post_recv(&pair->far, 1, 0, 100));
	strscpy(pair->near.data, "inline", 16);
	EXPECT(!post(&pair->near, &wr, 2, 0, 16));
	EXPECT(comes(&pair->far, 1, IB_WC_SUCCESS));
	EXPECT(!strcmp(pair->far.data, "inline"));
	wr.sg_list = NULL;
	EXPECT(post(&pair->near, &wr, 3, 0, 4096) == -EINVAL);
	return NULL;
}

static const char *large_message_arrives_complete(struct pair *pair)
{
	fill(&pair->near, SIZE);
	EXPECT(!post_recv(&pair->far, 1, 0, SIZE));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, SIZE, 0));
	EXPECT(comes(&pair->far, 1, IB_WC_SUCCESS));
	EXPECT(comes(&pair->near, 2, IB_WC_SUCCESS));
	EXPECT(same(pair, 0, SIZE));
	return NULL;
}

static const char *message_longer_than_the_receive_fails(struct pair *pair)
{
	EXPECT(!post_recv(&pair->far, 1, 0, 4095));
	EXPECT(!post_recv(&pair->far, 3, 0, 4096));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 4096, 0));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_INV_REQ_ERR));
	EXPECT(comes(&pair->far, 1, IB_WC_LOC_LEN_ERR));
	EXPECT(comes(&pair->far, 3, IB_WC_WR_FLUSH_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_ERR));
	return NULL;
}

static const char *missing_receive_ends_with_rnr_error(struct pair *pair)
{
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 10, 0));
	EXPECT(comes(&pair->near, 2, IB_WC_RNR_RETRY_EXC_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_RTS));
	return NULL;
}

static const char *rnr_retry_delivers_the_message(struct pair *pair)
{
	struct ib_wc wc;

	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 10, 0));
	msleep(20);
	EXPECT(!ib_poll_cq(pair->near.cq, 1, &wc));
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	EXPECT(comes(&pair->far, 1, IB_WC_SUCCESS));
	EXPECT(comes(&pair->near, 2, IB_WC_SUCCESS));
	return NULL;
}

/* --- Reads and Writes --- */

static const char *write_and_read_transfer_data(struct pair *pair)
{
	u64 at = pair->far.dma;
	u32 key;

	EXPECT(offered(pair, REMOTE));
	key = pair->far.mr->rkey;
	fill(&pair->near, PAGES);
	EXPECT(!post_rdma(pair, IB_WR_RDMA_WRITE, 2, at, key, PAGES));
	EXPECT(comes(&pair->near, 2, IB_WC_SUCCESS));
	EXPECT(same(pair, 0, PAGES));
	memset(pair->near.data, 0, PAGES);
	EXPECT(!post_rdma(pair, IB_WR_RDMA_READ, 3, at + 5, key, 9000));
	EXPECT(comes(&pair->near, 3, IB_WC_SUCCESS));
	EXPECT(same(pair, 5, 9000));
	EXPECT(!pair->near.data[9000]);
	return NULL;
}

static const char *write_with_immediate_consumes_a_receive(struct pair *pair)
{
	struct ib_rdma_wr wr = {
		.wr = { .opcode = IB_WR_RDMA_WRITE_WITH_IMM, .ex.imm_data = htonl(5) },
		.remote_addr = pair->far.dma,
	};
	struct ib_wc wc;

	EXPECT(offered(pair, REMOTE));
	wr.rkey = pair->far.mr->rkey;
	EXPECT(!post_recv(&pair->far, 1, 0, 0));
	EXPECT(!post(&pair->near, &wr.wr, 2, 0, 100));
	EXPECT(poll(&pair->far, &wc) && wc.status == IB_WC_SUCCESS && wc.byte_len == 100);
	EXPECT(wc.opcode == IB_WC_RECV_RDMA_WITH_IMM && wc.ex.imm_data == htonl(5));
	return NULL;
}

/* The far end refuses the request: both queue pairs go to the error state */
static const char *refused(struct pair *pair, enum ib_wr_opcode opcode, u64 at, u32 key,
			   u32 length)
{
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	EXPECT(!post_rdma(pair, opcode, 2, at, key, length));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_ACCESS_ERR));
	EXPECT(comes(&pair->far, 1, IB_WC_WR_FLUSH_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_ERR));
	return NULL;
}

static const char *old_key_is_refused(struct pair *pair)
{
	EXPECT(offered(pair, REMOTE));
	return refused(pair, IB_WR_RDMA_WRITE, pair->far.dma, pair->far.mr->rkey - 1, 10);
}

static const char *key_of_all_memory_is_refused(struct pair *pair)
{
	return refused(pair, IB_WR_RDMA_READ, pair->far.dma, pair->far.pd->local_dma_lkey, 10);
}

static const char *write_beyond_the_end_is_refused(struct pair *pair)
{
	EXPECT(offered(pair, REMOTE));
	return refused(pair, IB_WR_RDMA_WRITE, pair->far.dma + PAGES - 9, pair->far.mr->rkey, 10);
}

static const char *read_before_the_start_is_refused(struct pair *pair)
{
	EXPECT(offered(pair, REMOTE));
	return refused(pair, IB_WR_RDMA_READ, pair->far.dma - 1, pair->far.mr->rkey, 10);
}

static const char *write_without_access_right_is_refused(struct pair *pair)
{
	EXPECT(offered(pair, IB_ACCESS_REMOTE_READ));
	return refused(pair, IB_WR_RDMA_WRITE, pair->far.dma, pair->far.mr->rkey, 10);
}

static const char *read_without_access_right_is_refused(struct pair *pair)
{
	EXPECT(offered(pair, IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE));
	return refused(pair, IB_WR_RDMA_READ, pair->far.dma, pair->far.mr->rkey, 10);
}

static const char *invalidated_region_is_refused(struct pair *pair)
{
	EXPECT(offered(pair, REMOTE));
	EXPECT(!post_inv(&pair->far, 91, pair->far.mr->rkey));
	EXPECT(comes(&pair->far, 91, IB_WC_SUCCESS));
	return refused(pair, IB_WR_RDMA_WRITE, pair->far.dma, pair->far.mr->rkey, 10);
}

static const char *queue_pair_without_access_flags_refuses(struct pair *pair)
{
	EXPECT(offered(pair, REMOTE));
	EXPECT(!post_rdma(pair, IB_WR_RDMA_WRITE, 2, pair->far.dma, pair->far.mr->rkey, 10));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_INV_REQ_ERR));
	EXPECT(in_state(&pair->far, IB_QPS_ERR));
	return NULL;
}

/* --- regions --- */

static const char *send_with_inv_invalidates(struct pair *pair)
{
	struct ib_wc wc;
	u32 key;

	EXPECT(offered(pair, REMOTE));
	key = pair->far.mr->rkey;
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND_WITH_INV, 2, 10, key));
	EXPECT(poll(&pair->far, &wc) && wc.status == IB_WC_SUCCESS);
	EXPECT(wc.wc_flags == IB_WC_WITH_INVALIDATE && wc.ex.invalidate_rkey == key);
	EXPECT(comes(&pair->near, 2, IB_WC_SUCCESS));
	return refused(pair, IB_WR_RDMA_WRITE, pair->far.dma, key, 10);
}

static const char *send_with_inv_of_an_invalid_region_fails(struct pair *pair)
{
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND_WITH_INV, 2, 10, pair->far.mr->rkey));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_ACCESS_ERR));
	EXPECT(in_state(&pair->far, IB_QPS_ERR));
	return NULL;
}

static const char *valid_region_cannot_be_registered(struct pair *pair)
{
	struct ib_reg_wr wr = { .wr.opcode = IB_WR_REG_MR, .mr = pair->far.mr, .access = REMOTE };

	EXPECT(offered(pair, REMOTE));
	wr.key = pair->far.mr->rkey;
	EXPECT(!post(&pair->far, &wr.wr, 91, 0, 0));
	EXPECT(comes(&pair->far, 91, IB_WC_MW_BIND_ERR));
	EXPECT(in_state(&pair->far, IB_QPS_ERR) && in_state(&pair->near, IB_QPS_RTS));
	return NULL;
}

static const char *send_reads_registered_memory(struct pair *pair)
{
	struct ib_sge sge = { .length = 10 };
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .sg_list = &sge, .num_sge = 1 };

	EXPECT(!reg(&pair->near, 90, IB_ACCESS_LOCAL_WRITE));
	EXPECT(comes(&pair->near, 90, IB_WC_SUCCESS));
	sge.lkey = pair->near.mr->lkey;
	sge.addr = pair->near.mr->iova + PAGES - 10;
	EXPECT(!post_recv(&pair->far, 1, 0, 10) && !post_recv(&pair->far, 3, 0, 10));
	EXPECT(!post(&pair->near, &wr, 2, 0, 0));
	EXPECT(comes(&pair->far, 1, IB_WC_SUCCESS) && comes(&pair->near, 2, IB_WC_SUCCESS));
	sge.addr++;
	EXPECT(!post(&pair->near, &wr, 4, 0, 0));
	EXPECT(comes(&pair->near, 4, IB_WC_LOC_PROT_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_RTS));
	return NULL;
}

static const char *gaps_transfer(struct pair *pair, struct ib_mr *mr)
{
	static const u32 at[] = { 100, 9000, 20001 }, length[] = { 300, 5000, 7 };
	struct scatterlist sg[3];
	u32 done = 0;
	int i;

	sg_init_table(sg, ARRAY_SIZE(sg));
	for (i = 0; i < ARRAY_SIZE(sg); i++) {
		sg_dma_address(&sg[i]) = pair->far.dma + at[i];
		sg_dma_len(&sg[i]) = length[i];
	}
	fill(&pair->near, 5307);
	EXPECT(!reg_list(&pair->far, mr, sg, ARRAY_SIZE(sg), 90, REMOTE));
	EXPECT(comes(&pair->far, 90, IB_WC_SUCCESS));
	EXPECT(mr->length == 5307);
	EXPECT(!post_rdma(pair, IB_WR_RDMA_WRITE, 2, mr->iova, mr->rkey, 5307));
	EXPECT(comes(&pair->near, 2, IB_WC_SUCCESS));
	for (i = 0; i < ARRAY_SIZE(sg); i++) {
		EXPECT(!memcmp(pair->near.data + done, pair->far.data + at[i], length[i]));
		EXPECT(!pair->far.data[at[i] - 1] && !pair->far.data[at[i] + length[i]]);
		done += length[i];
	}
	return NULL;
}

static const char *region_with_gaps_transfers_data(struct pair *pair)
{
	struct ib_mr *mr = ib_alloc_mr(pair->far.pd, IB_MR_TYPE_SG_GAPS, 3);
	const char *result;

	EXPECT(!IS_ERR(mr));
	result = gaps_transfer(pair, mr);
	ib_dereg_mr(mr);
	return result;
}

static const char *region_of_another_domain_cannot_be_registered(struct pair *pair)
{
	struct ib_pd *other = ib_alloc_pd(pair->far.device, 0);
	struct ib_mr *mr;
	bool fails;

	EXPECT(!IS_ERR(other));
	mr = ib_alloc_mr(other, IB_MR_TYPE_MEM_REG, REGION);
	fails = !IS_ERR(mr) && !reg_list(&pair->far, mr, pair->far.sg, REGION, 91, REMOTE) &&
		comes(&pair->far, 91, IB_WC_MW_BIND_ERR);
	if (!IS_ERR(mr))
		ib_dereg_mr(mr);
	ib_dealloc_pd(other);
	EXPECT(fails);
	return NULL;
}

static const char *global_rkey_permits_access(struct pair *pair)
{
	fill(&pair->near, 5000);
	EXPECT(!post_rdma(pair, IB_WR_RDMA_WRITE, 2, pair->far.dma + 100,
			  pair->far.pd->unsafe_global_rkey, 5000));
	EXPECT(comes(&pair->near, 2, IB_WC_SUCCESS));
	EXPECT(same(pair, 100, 5000));
	return NULL;
}

static const char *global_rkey_of_another_domain_is_refused(struct pair *pair)
{
	struct ib_pd *other = ib_alloc_pd(pair->far.device, IB_PD_UNSAFE_GLOBAL_RKEY);
	const char *result;

	EXPECT(!IS_ERR(other));
	result = refused(pair, IB_WR_RDMA_WRITE, pair->far.dma, other->unsafe_global_rkey, 10);
	ib_dealloc_pd(other);
	return result;
}

/* A queue pair that invalidates the far end's region again and again */
struct rival {
	struct end end;
	u32 key;
	atomic_t rounds;
};

static int rival_run(void *data)
{
	struct rival *rival = data;
	bool works = true;

	while (!kthread_should_stop()) {
		works = works && !post_inv(&rival->end, 5, rival->key) &&
			comes(&rival->end, 5, IB_WC_SUCCESS);
		if (works)
			atomic_inc(&rival->rounds);
		cond_resched();
	}
	return works ? 0 : -EIO;
}

/* Whether the rival completes an invalidation; in softirq context it would stop a processor */
static bool rival_goes_on(struct rival *rival)
{
	unsigned long end_time = jiffies + msecs_to_jiffies(15000);
	int before = atomic_read(&rival->rounds);

	while (atomic_read(&rival->rounds) == before) {
		if (time_after(jiffies, end_time))
			return false;
		cond_resched();
	}
	return true;
}

static int post_reg(struct end *end, u64 id)
{
	struct ib_reg_wr wr = {
		.wr.opcode = IB_WR_REG_MR, .mr = end->mr, .key = end->mr->rkey, .access = REMOTE,
	};

	return post(end, &wr.wr, id, 0, 0);
}

static const char *contested(struct pair *pair, struct rival *rival)
{
	int i;

	for (i = 0; i < 20000; i++) {
		EXPECT(!post_inv(&pair->far, 91, rival->key));
		EXPECT(comes(&pair->far, 91, IB_WC_SUCCESS));
		EXPECT(!post_reg(&pair->far, 92) && comes(&pair->far, 92, IB_WC_SUCCESS));
		EXPECT(rival_goes_on(rival));
	}
	return NULL;
}

/* Invalidations by two queue pairs end, although one of them registers the region again */
static const char *invalidations_of_two_queue_pairs_end(struct pair *pair)
{
	struct rival *rival = kzalloc(sizeof(*rival), GFP_KERNEL);
	struct ib_cq_init_attr attr = { .cqe = QUEUE };
	struct task_struct *task = ERR_PTR(-ENOMEM);
	const char *result = "no rival";

	if (!rival)
		return result;
	rival->end = pair->far;
	rival->end.qp = NULL;
	rival->end.cq = ib_create_cq(pair->far.device, NULL, NULL, NULL, &attr);
	if (IS_ERR(rival->end.cq))
		goto out;
	if (!end_create_qp(&rival->end) && !end_connect(&rival->end, &pair->near, &usual) &&
	    offered(pair, REMOTE)) {
		rival->key = pair->far.mr->rkey;
		task = kthread_run(rival_run, rival, "card_verbs");
	}
	if (!IS_ERR(task)) {
		result = contested(pair, rival);
		/* ends a wait for the region */
		post_inv(&pair->far, 93, rival->key);
		if (kthread_stop(task) && !result)
			result = "the rival failed";
	}
	if (!IS_ERR_OR_NULL(rival->end.qp))
		ib_destroy_qp(rival->end.qp);
	ib_destroy_cq(rival->end.cq);
out:
	kfree(rival);
	return result;
}

/* --- queue pairs --- */

static const char *error_state_flushes_in_order(struct pair *pair)
{
	u64 id;

	EXPECT(!post_recv(&pair->near, 1, 0, 10) && !post_recv(&pair->near, 2, 0, 10));
	EXPECT(!state(&pair->near, IB_QPS_ERR));
	EXPECT(comes(&pair->near, 1, IB_WC_WR_FLUSH_ERR));
	EXPECT(comes(&pair->near, 2, IB_WC_WR_FLUSH_ERR));
	for (id = 3; id < 9; id++)
		EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, id, 10, 0));
	for (id = 3; id < 9; id++)
		EXPECT(comes(&pair->near, id, IB_WC_WR_FLUSH_ERR));
	EXPECT(!post_recv(&pair->near, 9, 0, 10) && comes(&pair->near, 9, IB_WC_WR_FLUSH_ERR));
	return NULL;
}

static const char *silent_peer_ends_with_retry_error(struct pair *pair)
{
	EXPECT(!state(&pair->far, IB_QPS_RESET));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 10, 0));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 3, 10, 0));
	EXPECT(comes(&pair->near, 2, IB_WC_RETRY_EXC_ERR));
	EXPECT(comes(&pair->near, 3, IB_WC_WR_FLUSH_ERR));
	return NULL;
}

static const char *post_to_a_full_queue_fails(struct pair *pair)
{
	u32 i;

	for (i = 0; i < QUEUE; i++)
		EXPECT(!post_recv(&pair->far, i, 0, 10));
	EXPECT(post_recv(&pair->far, i, 0, 10) == -ENOMEM);
	return NULL;
}

static const char *completion_queue_overrun_breaks_the_queue_pair(struct pair *pair)
{
	u32 i;

	for (i = 0; i < 17; i++)
		EXPECT(!post_inv(&pair->near, i, pair->near.mr->rkey));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_RTS));
	for (i = 0; i < 16; i++)
		EXPECT(comes(&pair->near, i, IB_WC_SUCCESS));
	return NULL;
}

static const char *unsupported_opcode_fails(struct pair *pair)
{
	struct ib_atomic_wr wr = { .wr.opcode = IB_WR_ATOMIC_FETCH_AND_ADD };

	EXPECT(post(&pair->near, &wr.wr, 1, 0, 8));
	EXPECT(in_state(&pair->near, IB_QPS_RTS));
	return NULL;
}

/* --- devices that recover --- */

/* The far end refuses the request: both queue pairs stay usable */
static const char *survived(struct pair *pair, enum ib_wr_opcode opcode)
{
	EXPECT(offered(pair, REMOTE));
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	EXPECT(!post_rdma(pair, opcode, 2, pair->far.dma - 1, pair->far.mr->rkey, 10));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_ACCESS_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_RTS) && in_state(&pair->far, IB_QPS_RTS));
	EXPECT(!post_rdma(pair, opcode, 3, pair->far.dma, pair->far.mr->rkey, 10));
	EXPECT(comes(&pair->near, 3, IB_WC_SUCCESS));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 4, 10, 0));
	EXPECT(comes(&pair->far, 1, IB_WC_SUCCESS) && comes(&pair->near, 4, IB_WC_SUCCESS));
	return NULL;
}

static const char *refused_write_leaves_queue_pairs_usable(struct pair *pair)
{
	return survived(pair, IB_WR_RDMA_WRITE);
}

static const char *refused_read_leaves_queue_pairs_usable(struct pair *pair)
{
	return survived(pair, IB_WR_RDMA_READ);
}

/* A request that is not a Read or Write breaks the queue pairs of such a device, too */
static const char *other_failures_break_the_queue_pair(struct pair *pair)
{
	EXPECT(!post_recv(&pair->far, 1, 0, 4095));
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 4096, 0));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_INV_REQ_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_ERR));
	return NULL;
}

/* --- memory that is not mapped any more: an IOMMU refuses it --- */

static const char *send_from_unmapped_memory_fails(struct pair *pair)
{
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	end_unmap(&pair->near);
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 10, 0));
	EXPECT(comes(&pair->near, 2, IB_WC_LOC_PROT_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_RTS));
	return NULL;
}

static const char *receive_in_unmapped_memory_fails(struct pair *pair)
{
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	end_unmap(&pair->far);
	EXPECT(!post_send_wr(&pair->near, IB_WR_SEND, 2, 10, 0));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_OP_ERR));
	EXPECT(comes(&pair->far, 1, IB_WC_LOC_PROT_ERR));
	return NULL;
}

/* The key is valid, and the memory behind it is not mapped */
static const char *unmapped(struct pair *pair, enum ib_wr_opcode opcode)
{
	EXPECT(offered(pair, REMOTE));
	end_unmap(&pair->far);
	EXPECT(!post_rdma(pair, opcode, 2, pair->far.dma + 5, pair->far.mr->rkey, 9000));
	EXPECT(comes(&pair->near, 2, IB_WC_REM_OP_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR) && in_state(&pair->far, IB_QPS_ERR));
	return NULL;
}

static const char *write_to_unmapped_memory_fails(struct pair *pair)
{
	return unmapped(pair, IB_WR_RDMA_WRITE);
}

static const char *read_of_unmapped_memory_fails(struct pair *pair)
{
	return unmapped(pair, IB_WR_RDMA_READ);
}

static const struct terms patient = { 7, 14, 8, 2, 16, REMOTE, 4 * QUEUE };
static const struct terms closed = { 0, 1, 8, 2, 16, 0, 4 * QUEUE };
static const struct terms small = { 0, 1, 8, 2, 16, REMOTE, 16 };
static const struct terms global = { 0, 1, 8, 2, 16, REMOTE, 4 * QUEUE, IB_PD_UNSAFE_GLOBAL_RKEY };

#define TEST(_run, _terms) { .name = #_run, .run = _run, .terms = &(_terms) }

const struct test tests[] = {
	TEST(send_delivers_the_message, usual),
	TEST(send_delivers_immediate_data, usual),
	TEST(post_copies_inline_data, usual),
	TEST(large_message_arrives_complete, usual),
	TEST(message_longer_than_the_receive_fails, usual),
	TEST(missing_receive_ends_with_rnr_error, usual),
	TEST(rnr_retry_delivers_the_message, patient),
	TEST(write_and_read_transfer_data, usual),
	TEST(write_with_immediate_consumes_a_receive, usual),
	TEST(old_key_is_refused, usual),
	TEST(key_of_all_memory_is_refused, usual),
	TEST(write_beyond_the_end_is_refused, usual),
	TEST(read_before_the_start_is_refused, usual),
	TEST(write_without_access_right_is_refused, usual),
	TEST(read_without_access_right_is_refused, usual),
	TEST(invalidated_region_is_refused, usual),
	TEST(queue_pair_without_access_flags_refuses, closed),
	TEST(send_with_inv_invalidates, usual),
	TEST(send_with_inv_of_an_invalid_region_fails, usual),
	TEST(valid_region_cannot_be_registered, usual),
	TEST(send_reads_registered_memory, usual),
	TEST(region_with_gaps_transfers_data, usual),
	TEST(region_of_another_domain_cannot_be_registered, usual),
	TEST(invalidations_of_two_queue_pairs_end, usual),
	TEST(global_rkey_permits_access, global),
	TEST(global_rkey_of_another_domain_is_refused, usual),
	TEST(error_state_flushes_in_order, usual),
	TEST(silent_peer_ends_with_retry_error, usual),
	TEST(post_to_a_full_queue_fails, usual),
	TEST(completion_queue_overrun_breaks_the_queue_pair, small),
	TEST(unsupported_opcode_fails, usual),
};

const unsigned int num_tests = ARRAY_SIZE(tests);

const struct test recoverable_tests[] = {
	TEST(refused_write_leaves_queue_pairs_usable, usual),
	TEST(refused_read_leaves_queue_pairs_usable, usual),
	TEST(other_failures_break_the_queue_pair, usual),
};

const unsigned int num_recoverable_tests = ARRAY_SIZE(recoverable_tests);

const struct test unmapped_tests[] = {
	TEST(send_from_unmapped_memory_fails, usual),
	TEST(receive_in_unmapped_memory_fails, usual),
	TEST(write_to_unmapped_memory_fails, usual),
	TEST(read_of_unmapped_memory_fails, usual),
};

const unsigned int num_unmapped_tests = ARRAY_SIZE(unmapped_tests);
