# SPDX-License-Identifier: Apache-2.0
"""How ``nfsrdma module`` looks: the line of a build, and the table of its status."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any, Self

from nfsrdma_tools.errors import printable
from nfsrdma_tools.host import module_build
from nfsrdma_tools.host.module_build import Build
from nfsrdma_tools.host.module_status import Status, Tunable

__all__ = ["build", "facts", "lines"]


def build(kernel: str = "", force: bool = False) -> Build:
    """Build the module, with a line on standard error that shows that time passes."""
    with _Building() as line:
        return module_build.build(kernel, force, line.show)


class _Building:
    """A line on standard error while a build runs; with its seconds on a terminal."""

    def __init__(self) -> None:
        self._start, self._shown = time.monotonic(), ""

    def __enter__(self) -> Self:
        """Return itself; nothing is shown until there is something to wait for."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the line."""
        if self._shown and sys.stderr.isatty():
            print(file=sys.stderr)

    def show(self, release: str) -> None:
        """Say what is built and for how long; called a few times a second."""
        text = f"building nfsrdma for {release}"
        if sys.stderr.isatty():
            print(f"\r{text} ({time.monotonic() - self._start:.0f} s)", end="", file=sys.stderr)
        elif not self._shown:
            print(text, file=sys.stderr, flush=True)
        self._shown = text


def facts(found: Status) -> dict[str, Any]:
    """The status as plain values, for JSON."""
    return {
        **asdict(found),
        "source": str(found.source),
        "built": str(found.built) if found.built else None,
        "loaded_is_this_source": found.current,
    }


def lines(found: Status) -> list[str]:
    """The status for people, a fact in a line."""
    rows = [
        ("kernel", found.release),
        ("carrier", _carrier(found)),
        ("source", f"{found.source}, hash {found.source_hash}"),
        ("built", _built(found)),
        *(("tunable", _tunable(each)) for each in found.tunables),
        *(("user", user) for user in found.users or ("none",)),
        *(("dkms", text) for text in _dkms(found)),
    ]
    return [printable(f"{name:8}  {text}") for name, text in rows]


def _carrier(found: Status) -> str:
    if not found.owner:
        return "none: a mount with proto=rdma has one loaded"
    who = {"nfsrdma": "ours", "rpcrdma": "the kernel's own"}.get(found.owner, "of somebody else")
    version = f" {found.version}" if found.version else ""
    source = f", srcversion {found.srcversion}" if found.srcversion else ""
    return f"{found.owner}{version}, {who}{source}"


def _built(found: Status) -> str:
    if not found.built:
        return "not for this kernel: nfsrdma module build"
    known = {None: "", True: ", this is what is loaded", False: ", something else is loaded"}
    return f"{found.built}, srcversion {found.built_srcversion}{known[found.current]}"


def _tunable(each: Tunable) -> str:
    if not each.about:
        return f"{each.name} {each.value}"
    changed = "" if each.value == each.about.default else f", not the default {each.about.default}"
    bounds = f" ({each.about.bounds})" if each.about.bounds else ""
    return f"{each.name} {each.value}{bounds}{changed}"


def _dkms(found: Status) -> list[str]:
    if found.registered is None:
        return ["not there"]
    if not found.registered:
        return ["does not know it: nfsrdma module install"]
    return [" ".join(filter(None, (x.version, x.kernel, x.state))) for x in found.registered]
