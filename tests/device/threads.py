# SPDX-License-Identifier: Apache-2.0
"""Threads that use a session until another one closes it: ``make campaign NAME=threads``.

In a third of the rounds the connection ends under them, and comes again.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
import time

from device import FOLDER, SANITIZER, Device, build, preloaded
from nfsrdma_tools.client import Session, connect

_THREADS = 16
_HANG_SECONDS = 120


def use(session: Session, which: int) -> None:
    """Call the library until the session is closed."""
    while True:
        if which % 4 == 0:
            session.stat("sub/data")
        elif which % 4 == 1:
            with session.open("data") as file:
                assert file.pread(50_000, 0) == b"x" * 50_000
        elif which % 4 == 2:
            out = bytearray(20_000)
            with session.register(out), session.open("data") as file:
                assert session.read_ranges([(file, 0, 20_000)], out) == [20_000]
        else:
            file = session.open("sub/data")
            transfer = session.start_read([(file, 0, 9_000)], bytearray(9_000))
            assert transfer.result() == [9_000]


def run_round(device: Device, number: int) -> None:
    """Open a session, use it in all threads, end its connection in some rounds, and close it."""
    # late enough that calls are under way when the session is closed
    device.set(late=200, spurious=3)
    session = connect("server:/export", cache=1 << 20 if number % 2 else 0)
    begun = threading.Barrier(_THREADS + 1)
    errors: list[str] = []

    def guarded(which: int) -> None:
        begun.wait()
        try:
            use(session, which)
        except (ValueError, OSError) as error:
            if "closed" not in str(error):
                errors.append(repr(error))
        except BaseException as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(which,)) for which in range(_THREADS)]
    for thread in threads:
        thread.start()
    begun.wait()
    if number % 3 == 0:
        device.end_connections()
    threading.Event().wait(0.02)
    session.close()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert device.faults == [], device.faults


def run_with(sanitizer: str, rounds: int, seconds: float) -> int:
    """Run this program with a sanitizer; returns its exit status, 66 after a report."""
    build(sanitizer)
    made = preloaded(sanitizer)
    if made is None:
        raise SystemExit(f"gcc has no {sanitizer} sanitizer")
    command, environment = made
    words = [*command, "-m", "device.threads", "", str(rounds), str(seconds)]
    return subprocess.run(words, env=environment, check=False).returncode


def main() -> None:
    sanitizer, rounds, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if sanitizer:
        raise SystemExit(run_with(sanitizer, rounds, seconds))
    faulthandler.enable()
    path = build(SANITIZER)
    os.environ["NFSRDMA_LIBRARY"] = str(path)
    device = Device(path)
    device.put("/export", kind=FOLDER)
    device.put("/export/data", b"x" * 50_000)
    device.put("/export/sub/data", b"y" * 50_000)
    sys.setswitchinterval(1e-6)
    until, number = time.monotonic() + seconds, 0
    while number < rounds or time.monotonic() < until:
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        run_round(device, number)
        number += 1
    faulthandler.cancel_dump_traceback_later()
    assert device.objects == {}, device.objects
    print(f"{number} rounds")


if __name__ == "__main__":
    main()
