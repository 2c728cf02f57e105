/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trace events of clients, connections and memory regions, in system nfsrdma.
 * Probes and scripts depend on them: names and fields are stable, and new
 * fields go at the end.
 *
 * xprt is the number of the transport, as in /sys/kernel/sunrpc. task and
 * client are sunrpc's numbers of an RPC. xid is the XID of the RPC in host byte
 * order; every event of an RPC has it. Lengths are in bytes.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nfsrdma

#if !defined(NFSRDMA_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define NFSRDMA_TRACE_H

#include <linux/tracepoint.h>

/* Only trace.c, which creates the events, has to know what these are */
struct ib_wc;
struct nfr_chunk;
struct nfr_conn;
struct nfr_mr;
struct nfr_req;
struct nfr_segment;
struct rpc_rqst;
struct rpc_xprt;

#define NFR_TRACE_TEXT	40

/* enum nfr_way */
#define nfr_show_way(way) \
	__print_symbolic(way, { 0, "inline" }, { 1, "chunk" }, { 2, "long" }, { 3, "lane" }, \
			 { 4, "padded" })

/*
 * A Call is marshaled: how it and its Reply are conveyed. If status is a
 * negative errno, it is not sent, and marshaled again later.
 */
TRACE_EVENT(nfsrdma_marshal,
	TP_PROTO(const struct nfr_conn *conn, const struct rpc_rqst *rqst, int call, int reply,
		 int status),
	TP_ARGS(conn, rqst, call, reply, status),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid) __field(u32, task)
		__field(u32, client) __field(u32, procedure) __field(u32, call)
		__field(u32, reply) __field(u32, call_length) __field(u32, call_data)
		__field(u32, reply_room) __field(u32, reply_data) __field(int, status)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = be32_to_cpu(rqst->rq_xid);
		__entry->task = rqst->rq_task->tk_pid;
		__entry->client = nfr_client_number(rqst);
		__entry->procedure = rqst->rq_task->tk_msg.rpc_proc->p_proc;
		__entry->call = call;
		__entry->reply = reply;
		__entry->call_length = rqst->rq_snd_buf.len;
		__entry->call_data = rqst->rq_snd_buf.page_len;
		__entry->reply_room = rqst->rq_rcv_buf.buflen;
		__entry->reply_data = rqst->rq_rcv_buf.page_len;
		__entry->status = status;
	),
	TP_printk("xprt=%u xid=0x%08x task=%u@%u procedure=%u call=%s length=%u data=%u reply=%s room=%u data=%u status=%d",
		  __entry->xprt, __entry->xid, __entry->task, __entry->client,
		  __entry->procedure, nfr_show_way(__entry->call), __entry->call_length,
		  __entry->call_data, nfr_show_way(__entry->reply), __entry->reply_room,
		  __entry->reply_data, __entry->status)
);

/* The inline part of a message was copied into one buffer */
TRACE_EVENT(nfsrdma_pullup,
	TP_PROTO(const struct rpc_rqst *rqst, u32 length),
	TP_ARGS(rqst, length),
	TP_STRUCT__entry(
		__field(u32, xid) __field(u32, task) __field(u32, client)
		__field(u32, length)
	),
	TP_fast_assign(
		__entry->xid = be32_to_cpu(rqst->rq_xid);
		__entry->task = rqst->rq_task->tk_pid;
		__entry->client = nfr_client_number(rqst);
		__entry->length = length;
	),
	TP_printk("xid=0x%08x task=%u@%u length=%u", __entry->xid, __entry->task,
		  __entry->client, __entry->length)
);

/* A chunk was added to the header of a Call; kind is read, position-zero, write or reply */
TRACE_EVENT(nfsrdma_chunk,
	TP_PROTO(const struct nfr_conn *conn, const struct rpc_rqst *rqst, const char *kind,
		 const struct nfr_chunk *chunk),
	TP_ARGS(conn, rqst, kind, chunk),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid) __field(u32, position)
		__field(u32, segments) __field(u32, length)
		__array(char, kind, NFR_TRACE_TEXT)
		__field(u32, task) __field(u32, client)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = be32_to_cpu(rqst->rq_xid);
		__entry->task = rqst->rq_task->tk_pid;
		__entry->client = nfr_client_number(rqst);
		__entry->position = chunk->position;
		__entry->segments = chunk->nsegs;
		__entry->length = nfr_wire_length(chunk);
		strscpy(__entry->kind, kind, NFR_TRACE_TEXT);
	),
	TP_printk("xprt=%u xid=0x%08x task=%u@%u kind=%s position=%u segments=%u length=%u",
		  __entry->xprt, __entry->xid, __entry->task, __entry->client, __entry->kind,
		  __entry->position, __entry->segments, __entry->length)
);

