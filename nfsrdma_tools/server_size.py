# SPDX-License-Identifier: Apache-2.0
"""The needs of a server with many clients, from the measured cost of an idle connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nfsrdma_tools.errors import UsageError

__all__ = ["MODULES", "Module", "Needs", "Question", "needs"]

_KIB = 1 << 10
# of the clients of the measurement
_MESSAGE = 4 * _KIB
# of inline_send (kmod/params.c)
_LEAST_MESSAGE, _MOST_MESSAGE = _KIB, 64 * _KIB
# connections that older kernels keep for each thread of nfsd, and beyond (net/sunrpc/svc_xprt.c)
_KEPT_EACH, _KEPT_MORE = 20, 60
# most of a card with bnxt_re (BNXT_RE_MAX_QPC_COUNT in drivers/infiniband/hw/bnxt_re/bnxt_re.h)
_QUEUE_PAIRS = 64 << 10


@dataclass(frozen=True)
class Module:
    """A transport module as the server's: what one connection costs."""

    idle_kib: int
    """Kernel memory of an idle connection whose messages have 4 KiB: docs/explanation/scale.md."""
    queues_kib: int
    """The same of the queues of soft-RoCE with the default credits; those of a card differ."""
    idle_credits: int
    """Credits of an idle connection when that was measured."""
    credit_kib: float
    """Kernel memory of one credit more, with messages of 4 KiB."""
    grows: bool
    """A connection gets memory for more credits when it uses them, and keeps it."""
    credits: int
    """Most credits, by default."""
    most_credits: int
    """That can be set: net/sunrpc/xprtrdma/svc_rdma.c, kmod/params.c."""
    completion_queues: int
    connections: int | None
    """Most connections, by default, which server_connections sets; None: no limit."""
    most_connections: int | None
    """The largest value of that parameter."""


MODULES = {
    "rpcrdma": Module(1107, 1337, 64, 16.0, False, 64, 16384, 2, None, None),
    "nfsrdma": Module(112, 682, 8, 4.0, True, 128, 1024, 1, 1024, 65536),
}
"""By name."""
RECEIVES = 9
"""Receives of nfsrdma beyond the credits of a connection (kmod/server/server.h)."""
INLINE_RECV = 8192
"""Most bytes of a message that nfsrdma receives, by default."""


@dataclass(frozen=True)
class Question:
    """A server and its clients."""

    clients: int
    nconnect: int = 1
    threads: int = 16
    module: str = "rpcrdma"
    credits: int | None = None
    """Of a connection; None: the default of the module."""
    message_bytes: int = _MESSAGE
    """Bytes of an inline message: nfsrdma's clients have 8192, rpcrdma's 4096."""


@dataclass(frozen=True)
class Needs:
    """The needs of a server; sizes in bytes."""

    connections: int
    queue_pairs: int
    completion_queues: int
    idle_bytes: int
    """Kernel memory while all connections are idle, without the queues of the device."""
    busy_bytes: int
    """The same once each connection has used all its credits, without data of Calls."""
    soft_queues_bytes: int | None
    """Queues of the device soft-RoCE; those of a card depend on its driver.  None: unknown, because
    the credits are not the default."""
    credits: int
    """Of a connection."""
    calls: int
    """Most Calls in flight."""
    calls_per_thread: int
    warnings: tuple[str, ...]


def needs(question: Question) -> Needs:
    """Compute what a server needs; UsageError for what the module does not allow."""
    if question.module not in MODULES:
        raise UsageError(f"{question.module!r} is no module", f"one of {', '.join(MODULES)}")
    module = MODULES[question.module]
    credits = module.credits if question.credits is None else question.credits
    if not _LEAST_MESSAGE <= question.message_bytes <= _MOST_MESSAGE:
        raise UsageError(f"messages of {question.message_bytes} bytes", "1k to 64k are possible")
    if credits > module.most_credits:
        raise UsageError(
            f"{credits} credits", f"{question.module} has at most {module.most_credits}"
        )
    connections = question.clients * question.nconnect
    idle, busy = _memory(module, credits, question.message_bytes)
    return Needs(
        connections=connections,
        queue_pairs=connections,
        completion_queues=connections * module.completion_queues,
        idle_bytes=connections * idle,
        busy_bytes=connections * busy,
        soft_queues_bytes=(
            connections * module.queues_kib * _KIB if credits == module.credits else None
        ),
        credits=credits,
        calls=connections * credits,
        calls_per_thread=-(-connections * credits // question.threads),
        warnings=tuple(_warnings(question, module, connections)),
    )


def _memory(module: Module, credits: int, message: int) -> tuple[int, int]:
    """Bytes of a connection that is idle, and of one that has used all its credits."""
    each = round(module.credit_kib * _KIB)
    if not module.grows:
        # it receives messages of one size, whatever its clients have
        all_of_them = module.idle_kib * _KIB + (credits - module.idle_credits) * each
        return all_of_them, all_of_them
    more = min(message, INLINE_RECV) - _MESSAGE
    first = min(credits, module.idle_credits)
    idle = module.idle_kib * _KIB + (first - module.idle_credits) * each
    idle += (first + RECEIVES) * more
    return idle, idle + (credits - first) * (each + more)


def _warnings(question: Question, module: Module, connections: int) -> Iterator[str]:
    if module.most_connections is not None and connections > module.most_connections:
        yield (
            f"module {question.module} accepts {module.most_connections:,} connections at most: "
            "use more servers, or a lower nconnect"
        )
    elif module.connections is not None and connections > module.connections:
        yield (
            f"module {question.module} accepts {module.connections:,} connections by default: set "
            f"its parameter server_connections to {connections} at least"
        )
    elif connections > _QUEUE_PAIRS:
        yield (
            f"{connections:,} connections need as many queue pairs: a card with bnxt_re has "
            f"{_QUEUE_PAIRS:,} at most (bnxt_re.h of Linux), others max_qp of `ibv_devinfo -v`"
        )
    if question.message_bytes > INLINE_RECV or (
        question.message_bytes != _MESSAGE and not module.grows
    ):
        size = INLINE_RECV if module.grows else _MESSAGE
        yield f"computed with messages of {size:,} bytes, which {question.module} receives at most"
    kept = question.threads * _KEPT_EACH + _KEPT_MORE
    if connections > kept:
        wanted = -(-(connections - _KEPT_MORE) // _KEPT_EACH)
        yield (
            f"older kernels close connections beyond {kept:,}; for {connections:,} they need "
            f"{wanted:,} threads of nfsd"
        )
