# SPDX-License-Identifier: Apache-2.0
"""A requested mount, checked before the kernel sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.transports import family

__all__ = ["RDMA_PORT", "TRANSPORTS", "VERSIONS", "MountRequest"]

RDMA_PORT = 20049  # RFC 8267 section 7
TRANSPORTS = ("tcp", "rdma", "nfsrdma")
VERSIONS = ("3", "4.0", "4.1", "4.2")
_MAX_CONNECTIONS = 16  # NFS_MAX_CONNECTIONS in fs/nfs/super.c
_MIN_SIZE = 1024  # NFS_MIN_FILE_IO_SIZE in include/linux/nfs_xdr.h
_VERSION_OPTIONS = ("vers", "nfsvers", "minorversion", "v3", "v4", "v4.0", "v4.1", "v4.2")
_OWN = {
    **dict.fromkeys(("proto", "tcp", "udp", "rdma"), "--transport"),
    **dict.fromkeys(_VERSION_OPTIONS, "--vers"),
    **{name: f"--{name}" for name in ("rsize", "wsize", "nconnect", "port")},
}
# options that do not mount, or return before the result of the mount is known
_NOT_A_MOUNT = {"remount", "bind", "rbind", "move", "bg", "fake"}


@dataclass(frozen=True)
class MountRequest:
    """A requested mount.  Sizes in bytes, ``read_ahead`` in blocks of rsize; None: the default.

    Raises UserError for values that Linux would silently change.
    """

    target: Target
    directory: Path
    transport: str = "rdma"
    vers: str = "4.2"
    rsize: int | None = None
    wsize: int | None = None
    nconnect: int | None = None
    read_ahead: int | None = None
    port: int | None = None
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _among("transport", self.transport, TRANSPORTS)
        _among("vers", self.vers, VERSIONS)
        _between("nconnect", self.nconnect, 1, _MAX_CONNECTIONS)
        _between("read-ahead", self.read_ahead, 0, 1 << 20)
        _between("port", self.port, 1, 65535)
        for name, size in (("rsize", self.rsize), ("wsize", self.wsize)):
            _check_size(name, size)
        for option in self.options:
            _check_option(option)

    @property
    def family(self) -> str:
        """The transport's name in the kernel: ``rdma`` for our module too."""
        return family(self.transport)

    def mount_options(self, netid: str) -> str:
        """The value of ``-o``; ``netid`` is the transport with its address family."""
        asked = {"rsize": self.rsize, "wsize": self.wsize, "nconnect": self.nconnect}
        port = self.port or (RDMA_PORT if self.family == "rdma" else None)
        words = [f"vers={self.vers}", f"proto={netid}"]
        words += [f"{name}={value}" for name, value in {"port": port, **asked}.items() if value]
        names = {option.partition("=")[0] for option in self.options}
        if "retry" not in names:
            words.append("retry=0")
        # mounts with equal options share one superblock and its read-ahead
        if self.read_ahead is not None and not names & {"sharecache", "nosharecache"}:
            words.append("nosharecache")
        return ",".join([*words, *self.options])


def _among(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{what} is {value!r}", f"use {', '.join(known)}")


def _between(what: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{what} is {value}", f"use {least} to {most}")


def _check_size(what: str, size: int | None) -> None:
    # nfs_io_size and nfs_block_bits in fs/nfs/internal.h round all other values
    if size is None:
        return
    page = os.sysconf("SC_PAGE_SIZE")
    fits = size % page == 0 if size >= page else size & (size - 1) == 0
    if size < _MIN_SIZE or not fits:
        raise UserError(
            f"{what} is {size} bytes, which Linux would round",
            f"use {_MIN_SIZE} or more: a power of two below {page}, a multiple of {page} above",
        )


def _check_option(option: str) -> None:
    name = option.partition("=")[0]
    if not option or not option.isprintable() or any(c in option for c in ', "\\'):
        raise UserError(
            f"mount option {option!r} is not a single option", "repeat --option for each"
        )
    if name in _OWN:
        raise UserError(f"mount option {option!r} is not supported", f"use {_OWN[name]}")
    if name in _NOT_A_MOUNT:
        raise UserError(f"mount option {option!r} is not supported", "it does not make a mount")
