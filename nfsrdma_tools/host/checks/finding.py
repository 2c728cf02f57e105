# SPDX-License-Identifier: Apache-2.0
"""The result of a check, and the machine that it examines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nfsrdma_tools.errors import UserError, one_line

__all__ = ["Check", "Finding", "Machine", "Status", "carry_out"]

Status = Literal["ok", "warning", "error", "unknown"]


@dataclass(frozen=True)
class Finding:
    """The result for one item."""

    name: str
    status: Status
    found: str
    expected: str = ""
    remedy: str = ""
    """One line; empty if there is nothing to do."""


@dataclass(frozen=True)
class Machine:
    """The root of the file tree to examine, and the server to connect to, if any."""

    root: Path = Path("/")
    server: str = ""

    def path(self, name: str) -> Path:
        """A path below the root; ``name`` has no leading slash."""
        return self.root / name

    def read(self, name: str) -> str:
        """The text of a file below the root, invalid UTF-8 replaced."""
        return self.path(name).read_text(errors="replace")

    @property
    def release(self) -> str:
        """The running kernel's release."""
        return self.read("proc/sys/kernel/osrelease").strip()


Check = Callable[[Machine], Iterator[Finding]]


def carry_out(name: str, check: Check, machine: Machine) -> list[Finding]:
    """The findings of one check; a check that fails yields ``unknown``, never an exception."""
    found: list[Finding] = []
    try:
        found.extend(check(machine))
    except PermissionError:
        found.append(Finding(name, "unknown", "needs root", remedy="run this as root"))
    except UserError as error:
        found.append(Finding(name, "unknown", one_line(error.message), remedy=error.hint))
    except Exception as error:
        # a failing check must not hide the findings of the others
        found.append(Finding(name, "unknown", one_line(f"{type(error).__name__}: {error}")))
    return found
