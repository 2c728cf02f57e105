// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The device: queue pairs, memory regions, completion queues and rdma_cm, as their manual pages describe them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "device.h"

#undef ibv_reg_mr

#define ARRAY(a)	(sizeof(a) / sizeof((a)[0]))

/* RFC 8797 */
#define PRIVATE_MAGIC	0xf6ab0e18
#define INLINE_DEFAULT	1024

struct settings settings;
struct counters counters;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void device_lock(void)
{
	pthread_mutex_lock(&lock);
}

void device_unlock(void)
{
	pthread_mutex_unlock(&lock);
}

static void *must(void *memory)
{
	if (!memory)
		abort();
	return memory;
}

/* --- faults --- */

static char faults[8192];

void fault(const char *format, ...)
{
	size_t used = strlen(faults);
	va_list args;

	va_start(args, format);
	vsnprintf(faults + used, sizeof(faults) - used, format, args);
	va_end(args);
	used = strlen(faults);
	if (used + 1 < sizeof(faults))
		strcpy(faults + used, "\n");
}

static uint64_t random_state = 88172645463325252ULL;

/* xorshift64 */
uint64_t chance(uint64_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return below ? random_state % below : 0;
}

/* --- steps that fail --- */

static struct step {
	char name[32];
	int error;
	uint64_t after, times;
} steps[16];

/* The error of a step, 0 if it succeeds */
static int step_error(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY(steps); i++) {
		if (!steps[i].error || strcmp(steps[i].name, name))
			continue;
		if (steps[i].after) {
			steps[i].after--;
			continue;
		}
		int error = steps[i].error;

		if (!--steps[i].times)
			steps[i].error = 0;
		return error;
	}
	return 0;
}

/* --- objects --- */

struct region {
	struct ibv_mr mr;	/* first */
	struct region *next;
	uint64_t start;		/* address that a work request or a chunk has */
	uint8_t *at;		/* where the device reaches the memory: of a dma-buf, a mapping of its own */
	uint8_t *mapping;
	size_t mapped;
	int access;
};

struct channel {
	struct ibv_comp_channel channel;	/* first */
	struct queue *events[64];
	uint32_t first, count, queues;
};

struct queue {
	struct ibv_cq cq;	/* first */
	struct ibv_wc *wcs;
	struct pair **freed;	/* of each completion: the pair whose Sends it ends */
	uint32_t first, count, most, pairs, unacked;
	bool armed;
};

struct send {
	struct send *next;
	uint64_t wr_id;
	struct ibv_sge sge;
	uint8_t *copy;
	bool signaled, finished;
};

struct pair {
	struct ibv_qp qp;	/* first */
	struct pair *next;
	struct ibv_qp_cap cap;
	struct ibv_recv_wr *receives;	/* a ring; sg_list is NULL, the element is in @elements */
	struct ibv_sge *elements;
	uint32_t first, count;
	struct send *sends, **sends_end;
	uint32_t nsends;
	uint64_t last_due;
	struct connection *connection;
};

struct message_id {
	struct rdma_cm_id id;	/* first */
	struct message_id *next;
	struct connection *connection;
	uint64_t last_due;
	uint32_t unacked;
	enum { ID_IDLE, ID_ADDRESS, ID_ROUTE, ID_CONNECTING, ID_RESPONSE, ID_UP, ID_ENDED } state;
};

struct cm_event {
	struct rdma_cm_event event;	/* first */
	struct cm_event *next;
	uint8_t private_data[56];
};

struct event_channel {
	struct rdma_event_channel channel;	/* first */
	struct cm_event *events;
	uint32_t ids;
};

struct connection {
	struct connection *next;
	struct pair *pair;
	struct message_id *id;
	struct terms terms;
	uint8_t reads;
	bool up;
	/* of a peer (see device_peer_open()): it has no pair and no id */
	bool is_peer;
	uint8_t *reply;		/* that the peer has not taken */
	uint32_t reply_length;
};

static struct region *regions;
static struct pair *pairs;
static struct connection *connections;
static struct message_id *ids;
static uint32_t next_key, next_pair;

static struct ibv_device devices[] = {
	{ .name = "stand0", .dev_name = "uverbs0", .node_type = IBV_NODE_CA },
	{ .name = "stand1", .dev_name = "uverbs1", .node_type = IBV_NODE_CA },
};
static struct ibv_context *cm_contexts[ARRAY(devices)];

/* The key of all memory of a peer */
#define PEER_KEY	0x70656572

struct terms *terms_of(struct connection *connection)
{
	return &connection->terms;
}

/* --- the world: what happens later --- */

struct happening {
	struct happening *next;
	uint64_t due;
	enum { CALL, REPLY, SENT, EVENT } kind;
	struct connection *connection;
	struct pair *pair;
	struct send *send;
	struct cm_event *event;
	uint8_t *message;
	uint32_t length;
};

static struct happening *happenings;
static bool world_runs;

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void happen(struct happening what)
{
	struct happening *new = must(malloc(sizeof(*new))), **at = &happenings;

	*new = what;
	while (*at && (*at)->due <= new->due)
		at = &(*at)->next;
	new->next = *at;
	*at = new;
	pthread_cond_signal(&changed);
}

static uint64_t due(void)
{
	return now_us() + (settings.late ? chance(settings.late + 1) : 0);
}

/* The same, and not before @last */
static uint64_t due_after(uint64_t *last)
{
	uint64_t when = due();

	*last = when < *last ? *last : when;
	return *last;
}

/* Drop what would happen to a pair or an id that ends */
static void forget(const struct pair *pair, const struct connection *connection, const struct message_id *id)
{
	struct happening **at = &happenings, *each;

	while ((each = *at)) {
		bool drop = (pair && each->pair == pair) || (connection && each->connection == connection) ||
			    (id && each->event && each->event->event.id == &id->id);

		if (!drop) {
			at = &each->next;
			continue;
		}
		*at = each->next;
		free(each->event);
		free(each->message);
		free(each);
	}
}

static void complete(struct queue *queue, const struct ibv_wc *wc, struct pair *ends);
static void deliver(struct connection *connection, const uint8_t *message, uint32_t length);
static void flush(struct pair *pair);

/* ibv_post_send(3): the buffers belong to the device until the work request is complete */
static void check_message(const struct send *send)
{
	if (memcmp(send->copy, (void *)(uintptr_t)send->sge.addr, send->sge.length))
		fault("the message of a Send changed before its completion");
}

