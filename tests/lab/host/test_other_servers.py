# SPDX-License-Identifier: Apache-2.0
"""Our clients with a server that nobody here wrote: nfs-ganesha, where $GANESHA names one."""

import hashlib
import json
import mmap
import os
import random
from pathlib import Path

import pytest
from lab.host import ganesha

from nfsrdma_tools.client import Session, connect
from nfsrdma_tools.lab.lab import Lab
from testbed.node.mounts import drop_caches, mounted
from testbed.remote import Remote, on

pytestmark = pytest.mark.usefixtures("pair_lab")
SECONDS = 900
MANY = """
mkdir /export/many
seq -f %0200.0f 999 | (cd /export/many && xargs touch)
"""
# what the commands copy there is what they copy and print back
COMMANDS = """
cd $(mktemp -d)
head -c 3000003 /dev/urandom > data
nfsrdma cp data server:/export/copied
nfsrdma cp server:/export/copied back
cmp data back
nfsrdma cat server:/export/copied | cmp - data
nfsrdma ls server:/export
nfsrdma stat server:/export/copied | grep ^size
"""
SIZES = (0, 1, 2, 3, 1000, 1023, 4096, 5001, 65_537, 1 << 20, 3_000_003)
BLOCKS = (4096, 1 << 20)
NAMES = {f"{number:0200}" for number in range(1, 1000)}
LONG, LINK = "n" * 255, "t" * 1000


@pytest.fixture(scope="module")
def programs() -> bytes:
    return ganesha.installed()


@pytest.fixture(params=("pair", "module_pair"))
def client(request: pytest.FixtureRequest) -> Lab:
    """The kernel's module in the client, or ours."""
    lab: Lab = request.getfixturevalue(request.param)
    return lab


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - no secret


def written() -> dict[str, bytes]:
    return {f"file-{size}": noise(size) for size in SIZES}


def digests(files: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


@on("client", timeout=SECONDS)
def library(vers: str) -> dict[str, str]:
    """Write with NFSv3, read with the version."""
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
    return digests(files)


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


@on("client", timeout=SECONDS)
def mount(vers: str) -> dict[str, str]:
    """Buffered and direct, past the cache."""
    with mounted(f"vers={vers}", Path("/mnt/other-server")) as here:
        folder = here / f"mount-{vers}"
        folder.mkdir()
        for name, content in written().items():
            (folder / name).write_bytes(content)
        for size in BLOCKS:
            direct(folder / f"direct-{size}", os.O_WRONLY | os.O_CREAT, size, noise(4 * size))
        (folder / LONG).write_bytes(noise(300))
        (folder / "link").symlink_to(LINK)
        drop_caches()
        files = {**written(), LONG: noise(300)}
        files |= {f"direct-{size}": noise(4 * size) for size in BLOCKS}
        for name, content in files.items():
            assert (folder / name).read_bytes() == content, f"{name} differs"
        for size in BLOCKS:
            direct(folder / f"direct-{size}", os.O_RDONLY, size, noise(4 * size))
        assert {path.name for path in (here / "many").iterdir()} == NAMES, "names differ"
        assert str((folder / "link").readlink()) == LINK
    return digests(files)


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


def equal(lab: Lab, work: Remote[[str], dict[str, str]], vers: str) -> None:
    """Compare the files that the client wrote and read with those of the server's file system."""
    script = f"cd /export/{work.function.__name__}-{vers} && sha256sum [dfrn]*"
    wanted, rows = work(lab, vers), lab.run("server", "sh", "-c", script).stdout.splitlines()
    on_server = (row.split("  ", 1) for row in rows)
    assert {name: digest for digest, name in on_server} == wanted


def test_the_library_and_its_commands(programs: bytes, pair: Lab) -> None:
    with ganesha.serving(pair, "server", programs):
        pair.run("server", "sh", "-ec", MANY)
        answer = json.loads(pair.run("client", "nfsrdma", "ping", "server", "--json").stdout)
        assert (answer["private_data"], answer["extended"]) == (False, False)
        assert answer["credits"] > 1
        equal(pair, library, "3")
        lines = pair.run("client", "sh", "-ec", COMMANDS, timeout=SECONDS).stdout.splitlines()
        assert {"copied", "many", "size      3000003"} <= set(lines)


def test_the_library_with_sessions(programs: bytes, pair: Lab) -> None:
    with ganesha.serving(pair, "server", programs) as versions:
        if "4.1" not in versions:
            pytest.skip("this nfs-ganesha has no NFSv4.1 over RDMA; missed: the library with it")
        pair.run("server", "sh", "-ec", MANY)
        equal(pair, library, "4.1")


def test_mounts(programs: bytes, client: Lab) -> None:
    with ganesha.serving(client, "server", programs) as versions:
        client.run("server", "sh", "-ec", MANY)
        for vers in versions.split(", "):
            equal(client, mount, vers)
