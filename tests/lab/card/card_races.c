/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs that a process may execute at the same time for one queue pair, as commands of uverbs
 * without libibverbs, and work that it may cause: card_races CASE.
 *
 * reset ROUNDS: threads reset a queue pair of card0 while another one connects it and posts
 * receives; a queue pair of card1 sends to it meanwhile. Commands may fail, but no receive
 * completes twice. Prints the number of messages that arrived.
 * events: a broken queue pair with a full completion queue flushes requests. Prints the number of
 * asynchronous events of the process.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>

#include "abi.h"

#define CQE		1024
/* a thread may drain late: a completion queue that has been full stays broken */
#define LATE		16
#define WORK		64
#define RECEIVES	8
#define THREADS		3
#define BYTES		65536
#define IDS		(1 << 24)

/* enum ib_qp_attr_mask, enum ib_qp_state */
#define STATE		(1 << 0)
#define RIGHTS		(1 << 3)
#define PKEY		(1 << 4)
#define PORT		(1 << 5)
#define AV		(1 << 7)
#define MTU		(1 << 8)
#define TIMEOUT		(1 << 9)
#define RETRIES		(1 << 10)
#define RNR_RETRIES	(1 << 11)
#define RQ_PSN		(1 << 12)
#define READS_OUT	(1 << 13)
#define RNR_TIMER	(1 << 15)
#define SQ_PSN		(1 << 16)
#define READS_IN	(1 << 17)
#define DEST		(1 << 20)
enum { RESET, INIT, RTR, RTS, ERR = 6 };

struct end {
	int fd;
	uint8_t gid[16];
	int gid_index, async_fd;
	uint32_t pd, cq, qp, qpn, lkey, mr;
	struct card_abi_ring *ring;
	struct card_abi_sends *sends;
	char *data;
};

static struct end ends[2];
static uint32_t cqe = CQE;
static volatile int over;
static uint64_t received, next_id, twice;
static uint8_t *completed;
static long rounds;
static pthread_barrier_t barrier;

/* Execute a command; returns 0 or an errno */
static int command(int fd, uint32_t number, void *in, size_t in_bytes, void *out, size_t out_bytes)
{
	struct ib_uverbs_cmd_hdr *header = in;

	header->command = number;
	header->in_words = in_bytes / 4;
	header->out_words = out_bytes / 4;
	/* the response's address is the first member of each command */
	if (out_bytes)
		*(uint64_t *)(header + 1) = (uintptr_t)out;
	return write(fd, in, in_bytes) == (ssize_t)in_bytes ? 0 : errno;
}

static void must(const char *what, int error)
{
	if (!error)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(error));
	exit(1);
}

static void open_card(struct end *end, const char *card)
{
	char path[64], name[64];
	FILE *file;
	int i;

	for (i = 0; i < 32; i++) {
		snprintf(path, sizeof(path), "/sys/class/infiniband_verbs/uverbs%d/ibdev", i);
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fscanf(file, "%63s", name) == 1 && !strcmp(name, card)) {
			snprintf(path, sizeof(path), "/dev/infiniband/uverbs%d", i);
			end->fd = open(path, O_RDWR | O_CLOEXEC);
			must(path, end->fd < 0 ? errno : 0);
		}
		fclose(file);
	}
	must(card, end->fd ? 0 : ENODEV);
}

/* The first RoCE v2 address that maps an IPv4 address */
static void find_gid(struct end *end, const char *card)
{
	static const char mapped[] = "0000:0000:0000:0000:0000:ffff:";
	char path[96], gid[64], type[64];
	int i, found;

	for (; end->gid_index < 16; end->gid_index++) {
		const char *at = gid;
		FILE *file;

		snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gids/%d", card,
			 end->gid_index);
		file = fopen(path, "r");
		found = file && fgets(gid, sizeof(gid), file);
		if (file)
			fclose(file);
		snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gid_attrs/types/%d",
			 card, end->gid_index);
		file = fopen(path, "r");
		found = found && file && fgets(type, sizeof(type), file);
		if (file)
			fclose(file);
		if (!found || strcmp(type, "RoCE v2\n") || strncmp(gid, mapped, sizeof(mapped) - 1))
			continue;
		for (i = 0; i < 16; i++, at += 2 + (i % 2 == 0))
			sscanf(at, "%2hhx", &end->gid[i]);
		return;
	}
	must("a GID of RoCE v2 for IPv4", ENOENT);
}

static void create_cq(struct end *end)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_create_cq cq;
		struct card_abi_create_cq card;
	} in = { .cq = { .cqe = cqe, .comp_channel = -1 } };
	struct ib_uverbs_create_cq_resp out;

	end->ring = mmap(NULL, sizeof(*end->ring) + cqe * sizeof(end->ring->wc[0]),
			 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	in.card.ring = (uintptr_t)end->ring;
	must("create_cq", command(end->fd, IB_USER_VERBS_CMD_CREATE_CQ, &in, sizeof(in), &out,
				  sizeof(out)));
	end->cq = out.cq_handle;
}