static void send_finished(struct pair *pair, struct send *send)
{
	struct ibv_wc wc = { .wr_id = send->wr_id, .opcode = IBV_WC_SEND, .qp_num = pair->qp.qp_num };

	check_message(send);
	send->finished = true;
	if (step_error("wc")) {
		wc.status = IBV_WC_RETRY_EXC_ERR;
		complete((struct queue *)pair->qp.send_cq, &wc, NULL);
		if (pair->connection)
			device_end_connection(pair->connection);
	} else if (send->signaled) {
		complete((struct queue *)pair->qp.send_cq, &wc, pair);
	}
}

static void cm_deliver(struct cm_event *event)
{
	struct message_id *id = (struct message_id *)event->event.id;
	struct event_channel *channel = (struct event_channel *)id->id.channel;
	struct cm_event **at = &channel->events;

	switch (event->event.event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		id->state = ID_ADDRESS;
		id->id.verbs = cm_contexts[settings.second_device % ARRAY(devices)];
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		id->state = ID_ROUTE;
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		id->state = ID_RESPONSE;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		id->state = ID_UP;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		id->state = ID_ENDED;
		break;
	default:
		break;
	}
	while (*at)
		at = &(*at)->next;
	event->next = NULL;
	*at = event;
	eventfd_write(channel->channel.fd, 1);
}

static void take_call(struct connection *connection, const uint8_t *message, uint32_t length)
{
	counters.calls++;
	if (settings.end_after && !--settings.end_after) {
		device_end_connection(connection);
		return;
	}
	server_call(connection, message, length);
	if (settings.end_behind && !--settings.end_behind)
		device_end_connection(connection);
}

static void *world(void *unused)
{
	(void)unused;
	device_lock();
	while (true) {
		struct happening *first = happenings;
		uint64_t now = now_us();

		if (!first) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		if (first->due > now) {
			struct timespec until;
			uint64_t ns;

			clock_gettime(CLOCK_REALTIME, &until);
			ns = until.tv_nsec + (first->due - now) * 1000;
			until.tv_sec += ns / 1000000000;
			until.tv_nsec = ns % 1000000000;
			pthread_cond_timedwait(&changed, &lock, &until);
			continue;
		}
		happenings = first->next;
		switch (first->kind) {
		case CALL:
			take_call(first->connection, first->message, first->length);
			break;
		case REPLY:
			deliver(first->connection, first->message, first->length);
			break;
		case SENT:
			send_finished(first->pair, first->send);
			break;
		case EVENT:
			cm_deliver(first->event);
			break;
		}
		free(first->message);
		free(first);
	}
	return NULL;
}

static void prepare_fork(void)
{
	device_lock();
}

static void parent_after_fork(void)
{
	device_unlock();
}

/* Threads do not survive a fork: the child makes a world of its own when it connects */
static void child_after_fork(void)
{
	world_runs = false;
	happenings = NULL;
	connections = NULL;
	pthread_cond_init(&changed, NULL);
	pthread_mutex_init(&lock, NULL);
	memset(&counters, 0, sizeof(counters));
}

/* Before the library does the same: its lock is taken first then, as by its threads that call the device */
__attribute__((constructor)) static void heed_forks(void)
{
	pthread_atfork(prepare_fork, parent_after_fork, child_after_fork);
}

static void start_world(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all, before;

	if (world_runs)
		return;
	world_runs = true;
	/* signals are for the threads of the program */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, world, NULL))
		abort();
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* --- completion queues --- */

static void channel_event(struct queue *queue)
{
	struct channel *channel = (struct channel *)queue->cq.channel;

	if (channel->count == ARRAY(channel->events)) {
		fault("nobody takes the events of a completion channel");
		return;
	}
	channel->events[(channel->first + channel->count++) % ARRAY(channel->events)] = queue;
	eventfd_write(channel->channel.fd, 1);
}

static void complete(struct queue *queue, const struct ibv_wc *wc, struct pair *ends)
{
	uint32_t at = (queue->first + queue->count) % queue->most;

	if (queue->count == queue->most) {
		fault("a completion queue of %u has overrun", queue->most);
		return;
	}
	queue->wcs[at] = *wc;
	queue->freed[at] = ends;
	queue->count++;
	if (!queue->armed || !queue->cq.channel)
		return;
	queue->armed = false;
	channel_event(queue);
	if (settings.spurious && !chance(settings.spurious))
		channel_event(queue);
}

/* A completion of a Send frees its place, and those of the Sends before it */
static void free_sends(struct pair *pair, uint64_t wr_id)
{
	bool last = false;

	while (pair->sends && !last) {
		struct send *send = pair->sends;

		last = send->signaled && send->wr_id == wr_id;
		pair->sends = send->next;
		if (!pair->sends)
			pair->sends_end = &pair->sends;
		pair->nsends--;
		free(send->copy);
		free(send);
	}
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	struct queue *queue = (struct queue *)cq;
	int n = 0;

	device_lock();
	if (step_error("poll_cq")) {
		device_unlock();
		return -1;
	}
	for (; n < most && queue->count; n++) {
		struct pair *pair = queue->freed[queue->first];

		wc[n] = queue->wcs[queue->first];
		if (pair)
			free_sends(pair, wc[n].wr_id);
		queue->first = (queue->first + 1) % queue->most;
		queue->count--;
	}
	device_unlock();
	return n;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	struct queue *queue = (struct queue *)cq;
	int error;

	(void)solicited;
	device_lock();
	error = step_error("req_notify_cq");
	if (!error)
		queue->armed = true;
	device_unlock();
	return error;
}

int ibv_get_cq_event(struct ibv_comp_channel *comp_channel, struct ibv_cq **cq, void **cq_context)
{
	struct channel *channel = (struct channel *)comp_channel;
	eventfd_t one;

	if (eventfd_read(comp_channel->fd, &one))
		return -1;
	device_lock();
	*cq = &channel->events[channel->first]->cq;
	*cq_context = (*cq)->cq_context;
	((struct queue *)*cq)->unacked++;
	channel->first = (channel->first + 1) % ARRAY(channel->events);
	channel->count--;
	device_unlock();
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	struct queue *queue = (struct queue *)cq;

	device_lock();
	if (nevents > queue->unacked)
		fault("%u acknowledged events of %u", nevents, queue->unacked);
	else
		queue->unacked -= nevents;
	device_unlock();
}

