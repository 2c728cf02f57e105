# SPDX-License-Identifier: Apache-2.0
"""Where bpf/capture.c attaches, and the layout of rpcrdma's structures that it reads."""

from __future__ import annotations

import platform

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


# members of struct pt_regs with the first arguments of a function, or the array whose elements from
# a number on have them: PT_REGS_PARM1() and its like in tools/lib/bpf/bpf_tracing.h
_REGISTERS = {"x86_64": ("di", "si", "dx", "cx", "r8"), "riscv64": ("a0", "a1", "a2", "a3", "a4")}
_ARRAYS = {
    "aarch64": ("regs", 0), "loongarch64": ("regs", 4), "ppc64le": ("gpr", 3), "s390x": ("gprs", 2),
}  # fmt: skip


def defines(rpcrdma: Btf, machine: str = platform.machine()) -> list[str]:
    """Flags of the compiler with the layout.  KeyError with what this kernel does not have."""
    offsets = {name: rpcrdma.offset(*path) for name, path in _OFFSETS.items()}
    arguments = _arguments(rpcrdma, machine)
    xdr = rpcrdma.argument("svc_rdma_map_reply_msg", "xdr_buf")
    return [
        "-DWITH_RPCRDMA",
        *(f"-DOFFSET_{name}={offset}" for name, offset in offsets.items()),
        *(f"-DARGUMENT_{number}={arguments[number - 1]}" for number in (1, 2, 3)),
        f"-DARGUMENT_XDR={arguments[xdr]}",
        f"-DPAGE_STRUCT={rpcrdma.size('page')}",
    ]


def _arguments(types: Btf, machine: str) -> list[int]:
    """Offsets of a function's first five arguments in the registers at its entry."""
    if machine in _REGISTERS:
        return [types.offset("pt_regs", name) for name in _REGISTERS[machine]]
    if machine not in _ARRAYS:
        raise KeyError(f"no registers of {machine}")
    array, first = _ARRAYS[machine]
    start = types.offset("pt_regs", array)
    return [start + 8 * (first + number) for number in range(5)]
