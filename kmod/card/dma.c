// SPDX-License-Identifier: GPL-2.0-only
/*
 * Translation of DMA addresses to memory, as an IOMMU does it for a card.
 *
 * No translation is cached: each copy of up to 4 KiB reads the page table of the IOMMU,
 * so that an access after the end of a mapping fails at once. With swiotlb, the address is that of
 * the bounce buffer: without a sync, the card reads and leaves stale data, as a real one does.
 * An IOMMU's check of directions is not modelled.
 */
#include <linux/dma-direct.h>
#include <linux/iommu.h>
#include <linux/mm.h>

#include "queues.h"

/* A function is bound: without one, all cards use virtual DMA */
DEFINE_STATIC_KEY_FALSE(card_dma_used);

/**
 * card_dma_init - let cards translate the addresses of a function
 * @function: output
 * @dev: its device
 */
void card_dma_init(struct card_function *function, struct device *dev)
{
	/* a bound device stays in its domain */
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	function->dev = dev;
	/* IOMMU_DOMAIN_PLATFORM (powerpc) has no iova_to_phys(), which the core does not check */
	if (domain && (domain->type & __IOMMU_DOMAIN_PAGING))
		function->domain = domain;
	static_branch_inc(&card_dma_used);
}

/**
 * card_dma_end - undo card_dma_init()
 * @function: function without cards
 */
void card_dma_end(struct card_function *function)
{
	static_branch_dec(&card_dma_used);
}

static phys_addr_t card_dma_phys(const struct card_function *function, u64 addr)
{
	if (function->domain)
		return iommu_iova_to_phys(function->domain, addr);
	return dma_to_phys(function->dev, addr);
}

/**
 * card_dma_at - translate an address
 * @card: card with a function
 * @addr: address that a user of the card has mapped for the function
 *
 * Return: kernel pointer, valid up to the next boundary of 4 KiB; NULL if nothing is mapped
 * there, which a line in the kernel's log reports.
 */
u8 *card_dma_at(struct card *card, u64 addr)
{
	phys_addr_t phys = card_dma_phys(card->function, addr);

	if (phys && pfn_valid(PHYS_PFN(phys)))
		return phys_to_virt(phys);
	card_count(card, CARD_COUNT_DMA_FAULTS);
	pr_err_ratelimited("nfsrdma_card: %s: DMA fault: no memory of %s is mapped at %#llx\n",
			   dev_name(&card->ib.dev), dev_name(card->function->dev), addr);
	return NULL;
}
