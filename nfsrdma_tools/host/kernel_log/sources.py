# SPDX-License-Identifier: Apache-2.0
"""Read the log of this boot, by dmesg(1) or journalctl(1)."""

from __future__ import annotations

from nfsrdma_tools.command import Result
from nfsrdma_tools.errors import ProgramMissingError, UserError, one_line
from nfsrdma_tools.host.machine import LIVE, Machine, NotRecordedError

__all__ = ["boot_log", "kernel_ring"]

# "+" joins alternatives in journalctl(1)
_JOURNAL = (
    *("journalctl", "--boot", "--no-pager", "--quiet", "--output=short-iso", "--lines=100000"),
    *("_TRANSPORT=kernel", "+", "SYSLOG_IDENTIFIER=rpc.nfsd", "+", "SYSLOG_IDENTIFIER=mount"),
    *("+", "SYSLOG_IDENTIFIER=mount.nfs", "+", "SYSLOG_IDENTIFIER=nfsdctl"),
    *("+", "SYSLOG_IDENTIFIER=modprobe", "+", "SYSLOG_IDENTIFIER=systemd-modules-load"),
)
_DMESG = ("dmesg",)


def boot_log(machine: Machine = LIVE) -> list[str]:
    """The log of the kernel, of rpc.nfsd, mount and modprobe since the boot.

    Raises UserError without permission.
    """
    return _first_readable(machine, _JOURNAL, _DMESG)


def kernel_ring(machine: Machine = LIVE) -> list[str]:
    """The kernel's own buffer, which is faster to read than the journal and may lack the boot.

    Raises UserError without permission.
    """
    return _first_readable(machine, _DMESG, _JOURNAL)


def _first_readable(machine: Machine, *commands: tuple[str, ...]) -> list[str]:
    reason = "neither dmesg nor journalctl is installed"
    for argv in commands:
        try:
            result = machine.run(*argv)
        except ProgramMissingError:
            continue
        except NotRecordedError as error:
            unrecorded = machine.unrecorded(argv[0], "it was not recorded")
            reason = error.message if machine.local else unrecorded
            continue
        if result.returncode == 0 and not _partial(result, machine):
            return result.stdout.split("\n")
        reason = one_line(result.stderr) or f"{argv[0]} exited with status {result.returncode}"
    where = "on the host" if machine.root_user else "as root"
    hint = f"run this {where}, or name a file: nfsrdma explain FILE"
    raise UserError(f"cannot read the kernel's log: {reason}", hint)


def _partial(result: Result, machine: Machine) -> bool:
    """Whether journalctl left out the kernel's lines: it then succeeds and prints a hint."""
    return result.argv[0] == "journalctl" and not machine.root_user and not result.stdout.strip()