/* A segment of a chunk in the header of a Call */
TRACE_EVENT(nfsrdma_segment,
	TP_PROTO(const struct nfr_conn *conn, u32 xid, const char *kind,
		 const struct nfr_segment *segment),
	TP_ARGS(conn, xid, kind, segment),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid) __field(u32, handle)
		__field(u32, length)
		__field(u64, offset)
		__array(char, kind, NFR_TRACE_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = xid;
		__entry->handle = segment->handle;
		__entry->length = segment->length;
		__entry->offset = segment->offset;
		strscpy(__entry->kind, kind, NFR_TRACE_TEXT);
	),
	TP_printk("xprt=%u xid=0x%08x kind=%s handle=0x%08x length=%u offset=0x%llx",
		  __entry->xprt, __entry->xid, __entry->kind, __entry->handle,
		  __entry->length, __entry->offset)
);

/* State changes of a memory region */
DECLARE_EVENT_CLASS(nfsrdma_mr,
	TP_PROTO(const struct nfr_mr *mr),
	TP_ARGS(mr),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, handle) __field(u32, length)
		__field(u32, entries)
		__field(u64, offset)
		__field(u32, write)
	),
	TP_fast_assign(
		__entry->xprt = mr->pool->number;
		__entry->handle = mr->mr->rkey;
		__entry->length = mr->mr->length;
		__entry->entries = mr->entries;
		__entry->offset = mr->mr->iova;
		__entry->write = mr->direction == DMA_FROM_DEVICE;
	),
	TP_printk("xprt=%u handle=0x%08x length=%u entries=%u offset=0x%llx peer=%s",
		  __entry->xprt, __entry->handle, __entry->length, __entry->entries,
		  __entry->offset, __entry->write ? "writes" : "reads")
);

#define NFR_MR_EVENT(name)						\
	DEFINE_EVENT(nfsrdma_mr, name,					\
		TP_PROTO(const struct nfr_mr *mr),			\
		TP_ARGS(mr))

NFR_MR_EVENT(nfsrdma_mr_map);		/* mapped for DMA: new key, new address */
NFR_MR_EVENT(nfsrdma_mr_fastreg);	/* registration posted */
NFR_MR_EVENT(nfsrdma_mr_reuse);		/* still valid from an earlier Call */
NFR_MR_EVENT(nfsrdma_mr_localinv);	/* local invalidation posted */
NFR_MR_EVENT(nfsrdma_mr_remoteinv);	/* invalidated by the peer */
NFR_MR_EVENT(nfsrdma_mr_unmap);		/* unmapped, returned to the pool */

/* A message and the registrations of its MRs were posted */
TRACE_EVENT(nfsrdma_post,
	TP_PROTO(const struct nfr_conn *conn, u32 xid, u32 registrations, u32 length,
		 bool signaled),
	TP_ARGS(conn, xid, registrations, length, signaled),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid) __field(u32, registrations)
		__field(u32, length) __field(u32, signaled) __field(u32, inflight)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = xid;
		__entry->registrations = registrations;
		__entry->length = length;
		__entry->signaled = signaled;
		__entry->inflight = READ_ONCE(conn->inflight);
	),
	TP_printk("xprt=%u xid=0x%08x registrations=%u length=%u signaled=%u inflight=%u",
		  __entry->xprt, __entry->xid, __entry->registrations, __entry->length,
		  __entry->signaled, __entry->inflight)
);

/* A Reply is complete; length is that of the RPC message, or a negative errno */
TRACE_EVENT(nfsrdma_reply,
	TP_PROTO(const struct nfr_conn *conn, const struct nfr_req *req, int length),
	TP_ARGS(conn, req, length),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid) __field(u32, task)
		__field(u32, granted) __field(u32, by_inline) __field(u32, by_chunk)
		__field(int, length)
		__field(u32, client)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = be32_to_cpu(req->rqst.rq_xid);
		__entry->task = req->rqst.rq_task->tk_pid;
		__entry->client = nfr_client_number(&req->rqst);
		__entry->granted = conn->granted;
		__entry->by_inline = req->rpc_length;
		__entry->by_chunk = max(req->result, 0);
		__entry->length = length;
	),
	TP_printk("xprt=%u xid=0x%08x task=%u@%u length=%d inline=%u chunk=%u granted=%u",
		  __entry->xprt, __entry->xid, __entry->task, __entry->client, __entry->length,
		  __entry->by_inline, __entry->by_chunk, __entry->granted)
);

