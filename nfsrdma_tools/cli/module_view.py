# SPDX-License-Identifier: Apache-2.0
"""Output of ``nfsrdma module``: progress of a build, the result of `load`, the status table."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any, Self

from nfsrdma_tools.errors import printable
from nfsrdma_tools.host.kernel_modules import ModuleFile
from nfsrdma_tools.host.module import build as module_build
from nfsrdma_tools.host.module.build import Build
from nfsrdma_tools.host.module.server_debugfs import Client, ServerTransport
from nfsrdma_tools.host.module.status import ParameterValue, Status
from nfsrdma_tools.host.nfs.personality import ClientTransport
from nfsrdma_tools.host.transports import owner, serves_as
from nfsrdma_tools.module_source import OURS
from nfsrdma_tools.sizes import format_size

__all__ = ["build", "facts", "lines", "loaded"]


def build(kernel: str = "", force: bool = False) -> Build:
    """Build the module and show progress on standard error."""
    with _Building() as line:
        return module_build.build(kernel, force, line.show)


class _Building:
    """A progress line on standard error while a build runs; with seconds on a terminal."""

    def __init__(self) -> None:
        self._start, self._shown = time.monotonic(), ""

    def __enter__(self) -> Self:
        """Return itself; the line appears when a build starts."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the line."""
        if self._shown and sys.stderr.isatty():
            print(file=sys.stderr)

    def show(self, release: str) -> None:
        """Show what is built and for how long; called a few times a second."""
        text = f"building nfsrdma for {release}"
        if sys.stderr.isatty():
            print(f"\r{text} ({time.monotonic() - self._start:.0f} s)", end="", file=sys.stderr)
        elif not self._shown:
            print(text, file=sys.stderr, flush=True)
        self._shown = text


def loaded(wanted: ModuleFile, new: bool, before: str, values: dict[str, str]) -> list[str]:
    """The result of `load` as lines; ``before`` is the module that carried mounts until now."""
    what, now = f"{OURS} {wanted.version} (srcversion {wanted.srcversion})", owner()
    if not new:
        more = [f"{name} is now {value}" for name, value in values.items()]
        more += [f"mounts with proto=rdma use {now}"] if now not in ("", OURS) else []
        return [f"{what} was already loaded{'; ' if more else ''}{', '.join(more)}"]
    back = "  lasts until a reboot; undo: nfsrdma module unload"
    if now == OURS:
        instead = f", instead of {before}" if before not in ("", OURS) else ""
        return [f"{what} is now the transport module{instead}", back]
    name = serves_as(OURS)
    kept = f", beside {now}" if now else ""
    way = f"  to let nfsd listen on it: echo '{name} PORT' > /proc/fs/nfsd/portlist"
    return [
        f"{what} is now a server transport{kept}, not a client transport",
        *([way] if name else []),
        back,
    ]


def facts(found: Status) -> dict[str, Any]:
    """The status as plain values, for JSON."""
    return {
        **asdict(found),
        "source": str(found.source),
        "built": str(found.built) if found.built else None,
        "loaded_is_this_source": found.current,
    }


def lines(found: Status) -> list[str]:
    """The status as lines, a fact per line."""
    rows = [
        ("kernel", found.release),
        ("module", _module(found)),
        *(("server", text) for text in _server(found)),
        *(("client", _client(each)) for each in (found.server.clients if found.server else ())),
        *(("transport", _transport(each)) for each in found.transports),
        ("source", f"{found.source}, hash {found.source_hash}"),
        ("built", _built(found)),
        *(("parameter", _tunable(each)) for each in found.tunables),
        *(("user", user) for user in found.users or ("none",)),
        *(("dkms", text) for text in _dkms(found)),
    ]
    return [printable(f"{name:9}  {text}") for name, text in rows]


def _module(found: Status) -> str:
    if not found.owner:
        return "none; a mount with proto=rdma loads one"
    who = {"nfsrdma": "of this project", "rpcrdma": "of the kernel"}.get(found.owner, "unknown")
    version = f" {found.version}" if found.version else ""
    source = f", srcversion {found.srcversion}" if found.srcversion else ""
    return f"{found.owner}{version}, {who}{source}"


def _server(found: Status) -> list[str]:
    if not found.server:
        return []
    whose = "" if found.owner == OURS else f", srcversion {found.ours}"
    accepts = ", ".join(found.server.personalities)
    load = _load(found.server)
    return [f"{OURS}, for nfsd {found.server.name}{whose}{load}; accepts {accepts}"]


def _load(server: ServerTransport) -> str:
    if server.connections is None:
        return "; connections unknown (needs root)"
    load = [f"{server.connections} of {server.connections_max} connections"]
    for used, what in ((server.memory, "RDMA Reads"), (server.reply_memory, "replies")):
        if used is not None and server.memory_max is not None:
            load.append(f"{format_size(used)} of {format_size(server.memory_max)} for {what}")
    load += _exposed(server.exposed_memory, server.dones_outstanding, server.lanes)
    if server.granted_memory and server.granted_max:
        most = format_size(server.granted_max)
        load.append(f"{format_size(server.granted_memory)} of {most} of the page cache granted")
    return f"; {', '.join(load)}"


def _exposed(memory: int | None, dones: int | None, lanes: int | None) -> list[str]:
    """Resources that personalities other than read-write use, without those that are 0."""
    return [
        *([f"{format_size(memory)} exposed"] if memory else []),
        *([f"{dones} RDMA_DONEs outstanding"] if dones else []),
        *([f"{lanes} lanes"] if lanes else []),
    ]


def _client(each: Client) -> str:
    state = "connected" if each.connected else "ended"
    reason = f": {each.reason}" if each.reason != "none" else ""
    exposed = _exposed(each.exposed_memory, each.dones_outstanding, each.lanes)
    if each.granted_memory:
        exposed.append(f"{format_size(each.granted_memory)} of the page cache granted")
    exposed += [f"{name.replace('_', ' ')} {count}" for name, count in each.grants.items()]
    use = ", ".join(
        (f"{each.in_use} of {each.credits} credits in use", f"{each.calls} calls", *exposed)
    )
    return f"{each.peer}, {each.personality}, {use}, {state}{reason}"


def _transport(each: ClientTransport) -> str:
    where = f"{each.number} to {each.server} port {each.port}"
    figures = (f"{name.replace('_', ' ')} {n}" for name, n in (each.gauges | each.counters).items())
    effect = each.personality or "(not connected)"
    return ", ".join((where, f"requested {each.requested}", f"in effect {effect}", *figures))


def _built(found: Status) -> str:
    if not found.built:
        return "not built for this kernel; build it: nfsrdma module build"
    known = {None: "", True: ", loaded", False: ", but another build is loaded"}
    return f"{found.built}, srcversion {found.built_srcversion}{known[found.current]}"


def _tunable(each: ParameterValue) -> str:
    shown = f"{each.name} {each.value or '(empty)'}"
    if not each.about:
        return shown
    default = each.about.default or "(empty)"
    changed = "" if each.value == each.about.default else f", default {default}"
    bounds = f" ({each.about.bounds})" if each.about.bounds else ""
    return f"{shown}{bounds}{changed}"


def _dkms(found: Status) -> list[str]:
    if found.registered is None:
        return ["not installed"]
    if not found.registered:
        return ["not registered; register it: nfsrdma module install"]
    return [" ".join(filter(None, (x.version, x.kernel, x.state))) for x in found.registered]
