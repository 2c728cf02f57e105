# SPDX-License-Identifier: Apache-2.0
"""Commands in a node, over one shared ssh connection (a new one costs 2 s under emulation)."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from nfsrdma_tools.command import Result, kill, run
from nfsrdma_tools.errors import CommandError, UserError

__all__ = ["Ssh"]


class Ssh:
    """The ssh connection to a node."""

    def __init__(self, folder: Path, node: str, keys: Path) -> None:
        self.control = folder / f"{node}.ssh"
        self.options = (
            *("-F", "none", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"),
            *("-o", f"IdentityFile={keys / 'user'}", "-o", "IdentitiesOnly=yes"),
            *("-o", f"UserKnownHostsFile={keys / 'known_hosts'}", "-o", "HostKeyAlias=lab"),
            *("-o", "StrictHostKeyChecking=yes", "-o", "ConnectTimeout=20"),
        )
        self._master: subprocess.Popen[bytes] | None = None

    def open(self, port: int, seconds: float, alive: Callable[[], None]) -> None:
        """Connect, retrying until the node answers; ``alive`` raises if the machine has ended."""
        end = time.monotonic() + seconds
        while not self._try_open(port, alive):
            if time.monotonic() > end:
                raise UserError(f"the node did not answer ssh within {seconds:g} s")
            time.sleep(0.1)

    def _try_open(self, port: int, alive: Callable[[], None]) -> bool:
        argv = (
            # as for QEMU: it ends with this process, also after a kill -9
            *("setpriv", "--pdeathsig", "KILL", "ssh", "-M", "-N", "-S", str(self.control)),
            *(*self.options, "-p", str(port), "root@127.0.0.1"),
        )
        null = subprocess.DEVNULL
        self._master = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
        while self._master.poll() is None:
            alive()
            if self.control.exists():
                return True
            time.sleep(0.02)
        return False

    def argv(self, *command: str, tty: bool = False) -> tuple[str, ...]:
        """The ssh command line that runs ``command`` in the node; a login without a command."""
        flags = ("-t",) if tty else ()
        # ssh passes one string to the remote shell: quote to keep the arguments separate
        remote = (shlex.join(command),) if command else ()
        return ("ssh", *self.options, "-S", str(self.control), *flags, "--", "root@lab", *remote)

    def run(
        self,
        *command: str,
        stdin: bytes = b"",
        timeout: float = 600,
        check: bool = True,
        watch: Callable[[], None] | None = None,
    ) -> Result:
        """Run a command in the node; CommandError has the command as run in the node."""
        argv = self.argv(*command)
        done = run(*argv, stdin=stdin, timeout=timeout, check=False, watch=watch)
        result = Result(command, done.stdout, done.stderr, done.returncode)
        if check and result.returncode:
            raise CommandError(command, result.returncode, result.stderr or result.stdout)
        return result

    def close(self) -> None:
        """End the shared connection; UserError if its process remains."""
        master, self._master = self._master, None
        # a killed master leaves its socket
        self.control.unlink(missing_ok=True)
        if master is not None:
            kill(master)
