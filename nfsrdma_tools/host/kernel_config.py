# SPDX-License-Identifier: Apache-2.0
"""The configuration with which the running kernel was built."""

from __future__ import annotations

from nfsrdma_tools import files
from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.machine import Machine

__all__ = ["config", "is_built_in"]

# a file of 8 MiB may have 8 GiB of zeros
_MOST = 4 << 20


def config(machine: Machine) -> str | None:
    """The running kernel's configuration; None if there is no file with it."""
    for name in (f"boot/config-{machine.release}", f"lib/modules/{machine.release}/config"):
        if machine.path(name).exists():
            return machine.read(name)
    if not machine.has("proc/config.gz"):
        return None
    import zlib

    data = files.raw(machine.path("proc/config.gz"))
    try:
        text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, _MOST)
    except zlib.error as error:
        raise UserError(f"cannot read /proc/config.gz: {error}") from error
    return text.decode(errors="replace")


def is_built_in(machine: Machine, option: str) -> bool:
    """Whether a feature is known to be a part of the kernel, which /proc/modules does not list."""
    try:
        return f"CONFIG_{option}=y\n" in (config(machine) or "")
    except OSError as error:
        files.note_unread(error)
    except UserError:
        pass  # the check of the kernel reports it
    return False
