/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * nfsrdma_card: a modelled RDMA card.
 *
 * A card is an ib_device (RoCE v2) on a network device. Cards of one kernel
 * exchange data: they copy memory, as a card's DMA engine does, and build no
 * packets. The host has the costs of a card: posting, interrupts, polling
 * completions. The copy is a cost of the model only.
 *
 * The layers, from top to bottom; no file calls one of a layer above it:
 *   module.c, device.c, function.c, debugfs.c	links, attributes, PCI functions, control
 *   state.c, qp.c				queue pairs, their lifetime and states
 *   post.c					work requests into rings
 *   engine.c, steps.c				order of requests: start, execute, complete, flush
 *   request.c, receive.c, gsi.c, peer.c	execution of one request
 *   error.c, claim.c				errors and events, the right to execute
 *   keys.c, copy.c, dma.c, wire.c, region.c	memory, addresses, time
 *   cq.c, interrupt.c, user.c			completions, memory shared with processes
 *   cards.c, counters.c, profile.c		all cards, counters, limits of drivers
 *
 * Lock order, outermost first: cards_lock or the lock of card_qps, card_qp.lock,
 * card_cq.lock. No other lock is taken inside card_wire.lock.
 */
#ifndef NFSRDMA_CARD_H
#define NFSRDMA_CARD_H

#include <linux/etherdevice.h>
#include <linux/interrupt.h>
#include <linux/irq_work.h>
#include <linux/jump_label.h>
#include <linux/netdevice.h>
#include <linux/smp.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#include "abi.h"
#include "compat.h"

#define CARD_VERSION		"0.1.0"

/* Limits that the card reports and enforces; those of profiles are no larger */
#define CARD_MAX_QP		(1 << 14)
#define CARD_MAX_CQ		(1 << 15)
#define CARD_MAX_MR		(1 << 18)
#define CARD_MAX_PD		(1 << 14)
#define CARD_MAX_AH		(1 << 16)
#define CARD_MAX_WR		(1 << 14)
#define CARD_MAX_CQE		(1 << 16)
#define CARD_MAX_SGE		32
#define CARD_MAX_INLINE		512
#define CARD_MAX_PAGES		1024
#define CARD_MAX_READS		128
#define CARD_MAX_MESSAGE	(1U << 30)
#define CARD_GIDS		128

/* Bytes copied per check of the keys, and per turn of the engine */
#define CARD_PIECE		(64 * 1024)
#define CARD_BUDGET		(256 * 1024)

/* Share of the budget that a request takes besides its data */
#define CARD_REQUEST_COST	4096

/*
 * Requests that a context takes or flushes with interrupts disabled. A process decides how many
 * there are.
 */
#define CARD_BATCH		64

/* Maximum number of processing units */
#define CARD_MAX_UNITS		64

/* Maximum number of entries of a cache of the card */
#define CARD_MAX_CACHE		(1 << 20)

/* No key of all memory, see struct card_profile */
#define CARD_NO_LKEY		U32_MAX

/* A time in the infinite future */
#define CARD_NEVER		U64_MAX

enum card_counter {
	CARD_COUNT_SENDS,
	CARD_COUNT_WRITES,
	CARD_COUNT_READS,
	CARD_COUNT_DATAGRAMS,
	CARD_COUNT_BYTES,
	CARD_COUNT_REGISTRATIONS,
	CARD_COUNT_INVALIDATIONS,
	CARD_COUNT_COMPLETIONS,
	CARD_COUNT_INTERRUPTS,
	CARD_COUNT_FLUSHED,
	CARD_COUNT_REFUSED,
	CARD_COUNT_RNR,
	CARD_COUNT_RETRIES,
	CARD_COUNT_LOST,
	CARD_COUNT_CACHE_MISSES,
	CARD_COUNT_QP_MISSES,
	CARD_COUNT_DMA_FAULTS,
	CARD_COUNTERS,
};

