# SPDX-License-Identifier: Apache-2.0
"""The table of wordings by release, and its use."""

from __future__ import annotations

from itertools import pairwise

import pytest
from unit.host.kernel_log.test_explain import KERNEL

from nfsrdma_tools.cli.explain import _details
from nfsrdma_tools.host.kernel_log.explain import Explanation, explain
from nfsrdma_tools.host.kernel_log.messages import MESSAGES
from nfsrdma_tools.host.kernel_log.wordings import (
    NEWEST,
    OLDEST,
    WORDINGS,
    YEARS,
    Wording,
    span_of,
    year,
)


def one(text: str) -> Explanation:
    (only,) = explain([text])
    return only


def order(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda wording: wording.format)
def test_each_wording_is_that_of_a_message(wording: Wording) -> None:
    assert wording.message in {message.name for message in MESSAGES}
    since, until = wording.since or OLDEST, wording.until or NEWEST
    assert order(OLDEST) <= order(since) <= order(until) <= order(NEWEST)
    assert year(since) <= year(until)
    samples = [text for name, _, text in KERNEL if name.split(": ")[0] == wording.message]
    assert any(span_of(wording.message, text) for text in samples)


def test_the_years_follow_each_other() -> None:
    ends = [(order(first), order(last)) for first, last in YEARS.values()]
    assert all(first <= last for first, last in ends)
    assert all(earlier[1] < later[0] for earlier, later in pairwise(ends))
    assert list(YEARS) == list(range(2013, 2027))
    # the releases of a series that ends a year are those of kernel.org
    assert [year(release) for release in ("3.19", "4.9", "5.4", "5.10", "6.1", "6.12")] == [
        *(2015, 2016, 2019, 2020, 2022, 2024)
    ]


@pytest.mark.parametrize(
    ("line", "name", "wording"),
    [
        ("rpcrdma: connection to 192.0.2.7:20049 closed (-103)", "connection closed",
         "Linux 3.10 to 4.12 (2013 to 2017)"),
        ("svcrdma: Error -22 posting RDMA_READ", "server work not posted",
         "Linux 3.10 to 4.12 (2013 to 2017)"),
        ("rpcrdma: removing device mlx5_0 for 192.0.2.7:20049", "device removed",
         "Linux 4.13 to 6.10 (2017 to 2024)"),
        ("NFS: __nfs4_reclaim_open_state: Lock reclaim failed!", "locks lost",
         "Linux 3.10 to 5.18 (2013 to 2022)"),
    ],
)  # fmt: skip
def test_an_old_wording_is_dated(line: str, name: str, wording: str) -> None:
    explanation = one(line)
    assert explanation.name == name
    assert ("wording", wording) in _details(explanation)


@pytest.mark.parametrize(
    ("line", "since"),
    [
        ("RPC: Registered rdma transport module.", "3.10"),
        ("rpcrdma: 'frwr' mode is not supported by device mlx4_0", "4.8"),
        ("NFS: store7: lost 2 locks", "5.19"),
    ],
)
def test_a_wording_of_today_is_dated_in_json_alone(line: str, since: str) -> None:
    explanation = one(line)
    assert explanation.wording
    assert (explanation.wording.since, explanation.wording.until) == (since, NEWEST)
    assert "wording" not in dict(_details(explanation))


def test_an_unknown_form_has_no_wording() -> None:
    assert span_of("connection closed", "rpcrdma: connection to 192.0.2.7 is closed") is None
    assert one("siw: got TERMINATE. layer 0, type 2, code 0").wording is None
