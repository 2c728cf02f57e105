# SPDX-License-Identifier: Apache-2.0
"""The options of `health` and `collect`, for both programs that have them.

`nfsrdma` makes options of typer from them (options.py), `nfsrdma.pyz` those of argparse
(portable.py): on the hosts where it runs, there is no typer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from nfsrdma_tools.errors import UsageError

__all__ = [
    "ANONYMIZE",
    "JSON",
    "MAX_RPC_AGE",
    "MOUNTS",
    "OUTPUT",
    "PATHS",
    "PROCFS",
    "ROOTFS",
    "SERVER",
    "STATE",
    "SYSFS",
    "TEXTFILE",
    "TIMEOUT",
    "VERBOSE",
    "WARN_RPC_AGE",
    "Declared",
    "empty_value",
    "in_range",
    "ranged",
]

# not of typer: those that are no Path, because typer checks paths and hangs without the server
PATHS = ("DIR", "EXPORT", "FILE")
"""The placeholders of paths, which are refused if they are empty: Path("") is "."."""


class Declared(NamedTuple):
    """An option or an argument."""

    text: str
    """The text of the help, with the default unless it is a number."""
    metavar: str = ""
    """The placeholder of the value; "" for an option without one."""
    names: tuple[str, ...] = ()
    """Such as --json and -j; none for an argument."""
    default: str | float | None = None
    least: float | None = None
    most: float = math.inf
    """The range of a number."""

    @property
    def is_path(self) -> bool:
        """Whether the value is a path."""
        return self.metavar in PATHS


def ranged(text: str, least: float | None, most: float) -> str:
    """The help of a number that has a range."""
    if least is None:
        return text
    limit = f"At least {least:g}" if most == math.inf else f"Range: {least:g} to {most:g}"
    return f"{text} {limit}."


def in_range(value: float, least: float, most: float) -> float:
    """The number; ValueError, with the text for users, if it is out of its range."""
    # the comparison is also false for NaN
    if not least <= value <= most:
        limit = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
        raise ValueError(f"expected {limit}, found {value:g}")
    return value


JSON = Declared("Print JSON.", names=("--json", "-j"))
PROCFS = Declared(
    "Where the host's /proc is mounted, such as /host/proc in a container; the mounts are "
    "those of its process 1 (default: /proc, and the mounts of this process).",
    "DIR",
    ("--path.procfs",),
)
SYSFS = Declared("Where the host's /sys is mounted (default: /sys).", "DIR", ("--path.sysfs",))
ROOTFS = Declared(
    "Where the host's root is mounted, for its fstab; the mounts are those of process 1 "
    "(default: /, with --path.procfs the root of its process 1).",
    "DIR",
    ("--path.rootfs",),
)
VERBOSE = Declared(
    "Print each program that is run, and its exit status, on standard error.",
    names=("--verbose", "-v"),
)

MOUNTS = Declared("Mount points (default: all NFS mounts).", "[MOUNT]...")
MAX_RPC_AGE = Declared(
    "Age of an RPC that is CRITICAL, such as 30s or 2m.", "AGE", ("--max-rpc-age",), "30s"
)
WARN_RPC_AGE = Declared(
    "Age of an RPC that is a WARNING (default: half of --max-rpc-age).", "AGE", ("--warn-rpc-age",)
)
STATE = Declared(
    "Folder of what earlier runs saw (default: $NFSRDMA_STATE, or /run/nfsrdma).",
    "DIR",
    ("--state",),
)
TEXTFILE = Declared(
    "Also write metrics to FILE, for the textfile collector of node_exporter (default: none).",
    "FILE",
    ("--textfile",),
)
TIMEOUT = Declared(
    "Report UNKNOWN if the check takes longer.", "SECONDS", ("--timeout",), 10.0, 1, 600
)

SERVER = Declared("Also record the route to this server (default: no route).", "SERVER", (), "")
OUTPUT = Declared(
    "File to write, - for standard output; must not exist (default: nfsrdma-HOST-TIME.tar.gz).",
    "FILE",
    ("--output", "-o"),
)
ANONYMIZE = Declared(
    "Write known words and numbers only, placeholders for all else.", names=("--anonymize",)
)


def empty_value(name: str, metavar: str) -> UsageError:
    """The error of an option or an argument that is "": it is no host, and Path("") is "."."""
    is_host = metavar == SERVER.metavar
    wanted = "a host name or an address" if is_host else "a path; . is the current directory"
    return UsageError(f"{name} is empty", f"give {wanted}")
