// SPDX-License-Identifier: GPL-2.0-only
/*
 * Limits and behaviours of a driver's profile. Parameters of the module have those that the two
 * devices should have; the cases write to the devices' files in debugfs.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/string.h>
#include <linux/umh.h>
#include <rdma/ib_verbs.h>

#include "pair.h"

#define LIMIT(_name)		\
	static uint _name;	\
	module_param(_name, uint, 0444)
#define HAS(_name)		\
	static bool _name;	\
	module_param(_name, bool, 0444)
#define ERRNO(_name)		\
	static int _name;	\
	module_param(_name, int, 0444)

LIMIT(max_wr);
LIMIT(send_sge);
LIMIT(recv_sge);
LIMIT(read_sge);
LIMIT(inline_data);
LIMIT(pages);
LIMIT(reads_in);
LIMIT(reads_out);
LIMIT(lkey);
LIMIT(flush_delay);
HAS(gaps);
HAS(exact);
HAS(drops_inline);
HAS(frees_at_poll);
HAS(fences);
HAS(strict_keys);
HAS(cached_state);
HAS(refuses_immediate);
ERRNO(stopped_modify);
ERRNO(stopped_destroy);
ERRNO(stopped_dereg);
HAS(stopped_flushes);
ERRNO(failed_post);
ERRNO(failed_modify);
ERRNO(failed_dereg);
HAS(failed_flushes);
HAS(failed_device);
HAS(failed_qps);

/* Nanoseconds of a wire, far more than a busy host needs for a few posts */
#define LATENCY		"300000000"

/* --- helpers --- */

/* Write to a file of a device in debugfs, which a kernel cannot do by itself */
static int order(const struct end *end, const char *name, const char *value)
{
	char *argv[] = { "/bin/sh", "-c", NULL, NULL }, *envp[] = { NULL };
	char command[128];

	snprintf(command, sizeof(command), "echo %s > /sys/kernel/debug/nfsrdma_card/%s/%s", value,
		 dev_name(&end->device->dev), name);
	argv[2] = command;
	return call_usermodehelper(argv[0], argv, envp, UMH_WAIT_PROC);
}

/* A Write of no bytes needs no key */
static int post_empty(struct end *end, u64 id, int flags)
{
	struct ib_rdma_wr wr = {
		.wr = { .wr_id = id, .opcode = IB_WR_RDMA_WRITE, .send_flags = flags },
	};

	return ib_post_send(end->qp, &wr.wr, NULL);
}

static int post_invalidation(struct end *end, u64 id)
{
	struct ib_send_wr wr = { .opcode = IB_WR_LOCAL_INV, .ex.invalidate_rkey = end->mr->rkey };

	return post(end, &wr, id, 0, 0);
}

/* Whether a queue pair with these capacities can be created; @cap gets those that it has */
static bool creates(struct end *end, struct ib_qp_cap *cap)
{
	struct ib_qp_init_attr init = {
		.send_cq = end->cq, .recv_cq = end->cq, .qp_type = IB_QPT_RC, .cap = *cap,
	};
	struct ib_qp *qp = ib_create_qp(end->pd, &init);

	if (IS_ERR(qp))
		return false;
	*cap = init.cap;
	return !ib_destroy_qp(qp);
}

/* Whether a capacity can have its limit, and no more */
static bool ends_at(struct end *end, size_t member, u32 limit)
{
	struct ib_qp_cap most = { .max_send_wr = 1, .max_recv_wr = 1 }, more = most;

	*(u32 *)((void *)&most + member) = limit;
	*(u32 *)((void *)&more + member) = limit + 1;
	return creates(end, &most) && !creates(end, &more);
}

static bool can_register(struct end *end, enum ib_mr_type type, u32 count)
{
	struct ib_mr *mr = ib_alloc_mr(end->pd, type, count);

	return !IS_ERR(mr) && !ib_dereg_mr(mr);
}

/* Destroy the region or the queue pair of an end, which may be refused */
static int dereg(struct end *end)
{
	int rc = ib_dereg_mr(end->mr);

	if (!rc)
		end->mr = NULL;
	return rc;
}

static int destroy(struct end *end)
{
	int rc = ib_destroy_qp(end->qp);

	if (!rc)
		end->qp = NULL;
	return rc;
}

/* Value of a counter of a device, or U64_MAX */
static u64 counter(struct ib_device *device, const char *name)
{
	struct rdma_hw_stats *stats = device->ops.alloc_hw_port_stats(device, 1);
	u64 value = U64_MAX;
	int i;

	if (!stats)
		return value;
	if (device->ops.get_hw_stats(device, stats, 1, 0) == stats->num_counters)
		for (i = 0; i < stats->num_counters; i++)
			if (!strcmp(stats->descs[i].name, name))
				value = stats->value[i];
	rdma_free_hw_stats_struct(stats);
	return value;
}

