# SPDX-License-Identifier: Apache-2.0
"""Connections and RPCs under way, as sunrpc shows them: its sysfs for all, its debugfs for root.

/sys/kernel/sunrpc/xprt-switches/switch-M/xprt-N-KIND (Linux 5.14 on; net/sunrpc/sysfs.c) has a
transport's state and its window: for RDMA, credits (RFC 8166, section 3.3), 256 for each
(RPC_CWNDSHIFT in include/linux/sunrpc/xprt.h).  /sys/kernel/debug/sunrpc/rpc_clnt/ID/tasks
(net/sunrpc/debugfs.c) has a line for each RPC that is not done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.files import readable

__all__ = ["Task", "Transport", "parse_tasks", "tasks", "transports"]

_SWITCHES = Path("/sys/kernel/sunrpc/xprt-switches")
_CLIENTS = Path("/sys/kernel/debug/sunrpc/rpc_clnt")
_PAIR = re.compile(r"^(\w+)=(\S*)", re.MULTILINE)
# number ... operations [module] program and version, procedure, a:action [module] q:queue
_TASK = re.compile(r"^ *(\d+) [^\n]* (\S+) a:\S+(?: \[\w+\])? q:([^\n]*)$", re.MULTILINE)
_SHIFT = 8


@dataclass(frozen=True)
class Transport:
    """A connection; ``states`` are the kernel's words, ``credits`` and ``used`` 0 without RDMA.

    ``requests`` are slots in use, ``backlog`` RPCs that wait for one, ``sending`` those that wait
    for their turn, ``pending`` those that wait for an answer.
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
    """An RPC that is not done: what it is, and what it waits for (a queue of sunrpc's)."""

    client: int
    number: int
    procedure: str
    waits_for: str


def transports(numbers: set[int] | None = None, switches: Path = _SWITCHES) -> list[Transport]:
    """All transports of this network namespace, or those of these numbers."""
    folders = [(int(path.name.split("-")[1]), path) for path in switches.glob("switch-*/xprt-*-*")]
    wanted = [(n, path) for n, path in sorted(folders) if numbers is None or n in numbers]
    return [_transport(number, path) for number, path in wanted]


def _transport(number: int, folder: Path) -> Transport:
    has = {name: int(v) for name, v in _PAIR.findall(readable(folder / "xprt_info")) if v.isdigit()}
    kind = folder.name.rsplit("-", 1)[1]
    window = kind == "rdma"
    return Transport(
        number=number,
        kind=kind,
        address=readable(folder / "dstaddr").strip(),
        states=tuple(readable(folder / "xprt_state").strip().removeprefix("state=").split()),
        credits=has.get("cong_win", 0) >> _SHIFT if window else 0,
        used=has.get("cur_cong", 0) >> _SHIFT if window else 0,
        requests=has.get("num_reqs", 0),
        sending=has.get("sending_q_len", 0),
        pending=has.get("pending_q_len", 0),
        backlog=has.get("backlog_q_len", 0),
    )


def tasks(client: int, clients: Path = _CLIENTS) -> list[Task]:
    """The RPCs of a client that are under way; none for others than root."""
    return parse_tasks(client, readable(clients / f"{client:x}" / "tasks"))


def parse_tasks(client: int, text: str) -> list[Task]:
    """Read debugfs' text; what has another form is left out."""
    return [Task(client, int(m[1]), m[2], m[3]) for m in _TASK.finditer(text)]
