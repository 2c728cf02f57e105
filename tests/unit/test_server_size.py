# SPDX-License-Identifier: Apache-2.0
"""The needs of a server with many clients: the numbers of the page Scale, and the limits."""

import re
from pathlib import Path

import pytest
import reference

from nfsrdma_tools.errors import UsageError
from nfsrdma_tools.server_size import INLINE_RECV, MODULES, RECEIVES, Question, needs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/scale.md"
KIB = 1 << 10


def measured(name: str, connections: int = 1000) -> list[int]:
    """Slabs and queues of the device in KiB, of a row of the page."""
    part = PAGE.read_text().split("<!-- begin: scale memory -->")[1].split("<!-- end")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in part.splitlines()]
    (row,) = (row for row in rows if row[:2] == [name, str(connections)])
    return [int(cell) for cell in row[3:]]


@pytest.mark.parametrize(("name", "curve"), [("rpcrdma", "kernel's"), ("nfsrdma", "nfsrdma")])
def test_constants_are_those_measured(name: str, curve: str) -> None:
    assert [MODULES[name].idle_kib, MODULES[name].queues_kib] == measured(curve)


def test_a_credit_of_rpcrdma_costs_what_was_measured() -> None:
    slabs, _ = measured("kernel's, 128 credits", 300)
    fewer, _ = measured("kernel's", 300)
    assert MODULES["rpcrdma"].credit_kib == pytest.approx((slabs - fewer) / 64, abs=0.05)


def found(pattern: str, file: str) -> int:
    match = re.search(pattern, (ROOT / "kmod" / file).read_text())
    assert match
    return int(match[1])


def test_numbers_of_the_module_are_those_of_its_source() -> None:
    ours = MODULES["nfsrdma"]
    numbers = reference.numbers()
    connections, credits = numbers["server_connections"], numbers["credits"]
    assert (ours.connections, ours.most_connections) == (connections.default, connections.high)
    assert (ours.credits, ours.most_credits) == (credits.default, credits.high)
    assert numbers["inline_recv"].default == INLINE_RECV
    assert ours.idle_credits == found(r"NFR_SVC_FIRST_GRANT\s+(\d+)u", "server/server.h")
    text = (ROOT / "kmod/server/server.h").read_text()
    assert "return grant + dones + NFR_SVC_CALLBACKS + NFR_REPOST - 1;" in text
    callbacks = found(r"NFR_SVC_CALLBACKS\s+(\d+)", "server/server.h")
    repost = found(r"NFR_REPOST\s+(\d+)", "connection/connection.h")
    assert callbacks + repost - 1 == RECEIVES


def test_all_grows_with_connections() -> None:
    one, many = needs(Question(1)), needs(Question(250, nconnect=4))
    for name in ("queue_pairs", "completion_queues", "idle_bytes", "soft_queues_bytes", "calls"):
        assert getattr(many, name) == 1000 * getattr(one, name)
    assert (one.warnings, many.connections) == ((), 1000)


def test_credits_in_use_have_a_receive_each() -> None:
    module = MODULES["nfsrdma"]
    small = needs(Question(1, module="nfsrdma"))
    large = needs(Question(1, module="nfsrdma", message_bytes=8192))
    more = (module.credits - module.idle_credits) * 4096
    assert small.busy_bytes - small.idle_bytes == more
    assert large.busy_bytes - large.idle_bytes == 2 * more
    assert large.idle_bytes - small.idle_bytes == (module.idle_credits + RECEIVES) * 4096
    few = needs(Question(1, module="nfsrdma", credits=2))
    assert few.busy_bytes == few.idle_bytes == small.idle_bytes - 6 * 4096


def test_rpcrdma_has_memory_for_all_credits_at_once() -> None:
    one, more = needs(Question(1)), needs(Question(1, credits=128))
    assert one.busy_bytes == one.idle_bytes
    assert more.busy_bytes == more.idle_bytes
    # soft-RoCE rounds up, so they are not in proportion
    assert more.soft_queues_bytes is None
    each = MODULES["rpcrdma"].credit_kib * KIB
    assert more.idle_bytes - one.idle_bytes == pytest.approx(64 * each, rel=1e-3)


@pytest.mark.parametrize(
    ("question", "warning"),
    [
        (Question(1025, threads=64, module="nfsrdma"), "server_connections to 1025"),
        (Question(65537, threads=4096, module="nfsrdma"), "65,536 connections at most"),
        (
            Question(65537, threads=4096),
            "a card with bnxt_re has 65,536 at most (bnxt_re.h of Linux)",
        ),
        (
            Question(400),
            "older kernels close connections beyond 380; for 400 they need 17 threads",
        ),
        (Question(1, module="nfsrdma", message_bytes=16384), "messages of 8,192 bytes"),
        (Question(1, message_bytes=8192), "messages of 4,096 bytes"),
    ],
)
def test_a_limit_that_is_too_low_is_named(question: Question, warning: str) -> None:
    (text,) = needs(question).warnings
    assert warning in text


def test_queue_pairs_of_a_card_are_those_of_the_page() -> None:
    row = re.search(
        r"^\| queue pairs of a card \|.* bnxt_re: ([\d,]+) at most", PAGE.read_text(), re.M
    )
    assert row
    most = int(row[1].replace(",", ""))
    threads = most // 16
    assert needs(Question(most, threads=threads)).warnings == ()
    assert f"{most:,}" in needs(Question(most + 1, threads=threads)).warnings[0]


@pytest.mark.parametrize("size", [1023, 65537])
def test_messages_of_another_size_are_an_error(size: int) -> None:
    with pytest.raises(UsageError, match=f"messages of {size} bytes"):
        needs(Question(1, module="nfsrdma", message_bytes=size))


def test_a_queue_pair_of_the_server_has_less_than_512_sends() -> None:
    """Those of the module and of a drain, and one for each context of the RDMA core."""
    credits = MODULES["nfsrdma"].credits
    sends = credits + found(r"NFR_SVC_SENDS\s+(\d+)", "server/connection.c")
    assert sends + 1 + credits == 511


def test_threads_share_all_calls() -> None:
    assert needs(Question(3, threads=100, credits=50)).calls_per_thread == 2


def test_more_credits_than_the_module_allows_are_an_error() -> None:
    assert needs(Question(1, module="nfsrdma", credits=1024)).calls == 1024
    with pytest.raises(UsageError, match="at most 1024"):
        needs(Question(1, module="nfsrdma", credits=1025))


def test_an_unknown_module_is_an_error() -> None:
    with pytest.raises(UsageError, match="'nfs' is no module"):
        needs(Question(1, module="nfs"))
