# SPDX-License-Identifier: Apache-2.0
"""Work of a client of a server that is not the kernel's; runs in the node.

``python3 - WAY VERS`` compares what it reads with what it wrote in the folder WAY-VERS, and prints
the SHA-256 of each file there as JSON, by name.  WAY is library or mount.  Never imported by the
tests.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nfsrdma_tools.client import Session, connect

HERE = Path("/mnt/other-server")
SIZES = (0, 1, 2, 3, 1000, 1023, 4096, 5001, 65_537, 1 << 20, 3_000_003)
BLOCKS = (4096, 1 << 20)
# test_other_servers.py makes them on the server
NAMES = {f"{number:0200}" for number in range(1, 1000)}
LONG, LINK = "n" * 255, "t" * 1000


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - no secret


def written() -> dict[str, bytes]:
    return {f"file-{size}": noise(size) for size in SIZES}


# --- the library ---


def library(vers: str) -> dict[str, bytes]:
    """Write with NFSv3, read with the version, which may be one that only reads."""
    files = {**written(), "registered": noise(2 << 20), LONG: noise(300)}
    folder = f"library-{vers}"
    with connect("server:/export", timeout=60) as session:
        session.mkdir(folder)
    with connect(f"server:/export/{folder}", timeout=60) as session:
        for name, content in files.items():
            write(session, name, content)
        session.symlink(LINK, "before")
        session.rename("before", "link")
    with connect(f"server:/export/{folder}", timeout=60, vers=vers) as session:
        for name, content in files.items():
            with session.open(name) as file:
                assert file.readall() == content, f"{name} differs"
        ranges(session)
        assert session.readlink("link") == LINK
    with connect("server:/export/many", timeout=60, vers=vers) as session:
        assert set(session.listdir()) == NAMES, "names differ"
    return files


def write(session: Session, name: str, content: bytes) -> None:
    with session.open(name, "w") as file:
        if name == "registered":
            with session.register(memory := bytearray(content)):
                assert file.pwrite(memory, 0) == len(content)
        else:
            assert file.pwrite(content, 0) == len(content)
        file.fsync()


def ranges(session: Session) -> None:
    """One batch, the last of which end at and behind the end of the file."""
    size = SIZES[-1]
    content, chance = noise(size), random.Random(8166)  # noqa: S311
    wanted = [(chance.randrange(size), chance.choice((1, 4096, 70_001))) for _ in range(60)]
    # how many bytes there are behind a multiple of four
    wanted += [(size - 5000 - rest, 9000) for rest in range(4)] + [(size, 100), (size + 9, 9000)]
    with session.open(f"file-{size}") as file:
        out = bytearray(sum(length for _, length in wanted))
        with session.register(out):
            counts = session.read_ranges([(file, *each) for each in wanted], out)
    place = 0
    for (offset, length), count in zip(wanted, counts, strict=True):
        expected = content[offset : offset + length]
        assert bytes(out[place : place + count]) == expected, f"{length} bytes at {offset}"
        place += length


# --- a mount ---


def mount(vers: str) -> dict[str, bytes]:
    """Buffered and direct, past the cache."""
    folder = HERE / f"mount-{vers}"
    with mounted(vers):
        folder.mkdir()
        for name, content in written().items():
            (folder / name).write_bytes(content)
        for size in BLOCKS:
            direct(folder / f"direct-{size}", os.O_WRONLY | os.O_CREAT, size, noise(4 * size))
        (folder / LONG).write_bytes(noise(300))
        (folder / "link").symlink_to(LINK)
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        files = {**written(), LONG: noise(300)}
        files |= {f"direct-{size}": noise(4 * size) for size in BLOCKS}
        for name, content in files.items():
            assert (folder / name).read_bytes() == content, f"{name} differs"
        for size in BLOCKS:
            direct(folder / f"direct-{size}", os.O_RDONLY, size, noise(4 * size))
        assert {path.name for path in (HERE / "many").iterdir()} == NAMES, "names differ"
        assert str((folder / "link").readlink()) == LINK
    return files


@contextmanager
def mounted(vers: str) -> Iterator[None]:
    HERE.mkdir(exist_ok=True)
    options = f"vers={vers},proto=rdma,port=20049"
    subprocess.run(("mount", "-t", "nfs", "-o", options, "server:/export", HERE), check=True)
    try:
        yield
    finally:
        subprocess.run(("umount", HERE), check=True)


def direct(path: Path, flags: int, size: int, content: bytes) -> None:
    """Write the content in blocks of SIZE past the cache, or compare the file with it."""
    block = mmap.mmap(-1, size)
    file = os.open(path, flags | os.O_DIRECT)
    try:
        for offset in range(0, len(content), size):
            part = content[offset : offset + size]
            if flags & os.O_WRONLY:
                block[:] = part
                assert os.pwritev(file, [block], offset) == size
            else:
                assert os.preadv(file, [block], offset) == size
                assert block[:] == part, f"{path.name} differs at {offset}"
    finally:
        os.close(file)


def main() -> None:
    way, vers = sys.argv[1:]
    files = {"library": library, "mount": mount}[way](vers)
    print(json.dumps({name: hashlib.sha256(files[name]).hexdigest() for name in files}))


main()
