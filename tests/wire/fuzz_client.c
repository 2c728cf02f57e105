// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Any reply at all to the calls of libnfsrdma: libFuzzer's target, and drive.c's.
 *
 * The library runs over a device that answers each message with the input. Its first byte selects the call of the
 * library, its second one what the device corrects in the reply: PATCH_XID and so on. A reply that the library
 * drops is followed by the end of the connection, and no connection is made again. The clock goes on by a second
 * each time that the library reads it.
 */
#include "compound.h"
#include "fuzz_library.h"

enum { PATCH_XID = 1, PATCH_RPC_XID = 2, PATCH_SEGMENTS = 4, REGISTERED = 8, NFS4 = 16 };

static const uint8_t *input;
static size_t input_size;
static uint32_t flags, answers;
static uint64_t receive_ids[256];
static uint32_t first_receive, nreceives;
static uint8_t call_bytes[65536];
static time_t seconds;

/* --- what the library asks of the system --- */

int fuzz_clock(clockid_t clock, struct timespec *now)
{
	(void)clock;
	*now = (struct timespec){ .tv_sec = seconds++ };
	return 0;
}

int fuzz_epoll(int fd, struct epoll_event *events, int most, int timeout)
{
	(void)fd, (void)events, (void)most, (void)timeout;
	return 0;
}

/* --- the device --- */

static int post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)bad;
	for (; wr; wr = wr->next) {
		check(nreceives < 256);
		receive_ids[(first_receive + nreceives++) % 256] = wr->wr_id;
	}
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp, (void)bad;
	for (; wr; wr = wr->next) {
		check(wr->sg_list->length <= session.send_size);
		memcpy(call_bytes, (void *)wr->sg_list->addr, wr->sg_list->length);
		answers++;
	}
	return 0;
}

static void patch(struct nfr_chunk *chunk, const struct nfr_chunk *of_call)
{
	u32 i;

	for (i = 0; i < chunk->nsegs && i < of_call->nsegs; i++) {
		chunk->segs[i].handle = of_call->segs[i].handle;
		chunk->segs[i].offset = of_call->segs[i].offset;
	}
}

/* Chunks of the reply at the addresses of those of the Call */
static void patch_segments(uint8_t *reply, size_t size)
{
	struct nfr_chunk chunks[8], called[8];
	struct nfr_segment segs[8], called_segs[8];
	struct nfr_space space = { chunks, 8, segs, 8 }, call_space = { called, 8, called_segs, 8 };
	struct nfr_header head, call;
	u32 i;

	if (nfr_wire_decode(&call, &call_space, call_bytes, session.send_size) < 0 ||
	    nfr_wire_decode(&head, &space, reply, size) < 0 || head.proc == NFR_ERROR)
		return;
	for (i = 0; i < head.nwrites && i < call.nwrites; i++)
		patch(&head.writes[i], &call.writes[i]);
	if (head.reply && call.reply)
		patch(head.reply, call.reply);
	nfr_wire_encode(&head, reply, size);
}

static void make_reply(uint8_t *reply)
{
	struct nfr_chunk chunks[8];
	struct nfr_segment segs[8];
	struct nfr_space space = { chunks, 8, segs, 8 };
	struct nfr_header head;
	int length;

	memcpy(reply, input, input_size);
	if (flags & PATCH_XID && input_size >= 4)
		memcpy(reply, call_bytes, 4);
	if (flags & PATCH_SEGMENTS)
		patch_segments(reply, input_size);
	length = nfr_wire_decode(&head, &space, reply, input_size);
	if (flags & PATCH_RPC_XID && length > 0 && length + 4 <= (int)input_size)
		memcpy(reply + length, call_bytes, 4);
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc)
{
	uint64_t id;

	(void)cq, (void)most;
	*wc = (struct ibv_wc){ .status = IBV_WC_WR_FLUSH_ERR };
	if (!answers)
		return 1;
	answers--;
	check(nreceives);
	id = receive_ids[first_receive++ % 256];
	nreceives--;
	make_reply(memory_receive(&session, id));
	*wc = (struct ibv_wc){ .wr_id = id, .opcode = IBV_WC_RECV, .byte_len = input_size };
	return 1;
}

static struct ibv_context context = {
	.ops = { .poll_cq = poll_cq, .post_send = post_send, .post_recv = post_receive,
		 .req_notify_cq = notify },
};

/* --- the session --- */

