# SPDX-License-Identifier: Apache-2.0
"""Faults between a client and its server, each as a script for the node where it happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nfsrdma_tools.lab.nodes import Nodes
from testbed.mounts import LIMIT
from testbed.node.programs import call

__all__ = [
    "AGAIN",
    "CUT_OFF",
    "FAULTS",
    "LINK_DOWN",
    "RESTARTED",
    "SILENT",
    "SOUND",
    "Fault",
    "silence",
]

# rxe0 or siw0
AGAIN = """
device=$(ls /sys/class/infiniband)
rdma link delete "$device"
rdma link add "$device" type "${device%0}" netdev eth1
"""
# Soft-RoCE ends its queue pair for datagrams when one cannot be sent, for good (rxe_requester() in
# drivers/infiniband/sw/rxe/rxe_req.c): after that only a new device connects to anybody. It is not
# made before the link is up: a network card that is down keeps packets that the old one waits for.
LINK_DOWN = """
sysctl -qw net.ipv6.conf.eth1.keep_addr_on_down=1
ip link set eth1 down
"""
_DOWN = f"""{LINK_DOWN}
sleep 0.3
ip link set eth1 up
{AGAIN}"""
# RoCE; and iWARP, whose TCP port is the one that NFS asked for
_ROCE, _IWARP = "udp dport 4791 drop;", "tcp dport 20049 drop; tcp sport 20049 drop;"
_IN = f"chain in {{ type filter hook input priority 0; {_ROCE} {_IWARP} }};"
# from here on no RDMA packet arrives; dropped where they leave, rxe would notice
SILENT = f"nft 'table inet silent {{ {_IN} }}'\n"
SOUND = "nft delete table inet silent\n"
# from here on none arrives from the address $1
CUT_OFF = f"nft 'table inet silent {{ {_IN} }}'".replace("udp", "ip saddr '$1' udp").replace(
    "tcp", "ip saddr '$1' tcp"
)
# longer than a queue pair goes on trying
_SILENCE = f"{SILENT}sleep 25\n{SOUND}"
# the address that is there goes, one a hundred higher comes, or the other way round
_MOVED = """
sysctl -qw net.ipv4.conf.eth1.promote_secondaries=1
here=$(ip -o -4 addr show dev eth1 | awk '{print $4}')
last=${here##*.}
last=${last%/24}
if [ "$last" -gt 100 ]; then there=$((last - 100)); else there=$((last + 100)); fi
ip addr add "10.9.1.$there/24" dev eth1
ip addr del "$here" dev eth1
"""


@dataclass(frozen=True)
class Fault:
    """A fault: where it happens, what does it, and whether a reply sent before it may be lost.

    A server that restarts loses its record of answered Calls, and executes a Call that is sent
    again as a new one: its cache of replies is in memory, as are its sessions (RFC 8881, section
    2.10.6.5).
    """

    name: str
    node: str
    script: str
    forgets: bool = False

    @property
    def removes(self) -> bool:
        """Whether an RDMA device goes meanwhile."""
        return "rdma link delete" in self.script

    def happen(self, lab: Nodes) -> None:
        """Have it happen in a lab; it may take a while."""
        lab.run(self.node, "sh", "-ec", self.script, timeout=LIMIT)


@contextmanager
def silence() -> Iterator[None]:
    """No RDMA packet arrives in the node that runs this, as long as the block takes."""
    call("sh", "-ec", SILENT)
    try:
        yield
    finally:
        call("sh", "-ec", SOUND)


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("client's device removed", "client", AGAIN),
        Fault("server's device removed", "server", AGAIN),
        Fault("client's link down", "client", _DOWN),
        Fault("server's link down", "server", _DOWN),
        Fault("server silent", "server", _SILENCE),
        Fault("client moved", "client", _MOVED),
        Fault("server restarted", "server", "systemctl restart nfs-server\n", forgets=True),
    )
}
# ends the grace period, too, in which nobody reads with NFSv4.1
RESTARTED = Fault(
    "server restarted, no grace",
    "server",
    "systemctl restart nfs-server; echo Y > /proc/fs/nfsd/v4_end_grace || true",
)
