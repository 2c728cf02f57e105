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

#include "qp.h"

struct workqueue_struct *card_wq;
LIST_HEAD(cards);
DEFINE_SPINLOCK(cards_lock);
static u32 card_last_id;

/* --- one card --- */

static bool card_netdev_is_up(const struct card *card)
{
	return netif_running(card->ndev) && netif_carrier_ok(card->ndev);
}

/**
 * card_link_changed - report the state of a card's link to its users
 * @card: card
 */
void card_link_changed(struct card *card)
{
	struct ib_event event = {
		.device = &card->ib,
		.event = card_is_up(card) ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR,
		.element.port_num = 1,
	};

	ib_dispatch_event(&event);
}

static void card_update_netdev(struct card *card)
{
	bool up = card_netdev_is_up(card);

	if (up == READ_ONCE(card->netdev_up))
		return;
	WRITE_ONCE(card->netdev_up, up);
	card_link_changed(card);
}

/**
 * card_enable - add a registered card to the list of cards
 * @ib: device of the card
 *
 * Return: 0.
 */
int card_enable(struct ib_device *ib)
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

/**
 * card_dealloc - free the resources of a card that has no objects left
 * @ib: device of the card; the core frees it
 *
 * The core also calls this for a card whose registration failed.
 */
void card_dealloc(struct ib_device *ib)
{
	struct card *card = to_card(ib);

	spin_lock_bh(&cards_lock);
	card->gone = true;
	spin_unlock_bh(&cards_lock);
	card_debugfs_remove(card);
	kvfree(card->wire.cache);
	free_percpu(card->counts);
	card_regions_destroy(card);
	dev_put(card->ndev);
	/* the module waits for an empty list, so this is the last step */
	spin_lock_bh(&cards_lock);
	list_del(&card->list);
	spin_unlock_bh(&cards_lock);
}

static struct card *card_alloc(struct net_device *ndev)
{
	struct card *card = ib_alloc_device(card, ib);

	if (!card)
		return NULL;
	INIT_LIST_HEAD(&card->list);
	card_wire_init(&card->wire);
	dev_hold(ndev);
	card->ndev = ndev;
	/* the core caches the state of the port at registration */
	card->netdev_up = card_netdev_is_up(card);
	card_device_init(card);
	card->counts = alloc_percpu(struct card_counts);
	if (card->counts && card_regions_create(card))
		return card;
	ib_dealloc_device(&card->ib);
	return NULL;
}

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
		rc = ib_register_device(&card->ib, name, NULL);
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

/* Cards on the list are not freed; ib_unregister_device() waits for one that is being removed */
static struct card *card_first(void)
{
	struct card *card;

	spin_lock_bh(&cards_lock);
	card = list_first_entry_or_null(&cards, struct card, list);
	if (card)
		get_device(&card->ib.dev);
	spin_unlock_bh(&cards_lock);
	return card;
}

static void card_remove_all(void)
{
	struct card *card;

	while ((card = card_first())) {
		ib_unregister_device(&card->ib);
		put_device(&card->ib.dev);
	}
}

static int __init card_module_init(void)
{
	int rc;

	card_wq = alloc_workqueue("nfsrdma_card", WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	if (!card_wq)
		return -ENOMEM;
	card_debugfs_start();
	rc = register_netdevice_notifier(&card_notifier);
	if (rc) {
		card_debugfs_stop();
		destroy_workqueue(card_wq);
		return rc;
	}
	rdma_link_register(&card_link_ops);
	return 0;
}

static void __exit card_module_exit(void)
{
	rdma_link_unregister(&card_link_ops);
	unregister_netdevice_notifier(&card_notifier);
	card_remove_all();
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