/* --- limits --- */

static const char *device_reports_the_limits(struct pair *pair)
{
	struct ib_device *device = pair->near.device;
	const struct ib_device_attr *attr = &device->attrs;

	EXPECT(attr->max_qp_wr == max_wr);
	EXPECT(attr->max_send_sge == send_sge && attr->max_recv_sge == recv_sge);
	EXPECT(attr->max_sge_rd == read_sge && attr->max_fast_reg_page_list_len == pages);
	EXPECT(attr->max_qp_rd_atom == reads_in && attr->max_qp_init_rd_atom == reads_out);
	EXPECT(!(attr->kernel_cap_flags & IBK_SG_GAPS_REG) == !gaps);
	EXPECT(!(attr->kernel_cap_flags & IBK_LOCAL_DMA_LKEY) == (lkey == U32_MAX));
	EXPECT(lkey == U32_MAX || device->local_dma_lkey == lkey);
	return NULL;
}

static const char *queue_pair_ends_at_the_limits(struct pair *pair)
{
	struct end *end = &pair->near;

	EXPECT(ends_at(end, offsetof(struct ib_qp_cap, max_send_wr), max_wr));
	EXPECT(ends_at(end, offsetof(struct ib_qp_cap, max_recv_wr), max_wr));
	EXPECT(ends_at(end, offsetof(struct ib_qp_cap, max_send_sge), send_sge));
	EXPECT(ends_at(end, offsetof(struct ib_qp_cap, max_recv_sge), recv_sge));
	EXPECT(ends_at(end, offsetof(struct ib_qp_cap, max_inline_data), inline_data));
	return NULL;
}

static const char *queue_pair_has_the_granted_capacities(struct pair *pair)
{
	struct ib_qp_cap cap = { .max_send_wr = 33, .max_recv_wr = 33, .max_inline_data = 32 };

	EXPECT(creates(&pair->near, &cap));
	EXPECT(exact ? cap.max_send_wr == 33 : cap.max_send_wr > 33);
	EXPECT(exact ? cap.max_recv_wr == 33 : cap.max_recv_wr > 33);
	EXPECT(drops_inline ? !cap.max_inline_data : cap.max_inline_data >= 32);
	return NULL;
}

static const char *region_ends_at_the_limit(struct pair *pair)
{
	EXPECT(can_register(&pair->near, IB_MR_TYPE_MEM_REG, pages));
	EXPECT(!can_register(&pair->near, IB_MR_TYPE_MEM_REG, pages + 1));
	EXPECT(can_register(&pair->near, IB_MR_TYPE_SG_GAPS, 16) == gaps);
	return NULL;
}

/* Connect a new queue pair with a number of Reads in flight. Returns 0 or a negative errno. */
static int connect_with(struct pair *pair, u32 reads)
{
	struct ib_qp *was = pair->near.qp;
	struct terms terms = usual;
	int rc;

	terms.reads = reads;
	rc = end_create_qp(&pair->near) ?: end_connect(&pair->near, &pair->far, &terms);
	if (!IS_ERR(pair->near.qp))
		ib_destroy_qp(pair->near.qp);
	pair->near.qp = was;
	return rc;
}

static const char *reads_end_at_the_limits(struct pair *pair)
{
	u32 limit = min(reads_in, reads_out);

	EXPECT(limit < U8_MAX);
	EXPECT(!connect_with(pair, limit));
	EXPECT(connect_with(pair, limit + 1) == -EINVAL);
	return NULL;
}

static const char *inline_data_is_sent(struct pair *pair)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND, .send_flags = IB_SEND_INLINE };
	struct ib_sge sge = {
		.addr = pair->near.dma, .length = 16, .lkey = pair->near.pd->local_dma_lkey,
	};

	/* a driver that ignores the flag has the card read memory */
	if (!drops_inline)
		sge.addr = (uintptr_t)pair->near.data;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	EXPECT(!post_recv(&pair->far, 1, 0, 100));
	strscpy(pair->near.data, "inline", 16);
	EXPECT(!post(&pair->near, &wr, 2, 0, 16));
	EXPECT(comes(&pair->far, 1, IB_WC_SUCCESS));
	EXPECT(!strcmp(pair->far.data, "inline"));
	return NULL;
}

/* --- slots --- */

