// SPDX-License-Identifier: GPL-2.0-only
/*
 * Loading this module runs verbs between two RDMA devices, which parameters name.
 * /sys/kernel/debug/card_verbs has a line for each case: its name, and "ok" or
 * the expectation that failed.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <net/ipv6.h>
#include <rdma/ib_cache.h>

#include "pair.h"

/* Milliseconds to wait for a completion; a busy host is slow */
#define PATIENCE	60000

static char *near = "card0";
module_param(near, charp, 0444);
static char *far = "card1";
module_param(far, charp, 0444);

const struct terms usual = {
	.rnr_retry = 0, .min_rnr_timer = 1, .timeout = 8, .retry_cnt = 2, .reads = 16,
	.access = IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE,
	.cqe = 4 * QUEUE,
};

static bool recoverable;
module_param(recoverable, bool, 0444);
static bool unmapped;
module_param(unmapped, bool, 0444);
static bool profile;
module_param(profile, bool, 0444);
/* How often each mapping is undone: any other number than 1 is a mistake made on purpose */
static unsigned int unmaps = 1;
module_param(unmaps, uint, 0444);

static struct ib_device *found[2];
static const char *results[64];
static struct dentry *file;

/* --- helpers of the cases --- */

int state(struct end *end, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = state };

	return ib_modify_qp(end->qp, &attr, IB_QP_STATE);
}

int post_recv(struct end *end, u64 id, u64 at, u32 length)
{
	struct ib_sge sge = {
		.addr = end->dma + at, .length = length, .lkey = end->pd->local_dma_lkey,
	};
	struct ib_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };

	return ib_post_recv(end->qp, &wr, NULL);
}

int post(struct end *end, struct ib_send_wr *wr, u64 id, u64 at, u32 length)
{
	struct ib_sge sge = {
		.addr = end->dma + at, .length = length, .lkey = end->pd->local_dma_lkey,
	};

	/* the processor copies inline data */
	if (wr->send_flags & IB_SEND_INLINE)
		sge.addr = (uintptr_t)end->data + at;
	wr->wr_id = id;
	wr->send_flags |= IB_SEND_SIGNALED;
	if (!wr->sg_list && length) {
		wr->sg_list = &sge;
		wr->num_sge = 1;
	}
	return ib_post_send(end->qp, wr, NULL);
}

/* Registers a region under a new key */
int reg_list(struct end *end, struct ib_mr *mr, struct scatterlist *sg, int num, u64 id,
	     int access)
{
	struct ib_reg_wr wr = {
		.wr = { .wr_id = id, .opcode = IB_WR_REG_MR, .send_flags = IB_SEND_SIGNALED },
		.mr = mr, .access = access,
	};

	if (ib_map_mr_sg(mr, sg, num, NULL, PAGE_SIZE) != num)
		return -EINVAL;
	ib_update_fast_reg_key(mr, (mr->rkey & 0xff) + 1);
	wr.key = mr->rkey;
	return ib_post_send(end->qp, &wr.wr, NULL);
}

/* Registers the region of an end under a new key */
int reg(struct end *end, u64 id, int access)
{
	return reg_list(end, end->mr, end->sg, REGION, id, access);
}

bool poll(struct end *end, struct ib_wc *wc)
{
	unsigned long end_time = jiffies + msecs_to_jiffies(PATIENCE);

	while (ib_poll_cq(end->cq, 1, wc) != 1) {
		if (time_after(jiffies, end_time))
			return false;
		usleep_range(50, 100);
	}
	return true;
}

/* Whether the next completion of an end has this id and status */
bool comes(struct end *end, u64 id, enum ib_wc_status status)
{
	struct ib_wc wc;

	return poll(end, &wc) && wc.wr_id == id && wc.status == status && wc.qp == end->qp;
}

bool in_state(struct end *end, enum ib_qp_state state)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;

	return !ib_query_qp(end->qp, &attr, IB_QP_STATE, &init) && attr.qp_state == state;
}

/* --- an end --- */

/* Take the memory of an end away from its device */
void end_unmap(struct end *end)
{
	unsigned int i;

	for (i = 0; end->mapped && i < unmaps; i++)
		ib_dma_unmap_single(end->device, end->dma, SIZE, DMA_BIDIRECTIONAL);
	end->mapped = false;
}

static int end_map(struct end *end)
{
	/* contiguous: one scatter-gather element covers all of it */
	end->data = alloc_pages_exact(SIZE, GFP_KERNEL | __GFP_ZERO);
	if (!end->data)
		return -ENOMEM;
	end->dma = ib_dma_map_single(end->device, end->data, SIZE, DMA_BIDIRECTIONAL);
	if (ib_dma_mapping_error(end->device, end->dma))
		return -EIO;
	end->mapped = true;
	return 0;
}

static void end_close(struct end *end)
{
	if (!IS_ERR_OR_NULL(end->qp))
		ib_destroy_qp(end->qp);
	if (!IS_ERR_OR_NULL(end->mr))
		ib_dereg_mr(end->mr);
	if (!IS_ERR_OR_NULL(end->cq))
		ib_destroy_cq(end->cq);
	if (!IS_ERR_OR_NULL(end->pd))
		ib_dealloc_pd(end->pd);
	end_unmap(end);
	/* memory that stays mapped must not be mapped again, which would be another mistake */
	if (end->data && unmaps)
		free_pages_exact(end->data, SIZE);
}

/* The first IPv4 address: the lab has a neighbour entry for it */
static int end_find_gid(struct end *end)
{
	for (end->gid_index = 0; end->gid_index < 128; end->gid_index++) {
		if (rdma_query_gid(end->device, 1, end->gid_index, &end->gid))
			continue;
		if (ipv6_addr_v4mapped((struct in6_addr *)end->gid.raw))
			return 0;
	}
	return -ENOENT;
}

