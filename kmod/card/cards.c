// SPDX-License-Identifier: GPL-2.0-only
/*
 * All cards: their list and their work queue, the paths between them, and the links that their
 * users see.
 */
#include <rdma/ib_cache.h>

#include "queues.h"

struct workqueue_struct *card_wq;
LIST_HEAD(cards);
DEFINE_SPINLOCK(cards_lock);

/**
 * card_path_set - set a path from address attributes
 * @path: output
 * @attr: attributes of an address handle or a queue pair; with a GRH
 */
void card_path_set(struct card_path *path, struct rdma_ah_attr *attr)
{
	const struct ib_global_route *grh = rdma_ah_read_grh(attr);

	memset(path, 0, sizeof(*path));
	path->dgid = grh->dgid;
	path->sl = rdma_ah_get_sl(attr);
	path->traffic_class = grh->traffic_class;
	path->hop_limit = grh->hop_limit;
	path->vlan = 0xffff;
	if (attr->type == RDMA_AH_ATTR_TYPE_ROCE)
		ether_addr_copy(path->dmac, attr->roce.dmac);
	if (!grh->sgid_attr)
		return;
	path->sgid = grh->sgid_attr->gid;
	if (rdma_read_gid_l2_fields(grh->sgid_attr, &path->vlan, NULL))
		path->vlan = 0xffff;
}

/**
 * card_at - look up a card by GID
 * @path: GID, and the MAC address if several cards have that GID
 *
 * Cards in different network namespaces may have the same GID. cards_lock is held.
 * Return: card, or NULL.
 */
struct card *card_at(const struct card_path *path)
{
	struct card *card, *found = NULL;

	list_for_each_entry(card, &cards, list) {
		const struct ib_gid_attr *attr;

		if (READ_ONCE(card->gone))
			continue;
		attr = rdma_find_gid(&card->ib, &path->dgid, IB_GID_TYPE_ROCE_UDP_ENCAP, NULL);
		if (IS_ERR(attr))
			continue;
		rdma_put_gid_attr(attr);
		if (ether_addr_equal(path->dmac, card->ndev->dev_addr))
			return card;
		if (!found)
			found = card;
	}
	return found;
}

/**
 * card_find - look up the card at the end of a path
 * @path: path
 *
 * Return: id of the card, or 0.
 */
u32 card_find(const struct card_path *path)
{
	const struct card *card;
	u32 id;

	spin_lock_bh(&cards_lock);
	card = card_at(path);
	id = card ? card->id : 0;
	spin_unlock_bh(&cards_lock);
	return id;
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

/**
 * card_report_fatal - report to the users of a card that it has failed
 * @card: card
 */
void card_report_fatal(struct card *card)
{
	struct ib_event event = {
		.device = &card->ib, .event = IB_EVENT_DEVICE_FATAL, .element.port_num = 1,
	};

	ib_dispatch_event(&event);
}

/*
 * Look up a card of a function, or any. Cards on the list are not freed; ib_unregister_device()
 * waits for one that is being removed.
 */
static struct card *card_first(const struct card_function *function)
{
	struct card *card, *found = NULL;

	spin_lock_bh(&cards_lock);
	list_for_each_entry(card, &cards, list) {
		if (!function || card->function == function) {
			get_device(&card->ib.dev);
			found = card;
			break;
		}
	}
	spin_unlock_bh(&cards_lock);
	return found;
}

/**
 * card_remove_all - remove cards
 * @function: those that use this function; NULL: all
 *
 * Context: Sleeps until their users have destroyed all objects.
 */
void card_remove_all(const struct card_function *function)
{
	struct card *card;

	while ((card = card_first(function))) {
		ib_unregister_device(&card->ib);
		put_device(&card->ib.dev);
	}
}
