# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma capture``: write the messages of NFS over RDMA for Wireshark, or print a capture."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

from nfsrdma_tools.cli.options import OneMount, option
from nfsrdma_tools.cli.output import refuse_terminal
from nfsrdma_tools.errors import UsageError, UserError, printable

if TYPE_CHECKING:
    from nfsrdma_tools.capture.conversation import Conversations, Message
    from nfsrdma_tools.capture.files import CapturedFrame
    from nfsrdma_tools.capture.follow import Exchange
    from nfsrdma_tools.capture.probes import Listener

__all__ = ["capture", "frames_of", "line"]

_APPLICATION = "nfsrdma capture"
_KINDS = ("zero", "head")
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def capture(
    write: Annotated[
        str,
        option(
            "FILE", "Write a pcapng file; - is standard output (default: none).", "--write", "-w"
        ),
    ] = "",
    read: Annotated[
        Path | None,
        option(
            "FILE", "Print a line per RPC of a pcap or pcapng file (default: none).", "--read", "-r"
        ),
    ] = None,
    mount: OneMount = None,
    client: Annotated[
        str, option("ADDRESS", "Restrict to the client ADDRESS (default: all clients).")
    ] = "",
    xprt: Annotated[
        int | None,
        option("N", "Restrict to transport N of /sys/kernel/sunrpc (default: all).", least=0),
    ] = None,
    snaplen: Annotated[
        int,
        option(
            "N",
            "Copy N bytes of each part of a message: header, head, page, tail; rounded up to a "
            "power of two (default: 8192).",
            least=1,
            most=8192,
        ),
    ] = 8192,
    data: Annotated[
        str,
        option("KIND", "Data in chunks: zero, or head for their first page (default: zero)."),
    ] = "zero",
    count: Annotated[
        int | None, option("N", "Stop after N messages (default: run until Ctrl-C).", least=1)
    ] = None,
    seconds: Annotated[
        float | None,
        option("SECONDS", "Stop after SECONDS (default: run until Ctrl-C).", least=0.1),
    ] = None,
) -> None:
    """Write the messages of NFS over RDMA for Wireshark, or print a capture.

    Example: nfsrdma capture -w - --mount /mnt/data | wireshark -k -i -

    A sniffer sees nothing of RDMA, because the card bypasses the host.  This command copies the
    messages of the kernel's module rpcrdma, at the client and at the server, and writes them as
    frames of RoCEv2.  Needs root and bcc.  Losses are counted in the file and on standard error.
    """
    if bool(write) == bool(read):
        raise UsageError("capture needs either --write FILE or --read FILE")
    if data not in _KINDS:
        raise UsageError(f"--data: unknown kind {data!r}", f"use one of {', '.join(_KINDS)}")
    if read:
        if mount or client or xprt is not None or count or seconds:
            raise UsageError("capture --read has no other options", "filter with tshark -Y")
        _print(read)
        return
    if write == "-":
        refuse_terminal("a capture", "-w")
    from nfsrdma_tools.capture.probes import listening

    wanted = _filter(mount, client, xprt)
    with listening(snaplen, data == "head") as listener, _target(write) as file:
        ends = time.monotonic() + seconds if seconds else None
        _record(listener, file, wanted, count, ends)


@contextlib.contextmanager
def frames_of(path: Path) -> Iterator[Iterator[CapturedFrame]]:
    """The frames of a capture file."""
    from nfsrdma_tools.capture.files import frames

    with path.open("rb") as file:
        yield frames(file)


def line(exchange: Exchange) -> str:
    """An RPC in one line."""
    from nfsrdma_tools.sizes import format_size

    head = exchange.call
    parts = [
        f"{exchange.frame:>6} {exchange.client} > {exchange.server} 0x{head.xid:08x}",
        exchange.procedure,
        f"call {head.size + exchange.call_size}",
    ]
    if head.reads:
        parts.append(f"read {format_size(head.read)} in {len(head.reads)} segments")
    reply = exchange.reply
    if reply is None:
        return " ".join((*parts, "no reply"))
    parts.append(f"reply {reply.size + exchange.reply_size}")
    if reply.written:
        where = "the Reply chunk" if reply.reply else f"{len(reply.writes)} Write chunks"
        parts.append(f"written {format_size(reply.written)} in {where}")
    parts.append(f"credits {head.credits}/{reply.credits}")
    if exchange.resent:
        parts.append(f"sent {exchange.resent + 1} times")
    if exchange.error:
        parts.append(exchange.error)
    parts.append(f"{(exchange.duration or 0) / 1e6:.3f} ms")
    return " ".join(parts)


