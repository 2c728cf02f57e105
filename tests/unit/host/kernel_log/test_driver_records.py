# SPDX-License-Identifier: Apache-2.0
"""Completions and resets of each driver, with their meaning written by hand before the code."""

from __future__ import annotations

import re
from typing import Any

import pytest
from unit.doctor.bundles_made import anonymous
from unit.host.kernel_log.recorded import ENTRIES, FOLDER

from nfsrdma_tools.host.kernel_log.explain import Explanation, explain
from nfsrdma_tools.host.kernel_log.messages import MESSAGES

DRIVERS = [entry for entry in ENTRIES if "driver" in entry]
_RANKS = ("error", "warning", "information")


def lines_of(entry: dict[str, Any]) -> list[str]:
    return (FOLDER / str(entry["file"])).read_text().splitlines()


def explained(lines: list[str], entry: dict[str, Any]) -> list[Explanation]:
    """What explains the record: messages about its device, the most severe first."""
    first, last = entry["lines"]
    own = {line[line.index("]") + 2 :] for line in lines[first - 1 : last]}
    explanations = [
        explanation
        for explanation in explain(lines)
        if explanation.example in own and (explanation.where or "where" not in entry["driver"])
    ]
    return sorted(explanations, key=lambda explanation: _RANKS.index(explanation.severity))


@pytest.mark.parametrize("entry", DRIVERS, ids=lambda entry: entry["file"])
def test_a_record_of_a_driver_has_its_meaning(entry: dict[str, Any]) -> None:
    explanations = explained(lines_of(entry), entry)
    assert explanations
    worst, driver = explanations[0], entry["driver"]
    assert (worst.severity, worst.subject, worst.where) == (
        driver["severity"],
        driver.get("device", ""),
        driver.get("where", ""),
    )
    assert (worst.recovers or "unknown") == entry["recovers"]
    completion = entry.get("completion", {})
    if "status" in completion:
        assert [number.name for number in worst.numbers] == [completion["status"]]
    if "qp" in completion:
        assert f"queue pair {completion['qp']:#x}" in worst.meaning
    if "vendor_syndrome" in completion:
        assert f"vendor syndrome {completion['vendor_syndrome']:#04x}" in worst.meaning


_FAMILIES = {
    "mlx4_ib": "mlx4", "mlx4_core": "mlx4", "mlx5_ib": "mlx5", "bnxt_re": "bnxt_re",
    "bnxt_en": "bnxt_en", "irdma": "irdma|ice", "ice": "ice", "qedr": "qedr", "qede": "qede",
    "hns_roce": "hns|request failed", "rdma_rxe": "rxe", "siw": "siw", "mana": "mana",
    "iw_cxgb4": "cxgb4", "ocrdma": "ocrdma", "rpcrdma": "client work", "svcrdma": "server work",
}  # fmt: skip


@pytest.mark.parametrize("entry", DRIVERS, ids=lambda entry: entry["file"])
def test_a_record_is_taken_for_no_other_driver_s(entry: dict[str, Any]) -> None:
    names = [explanation.name for explanation in explain(lines_of(entry))]
    assert names
    assert all(re.match(_FAMILIES[entry["code"]], name) for name in names), names


@pytest.mark.parametrize("entry", DRIVERS, ids=lambda entry: entry["file"])
def test_a_record_of_a_driver_keeps_its_meaning_in_an_anonymized_bundle(
    entry: dict[str, Any],
) -> None:
    lines = lines_of(entry)
    before = [(row.name, row.severity, row.meaning, row.where) for row in explain(lines)]
    kept = anonymous("\n".join(lines) + "\n").split("\n")
    assert [(row.name, row.severity, row.meaning, row.where) for row in explain(kept)] == before


@pytest.mark.parametrize(
    "line",
    [
        "ice 0000:07:00.1 rocep7s0f1: abnormal ae_id = 0x401 bool qp=1 qp_id = 1, ae_src=5",
        "bnxt_en 0000:21:00.0: QPLIB: FP: CQ Processed Req wr_id[1] = 0x1 with status 0x77",
        "hns3 0000:bd:00.0 hns_0: error cqe status 0x77:",
    ],
)
def test_an_unknown_status_is_shown_whole(line: str) -> None:
    (row,) = explain([line])
    assert (row.explained, row.lines, row.numbers, row.where) == (False, (line,), (), "")


def test_a_reset_ends_with_the_recovery_of_the_same_device() -> None:
    begin = "bnxt_en 0000:21:00.0 e0: Firmware fatal reset event received"
    up = "bnxt_en 0000:21:00.{} e0: NIC Link is Up, 100000 Mbps full duplex, Flow control: none"
    for log, severity, recovers in (
        ([begin], "warning", "unknown"),
        ([begin, up.format(1)], "warning", "unknown"),
        ([up.format(0), begin], "warning", "unknown"),
        ([begin, up.format(0)], "information", "yes"),
        ([begin, up.format(0), begin], "warning", "unknown"),
    ):
        (reset,) = explain(log)
        assert (reset.severity, reset.recovers) == (severity, recovers)
        assert ("It works again." in reset.meaning) == (recovers == "yes")


def test_no_escape_of_a_terminal_passes() -> None:
    for entry in DRIVERS:
        lines = [line.replace("]", "]\x1b]0;a\x07", 1) for line in lines_of(entry)]
        for row in explain([*lines, *(f"{line}\x1b[2J" for line in lines_of(entry))]):
            assert "\x1b" not in "".join((row.example, row.subject, row.meaning, *row.lines))


def test_each_reset_has_an_end() -> None:
    names = {message.name for message in MESSAGES}
    for driver in ("mlx4", "mlx5", "bnxt_en", "ice", "qede", "hns", "mana"):
        begins = [
            message
            for message in MESSAGES
            if message.name.startswith(f"{driver} device") and message.ended_by
        ]
        assert begins, driver
        assert {message.ended_by for message in begins} <= names
