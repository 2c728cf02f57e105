# SPDX-License-Identifier: Apache-2.0
"""RDMA connections in user space that send what a test requests, valid or not.

A ``Host`` has the process' event channel; its ``Connection`` objects are made by ``connect`` and
``accept``.  It has no threads: ``Host.wait`` handles events and completions.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import time
from collections import deque
from collections.abc import Callable
from ctypes import POINTER, byref
from dataclasses import dataclass, field
from typing import Any

from testbed.peers import verbs
from testbed.peers.verbs import CmId, ConnParam, Sge, Wc, checked

# of each lab
SERVER, PORT = "10.9.1.1", 20049
LIMIT = 60.0
_SEND = 1 << 32
# parts of the memory that a connection sends from
_PARTS = 16


class GoneError(Exception):
    """The connection ended, or was never made; the text has the reason."""


class Memory:
    """Pages of this process that are registered."""

    def __init__(self, host: Host, context: int, size: int, access: int) -> None:
        self._pages = mmap.mmap(-1, size)
        self.view = memoryview(self._pages)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self.size, self._host = size, host
        pd = host.pd(context)
        self._mr = checked(host.ibv.ibv_reg_mr(pd, self.address, size, access), "ibv_reg_mr")
        self.lkey, self.key = self._mr.contents.lkey, self._mr.contents.rkey

    def deregister(self) -> None:
        """The peer cannot reach it any more; its bytes are still there."""
        if self._mr:
            checked(self._host.ibv.ibv_dereg_mr(self._mr), "ibv_dereg_mr")
            self._mr = None


@dataclass(frozen=True)
class Wish:
    """Parameters of a connection."""

    private: bytes = b""
    receives: int = 64
    size: int = 4096
    """of receive and send buffers, in bytes"""
    reads: int = 16
    """RDMA Reads under way, each way"""
    rnr_retry: int = 7
    """7 is for ever"""
    reads_anyway: bool = False
    """RDMA Reads leave this side even if the peer, as servers do, grants none"""
    deaf: bool = False
    """a receive is used once: a peer that sends more gets receiver-not-ready"""
    confirms: bool = True
    """with reads_anyway: what the server accepted is confirmed"""
    port: int = 0
    """of this side; 0: any. One below 1024 takes CAP_NET_BIND_SERVICE"""
    address: str = "0.0.0.0"  # noqa: S104
    """of this side; the default: any"""


@dataclass
class Message:
    """A message that a Send brought."""

    data: bytes
    invalidated: int | None = None


@dataclass
class Connection:
    """One connection; ``host.wait`` fills ``messages``, ``done`` and ``ended``."""

    host: Host
    id: Any
    wish: Wish
    context: int = 0
    qp: int = 0
    private: bytes = b""
    """private data of the peer's connection request"""
    established: bool = False
    ended: str = ""
    """why it is over"""
    messages: deque[Message] = field(default_factory=deque)
    done: dict[int, int] = field(default_factory=dict)
    """status of completed work that was not a receive, by number"""
    memories: list[Memory] = field(default_factory=list)
    own: Any = None
    """the queue pair, if it is not librdmacm's"""
    _number: int = 0
    _completions: int = 0

    def memory(self, size: int, access: int) -> Memory:
        """Registered pages that go with the connection."""
        made = Memory(self.host, self.context, size, access)
        self.memories.append(made)
        return made

    def open_queues(self) -> None:
        ibv = self.host.ibv
        self.context = self.id.contents.verbs
        self.ops = verbs.Ops(self.context)
        self.channel = checked(ibv.ibv_create_comp_channel(self.context), "completion channel")
        depth = self.wish.receives
        entries = 2 * depth + 256
        self.cq = checked(ibv.ibv_create_cq(self.context, entries, None, self.channel, 0), "CQ")
        attr = verbs.QpInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=verbs.RC, sq_sig_all=1)
        attr.max_send_wr, attr.max_recv_wr, attr.max_send_sge, attr.max_recv_sge = 256, depth, 1, 1
        self._create_qp(attr)
        self.inbox = self.memory(depth * self.wish.size, verbs.LOCAL_WRITE)
        self.outbox = self.memory(_PARTS * max(self.wish.size, 65536), verbs.LOCAL_WRITE)
        for slot in range(depth):
            self._post_receive(slot)
        self.ops.notify(self.cq, 0)

    def _create_qp(self, attr: verbs.QpInitAttr) -> None:
        pd = self.host.pd(self.context)
        if self.wish.reads_anyway:
            self.own = checked(self.host.ibv.ibv_create_qp(pd, byref(attr)), "QP")
            self.qp = ctypes.addressof(self.own.contents)
            self._move(1)
        else:
            checked(self.host.cma.rdma_create_qp(self.id, pd, byref(attr)), "QP")
            self.qp = self.id.contents.qp

    def _move(self, state: int, reads: int | None = None) -> None:
        """Bring a queue pair of our own into a state, as librdmacm does with its own."""
        attr, mask = verbs.QpAttr(qp_state=state), ctypes.c_int()
        checked(self.host.cma.rdma_init_qp_attr(self.id, byref(attr), byref(mask)), "QP state")
        attr.max_rd_atomic = attr.max_rd_atomic if reads is None else reads
        number = self.host.ibv.ibv_modify_qp(self.own, byref(attr), mask)
        if number:
            raise verbs.VerbsError(number, f"state {state}: {os.strerror(number)}")

    def _confirm(self) -> None:
        """Establish the connection; librdmacm does so for queue pairs of its own only."""
        self._move(2)
        self._move(3, self.wish.reads)
        checked(self.host.cma.rdma_establish(self.id), "rdma_establish")

    def _post_receive(self, slot: int) -> None:
        size = self.wish.size
        sge = Sge(self.inbox.address + slot * size, size, self.inbox.lkey)
        wr = verbs.RecvWr(wr_id=slot, sg_list=ctypes.pointer(sge), num_sge=1)
        self.ops.post_recv(self.qp, wr)

    # --- what may be done with it ---

    def post(
        self,
        opcode: int,
        local: tuple[int, int, int],
        remote: tuple[int, int] = (0, 0),
        imm: int = 0,
    ) -> int:
        """Queue work; its number. ``local`` is address, bytes, key; ``remote`` address and key."""
        if self.ended:
            raise GoneError(self.ended)
        self._number += 1
        sge = Sge(*local)
        wr = verbs.SendWr(wr_id=_SEND + self._number, opcode=opcode, send_flags=verbs.SIGNALED)
        wr.sg_list, wr.num_sge = ctypes.pointer(sge), 1 if local[1] else 0
        wr.remote_addr, wr.rkey, wr.imm = *remote, imm
        self.ops.post_send(self.qp, wr)
        return self._number

    def put(self, data: bytes) -> tuple[int, int, int]:
        """Bytes into memory that work can be done from, as soon as earlier work has left it."""
        self.host.wait(lambda: self._number - self._completions < _PARTS or bool(self.ended))
        room = self.outbox.size // _PARTS
        at = self._number % _PARTS * room
        self.outbox.view[at : at + len(data)] = data
        return self.outbox.address + at, len(data), self.outbox.lkey

    def send(self, data: bytes, opcode: int = verbs.SEND, imm: int = 0) -> int:
        """Send a message; ``imm`` is the immediate, or the key that is to be invalidated."""
        return self.post(opcode, self.put(data), imm=imm)

    def finish(self, number: int) -> int:
        """The status work ended with, 0 for good; GoneError when the connection ended before."""
        self.host.wait(lambda: number in self.done or bool(self.ended))
        if number not in self.done:
            raise GoneError(self.ended)
        return self.done.pop(number)

    def final(self, number: int) -> int:
        """The status work ended with, waited for even when the peer has disconnected meanwhile."""
        self.host.wait(lambda: number in self.done)
        return self.done.pop(number)

    def write(self, data: bytes, at: int, key: int) -> int:
        """RDMA Write into the peer's memory; the status."""
        return self.finish(self.post(verbs.RDMA_WRITE, self.put(data), (at, key)))

    def try_write(self, data: bytes, at: int, key: int) -> int:
        """The same, where it ought to be refused."""
        return self.final(self.post(verbs.RDMA_WRITE, self.put(data), (at, key)))

    def try_read(self, size: int, at: int, key: int) -> tuple[int, bytes]:
        """RDMA Read where it ought to be refused; the status, and what came."""
        into = self.host.scratch(self.context, size)
        # an earlier Read may have filled it
        into.view[:size] = bytes(size)
        sge = (into.address, size, into.lkey)
        return self.final(self.post(verbs.RDMA_READ, sge, (at, key))), bytes(into.view[:size])

    def read(self, size: int, at: int, key: int) -> tuple[int, bytes]:
        """RDMA Read from the peer's memory; the status, and what came."""
        into = self.host.scratch(self.context, size)
        sge = (into.address, size, into.lkey)
        status = self.finish(self.post(verbs.RDMA_READ, sge, (at, key)))
        return status, bytes(into.view[:size])

    def receive_one(self) -> None:
        """Of a deaf connection: post one more receive."""
        self._post_receive(0)

    def next(self, seconds: float = LIMIT) -> Message | None:
        """The next message; None when the connection ended first, or the time did."""
        self.host.wait(lambda: bool(self.messages or self.ended), seconds, late=False)
        return self.messages.popleft() if self.messages else None

    def close(self) -> None:
        """End it and free all of it."""
        self.ended = self.ended or "closed by this side"
        ibv, cma = self.host.ibv, self.host.cma
        self.host.forget(self)
        if self.qp:
            cma.rdma_disconnect(self.id)
            if self.own:
                ibv.ibv_destroy_qp(self.own)
            else:
                cma.rdma_destroy_qp(self.id)
            self.take_completions()
            ibv.ibv_destroy_cq(self.cq)
            ibv.ibv_destroy_comp_channel(self.channel)
        for memory in self.memories:
            memory.deregister()
        cma.rdma_destroy_id(self.id)

    # --- what the host calls ---

    def accepted(self, kind: int) -> None:
        """The peer has accepted the connection, or received this side's acceptance."""
        if kind == verbs.CONNECT_RESPONSE and not self.wish.confirms:
            return
        if kind == verbs.CONNECT_RESPONSE:
            self._confirm()
        self.established = True

    def over(self, kind: int, status: int) -> None:
        """It ended, or never came to be."""
        names = {verbs.DISCONNECTED: "disconnected", verbs.REJECTED: "rejected"}
        # what completed before comes first
        if self.qp:
            self.take_completions()
        self.ended = self.ended or names.get(kind, f"event {kind}, {status}")

    def event(self) -> None:
        """The completion channel has something."""
        cq, context = ctypes.c_void_p(), ctypes.c_void_p()
        self.host.ibv.ibv_get_cq_event(self.channel, byref(cq), byref(context))
        self.host.ibv.ibv_ack_cq_events(self.cq, 1)
        self.ops.notify(self.cq, 0)
        self.take_completions()

    def take_completions(self) -> None:
        wcs = (Wc * 32)()
        while (count := self.ops.poll(self.cq, 32, wcs)) > 0:
            for wc in wcs[:count]:
                self._completed(wc)

    def _completed(self, wc: Wc) -> None:
        if wc.wr_id & _SEND:
            self._completions += 1
            self.done[wc.wr_id - _SEND] = wc.status
        elif not wc.status:
            at = wc.wr_id * self.wish.size
            invalidated = wc.imm if wc.wc_flags & verbs.WITH_INVALIDATE else None
            data = bytes(self.inbox.view[at : at + wc.byte_len])
            self.messages.append(Message(data, invalidated))
            if not (self.ended or self.wish.deaf):
                self._post_receive(wc.wr_id)
        if wc.status and not self.ended:
            self.ended = self.host.ibv.ibv_wc_status_str(wc.status).decode()


