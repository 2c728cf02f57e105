# SPDX-License-Identifier: Apache-2.0
"""The part of a snapshot that describes a connection of a mount (snapshot.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Credits", "Personality", "Xprt"]


@dataclass(frozen=True)
class Credits:
    """Credits of a connection: granted by the server, and in use."""

    granted: int = 0
    used: int = 0


@dataclass(frozen=True)
class Personality:
    """The personality of a transport of our module, "" while it is not connected.

    GAUGES and COUNTERS of host/module/client_debugfs.py; counters without zeros.
    """

    name: str = ""
    gauges: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Xprt:
    """A connection of a mount; ``number`` is sunrpc's, or -1 if the kernel reports none."""

    number: int = -1
    kind: str = ""
    address: str = ""
    states: tuple[str, ...] = ()
    connected: bool | None = None
    credits: Credits = Credits()
    requests: int = 0
    sending: int = 0
    pending: int = 0
    backlog: int = 0
    connects: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    """The columns of mountstats by the kernel's names, without zeros."""
    personality: Personality | None = None
    """None for users other than root, and for transports of other modules."""