/* --- posting --- */

/* Is the element in registered memory of the pair's protection domain? */
static bool element_good(const struct pair *pair, const struct ibv_sge *sge, int access)
{
	const struct region *each;

	for (each = regions; each; each = each->next) {
		if (each->mr.lkey != sge->lkey)
			continue;
		if (each->mr.pd != pair->qp.pd)
			fault("a work request with memory of another protection domain");
		else if (each->mapping)
			fault("a message in a dma-buf");
		else if (sge->addr < each->start || sge->addr + sge->length > each->start + each->mr.length)
			fault("a work request with %u bytes that are not all registered", sge->length);
		else if ((each->access & access) != access)
			fault("a Receive into memory without IBV_ACCESS_LOCAL_WRITE");
		else
			return true;
		return false;
	}
	fault("a work request with the key %x, which is not registered", sge->lkey);
	return false;
}

static int post_one_send(struct pair *pair, const struct ibv_send_wr *wr)
{
	struct send *send;

	if (pair->qp.state != IBV_QPS_RTS && pair->qp.state != IBV_QPS_ERR)
		return EINVAL;
	if (wr->opcode != IBV_WR_SEND || wr->num_sge != 1 || (uint32_t)wr->num_sge > pair->cap.max_send_sge) {
		fault("a work request of opcode %d with %d elements", wr->opcode, wr->num_sge);
		return EINVAL;
	}
	if (pair->nsends == pair->cap.max_send_wr) {
		const struct send *each;

		fault("more than %u unfinished Sends", pair->cap.max_send_wr);
		for (each = pair->sends; each; each = each->next)
			if (!each->finished)
				check_message(each);
		return ENOMEM;
	}
	if (!element_good(pair, wr->sg_list, 0))
		return EINVAL;
	send = must(calloc(1, sizeof(*send)));
	*send = (struct send){
		.wr_id = wr->wr_id, .sge = *wr->sg_list, .signaled = wr->send_flags & IBV_SEND_SIGNALED,
		.copy = must(malloc(wr->sg_list->length + 1)),
	};
	memcpy(send->copy, (void *)(uintptr_t)send->sge.addr, send->sge.length);
	*pair->sends_end = send;
	pair->sends_end = &send->next;
	pair->nsends++;
	if (pair->qp.state == IBV_QPS_ERR || !pair->connection) {
		flush(pair);
		return 0;
	}
	uint8_t *message = must(malloc(send->sge.length + 1));

	/* RFC 8166, section 3.3.1; the first grant comes with the first reply */
	if (++pair->connection->terms.unanswered > pair->connection->terms.granted)
		fault("%u Calls without a reply, of %u that the server grants", pair->connection->terms.unanswered,
		      pair->connection->terms.granted);
	memcpy(message, send->copy, send->sge.length);
	happen((struct happening){
		.kind = CALL, .due = now_us() + (settings.late_calls ? chance(settings.late_calls + 1) : 0),
		.connection = pair->connection, .message = message, .length = send->sge.length,
	});
	happen((struct happening){
		.kind = SENT, .due = due_after(&pair->last_due) + settings.late_sends, .pair = pair, .send = send,
	});
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int error;

	device_lock();
	error = step_error("post_send");
	for (*bad = wr; wr && !error; wr = wr->next) {
		*bad = wr;
		error = post_one_send((struct pair *)qp, wr);
	}
	device_unlock();
	return error;
}