/* Post until the queue is full, which with slots that completion frees never happens */
static u32 fill_queue(struct end *end, u32 from, int flags)
{
	u32 id = from;

	while (id < from + QUEUE && !post_empty(end, id, flags))
		id++;
	return id - from;
}

static const char *poll_frees_the_slots_of_requests(struct pair *pair)
{
	struct end *end = &pair->near;
	struct ib_wc wc;
	u32 i;

	/* each has completed when its post returns */
	EXPECT(fill_queue(end, 0, IB_SEND_SIGNALED) == QUEUE);
	EXPECT(post_empty(end, QUEUE, 0) == (frees_at_poll ? -ENOMEM : 0));
	for (i = 0; i < QUEUE; i++)
		EXPECT(comes(end, i, IB_WC_SUCCESS));
	EXPECT(!ib_poll_cq(end->cq, 1, &wc));
	EXPECT(!post_empty(end, 1, 0));
	return NULL;
}

static const char *completion_covers_unsignaled_requests(struct pair *pair)
{
	struct end *end = &pair->near;
	struct ib_wc wc;

	EXPECT(fill_queue(end, 0, 0) == QUEUE);
	EXPECT(!ib_poll_cq(end->cq, 1, &wc));
	/* the card has no completion that would free a slot */
	EXPECT(post_empty(end, 1, 0) == (frees_at_poll ? -ENOMEM : 0));
	EXPECT(!state(end, IB_QPS_ERR));
	EXPECT(!ib_poll_cq(end->cq, 1, &wc));
	EXPECT(!state(end, IB_QPS_RESET));
	return NULL;
}

/* --- order --- */

static const char *registration_waits_for_earlier_requests(struct pair *pair)
{
	struct end *end = &pair->near;
	u64 before = counter(end->device, "registrations");
	struct ib_wc wc;

	EXPECT(before != U64_MAX);
	EXPECT(!order(end, "latency", LATENCY) && !order(&pair->far, "latency", LATENCY));
	EXPECT(!post_empty(end, 1, IB_SEND_SIGNALED));
	EXPECT(!reg(end, 2, IB_ACCESS_LOCAL_WRITE));
	while (counter(end->device, "registrations") == before)
		usleep_range(100, 200);
	/* without a fence, the answer to the Write takes a latency more */
	if (fences)
		EXPECT(ib_poll_cq(end->cq, 1, &wc) == 1 && wc.wr_id == 1);
	else
		EXPECT(comes(end, 1, IB_WC_SUCCESS));
	EXPECT(comes(end, 2, IB_WC_SUCCESS));
	return NULL;
}

/* Nothing else has the engine look at the queue again */
static const char *registration_comes_after_an_unsignaled_request(struct pair *pair)
{
	struct end *end = &pair->near;

	EXPECT(!order(end, "latency", LATENCY) && !order(&pair->far, "latency", LATENCY));
	EXPECT(!post_empty(end, 1, 0));
	EXPECT(!reg(end, 2, IB_ACCESS_LOCAL_WRITE));
	EXPECT(comes(end, 2, IB_WC_SUCCESS));
	return NULL;
}

/* --- errors --- */

static const char *invalidation_of_an_invalid_region(struct pair *pair)
{
	EXPECT(!post_invalidation(&pair->near, 1));
	EXPECT(comes(&pair->near, 1, strict_keys ? IB_WC_MW_BIND_ERR : IB_WC_SUCCESS));
	return NULL;
}

static const char *query_after_a_failure(struct pair *pair)
{
	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	EXPECT(!post_empty(&pair->near, 1, IB_SEND_SIGNALED));
	EXPECT(comes(&pair->near, 1, IB_WC_SUCCESS));
	EXPECT(!order(&pair->near, "break", "0"));
	EXPECT(!order(&pair->near, "break", "0"));
	EXPECT(in_state(&pair->near, cached_state ? IB_QPS_RTS : IB_QPS_ERR));
	EXPECT(!state(&pair->near, IB_QPS_ERR));
	EXPECT(in_state(&pair->near, IB_QPS_ERR));
	return NULL;
}

/* A flush is not early; the timer wheel may count a tick that has begun */
static bool flushes_late(struct end *end, u64 id, ktime_t start)
{
	s64 least = flush_delay ? (s64)flush_delay - jiffies_to_msecs(1) : 0;

	return comes(end, id, IB_WC_WR_FLUSH_ERR) && ktime_ms_delta(ktime_get(), start) >= least;
}

