# SPDX-License-Identifier: Apache-2.0
"""A drop-in that changes the transfer sizes of a systemd mount unit (systemd.mount(5)).

It does not apply to units that systemd generates from /etc/fstab: edit fstab for those.
"""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools.command import run
from nfsrdma_tools.host.nfs.fstab import with_sizes

__all__ = ["cat", "dropin", "dropin_text", "is_written_by_hand", "name", "options"]

DROPIN = "90-nfsrdma.conf"
# exists while systemd is the init system: sd_booted(3)
SYSTEMD = Path("/run/systemd/system")


def name(directory: Path) -> str:
    """The name of the systemd mount unit of ``directory``."""
    argv = ("systemd-escape", "--path", "--suffix=mount", "--", directory)
    return run(*argv).stdout.removesuffix("\n")


def cat(unit: str) -> str:
    """The unit's files as ``systemctl cat`` prints them; "" if there is no such unit."""
    result = run("systemctl", "cat", "--", unit, check=False)
    return result.stdout if result.returncode == 0 else ""


def is_written_by_hand(text: str) -> bool:
    """Whether the unit (text of ``cat``) is not one that a generator made from fstab."""
    first = text.partition("\n")[0].removeprefix("# ")
    return first.startswith("/") and not first.startswith("/run/systemd/generator")


def options(text: str) -> str:
    """The mount options in these files: the last ``Options=`` of a [Mount] section counts."""
    section, value = "", ""
    for line in text.replace("\\\n", " ").split("\n"):
        word = line.strip()
        if word.startswith("["):
            section = word
        elif section == "[Mount]" and word.partition("=")[0].rstrip() == "Options":
            value = word.partition("=")[2].strip()
    return value


def dropin(unit: str, root: Path) -> Path:
    """The path of our drop-in for this unit."""
    return root / "etc/systemd/system" / f"{unit}.d" / DROPIN


def dropin_text(text: str, rsize: int | None, wsize: int | None) -> str:
    """The text of the drop-in: the unit's options (``text`` from ``cat``) with these sizes."""
    wanted = with_sizes(options(text), rsize, wsize)
    return f"# Made by nfsrdma tune; `nfsrdma tune undo` removes it.\n[Mount]\nOptions={wanted}\n"
