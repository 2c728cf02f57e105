// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Checks of libnfsrdma: forks, servers that change, memory that runs out. Usage: check_client CHECK
 *
 * The library runs over a device and an rdma_cm that this file stands in for. Each check has a server, a function
 * that gets a Call and replies by reply(). The clock goes on while the library sleeps. Exit status 1 with a line
 * of text if a check finds anything else than it expects.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "expect.h"
#include "library.h"

#undef ibv_reg_mr

/* the library's sources have other names for these two */
#undef clock_gettime
int clock_gettime(clockid_t clock, struct timespec *now);

#define KEY	0x1234
#define MOST	65536

typedef void server(const struct nfr_header *call, const uint8_t *rpc, size_t length);

static server *serve;
static struct nfsrdma_session *session;
static uint64_t skipped;
static uint32_t message_size = 4096, registrations, forks_prepared;
static bool registration_fails, memory_fails;
static uint64_t connect_takes;		/* milliseconds */

/* --- memory, which the library has from here --- */

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
	return memory_fails ? NULL : __real_calloc(count, size);
}

/* --- the clock, which goes on while the library sleeps --- */

int fuzz_epoll(int fd, struct epoll_event *events, int most, int timeout);

int fuzz_clock(clockid_t clock, struct timespec *now)
{
	int rc = clock_gettime(clock, now);

	now->tv_sec += skipped / 1000;
	return rc;
}

static void complete_reads(void);
static void answer_held(void);

/* A descriptor, and the number of sleeps that it would end at once */
static int watched = -1;
static uint32_t sleeps_that_end;

static bool readable(int fd)
{
	struct pollfd wanted = { .fd = fd, .events = POLLIN };

	return poll(&wanted, 1, 0) == 1;
}

int fuzz_epoll(int fd, struct epoll_event *events, int most, int timeout)
{
	(void)fd, (void)events, (void)most;
	skipped += timeout;
	sleeps_that_end += watched >= 0 && readable(watched);
	complete_reads();
	answer_held();
	return 0;
}

/* --- a fork in the middle of a call --- */

static pthread_barrier_t in_the_middle;
static bool fork_now;

/* Let the other thread fork, and give it time: it has none if it has to wait for this thread */
static void middle(void)
{
	if (!fork_now)
		return;
	fork_now = false;
	pthread_barrier_wait(&in_the_middle);
	poll(NULL, 0, 300);
}

/* --- the device --- */

static uint64_t receive_ids[512];
static uint32_t first_receive, nreceives;
static uint8_t replies[64][MOST];
static size_t reply_sizes[64];
static uint32_t first_reply, nreplies;

/* The second connection: its queue pair, what the device has done, and what it does as soon as the library sleeps */
static struct ibv_qp second;
static uint64_t notice_ids[NOTICE_RECEIVES];
static uint32_t first_notice, nnotices;
static struct ibv_wc seconds[256];
static uint32_t first_second, nseconds;
static struct ibv_wc held[64];
static uint32_t nheld;
static bool holds_reads, holds_credits;
static uint32_t rdma_reads, credits_returned;

static void complete_second(struct ibv_wc wc)
{
	seconds[(first_second + nseconds++) % 256] = wc;
}

static void complete_reads(void)
{
	while (nheld)
		complete_second(held[--nheld]);
}

/* RDMA Reads return bytes of 0xa5 */
static int post_second(struct ibv_send_wr *wr)
{
	struct nfr_notice notice;

	for (; wr; wr = wr->next) {
		struct ibv_wc wc = { .wr_id = wr->wr_id };
		bool hold = holds_credits;

		if (wr->opcode == IBV_WR_RDMA_READ) {
			rdma_reads++;
			memset((void *)wr->sg_list->addr, 0xa5, wr->sg_list->length);
			hold = holds_reads;
		} else {
			expect(!nfr_wire_decode_notice(&notice, (void *)wr->sg_list->addr, wr->sg_list->length) &&
			       notice.kind == NFR_NOTICE_CREDIT, "no credits");
			credits_returned += notice.count;
		}
		if (hold)
			held[nheld++] = wc;
		else
			complete_second(wc);
	}
	return 0;
}

static void notify_client(const struct nfr_notice *notice)
{
	uint64_t number = notice_ids[first_notice++ % NOTICE_RECEIVES];

	expect(nnotices--, "no receive for a notice");
	complete_second((struct ibv_wc){
		.wr_id = number, .opcode = IBV_WC_RECV,
		.byte_len = nfr_wire_encode_notice(notice, memory_notice(session, (uint32_t)number)),
	});
}

static int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)bad;
	for (; wr; wr = wr->next)
		if (qp == &second)
			notice_ids[(first_notice + nnotices++) % NOTICE_RECEIVES] = wr->wr_id;
		else
			receive_ids[(first_receive + nreceives++) % 512] = wr->wr_id;
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct nfr_chunk chunks[8];
	struct nfr_segment segs[8];
	struct nfr_space space = { chunks, 8, segs, 8 };
	struct nfr_header head;

	(void)bad;
	if (qp == &second)
		return post_second(wr);
	for (; wr; wr = wr->next) {
		const uint8_t *message = (const uint8_t *)wr->sg_list->addr;
		size_t length = wr->sg_list->length;
		int size = nfr_wire_decode(&head, &space, message, length);

		expect(size > 0, "a malformed header");
		expect(length <= session->send_size, "a message of %zu bytes", length);
		if (head.proc == NFR_NOMSG)
			serve(&head, (const uint8_t *)head.reads[0].segs[0].offset,
			      head.reads[0].segs[0].length);
		else
			serve(&head, message + size, length - size);
	}
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	uint64_t id;
	int n;

	(void)cq;
	for (n = 0; n < most && nseconds; n++, nseconds--)
		wc[n] = seconds[first_second++ % 256];
	if (n || !nreplies)
		return n;
	id = receive_ids[first_receive++ % 512];
	nreceives--;
	*wc = (struct ibv_wc){
		.wr_id = id, .opcode = IBV_WC_RECV, .byte_len = reply_sizes[first_reply % 64],
	};
	memcpy(memory_receive(session, id), replies[first_reply % 64], wc->byte_len);
	first_reply++;
	nreplies--;
	session->sends_done = session->sends;
	return 1;
}

static int notify(struct ibv_cq *cq, int solicited)
{
	(void)cq, (void)solicited;
	return 0;
}

static struct ibv_device device = { .name = "check0" };
static struct ibv_context context = {
	.device = &device,
	.ops = { .poll_cq = poll_cq, .post_send = post_send, .post_recv = post_receive,
		 .req_notify_cq = notify },
};

static uint8_t *accepted(const struct nfr_header *call, uint8_t *at)
{
	at = nfr_wire_put32(at, call->xid);
	at = nfr_wire_put32(at, 1);
	memset(at, 0, 16);
	return at + 16;
}

/* Reply with results: inline, or in the Reply chunk if they are too long for the connection; return Write chunks */
static void reply(const struct nfr_header *call, const uint8_t *results, size_t length)
{
	uint8_t rpc[MOST], *to = replies[(first_reply + nreplies) % 64];
	struct nfr_header head = {
		.xid = call->xid, .credits = 32, .proc = NFR_MSG,
		.writes = call->writes, .nwrites = call->nwrites,
	};
	size_t bytes = accepted(call, rpc) - rpc + length, size = nfr_wire_size(&head);

	memcpy(rpc + bytes - length, results, length);
	if (size + bytes > session->recv_size) {
		expect(call->reply && call->reply->segs[0].length >= bytes, "no room for a reply of %zu bytes",
		       bytes);
		memcpy((uint8_t *)call->reply->segs[0].offset, rpc, bytes);
		call->reply->segs[0].length = bytes;
		head.proc = NFR_NOMSG;
		head.reply = call->reply;
		bytes = 0;
		size = nfr_wire_size(&head);
	}
	nfr_wire_encode(&head, to, size);
	memcpy(to + size, rpc, bytes);
	reply_sizes[(first_reply + nreplies++) % 64] = size + bytes;
}

/* --- rdma_cm and verbs --- */

