# SPDX-License-Identifier: Apache-2.0
"""What a server needs for many clients: the numbers of the page Scale, and the limits."""

import re
from pathlib import Path

import pytest

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.server_size import MODULES, Question, needs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/scale.md"
SERVER = ROOT / "kmod/server"
KIB = 1 << 10


def measured(name: str) -> list[int]:
    """Slabs and queues of the device in KiB, of the page's row with the most connections."""
    part = PAGE.read_text().split("<!-- begin: scale memory -->")[1].split("<!-- end")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
    (row,) = (row for row in rows if row[:2] == [name, "1000"])
    return [int(cell) for cell in row[3:]]


@pytest.mark.parametrize(("name", "curve"), [("rpcrdma", "kernel's"), ("nfsrdma", "nfsrdma")])
def test_constants_are_those_measured(name: str, curve: str) -> None:
    assert [MODULES[name].idle_kib, MODULES[name].queues_kib] == measured(curve)


def test_credits_are_those_of_the_module() -> None:
    first = re.search(r"NFR_SVC_FIRST_GRANT\s+(\d+)u", (SERVER / "server.h").read_text())
    text = (ROOT / "kmod/params.c").read_text()
    credits, connections = (
        re.search(rf"NFR_NUMBER\({name}, (\d+),", text)
        for name in ("credits", "server_connections")
    )
    assert first
    assert credits
    assert connections
    ours = MODULES["nfsrdma"]
    assert (ours.first_credits, ours.credits, ours.connections) == (
        int(first[1]), int(credits[1]), int(connections[1]),
    )  # fmt: skip


def test_all_grows_with_connections() -> None:
    one, many = needs(Question(1)), needs(Question(250, nconnect=4))
    for name in ("queue_pairs", "completion_queues", "idle_bytes", "soft_queues_bytes", "calls"):
        assert getattr(many, name) == 1000 * getattr(one, name)
    assert (one.warnings, many.connections) == ((), 1000)


def test_credits_in_use_have_a_receive_each() -> None:
    module = MODULES["nfsrdma"]
    small = needs(Question(1, module="nfsrdma"))
    large = needs(Question(1, module="nfsrdma", message_bytes=8192))
    more = (module.credits - module.first_credits) * 4096
    assert small.busy_bytes - small.idle_bytes == more
    assert large.busy_bytes - large.idle_bytes == 2 * more
    # rpcrdma allocates them at once
    kernels = needs(Question(1))
    assert kernels.busy_bytes == kernels.idle_bytes
    assert needs(Question(1, credits=128)).busy_bytes == kernels.idle_bytes + 64 * 4096


@pytest.mark.parametrize(
    ("question", "warning"),
    [
        (Question(1025, threads=64, module="nfsrdma"), "server_connections to 1025"),
        (Question(400), "older kernels keep 380 connections with 16 threads of nfsd, and 17 "),
    ],
)
def test_a_limit_that_is_too_low_is_named(question: Question, warning: str) -> None:
    (found,) = needs(question).warnings
    assert warning in found


def test_threads_share_all_calls() -> None:
    assert needs(Question(3, threads=100, credits=50)).calls_per_thread == 2


def test_an_unknown_module_is_an_error() -> None:
    with pytest.raises(UsageError, match="'nfs' is no module"):
        needs(Question(1, module="nfs"))
