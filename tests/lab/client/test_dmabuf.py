# SPDX-License-Identifier: Apache-2.0
"""Memory of dma-bufs through libnfsrdma and the modelled card: udmabuf is the exporter.

The pages are those of a memfd, by which each read and write is compared; at the address by which
the client names them, each touch by the processor is a SIGSEGV.
"""

import ctypes
import errno
import mmap
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from nfsrdma_tools.client import Session, connect
from nfsrdma_tools.client.session import Region
from nfsrdma_tools.lab.lab import Lab
from testbed.client_files import DATA, HERE, TARGET
from testbed.labs import cards_lab
from testbed.node.dmabufs import Unreachable, memory_of, udmabuf
from testbed.node.programs import call, until
from testbed.remote import on

pytestmark = [pytest.mark.lab, pytest.mark.nightly]

PAGE = mmap.PAGESIZE
SIZES = (0, 1, 3, 4, 1000, 3900, 4095, 4096, 4097, 8192, 17 * 4096 + 1, 1 << 20, (1 << 20) + 1)
SPACE = (2 << 20) + 4 * PAGE
SECONDS = 1800
# bounce buffers would have other data than the memfd until the end of the mapping
FORMS = ("", "direct", "iommu")
# enum ibv_access_flags
LOCAL_WRITE, REMOTE_ATOMIC, MW_BIND = 1, 8, 16
REMOTE = LOCAL_WRITE | 2 | 4


