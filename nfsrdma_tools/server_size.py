# SPDX-License-Identifier: Apache-2.0
"""What a server needs for many clients, from what an idle connection was measured to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nfsrdma_tools.errors import UsageError

__all__ = ["MODULES", "Module", "Needs", "Question", "needs"]

_KIB = 1 << 10
# of the clients of the measurement
_MESSAGE = 4 * _KIB
# threads of nfsd of older kernels: connections that they keep (net/sunrpc/svc_xprt.c)
_KEPT_EACH, _KEPT_MORE = 20, 60


@dataclass(frozen=True)
class Module:
    """A transport module as the server's: what one connection costs."""

    idle_kib: int
    """Kernel memory of an idle connection whose messages have 4 KiB: docs/explanation/scale.md."""
    queues_kib: int
    """The same of the queues of soft-RoCE; those of a card are another size."""
    first_credits: int
    """Credits whose receives an idle connection has."""
    credits: int
    """Most credits, by default."""
    completion_queues: int
    connections: int | None
    """Most connections, by default; None: no limit."""
    parameters: tuple[str, str]
    """The names of what sets the credits and the connections."""


MODULES = {
    "rpcrdma": Module(1108, 1337, 64, 64, 2, None, ("sunrpc.svc_rdma.max_requests", "")),
    "nfsrdma": Module(113, 668, 8, 128, 1, 1024, ("credits", "server_connections")),
}
"""By name."""


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
    """What a server needs; sizes in bytes."""

    connections: int
    queue_pairs: int
    completion_queues: int
    idle_bytes: int
    """Kernel memory while all connections are idle, without the queues of the device."""
    busy_bytes: int
    """The same once each connection has used all its credits, without data of Calls."""
    soft_queues_bytes: int
    """Queues of the device soft-RoCE; those of a card depend on its driver."""
    calls: int
    """Most Calls in flight."""
    calls_per_thread: int
    warnings: tuple[str, ...]


def needs(question: Question) -> Needs:
    """Compute what a server needs; UsageError for a module that is unknown."""
    if question.module not in MODULES:
        raise UsageError(f"{question.module!r} is no module", f"one of {', '.join(MODULES)}")
    module = MODULES[question.module]
    credits = module.credits if question.credits is None else question.credits
    connections = question.clients * question.nconnect
    more = max(0, credits - module.first_credits) * question.message_bytes
    each = module.idle_kib * _KIB + module.first_credits * (question.message_bytes - _MESSAGE)
    return Needs(
        connections=connections,
        queue_pairs=connections,
        completion_queues=connections * module.completion_queues,
        idle_bytes=connections * each,
        busy_bytes=connections * (each + more),
        soft_queues_bytes=connections * module.queues_kib * _KIB,
        calls=connections * credits,
        calls_per_thread=-(-connections * credits // question.threads),
        warnings=tuple(_warnings(question, module, connections)),
    )


def _warnings(question: Question, module: Module, connections: int) -> Iterator[str]:
    _, limit = module.parameters
    if module.connections is not None and connections > module.connections:
        yield (
            f"module {question.module} accepts {module.connections} connections by default: set "
            f"its parameter {limit} to {connections} at least"
        )
    kept = question.threads * _KEPT_EACH + _KEPT_MORE
    if connections > kept:
        yield (
            f"older kernels keep {kept} connections with {question.threads} threads of nfsd, and "
            f"{-(-(connections - _KEPT_MORE) // _KEPT_EACH)} threads for {connections} connections"
        )
