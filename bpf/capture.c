/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Messages of RPC-over-RDMA, for nfsrdma capture: transport header, inline part
 * and the first bytes of data, of each Send and receive of rpcrdma and nfsrdma.
 *
 * Trace event records have no pointers to messages, so these are raw
 * tracepoints, whose arguments are the kernel's structures. capture/probes.py
 * reads their layout from the kernel's type information and defines it:
 * OFFSET_* are offsets, ARGUMENT_* those of a function's arguments in its
 * registers.
 *
 * A message is one to six records of the ring: one per part of its buffers, and
 * one that ends it. Each counts those of its message, and capture_numbers counts
 * the messages: readers see exactly how many lack a record because the ring was
 * full.
 */

/*
 * capture/probes.py defines SNAP, a power of two: bytes per part; DATA: whether to copy the first
 * page of data in chunks
 */
#define ADDRESS		28
#define MOST_PAGES	2

/* capture/probes.py has the same names in the same order */
enum origin {
	CALL_SENT, REPLY_RECEIVED, CALLBACK_RECEIVED, CALL_RECEIVED, REPLY_SENT, RESULT,
	MESSAGE_SENT, MESSAGE_RECEIVED
};

#define ORIGINS		(MESSAGE_RECEIVED + 1)

enum part { WHOLE, HEAD, PAGES, TAIL };

struct part_record {
	u64 time;		/* CLOCK_MONOTONIC, ns */
	u64 message;		/* number of the message: CPU, origin and count */
	u32 origin;
	u32 part;
	u32 last;		/* no part follows */
	u32 at;			/* of these bytes in the part */
	u32 total;		/* bytes of the part */
	u32 captured;		/* bytes in this record */
	u32 client;		/* sunrpc's numbers */
	u32 task;
	u32 transport;
	u32 transmissions;
	u32 xid;		/* RESULT: as on the wire */
	u32 position;		/* RESULT: of a result in the Reply */
	u32 records;		/* of this message, up to this one */
	u32 reserved;
	unsigned char local[ADDRESS];	/* struct sockaddr_in or sockaddr_in6 */
	unsigned char peer[ADDRESS];
	unsigned char bytes[SNAP * 2];	/* half is used: the verifier sees a mask as the bound */
};

/* An argument of the function whose entry the program runs at */
#define ARGUMENT(ctx, offset)	(*(u64 *)((char *)(ctx) + (offset)))

/* A function for a raw tracepoint; capture/probes.py attaches it where the event exists */
#define RAW(event)	int capture_raw_##event(struct bpf_raw_tracepoint_args *ctx)

#define RECORD_HEAD	(sizeof(struct part_record) - SNAP * 2)

BPF_RINGBUF_OUTPUT(capture_ring, RING_PAGES);
/*
 * By origin: the kernel does not run a program inside itself on one processor, but
 * another program may run there in between, where the kernel may be preempted.
 */
BPF_PERCPU_ARRAY(capture_scratch, struct part_record, ORIGINS);
/* messages that began */
BPF_PERCPU_ARRAY(capture_numbers, u64, ORIGINS);
/* transport of the request that a thread of nfsd receives */
BPF_TABLE("lru_hash", u64, u64, capture_threads, TASK_SLOTS);

/* the set of contexts of Sends whose Reply has been captured */
BPF_TABLE("lru_hash", u64, u8, capture_sends, TASK_SLOTS);

static __always_inline u64 pointer_at(u64 base, u32 offset)
{
	u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(base + offset));
	return value;
}

static __always_inline u32 word_at(u64 base, u32 offset)
{
	u32 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(base + offset));
	return value;
}

static __always_inline struct part_record *capture_begin(u32 origin)
{
	struct part_record *record = capture_scratch.lookup(&origin);
	u64 *number = capture_numbers.lookup(&origin);

	if (!record || !number)
		return NULL;
	__builtin_memset(record, 0, RECORD_HEAD);
	record->time = bpf_ktime_get_ns();
	record->message = (u64)bpf_get_smp_processor_id() << 48 | (u64)origin << 40;
	record->message |= ++*number;
	record->origin = origin;
	return record;
}

