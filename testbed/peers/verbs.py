# SPDX-License-Identifier: Apache-2.0
"""libibverbs and librdmacm by ctypes: the structures of infiniband/verbs.h and rdma/rdma_cma.h.

Python's own binding cannot set the private data of a connection, and its queue pairs cannot be
those of an rdma_cm id. Posting and polling are inline functions of verbs.h that call through a
table in the device's context; that table's order is part of the library's ABI.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

# enum ibv_wr_opcode
RDMA_WRITE, RDMA_WRITE_WITH_IMM, SEND, SEND_WITH_IMM, RDMA_READ, SEND_WITH_INV = 0, 1, 2, 3, 4, 9
# enum ibv_access_flags
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ = 1, 2, 4
# enum ibv_wc_opcode: that bit says it was a receive
RECEIVED = 128
# enum ibv_wc_flags
WITH_INVALIDATE = 8
SIGNALED = 2
RC = 2
# enum rdma_cm_event_type
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST, CONNECT_RESPONSE = 0, 2, 4, 5
REJECTED, ESTABLISHED, DISCONNECTED = 8, 9, 10
TIMEWAIT_EXIT = 15
PS_TCP = 0x0106
# what struct ibv_context_ops holds: pointers, in this order
_POLL_CQ, _REQ_NOTIFY, _POST_SEND, _POST_RECV = 11, 12, 25, 26


class Sge(Structure):
    _fields_ = (("addr", c_uint64), ("length", c_uint32), ("lkey", c_uint32))


class Mr(Structure):
    _fields_ = (
        *(("context", c_void_p), ("pd", c_void_p), ("addr", c_void_p), ("length", c_size_t)),
        *(("handle", c_uint32), ("lkey", c_uint32), ("rkey", c_uint32)),
    )


class SendWr(Structure):
    """The RDMA member of its union; ``rest`` is what other members need."""


SendWr._fields_ = (
    *(("wr_id", c_uint64), ("next", POINTER(SendWr)), ("sg_list", POINTER(Sge))),
    *(("num_sge", c_int), ("opcode", c_int), ("send_flags", c_uint32), ("imm", c_uint32)),
    *(("remote_addr", c_uint64), ("rkey", c_uint32), ("rest", c_ubyte * 68)),
)


class RecvWr(Structure):
    pass


RecvWr._fields_ = (
    *(("wr_id", c_uint64), ("next", POINTER(RecvWr)), ("sg_list", POINTER(Sge))),
    ("num_sge", c_int),
)


class Wc(Structure):
    _fields_ = (
        *(("wr_id", c_uint64), ("status", c_int), ("opcode", c_int), ("vendor_err", c_uint32)),
        *(("byte_len", c_uint32), ("imm", c_uint32), ("qp_num", c_uint32), ("src_qp", c_uint32)),
        *(("wc_flags", c_uint32), ("pkey_index", c_uint16), ("slid", c_uint16)),
        *(("sl", c_uint8), ("dlid_path_bits", c_uint8)),
    )


class QpInitAttr(Structure):
    _fields_ = (
        *(("qp_context", c_void_p), ("send_cq", c_void_p), ("recv_cq", c_void_p)),
        ("srq", c_void_p),
        *((name, c_uint32) for name in ("max_send_wr", "max_recv_wr", "max_send_sge")),
        *(("max_recv_sge", c_uint32), ("max_inline_data", c_uint32)),
        *(("qp_type", c_int), ("sq_sig_all", c_int)),
    )


class QpAttr(Structure):
    """Used fields of struct ibv_qp_attr: its first word and one byte further on."""

    _fields_ = (
        *(("qp_state", c_int), ("between", c_ubyte * 122)),
        *(("max_rd_atomic", c_uint8), ("rest", c_ubyte * 17)),
    )


class Qp(Structure):
    """Its beginning."""

    _fields_ = (("pointers", c_void_p * 6), ("handle", c_uint32), ("number", c_uint32))


class ConnParam(Structure):
    _fields_ = (
        ("private_data", c_void_p),
        *((name, c_uint8) for name in ("private_data_len", "responder_resources")),
        *((name, c_uint8) for name in ("initiator_depth", "flow_control", "retry_count")),
        *(("rnr_retry_count", c_uint8), ("srq", c_uint8), ("qp_num", c_uint32)),
    )


class CmId(Structure):
    """Its beginning."""

    _fields_ = (
        *(("verbs", c_void_p), ("channel", c_void_p), ("context", c_void_p), ("qp", c_void_p)),
    )


class CmEvent(Structure):
    _fields_ = (
        *(("id", POINTER(CmId)), ("listen_id", POINTER(CmId)), ("event", c_int)),
        *(("status", c_int), ("conn", ConnParam)),
    )


class Channel(Structure):
    """The beginning of an event channel of either library."""

    _fields_ = (("fd", c_int),)


class CompChannel(Structure):
    _fields_ = (("context", c_void_p), ("fd", c_int))


class SockaddrIn(Structure):
    _fields_ = (
        *(("family", c_uint16), ("port", c_ubyte * 2), ("address", c_ubyte * 4)),
        ("zero", c_ubyte * 8),
    )


class VerbsError(OSError):
    """A call of either library failed."""


def _library(name: str, functions: dict[str, tuple[Any, ...]]) -> ctypes.CDLL:
    library = ctypes.CDLL(name, use_errno=True)
    for function, (result, *arguments) in functions.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


def load() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """libibverbs and librdmacm."""
    ibv = {
        "ibv_alloc_pd": (c_void_p, c_void_p),
        "ibv_dealloc_pd": (c_int, c_void_p),
        "ibv_reg_mr": (POINTER(Mr), c_void_p, c_void_p, c_size_t, c_int),
        "ibv_dereg_mr": (c_int, POINTER(Mr)),
        "ibv_create_comp_channel": (POINTER(CompChannel), c_void_p),
        "ibv_destroy_comp_channel": (c_int, POINTER(CompChannel)),
        "ibv_create_cq": (c_void_p, c_void_p, c_int, c_void_p, POINTER(CompChannel), c_int),
        "ibv_destroy_cq": (c_int, c_void_p),
        "ibv_create_qp": (POINTER(Qp), c_void_p, POINTER(QpInitAttr)),
        "ibv_modify_qp": (c_int, POINTER(Qp), POINTER(QpAttr), c_int),
        "ibv_destroy_qp": (c_int, POINTER(Qp)),
        "ibv_get_cq_event": (c_int, POINTER(CompChannel), *[POINTER(c_void_p)] * 2),
        "ibv_ack_cq_events": (None, c_void_p, c_uint32),
        "ibv_wc_status_str": (c_char_p, c_int),
    }
    cm_id = POINTER(CmId)
    cma = {
        "rdma_create_event_channel": (POINTER(Channel),),
        "rdma_destroy_event_channel": (None, POINTER(Channel)),
        "rdma_create_id": (c_int, POINTER(Channel), POINTER(cm_id), c_void_p, c_int),
        "rdma_destroy_id": (c_int, cm_id),
        "rdma_bind_addr": (c_int, cm_id, POINTER(SockaddrIn)),
        "rdma_listen": (c_int, cm_id, c_int),
        "rdma_resolve_addr": (c_int, cm_id, *[POINTER(SockaddrIn)] * 2, c_int),
        "rdma_resolve_route": (c_int, cm_id, c_int),
        "rdma_create_qp": (c_int, cm_id, c_void_p, POINTER(QpInitAttr)),
        "rdma_destroy_qp": (None, cm_id),
        "rdma_connect": (c_int, cm_id, POINTER(ConnParam)),
        "rdma_accept": (c_int, cm_id, POINTER(ConnParam)),
        "rdma_reject": (c_int, cm_id, c_void_p, c_uint8),
        "rdma_disconnect": (c_int, cm_id),
        "rdma_init_qp_attr": (c_int, cm_id, POINTER(QpAttr), POINTER(c_int)),
        "rdma_establish": (c_int, cm_id),
        "rdma_get_cm_event": (c_int, POINTER(Channel), POINTER(POINTER(CmEvent))),
        "rdma_ack_cm_event": (c_int, POINTER(CmEvent)),
    }
    return _library("libibverbs.so.1", ibv), _library("librdmacm.so.1", cma)


def checked(result: Any, subject: str) -> Any:
    """A result that is not -1 and not a null pointer, or VerbsError."""
    if result is None or result == -1 or (hasattr(result, "contents") and not result):
        number = ctypes.get_errno()
        raise VerbsError(number, f"{subject}: {os.strerror(number)}")
    return result


class Ops:
    """Posting and polling, as the device's driver does it."""

    def __init__(self, context: int) -> None:
        # struct ibv_device *, then the table
        table = (c_size_t * 32).from_address(context + ctypes.sizeof(c_void_p))
        status = (c_int, c_void_p)
        self.poll = CFUNCTYPE(*status, c_int, POINTER(Wc))(table[_POLL_CQ])
        self.notify = CFUNCTYPE(*status, c_int)(table[_REQ_NOTIFY])
        bad_send, bad_recv = POINTER(POINTER(SendWr)), POINTER(POINTER(RecvWr))
        self._send = CFUNCTYPE(*status, POINTER(SendWr), bad_send)(table[_POST_SEND])
        self._recv = CFUNCTYPE(*status, POINTER(RecvWr), bad_recv)(table[_POST_RECV])

    def post_send(self, qp: int, wr: SendWr) -> None:
        _posted(self._send, qp, wr)

    def post_recv(self, qp: int, wr: RecvWr) -> None:
        _posted(self._recv, qp, wr)


def _posted(post: Callable[..., int], qp: int, wr: Any) -> None:
    bad = POINTER(type(wr))()
    number = post(qp, ctypes.byref(wr), ctypes.byref(bad))
    if number:
        raise VerbsError(number, f"posting: {os.strerror(number)}")


def address(host: str, port: int) -> SockaddrIn:
    octets = [int(octet) for octet in host.split(".")]
    return SockaddrIn(2, (c_ubyte * 2)(*port.to_bytes(2, "big")), (c_ubyte * 4)(*octets))
