// SPDX-License-Identifier: GPL-2.0-only
/*
 * Provider of the modelled card for libibverbs.
 *
 * The card writes completions into memory of the process; the provider polls
 * them there. It writes send requests into memory that the card reads, and rings the
 * doorbell by a system call. All other verbs are commands of uverbs. build.sh compiles
 * this file with the private headers of rdma-core.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <infiniband/driver.h>

#include "../abi.h"

struct card_device {
	struct verbs_device ibv;
};

struct card_context {
	struct verbs_context ibv;
};

/**
 * struct card_cq - completion queue
 * @ibv: queue of libibverbs
 * @lock: protects @ring up to its head, and @tail
 * @ring: memory that the card writes
 * @bytes: size of @ring
 * @entries: number of elements of the ring, a power of two
 * @tail: number of completions polled, free-running
 */
struct card_cq {
	struct ibv_cq ibv;
	pthread_spinlock_t lock;
	struct card_abi_ring *ring;
	size_t bytes;
	uint32_t entries;
	uint32_t tail;
};

/**
 * struct card_qp - queue pair
 * @ibv: queue pair of libibverbs
 * @lock: protects @sends
 * @sends: memory that the card reads at a doorbell
 * @bytes: size of @sends
 * @slot_bytes: distance between requests
 * @entries: number of requests in @sends, a power of two
 * @max_sge: most elements of a request
 * @max_inline: most bytes of inline data
 */
struct card_qp {
	struct ibv_qp ibv;
	pthread_mutex_t lock;
	struct card_abi_sends *sends;
	size_t bytes;
	uint32_t slot_bytes;
	uint32_t entries;
	uint32_t max_sge;
	uint32_t max_inline;
};

static struct card_cq *to_card_cq(struct ibv_cq *ibv)
{
	return container_of(ibv, struct card_cq, ibv);
}

static struct card_qp *to_card_qp(struct ibv_qp *ibv)
{
	return container_of(ibv, struct card_qp, ibv);
}

/* --- device and protection domains --- */

static int card_query_device(struct ibv_context *context,
			     const struct ibv_query_device_ex_input *input,
			     struct ibv_device_attr_ex *attr, size_t size)
{
	struct verbs_device *device = verbs_get_device(context->device);
	struct ib_uverbs_ex_query_device_resp resp;
	size_t resp_size = sizeof(resp);
	char *version = attr->orig_attr.fw_ver;
	int rc;

	rc = ibv_cmd_query_device_any(context, input, attr, size, &resp, &resp_size);
	if (rc)
		return rc;
	if (ibv_read_ibdev_sysfs_file(version, sizeof(attr->orig_attr.fw_ver), device->sysfs,
				      "fw_ver") < 0)
		version[0] = '\0';
	return 0;
}

static int card_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	struct ibv_query_port cmd = {};

	return ibv_cmd_query_port(context, port, attr, &cmd, sizeof(cmd));
}

static struct ibv_pd *card_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));
	struct ib_uverbs_alloc_pd_resp resp;
	struct ibv_alloc_pd cmd = {};

	if (!pd || !ibv_cmd_alloc_pd(context, pd, &cmd, sizeof(cmd), &resp, sizeof(resp)))
		return pd;
	free(pd);
	return NULL;
}

static int card_dealloc_pd(struct ibv_pd *pd)
{
	int rc = ibv_cmd_dealloc_pd(pd);

	if (!rc)
		free(pd);
	return rc;
}

/* --- memory regions --- */

static struct ibv_mr *card_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				  int access)
{
	struct verbs_mr *mr = calloc(1, sizeof(*mr));
	struct ib_uverbs_reg_mr_resp resp;
	struct ibv_reg_mr cmd = {};

	if (!mr)
		return NULL;
	if (!ibv_cmd_reg_mr(pd, addr, length, iova, access, mr, &cmd, sizeof(cmd), &resp,
			    sizeof(resp)))
		return &mr->ibv_mr;
	free(mr);
	return NULL;
}

static struct ibv_mr *card_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
					 uint64_t iova, int fd, int access)
{
	struct verbs_mr *mr = calloc(1, sizeof(*mr));

	if (!mr)
		return NULL;
	if (!ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, mr, NULL))
		return &mr->ibv_mr;
	free(mr);
	return NULL;
}

static int card_dereg_mr(struct verbs_mr *mr)
{
	int rc = ibv_cmd_dereg_mr(mr);

	if (!rc)
		free(mr);
	return rc;
}

/* --- completion queues --- */

