# SPDX-License-Identifier: Apache-2.0
"""A mount request, checked before the kernel sees it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.host.module.personality import OPTIMISTIC, PERSONALITIES
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.transports import family
from nfsrdma_tools.module_source import OURS

__all__ = ["RDMA_PORT", "TRANSPORTS", "VERSIONS", "MountRequest"]

RDMA_PORT = 20049  # RFC 8267 section 7
TRANSPORTS = ("tcp", "rdma", "nfsrdma")
VERSIONS = ("3", "4.0", "4.1", "4.2")
_MAX_CONNECTIONS = 16  # NFS_MAX_CONNECTIONS in fs/nfs/super.c
_MIN_SIZE = 1024  # NFS_MIN_FILE_IO_SIZE in include/linux/nfs_xdr.h
# mount.nfs and the kernel do not split at commas between quotes: a security label with categories
# is context="user:role:type:s0:c1,c2"
_ONE_OPTION = re.compile(r'[^ ,"\\]+(="[^ "\\]+")?')
_VERSION_OPTIONS = ("vers", "nfsvers", "minorversion", "v3", "v4", "v4.0", "v4.1", "v4.2")
_OWN = {
    **dict.fromkeys(("proto", "tcp", "udp", "rdma"), "--transport"),
    **dict.fromkeys(_VERSION_OPTIONS, "--vers"),
    **{name: f"--{name}" for name in ("rsize", "wsize", "nconnect", "port")},
}
# they do not mount, or mount.nfs exits before the mount exists
_NOT_A_MOUNT = {"remount", "bind", "rbind", "move", "bg", "fake"}


@dataclass(frozen=True)
class MountRequest:
    """A mount to make.  Sizes in bytes; None: the default of the kernel and the server.

    ``read_ahead`` is in blocks of the rsize in effect, ``read_ahead_kb`` the same window in KiB;
    ``personality`` None is the default of our module.
    Raises UsageError for values that Linux would silently change.
    """

    target: Target
    directory: Path
    transport: str = "rdma"
    vers: str = "4.2"
    rsize: int | None = None
    wsize: int | None = None
    nconnect: int | None = None
    read_ahead: int | None = None
    read_ahead_kb: int | None = None
    port: int | None = None
    options: tuple[str, ...] = ()
    personality: str | None = None

    def __post_init__(self) -> None:
        _among("transport", self.transport, TRANSPORTS)
        _among("vers", self.vers, VERSIONS)
        _between("nconnect", self.nconnect, 1, _MAX_CONNECTIONS)
        _between("read-ahead", self.read_ahead, 0, 1 << 20)
        _check_window(self.read_ahead, self.read_ahead_kb)
        _between("port", self.port, 1, 65535)
        _check_personality(self.personality, self.transport, self.vers)
        for name, size in (("rsize", self.rsize), ("wsize", self.wsize)):
            _check_size(name, size)
        for option in self.options:
            _check_option(option)

    @property
    def family(self) -> str:
        """The kernel's name of the transport: ``rdma`` for our module, too."""
        return family(self.transport)

    @property
    def sets_read_ahead(self) -> bool:
        """Whether the request sets a read-ahead."""
        return (self.read_ahead, self.read_ahead_kb) != (None, None)

    def mount_options(self, netid: str) -> str:
        """The argument of ``-o``; ``netid`` is the transport with its address family."""
        asked = {"rsize": self.rsize, "wsize": self.wsize, "nconnect": self.nconnect}
        port = self.port or (RDMA_PORT if self.family == "rdma" else None)
        words = [f"vers={self.vers}", f"proto={netid}"]
        words += [f"{name}={value}" for name, value in {"port": port, **asked}.items() if value]
        names = {option.partition("=")[0] for option in self.options}
        if "retry" not in names:
            words.append("retry=0")
        # mounts with equal options share one superblock, and with it one read-ahead
        if self.sets_read_ahead and not names & {"sharecache", "nosharecache"}:
            words.append("nosharecache")
        return ",".join([*words, *self.options])


def _among(what: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise UsageError(f"{what} is {value!r}", f"it can be {', '.join(known)}")


def _between(what: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UsageError(f"{what} is {value}", f"it can be {least} to {most}")


def _check_personality(name: str | None, transport: str, vers: str) -> None:
    if name is None:
        return
    _among("personality", name, PERSONALITIES)
    if transport != OURS:
        what = f"personality {name} needs transport {OURS}, found {transport}"
        raise UsageError(what, f"use --transport {OURS}")
    if name == OPTIMISTIC and vers != "3":
        # the server grants references after READs of NFSv3 only (kmod/wire/nfs3.c)
        what = f"personality {name} needs vers 3, found {vers}"
        raise UsageError(what, "use --vers 3: NFSv4 servers check the open state at each READ")


def _check_window(blocks: int | None, kb: int | None) -> None:
    page = os.sysconf("SC_PAGE_SIZE") >> 10
    _between("read-ahead", kb, 0, 1 << 30)
    if blocks is not None and kb is not None:
        raise UsageError("read-ahead is given in blocks and in KiB", "give one of the two")
    # read_ahead_kb_store in mm/backing-dev.c rounds down to whole pages
    if kb is not None and kb % page:
        raise UsageError(f"read-ahead is {kb} KiB", f"it can be a multiple of {page} KiB, a page")


def _check_size(what: str, size: int | None) -> None:
    # nfs_io_size and nfs_block_bits in fs/nfs/internal.h round all other values
    if size is None:
        return
    page = os.sysconf("SC_PAGE_SIZE")
    fits = size % page == 0 if size >= page else size & (size - 1) == 0
    if size < _MIN_SIZE or not fits:
        raise UsageError(
            f"{what} is {size} bytes, and Linux would round it",
            f"from {_MIN_SIZE} on, use a power of two below {page} or a multiple of {page}",
        )


def _check_option(option: str) -> None:
    name = option.partition("=")[0]
    if not option.isprintable() or not _ONE_OPTION.fullmatch(option):
        raise UsageError(f"mount option {option!r} is not one option", "use -o once per option")
    if name in _OWN:
        raise UsageError(f"mount option {option!r} is not supported", f"use {_OWN[name]}")
    if name in _NOT_A_MOUNT:
        raise UsageError(f"mount option {option!r} is not supported", "it makes no mount")
