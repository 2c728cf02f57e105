// SPDX-License-Identifier: GPL-2.0-only
/*
 * PCI functions that cards borrow.
 *
 * Without one, cards use virtual DMA: an address is a kernel pointer, and no mapping takes place.
 * A card that is added while an idle PCI function is bound to the driver nfsrdma_card uses the DMA
 * API: its users map memory for that function, through its IOMMU or swiotlb, and the card
 * translates their addresses to memory, see dma.c. The function itself does nothing.
 *
 * The driver has no table of ids, so that it takes only a function that root gives it, by
 * driver_override or new_id. Unbinding removes the cards first.
 */
#include <linux/dma-mapping.h>
#include <linux/pci.h>

#include "queues.h"

/* Bound functions, the one that was chosen last at the end; cards_lock protects them */
static LIST_HEAD(card_functions);
static DECLARE_WAIT_QUEUE_HEAD(card_functions_idle);

/**
 * card_function_get - choose a function for a new card
 * @segment: bytes of an element that the DMA layer may make for it
 *
 * Cards take the bound functions in turn. The last card of a function determines @segment.
 *
 * Return: function, which card_function_put() gives back; NULL for virtual DMA.
 */
struct card_function *card_function_get(u32 segment)
{
	struct card_function *function;

	spin_lock_bh(&cards_lock);
	function = list_first_entry_or_null(&card_functions, struct card_function, list);
	if (function) {
		function->cards++;
		dma_set_max_seg_size(function->dev, segment);
		list_move_tail(&function->list, &card_functions);
	}
	spin_unlock_bh(&cards_lock);
	return function;
}

/**
 * card_function_put - give the function of a card back; cards_lock is held
 * @function: function from card_function_get(), or NULL
 */
void card_function_put(struct card_function *function)
{
	if (!function)
		return;
	function->cards--;
	wake_up(&card_functions_idle);
}

static bool card_function_is_idle(const struct card_function *function)
{
	bool idle;

	spin_lock_bh(&cards_lock);
	idle = !function->cards;
	spin_unlock_bh(&cards_lock);
	return idle;
}

static int card_function_enable(struct pci_dev *pdev)
{
	int rc = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));

	/* the card's copies are the processor's: the function itself reads and writes nothing */
	return rc ?: pci_enable_device(pdev);
}

static int card_function_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct card_function *function;
	int rc;

	/* dma.c needs the kernel's mapping of all memory */
	if (IS_ENABLED(CONFIG_HIGHMEM))
		return -EOPNOTSUPP;
	function = kzalloc(sizeof(*function), GFP_KERNEL);
	if (!function)
		return -ENOMEM;
	rc = card_function_enable(pdev);
	if (rc) {
		kfree(function);
		return rc;
	}
	card_dma_init(function, &pdev->dev);
	pci_set_drvdata(pdev, function);
	spin_lock_bh(&cards_lock);
	list_add(&function->list, &card_functions);
	spin_unlock_bh(&cards_lock);
	return 0;
}

static void card_function_remove(struct pci_dev *pdev)
{
	struct card_function *function = pci_get_drvdata(pdev);

	spin_lock_bh(&cards_lock);
	list_del(&function->list);
	spin_unlock_bh(&cards_lock);
	/* a card that is being added may be in no list yet */
	do {
		card_remove_all(function);
	} while (!wait_event_timeout(card_functions_idle, card_function_is_idle(function),
				     HZ / 10));
	card_dma_end(function);
	kfree(function);
	pci_disable_device(pdev);
}

static struct pci_driver card_function_driver = {
	.name		= "nfsrdma_card",
	.probe		= card_function_probe,
	.remove		= card_function_remove,
};

/**
 * card_functions_start - register the driver of functions
 *
 * Return: 0 or a negative errno.
 */
int card_functions_start(void)
{
	return pci_register_driver(&card_function_driver);
}

/**
 * card_functions_stop - give all functions back
 */
void card_functions_stop(void)
{
	pci_unregister_driver(&card_function_driver);
}