static void create_qp(struct end *end)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_create_qp qp;
		struct card_abi_create_qp card;
	} in = { .qp = {
		.pd_handle = end->pd, .send_cq_handle = end->cq, .recv_cq_handle = end->cq,
		.max_send_wr = WORK, .max_recv_wr = WORK, .max_send_sge = 1, .max_recv_sge = 1,
		.qp_type = 2,
	} };
	struct ib_uverbs_create_qp_resp out;

	end->sends = mmap(NULL, sizeof(*end->sends) + WORK * card_abi_slot_bytes(1, 0),
			  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	in.card.sends = (uintptr_t)end->sends;
	must("create_qp", command(end->fd, IB_USER_VERBS_CMD_CREATE_QP, &in, sizeof(in), &out,
				  sizeof(out)));
	end->qp = out.qp_handle;
	end->qpn = out.qpn;
}

static void reg_mr(struct end *end)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_reg_mr mr;
	} in = { .mr = { .length = BYTES, .pd_handle = end->pd, .access_flags = 1 } };
	struct ib_uverbs_reg_mr_resp out;

	end->data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	in.mr.start = in.mr.hca_va = (uintptr_t)end->data;
	must("reg_mr", command(end->fd, IB_USER_VERBS_CMD_REG_MR, &in, sizeof(in), &out,
			       sizeof(out)));
	end->lkey = out.lkey;
	end->mr = out.mr_handle;
}

static void create(struct end *end, const char *card)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_get_context context;
	} context = {};
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_alloc_pd pd;
	} pd = {};
	struct ib_uverbs_get_context_resp opened;
	struct ib_uverbs_alloc_pd_resp domain;

	open_card(end, card);
	find_gid(end, card);
	must("get_context", command(end->fd, IB_USER_VERBS_CMD_GET_CONTEXT, &context,
				    sizeof(context), &opened, sizeof(opened)));
	end->async_fd = opened.async_fd;
	must("alloc_pd", command(end->fd, IB_USER_VERBS_CMD_ALLOC_PD, &pd, sizeof(pd), &domain,
				 sizeof(domain)));
	end->pd = domain.pd_handle;
	create_cq(end);
	create_qp(end);
	reg_mr(end);
}

static int modify(struct end *end, int state)
{
	static const uint32_t masks[] = {
		[RESET] = STATE, [INIT] = STATE | PKEY | PORT | RIGHTS,
		[RTR] = STATE | AV | MTU | DEST | RQ_PSN | READS_IN | RNR_TIMER,
		[RTS] = STATE | TIMEOUT | RETRIES | RNR_RETRIES | SQ_PSN | READS_OUT,
		[ERR] = STATE,
	};
	struct end *peer = &ends[end == ends];
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_modify_qp qp;
	} in = { .qp = {
		.qp_handle = end->qp, .attr_mask = masks[state], .qp_state = state, .port_num = 1,
		.path_mtu = 5, .dest_qp_num = peer->qpn, .rq_psn = 1, .sq_psn = 1,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 6,
		.retry_cnt = 7, .rnr_retry = 7,
		.dest = { .sgid_index = end->gid_index, .hop_limit = 64, .is_global = 1,
			  .port_num = 1 },
	} };

	memcpy(in.qp.dest.dgid, peer->gid, sizeof(peer->gid));
	/* the command has no response; its first member is that of dest */
	return command(end->fd, IB_USER_VERBS_CMD_MODIFY_QP, &in, sizeof(in), NULL, 0);
}

static int post_recv(struct end *end)
{
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_post_recv post;
		struct ib_uverbs_recv_wr wr;
		struct ib_uverbs_sge sge;
	} in = {
		.post = { .qp_handle = end->qp, .wr_count = 1, .sge_count = 1,
			  .wqe_size = sizeof(in.wr) },
		.wr = { .wr_id = 1 + __atomic_fetch_add(&next_id, 1, __ATOMIC_RELAXED),
			.num_sge = 1 },
		.sge = { .addr = (uintptr_t)end->data, .length = BYTES, .lkey = end->lkey },
	};
	struct ib_uverbs_post_recv_resp out;

	return command(end->fd, IB_USER_VERBS_CMD_POST_RECV, &in, sizeof(in), &out, sizeof(out));
}

