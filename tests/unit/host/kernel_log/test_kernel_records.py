# SPDX-License-Identifier: Apache-2.0
"""The collection of kernel log records: its table describes its logs, and no log shows a host."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import pytest
from unit.host.kernel_log.recorded import ENTRIES, FOLDER, TABLE

from nfsrdma_tools.host.kernel_faults import FAULTS

LOGS = sorted(path.name for path in FOLDER.glob("*.log"))
SHOWN = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "0.0.0.0/32")]
"""Addresses that a log may show: those for documentation, and the address of no host."""


def named(entry: dict[str, Any]) -> str:
    return f"{entry['file']}:{entry['lines'][0]}"


def test_each_log_is_described() -> None:
    assert sorted({entry["file"] for entry in ENTRIES}) == LOGS


@pytest.mark.parametrize("entry", ENTRIES, ids=named)
def test_the_lines_of_a_record_are_in_its_log(entry: dict[str, Any]) -> None:
    lines = (FOLDER / entry["file"]).read_text().splitlines()
    first, last = entry["lines"]
    assert 1 <= first <= last <= len(lines)
    assert all(first < number < last for number in entry["foreign"])
    own = "\n".join(
        lines[number - 1] for number in range(first, last + 1) if number not in entry["foreign"]
    )
    name, _, pid = entry["process"].rpartition(" ")
    assert name in own and pid in own


def test_the_table_of_faults_is_that_of_the_package() -> None:
    assert [fault["commit"] for fault in TABLE["fault"]] == [fault.commit for fault in FAULTS]
    for fault in TABLE["fault"]:
        files = {entry["file"] for entry in ENTRIES if entry["fault"] == fault["commit"]}
        assert files == set(fault.get("files", []))
        assert bool(files) == (fault["log"] == "record")


@pytest.mark.parametrize("name", LOGS)
def test_a_log_shows_no_host(name: str) -> None:
    text = (FOLDER / name).read_text()
    for address in re.findall(r"(?<![\d.:-])(?:\d{1,3}\.){3}\d{1,3}(?![\d.-])", text):
        assert any(ipaddress.ip_address(address) in net for net in SHOWN), address
    for mac in re.findall(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", text):
        assert mac.startswith("02:00:"), mac
    for line in re.findall(r"Hardware name: (.*)", text):
        assert line.startswith("Example Inc. "), line