static int post_one_receive(struct pair *pair, const struct ibv_recv_wr *wr)
{
	uint32_t at = (pair->first + pair->count) % pair->cap.max_recv_wr;

	if (pair->qp.state == IBV_QPS_RESET)
		return EINVAL;
	if (wr->num_sge != 1 || (uint32_t)wr->num_sge > pair->cap.max_recv_sge) {
		fault("a Receive with %d elements", wr->num_sge);
		return EINVAL;
	}
	if (pair->count == pair->cap.max_recv_wr) {
		fault("more than %u Receives", pair->cap.max_recv_wr);
		return ENOMEM;
	}
	if (!element_good(pair, wr->sg_list, IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	pair->receives[at] = *wr;
	pair->elements[at] = *wr->sg_list;
	pair->count++;
	if (pair->qp.state == IBV_QPS_ERR)
		flush(pair);
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error;

	device_lock();
	error = step_error("post_recv");
	for (*bad = wr; wr && !error; wr = wr->next) {
		*bad = wr;
		error = post_one_receive((struct pair *)qp, wr);
	}
	device_unlock();
	return error;
}

/* A pair in the state of error: what is posted completes with IBV_WC_WR_FLUSH_ERR */
static void flush(struct pair *pair)
{
	struct ibv_wc wc = { .status = IBV_WC_WR_FLUSH_ERR, .qp_num = pair->qp.qp_num };
	struct send *send;

	pair->qp.state = IBV_QPS_ERR;
	forget(pair, NULL, NULL);
	for (send = pair->sends; send; send = send->next) {
		if (send->finished)
			continue;
		send->finished = true;
		/* without the flag, too */
		send->signaled = true;
		wc.wr_id = send->wr_id;
		complete((struct queue *)pair->qp.send_cq, &wc, pair);
	}
	while (pair->count) {
		wc.wr_id = pair->receives[pair->first].wr_id;
		complete((struct queue *)pair->qp.recv_cq, &wc, NULL);
		pair->first = (pair->first + 1) % pair->cap.max_recv_wr;
		pair->count--;
	}
}

/* --- for the server --- */

/* Memory that the peer reaches by a key; NULL after a fault, which ends the connection */
static void *reach(struct connection *connection, uint32_t key, uint64_t addr, uint32_t length, int access)
{
	const struct region *each;

	if (connection->is_peer && key == PEER_KEY)
		return (void *)(uintptr_t)addr;
	for (each = connection->is_peer ? NULL : regions; each; each = each->next) {
		if (each->mr.rkey != key)
			continue;
		if (each->mr.pd != connection->pair->qp.pd)
			fault("a chunk in memory of another protection domain");
		else if (addr < each->start || addr + length > each->start + each->mr.length)
			fault("a chunk of %u bytes that are not all registered", length);
		else if ((each->access & access) != access)
			fault("a chunk in memory without the access right %x", access);
		else
			return each->at + (addr - each->start);
		break;
	}
	if (!each)
		fault("a chunk with the key %x, which is not registered (any more)", key);
	device_end_connection(connection);
	return NULL;
}

bool device_rdma_read(struct connection *connection, uint32_t key, uint64_t addr, void *to, uint32_t length)
{
	void *from = reach(connection, key, addr, length, IBV_ACCESS_REMOTE_READ);

	if (!from)
		return false;
	if (!connection->reads && !connection->is_peer)
		fault("a Read chunk of a connection without responder resources");
	memcpy(to, from, length);
	return true;
}

bool device_rdma_write(struct connection *connection, uint32_t key, uint64_t addr, const void *from, uint32_t length)
{
	void *to = reach(connection, key, addr, length, IBV_ACCESS_REMOTE_WRITE);

	if (to)
		memcpy(to, from, length);
	return to;
}

/* What the server sends arrives later, in another order than that of the calls */
void device_reply(struct connection *connection, const void *message, uint32_t length)
{
	uint8_t *copy = must(malloc(length + 1));

	memcpy(copy, message, length);
	if (connection->is_peer) {
		free(connection->reply);
		connection->reply = copy;
		connection->reply_length = length;
		return;
	}
	happen((struct happening){
		.kind = REPLY, .due = due(), .connection = connection, .message = copy, .length = length,
	});
}

static uint32_t xid_of(const uint8_t *message)
{
	return (uint32_t)message[0] << 24 | message[1] << 16 | message[2] << 8 | message[3];
}

static void deliver(struct connection *connection, const uint8_t *message, uint32_t length)
{
	struct pair *pair = connection->pair;
	struct ibv_wc wc = { .opcode = IBV_WC_RECV, .byte_len = length, .qp_num = pair->qp.qp_num };
	const struct ibv_sge *sge = &pair->elements[pair->first];

	if (!pair->count) {
		fault("no Receive for a reply");
		device_end_connection(connection);
		return;
	}
	wc.wr_id = pair->receives[pair->first].wr_id;
	pair->first = (pair->first + 1) % pair->cap.max_recv_wr;
	pair->count--;
	connection->terms.unanswered--;
	server_delivered(connection, xid_of(message));
	connection->terms.granted = message[8] << 24 | message[9] << 16 | message[10] << 8 | message[11];
	if (length > sge->length) {
		fault("a reply of %u bytes for a Receive of %u", length, sge->length);
		wc.status = IBV_WC_LOC_LEN_ERR;
	} else if (element_good(pair, sge, IBV_ACCESS_LOCAL_WRITE)) {
		/* what stands behind a message is not defined */
		memset((void *)(uintptr_t)sge->addr, 0xa5, sge->length);
		memcpy((void *)(uintptr_t)sge->addr, message, length);
	}
	complete((struct queue *)pair->qp.recv_cq, &wc, NULL);
}

/* --- protection domains and memory --- */

static struct ibv_context *new_context(struct ibv_device *which)
{
	struct ibv_context *context = must(calloc(1, sizeof(*context)));

	context->device = which;
	context->cmd_fd = eventfd(0, EFD_CLOEXEC);
	context->async_fd = eventfd(0, EFD_CLOEXEC);
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	return context;
}

/* 0 as the error of a step, or errno and NULL */
#define FAILS(step) ({							\
	int error_ = step_error(step);					\
	if (error_)							\
		errno = error_;						\
	error_;								\
})

struct ibv_context *ibv_open_device(struct ibv_device *which)
{
	struct ibv_context *context = NULL;

	device_lock();
	if (!FAILS("open_device")) {
		context = new_context(which);
		counters.contexts++;
	}
	device_unlock();
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	device_lock();
	/* ibv_open_device(3): the caller releases all resources before */
	if (counters.contexts == 1 && (counters.pds || counters.cqs || counters.qps || counters.channels))
		fault("a device is closed before its objects");
	counters.contexts--;
	device_unlock();
	close(context->cmd_fd);
	close(context->async_fd);
	free(context);
	return 0;
}

const char *ibv_get_device_name(struct ibv_device *which)
{
	return which->name;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	int error;

	(void)context;
	device_lock();
	error = step_error("query_device");
	*attr = (struct ibv_device_attr){ .max_qp_rd_atom = 128, .max_qp_wr = 1 << 14, .max_sge = 30 };
	device_unlock();
	return error;
}

int ibv_fork_init(void)
{
	return 0;
}

struct domain {
	struct ibv_pd pd;	/* first */
	uint32_t users;
};

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct domain *domain = NULL;

	device_lock();
	if (!FAILS("alloc_pd")) {
		domain = must(calloc(1, sizeof(*domain)));
		domain->pd.context = context;
		counters.pds++;
	}
	device_unlock();
	return domain ? &domain->pd : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct domain *domain = (struct domain *)pd;
	int error = 0;

	device_lock();
	if (domain->users) {
		fault("a protection domain is released before %u objects in it", domain->users);
		error = EBUSY;
	} else {
		counters.pds--;
		free(domain);
	}
	device_unlock();
	return error;
}

/* A region of memory that the device reaches at @at */
static struct region *new_region(struct ibv_pd *pd, uint64_t start, uint8_t *at, size_t length, int access)
{
	struct region *region = must(calloc(1, sizeof(*region)));

	/* keys are not used again, so that a key that has ended is known */
	next_key += 1 + chance(97);
	*region = (struct region){
		.mr = {
			.context = pd->context, .pd = pd, .addr = (void *)(uintptr_t)start, .length = length,
			.lkey = next_key * 2 + 1, .rkey = next_key * 2,
		},
		.next = regions, .start = start, .at = at, .access = access,
	};
	regions = region;
	((struct domain *)pd)->users++;
	counters.mrs++;
	counters.registered++;
	return region;
}

/* ibv_reg_mr(3) */
static bool access_good(int access)
{
	if (!(access & IBV_ACCESS_REMOTE_WRITE) || access & IBV_ACCESS_LOCAL_WRITE)
		return true;
	fault("remote write without local write");
	errno = EINVAL;
	return false;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct region *region = NULL;

	device_lock();
	if (access_good(access) && !FAILS("reg_mr"))
		region = new_region(pd, (uintptr_t)addr, addr, length, access);
	device_unlock();
	return region ? &region->mr : NULL;
}