/* The server sent a callback */
TRACE_EVENT(nfsrdma_callback,
	TP_PROTO(const struct nfr_conn *conn, u32 xid, u32 length),
	TP_ARGS(conn, xid, length),
	TP_STRUCT__entry(__field(u32, xprt) __field(u32, xid) __field(u32, length)),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = xid;
		__entry->length = length;
	),
	TP_printk("xprt=%u xid=0x%08x length=%u", __entry->xprt, __entry->xid, __entry->length)
);

/* A message was rejected, or an operation failed */
TRACE_EVENT(nfsrdma_error,
	TP_PROTO(const struct nfr_conn *conn, u32 xid, const char *what, int status),
	TP_ARGS(conn, xid, what, status),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid)
		__field(int, status)
		__array(char, what, NFR_TRACE_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = xid;
		__entry->status = status;
		strscpy(__entry->what, what, NFR_TRACE_TEXT);
	),
	TP_printk("xprt=%u xid=0x%08x status=%d %s", __entry->xprt, __entry->xid,
		  __entry->status, __entry->what)
);

/* --- connections, of clients and servers --- */

/* A work request completed that was signaled or failed */
TRACE_EVENT(nfsrdma_completion,
	TP_PROTO(const struct nfr_conn *conn, const struct ib_wc *wc),
	TP_ARGS(conn, wc),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, status) __field(u32, vendor_error)
		__array(char, text, NFR_TRACE_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->status = wc->status;
		__entry->vendor_error = wc->status ? wc->vendor_err : 0;
		strscpy(__entry->text, ib_wc_status_msg(wc->status), NFR_TRACE_TEXT);
	),
	TP_printk("xprt=%u status=%u (%s) vendor_error=0x%x", __entry->xprt, __entry->status,
		  __entry->text, __entry->vendor_error)
);

/*
 * A message is about to be posted, or was received; data is where it is in memory, as long as the
 * event lasts. Messages of lanes, whose data are in pages, and notices have no such event.
 */
TRACE_EVENT(nfsrdma_message,
	TP_PROTO(const struct nfr_conn *conn, const void *data, u32 length, bool sent),
	TP_ARGS(conn, data, length, sent),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, length)
		__field(u64, data)
		__field(u32, sent)
		__array(unsigned char, local, sizeof(struct sockaddr_in6))
		__array(unsigned char, peer, sizeof(struct sockaddr_in6))
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->length = length;
		__entry->data = (unsigned long)data;
		__entry->sent = sent;
		memcpy(__entry->local, &conn->id->route.addr.src_addr,
		       sizeof(struct sockaddr_in6));
		memcpy(__entry->peer, &conn->id->route.addr.dst_addr,
		       sizeof(struct sockaddr_in6));
	),
	TP_printk("xprt=0x%08x peer=%pISpc sent=%u length=%u", __entry->xprt, __entry->peer,
		  __entry->sent, __entry->length)
);

/* The peer changed the number of credits that it grants */
TRACE_EVENT(nfsrdma_credit,
	TP_PROTO(const struct nfr_conn *conn, u32 granted),
	TP_ARGS(conn, granted),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, before) __field(u32, granted)
		__field(u32, inflight)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->before = conn->granted;
		__entry->granted = granted;
		__entry->inflight = READ_ONCE(conn->inflight);
	),
	TP_printk("xprt=%u before=%u granted=%u inflight=%u", __entry->xprt, __entry->before,
		  __entry->granted, __entry->inflight)
);

/* RDMA Reads were posted for a Reply that stayed with the server (personality read-read) */
TRACE_EVENT(nfsrdma_fetch,
	TP_PROTO(const struct nfr_conn *conn, const struct nfr_req *req, u32 position, u32 length,
		 u32 requests),
	TP_ARGS(conn, req, position, length, requests),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid) __field(u32, task)
		__field(u32, client) __field(u32, position) __field(u32, length)
		__field(u32, requests)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = be32_to_cpu(req->rqst.rq_xid);
		__entry->task = req->rqst.rq_task->tk_pid;
		__entry->client = nfr_client_number(&req->rqst);
		__entry->position = position;
		__entry->length = length;
		__entry->requests = requests;
	),
	TP_printk("xprt=%u xid=0x%08x task=%u@%u position=%u length=%u requests=%u",
		  __entry->xprt, __entry->xid, __entry->task, __entry->client,
		  __entry->position, __entry->length, __entry->requests)
);

