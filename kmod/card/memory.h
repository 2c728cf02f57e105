/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory regions, completion queues, and copying between scatter-gather lists. */
#ifndef NFSRDMA_CARD_MEMORY_H
#define NFSRDMA_CARD_MEMORY_H

#include "card.h"

struct card_qp;

/* Access rights that a region of a process can have */
#define CARD_USER_ACCESS \
	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ | \
	 IB_ACCESS_OPTIONAL)

/**
 * struct card_range - contiguous part of a memory region
 * @start: offset in the ranges of the region
 * @addr: kernel pointer, or DMA address if the card has a function
 * @length: in bytes
 */
struct card_range {
	u64 start;
	u64 addr;
	u64 length;
};

/* A region has to be valid to be invalidated, and invalid to be registered */
enum card_mr_state { CARD_MR_INVALID, CARD_MR_CHANGES, CARD_MR_VALID };

/**
 * struct card_mr - memory region
 * @ib: region of the RDMA core
 * @rcu: frees the region
 * @users: 0 if the region is invalid, else 1 plus the number of current accesses
 * @state: enum card_mr_state
 * @index: upper 24 bits of @key
 * @key: lkey and rkey
 * @access: IB_ACCESS_...
 * @iova: address of the first byte
 * @length: in bytes
 * @offset: offset of the first byte in @ranges
 * @mapped: bytes in @ranges
 * @max_ranges: capacity of @ranges; 0 for a region of all memory
 * @num_ranges: number of ranges in use
 * @ranges: sorted by start
 * @umem: pinned memory of a process, or of a dma-buf whose addresses the DMA layer makes
 * @dmabuf: dma-buf that is mapped at @map, for a card without a function
 * @map: see @dmabuf
 *
 * A region of the kernel has neither @umem nor @dmabuf.
 */
struct card_mr {
	struct ib_mr ib;
	struct rcu_head rcu;
	atomic_t users;
	atomic_t state;
	u32 index;
	u32 key;
	int access;
	u64 iova;
	u64 length;
	u64 offset;
	u64 mapped;
	u32 max_ranges;
	u32 num_ranges;
	struct card_range *ranges;
	struct ib_umem *umem;
	struct dma_buf *dmabuf;
	struct iosys_map map;
};

enum card_armed { CARD_UNARMED, CARD_ARMED_SOLICITED, CARD_ARMED };

/**
 * struct card_cq - completion queue
 * @ib: queue of the RDMA core
 * @lock: protects the members up to @held; taken in interrupts
 * @ring: @size completions; NULL for a queue of a process
 * @shared: completions for a process; NULL for a queue of the kernel
 * @umem: pinned memory of @shared
 * @size: a power of two
 * @head: number of completions written, free-running
 * @tail: number of completions polled, free-running; not used with @shared
 * @armed: kind of completion that raises an interrupt
 * @overrun: the queue was full when a completion arrived
 * @count: moderation: completions per interrupt
 * @period: moderation: maximum delay of an interrupt in microseconds; 0: off
 * @held: completions since the last interrupt
 * @timer: fires at the end of @period
 * @interrupt: interrupt on the current CPU
 * @call: interrupt on another CPU, @cpu
 * @called: @call is pending
 * @calls: number of handlers of @call that have not returned
 * @cpu: CPU of the completion vector
 * @event: reports an overrun
 */
struct card_cq {
	struct ib_cq ib;
	spinlock_t lock;
	struct ib_wc *ring;
	struct card_abi_ring *shared;
	struct ib_umem *umem;
	u32 size;
	u32 head;
	u32 tail;
	enum card_armed armed;
	bool overrun;
	u16 count;
	u16 period;
	u32 held;
	struct hrtimer timer;
	struct irq_work interrupt;
	call_single_data_t call;
	atomic_t called;
	atomic_t calls;
	int cpu;
	struct work_struct event;
};

