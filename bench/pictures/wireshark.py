# SPDX-License-Identifier: Apache-2.0
"""Draws Wireshark's window with a capture of a lab's mount.

Needs wireshark, xvfb, xdotool and imagemagick of Debian on this host: Wireshark itself opens the
file on a virtual screen, keys open its comments and the transport header, and ``import`` takes the
picture.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from nfsrdma_tools.lab.lab import Lab

__all__ = ["captured", "missing", "shoot"]

PROGRAMS = ("wireshark", "Xvfb", "xdotool", "import")
WIDTH, HEIGHT = 1180, 680
CAPTURE = """
set -e
mkdir -p /mnt
mount -t nfs -o vers=3,proto=rdma,port=20049,noac server:/export /mnt
dd if=/dev/urandom of=/mnt/file bs=4k count=64 status=none
nfsrdma capture -w /run/wireshark.pcapng --mount /mnt </dev/null >/dev/null 2>&1 &
for i in $(seq 3000); do test -s /run/wireshark.pcapng && break; sleep 0.1; done
dd if=/mnt/file of=/dev/null bs=64k count=4 iflag=direct status=none
ls -l /mnt >/dev/null
kill -INT $!; wait $!
umount /mnt
base64 -w 0 /run/wireshark.pcapng
"""
# READs of NFSv3
SHOWN = "nfs.procedure_v3 == 6"
PREFERENCES = """
gui.column.format: "No.", "%m", "Time", "%t", "Source", "%s", "Destination", "%d", "Info", "%i"
gui.layout_content_3: NONE
gui.update.enabled: FALSE
"""
RECENT = f"""
gui.geometry_main_upper_pane: 190
gui.geometry_main_width: {WIDTH}
gui.geometry_main_height: {HEIGHT}
"""
# the last three rows of the details: RPC over RDMA, the RPC, and NFS
KEYS = ("Home", "Right", "End", "Up", "Up", "shift+Right", "Home")


def missing() -> str:
    """Which programs this host lacks, and how to get them; empty if it has all."""
    names = ", ".join(program for program in PROGRAMS if not shutil.which(program))
    return names and f"no {names}: apt-get install wireshark xvfb xdotool imagemagick"


def captured(lab: Lab) -> bytes:
    """A file that ``nfsrdma capture`` wrote at the client."""
    return base64.b64decode(lab.run("client", "sh", "-c", CAPTURE, timeout=1200).stdout)


def shoot(file: bytes, number: int, picture: Path) -> None:
    """The window with the packet of this number."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = home / ".config" / "wireshark"
        settings.mkdir(parents=True)
        (settings / "preferences").write_text(PREFERENCES)
        for name in ("recent", "recent_common"):
            (settings / name).write_text(RECENT)
        capture = home / "mount.pcapng"
        capture.write_bytes(file)
        with _screen(home) as environment, _window(capture, number, environment) as window:
            _do(environment, "xdotool", "windowsize", "--sync", window, str(WIDTH), str(HEIGHT))
            _do(environment, "xdotool", "windowfocus", "--sync", window)
            # below the details: a click gives them the keys
            below = str(WIDTH // 2), str(HEIGHT - 60)
            _do(environment, "xdotool", "mousemove", *below, "click", "1")
            _do(environment, "xdotool", "key", "--delay", "200", *KEYS)
            _do(environment, "xdotool", "mousemove", "0", "0")
            time.sleep(2)
            colours = ("+dither", "-colors", "128", "-strip")
            argv = ("import", "-window", "root", *colours, f"PNG8:{picture}")
            _do(environment, *argv)


@contextlib.contextmanager
def _screen(home: Path) -> Iterator[Mapping[str, str]]:
    """A virtual screen; yields the environment of its programs."""
    read, write = os.pipe()
    argv = ("Xvfb", "-displayfd", str(write), "-screen", "0", f"{WIDTH}x{HEIGHT}x24")
    screen = subprocess.Popen(argv, pass_fds=(write,), stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with os.fdopen(read) as pipe:
            display = pipe.readline().strip()
        names = {"HOME": str(home), "XDG_RUNTIME_DIR": str(home), "LC_ALL": "C.UTF-8"}
        yield {**os.environ, **names, "DISPLAY": f":{display}", "QT_QPA_PLATFORM": "xcb"}
    finally:
        screen.terminate()
        screen.wait()


@contextlib.contextmanager
def _window(capture: Path, number: int, environment: Mapping[str, str]) -> Iterator[str]:
    """Wireshark with a packet selected; yields the number of its window."""
    argv = ("wireshark", "-n", "-r", str(capture), "-Y", SHOWN, "-g", str(number))
    program = subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL)
    try:
        search = ("xdotool", "search", "--sync", "--onlyvisible", "--name", capture.name)
        windows = _do(environment, *search).split()
        # the list of packets fills
        time.sleep(5)
        yield windows[-1]
    finally:
        program.kill()
        program.wait()


def _do(environment: Mapping[str, str], *argv: str) -> str:
    done = subprocess.run(
        argv, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    )
    return done.stdout