static struct rdma_cm_id id = { .verbs = &context }, second_id = { .verbs = &context };
static struct rdma_event_channel events;
static struct rdma_cm_event event;
static bool event_waits;
static struct ibv_mr mr = { .lkey = KEY, .rkey = KEY };
static struct ibv_pd pd;
static struct ibv_cq cq = { .context = &context };
static struct ibv_qp qp = { .context = &context }, second = { .context = &context };
static bool connected, optimistic, accepts_second = true;

static int happens(struct rdma_cm_id *to, enum rdma_cm_event_type type)
{
	event = (struct rdma_cm_event){ .id = to, .event = type };
	event_waits = true;
	return 0;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
	events.fd = eventfd(0, 0);
	return &events;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	close(channel->fd);
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **to, void *user, enum rdma_port_space ps)
{
	(void)channel, (void)user, (void)ps;
	*to = connected ? &second_id : &id;
	return 0;
}

int rdma_destroy_id(struct rdma_cm_id *each)
{
	event_waits = event_waits && event.id != each;
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *each, struct sockaddr *addr)
{
	(void)each, (void)addr;
	return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *each, struct sockaddr *from, struct sockaddr *to, int timeout)
{
	(void)from, (void)to, (void)timeout;
	if (each == &second_id && !accepts_second)
		return 0;
	return happens(each, RDMA_CM_EVENT_ADDR_RESOLVED);
}

int rdma_resolve_route(struct rdma_cm_id *each, int timeout)
{
	(void)timeout;
	return happens(each, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

int rdma_init_qp_attr(struct rdma_cm_id *each, struct ibv_qp_attr *attr, int *mask)
{
	(void)each, (void)attr;
	*mask = 0;
	return 0;
}

int rdma_connect(struct rdma_cm_id *each, struct rdma_conn_param *param)
{
	static uint8_t private[NFR_WIRE_PRIVATE_MAX];
	struct nfr_private offered = {
		.send_size = message_size, .recv_size = message_size, .extended = optimistic,
		.capabilities = CAPABILITY_OPTIMISTIC | (each == &second_id ? CAPABILITY_LANE : 0),
	};
	int rc = happens(each, RDMA_CM_EVENT_CONNECT_RESPONSE);

	(void)param;
	skipped += connect_takes;
	event.param.conn.private_data = private;
	event.param.conn.private_data_len = nfr_wire_encode_private(&offered, private);
	return rc;
}

int rdma_establish(struct rdma_cm_id *each)
{
	(void)each;
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *each)
{
	(void)each;
	return 0;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **to)
{
	(void)channel;
	*to = &event;
	errno = EAGAIN;
	if (!event_waits)
		return -1;
	event_waits = false;
	return 0;
}

int rdma_ack_cm_event(struct rdma_cm_event *each)
{
	(void)each;
	return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *each)
{
	(void)each;
	context.cmd_fd = eventfd(0, 0);
	context.async_fd = eventfd(0, 0);
	middle();
	return &context;
}

int ibv_close_device(struct ibv_context *each)
{
	close(each->cmd_fd);
	close(each->async_fd);
	return 0;
}

const char *ibv_get_device_name(struct ibv_device *each)
{
	return each->name;
}

int ibv_query_device(struct ibv_context *each, struct ibv_device_attr *attr)
{
	(void)each;
	*attr = (struct ibv_device_attr){ .max_qp_rd_atom = 16 };
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *each)
{
	(void)each;
	return &pd;
}

int ibv_dealloc_pd(struct ibv_pd *each)
{
	(void)each;
	return 0;
}

static struct ibv_mr *new_registration(void)
{
	registrations++;
	errno = ENOMEM;
	return registration_fails ? NULL : &mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *each, void *addr, size_t length, int access)
{
	(void)each, (void)addr, (void)length, (void)access;
	return new_registration();
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *each, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	(void)each, (void)addr, (void)length, (void)iova, (void)access;
	return new_registration();
}

int ibv_dereg_mr(struct ibv_mr *each)
{
	(void)each;
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *each)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	(void)each;
	channel->fd = eventfd(0, EFD_NONBLOCK);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	middle();
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *each, int cqe, void *user, struct ibv_comp_channel *channel,
			     int vector)
{
	(void)each, (void)cqe, (void)user, (void)channel, (void)vector;
	return &cq;
}

int ibv_destroy_cq(struct ibv_cq *each)
{
	(void)each;
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **each, void **user)
{
	(void)channel, (void)each, (void)user;
	errno = EAGAIN;
	return -1;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *each, struct ibv_qp_init_attr *attr)
{
	(void)each, (void)attr;
	if (connected) {
		first_notice = nnotices = 0;
		return &second;
	}
	connected = true;
	first_receive = nreceives = first_reply = nreplies = 0;
	return &qp;
}

int ibv_destroy_qp(struct ibv_qp *each)
{
	if (each == &qp)
		connected = false;
	return 0;
}

int ibv_modify_qp(struct ibv_qp *each, struct ibv_qp_attr *attr, int mask)
{
	(void)each, (void)attr, (void)mask;
	return 0;
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	(void)status;
	return "a failure";
}

int ibv_fork_init(void)
{
	expect(!registrations, "too late");
	forks_prepared++;
	return 0;
}

/* --- servers --- */

static void silent(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	(void)call, (void)rpc, (void)length;
}

static uint32_t procedure_of(const uint8_t *rpc)
{
	return nfr_wire_load32(rpc + 20);
}

/* GETATTR: every file is a directory */
static void attributes(const struct nfr_header *call)
{
	uint8_t results[4 + NFS_ATTR_BYTES] = {};

	nfr_wire_store32(results + 4, 2);
	reply(call, results, sizeof(results));
}

static bool without_eof;
static uint32_t asked;		/* times that options.interrupted was called */

/* READ returns as many bytes of 0x5a as the Call wants, NULL nothing */
static void reads(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[MOST], *at = results;
	uint32_t count = nfr_wire_load32(rpc + length - 4);

	if (procedure_of(rpc) == NFS_NULL) {
		reply(call, results, 0);
		return;
	}
	if (procedure_of(rpc) == NFS_GETATTR) {
		attributes(call);
		return;
	}
	expect(procedure_of(rpc) == NFS_READ, "procedure %u", procedure_of(rpc));
	at = nfr_wire_put32(at, 0);
	at = nfr_wire_put32(at, 0);
	at = nfr_wire_put32(at, count);
	at = nfr_wire_put32(at, !without_eof);
	at = nfr_wire_put32(at, count);
	if (call->nwrites) {
		memset((uint8_t *)call->writes[0].segs[0].offset, 0x5a, count);
		call->writes[0].segs[0].length = count;
	} else {
		memset(at, 0x5a, count);
		at += count;
	}
	reply(call, results, at - results);
}

static uint32_t read_bytes, written_bytes;

/* READ returns @read_bytes, and its Write chunk says that it has @written_bytes */
static void reads_short(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[20] = {};

	if (procedure_of(rpc) != NFS_READ) {
		reads(call, rpc, length);
		return;
	}
	nfr_wire_store32(results + 8, read_bytes);
	nfr_wire_store32(results + 16, read_bytes);
	memset((uint8_t *)call->writes[0].segs[0].offset, 0x5a, written_bytes);
	call->writes[0].segs[0].length = written_bytes;
	reply(call, results, sizeof(results));
}

static uint32_t stalled;

/* The same as reads(), but does not reply to as many Calls as @stalled says */
static void reads_later(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	if (stalled)
		stalled--;
	else
		reads(call, rpc, length);
}

/* A server that keeps data in memory until a COMMIT, and loses it when it restarts */
static uint32_t boots, commits, commit_status, nheld_writes;
static uint32_t held_writes[16];
static bool holds_writes;

static void answer_write(uint32_t xid, uint32_t count)
{
	struct nfr_header call = { .xid = xid };
	uint8_t results[28] = {};

	nfr_wire_store32(results + 12, count);
	nfr_wire_store32(results + 20, boots);
	reply(&call, results, sizeof(results));
}

static void answer_held(void)
{
	while (nheld_writes)
		answer_write(held_writes[--nheld_writes], 512);
}

/* Each WRITE has 512 bytes */
static void keeps_writes(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[20] = {};

	switch (procedure_of(rpc)) {
	case NFS_WRITE:
		if (holds_writes)
			held_writes[nheld_writes++] = call->xid;
		else
			answer_write(call->xid, 512);
		break;
	case NFS_COMMIT:
		expect(!nheld_writes, "a COMMIT before %u WRITEs", nheld_writes);
		commits++;
		nfr_wire_store32(results, commit_status);
		nfr_wire_store32(results + 12, boots);
		reply(call, results, commit_status ? 12 : 20);
		break;
	default:
		reads(call, rpc, length);
	}
}

/* --- the session --- */

static uint32_t cache_size;

static void open_session(uint32_t arena)
{
	struct nfsrdma_options options = {
		.size = sizeof(options), .depth = 8, .inline_size = 4096, .arena = arena, .timeout = 4000,
		.optimistic = optimistic, .cache = cache_size,
	};
	int rc = nfsrdma_connect("127.0.0.1", &options, &session);

	expect(!rc, "connect: %d", rc);
	session->directory = strdup("/export");
	session->root = (fh3){ 4, strdup("root") };
	session->read_max = session->write_max = session->list_max = 32768;
}

static struct nfsrdma_file *open_file(void)
{
	struct nfs_fh fh = { .length = 8 };
	struct nfsrdma_file *file = file_make(session, &fh, O_RDWR);

	expect(file, "no file");
	return file;
}

static struct nfsrdma_file *begin(server *with, uint32_t arena)
{
	serve = with;
	open_session(arena);
	return open_file();
}

static void end(struct nfsrdma_file *file)
{
	nfsrdma_close(file);
	nfsrdma_disconnect(session);
}

/* --- checks --- */

static struct nfsrdma_options plain = { .size = sizeof(plain), .timeout = 4000 };

static void *connect_and_close(void *unused)
{
	(void)unused;
	expect(!nfsrdma_connect("127.0.0.1", &plain, &session), "connect");
	connection_lost(session, -EIO, "check");
	return NULL;
}

/* Fork while another thread is in the middle of a call; the child keeps no descriptor of the session */
static void fork_in_the_middle(void)
{
	int status;
	pid_t pid;

	pthread_barrier_wait(&in_the_middle);
	pid = fork();
	if (!pid)
		_exit(fcntl(context.cmd_fd, F_GETFD) < 0 && fcntl(context.async_fd, F_GETFD) < 0 ? 0 : 3);
	expect(waitpid(pid, &status, 0) == pid, "waitpid");
	expect(status == 0, "the child kept descriptors, or failed: status %#x", status);
}

static void check_fork_while_a_device_opens(void)
{
	pthread_t thread;

	/* the handlers of fork(2) are those of the first session */
	expect(!nfsrdma_connect("127.0.0.1", &plain, &session), "connect");
	nfsrdma_disconnect(session);
	fork_now = true;
	pthread_create(&thread, NULL, connect_and_close, NULL);
	fork_in_the_middle();
	pthread_join(thread, NULL);
}

static void *lose(void *unused)
{
	(void)unused;
	connection_lost(session, -EIO, "check");
	return NULL;
}

static void check_fork_while_a_connection_closes(void)
{
	pthread_t thread;

	open_session(0);
	fork_now = true;
	pthread_create(&thread, NULL, lose, NULL);
	fork_in_the_middle();
	pthread_join(thread, NULL);
	nfsrdma_disconnect(session);
}

static void check_registered_memory_and_fork(void)
{
	open_session(0);
	expect(forks_prepared == 1, "ibv_fork_init called %u times", forks_prepared);
	nfsrdma_disconnect(session);
	open_session(0);
	expect(forks_prepared == 1, "ibv_fork_init called %u times", forks_prepared);
	nfsrdma_disconnect(session);
}

static void check_closed_file(void)
{
	struct nfsrdma_file *file;
	struct nfsrdma_completion done;
	uint8_t data[512], wanted[512];

	memset(wanted, 0x5a, sizeof(wanted));
	file = begin(reads, 0);
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 7), "prepare");
	nfsrdma_close(file);
	expect(nfsrdma_submit(session) == 1 && nfsrdma_wait(session, &done, 1, 1, -1) == 1, "wait");
	expect(done.result == sizeof(data) && !memcmp(data, wanted, sizeof(data)), "result %d", (int)done.result);
	/* one that does not complete, and one that never leaves */
	serve = silent;
	file = open_file();
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 8), "prepare");
	expect(nfsrdma_submit(session) == 1, "submit");
	nfsrdma_close(file);
	file = open_file();
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 9), "prepare");
	end(file);
}