/*
 * ibv_reg_dmabuf_mr(3), of any file that can be mapped, such as a memfd.  As devices do, it wants @offset and @iova at
 * one place in a page.  The library finds the function by its name, as in libibverbs.
 */
EXPORTED struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					  int access)
{
	uint64_t page = sysconf(_SC_PAGESIZE), skip = offset % page;
	struct region *region = NULL;
	uint8_t *mapping;

	device_lock();
	if (!access_good(access) || FAILS("reg_dmabuf_mr"))
		goto out;
	if (iova % page != skip || lseek(fd, 0, SEEK_END) < (off_t)(offset + length)) {
		errno = EINVAL;
		goto out;
	}
	mapping = mmap(NULL, skip + length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
	if (mapping == MAP_FAILED)
		goto out;
	region = new_region(pd, iova, mapping + skip, length, access);
	region->mapping = mapping;
	region->mapped = skip + length;
out:
	device_unlock();
	return region ? &region->mr : NULL;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	if (iova != (uintptr_t)addr)
		abort();
	return ibv_reg_mr(pd, addr, length, (int)access);
}

/* Is the memory part of a work request that is not complete? */
static bool in_use(const struct region *region)
{
	const struct pair *pair;
	const struct send *send;
	uint32_t i;

	for (pair = pairs; pair; pair = pair->next) {
		for (send = pair->sends; send; send = send->next)
			if (!send->finished && send->sge.lkey == region->mr.lkey)
				return true;
		for (i = 0; i < pair->count; i++)
			if (pair->elements[(pair->first + i) % pair->cap.max_recv_wr].lkey == region->mr.lkey)
				return true;
	}
	return false;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct region **at;

	device_lock();
	for (at = &regions; *at && &(*at)->mr != mr; at = &(*at)->next)
		;
	if (!*at) {
		fault("a region is deregistered twice");
	} else {
		struct region *region = *at;

		if (in_use(region))
			fault("a region is deregistered while work requests use it");
		*at = region->next;
		((struct domain *)mr->pd)->users--;
		counters.mrs--;
		if (region->mapping)
			munmap(region->mapping, region->mapped);
		free(region);
	}
	device_unlock();
	return 0;
}

/* --- queues --- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = NULL;

	device_lock();
	if (!FAILS("create_comp_channel")) {
		channel = must(calloc(1, sizeof(*channel)));
		channel->channel.context = context;
		channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		counters.channels++;
	}
	device_unlock();
	return channel ? &channel->channel : NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *comp_channel)
{
	struct channel *channel = (struct channel *)comp_channel;

	device_lock();
	if (channel->queues)
		fault("a completion channel is destroyed before its queue");
	counters.channels--;
	device_unlock();
	close(comp_channel->fd);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int vector)
{
	struct queue *queue = NULL;

	(void)vector;
	device_lock();
	if (!FAILS("create_cq")) {
		queue = must(calloc(1, sizeof(*queue)));
		queue->cq = (struct ibv_cq){
			.context = context, .channel = channel, .cq_context = cq_context, .cqe = cqe,
		};
		queue->most = cqe;
		queue->wcs = must(calloc(cqe, sizeof(*queue->wcs)));
		queue->freed = must(calloc(cqe, sizeof(*queue->freed)));
		if (channel)
			((struct channel *)channel)->queues++;
		counters.cqs++;
	}
	device_unlock();
	return queue ? &queue->cq : NULL;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct queue *queue = (struct queue *)cq;
	struct channel *channel = (struct channel *)cq->channel;
	eventfd_t one;

	device_lock();
	if (queue->pairs)
		fault("a completion queue is destroyed before its queue pair");
	/* ibv_get_cq_event(3): this call waits for them, for ever */
	if (queue->unacked)
		fault("a completion queue is destroyed with %u events that are not acknowledged", queue->unacked);
	if (channel) {
		channel->queues--;
		/* events that were not taken go with it; it is the only queue of its channel */
		for (; channel->count; channel->count--)
			eventfd_read(channel->channel.fd, &one);
	}
	counters.cqs--;
	device_unlock();
	free(queue->wcs);
	free(queue->freed);
	free(queue);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct pair *pair = NULL;

	device_lock();
	if (!FAILS("create_qp")) {
		pair = must(calloc(1, sizeof(*pair)));
		pair->qp = (struct ibv_qp){
			.context = pd->context, .pd = pd, .send_cq = attr->send_cq, .recv_cq = attr->recv_cq,
			.qp_num = ++next_pair, .state = IBV_QPS_RESET, .qp_type = attr->qp_type,
		};
		pair->cap = attr->cap;
		pair->receives = must(calloc(attr->cap.max_recv_wr, sizeof(*pair->receives)));
		pair->elements = must(calloc(attr->cap.max_recv_wr, sizeof(*pair->elements)));
		pair->sends_end = &pair->sends;
		pair->next = pairs;
		pairs = pair;
		((struct queue *)attr->send_cq)->pairs++;
		((struct queue *)attr->recv_cq)->pairs++;
		((struct domain *)pd)->users++;
		counters.qps++;
	}
	device_unlock();
	return pair ? &pair->qp : NULL;
}

static void end_messages(struct connection *connection)
{
	forget(NULL, connection, NULL);
	server_forget(connection);
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct pair *pair = (struct pair *)qp, **at;
	struct queue *queue = (struct queue *)qp->send_cq;
	uint32_t i;

	device_lock();
	forget(pair, NULL, NULL);
	if (pair->connection) {
		device_end_connection(pair->connection);
		pair->connection->pair = NULL;
	}
	for (i = 0; i < queue->most; i++)
		if (queue->freed[i] == pair)
			queue->freed[i] = NULL;
	for (at = &pairs; *at != pair; at = &(*at)->next)
		;
	*at = pair->next;
	while (pair->sends) {
		struct send *send = pair->sends;

		pair->sends = send->next;
		free(send->copy);
		free(send);
	}
	queue->pairs--;
	((struct queue *)qp->recv_cq)->pairs--;
	((struct domain *)qp->pd)->users--;
	counters.qps--;
	device_unlock();
	free(pair->receives);
	free(pair->elements);
	free(pair);
	return 0;
}