/* Ring the doorbell for one request, which sends the region */
static int post_send(struct end *end)
{
	struct card_abi_send *send = (void *)end->sends->slots;
	struct ib_uverbs_sge *sge = (void *)send->data;
	struct {
		struct ib_uverbs_cmd_hdr header;
		struct ib_uverbs_post_send post;
	} in = { .post = { .qp_handle = end->qp, .wqe_size = sizeof(struct ib_uverbs_send_wr) } };
	struct ib_uverbs_post_send_resp out;

	*send = (struct card_abi_send){ .num_sge = 1, .opcode = 2, .flags = 2 };
	*sge = (struct ib_uverbs_sge){
		.addr = (uintptr_t)end->data, .length = BYTES, .lkey = end->lkey,
	};
	end->sends->count = 1;
	return command(end->fd, IB_USER_VERBS_CMD_POST_SEND, &in, sizeof(in), &out, sizeof(out));
}

/* Empty the completion queue */
static void drain(struct end *end)
{
	uint32_t head = __atomic_load_n(&end->ring->head, __ATOMIC_ACQUIRE);
	uint32_t tail = __atomic_load_n(&end->ring->tail, __ATOMIC_RELAXED);
	uint64_t messages = 0;

	while (tail != head) {
		struct ib_uverbs_wc *wc = &end->ring->wc[tail++ % cqe];

		if (!wc->wr_id)
			continue;
		messages += !wc->status;
		twice += completed[wc->wr_id % IDS]++;
	}
	__atomic_fetch_add(&received, messages, __ATOMIC_RELAXED);
	__atomic_store_n(&end->ring->tail, head, __ATOMIC_RELEASE);
}

/* Connect the first queue pair whenever it is reset */
static void *connect_on(void *unused)
{
	struct end *end = &ends[0];
	int i;

	while (!over) {
		if (!modify(end, INIT) && !modify(end, RTR))
			modify(end, RTS);
		for (i = 0; i < RECEIVES; i++)
			post_recv(end);
	}
	return NULL;
}

/* Reset the first queue pair by all threads at once, or set it to the error state */
static void *reset(void *argument)
{
	unsigned int seed = (uintptr_t)argument;
	long round;

	for (round = 0; round < rounds; round++) {
		pthread_barrier_wait(&barrier);
		modify(&ends[0], rand_r(&seed) % 4 ? RESET : ERR);
		if (round % 4 == 0)
			usleep(1000);
	}
	return NULL;
}

static void *send_on(void *unused)
{
	struct end *end = &ends[1];
	int i;

	while (!over) {
		modify(end, RESET);
		modify(end, INIT);
		modify(end, RTR);
		modify(end, RTS);
		for (i = 0; i < 4 * WORK && !over; i++)
			post_send(end);
		drain(end);
	}
	return NULL;
}

static void *drain_on(void *unused)
{
	while (!over) {
		drain(&ends[0]);
		usleep(50);
	}
	return NULL;
}

/* The ends connect, so that a command that never succeeds is found */
static void connect_ends(void)
{
	int i;

	for (i = 0; i < 2; i++) {
		must("INIT", modify(&ends[i], INIT));
		must("RTR", modify(&ends[i], RTR));
		must("RTS", modify(&ends[i], RTS));
	}
}

static int run_reset(void)
{
	pthread_t threads[THREADS], connector, sender, drainer;
	int i;

	pthread_create(&drainer, NULL, drain_on, NULL);
	pthread_create(&sender, NULL, send_on, NULL);
	pthread_create(&connector, NULL, connect_on, NULL);
	pthread_barrier_init(&barrier, NULL, THREADS);
	for (i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, reset, (void *)(uintptr_t)(i + 1));
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	over = 1;
	pthread_join(connector, NULL);
	pthread_join(sender, NULL);
	pthread_join(drainer, NULL);
	printf("%llu\n", (unsigned long long)received);
	if (twice)
		fprintf(stderr, "%llu receives completed twice\n", (unsigned long long)twice);
	return twice > 0;
}

static int run_events(void)
{
	struct ib_uverbs_async_event_desc event;
	int i, events = 0;

	must("ERR", modify(&ends[0], ERR));
	for (i = 0; i < 8 * CQE; i++)
		must("post_send", post_send(&ends[0]));
	must("fcntl", fcntl(ends[0].async_fd, F_SETFL, O_NONBLOCK) ? errno : 0);
	while (read(ends[0].async_fd, &event, sizeof(event)) == sizeof(event))
		events++;
	printf("%d\n", events);
	return 0;
}

int main(int argc, char **argv)
{
	int i;

	if (argc < 2)
		return 2;
	completed = calloc(IDS, 1);
	must("memory", completed ? 0 : ENOMEM);
	if (!strcmp(argv[1], "reset"))
		cqe = LATE * CQE;
	for (i = 0; i < 2; i++)
		create(&ends[i], i ? "card1" : "card0");
	connect_ends();
	if (!strcmp(argv[1], "reset") && argc == 3) {
		rounds = atol(argv[2]);
		return run_reset();
	}
	return strcmp(argv[1], "events") ? 2 : run_events();
}
