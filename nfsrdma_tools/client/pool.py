# SPDX-License-Identifier: Apache-2.0
"""Sessions of this process with servers, for all file systems and threads that use them.

A session has one directory of the server, and all paths below it.  A pool has a bounded number of
sessions: to open another one, it closes the one that has been idle for longest.  If calls of other
threads use all of them, it waits for one; sessions with open files count, but nobody
waits for these: each may be open for ever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from nfsrdma_tools.client.place import NO_DIRECTORY
from nfsrdma_tools.client.session import Session, connect

__all__ = ["Pool", "is_below", "pool_of"]

_MOST = 4
_WAIT_SECONDS = 60


class _Member:
    """A session, and what uses it."""

    def __init__(self, session: Session) -> None:
        self.session, self.calls = session, 0

    @property
    def is_idle(self) -> bool:
        return not self.calls and not self.session.busy


class Pool:
    """Sessions with one server and one set of options, by their directory."""

    def __init__(self, host: str, options: Mapping[str, Any], export: str, most: int) -> None:
        self._host, self._options, self._export = host, options, export
        self._most = most or _MOST
        self._changed = threading.Condition()
        # in the order of their use
        self._members: dict[str, _Member] = {}
        self._opening = 0

    @contextlib.contextmanager
    def session(self, path: str, directory: bool) -> Iterator[tuple[Session, str]]:
        """A session that has a path, and its directory; no other call closes it meanwhile."""
        above, member = self._take(path, directory)
        try:
            yield member.session, above
        finally:
            with self._changed:
                member.calls -= 1
                self._changed.notify_all()

    def nearest(self, path: str) -> str | None:
        """The directory of the session that session() takes for a path, if it is open."""
        with self._changed:
            return self._above(path)

    def drop(self, path: str) -> None:
        """Close idle sessions of a directory that is no more, and of those below it."""
        with self._changed:
            for above, member in list(self._members.items()):
                if is_below(above, path) and member.is_idle:
                    self._members.pop(above).session.close()
            self._changed.notify_all()

    def close(self) -> None:
        """Close all sessions."""
        with self._changed:
            members, self._members = self._members, {}
            self._changed.notify_all()
        with contextlib.ExitStack() as stack:
            for member in members.values():
                stack.callback(member.session.close)

    def _take(self, path: str, directory: bool) -> tuple[str, _Member]:
        while True:
            with self._changed:
                entry = self._find(path)
                if not entry:
                    self._make_room()
                    # another thread may have opened it meanwhile
                    entry = self._find(path)
                if entry:
                    return entry
                self._opening += 1
            try:
                above, session = self._connect(path, directory)
            except BaseException as error:
                with self._changed:
                    self._opening -= 1
                    self._changed.notify_all()
                    if not self._fits_less(error):
                        raise
                continue
            with self._changed:
                self._opening -= 1
                if above in self._members:
                    # two threads opened it
                    session.close()
                else:
                    self._members[above] = _Member(session)
                self._changed.notify_all()
                return self._find(path) or self._use(above)

    def _fits_less(self, error: BaseException) -> bool:
        """Whether the locked memory of this process is enough for fewer sessions, from now on."""
        count = len(self._members)
        if not isinstance(error, OSError) or error.errno != errno.ENOMEM:
            return False
        if not 0 < count < self._most:
            return False
        self._most = count
        return True

    def _find(self, path: str) -> tuple[str, _Member] | None:
        above = self._above(path)
        return None if above is None else self._use(above)

    def _above(self, path: str) -> str | None:
        # the nearest: a directory below may be an export of its own
        return max(
            (above for above in self._members if is_below(path, above)), key=len, default=None
        )

    def _use(self, above: str) -> tuple[str, _Member]:
        member = self._members.pop(above)
        self._members[above] = member
        member.calls += 1
        return above, member

    def _make_room(self) -> None:
        """Close idle sessions, or wait for calls, until there is room for another session."""
        while len(self._members) + self._opening >= self._most:
            idle = next((name for name, each in self._members.items() if each.is_idle), None)
            if idle is not None:
                self._members.pop(idle).session.close()
            elif not self._opening and not any(each.calls for each in self._members.values()):
                # files that are open use all of them
                return
            elif not self._changed.wait(_WAIT_SECONDS):
                return

    def _connect(self, path: str, directory: bool) -> tuple[str, Session]:
        """Open a session with a directory that has the path."""
        if self._export and not is_below(path, self._export):
            text = f"{path} is not below {self._export}"
            raise FileNotFoundError(errno.ENOENT, text)
        folder = posixpath.dirname(path)
        # a mount daemon knows directories; "/" is seldom exported
        both = [path, folder] if directory or folder == "/" else [folder, path]
        first: OSError | None = None
        for above in [self._export] if self._export else both:
            try:
                return above, self._connect_to(above)
            except OSError as error:
                if error.errno not in NO_DIRECTORY:
                    raise
                first = first or error
        raise first or FileNotFoundError(path)

    def _connect_to(self, above: str) -> Session:
        session = connect(f"{self._host}:{above}", **self._options)
        try:
            # the mount daemon of Linux returns the handle of a file, too
            if stat.S_ISDIR(session.stat("").st_mode):
                return session
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), above)
        except BaseException:
            session.close()
            raise


_pools: dict[Any, Pool] = {}
_lock = threading.Lock()
_pid = os.getpid()


def pool_of(host: str, options: Mapping[str, Any], export: str, most: int) -> Pool:
    """The pool of this process for a server and options."""
    global _lock, _pid
    if _pid != os.getpid():
        # sessions and locks of the parent process are of no use here
        _lock, _pid = threading.Lock(), os.getpid()
        _pools.clear()
    key = (host, export, most, *sorted(options.items()))
    with _lock:
        if key not in _pools:
            _pools[key] = Pool(host, dict(options), export, most)
        return _pools[key]


def is_below(path: str, above: str) -> bool:
    """Whether a path is a directory or something below it."""
    return above in ("/", path) or path.startswith(f"{above}/")