static void check_smaller_messages(void)
{
	struct nfsrdma_file *file;
	struct nfsrdma_completion done[2];
	uint8_t data[3000], wanted[3000];

	memset(wanted, 0x5a, sizeof(wanted));
	file = begin(reads, 0);
	expect(!nfsrdma_null(session), "null");
	/* the server of the first connection does not reply; that of the next one has smaller messages */
	serve = reads_later;
	stalled = 1;
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 1), "prepare");
	expect(nfsrdma_submit(session) == 1, "submit");
	message_size = 1024;
	expect(nfsrdma_wait(session, done, 1, 1, -1) == 1, "wait");
	expect(session->recv_size == 1024, "messages of %u bytes", session->recv_size);
	expect(done[0].result == sizeof(data) && !memcmp(data, wanted, sizeof(data)), "result %d",
	       (int)done[0].result);
	expect(!session->arena_used, "arena %#lx", session->arena_used);
	end(file);
}

/* Only the bytes that the result counts are data, whatever the server wrote behind them */
static void check_bytes_behind_a_short_read(void)
{
	struct nfsrdma_file *file;
	uint8_t data[9000], wanted[9000];
	uint32_t extra, bytes;
	ssize_t rc;

	memset(wanted, 0x5a, sizeof(wanted));
	file = begin(reads_short, 0);
	for (bytes = 5000; bytes < 5004; bytes++) {
		for (extra = 0; extra < 6; extra++) {
			read_bytes = bytes;
			written_bytes = bytes + extra;
			memset(data, 0, sizeof(data));
			rc = nfsrdma_pread(file, data, sizeof(data), 0);
			expect(rc == (extra < 4 ? (ssize_t)bytes : -EBADMSG), "%u of %u bytes: %zd", bytes,
			       written_bytes, rc);
			expect(rc < 0 || (!memcmp(data, wanted, bytes) && !data[bytes]), "data of %u bytes", bytes);
		}
		written_bytes = bytes - 1;
		rc = nfsrdma_pread(file, data, sizeof(data), 0);
		expect(rc == -EBADMSG, "%u of %u bytes: %zd", bytes, written_bytes, rc);
	}
	end(file);
}

static uint32_t writes;

/* Compares the data of a WRITE */
static void takes_writes(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[64] = {}, wanted[3000];

	if (procedure_of(rpc) != NFS_WRITE) {
		reads(call, rpc, length);
		return;
	}
	memset(wanted, 0xa5, sizeof(wanted));
	expect(length > sizeof(wanted) && !memcmp(rpc + length - sizeof(wanted), wanted, sizeof(wanted)),
	       "a WRITE of %zu bytes", length);
	writes++;
	/* status, no attributes, count, stable */
	nfr_wire_store32(results + 12, sizeof(wanted));
	nfr_wire_store32(results + 16, 2);
	reply(call, results, 28);
}

/* A Call that has become too long for the arena's rest lets those behind it leave */
static void check_full_arena(void)
{
	struct nfsrdma_file *file;
	struct nfsrdma_completion done[2];
	static uint8_t data[20000];
	uint8_t text[3000];

	memset(text, 0xa5, sizeof(text));
	file = begin(reads, BLOCK_BYTES);
	expect(!nfsrdma_null(session), "null");
	serve = silent;
	expect(!nfsrdma_prepare_write(file, text, sizeof(text), 0, 1), "prepare write");
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 2), "prepare read");
	expect(nfsrdma_prepare_read(file, data, sizeof(data), 0, 3) == -EAGAIN, "the arena is not full: no check");
	expect(nfsrdma_submit(session) == 2, "submit");
	serve = takes_writes;
	message_size = 1024;
	expect(nfsrdma_wait(session, done, 2, 2, -1) == 2, "wait");
	expect(done[0].user_data == 2 && done[0].result == sizeof(data), "first %d: %d", (int)done[0].user_data,
	       (int)done[0].result);
	expect(done[1].user_data == 1 && done[1].result == sizeof(text), "second %d: %d", (int)done[1].user_data,
	       (int)done[1].result);
	expect(writes == 1, "%u WRITEs", writes);
	end(file);
}