/* Firmware of a card that works, that has stopped, and whose driver has noticed that */
enum card_firmware { CARD_RUNS, CARD_STOPPED, CARD_FAILED };

/* Counters of a card on one CPU */
struct card_counts {
	u64 value[CARD_COUNTERS];
};

/**
 * struct card_line - reservations of a line; monotonic clock, in nanoseconds
 * @free: the end of the last reservation
 * @gap_from: start of an idle period before the last reservation
 * @gap_to: end of that period
 */
struct card_line {
	u64 free;
	u64 gap_from;
	u64 gap_to;
};

/**
 * struct card_cache - what a card keeps of its memory on the host, by a tag
 * @miss: nanoseconds for an entry that the cache lacks
 * @tags: the entries, each at the place that the hash of its tag selects; NULL without a cache
 * @entries: number of elements in @tags
 */
struct card_cache {
	u64 miss;
	u64 *tags;
	u32 entries;
};

/**
 * struct card_wire - model of time: line, processing units, caches
 * @lock: protects all members except the parameters
 * @rate: bits per second, 0 for unlimited
 * @latency: nanoseconds from this card to any other
 * @message: nanoseconds of a processing unit for each message
 * @units: number of processing units, 1 to CARD_MAX_UNITS
 * @completion_delay: additional nanoseconds before completions of send requests
 * @line: line out
 * @unit: time at which each processing unit becomes free
 * @pages: cache of translations, by key and page
 * @qps: cache of the states of queue pairs, by number
 */
struct card_wire {
	spinlock_t lock;
	u64 rate;
	u64 latency;
	u64 message;
	u32 units;
	u64 completion_delay;
	struct card_line line;
	u64 unit[CARD_MAX_UNITS];
	struct card_cache pages;
	struct card_cache qps;
};

/**
 * struct card_profile - limits and behaviours of a driver of real cards
 * @name: name of the profile
 * @max_wr: requests in a queue
 * @send_sge: elements of a send request
 * @recv_sge: elements of a receive request
 * @read_sge: elements of an RDMA Read
 * @inline_data: bytes of inline data
 * @pages: pages of a region for fast registration
 * @reads_in: RDMA Reads in flight as responder (max_qp_rd_atom)
 * @reads_out: RDMA Reads in flight as requester (max_qp_init_rd_atom)
 * @segment: bytes of an element that the DMA layer may make, if the card has a function
 * @lkey: key of all memory for this kernel (local_dma_lkey); CARD_NO_LKEY: the core makes a
 *	region of all memory for each protection domain
 * @flush_delay: milliseconds from the error state, or a post in it, to the flush
 * @gaps: regions with gaps (IB_MR_TYPE_SG_GAPS)
 * @exact: a queue has the requested number of slots; else more, a power of two
 * @drops_inline: a queue pair has no inline data, whatever the consumer requests, and posts
 *	ignore the flag IB_SEND_INLINE
 * @frees_at_poll: the slot of a send request is free once the consumer has polled a completion
 *	that covers it; else once it has completed
 * @fences: registrations and local invalidations wait until all earlier requests have completed
 * @strict_keys: initial value of card.strict_keys
 * @cached_state: initial value of card.cached_state
 * @refuses_immediate: posts of Send with immediate data fail
 * @stopped_modify: result of modify_qp while the card's firmware has stopped, a negative errno or 0
 * @stopped_destroy: likewise, of destroy_qp
 * @stopped_dereg: likewise, of dereg_mr
 * @stopped_flushes: modify_qp to the error state flushes requests although it fails
 * @failed_post: result of posting once the driver has noticed that
 * @failed_modify: likewise, of modify_qp
 * @failed_dereg: likewise, of dereg_mr; destroy_qp succeeds
 * @failed_flushes: the driver then flushes all requests
 * @failed_device: it then reports IB_EVENT_DEVICE_FATAL
 * @failed_qps: it then reports IB_EVENT_QP_FATAL for each queue pair
 */
