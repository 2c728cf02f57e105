// SPDX-License-Identifier: GPL-2.0-only
/*
 * Profiles: limits and behaviours of drivers of real cards. Cards that are added take the profile
 * that the module's parameter names.
 */
#include <linux/moduleparam.h>
#include <linux/sizes.h>

#include "card.h"

/*
 * Each value names its source in drivers/infiniband/hw of Linux 6.12, a file and a function.
 * "Firmware": the driver reports the firmware's value; the value here is one that a card of this
 * kind reported or, where no report is known, the model's. Kernel queue pairs only.
 */

/* ConnectX: mlxN is mlx4 and mlx5 */
#define CARD_MLX										\
	/* firmware, of mlx5 max_wqe_sz_rq of 512 bytes: mlxN/main.c mlxN_ib_query_device() */	\
	.recv_sge = 32,										\
	/* include/linux/mlxN/device.h MLXN_MAX_SGE_RD */					\
	.read_sge = 30,										\
	/* firmware, no value known: mlx5/qp.c calc_sq_size(); mlx4: none, see drops_inline */	\
	.inline_data = CARD_MAX_INLINE,								\
	/* firmware: mlxN/main.c mlxN_ib_query_device() */					\
	.reads_in = 16,										\
	/* mlx5/cq.c mlx5_poll_one(), mlx5/wr.c mlx5r_wq_overflow() */				\
	/* mlx4/cq.c mlx4_ib_poll_one(), mlx4/qp.c mlx4_wq_overflow() */			\
	.frees_at_poll = true,									\
	/* mlx5/mr.c __mlx5_ib_dereg_mr(), qp.c mlx5_ib_destroy_qp(); 60 s of wait_func() */	\
	/* mlx4/mr.c mlx4_ib_dereg_mr(), qp.c mlx4_ib_destroy_qp(); errno: that of mlx5 */	\
	.stopped_modify = -ETIMEDOUT,								\
	.stopped_dereg = -ETIMEDOUT,								\
	/* mlx5/wr.c mlx5_ib_post_send(), cq.c sw_comp() */					\
	/* mlx4/qp.c _mlx4_ib_post_send(), cq.c mlx4_ib_qp_sw_comp() */				\
	.failed_post = -EIO,									\
	.failed_flushes = true,									\
	/* mlx5/main.c mlx5_ib_handle_sys_error_event(), mlx4/main.c mlx4_ib_event() */		\
	.failed_device = true

/* E810 */
#define CARD_IRDMA										\
	/* irdma/ctrl.c irdma_sc_dev_init(); irdma/defs.h IRDMA_MAX_QP_WRS */			\
	.max_wr = 4063,										\
	/* irdma/user.h IRDMA_MAX_WQ_FRAGMENT_COUNT, IRDMA_MAX_SGE_RD */			\
	.send_sge = 13,										\
	.recv_sge = 13,										\
	.read_sge = 13,										\
	/* irdma/user.h; irdma/verbs.c irdma_validate_qp_attrs() */				\
	.inline_data = 101,									\
	/* irdma/main.h IRDMA_MAX_PAGES_PER_FMR */						\
	.pages = 262144,									\
	/* irdma/icrdma_hw.h ICRDMA_MAX_IRD_SIZE, ICRDMA_MAX_ORD_SIZE */			\
	.reads_in = 127,									\
	.reads_out = 255,									\
	/* irdma/verbs.c irdma_init_rdma_device() */						\
	.segment = U32_MAX,									\
	.lkey = 0,										\
	/* irdma/uk.c irdma_uk_cq_poll_cmpl(), irdma_qp_get_next_send_wqe() */			\
	.frees_at_poll = true,									\
	/* firmware, assumed: irdma/hw.c irdma_set_flush_fields() knows its event */		\
	.strict_keys = true,									\
	/* irdma/verbs.c irdma_query_qp() */							\
	.cached_state = true,									\
	/* irdma/verbs.h IRDMA_FLUSH_DELAY_MS; hardware may be earlier */			\
	.flush_delay = 20,									\
	/* irdma/verbs.c irdma_modify_qp_roce(), irdma_dereg_mr(), irdma_destroy_qp() */	\
	.stopped_modify = -EINVAL,								\
	.stopped_dereg = -EBUSY,								\
	/* irdma/utils.c irdma_handle_cqp_op(): until the function is reset; no event */	\
	.failed_modify = -EINVAL,								\
	.failed_dereg = -EBUSY

/* BCM5741x and BCM5750x */
#define CARD_BNXT										\
	/* bnxt_re/qplib_sp.c bnxt_qplib_get_dev_attr(), static requests */			\
	.send_sge = 6,										\
	.recv_sge = 6,										\
	.read_sge = 6,										\
	/* bnxt_re/qplib_sp.c; bnxt_re/ib_verbs.c bnxt_re_test_qp_limits() */			\
	.inline_data = 96,									\
	/* bnxt_re/qplib_res.h MAX_PBL_LVL_1_PGS; bnxt_re/ib_verbs.c bnxt_re_alloc_mr() */	\
	.pages = 512,										\
	/* firmware, at most BNXT_QPLIB_MAX_OUT_RD_ATOM: bnxt_re/qplib_sp.c */			\
	.reads_in = 126,									\
	.reads_out = 126,									\
	/* bnxt_re/main.c bnxt_re_register_ib() */						\
	.segment = U32_MAX,									\
	/* bnxt_re/main.c, BNXT_QPLIB_RSVD_LKEY */						\
	.lkey = 0x80000000,									\
	/* bnxt_re/ib_verbs.c bnxt_re_init_sq_attr() */						\
	.exact = true,										\
	/* bnxt_re/qplib_fp.c bnxt_qplib_cq_process_req() */					\
	.frees_at_poll = true,									\
	/* firmware, assumed: bnxt_re/main.c bnxt_re_handle_qp_async_event() */			\
	.strict_keys = true,									\
	/* bnxt_re/qplib_rcfw.c __bnxt_qplib_rcfw_send_message() */				\
	.stopped_modify = -ETIMEDOUT,								\
	.stopped_destroy = -ETIMEDOUT,								\
	.stopped_dereg = -ETIMEDOUT,								\
	/* bnxt_re/ib_verbs.c bnxt_re_modify_qp() */						\
	.stopped_flushes = true,								\
	/* bnxt_re/qplib_rcfw.c bnxt_qplib_map_rc(), main.c bnxt_re_dev_stop() */		\
	.failed_modify = -ETIMEDOUT,								\
	.failed_flushes = true,									\
	.failed_qps = true