/* A call while a batch that was not submitted has the arena fails without a wait */
static void check_call_beside_a_full_arena(void)
{
	struct nfsrdma_file *file;
	static uint8_t data[20000];
	struct nfsrdma_dir *dir;
	struct nfsrdma_entry entry = {.size = sizeof(entry)};
	int rc;

	file = begin(reads, BLOCK_BYTES);
	expect(!nfsrdma_opendir(session, "", &dir), "opendir");
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 1), "prepare");
	skipped = 0;
	rc = nfsrdma_readdir(dir, &entry);
	expect(rc == -ENOBUFS && strstr(nfsrdma_message(), "READDIRPLUS"), "readdir: %d", rc);
	expect(skipped < session->options.timeout, "after %lu ms", skipped);
	nfsrdma_closedir(dir);
	end(file);
}

static bool same_cookie;
static uint32_t listings;

/* Each listing is one entry, "." */
static void lists_dots(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[256] = {}, *at = results + 16;

	(void)length;
	if (procedure_of(rpc) == NFS_GETATTR) {
		attributes(call);
		return;
	}
	at = nfr_wire_put32(at, 1);
	at = put64(at, 1);
	at = put_opaque(at, ".", 1);
	at = put64(at, same_cookie ? 1 : ++listings);
	at = nfr_wire_put32(at, 0);
	at = nfr_wire_put32(at, 0);
	/* no more entries, and not the end */
	at = nfr_wire_put32(at, 0);
	at = nfr_wire_put32(at, 0);
	reply(call, results, at - results);
}

static void check_listing_without_progress(void)
{
	struct nfsrdma_entry entry = {.size = sizeof(entry)};
	struct nfsrdma_dir *dir;
	int rc, i;

	serve = lists_dots;
	open_session(0);
	for (i = 0; i < 2; i++) {
		same_cookie = i;
		expect(!nfsrdma_opendir(session, "", &dir), "opendir");
		rc = nfsrdma_readdir(dir, &entry);
		expect(rc == -EBADMSG, "readdir: %d", rc);
		nfsrdma_closedir(dir);
	}
	nfsrdma_disconnect(session);
}

/* --- the mount daemon --- */

static int listener;

CLIENT *clnt_create_timed(const char *host, rpcprog_t program, rpcvers_t version, const char *net,
			  const struct timeval *timeout)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	socklen_t length = sizeof(to);
	struct netbuf address = { .maxlen = sizeof(to), .len = sizeof(to), .buf = &to };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	(void)host, (void)net, (void)timeout;
	getsockname(listener, (struct sockaddr *)&to, &length);
	expect(!connect(fd, (struct sockaddr *)&to, sizeof(to)), "connect to the listener");
	return clnt_vc_create(fd, &address, program, version, 0, 0);
}

static void check_silent_mount_daemon(void)
{
	struct nfsrdma_options options = { .size = sizeof(options), .timeout = 20000 };
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct timespec before, after;
	long took;
	int rc;

	listener = socket(AF_INET, SOCK_STREAM, 0);
	expect(!bind(listener, (struct sockaddr *)&any, sizeof(any)) && !listen(listener, 4), "listen");
	/* the daemon gets what the connection leaves of it */
	connect_takes = 19000;
	clock_gettime(CLOCK_MONOTONIC, &before);
	rc = nfsrdma_connect("127.0.0.1:/export", &options, &session);
	clock_gettime(CLOCK_MONOTONIC, &after);
	took = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
	expect(rc == -ETIMEDOUT && strstr(nfsrdma_message(), "mount daemon"), "connect: %d", rc);
	expect(took < 10000, "after %ld ms", took);
}

/* --- memory --- */

static void check_message_about_memory(void)
{
	struct nfsrdma_region *region;
	static uint8_t data[4096];
	int rc;

	registration_fails = true;
	rc = nfsrdma_connect("127.0.0.1", &plain, &session);
	expect(rc == -ENOMEM && strstr(nfsrdma_message(), "ulimit -l"), "connect: %d", rc);
	registration_fails = false;
	open_session(0);
	registration_fails = true;
	rc = nfsrdma_register(session, data, sizeof(data), &region);
	expect(rc == -ENOMEM && strstr(nfsrdma_message(), "ulimit -l"), "register: %d", rc);
	registration_fails = false;
	nfsrdma_disconnect(session);
}

/* --- optimistic reads --- */

#define EXTENT_KEY	77

static struct nfsrdma_file *open_optimistic(void)
{
	struct nfsrdma_file *file = open_file();

	file->flags |= NFSRDMA_OPTIMISTIC;
	return file;
}

static void join(void)
{
	struct nfsrdma_stats stats = {.size = sizeof(stats)};
	int i;

	for (i = 0; i < 100 && !stats.second_connects; i++) {
		wait_look(session);
		nfsrdma_stats(session, &stats);
	}
	expect(stats.second_connects, "no second connection");
	session->optimist->references.shift = 16;
}

/* The first 64 KiB of each file */
static void grant(const struct nfsrdma_file *file)
{
	struct nfr_notice notice = {
		.kind = NFR_NOTICE_GRANT, .lifetime = 60, .extent = { .handle = EXTENT_KEY, .length = 65536 },
		.credential = session->optimist->references.credential, .fh_length = file->fh.length,
	};

	memcpy(notice.fh, file->fh.bytes, file->fh.length);
	notify_client(&notice);
}

static void end_grant(uint32_t key)
{
	struct nfr_notice notice = { .kind = NFR_NOTICE_REVOKE, .count = 1, .handles = { key } };

	notify_client(&notice);
}

/* Read some bytes; returns whether that was an RDMA Read */
static bool reads_by_reference(struct nfsrdma_file *file)
{
	uint32_t before = rdma_reads;
	uint8_t data[512];
	ssize_t got = nfsrdma_pread(file, data, sizeof(data), 0);

	expect(got == sizeof(data), "pread: %zd", got);
	expect(data[0] == (rdma_reads > before ? 0xa5 : 0x5a), "data %#x", data[0]);
	return rdma_reads > before;
}

static struct nfsrdma_file *begin_optimistic(uint32_t arena)
{
	struct nfsrdma_file *file;

	optimistic = true;
	serve = takes_writes;
	open_session(arena);
	join();
	file = open_optimistic();
	expect(!reads_by_reference(file), "a reference before a grant");
	grant(file);
	expect(reads_by_reference(file), "no RDMA Read after a grant");
	return file;
}

static void end_optimistic(struct nfsrdma_file *file)
{
	nfsrdma_close(file);
	expect(!session->arena_used, "arena %#lx", session->arena_used);
	nfsrdma_disconnect(session);
}

/* The first READ may precede the connection on which the grant for it comes */
static void check_read_before_the_second_connection(void)
{
	struct nfsrdma_file *file;

	optimistic = true;
	accepts_second = false;
	serve = reads;
	open_session(0);
	file = open_optimistic();
	expect(!reads_by_reference(file), "a reference without a connection");
	expect(!session->stats.second_connects, "a second connection");
	accepts_second = true;
	/* the attempt without an end */
	skipped += 60000;
	wait_look(session);
	skipped += 60000;
	join();
	grant(file);
	expect(reads_by_reference(file), "the grant was of no use");
	end_optimistic(file);
}

/* More notices than one poll finds: the last one ends the reference */
static void check_notices_before_a_read(void)
{
	struct nfsrdma_completion done;
	struct nfsrdma_file *file = begin_optimistic(0);
	uint8_t data[512];
	int i, batch;

	for (batch = 0; batch < 2; batch++) {
		grant(file);
		expect(reads_by_reference(file), "no RDMA Read after a grant");
		for (i = 0; i < 40; i++)
			end_grant(1000 + i);
		end_grant(EXTENT_KEY);
		rdma_reads = 0;
		if (batch) {
			expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 1), "prepare");
			expect(nfsrdma_submit(session) == 1 && nfsrdma_wait(session, &done, 1, 1, -1) == 1, "wait");
		} else {
			reads_by_reference(file);
		}
		expect(!rdma_reads, "an RDMA Read after the end of the reference");
	}
	end_optimistic(file);
}

