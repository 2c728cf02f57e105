// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Any notices at all to the optimistic reads of libnfsrdma: libFuzzer's target, and drive.c's.
 *
 * The input is a program: its first octet selects whether the session has a cache; then an octet selects a step, others
 * are its arguments. A step delivers a notice, has the library read, sets how the device completes the next RDMA Reads,
 * lets time pass, or changes the file and opens it again. The server answers each READ by RPC. What the caller reads
 * has to be what the file has.
 *
 * A model has the references of the server: it ends one when a notice revokes it or names its key again, when the
 * device refuses a Read, and when the connection ends. Each RDMA Read that the library posts must be inside of one
 * of them, with the bytes that the caller wants, and into his memory or the arena.
 */
#include "fuzz_library.h"

#define WORK	512
#define MODELS	64

enum step { STEP_NOTICE, STEP_READ, STEP_BATCH, STEP_STATUS, STEP_TIME, STEP_TRUNCATE, STEP_CHANGE, STEPS };

static struct nfsrdma_region region = { .session = &session, .mr = &mr, .length = BUFFER };
static struct ibv_qp first, second;
static const uint8_t *input;
static size_t left;
static uint64_t milliseconds;
static uint8_t status, version;

/* Completions that the device has not reported, in their order */
static struct ibv_wc work[WORK];
static uint32_t first_work, nwork;
static uint64_t receives[2][256];
static uint32_t first_receive[2], nreceives[2];

/* References that the server has granted and not ended; the first ones that fit in */
static struct { struct nfr_notice notice; bool live; } models[MODELS];
static bool overflown;

static uint8_t next_octet(void)
{
	if (!left)
		return 0;
	left--;
	return *input++;
}

/* --- what the library asks of the system --- */

int fuzz_clock(clockid_t clock, struct timespec *now)
{
	(void)clock;
	*now = (struct timespec){ .tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000 };
	return 0;
}

int fuzz_epoll(int fd, struct epoll_event *events, int most, int timeout)
{
	(void)fd, (void)events, (void)most;
	milliseconds += timeout;
	return 0;
}

/* --- the file --- */

static uint8_t octet_of_file(uint64_t position)
{
	return position + (position >> 8) * 3 + (position >> 12) * 5 + version * 17;
}

static void read_file(uint8_t *to, uint64_t position, uint32_t count)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		to[i] = octet_of_file(position + i);
}

static void compare(const uint8_t *with, uint64_t position, int64_t count)
{
	int64_t i;

	for (i = 0; i < count; i++)
		check(with[i] == octet_of_file(position + i));
}

/* --- the model --- */

static void model_end(uint32_t handle)
{
	size_t i;

	for (i = 0; i < MODELS; i++)
		if (models[i].notice.extent.handle == handle)
			models[i].live = false;
}

static void model_end_all(void)
{
	size_t i;

	for (i = 0; i < MODELS; i++)
		models[i].live = false;
}

static void model_heed(const uint8_t *message, size_t length)
{
	struct nfr_notice notice;
	size_t i;
	u32 j;

	if (nfr_wire_decode_notice(&notice, message, length))
		return;
	for (j = 0; notice.kind == NFR_NOTICE_REVOKE && j < notice.count; j++)
		model_end(notice.handles[j]);
	if (notice.kind != NFR_NOTICE_GRANT)
		return;
	model_end(notice.extent.handle);
	for (i = 0; i < MODELS && models[i].live; i++)
		;
	/* the library may then know one that the model does not */
	if (i == MODELS)
		overflown = true;
	else
		models[i].notice = notice, models[i].live = true;
}

static void model_check(const struct request *req, const struct ibv_send_wr *wr)
{
	uint32_t length = wr->sg_list->length;
	const struct io_operation *io = &req->io;
	uint64_t last;
	size_t i;

	check(length && length <= io->count);
	check(wr->sg_list->addr == (uintptr_t)(io->bounce ? io->bounce : io->buf));
	check(io->bounce || memory_find(&session, io->buf, length) == &region);
	for (i = 0; i < MODELS; i++) {
		const struct nfr_notice *notice = &models[i].notice;

		if (!models[i].live || notice->extent.handle != wr->wr.rdma.rkey)
			continue;
		last = notice->position + notice->extent.length;
		check(io->offset >= notice->position && io->offset + length <= last);
		check(wr->wr.rdma.remote_addr - notice->extent.offset == io->offset - notice->position);
		/* a shorter Read is one at the end of the file */
		check(length == io->count || (notice->ends && io->offset + length == last));
		check(notice->fh_length == io->file->fh.length &&
		      !memcmp(notice->fh, io->file->fh.bytes, notice->fh_length));
		return;
	}
	check(overflown);
}

/* --- the device --- */

