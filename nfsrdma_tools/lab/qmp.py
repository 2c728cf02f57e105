# SPDX-License-Identifier: Apache-2.0
"""QEMU's machine protocol, on the qemu.qmp library."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path
from typing import Any

from nfsrdma_tools.errors import UserError

__all__ = ["Monitor"]


class Monitor:
    """A connection to a QEMU."""

    def __init__(self, socket: Path) -> None:
        try:
            from qemu.qmp.legacy import QEMUMonitorProtocol
        except ImportError as error:
            hint = "pip install 'nfsrdma-tools[lab]'"
            raise UserError("labs need the Python library qemu.qmp", hint) from error

        self._socket = socket
        self._protocol: Any = QEMUMonitorProtocol(str(socket))

    def connect(self, seconds: float, alive: Any) -> None:
        """Connect, waiting until QEMU listens on its socket. ``alive`` raises if QEMU has ended."""
        end = time.monotonic() + seconds
        while not self._try_connect():
            alive()
            if time.monotonic() > end:
                raise UserError(f"QEMU did not answer on its control socket in {seconds:g} s")
            time.sleep(0.02)

    def _try_connect(self) -> bool:
        from qemu.qmp import QMPError

        # the socket exists shortly before QEMU listens
        with contextlib.suppress(QMPError, EOFError, OSError):
            if self._socket.exists():
                self._protocol.connect()
                return True
        return False

    def command(self, name: str, /, **arguments: object) -> Any:
        """Run a QMP command and return its reply; UserError if QEMU refuses it or has ended."""
        from qemu.qmp import QMPError

        try:
            return self._protocol.cmd(name, **arguments)
        except (QMPError, EOFError, OSError) as error:
            what = str(error) or "QEMU has ended"
            raise UserError(f"QEMU command {name} failed: {what}") from error

    def human(self, line: str) -> str:
        """Run a command of the human monitor and return its output."""
        return str(self.command("human-monitor-command", **{"command-line": line}))

    def ssh_port(self) -> int:
        """The loopback port, chosen by QEMU, that forwards to the machine's ssh."""
        match = re.search(
            r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", self.human("info usernet")
        )
        if not match:
            raise UserError("QEMU does not forward a port to the machine's ssh")
        return int(match.group(1))

    def close(self) -> None:
        """Close the connection; QEMU may have closed it already."""
        from qemu.qmp import QMPError

        with contextlib.suppress(QMPError, EOFError, OSError):
            self._protocol.close()
