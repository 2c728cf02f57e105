// SPDX-License-Identifier: GPL-2.0-only
/* Attributes of a card and its port, protection domains, address handles. */
#include <net/addrconf.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_mad.h>

#include "queues.h"

/* --- attributes --- */

static int card_query_device(struct ib_device *ib, struct ib_device_attr *attr,
			     struct ib_udata *udata)
{
	const struct card_profile *profile = to_card(ib)->profile;

	if (udata && (udata->inlen || udata->outlen))
		return -EINVAL;
	*attr = (struct ib_device_attr) {
		.sys_image_guid = ib->node_guid,
		.max_mr_size = U64_MAX,
		.page_size_cap = PAGE_SIZE,
		.max_qp = CARD_MAX_QP,
		.max_qp_wr = profile->max_wr,
		.device_cap_flags = IB_DEVICE_MEM_MGT_EXTENSIONS | IB_DEVICE_SYS_IMAGE_GUID |
				    IB_DEVICE_RC_RNR_NAK_GEN | IB_DEVICE_PORT_ACTIVE_EVENT,
		.kernel_cap_flags = IBK_ALLOW_USER_UNREG |
				    (profile->lkey == CARD_NO_LKEY ? 0 : IBK_LOCAL_DMA_LKEY) |
				    (profile->gaps ? IBK_SG_GAPS_REG : 0),
		.max_send_sge = profile->send_sge,
		.max_recv_sge = profile->recv_sge,
		.max_sge_rd = profile->read_sge,
		.max_cq = CARD_MAX_CQ,
		.max_cqe = CARD_MAX_CQE,
		.max_mr = CARD_MAX_MR,
		.max_pd = CARD_MAX_PD,
		.max_qp_rd_atom = profile->reads_in,
		.max_res_rd_atom = profile->reads_in * CARD_MAX_QP,
		.max_qp_init_rd_atom = profile->reads_out,
		.atomic_cap = IB_ATOMIC_NONE,
		.masked_atomic_cap = IB_ATOMIC_NONE,
		.max_ah = CARD_MAX_AH,
		.max_fast_reg_page_list_len = profile->pages,
		.max_pkeys = 1,
		.cq_caps = { .max_cq_moderation_count = U16_MAX,
			     .max_cq_moderation_period = U16_MAX },
	};
	return 0;
}

/* The width and speed that come nearest to the rate; the core knows no others */
static void card_port_speed(const struct card *card, struct ib_port_attr *attr)
{
	u64 rate = READ_ONCE(card->wire.rate);

	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	if (rate && rate < 20000000000ULL) {
		attr->active_width = IB_WIDTH_1X;
		attr->active_speed = IB_SPEED_FDR10;
	} else if (rate && rate < 40000000000ULL) {
		attr->active_width = IB_WIDTH_1X;
	} else if (rate && rate < 100000000000ULL) {
		attr->active_speed = IB_SPEED_FDR10;
	}
}

static int card_query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	const struct card *card = to_card(ib);
	bool up = card_is_up(card);

	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = iboe_get_mtu(READ_ONCE(card->ndev->mtu)) ?: IB_MTU_256;
	attr->gid_tbl_len = CARD_GIDS;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->ip_gids = true;
	attr->max_msg_sz = CARD_MAX_MESSAGE;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	card_port_speed(card, attr);
	return 0;
}

