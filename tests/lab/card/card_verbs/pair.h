/* SPDX-License-Identifier: GPL-2.0-only */
/* Two connected queue pairs on two RDMA devices, for the cases of cases.c. */
#ifndef CARD_VERBS_PAIR_H
#define CARD_VERBS_PAIR_H

#include <rdma/ib_verbs.h>

/* Bytes of each end's memory: several budgets of the card's engine */
#define SIZE		(3 << 20)
#define QUEUE		64
#define REGION		64

/**
 * struct end - one of the two queue pairs, with its memory
 * @data: SIZE bytes of memory, @dma as the device sees it
 * @mapped: whether @dma is mapped
 * @mr: a region for REGION pages at the start of @data, not registered
 */
struct end {
	struct ib_device *device;
	struct ib_pd *pd;
	struct ib_cq *cq;
	struct ib_qp *qp;
	struct ib_mr *mr;
	struct scatterlist sg[REGION];
	u8 *data;
	u64 dma;
	bool mapped;
	union ib_gid gid;
	u32 gid_index;
};

struct pair {
	struct end near;
	struct end far;
};

/* Connection parameters of a pair */
struct terms {
	u8 rnr_retry;
	u8 min_rnr_timer;
	u8 timeout;
	u8 retry_cnt;
	u8 reads;
	int access;
	u32 cqe;
	unsigned int pd_flags;
};

extern const struct terms usual;

struct test {
	const char *name;
	/* returns NULL, or the expectation that failed */
	const char *(*run)(struct pair *pair);
	const struct terms *terms;
};

#define EXPECT(_what)	do { if (!(_what)) return "expected " #_what; } while (0)

/*
 * Cases for all devices, for devices that recover from refused requests, behind an IOMMU, and for
 * the profiles of the modelled card
 */
extern const struct test tests[], recoverable_tests[], unmapped_tests[], profile_tests[];
extern const unsigned int num_tests, num_recoverable_tests, num_unmapped_tests, num_profile_tests;

/* pair.c */
int state(struct end *end, enum ib_qp_state state);
int post_recv(struct end *end, u64 id, u64 at, u32 length);
int post(struct end *end, struct ib_send_wr *wr, u64 id, u64 at, u32 length);
int reg(struct end *end, u64 id, int access);
int reg_list(struct end *end, struct ib_mr *mr, struct scatterlist *sg, int num, u64 id,
	     int access);
bool poll(struct end *end, struct ib_wc *wc);
bool comes(struct end *end, u64 id, enum ib_wc_status status);
bool in_state(struct end *end, enum ib_qp_state state);
void end_unmap(struct end *end);
int end_create_qp(struct end *end);
int end_connect(struct end *end, const struct end *peer, const struct terms *terms);

#endif
