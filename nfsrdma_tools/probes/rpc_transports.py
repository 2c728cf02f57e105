# SPDX-License-Identifier: Apache-2.0
"""Maps transports to mounts: sunrpc's sysfs lists the transports of each client.

In /sys/kernel/sunrpc (since Linux 5.14; net/sunrpc/sysfs.c) ``rpc-clients/clnt-N/switch`` links to
``xprt-switches/switch-M``, in which each transport has an entry ``xprt-NUMBER-KIND``.
"""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.host.nfs.sunrpc import numbers

__all__ = ["is_there", "mounts_of_transports"]

_SYSFS = Path("/sys/kernel/sunrpc")


def mounts_of_transports(
    clients: dict[int, tuple[str, ...]], sysfs: Path = _SYSFS
) -> dict[int, tuple[str, ...]]:
    """Mount points by the number of the transport they use; several may share one."""
    found: dict[int, set[str]] = {}
    for client, names in clients.items():
        for number in numbers(sysfs / "rpc-clients" / f"clnt-{client}" / "switch"):
            found.setdefault(number, set()).update(names)
    return {number: tuple(sorted(names)) for number, names in found.items()}


def is_there(ours: bool, number: int) -> bool:
    """Whether sunrpc has this transport (ours) or client; True if sysfs does not list them."""
    folder = f"xprt-switches/*/xprt-{number}-*" if ours else f"rpc-clients/clnt-{number}"
    return not _SYSFS.is_dir() or any(_SYSFS.glob(folder))