def _print(path: Path) -> None:
    from nfsrdma_tools.capture.follow import Follower, exchanges
    from nfsrdma_tools.doctor.capture import AGAIN

    follower = Follower()
    with frames_of(path) as frames:
        for exchange in exchanges(frames, follower):
            print(printable(line(exchange)))
    if follower.dropped:
        print(f"nfsrdma: the capture lost {follower.dropped} messages", file=sys.stderr)
    if follower.unfinished:
        text = f"{path} ends in the middle of frame {follower.unfinished}"
        print(f"nfsrdma: {printable(text)}", file=sys.stderr)
    if follower.fault:
        raise UserError(f"{path}: {follower.fault}", AGAIN)


_Filter = Callable[["Message"], bool]


def _filter(mount: Path | None, client: str, xprt: int | None) -> _Filter:
    numbers = _transports(mount) if mount else None
    if xprt is not None:
        numbers = {xprt} if numbers is None else numbers & {xprt}

    def wanted(message: Message) -> bool:
        is_client = message.from_client == message.outbound
        if numbers is not None and not (is_client and message.connection.number in numbers):
            return False
        return not client or message.connection.client == client

    return wanted


def _transports(mount: Path) -> set[int]:
    from nfsrdma_tools.probes.rpc_clients import clients, mounts_of_transports

    transports = mounts_of_transports(clients())
    numbers = {number for number, names in transports.items() if str(mount) in names}
    if not numbers:
        message = f"no transport of a mount at {mount}"
        raise UserError(message, "nfsrdma mounts lists the mounts; --xprt N needs no mount")
    return numbers


@contextlib.contextmanager
def _target(write: str) -> Iterator[BinaryIO]:
    if write == "-":
        yield sys.stdout.buffer
        return
    try:
        # a link in a folder that others may write to leads to any file
        file = os.fdopen(os.open(write, _FRESH, 0o644), "wb")
    except OSError as error:
        hint = "name a file that is no link, in a folder that you can write to"
        raise UserError(f"cannot write {write}: {error.strerror}", hint) from error
    with file:
        yield file


def _record(
    listener: Listener, file: BinaryIO, wanted: _Filter, count: int | None, ends: float | None
) -> None:
    from nfsrdma_tools.capture.conversation import Conversations
    from nfsrdma_tools.capture.files import Writer

    for name in listener.missing:
        print(f"nfsrdma: not captured: {name} is not in this kernel", file=sys.stderr)
    writer = Writer(file, "rpcrdma", _APPLICATION)
    writer.flush()
    conversations = Conversations(writer)
    with _until_stopped() as stopped:
        _loop(listener, conversations, writer.flush, wanted, count, ends, stopped)
    listener.stop()
    for message in listener.messages(0):
        if wanted(message) and not (count and conversations.written >= count):
            conversations.write(message)
    conversations.lose(listener.total_lost() - conversations.lost)
    conversations.end(time.time_ns())
    print(f"nfsrdma: {conversations.written} messages, {conversations.lost} lost", file=sys.stderr)
    if listener.unknown():
        text = f"{listener.unknown()} messages without addresses left out"
        print(f"nfsrdma: {text}", file=sys.stderr)


@contextlib.contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """An event that signals set, so that they interrupt no message.

    A shell starts background commands with SIGINT ignored; here it is wanted all the same.
    """
    stopped = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    kept = {number: signal.getsignal(number) for number in numbers}
    if kept[signal.SIGHUP] is signal.SIG_IGN:
        # by nohup(1)
        del kept[signal.SIGHUP]
    for number in kept:
        signal.signal(number, lambda *_: stopped.set())
    try:
        yield stopped
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _loop(
    listener: Listener,
    conversations: Conversations,
    flush: Callable[[], None],
    wanted: _Filter,
    count: int | None,
    ends: float | None,
    stopped: threading.Event,
) -> None:
    while not stopped.is_set() and (ends is None or time.monotonic() < ends):
        _lose(listener, conversations)
        for message in listener.messages():
            if wanted(message):
                conversations.write(message)
                if count and conversations.written >= count:
                    return
        # a program that reads a pipe shows what it has got
        flush()


def _lose(listener: Listener, conversations: Conversations) -> None:
    new = listener.lost() - conversations.lost
    if new > 0:
        conversations.lose(new)
