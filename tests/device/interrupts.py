# SPDX-License-Identifier: Apache-2.0
"""Interrupts at random places of waits, copies and reads: ``make campaign NAME=interrupts``.

SIGINT arrives at a bytecode of the package, or at a time, in a call over the stand-in.  After each
one the session has to work, the bytes that count are those that arrived, and no registration is
left.
A call that does not end within two minutes ends the program with all stacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from device import FOLDER, SANITIZER, Device, build
from nfsrdma_tools.client import File, Session, connect
from nfsrdma_tools.client.copy import Options, copy

DATA = os.urandom(400_000)
_HANG_SECONDS = 120
_SEED = 60


class Campaign:
    """Calls, each of which is interrupted, and what is wrong after one."""

    def __init__(self, device: Device, folder: Path) -> None:
        self.device, self.folder = device, folder
        device.put("/export", kind=FOLDER)
        device.put("/export/data", DATA)
        device.put("/export/written")
        self.session = connect("server:/export", arena=1 << 17, depth=8)
        self.file = self.session.open("data")
        self.written = self.session.open("written", "r+")
        self.calls = (
            self.read, self.read_registered, self.wait, self.write, self.sync, self.names,
            self.run_loop, self.copy_file, self.connect_again,
        )  # fmt: skip
        self.opcodes: dict[str, int] = {}
        self.wrong: Counter[str] = Counter()
        # opening it again, and a first use of everything
        self.base = device.objects

    def close(self) -> None:
        """End the session, with all that belongs to it."""
        self.session.close()

    # --- the calls ---

    def read(self) -> None:
        out = bytearray(len(DATA) + 5)
        counts = self.session.read_ranges([(self.file, 0, len(DATA)), (self.file, 7, 5)], out)
        self.check("lengths", counts == [len(DATA), 5] and out == DATA + DATA[7:12])
        out.clear()

    def read_registered(self) -> None:
        out = bytearray(len(DATA))
        with self.session.register(out):
            self.check("lengths", self.file.pread_into(out, 0) == len(DATA) and out == DATA)

    def wait(self) -> None:
        out = bytearray(len(DATA))
        transfer = self.session.start_read([(self.file, 0, len(DATA))], out)
        try:
            self.check("lengths", transfer.result() == [len(DATA)] and out == DATA)
        finally:
            (moved,) = transfer.moved
            self.check("lengths", moved <= len(DATA) and out[:moved] == DATA[:moved])
            # a result after an error is one of all bytes
            with contextlib.suppress(OSError):
                self.check("lengths", transfer.counts() == [len(DATA)] and out == DATA)

    def write(self) -> None:
        data = os.urandom(200_000)
        transfer = self.session.start_write([(self.written, 0, len(data))], data)
        try:
            self.check("lengths", transfer.result() == [len(data)])
        finally:
            (moved,) = transfer.moved
            stored = self.device.get("/export/written") or b""
            self.check("lengths", stored[:moved] == data[:moved])

    def sync(self) -> None:
        self.written.pwrite(b"x" * 100, 0)
        self.written.fsync()

    def names(self) -> None:
        self.check("lengths", self.session.stat("data").st_size == len(DATA))
        self.check("lengths", set(self.session.listdir()) == {"data", "written"})
        with self.session.open("data") as file:
            self.check("lengths", file.size() == len(DATA))

    def run_loop(self) -> None:
        asyncio.run(self._in_loop())

    async def _in_loop(self) -> None:
        outs = [bytearray(len(DATA)) for _ in range(2)]
        counts = await asyncio.gather(*(self.file.readinto_async(out, 0) for out in outs))
        self.check("lengths", counts == [len(DATA)] * 2 and outs == [DATA] * 2)

    def copy_file(self) -> None:
        for each in self.folder.iterdir():
            each.unlink()
        target = self.folder / "copy"
        try:
            copy("server:/export/data", str(target), Options())
        finally:
            # a copy has its name when it is complete
            self.check("lengths", not target.exists() or target.read_bytes() == DATA)

    def connect_again(self) -> None:
        with connect("server:/export") as session, session.open("data") as file:
            use(self, session, file)

    # --- interrupts ---

    def check(self, fault: str, good: bool) -> None:
        """Count what is wrong."""
        if not good:
            self.wrong[fault] += 1

    def run(self, call: Callable[[], None], numbers: random.Random) -> bool:
        """Interrupt a call; returns whether it ended by that."""
        if numbers.random() < 0.5:
            return self._at_opcode(call, numbers)
        return self._at_time(call, numbers)

    def _at_opcode(self, call: Callable[[], None], numbers: random.Random) -> bool:
        name = call.__name__
        if name not in self.opcodes:
            self._traced(0, call)
            self.opcodes[name] = self.device.signal_at(0)
        try:
            self._traced(numbers.randint(1, self.opcodes[name]), call)
        except KeyboardInterrupt:
            return True
        finally:
            self.device.signal_at(0)
        return False

    def _traced(self, number: int, call: Callable[[], None]) -> None:
        self.device.signal_at(number)
        sys.settrace(self.device.tracing)
        try:
            call()
            # a signal at the last opcode
            time.sleep(0)
        finally:
            sys.settrace(None)

    def _at_time(self, call: Callable[[], None], numbers: random.Random) -> bool:
        try:
            try:
                # SIGALRM, whose handler is that of SIGINT
                signal.setitimer(signal.ITIMER_REAL, numbers.uniform(1e-5, 0.02))
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False

    def settle(self) -> None:
        """After an interrupt: the session works, and has no more than before."""
        self.read()
        gc.collect()
        self.names()
        self.check("leaks", self.device.objects == self.base)
        self.check("unfinished operations", not self.session._queue.busy)


def use(campaign: Campaign, session: Session, file: File) -> None:
    out = bytearray(10_000)
    with session.register(out):
        campaign.check("lengths", file.pread_into(out, 0) == 10_000 and out == DATA[:10_000])


def main() -> None:
    count = int(sys.argv[1])
    path = build(SANITIZER)
    os.environ["NFSRDMA_LIBRARY"] = str(path)
    device, numbers = Device(path), random.Random(_SEED)  # noqa: S311
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler)
    interrupted: Counter[str] = Counter()
    # an interrupt in a finalizer or in the event loop is reported there
    sys.unraisablehook = lambda _: None
    logging.disable()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(device, Path(folder))
        while interrupted.total() < count:
            device.set(late=numbers.choice((0, 200, 2000)), spurious=numbers.choice((0, 3)))
            call = numbers.choice(campaign.calls)
            faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
            interrupted[call.__name__] += campaign.run(call, numbers)
            campaign.settle()
        faulthandler.cancel_dump_traceback_later()
        campaign.close()
    campaign.check("leaks", device.objects == {})
    campaign.check("faults of the device", not device.faults)
    each = ", ".join(f"{name} {times}" for name, times in sorted(interrupted.items()))
    print(f"{interrupted.total()} interrupts: {each}")
    names = ("lengths", "leaks", "unfinished operations", "faults of the device")
    print("0 hangs", *(f"{campaign.wrong[name]} wrong {name}" for name in names), sep="; ")
    if campaign.wrong:
        raise SystemExit("\n".join(device.faults) or 1)


if __name__ == "__main__":
    main()
