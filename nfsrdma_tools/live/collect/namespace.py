# SPDX-License-Identifier: Apache-2.0
"""The host that is read: its name, and the mount namespace of which the mounts are shown."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from nfsrdma_tools.host.machine import LIVE, Machine

__all__ = ["described_namespace", "host_name", "is_in_container", "mount_namespace"]


def mount_namespace(machine: Machine = LIVE) -> tuple[str, str]:
    """The file that lists the mounts, and the number of its mount namespace; "" if unknown."""
    link = _link(machine.of_process("ns/mnt"))
    return str(machine.of_process("mountinfo")), link.removeprefix("mnt:[").removesuffix("]")


def host_name() -> tuple[str, str]:
    """The name of the host, and its kernel's release."""
    return socket.gethostname(), os.uname().release


_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""Its number is fixed (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""


def described_namespace(machine: Machine = LIVE) -> str:
    """Which mounts are read, for a person; in a container, how to read those of the host."""
    path, number = mount_namespace(machine)
    text = f"the mounts are those in {path}, mount namespace {number or 'unknown'}"
    if machine.process != "self":
        return text
    first = _link("/proc/1/ns/mnt")
    if is_in_container() or (first and first != f"mnt:[{number}]"):
        return f"{text}, not the host's first one: give --path.procfs for its mounts"
    return text


def is_in_container() -> bool:
    """Whether this process has another pid namespace than the host; False if that is unknown."""
    return _link("/proc/self/ns/pid") not in ("", _FIRST_PID_NAMESPACE)


def _link(path: Path | str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 -- a text that is no path
    except OSError:
        return ""
