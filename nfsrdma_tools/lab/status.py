# SPDX-License-Identifier: Apache-2.0
"""The status of running labs, and errors that their kernels reported."""

from __future__ import annotations

from typing import Any

from nfsrdma_tools.lab import accel, image, paths
from nfsrdma_tools.lab.config import clock_name
from nfsrdma_tools.lab.nodes import read_state

__all__ = ["status", "table"]


def status() -> dict[str, Any]:
    """The labs that are up, whether KVM works here (None: not tested yet), the image's folder."""
    names = sorted(path.stem for path in paths.labs_dir().glob("*.lock"))
    found = image.find() or image.find(extras=True)
    return {
        "labs": [{"name": name, **state} for name in names if (state := read_state(name))],
        "kvm": accel.verdict(),
        "image": str(found.folder) if found else None,
    }


def table(status: dict[str, Any]) -> str:
    """The status as a table."""
    kvm = {True: "works here", False: "does not work here", None: "not tried yet"}[status["kvm"]]
    lines = [f"KVM {kvm}; image: {status['image'] or 'not built yet (nfsrdma lab build)'}"]
    for lab in status["labs"]:
        config = lab.get("config", {})
        words = [lab["name"], lab["phase"], *(str(config.get(k)) for k in ("shape", "kernel"))]
        words += [
            lab.get("accel", ""),
            clock_name(str(config.get("clock"))),
            config.get("link") or "default link",
        ]
        lines.append("  ".join(words) + (f"  REPORT: {lab['report']}" if "report" in lab else ""))
    return "\n".join(lines if status["labs"] else [*lines, "no lab is up"])