/* The card rounds numbers of elements in the same way */
static uint32_t card_round_up(uint32_t entries)
{
	uint32_t power = 1;

	while (power < entries && power < 1U << 31)
		power *= 2;
	return power;
}

/* Memory for the card; shared: a child process has the same memory */
static int card_alloc_shared(void **memory, size_t bytes)
{
	*memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return *memory == MAP_FAILED ? errno : 0;
}

static int card_alloc_ring(struct card_cq *cq, uint32_t entries)
{
	void *ring;
	int rc;

	cq->entries = card_round_up(entries);
	cq->bytes = sizeof(*cq->ring) + cq->entries * sizeof(cq->ring->wc[0]);
	rc = card_alloc_shared(&ring, cq->bytes);
	if (!rc)
		cq->ring = ring;
	return rc;
}

static struct ibv_cq *card_create_cq(struct ibv_context *context, int entries,
				     struct ibv_comp_channel *channel, int vector)
{
	struct {
		struct ibv_create_cq ibv;
		struct card_abi_create_cq card;
	} cmd = {};
	struct card_cq *cq = calloc(1, sizeof(*cq));
	struct ib_uverbs_create_cq_resp resp;

	if (!cq)
		return NULL;
	errno = card_alloc_ring(cq, entries);
	if (errno)
		goto out_free;
	errno = pthread_spin_init(&cq->lock, PTHREAD_PROCESS_PRIVATE);
	if (errno)
		goto out_ring;
	cmd.card.ring = (uintptr_t)cq->ring;
	if (!ibv_cmd_create_cq(context, entries, channel, vector, &cq->ibv, &cmd.ibv, sizeof(cmd),
			       &resp, sizeof(resp)))
		return &cq->ibv;
	pthread_spin_destroy(&cq->lock);
out_ring:
	munmap(cq->ring, cq->bytes);
out_free:
	free(cq);
	return NULL;
}

static int card_destroy_cq(struct ibv_cq *ibv)
{
	struct card_cq *cq = to_card_cq(ibv);
	int rc = ibv_cmd_destroy_cq(ibv);

	if (rc)
		return rc;
	munmap(cq->ring, cq->bytes);
	pthread_spin_destroy(&cq->lock);
	free(cq);
	return 0;
}

static void card_convert(struct ibv_wc *to, const struct ib_uverbs_wc *from)
{
	*to = (struct ibv_wc) {
		.wr_id = from->wr_id, .status = from->status, .opcode = from->opcode,
		.byte_len = from->byte_len, .qp_num = from->qp_num, .src_qp = from->src_qp,
		.wc_flags = from->wc_flags & (IBV_WC_GRH | IBV_WC_WITH_IMM),
	};
	if (from->wc_flags & CARD_ABI_WITH_INVALIDATE) {
		to->wc_flags |= IBV_WC_WITH_INV;
		to->invalidated_rkey = from->ex.invalidate_rkey;
	} else {
		to->imm_data = from->ex.imm_data;
	}
}

static struct ib_uverbs_wc *card_slot(struct card_cq *cq, uint32_t at)
{
	return &cq->ring->wc[at & (cq->entries - 1)];
}

static void card_set_tail(struct card_cq *cq, uint32_t tail)
{
	cq->tail = tail;
	__atomic_store_n(&cq->ring->tail, tail, __ATOMIC_RELEASE);
}

static int card_poll_cq(struct ibv_cq *ibv, int room, struct ibv_wc *wc)
{
	struct card_cq *cq = to_card_cq(ibv);
	uint32_t head, tail;
	int n = 0;

	pthread_spin_lock(&cq->lock);
	tail = cq->tail;
	head = __atomic_load_n(&cq->ring->head, __ATOMIC_ACQUIRE);
	while (n < room && tail != head)
		card_convert(&wc[n++], card_slot(cq, tail++));
	card_set_tail(cq, tail);
	pthread_spin_unlock(&cq->lock);
	return n;
}

/* Drop the completions of a queue pair that writes no further ones */
static void card_forget(struct card_cq *cq, uint32_t qpn)
{
	uint32_t at, left, dropped = 0;

	pthread_spin_lock(&cq->lock);
	at = __atomic_load_n(&cq->ring->head, __ATOMIC_ACQUIRE);
	left = at - cq->tail;
	/* more entries than the ring has: the process overwrote it */
	if (left > cq->entries)
		left = 0;
	while (left--) {
		const struct ib_uverbs_wc *wc = card_slot(cq, --at);

		if (wc->qp_num == qpn)
			dropped++;
		else if (dropped)
			*card_slot(cq, at + dropped) = *wc;
	}
	card_set_tail(cq, cq->tail + dropped);
	pthread_spin_unlock(&cq->lock);
}