/* All credits return, although no notice follows the last ones */
static void check_credits_of_notices(void)
{
	struct nfsrdma_file *file = begin_optimistic(0);
	uint32_t i, sent = 1;

	holds_credits = true;
	for (i = 0; i < 80; i++, sent++) {
		end_grant(1000 + i);
		wait_poll(session);
	}
	expect(credits_returned < sent - 16, "%u credits while messages are under way", credits_returned);
	holds_credits = false;
	complete_reads();
	while (wait_poll(session))
		;
	expect(sent - credits_returned < 16, "%u credits of %u", credits_returned, sent);
	end_optimistic(file);
}

/* A write ends the references to its file, also if the server's notice comes late */
static void check_write_and_references(void)
{
	struct nfsrdma_file *file = begin_optimistic(0), *other = open_optimistic();
	uint8_t text[3000];
	int i;

	other->fh.bytes[0] = 1;
	expect(!reads_by_reference(other), "a reference to another file");
	memset(text, 0xa5, sizeof(text));
	for (i = 0; i < 2; i++) {
		expect(nfsrdma_pwrite(file, text, sizeof(text), 0) == sizeof(text), "pwrite");
		expect(!reads_by_reference(file), "a reference after a write");
		grant(file);
		expect(reads_by_reference(file), "no RDMA Read after a grant");
	}
	grant(other);
	expect(reads_by_reference(other), "no RDMA Read of the other file");
	expect(nfsrdma_pwrite(file, text, sizeof(text), 0) == sizeof(text), "pwrite");
	expect(reads_by_reference(other), "the write ended a reference to another file");
	nfsrdma_close(other);
	end_optimistic(file);
}

/* A call that needs the arena waits for RDMA Reads that have it */
static void check_call_beside_rdma_reads(void)
{
	struct nfsrdma_file *file = begin_optimistic(BLOCK_BYTES);
	struct nfsrdma_completion done;
	static uint8_t data[20000];
	struct nfsrdma_entry entry = {.size = sizeof(entry)};
	struct nfsrdma_dir *dir;
	int rc;

	expect(!nfsrdma_opendir(session, "", &dir), "opendir");
	holds_reads = true;
	rdma_reads = 0;
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 1) && nfsrdma_submit(session) == 1, "submit");
	expect(rdma_reads == 1 && nheld == 1, "no RDMA Read: no check");
	serve = lists_dots;
	same_cookie = true;
	/* this server sends "." only, which is another error */
	rc = nfsrdma_readdir(dir, &entry);
	expect(rc == -EBADMSG, "readdir: %d", rc);
	expect(nfsrdma_wait(session, &done, 1, 1, -1) == 1 && done.result == sizeof(data), "wait");
	nfsrdma_closedir(dir);
	end_optimistic(file);
}

/* A file that has no entry in the cache is not opened: its writes would leave there what others have read */
static void check_no_memory_for_the_cache(void)
{
	struct nfsrdma_file *file;
	const attr3 attr = {};
	int rc;

	cache_size = 1 << 20;
	file = begin(reads, 0);
	memory_fails = true;
	rc = cache_open(session, file, &attr);
	memory_fails = false;
	expect(rc == -ENOMEM && !file->cached, "cache_open: %d", rc);
	expect(!cache_open(session, file, &attr) && file->cached, "cache_open");
	end(file);
}

/* --- stable storage --- */

static void writes_to(struct nfsrdma_file *file)
{
	static uint8_t data[512];

	expect(nfsrdma_pwrite(file, data, sizeof(data), 0) == sizeof(data), "pwrite");
}

static struct nfsrdma_file *open_to_read(void)
{
	struct nfsrdma_file *file = open_file();

	file->flags = O_RDONLY;
	return file;
}

static void begin_writes(void)
{
	serve = keeps_writes;
	boots = 1;
	open_session(0);
}

static void end_writes(void)
{
	expect(!session->inodes.count, "%u inodes", session->inodes.count);
	nfsrdma_disconnect(session);
}

/* fsync commits what another open file has written, also one that is closed, and nothing twice */
static void check_fsync_of_another_open_file(void)
{
	struct nfsrdma_file *file, *other;

	begin_writes();
	file = open_file();
	writes_to(file);
	nfsrdma_release(file);
	expect(!commits, "a COMMIT by release");
	other = open_to_read();
	expect(!nfsrdma_fsync(other) && commits == 1, "%u COMMITs", commits);
	expect(!nfsrdma_fsync(other) && commits == 1, "%u COMMITs of nothing", commits);
	file = open_file();
	writes_to(file);
	expect(!nfsrdma_fsync(other) && commits == 2, "%u COMMITs", commits);
	expect(!nfsrdma_close(file) && !nfsrdma_close(other) && commits == 2, "%u COMMITs", commits);
	end_writes();
}

static void check_fsync_beside_an_unfinished_write(void)
{
	struct nfsrdma_completion done;
	struct nfsrdma_file *file;
	uint8_t data[512];

	begin_writes();
	expect(!nfsrdma_null(session), "null");
	file = open_file();
	holds_writes = true;
	expect(!nfsrdma_prepare_write(file, data, sizeof(data), 0, 1) && nfsrdma_submit(session) == 1, "submit");
	expect(nheld_writes == 1, "no WRITE: no check");
	/* the server stops at a COMMIT that precedes the WRITE */
	expect(!nfsrdma_fsync(file) && commits == 1, "%u COMMITs", commits);
	expect(nfsrdma_wait(session, &done, 1, 1, 0) == 1 && done.result == sizeof(data), "wait");
	/* what was not submitted does not complete, and no fsync waits for it */
	expect(!nfsrdma_prepare_write(file, data, sizeof(data), 0, 2), "prepare");
	expect(!nfsrdma_fsync(file) && commits == 1, "%u COMMITs", commits);
	expect(nfsrdma_submit(session) == 1 && nfsrdma_wait(session, &done, 1, 1, -1) == 1, "wait");
	expect(!nfsrdma_close(file) && commits == 2, "%u COMMITs", commits);
	end_writes();
}

/* Each file that was open reports a loss once; a later one reports it if none has */
static void check_restart_before_fsync(void)
{
	struct nfsrdma_file *files[3], *late;
	int i;

	begin_writes();
	for (i = 0; i < 3; i++)
		files[i] = open_file();
	writes_to(files[0]);
	boots++;
	for (i = 0; i < 3; i++)
		expect(nfsrdma_fsync(files[i]) == -EIO, "file %d reports no loss", i);
	late = open_file();
	for (i = 0; i < 3; i++)
		expect(!nfsrdma_fsync(files[i]), "file %d reports a loss twice", i);
	expect(!nfsrdma_close(late), "a file that was opened after the report of the loss");
	/* by a write that comes back with another verifier */
	writes_to(files[1]);
	boots++;
	writes_to(files[1]);
	expect(nfsrdma_close(files[1]) == -EIO && nfsrdma_close(files[0]) == -EIO, "close reports no loss");
	nfsrdma_release(files[2]);
	/* without an open file at the time of the loss */
	files[0] = open_file();
	writes_to(files[0]);
	nfsrdma_release(files[0]);
	boots++;
	late = open_to_read();
	expect(nfsrdma_fsync(late) == -EIO && !nfsrdma_fsync(late), "the loss of a closed file");
	expect(!nfsrdma_close(late), "close");
	/* by a write of a file that is closed without a report */
	files[0] = open_file();
	writes_to(files[0]);
	boots++;
	writes_to(files[0]);
	nfsrdma_release(files[0]);
	late = open_file();
	expect(nfsrdma_close(late) == -EIO, "the loss that a closed file has seen");
	/* after a COMMIT nothing is lost */
	files[0] = open_file();
	writes_to(files[0]);
	expect(!nfsrdma_fsync(files[0]), "fsync");
	boots++;
	writes_to(files[0]);
	expect(!nfsrdma_close(files[0]), "a loss of what was committed");
	end_writes();
}

