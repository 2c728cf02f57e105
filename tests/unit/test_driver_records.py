# SPDX-License-Identifier: Apache-2.0
"""Completions and resets of each driver, with their meaning written by hand before the code."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from unit.bundles_made import anonymous

from nfsrdma_tools.host.kernel_log.explain import Explanation, explain
from nfsrdma_tools.host.kernel_log.messages import MESSAGES

FOLDER = Path(__file__).parent / "kernel_records"
ENTRIES = [
    entry
    for entry in tomllib.loads((FOLDER / "records.toml").read_text())["record"]
    if "severity" in entry
]
_RANKS = ("error", "warning", "information")


def lines_of(entry: dict[str, Any]) -> list[str]:
    return (FOLDER / str(entry["file"])).read_text().splitlines()


def explained(lines: list[str], entry: dict[str, Any]) -> list[Explanation]:
    """What explains the record: messages about its device, the most severe first."""
    first, last = entry["lines"]
    own = {line[line.index("]") + 2 :] for line in lines[first - 1 : last]}
    found = [
        one for one in explain(lines) if one.example in own and (one.where or not entry["where"])
    ]
    return sorted(found, key=lambda one: _RANKS.index(one.severity))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_a_record_of_a_driver_has_its_meaning(entry: dict[str, Any]) -> None:
    found = explained(lines_of(entry), entry)
    assert found
    worst = found[0]
    assert (worst.severity, worst.subject, worst.where) == (
        entry["severity"],
        entry["device"],
        entry["where"],
    )
    assert (worst.recovers or "unknown") == entry["recovers"]
    if entry.get("status"):
        assert [number.name for number in worst.numbers] == [entry["status"]]
    if entry.get("qp", -1) >= 0:
        assert f"queue pair {entry['qp']:#x}" in worst.meaning
    if entry.get("vendor_syndrome", -1) >= 0:
        assert f"vendor syndrome {entry['vendor_syndrome']:#04x}" in worst.meaning


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"])
def test_a_record_of_a_driver_keeps_its_meaning_in_an_anonymized_bundle(
    entry: dict[str, Any],
) -> None:
    lines = lines_of(entry)
    before = [(one.name, one.severity, one.meaning, one.where) for one in explain(lines)]
    kept = anonymous("\n".join(lines) + "\n").split("\n")
    assert [(one.name, one.severity, one.meaning, one.where) for one in explain(kept)] == before


def test_each_reset_has_an_end() -> None:
    names = {message.name for message in MESSAGES}
    for driver in ("mlx4", "mlx5", "bnxt_en", "ice", "qede", "hns", "mana"):
        begins = [
            one for one in MESSAGES if one.name.startswith(f"{driver} device") and one.ended_by
        ]
        assert begins, driver
        assert {one.ended_by for one in begins} <= names