@pytest.fixture(scope="module", params=FORMS, ids=lambda form: form or "virtual")
def cards(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A solo lab with two modelled cards, in a form of DMA."""
    if pytestconfig.getoption("--kernel") == "6.1":
        pytest.skip("Debian's 6.1 has no udmabuf; missed: dma-bufs with its RDMA core")
    with cards_lab(pytestconfig, f"dmabuf-{request.param or 'virtual'}", dma=request.param) as lab:
        yield lab
        assert bufs(lab) == []


@on("client")
def bufs() -> list[str]:
    """The dma-bufs of the node, and what uses them."""
    lines = Path("/sys/kernel/debug/dma_buf/bufinfo").read_text().splitlines()
    return [line for line in lines if "udmabuf" in line or "Attached Devices" in line]


@contextmanager
def opened(version: str) -> Iterator[tuple[Session, Region, Unreachable]]:
    """A session with the memory registered."""
    HERE.mkdir(exist_ok=True)
    (HERE / "data").write_bytes(DATA)
    with ExitStack() as stack:
        memory, fd = stack.enter_context(memory_of(SPACE))
        session = stack.enter_context(connect(TARGET, vers=version))
        region = session.register_dmabuf(fd, 0, SPACE, memory.address)
        stack.callback(region.close)
        yield session, region, memory


@on("client", timeout=SECONDS)
def moved(version: str) -> int:
    """Reads and writes of all sizes; returns the bytes that the processor copied."""
    with opened(version) as (session, region, memory):
        file, out = session.open("data"), session.open("out", "w+")
        for size in SIZES:
            for at, offset in ((0, 0), (5, 3), (PAGE - 1, len(DATA) - size // 2)):
                before = os.urandom(SPACE)
                memory.fill(before)
                wanted = DATA[offset : offset + size]
                assert file.pread_into(region.memory(at, size), offset) == len(wanted)
                expected = before[:at] + wanted + before[at + len(wanted) :]
                assert memory.get() == expected, (size, at, offset)
                out.truncate(0)
                assert out.pwrite(region.memory(at, size), offset) == size
                out.fsync()
                written = (HERE / "out").read_bytes()
                assert written == bytes(offset if size else 0) + expected[at : at + size], size
        ranges = [(file, number * 9000, 1 + number * 80) for number in range(100)]
        total = sum(length for *_, length in ranges)
        session.read_ranges(ranges, region.memory(7, total))
        wanted = b"".join(DATA[offset : offset + length] for _, offset, length in ranges)
        assert memory.get(7, total) == wanted
        return session.stats.copied_bytes


@pytest.mark.parametrize("version", ("3", "4.1"))
def test_reads_and_writes_reach_the_pages(cards: Lab, version: str) -> None:
    assert moved(cards, version) == 0


@on("client", timeout=SECONDS)
def ends() -> None:
    """Descriptors, registration and session end in any order."""
    HERE.mkdir(exist_ok=True)
    (HERE / "data").write_bytes(DATA)
    for order in range(4):
        memory = Unreachable(SPACE)
        with connect(TARGET) as session, session.open("data") as file:
            with udmabuf(memory) as fd:
                region = session.register_dmabuf(fd, PAGE, PAGE, memory.address + PAGE)
            # the exporter's descriptor is closed
            assert file.pread_into(region.memory(), 11) == PAGE
            assert memory.get(PAGE, PAGE) == DATA[11 : 11 + PAGE]
            if order == 1:
                region.close()
            elif order == 2:
                memory.close()
                assert file.pread_into(region.memory(), 12) == PAGE
                region.close()
            elif order == 3:
                # a transfer is under way
                transfer = session.start_read([(file, 0, 9)] * 200, region.memory(0, 1800))
                region.close()
                assert transfer.done
        if order != 2:
            memory.close()


def test_the_ends_have_any_order(cards: Lab) -> None:
    ends(cards)


def regions() -> int:
    """Registrations of all processes."""
    return len(re.findall(r"\bmrn\b", call("rdma", "resource", "show", "mr")))


@on("client", timeout=SECONDS)
def kill_readers() -> None:
    """Processes that read to a dma-buf end by SIGKILL."""
    before = regions()
    for number in range(6):
        ready, told = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                with opened("3") as (session, region, _):
                    file = session.open("data")
                    os.write(told, b"x")
                    while True:
                        session.read_ranges([(file, 0, 1 << 20)] * 2, region.memory(0, 2 << 20))
            finally:
                os._exit(1)
        assert os.read(ready, 1) == b"x"
        # in the middle of a transfer, each time elsewhere
        time.sleep(0.01 * number)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        os.close(ready)
        os.close(told)
    until("the end of their registrations", lambda: regions() == before, 300)


def test_nothing_is_left_of_processes_that_are_killed(cards: Lab) -> None:
    kill_readers(cards)
    assert bufs(cards) == []


@on("client")
def refused() -> list[tuple[int, int, int, int]]:
    """Registrations that the kernel should have refused: offset, length, address, errno."""
    verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_dmabuf_mr"):
        getattr(verbs, name).restype = ctypes.c_void_p
    pointer, count = ctypes.c_void_p, ctypes.c_int()
    devices = ctypes.cast(verbs.ibv_get_device_list(ctypes.byref(count)), ctypes.POINTER(pointer))
    context = pointer(verbs.ibv_open_device(pointer(devices[0])))
    domain = pointer(verbs.ibv_alloc_pd(context))

    def register(fd: int, offset: int, length: int, address: int, access: int) -> int:
        words = (ctypes.c_uint64(offset), ctypes.c_size_t(length), ctypes.c_uint64(address))
        region = verbs.ibv_reg_dmabuf_mr(domain, *words, fd, access)
        error = ctypes.get_errno()
        if region:
            assert not verbs.ibv_dereg_mr(pointer(region))
        return 0 if region else error

    wrong = []
    most = 1 << 64
    with memory_of(4 * PAGE) as (memory, fd):
        start = memory.address
        assert not register(fd, 0, 4 * PAGE, start, REMOTE)
        assert not register(fd, 3 * PAGE + 5, PAGE - 5, start + 5, REMOTE)
        for offset, length, address, access in (
            (0, 4 * PAGE + 1, start, REMOTE),
            (4 * PAGE, PAGE, start, REMOTE),
            (3 * PAGE, PAGE + 1, start, REMOTE),
            (most - PAGE, 2 * PAGE, start, REMOTE),
            (PAGE, most - PAGE, start, REMOTE),
            (0, most - 1, start, REMOTE),
            (0, 0, start, REMOTE),
            (1, PAGE, start, REMOTE),
            (0, PAGE, start, LOCAL_WRITE | MW_BIND),
            (0, PAGE, start, LOCAL_WRITE | REMOTE_ATOMIC),
        ):
            error = register(fd, offset, length, address, access)
            if error not in (errno.EINVAL, errno.EOPNOTSUPP):
                wrong.append((offset, length, address - start, error))
        # no dma-bufs
        for other in (memory.fd, -1, 1 << 20):
            assert register(other, 0, PAGE, start, REMOTE) in (errno.EINVAL, errno.EBADF), other
        for _ in range(50):
            assert not register(fd, 0, 4 * PAGE, start, REMOTE)
    assert not verbs.ibv_dealloc_pd(domain)
    assert not verbs.ibv_close_device(context)
    return wrong


def test_the_card_refuses_what_the_dmabuf_does_not_have(cards: Lab) -> None:
    assert refused(cards) == []
    assert bufs(cards) == []
