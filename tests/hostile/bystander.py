# SPDX-License-Identifier: Apache-2.0
"""An unrelated application: it works on a mount and counts its operations and errors."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any, Self

__all__ = ["Bystander"]


class Bystander(threading.Thread):
    """Writes a file and reads it back, again and again, in a ``with`` statement."""

    def __init__(self, folder: Path, rest: float = 0.3) -> None:
        """``rest``: seconds between rounds."""
        super().__init__()
        self.rest = rest
        self.path, self.stop = folder / f"bystander-{os.getpid()}", threading.Event()
        self.rounds, self.errors = 0, list[str]()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join()

    def run(self) -> None:
        rng = random.Random(1)  # noqa: S311 - no secret
        while not self.stop.wait(self.rest):
            try:
                self._round(rng.randbytes(rng.choice((100, 5000, 100000))))
            except OSError as error:
                self.errors.append(repr(error))
            self.rounds += 1
        self.path.unlink(missing_ok=True)

    def _round(self, data: bytes) -> None:
        self.path.write_bytes(data)
        with self.path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if file.read() != data:
                self.errors.append("wrong data")

    def account(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "errors": self.errors}