@dataclass
class Request:
    """A peer requests a connection."""

    id: Any
    private: bytes


class Host:
    """The event channel, the protection domains and the connections of this process."""

    def __init__(self) -> None:
        self.ibv, self.cma = verbs.load()
        self._channel = checked(self.cma.rdma_create_event_channel(), "event channel")
        os.set_blocking(self._channel.contents.fd, False)
        self._pds: dict[int, int] = {}
        self._scratch: dict[int, Memory] = {}
        self._ids: dict[int, Connection] = {}
        self.requests: deque[Request] = deque()
        self.watched: dict[int, Callable[[], None]] = {}
        """more files to wait for, and what is to be called when they can be read"""

    def pd(self, context: int) -> int:
        if context not in self._pds:
            self._pds[context] = checked(self.ibv.ibv_alloc_pd(context), "ibv_alloc_pd")
        return self._pds[context]

    def scratch(self, context: int, size: int) -> Memory:
        """Where RDMA Reads put what they fetch."""
        if context not in self._scratch or self._scratch[context].size < size:
            size = max(size, 1 << 20)
            self._scratch[context] = Memory(self, context, size, verbs.LOCAL_WRITE)
        return self._scratch[context]

    # --- connections ---

    def _new_id(self) -> Any:
        made = POINTER(CmId)()
        checked(self.cma.rdma_create_id(self._channel, byref(made), None, verbs.PS_TCP), "id")
        return made

    def begin(self, wish: Wish) -> Connection:
        """Ask the server for a connection; GoneError when there is no way to it. Not yet there."""
        connection = Connection(self, self._new_id(), wish)
        self._ids[_address(connection.id)] = connection
        there = verbs.address(SERVER, PORT)
        if wish.port or wish.address != Wish.address:
            here = verbs.address(wish.address, wish.port)
            checked(self.cma.rdma_bind_addr(connection.id, byref(here)), "bind")
        steps: list[Callable[[], int]] = [
            lambda: self.cma.rdma_resolve_addr(connection.id, None, byref(there), 5000),
            lambda: self.cma.rdma_resolve_route(connection.id, 5000),
        ]
        for step in steps:
            self._step = False
            checked(step(), "resolving")
            self.wait(lambda: self._step or bool(connection.ended))
            if connection.ended:
                connection.close()
                raise GoneError(connection.ended)
        connection.open_queues()
        param = _param(wish)
        if connection.own:
            param.qp_num = connection.own.contents.number
        checked(self.cma.rdma_connect(connection.id, byref(param)), "rdma_connect")
        return connection

    def connect(self, wish: Wish) -> Connection:
        """A connection to the server; GoneError when it was refused."""
        connection = self.begin(wish)
        self.wait(lambda: connection.established or bool(connection.ended))
        if not connection.established:
            connection.close()
            raise GoneError(connection.ended)
        return connection

    def listen(self, port: int) -> None:
        """Take connections in, as ``requests``."""
        listener = self._new_id()
        checked(self.cma.rdma_bind_addr(listener, byref(verbs.address("0.0.0.0", port))), "bind")  # noqa: S104
        checked(self.cma.rdma_listen(listener, 16), "rdma_listen")

    def accept(self, request: Request, wish: Wish) -> Connection:
        """Take a request; ``established`` is for later."""
        connection = Connection(self, request.id, wish, private=request.private)
        self._ids[_address(request.id)] = connection
        connection.open_queues()
        checked(self.cma.rdma_accept(connection.id, byref(_param(wish))), "rdma_accept")
        return connection

    def reject(self, request: Request) -> None:
        self.cma.rdma_reject(request.id, None, 0)
        self.cma.rdma_destroy_id(request.id)

    def forget(self, connection: Connection) -> None:
        self._ids.pop(_address(connection.id), None)

    # --- events ---

    def wait(self, until: Callable[[], bool], seconds: float = LIMIT, late: bool = True) -> None:
        """Take in what happens until something is so; TimeoutError, unless not ``late``."""
        end = time.monotonic() + seconds
        while not until():
            left = end - time.monotonic()
            if left <= 0:
                if late:
                    raise TimeoutError(f"nothing in {seconds} s")
                return
            self.turn(left)

    def turn(self, seconds: float) -> None:
        """Wait for one thing to happen, and take it in."""
        poller = select.poll()
        calls: dict[int, Callable[[], None]] = {self._channel.contents.fd: self._events}
        calls |= {c.channel.contents.fd: c.event for c in self._ids.values() if c.qp}
        calls |= self.watched
        for file in calls:
            poller.register(file, select.POLLIN)
        for file, _ in poller.poll(seconds * 1000):
            calls[file]()

    def _events(self) -> None:
        event = POINTER(verbs.CmEvent)()
        while self.cma.rdma_get_cm_event(self._channel, byref(event)) == 0:
            # acknowledged, the event is gone, and with it what ctypes would look up later
            about = ctypes.cast(_address(event.contents.id), POINTER(CmId))
            kind, status, param = event.contents.event, event.contents.status, event.contents.conn
            private = ctypes.string_at(param.private_data or 0, param.private_data_len or 0)
            self.cma.rdma_ack_cm_event(event)
            self._happened(about, kind, status, private)

    def _happened(self, about: Any, kind: int, status: int, private: bytes) -> None:
        if kind == verbs.CONNECT_REQUEST:
            self.requests.append(Request(about, private))
            return
        connection = self._ids.get(_address(about))
        if connection is None:
            return
        if kind in (verbs.ADDR_RESOLVED, verbs.ROUTE_RESOLVED):
            self._step = True
        elif kind in (verbs.CONNECT_RESPONSE, verbs.ESTABLISHED):
            connection.private = connection.private or private
            connection.accepted(kind)
        elif kind != verbs.TIMEWAIT_EXIT:
            connection.over(kind, status)


def _address(cm_id: Any) -> int:
    return ctypes.addressof(cm_id.contents)


def _param(wish: Wish) -> ConnParam:
    private = ctypes.create_string_buffer(wish.private, max(len(wish.private), 1))
    param = ConnParam(
        ctypes.cast(private, ctypes.c_void_p), len(wish.private), wish.reads, wish.reads
    )
    param.retry_count, param.rnr_retry_count = 7, wish.rnr_retry
    # the structure holds no reference to it
    param.keep = private
    return param