/**
 * struct card_sg - position in a scatter-gather list
 * @qp: queue pair whose keys and protection domain apply
 * @sge: next element
 * @left: number of elements from @sge on
 * @skip: bytes of @sge before this position; only of the first element
 * @access: access rights that the regions need
 * @open: key 0 is all memory
 * @faulted: no memory is mapped at the position
 * @mr: region of the current element, or NULL
 * @range: range of @mr that has @at
 * @rest: bytes of the current element in the next ranges
 * @behind: bytes behind @room in the same range, for a card with a function
 * @dma: DMA address of those
 * @at: next memory
 * @room: bytes at @at
 */
struct card_sg {
	struct card_qp *qp;
	const struct ib_sge *sge;
	u32 left;
	u32 skip;
	int access;
	bool open;
	bool faulted;
	struct card_mr *mr;
	const struct card_range *range;
	u32 rest;
	u32 behind;
	u64 dma;
	u8 *at;
	u32 room;
};

static inline struct card_mr *to_card_mr(struct ib_mr *ib)
{
	return container_of(ib, struct card_mr, ib);
}

/* Whether a region is one for fast registration: not of a process, and not of all memory */
static inline bool card_mr_is_fast(const struct card_mr *mr)
{
	return mr->max_ranges && !mr->umem && !mr->dmabuf;
}

static inline struct card_cq *to_card_cq(struct ib_cq *ib)
{
	return container_of(ib, struct card_cq, ib);
}

/* region.c */
bool card_regions_create(struct card *card);
void card_regions_destroy(struct card *card);
struct ib_mr *card_get_dma_mr(struct ib_pd *pd, int access);
struct ib_mr *card_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg);
struct ib_mr *card_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 addr, int access);
struct ib_mr *card_dmabuf_mr(struct ib_pd *pd, u64 offset, u64 length, u64 addr, int fd,
			     int access);
int card_map_mr_sg(struct ib_mr *ib, struct scatterlist *sg, int nents, unsigned int *offset);
int card_dereg_mr(struct ib_mr *ib, struct ib_udata *udata);
void card_mr_open(struct card_mr *mr);
bool card_mr_close(struct card_mr *mr);

/* keys.c */
struct card_mr *card_key_enter(struct card *card, struct ib_pd *pd, u32 key, int access, u64 addr,
			       u64 length);
void card_key_leave(struct card_mr *mr);
bool card_key_register(struct card_qp *qp, u32 index, u32 key, int access);
bool card_key_invalidate(struct card_qp *qp, u32 key, bool must_be_valid);
u8 *card_key_at(const struct card_mr *mr, u64 addr, const struct card_range **range, u32 *room);

/* copy.c */
void card_sg_init(struct card_sg *sg, struct card_qp *qp, const struct ib_sge *sge, u32 num,
		  int access, u32 skip);
void card_sg_flat(struct card_sg *sg, void *data, u32 length);
void card_sg_end(struct card_sg *sg);
struct card_sg *card_copy(struct card_sg *to, struct card_sg *from, u32 length);

/* cq.c */
int card_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr,
		   struct card_create_cq_user *user);
int card_destroy_cq(struct ib_cq *ib, struct ib_udata *udata);
int card_poll_cq(struct ib_cq *ib, int room, struct ib_wc *wc);
int card_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags);
bool card_cq_push(struct card_cq *cq, const struct ib_wc *wc, bool solicited, bool in_timer);
void card_cq_forget(struct card_cq *cq, const struct card_qp *qp);

/* interrupt.c */
int card_modify_cq(struct ib_cq *ib, u16 count, u16 period);
bool card_cq_is_due(struct card_cq *cq);
void card_cq_notify(struct card_cq *cq);
void card_cq_raise(struct card_cq *cq);
void card_cq_init_interrupts(struct card_cq *cq, int vector);
void card_cq_sync(struct card_cq *cq);

/* user.c */
int card_shared_create(struct card_cq *cq, struct ib_udata *udata);
void card_shared_destroy(struct card_cq *cq);
void card_shared_write(struct card_cq *cq, const struct ib_wc *wc);

#endif
