# SPDX-License-Identifier: Apache-2.0
"""The udev rule that sets the read-ahead of tuned NFS mounts whenever they are mounted.

The rule names no mount: it runs ``udev_helper`` with the number of the new bdi, which looks up the
tuned value in the state file.  The rule sorts after nfs-utils' 99-nfs.rules (nfsrahead), which
sets the same attribute: udev writes attributes in the order of the rules, so ours wins.
"""

from __future__ import annotations

from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.tune import udev_helper

__all__ = ["HELPER", "RULE", "install", "installed", "outdated", "remove", "rule_text"]

RULE = Path("etc/udev/rules.d/99-zz-nfsrdma.rules")
HELPER = Path("usr/local/lib/nfsrdma/readahead.py")
# not the interpreter of this process: that may belong to a user, and udev runs the helper as root
PYTHON = Path("usr/bin/python3")


def rule_text() -> str:
    """The text of the rule; it contains no user input."""
    return (
        "# Made by nfsrdma tune, removed by `nfsrdma tune undo`.\n"
        'ACTION=="add", SUBSYSTEM=="bdi", KERNEL=="0:*", '
        f'PROGRAM="/{PYTHON} -IS /{HELPER} %k", ATTR{{read_ahead_kb}}="%c"\n'
    )


def install(root: Path) -> list[Path]:
    """Install the rule and its helper below ``root``; returns the new or changed files.

    UserError if the system has no Python to run the helper.
    """
    texts = outdated(root)
    for path, text in texts.items():
        files.write_atomically(path, text)
    return [*texts]


def outdated(root: Path) -> dict[Path, str]:
    """The files that ``install`` would write below ``root``, and their texts; the same error."""
    if not (root / PYTHON).exists():
        what = f"{root / PYTHON} does not exist, and the udev rule needs it"
        raise UserError(what, "install the distribution's package python3")
    texts = {root / HELPER: Path(udev_helper.__file__).read_text(), root / RULE: rule_text()}
    return {path: text for path, text in texts.items() if files.readable(path) != text}


def installed(root: Path) -> list[Path]:
    """Those of the rule and its helper that exist below ``root``."""
    return [root / path for path in (RULE, HELPER) if (root / path).exists()]


def remove(root: Path) -> list[Path]:
    """Remove both; returns the removed files."""
    there = installed(root)
    for path in there:
        files.remove(path)
    if not any((root / HELPER.parent).glob("*")) and (root / HELPER.parent).is_dir():
        (root / HELPER.parent).rmdir()
    return there
