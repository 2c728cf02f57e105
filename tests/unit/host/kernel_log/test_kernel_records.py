# SPDX-License-Identifier: Apache-2.0
"""The collection of kernel log records: its table describes its logs, and no log shows a host."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from nfsrdma_tools.host.kernel_faults import FAULTS

DIRECTORY = Path(__file__).parents[2] / "kernel_records"
TABLE = tomllib.loads((DIRECTORY / "records.toml").read_text())
LOGS = sorted(path.name for path in DIRECTORY.glob("*.log"))
SHOWN = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "0.0.0.0/32")]
"""Addresses that a log may show: those for documentation, and the address of no host."""


class Record(NamedTuple):
    file: str
    first: int
    last: int
    foreign: list[int]
    process: str
    fault: str
    kept_aside: bool


RECORDS = [
    Record(
        entry["file"],
        entry["lines"][0],
        entry["lines"][1],
        entry.get("foreign", []),
        entry["process"],
        entry["fault"],
        entry.get("kept_aside", False),
    )
    for entry in TABLE["record"]
]


def test_each_log_is_described() -> None:
    assert sorted({record.file for record in RECORDS}) == LOGS


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record.file}:{record.first}")
def test_the_lines_of_a_record_are_in_its_log(record: Record) -> None:
    lines = (DIRECTORY / record.file).read_text().splitlines()
    assert 1 <= record.first <= record.last <= len(lines)
    assert all(record.first < number < record.last for number in record.foreign)
    own = "\n".join(
        line
        for number, line in enumerate(lines, 1)
        if record.first <= number <= record.last and number not in record.foreign
    )
    name, _, pid = record.process.rpartition(" ")
    assert name in own
    assert pid in own


def test_the_table_of_faults_is_that_of_the_package() -> None:
    assert [fault["commit"] for fault in TABLE["fault"]] == [fault.commit for fault in FAULTS]
    for fault in TABLE["fault"]:
        files = {record.file for record in RECORDS if record.fault == fault["commit"]}
        assert files == set(fault["files"])
        assert bool(files) == (fault["log"] == "record")


def test_twenty_three_logs_are_kept_aside() -> None:
    aside = {record.file for record in RECORDS if record.kept_aside}
    assert len(aside) == 23
    assert all(record.kept_aside for record in RECORDS if record.file in aside)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_shows_no_host(name: str) -> None:
    text = (DIRECTORY / name).read_text()
    for address in re.findall(r"(?<![\d.:-])(?:\d{1,3}\.){3}\d{1,3}(?![\d.-])", text):
        assert any(ipaddress.ip_address(address) in net for net in SHOWN), address
    for mac in re.findall(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", text):
        assert mac.startswith("02:00:"), mac
    for line in re.findall(r"Hardware name: (.*)", text):
        assert line.startswith("Example Inc. "), line
