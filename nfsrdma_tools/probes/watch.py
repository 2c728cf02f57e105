# SPDX-License-Identifier: Apache-2.0
"""An account read again and again: what was added in each interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UserError
from nfsrdma_tools.host.effect import find
from nfsrdma_tools.probes.accounts import Account
from nfsrdma_tools.probes.clients import clients
from nfsrdma_tools.probes.program import Missing
from nfsrdma_tools.probes.session import session

__all__ = ["watch"]

Records = list[dict[str, Any]]


def watch(
    account: Account,
    directory: Path | None,
    interval: float,
    count: int,
    attached: Callable[[tuple[Missing, ...]], None],
    ended: Callable[[Any], None] | None = None,
) -> Iterator[Records]:
    """The rows of each interval (seconds), ``count`` times or, for 0, without end.

    ``directory`` narrows them to one mount.  ``attached`` is called once with what cannot be
    counted here, ``ended`` with a snapshot of all intervals when the caller stops asking.  Raises
    UserError when nothing can be counted, or the mount is none.
    """
    if directory and account.host_wide:
        raise UserError(f"{account.name} is of the whole host", "leave --mount away")
    mount = _mount(directory) if directory else None
    heard: dict[str, int | None] = {}
    # before anything is counted: it may have to ask servers
    clients(heard)
    with session([account.name]) as open_session:
        account.attach(open_session)
        attached(open_session.missing)
        first = last = account.read(open_session)
        done = 0
        try:
            while not count or done < count:
                time.sleep(interval)
                now = account.read(open_session)
                known = {} if account.host_wide else clients(heard)
                yield _of(account.records(account.difference(now, last), known), mount)
                last, done = now, done + 1
        finally:
            if ended:
                ended(account.difference(last, first))


def _mount(directory: Path) -> str:
    found = find(directory)
    if not found:
        raise UserError(f"{directory} is not an NFS mount point", "`nfsrdma mounts` lists them")
    return str(found.directory)


def _of(records: Records, mount: str | None) -> Records:
    return [r for r in records if mount is None or mount in r.get("mount", "").split(", ")]
