# SPDX-License-Identifier: Apache-2.0
"""Where bpf/capture.c attaches, and the layout of rpcrdma's structures that it reads."""

from __future__ import annotations

from nfsrdma_tools.probes.btf import Btf

__all__ = ["FUNCTIONS", "OURS", "RAW", "defines"]

RAW = (
    "xprtrdma_post_send",
    "xprtrdma_reply",
    "xprtrdma_cb_call",
    "svcrdma_decode_rqst",
    "svcrdma_post_send",
)
"""Raw tracepoints; their arguments are the same in Linux 6.1, 6.12 and 7.2."""
FUNCTIONS = {
    "svc_rdma_recvfrom": "capture_recvfrom",
    "svc_rdma_result_payload": "capture_result",
    "svc_rdma_map_reply_msg": "capture_map_reply",
}
"""Kernel functions, and the program that runs at their entry."""
OURS = ("nfsrdma", "nfsrdma_message")
"""The trace event of nfsrdma: it has the address of the message."""
_OFFSETS = {
    "HEAD": ("xdr_buf", "head"),
    "TAIL": ("xdr_buf", "tail"),
    "PAGES": ("xdr_buf", "pages"),
    "PAGE_BASE": ("xdr_buf", "page_base"),
    "PAGE_LEN": ("xdr_buf", "page_len"),
    "RL_SLOT": ("rpcrdma_req", "rl_slot"),
    "RL_HDRBUF": ("rpcrdma_req", "rl_hdrbuf"),
    "RL_NUM_SGE": ("rpcrdma_req", "rl_wr", "num_sge"),
    "RR_HDRBUF": ("rpcrdma_rep", "rr_hdrbuf"),
    "RR_RQST": ("rpcrdma_rep", "rr_rqst"),
    "RQ_SND_BUF": ("rpc_rqst", "rq_snd_buf"),
    "RQ_RCV_BUF": ("rpc_rqst", "rq_rcv_buf"),
    "RQ_XPRT": ("rpc_rqst", "rq_xprt"),
    "RQ_TASK": ("rpc_rqst", "rq_task"),
    "RQ_NTRANS": ("rpc_rqst", "rq_ntrans"),
    "TK_PID": ("rpc_task", "tk_pid"),
    "TK_CLIENT": ("rpc_task", "tk_client"),
    "CL_CLID": ("rpc_clnt", "cl_clid"),
    "XPRT_ID": ("rpc_xprt", "id"),
    "XPRT_ADDR": ("rpc_xprt", "addr"),
    "RX_EP": ("rpcrdma_xprt", "rx_ep"),
    "RE_ID": ("rpcrdma_ep", "re_id"),
    "SRC_ADDR": ("rdma_cm_id", "route", "addr", "src_addr"),
    "SVC_RQ_XPRT": ("svc_rqst", "rq_xprt"),
    "SVC_RQ_XID": ("svc_rqst", "rq_xid"),
    "XPT_LOCAL": ("svc_xprt", "xpt_local"),
    "XPT_REMOTE": ("svc_xprt", "xpt_remote"),
    "RC_BYTE_LEN": ("svc_rdma_recv_ctxt", "rc_byte_len"),
    "RC_RECV_BUF": ("svc_rdma_recv_ctxt", "rc_recv_buf"),
    "SC_HDRBUF": ("svc_rdma_send_ctxt", "sc_hdrbuf"),
}


def defines(rpcrdma: Btf) -> list[str]:
    """Flags of the compiler with the layout.  KeyError with what this kernel does not have."""
    offsets = {name: rpcrdma.offset(*path) for name, path in _OFFSETS.items()}
    xdr = rpcrdma.argument("svc_rdma_map_reply_msg", "xdr_buf") + 1
    return [
        "-DWITH_RPCRDMA",
        *(f"-DOFFSET_{name}={offset}" for name, offset in offsets.items()),
        f"-DARGUMENT_XDR=PT_REGS_PARM{xdr}",
        f"-DPAGE_STRUCT={rpcrdma.size('page')}",
    ]