static void open_session(void)
{
	static struct ibv_qp qp;

	memset(&session, 0, sizeof(session));
	session.options = (struct nfsrdma_options){
		.depth = 2, .inline_size = 1024, .timeout = 5000, .arena = 2 * BLOCK_BYTES,
		.version = flags & NFS4 ? 41 : 3,
	};
	check(!requests_allocate(&session) && !memory_allocate(&session));
	session.read_max = session.write_max = session.list_max = 32768;
	session.directory = strdup("/export");
	session.root = (fh3){ 4, strdup("root") };
	first_receive = nreceives = answers = 0;
	connected(&context, &qp);
	session.dialect = flags & NFS4 ? &nfs4_dialect : &nfs3_dialect;
	if (!(flags & NFS4))
		return;
	/* a session that exists; its loss makes the library ask for another one */
	check(!state_allocate(&session));
	session.nfs4.state = NFS4_READY;
	session.nfs4.complete = true;
	session.nfs4.nslots = 2;
}

static void use_data(const uint8_t *data, ssize_t size)
{
	volatile uint8_t sum = 0;
	ssize_t i;

	for (i = 0; i < size; i++)
		sum += data[i];
}

static void call(uint8_t which, struct nfsrdma_file *file, uint8_t *buffer)
{
	struct nfsrdma_completion done[4];
	struct nfsrdma_entry entry = {.size = sizeof(entry)};
	struct nfsrdma_dir *dir;
	struct nfsrdma_file *other;
	struct stat st;
	char text[4097];
	ssize_t n;
	int i;

	switch (which % 16) {
	case 0:
		nfsrdma_null(&session);
		break;
	case 1:
		nfsrdma_fstat(file, &st);
		break;
	case 2:
		nfsrdma_stat(&session, "a/../b", &st);
		break;
	case 3:
		n = nfsrdma_readlink(&session, "", text, sizeof(text));
		check(n < 0 || strlen(text) == (size_t)n);
		break;
	case 4:
		if (nfsrdma_opendir(&session, "", &dir))
			break;
		for (i = 0; i < 100 && nfsrdma_readdir(dir, &entry) == 1; i++)
			use_data((const uint8_t *)entry.name, strlen(entry.name));
		nfsrdma_closedir(dir);
		break;
	case 5:
		n = nfsrdma_pread(file, buffer, 512, 0);
		check(n <= 512);
		use_data(buffer, n);
		break;
	case 6:
		n = nfsrdma_pread(file, buffer, 20000, 0);
		check(n <= 20000);
		break;
	case 7:
		check(nfsrdma_pwrite(file, buffer, 512, 0) <= 512);
		break;
	case 8:
		check(nfsrdma_pwrite(file, buffer, 20000, 0) <= 20000);
		break;
	case 9:
		file->inode->writes++;
		nfsrdma_fsync(file);
		break;
	case 10:
		if (!nfsrdma_open(&session, "new", O_CREAT | O_EXCL | O_RDWR, 0600, &other))
			nfsrdma_close(other);
		break;
	case 11:
		check(!nfsrdma_prepare_read(file, buffer, 512, 0, 1));
		check(!nfsrdma_prepare_read(file, buffer + 512, 20000, 0, 2));
		check(nfsrdma_submit(&session) == 2);
		check(nfsrdma_wait(&session, done, 4, 2, -1) == 2);
		check(done[0].result <= 20000 && done[1].result <= 20000);
		break;
	case 12:
		nfsrdma_ftruncate(file, 16);
		break;
	case 13:
		nfsrdma_rename(&session, "a", "b");
		break;
	case 14:
		nfsrdma_unlink(&session, "a");
		break;
	case 15:
		nfsrdma_mkdir(&session, "a", 0700);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct inode inode = { .fh = { .length = 8 }, .users = 1 };
	struct nfsrdma_file file = {
		.session = &session, .fh = inode.fh, .inode = &inode, .flags = O_RDWR, .users = 1,
	};
	struct nfsrdma_region region = { .session = &session, .mr = &mr, .length = BUFFER };
	uint8_t *buffer;

	if (size < 2 || size - 2 > 1024)
		return 0;
	buffer = calloc(1, BUFFER);
	check(buffer);
	input = data + 2;
	input_size = size - 2;
	flags = data[1];
	open_session();
	region.addr = buffer;
	/* what a server keeps for a file that is open for writing */
	if (flags & NFS4) {
		check(!state_use(&session, &inode));
		inode.open->state = OPEN_HELD;
		inode.open->access = 3;
		file.opened = true;
	}
	if (flags & REGISTERED)
		session.regions = &region;
	call(data[0], &file, buffer);
	check(file.users == 1 && !region.users);
	close_session();
	free(inode.open);
	free(session.directory);
	free(session.root.fh3_val);
	free(buffer);
	return 0;
}

/* --- what the library links, and no input reaches --- */

int ibv_destroy_qp(struct ibv_qp *qp)
{
	(void)qp;
	return 0;
}