static void check_close(void)
{
	struct nfsrdma_file *file, *other;

	begin_writes();
	file = open_file();
	other = open_to_read();
	expect(!nfsrdma_close(file) && !commits, "%u COMMITs of nothing", commits);
	file = open_file();
	writes_to(file);
	expect(!nfsrdma_close(other) && !commits, "%u COMMITs by a file that is open for reading", commits);
	expect(!nfsrdma_close(file) && commits == 1, "%u COMMITs", commits);
	expect(!nfsrdma_close(NULL), "NULL");
	/* the server refuses the COMMIT: the next one may succeed, and both files report it */
	file = open_file();
	other = open_file();
	writes_to(file);
	commit_status = 28;
	expect(nfsrdma_fsync(file) == -ENOSPC && commits == 2, "fsync");
	commit_status = 0;
	expect(!nfsrdma_fsync(file) && commits == 3, "%u COMMITs", commits);
	expect(nfsrdma_close(other) == -ENOSPC && strstr(nfsrdma_message(), "COMMIT"), "close");
	expect(!nfsrdma_close(file) && commits == 3, "%u COMMITs", commits);
	/* a file that is gone needs no COMMIT */
	file = open_file();
	writes_to(file);
	commit_status = 70;
	expect(nfsrdma_close(file) == -ESTALE, "close of a stale file");
	end_writes();
}

/* A close in a batch waits for the writes before it, and for no others */
static void check_close_in_a_batch(void)
{
	struct nfsrdma_completion done[8];
	struct nfsrdma_file *file, *clean;
	uint8_t data[512];
	int i, fd;

	begin_writes();
	expect(!nfsrdma_null(session), "null");
	file = open_file();
	clean = open_file();
	clean->flags = O_RDONLY;
	holds_writes = true;
	for (i = 0; i < 2; i++)
		expect(!nfsrdma_prepare_write(file, data, sizeof(data), 512 * i, i), "prepare");
	expect(!nfsrdma_prepare_fsync(file, 2) && !nfsrdma_prepare_close(file, 3), "prepare");
	expect(!nfsrdma_peek(session, done, 8) && !commits, "a completion before submit");
	expect(nfsrdma_submit(session) == 4 && nheld_writes == 2 && !commits, "%u COMMITs", commits);
	expect(nfsrdma_wait(session, done, 8, 4, -1) == 4, "wait");
	for (i = 0; i < 4; i++)
		expect(done[i].result == (done[i].user_data < 2 ? 512 : 0) && (done[i].user_data < 2) == (i < 2),
		       "completion %d: %d of %d", i, (int)done[i].result, (int)done[i].user_data);
	expect(commits >= 1, "no COMMIT");
	/* nothing to commit: no message comes, and the descriptor is readable */
	fd = nfsrdma_fd(session);
	expect(fd >= 0 && !nfsrdma_peek(session, done, 8) && !readable(fd), "fd");
	commits = 0;
	expect(!nfsrdma_prepare_close(clean, 4) && nfsrdma_submit(session) == 1, "submit");
	expect(readable(fd), "the descriptor is not readable");
	expect(nfsrdma_peek(session, done, 8) == 1 && done[0].user_data == 4 && !done[0].result, "peek");
	expect(!readable(fd) && !commits, "%u COMMITs", commits);
	/* a loss */
	file = open_file();
	holds_writes = false;
	writes_to(file);
	boots++;
	expect(!nfsrdma_prepare_close(file, 5) && nfsrdma_submit(session) == 1, "submit");
	expect(nfsrdma_wait(session, done, 8, 1, -1) == 1 && done[0].result == -EIO, "wait");
	/* a write that completes while the COMMIT is on its way may be missing from it */
	file = open_file();
	writes_to(file);
	commits = 0;
	expect(!nfsrdma_prepare_fsync(file, 6) && !nfsrdma_prepare_write(file, data, sizeof(data), 0, 7), "prepare");
	expect(nfsrdma_submit(session) == 2 && nfsrdma_wait(session, done, 8, 2, -1) == 2, "wait");
	expect(commits == 1 && !nfsrdma_close(file) && commits == 2, "%u COMMITs", commits);
	/* one that the session ends with */
	file = open_file();
	writes_to(file);
	nheld_writes = 0;
	holds_writes = true;
	expect(!nfsrdma_prepare_write(file, data, sizeof(data), 0, 6) && !nfsrdma_prepare_close(file, 7), "prepare");
	expect(nfsrdma_submit(session) == 2, "submit");
	nfsrdma_disconnect(session);
}

/* Other calls take completions that the descriptor has to report, and do not sleep with a descriptor that is readable */
static void check_descriptor_beside_other_calls(void)
{
	struct nfsrdma_completion done[8];
	struct nfsrdma_file *file;
	uint8_t data[512];
	int fd;

	serve = reads_later;
	open_session(0);
	expect(!nfsrdma_null(session), "null");
	file = open_file();
	fd = session->epoll;
	session->epoll = -1;
	expect(nfsrdma_fd(session) == -EBADF && nfsrdma_fd(session) == -EBADF, "a descriptor that cannot be watched");
	session->epoll = fd;
	expect(nfsrdma_fd(session) == fd && !nfsrdma_peek(session, done, 8) && !readable(fd), "fd");
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 1) && nfsrdma_submit(session) == 1, "submit");
	expect(!readable(fd), "a descriptor that is readable before a message");
	expect(!nfsrdma_null(session), "null");
	expect(readable(fd), "null took the completion of a read");
	/* a Call without a reply: a sleep for each look at the clock, and no more */
	watched = fd;
	stalled = 1;
	expect(!nfsrdma_null(session), "null");
	expect(!sleeps_that_end, "%u sleeps that end at once", sleeps_that_end);
	expect(readable(fd), "null took the completion of a read");
	expect(nfsrdma_peek(session, done, 8) == 1 && done[0].result == sizeof(data), "peek");
	expect(!readable(fd), "a descriptor that is readable without a message");
	/* a part of the completions */
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 2), "prepare");
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 3) && nfsrdma_submit(session) == 2, "submit");
	expect(!nfsrdma_null(session) && nfsrdma_wait(session, done, 1, 1, -1) == 1, "wait");
	expect(readable(fd) && nfsrdma_peek(session, done, 8) == 1 && !readable(fd), "the other one");
	end(file);
}

static int calls_back(void *data)
{
	struct nfsrdma_file *file = data;
	struct nfsrdma_completion done;
	uint8_t byte;

	asked++;
	expect(nfsrdma_pread(file, &byte, 1, 0) == -EDEADLK && nfsrdma_null(session) == -EDEADLK, "a call");
	expect(nfsrdma_wait(session, &done, 1, 1, -1) == -EDEADLK, "wait");
	expect(nfsrdma_prepare_close(file, 0) == -EDEADLK && nfsrdma_close(file) == -EDEADLK, "close");
	nfsrdma_release(file);
	nfsrdma_disconnect(session);
	return asked == 2;
}

/* What options.interrupted does to the session has no effect */
static void check_interrupted_uses_its_session(void)
{
	static uint8_t data[512];
	struct nfsrdma_file *file;
	ssize_t rc;

	file = begin(reads_later, 0);
	session->options.interrupted = calls_back;
	session->options.interrupted_data = file;
	stalled = 1000;
	rc = nfsrdma_pread(file, data, sizeof(data), 0);
	expect(asked == 2 && rc == -EINTR, "asked %u times: %zd bytes", asked, rc);
	stalled = 0;
	expect(nfsrdma_pread(file, data, sizeof(data), 0) == sizeof(data), "pread");
	expect(!nfsrdma_close(file), "close");
	nfsrdma_disconnect(session);
}

/* --- the binary interface --- */

/* The library writes no byte behind the size that the caller has set, and none for a size of no version */
static void check_sizes_of_structs(void)
{
	struct { struct nfsrdma_stats stats; uint64_t behind[8]; } stats = {};
	struct { struct nfsrdma_terms terms; uint64_t behind[8]; } terms = {};

	serve = reads;
	open_session(0);
	expect(!nfsrdma_null(session), "null");
	stats.behind[0] = terms.behind[0] = 0x5a5a5a5a;
	expect(nfsrdma_stats(session, &stats.stats) == -EINVAL && !stats.stats.calls, "stats of size 0");
	expect(nfsrdma_terms(session, &terms.terms) == -EINVAL && !terms.terms.credits, "terms of size 0");
	stats.stats.size = STATS_LEAST - 8;
	expect(nfsrdma_stats(session, &stats.stats) == -EINVAL && !stats.stats.calls, "stats before version 0.1.0");
	/* of a later version */
	stats.stats.size = sizeof(stats);
	terms.terms.size = sizeof(terms);
	expect(!nfsrdma_stats(session, &stats.stats) && stats.stats.calls == 1, "stats");
	expect(!nfsrdma_terms(session, &terms.terms) && terms.terms.credits == 9, "terms");
	expect(stats.stats.size == sizeof(stats.stats) && terms.terms.size == sizeof(terms.terms), "sizes");
	expect(stats.behind[0] == 0x5a5a5a5a && terms.behind[0] == 0x5a5a5a5a, "a byte behind a struct");
	stats.stats = (struct nfsrdma_stats){ .size = STATS_LEAST };
	expect(!nfsrdma_stats(session, &stats.stats) && stats.stats.calls == 1, "stats of version 0.1.0");
	nfsrdma_disconnect(session);
}