static bool may_move(enum ibv_qp_state from, enum ibv_qp_state to)
{
	switch (to) {
	case IBV_QPS_INIT:
		return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
	case IBV_QPS_RTR:
		return from == IBV_QPS_INIT;
	case IBV_QPS_RTS:
		return from == IBV_QPS_RTR || from == IBV_QPS_RTS;
	default:
		return to == IBV_QPS_ERR || to == IBV_QPS_RESET;
	}
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct pair *pair = (struct pair *)qp;
	int error;

	device_lock();
	error = step_error("modify_qp");
	if (!error && mask & IBV_QP_STATE) {
		if (!may_move(qp->state, attr->qp_state)) {
			fault("a queue pair moves from state %d to %d", qp->state, attr->qp_state);
			error = EINVAL;
		} else if (attr->qp_state == IBV_QPS_ERR) {
			flush(pair);
		} else {
			qp->state = attr->qp_state;
		}
	}
	device_unlock();
	return error;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask, (void)init;
	device_lock();
	attr->qp_state = qp->state;
	device_unlock();
	return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	return status == IBV_WC_WR_FLUSH_ERR ? "Work Request Flushed Error" : "transport retry counter exceeded";
}

/* --- rdma_cm --- */

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct event_channel *channel = NULL;
	size_t i;

	device_lock();
	if (!FAILS("create_event_channel")) {
		start_world();
		for (i = 0; i < ARRAY(devices); i++)
			if (!cm_contexts[i])
				cm_contexts[i] = new_context(&devices[i]);
		channel = must(calloc(1, sizeof(*channel)));
		channel->channel.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
		counters.event_channels++;
	}
	device_unlock();
	return channel ? &channel->channel : NULL;
}

void rdma_destroy_event_channel(struct rdma_event_channel *events)
{
	struct event_channel *channel = (struct event_channel *)events;

	device_lock();
	if (channel->ids)
		fault("an event channel is destroyed before its ids");
	counters.event_channels--;
	device_unlock();
	close(events->fd);
	free(channel);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	struct message_id *new;
	int error;

	device_lock();
	error = FAILS("create_id");
	if (!error) {
		new = must(calloc(1, sizeof(*new)));
		new->id = (struct rdma_cm_id){ .channel = channel, .context = context, .ps = ps };
		new->next = ids;
		ids = new;
		((struct event_channel *)channel)->ids++;
		counters.ids++;
		*id = &new->id;
	}
	device_unlock();
	return error ? -1 : 0;
}

int rdma_destroy_id(struct rdma_cm_id *cm_id)
{
	struct message_id *id = (struct message_id *)cm_id, **at_id;
	struct event_channel *channel = (struct event_channel *)cm_id->channel;
	struct cm_event **at = &channel->events, *event;
	struct connection **connection;
	eventfd_t one;

	device_lock();
	/* rdma_destroy_id(3): this call waits for them, for ever */
	if (id->unacked)
		fault("an id is destroyed with %u events that are not acknowledged", id->unacked);
	forget(NULL, NULL, id);
	while ((event = *at)) {
		if (event->event.id != cm_id) {
			at = &event->next;
			continue;
		}
		*at = event->next;
		free(event);
		eventfd_read(channel->channel.fd, &one);
	}
	if (id->connection) {
		device_end_connection(id->connection);
		if (id->connection->pair)
			id->connection->pair->connection = NULL;
		for (connection = &connections; *connection && *connection != id->connection;)
			connection = &(*connection)->next;
		if (*connection)
			*connection = id->connection->next;
		free(id->connection);
	}
	for (at_id = &ids; *at_id != id; at_id = &(*at_id)->next)
		;
	*at_id = id->next;
	channel->ids--;
	counters.ids--;
	device_unlock();
	free(id);
	return 0;
}

/* rdma_cm reports the events of an id in their order */
static struct cm_event *cm_report(struct message_id *id, enum rdma_cm_event_type type, int status)
{
	struct cm_event *event = must(calloc(1, sizeof(*event)));

	event->event = (struct rdma_cm_event){ .id = &id->id, .event = type, .status = status };
	happen((struct happening){ .kind = EVENT, .due = due_after(&id->last_due), .event = event });
	return event;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	(void)id, (void)addr;
	errno = EACCES;
	return -1;
}

/* A step that reports by an event: -1 at once, the event of an error, or its own */
static int cm_step(struct rdma_cm_id *cm_id, const char *step, enum rdma_cm_event_type good,
		   enum rdma_cm_event_type bad)
{
	char name[40];
	int error;

	snprintf(name, sizeof(name), "event:%s", step);
	device_lock();
	if (FAILS(step)) {
		device_unlock();
		return -1;
	}
	error = step_error(name);
	cm_report((struct message_id *)cm_id, error ? bad : good, -error);
	device_unlock();
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to, int timeout)
{
	(void)from, (void)timeout;
	device_lock();
	/* the port of IPv6 stands in the same place */
	counters.port = ntohs(((struct sockaddr_in *)to)->sin_port);
	device_unlock();
	return cm_step(id, "resolve_addr", RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR);
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout)
{
	(void)timeout;
	if (((struct message_id *)id)->state != ID_ADDRESS) {
		errno = EINVAL;
		return -1;
	}
	return cm_step(id, "resolve_route", RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR);
}

int rdma_init_qp_attr(struct rdma_cm_id *cm_id, struct ibv_qp_attr *attr, int *mask)
{
	struct message_id *id = (struct message_id *)cm_id;
	int error;

	device_lock();
	error = FAILS("init_qp_attr");
	if (!error && (id->state < ID_ROUTE || (attr->qp_state != IBV_QPS_INIT && id->state < ID_RESPONSE))) {
		fault("rdma_init_qp_attr for state %d of a queue pair, before there is a connection", attr->qp_state);
		errno = error = EINVAL;
	}
	*mask = IBV_QP_STATE;
	device_unlock();
	return error ? -1 : 0;
}

static uint32_t size_of(uint8_t field)
{
	return (field + 1U) << 10;
}

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static uint32_t reply_size(void)
{
	return settings.reply_size ? settings.reply_size : settings.inline_size;
}

