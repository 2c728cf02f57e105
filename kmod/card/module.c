// SPDX-License-Identifier: GPL-2.0-only
/*
 * nfsrdma_card: a modelled RDMA card.
 *
 * `rdma link add card0 type nfsrdma_card netdev eth0` adds a card to a network
 * device. Removal of its link, of its network device or of the module removes the
 * card, also under load: first, the RDMA core makes its users destroy all objects.
 */
#include <linux/if_arp.h>
#include <linux/if_vlan.h>
#include <linux/module.h>
#include <rdma/rdma_netlink.h>

#include "queues.h"

/* Look up the card of a network device, and block its removal until ib_device_put() */
static struct card *card_get(const struct net_device *ndev)
{
	struct card *card, *found = NULL;

	spin_lock_bh(&cards_lock);
	list_for_each_entry(card, &cards, list) {
		if (card->ndev == ndev && ib_device_try_get(&card->ib)) {
			found = card;
			break;
		}
	}
	spin_unlock_bh(&cards_lock);
	return found;
}

/* --- links --- */

static int card_newlink(const char *name, struct net_device *ndev)
{
	struct card *card = card_get(ndev);
	int rc;

	if (card) {
		ib_device_put(&card->ib);
		return -EEXIST;
	}
	/* the GIDs of a VLAN belong to the card of its real device */
	if (is_vlan_dev(ndev) || ndev->type != ARPHRD_ETHER)
		return -EINVAL;
	card = card_alloc(ndev);
	if (!card)
		return -ENOMEM;
	rc = ib_device_set_netdev(&card->ib, ndev, 1);
	if (!rc)
		rc = ib_register_device(&card->ib, name,
					card->function ? card->function->dev : NULL);
	if (rc)
		ib_dealloc_device(&card->ib);
	return rc;
}

static struct rdma_link_ops card_link_ops = {
	.type = "nfsrdma_card",
	.newlink = card_newlink,
};
MODULE_ALIAS_RDMA_LINK("nfsrdma_card");

/* --- events of network devices --- */

static int card_netdev_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct card *card = card_get(netdev_notifier_info_to_dev(data));

	if (!card)
		return NOTIFY_DONE;
	switch (event) {
	case NETDEV_UNREGISTER:
		ib_unregister_device_queued(&card->ib);
		break;
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		card_update_netdev(card);
		break;
	default:
		break;
	}
	ib_device_put(&card->ib);
	return NOTIFY_DONE;
}

static struct notifier_block card_notifier = { .notifier_call = card_netdev_event };

/* --- the module --- */

static int __init card_module_init(void)
{
	int rc;

	card_wq = alloc_workqueue("nfsrdma_card", WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	if (!card_wq)
		return -ENOMEM;
	card_debugfs_start();
	rc = register_netdevice_notifier(&card_notifier);
	if (rc)
		goto out_debugfs;
	rc = card_functions_start();
	if (rc)
		goto out_notifier;
	rdma_link_register(&card_link_ops);
	return 0;
out_notifier:
	unregister_netdevice_notifier(&card_notifier);
out_debugfs:
	card_debugfs_stop();
	destroy_workqueue(card_wq);
	return rc;
}

static void __exit card_module_exit(void)
{
	rdma_link_unregister(&card_link_ops);
	unregister_netdevice_notifier(&card_notifier);
	card_remove_all(NULL);
	card_functions_stop();
	card_debugfs_stop();
	destroy_workqueue(card_wq);
	/* card_mr_free() may be pending */
	rcu_barrier();
}

module_init(card_module_init);
module_exit(card_module_exit);

MODULE_DESCRIPTION("A modelled RDMA card");
MODULE_AUTHOR("The nfsrdma-tools developers");
MODULE_LICENSE("GPL");
MODULE_VERSION(CARD_VERSION);
MODULE_IMPORT_NS(CARD_DMA_BUF_NAMESPACE);