static void complete(struct ibv_wc wc)
{
	check(nwork < WORK);
	work[(first_work + nwork++) % WORK] = wc;
}

static void deliver(uint32_t which, const uint8_t *message, uint32_t length)
{
	uint64_t id;
	uint8_t *to;

	/* the server has no credit */
	if (!nreceives[which])
		return;
	id = receives[which][first_receive[which]++ % 256];
	nreceives[which]--;
	to = which ? memory_notice(&session, (uint32_t)id) : memory_receive(&session, id);
	memcpy(to, message, length);
	complete((struct ibv_wc){ .wr_id = id, .opcode = IBV_WC_RECV, .byte_len = length });
}

static int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	uint32_t which = qp == &second;

	(void)bad;
	for (; wr; wr = wr->next) {
		check(nreceives[which] < 256);
		receives[which][(first_receive[which] + nreceives[which]++) % 256] = wr->wr_id;
	}
	return 0;
}

/* The Reply to a READ: as much data as the Call wants, with a Write chunk or inside of the message */
static void answer(const uint8_t *call, uint32_t length)
{
	struct nfr_chunk chunks[4];
	struct nfr_segment segs[4];
	struct nfr_space space = { chunks, 4, segs, 4 };
	struct nfr_header head;
	uint8_t message[1024] = {};
	struct nfr_read read;
	int size = nfr_wire_decode(&head, &space, call, length), at;

	check(size > 0 && nfr_wire_decode_read(&read, call + size, length - size));
	check(!head.nwrites || nfr_wire_length(&head.writes[0]) == read.count);
	head.credits = 16;
	at = nfr_wire_encode(&head, message, sizeof(message));
	check(at > 0 && at + NFR_WIRE_READ_REPLY + (head.nwrites ? 0 : read.count) <= sizeof(message));
	nfr_wire_encode_read_reply(message + at, head.xid, read.count, false);
	read_file(head.nwrites ? (uint8_t *)(uintptr_t)head.writes[0].segs[0].offset :
				 message + at + NFR_WIRE_READ_REPLY, read.position, read.count);
	deliver(0, message, at + NFR_WIRE_READ_REPLY + (head.nwrites ? 0 : padded(read.count)));
}

static void post_one(struct ibv_send_wr *wr)
{
	static const enum ibv_wc_status statuses[] = {
		IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_RETRY_EXC_ERR,
	};
	struct ibv_wc wc = { .wr_id = wr->wr_id, .status = statuses[status % 4] };

	if (wr->opcode == IBV_WR_RDMA_READ) {
		const struct request *req = &session.slots[(uint32_t)wr->wr_id];

		model_check(req, wr);
		if (wc.status == IBV_WC_SUCCESS)
			read_file((uint8_t *)wr->sg_list->addr, req->io.offset, wr->sg_list->length);
	} else {
		/* credits */
		check(wr->sg_list->length == 8);
	}
	complete(wc);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)bad;
	for (; wr; wr = wr->next) {
		if (qp == &second) {
			post_one(wr);
			continue;
		}
		answer((void *)wr->sg_list->addr, wr->sg_list->length);
		if (wr->send_flags & IBV_SEND_SIGNALED)
			complete((struct ibv_wc){ .wr_id = wr->wr_id });
	}
	return 0;
}

static void take_completion(struct ibv_wc *wc)
{
	*wc = work[first_work++ % WORK];
	nwork--;
	/* the library heeds it now, unless it is one of a connection that is gone */
	if ((wc->wr_id >> 32 & 0xfffffff) != session.optimist->generation)
		return;
	if (wc->wr_id & SECOND_BIT && wc->opcode == IBV_WC_RECV)
		model_heed(memory_notice(&session, (uint32_t)wc->wr_id), wc->byte_len);
	else if (wc->status == IBV_WC_REM_ACCESS_ERR)
		model_end(session.slots[(uint32_t)wc->wr_id].target.handle);
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	int n;

	(void)cq;
	for (n = 0; n < most && nwork; n++)
		take_completion(&wc[n]);
	return n;
}

static struct ibv_context context = {
	.ops = { .poll_cq = poll_cq, .post_send = post_send, .post_recv = post_receive,
		 .req_notify_cq = notify },
};

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)qp, (void)mask, (void)init;
	attr->qp_state = status & 4 ? IBV_QPS_RTS : IBV_QPS_ERR;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	if (qp != &second)
		return 0;
	model_end_all();
	nreceives[1] = 0;
	return 0;
}

/* --- the session --- */

