# SPDX-License-Identifier: Apache-2.0
"""Logs of each kind that ``nfsrdma explain`` has to read: quiet ones, repeated ones, hostile ones.

Each kind is an endless sequence of bytes, the same for each run.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["KINDS", "block"]

_RECORDS = Path(__file__).parents[1] / "tests" / "unit" / "kernel_records"
_BLOCK = 1 << 16

_QUIET = (
    "usb 1-2: new high-speed USB device number {0} using xhci_hcd",
    'audit: type=1400 audit(1772517909.{0:03}:{0}): apparmor="ALLOWED" operation="open"',
    "EXT4-fs (sda{0}): re-mounted. Opts: errors=remount-ro",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{0:07x}: link becomes ready",
    "docker0: port {0}(veth{0:07x}) entered blocking state",
    "systemd[1]: Started Session {0} of user root.",
    "e1000e 0000:00:1f.6 eno1: NIC Link is Up 1000 Mbps Full Duplex, Flow Control: {0}",
    "perf: interrupt took too long ({0} > 2500), lowering kernel.perf_event_max_sample_rate",
)
_MESSAGES = (
    "nfs: server store{0} not responding, still trying",
    "nfs: server 10.9.{1}.{2} OK",
    "lockd: server store{0} not responding, timed out",
    "nfs: RPC call returned error {0}",
    "RPC: server store{0} requires stronger authentication.",
    "rpcrdma: removing device mlx5_{0} for 10.9.{1}.{2}:20049",
    "NFS: state manager: check lease failed on NFSv4 server store{0} with error 13",
    "NFS: store{0}: lost {1} locks",
    "rpcrdma: connection to 10.9.{1}.{2}:20049 closed (-{2})",
    "infiniband rxe{0}: set active",
    "rdma_rxe: rxe{0}: qp#{1} do_complete: non-flush error status = {2}",
    "svc: failed to register lockdv{1} RPC service (errno {2}).",
    "NFSD: client {0} testing state ID with incorrect client ID",
    "svcrdma: no transport for {0} of 10.9.{1}.{2}",
    "mlx5_core 0000:{2:02x}:00.0: Port module event: module {1}, Cable unplugged",
    "nfsrdma: device mlx5_{0}: max_qp_wr is {1}, expected at least {2}",
    "rpcrdma: Unknown symbol rdma_{0} (err -{2})",
    "mount of device {0} at /srv/{1} asks for symbol {2}",
)
_NAMED = (
    "nfs: server {0} not responding, still trying",
    "nfs: server {0} OK",
    "lockd: server {0} not responding, timed out",
    "RPC: server {0} requires stronger authentication.",
    "NFS: state manager: check lease failed on NFSv4 server {0} with error 13",
    "NFS: {0}: lost 3 locks",
    "EXT4-fs ({0}): mounted filesystem with ordered data mode",
    "XFS ({0}): Ending clean mount of the device",
    "systemd[1]: Mounted /srv/{0}.",
    "sshd: session opened for user {0}",
)
_CUT = "------------[ cut here ]------------"


def _times() -> Iterator[str]:
    return (f"[{12 + n // 1000:5}.{n % 1000:03}417] " for n in itertools.count())


def _dmesg(texts: Iterator[str]) -> Iterator[str]:
    return (f"{time}{text}\n" for time, text in zip(_times(), texts, strict=False))


def _messages() -> Iterator[str]:
    chance = random.Random(8166)  # noqa: S311 -- repeatable
    for n in itertools.count():
        yield chance.choice(_MESSAGES).format(n, n % 251, n % 113)


def _letters(number: int) -> str:
    """A name of letters alone, another one for each number."""
    return f"{number:x}".translate(_LETTERS)


_LETTERS = str.maketrans("0123456789", "ghijklmnop")


def _named(times: int = 1, tail: str = "") -> Iterator[str]:
    for n in itertools.count():
        text = _NAMED[n % len(_NAMED)].format(_letters(n) + tail)
        yield from itertools.repeat(text, times)


def _quiet() -> Iterator[str]:
    return (_QUIET[n % len(_QUIET)].format(n) for n in itertools.count())


def _frames() -> Iterator[str]:
    return (f" fn_{n:x}+0x{n % 97:x}/0x{n % 97 + 9:x} [nfs]" for n in itertools.count())


def _traces() -> Iterator[str]:
    return itertools.cycle(("Call Trace:",))


def _lockdep() -> Iterator[str]:
    for n in itertools.count():
        yield "WARNING: possible circular locking dependency detected"
        yield f"nfsd/{n} is trying to acquire lock:"
        for depth in range(40):
            yield f"-> #{depth} (&lock{n}){{+.+.}}-{{{depth}:{depth}}}:"
            yield f"       lock_acquire+0x{n % 97:x}/0x{depth + 99:x}"


def _warning() -> Iterator[str]:
    text = (_RECORDS / "oops-mlx5-teardown-6.7.log").read_text()
    return itertools.cycle(line.partition("] ")[2] or line for line in text.splitlines())


def _callers() -> Iterator[str]:
    logs = [
        (_RECORDS / name).read_text().splitlines()
        for name in ("hung-task-xprtrdma-drain-6.19.log", "hung-task-svcrdma-free-6.12.log",
                     "gpf-xprtrdma-complete-5.10.log", "oops-hns-mr-arm64-5.8.log")
    ]  # fmt: skip
    threads = [itertools.cycle(line.partition("] ")[2] or line for line in log) for log in logs]
    times = _times()
    for n in itertools.count():
        yield f"{next(times)[:-1]}[  T{n % 4}] {next(threads[n % 4])}\n"


def _processes() -> Iterator[str]:
    return (f"INFO: task p{n}:{n} blocked for more than 120 seconds." for n in itertools.count(1))


def _endless() -> Iterator[str]:
    yield "BUG: unable to handle page fault for address: ffff88810a3c4d18"
    yield "Call Trace:"
    yield from _frames()


def _json() -> Iterator[str]:
    for n, text in enumerate(_messages()):
        entry = {"_TRANSPORT": "kernel", "MESSAGE": text, "SYSLOG_IDENTIFIER": "kernel",
                 "__REALTIME_TIMESTAMP": str(1772517909000417 + n)}  # fmt: skip
        yield json.dumps(entry) + "\n"


def _lines(form: str) -> Iterator[str]:
    return (
        form.format(text, n // 3600 % 24, n // 60 % 60, n % 60)
        for n, text in enumerate(_messages())
    )


def _random() -> Iterator[bytes]:
    chance = random.Random(8166)  # noqa: S311 -- repeatable
    while True:
        yield chance.randbytes(_BLOCK)


def _bytes(lines: Iterator[str]) -> Iterator[bytes]:
    while True:
        yield "".join(itertools.islice(lines, 500)).encode()


def _of(texts: Callable[[], Iterator[str]]) -> Callable[[], Iterator[bytes]]:
    return lambda: _bytes(_dmesg(texts()))


def _same(text: str) -> Callable[[], Iterator[bytes]]:
    return lambda: itertools.repeat(text.encode() * (_BLOCK // len(text)))


KINDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "quiet": _of(_quiet),
    "quiet, no times": lambda: _bytes(f"{text}\n" for text in _quiet()),
    "one message repeated": _of(lambda: itertools.repeat(_MESSAGES[0].format(7))),
    "distinct messages": _of(_messages),
    "distinct names": _of(_named),
    "distinct names, each twice": _of(lambda: _named(times=2)),
    "distinct long names": _of(lambda: _named(tail="x" * 1900)),
    "dmesg -T": lambda: _bytes(_lines("[Tue Mar  3 {1:02}:{2:02}:{3:02} 2026] {0}\n")),
    "journal": lambda: _bytes(_lines("Mar 03 {1:02}:{2:02}:{3:02} client4 kernel: {0}\n")),
    "RFC 5424": lambda: _bytes(
        _lines("<4>1 2026-03-03T{1:02}:{2:02}:{3:02}+01:00 client4 kernel - - - {0}\n")
    ),
    "JSON": lambda: _bytes(_json()),
    "only cut here": _of(lambda: itertools.repeat(_CUT)),
    "only cut here, no times": _same(f"{_CUT}\n"),
    "only Call Trace": _of(_traces),
    "distinct frames": _of(_endless),
    "lockdep": _of(_lockdep),
    "one report repeated": _of(_warning),
    "four threads at once": lambda: _bytes(_callers()),
    "distinct processes": _of(_processes),
    "one line": lambda: itertools.repeat(b"nfs: server " * (_BLOCK // 12)),
    "only CR": lambda: (each.replace(b"\n", b"\r") for each in _bytes(_dmesg(_messages()))),
    "NULs": lambda: itertools.repeat(bytes(_BLOCK)),
    "NULs in lines": lambda: (each.replace(b" ", b"\0") for each in _bytes(_dmesg(_messages()))),
    "blank lines": lambda: itertools.repeat(b"\n" * _BLOCK),
    "random bytes": _random,
}


def block(kind: str, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of a log, in pieces."""
    for piece in KINDS[kind]():
        yield piece[:size]
        size -= len(piece)
        if size <= 0:
            return
