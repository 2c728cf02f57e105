/* SPDX-License-Identifier: GPL-2.0-only */
/* Trace events of client and server connections, in system nfsrdma; observe/trace.h has the rules. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM nfsrdma
#undef TRACE_SYSTEM_VAR
#define TRACE_SYSTEM_VAR nfsrdma_connection

#if !defined(NFSRDMA_TRACE_CONNECTION_H) || defined(TRACE_HEADER_MULTI_READ)
#define NFSRDMA_TRACE_CONNECTION_H

#include <linux/sunrpc/xprt.h>
#include <linux/tracepoint.h>

#include "connection/connection.h"

#define NFR_CONNECTION_TEXT	40

/* A work request completed that was signaled or failed */
TRACE_EVENT(nfsrdma_completion,
	TP_PROTO(const struct nfr_conn *conn, const struct ib_wc *wc),
	TP_ARGS(conn, wc),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, status) __field(u32, vendor_error)
		__array(char, text, NFR_CONNECTION_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->status = wc->status;
		__entry->vendor_error = wc->status ? wc->vendor_err : 0;
		strscpy(__entry->text, ib_wc_status_msg(wc->status), NFR_CONNECTION_TEXT);
	),
	TP_printk("xprt=%u status=%u (%s) vendor_error=0x%x", __entry->xprt, __entry->status,
		  __entry->text, __entry->vendor_error)
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

/* A connection attempt ended; status is 0 or a negative errno */
TRACE_EVENT(nfsrdma_connect,
	TP_PROTO(const struct nfr_conn *conn, const struct rpc_xprt *xprt, int status),
	TP_ARGS(conn, xprt, status),
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
		__entry->mr_depth = conn->pool.depth;
		__entry->status = status;
		memcpy(__entry->address, &xprt->addr, sizeof(struct sockaddr_in6));
	),
	TP_printk("xprt=%u peer=%pISpc status=%d inline_send=%u inline_recv=%u mr_depth=%u",
		  __entry->xprt, __entry->address, __entry->status, __entry->inline_send,
		  __entry->inline_recv, __entry->mr_depth)
);

/* A connection broke or was closed */
TRACE_EVENT(nfsrdma_disconnect,
	TP_PROTO(const struct nfr_conn *conn, const char *reason),
	TP_ARGS(conn, reason),
	TP_STRUCT__entry(
		__field(u32, xprt) __field(u32, inflight)
		__array(char, reason, NFR_CONNECTION_TEXT)
	),
	TP_fast_assign(
		__entry->xprt = conn->id_number;
		__entry->inflight = READ_ONCE(conn->inflight);
		strscpy(__entry->reason, reason, NFR_CONNECTION_TEXT);
	),
	TP_printk("xprt=%u inflight=%u reason=%s", __entry->xprt, __entry->inflight, __entry->reason)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH observe
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace_connection
#include <trace/define_trace.h>