/* READDIRPLUS returns two entries */
static void lists_two(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[256] = {}, *at = results + 16;
	int i;

	if (procedure_of(rpc) != NFS_READDIRPLUS) {
		attributes(call);
		return;
	}
	(void)length;
	for (i = 1; i < 3; i++) {
		at = put64(nfr_wire_put32(at, 1), i);
		at = put_opaque(at, i == 1 ? "a" : "b", 1);
		at = nfr_wire_put32(nfr_wire_put32(put64(at, i), 0), 0);
	}
	at = nfr_wire_put32(nfr_wire_put32(at, 0), 1);
	reply(call, results, at - results);
}

/* A call with a wrong size skips no entry */
static void check_size_of_an_entry(void)
{
	struct nfsrdma_entry entry = {};
	struct nfsrdma_dir *dir;

	serve = lists_two;
	open_session(0);
	expect(!nfsrdma_opendir(session, "", &dir), "opendir");
	expect(nfsrdma_readdir(dir, &entry) == -EINVAL, "an entry of size 0");
	entry.size = sizeof(entry);
	expect(nfsrdma_readdir(dir, &entry) == 1 && !strcmp(entry.name, "a"), "the first one");
	expect(nfsrdma_readdir(dir, &entry) == 1 && !strcmp(entry.name, "b"), "the second one");
	expect(!nfsrdma_readdir(dir, &entry), "the end");
	nfsrdma_closedir(dir);
	nfsrdma_disconnect(session);
}

/* --- ranges --- */

static void check_ranges(void)
{
	struct nfsrdma_completion done[8];
	static uint8_t data[10][512];
	struct nfsrdma_range ranges[10];
	struct nfsrdma_file *file;
	size_t i;

	file = begin(reads, 0);
	for (i = 0; i < 10; i++)
		ranges[i] = (struct nfsrdma_range){
			.file = file, .buf = data[i], .count = 512 - i, .offset = 4096 * i, .user_data = 70 + i,
		};
	/* as many as there is room for */
	expect(nfsrdma_prepare_reads(ranges, 10) == 8, "prepare_reads");
	expect(nfsrdma_prepare_reads(ranges + 8, 2) == -EAGAIN, "a place too many");
	expect(nfsrdma_submit(session) == 8 && nfsrdma_wait(session, done, 8, 8, -1) == 8, "wait");
	for (i = 0; i < 8; i++)
		expect(done[i].user_data == 70 + i && done[i].result == (int64_t)(512 - i) && done[i].eof == 1,
		       "completion %zu", i);
	/* up to the one that is wrong */
	ranges[9].reserved = 1;
	expect(nfsrdma_prepare_reads(ranges + 8, 2) == 1, "prepare_reads");
	expect(nfsrdma_prepare_reads(ranges + 9, 1) == -EINVAL, "reserved");
	expect(nfsrdma_submit(session) == 1 && nfsrdma_wait(session, done, 8, 1, -1) == 1, "wait");
	end(file);
}

/* --- reads --- */

static uint32_t reads_seen, fails_at;
static server looks_up;

/* Counts READs, and fails those at @fails_at */
static void counts_reads(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[8] = {};

	reads_seen += procedure_of(rpc) == NFS_READ;
	if (procedure_of(rpc) == NFS_READ && fails_at && nfr_wire_load32(rpc + length - 8) >= fails_at) {
		nfr_wire_store32(results, 5);
		reply(call, results, sizeof(results));
		return;
	}
	reads(call, rpc, length);
}

static void check_small_arena(void)
{
	static uint8_t data[1 << 20];
	struct nfsrdma_file *file;
	int rc;

	file = begin(counts_reads, BLOCK_BYTES);
	session->read_max = 1 << 20;
	rc = nfsrdma_prepare_read(file, data, BLOCK_BYTES + 1, 0, 1);
	expect(rc == -EMSGSIZE, "prepare: %d", rc);
	/* this server says that each READ is the last one of the file */
	expect(nfsrdma_pread(file, data, sizeof(data), 0) == BLOCK_BYTES && reads_seen == 1, "%u READs", reads_seen);
	/* beside a batch that has the arena */
	expect(!nfsrdma_prepare_read(file, data, BLOCK_BYTES, 0, 1), "prepare");
	expect(nfsrdma_pread(file, data, sizeof(data), 0) == 512, "pread");
	end(file);
}

/* The end of a block that the caller does not want fails; then the part that he wants */
static void check_failed_block(void)
{
	struct nfsrdma_file *file;
	const attr3 attr = {};
	uint8_t data[100];
	ssize_t rc;

	cache_size = 1 << 20;
	file = begin(counts_reads, 0);
	/* a block is two READs, and the first one does not end the file */
	session->read_max = 2048;
	expect(!cache_open(session, file, &attr), "cache_open");
	fails_at = 2048;
	without_eof = true;
	expect(nfsrdma_pread(file, data, sizeof(data), 0) == sizeof(data), "the first part");
	rc = nfsrdma_pread(file, data, sizeof(data), 2048);
	expect(rc == -EIO, "the second part: %zd", rc);
	end(file);
}

static void check_wait_for_nothing(void)
{
	struct nfsrdma_completion done;
	struct nfsrdma_file *file;
	uint8_t data[512];

	file = begin(reads, 0);
	expect(!nfsrdma_prepare_read(file, data, sizeof(data), 0, 1) && nfsrdma_submit(session) == 1, "submit");
	expect(nfsrdma_wait(session, &done, 1, 0, 0) == 1 && done.result == sizeof(data), "wait");
	end(file);
}

static int asks(void *data)
{
	(void)data;
	asked++;
	return 1;
}

/* A call whose replies come at once never sleeps: it asks between its RPCs */
static void check_interrupt_of_a_fast_call(void)
{
	static uint8_t data[1 << 20];
	struct nfsrdma_file *file;
	ssize_t rc;

	file = begin(counts_reads, 0);
	session->read_max = 512;
	without_eof = true;
	session->options.interrupted = asks;
	rc = nfsrdma_pread(file, data, sizeof(data), 0);
	expect(asked == 1 && rc == 512 && reads_seen == 1, "asked %u times: %zd bytes", asked, rc);
	/* not again within a moment */
	rc = nfsrdma_pread(file, data, 1024, 0);
	expect(asked == 1 && rc == 1024, "asked %u times: %zd bytes", asked, rc);
	end(file);
}

static void always_busy(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[8] = {};

	(void)length;
	nfr_wire_store32(results, procedure_of(rpc) == NFS_NULL ? 0 : NFS_BUSY);
	reply(call, results, sizeof(results));
}

static void check_busy_server(void)
{
	struct nfsrdma_file *file;
	struct stat st;

	file = begin(always_busy, 0);
	expect(nfsrdma_fstat(file, &st) == -ETIMEDOUT && strstr(nfsrdma_message(), "busy"), "fstat");
	end(file);
}

static void check_flags_of_open(void)
{
	struct nfsrdma_file *file;

	serve = looks_up;
	open_session(0);
	expect(nfsrdma_open(session, "f", O_RDWR | O_APPEND, 0, &file) == -EINVAL, "O_APPEND");
	expect(!nfsrdma_open(session, "f", O_RDWR | O_CLOEXEC, 0, &file), "O_CLOEXEC");
	expect(!nfsrdma_close(file), "close");
	nfsrdma_disconnect(session);
}

/* --- many files --- */

#define FILES	60000