static const struct card_profile card_profiles[] = {
	{
		/* the card without a profile, of which all published figures are */
		.name = "model",
		.max_wr = CARD_MAX_WR,
		.send_sge = CARD_MAX_SGE,
		.recv_sge = CARD_MAX_SGE,
		.read_sge = CARD_MAX_SGE,
		.inline_data = CARD_MAX_INLINE,
		.pages = CARD_MAX_PAGES,
		.reads_in = CARD_MAX_READS,
		.reads_out = CARD_MAX_READS,
		.segment = SZ_2G,
		.lkey = 0,
		.gaps = true,
		.stopped_modify = -ETIMEDOUT,
		.stopped_dereg = -ETIMEDOUT,
		.failed_post = -EIO,
		.failed_flushes = true,
		.failed_device = true,
	},
	{
		/* ConnectX-5 and 6 */
		.name = "mlx5",
		CARD_MLX,
		/* mlx5/main.c mlx5_ib_calc_max_qp_wr(), for firmware's log_max_qp_sz 15 */
		.max_wr = 8192,
		/* firmware, at most 30: mlx5/main.c mlx5_ib_query_device() */
		.send_sge = 30,
		/* firmware, no value known: mlx5/main.c mlx5_ib_query_device() */
		.pages = CARD_MAX_PAGES,
		/* firmware: mlx5/main.c mlx5_ib_query_device() */
		.reads_out = 16,
		/* drivers/net/ethernet/mellanox/mlx5/core/main.c set_dma_caps() */
		.segment = SZ_2G,
		/* mlx5/main.c mlx5_ib_query_device() reports no IBK_LOCAL_DMA_LKEY */
		.lkey = CARD_NO_LKEY,
		/* firmware, imaicl: mlx5/main.c mlx5_ib_query_device() */
		.gaps = true,
	},
	{
		/* ConnectX-3 */
		.name = "mlx4",
		CARD_MLX,
		/* firmware, less 33: mlx4/main.c mlx4_ib_query_device() */
		.max_wr = 16351,
		/* firmware: mlx4/main.c mlx4_ib_query_device() */
		.send_sge = 32,
		/* mlx4/qp.c set_kernel_sq_size() */
		.drops_inline = true,
		/* include/linux/mlx4/device.h MLX4_MAX_FAST_REG_PAGES */
		.pages = 511,
		/* firmware: mlx4/main.c mlx4_ib_query_device() */
		.reads_out = 128,
		/* drivers/net/ethernet/mellanox/mlx4/main.c __mlx4_init_one() */
		.segment = SZ_1G,
		.lkey = 0,
	},
	{
		/* E810 with RoCE v2 */
		.name = "irdma-roce",
		CARD_IRDMA,
	},
	{
		/* E810 with iWARP: the limits and rules of this end alone, over RoCE */
		.name = "irdma-iwarp",
		CARD_IRDMA,
		/* irdma/verbs.c irdma_create_qp(): no IRDMA_SEND_WITH_IMM */
		.refuses_immediate = true,
	},
	{
		/* BCM5741x */
		.name = "bnxt",
		CARD_BNXT,
		/* firmware, less 1 and 129: bnxt_re/qplib_sp.c bnxt_qplib_get_dev_attr() */
		.max_wr = 4222,
		/* bnxt_re/ib_verbs.c bnxt_re_legacy_set_uc_fence() */
		.fences = true,
	},
	{
		/* BCM5750x */
		.name = "bnxt-p5",
		CARD_BNXT,
		/* firmware, less 1: bnxt_re/qplib_sp.c bnxt_qplib_get_dev_attr() */
		.max_wr = 4351,
	},
};

static const struct card_profile *card_chosen = &card_profiles[0];

/**
 * card_profile_of_new - get the profile of cards that are added now
 *
 * Return: profile.
 */
const struct card_profile *card_profile_of_new(void)
{
	return READ_ONCE(card_chosen);
}

static int card_profile_set(const char *text, const struct kernel_param *param)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(card_profiles); i++) {
		if (!sysfs_streq(text, card_profiles[i].name))
			continue;
		WRITE_ONCE(card_chosen, &card_profiles[i]);
		return 0;
	}
	return -EINVAL;
}

static int card_profile_get(char *text, const struct kernel_param *param)
{
	return sysfs_emit(text, "%s\n", card_profile_of_new()->name);
}

static const struct kernel_param_ops card_profile_ops = {
	.set = card_profile_set,
	.get = card_profile_get,
};
module_param_cb(profile, &card_profile_ops, NULL, 0644);
MODULE_PARM_DESC(profile, "driver whose limits and behaviours new cards have (default: model)");