struct card_profile {
	const char *name;
	u32 max_wr;
	u32 send_sge;
	u32 recv_sge;
	u32 read_sge;
	u32 inline_data;
	u32 pages;
	u32 reads_in;
	u32 reads_out;
	u32 segment;
	u32 lkey;
	u32 flush_delay;
	bool gaps;
	bool exact;
	bool drops_inline;
	bool frees_at_poll;
	bool fences;
	bool strict_keys;
	bool cached_state;
	bool refuses_immediate;
	int stopped_modify;
	int stopped_destroy;
	int stopped_dereg;
	bool stopped_flushes;
	int failed_post;
	int failed_modify;
	int failed_dereg;
	bool failed_flushes;
	bool failed_device;
	bool failed_qps;
};

struct iommu_domain;

/**
 * struct card_function - PCI function through which cards access memory
 * @list: link in the list of bound functions
 * @dev: device for which users of the cards map memory
 * @domain: address space of @dev; NULL if an IOMMU does not translate its addresses
 * @cards: number of cards; cards_lock protects it
 */
struct card_function {
	struct list_head list;
	struct device *dev;
	struct iommu_domain *domain;
	u32 cards;
};

/**
 * struct card - RDMA card
 * @ib: device of the RDMA core
 * @ndev: network device whose addresses are the GIDs; the card holds a reference
 * @function: function through which the card accesses memory; NULL: virtual DMA
 * @profile: driver whose limits and behaviours the card has
 * @list: link in the list of cards; cards_lock protects it
 * @id: unique number, not reused after removal; never 0
 * @regions: memory regions by the index in their keys, for readers under RCU
 * @indices: bits of the indices in use
 * @next_index: start of the search for a free index
 * @regions_lock: protects @indices, @next_index, and changes of @regions
 * @gsi: queue pair of management datagrams; cards_lock protects it
 * @netdev_up: netif_running() and netif_carrier_ok() of the network device
 * @link_down: debugfs set the link down
 * @gone: the device failed, or is being freed: lookups skip it
 * @firmware: state of the firmware; unless it works, no request executes, and commands fail
 * @recoverable: a refused Read or Write leaves the queue pairs usable
 * @lose: number of messages to lose
 * @stuck: number of times that a queue pair refuses the error state
 * @keep_qps: number of times that the destruction of a connected queue pair fails
 * @keep_regions: number of times that the deregistration of a fast registration region fails
 * @keep_keys: number of invalidations that leave their region valid
 * @corrupt: number of Writes of a page or more whose last byte arrives changed
 * @cut_chains: number of chains of which only the first send request is posted
 * @strict_keys: a local invalidation of an invalid region fails
 * @cached_state: queries return the state that the consumer set last
 * @refuse: refuse each Nth Read of a peer; 0: none
 * @asked: number of Reads of peers since the last one that @refuse refused
 * @wire: model of time
 * @counts: counters
 * @pds: number of protection domains
 * @cqs: number of completion queues
 * @qps: number of queue pairs
 * @ahs: number of address handles
 * @debugfs: directory of this card
 */
struct card {
	struct ib_device ib;
	struct net_device *ndev;
	struct card_function *function;
	const struct card_profile *profile;
	struct list_head list;
	u32 id;
	struct card_mr __rcu **regions;
	unsigned long *indices;
	u32 next_index;
	spinlock_t regions_lock;
	struct card_qp *gsi;
	bool netdev_up;
	bool link_down;
	bool gone;
	enum card_firmware firmware;
	bool recoverable;
	atomic_t lose;
	atomic_t stuck;
	atomic_t keep_qps;
	atomic_t keep_regions;
	atomic_t keep_keys;
	atomic_t corrupt;
	atomic_t cut_chains;
	bool strict_keys;
	bool cached_state;
	atomic_t refuse;
	atomic_t asked;
	struct card_wire wire;
	struct card_counts __percpu *counts;
	atomic_t pds;
	atomic_t cqs;
	atomic_t qps;
	atomic_t ahs;
	struct dentry *debugfs;
};