int end_create_qp(struct end *end)
{
	struct ib_qp_init_attr init = {
		.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = QUEUE, .max_recv_wr = QUEUE, .max_send_sge = 4,
			.max_recv_sge = 4, .max_inline_data = 64,
		},
	};
	struct ib_qp_attr attr = { .qp_state = IB_QPS_INIT, .port_num = 1 };

	end->qp = ib_create_qp(end->pd, &init);
	if (IS_ERR(end->qp))
		return PTR_ERR(end->qp);
	return ib_modify_qp(end->qp, &attr,
			    IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_ACCESS_FLAGS);
}

static int end_open(struct end *end, struct ib_device *device, const struct terms *terms)
{
	struct ib_cq_init_attr attr = { .cqe = terms->cqe };
	int i;

	end->device = device;
	end->pd = ib_alloc_pd(device, terms->pd_flags);
	end->cq = ib_create_cq(device, NULL, NULL, NULL, &attr);
	if (end_map(end) || IS_ERR(end->pd) || IS_ERR(end->cq))
		return -ENOMEM;
	end->mr = ib_alloc_mr(end->pd, IB_MR_TYPE_MEM_REG, REGION);
	if (IS_ERR(end->mr))
		return PTR_ERR(end->mr);
	sg_init_table(end->sg, REGION);
	for (i = 0; i < REGION; i++) {
		sg_dma_address(&end->sg[i]) = end->dma + i * PAGE_SIZE;
		sg_dma_len(&end->sg[i]) = PAGE_SIZE;
	}
	return end_find_gid(end) ?: end_create_qp(end);
}

/* --- both ends --- */

int end_connect(struct end *end, const struct end *peer, const struct terms *terms)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTR, .path_mtu = IB_MTU_4096, .dest_qp_num = peer->qp->qp_num,
		.rq_psn = peer->qp->qp_num, .max_dest_rd_atomic = terms->reads,
		.min_rnr_timer = terms->min_rnr_timer, .qp_access_flags = terms->access,
		.ah_attr.type = RDMA_AH_ATTR_TYPE_ROCE,
	};
	union ib_gid dgid = peer->gid;
	int rc;

	rdma_ah_set_port_num(&attr.ah_attr, 1);
	rdma_ah_set_grh(&attr.ah_attr, &dgid, 0, end->gid_index, 64, 0);
	rc = ib_modify_qp(end->qp, &attr,
			  IB_QP_STATE | IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
			  IB_QP_RQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER |
			  IB_QP_ACCESS_FLAGS);
	if (rc)
		return rc;
	attr = (struct ib_qp_attr) {
		.qp_state = IB_QPS_RTS, .timeout = terms->timeout, .retry_cnt = terms->retry_cnt,
		.rnr_retry = terms->rnr_retry, .sq_psn = end->qp->qp_num,
		.max_rd_atomic = terms->reads,
	};
	return ib_modify_qp(end->qp, &attr,
			    IB_QP_STATE | IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
			    IB_QP_SQ_PSN | IB_QP_MAX_QP_RD_ATOMIC);
}

static int pair_open(struct pair *pair, const struct terms *terms)
{
	return end_open(&pair->near, found[0], terms) ?: end_open(&pair->far, found[1], terms) ?:
	       end_connect(&pair->near, &pair->far, terms) ?:
	       end_connect(&pair->far, &pair->near, terms);
}

static const char *run(const struct test *test)
{
	struct pair *pair = kzalloc(sizeof(*pair), GFP_KERNEL);
	const char *result = "no pair of queue pairs";

	if (!pair)
		return "no memory";
	if (!pair_open(pair, test->terms))
		result = test->run(pair) ?: "ok";
	end_close(&pair->near);
	end_close(&pair->far);
	kfree(pair);
	return result;
}

/* --- the module --- */

static int add(struct ib_device *device)
{
	if (!strcmp(dev_name(&device->dev), near))
		found[0] = device;
	if (!strcmp(dev_name(&device->dev), far))
		found[1] = device;
	return 0;
}

static struct ib_client client = { .name = "card_verbs", .add = add };

static const struct test *chosen(unsigned int *num)
{
	if (unmapped) {
		*num = num_unmapped_tests;
		return unmapped_tests;
	}
	if (profile) {
		*num = num_profile_tests;
		return profile_tests;
	}
	*num = recoverable ? num_recoverable_tests : num_tests;
	return recoverable ? recoverable_tests : tests;
}

static int results_show(struct seq_file *seq, void *unused)
{
	const struct test *test;
	unsigned int i, num;

	test = chosen(&num);
	for (i = 0; i < num; i++)
		seq_printf(seq, "%s %s\n", test[i].name, results[i]);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(results);

static int __init start(void)
{
	const struct test *test;
	unsigned int i, num;
	int rc;

	test = chosen(&num);
	if (num > ARRAY_SIZE(results))
		return -E2BIG;
	rc = ib_register_client(&client);
	if (rc)
		return rc;
	for (i = 0; i < num; i++)
		results[i] = found[0] && found[1] ? run(&test[i]) : "no devices";
	ib_unregister_client(&client);
	file = debugfs_create_file("card_verbs", 0400, NULL, NULL, &results_fops);
	return 0;
}

static void __exit stop(void)
{
	debugfs_remove(file);
}

module_init(start);
module_exit(stop);

MODULE_DESCRIPTION("Verbs between two RDMA devices");
MODULE_LICENSE("GPL");
