# SPDX-License-Identifier: Apache-2.0
"""The values that ``nfsrdma mounts --require`` lists, compared with those in effect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.host.nfs import mountinfo
from nfsrdma_tools.host.nfs.mount_state import MountState
from nfsrdma_tools.host.nfs.mounts import Mount
from nfsrdma_tools.nfs_ports import NFS_PORT
from nfsrdma_tools.sizes import parse_size

__all__ = ["OF_STATE", "Difference", "differences", "required_values"]

OF_STATE = ("connections", "personality", "read_ahead_kb")
"""The names of required values that mountinfo lacks."""
_OF_MOUNT = ("fstype", "nconnect", "rsize", "target", "transport", "vers", "wsize")
_VALUE_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_SIZES = ("rsize", "wsize")


class Difference(NamedTuple):
    """A value in effect that is not the required one; "none" for an option that is not set."""

    name: str
    found: str
    required: str

    def __str__(self) -> str:
        return f"{self.name}: found {self.found}, required {self.required}"


def required_values(lists: Iterable[str]) -> dict[str, str]:
    """The required values by name, from comma lists such as ``transport=rdma,rsize=1M,hard``.

    A name is a key of ``nfsrdma mounts --json`` or a mount option; "" is the value of a flag.
    Raises UsageError.
    """
    required: dict[str, str] = {}
    for word in (word for text in lists for word in mountinfo.split_options(text)):
        name, equals, value = word.partition("=")
        if not _VALUE_NAME.fullmatch(name) or (equals and not value):
            example = "transport=rdma,vers=4.2,rsize=1M"
            raise UsageError(f"{word!r} is not a requirement", f"example: {example}")
        if name in _SIZES:
            value = str(parse_size(value))
        if required.setdefault(name, value) != value:
            raise UsageError(f"{name} is both {required[name]} and {value}", "give one value")
    if not required:
        raise UsageError("nothing is required", "example: --require transport=rdma")
    return required


def differences(of: Mount | MountState, required: Mapping[str, str]) -> list[Difference]:
    """The required values that are not in effect; names of OF_STATE need a MountState."""
    values = _values(of)
    return [
        Difference(name, values.get(name, "none"), value or "set")
        for name, value in required.items()
        if not _meets(name, values.get(name), value)
    ]


def _values(of: Mount | MountState) -> dict[str, str]:
    """The values in effect by name; a flag has the value ""."""
    mount = of if isinstance(of, Mount) else of.mount
    ipv6 = mount.options.get("proto", "").endswith("6")
    values = dict.fromkeys(mount.flags, "") | mount.options
    if "ro" in values:
        # a superblock may be writable through another mount
        values.pop("rw", None)
    values |= {name: str(getattr(mount, name)) for name in _OF_MOUNT}
    values["transport"] += "6" if ipv6 else ""
    if mount.vers.startswith("4"):
        # the kernel does not print the default port
        values.setdefault("port", str(NFS_PORT))
    if isinstance(of, MountState):
        values |= {"connections": str(of.connections), "read_ahead_kb": str(of.read_ahead_kb)}
        values |= {"personality": of.personality} if of.personality else {}
    return values


def _meets(name: str, value: str | None, required: str) -> bool:
    if value is None:
        return False
    if name in ("transport", "proto"):
        # without a 6, either address family will do
        return required in (value, value.removesuffix("6"))
    if name == "vers":
        return value == required or value.startswith(f"{required}.")
    if name == "sec":
        # one of several, as in nfs(5)
        return value in required.split(":")
    return value == required or not required
