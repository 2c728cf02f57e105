# SPDX-License-Identifier: Apache-2.0
"""Examines a capture: findings with remedies, for ``nfsrdma doctor --capture``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from nfsrdma_tools.capture.files import CapturedFrame
from nfsrdma_tools.capture.follow import Connection, Exchange, Follower, exchanges
from nfsrdma_tools.doctor.finding import Finding, Status
from nfsrdma_tools.sizes import format_size

__all__ = ["AGAIN", "SLOW", "examine"]

SLOW = 0.1
"""Seconds between Call and Reply beyond which ``examine`` warns."""
AGAIN = "capture on the RDMA device (tcpdump -i mlx5_0), or with nfsrdma capture"
"""The remedy for a capture without RDMA."""
_SLOWEST = 3
_DEFAULT_INLINE = 1024
_REFUSED = {
    0: "packets out of sequence", 1: "invalid request", 2: "remote access error",
    3: "remote operational error",
}  # fmt: skip


def examine(frames: Iterable[CapturedFrame]) -> list[Finding]:
    """The findings about the capture as a whole, then about each connection."""
    follower = Follower()
    slow: dict[tuple[str, str], list[Exchange]] = defaultdict(list)
    times: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    unanswered: dict[tuple[str, str], int] = defaultdict(int)
    for exchange in exchanges(frames, follower):
        key = exchange.client, exchange.server
        if exchange.duration is None:
            unanswered[key] += 1
            continue
        times[key][0] += 1
        times[key][1] += exchange.duration
        if exchange.duration > SLOW * 1e9:
            kept = slow[key]
            kept.append(exchange)
            kept.sort(key=lambda e: -(e.duration or 0))
            del kept[_SLOWEST:]
    findings = [_whole(follower)]
    if follower.dropped:
        findings.append(_dropped(follower))
    if follower.rejects:
        text = f"{follower.rejects} connection requests were rejected"
        findings.append(Finding("connections", "warning", text, remedy="nfsrdma explain"))
    for key, connection in sorted(follower.connections.items()):
        findings += _connection(connection)
        findings += _time(connection, times[key], slow[key], unanswered[key])
    return findings


def _whole(follower: Follower) -> Finding:
    text = f"{follower.frames} frames, {follower.rdma} of RDMA"
    if follower.other_messages:
        text += f", {follower.other_messages} Sends without RPC-over-RDMA"
    if not follower.rdma:
        return Finding("capture", "error", follower.fault, "packets of RoCE or InfiniBand", AGAIN)
    if follower.unfinished:
        text += f", the file ends in the middle of frame {follower.unfinished}"
    if follower.cut:
        text += f", {follower.cut} cut"
        return Finding("capture", "warning", text, "whole frames", "tcpdump -s 0")
    if follower.unfinished:
        return Finding("capture", "warning", text, "a whole file", "capture again")
    return Finding("capture", "ok", text)


def _dropped(follower: Follower) -> Finding:
    text = f"{follower.dropped} messages or frames were lost by the program that captured"
    remedy = "restrict the capture (--mount), or shorten it"
    return Finding("losses", "warning", text, "0", remedy)


def _connection(connection: Connection) -> Iterator[Finding]:
    name = f"{connection.client} to {connection.server}"
    if not connection.calls:
        yield Finding(name, "unknown", "a connection without Calls in the capture")
        return
    yield _version(name, connection)
    yield _credits(name, connection)
    yield _inline(name, connection)
    yield Finding(name, "ok", _chunks(connection))
    if connection.errors:
        texts = ", ".join(f"{count} {text}" for text, count in sorted(connection.errors.items()))
        yield Finding(name, "error", f"refused by the server: {texts}", "no RDMA_ERROR",
                      "nfsrdma explain --faults")  # fmt: skip
    yield from _losses(name, connection)


def _version(name: str, connection: Connection) -> Finding:
    versions = ", ".join(map(str, sorted(connection.versions)))
    text = (
        f"RPC-over-RDMA version {versions}; {connection.calls} Calls, {connection.replies} Replies"
    )
    if connection.versions <= {1}:
        return Finding(name, "ok", text)
    return Finding(name, "warning", text, "version 1", "the kernel has version 1 only")


def _credits(name: str, connection: Connection) -> Finding:
    low, high = connection.granted or (0, 0)
    granted = f"{low}" if low == high else f"{low} to {high}"
    most = connection.most_outstanding
    text = f"credits: {connection.asked} requested, {granted} granted, {most} Calls at once at most"
    if connection.replies and most >= high:
        remedy = "more connections: nconnect=N; or more credits of the server"
        return Finding(name, "warning", text, "credits left", remedy)
    return Finding(name, "ok", text)


def _inline(name: str, connection: Connection) -> Finding:
    texts = [
        f"{side}: sends {private.send_size}, receives {private.receive_size}"
        for side, private in sorted(connection.privates.items())
    ]
    limits = "; ".join(texts) or f"no private data seen: {_DEFAULT_INLINE} bytes if there is none"
    return Finding(name, "ok", f"inline limits: {limits}; longest message {connection.most_inline}")


def _chunks(connection: Connection) -> str:
    texts = []
    for kind, (count, size, most) in sorted(connection.chunk_bytes.items()):
        mean = format_size(size // count if count else 0)
        chunks, segments = connection.most_chunks[kind], connection.most_segments[kind]
        texts.append(
            f"{kind}: {count}, {mean} on average, {format_size(most)} at most, "
            f"up to {chunks} in a list, up to {segments} segments"
        )
    return "chunks: " + ("; ".join(texts) or "none")


def _losses(name: str, connection: Connection) -> Iterator[Finding]:
    if connection.retransmitted:
        text = f"{connection.retransmitted} of {connection.packets} packets were sent again"
        yield Finding(name, "warning", text, "none", "nfsrdma doctor: check `wire`, flow control")
    if connection.receiver_not_ready:
        text = f"{connection.receiver_not_ready} times the receiver was not ready (RNR)"
        yield Finding(name, "warning", text, "none", "more Calls than credits: report it")
    for code, count in sorted(connection.refused.items()):
        text = f"{count} negative acknowledgements: {_REFUSED.get(code, f'code {code}')}"
        status: Status = "warning" if code == 0 else "error"
        yield Finding(name, status, text, "none", "nfsrdma doctor on both hosts")


def _time(
    connection: Connection, times: list[int], slow: list[Exchange], unanswered: int
) -> Iterator[Finding]:
    name = f"{connection.client} to {connection.server}"
    count, total = times
    if count:
        text = f"{count} Replies after {total / count / 1e6:.3f} ms on average"
        yield Finding(name, "ok", text)
    for exchange in slow:
        duration = (exchange.duration or 0) / 1e9
        text = f"frame {exchange.frame}: {exchange.procedure} took {duration:.3f} s"
        yield Finding(name, "warning", text, f"at most {SLOW} s", "nfsrdma trace latency, server")
    if unanswered:
        text = f"{unanswered} Calls without a Reply in the capture"
        yield Finding(name, "warning", text, "a Reply to each", "capture longer, or without losses")
