# SPDX-License-Identifier: Apache-2.0
"""Snapshots that tests make: a mount that reads, and what they change of it."""

from dataclasses import replace
from typing import Any

from nfsrdma_tools.host.nfs.personality import COUNTERS, GAUGES
from nfsrdma_tools.host.nfsd_status import PendingRpc
from nfsrdma_tools.live.snapshot import (
    Chunks,
    Client,
    Credits,
    Event,
    Layer,
    Mount,
    Op,
    Personality,
    Port,
    Processors,
    Regions,
    Server,
    Snapshot,
    Timing,
    Xprt,
)

HOSTILE = "/mnt/<script>alert(1)</script>[bold]\x1b[31m\"'\n{{x}}\udcff"
"""A directory's name that every face has to show as text."""


def op(name: str = "READ", count: int = 100, each_ms: int = 2, **more: Any) -> Op:
    bytes_ = {"received": count * 65536} if name == "READ" else {"sent": count * 65536}
    times = {"rtt_ms": count * each_ms, "execute_ms": count * each_ms}
    return Op(name, count, **{**bytes_, **times, **more})


def mount(directory: str = "/mnt", **more: Any) -> Mount:
    return Mount(
        **{
            "device": "0:45", "directory": directory, "target": "server:/export",
            "fstype": "nfs4", "transport": "rdma", "vers": "4.2", "rsize": 65536, "wsize": 65536,
            "read_ahead_kb": 1024, "read": 6553600,
            "ops": (op(), op("GETATTR", 5, 1, sent=900)),
            "xprts": (xprt(),),
            "timings": (
                Timing(
                    "READ", 100, 200_000_000,
                    {"slot": 1_000_000, "queue": 9_000_000, "network_and_server": 190_000_000},
                    ((30, 20), (40, 75), (52, 5)),
                ),
            ),
            "chunks": (
                Chunks("READ", {"rpcs": 100, "replies_write": 100, "write_used": 6553600},
                       {"write": ((17, 100),)}),
            ),
            "regions": Regions({"mapped": 100, "registered": 100, "remote_invalidations": 100}),
            **more,
        }
    )  # fmt: skip


def xprt(**more: Any) -> Xprt:
    return Xprt(**{
        "number": 3, "kind": "rdma", "address": "10.9.1.1", "states": ("CONNECTED", "BOUND"),
        "connected": True, "credits": Credits(64, 3), "requests": 3,
        "counters": {"sends": 105, "recvs": 105, "write_chunk_count": 100}, **more,
    })  # fmt: skip


def snapshot(number: int = 1, mounts: tuple[Mount, ...] | None = None, **more: Any) -> Snapshot:
    return Snapshot(
        **{
            "time": 1_800_000_000.0 + number, "seconds": 1.0, "number": number,
            "host": "client1", "kernel": "6.12.1",
            "mounts": (mount(),) if mounts is None else mounts,
            "processors": Processors(2, 10**9, 10**9, 10**10, (
                Layer("emulated NIC", 0, 0, 4 * 10**9), Layer("nfs", 10**9),
                Layer("nfsd", 0, 10**9),
            )),
            "ports": (Port("rxe0/1", "eth1", "ACTIVE", "LinkUp"),),
            **more,
        }
    )  # fmt: skip


def served() -> Server:
    row = Client(
        "10.9.1.11", "READ", {"calls": 40, "write_calls": 40, "written": 2621440}, 80_000_000,
        {"queue": 1_000_000, "nfsd": 60_000_000, "write_out": 19_000_000}, ((8, 40),),
    )  # fmt: skip
    grants = {"grants": 5, "granted_bytes": 5242880, "revoked_modified": 2}
    return Server(
        8, ("tcp 2049", "rdma 20049"), 2621440, 0, 45, 0, (row,), 131072, 2, 16, 3145728, grants
    )  # fmt: skip


_MEANS = {"nfsd": 40_000, "send": 30_000}
SENDS = replace(
    served(), clients=(Client("10.0.0.1", "READ", {"calls": 40, "sends": 10}, 80_000, _MEANS),)
)
"""Replies to 40 Calls; the server requested the completion of 10 of them."""


def a_thousand_clients() -> Snapshot:
    """A server with clients of four procedures each; the last ones are the busiest."""
    (row,) = served().clients
    phases = dict.fromkeys(("queue", "fetch", "nfsd", "write_out", "send"), 1000)
    rows = tuple(
        replace(row, peer=f"10.9.{number // 250}.{number % 250}", procedure=op, phases=phases,
                ns=row.ns + number)
        for number in range(1000)
        for op in ("READ", "WRITE", "GETATTR", "LOOKUP")
    )  # fmt: skip
    return snapshot(server=replace(served(), clients=rows))


def held() -> PendingRpc:
    """A WRITE over RDMA that nfsd has had for a minute and a half."""
    return PendingRpc(0x0AA6501C, 100003, 3, 7, 86_900_000, "10.9.1.11", 0, "10.9.1.1", 20049)


def served_threadless() -> Server:
    """The same, and READs that the module answered without nfsd."""
    (row,) = served().clients
    own = {"threadless_hits": 30, "threadless_bytes": 122880}
    return replace(
        served(),
        clients=(replace(row, counts=row.counts | own),),
        threadless={"hits": 30, "bytes": 122880, "missed_absent": 2},
    )


def personality() -> Personality:
    """All figures of a personality; a connection of our module has some of them."""
    return Personality("pre-posted", dict.fromkeys(GAUGES, 4), dict.fromkeys(COUNTERS, 7))


def hostile() -> Snapshot:
    """Names nobody should have, wherever there is a name."""
    bad = mount(HOSTILE, target=f"evil:{HOSTILE}", device="0:46", limit=HOSTILE)
    event = Event(1_800_000_000.5, "stall", HOSTILE, HOSTILE, HOSTILE, "error")
    return snapshot(1, (mount(), bad), host=HOSTILE, events=(event,), missing={HOSTILE: HOSTILE})


def changed(number: int, **more: Any) -> Snapshot:
    """A snapshot whose one mount has these fields."""
    return snapshot(number, (replace(mount(), **more),))