/* The second connection, as if it were made just now */
static void join(void)
{
	struct optimist *optimist = session.optimist;
	uint32_t i;

	optimist->qp = &second;
	optimist->link = LINK_UP;
	optimist->since = milliseconds;
	optimist->references.shift = 16;
	for (i = 0; i < NOTICE_RECEIVES; i++) {
		struct ibv_recv_wr wr = {
			.wr_id = SECOND_BIT | 1ULL << 60 | (uint64_t)(optimist->generation & 0xfffffff) << 32 | i,
		};

		post_receive(&second, &wr, NULL);
	}
}

static void open_session(void)
{
	memset(&session, 0, sizeof(session));
	memset(models, 0, sizeof(models));
	overflown = false;
	second.context = &context;
	session.options = (struct nfsrdma_options){
		.depth = 4, .inline_size = 1024, .timeout = 5000, .arena = 2 * BLOCK_BYTES,
		.optimistic = 1, .cache = 4 * CACHE_BLOCK,
	};
	check(!requests_allocate(&session) && !optimist_allocate(&session) && !memory_allocate(&session));
	check(!cache_allocate(&session));
	/* an input cannot know what is different each time */
	session.optimist->references.credential = 0x0102030405060708;
	session.read_max = 32768;
	session.dialect = &nfs3_dialect;
	milliseconds = first_work = nwork = status = version = 0;
	memset(first_receive, 0, sizeof(first_receive));
	memset(nreceives, 0, sizeof(nreceives));
	connected(&context, &first);
	join();
}

/* --- steps --- */

static uint64_t next_position(void)
{
	uint64_t high = next_octet();

	return high << 9;
}

static uint32_t next_count(void)
{
	return 1 + next_octet() % 32 * 256;
}

/* The registered half, or the other one */
static uint8_t *next_buffer(uint8_t *buffer)
{
	return buffer + (next_octet() & 1 ? 0 : BUFFER);
}

/* Close and open the file, which has another mtime by now */
static void reopen(struct nfsrdma_file *file)
{
	const attr3 attr = { .mtime = { .nsec = version } };

	if (!file->cached)
		return;
	cache_close(&session, file);
	cache_open(&session, file, &attr);
}

static void step(struct nfsrdma_file *file, uint8_t *buffer)
{
	struct nfsrdma_completion done[4];
	uint32_t count, n = 0, i;
	uint8_t message[256], *to, *buffers[4];
	uint64_t positions[4];
	ssize_t got;

	switch (next_octet() % STEPS) {
	case STEP_NOTICE:
		count = next_octet() % (NOTICE_ROOM + 1);
		for (i = 0; i < count; i++)
			message[i] = next_octet();
		deliver(1, message, count);
		break;
	case STEP_READ:
		count = next_count();
		to = next_buffer(buffer);
		positions[0] = next_position();
		got = nfsrdma_pread(file, to, count, positions[0]);
		check(got >= 0 && got <= count);
		compare(to, positions[0], got);
		break;
	case STEP_BATCH:
		for (i = 0; i < 4; i++) {
			count = next_count();
			to = next_buffer(buffer) + 8192 * i;
			positions[i] = next_position();
			buffers[i] = to;
			n += !nfsrdma_prepare_read(file, to, count, positions[i], i);
		}
		check(nfsrdma_submit(&session) == (int)n);
		check(nfsrdma_wait(&session, done, 4, n, -1) == (int)n);
		for (i = 0; i < n; i++)
			check(done[i].result >= 0 && done[i].result <= 32 * 256);
		for (i = 0; i < n; i++)
			compare(buffers[done[i].user_data], positions[done[i].user_data], done[i].result);
		break;
	case STEP_STATUS:
		status = next_octet();
		break;
	case STEP_TIME:
		milliseconds += next_octet() * 300;
		break;
	case STEP_CHANGE:
		version++;
		reopen(file);
		break;
	case STEP_TRUNCATE:
		references_drop_file(&session.optimist->references, &file->fh);
		break;
	}
	if (session.optimist->link != LINK_UP)
		join();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct inode inode = { .fh = { 4, "file" }, .users = 1 };
	struct nfsrdma_file file = {
		.session = &session, .fh = inode.fh, .inode = &inode, .users = 1,
		.flags = O_RDONLY | NFSRDMA_OPTIMISTIC,
	};
	uint8_t *buffer;

	if (size > 1024)
		return 0;
	/* the second half is not registered */
	buffer = calloc(2, BUFFER);
	check(buffer);
	input = data;
	left = size;
	open_session();
	region.addr = buffer;
	session.regions = &region;
	if (next_octet() & 1) {
		const attr3 attr = {};

		cache_open(&session, &file, &attr);
	}
	while (left)
		step(&file, buffer);
	check(file.users == 1 && !region.users);
	if (file.cached)
		cache_close(&session, &file);
	free(inode.cached);
	close_session();
	optimist_free(&session);
	cache_free(&session);
	free(buffer);
	return 0;
}