static __always_inline void capture_submit(struct part_record *record)
{
	u32 size = record->captured;

	/* the compiler knows the bound, but the verifier has to see it in the code */
	asm volatile("" : "+r"(size));
	size &= SNAP * 2 - 1;
	record->records++;
	/* the reader looks at the ring on its own time: to wake it costs more than the record */
	capture_ring.ringbuf_output(record, RECORD_HEAD + size, BPF_RB_NO_WAKEUP);
}

/* Submit @length bytes at @address as bytes @at of a part that has @total bytes */
static __always_inline void capture_bytes(struct part_record *record, u32 part, u64 address,
					  u32 at, u32 length, u32 total)
{
	u32 size = length < SNAP ? length : SNAP;

	record->part = part;
	record->at = at;
	record->total = total;
	asm volatile("" : "+r"(size));
	size &= SNAP * 2 - 1;
	if (!address || bpf_probe_read_kernel(record->bytes, size, (void *)address))
		size = 0;
	record->captured = size;
	capture_submit(record);
}

static __always_inline void capture_vector(struct part_record *record, u32 part, u64 vector)
{
	/* struct kvec */
	u32 length = word_at(vector, 8);

	if (length)
		capture_bytes(record, part, pointer_at(vector, 0), 0, length, length);
}

static __always_inline void capture_end(struct part_record *record)
{
	record->last = 1;
	record->captured = 0;
	record->total = 0;
	capture_submit(record);
}

#ifdef WITH_RPCRDMA
/* Submit the first pages of a struct xdr_buf, if memory of pages can be found */
static __always_inline void capture_pages(struct part_record *record, u64 xdr, u32 most)
{
	u32 total = word_at(xdr, OFFSET_PAGE_LEN), base = word_at(xdr, OFFSET_PAGE_BASE);
	u64 pages = pointer_at(xdr, OFFSET_PAGES), address = 0;
	u32 at = 0, length, offset;

	if (!total)
		return;
#pragma unroll
	for (u32 n = 0; n < MOST_PAGES; n++) {
		u64 page = pointer_at(pages, ((base >> PAGE_BITS) + n) * 8);

		if (n >= most || at >= total)
			break;
		offset = n ? 0 : base & PAGE_REST;
		length = PAGE_REST + 1 - offset;
		if (length > total - at)
			length = total - at;
#ifdef VMEMMAP
		address = (page - pointer_at(VMEMMAP, 0)) / PAGE_STRUCT << PAGE_BITS;
		address += pointer_at(PAGE_OFFSET_BASE, 0) + offset;
#endif
		capture_bytes(record, PAGES, page ? address : 0, at, length, total);
		at += length;
	}
	if (!most)
		capture_bytes(record, PAGES, 0, 0, 0, total);
}

/*
 * Pages to copy of a Call with this header.  Behind a Read list they are data, unless its position
 * is zero: then the chunk conveys the message.
 */
static __always_inline u32 call_pages(u64 header)
{
	/* whether there is an entry, and its position */
	u32 list[2] = { 0, 0 };

	bpf_probe_read_kernel(list, sizeof(list), (void *)(header + 16));
	return list[0] && list[1] ? DATA : MOST_PAGES;
}

/*
 * Pages to copy of a Reply with this header.  They are data if it has one Write chunk that is not
 * empty; with several chunks, they have the message between the data, too.
 */
static __always_inline u32 reply_pages(u64 header)
{
	/* no Read list; whether there is a Write chunk, its segments, and the first one's length */
	u32 list[5] = { 0, 0, 0, 0, 0 };

	bpf_probe_read_kernel(list, sizeof(list), (void *)(header + 16));
	if (list[0] || !list[1] || !list[4])
		return MOST_PAGES;
	return word_at(header, 28 + 16 * (bpf_ntohl(list[2]) & 0xff)) ? MOST_PAGES : DATA;
}

static __always_inline void capture_xdr(struct part_record *record, u64 xdr, u32 pages)
{
	capture_vector(record, HEAD, xdr + OFFSET_HEAD);
	capture_pages(record, xdr, pages);
	capture_vector(record, TAIL, xdr + OFFSET_TAIL);
}

