/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trace events of the server, in system nfsrdma; observe/trace.h has the events that
 * client and server share, and the rules.
 *
 * xprt is the number of the connection, from 0x80000000 on. peer is the address
 * of the client. xid is in host byte order. Lengths are in bytes.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nfsrdma
#undef TRACE_SYSTEM_VAR
#define TRACE_SYSTEM_VAR nfsrdma_server

#if !defined(NFSRDMA_TRACE_SERVER_H) || defined(TRACE_HEADER_MULTI_READ)
#define NFSRDMA_TRACE_SERVER_H

#include <linux/tracepoint.h>

/* Only module.c, which creates the events, has to know what these are */
struct nfr_chunk;
struct nfr_header;
struct nfr_svc;
struct nfr_svc_req;

#define NFR_SVC_TEXT	40

/* Fields that identify the connection; every event has them */
#define nfr_observe_svc_fields							\
	__field(u32, xprt)						\
	__array(unsigned char, peer, sizeof(struct sockaddr_in6))
#define nfr_observe_svc_assign(svc)						\
	__entry->xprt = (svc)->conn->id_number;				\
	memcpy(__entry->peer, &(svc)->remote, sizeof(struct sockaddr_in6))

/* A connection was accepted; status is 0, or a negative errno on failure */
TRACE_EVENT(nfsrdma_svc_accept,
	TP_PROTO(const struct nfr_svc *svc, int status),
	TP_ARGS(svc, status),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(int, status) __field(u32, inline_send)
		__field(u32, inline_recv) __field(u32, grant) __field(u32, depth)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(svc);
		__entry->status = status;
		__entry->inline_send = svc->conn->send_size;
		__entry->inline_recv = svc->conn->recv_size;
		__entry->grant = svc->grant;
		__entry->depth = svc->conn->profile.reads_issued;
	),
	TP_printk("xprt=0x%08x peer=%pISc status=%d inline_send=%u inline_recv=%u grant=%u reads=%u",
		  __entry->xprt, __entry->peer, __entry->status, __entry->inline_send,
		  __entry->inline_recv, __entry->grant, __entry->depth)
);

/* A Call was received: how it is conveyed, and which chunks it provides for the Reply */
TRACE_EVENT(nfsrdma_svc_call,
	TP_PROTO(const struct nfr_svc_req *req),
	TP_ARGS(req),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, nomsg) __field(u32, by_inline)
		__field(u32, length) __field(u32, reads) __field(u32, writes)
		__field(u32, reply_room) __field(u32, asked) __field(u32, busy)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(req->svc);
		__entry->xid = req->head.xid;
		__entry->nomsg = req->head.proc == NFR_NOMSG;
		__entry->by_inline = req->rpc_length;
		__entry->length = req->length;
		__entry->reads = req->head.nreads;
		__entry->writes = req->head.nwrites;
		__entry->reply_room = req->head.reply ? nfr_wire_length(req->head.reply) : 0;
		__entry->asked = req->head.credits;
		__entry->busy = atomic_read(&req->svc->busy);
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x nomsg=%u inline=%u length=%u reads=%u writes=%u reply_room=%u asked=%u busy=%u",
		  __entry->xprt, __entry->peer, __entry->xid, __entry->nomsg,
		  __entry->by_inline, __entry->length, __entry->reads, __entry->writes,
		  __entry->reply_room, __entry->asked, __entry->busy)
);

/* A Write or Reply chunk is used: length bytes of the room that it provides */
TRACE_EVENT(nfsrdma_svc_chunk,
	TP_PROTO(const struct nfr_svc_req *req, const char *kind, const struct nfr_chunk *chunk,
		 u32 length),
	TP_ARGS(req, kind, chunk, length),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, segments) __field(u32, room)
		__field(u32, length) __array(char, kind, NFR_SVC_TEXT)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(req->svc);
		__entry->xid = req->head.xid;
		__entry->segments = chunk->nsegs;
		__entry->room = nfr_wire_length(chunk);
		__entry->length = length;
		strscpy(__entry->kind, kind, NFR_SVC_TEXT);
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x kind=%s segments=%u room=%u length=%u",
		  __entry->xprt, __entry->peer, __entry->xid, __entry->kind,
		  __entry->segments, __entry->room, __entry->length)
);

/* All RDMA Reads of a Call are complete */
TRACE_EVENT(nfsrdma_svc_read,
	TP_PROTO(const struct nfr_svc_req *req),
	TP_ARGS(req),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, length) __field(u32, pages)
		__field(u32, requests)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(req->svc);
		__entry->xid = req->head.xid;
		__entry->length = req->length;
		__entry->pages = req->npages;
		__entry->requests = req->count;
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x length=%u pages=%u requests=%u",
		  __entry->xprt, __entry->peer, __entry->xid, __entry->length,
		  __entry->pages, __entry->requests)
);

/* A Reply is about to be posted; length excludes the results in Write chunks */
TRACE_EVENT(nfsrdma_svc_reply,
	TP_PROTO(const struct nfr_svc_req *req, const struct nfr_header *reply, u32 length),
	TP_ARGS(req, reply, length),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, nomsg) __field(u32, length)
		__field(u32, results) __field(u32, granted) __field(u32, invalidates)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(req->svc);
		__entry->xid = reply->xid;
		__entry->nomsg = reply->proc == NFR_NOMSG;
		__entry->length = length;
		__entry->results = req->nresults;
		__entry->granted = reply->credits;
		__entry->invalidates = req->send.opcode == IB_WR_SEND_WITH_INV;
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x nomsg=%u length=%u results=%u granted=%u invalidates=%u",
		  __entry->xprt, __entry->peer, __entry->xid, __entry->nomsg, __entry->length,
		  __entry->results, __entry->granted, __entry->invalidates)
);