/* --- queue pairs --- */

static void card_forget_qp(struct ibv_qp *qp)
{
	card_forget(to_card_cq(qp->send_cq), qp->qp_num);
	card_forget(to_card_cq(qp->recv_cq), qp->qp_num);
}

static int card_alloc_sends(struct card_qp *qp, const struct ibv_qp_cap *cap)
{
	void *sends;
	int rc;

	qp->max_sge = cap->max_send_sge;
	qp->max_inline = cap->max_inline_data;
	qp->entries = card_round_up(cap->max_send_wr);
	qp->slot_bytes = card_abi_slot_bytes(qp->max_sge, qp->max_inline);
	qp->bytes = sizeof(*qp->sends) + (size_t)qp->entries * qp->slot_bytes;
	rc = card_alloc_shared(&sends, qp->bytes);
	if (!rc)
		qp->sends = sends;
	return rc;
}

static struct ibv_qp *card_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct card_qp *qp = calloc(1, sizeof(*qp));
	struct ib_uverbs_create_qp_resp resp;
	struct {
		struct ibv_create_qp ibv;
		struct card_abi_create_qp card;
	} cmd = {};

	if (!qp)
		return NULL;
	errno = card_alloc_sends(qp, &attr->cap);
	if (errno)
		goto out_free;
	errno = pthread_mutex_init(&qp->lock, NULL);
	if (errno)
		goto out_sends;
	cmd.card.sends = (uintptr_t)qp->sends;
	if (!ibv_cmd_create_qp(pd, &qp->ibv, attr, &cmd.ibv, sizeof(cmd), &resp, sizeof(resp)))
		return &qp->ibv;
	pthread_mutex_destroy(&qp->lock);
out_sends:
	munmap(qp->sends, qp->bytes);
out_free:
	free(qp);
	return NULL;
}

static int card_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
			 struct ibv_qp_init_attr *init)
{
	struct ibv_query_qp cmd = {};

	return ibv_cmd_query_qp(qp, attr, mask, init, &cmd, sizeof(cmd));
}

static int card_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct ibv_modify_qp cmd = {};
	int rc = ibv_cmd_modify_qp(qp, attr, mask, &cmd, sizeof(cmd));

	if (!rc && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET)
		card_forget_qp(qp);
	return rc;
}

static int card_destroy_qp(struct ibv_qp *qp)
{
	int rc = ibv_cmd_destroy_qp(qp);

	if (rc)
		return rc;
	card_forget_qp(qp);
	munmap(to_card_qp(qp)->sends, to_card_qp(qp)->bytes);
	pthread_mutex_destroy(&to_card_qp(qp)->lock);
	free(to_card_qp(qp));
	return 0;
}

/* --- send requests --- */

static int card_write_inline(struct card_qp *qp, struct card_abi_send *to,
			     const struct ibv_send_wr *wr)
{
	uint8_t *data = (uint8_t *)to->data;
	uint32_t length = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *sge = &wr->sg_list[i];

		if (sge->length > qp->max_inline - length)
			return EINVAL;
		memcpy(data + length, (void *)(uintptr_t)sge->addr, sge->length);
		length += sge->length;
	}
	to->length = length;
	return 0;
}

static struct card_abi_send *card_entry(struct card_qp *qp, uint32_t at)
{
	return (void *)(qp->sends->slots + (size_t)at * qp->slot_bytes);
}

/* Write a request where the card finds it at the next doorbell */
static int card_write_send(struct card_qp *qp, struct card_abi_send *to,
			   const struct ibv_send_wr *wr)
{
	static_assert(sizeof(struct ibv_sge) == sizeof(struct ib_uverbs_sge), "");
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->max_sge)
		return EINVAL;
	to->wr_id = wr->wr_id;
	to->opcode = wr->opcode;
	to->flags = wr->send_flags;
	to->imm = wr->opcode == IBV_WR_SEND_WITH_INV ? wr->invalidate_rkey : wr->imm_data;
	to->remote_addr = wr->wr.rdma.remote_addr;
	to->rkey = wr->wr.rdma.rkey;
	to->num_sge = wr->num_sge;
	to->length = 0;
	if (wr->send_flags & IBV_SEND_INLINE)
		return card_write_inline(qp, to, wr);
	memcpy(to->data, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	return 0;
}

