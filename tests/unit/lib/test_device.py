# SPDX-License-Identifier: Apache-2.0
"""The device that stands in finds what verbs and the RFCs forbid: faults put into the library."""

import sys
from pathlib import Path

import pytest
from device import COMPILER, Change, build

from nfsrdma_tools.command import run

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
TESTS = Path(__file__).parents[2]

PROGRAM = """
import os, sys
from device import Device
os.environ["NFSRDMA_LIBRARY"] = sys.argv[1]
from nfsrdma_tools.client import connect
device = Device(sys.argv[1])
device.put("/export/data", b"x" * 300_000)
# Sends complete late, so that a slot is wanted before, and replies in another order
device.set(late=3000, late_sends=200_000, credits=4)
try:
    options = {"timeout": 4, "depth": 8}
    with connect("server:/export", **options) as session, session.open("data", "r+") as file:
        for size in (10, 3000, 10_001, 300_000) * 3:
            file.pwrite(b"y" * size, 5)
            file.pread(size, 5)
        ranges = [(file, number * 10, 10) for number in range(200)]
        session.read_ranges(ranges, bytearray(2000))
except OSError as error:
    print(error)
print(device.faults, device.objects)
"""

CHANGES = {
    "which is not registered": Change(
        "send.c", ".handle = (*span->mr)->rkey,", ".handle = (*span->mr)->rkey + 2,"
    ),
    "without the access right": Change(
        "memory.c",
        "| IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE)",
        "| IBV_ACCESS_REMOTE_READ)",
    ),
    "of 4 that the server grants": Change(
        "send.c", "session->in_flight < session->credits", "session->in_flight <= session->credits"
    ),
    "changed before its completion": Change(
        "request.c",
        "while (req && !was_sent(session, req))",
        "while (0 && !was_sent(session, req))",
    ),
    "a Read chunk at position": Change(
        "io.c", "req->position = req->length;", "req->position = req->length + 4;"
    ),
    "not acknowledged": Change("wait.c", "ibv_ack_cq_events(cq, 1);", ""),
    "destroyed before its queue pair": Change("connection.c", "ibv_destroy_qp(session->qp);", ";"),
    "for a Receive of": Change(
        "reply.c", ".length = session->options.inline_size,", ".length = 64,"
    ),
}


def output(library: Path) -> str:
    script = f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS.parent)]!r}\n{PROGRAM}"
    return run(sys.executable, "-c", script, library, timeout=300).stdout


def test_the_library_has_no_fault() -> None:
    assert output(build()) == "[] {}\n"


@pytest.mark.parametrize("text", CHANGES)
def test_a_fault_is_found(text: str) -> None:
    assert text in output(build(change=CHANGES[text]))
