/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Differences between kernels. features.sh compiles probes to find the features
 * of a kernel; the version number does not matter.
 */
#ifndef NFSRDMA_CARD_COMPAT_H
#define NFSRDMA_CARD_COMPAT_H

#include <linux/dma-buf.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

#include "features.h"

/* Last argument of create_cq, for queues of user space only */
#ifdef HAVE_CREATE_CQ_ATTRS
#define card_create_cq_user uverbs_attr_bundle
#else
#define card_create_cq_user ib_udata
#endif

/* Data of user space for create_cq; NULL for a queue of the kernel */
static inline struct ib_udata *card_cq_udata(struct card_create_cq_user *user)
{
#ifdef HAVE_CREATE_CQ_ATTRS
	return user ? &user->driver_udata : NULL;
#else
	return user;
#endif
}

/* Pin memory of the current process, within its RLIMIT_MEMLOCK */
static inline struct ib_umem *card_umem_get(struct ib_device *ib, u64 start, u64 length,
					    int access)
{
#ifdef HAVE_UMEM_GET_VA
	return ib_umem_get_va(ib, start, length, access);
#else
	return ib_umem_get(ib, start, length, access);
#endif
}

/* Namespace of the functions of linux/dma-buf.h */
#ifdef HAVE_NAMESPACE_SYMBOL
#define CARD_DMA_BUF_NAMESPACE DMA_BUF
#else
#define CARD_DMA_BUF_NAMESPACE "DMA_BUF"
#endif

/* Map a dma-buf into the kernel. Returns 0, or a negative errno if its exporter cannot do that. */
static inline int card_dmabuf_vmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
#ifdef HAVE_DMA_BUF_VMAP_UNLOCKED
	return dma_buf_vmap_unlocked(dmabuf, map);
#else
	return dma_buf_vmap(dmabuf, map);
#endif
}

static inline void card_dmabuf_vunmap(struct dma_buf *dmabuf, struct iosys_map *map)
{
#ifdef HAVE_DMA_BUF_VMAP_UNLOCKED
	dma_buf_vunmap_unlocked(dmabuf, map);
#else
	dma_buf_vunmap(dmabuf, map);
#endif
}

/* Initialize a timer on the monotonic clock; @function runs in a softirq */
static inline void card_timer_setup(struct hrtimer *timer, enum hrtimer_mode mode,
				    enum hrtimer_restart (*function)(struct hrtimer *timer))
{
#ifdef HAVE_HRTIMER_SETUP
	hrtimer_setup(timer, function, CLOCK_MONOTONIC, mode);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, mode);
	timer->function = function;
#endif
}

#endif
