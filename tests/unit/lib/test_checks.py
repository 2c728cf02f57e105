# SPDX-License-Identifier: Apache-2.0
"""libnfsrdma when processes fork, servers change and memory ends, over a device that stands in."""

from pathlib import Path

import pytest
from wire import fuzz, native

from nfsrdma_tools.command import run

CHECKS = (
    "fork while a device opens", "fork while a connection closes", "registered memory and fork",
    "closed file", "smaller messages", "bytes behind a short read", "full arena",
    "call beside a full arena", "listing without progress", "silent mount daemon",
    "message about memory", "read before the second connection", "notices before a read",
    "credits of notices", "write and references", "call beside RDMA Reads",
    "no memory for the cache", "fsync of another open file", "fsync beside an unfinished write",
    "restart before fsync", "close", "close in a batch", "descriptor beside other calls",
    "interrupted uses its session", "sizes of structs", "size of an entry", "ranges",
    "small arena", "failed block", "wait for nothing", "interrupt of a fast call", "busy server",
    "flags of open", "many files", "confirmed client", "calls of a path",
)  # fmt: skip

pytestmark = pytest.mark.skipif(native.COMPILER is None, reason="no C compiler")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fuzz.build_checks(tmp_path_factory.mktemp("checks"))


@pytest.mark.parametrize("name", CHECKS)
def test_check(program: Path, name: str) -> None:
    run(program, name, timeout=120)


def test_all_checks_of_the_program_are_run(program: Path) -> None:
    assert run(program).stdout.splitlines() == list(CHECKS)
