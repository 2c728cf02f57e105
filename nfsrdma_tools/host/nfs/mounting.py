# SPDX-License-Identifier: Apache-2.0
"""Makes an NFS mount, verifies it, and unmounts it.

It runs umount.nfs directly, without umount(8): one process that a timeout or ctrl-C terminates,
and an undo that can only unmount NFS.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from nfsrdma_tools.command import Result, run
from nfsrdma_tools.errors import CommandError, MismatchError, UserError
from nfsrdma_tools.host.nfs import (
    mount_personality,
    mount_users,
    mountinfo,
    mountstats,
    readahead,
)
from nfsrdma_tools.host.nfs.mount_nfs import MountError, call
from nfsrdma_tools.host.nfs.mount_request import MountRequest
from nfsrdma_tools.host.nfs.mounts import Mount, find, mounts, shared
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.host.transports import check_transport_module
from nfsrdma_tools.identity import mounts_on
from nfsrdma_tools.lock import host_lock
from nfsrdma_tools.undo import Journal, Unmount

__all__ = [
    "Mount",
    "MountError",
    "MountRequest",
    "Target",
    "drop_undo",
    "find",
    "mount",
    "mounts",
    "unmount",
]

_TIMEOUT = 60.0
_SHOWN = 8
_HINT = "the server or the kernel chose another value: run nfsrdma doctor"
_LIMITED = "the server, the kernel or the RDMA device limits it: request {}"


def mount(request: MountRequest, journal: Journal, timeout: float = _TIMEOUT) -> Mount:
    """Make a mount and verify it; ``journal`` gets its undo, which stays there until it is kept.

    All requested values are read back from mountinfo, mountstats and debugfs; a difference raises
    MismatchError with both values, and the mount is undone.  ``timeout`` is in seconds, for
    mount.nfs.  Raises MountError if the server or the kernel refuses, UserError if the mount
    point cannot be used.
    """
    _require_root("mount")
    directory = _free_directory(request.directory)
    if not directory.is_dir():
        why = os.strerror(errno.ENOTDIR if directory.exists() else errno.ENOENT)
        raise UserError(f"mount point {directory}: {why}", "create the directory")
    busy = UserError(f"another nfsrdma is mounting on {directory}", "use another directory")
    with host_lock("mount", directory, busy):
        _free_directory(directory)
        check_transport_module(request.transport)
        with mount_personality.requested(
            request.personality, request.target, journal
        ) as verify_personality:
            return _make(request, directory, journal, timeout, verify_personality)


def unmount(where: Mount | Path, journal: Journal | None = None, timeout: float = _TIMEOUT) -> None:
    """Unmount an NFS mount and verify that it is gone; never forces.

    Drops its undo from ``journal``.  Raises UserError that names the processes that use it.
    """
    directory = where.directory if isinstance(where, Mount) else where
    entry = mountinfo.at(directory)
    if not entry or not find(directory):
        raise UserError(f"{directory} is not an NFS mount point", "see `nfsrdma mounts`")
    _require_root("unmount")
    result = _umount(entry.directory, timeout)
    if entry.id in {other.id for other in mountinfo.read()}:
        raise _still_there(entry, result, timeout)
    if journal:
        drop_undo(entry.directory, journal)


def drop_undo(directory: Path, journal: Journal) -> None:
    """Drop the undo of a mount on ``directory``, which is unmounted, from ``journal``."""
    for action in tuple(journal.actions):
        if isinstance(action, Unmount) and action.directory == str(directory):
            journal.drop(action)


def _umount(directory: Path, timeout: float) -> Result:
    return run("umount.nfs", directory, check=False, timeout=timeout)


def _require_root(what: str) -> None:
    if os.geteuid() != 0:
        raise UserError(f"only root may {what}", "run this as root")


def _free_directory(directory: Path) -> Path:
    entries = mountinfo.read()
    taken = mountinfo.at(directory, entries)
    if taken:
        what = f"mount point {directory} is in use: {taken.source} ({taken.fstype})"
        raise UserError(what, "unmount it, or use another directory")
    return mountinfo.canonical(directory, entries)


def _make(
    request: MountRequest,
    directory: Path,
    journal: Journal,
    timeout: float,
    verify_personality: mount_personality.Verify,
) -> Mount:
    undo = Unmount(str(directory), str(request.target))
    journal.add(undo)
    try:
        call(request, directory, timeout)
        for mounted in mounts_on(undo.directory)[-1:]:
            journal.replace(undo, replace(undo, line=mounted.line, unique=mounted.unique))
        made, others = _verified(request, directory)
        verify_personality(made.device, shared(made, others))
        return made
    except BaseException:
        if _is_gone(directory):
            drop_undo(directory, journal)
        raise


def _verified(request: MountRequest, directory: Path) -> tuple[Mount, list[Mount]]:
    made = find(directory)
    if not made:
        raise MountError(f"mount.nfs succeeded, but {directory} is not an NFS mount point")
    others = [other for other in mounts() if other.directory != directory]
    _verify_connections(request, made, others)
    for what in ("vers", "rsize", "wsize", "nconnect"):
        found = getattr(made, what)
        _verify(what, getattr(request, what), found, _LIMITED.format(found))
    if request.sets_read_ahead:
        _set_read_ahead(request, made, others)
    return made, others


def _verify(what: str, requested: object, found: object, hint: str) -> None:
    if requested is not None and requested != found:
        raise MismatchError(what, requested, found, hint)


def _verify_connections(request: MountRequest, made: Mount, others: list[Mount]) -> None:
    sharing = ", ".join(map(str, shared(made, others)))
    hint = (
        f"it shares the connections of {sharing}, as NFSv4 mounts of one server do: "
        "unmount that first, or use --vers 3"
        if sharing
        else _HINT
    )
    xprts = mountstats.read(made.directory).xprts
    _verify("transport", request.transport, made.transport, hint)
    for xprt in xprts:
        _verify("transport of a connection", request.family, xprt.proto, hint)
    _verify("nconnect", request.nconnect, len(xprts), hint)


def _set_read_ahead(request: MountRequest, made: Mount, others: list[Mount]) -> None:
    twins = ", ".join(str(other.directory) for other in others if other.device == made.device)
    if twins:
        what = f"{made.directory} has one cache and one read-ahead with {twins}"
        raise UserError(what, "mount it with -o nosharecache")
    kb = request.read_ahead_kb
    if kb is None:
        kb = readahead.kb_for(request.read_ahead or 0, made.rsize)
    readahead.set_kb(made.device, kb)


def _is_gone(directory: Path) -> bool:
    """Unmount what a failed mount has left; True if nothing is left."""
    if find(directory):
        _umount(directory, _TIMEOUT)
    return not find(directory)


def _still_there(entry: mountinfo.Entry, result: Result, timeout: float) -> UserError:
    directory = entry.directory
    if result.returncode == 124:
        what = (
            f"{directory} could not be unmounted within {timeout:g} s: its server does not answer"
        )
        return UserError(what, "bring the server back, or give its data up with `umount -f -l`")
    users = [str(user) for user in mount_users.users(directory, entry.device)]
    users += [f"mount {path}" for path in mount_users.inner_mounts(directory, mountinfo.read())]
    more = f" and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
    if users:
        what = f"{directory} is in use by {', '.join(users[:_SHOWN])}{more}"
        return UserError(what, "end them, then unmount again")
    if "busy" in result.stderr:
        hint = "it may be swap, a loop device, an export, or a process that waits for its server"
        return UserError(f"{directory} is in use, by no process that has it open", hint)
    return CommandError(result.argv, result.returncode, result.stderr or result.stdout)
