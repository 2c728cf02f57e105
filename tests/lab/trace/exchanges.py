# SPDX-License-Identifier: Apache-2.0
"""Work over a mount whose messages are of each kind."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

__all__ = ["LENGTHS", "exchange"]

LENGTHS = "rsize=262144,wsize=262144"


def exchange(folder: Path) -> None:
    """Messages of NFSv3: inline, Write chunk, Read chunk, Reply chunk, data inline.

    The folder has the files ``data`` and ``link`` afterwards.
    """
    folder.mkdir()
    for size in (1, 3000, 9999, 300000):
        # the same each time: tshark takes some data for another protocol, such as one byte for a
        # frame of Ethernet whose EtherType it begins
        data = random.Random(size).randbytes(size) if size > 1 else b"\x81"  # noqa: S311
        (folder / "data").write_bytes(data)
        copy = ("dd", f"if={folder}/data", "iflag=direct", "bs=128k", "status=none")
        assert subprocess.run(copy, capture_output=True, check=True).stdout == data
    (folder / "link").symlink_to("t" * 900)
    for number in range(60):
        (folder / f"a file with a name of some length {number}").touch()
    assert len(list(folder.iterdir())) == 62