/* A Reply was posted whose memory the client reads (personality read-read) */
TRACE_EVENT(nfsrdma_svc_expose,
	TP_PROTO(const struct nfr_svc_req *req, u32 regions, u32 pages, u32 waiting),
	TP_ARGS(req, regions, pages, waiting),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, regions) __field(u32, pages)
		__field(u32, waiting)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(req->svc);
		__entry->xid = req->head.xid;
		__entry->regions = regions;
		__entry->pages = pages;
		__entry->waiting = waiting;
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x regions=%u pages=%u waiting=%u",
		  __entry->xprt, __entry->peer, __entry->xid, __entry->regions,
		  __entry->pages, __entry->waiting)
);

/*
 * The access to a Reply ends, because the client is done or after a timeout; a stray
 * RDMA_DONE names no Reply
 */
TRACE_EVENT(nfsrdma_svc_done,
	TP_PROTO(const struct nfr_svc *svc, u32 xid, u32 waiting, const char *why),
	TP_ARGS(svc, xid, waiting, why),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, waiting)
		__array(char, why, NFR_SVC_TEXT)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(svc);
		__entry->xid = xid;
		__entry->waiting = waiting;
		strscpy(__entry->why, why, NFR_SVC_TEXT);
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x waiting=%u %s", __entry->xprt,
		  __entry->peer, __entry->xid, __entry->waiting, __entry->why)
);

/*
 * A READ was answered without an nfsd thread, or has to wait for one; length is that of the data,
 * and 0 if nfsd has to answer
 */
TRACE_EVENT(nfsrdma_svc_threadless,
	TP_PROTO(const struct nfr_svc *svc, u32 xid, u64 position, u32 length,
		 const char *result),
	TP_ARGS(svc, xid, position, length, result),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, length)
		__field(u64, position) __array(char, result, NFR_SVC_TEXT)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(svc);
		__entry->xid = xid;
		__entry->length = length;
		__entry->position = position;
		strscpy(__entry->result, result, NFR_SVC_TEXT);
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x position=%llu length=%u %s", __entry->xprt,
		  __entry->peer, __entry->xid, __entry->position, __entry->length,
		  __entry->result)
);

/* A client may read an extent of a file (personality optimistic) */
TRACE_EVENT(nfsrdma_svc_grant,
	TP_PROTO(const struct nfr_svc *svc, u32 handle, u64 position, u32 length),
	TP_ARGS(svc, handle, position, length),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, handle) __field(u32, length)
		__field(u64, position)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(svc);
		__entry->handle = handle;
		__entry->length = length;
		__entry->position = position;
	),
	TP_printk("xprt=0x%08x peer=%pISc handle=0x%08x position=%llu length=%u", __entry->xprt,
		  __entry->peer, __entry->handle, __entry->position, __entry->length)
);

/* The client may not read the extent any more: its key is invalid */
TRACE_EVENT(nfsrdma_svc_revoke,
	TP_PROTO(const struct nfr_svc *svc, u32 handle, u64 position, const char *why),
	TP_ARGS(svc, handle, position, why),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, handle) __field(u64, position)
		__array(char, why, NFR_SVC_TEXT)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(svc);
		__entry->handle = handle;
		__entry->position = position;
		strscpy(__entry->why, why, NFR_SVC_TEXT);
	),
	TP_printk("xprt=0x%08x peer=%pISc handle=0x%08x position=%llu %s", __entry->xprt,
		  __entry->peer, __entry->handle, __entry->position, __entry->why)
);

/* A callback was sent to the client */
TRACE_EVENT(nfsrdma_svc_callback,
	TP_PROTO(const struct nfr_svc *svc, u32 xid, u32 length),
	TP_ARGS(svc, xid, length),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(u32, length) __field(u32, inflight)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(svc);
		__entry->xid = xid;
		__entry->length = length;
		__entry->inflight = atomic_read(&svc->first->callbacks_inflight);
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x length=%u inflight=%u", __entry->xprt,
		  __entry->peer, __entry->xid, __entry->length, __entry->inflight)
);

/* A message was rejected or dropped */
TRACE_EVENT(nfsrdma_svc_error,
	TP_PROTO(const struct nfr_svc *svc, u32 xid, const char *what, int status),
	TP_ARGS(svc, xid, what, status),
	TP_STRUCT__entry(
		nfr_observe_svc_fields __field(u32, xid) __field(int, status)
		__array(char, what, NFR_SVC_TEXT)
	),
	TP_fast_assign(
		nfr_observe_svc_assign(svc);
		__entry->xid = xid;
		__entry->status = status;
		strscpy(__entry->what, what, NFR_SVC_TEXT);
	),
	TP_printk("xprt=0x%08x peer=%pISc xid=0x%08x status=%d %s", __entry->xprt,
		  __entry->peer, __entry->xid, __entry->status, __entry->what)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH observe
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_server
#include <trace/define_trace.h>
