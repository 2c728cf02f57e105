# SPDX-License-Identifier: Apache-2.0
"""The personality of a mount: requests it, finds the one in effect, and compares them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from nfsrdma_tools.errors import MismatchError, UserError
from nfsrdma_tools.host.module import client_debugfs, personality_table
from nfsrdma_tools.host.module.client_debugfs import ClientTransport
from nfsrdma_tools.host.nfs import connection_sharing
from nfsrdma_tools.host.nfs.target import Target
from nfsrdma_tools.undo import Journal

__all__ = ["Verify", "of", "requested", "verify"]

Verify = Callable[[str, Sequence[Path]], None]
"""Takes the mounted device, and the mount points that share its connections."""


def of(device: str, known: Sequence[ClientTransport]) -> tuple[ClientTransport, ...]:
    """The transports of the mount ``device`` ("0:45") among ``known``.

    If the kernel does not provide their numbers, all transports to the address and port of its
    server.
    """
    numbers = connection_sharing.transports(device)
    if numbers is not None:
        return tuple(each for each in known if each.number in numbers)
    server = connection_sharing.server(device)
    # a zone is no part of the address in the kernel's list
    return tuple(e for e in known if (e.server.partition("%")[0], e.port) == server)


@contextlib.contextmanager
def requested(name: str | None, target: Target, journal: Journal) -> Iterator[Verify]:
    """Request a personality for a mount that is made within the block.

    Yields a function that raises MismatchError if the mount has another personality in effect.
    Both do nothing if ``name`` is None.  Raises UserError if our module is not loaded, or if
    debugfs, which has the personality in effect, is missing.
    """
    if name is None:
        yield lambda device, sharing: None
        return
    personality_table.require()
    if not client_debugfs.DEBUG.is_dir():
        what = f"{client_debugfs.DEBUG}, which has the personality in effect, does not exist"
        raise UserError(what, "mount debugfs: mount -t debugfs none /sys/kernel/debug")
    with personality_table.requested_for(target.addresses(), name, journal):
        before = {each.number for each in client_debugfs.transports()}
        yield partial(_verify, name, before)


def verify(name: str, device: str) -> None:
    """MismatchError unless this personality is still in effect, after reconnects for example.

    Does nothing if the kernel does not provide the transports of a mount.
    """
    if connection_sharing.transports(device) is not None:
        _verify(name, set(), device, ())


def _verify(name: str, before: set[int], device: str, sharing: Sequence[Path]) -> None:
    mine = of(device, client_debugfs.transports())
    new = tuple(each for each in mine if each.number not in before)
    if connection_sharing.transports(device) is None:
        # those of other mounts are among them
        mine = new or mine
    # a transport connects when it is first used, which may be after the mount for one of several
    found = client_debugfs.in_effect(mine)
    if found == (name,) and {each.requested for each in mine} == {name}:
        return
    got = ", ".join(found) or "no connection"
    if len(new) < len(mine):
        raise MismatchError("personality of a shared transport", name, got, _shared_hint(sharing))
    hint = f"the server does not accept it; nfsrdma does with server_personalities={name}"
    raise MismatchError("personality", name, got, hint)


def _shared_hint(sharing: Sequence[Path]) -> str:
    whose = ", ".join(map(str, sharing)) or "another mount"
    return f"it uses the transport of {whose}: unmount that first, or use another --vers"
