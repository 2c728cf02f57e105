# SPDX-License-Identifier: Apache-2.0
"""Threadless reads: READs that module nfsrdma answers from the page cache, without nfsd.

The module parameter ``server_threadless`` is the largest READ in bytes, 0 turns them off.  Counters
of all connections are in debugfs (kmod/server/connection.c); only root reads them.  nfsd's counters
do not count these READs.  Older versions of the module have neither the parameter nor the counters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.errors import MismatchError, UsageError, UserError
from nfsrdma_tools.host import kernel_modules
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.host.nfs.personality import named_values
from nfsrdma_tools.host.nfsd import nfsctl
from nfsrdma_tools.host.transports import owner, serves_as
from nfsrdma_tools.host.tunables import Tunable
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.undo import Journal

__all__ = [
    "CONF",
    "NAME",
    "PARAMETER",
    "Counts",
    "Threadless",
    "check",
    "conf_text",
    "counts",
    "grown",
    "limit_in",
    "limit_of",
    "restore",
    "restoring",
    "set_limit",
    "status",
    "verify_port",
]

CONF = Path("/etc/modprobe.d/nfsrdma-threadless.conf")
"""Where `server enable` has modprobe set the parameter at each load of the module."""
_PARAMETER = "server_threadless"
PARAMETER = f"sys/module/{OURS}/parameters/{_PARAMETER}"
"""The file of the parameter, below the root."""
NAME = f"{OURS}.{_PARAMETER}"
"""Its name as a tunable."""
_DEBUG = "sys/kernel/debug/nfsrdma-server"
_STEP, _MOST = 4096, 131072
_COUNTER = re.compile(r"threadless_(hits|bytes|missed_\w{1,40})")
_NUMBER = re.compile(r"[0-9]{1,20}")
_ENTRIES = re.compile(r"([0-9]{1,20}) of ([0-9]{1,20})")

Counts = dict[str, int]
"""``hits``, the ``bytes`` of their data, and ``missed_REASON``: READs that nfsd got after all."""


@dataclass(frozen=True)
class Threadless:
    """Threadless reads of this host's server.

    All but ``limit`` is None, or empty, for users other than root.
    """

    limit: int
    """The largest READ in bytes; 0: off."""
    hits: int | None = None
    """READs that the module answered since it was loaded."""
    bytes: int | None = None
    """Bytes of data in these replies."""
    missed: dict[str, int] = field(default_factory=dict)
    """READs that nfsd got after all, by reason; without zeros."""
    nfsd_reads: int | None = None
    """READs of all clients that nfsd executed since it was loaded."""
    reads: int | None = None
    """The sum of ``nfsd_reads`` and ``hits``."""
    entries: int | None = None
    """Pairs of a file and a user that may be answered at present."""
    entries_max: int | None = None


def status(machine: Machine = LIVE) -> Threadless | None:
    """Read limit and counters; None unless the module is loaded and has threadless reads."""
    limit = limit_of(machine)
    if limit is None:
        return None
    debug = machine.path(_DEBUG)
    totals = named_values(debug / "totals")
    if not totals:
        return Threadless(limit)
    total = _counts(totals)
    hits, missed = total.get("hits", 0), {name: n for name, n in total.items() if "missed" in name}
    served = nfsctl.parse_statistics(machine.text("proc/net/rpc/nfsd"))
    entries = _ENTRIES.fullmatch(totals.get("threadless_entries", ""))
    return Threadless(
        limit=limit,
        hits=hits,
        bytes=total.get("bytes", 0),
        missed={name.removeprefix("missed_"): count for name, count in missed.items() if count},
        nfsd_reads=served.reads,
        reads=served.reads + hits,
        entries=int(entries[1]) if entries else None,
        entries_max=int(entries[2]) if entries else None,
    )


def limit_of(machine: Machine = LIVE) -> int | None:
    """The parameter in bytes; None if no module that has it is loaded."""
    return limit_in(machine.path(PARAMETER))


def limit_in(parameter: Path) -> int | None:
    """The same, for the path of the parameter."""
    text = files.readable(parameter).strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def counts(debug: Path) -> Counts:
    """The counters of all connections since the module was loaded.

    {} for users other than root, and if the module has no such counters.
    """
    return _counts(named_values(debug / "totals"))


def _counts(totals: Mapping[str, str]) -> Counts:
    named = ((_COUNTER.fullmatch(name), value) for name, value in totals.items())
    return {match[1]: int(value) for match, value in named if match and _NUMBER.fullmatch(value)}


def grown(now: Mapping[str, int], before: Mapping[str, int]) -> Counts:
    """The differences of two readings that are above 0; each load of the module counts from 0."""
    added = {name: n - before.get(name, 0) for name, n in now.items()}
    return {name: n for name, n in added.items() if n > 0}


def check(limit: int) -> None:
    """Raise UsageError if the module would refuse ``limit``, UserError if no module has it."""
    if limit % _STEP or not 0 <= limit <= _MOST:
        hint = f"use 0, or {_STEP} to {_MOST} in steps of {_STEP}"
        raise UsageError(f"{limit} bytes is no limit of threadless reads", hint)
    if limit_of() is not None:
        return
    if OURS in kernel_modules.loaded():
        message = f"the loaded {OURS} has no parameter {_PARAMETER}"
        raise UserError(message, "load this version: nfsrdma module load")
    loaded = owner() or "no transport module"
    raise UserError(
        f"threadless reads need module {OURS}: found {loaded}", "load it: nfsrdma module load"
    )


def set_limit(limit: int, journal: Journal) -> None:
    """Set the parameter; ``journal`` gets the undo.  MismatchError if another value is in effect.

    It applies at once, also to connections that exist.
    """
    Tunable.parse(NAME).set(str(limit), journal)


def verify_port(port: int) -> None:
    """Raise MismatchError unless nfsd listens on ``port`` with module nfsrdma."""
    listeners = [listener for listener in nfsctl.listeners() if listener.port == port]
    if serves_as(OURS) not in {listener.transport for listener in listeners}:
        shown = ", ".join(map(str, listeners)) or "none"
        hint = f"threadless reads need a listener of {OURS}: restart nfsd with its module loaded"
        raise MismatchError(f"listener on RDMA port {port}", f"of {OURS}", shown, hint)


def conf_text(limit: int) -> str:
    """The text of ``CONF``."""
    return (
        "# written by nfsrdma server enable; nfsrdma server disable removes it\n"
        f"options {OURS} {_PARAMETER}={limit}\n"
    )


def restore(limit: int | None, before: int) -> None:
    """Give the parameter the value from ``before``, and remove ``CONF``; nothing if limit is None.

    A value other than ``limit`` is an administrator's, and is kept.
    """
    if limit:
        files.remove(CONF)
    if _is_ours(limit, before):
        try:
            LIVE.path(PARAMETER).write_text(str(before))
        except OSError as error:
            raise UserError(f"cannot set {NAME} to {before}: {error.strerror}") from error
        if (current := limit_of()) != before:
            raise MismatchError(NAME, before, current)


def restoring(limit: int | None, before: int) -> list[str]:
    """The changes that ``restore`` would make, in order."""
    return [
        *([f"remove {CONF}"] if limit else []),
        *([f"set {NAME} to {before}"] if _is_ours(limit, before) else []),
    ]


def _is_ours(limit: int | None, before: int) -> bool:
    return limit is not None and limit_of() == limit != before