/* RFC 8797, section 4: sizes that one end gave, else the default of RFC 8166 */
static void agree(struct connection *connection, const struct rdma_conn_param *param)
{
	const uint8_t *data = param->private_data;
	uint32_t send = INLINE_DEFAULT, receive = INLINE_DEFAULT;
	uint32_t calls = settings.private_data ? settings.inline_size : INLINE_DEFAULT;
	uint32_t replies = settings.private_data ? reply_size() : INLINE_DEFAULT;

	if (param->private_data_len >= 8 && data[0] == 0xf6 && data[1] == 0xab && data[2] == 0x0e &&
	    data[3] == 0x18 && data[4] == 1) {
		send = size_of(data[6]);
		receive = size_of(data[7]);
	}
	connection->terms = (struct terms){
		.call_max = least(send, calls), .reply_max = least(receive, replies), .granted = 1,
	};
}

/* The extension of nfsrdma: of the personalities that the client requests, those that the server accepts */
static void give_private_data(struct cm_event *event, const struct rdma_conn_param *param)
{
	const uint8_t *wanted = param->private_data_len >= 28 ? param->private_data : NULL;
	uint8_t send = (reply_size() >> 10) - 1, receive = (settings.inline_size >> 10) - 1;
	const uint8_t data[] = { 0xf6, 0xab, 0x0e, 0x18, 1, 0, send, receive };
	const uint8_t extension[] = {
		'N', 'F', 'R', 'X', 1, 0, 0, 0, 0, 0, 0, wanted ? wanted[19] & settings.personalities : 0,
	};

	if (settings.private_data)
		memcpy(event->private_data, data, sizeof(data));
	if (settings.private_data && settings.personalities)
		memcpy(event->private_data + sizeof(data), extension, sizeof(extension));
	event->event.param.conn.private_data = event->private_data;
	event->event.param.conn.private_data_len = sizeof(event->private_data);
}

static void connection_begins(struct connection *connection)
{
	connection->up = true;
	counters.connects++;
	counters.connections++;
	if (counters.connections > counters.most_connections)
		counters.most_connections = counters.connections;
}

int rdma_connect(struct rdma_cm_id *cm_id, struct rdma_conn_param *param)
{
	struct message_id *id = (struct message_id *)cm_id;
	struct connection *connection;
	struct pair *pair;
	int error;

	device_lock();
	error = FAILS("connect");
	for (pair = pairs; pair && pair->qp.qp_num != param->qp_num; pair = pair->next)
		;
	if (!error && (!pair || pair->qp.state != IBV_QPS_INIT || id->state != ID_ROUTE)) {
		fault("rdma_connect before there is a route, or without a queue pair in the state INIT");
		errno = error = EINVAL;
	}
	if (error)
		goto out;
	id->state = ID_CONNECTING;
	if (settings.refuse) {
		cm_report(id, RDMA_CM_EVENT_REJECTED, ECONNREFUSED);
		goto out;
	}
	if (settings.silent) {
		counters.connects++;
		goto out;
	}
	error = step_error("event:connect");
	if (error) {
		cm_report(id, RDMA_CM_EVENT_UNREACHABLE, -error);
		error = 0;
		goto out;
	}
	connection = must(calloc(1, sizeof(*connection)));
	*connection = (struct connection){ .next = connections, .pair = pair, .id = id,
					   .reads = param->responder_resources };
	connections = connection;
	pair->connection = id->connection = connection;
	agree(connection, param);
	if (settings.iwarp) {
		pair->qp.state = IBV_QPS_RTS;
		connection_begins(connection);
	}
	give_private_data(cm_report(id, settings.iwarp ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_CONNECT_RESPONSE,
				    0), param);
out:
	device_unlock();
	return error ? -1 : 0;
}

int rdma_establish(struct rdma_cm_id *cm_id)
{
	struct message_id *id = (struct message_id *)cm_id;
	int error;

	device_lock();
	error = FAILS("establish");
	if (!error && (id->state != ID_RESPONSE || !id->connection ||
		       id->connection->pair->qp.state != IBV_QPS_RTS)) {
		fault("rdma_establish without a queue pair in the state RTS");
		errno = error = EINVAL;
	}
	if (!error) {
		id->state = ID_UP;
		connection_begins(id->connection);
	}
	device_unlock();
	return error ? -1 : 0;
}

/* Both ends see it: the pair of the client is in the state of error, and rdma_cm reports it */
void device_end_connection(struct connection *connection)
{
	end_messages(connection);
	if (!connection->up)
		return;
	connection->up = false;
	free(connection->reply);
	connection->reply = NULL;
	counters.connections--;
	if (connection->pair)
		flush(connection->pair);
	if (connection->id && connection->id->state == ID_UP)
		cm_report(connection->id, RDMA_CM_EVENT_DISCONNECTED, 0);
}

void device_end_connections(void)
{
	struct connection *each;

	for (each = connections; each; each = each->next)
		device_end_connection(each);
}

int rdma_disconnect(struct rdma_cm_id *cm_id)
{
	struct message_id *id = (struct message_id *)cm_id;

	device_lock();
	if (id->connection)
		device_end_connection(id->connection);
	device_unlock();
	return 0;
}

int rdma_get_cm_event(struct rdma_event_channel *events, struct rdma_cm_event **event)
{
	struct event_channel *channel = (struct event_channel *)events;
	struct cm_event *first;
	eventfd_t one;

	if (eventfd_read(events->fd, &one))
		return -1;
	device_lock();
	first = channel->events;
	channel->events = first->next;
	((struct message_id *)first->event.id)->unacked++;
	*event = &first->event;
	device_unlock();
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	device_lock();
	((struct message_id *)event->id)->unacked--;
	device_unlock();
	free((struct cm_event *)event);
	return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	switch (event) {
	case RDMA_CM_EVENT_ADDR_ERROR:
		return "RDMA_CM_EVENT_ADDR_ERROR";
	case RDMA_CM_EVENT_ROUTE_ERROR:
		return "RDMA_CM_EVENT_ROUTE_ERROR";
	default:
		return "RDMA_CM_EVENT";
	}
}

/* --- for tests --- */

#define SETTING(field)	{ #field, &settings.field }
#define COUNTER(field)	{ #field, &counters.field }