struct card_pd {
	struct ib_pd ib;
};

/* A process that has the card open */
struct card_ucontext {
	struct ib_ucontext ib;
};

/**
 * struct card_path - path to another card
 * @sgid: source GID
 * @dgid: destination GID
 * @dmac: destination MAC address, resolved by the core
 * @vlan: VLAN of the source address, 0xffff for none
 * @traffic_class: of the IP header
 * @hop_limit: of the IP header
 * @sl: service level
 */
struct card_path {
	union ib_gid sgid;
	union ib_gid dgid;
	u8 dmac[ETH_ALEN];
	u16 vlan;
	u8 traffic_class;
	u8 hop_limit;
	u8 sl;
};

struct card_ah {
	struct ib_ah ib;
	struct card_path path;
};

static inline struct card *to_card(struct ib_device *ib)
{
	return container_of(ib, struct card, ib);
}

static inline void card_count(struct card *card, enum card_counter counter)
{
	this_cpu_inc(card->counts->value[counter]);
}

static inline void card_count_add(struct card *card, enum card_counter counter, u64 value)
{
	this_cpu_add(card->counts->value[counter], value);
}

/* Choose the result of a driver: while the firmware has stopped, or once the driver has noticed */
static inline int card_result(const struct card *card, int stopped, int failed)
{
	switch (READ_ONCE(card->firmware)) {
	case CARD_STOPPED:
		return stopped;
	case CARD_FAILED:
		return failed;
	default:
		return 0;
	}
}

static inline bool card_is_up(const struct card *card)
{
	return READ_ONCE(card->netdev_up) && !READ_ONCE(card->link_down) &&
	       !READ_ONCE(card->gone) && READ_ONCE(card->firmware) == CARD_RUNS;
}

/* profile.c */
const struct card_profile *card_profile_of_new(void);

/* device.c */
struct card *card_alloc(struct net_device *ndev);
void card_update_netdev(struct card *card);

/* function.c */
struct card_function *card_function_get(u32 segment);
void card_function_put(struct card_function *function);
int card_functions_start(void);
void card_functions_stop(void);

/* user.c */
int card_alloc_ucontext(struct ib_ucontext *ib, struct ib_udata *udata);
void card_dealloc_ucontext(struct ib_ucontext *ib);
void card_disassociate_ucontext(struct ib_ucontext *ib);

/* counters.c */
struct rdma_hw_stats *card_alloc_stats(struct ib_device *ib, u32 port);
int card_get_stats(struct ib_device *ib, struct rdma_hw_stats *stats, u32 port, int index);

/* cards.c */
extern struct workqueue_struct *card_wq;
extern struct list_head cards;
extern spinlock_t cards_lock;
void card_path_set(struct card_path *path, struct rdma_ah_attr *attr);
struct card *card_at(const struct card_path *path);
u32 card_find(const struct card_path *path);
void card_link_changed(struct card *card);
void card_report_fatal(struct card *card);
void card_remove_all(const struct card_function *function);

/* wire.c */
int card_wire_set_cache(struct card_wire *wire, struct card_cache *cache, u32 entries);
bool card_wire_is_on(const struct card *card);
void card_wire_init(struct card_wire *wire);

/* dma.c */
DECLARE_STATIC_KEY_FALSE(card_dma_used);
void card_dma_init(struct card_function *function, struct device *dev);
void card_dma_end(struct card_function *function);
u8 *card_dma_at(struct card *card, u64 addr);

/* debugfs.c */
void card_debugfs_start(void);
void card_debugfs_stop(void);
void card_debugfs_add(struct card *card);
void card_debugfs_remove(struct card *card);

#endif
