# SPDX-License-Identifier: Apache-2.0
"""Connections and pending RPCs of sunrpc: from sysfs for all users, from debugfs for root.

/sys/kernel/sunrpc/xprt-switches/switch-M/xprt-N-KIND (Linux 5.14 and later; net/sunrpc/sysfs.c)
has a transport's state and its congestion window: for RDMA these are credits (RFC 8166, section
3.3), 256 units each (RPC_CWNDSHIFT in include/linux/sunrpc/xprt.h).
/sys/kernel/debug/sunrpc/rpc_clnt/ID/tasks (net/sunrpc/debugfs.c) has a line for each pending RPC.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.files import readable
from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = ["Task", "Transport", "Transports", "parse_tasks", "tasks", "xprt_numbers"]

_PAIR = re.compile(r"^(\w+)=(\S*)", re.MULTILINE)
# number, flags, status, client, XID, timeout, operations [module], program and version, procedure,
# a:action [module] q:queue
_TASK = re.compile(
    r" *(?P<number>\d{1,10}) [0-9a-f]+ +-?\d+ 0x[0-9a-f]+ 0x(?P<xid>[0-9a-f]{1,8}) +-?\d+ "
    r"\S+(?: \[\w+\])? (?P<program>\w+)v\d+ (?P<procedure>no proc|\S+) "
    r"a:(?P<action>\S+)(?: \[\w+\])? q:(?P<queue>.*)"
)
_LONGEST_TASK = 1000
_SHIFT = 8


@dataclass(frozen=True)
class Transport:
    """A connection; ``states`` have the kernel's names, ``credits`` and ``used`` are 0 for TCP.

    ``requests`` are slots in use, ``backlog`` RPCs that wait for a slot, ``sending`` RPCs that
    wait to be sent, ``pending`` RPCs that wait for a reply.
    """

    number: int
    kind: str
    address: str
    states: tuple[str, ...]
    credits: int = 0
    used: int = 0
    requests: int = 0
    sending: int = 0
    pending: int = 0
    backlog: int = 0

    @property
    def connected(self) -> bool:
        """Whether it can carry RPCs now."""
        return "CONNECTED" in self.states


@dataclass(frozen=True)
class Task:
    """A pending RPC: its procedure, and the sunrpc queue in which it waits.

    ``program`` is "nfs", "nfsacl", "lockd" or another one; ``xid`` is 0 before it has a slot;
    ``action`` is the function of net/sunrpc/clnt.c that it is in, such as "call_refresh".
    """

    client: int
    number: int
    procedure: str
    waits_for: str
    program: str
    xid: int
    action: str


class Transports:
    """Reads transports repeatedly; an unchanged transport is the same object each time."""

    def __init__(self, numbers: Container[int] | None, machine: Machine = LIVE) -> None:
        """Find the transports of these numbers, or all, in this network namespace."""
        switches = machine.path("sys/kernel/sunrpc/xprt-switches")
        folders = ((int(p.name.split("-")[1]), p) for p in switches.glob("switch-*/xprt-*-*"))
        self._folders = {
            n: str(path) for n, path in sorted(folders) if numbers is None or n in numbers
        }
        self._known: dict[int, tuple[str, str, Transport]] = {}

    def read(self) -> dict[int, Transport]:
        """The transports that still exist, by number."""
        transports = {number: self._one(number, folder) for number, folder in self._folders.items()}
        return {number: each for number, each in transports.items() if each}

    def _one(self, number: int, folder: str) -> Transport | None:
        state, info = readable(f"{folder}/xprt_state"), readable(f"{folder}/xprt_info")
        if not state:
            return None
        have = self._known.get(number)
        if have and have[:2] == (state, info):
            return have[2]
        transport = _transport(number, folder, state, info)
        # the text contains the time of last use
        if have and have[2] == transport:
            transport = have[2]
        self._known[number] = state, info, transport
        return transport


def xprt_numbers(folder: Path) -> list[int]:
    """The numbers of the transports of a transport switch in sysfs; [] if it is gone."""
    try:
        return sorted(int(path.name.split("-")[1]) for path in folder.glob("xprt-*-*"))
    except (OSError, ValueError):
        return []


def _transport(number: int, folder: str, state: str, info: str) -> Transport:
    has = {name: int(v) for name, v in _PAIR.findall(info) if v.isdigit()}
    kind = folder.rsplit("-", 1)[1]
    window = kind == "rdma"
    return Transport(
        number=number,
        kind=kind,
        address=readable(f"{folder}/dstaddr").strip(),
        states=tuple(state.strip().removeprefix("state=").split()),
        credits=has.get("cong_win", 0) >> _SHIFT if window else 0,
        used=has.get("cur_cong", 0) >> _SHIFT if window else 0,
        requests=has.get("num_reqs", 0),
        sending=has.get("sending_q_len", 0),
        pending=has.get("pending_q_len", 0),
        backlog=has.get("backlog_q_len", 0),
    )


def tasks(client: int, machine: Machine = LIVE) -> list[Task]:
    """The pending RPCs of a client; empty for users other than root."""
    path = machine.path(f"sys/kernel/debug/sunrpc/rpc_clnt/{client:x}/tasks")
    return parse_tasks(client, readable(path))


def parse_tasks(client: int, text: str) -> list[Task]:
    """Parse the text of debugfs; lines of another format are left out."""
    lines = (line for line in text.split("\n") if len(line) <= _LONGEST_TASK)
    return [
        Task(
            client, int(match["number"]), match["procedure"], match["queue"],
            match["program"], int(match["xid"], 16), match["action"],
        )
        for match in map(_TASK.fullmatch, lines)
        if match
    ]  # fmt: skip
