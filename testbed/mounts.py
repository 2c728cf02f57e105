# SPDX-License-Identifier: Apache-2.0
"""Mounts by our module in a node, its parameters, and the connections and RDMA objects there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from nfsrdma_tools.lab.nodes import Nodes

__all__ = [
    "HERE",
    "LIMIT",
    "connections",
    "mounted",
    "nothing_lost",
    "resources",
    "set_parameters",
    "set_to",
]

PARAMETERS = "/sys/module/nfsrdma/parameters"
HERE = "/mnt/here"
# a hard mount goes on for ever; a test does not
LIMIT = 600.0


def set_to(lab: Nodes, node: str, parameter: str, value: str) -> None:
    """Set a parameter of our module; connections made afterwards use it."""
    lab.run(node, "tee", f"{PARAMETERS}/{parameter}", stdin=f"{value}\n".encode())


@contextmanager
def set_parameters(lab: Nodes, node: str = "client", **values: int) -> Iterator[None]:
    """Set parameters of the module for a while; connections made meanwhile use them."""
    before = {name: lab.run(node, "cat", f"{PARAMETERS}/{name}").stdout.strip() for name in values}
    try:
        for name, value in values.items():
            set_to(lab, node, name, str(value))
        yield
    finally:
        for name, text in before.items():
            set_to(lab, node, name, text)


@contextmanager
def mounted(
    lab: Nodes, options: str, off: tuple[str, ...] = ("umount",), node: str = "client"
) -> Iterator[None]:
    """A mount by our module at /mnt/here of a node; ``off`` takes it off."""
    words = f"{options},proto=rdma,port=20049"
    script = f"mkdir -p {HERE} && mount -t nfs -o {words} server:/export {HERE}"
    lab.run(node, "sh", "-c", script)
    assert connections(lab, node), "the mount is not carried by our module"
    try:
        yield
    finally:
        lab.run(node, *off, HERE, timeout=LIMIT)


def connections(lab: Nodes, node: str = "client", folder: str = "nfsrdma") -> list[dict[str, str]]:
    """The values in debugfs of each connection of our module, by name."""
    script = f"cd /sys/kernel/debug/{folder} && for n in */; do cat $n*; echo; done"
    output = lab.run(node, "sh", "-c", script).stdout
    # of a transport that is ending there may be a folder and no files
    texts = [text.strip() for text in output.split("\n\n")]
    return [dict(line.split(" ", 1) for line in text.splitlines()) for text in texts if text]


def resources(lab: Nodes, node: str = "client") -> dict[str, int]:
    """RDMA objects in a node by kind, as the kernel counts them; the device's own are there too."""
    devices = json.loads(lab.run(node, "rdma", "-j", "resource").stdout)
    return {name: count for name, count in devices[0].items() if name not in ("ifindex", "ifname")}


@contextmanager
def nothing_lost(lab: Nodes, *nodes: str, limit: float = 600) -> Iterator[None]:
    """RDMA objects of nodes are as many afterwards as before; connections need time to end."""
    before = _settled(lab, nodes)
    yield
    end = time.monotonic() + limit
    while (after := _objects(lab, nodes)) != before:
        assert time.monotonic() < end, f"{after}, not {before}"
        time.sleep(0.5)


def _objects(lab: Nodes, nodes: Sequence[str]) -> dict[str, dict[str, int]]:
    return {node: resources(lab, node) for node in nodes}


def _settled(lab: Nodes, nodes: Sequence[str]) -> dict[str, dict[str, int]]:
    """The RDMA objects of nodes once they stay the same: a test before may leave some that end."""
    now = _objects(lab, nodes)
    for _ in range(60):
        before = now
        time.sleep(0.5)
        now = _objects(lab, nodes)
        if now == before:
            break
    return now
