# SPDX-License-Identifier: Apache-2.0
"""The counters of the host at one time, and which sources could not be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host import cpu_time
from nfsrdma_tools.host.nfs import mountstats
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.host.nfsd import nfsctl, threadless
from nfsrdma_tools.live.collect import device_counters

__all__ = ["BUSIEST", "NEARLY", "SLOWLY", "Readings", "Sources", "rounded"]

# CPUs, links and disks that are busy for half of the time are in a snapshot: the judgement needs
# those that are full, and a person those that are nearly full
NEARLY = 0.5
BUSIEST = 4
"""The most CPUs or disks in a snapshot."""
# settings change rarely: read a part of them in each interval, all of them in so many
SLOWLY = 10
_T = TypeVar("_T")


@dataclass(frozen=True)
class Readings:
    """The counters of the host; two readings make an interval."""

    mounts: Mapping[str, mountstats.MountStats] = field(default_factory=dict)
    """By mount point."""
    cpu: cpu_time.CpuCounters | None = None
    at: int = 0
    """The monotonic clock (ns) at the reading of ``ticks``, ``links`` and ``disks``."""
    ticks: Mapping[int, cpu_time.CpuTicks] = field(default_factory=dict)
    links: Mapping[str, device_counters.LinkCounts] = field(default_factory=dict)
    disks: Mapping[str, device_counters.DiskCounts] = field(default_factory=dict)
    """Empty on a host that exports nothing."""
    nfsd: nfsctl.Served | None = None
    pools: nfsctl.PoolCounts = field(default_factory=nfsctl.PoolCounts)
    transports: Mapping[int, ClientTransport] = field(default_factory=dict)
    """Transports of our module by number; empty for users other than root."""
    threadless: threadless.Counts | None = None
    """Threadless reads of our server; None: they are off, or not known."""


class Sources:
    """Reads sources; ``missing`` has those that could not be read the last time, and why."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}

    def read(self, name: str, read: Callable[[], _T]) -> _T | None:
        """What ``read`` returns; None if it raises OSError or UserError."""
        try:
            value = read()
        except (OSError, UserError) as error:
            self.missing[name] = getattr(error, "strerror", None) or str(error)
            return None
        self.missing.pop(name, None)
        return value


def rounded(share: float) -> float:
    """Three places are enough, and make a recording shorter."""
    return round(share, 3)
