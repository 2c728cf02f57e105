# SPDX-License-Identifier: Apache-2.0
"""An NFS server of this host that is not the kernel's, such as nfs-ganesha.

It shows in the TCP listeners on the ports of NFS (/proc/net/tcp, net/ipv4/tcp_ipv4.c), and in the
listeners of rdma_cm on these ports (RDMA netlink), while the kernel's server has no listener.  Only
root sees whose sockets these are.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine
from nfsrdma_tools.host.nfs import units
from nfsrdma_tools.host.nfsd import ganesha, nfsctl
from nfsrdma_tools.nfs_ports import NFS_PORT, RDMA_PORT

__all__ = [
    "FACT",
    "PROGRAMS",
    "RDMA_FACT",
    "OtherServer",
    "known_fact",
    "listening_lines",
    "other_server",
]

FACT = "nfs server program"
"""The name of the fact: only on its own host can the process of a socket be found."""
RDMA_FACT = "nfs server over rdma"
"""The same of a listener of rdma_cm: its port and its program."""
_SERVED = (NFS_PORT, RDMA_PORT)
_GANESHA, _UNIT = "ganesha.nfsd", "nfs-ganesha.service"
PROGRAMS = frozenset({_GANESHA, "unfsd", "glusterfs", "haproxy", "nginx", "envoy", "ssh"})
"""The programs whose names an anonymized bundle may have."""
_FILES = ("proc/net/tcp", "proc/net/tcp6")
_LISTEN = "0A"
_INODE = 9


@dataclass(frozen=True)
class OtherServer:
    """A server in place of the kernel's."""

    ports: tuple[int, ...]
    program: str
    """The name of its process, or of its unit; "" if neither is known."""
    rdma_ports: tuple[int, ...] = ()
    configured: str = ""
    """What nfs-ganesha's configuration says about RDMA, if it is that program."""

    def __str__(self) -> str:
        tcp, rdma = (f"TCP {port}" for port in self.ports), (f"RDMA {p}" for p in self.rdma_ports)
        where = " and ".join((*tcp, *rdma))
        more = f" ({self.configured})" if self.configured else ""
        return f"{self.program or 'another program'} listens on {where}{more}"


class _Socket(NamedTuple):
    port: int
    inode: str
    """"" if it was not recorded."""


def other_server(machine: Machine) -> OtherServer | None:
    """The server; None if the kernel's has listeners, or no other one listens or was recorded."""
    if nfsctl.listeners(machine):
        return None
    sockets = [sock for name in _FILES for sock in _sockets(machine.text(name))]
    port, _, over_rdma = machine.fact(RDMA_FACT, lambda: _over_rdma(machine)).partition(" ")
    rdma_ports = (int(port),) if _is_served(port) else ()
    if not sockets and not rdma_ports:
        return None
    program = over_rdma
    if sockets:
        inodes = frozenset(sock.inode for sock in sockets if sock.inode)
        program = machine.fact(FACT, lambda: _program(machine.path("proc"), inodes)) or over_rdma
    ports = tuple(sorted({sock.port for sock in sockets}))
    program = program or _unit(machine)
    config = ganesha.configured(machine) if program in ("", _GANESHA, _UNIT) else None
    return OtherServer(ports, program, rdma_ports, str(config) if config else "")


def known_fact(value: str) -> bool:
    """Whether a value of RDMA_FACT has nothing that an anonymized bundle must not have."""
    port, _, program = value.partition(" ")
    return _is_served(port) and program in (*PROGRAMS, "")


def _is_served(port: str) -> bool:
    return port in map(str, _SERVED)


def _over_rdma(machine: Machine) -> str:
    """The port of NFS on which a process listens by rdma_cm, and its name; "" if none does."""
    try:
        if not machine.links():
            return ""
        from nfsrdma_tools.host.rdma import nldev

        listeners = nldev.listeners()
    except UserError:
        # without ib_core there is none
        return ""
    for listener in listeners:
        if listener.port in _SERVED:
            return f"{listener.port} {machine.text(f'proc/{listener.pid}/comm').strip()}".strip()
    return ""


def _unit(machine: Machine) -> str:
    state = units.states(machine, [_UNIT]).get(_UNIT)
    return _UNIT if state and state.active == "active" else ""


def _sockets(text: str) -> Iterator[_Socket]:
    """The listeners on the ports of NFS."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 3 and words[3] == _LISTEN:
            port = words[1].rpartition(":")[2]
            if re.fullmatch("[0-9A-F]{4}", port) and int(port, 16) in _SERVED:
                yield _Socket(int(port, 16), words[_INODE] if len(words) > _INODE else "")


def listening_lines(text: str) -> str:
    """The listeners on the ports of NFS in the form of /proc/net/tcp: port and state alone."""
    ports = sorted({sock.port for sock in _sockets(text)})
    return "".join(f"{n}: 0:{port:04X} 0:0000 {_LISTEN}\n" for n, port in enumerate(ports))


def _program(proc: Path, inodes: frozenset[str]) -> str:
    """The name of the process that has one of these sockets; "" if this user sees none."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.glob("[0-9]*"):
        # processes come and go, and others' descriptors need root
        with contextlib.suppress(OSError):
            for descriptor in os.scandir(process / "fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path) in wanted:  # noqa: PTH115 -- the text
                        return files.text(process / "comm", "replace").strip()
    return ""