/* Have the card take the requests; returns 0 or an errno */
static int card_doorbell(struct card_qp *qp)
{
	struct ib_uverbs_post_send_resp resp;
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_post_send post;
	} cmd = {
		.hdr = {
			.command = IB_USER_VERBS_CMD_POST_SEND, .in_words = sizeof(cmd) / 4,
			.out_words = sizeof(resp) / 4,
		},
		.post = {
			.response = (uintptr_t)&resp, .qp_handle = qp->ibv.handle,
			.wqe_size = sizeof(struct ib_uverbs_send_wr),
		},
	};

	return write(qp->ibv.context->cmd_fd, &cmd, sizeof(cmd)) == sizeof(cmd) ? 0 : errno;
}

static int card_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct card_qp *qp = to_card_qp(ibv);
	struct ibv_send_wr *each = wr;
	uint32_t n = 0, i;
	int rc = 0, error;

	pthread_mutex_lock(&qp->lock);
	while (!rc && each) {
		rc = ENOMEM;
		if (n < qp->entries)
			rc = card_write_send(qp, card_entry(qp, n), each);
		if (rc)
			break;
		each = each->next;
		n++;
	}
	qp->sends->count = n;
	/* the command may fail before the card gets it */
	qp->sends->taken = 0;
	error = card_doorbell(qp);
	if (error) {
		/* the first that the card has not taken */
		rc = error;
		for (each = wr, i = 0; i < qp->sends->taken && i < n; i++)
			each = each->next;
	}
	pthread_mutex_unlock(&qp->lock);
	if (rc)
		*bad = each;
	return rc;
}

/* --- registration with libibverbs --- */

static void card_free_context(struct ibv_context *ibv)
{
	struct card_context *context = container_of(ibv, struct card_context, ibv.context);

	verbs_uninit_context(&context->ibv);
	free(context);
}

static const struct verbs_context_ops card_ops = {
	.alloc_pd = card_alloc_pd,
	.create_cq = card_create_cq,
	.create_qp = card_create_qp,
	.dealloc_pd = card_dealloc_pd,
	.dereg_mr = card_dereg_mr,
	.destroy_cq = card_destroy_cq,
	.destroy_qp = card_destroy_qp,
	.free_context = card_free_context,
	.modify_qp = card_modify_qp,
	.poll_cq = card_poll_cq,
	.post_recv = ibv_cmd_post_recv,
	.post_send = card_post_send,
	.query_device_ex = card_query_device,
	.query_port = card_query_port,
	.query_qp = card_query_qp,
	.reg_dmabuf_mr = card_reg_dmabuf_mr,
	.reg_mr = card_reg_mr,
	.req_notify_cq = ibv_cmd_req_notify_cq,
};

static struct verbs_context *card_alloc_context(struct ibv_device *device, int fd, void *data)
{
	struct ib_uverbs_get_context_resp resp;
	struct ibv_get_context cmd = {};
	struct card_context *context;

	context = verbs_init_and_alloc_context(device, fd, context, ibv, RDMA_DRIVER_UNKNOWN);
	if (!context)
		return NULL;
	if (ibv_cmd_get_context(&context->ibv, &cmd, sizeof(cmd), &resp, sizeof(resp))) {
		verbs_uninit_context(&context->ibv);
		free(context);
		return NULL;
	}
	verbs_set_ops(&context->ibv, &card_ops);
	return &context->ibv;
}

/* The kernel has no driver id for this card */
static bool card_match(struct verbs_sysfs_dev *sysfs)
{
	char version[64];

	return ibv_read_ibdev_sysfs_file(version, sizeof(version), sysfs, "fw_ver") > 0 &&
	       !strncmp(version, CARD_FIRMWARE, strlen(CARD_FIRMWARE));
}

static struct verbs_device *card_alloc_device(struct verbs_sysfs_dev *sysfs)
{
	struct card_device *device = calloc(1, sizeof(*device));

	return device ? &device->ibv : NULL;
}

static void card_uninit_device(struct verbs_device *ibv)
{
	free(container_of(ibv, struct card_device, ibv));
}

/* No entry, but a table: libibverbs 56 reads that of each provider for a device with a driver id */
static const struct verbs_match_ent card_matches[] = { {} };

static const struct verbs_device_ops card_device_ops = {
	.name = "nfsrdma_card",
	.match_table = card_matches,
	.match_min_abi_version = CARD_ABI,
	.match_max_abi_version = CARD_ABI,
	.match_device = card_match,
	.alloc_device = card_alloc_device,
	.uninit_device = card_uninit_device,
	.alloc_context = card_alloc_context,
};
PROVIDER_DRIVER(nfsrdma_card, card_device_ops);
