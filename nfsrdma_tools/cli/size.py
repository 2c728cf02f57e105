# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma size``: the needs of a server with many clients."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from nfsrdma_tools.cli.options import Json, option
from nfsrdma_tools.cli.output import print_json

if TYPE_CHECKING:
    from nfsrdma_tools.server_size import Needs, Question

__all__ = ["size"]


def size(
    clients: Annotated[int, option("N", "Clients that mount.", least=1, most=1_000_000)],
    nconnect: Annotated[
        int, option("N", "Connections of a client (default: 1).", least=1, most=16)
    ] = 1,
    threads: Annotated[
        int, option("N", "Threads of nfsd (default: 16).", least=1, most=65536)
    ] = 16,
    module: Annotated[
        str,
        option("NAME", "Module of the server, rpcrdma or nfsrdma (default: rpcrdma)."),
    ] = "rpcrdma",
    credits: Annotated[
        int | None,
        option("N", "Credits of a connection (default: that of the module).", least=2, most=16384),
    ] = None,
    message: Annotated[
        str,
        option("SIZE", "Largest inline message of clients of nfsrdma, 1k to 64k (default: 4k)."),
    ] = "4k",
    as_json: Json = False,
) -> None:
    """Compute what a server needs for many clients.

    Connections, objects of its RDMA device, memory and Calls in flight, from what a connection was
    measured to cost, and limits that they exceed.  It looks at no host.
    """
    from nfsrdma_tools.server_size import Question, needs
    from nfsrdma_tools.sizes import parse_size

    question = Question(clients, nconnect, threads, module, credits, parse_size(message))
    found = needs(question)
    if as_json:
        print_json({**asdict(question), **asdict(found)})
        return
    for line in _lines(question, found):
        print(line)


def _lines(question: Question, found: Needs) -> list[str]:
    return [
        f"connections         {found.connections:,}",
        f"objects of a card   {found.queue_pairs:,} queue pairs, "
        f"{found.completion_queues:,} completion queues",
        f"memory, idle        {_text(found.idle_bytes)} of {question.module} and sunrpc",
        f"memory, all credits {_text(found.busy_bytes)}, and data of Calls",
        f"queues of a card    depends on its driver; of soft-RoCE {_queues(found)}",
        f"Calls in flight     {found.calls:,} at most, {found.calls_per_thread:,} for each thread",
        *(f"warning: {text}" for text in found.warnings),
    ]


def _queues(found: Needs) -> str:
    if found.soft_queues_bytes is None:
        return "unknown with these credits"
    return _text(found.soft_queues_bytes)


def _text(size: int) -> str:
    """Bytes with three digits at least: 113 MiB, 4.3 GiB."""
    for unit in ("KiB", "MiB", "GiB"):
        if size >> 10 < 1000 or unit == "GiB":
            break
        size >>= 10
    value = size / 1024
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
