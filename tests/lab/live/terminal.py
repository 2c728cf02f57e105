# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top`` in a terminal of a client."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time

from testbed.remote import on

__all__ = ["use_top"]

NAME = b"<b>watched"
# seconds; a machine that runs other labs needs minutes for the first frame
LIMIT = 1800


@on("client", timeout=LIMIT + 60)
def use_top() -> str:
    """Press q when the mount is shown: the terminal is left as it was; returns its output."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(slave)
    child = os.fork()
    if child == 0:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(slave, number)
        os.environ["TERM"] = "xterm"
        os.execvp("nfsrdma", ("nfsrdma", "top"))  # noqa: S606
    output = b""
    pressed = False
    end = time.monotonic() + LIMIT
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            raise TimeoutError(
                f"top did not end, pressed q: {pressed}, its output: {output[-2000:]!r}"
            )
        if select.select([master], [], [], 0.5)[0]:
            output += os.read(master, 65536)
        if NAME in output and not pressed:
            os.write(master, b"q")
            pressed = True
    while select.select([master], [], [], 0.2)[0]:
        output += os.read(master, 65536)
    assert os.waitstatus_to_exitcode(ended[1]) == 0, output[-2000:]
    assert pressed
    assert termios.tcgetattr(slave) == before
    # the alternate screen is left
    assert output.rfind(b"\x1b[?1049l") > output.rfind(b"\x1b[?1049h")
    return output.decode(errors="replace")