/* An RDMA_DONE was posted: the server may reuse the memory of its Reply */
TRACE_EVENT(nfsrdma_done,
	TP_PROTO(const struct nfr_conn *conn, u32 xid),
	TP_ARGS(conn, xid),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = xid;
	),
	TP_printk("xprt=%u xid=0x%08x", __entry->xprt, __entry->xid)
);

/* A READ was made by RDMA Read of the server's page cache; status is that of the completion */
TRACE_EVENT(nfsrdma_optimistic,
	TP_PROTO(const struct nfr_conn *conn, const struct rpc_rqst *rqst, u32 handle, u32 length,
		 u32 status),
	TP_ARGS(conn, rqst, handle, length, status),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, xid) __field(u32, handle) __field(u32, length)
		__field(u32, status) __field(u32, task) __field(u32, client)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->xid = be32_to_cpu(rqst->rq_xid);
		__entry->task = rqst->rq_task->tk_pid;
		__entry->client = nfr_client_number(rqst);
		__entry->handle = handle;
		__entry->length = length;
		__entry->status = status;
	),
	TP_printk("xprt=%u xid=0x%08x task=%u@%u handle=0x%08x length=%u status=%u",
		  __entry->xprt, __entry->xid, __entry->task, __entry->client, __entry->handle,
		  __entry->length, __entry->status)
);

/* A connection attempt ended; status is 0 or a negative errno */
TRACE_EVENT(nfsrdma_connect,
	TP_PROTO(const struct nfr_conn *conn, const struct rpc_xprt *xprt, u32 mr_depth,
		 int status),
	TP_ARGS(conn, xprt, mr_depth, status),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, inline_send) __field(u32, inline_recv)
		__field(u32, mr_depth)
		__field(int, status)
		__array(unsigned char, address, sizeof(struct sockaddr_in6))
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->inline_send = conn->send_size;
		__entry->inline_recv = conn->recv_size;
		__entry->mr_depth = mr_depth;
		__entry->status = status;
		memcpy(__entry->address, &xprt->addr, sizeof(struct sockaddr_in6));
	),
	TP_printk("xprt=%u peer=%pISpc status=%d inline_send=%u inline_recv=%u mr_depth=%u",
		  __entry->xprt, __entry->address, __entry->status, __entry->inline_send,
		  __entry->inline_recv, __entry->mr_depth)
);

/* An attempt to connect a lane ended; units limits data per message, in units of 4096 bytes */
TRACE_EVENT(nfsrdma_lane,
	TP_PROTO(const struct nfr_conn *conn, u32 units, int status),
	TP_ARGS(conn, units, status),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, generation) __field(u32, units)
		__field(int, status)
		__array(char, reason, NFR_TRACE_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->generation = conn->generation;
		__entry->units = units;
		__entry->status = status;
		strscpy(__entry->reason, status ? READ_ONCE(conn->reason) : "none",
			NFR_TRACE_TEXT);
	),
	TP_printk("xprt=%u generation=%u units=%u status=%d reason=%s", __entry->xprt,
		  __entry->generation, __entry->units, __entry->status, __entry->reason)
);

/* A lane ended */
TRACE_EVENT(nfsrdma_lane_end,
	TP_PROTO(const struct nfr_conn *conn, u32 xid),
	TP_ARGS(conn, xid),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, generation) __field(u32, xid)
		__array(char, reason, NFR_TRACE_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->generation = conn->generation;
		__entry->xid = xid;
		strscpy(__entry->reason, READ_ONCE(conn->reason), NFR_TRACE_TEXT);
	),
	TP_printk("xprt=%u generation=%u xid=0x%08x reason=%s", __entry->xprt,
		  __entry->generation, __entry->xid, __entry->reason)
);

/* A connection broke or was closed */
TRACE_EVENT(nfsrdma_disconnect,
	TP_PROTO(const struct nfr_conn *conn, const char *reason),
	TP_ARGS(conn, reason),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, inflight)
		__array(char, reason, NFR_TRACE_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->inflight = READ_ONCE(conn->inflight);
		strscpy(__entry->reason, reason, NFR_TRACE_TEXT);
	),
	TP_printk("xprt=%u inflight=%u reason=%s", __entry->xprt, __entry->inflight,
		  __entry->reason)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH observe
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
