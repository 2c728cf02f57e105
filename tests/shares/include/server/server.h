/* SPDX-License-Identifier: Apache-2.0 */
/* What share.c and short.c need of the kernel and of server.h, in user space and in one thread. */
#ifndef SHARES_SERVER_H
#define SHARES_SERVER_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef unsigned int gfp_t;

#define U32_MAX UINT32_MAX

#define PAGE_SHIFT 12
#define PAGE_SIZE 4096u
#define SZ_1M (1u << 20)
#define HZ 100
#define PFN_UP(n) (((n) + PAGE_SIZE - 1) >> PAGE_SHIFT)
#define GFP_NOWAIT 0
#define GFP_NOIO 0
#define __GFP_NOWARN 0
#define __GFP_NORETRY 0
#define __GFP_RETRY_MAYFAIL 0
#define noinline
#define READ_ONCE(x) (x)
#define WRITE_ONCE(x, y) ((x) = (y))
#define smp_mb() do { } while (0)
#define time_before(a, b) ((long)((a) - (b)) < 0)
#define pr_info_ratelimited(...) do { } while (0)
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#define min3(a, b, c) min(min(a, b), c)
#define max_t(type, a, b) max((type)(a), (type)(b))
#define clamp_t(type, n, low, high) \
	max((type)(low), min((type)(n), (type)(high)))
#define container_of(at, type, member) ((type *)((char *)(at) - offsetof(type, member)))

typedef struct { int counter; } atomic_t;
static inline int atomic_read(const atomic_t *v) { return v->counter; }
static inline void atomic_add(int n, atomic_t *v) { v->counter += n; }
static inline int atomic_add_return(int n, atomic_t *v) { return v->counter += n; }
static inline bool atomic_try_cmpxchg(atomic_t *v, int *old, int new)
{
	bool same = v->counter == *old;

	*old = v->counter;
	if (same)
		v->counter = new;
	return same;
}

typedef struct { bool held; } spinlock_t;
#define DEFINE_SPINLOCK(name) spinlock_t name
static inline void spin_lock_bh(spinlock_t *lock)
{
	if (lock->held)
		abort();
	lock->held = true;
}
static inline void spin_unlock_bh(spinlock_t *lock)
{
	if (!lock->held)
		abort();
	lock->held = false;
}

struct list_head { struct list_head *next, *prev; };
#define LIST_HEAD_INIT(name) { &(name), &(name) }
#define LIST_HEAD(name) struct list_head name = LIST_HEAD_INIT(name)
static inline void INIT_LIST_HEAD(struct list_head *list) { list->next = list->prev = list; }
static inline bool list_empty(const struct list_head *list) { return list->next == list; }
static inline bool list_is_last(const struct list_head *link, const struct list_head *list)
{
	return link->next == list;
}
static inline void list_add_tail(struct list_head *link, struct list_head *list)
{
	link->next = list;
	link->prev = list->prev;
	list->prev->next = link;
	list->prev = link;
}
static inline void list_del_init(struct list_head *link)
{
	link->next->prev = link->prev;
	link->prev->next = link->next;
	INIT_LIST_HEAD(link);
}
#define list_del list_del_init
#define list_first_entry_or_null(list, type, member) \
	(list_empty(list) ? NULL : container_of((list)->next, type, member))
#define list_for_each_entry(at, list, member)					\
	for (at = container_of((list)->next, typeof(*at), member); &at->member != (list); \
	     at = container_of(at->member.next, typeof(*at), member))

struct work_struct { int unused; };
struct delayed_work { struct work_struct work; };
#define DECLARE_DELAYED_WORK(name, function) \
	struct delayed_work name; static void (*name##_function)(struct work_struct *) = function

struct net;
struct sockaddr { int number; };
struct sockaddr_storage { int number; };
static inline bool rpc_cmp_addr(const struct sockaddr *a, const struct sockaddr *b)
{
	return a->number == b->number;
}
static inline void *kzalloc(size_t size, gfp_t flags) { return calloc(1 + 0 * flags, size); }
static inline void kfree(void *at) { free(at); }

/* the structures of server.h */
#include "structures.h"

struct nfr_svc_xprt { struct net *xpt_net; };
struct nfr_svc_first { struct nfr_svc_xprt xprt; };
struct nfr_conn {
	bool left;
	u32 retired;
};
struct nfr_svc {
	struct nfr_svc_first *first;
	struct nfr_conn *conn;
	struct nfr_svc_host *host;
	struct sockaddr_storage remote;
	spinlock_t lock;
	struct list_head all;
	u32 max_message;
};

enum nfr_svc_state { NFR_SVC_REPLYING, NFR_SVC_SENT };
struct nfr_svc_req {
	struct list_head all;
	enum nfr_svc_state state;
	u32 unlimited;
	u32 mark;
};

/* functions of the kernel module's server.h */
#include "functions.h"

#endif
