# SPDX-License-Identifier: Apache-2.0
"""What a check finds, and the machine it looks at."""

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
    """One thing looked at."""

    name: str
    status: Status
    found: str
    expected: str = ""
    remedy: str = ""
    """One line; empty when nothing is to be done."""


@dataclass(frozen=True)
class Machine:
    """Where to look: the root of the file tree, and the server to be reached, if any."""

    root: Path = Path("/")
    server: str = ""

    def path(self, name: str) -> Path:
        """A path below the root; ``name`` is without a leading slash."""
        return self.root / name

    def read(self, name: str) -> str:
        """The text of a file below the root, bytes that are no UTF-8 replaced."""
        return self.path(name).read_text(errors="replace")

    @property
    def release(self) -> str:
        """The running kernel's release."""
        return self.read("proc/sys/kernel/osrelease").strip()


Check = Callable[[Machine], Iterator[Finding]]


def carry_out(name: str, check: Check, machine: Machine) -> list[Finding]:
    """The findings of one check; what it cannot see is ``unknown``, never an error of ours."""
    found: list[Finding] = []
    try:
        found.extend(check(machine))
    except PermissionError:
        found.append(Finding(name, "unknown", "needs root", remedy="run this as root"))
    except UserError as error:
        found.append(Finding(name, "unknown", one_line(error.message), remedy=error.hint))
    except Exception as error:
        # whatever is broken here must not hide the other findings
        found.append(Finding(name, "unknown", one_line(f"{type(error).__name__}: {error}")))
    return found