/* Fill in the numbers of a request, and the addresses of its transport */
static __always_inline void capture_request(struct part_record *record, u64 rqst)
{
	u64 xprt = pointer_at(rqst, OFFSET_RQ_XPRT), task = pointer_at(rqst, OFFSET_RQ_TASK);
	u64 client = pointer_at(task, OFFSET_TK_CLIENT);
	u64 endpoint = pointer_at(xprt, OFFSET_RX_EP), id = pointer_at(endpoint, OFFSET_RE_ID);

	record->transport = word_at(xprt, OFFSET_XPRT_ID);
	record->task = word_at(task, OFFSET_TK_PID) & 0xffff;
	record->client = word_at(client, OFFSET_CL_CLID);
	record->transmissions = word_at(rqst, OFFSET_RQ_NTRANS);
	bpf_probe_read_kernel(record->local, ADDRESS, (void *)(id + OFFSET_SRC_ADDR));
	bpf_probe_read_kernel(record->peer, ADDRESS, (void *)(xprt + OFFSET_XPRT_ADDR));
}

static __always_inline void capture_server(struct part_record *record, u64 transport)
{
	bpf_probe_read_kernel(record->local, ADDRESS, (void *)(transport + OFFSET_XPT_LOCAL));
	bpf_probe_read_kernel(record->peer, ADDRESS, (void *)(transport + OFFSET_XPT_REMOTE));
}

/* --- rpcrdma, client --- */

/*
 * Submit a Call. If its message is one element of the Send, behind that of the header, rpcrdma has
 * copied pages and tail behind the head, over the memory where the tail was. Without a tail, data
 * in a Read list leave one element, too.
 */
static __always_inline void capture_call(struct part_record *record, u64 req, u64 xdr)
{
	u32 head = word_at(xdr, OFFSET_HEAD + 8), tail = word_at(xdr, OFFSET_TAIL + 8);
	u32 length = head + word_at(xdr, OFFSET_PAGE_LEN) + tail;
	u64 header = pointer_at(req, OFFSET_RL_HDRBUF + OFFSET_HEAD);

	if (tail && word_at(req, OFFSET_RL_NUM_SGE) == 2)
		capture_bytes(record, HEAD, pointer_at(xdr, OFFSET_HEAD), 0, length, length);
	else
		capture_xdr(record, xdr, call_pages(header));
}

/* struct rpcrdma_req */
RAW(xprtrdma_post_send)
{
	u64 req = ctx->args[0], rqst = req + OFFSET_RL_SLOT;
	struct part_record *record = capture_begin(CALL_SENT);

	if (!record)
		return 0;
	capture_request(record, rqst);
	capture_vector(record, WHOLE, req + OFFSET_RL_HDRBUF + OFFSET_HEAD);
	capture_call(record, req, rqst + OFFSET_RQ_SND_BUF);
	capture_end(record);
	return 0;
}

/* struct rpc_task, struct rpcrdma_rep, credits */
RAW(xprtrdma_reply)
{
	u64 rep = ctx->args[1], rqst = pointer_at(rep, OFFSET_RR_RQST);
	struct part_record *record = capture_begin(REPLY_RECEIVED);
	u64 xdr = rqst + OFFSET_RQ_RCV_BUF, message;
	u32 procedure = 0;

	if (!record)
		return 0;
	capture_request(record, rqst);
	capture_vector(record, WHOLE, rep + OFFSET_RR_HDRBUF + OFFSET_HEAD);
	message = pointer_at(rep, OFFSET_RR_HDRBUF + OFFSET_HEAD);
	bpf_probe_read_kernel(&procedure, 4, (void *)(message + 12));
	/* RDMA_NOMSG: the Reply is in the Reply chunk */
	if (procedure == bpf_htonl(1))
		capture_xdr(record, xdr, MOST_PAGES);
	else if (DATA)
		capture_pages(record, xdr, 1);
	capture_end(record);
	return 0;
}

/* struct rpcrdma_xprt, struct rpc_rqst: the RPC message only, without its transport header */
RAW(xprtrdma_cb_call)
{
	u64 rqst = ctx->args[1];
	struct part_record *record = capture_begin(CALLBACK_RECEIVED);

	if (!record)
		return 0;
	capture_request(record, rqst);
	capture_vector(record, HEAD, rqst + OFFSET_RQ_RCV_BUF + OFFSET_HEAD);
	capture_end(record);
	return 0;
}