static const char *flush_comes_after_its_delay(struct pair *pair)
{
	struct end *end = &pair->near;
	ktime_t start = ktime_get();
	int turn;

	EXPECT(!post_recv(end, 1, 0, 10));
	EXPECT(!state(end, IB_QPS_ERR));
	EXPECT(flushes_late(end, 1, start));
	/* each later one has a delay of its own */
	for (turn = 0; turn < 3; turn++) {
		start = ktime_get();
		EXPECT(!post_empty(end, 2, 0));
		EXPECT(flushes_late(end, 2, start));
		start = ktime_get();
		EXPECT(!post_recv(end, 3, 0, 10));
		EXPECT(flushes_late(end, 3, start));
	}
	return NULL;
}

/* --- firmware that has stopped --- */

static atomic_t fatal = ATOMIC_INIT(0);

static void count_fatal(struct ib_event_handler *handler, struct ib_event *event)
{
	if (event->event == IB_EVENT_DEVICE_FATAL)
		atomic_inc(&fatal);
}

static const char *completes_nothing(struct end *end)
{
	struct ib_wc wc;

	EXPECT(!order(end, "dead", "1"));
	EXPECT(!post_recv(end, 1, 0, 10));
	EXPECT(!post_empty(end, 2, IB_SEND_SIGNALED));
	EXPECT(!can_register(end, IB_MR_TYPE_MEM_REG, 1));
	EXPECT(state(end, IB_QPS_ERR) == stopped_modify);
	if (stopped_dereg)
		EXPECT(dereg(end) == stopped_dereg);
	if (stopped_destroy)
		EXPECT(destroy(end) == stopped_destroy);
	if (cached_state)
		EXPECT(in_state(end, IB_QPS_ERR));
	msleep(100);
	if (!stopped_flushes)
		EXPECT(!ib_poll_cq(end->cq, 1, &wc));
	return NULL;
}

/* The order of two flushes of two queues is any */
static bool both_flushed(struct end *end)
{
	struct ib_wc first, second;

	return poll(end, &first) && poll(end, &second) &&
	       first.status == IB_WC_WR_FLUSH_ERR && second.status == IB_WC_WR_FLUSH_ERR &&
	       first.wr_id + second.wr_id == 3;
}

static const char *driver_notices(struct end *end)
{
	if (stopped_flushes)
		EXPECT(both_flushed(end));
	EXPECT(!order(end, "dead", "2"));
	EXPECT(atomic_read(&fatal) == failed_device);
	if (failed_flushes && !stopped_flushes)
		EXPECT(both_flushed(end));
	EXPECT(post_empty(end, 4, IB_SEND_SIGNALED) == failed_post);
	EXPECT(state(end, IB_QPS_ERR) == failed_modify);
	if (failed_dereg)
		EXPECT(dereg(end) == failed_dereg);
	return NULL;
}

static const char *stopped_firmware_completes_nothing(struct pair *pair)
{
	struct end *end = &pair->near;
	struct ib_event_handler handler;
	const char *result;

	atomic_set(&fatal, 0);
	INIT_IB_EVENT_HANDLER(&handler, end->device, count_fatal);
	ib_register_event_handler(&handler);
	result = completes_nothing(end) ?: driver_notices(end);
	if (order(end, "dead", "0"))
		result = "expected a file";
	ib_unregister_event_handler(&handler);
	return result;
}

static const char *send_with_immediate_data(struct pair *pair)
{
	struct ib_send_wr wr = { .opcode = IB_WR_SEND_WITH_IMM };

	EXPECT(!post_recv(&pair->far, 1, 0, 10));
	EXPECT(post(&pair->near, &wr, 2, 0, 0) == (refuses_immediate ? -EINVAL : 0));
	return NULL;
}

#define TEST(_run) { .name = #_run, .run = _run, .terms = &usual }

const struct test profile_tests[] = {
	TEST(device_reports_the_limits),
	TEST(queue_pair_ends_at_the_limits),
	TEST(queue_pair_has_the_granted_capacities),
	TEST(region_ends_at_the_limit),
	TEST(reads_end_at_the_limits),
	TEST(inline_data_is_sent),
	TEST(send_with_immediate_data),
	TEST(poll_frees_the_slots_of_requests),
	TEST(completion_covers_unsignaled_requests),
	TEST(invalidation_of_an_invalid_region),
	TEST(query_after_a_failure),
	TEST(flush_comes_after_its_delay),
	TEST(stopped_firmware_completes_nothing),
	/* last: they leave a wire */
	TEST(registration_waits_for_earlier_requests),
	TEST(registration_comes_after_an_unsignaled_request),
};

const unsigned int num_profile_tests = ARRAY_SIZE(profile_tests);
