# SPDX-License-Identifier: Apache-2.0
"""The collectors of the exporter: groups of metrics that ``--no-collector.NAME`` turns off."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["COLLECTORS", "NAMES", "needed_probes"]

COLLECTORS = {
    "mount": "options, bytes, read-ahead and oldest RPC of each mount",
    "rpc": "RPCs of each mount by operation, from mountstats",
    "xprt": "state, queues, credits and counters of each connection",
    "latency": "histogram and phases of RPC times (probes)",
    "chunks": "paths of messages and sizes of chunks (probes)",
    "registrations": "memory regions and how long they are mapped (probes)",
    "connections": "Calls that waited for a credit, events of connections (probes)",
    "readahead": "use of pages that were read ahead (probes)",
    "server": "nfsd, and RDMA Calls by client (probes)",
    "cpu": "busy time of all CPUs, and time by layer (probes)",
    "port": "state of each RDMA port",
    "event": "events that the dashboard shows",
}
"""The metrics of each collector.  A collector and its probe set have the same name."""

NAMES = tuple(COLLECTORS)


def needed_probes(names: Iterable[str]) -> tuple[str, ...]:
    """The probe sets of these collectors: no other is attached."""
    # not at the top: the command line reads COLLECTORS each time it starts
    from nfsrdma_tools.probes import probe_sets

    wanted = set(names)
    return tuple(name for name in probe_sets.NAMES if name in wanted)