static const struct name {
	const char *text;
	uint64_t *value;
} names[] = {
	SETTING(late), SETTING(late_calls), SETTING(late_sends), SETTING(spurious), SETTING(iwarp), SETTING(second_device), SETTING(refuse), SETTING(silent),
	SETTING(credits), SETTING(inline_size), SETTING(private_data), SETTING(read_max), SETTING(write_max),
	SETTING(shortened), SETTING(hold), SETTING(end_after), SETTING(attributes), SETTING(mount_error), SETTING(seed),
	SETTING(no_mount_daemon), SETTING(personalities), SETTING(reply_size), COUNTER(port), SETTING(end_behind),
	SETTING(nfs4), SETTING(hold4), SETTING(slots), SETTING(target_slots), SETTING(request_max), SETTING(response_max),
	SETTING(cached_max), SETTING(operations_max), SETTING(keep_all), SETTING(bind), SETTING(sequence_flags),
	SETTING(grace), SETTING(restart_grace), SETTING(grace_io), SETTING(delegate), SETTING(preserve),
	SETTING(exclusive_times), SETTING(lease_time), SETTING(entry_error), SETTING(scope), COUNTER(clients),
	COUNTER(sessions), COUNTER(opens),
	COUNTER(delegations), COUNTER(compounds), COUNTER(created_sessions), COUNTER(opened), COUNTER(closed),
	COUNTER(reclaimed), COUNTER(delegreturns), COUNTER(replays), COUNTER(uncached), COUNTER(uncached_changes),
	COUNTER(highest_slot),
	COUNTER(calls), COUNTER(reads), COUNTER(writes), COUNTER(commits), COUNTER(connects), COUNTER(registered),
	COUNTER(held), COUNTER(contexts), COUNTER(pds), COUNTER(mrs), COUNTER(cqs), COUNTER(qps), COUNTER(channels), COUNTER(ids),
	COUNTER(event_channels), COUNTER(connections), COUNTER(most_connections),
};

static uint64_t *find(const char *text)
{
	size_t i;

	for (i = 0; i < ARRAY(names); i++)
		if (!strcmp(names[i].text, text))
			return names[i].value;
	return NULL;
}

EXPORTED int device_set(const char *name, uint64_t value)
{
	uint64_t *at = find(name);

	if (!at)
		return -1;
	device_lock();
	*at = value;
	if (at == &settings.seed)
		random_state = value * 2654435761U + 88172645463325252ULL;
	if (at == &settings.hold || at == &settings.hold4)
		server_release();
	device_unlock();
	return 0;
}

/* -1: no such name */
EXPORTED int64_t device_get(const char *name)
{
	const uint64_t *at = find(name);
	int64_t value = -1;

	device_lock();
	if (at)
		value = *at;
	device_unlock();
	return value;
}

/* The @step, after it succeeded @after times, fails @times; 0: all steps succeed again */
EXPORTED void device_fail(const char *step, int error, uint64_t after, uint64_t times)
{
	size_t i;

	device_lock();
	if (!times)
		memset(steps, 0, sizeof(steps));
	for (i = 0; i < ARRAY(steps) && steps[i].error; i++)
		;
	if (i == ARRAY(steps))
		abort();
	snprintf(steps[i].name, sizeof(steps[i].name), "%s", step);
	steps[i].error = times ? error : 0;
	steps[i].after = after;
	steps[i].times = times;
	device_unlock();
}

EXPORTED void device_end(void)
{
	device_lock();
	device_end_connections();
	device_unlock();
}

/* The faults so far, a line each */
EXPORTED void device_faults(char *text, size_t size)
{
	device_lock();
	snprintf(text, size, "%s", faults);
	device_unlock();
}

/* As at the start of the process, but for objects that exist */
EXPORTED void device_reset(void)
{
	device_lock();
	*faults = '\0';
	memset(steps, 0, sizeof(steps));
	settings = (struct settings){
		.credits = 32, .inline_size = 4096, .private_data = 1, .read_max = 1 << 20, .write_max = 1 << 20,
		.attributes = 1, .nfs4 = 1, .slots = 64, .request_max = (1 << 20) + 4096, .response_max = (1 << 20) + 4096,
		.cached_max = 2048, .operations_max = 50, .restart_grace = GRACE_CLIENTS, .preserve = 1, .lease_time = 90,
	};
	counters.calls = counters.reads = counters.writes = counters.commits = 0;
	counters.connects = counters.registered = 0;
	counters.compounds = counters.created_sessions = counters.opened = counters.closed = counters.reclaimed = 0;
	counters.delegreturns = counters.replays = counters.uncached = counters.uncached_changes = 0;
	counters.highest_slot = 0;
	counters.most_connections = counters.connections;
	random_state = 88172645463325252ULL;
	server_reset();
	device_unlock();
}

/* --- a peer: another client of the server, whose messages a test makes by hand (peer.py) --- */

EXPORTED struct connection *device_peer_open(void)
{
	struct connection *connection = must(calloc(1, sizeof(*connection)));

	device_lock();
	*connection = (struct connection){
		.next = connections, .is_peer = true, .up = true,
		.terms = { .call_max = settings.inline_size, .reply_max = reply_size(), .granted = settings.credits },
	};
	connections = connection;
	counters.connections++;
	device_unlock();
	return connection;
}

EXPORTED void device_peer_send(struct connection *connection, const uint8_t *message, uint32_t length)
{
	device_lock();
	if (connection->up)
		take_call(connection, message, length);
	device_unlock();
}

/* The reply: its length; 0: none yet; -1: none, and the connection has ended */
EXPORTED int64_t device_peer_receive(struct connection *connection, void *to, uint32_t room)
{
	int64_t length;

	device_lock();
	length = connection->reply ? (int64_t)connection->reply_length : connection->up ? 0 : -1;
	if (connection->reply && connection->reply_length <= room) {
		memcpy(to, connection->reply, connection->reply_length);
		server_delivered(connection, xid_of(connection->reply));
		free(connection->reply);
		connection->reply = NULL;
	}
	device_unlock();
	return length;
}

EXPORTED void device_peer_close(struct connection *connection)
{
	struct connection **at;

	device_lock();
	device_end_connection(connection);
	for (at = &connections; *at != connection; at = &(*at)->next)
		;
	*at = connection->next;
	free(connection->reply);
	free(connection);
	device_unlock();
}

/* --- a signal between two bytecodes of Python --- */

static int64_t opcodes, signal_at;

/* The trace function of a frame of Python: SIGINT arrives at the opcode number @signal_at */
EXPORTED void device_opcode(void *frame, void *event, void *arg)
{
	(void)frame, (void)event, (void)arg;
	if (++opcodes == signal_at)
		raise(SIGINT);
}

EXPORTED int64_t device_signal_at(int64_t number)
{
	int64_t before = opcodes;

	opcodes = 0;
	signal_at = number;
	return before;
}