static int card_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *immutable)
{
	struct ib_port_attr attr = {};
	int rc;

	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	rc = ib_query_port(ib, port, &attr);
	if (rc)
		return rc;
	immutable->pkey_tbl_len = attr.pkey_tbl_len;
	immutable->gid_tbl_len = attr.gid_tbl_len;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static enum rdma_link_layer card_link_layer(struct ib_device *ib, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int card_query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

/* The firmware version is the only text of a driver that rdma-dev(8) shows */
static void card_firmware(struct ib_device *ib, char *text)
{
	strscpy(text, CARD_FIRMWARE CARD_VERSION, IB_FW_VERSION_NAME_MAX);
}

/* --- protection domains and address handles --- */

static int card_alloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	return atomic_add_unless(&to_card(ib->device)->pds, 1, CARD_MAX_PD) ? 0 : -ENOMEM;
}

static int card_dealloc_pd(struct ib_pd *ib, struct ib_udata *udata)
{
	atomic_dec(&to_card(ib->device)->pds);
	return 0;
}

static int card_create_ah(struct ib_ah *ib, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	struct card_ah *ah = container_of(ib, struct card_ah, ib);

	if (!(rdma_ah_get_ah_flags(init->ah_attr) & IB_AH_GRH))
		return -EINVAL;
	if (!atomic_add_unless(&to_card(ib->device)->ahs, 1, CARD_MAX_AH))
		return -ENOMEM;
	card_path_set(&ah->path, init->ah_attr);
	return 0;
}

static int card_destroy_ah(struct ib_ah *ib, u32 flags)
{
	atomic_dec(&to_card(ib->device)->ahs);
	return 0;
}

#ifdef HAVE_REG_USER_MR_DMAH
static struct ib_mr *card_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 addr, int access,
				      struct ib_dmah *dmah, struct ib_udata *udata)
{
	return dmah ? ERR_PTR(-EOPNOTSUPP) : card_user_mr(pd, start, length, addr, access);
}
#else
static struct ib_mr *card_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 addr, int access,
				      struct ib_udata *udata)
{
	return card_user_mr(pd, start, length, addr, access);
}
#endif

#ifdef HAVE_REG_DMABUF_DMAH
static struct ib_mr *card_reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 addr,
					     int fd, int access, struct ib_dmah *dmah,
					     struct uverbs_attr_bundle *attrs)
{
	return dmah ? ERR_PTR(-EOPNOTSUPP) : card_dmabuf_mr(pd, offset, length, addr, fd, access);
}
#else
#ifdef HAVE_REG_DMABUF_ATTRS
#define card_reg_dmabuf_user uverbs_attr_bundle
#else
#define card_reg_dmabuf_user ib_udata
#endif
static struct ib_mr *card_reg_user_mr_dmabuf(struct ib_pd *pd, u64 offset, u64 length, u64 addr,
					     int fd, int access, struct card_reg_dmabuf_user *user)
{
	return card_dmabuf_mr(pd, offset, length, addr, fd, access);
}
#endif

/* --- life of a card --- */

static u32 card_last_id;

static bool card_netdev_is_up(const struct card *card)
{
	return netif_running(card->ndev) && netif_carrier_ok(card->ndev);
}

/**
 * card_update_netdev - follow the state of a card's network device
 * @card: card
 */
void card_update_netdev(struct card *card)
{
	bool up = card_netdev_is_up(card);

	if (up == READ_ONCE(card->netdev_up))
		return;
	WRITE_ONCE(card->netdev_up, up);
	card_link_changed(card);
}

/* Add a registered card to the list of cards (ib_device_ops.enable_driver). Returns 0. */
static int card_enable(struct ib_device *ib)
{
	struct card *card = to_card(ib);

	card_debugfs_add(card);
	spin_lock_bh(&cards_lock);
	card->id = ++card_last_id;
	list_add_tail(&card->list, &cards);
	spin_unlock_bh(&cards_lock);
	/* the state may have changed before the notifier could find this card */
	card_update_netdev(card);
	return 0;
}

/*
 * Free the resources of a card that has no objects left (ib_device_ops.dealloc_driver). The core
 * frees the card itself; it also calls this for a card whose registration failed.
 */
static void card_dealloc(struct ib_device *ib)
{
	struct card *card = to_card(ib);

	spin_lock_bh(&cards_lock);
	card->gone = true;
	spin_unlock_bh(&cards_lock);
	card_debugfs_remove(card);
	kvfree(card->wire.pages.tags);
	kvfree(card->wire.qps.tags);
	free_percpu(card->counts);
	card_regions_destroy(card);
	dev_put(card->ndev);
	/* the module and its functions wait for this, so it is the last step */
	spin_lock_bh(&cards_lock);
	card_function_put(card->function);
	list_del(&card->list);
	spin_unlock_bh(&cards_lock);
}