/* --- rpcrdma, server --- */

int capture_recvfrom(void *ctx)
{
	u64 thread = bpf_get_current_pid_tgid();
	u64 transport = pointer_at(ARGUMENT(ctx, ARGUMENT_1), OFFSET_SVC_RQ_XPRT);

	capture_threads.update(&thread, &transport);
	return 0;
}

/* struct svc_rdma_recv_ctxt, the header, its length; before RDMA Reads */
RAW(svcrdma_decode_rqst)
{
	u64 thread = bpf_get_current_pid_tgid(), receive = ctx->args[0];
	u64 *transport = capture_threads.lookup(&thread);
	struct part_record *record;
	u32 length = word_at(receive, OFFSET_RC_BYTE_LEN);

	if (!transport)
		return 0;
	record = capture_begin(CALL_RECEIVED);
	if (!record)
		return 0;
	capture_server(record, *transport);
	capture_bytes(record, WHOLE, pointer_at(receive, OFFSET_RC_RECV_BUF), 0, length, length);
	capture_end(record);
	return 0;
}

/* A result is data that a Write chunk may convey: svc_rqst, position, length */
int capture_result(void *ctx)
{
	u64 rqst = ARGUMENT(ctx, ARGUMENT_1);
	struct part_record *record = capture_begin(RESULT);

	if (!record)
		return 0;
	capture_server(record, pointer_at(rqst, OFFSET_SVC_RQ_XPRT));
	record->xid = word_at(rqst, OFFSET_SVC_RQ_XID);
	record->position = ARGUMENT(ctx, ARGUMENT_2);
	record->total = ARGUMENT(ctx, ARGUMENT_3);
	record->last = 1;
	capture_submit(record);
	return 0;
}

/*
 * The transport and the context of a Send. The header is complete, and the Reply still has its
 * pages: the Send takes them before the event of the post.
 */
int capture_map_reply(void *ctx)
{
	u64 transport = ARGUMENT(ctx, ARGUMENT_1), send = ARGUMENT(ctx, ARGUMENT_2);
	u64 xdr = ARGUMENT(ctx, ARGUMENT_XDR);
	struct part_record *record = capture_begin(REPLY_SENT);
	u64 header = send + OFFSET_SC_HDRBUF + OFFSET_HEAD;
	u8 captured = 1;

	capture_sends.update(&send, &captured);
	if (!record)
		return 0;
	capture_server(record, transport);
	capture_vector(record, WHOLE, header);
	capture_xdr(record, xdr, reply_pages(pointer_at(header, 0)));
	capture_end(record);
	return 0;
}

/* struct svc_rdma_send_ctxt. An RDMA_ERROR has a header only, and no transport is known */
RAW(svcrdma_post_send)
{
	u64 send = ctx->args[0], thread = bpf_get_current_pid_tgid();
	u64 *transport = capture_threads.lookup(&thread);
	struct part_record *record;

	/* 0: the set had the context, so the Reply has been captured */
	if (!capture_sends.delete(&send) || !transport)
		return 0;
	record = capture_begin(REPLY_SENT);
	if (!record)
		return 0;
	capture_server(record, *transport);
	capture_vector(record, WHOLE, send + OFFSET_SC_HDRBUF + OFFSET_HEAD);
	capture_end(record);
	return 0;
}
#endif

#ifdef WITH_NFSRDMA
/* --- nfsrdma: a message is in one piece, and the event has its address --- */

TRACEPOINT_PROBE(nfsrdma, nfsrdma_message)
{
	struct part_record *record = capture_begin(args->sent ? MESSAGE_SENT : MESSAGE_RECEIVED);

	if (!record)
		return 0;
	record->transport = args->xprt;
	bpf_probe_read_kernel(record->local, ADDRESS, args->local);
	bpf_probe_read_kernel(record->peer, ADDRESS, args->peer);
	capture_bytes(record, WHOLE, args->data, 0, args->length, args->length);
	capture_end(record);
	return 0;
}
#endif
