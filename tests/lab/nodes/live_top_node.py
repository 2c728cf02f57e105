# SPDX-License-Identifier: Apache-2.0
"""``nfsrdma top`` in a terminal of 80x24, and q once it shows the mount; see testbed/dashboard.py.

The argument is the limit in seconds.
"""

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time

NAME = "<b>watched"


def main() -> None:
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
    seen = b""
    pressed = False
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if select.select([master], [], [], 0.5)[0]:
            seen += os.read(master, 65536)
        if NAME.encode() in seen and not pressed:
            os.write(master, b"q")
            pressed = True
    else:
        os.kill(child, 9)
        sys.exit(f"top did not end, pressed q: {pressed}, its output: {seen[-2000:]!r}")
    while select.select([master], [], [], 0.2)[0]:
        seen += os.read(master, 65536)
    after = termios.tcgetattr(slave)
    print(
        json.dumps(
            {
                "status": os.waitstatus_to_exitcode(status),
                "seen": seen.decode(errors="replace")[-20000:],
                "settings_kept": before == after,
                # the alternate screen is left
                "left_the_screen": seen.rfind(b"\x1b[?1049l") > seen.rfind(b"\x1b[?1049h"),
            }
        )
    )


main()