/* --- the device --- */

static const struct ib_device_ops card_device_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_abi_ver = CARD_ABI,

	.alloc_hw_port_stats = card_alloc_stats,
	.alloc_mr = card_alloc_mr,
	.alloc_pd = card_alloc_pd,
	.alloc_ucontext = card_alloc_ucontext,
	.create_ah = card_create_ah,
	.create_cq = card_create_cq,
	.create_qp = card_create_qp,
#ifdef HAVE_CREATE_USER_CQ
	.create_user_cq = card_create_cq,
#endif
	.dealloc_driver = card_dealloc,
	.dealloc_pd = card_dealloc_pd,
	.dealloc_ucontext = card_dealloc_ucontext,
	.dereg_mr = card_dereg_mr,
	.destroy_ah = card_destroy_ah,
	.destroy_cq = card_destroy_cq,
	.destroy_qp = card_destroy_qp,
	.disassociate_ucontext = card_disassociate_ucontext,
	.enable_driver = card_enable,
	.get_dev_fw_str = card_firmware,
	.get_dma_mr = card_get_dma_mr,
	.get_hw_stats = card_get_stats,
	.get_link_layer = card_link_layer,
	.get_port_immutable = card_port_immutable,
	.map_mr_sg = card_map_mr_sg,
	.modify_cq = card_modify_cq,
	.modify_qp = card_modify_qp,
	.poll_cq = card_poll_cq,
	.post_recv = card_post_recv,
	.post_send = card_post_send,
	.query_device = card_query_device,
	.query_pkey = card_query_pkey,
	.query_port = card_query_port,
	.query_qp = card_query_qp,
	.reg_user_mr = card_reg_user_mr,
	.reg_user_mr_dmabuf = card_reg_user_mr_dmabuf,
	.req_notify_cq = card_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, card_ah, ib),
	INIT_RDMA_OBJ_SIZE(ib_cq, card_cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, card_pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, card_qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, card_ucontext, ib),
};

/* Set the members that the core reads at registration; the card has its network device. */
static void card_device_init(struct card *card)
{
	struct ib_device *ib = &card->ib;

	ib->node_type = RDMA_NODE_IB_CA;
	ib->phys_port_cnt = 1;
	ib->num_comp_vectors = num_online_cpus();
	ib->local_dma_lkey = card->profile->lkey == CARD_NO_LKEY ? 0 : card->profile->lkey;
	strscpy(ib->node_desc, "nfsrdma_card", sizeof(ib->node_desc));
	addrconf_addr_eui48((u8 *)&ib->node_guid, card->ndev->dev_addr);
	ib->uverbs_cmd_mask |= BIT_ULL(IB_USER_VERBS_CMD_POST_SEND) |
			       BIT_ULL(IB_USER_VERBS_CMD_POST_RECV) |
			       BIT_ULL(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
	ib_set_device_ops(ib, &card_device_ops);
}

/**
 * card_alloc - allocate a card
 * @ndev: network device whose addresses are the GIDs
 *
 * Return: card that is not registered, or NULL. ib_dealloc_device() frees it.
 */
struct card *card_alloc(struct net_device *ndev)
{
	struct card *card = ib_alloc_device(card, ib);

	if (!card)
		return NULL;
	INIT_LIST_HEAD(&card->list);
	card_wire_init(&card->wire);
	dev_hold(ndev);
	card->ndev = ndev;
	card->profile = card_profile_of_new();
	card->strict_keys = card->profile->strict_keys;
	card->cached_state = card->profile->cached_state;
	card->function = card_function_get(card->profile->segment);
	/* the core caches the state of the port at registration */
	card->netdev_up = card_netdev_is_up(card);
	card_device_init(card);
	card->counts = alloc_percpu(struct card_counts);
	if (card->counts && card_regions_create(card))
		return card;
	ib_dealloc_device(&card->ib);
	return NULL;
}