/* Opening a file costs the same with many open ones: the table grows */
static void check_many_files(void)
{
	static struct nfsrdma_file *files[FILES];
	uint32_t i, length, longest = 0;
	struct inode *inode;

	serve = reads;
	open_session(0);
	for (i = 0; i < FILES; i++) {
		struct nfs_fh fh = { .length = 28 };

		memset(fh.bytes, 0x5c, fh.length);
		memcpy(fh.bytes, &i, sizeof(i));
		files[i] = file_make(session, &fh, O_RDONLY);
		expect(files[i] && inode_find(session, &fh) == files[i]->inode, "file %u", i);
	}
	for (i = 0; i < session->inodes.size; i++) {
		length = 0;
		for (inode = session->inodes.table[i]; inode; inode = inode->next)
			length++;
		longest = length > longest ? length : longest;
	}
	expect(session->inodes.count == FILES && longest <= 16, "%u inodes in one list", longest);
	for (i = 0; i < FILES; i++)
		nfsrdma_close(files[i]);
	expect(!session->inodes.count, "%u inodes", session->inodes.count);
	nfsrdma_disconnect(session);
}

/* --- NFSv4.1 --- */

static uint32_t created[4], ncreated;
static bool bad_session;

/* EXCHANGE_ID confirms a client ID that has a session, with a sequence of no use; SEQUENCE fails once */
static void confirms(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	const uint8_t *operation = rpc + session->rpc_head_length + 12;
	uint8_t results[256] = {}, *at = results + 12;
	uint32_t number = nfr_wire_load32(operation);

	(void)length;
	at = nfr_wire_put32(nfr_wire_put32(at, number), 0);
	switch (number) {
	case 42:
		at = nfr_wire_put32(at + 8, ncreated ? 1 : 77);
		at = nfr_wire_put32(at, ncreated ? 0x80000000 : 0);
		break;
	case 43:
		created[ncreated++ % 4] = nfr_wire_load32(operation + 12);
		/* a session, and a channel of 8 operations and 8 requests */
		at = nfr_wire_put32(nfr_wire_put32(at + 40, 8), 8) + 4;
		break;
	case 53:
		at += 36;
		number = nfr_wire_load32(operation + 36);
		if (number == 22 && bad_session) {
			bad_session = false;
			nfr_wire_store32(results, 10052);
			nfr_wire_store32(results + 16, 10052);
			break;
		}
		at = nfr_wire_put32(nfr_wire_put32(at, number), 0);
		/* PUTFH, and GETATTR without attributes */
		if (number == 22)
			at = nfr_wire_put32(at, 9) + 12;
		break;
	}
	reply(call, results, at - results);
}

/* RFC 8881, section 18.35.4: a confirmed client ID goes on with its sequence */
static void check_confirmed_client(void)
{
	struct stat st;

	plain.version = 41;
	serve = confirms;
	expect(!nfsrdma_connect("127.0.0.1", &plain, &session), "connect");
	session->directory = strdup("/export");
	session->root = (fh3){ 4, strdup("root") };
	expect(!nfsrdma_stat(session, "", &st) && ncreated == 1 && created[0] == 77, "stat: sequence %u", created[0]);
	bad_session = true;
	expect(!nfsrdma_stat(session, "", &st) && ncreated == 2, "%u sessions", ncreated);
	expect(created[1] == 78, "CREATE_SESSION with sequence %u", created[1]);
	nfsrdma_disconnect(session);
}

/* --- paths --- */

static uint32_t calls_of[22];

/* LOOKUP finds everything: "d" is a directory, "." a link to itself, and all else a file.  Counts the calls. */
static void looks_up(const struct nfr_header *call, const uint8_t *rpc, size_t length)
{
	uint8_t results[256] = {}, *at = results + 4;
	uint32_t procedure = procedure_of(rpc);

	expect(procedure < 22, "procedure %u", procedure);
	calls_of[procedure]++;
	if (procedure == NFS_GETATTR) {
		attributes(call);
		return;
	}
	if (procedure == NFS_READLINK) {
		at = nfr_wire_put32(at, 0);
		at = put_opaque(at, ".", 1);
		reply(call, results, at - results);
		return;
	}
	expect(procedure == NFS_LOOKUP, "procedure %u", procedure);
	at = put_opaque(at, "handle", 6);
	at = nfr_wire_put32(at, 1);
	nfr_wire_put32(at, rpc[length - 4] == 'd' ? 2 : rpc[length - 4] == 'l' ? 5 : 1);
	at = nfr_wire_put32(at + NFS_ATTR_BYTES, 0);
	reply(call, results, at - results);
}

static void opens(const char *path, uint32_t lookups, uint32_t getattrs)
{
	struct nfsrdma_file *file;
	struct stat st;
	int rc;

	memset(calls_of, 0, sizeof(calls_of));
	rc = nfsrdma_open(session, path, O_RDONLY, 0, &file);
	if (rc == -EISDIR)
		rc = nfsrdma_stat(session, path, &st), lookups *= 2, getattrs *= 2;
	else
		nfsrdma_close(file);
	expect(!rc, "%s: %d", path, rc);
	expect(calls_of[NFS_LOOKUP] == lookups && calls_of[NFS_GETATTR] == getattrs,
	       "%s: %u LOOKUPs and %u GETATTRs, expected %u and %u", path, calls_of[NFS_LOOKUP],
	       calls_of[NFS_GETATTR], lookups, getattrs);
}

/* LOOKUP returns attributes: only a path that ends without one needs a GETATTR */
static void check_calls_of_a_path(void)
{
	serve = looks_up;
	open_session(0);
	opens("f", 1, 0);
	opens("d/d/d/f", 4, 0);
	opens("d/../f", 2, 0);
	opens("d", 1, 0);
	opens("", 0, 1);
	opens("d/..", 1, 1);
	/* a link to "." is the directory */
	opens("l", 1, 1);
	opens("l/f", 2, 0);
	nfsrdma_disconnect(session);
}

static const struct {
	const char *name;
	void (*run)(void);
} checks[] = {
	{ "fork while a device opens", check_fork_while_a_device_opens },
	{ "fork while a connection closes", check_fork_while_a_connection_closes },
	{ "registered memory and fork", check_registered_memory_and_fork },
	{ "closed file", check_closed_file },
	{ "smaller messages", check_smaller_messages },
	{ "bytes behind a short read", check_bytes_behind_a_short_read },
	{ "full arena", check_full_arena },
	{ "call beside a full arena", check_call_beside_a_full_arena },
	{ "listing without progress", check_listing_without_progress },
	{ "silent mount daemon", check_silent_mount_daemon },
	{ "message about memory", check_message_about_memory },
	{ "read before the second connection", check_read_before_the_second_connection },
	{ "notices before a read", check_notices_before_a_read },
	{ "credits of notices", check_credits_of_notices },
	{ "write and references", check_write_and_references },
	{ "call beside RDMA Reads", check_call_beside_rdma_reads },
	{ "no memory for the cache", check_no_memory_for_the_cache },
	{ "fsync of another open file", check_fsync_of_another_open_file },
	{ "fsync beside an unfinished write", check_fsync_beside_an_unfinished_write },
	{ "restart before fsync", check_restart_before_fsync },
	{ "close", check_close },
	{ "close in a batch", check_close_in_a_batch },
	{ "descriptor beside other calls", check_descriptor_beside_other_calls },
	{ "interrupted uses its session", check_interrupted_uses_its_session },
	{ "sizes of structs", check_sizes_of_structs },
	{ "size of an entry", check_size_of_an_entry },
	{ "ranges", check_ranges },
	{ "small arena", check_small_arena },
	{ "failed block", check_failed_block },
	{ "wait for nothing", check_wait_for_nothing },
	{ "interrupt of a fast call", check_interrupt_of_a_fast_call },
	{ "busy server", check_busy_server },
	{ "flags of open", check_flags_of_open },
	{ "many files", check_many_files },
	{ "confirmed client", check_confirmed_client },
	{ "calls of a path", check_calls_of_a_path },
};

/* Without an argument, the names of all checks */
int main(int argc, char **argv)
{
	size_t i;

	serve = silent;
	pthread_barrier_init(&in_the_middle, NULL, 2);
	for (i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		if (argc < 2)
			puts(checks[i].name);
		else if (!strcmp(argv[1], checks[i].name))
			return checks[i].run(), 0;
	}
	return argc < 2 ? 0 : 2;
}
