# SPDX-License-Identifier: Apache-2.0
"""Tunables by name: a sysctl, a module parameter or a file of nfsd, of this host or of the server.

``sunrpc.rdma_max_inline_read`` is /proc/sys/sunrpc/rdma_max_inline_read if that exists, else the
parameter of that name of module sunrpc.  ``nfsd.threads`` is the number of nfsd's threads in
/proc/fs/nfsd, ``nfsd.max_block_size`` its largest block, for which nfs-server is restarted, and
``nfsd.io_cache_read`` and its like are nfsd's I/O modes in debugfs.  The prefix ``server:`` selects
the server's tunable, which is read and written over ssh, or directly if the server is this host.
Each new value is read back, because the kernel may clamp or refuse it.  The journal gets the old
value first.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from nfsrdma_tools import files
from nfsrdma_tools.command import run
from nfsrdma_tools.errors import CommandError, MismatchError, UsageError, UserError
from nfsrdma_tools.host import block_size
from nfsrdma_tools.host.block_size import Running
from nfsrdma_tools.host.machine import LIVE, Machine
from nfsrdma_tools.undo import Action, Journal, Run, Write

__all__ = ["Tunable", "is_local"]

# words and dots only: safe in a shell command, and without ".." in a path
_NAME = re.compile(r"(server:)?([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+)")
# of nfsd, which has no sysctl for them
_OF_NFSD = {
    **dict.fromkeys(("threads", "max_block_size"), "proc/fs/nfsd"),
    # Documentation/filesystems/nfs/nfsd-io-modes.rst: 0 buffered, 1 dontcache, 2 direct
    **dict.fromkeys(
        ("io_cache_read", "io_cache_write", "disable-splice-read"), "sys/kernel/debug/nfsd"
    ),
}
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%-]*")
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--")


@dataclass(frozen=True)
class Tunable:
    """One tunable.  ``ssh`` is the host that ssh connects to, empty for this host."""

    name: str
    of_server: bool = False
    ssh: str = ""
    machine: Machine = LIVE

    @classmethod
    def parse(cls, text: str, machine: Machine = LIVE) -> Tunable:
        """Parse ``[server:]subsystem.name``; UsageError for anything else."""
        match = _NAME.fullmatch(text)
        if not match:
            hint = "write it as sunrpc.rdma_max_inline_read or server:sunrpc.svc_rdma.max_req_size"
            raise UsageError(f"{text!r} is not a tunable name", hint)
        return cls(match[2], of_server=bool(match[1]), machine=machine)

    def on(self, server: str, ssh: str = "") -> Tunable:
        """Bind this tunable to ``server`` if it has the prefix; ssh connects to ``ssh``."""
        if not self.of_server or (not ssh and is_local(server)):
            return self
        if not _HOST.fullmatch(ssh):
            hint = "name a host for ssh: --server-ssh HOST"
            raise UsageError(f"{self} is a tunable of another host, {server}", hint)
        return replace(self, ssh=ssh)

    def __str__(self) -> str:
        """The text that ``parse`` reads."""
        return f"server:{self.name}" if self.of_server else self.name

    def get(self) -> str:
        """The value in effect; several numbers are separated by one blank."""
        return _plain(self._read(self._path()))

    def set(self, value: str, journal: Journal) -> str:
        """Set the value, after ``journal`` got the undo; returns the value in effect.

        Raises MismatchError if the kernel refuses or changes the value, UserError if it cannot be
        written.
        """
        path = self._path()
        old = _plain(self._read(path))
        if old == _plain(value):
            return old
        undo = self._undo(path, old)
        journal.add(undo)
        self._write(path, value)
        in_effect = _plain(self._read(path))
        if isinstance(undo, Write):
            journal.replace(undo, replace(undo, wrote=in_effect))
        if in_effect != _plain(value):
            hint = "the kernel refuses or limits this value"
            raise MismatchError(str(self), value, in_effect, hint)
        return in_effect

    def _path(self) -> str:
        subsystem, _, rest = self.name.partition(".")
        paths = [f"proc/sys/{self.name.replace('.', '/')}"]
        paths.append(f"sys/module/{subsystem}/parameters/{rest}")
        if subsystem == "nfsd" and rest in _OF_NFSD:
            paths.append(f"{_OF_NFSD[rest]}/{rest}")
        for path in paths:
            if self._exists(full := str(self.machine.path(path))):
                return full
        hint = "load its module, or see /proc/sys and /sys/module/NAME/parameters for the names"
        raise UserError(f"there is no tunable {self}", hint)

    def _exists(self, path: str) -> bool:
        if self.ssh:
            return self._remote(f"test -e {shlex.quote(path)}; echo $?").strip() == "0"
        return Path(path).is_file()

    def _read(self, path: str) -> str:
        if self.ssh:
            return self._remote(f"cat {shlex.quote(path)}")
        try:
            return files.text(path)
        except OSError as error:
            raise UserError(f"cannot read {self}: {error}") from error

    def _write(self, path: str, value: str) -> None:
        try:
            self._put(path, value)
        except (OSError, CommandError) as error:
            # set() detects a refused value when it reads it back
            if os.strerror(errno.EINVAL) not in str(error):
                raise UserError(f"cannot set {self} to {value!r}: {error}") from error

    def _put(self, path: str, value: str) -> None:
        if self.name == block_size.NAME:
            run(*self._restarting(path, value))
        elif self.ssh:
            self._remote(_setting(path, _text(value)))
        else:
            Path(path).write_text(_text(value))

    def _undo(self, path: str, old: str) -> Action:
        if self.name == block_size.NAME:
            return Run(self._restarting(path, old))
        text = _text(old)
        return Run((*_SSH, self.ssh, _setting(path, text))) if self.ssh else Write(path, text)

    def _restarting(self, path: str, value: str) -> tuple[str, ...]:
        """The command that sets nfsd's largest block while nfsd is stopped."""
        folder = Path(path).parent
        printed = run(*self._shell(Running.command(folder)), timeout=30).stdout
        return self._shell(block_size.setting(folder, value, Running.parse(printed)))

    def _shell(self, command: str) -> tuple[str, ...]:
        # the login shell of the remote host may be another one
        words = ("sh", "-c", command)
        return (*_SSH, self.ssh, shlex.join(words)) if self.ssh else words

    def _remote(self, command: str) -> str:
        return run(*_SSH, self.ssh, command, timeout=30).stdout


def is_local(host: str) -> bool:
    """Whether ``host`` is this host: one of its addresses can be bound here."""
    try:
        infos = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in infos)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _setting(path: str, value: str) -> str:
    # the login shell of the remote host parses this line, so quote both words
    return f"printf %s {shlex.quote(value)} > {shlex.quote(path)}"


def _text(value: str) -> str:
    # the kernel does not see a write of no bytes
    return value or "\n"


def _plain(text: str) -> str:
    return " ".join(text.split())
